"""``scaledgd reproduce``: run the reproduction with a progress bar."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...experiments import ITEMS, Finding, Setting, item, reproduce
from ..failures import Failure
from .checks import check_chlorine


def list_names() -> None:
    """Print the name of every item, and where it is in the monograph."""
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
    """Reproduce items; print after each one whether its claims hold.

    Parameters
    ----------
    folder : path
        Where the report goes.
    names : sequence of str
        Names of the items; all items if it is empty.
    quick : bool
        Use reduced sizes.
    jobs : int, optional
        Number of processes.
    fresh : bool
        Ignore the results of an earlier run.
    chlorine : path, optional
        A copy of the real data.
    quiet : bool
        Print nothing.

    Returns
    -------
    bool
        Whether all claims hold.
    """
    _check(folder, names, chlorine)
    out = Console(quiet=quiet, highlight=False, soft_wrap=True)
    err = Console(file=sys.stderr, quiet=quiet)
    # lines printed above a moving bar must go to the same stream as the bar
    screen = err if err.is_terminal and out.is_terminal else out
    with _bar(err, quiet) as bar:
        task = bar.add_task("measuring", total=None)

        def watch(source: str, count: int, total: int) -> None:
            bar.update(task, description=source, completed=count, total=total)

        try:
            found = reproduce(
                folder,
                names,
                Setting(quick, chlorine),
                jobs=jobs,
                fresh=fresh,
                watch=watch,
                done=lambda one: _print_finding(one, screen),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run it again to continue") from None
    return _print_total(found, folder, out)


def _bar(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _print_finding(one: Finding, screen: Console) -> None:
    claims = one.verdict.claims
    good = sum(claim.holds for claim in claims)
    mark = "[green]✓[/]" if one.holds else "[red]✗[/]"
    title = escape(f"{one.item.source}: {one.item.title}")
    screen.print(f"{mark} {title} [dim]({good} of {len(claims)} claims)[/]", highlight=False)
    for claim in claims:
        if not claim.holds:
            text = escape(f"{claim.says}: {claim.measured}")
            screen.print(f"    [red]not seen:[/] {text}", highlight=False)


def _print_total(found: Sequence[Finding], folder: Path, out: Console) -> bool:
    """Print how many claims hold, and return whether all do."""
    claims = [claim for one in found for claim in one.verdict.claims]
    good = sum(claim.holds for claim in claims)
    out.print(escape(f"{good} of {len(claims)} claims hold: {folder / 'report.html'}"))
    if importlib.util.find_spec("matplotlib") is None:
        note = 'The plots were not drawn: they need matplotlib, pip install "scaledgd[plot]"'
        out.print(escape(note))
    return good == len(claims)


def _check(folder: Path, names: Sequence[str], chlorine: Path | None) -> None:
    """Fail now if the names, the data or the folder are wrong, not after an hour."""
    for name in names:
        if name not in ITEMS:
            raise Failure(f"there is no item {name!r}; the items are {', '.join(ITEMS)}")
    check_chlorine(chlorine)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".journal").mkdir(exist_ok=True)
    except OSError as error:
        raise Failure(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from None
