"""Run the items, judge what was measured, and write one report.

Every measured case is written to a journal at once, so an interrupted run resumes where it
stopped. If any module of the package or the compiled library changes, everything is measured
again.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
import platform
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg

from .. import report
from ..files import replacing
from . import ITEMS
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .journal import Journal, fingerprint

Watch = Callable[[str, int, int], None]
"""Called with the item in progress, the number of cases done, and the number of cases."""


@dataclass(frozen=True)
class Finding:
    """An item with its data and its verdict.

    Parameters
    ----------
    item : Item
    rows : Rows
        What was measured, one row per line of the CSV.
    verdict : Verdict
    seconds : float
        Total time of its cases.

    Examples
    --------
    >>> from scaledgd.experiments import Claim, Finding, Rows, Verdict, item
    >>> verdict = Verdict([Claim("1 + 1 = 2", "2", True)])
    >>> Finding(item("figure1"), Rows(), verdict, seconds=0.1).holds
    True
    """

    item: Item
    rows: Rows
    verdict: Verdict
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(claim.holds for claim in self.verdict.claims)


def item(name: str) -> Item:
    """Return the item with the given name, one of `ITEMS`.

    Parameters
    ----------
    name : str

    Returns
    -------
    Item

    Examples
    --------
    >>> from scaledgd.experiments import item
    >>> item("theorem1").title
    'Matrix sensing'
    """
    if name not in ITEMS:
        raise ValueError(f"there is no item {name!r}; choose from {', '.join(ITEMS)}")
    found: Item = importlib.import_module(f".{name}", __package__).ITEM
    return found


def reproduce(
    folder: str | os.PathLike[str],
    names: Sequence[str] = (),
    setting: Setting | None = None,
    *,
    jobs: int | None = None,
    fresh: bool = False,
    watch: Watch | None = None,
    done: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Measure and judge items; write their data, their plots and one report.

    Parameters
    ----------
    folder : path
        Where to write ``report.html``, ``data/*.csv``, ``plots/*.png`` and the journal.
    names : sequence of str
        Names of items, by default all of `ITEMS`.
    setting : Setting, optional
        Size of the run and path of the chlorine data; by default full size, simulated data.
    jobs : int, optional
        Number of processes, by default the number of cores.
    fresh : bool
        Measure everything again, even if an earlier run of the same code has measured it.
    watch : callable, optional
        Called after every case with the item's source, the number of cases done and their total.
    done : callable, optional
        Called with the `Finding` of every finished item.

    Returns
    -------
    list of Finding
        One per item, in the order of `names`.

    Examples
    --------
    >>> import tempfile
    >>> from scaledgd.experiments import reproduce, Setting
    >>> (found,) = reproduce(tempfile.mkdtemp(), ["figure3"], Setting(quick=True), jobs=1)
    >>> found.holds
    True
    """
    setting, folder = setting or Setting(), Path(folder)
    items = [item(name) for name in names or ITEMS]
    folder.mkdir(parents=True, exist_ok=True)
    code = fingerprint(setting)
    books = {i.name: Journal(folder / ".journal" / f"{i.name}.jsonl", code, fresh) for i in items}
    cases = {i.name: i.cases(setting) for i in items}
    findings: dict[str, Finding] = {}

    def finished(one: Item) -> bool:
        return one.name not in findings and all(c in books[one.name] for c in cases[one.name])

    def conclude(one: Item) -> None:
        findings[one.name] = _concluded(one, cases[one.name], books[one.name], folder)
        if done is not None:
            done(findings[one.name])

    total = sum(map(len, cases.values()))
    left = [(i, c) for i in items for c in cases[i.name] if c not in books[i.name]]
    known = total - len(left)
    for one in items:
        if finished(one):
            conclude(one)
    for count, (one, case, rows, seconds) in enumerate(_measurements(left, jobs), 1):
        books[one.name].add(case, rows, seconds)
        if watch is not None:
            watch(one.source, known + count, total)
        if finished(one):
            conclude(one)
    found = [findings[i.name] for i in items]
    _write_report(folder / "report.html", found, setting)
    return found


# ---- measuring


def _measurements(
    left: list[tuple[Item, Case]], jobs: int | None
) -> Iterator[tuple[Item, Case, list[Row], float]]:
    """Yield the rows of cases as they finish; timed items come last, one case at a time."""
    jobs = jobs or os.cpu_count() or 1
    together = [(i, c) for i, c in left if not i.alone] if jobs > 1 else []
    if together:
        # spawn, not fork: threads do not survive a fork
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _quiet)
        try:
            running = {pool.submit(_measured, i.name, c): (i, c) for i, c in together}
            for future in as_completed(running):
                one, case = running[future]
                yield one, case, *future.result()
        except BaseException:
            # shutdown forgets the workers without stopping them, so keep them to terminate them
            workers = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            raise
        pool.shutdown()
    for one, case in left:
        if jobs == 1 or one.alone:
            yield one, case, *_measured(one.name, case)


def _quiet() -> None:
    """Prepare a worker: one thread, and Ctrl-C is left to the parent process."""
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)


def _measured(name: str, case: Case) -> tuple[list[Row], float]:
    """Measure one case; return its rows and the seconds it took."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        # some items show runs that diverge
        warnings.simplefilter("ignore", sg.DivergenceWarning)
        try:
            rows = item(name).measure(**case)
        except Exception:  # a failing case must not stop the others
            rows = [{"failure": traceback.format_exc(limit=3)}]
    return rows, time.perf_counter() - began


# ---- judging


def _concluded(one: Item, cases: list[Case], book: Journal, folder: Path) -> Finding:
    """Judge an item whose cases are all measured, and write its data and plots."""
    rows, seconds = Rows(), 0.0
    for case in cases:
        measured, spent = book[case]
        rows.extend({**case, **row} for row in measured)
        seconds += spent
    failures = [row["failure"] for row in rows if "failure" in row]
    if failures:
        claim = Claim("everything is measured", failures[0].strip().splitlines()[-1], False)
        return Finding(one, rows, Verdict([claim], [report.Text(*failures)]), seconds)
    verdict = one.judge(rows)
    target = folder / "data" / f"{one.name}.csv"
    target.parent.mkdir(exist_ok=True)
    with replacing(target) as file:
        file.write(table(one, rows).encode())
    _draw(one, verdict, folder / "plots")
    return Finding(one, rows, verdict, seconds)


def table(one: Item, rows: Rows) -> str:
    """Return the rows of an item as CSV, with versions and machine in comment lines on top.

    Parameters
    ----------
    one : Item
    rows : Rows

    Returns
    -------
    str
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    for name, value in provenance().items():
        text.write(f"# {name}: {value}\n")
    text.write(f"# item: {one.source}, {one.title}\n")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _plain(v) for k, v in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"{value:.10g}" if isinstance(value, float) else value


def provenance() -> dict[str, str]:
    """Return the versions and the machine of the measurements, for the report and the data.

    Returns
    -------
    dict of str to str
    """
    import scipy

    cores = os.cpu_count()
    return {
        "scaledgd": sg.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {cores} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def _draw(one: Item, verdict: Verdict, folder: Path) -> None:
    from .drawing import draw

    pictures = [b for block in verdict.blocks for b in getattr(block, "blocks", [block])]
    pictures = [b for b in pictures if isinstance(b, report.Chart | report.HeatMap)]
    for k, picture in enumerate(pictures, 1):
        folder.mkdir(exist_ok=True)
        draw(picture, folder / (f"{one.name}.png" if len(pictures) == 1 else f"{one.name}-{k}.png"))


def _write_report(path: Path, found: list[Finding], setting: Setting) -> None:
    sections = [_section(one) for one in found]
    claims = [
        [c.holds, report.Link(one.item.source, section.anchor), c.says, c.measured]
        for one, section in zip(found, sections, strict=True)
        for c in one.verdict.claims
    ]
    facts = {
        "claims that hold": f"{sum(bool(row[0]) for row in claims)} of {len(claims)}",
        "items": len(found),
        "size": "reduced (--quick)" if setting.quick else "full",
        "total time": _duration(sum(one.seconds for one in found)),
    }
    table = report.Table(["", "where", "the claim", "measured"], claims)
    report.write(
        path,
        "Scaled gradient descent, reproduced",
        [report.Section("Claims", report.Facts(facts), table), *sections],
        "Every figure, table and theorem of “Provably Accelerating Ill-Conditioned Low-rank "
        "Estimation via Scaled Gradient Descent, Even with Overparameterization” by C. Ma, X. Xu, "
        "T. Tong and Y. Chi, and the experiments of its companion papers, run by scaledgd. "
        "Seeds are fixed and sizes are small enough for a laptop; the claims were checked on these "
        "instances only. "
        "Point at a curve to see its numbers, drag to zoom in, click on a name to hide a curve.",
        ", ".join(f"{k} {v}" if k != "machine" else v for k, v in provenance().items()),
    )


def _section(one: Finding) -> report.Section:
    claims = [[c.holds, c.says, c.measured] for c in one.verdict.claims]
    name = f"{one.item.name}.csv"
    return report.Section(
        f"{one.item.source}: {one.item.title}",
        report.Text(one.item.about, *one.verdict.notes),
        report.Table(["", "the claim", "measured"], claims),
        *one.verdict.blocks,
        report.File(name, table(one.item, one.rows), f"data of this item ({name})"),
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{math.ceil(seconds / 60):.0f} min"
