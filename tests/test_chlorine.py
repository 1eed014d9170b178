"""The chlorine data: the bundled simulation and the user's files."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from scaledgd.datasets import load_chlorine

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("SCALEDGD_DATA", ROOT.parent / "shared" / "data"))

TABLE = np.random.default_rng(0).random((290, 130)).round(6)  # time × junction


def spectrum(X):
    """Return σ₅, σ₁₀ and σ₂₀ over σ₁, and the best relative errors at ranks 5, 10 and 20."""
    s = np.linalg.svd(X, compute_uv=False)
    best = [np.linalg.norm(s[r:]) / np.linalg.norm(s) for r in (5, 10, 20)]
    return [*(s[[4, 9, 19]] / s[0]), *best]


# ---- the simulation


def test_the_simulation_is_water_that_fills_with_chlorine():
    data = load_chlorine()
    assert data.X.shape == (120, 180)
    assert data.X.dtype == np.float64
    assert len(data.junctions) == len(set(data.junctions)) == 120
    assert data.minutes.tolist() == list(range(0, 900, 5))
    assert data.X.min() == 0
    assert 1.19 < data.X.max() <= 1.2  # mg/L, the largest dose
    assert not data.X[:, 0].any()
    assert 0.4 < np.median(data.X[:, -1]) < 0.5
    assert 0.19 < np.mean(data.X == 0) < 0.2


def test_the_simulation_has_the_documented_spectrum():
    expected = [0.0979, 0.0440, 0.0178, 0.1628, 0.0905, 0.0434]
    np.testing.assert_allclose(spectrum(load_chlorine().X), expected, rtol=4e-3)


def test_the_simulation_says_that_it_is_one():
    source = load_chlorine().source
    assert "EPANET simulation" in source
    assert "not the data of the monograph" in source


def test_every_call_gives_arrays_of_its_own():
    load_chlorine().X[:] = 7
    assert load_chlorine().X.max() < 1.3


def test_the_simulation_has_no_other_steps():
    with pytest.raises(ValueError, match="give path too"):
        load_chlorine(start=3)


def test_the_script_makes_the_file(tmp_path, monkeypatch):
    pytest.importorskip("wntr", reason="wntr, which simulates, is not installed")
    import runpy

    script = ROOT / "scripts" / "simulate_chlorine.py"
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path / "made.npz")])
    runpy.run_path(str(script), run_name="__main__")
    data = load_chlorine()
    with np.load(tmp_path / "made.npz") as made:
        assert tuple(made["junction"]) == data.junctions
        np.testing.assert_allclose(made["X"], data.X, atol=1e-6)


# ---- a file


def write(path, table=TABLE):
    if path.suffix == ".npz":
        np.savez(path, X=table)
    elif path.suffix == ".npy":
        np.save(path, table)
    else:
        np.savetxt(path, table, fmt="%.6f")
    return path


@pytest.mark.parametrize("name", ["cl2fullLarge", "cl2fullLarge.txt", "a.dat", "a.npy", "a.npz"])
@pytest.mark.parametrize("in_folder", [False, True], ids=["file", "folder"])
def test_a_file_is_read_from_step_100(tmp_path, name, in_folder):
    path = write(tmp_path / name)
    (tmp_path / "notes.md").write_text("not a table")
    data = load_chlorine(tmp_path if in_folder else str(path))
    np.testing.assert_array_equal(data.X, TABLE[100:280, :120].T)
    assert data.X.dtype == np.float64
    assert data.X.flags.c_contiguous
    assert data.junctions == tuple(str(k) for k in range(1, 121))
    assert data.minutes[[0, -1]].tolist() == [500, 1395]
    assert data.source == (
        f"the file {name}: the first 120 of its 130 junctions, steps 100 to 279 of its 290, "
        "every 5 minutes"
    )


@pytest.mark.parametrize("start", [0, 37, 110])
def test_the_first_step_can_be_chosen(tmp_path, start):
    data = load_chlorine(write(tmp_path / "a.npy"), start=start)
    np.testing.assert_array_equal(data.X, TABLE[start : start + 180, :120].T)
    assert data.minutes[0] == 5 * start
    assert f"steps {start} to {start + 179} of its 290" in data.source


def test_numbers_of_other_kinds_become_double(tmp_path):
    for table in (TABLE.astype(np.float32), (100 * TABLE).astype(np.int16)):
        X = load_chlorine(write(tmp_path / "a.npy", table)).X
        assert X.dtype == np.float64
        np.testing.assert_array_equal(X, table[100:280, :120].T)


@pytest.mark.parametrize("start", [111, 5000])
def test_steps_that_the_file_does_not_have(tmp_path, start):
    with pytest.raises(ValueError, match=rf"has 290 steps.*start={start} needs .* {start + 180}"):
        load_chlorine(write(tmp_path / "a.npy"), start=start)


@pytest.mark.parametrize(("start", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_a_start_that_is_none(tmp_path, start, error):
    with pytest.raises(error, match="start must be"):
        load_chlorine(write(tmp_path / "a.npy"), start=start)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE[:, :119], "290 steps .* of 119 junctions"),
        (TABLE.T, "130 steps .* of 290 junctions .*transpose"),
        (
            np.where(np.isin(TABLE, TABLE[150, 60]), np.nan, TABLE),
            "NaN or infinite .* steps 100 to 279",
        ),
        (np.where(np.isin(TABLE, TABLE[100, 0]), -np.inf, TABLE), "NaN or infinite"),
        (TABLE[0], r"shape \(130,\)"),
        (TABLE + 1j, "complex128"),
        (TABLE > 0.5, "bool"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, table, message):
    with pytest.raises(ValueError, match=message):
        load_chlorine(write(tmp_path / "a.npz", table))


def test_what_is_not_finite_elsewhere_does_not_matter(tmp_path):
    table = TABLE.copy()
    table[99, 0] = table[280, 0] = table[150, 120] = np.nan
    assert np.isfinite(load_chlorine(write(tmp_path / "a.npy", table)).X).all()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"0.1 0.2\n0.3\n"),
        ("a.txt", b"0.1,0.2\n0.3,0.4\n"),
        ("a.txt", b"junction one\n"),
        ("a.txt", b"\xff\xfe\x00"),
        ("a.npy", b""),
        ("a.npy", b"not an array"),
        ("a.npz", b"PK\x03\x04 not a zip"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is not a table of numbers: give"):
        load_chlorine(tmp_path / name)


def test_an_empty_text(tmp_path):
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"a.txt holds an array .* shape \(0,\)"):
        load_chlorine(tmp_path / "a.txt")


def test_an_archive_without_x(tmp_path):
    np.savez(tmp_path / "a.npz", Y=TABLE)
    with pytest.raises(ValueError, match="an array X"):
        load_chlorine(tmp_path / "a.npz")


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[print]]), allow_pickle=True)
    with pytest.raises(ValueError, match="is not a table of numbers"):
        load_chlorine(tmp_path / "a.npy")


def test_a_damaged_archive(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=TABLE)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a table of numbers"):
        load_chlorine(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_chlorine(tmp_path / "cl2fullLarge")


def test_a_folder_must_hold_one_table(tmp_path):
    with pytest.raises(ValueError, match=r"holds 0 \(none\); name the file"):
        load_chlorine(tmp_path)
    write(tmp_path / "a.npy")
    write(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"holds 2 \(a.npy, b.npz\); name the file"):
        load_chlorine(tmp_path)


# ---- the real data, if they are available


@pytest.mark.parametrize(
    ("start", "steps", "expected"),
    [
        (None, "steps 100 to 279", [0.0651, 0.0163, 6.05e-4, 0.0738, 0.0246, 2.83e-4]),
        (0, "steps 0 to 179", [0.0927, 0.0193, 0, 0.0936, 0.0217, 0]),
    ],
)
def test_the_real_data_have_the_documented_spectrum(start, steps, expected):
    folder = DATA / "chlorine"
    if not folder.exists():
        pytest.skip("the data set chlorine is not here; set SCALEDGD_DATA to its folder")
    data = load_chlorine(folder, start=start)
    np.testing.assert_allclose(spectrum(data.X), expected, rtol=4e-3, atol=1e-9)
    assert f"the first 120 of its 166 junctions, {steps} of its 1000" in data.source
    assert -0.06 < data.X.min() < -0.04  # the interpolation overshoots
    assert 0.98 < data.X.max() < 0.99
