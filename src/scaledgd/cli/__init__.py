"""The command line, ``scaledgd``: a thin list of commands; the work is done elsewhere."""

from __future__ import annotations

import io
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ImportError:  # pragma: no cover
    sys.exit('scaledgd: error: the command line needs more packages: pip install "scaledgd[cli]"')

from .failures import Failure, within

EXITS = (
    "Exit codes: 0 done (also where the fit did not converge, which is warned of); 1 an unexpected "
    "failure; 2 bad input or options, nothing written; 130 interrupted. Errors are one line on "
    "stderr, beginning with 'scaledgd: error: '."
)
REPRODUCED = (
    "Exit codes: 0 every claim holds; 1 some do not, or an unexpected failure; 2 bad options; 130 "
    "interrupted: run it again to go on."
)


class _Interruption(Exception):  # noqa: N818
    """Ctrl-C, with what to say about it."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # typer would end without a word
            message = str(interrupt) or "interrupted; nothing was written"
            raise _Interruption(message) from None


app = typer.Typer(
    name="scaledgd",
    cls=_Commands,
    help="Low-rank matrices and tensors from incomplete or corrupted data.",
    epilog=EXITS,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Side(StrEnum):
    auto = "auto"
    none = "none"
    rows = "rows"
    columns = "columns"
    both = "both"


class Duplicates(StrEnum):
    error = "error"
    mean = "mean"
    first = "first"
    last = "last"


File = Annotated[
    Path,
    typer.Argument(
        help="CSV or TSV (also .gz), Parquet, Feather, NPY, NPZ or Matrix Market, by the suffix.",
        metavar="FILE",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to write; the suffix says the format. Required.",
        metavar="OUT",
    ),
]
Rank = Annotated[
    str, typer.Option(help="auto, a number, or for a tensor one per mode: 3,3,2.", metavar="RANK")
]
Center = Annotated[Side, typer.Option(help="Offsets; auto chooses on held-out cells.")]
Scale = Annotated[Side, typer.Option(help="What is divided by its deviation; auto chooses.")]
CleanCenter = Annotated[
    Side, typer.Option(help="none or columns; auto looks whether columns are unlike each other.")
]
CleanScale = Annotated[Side, typer.Option(help="none or columns, as for --center.")]
Clip = Annotated[
    str | None, typer.Option(help="Bounds of estimates: 1,5 or 0, or ,100.", metavar="LO,HI")
]
Seed = Annotated[int, typer.Option(help="The same seed, the same result.", metavar="N")]
HoldOut = Annotated[
    float,
    typer.Option(
        help="Share of the cells to judge the fit on (100,000 at most); 0: none.", metavar="SHARE"
    ),
]
Long = Annotated[
    str | None,
    typer.Option(
        help="The file is long: names, or positions from 1, of the columns of rows, columns and "
        "values. It is never made dense.",
        metavar="ROW,COL,VALUE",
    ),
]
Predict = Annotated[
    Path | None,
    typer.Option(
        help="Pairs to predict: a file with the columns of rows and columns; OUT has the value "
        "besides. Without it, the rows of a long file whose value is empty are filled. For "
        "Matrix Market the first two columns are row and column, from 1.",
        metavar="PAIRS",
    ),
]
Repeated = Annotated[
    Duplicates, typer.Option(help="What to make of several values for one pair of a long file.")
]
Delimiter = Annotated[
    str | None,
    typer.Option(help="Between cells: a sign, or tab, space; else by the suffix.", metavar="SIGN"),
]
Decimal = Annotated[str, typer.Option(help="The decimal sign.", metavar="SIGN")]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line holds names; else it does unless all of it are numbers "
        "(numbers that count, as 2001,2002,2003 do, are names).",
        show_default=False,
    ),
]
Missing = Annotated[
    list[str],
    typer.Option(
        help="A word or number that means missing, besides NA, NaN, null and the like. May be "
        "repeated.",
        metavar="WORD",
    ),
]
Passed = Annotated[
    list[str],
    typer.Option(
        "--text",
        help="A column to pass through untouched, by name or position, as those of text are. May "
        "be repeated.",
        metavar="COLUMN",
    ),
]
ArrayName = Annotated[
    str | None, typer.Option("--array", help="Which array of an NPZ file.", metavar="NAME")
]
FitRows = Annotated[
    int | None,
    typer.Option(
        help="Fit this many rows, drawn at random, and fill all with that. Else 200,000 (or 20 "
        "times the columns, if that is more), as far as half of the free memory goes.",
        min=2,
        metavar="N",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(help="Also write an HTML page about the data and the fit.", metavar="PAGE"),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace files that exist, the input too if it is OUT.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No summary and no progress.")]
Json = Annotated[bool, typer.Option("--json", help="The summary as one line of JSON.")]

Chlorine = Annotated[
    Path | None,
    typer.Option(
        help="Your copy of the monograph's chlorine data instead of the bundled simulation.",
        metavar="FILE",
    ),
]


@app.callback()
def _app(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from .. import __version__

        print(f"scaledgd {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog=EXITS)
def complete(
    file: File,
    output: Out = None,
    rank: Rank = "auto",
    center: Center = Side.auto,
    scale: Scale = Side.auto,
    clip: Clip = None,
    seed: Seed = 0,
    hold_out: HoldOut = 0.1,
    long: Long = None,
    predict: Predict = None,
    duplicates: Repeated = Duplicates.error,
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    header: Header = None,
    missing: Missing = [],  # noqa: B006
    text: Passed = [],  # noqa: B006
    array: ArrayName = None,
    fit_rows: FitRows = None,
    report: Report = None,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fill the missing cells of a table, a tensor or a long file.

    Missing are empty cells, NA, NaN, null and the like, and what a sparse matrix does not
    store. What is there stays as it is, to the byte where text is written as text; columns of
    text are passed through, and so is a first column that numbers the rows. Truths count as 1 and
    0. A column of which nothing is known stays empty; rows of which nothing is known are filled
    like a typical one. Arrays of order 3 and more are completed as tensors.

    A table is read twice, some rows at a time, and needs memory for the rows of the fit (see
    --fit-rows); a long file for 16 bytes a row and the fit. NPZ and Matrix Market files are read
    whole, and a sparse matrix is filled up to 50 million cells; beyond, use --predict.
    """
    given = dict(locals())
    _carry_out(False, **given)


@app.command(epilog=EXITS)
def clean(
    file: File,
    output: Out = None,
    outliers: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the outliers: row (from 0), column, and what the cell holds "
            "beyond the low-rank part.",
            metavar="OUT2",
        ),
    ] = None,
    rank: Rank = "auto",
    center: CleanCenter = Side.auto,
    scale: CleanScale = Side.auto,
    clip: Clip = None,
    seed: Seed = 0,
    long: Long = None,
    duplicates: Repeated = Duplicates.error,
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    header: Header = None,
    missing: Missing = [],  # noqa: B006
    text: Passed = [],  # noqa: B006
    array: ArrayName = None,
    fit_rows: FitRows = None,
    report: Report = None,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Separate a table, a tensor or a long file into a low-rank part and outliers.

    OUT gets the low-rank part, in the form of FILE; missing cells are filled as well. How many
    cells are wrong, and by how much, need not be known; up to a third may be.
    """
    given = dict(locals())
    _carry_out(True, **given)


@app.command(epilog=EXITS)
def demo(
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="PAGE")] = Path(
        "report.html"
    ),
    chlorine: Chlorine = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Hide a fifth of the bundled sensor data, fill it, and compare with other ways.

    120 sensors in a water network, 180 readings each: the hidden cells are filled by scaledgd, by
    column means, by gradient descent and by iterated soft thresholding, and compared with the
    truth. A page with pictures is written.
    """
    from .demo import run

    run(out, chlorine, within("--seed", seed, 0, 2**32 - 1), quiet)


@app.command(epilog=REPRODUCED)
def reproduce(
    items: Annotated[
        list[str],
        typer.Argument(
            help="Items to run, all by default; --list names them.", metavar="[ITEM]..."
        ),
    ] = [],  # noqa: B006
    quick: Annotated[
        bool, typer.Option("--quick", help="Reduced sizes, in a minute or two; the same checks.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="The folder for report, data and plots.", metavar="FOLDER")
    ] = Path("reproduction"),
    jobs: Annotated[
        int | None, typer.Option(help="Processes; one per core by default.", min=1, metavar="N")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew what an earlier run has measured.")
    ] = False,
    chlorine: Chlorine = None,
    list_items: Annotated[bool, typer.Option("--list", help="Name the items, and end.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run every figure, table and theorem of the monograph, and check its claims.

    FOLDER gets report.html, one self-contained page with interactive curves, the data of every
    item as CSV, and plots. A run that was interrupted goes on where it was.
    """
    from .reproduce import run, show_items

    if list_items:
        show_items()
    elif not run(out, items, quick, jobs, fresh, chlorine, quiet):
        raise typer.Exit(1)


def _carry_out(robust: bool, **given: Any) -> None:
    from .commands import carry_out
    from .options import job_of

    carry_out(job_of(robust, **given))


def main() -> None:
    """Run the command, and end with its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of a terminal that knows no R²
    try:
        code = app(standalone_mode=False, prog_name="scaledgd") or 0
        sys.stdout.flush()
    except Failure as failure:
        code = _told(str(failure), 2)
    except (_Interruption, KeyboardInterrupt) as interrupt:
        code = _told(str(interrupt) or "interrupted", 130)
    except BrokenPipeError:
        # nobody reads on; what is left must not be flushed into nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except ModuleNotFoundError as error:
        code = _told(f'the command line needs {error.name}: pip install "scaledgd[cli]"', 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # of the parser of options, whichever it is
            code = _told(f"{error.format_message()} (see --help)", 2)
        else:
            what = "not enough memory" if isinstance(error, MemoryError) else "unexpected failure"
            code = _told(f"{what}: {type(error).__name__}: {error}", 1)
    sys.exit(code)


def _told(message: str, code: int) -> int:
    print(f"scaledgd: error: {' '.join(message.split())}", file=sys.stderr)
    return code
