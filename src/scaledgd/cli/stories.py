"""What happened to a table: for the summary, for scripts, and for the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .failures import listed
from .fits import Cleaned, Fitted

Array = Any

PICTURE = 120
"""Cells of a picture along a side, at most."""


class Picture:
    """Block means of a table that is seen some rows at a time."""

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = rows, columns
        self.sides = tuple(min(n, PICTURE) for n in self.shape)
        self.sums, self.counts = np.zeros(self.sides), np.zeros(self.sides)

    def place(self, mode: int, i: Array) -> Array:
        """In which block rows or columns are."""
        return np.asarray(i, dtype=np.int64) * self.sides[mode] // self.shape[mode]

    def add(self, first: int, values: Array) -> None:
        """Add whole rows, NaN where there is nothing."""
        rows, columns = values.shape
        edges = np.flatnonzero(np.diff(self.place(1, np.arange(columns)), prepend=-1))
        seen = ~np.isnan(values)
        where = self.place(0, first + np.arange(rows))
        sums = np.add.reduceat(np.where(seen, values, 0.0), edges, axis=1)
        np.add.at(self.sums, where, sums)
        np.add.at(self.counts, where, np.add.reduceat(seen.astype(float), edges, axis=1))

    def add_cells(self, index: tuple[Array, ...], values: Array) -> None:
        """Add single cells."""
        flat = self.place(0, index[0]) * self.sides[1] + self.place(1, index[1])
        n = math.prod(self.sides)
        self.counts += np.bincount(flat, minlength=n).reshape(self.sides)
        self.sums += np.bincount(flat, values, minlength=n).reshape(self.sides)

    def begins(self, mode: int) -> list[int]:
        """The row, or column, that each block begins with."""
        n, blocks = self.shape[mode], self.sides[mode]
        return [-(-k * n // blocks) for k in range(blocks)]

    @property
    def means(self) -> Array:
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Story:
    """What was read, fitted and written.

    Attributes
    ----------
    command : {"complete", "clean"}
    file, out : path
    shape : tuple of int
    observed, missing : int
        Cells that were there, and those that were filled.
    fitted : Fitted
    names : list of str
        Of the columns, where they have any; `holes` are the missing cells of each.
    counts : dict
        Of a long file, how many values its rows have, and its columns.
    pictures : dict
        By title.
    notes : list of str
        What a user should know: columns that were passed through, rows that nothing is known of.
    also : dict
        Further facts, for scripts.
    """

    command: str
    file: Path
    out: Path
    shape: tuple[int, ...]
    observed: int
    missing: int
    fitted: Fitted
    names: list[str] = field(default_factory=list)
    holes: Array | None = None
    counts: dict[str, Array] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    also: dict[str, Any] = field(default_factory=dict)

    @property
    def noise(self) -> float:
        return math.sqrt(max(0.0, self.fitted.model.noise_variance_))

    @property
    def _scaled(self) -> bool:
        return self.fitted.units is not None and self.fitted.units.scaled

    def facts(self, seconds: float) -> dict[str, Any]:
        """All of it, for scripts."""
        model, accuracy = self.fitted.model, self.fitted.accuracy
        rank = model.rank_
        known: dict[str, Any] = {
            "command": self.command,
            "file": str(self.file),
            "out": str(self.out),
            "shape": list(self.shape),
            "observed": self.observed,
            "missing": self.missing,
            "filled": self.missing,
            "rank": list(rank) if isinstance(rank, tuple) else rank,
            "center": model.center_,
            "scale": "columns" if self._scaled else model.scale_,
            "noise": self.noise,
            "converged": bool(model.converged_),
            "status": model.status_,
            "iterations": model.n_iter_,
            "held_out": None,
            "seconds": round(seconds, 3),
            "warnings": [*self.fitted.warnings, *self.notes],
        }
        if accuracy is not None:
            known["held_out"] = {
                "cells": len(accuracy.truth),
                "rmse": accuracy.rmse,
                "r2": accuracy.r2,
                "rmse_of_column_means": accuracy.plain_rmse,
            }
        if isinstance(self.fitted, Cleaned):
            known["center"] = "none" if self.fitted.units is None else "columns"
            known["threshold"] = float(model.threshold_)
        return _plain(known | self.also)  # type: ignore[no-any-return]

    def lines(self, seconds: float) -> list[str]:
        """A few lines for people."""
        accuracy = self.fitted.accuracy
        size = " x ".join(f"{n:,}" for n in self.shape)
        share = self.missing / max(1, self.observed + self.missing)
        dense = self.observed + self.missing == math.prod(self.shape)
        holes = f"{self.missing:,} missing" + (f" ({_percent(share)})" if dense else "")
        lines = [f"{self.file}: {size}, {self.observed:,} cells observed, {holes}"]
        passed = self.also.get("passed_through")
        if passed:
            lines.append(f"passed through untouched: {listed(passed)}")
        facts = self.facts(seconds)
        rank = facts["rank"] if isinstance(facts["rank"], int) else tuple(facts["rank"])
        lines.append(
            f"rank {rank}, centred: {facts['center']}, scaled: {facts['scale']}, "
            f"noise {self.noise:.3g}" + (" of these scales" if self._scaled else "")
        )
        if accuracy is not None:
            lines.append(
                f"held out {len(accuracy.truth):,} cells: R² {accuracy.r2:.3f}, RMSE "
                f"{accuracy.rmse:.4g} (column means: {accuracy.plain_rmse:.4g})"
                + (" of these scales" if self._scaled else "")
            )
        if "outliers" in self.also:
            of = self.also["outliers"] / max(1, self.observed)
            lines.append(
                f"{self.also['outliers']:,} outliers ({_percent(of)} of what was observed)"
            )
        verb = "filled" if self.command == "complete" else "cleaned, and filled"
        cells = "cell" if self.missing == 1 else "cells"
        lines.append(f"{verb} {self.missing:,} {cells} in {seconds:.1f} s: {self.out}")
        return lines


def _plain(x: Any) -> Any:
    """For JSON, which has neither infinity nor NaN."""
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
