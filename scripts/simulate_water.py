"""Simulate the sensor readings bundled with `scaledgd.datasets.load_water`.

``python scripts/simulate_water.py OUT.npz`` takes about ten seconds. It needs the package wntr
(the bundled file was made with 1.5.0), which has the EPANET engine and the network ky10.

Chlorine is added at both reservoirs, in doses that drift. Every junction uses water according to
the hourly pattern of the network, shifted by up to an hour. At weekends most junctions use it two
hours later, and the others half as much. Demand varies around that, for all junctions together and
for each on its own. After four days, two weeks of 60 junctions that chlorine reaches are kept;
sensors read them with an error of 0.01 mg/L.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import wntr

HOUR = 3600
DAYS, SETTLING = 14, 4
SENSORS = 60
DECAY = -0.5 / 86400
"""Reaction in the water, per second."""
WALL = -1 / 86400
"""Reaction at the walls of pipes in m/s."""
ERROR = 0.01
"""Standard deviation of readings in mg/L."""
REACHED, VARIES = 0.1, 0.02
"""Least mean and standard deviation in mg/L of a junction with a sensor."""


def drifting(rng: Any, memory: float, size: float) -> Any:
    """Return a number per hour: an autoregression of one step."""
    steps = size * np.sqrt(1 - memory**2) * rng.standard_normal(24 * (DAYS + SETTLING))
    found = np.empty_like(steps)
    found[0] = size * rng.standard_normal()
    for t in range(1, len(steps)):
        found[t] = memory * found[t - 1] + steps[t]
    return found


def network(rng: Any) -> Any:
    """Return the network ky10 with demand that varies, and chlorine at its reservoirs."""
    model = wntr.network.WaterNetworkModel("ky10")
    model.options.time.duration = 24 * (DAYS + SETTLING) * HOUR
    model.options.time.quality_timestep = 300
    model.options.time.report_timestep = HOUR
    model.options.quality.parameter = "CHEMICAL"
    model.options.reaction.bulk_coeff = DECAY
    model.options.reaction.wall_coeff = WALL
    usual = np.asarray(model.get_pattern("1").multipliers)
    hours = np.arange(24 * (DAYS + SETTLING))
    weekend = (hours // 24 - SETTLING) % 7 >= 5
    together = drifting(rng, 0.97, 0.1)
    for name in model.junction_name_list:
        junction = model.get_node(name)
        workday = np.roll(usual, rng.integers(-1, 2))[hours % 24]
        late = rng.random() < 0.7
        day_off = np.roll(usual, 2)[hours % 24] if late else 0.5 * workday
        demand = np.where(weekend, day_off, workday) * np.exp(together + drifting(rng, 0.8, 0.25))
        model.add_pattern(f"of-{name}", demand.tolist())
        for part in junction.demand_timeseries_list:
            part.pattern_name = f"of-{name}"
    model.add_pattern("dose", (1 + drifting(rng, 0.95, 0.1)).tolist())
    for name in model.reservoir_name_list:
        model.add_source(f"chlorine at {name}", name, "CONCEN", 1e-3, "dose")  # 1 mg/L in kg/m³
    return model


def simulate() -> tuple[Any, list[str]]:
    """Return readings in μg/L, hours × sensors, and the names of the junctions."""
    rng = np.random.default_rng(0)
    model = network(rng)
    with tempfile.TemporaryDirectory() as folder:
        results = wntr.sim.EpanetSimulator(model).run_sim(file_prefix=str(Path(folder) / "run"))
    # the state at the end belongs to the next hour
    quality = 1e3 * results.node["quality"][model.junction_name_list].iloc[24 * SETTLING : -1]
    reached = quality.columns[(quality.mean() > REACHED) & (quality.std() > VARIES)]
    names = [str(reached[k]) for k in sorted(rng.choice(len(reached), SENSORS, replace=False))]
    readings = quality[names].to_numpy() + ERROR * rng.standard_normal((24 * DAYS, SENSORS))
    return np.rint(1e3 * np.maximum(readings, 0)).astype(np.int16), names


def main() -> None:
    """Write the simulated readings to the file named on the command line."""
    parser = argparse.ArgumentParser(description="Simulate sensors in a water network.")
    parser.add_argument("out", type=Path, help="the .npz to write")
    out = parser.parse_args().out
    X, names = simulate()
    np.savez_compressed(out, X=X, sensor=np.array(names))


if __name__ == "__main__":
    main()
