"""The result of a command: lines for people, facts for scripts, and data for the report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..failures import listed
from ..fitted import Cleaned, Fitted
from ..readers.dates import moment
from ..writers.pictures import Picture

Array = Any


@dataclass(frozen=True, eq=False)
class Summary:
    """What was read, fitted and written.

    Attributes
    ----------
    command : {"complete", "clean"}
    file, out : path
    shape : tuple of int
    observed, missing : int
        Number of cells with a value, and of cells that were filled.
    fitted : Fitted
    names : list of str
        Names of the used columns of a table.
    holes : integer array, optional
        Number of missing cells of each column of a table.
    times : datetime64 array of shape (rows,), optional
        Times of the rows of a table.
    counts : dict
        For a long file, the number of values of each row and of each column.
    pictures : dict
        `Picture` objects by title, for the report.
    notes : list of str
        Warnings, such as empty columns.
    assumed : list of str
        What was detected in the file, and how to override it.
    also : dict
        Further facts for scripts.
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
    times: Array | None = None
    counts: dict[str, Array] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    also: dict[str, Any] = field(default_factory=dict)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, in the units of the report."""
        return self.fitted.noise

    @property
    def warnings(self) -> list[str]:
        """Warnings of the command and of the fit, which may follow from what the data hold."""
        return [*self.notes, *self.fitted.warnings]

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return everything that ``--json`` prints."""
        model, accuracy = self.fitted.model, self.fitted.accuracy
        rank = model.rank_
        facts: dict[str, Any] = {
            "command": self.command,
            "file": str(self.file),
            "out": str(self.out),
            "shape": list(self.shape),
            "observed": self.observed,
            "missing": self.missing,
            "filled": self.missing,
            "rank": list(rank) if isinstance(rank, tuple) else rank,
            "center": model.center_,
            "scale": model.scale_,
            "noise": self.noise,
            "converged": bool(model.converged_),
            "status": model.status_,
            "iterations": model.n_iter_,
            "held_out": None,
            "seconds": round(seconds, 3),
            "assumed": self.assumed,
            "warnings": self.warnings,
        }
        if accuracy is not None:
            facts["held_out"] = {
                "cells": len(accuracy.truth),
                "rmse": accuracy.rmse,
                "r2": accuracy.r2,
                "rmse_of_column_means": accuracy.plain_rmse,
            }
        if isinstance(self.fitted, Cleaned):
            facts["threshold"] = float(getattr(model, "threshold_", math.inf))
        return _finite(facts | self.also)  # type: ignore[no-any-return]

    def lines(self, seconds: float) -> list[str]:
        """Return the lines that the command prints."""
        facts, accuracy = self.facts(seconds), self.fitted.accuracy
        units = " in standard deviations of the columns" if self.fitted.standardised else ""
        lines = [self._size_line()]
        passed = [n for n in self.also.get("passed_through", ()) if n != self.also.get("date")]
        if passed:
            lines.append(f"passed through unchanged: {listed(passed)}")
        if self.times is not None:
            first, last = (moment(t) for t in (self.times.min(), self.times.max()))
            lines.append(f"times of the rows: {listed([self.also['date']])}, {first} to {last}")
        rank = facts["rank"] if isinstance(facts["rank"], int) else tuple(facts["rank"])
        alike = self.also.get("smooth", "none")
        smooth = "" if alike == "none" else f"smooth: {alike}, "
        lines.append(
            f"rank {rank}, centred: {facts['center']}, scaled: {facts['scale']}, "
            f"{smooth}noise {self.noise:.3g}{units}"
        )
        if accuracy is not None:
            lines.append(
                f"held out {len(accuracy.truth):,} cells: R² {accuracy.r2:.3f}, RMSE "
                f"{accuracy.rmse:.4g} (column means: {accuracy.plain_rmse:.4g}){units}"
            )
        if "outliers" in self.also:
            share = self.also["outliers"] / max(1, self.observed)
            lines.append(
                f"{self.also['outliers']:,} outliers ({_percent(share)} of the observed cells)"
            )
        verb = "filled" if self.command == "complete" else "cleaned, and filled"
        also = f", {self.also['intervals']}" if "intervals" in self.also else ""
        cells = "cell" if self.missing == 1 else "cells"
        lines.append(f"{verb} {self.missing:,} {cells} in {seconds:.1f} s: {self.out}{also}")
        return lines

    def _size_line(self) -> str:
        size = " x ".join(f"{n:,}" for n in self.shape)
        share = self.missing / max(1, self.observed + self.missing)
        dense = self.observed + self.missing == math.prod(self.shape)
        holes = f"{self.missing:,} missing" + (f" ({_percent(share)})" if dense else "")
        return f"{self.file}: {size}, {self.observed:,} cells observed, {holes}"


def _finite(x: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
