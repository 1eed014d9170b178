"""``complete`` and ``clean`` for tables and tensors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from ...estimators.plausible import ANY, Plausible
from .. import fits
from ..failures import Failure, listed
from ..fitted import Cleaned, Fitted
from ..formats import format_of
from ..progress import progress_bar
from ..readers.batches import TableReader
from ..readers.dates import AUTO, NONE
from ..readers.opening import open_table
from ..readers.survey import Survey, survey
from ..writers.files import open_outputs
from ..writers.outliers import open_cell_writer
from ..writers.pictures import Picture
from ..writers.report_page import LEVEL, Series, write_report
from ..writers.tables import check_table_format, dropped_columns, open_table_writer
from .options import TableOptions
from .summary import Summary

Array = Any

SHOWN, WINDOW, MOST_KEPT = 4, 300, 100_000
"""Number of columns in the report, of rows of each, and of rows kept to choose them from."""


def run(options: TableOptions) -> Summary:
    """Read, fit and write a table; return what happened."""
    date = options.date or AUTO
    named = None if date in (AUTO, NONE) else date
    table = open_table(
        options.file,
        options.dialect(),
        list(options.text or ()),
        options.array,
        named,
        options.index,
        options.sheet,
    )
    check_table_format(options.out, table)
    outputs = open_outputs(options.out, options.outliers, options.second)
    with outputs as (file, outlier_file, second_file):
        with progress_bar("reading", options.verbose) as progress:
            found, sample, drawn = survey(
                table,
                options.fit_rows,
                options.seed,
                progress,
                date,
                options.index,
                wide=options.long is not None,
            )
        observed, missing = _counted(options, table, found)
        _check_second(options, found)
        pictures = _Pictures(options, found, sample)
        fitted = _fit(options, found, sample, drawn)
        del sample
        cells = _Cells(options, table, found, fitted, pictures)
        cells.write(file, outlier_file, second_file)
        summary = Summary(
            options.command,
            options.file,
            options.out,
            found.shape,
            observed,
            missing,
            fitted,
            names=[table.names[j] for j in found.used],
            holes=found.missing,
            times=None if found.dates is None else found.dates.times,
            pictures=pictures.by_title,
            notes=_notes(options, table, found),
            assumed=[*table.assumed, *found.assumed],
            also={
                "passed_through": [table.names[j] for j in found.passed_through],
                "left_empty": [table.names[j] for j in found.empty],
                "rows_fitted": found.fitted_rows,
                "date": None if found.dates is None else table.names[found.dates.column],
                "smooth": fitted.smooth if table.order == 2 else "none",
                **({"outliers": cells.outliers} if options.robust else {}),
                **({"failed": fitted.failed} if isinstance(fitted, Cleaned) else {}),
                **({"intervals": str(options.second)} if options.second is not None else {}),
            },
        )
        if options.report is not None:
            plausible = None if cells.bare else found.plausible
            write_report(options.report, summary, pictures.series(fitted, summary.times, plausible))
    return summary


def _check_second(options: TableOptions, found: Survey) -> None:
    if options.second is not None and found.fitted_rows < found.rows:
        raise Failure(f"--interval and --std need a fit of all rows: give --fit-rows {found.rows}")


def _counted(options: TableOptions, table: TableReader, found: Survey) -> tuple[int, int]:
    """Return the numbers of observed and of missing cells; fail if there is nothing to do."""
    missing = int(found.missing.sum())
    observed = int(np.prod(found.shape)) - missing
    text = [table.names[j] for j in found.passed_through]
    empty = [table.names[j] for j in found.empty]
    if not observed:
        what = f"no column holds numbers ({listed(text)}: text)" if text else "every cell is empty"
        advice = table.hint() or "check the file, and --delimiter if it is text"
        raise Failure(f"{options.file}: {what}, so there is nothing to learn from; {advice}")
    if table.order == 2 and len(found.used) < 2:
        only = listed([table.names[j] for j in found.used])
        advice = table.hint() or "give a table with at least two columns of numbers"
        rest = f", besides {listed(text)}, which is passed through" if len(text) == 1 else ""
        raise Failure(f"{options.file}: {only} is the only column of numbers{rest}; {advice}")
    codes = " and ".join(_said_of_codes(found))
    if not missing and not options.robust and empty and not codes:
        raise Failure(
            f"{options.file}: only columns without any value have missing cells ({listed(empty)}), "
            "and nothing in the table says what they could be; give more rows, or drop the columns"
        )
    if not missing and not options.robust:
        raise Failure(
            f"{options.file}: nothing is missing, so there is nothing to fill; "
            + (codes or table.missing_hint)
        )
    return observed, missing


def _fit(options: TableOptions, found: Survey, sample: Array, drawn: Array) -> Fitted:
    """Fit the rows of the sample that have a value, or all of them if they have times."""
    settings, data = options.settings(), sample
    if found.dates is None:
        data = sample[~np.all(np.isnan(sample.reshape(len(sample), -1)), axis=1)]
        if found.fitted_rows < found.rows:
            if settings.smooth == "rows":
                raise Failure(
                    "--smooth rows needs the times of rows, or a fit of all of them; name the "
                    "column of times with --date, or raise --fit-rows"
                )
            # rows drawn at random are not neighbours
            settings = replace(settings, smooth="none" if settings.smooth == "auto" else "columns")
        if options.robust and not np.isnan(data).any():
            return fits.clean(data, settings)
    known = fits.observed(data, None if found.dates is None else found.dates.seconds[drawn])
    return (fits.clean if options.robust else fits.complete)(known, settings)


@dataclass(eq=False)
class _Rows:
    """Estimates of all rows of a table, batch by batch.

    Attributes
    ----------
    fitted : Fitted
    found : Survey
    done : int
        Rows of the fit that came before.
    """

    fitted: Fitted
    found: Survey
    done: int = 0

    def estimated(self, X: Array, first: int, wanted: Array) -> Array:
        """Return rows, with estimates in the wanted ones and the others unchanged.

        Parameters
        ----------
        X : array
            A batch of rows.
        first : int
            The number of the first one.
        wanted : boolean array of shape (rows,)
        """
        dates, fitted = self.found.dates, self.fitted
        known = ~np.all(np.isnan(X.reshape(len(X), -1)), axis=1)
        new = X.copy()
        times = None if dates is None else dates.times[first : first + len(X)]
        if fitted.smooth != "rows":
            if not known.all():
                new[~known] = fitted.typical
            rows = wanted & known
            if rows.any():
                new[rows] = fitted.rows(X[rows], None if times is None else times[rows])
            return new
        # a row depends on its neighbours; with times, even an empty row can be estimated
        here = known if dates is None else np.ones(len(X), dtype=bool)
        if not here.all():
            new[~here] = fitted.typical
        if here.any():
            count = int(here.sum())
            if fitted.apart and self.found.fitted_rows == self.found.rows:
                new[here] = fitted.whole[self.done : self.done + count]
            else:
                new[here] = fitted.rows(X[here], None if times is None else times[here])
            self.done += count
        return new


@dataclass(eq=False)
class _Cells:
    """Fill or clean all rows, and write them.

    Attributes
    ----------
    options : TableOptions
    table : TableReader
    found : Survey
    fitted : Fitted
    pictures : _Pictures
    outliers : int
        The number of outliers so far.
    """

    options: TableOptions
    table: TableReader
    found: Survey
    fitted: Fitted
    pictures: _Pictures
    outliers: int = 0
    _in_fit: int = 0

    def write(
        self, file: IO[bytes], outlier_file: IO[bytes] | None, second_file: IO[bytes] | None
    ) -> None:
        options, table, found = self.options, self.table, self.found
        holes = {j for j, n in zip(found.used, found.missing, strict=False) if n}
        estimated = set(found.used) if options.robust else holes
        places = self._places()
        rows = _Rows(self.fitted, found)
        titles = ["value", *self._titles()]
        with (
            open_cell_writer(outlier_file, options.outliers, table, found, ["value"]) as outliers,
            open_cell_writer(second_file, options.second, table, found, titles) as second,
            open_table_writer(file, options.out, table, found, estimated, places) as out,
            progress_bar("writing", options.verbose) as progress,
        ):
            for batch in table.batches(progress):
                X = batch.values[:, found.used] if table.order == 2 else batch.values
                new, changed = self._estimated(batch, X, rows, outliers)
                out.write(batch, new, changed)
                places = self._rows_of_fit(batch.first, X)
                self.pictures.keep(X, new, changed, places)
                if second is not None:
                    second.write(batch, changed, new[changed], *self._sides(places, changed))

    @property
    def bare(self) -> bool:
        """Whether raw estimates are written."""
        options = self.options
        return options.raw or (options.robust and not options.only_outliers)

    def _places(self) -> list[int | None]:
        """Decimal places of the used columns; None where they are not rounded."""
        plausible = self.found.plausible
        if self.bare or plausible is None or self.table.order > 2:
            return [None] * len(self.found.used)
        return [None if n == ANY else int(n) for n in plausible.places]

    def _estimated(self, batch: Any, X: Array, rows: _Rows, outliers: Any) -> tuple[Array, Array]:
        """Return rows with estimates, and where these are."""
        fitted, robust = self.fitted, isinstance(self.fitted, Cleaned)
        changed = np.isnan(X)
        wanted = np.any(changed.reshape(len(X), -1), axis=1)
        estimates = rows.estimated(X, batch.first, wanted | robust)
        if isinstance(fitted, Cleaned):
            deviation = X - estimates
            wrong = np.abs(deviation) > fitted.limit(slice(None))
            self.outliers += int(wrong.sum())
            if outliers is not None:
                outliers.write(batch, wrong, deviation[wrong])
            with_outliers = np.where(wrong, estimates + deviation, estimates)
            self.pictures.add(batch.first, X, estimates, with_outliers)
            changed = changed | wrong if self.options.only_outliers else np.ones_like(changed)
        if not self.bare and self.found.plausible is not None:
            # observed values stay, to the last digit
            estimates = self.found.plausible.values(estimates)
            estimates = fitted._clipped(estimates)
        new = np.where(changed, estimates, X)
        if not robust:
            self.pictures.add(batch.first, X, new)
        return new, changed

    def _titles(self) -> list[str]:
        bounds = ["lower", "upper"] if self.options.interval is not None else []
        return [*bounds, *(["std"] if self.options.std else [])]

    def _rows_of_fit(self, first: int, X: Array) -> Array:
        """Return which rows of the fit the rows of a batch are; −1 if they are not in it."""
        if self.found.fitted_rows < self.found.rows:
            return np.full(len(X), -1)
        if self.found.dates is not None:
            return first + np.arange(len(X))
        # the fit knows only rows that have a value
        known = ~np.all(np.isnan(X.reshape(len(X), -1)), axis=1)
        row = np.where(known, self._in_fit + np.cumsum(known) - 1, -1)
        self._in_fit += int(known.sum())
        return row

    def _sides(self, places: Array, chosen: Array) -> list[Array]:
        """Return bounds and standard deviations of some cells of a batch."""
        rows, *others = np.nonzero(chosen)
        index = (places[rows], *others)
        plausible = None if self.bare else self.found.plausible
        columns: Any = others[0] if self.table.order == 2 else 0
        options = self.options
        sides = self.fitted.sides(index, options.interval, options.std, plausible, columns)
        return list(sides.values())


class _Pictures:
    """Pictures before and after, with standardised columns; none without a report."""

    def __init__(self, options: TableOptions, found: Survey, sample: Array) -> None:
        self.by_title: dict[str, Picture] = {}
        self._kept: list[tuple[Array, ...]] = []
        self._shown: list[int] = []
        if options.report is None:
            return
        if len(found.shape) == 2:
            # where most cells are missing, or anywhere if none are
            most = np.argsort(-found.missing, kind="stable")[:SHOWN]
            spread = np.linspace(0, found.shape[1] - 1, SHOWN).astype(int)
            self._shown = sorted({*(most if found.missing.any() else spread).tolist()})
        titles = ["input", "low-rank part" if options.robust else "filled"]
        titles += ["outliers"] if options.robust else []
        width = int(np.prod(found.shape[1:]))
        self.by_title = {title: Picture(found.rows, width) for title in titles}
        flat = sample.reshape(len(sample), -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about columns without a value in the sample
            self._mean, deviation = np.nanmean(flat, axis=0), np.nanstd(flat, axis=0)
        self._deviation = np.where(deviation > 0, deviation, 1.0)

    def keep(self, before: Array, after: Array, changed: Array, places: Array) -> None:
        """Keep some columns, to show what they were filled with."""
        if self._shown and sum(len(part[0]) for part in self._kept) < MOST_KEPT:
            parts = (x[:, self._shown] for x in (before, after, changed))
            self._kept.append((*parts, places))

    def series(
        self, fitted: Fitted, times: Array | None, plausible: Plausible | None
    ) -> list[Series]:
        """Return the rows around most new cells of the columns that were kept."""
        if not self._kept:
            return []
        before, after, changed, places = (
            np.concatenate(part) for part in zip(*self._kept, strict=True)
        )
        result = []
        for k, j in enumerate(self._shown):
            count = np.concatenate([[0], np.cumsum(changed[:, k])])
            last = max(0, len(changed) - WINDOW)
            inside = count[np.minimum(np.arange(last + 1) + WINDOW, len(changed))]
            begin = int(np.argmax(inside - count[: last + 1]))
            rows = np.arange(begin, min(begin + WINDOW, len(changed)))
            new = changed[rows, k]
            if not new.any():
                continue
            sides = np.full((2, len(rows)), np.nan)
            at = places[rows][new]
            sides[:, new] = fitted.bounds((at, np.full(len(at), j)), LEVEL)
            if plausible is not None:
                sides = plausible.values(sides, np.full(len(rows), j), rounded=False)
            x = rows if times is None else times[rows]
            kept = np.where(new, np.nan, before[rows, k])
            wrong = np.where(new, before[rows, k], np.nan)
            filled = np.where(new, after[rows, k], np.nan)
            result.append(Series(j, x, kept, filled, wrong, sides[0], sides[1]))
        return result

    def add(
        self, first: int, before: Array, after: Array, with_outliers: Array | None = None
    ) -> None:
        """Add rows from number `first` on: before, after, and after with the outliers added."""
        if not self.by_title:
            return
        flat = [x.reshape(len(x), -1) for x in (before, after)]
        shown = [(x - self._mean) / self._deviation for x in flat]
        if with_outliers is not None:
            shown.append((with_outliers.reshape(flat[1].shape) - flat[1]) / self._deviation)
        for picture, values in zip(self.by_title.values(), shown, strict=True):
            picture.add_rows(first, values)


def _said_of_codes(found: Survey) -> list[str]:
    """Return a message for every number that may mean missing."""
    return [
        f"{code:g} occurs {n:,} times, far from all other values; if it means missing, use "
        f"--missing {code:g}"
        for code, n in found.codes.items()
    ]


def _notes(options: TableOptions, table: TableReader, found: Survey) -> list[str]:
    notes = [*([] if options.robust else _said_of_codes(found)), *found.notes]
    names = [table.names[j] for j in found.empty]
    if names:
        columns, stay = ("columns", "stay") if len(names) > 1 else ("column", "stays")
        notes.append(f"the {columns} {listed(names)} had no value and {stay} empty")
    if found.fitted_rows < found.rows:
        notes.append(
            f"the model was fitted to {found.fitted_rows:,} of {found.rows:,} rows and used to "
            "fill the others; --fit-rows changes the number"
        )
    if format_of(options.file).kind == "workbook" and format_of(options.out).kind == "excel":
        notes.append(
            f"{options.out} is a new workbook with the table alone: formats, formulas and other "
            f"sheets of {options.file} are not copied"
        )
    dropped = dropped_columns(options.out, table, found)
    if dropped:
        notes.append(f"{options.out} holds numbers only, without {listed(dropped)}")
    return notes
