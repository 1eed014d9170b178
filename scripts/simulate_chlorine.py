"""Simulate the chlorine data that `scaledgd.datasets.load_chlorine` brings along.

``python scripts/simulate_chlorine.py OUT.npz`` takes a few seconds. It needs the package wntr
(1.5.0 made the file), which holds the EPANET engine and the network ky10.

A network without chlorine fills from its two reservoirs. Their dose is 1 mg/L and changes a few
times, and the walls of the pipes take chlorine as fast as it reaches them. Of the junctions that
chlorine reaches within 15 hours, 120 are drawn.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import wntr

MINUTES = 5
HOURS = 15
DOSE = [1.0] * 4 + [0.6] * 2 + [1.2] * 2 + [1.0] * 2 + [0.8] * 2 + [1.0] * 3
"""mg/L in each hour, at both reservoirs."""
WALL = -1 / 86400
"""m/s. A tenth or a hundredfold gives the same: the way to the wall is what limits."""
REACHED = 0.05
"""mg/L at some time within the 15 hours."""
JUNCTIONS = 120


def network() -> Any:
    """The network ky10 with chlorine at its reservoirs."""
    model = wntr.network.WaterNetworkModel("ky10")
    model.options.time.duration = HOURS * 3600
    # the quality step is part of the result: shorter ones make sharper fronts
    model.options.time.quality_timestep = MINUTES * 60
    model.options.time.report_timestep = MINUTES * 60
    model.options.quality.parameter = "CHEMICAL"
    model.options.reaction.wall_coeff = WALL
    model.add_pattern("dose", DOSE)
    for name in model.reservoir_name_list:
        model.add_source(f"chlorine at {name}", name, "CONCEN", 1e-3, "dose")  # 1 mg/L in kg/m³
    return model


def simulate() -> tuple[Any, list[str]]:
    """Concentrations in mg/L, 120 × 180, from time zero, and the names of the junctions."""
    model = network()
    with tempfile.TemporaryDirectory() as folder:
        results = wntr.sim.EpanetSimulator(model).run_sim(file_prefix=str(Path(folder) / "run"))
    quality = 1e3 * results.node["quality"][model.junction_name_list]
    reached = quality.columns[(quality > REACHED).any()]
    drawn = np.random.default_rng(0).choice(len(reached), JUNCTIONS, replace=False)
    names = [str(reached[k]) for k in sorted(drawn)]
    # the state at 15 hours belongs to the next step
    return quality[names].to_numpy().T[:, :-1].astype(np.float32, order="C"), names


def main() -> None:
    """Write the file that was asked for."""
    parser = argparse.ArgumentParser(description="Simulate chlorine in a water network.")
    parser.add_argument("out", type=Path, help="the .npz to write")
    out = parser.parse_args().out
    X, names = simulate()
    np.savez_compressed(out, X=X, junction=np.array(names), dt_minutes=np.int64(MINUTES))


if __name__ == "__main__":
    main()
