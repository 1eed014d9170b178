"""``complete`` and ``clean`` for tables and tensors."""

from __future__ import annotations

import warnings
from typing import IO, Any

import numpy as np

from .. import fits
from ..failures import Failure, listed
from ..fits import Cleaned, Fitted
from ..progress import progress_bar
from ..readers.batches import TableReader
from ..readers.opening import open_table
from ..readers.survey import Survey, survey
from ..writers.files import open_outputs
from ..writers.outliers import open_outlier_writer
from ..writers.pictures import Picture
from ..writers.report_page import write_report
from ..writers.tables import check_table_format, dropped_columns, open_table_writer
from .options import TableOptions
from .summary import Summary

Array = Any


def run(options: TableOptions) -> Summary:
    """Read, fit and write a table; return what happened."""
    table = open_table(options.file, options.dialect(), list(options.text or ()), options.array)
    check_table_format(options.out, table)
    with open_outputs(options.out, options.outliers) as (file, outlier_file):
        with progress_bar("reading", options.verbose) as progress:
            found, sample = survey(table, options.fit_rows, options.seed, progress)
        observed, missing = _counted(options, table, found)
        pictures = _Pictures(options, found, sample)
        fitted = _fit(options, sample)
        del sample
        outliers = _write(options, table, found, fitted, pictures, file, outlier_file)
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
            pictures=pictures.by_title,
            notes=_notes(options, table, found),
            also={
                "passed_through": [table.names[j] for j in found.passed_through],
                "left_empty": [table.names[j] for j in found.empty],
                "rows_fitted": found.fitted_rows,
                **({"outliers": outliers} if options.robust else {}),
                **({"failed": fitted.failed} if isinstance(fitted, Cleaned) else {}),
            },
        )
        if options.report is not None:
            write_report(options.report, summary)
    return summary


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
        raise Failure(f"{options.file}: {only} is the only column of numbers; {advice}")
    if not missing and not options.robust and empty:
        raise Failure(
            f"{options.file}: only columns without any value have missing cells ({listed(empty)}), "
            "and nothing in the table says what they could be; give more rows, or drop the columns"
        )
    if not missing and not options.robust:
        raise Failure(
            f"{options.file}: nothing is missing, so there is nothing to fill; "
            + table.missing_hint
        )
    return observed, missing


def _fit(options: TableOptions, sample: Array) -> Fitted:
    """Fit the rows of the sample that have a value."""
    data = sample[~np.all(np.isnan(sample.reshape(len(sample), -1)), axis=1)]
    if not options.robust:
        return fits.complete(fits.observed(data), options.settings())
    return fits.clean(fits.observed(data) if np.isnan(data).any() else data, options.settings())


def _write(
    options: TableOptions,
    table: TableReader,
    found: Survey,
    fitted: Fitted,
    pictures: _Pictures,
    file: IO[bytes],
    outlier_file: IO[bytes] | None,
) -> int:
    """Fill or clean all rows; return the number of outliers."""
    holes = {j for j, n in zip(found.used, found.missing, strict=False) if n}
    floating = set(found.used) if options.robust else holes
    outliers = 0
    with (
        open_outlier_writer(outlier_file, options.outliers, table, found) as outlier_writer,
        open_table_writer(file, options.out, table, found, floating) as out,
        progress_bar("writing", options.verbose) as progress,
    ):
        for batch in table.batches(progress):
            X = batch.values[:, found.used] if table.order == 2 else batch.values
            if isinstance(fitted, Cleaned):
                new, changed = _cleaned(fitted, X), np.ones(X.shape, dtype=bool)
                deviation = X - new
                wrong = np.abs(deviation) > fitted.limit(slice(None))
                outliers += int(wrong.sum())
                if outlier_writer is not None:
                    outlier_writer.write(batch, deviation, wrong)
                pictures.add(batch.first, X, new, np.where(wrong, new + deviation, new))
            else:
                new, changed = _filled(fitted, X), np.isnan(X)
                pictures.add(batch.first, X, new)
            out.write(batch, new, changed)
    return outliers


def _cleaned(fitted: Cleaned, X: Array) -> Array:
    """Return the low-rank part of rows; a typical row where all cells are missing."""
    known = ~np.all(np.isnan(X.reshape(len(X), -1)), axis=1)
    new = np.empty_like(X)
    if not known.all():
        new[~known] = fitted.typical
    if known.any():
        new[known] = fitted.rows(X[known])
    return new


def _filled(fitted: Fitted, X: Array) -> Array:
    """Return rows with their missing cells filled; a typical row where all are missing."""
    holes = np.isnan(X.reshape(len(X), -1))
    known = ~np.all(holes, axis=1)
    new = X.copy()
    if not known.all():
        new[~known] = fitted.typical
    rows = np.any(holes, axis=1) & known
    if rows.any():
        some = X[rows]
        new[rows] = np.where(np.isnan(some), fitted.rows(some), some)
    return new


class _Pictures:
    """Pictures before and after, with standardised columns; none without a report."""

    def __init__(self, options: TableOptions, found: Survey, sample: Array) -> None:
        self.by_title: dict[str, Picture] = {}
        if options.report is None:
            return
        titles = ["input", "low-rank part" if options.robust else "filled"]
        titles += ["outliers"] if options.robust else []
        width = int(np.prod(found.shape[1:]))
        self.by_title = {title: Picture(found.rows, width) for title in titles}
        flat = sample.reshape(len(sample), -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about columns without a value in the sample
            self._mean, deviation = np.nanmean(flat, axis=0), np.nanstd(flat, axis=0)
        self._deviation = np.where(deviation > 0, deviation, 1.0)

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


def _notes(options: TableOptions, table: TableReader, found: Survey) -> list[str]:
    notes = []
    if found.empty:
        names = [table.names[j] for j in found.empty]
        columns, stay = ("columns", "stay") if len(names) > 1 else ("column", "stays")
        notes.append(f"the {columns} {listed(names)} had no value and {stay} empty")
    if found.fitted_rows < found.rows:
        notes.append(
            f"the model was fitted to {found.fitted_rows:,} of {found.rows:,} rows and used to "
            "fill the others; --fit-rows changes the number"
        )
    dropped = dropped_columns(options.out, table, found)
    if dropped:
        notes.append(f"{options.out} holds numbers only, without {listed(dropped)}")
    return notes
