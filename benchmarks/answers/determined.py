"""Random tables that their observed cells determine; with chosen, true and too large ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg

from .asked import Array, Ask, Row, SkippedError, timed

PATTERNS = ("uniform", "skewed", "blocks")
COUNT = 1000
RESOLUTION = 1e-6
"""Relative errors below this count as equal."""


@dataclass(frozen=True)
class Table:
    """A random table: the truth, what is observed of it, and how it was drawn."""

    truth: Array
    holes: Array
    """Truth plus noise, NaN where nothing was observed."""
    rank: int
    """Rank of the truth, including offsets."""
    noise: float
    pattern: str
    offsets: tuple[bool, bool]
    scales: tuple[bool, bool]


def pattern(kind: str, shape: tuple[int, int], p: float, least: int, rng: Any) -> Array:
    """Draw which cells are seen.

    Parameters
    ----------
    kind : str
        ``uniform``, ``skewed`` (some rows and columns have far more cells than others) or
        ``blocks`` (every column has runs without cells).
    shape : tuple of two int
    p : float
        Share of cells that are seen.
    least : int
        Least number of cells of a row and of a column.
    rng : Generator

    Returns
    -------
    seen : boolean array of the given shape
    """
    n1, n2 = shape
    if kind == "blocks":
        seen = np.ones(shape, dtype=bool)
        length = max(2, n1 // 10)
        for j in range(n2):
            while seen[:, j].mean() > p:
                start = rng.integers(-length + 1, n1)
                seen[max(start, 0) : start + length, j] = False
    else:
        skewed = kind == "skewed"
        rows, columns = (rng.random(n) ** 2 + 0.1 if skewed else np.ones(n) for n in shape)
        chance = np.log(np.outer(rows, columns)) + rng.gumbel(size=shape)
        seen = chance >= np.quantile(chance, 1 - p)
    for lines in (seen, seen.T):
        for line in lines:
            lacking = least - int(line.sum())
            if lacking > 0:
                line[rng.choice(np.nonzero(~line)[0], lacking, replace=False)] = True
    return seen


def table(number: int) -> Table:
    """Draw a table of 12 to 140 rows and columns, which depends only on its number.

    It has at least three times as many observed cells as degrees of freedom.
    """
    rng = np.random.default_rng([2024, number])
    while True:
        n1, n2 = (round(12 * (140 / 12) ** rng.random()) for _ in range(2))
        offsets, scales = (tuple(bool(k) for k in rng.random(2) < 0.35) for _ in range(2))
        p = rng.uniform(0.3, 0.95)
        r = int(rng.integers(1, 9))
        rank = r + sum(offsets)
        least = rank + 2 + rank // 2
        free = rank * (n1 + n2 - rank)
        if least <= 0.8 * min(n1, n2) and 3 * free <= p * n1 * n2:
            break
    U, V = (np.linalg.qr(rng.standard_normal((n, r)))[0] for n in (n1, n2))
    X = (U * np.geomspace(1, 10 ** -rng.uniform(0, 1.5), r)) @ V.T
    X *= np.sqrt(X.size) / np.linalg.norm(X)
    for axis, n in enumerate((n1, n2)):
        if offsets[axis]:
            size = 10 ** rng.uniform(0, 1.5)
            X = X + np.expand_dims(size * rng.standard_normal(n), 1 - axis)
    noise = 0.0 if rng.random() < 0.25 else float(10 ** rng.uniform(-5, np.log10(0.3)))
    Y = X + noise * rng.standard_normal(X.shape)
    for axis, n in enumerate((n1, n2)):
        if scales[axis]:
            units = np.expand_dims(np.exp(rng.standard_normal(n)), 1 - axis)
            X, Y = X * units, Y * units
    kind = PATTERNS[rng.integers(3)]
    seen = pattern(kind, X.shape, p, least, rng)
    return Table(X, np.where(seen, Y, np.nan), rank, noise, kind, offsets, scales)


def relative_error(table: Table, rank: int | str) -> float:
    """Return the relative error on all cells of the fit to a table."""
    model = sg.MatrixCompletion(rank=rank, random_state=0, max_time=20).fit(table.holes)
    return float(np.linalg.norm(model.reconstruct() - table.truth) / np.linalg.norm(table.truth))


def measured(number: int) -> dict[str, Any]:
    """Return the errors of a table, rank chosen and given, and the CPU seconds of both fits."""
    drawn = table(number)
    auto, first = timed(lambda: relative_error(drawn, "auto"))
    given, second = timed(lambda: relative_error(drawn, drawn.rank))
    return {
        "number": number,
        "version": sg.__version__,
        "auto": float(f"{auto:.3g}"),
        "given": float(f"{given:.3g}"),
        "cpu": [round(first, 3), round(second, 3)],
    }


def recorded(path: Path | None) -> dict[int, dict[str, Any]]:
    """Read recorded errors by number: a line per table, or lists ``auto`` and ``given``."""
    if path is None or not path.exists():
        return {}
    text = path.read_text()
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines()]
        return {line["number"]: line for line in lines}
    lists = json.loads(text)
    pairs = zip(lists["auto"], lists["given"], strict=True)
    return {n: {"auto": auto, "given": given} for n, (auto, given) in enumerate(pairs)}


def ratio(error: float, other: float) -> float:
    """Return the ratio of two errors, 1 if both are below the resolution."""
    return max(error, RESOLUTION) / max(other, RESOLUTION)


def numbers(ask: Ask) -> range:
    """Return the numbers of the requested tables."""
    if ask.only:
        first, _, last = ask.only.partition(":")
        return range(int(first or 0), int(last) if last else int(first) + 1)
    return range(60 if ask.quick else COUNT)


def determined(ask: Ask) -> Iterator[Row]:
    """Complete 1,000 random tables that are determined; rank chosen and given."""
    done, lines = recorded(ask.record), []
    others = {line["version"] for line in done.values()} - {sg.__version__}
    if others:
        raise SkippedError(
            f"{ask.record} holds errors of version {others.pop()}, not {sg.__version__}"
        )
    for number in numbers(ask):
        if number not in done:
            done[number] = measured(number)
            if ask.record is not None:
                with ask.record.open("a") as file:
                    print(json.dumps(done[number]), file=file)
        lines.append(done[number])
    base = recorded(ask.baseline)
    for k, kind in enumerate(("auto", "given")):
        case = f"{len(lines)} tables, rank {kind}"
        errors, cpu = [line[kind] for line in lines], sum(line["cpu"][k] for line in lines)
        yield Row(case=case, measure="median error", value=float(np.median(errors)), cpu=cpu)
        yield Row(
            case=case, measure="share below 1e-6", value=float(np.mean(np.less(errors, 1e-6)))
        )
        yield Row(
            case=case, measure="share above 0.5", value=float(np.mean(np.greater(errors, 0.5)))
        )
        both = [line for line in lines if line["number"] in base]
        if both:
            ratios = [ratio(line[kind], base[line["number"]][kind]) for line in both]
            case = f"{len(both)} tables beside the baseline, rank {kind}"
            yield Row(case=case, measure="median ratio", value=float(np.median(ratios)))
            share = float(np.mean(np.less_equal(ratios, 1.1)))
            yield Row(case=case, measure="share of ratios <= 1.1", value=share)
            worst = both[int(np.argmax(ratios))]["number"]
            yield Row(case=f"{case}, table {worst}", measure="worst ratio", value=max(ratios))


# ---- a rank that is too large


def above_table(number: int, noise: float) -> Table:
    """Draw a table that is determined even with two components more than it has."""
    rng = np.random.default_rng([2025, number])
    while True:
        n1, n2 = (int(n) for n in rng.integers(30, 121, 2))
        rank, p = int(rng.integers(1, 5)), rng.uniform(0.3, 0.6)
        if p * n1 * n2 >= 3 * (rank + 2) * (n1 + n2 - rank - 2):
            break
    X = rng.standard_normal((n1, rank)) @ rng.standard_normal((rank, n2)) / np.sqrt(rank)
    seen = pattern("uniform", X.shape, p, rank + 4, rng)
    Y = np.where(seen, X + noise * rng.standard_normal(X.shape), np.nan)
    return Table(X, Y, rank, noise, "uniform", (False, False), (False, False))


def above(ask: Ask) -> Iterator[Row]:
    """Give a rank two above the truth, and count errors beyond three times the true rank's."""
    count = 10 if ask.quick else 100
    for noise in (0.0, 1e-6, 1e-3):
        case = f"rank + 2 given, noise {noise:g}, {count} tables"
        if ask.only not in case:
            continue
        ratios, wrong, seconds = [], 0, 0.0
        for number in range(count):
            drawn = above_table(number, noise)
            true, _ = timed(lambda: relative_error(drawn, drawn.rank))  # noqa: B023
            error, cpu = timed(lambda: relative_error(drawn, drawn.rank + 2))  # noqa: B023
            ratios.append(ratio(error, true))
            wrong += error > max(1e-3, 3 * true)
            seconds += cpu / count
        yield Row(case=case, measure="wrong", value=wrong, cpu=seconds)
        yield Row(case=case, measure="median ratio", value=float(np.median(ratios)))
        yield Row(case=case, measure="largest ratio", value=max(ratios))
