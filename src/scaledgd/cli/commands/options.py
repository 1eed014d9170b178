"""The options of ``complete`` and ``clean``, each declared once, and how they are parsed."""

from __future__ import annotations

import csv
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from ..failures import Failure, within
from ..formats import ARRAYS, BOOKS, format_of

if TYPE_CHECKING:
    from ..fits import Settings
    from ..readers.dialect import Dialect

Options = TypeVar("Options", bound="TableOptions")

DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
"""Names of delimiters that are hard to type in a shell."""


class Side(StrEnum):
    auto = "auto"
    none = "none"
    rows = "rows"
    columns = "columns"
    both = "both"


class Smooth(StrEnum):
    auto = "auto"
    none = "none"
    rows = "rows"
    columns = "columns"


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Duplicates(StrEnum):
    error = "error"
    mean = "mean"
    first = "first"
    last = "last"


def _rank(text: str) -> Any:
    if text == "auto":
        return text
    try:
        ranks = tuple(int(word) for word in text.split(","))
    except ValueError:
        ranks = ()
    if not ranks or min(ranks) < 1:
        raise Failure(
            f"--rank must be auto, a number from 1, or one number per mode: 3,3,2; not {text!r}"
        )
    return ranks[0] if len(ranks) == 1 else ranks


def _bounds(text: str) -> tuple[float | None, float | None]:
    try:
        low, high = (float(word) if word.strip() else None for word in text.split(","))
    except ValueError:
        raise Failure(
            f"--clip takes two bounds, LO,HI, one of which may be empty; not {text!r}"
        ) from None
    if low is not None and high is not None and not low <= high:
        raise Failure(f"--clip takes LO,HI with LO below HI, not {text!r}")
    return low, high


def _long_columns(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    names = next(csv.reader([text]), [])
    if len(names) != 3:
        raise Failure(f"--long takes three columns, ROW,COLUMN,VALUE, not {text!r}")
    return names[0], names[1], names[2]


def _character(option: str, word: str) -> str:
    mark = DELIMITERS.get(word, word)
    if len(mark) != 1 or not mark.isascii() or mark in '"\n\r' or mark.isalnum():
        raise Failure(f"{option} must be one character, such as ',' or ';' or tab, not {word!r}")
    return mark


def seed_in_range(seed: int) -> int:
    """Return a seed, or fail if it is not between 0 and 2³² − 1."""
    return int(within("--seed", seed, 0, 2**32 - 1))


Seed = Annotated[
    int, typer.Option(help="Random seed: equal seeds give equal results.", metavar="N")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary and no progress.")]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """All options of ``complete`` and ``clean``.

    A field is an option: its annotation has the help text, and its default is the default of the
    option. A subclass leaves an option out with ``field(init=False)``.
    """

    robust: ClassVar[bool]
    """Whether the command looks for gross errors."""

    file: Annotated[
        Path,
        typer.Argument(
            help="CSV or TSV (also .gz), a workbook (.xlsx, .xls, .xlsb, .xlsm, .ods), Parquet, "
            "Feather, NPY, NPZ or Matrix Market, by suffix.",
            metavar="FILE",
            show_default=False,
        ),
    ]
    out: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Output file; its suffix gives the format.", metavar="OUT"
        ),
    ]
    outliers: Annotated[
        Path | None,
        typer.Option(
            help="Write the outliers to this file: row (from 0), column, and the cell minus the "
            "low-rank part.",
            metavar="OUT2",
        ),
    ] = None
    rank: Annotated[
        Any,
        typer.Option(
            help="auto, a number, or for a tensor one number per mode: 3,3,2.",
            metavar="RANK",
            parser=_rank,
        ),
    ] = "auto"
    center: Annotated[
        Side, typer.Option(help="Offsets to subtract; auto chooses on held-out cells.")
    ] = Side.auto
    scale: Annotated[
        Side,
        typer.Option(
            help="Rows or columns to divide by their standard deviations; auto chooses on "
            "held-out cells."
        ),
    ] = Side.auto
    smooth: Annotated[
        Smooth,
        typer.Option(
            help="Whether neighbouring rows (or columns) are alike, as in time series; auto tries "
            "it if rows have times or the data suggest it, and keeps what predicts held-out cells "
            "better."
        ),
    ] = Smooth.auto
    date: Annotated[
        str | None,
        typer.Option(
            help="The column with the times of the rows, by name or position from 1; none if there "
            "is none. By default it is detected. It is written back unchanged.",
            metavar="COLUMN",
        ),
    ] = None
    index: Annotated[
        str | None,
        typer.Option(
            help="The column that names the rows, by name or position from 1. It is not filled, "
            "and names the rows in the files of --outliers and --interval.",
            metavar="COLUMN",
        ),
    ] = None
    clip: Annotated[
        Any,
        typer.Option(
            help="Bounds of the estimates: 1,5 or 0, or ,100.", metavar="LO,HI", parser=_bounds
        ),
    ] = None
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Write raw estimates. By default filled values look like the rest of their "
            "column: integers among integers, true or false among booleans, no negative value in "
            "a column without one, nothing outside a scale such as 1 to 5, and as many decimals "
            "as the column has.",
        ),
    ] = False
    only_outliers: Annotated[
        bool,
        typer.Option(
            "--only-outliers/--low-rank",
            help="Repair the outliers, fill the missing cells and leave all others untouched; or "
            "write the low-rank part of every cell.",
        ),
    ] = True
    interval: Annotated[
        float | None,
        typer.Option(
            help="Write a second file, OUT with .interval in its name, with an interval for every "
            "filled cell that contains the value with this probability: 0.9.",
            metavar="LEVEL",
        ),
    ] = None
    std: Annotated[
        bool,
        typer.Option("--std", help="Write standard deviations to that second file."),
    ] = False
    tol: Annotated[float, typer.Option(help="Relative accuracy of the fit.", metavar="TOL")] = 1e-9
    max_time: Annotated[
        float | None,
        typer.Option(
            help="Stop fitting after this many seconds and use the best fit so far. By default "
            "there is no limit.",
            metavar="SECONDS",
        ),
    ] = None
    device: Annotated[
        Device, typer.Option(help="Where to fit: cuda is a GPU, and needs PyTorch.")
    ] = Device.cpu
    seed: Seed = 0
    hold_out: Annotated[
        float,
        typer.Option(
            help="Share of the cells to hold out to measure the accuracy (100,000 cells at most); "
            "0 holds out none.",
            metavar="SHARE",
        ),
    ] = 0.1
    long: Annotated[
        Any,
        typer.Option(
            help="FILE is a long file, with one value per line. Give the columns of row names, "
            "column names and values, by name or position from 1. It is never made dense. With "
            "none, a file that looks like one is read as a table.",
            metavar="ROW,COL,VALUE",
            parser=_long_columns,
        ),
    ] = None
    predict: Annotated[
        Path | None,
        typer.Option(
            help="A file of pairs to predict, with the columns of row and column names; OUT "
            "contains the pairs and their values. Without this option, the lines of a long file "
            "with an empty value are filled. For Matrix Market, the first two columns are row and "
            "column, from 1.",
            metavar="PAIRS",
        ),
    ] = None
    duplicates: Annotated[
        Duplicates,
        typer.Option(help="What to do with several values for one pair of a long file."),
    ] = Duplicates.error
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="Cell separator: a character, or tab or space. By default it is detected.",
            metavar="CHAR",
        ),
    ] = None
    decimal: Annotated[
        str | None,
        typer.Option(help="Decimal mark. By default it is detected.", metavar="CHAR"),
    ] = None
    thousands: Annotated[
        str | None,
        typer.Option(
            help="Separator of thousands, or none. By default it is detected.",
            metavar="CHAR",
        ),
    ] = None
    sheet: Annotated[
        str | None,
        typer.Option(
            help="The sheet of a workbook; by default the first that is not empty.",
            metavar="NAME",
        ),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line holds column names. By default it does, unless all its "
            "cells are numbers; equally spaced integers, such as 2001,2002,2003, are taken as "
            "names.",
            show_default=False,
        ),
    ] = None
    missing: Annotated[
        list[str] | None,
        typer.Option(
            help="A word or number that means missing, in addition to NA, NaN, null and the like. "
            "May be repeated.",
            metavar="WORD",
        ),
    ] = None
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to pass through unchanged, by name or position from 1. Columns of text "
            "are passed through anyway. May be repeated.",
            metavar="COLUMN",
        ),
    ] = None
    array: Annotated[str | None, typer.Option(help="The array of an NPZ file.", metavar="NAME")] = (
        None
    )
    fit_rows: Annotated[
        int | None,
        typer.Option(
            help="Fit this many rows, drawn at random, and fill all rows with the result. By "
            "default 200,000 (or 20 times the number of columns, if that is more), as far as half "
            "of the free memory allows.",
            min=2,
            metavar="N",
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML page about the data and the fit.", metavar="PAGE"),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            help="The address of a Dask scheduler, whose workers read FILE, a pattern such as "
            "'parts/*.parquet', with --long; OUT is then a folder of Parquet files.",
            metavar="ADDRESS",
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="For --cluster tls://…: the certificates (PEM) of the authority that signed those "
            "of the scheduler and of the workers. What is not given here or below is taken from "
            "the configuration of Dask.",
            metavar="FILE",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="The certificate (PEM) of this client.", metavar="FILE"),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            help="The private key of this client, if it is not in the file of --tls-cert.",
            metavar="FILE",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(help="The same with this many processes on this machine.", min=1, metavar="N"),
    ] = None
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace existing files, even FILE if it is OUT. A folder is replaced only if "
            "this command wrote it and nothing else is in it.",
        ),
    ] = False
    quiet: Quiet = False
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one line of JSON.")] = (
        False
    )

    @property
    def command(self) -> str:
        return "clean" if self.robust else "complete"

    @property
    def is_long(self) -> bool:
        """Whether the input is read as single cells instead of a table."""
        return bool(self.long) or self.predict is not None

    @property
    def in_parts(self) -> bool:
        """Whether the input consists of many files, which several processes read."""
        return self.cluster is not None or self.workers is not None

    @property
    def verbose(self) -> int:
        return 0 if self.quiet else 2

    @property
    def second(self) -> Path | None:
        """The file of intervals and standard deviations; None if there is none."""
        if self.interval is None and not self.std:
            return None
        form = format_of(self.out)
        stem = self.out.name.removesuffix(".gz")
        stem = stem[: len(stem) - len(form.suffix)]
        suffix = ".csv" if form.kind in (*ARRAYS, *BOOKS) else form.suffix
        return self.out.with_name(f"{stem}.interval{suffix}")

    def settings(self) -> Settings:
        """Return the options of the fit."""
        from ..fits import Settings

        return Settings(
            rank=self.rank,
            center=str(self.center),
            scale=str(self.scale),
            smooth=str(self.smooth),
            clip=self.clip,
            seed=self.seed,
            hold_out=self.hold_out,
            tol=self.tol,
            max_time=self.max_time,
            device=str(self.device),
            verbose=self.verbose,
        )

    def dialect(self) -> Dialect:
        """Return the options of delimited text."""
        from ..readers.dialect import Dialect

        thousands = self.thousands or ""
        if thousands not in ("", "none", " "):
            thousands = _character("--thousands", thousands)
        return Dialect(*self._marks(), self.header, tuple(self.missing or ()), thousands)

    def _marks(self) -> tuple[str, str]:
        """The given marks; empty if they are to be detected."""
        delimiter = _character("--delimiter", self.delimiter) if self.delimiter else ""
        return delimiter, _character("--decimal", self.decimal) if self.decimal else ""

    def __post_init__(self) -> None:
        seed_in_range(self.seed)
        within("--hold-out", self.hold_out, 0, 0.5)
        within("--tol", self.tol, 0, 1)
        if self.interval is not None and not 0 < self.interval < 1:
            raise Failure(f"--interval must be between 0 and 1, such as 0.9, not {self.interval:g}")
        if self.max_time is not None and not self.max_time > 0:
            raise Failure(f"--max-time must be a number of seconds, not {self.max_time:g}")
        delimiter, decimal = self._marks()
        if delimiter and delimiter == decimal:
            raise Failure("--delimiter and --decimal are the same character; give two")


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(TableOptions):
    """Options of ``complete``."""

    robust = False
    outliers: Path | None = field(default=None, init=False)
    only_outliers: bool = field(default=True, init=False)


@dataclass(frozen=True, kw_only=True)
class CleanOptions(TableOptions):
    """Options of ``clean``."""

    robust = True
    hold_out: float = field(default=0.0, init=False)
    cluster: str | None = field(default=None, init=False)
    tls_ca: Path | None = field(default=None, init=False)
    tls_cert: Path | None = field(default=None, init=False)
    tls_key: Path | None = field(default=None, init=False)
    workers: int | None = field(default=None, init=False)
    predict: Path | None = field(default=None, init=False)
    center: Annotated[
        Side,
        typer.Option(
            help="Offsets: none or columns; auto means columns, unless the cells that are not "
            "outliers can be reproduced without offsets, or the table is large."
        ),
    ] = Side.auto
    scale: Annotated[
        Side,
        typer.Option(
            help="none, or columns to divide each column by its deviation; auto does so if there "
            "are at least twice as many rows as columns and columns get offsets."
        ),
    ] = Side.auto


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Turn a function of an options object into one that typer can call with single options.

    Parameters
    ----------
    options : type
        A dataclass. Its fields become the options of the command.
    """
    hints = get_type_hints(options, include_extras=True)
    signature = inspect.signature(options)
    parameters = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values()]

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate
