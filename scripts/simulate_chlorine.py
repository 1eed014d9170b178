"""Simulate the chlorine data bundled with `scaledgd.datasets.load_chlorine`.

``python scripts/simulate_chlorine.py OUT.npz`` takes a few seconds. It needs the package wntr
(the bundled file was made with 1.5.0), which has the EPANET engine and the network ky10.

A network without chlorine fills from its two reservoirs. Their dose is 1 mg/L and changes a few
times. The walls of the pipes absorb chlorine as fast as it reaches them. Of the junctions that
chlorine reaches within 15 hours, 120 are drawn at random.
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
"""Dose in mg/L in each hour, at both reservoirs."""
WALL = -1 / 86400
"""Reaction at the wall in m/s; 0.1 or 100 times this changes nothing: transport limits it."""
REACHED = 0.05
"""Concentration in mg/L at which a junction counts as reached."""
JUNCTIONS = 120


def network() -> Any:
    """Return the network ky10 with chlorine at its reservoirs."""
    model = wntr.network.WaterNetworkModel("ky10")
    model.options.time.duration = HOURS * 3600
    # the result depends on the quality step: shorter ones make sharper fronts
    model.options.time.quality_timestep = MINUTES * 60
    model.options.time.report_timestep = MINUTES * 60
    model.options.quality.parameter = "CHEMICAL"
    model.options.reaction.wall_coeff = WALL
    model.add_pattern("dose", DOSE)
    for name in model.reservoir_name_list:
        model.add_source(f"chlorine at {name}", name, "CONCEN", 1e-3, "dose")  # 1 mg/L in kg/m³
    return model


def simulate() -> tuple[Any, list[str]]:
    """Return concentrations in mg/L, 120 × 180, from time zero, and the names of the junctions."""
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
    """Write the simulated data to the file named on the command line."""
    parser = argparse.ArgumentParser(description="Simulate chlorine in a water network.")
    parser.add_argument("out", type=Path, help="the .npz to write")
    out = parser.parse_args().out
    X, names = simulate()
    np.savez_compressed(out, X=X, junction=np.array(names), dt_minutes=np.int64(MINUTES))


if __name__ == "__main__":
    main()
