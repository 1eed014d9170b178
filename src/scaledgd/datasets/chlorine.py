"""Chlorine in drinking water, 120 junctions × 15 hours: the data of the monograph's Fig. 3, 4."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import checks

Array = Any

JUNCTIONS, STEPS, MINUTES, START = 120, 180, 5, 100


@dataclass(frozen=True, eq=False)
class Chlorine:
    """Chlorine concentrations and their source.

    Parameters
    ----------
    X : float64 array of shape (120, 180)
        Concentrations in mg/L, junction × time.
    junctions : tuple of 120 str
        Names in the network, or numbers of the file's columns, from 1.
    minutes : int array of shape (180,)
        Minutes since the first step of the simulation or the file.
    source : str
        Whether this is the simulation or a file, and which part of it.

    Examples
    --------
    >>> import scaledgd as sg
    >>> data = sg.datasets.load_chlorine()
    >>> len(data.junctions) == len(data.X), len(data.minutes) == data.X.shape[1]
    (True, True)
    """

    X: Array
    junctions: tuple[str, ...]
    minutes: Array
    source: str


def load_chlorine(
    path: str | os.PathLike[str] | None = None, *, start: int | None = None
) -> Chlorine:
    """Load chlorine at 120 junctions of a water network, every 5 minutes for 15 hours.

    The monograph's file may not be redistributed. If you have a copy, give its path. By default a
    simulation is loaded: EPANET, run by the package wntr on its network ky10, which fills with
    chlorinated water from time zero (`scripts/simulate_chlorine.py` in the repository). The
    attribute `source` says which of the two it is.

    Parameters
    ----------
    path : str or path, optional
        The file ``cl2fullLarge`` of http://www.cs.cmu.edu/afs/cs/project/spirit-1/www/: numbers
        separated by spaces, one line per step, one column per junction. The same table as
        ``.npy``, as ``X`` in ``.npz``, or a folder with one such file works too.
    start : int, optional
        First of the 180 steps to take from the file, counted from 0; by default 100.

    Returns
    -------
    Chlorine

    Notes
    -----
    It is not known which 120 of the 166 junctions and which 15 hours the monograph used. This
    function takes the first 120 junctions and, by default, the steps 100 to 279.

    The file interpolates coarser samples smoothly, so 15 hours have nearly rank 20. From step 0
    the rank is 20 up to rounding, and a fit of rank 20 is singular. For a start of 100 or later
    (in the first 1000 steps) σ₂₀/σ₁ is between 2.5e-4 and 1.6e-3. The default is 100 because both
    figures of the monograph are reproduced there, with 80 % of the entries and three draws: at
    rank 5 ScaledGD from the spectral start reaches 0.076 in 60 updates; at rank 20 it stays near
    0.3, and from the mixed start it reaches 4e-4 to 8e-4 in 100 updates. In other windows (106 to
    120, one of three draws) the spectral start is slow at rank 5 too.

    ===============  ======  ======  =======  =======  ==============================
    data             σ₅/σ₁   σ₁₀/σ₁  σ₂₀/σ₁   σ₂₁/σ₁   best errors, rank 5, 10, 20
    ===============  ======  ======  =======  =======  ==============================
    file, start=0    0.0927  0.0193  9.0e-11  1.5e-16  0.0936, 0.0217, 5.5e-16
    file, start=100  0.0651  0.0163  6.05e-4  2.94e-4  0.0738, 0.0246, 2.83e-4
    simulation       0.0979  0.0440  0.0178   0.0158   0.1628, 0.0905, 0.0434
    ===============  ======  ======  =======  =======  ==============================

    Examples
    --------
    >>> import scaledgd as sg
    >>> data = sg.datasets.load_chlorine()
    >>> data.X.shape, data.junctions[0], int(data.minutes[-1])
    ((120, 180), 'J-100', 895)
    >>> data.source.split(":")[0]
    'an EPANET simulation of the network ky10, not the data of the monograph'
    """
    if path is not None:
        return _from_file(Path(path), START if start is None else checks.count("start", start))
    if start is not None:
        raise ValueError(
            "start chooses steps of a file, but the simulation has only the 180 steps that it "
            "returns; give path too, or leave out start"
        )
    return _simulated()


def _simulated() -> Chlorine:
    from importlib import resources  # slow to import, and rarely needed

    with (
        (resources.files(__package__) / "data" / "chlorine_sim.npz").open("rb") as f,
        np.load(f, allow_pickle=False) as data,
    ):
        X, junctions = data["X"].astype(np.float64), tuple(data["junction"].tolist())
    source = (
        "an EPANET simulation of the network ky10, not the data of the monograph: 120 of its "
        "junctions, the first 15 hours, every 5 minutes"
    )
    return Chlorine(X, junctions, MINUTES * np.arange(STEPS), source)


def _from_file(path: Path, start: int) -> Chlorine:
    path = _table_in(path) if path.is_dir() else path
    X = _table(path)
    end = start + STEPS
    if X.shape[0] < end or X.shape[1] < JUNCTIONS:
        raise ValueError(
            f"{path} has {X.shape[0]} steps (lines) of {X.shape[1]} junctions (columns), but "
            f"start={start} needs at least {end} of {JUNCTIONS}; lower start, or transpose the "
            "table if its lines are junctions"
        )
    window = np.ascontiguousarray(X[start:end, :JUNCTIONS].T, dtype=np.float64)
    if not np.isfinite(window).all():
        raise ValueError(
            f"{path} has NaN or infinite values in steps {start} to {end - 1}; choose another "
            "start or repair the file"
        )
    source = (
        f"the file {path.name}: the first {JUNCTIONS} of its {X.shape[1]} junctions, steps "
        f"{start} to {end - 1} of its {X.shape[0]}, every {MINUTES} minutes"
    )
    names = tuple(str(k + 1) for k in range(JUNCTIONS))
    return Chlorine(window, names, MINUTES * np.arange(start, end), source)


def _table_in(folder: Path) -> Path:
    """Return the only table in a folder."""
    kinds = (".npz", ".npy", ".txt", ".dat")
    found = sorted(
        p
        for p in folder.iterdir()
        if p.is_file() and (p.suffix in kinds or p.name.startswith("cl2full"))
    )
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise ValueError(
            f"{folder} must hold one table (cl2full*, {', '.join('*' + k for k in kinds)}) but "
            f"holds {len(found)} ({names}); name the file itself"
        )
    return found[0]


def _table(path: Path) -> Array:
    """Read the numbers of a file, time × junction."""
    try:
        if path.suffix in (".npz", ".npy"):
            with path.open("rb") as f:
                loaded = np.load(f, allow_pickle=False)
                found = loaded["X"] if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            found = np.array([line.split() for line in lines if line.strip()], dtype=np.float64)
    except OSError:
        raise
    except Exception as error:  # a damaged file can make a parser raise anything
        raise ValueError(
            f"{path} is not a table of numbers: give lines of one length with spaces between the "
            f"numbers, an .npy, or an .npz with an array X ({error})"
        ) from None
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} holds an array of {found.dtype} of shape {found.shape}; it must hold real "
            "numbers, time × junction"
        )
    return found
