"""Sensors in a water network, hourly for two weeks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any

START = "2024-03-04T00"


@dataclass(frozen=True, eq=False)
class Water:
    """Readings of sensors and their times.

    Parameters
    ----------
    X : float64 array of shape (336, 60)
        Chlorine in mg/L, time × sensor.
    times : datetime64 array of shape (336,)
        Every hour, starting on a Monday.
    sensors : tuple of 60 str
        Junctions of the network.
    source : str
        Where the readings come from, in words.

    Examples
    --------
    >>> import scaledgd as sg
    >>> data = sg.datasets.load_water()
    >>> data.X.shape == (len(data.times), len(data.sensors))
    True
    """

    X: Array
    times: Array
    sensors: tuple[str, ...]
    source: str

    def frame(self) -> Any:
        """Return the readings as a pandas frame whose index holds the times.

        Returns
        -------
        pandas.DataFrame of shape (336, 60)
        """
        import pandas as pd

        return pd.DataFrame(self.X, index=pd.DatetimeIndex(self.times), columns=self.sensors)


def load_water() -> Water:
    """Load chlorine at 60 junctions of a water network, every hour for two weeks.

    The readings are simulated: EPANET, run by the package wntr on its network ky10, with demand
    that follows the hours of the day and the days of the week and varies around them, doses
    that drift, and sensors with an error of 0.01 mg/L (`scripts/simulate_water.py` in the
    repository). Nothing is missing.

    Returns
    -------
    Water

    Examples
    --------
    >>> import scaledgd as sg
    >>> data = sg.datasets.load_water()
    >>> data.X.shape, str(data.times[0]), str(data.times[-1])
    ((336, 60), '2024-03-04T00:00:00', '2024-03-17T23:00:00')
    """
    from importlib import resources  # slow to import, and rarely needed

    with (
        (resources.files(__package__) / "data" / "water_sim.npz").open("rb") as f,
        np.load(f, allow_pickle=False) as data,
    ):
        X, sensors = data["X"].astype(np.float64) / 1000, tuple(data["sensor"].tolist())
    times = (np.datetime64(START) + np.arange(len(X))).astype("datetime64[s]")
    source = (
        "an EPANET simulation of the network ky10, two weeks of hourly readings of chlorine at "
        "60 of its junctions, with an error of 0.01 mg/L"
    )
    return Water(X, times, sensors, source)
