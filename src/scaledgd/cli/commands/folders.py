"""``complete`` for many long files at once, on a cluster or on several processes.

Files are read in parallel and never brought to one machine. OUT is a folder of Parquet files, one
for every part that was read.
"""

from __future__ import annotations

import contextlib
import glob
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...estimators.plausible import ColumnValues, Plausible
from ..failures import Failure, cause, reworded, shown
from ..fits import Accuracy, Fitted
from ..formats import format_of
from .options import TableOptions
from .summary import Summary

Array = Any


def check(options: TableOptions) -> None:
    """Fail if options do not apply to many files, or if files cannot be read or written."""
    if not options.long:
        raise Failure("--cluster and --workers are for long files; give --long ROW,COLUMN,VALUE")
    if options.cluster is not None and options.workers is not None:
        raise Failure("--cluster and --workers contradict each other; give one of them")
    for option, value in (
        ("--report", options.report),
        ("--text", options.text),
        ("--array", options.array),
        ("--fit-rows", options.fit_rows),
        ("--date", options.date),
        ("--missing", options.missing),
        ("--index", options.index),
        ("--sheet", options.sheet),
        ("--thousands", options.thousands),
        ("--interval", options.interval is not None),
        ("--std", options.std),
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
    if options.out.exists() and not options.force:
        raise Failure(f"{options.out} exists; --force replaces it")
    if not options.out.absolute().parent.is_dir():
        raise Failure(f"the folder of {options.out} does not exist")


def _kind(path: Path) -> str:
    return format_of(path).kind


def _files(path: Path) -> list[str]:
    return sorted(glob.glob(str(path)))


def run(options: TableOptions) -> Summary:
    """Read, fit and write long files; return what happened."""
    try:
        import dask.dataframe  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        raise Failure('--cluster and --workers need Dask: pip install "scaledgd[dask]"') from None
    began = time.perf_counter()
    with _client(options) as client, _folder(options) as folder:
        frame, names = _opened(options)
        pairs = _pairs(options, names)
        holes, means = _surveyed(options, frame, names)
        if pairs is not None:
            holes = len(pairs)
        model, said = _fitted(options, frame[list(names)], client)
        fitted = Fitted(model, None, 0.0, said, options.clip, False)
        accuracy = _accuracy(fitted, means)
        seconds = time.perf_counter() - began
        fitted = Fitted(model, accuracy, seconds, said, options.clip, False)
        plausible = _plausible(options, frame, names[2])
        unknown = _write(frame if pairs is None else pairs, names, fitted, plausible, folder)
    known = model._model.observations
    sides = zip(("rows", "columns"), unknown, strict=True)
    none = " and ".join(f"{n:,} {side}" for side, n in sides if n)
    notes = [f"{none} have no value at all, and are filled like typical ones"] if none else []
    return Summary(
        command=options.command,
        file=options.file,
        out=options.out,
        shape=tuple(known.shape),
        observed=int(known.size + (0 if model._model.held is None else model._model.held.size)),
        missing=holes,
        fitted=fitted,
        notes=notes,
        also=dict(zip(("unknown_rows", "unknown_columns"), unknown, strict=True)),
    )


@contextlib.contextmanager
def _client(options: TableOptions) -> Iterator[Any]:
    """Give a client of the cluster at an address, or of processes that are started here."""
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        if options.cluster is not None:
            try:
                client = Client(options.cluster, timeout="10s")
            except (OSError, ValueError, TimeoutError) as error:
                raise Failure(
                    f"no scheduler answers at {options.cluster}: {cause(error)}"
                ) from None
            yield stack.enter_context(client)
        else:
            cluster = LocalCluster(
                n_workers=options.workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=":0",
            )
            yield stack.enter_context(Client(stack.enter_context(cluster)))


@contextlib.contextmanager
def _folder(options: TableOptions) -> Iterator[Path]:
    """Give a folder to write to, which becomes OUT when all is written."""
    out = options.out.absolute()
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    work.chmod(0o755)
    try:
        yield work
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


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


def _plausible(options: TableOptions, frame: Any, value: str) -> Plausible | None:
    """What values the files hold; None if raw estimates are written."""
    if options.raw:
        return None
    import dask

    parts = dask.compute(*(dask.delayed(_values)(part, value) for part in frame.to_delayed()))
    seen = ColumnValues(1)
    for part in parts:
        seen.add(part)
    return seen.found()


def _values(part: Any, value: str) -> ColumnValues:
    seen = ColumnValues(1)
    seen.add_rows(part[value].to_numpy(dtype=np.float64, na_value=np.nan)[:, None])
    return seen


def _surveyed(options: TableOptions, frame: Any, names: tuple[str, str, str]) -> tuple[int, Any]:
    """Return how many lines have no value, and the means of the columns."""
    import dask
    import pandas as pd

    try:
        found = dask.compute(*(dask.delayed(_counted)(part, names) for part in frame.to_delayed()))
    except Exception as error:
        raise Failure(f"{options.file} cannot be read: {cause(error, 200)}") from None
    holes = sum(one[0] for one in found)
    if not holes and options.predict is None:
        raise Failure(
            f"{options.file}: nothing is missing, so there is nothing to fill; add lines with an "
            "empty value, or give pairs with --predict PAIRS"
        )
    sums = [one[1] for one in found if one[1] is not None]
    if not sums:
        return holes, None
    total = pd.concat(sums).groupby(level=0).sum()
    return holes, total["sum"] / total["count"]


def _counted(part: Any, names: tuple[str, str, str]) -> tuple[int, Any]:
    """Count the lines of a part without a value, and sum the values of every column."""
    import pandas as pd

    value = part[names[2]]
    sums = None
    if len(part) and pd.api.types.is_numeric_dtype(value):  # the fit says what else is wrong
        sums = value.groupby(part[names[1]].to_numpy()).agg(["sum", "count"])
    return int(value.isna().sum()), sums


def _fitted(options: TableOptions, frame: Any, client: Any) -> tuple[Any, tuple[str, ...]]:
    from ...estimators import MatrixCompletion

    settings = options.settings()
    model = MatrixCompletion(
        settings.rank,
        center=settings.center,
        scale=settings.scale,
        smooth="none",
        calibrate=options.hold_out or None,
        tol=settings.tol,
        max_time=settings.max_time,
        random_state=settings.seed,
        verbose=settings.verbose,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(frame, client=client)
        except (ValueError, TypeError, MemoryError) as error:
            raise Failure(reworded(" ".join(str(error).split()))) from error
    ours = [w for w in caught if issubclass(w.category, UserWarning)]
    said = dict.fromkeys(reworded(" ".join(str(w.message).split())) for w in ours)
    return model, tuple(text for text in said if "large graph" not in text)


def _accuracy(fitted: Fitted, means: Any) -> Accuracy | None:
    """How well the held-out cells are predicted."""
    held, model = fitted.model._model.held, fitted.model
    if held is None or means is None:
        return None
    i, j = held.coordinates
    labels = model._names[1].labels
    plain = means.reindex(labels).to_numpy()[j]
    return Accuracy(held.flat, fitted.at(i, j), plain, j)


def _write(
    frame: Any,
    names: tuple[str, str, str],
    fitted: Fitted,
    plausible: Plausible | None,
    folder: Path,
) -> tuple[int, ...]:
    """Fill what is missing and write it; return how many labels were never seen with a value."""
    from dask import delayed

    from ...distributed.far import by_parts, is_far, with_typical
    from ...distributed.lazy import light

    parts, model = frame.to_delayed(), fitted.model
    names_of_files = [str(folder / f"part-{k:05d}.parquet") for k in range(len(parts))]
    labels = delayed(model._names, traverse=False)
    asked = [delayed(_asked, nout=2)(part, names, labels) for part in parts]
    if is_far(model):
        ends = model.factors_.shape
        pairs = [delayed(_or_typical, nout=2)(index, ends) for index in asked]
        values = by_parts(*with_typical(model), [(pair[0], pair[1]) for pair in pairs])
    else:
        near = delayed(Fitted(light(model), None, 0.0, (), None, False), traverse=False)
        values = [delayed(_estimated)(near, index) for index in asked]
    done = [
        delayed(_filled)(part, names, index, found, plausible, fitted.clip, path)
        for part, index, found, path in zip(parts, asked, values, names_of_files, strict=True)
    ]
    import dask

    found = dask.compute(*done)
    return tuple(len(set().union(*(one[k] for one in found))) for k in (0, 1))


def _asked(part: Any, names: tuple[str, str, str], labels: Any) -> tuple[Array, Array]:
    """Rows and columns of the missing cells of a part of the frame; −1 for unknown labels."""
    wanted = part[part[names[2]].isna().to_numpy()]
    i, j = (side.numbers(wanted[name]) for side, name in zip(labels, names[:2], strict=True))
    return i, j


def _or_typical(index: tuple[Array, Array], ends: tuple[int, int]) -> tuple[Array, Array]:
    i, j = (np.where(x < 0, end, x) for x, end in zip(index, ends, strict=True))
    return i, j


def _estimated(fitted: Fitted, index: tuple[Array, Array]) -> Array:
    return fitted.at(*index) if len(index[0]) else np.zeros(0)


def _filled(
    part: Any,
    names: tuple[str, str, str],
    index: tuple[Array, Array],
    new: Array,
    plausible: Plausible | None,
    clip: Any,
    path: str,
) -> tuple[set[Any], set[Any]]:
    """Write a part of the frame with its holes filled; return the unknown labels."""
    value = names[2]
    at = np.flatnonzero(part[value].isna().to_numpy())
    wanted = part.iloc[at]
    unknown = [set(wanted[name][i < 0]) for name, i in zip(names[:2], index, strict=True)]
    if len(at):
        values = part[value].to_numpy(dtype=np.float64, na_value=np.nan).copy()
        new = new if plausible is None else plausible.values(new[:, None])[:, 0]
        values[at] = new if clip is None else np.clip(new, *clip)
        part = part.assign(**{value: values})
    part.to_parquet(path, index=False)
    return unknown[0], unknown[1]
