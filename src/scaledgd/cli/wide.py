"""Tables and tensors: filling them, and separating them from gross errors."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from . import fits, pages, sinks, tables
from .cells import Triplets
from .failures import Failure, listed
from .fits import Cleaned, Fitted
from .formats import format_of
from .jobs import Job, progress
from .parts import Part, Source
from .sinks import left_out, outputs, sink, writer
from .stories import Picture, Story
from .tables import Contents

Array = Any


def run(job: Job) -> Story:
    """Do what was asked for."""
    source = tables.opened(job.file, job.dialect, list(job.passed), job.array)
    sinks.check_sink(job.out, source)
    with contextlib.ExitStack() as stack:
        file, errors = outputs(job, stack)
        with progress("reading", job.settings.verbose) as show:
            found, data = tables.contents(source, job.fit_rows, job.settings.seed, show)
        observed, missing = _counted(job, source, found)
        paint = _Paint(job, found, data)
        fitted = _fitted(job, data)
        del data
        outliers = _written(job, source, found, fitted, paint, file, errors)
        story = Story(
            job.command,
            job.file,
            job.out,
            found.shape,
            observed,
            missing,
            fitted,
            names=[source.names[j] for j in found.used],
            holes=found.missing,
            pictures=paint.pictures,
            notes=_notes(job, source, found),
            also={
                "passed_through": [source.names[j] for j in found.passed],
                "left_empty": [source.names[j] for j in found.empty],
                "rows_fitted": found.fitted,
                **({} if outliers is None else {"outliers": outliers}),
            },
        )
        if job.report is not None:
            pages.write(job.report, story)
    return story


def _counted(job: Job, source: Source, found: Contents) -> tuple[int, int]:
    """Cells that are there, and that are not; refused where there is nothing to do."""
    missing = int(found.missing.sum())
    observed = int(np.prod(found.shape)) - missing
    passed = [source.names[j] for j in found.passed]
    empty = [source.names[j] for j in found.empty]
    if not observed:
        what = f"no column holds numbers ({listed(passed)}: text)" if passed else "no cell is known"
        advice = source.advice() or "check the file, and --delimiter if it is text"
        raise Failure(f"{job.file}: {what}, so nothing can be learnt; {advice}")
    if source.order == 2 and len(found.used) < 2:
        only = listed([source.names[j] for j in found.used])
        advice = source.advice() or "give a table with two columns of numbers at least"
        raise Failure(f"{job.file}: {only} is the only column of numbers; {advice}")
    if not missing and not job.robust:
        stays = f" ({listed(empty)}: nothing is known of it, so it cannot be filled)"
        raise Failure(
            f"{job.file}: nothing is missing, so there is nothing to fill{stays if empty else ''}; "
            + source.marks
        )
    return observed, missing


def _fitted(job: Job, data: Array) -> Fitted:
    data = data[~np.all(np.isnan(data.reshape(len(data), -1)), axis=1)]
    if not job.robust:
        return fits.complete(Triplets.of(data), job.settings)
    return fits.clean(Triplets.of(data) if np.isnan(data).any() else data, job.settings)


def _written(
    job: Job,
    source: Source,
    found: Contents,
    fitted: Fitted,
    paint: _Paint,
    file: IO[bytes],
    errors: Any,
) -> int | None:
    """Fill or clean all rows; how many outliers there were, where they were looked for."""
    holes = {j for j, n in zip(found.used, found.missing, strict=False) if n}
    floating = set(found.used) if job.robust else holes
    log = None if errors is None else _Outliers.to(errors, job, source, found)
    count = 0
    with (
        sink(file, job.out, source, found, floating) as out,
        progress("writing", job.settings.verbose) as show,
    ):
        for part in source.parts(show):
            X = part.values[:, found.used] if source.order == 2 else part.values
            known = ~np.all(np.isnan(X.reshape(len(X), -1)), axis=1)
            if isinstance(fitted, Cleaned):
                new, changed = np.empty_like(X), np.ones(X.shape, dtype=bool)
                if not known.all():
                    new[~known] = fitted.typical
                if known.any():
                    new[known] = fitted.rows(X[known])
                off = X - new
                wrong = np.abs(off) > fitted.limit(slice(None))
                count += int(wrong.sum())
                if log is not None:
                    log.write(part, off, wrong)
                paint.add(part.first, X, new, np.where(wrong, new + off, new))
            else:
                new, changed = _filled(fitted, X, known), np.isnan(X)
                paint.add(part.first, X, new)
            out.write(part, new, changed)
    if log is not None:
        log.writer.close()
    return count if job.robust else None


class _Paint:
    """Pictures before and after, where a page is asked for: columns in their own deviations."""

    def __init__(self, job: Job, found: Contents, data: Array) -> None:
        titles = ["as it came", "low-rank part" if job.robust else "filled"]
        titles += ["outliers"] if job.robust else []
        width = int(np.prod(found.shape[1:]))
        self.pictures = {}
        if job.report is not None:
            self.pictures = {title: Picture(found.rows, width) for title in titles}
            flat = data.reshape(len(data), -1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of columns without a number
                self.mean, deviation = np.nanmean(flat, axis=0), np.nanstd(flat, axis=0)
            self.deviation = np.where(deviation > 0, deviation, 1.0)

    def add(self, first: int, before: Array, after: Array, wrong: Array | None = None) -> None:
        """Some rows: as they came, as they are now, and as they would be with their outliers."""
        if not self.pictures:
            return
        flat = [x.reshape(len(x), -1) for x in (before, after)]
        shown = [(x - self.mean) / self.deviation for x in flat]
        if wrong is not None:
            shown.append((wrong.reshape(flat[1].shape) - flat[1]) / self.deviation)
        for picture, values in zip(self.pictures.values(), shown, strict=True):
            picture.add(first, values)


def _filled(fitted: Fitted, X: Array, known: Array) -> Array:
    holes = np.any(np.isnan(X.reshape(len(X), -1)), axis=1)
    new = X.copy()
    if not known.all():
        new[~known] = fitted.typical
    rows = holes & known
    if rows.any():
        some = X[rows]
        new[rows] = np.where(np.isnan(some), fitted.rows(some), some)
    return new


@dataclass(frozen=True, eq=False)
class _Outliers:
    """Cells that are off, in long form."""

    writer: Any
    schema: pa.Schema
    names: list[str]

    @classmethod
    def to(cls, file: Any, job: Job, source: Source, found: Contents) -> _Outliers:
        assert job.outliers is not None
        fields = [("row", pa.int64()), ("column", pa.string())]
        if source.order > 2:
            fields = [(f"mode {k}", pa.int64()) for k in range(source.order)]
        schema = pa.schema([*fields, ("value", pa.float64())])
        names = [source.names[j] for j in found.used]
        return cls(writer(file, format_of(job.outliers), schema), schema, names)

    def write(self, part: Part, off: Array, wrong: Array) -> None:
        rows, *others = np.nonzero(wrong)
        where: list[Any] = [part.first + rows, *others]
        if self.names:
            where[1] = pa.array(self.names).take(pa.array(others[0]))
        arrays = [pa.array(x) for x in (*where, off[wrong])]
        self.writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))


def _notes(job: Job, source: Source, found: Contents) -> list[str]:
    notes = []
    if found.empty:
        names = [source.names[j] for j in found.empty]
        notes.append(f"nothing is known of {listed(names)}, which stays empty")
    if found.fitted < found.rows:
        notes.append(
            f"the fit is made of {found.fitted:,} of {found.rows:,} rows, and the others were "
            "filled with it; --fit-rows says how many"
        )
    lost = left_out(job.out, source, found)
    if lost:
        notes.append(f"{job.out} holds numbers only, and not {listed(lost)}")
    return notes
