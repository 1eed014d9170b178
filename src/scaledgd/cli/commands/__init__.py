"""The commands and their help. Each command imports what it needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..failures import Interruption
from .options import CleanOptions, CompleteOptions, Quiet, Seed, seed_in_range, takes

EXIT_CODES = (
    "Exit codes: 0 done (a fit that did not converge gives a warning); 1 unexpected failure; 2 bad "
    "input or options, nothing written; 3 (clean) errors could not be told from the rest, and no "
    "cell was marked as an outlier; 130 interrupted. Errors are one line on stderr, beginning "
    "with 'scaledgd: error: '; --debug, or SCALEDGD_TRACEBACK=1 in the environment, prints the "
    "traceback before it."
)
REPRODUCE_EXIT_CODES = (
    "Exit codes: 0 every claim holds; 1 some do not, or an unexpected failure; 2 bad options; 130 "
    "interrupted: run the command again to continue."
)


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # typer would end without a message
            message = str(interrupt) or "interrupted; nothing was written"
            raise Interruption(message) from None


app = typer.Typer(
    name="scaledgd",
    cls=_Commands,
    help="Low-rank matrices and tensors from incomplete or corrupted data.",
    epilog=EXIT_CODES,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Chlorine = Annotated[
    Path | None,
    typer.Option(
        help="Your copy of the monograph's chlorine data; by default the bundled simulation.",
        metavar="FILE",
    ),
]


@app.callback()
def _app(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="With --version: also those of all packages, and how the kernels were compiled.",
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of a failure; all commands do.")
    ] = False,
) -> None:
    if version and verbose:
        from ...versions import show_versions

        show_versions()
        raise typer.Exit
    if version:
        from ... import __version__

        print(f"scaledgd {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog=EXIT_CODES)
@takes(CompleteOptions)
def complete(options: CompleteOptions) -> None:
    """Fill the missing cells of a table, a tensor or a long file.

    Missing cells are empty, NA, NaN, null and the like, or not stored in a sparse matrix. All
    other cells are preserved, byte for byte in text files. Columns of text are passed through, and
    so is a first column that numbers the rows. Delimiters, decimal commas, thousands separators,
    units and percent signs are recognised, and a line says so. Filled values look like the rest of
    their column; see --raw. An empty column stays empty; an empty row is filled like a typical row.
    Arrays of order 3 and more are completed as tensors.

    A table is read twice in batches of rows, and needs memory for the rows of the fit (see
    --fit-rows). A long file needs memory for 16 bytes per line and for the fit. NPZ and Matrix
    Market files are read as a whole. A sparse matrix is filled up to 50 million cells; for larger
    ones use --predict.
    """
    from .run import run

    run(options)


@app.command(epilog=EXIT_CODES)
@takes(CleanOptions)
def clean(options: CleanOptions) -> None:
    """Find gross errors in a table, a tensor or a long file, and repair them.

    OUT is FILE with the outliers replaced by estimates and the missing cells filled; all other
    cells are as they were. With --low-rank, OUT contains the low-rank part of all cells instead,
    which is FILE without its noise. You need not know how many cells are wrong, or by how much; up
    to a third may be wrong.
    """
    from .run import run

    run(options)


@app.command(epilog=EXIT_CODES)
def demo(
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="PAGE")] = Path(
        "report.html"
    ),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Hide some of the bundled sensor readings, fill them, and compare with other methods.

    The data are hourly readings of 60 sensors in a water network, for two weeks. Single cells,
    outages of sensors and a blackout of all of them are hidden, filled by scaledgd, by column
    means, by linear interpolation and by two methods of scikit-learn, and compared with the true
    values. A page with pictures is written, and also a PNG if matplotlib is installed.
    """
    from .demo import run

    run(out, seed_in_range(seed), quiet)


@app.command(epilog=REPRODUCE_EXIT_CODES)
def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            help="Items to run; all by default. --list names them.",
            metavar="[ITEM]...",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Reduced sizes, in a minute or two; the same checks.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the data and the plots.", metavar="FOLDER")
    ] = Path("reproduction"),
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of processes; by default one per core.", min=1, metavar="N"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore the results of an earlier run.")
    ] = False,
    chlorine: Chlorine = None,
    list_items: Annotated[bool, typer.Option("--list", help="List the items and exit.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run every figure, table and theorem of the monograph, and check its claims.

    FOLDER contains report.html, one self-contained page with interactive plots, the data of every
    item as CSV, and plots. An interrupted run continues where it stopped.
    """
    from .reproduce import list_names, run

    if list_items:
        list_names()
    elif not run(out, items or [], quick, jobs, fresh, chlorine, quiet):
        raise typer.Exit(1)
