"""``complete`` for many long files at once, on a cluster or on several processes.

Files are read in parallel and never brought to one machine. OUT is a folder of Parquet files, one
for every part that was read.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...files import FileError
from ...folders import check as check_folder
from ...folders import recover, replacing
from ..failures import Failure, cause, reworded, shown
from ..fits import HELD_OUT
from ..fitted import Accuracy, Fitted
from ..formats import format_of
from ..writers.files import check_output, check_place
from ..writers.report_page import write_report
from . import parts
from .clients import check_cluster, opened_client
from .long_files import picture_of_estimates
from .options import TableOptions
from .parts import Beside
from .summary import Summary


def check(options: TableOptions) -> None:
    """Fail if options do not apply to many files, or if files cannot be read or written."""
    if not options.long:
        raise Failure("--cluster and --workers are for long files; give --long ROW,COLUMN,VALUE")
    check_cluster(options)
    for option, value in (
        ("--text", options.text),
        ("--array", options.array),
        ("--fit-rows", options.fit_rows),
        ("--date", options.date),
        ("--missing", options.missing),
        ("--index", options.index),
        ("--sheet", options.sheet),
        ("--thousands", options.thousands),
        ("--duplicates", options.duplicates != "error"),
        ("--smooth", options.smooth in ("rows", "columns")),
    ):
        if value:
            raise Failure(f"{option} does not go with --cluster or --workers")
    for path in (options.file, options.predict):
        if path is not None and options.cluster is None and not _files(path):
            raise Failure(f"there is no file {path}")
        if path is not None and _kind(path) not in ("parquet", "text"):
            raise Failure(f"--cluster and --workers read Parquet or CSV, not {path}")
    if options.out.suffix:
        raise Failure(f"-o {options.out} must be a folder here; leave its suffix out")
    check_place("-o", options.out)
    recover(options.out)
    if options.out.exists() and not options.force:
        raise Failure(
            f"-o {options.out} exists; give another name, or --force to replace a folder that "
            "this command wrote"
        )
    try:
        check_folder(options.out, "table", _inputs(options))
    except FileError as error:
        raise Failure(f"-o {error}") from None
    if options.report is not None:
        check_output("--report", options.report, [], options.force)
        if options.out.resolve() in options.report.resolve().parents:
            raise Failure(f"--report {options.report} lies in {options.out}; give another place")


def _kind(path: Path) -> str:
    return format_of(path).kind


def _files(path: Path) -> list[str]:
    return sorted(glob.glob(str(path)))


def _inputs(options: TableOptions) -> list[Path]:
    """The files that are read, as far as this machine sees them."""
    given = [path for path in (options.file, options.predict) if path is not None]
    return [Path(found) for path in given for found in _files(path)]


def run(options: TableOptions) -> Summary:
    """Read, fit and write long files; return what happened."""
    try:
        import dask.dataframe  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        raise Failure('--cluster and --workers need Dask: pip install "scaledgd[dask]"') from None
    began = time.perf_counter()
    with (
        opened_client(options) as client,
        _folder(options) as folder,
        contextlib.ExitStack() as held,
    ):
        frame, names = _opened(options)
        pairs = _pairs(options, names)
        beside = Beside(options.interval, options.std)
        _check_titles(options, beside, frame if pairs is None else pairs)
        holes, entries, means = _surveyed(options, frame, names)
        if pairs is not None:
            holes = pairs.map_partitions(len).compute().tolist()
        model, known, said = held.enter_context(
            _fitted(options, frame[list(names)], client, entries)
        )
        there = copy.copy(model)
        there._model = known  # which knows the entries until they are released
        sure = Fitted(there, None, 0.0, said, options.clip, False)
        sure = replace(sure, accuracy=_accuracy(sure, means), unlike=sure.standardised)
        fitted = replace(sure, model=model, seconds=time.perf_counter() - began)
        if not beside.titles:
            held.close()
        plausible, picture = parts.looked_at(
            *(frame, names, model), not options.raw, options.report is not None
        )
        new = parts.Filling(names, plausible, pairs is None, options.clip, folder)
        unknown = parts.write(
            *(frame if pairs is None else pairs, holes, new),
            *(fitted, sure, beside),
        )
        summary = _summary(options, fitted, sum(holes), unknown)
        if picture is not None:
            pictures = {"input": picture, "estimates": picture_of_estimates(summary.shape, fitted)}
            summary = replace(summary, pictures=pictures)
    if options.report is not None:
        write_report(options.report, summary)
    return summary


def _summary(
    options: TableOptions, fitted: Fitted, holes: int, unknown: tuple[int, ...]
) -> Summary:
    model = fitted.model._model
    known, held = model.observations, model.held
    counts = [known.counts(k) for k in (0, 1)]
    if held is not None:
        also = zip(held.coordinates, counts, strict=True)
        counts = [n + np.bincount(i, minlength=len(n)) for i, n in also]
    sides = "rows", "columns"
    none = " and ".join(f"{n:,} {side}" for side, n in zip(sides, unknown, strict=True) if n)
    notes = [f"{none} have no value at all, and are filled like typical ones"] if none else []
    return Summary(
        command=options.command,
        file=options.file,
        out=options.out,
        shape=tuple(known.shape),
        observed=int(counts[0].sum()),
        missing=holes,
        fitted=fitted,
        counts=dict(zip(sides, counts, strict=True)),
        notes=notes,
        also=dict(zip(("unknown_rows", "unknown_columns"), unknown, strict=True)),
    )


@contextlib.contextmanager
def _folder(options: TableOptions) -> Iterator[Path]:
    """Give a folder to write to, which becomes OUT when all is written."""
    from ... import __version__

    try:
        with replacing(options.out, "table", __version__, _inputs(options)) as folder:
            yield folder
    except FileError as error:
        raise Failure(f"-o {error}") from error


def _opened(options: TableOptions) -> tuple[Any, tuple[str, str, str]]:
    """Return the files as one frame, and the names of row, column and value."""
    frame = _read(options, options.file)
    columns = [str(c) for c in frame.columns]
    found = []
    for word in options.long:
        if word in columns:
            found.append(word)
        elif word.isdigit() and 1 <= int(word) <= len(columns):
            found.append(columns[int(word) - 1])
        else:
            raise Failure(
                f"{options.file} has no column {shown(word)}; it has {', '.join(columns)}"
            )
    return frame, (found[0], found[1], found[2])


def _read(options: TableOptions, path: Path) -> Any:
    import dask.dataframe as dd

    try:
        if _kind(path) == "parquet":
            return dd.read_parquet(str(path), aggregate_files=False)
        delimiter, decimal = _marks(options, path)
        return dd.read_csv(str(path), sep=delimiter, decimal=decimal, blocksize=None)
    except Exception as error:
        raise Failure(f"{path} cannot be read: {cause(error)}") from None


def _pairs(options: TableOptions, names: tuple[str, str, str]) -> Any:
    """Return the pairs to predict as one frame, without values; None if there are none."""
    if options.predict is None:
        return None
    frame = _read(options, options.predict)
    columns = [str(c) for c in frame.columns]
    for name in names[:2]:
        if name not in columns:
            raise Failure(
                f"{options.predict} has no column {shown(name)}; it has {', '.join(columns)}"
            )
    return frame[list(names[:2])].assign(**{names[2]: np.nan})


def _marks(options: TableOptions, path: Path) -> tuple[str, str]:
    """Delimiter and decimal mark: the given ones, or those of the first file."""
    files = _files(path)
    if not files:  # only the workers see them
        given = options.dialect()
        return given.delimiter or format_of(path).delimiter, given.decimal or "."
    from ..readers.text import TextFile

    found = TextFile(Path(files[0]), options.dialect()).dialect
    return found.delimiter, found.decimal


def _check_titles(options: TableOptions, beside: Beside, frame: Any) -> None:
    """Fail if a column that is to be added is there already."""
    for title in beside.titles:
        if title in map(str, frame.columns):
            option = "--std" if title == "std" else "--interval"
            raise Failure(f"{option} adds a column {shown(title)}, but {options.file} has one")


def _surveyed(
    options: TableOptions, frame: Any, names: tuple[str, str, str]
) -> tuple[list[int], int, Any]:
    """Return the lines of every part without a value, those with one, and means of columns."""
    try:
        holes, entries, means = parts.surveyed(frame, names)
    except Exception as error:
        raise Failure(f"{options.file} cannot be read: {cause(error, 200)}") from None
    if not any(holes) and options.predict is None:
        raise Failure(
            f"{options.file}: nothing is missing, so there is nothing to fill; add lines with an "
            "empty value, or give pairs with --predict PAIRS"
        )
    return holes, entries, means


@contextlib.contextmanager
def _fitted(
    options: TableOptions, frame: Any, client: Any, entries: int
) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
    """Give the fitted estimator, the model with the entries, and what the fit warned of."""
    from ...distributed.fitting import open_fit
    from ...distributed.sources import of_frame
    from ...estimators import MatrixCompletion

    settings = options.settings()
    model = MatrixCompletion(
        settings.rank,
        center=settings.center,
        scale=settings.scale,
        smooth="none",
        calibrate=min(options.hold_out, HELD_OUT / max(1, entries)) or None,
        tol=settings.tol,
        max_time=settings.max_time,
        random_state=settings.seed,
        verbose=settings.verbose,
    )
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = stack.enter_context(
                    open_fit(model, lambda workers: of_frame(workers, frame), client, frame)
                )
            except (ValueError, TypeError, MemoryError) as error:
                raise Failure(reworded(" ".join(str(error).split()))) from error
        ours = [w for w in caught if issubclass(w.category, UserWarning)]
        said = dict.fromkeys(reworded(" ".join(str(w.message).split())) for w in ours)
        yield *found, tuple(text for text in said if "large graph" not in text)


def _accuracy(fitted: Fitted, means: Any) -> Accuracy | None:
    """How well the held-out cells are predicted."""
    from ...estimators.units import column_units

    held, model = fitted.model._model.held, fitted.model
    if held is None or means is None:
        return None
    i, j = held.coordinates
    plain = means.reindex(model._names[1].labels).to_numpy()[j]
    units = {}
    if fitted.standardised:
        known = column_units(model._model.observations)
        units = {"offset": known.offset[j], "scale": known.scale[j]}
    return Accuracy(held.flat, fitted.at(i, j), plain, j, **units)
