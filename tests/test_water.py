"""The bundled readings of sensors in a water network."""

from pathlib import Path

import numpy as np
import pytest

from scaledgd.datasets import load_water

ROOT = Path(__file__).parent.parent


def test_the_readings_are_hourly_and_follow_the_day():
    data = load_water()
    assert data.X.shape == (336, 60)
    assert data.X.dtype == np.float64
    assert np.isfinite(data.X).all()
    assert 0 <= data.X.min() < data.X.max() < 1.5  # mg/L
    assert len(set(data.sensors)) == 60
    assert set(np.diff(data.times)) == {np.timedelta64(1, "h")}
    assert "EPANET simulation" in data.source
    Z = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
    day, half = (float(np.mean(Z[k:] * Z[:-k])) for k in (24, 12))
    assert day > half


def test_the_frame_has_times_and_every_call_arrays_of_its_own():
    pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install scaledgd[cli]")
    frame = load_water().frame()
    assert isinstance(frame.index, pd.DatetimeIndex)
    assert str(frame.index[-1]) == "2024-03-17 23:00:00"
    frame.iloc[:] = 7
    assert load_water().X.max() < 1.5


def test_the_script_makes_the_file(tmp_path, monkeypatch):
    pytest.importorskip("wntr", reason="wntr, which simulates, is not installed")
    import runpy

    script = ROOT / "scripts" / "simulate_water.py"
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path / "made.npz")])
    runpy.run_path(str(script), run_name="__main__")
    data = load_water()
    with np.load(tmp_path / "made.npz") as made:
        assert tuple(made["sensor"]) == data.sensors
        np.testing.assert_allclose(made["X"] / 1000, data.X, atol=1e-3)
