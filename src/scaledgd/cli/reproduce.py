"""``scaledgd reproduce``: what a person at a terminal sees of the reproduction."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..experiments import ITEMS, Finding, Setting, item, reproduce
from .failures import Failure, check_chlorine


def show_items() -> None:
    """Name the items, with where the monograph has them."""
    for name in ITEMS:
        one = item(name)
        print(f"{name:20s} {one.source}: {one.title}")


def run(
    folder: Path,
    names: Sequence[str],
    quick: bool = False,
    jobs: int | None = None,
    fresh: bool = False,
    chlorine: Path | None = None,
    quiet: bool = False,
) -> bool:
    """Reproduce with a bar; say of every item, when it is done, whether its claims hold.

    Parameters
    ----------
    folder : path
        Where the report goes.
    names : sequence of str
        Of items; all if there are none.
    quick : bool
        At reduced size.
    jobs : int, optional
        Processes.
    fresh : bool
        Measure anew what an earlier run has measured.
    chlorine : path, optional
        The real data.
    quiet : bool
        Say nothing.

    Returns
    -------
    bool
        Whether all claims hold.
    """
    _check(folder, names, chlorine)
    out = Console(quiet=quiet, highlight=False, soft_wrap=True)
    err = Console(file=sys.stderr, quiet=quiet)
    stage = TextColumn("{task.description}")
    # lines above a moving bar must go where the bar goes
    lines = err if err.is_terminal and out.is_terminal else out
    bar = Progress(
        stage, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=err,
        disable=quiet or not err.is_terminal,
    )  # fmt: skip

    def done(one: Finding) -> None:
        claims = one.verdict.claims
        good = sum(claim.holds for claim in claims)
        mark = "[green]✓[/]" if one.holds else "[red]✗[/]"
        title = escape(f"{one.item.source}: {one.item.title}")
        lines.print(f"{mark} {title} [dim]({good} of {len(claims)} claims)[/]", highlight=False)
        for claim in claims:
            if not claim.holds:
                text = escape(f"{claim.says}: {claim.measured}")
                lines.print(f"    [red]not seen:[/] {text}", highlight=False)

    with bar:
        task = bar.add_task("measuring", total=None)

        def watch(source: str, count: int, total: int) -> None:
            bar.update(task, description=source, completed=count, total=total)

        try:
            found = reproduce(
                folder, names, Setting(quick, chlorine), jobs=jobs, fresh=fresh, watch=watch,
                done=done,
            )  # fmt: skip
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run it again to go on where it was") from None
    claims = [claim for one in found for claim in one.verdict.claims]
    good = sum(claim.holds for claim in claims)
    out.print(escape(f"{good} of {len(claims)} claims hold: {folder / 'report.html'}"))
    if importlib.util.find_spec("matplotlib") is None:
        note = 'The plots were not drawn: they need matplotlib, pip install "scaledgd[plot]"'
        out.print(escape(note))
    return good == len(claims)


def _check(folder: Path, names: Sequence[str], chlorine: Path | None) -> None:
    """Say at once what would come out an hour later."""
    for name in names:
        if name not in ITEMS:
            raise Failure(f"there is no item {name!r}; there are {', '.join(ITEMS)}")
    check_chlorine(chlorine)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".journal").mkdir(exist_ok=True)
    except OSError as error:
        raise Failure(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from None
