"""``scaledgd complete`` and ``scaledgd clean``: formats, options, messages and exit codes."""

import csv
import io
import json
import mmap
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
import scipy.io
import scipy.sparse

from scaledgd.cli import fits
from scaledgd.cli.readers import arrays, batches, survey, text
from scaledgd.cli.readers.dialect import Dialect
from scaledgd.cli.readers.text import TextFile
from scaledgd.cli.writers.tables import TextPatcher
from scaledgd.estimators.local_observations import LocalObservations

LONG = ("--long", "user,item,rating")
QUICK = ("--rank", 2, "--center", "columns", "--scale", "none", "--hold-out", 0)


def low_rank(n=60, k=8, rank=2, noise=0.01, seed=0):
    """Return a low-rank table, and the same with noise and a fifth of its cells missing."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, k)) + 5 * np.arange(k)
    Y = np.round(X + noise * rng.standard_normal(X.shape), 4)
    Y[rng.random(X.shape) < 0.2] = np.nan
    return X, Y


def frame(Y):
    names = [f"s{j}" for j in range(Y.shape[1])]
    table = pd.DataFrame(Y, columns=names)
    table.insert(2, "note", [f'say "{i}", twice' if i % 3 else "plain" for i in range(len(Y))])
    table.insert(0, "day", pd.date_range("2024-01-01", periods=len(Y)).strftime("%Y-%m-%d"))
    return table


def written(table, path):
    {
        ".csv": lambda: table.to_csv(path, index=False),
        ".tsv": lambda: table.to_csv(path, index=False, sep="\t"),
        ".gz": lambda: table.to_csv(path, index=False),
        ".parquet": lambda: table.to_parquet(path, index=False),
        ".feather": lambda: table.to_feather(path),
    }[os.path.splitext(path)[1]]()


def read(path):
    ways = {".parquet": pd.read_parquet, ".feather": pd.read_feather}
    if path.endswith(".tsv"):
        return pd.read_csv(path, sep="\t")
    return ways.get(os.path.splitext(path)[1], pd.read_csv)(path)


def long_file(path, X, Y, keep=1.0, seed=1):
    """Write cells in random order, missing ones with an empty value; return them and the truth."""
    rng = np.random.default_rng(seed)
    i, j = np.unravel_index(rng.permutation(Y.size)[: int(keep * Y.size)], Y.shape)
    table = pd.DataFrame({"user": [f"u{k:03d}" for k in i], "when": i * j, "item": j + 100})
    table["rating"] = Y[i, j]
    table.to_csv(path, index=False)
    return table, X[i, j]


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


# ---- tables


@pytest.mark.parametrize(
    ("suffix", "out"),
    [
        *((kind, kind) for kind in ("csv", "tsv", "csv.gz", "parquet", "feather")),
        *(("csv", "tsv"), ("csv", "parquet"), ("tsv", "csv.gz"), ("parquet", "csv")),
        *(("parquet", "feather"), ("feather", "tsv"), ("csv.gz", "csv")),
    ],
)
def test_tables_are_filled_in_every_format(fine, suffix, out):
    X, Y = low_rank()
    table = frame(Y)
    written(table, f"in.{suffix}")
    facts = fine("complete", f"in.{suffix}", "-o", f"out.{out}", *QUICK)
    holes = np.isnan(Y)
    assert facts["shape"] == [60, 8]
    assert facts["missing"] == facts["filled"] == holes.sum()
    assert facts["passed_through"] == ["day", "note"]
    assert facts["rank"] == 2
    after = read(f"out.{out}")
    assert list(after.columns) == list(table.columns)
    assert after["day"].tolist() == table["day"].tolist()
    assert after["note"].tolist() == table["note"].tolist()
    values = after.drop(columns=["day", "note"]).to_numpy()
    assert np.array_equal(values[~holes], Y[~holes])
    assert rms((values - X)[holes]) < 0.05 < rms((np.nanmean(Y, axis=0) - X)[holes])


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        *(("npy", out) for out in ("npy", "npz", "mtx", "csv", "parquet")),
        *(("npz", "npz"), ("npz", "npy"), ("mtx", "mtx"), ("mtx", "npy"), ("mtx", "csv")),
    ],
)
def test_arrays_are_filled_in_every_format(fine, kind, out):
    X, Y = low_rank(noise=0)
    Y = Y.astype(np.float32).astype(float) if kind == "npy" else Y
    holes = np.isnan(Y)
    if kind == "npy":
        np.save("in.npy", Y.astype(np.float32))
    elif kind == "npz":
        np.savez("in.npz", other=np.arange(3), table=Y)
    else:
        sparse = scipy.sparse.coo_array((Y[~holes], np.nonzero(~holes)), shape=Y.shape)
        scipy.io.mmwrite("in.mtx", sparse)
    which = ("--array", "table") if kind == "npz" else ()
    fine("complete", f"in.{kind}", "-o", f"out.{out}", *QUICK, *which)
    if out == "npz":
        with np.load("out.npz") as arrays:
            found = arrays["table" if kind == "npz" else "array"]
            assert kind != "npz" or arrays["other"].tolist() == [0, 1, 2]
    else:
        found = {
            "npy": lambda: np.load("out.npy"),
            "mtx": lambda: np.asarray(scipy.io.mmread("out.mtx")),
            "csv": lambda: pd.read_csv("out.csv", header=None).to_numpy(),
            "parquet": lambda: pd.read_parquet("out.parquet").to_numpy(),
        }[out]()
    assert found.shape == Y.shape
    assert (found.dtype == np.float32) == (kind == "npy" and out in ("npy", "npz"))
    assert np.allclose(found[~holes], Y[~holes], rtol=1e-12, atol=0)
    assert rms((found - X)[holes]) < 0.01


def test_tensors_are_completed_and_cleaned(fine, run):
    rng = np.random.default_rng(0)
    T = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (15, 12, 10)))
    holes = rng.random(T.shape) < 0.3
    np.save("holes.npy", np.where(holes, np.nan, T))
    facts = fine("complete", "holes.npy", "-o", "out.npy", "--rank", "2,2,2")
    assert facts["shape"] == [15, 12, 10]
    assert facts["held_out"]["r2"] > 0.999
    found = np.load("out.npy")
    assert np.array_equal(found[~holes], T[~holes])
    assert np.allclose(found, T, atol=1e-6)
    wrong = rng.random(T.shape) < 0.03
    np.save("wrong.npy", T + 5 * wrong)
    args = ("-o", "low.npy", "--rank", 2, "--outliers", "out.csv", "--low-rank")
    assert fine("clean", "wrong.npy", *args)["outliers"] == wrong.sum()
    assert np.allclose(np.load("low.npy"), T, atol=1e-6)
    off = pd.read_csv("out.csv")
    assert list(off.columns) == ["mode 0", "mode 1", "mode 2", "value"]
    assert wrong[tuple(off.iloc[:, :3].to_numpy().T)].all()
    code, _, err = run("complete", "holes.npy", "-o", "table.csv")
    assert code == 2
    assert "order 3" in err


def test_observed_cells_are_preserved_byte_for_byte(fine):
    """Quotation marks, line ends, byte-order marks, spaces, number formats, NA, encodings."""
    rows = [
        ["id", "Straße", "a", "b", "c", "d"],
        ["1", 'x "1", y', "1.50", "+2.0", " 3 ", "4e0"],
        ["2", "line\r\nbreak", "2.50", "NA", "5", "6.000000000000000001"],
        ["3", "", "", "5.0", " 7", "8"],
        ["4", "plain", "4.5", "null", "9", ""],
        ["5", "plain", "5.5", "9.0", "", "12"],
        ["6", "", "6.5", "11.0", "13", "14"],
    ]
    plain = io.StringIO()
    csv.writer(plain, lineterminator="\r\n").writerows(rows)
    for name, data in {
        "latin": plain.getvalue().encode("latin-1"),
        "mark": b"\xef\xbb\xbf" + plain.getvalue().rstrip().encode(),
        "blank": plain.getvalue().replace("\r\n4,", "\r\n\r\n4,").encode(),
    }.items():
        with open(f"{name}.csv", "wb") as f:
            f.write(data)
        facts = fine("complete", f"{name}.csv", "-o", f"{name}.out.csv", "--raw")
        assert facts["passed_through"] == ["id", "Straße"]
        assert facts["filled"] == 5
        with open(f"{name}.out.csv", "rb") as f:
            filled = f.read()
        encoding = "latin-1" if name == "latin" else "utf-8-sig"
        before, after = (
            [r for r in csv.reader(io.StringIO(x.decode(encoding), newline="")) if r]
            for x in (data, filled)
        )
        missing = {(2, 3), (3, 2), (4, 3), (4, 5), (5, 4)}
        changed = {
            (i, j)
            for i, (old, new) in enumerate(zip(before, after, strict=True))
            for j, (x, y) in enumerate(zip(old, new, strict=True))
            if x != y
        }
        assert changed == missing
        # replacing the new cells by the old ones gives the input again
        for i, j in sorted(missing):
            cell = after[i][j].encode()
            assert filled.count(b"," + cell) == 1
            filled = filled.replace(b"," + cell, b"," + before[i][j].encode())
        assert filled == data


@pytest.mark.parametrize("block", [37, 200, 1 << 24])
def test_cells_are_those_of_the_csv_module(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text, "BLOCK_BYTES", block)
    rng = np.random.default_rng(block)
    words = ["", "x", "1.5", 'a "q"', "two\nlines", "semi;colon", "comma, ", "é", '""', " "]
    rows = [[words[k] for k in rng.integers(0, len(words), 5)] for _ in range(200)]
    rows = [row for row in rows if row != [""] * 5]
    path = tmp_path / "x.csv"
    with open(path, "w", newline="", encoding="utf-8") as f:
        csv.writer(f, lineterminator="\n").writerows(rows)
    file = TextFile(path, Dialect(header=False))
    found, lines = [], []
    for block in file.blocks():
        assert block.first == len(found)
        cells = block.cells(np.arange(5)).to_pylist()
        found += [cells[k : k + 5] for k in range(0, len(cells), 5)]
        lines += [block.line_of(k) for k in range(len(block))]
    assert found == rows
    ends = np.cumsum([1 + sum(cell.count("\n") for cell in row) for row in rows])
    assert lines == [1, *(ends[:-1] + 1).tolist()]


def test_small_blocks_and_large_ones_make_the_same_file(fine, monkeypatch):
    _, Y = low_rank()
    frame(Y).to_csv("in.csv", index=False)
    fine("complete", "in.csv", "-o", "whole.csv", *QUICK)
    monkeypatch.setattr(text, "BLOCK_BYTES", 500)
    fine("complete", "in.csv", "-o", "parts.csv", *QUICK)
    whole, parts = (pd.read_csv(name) for name in ("whole.csv", "parts.csv"))
    assert whole["note"].tolist() == parts["note"].tolist()
    numbers = [c for c in whole if c.startswith("s")]
    assert np.allclose(whole[numbers], parts[numbers], rtol=1e-9)


@pytest.mark.parametrize(
    ("line", "options", "rows"),
    [
        (None, (), 60),
        (None, ("--no-header",), 60),
        ("2001,2002,2003,2004,2005,2006,2007,2008", (), 60),
        ("2001,2002,2003,2004,2005,2006,2007,2008", ("--no-header",), 61),
        ("a,b,c,d,e,f,g,h", (), 60),
        ("1,5,2,9,4,8,3,7", ("--header",), 60),
        ("1,2,3,4,5,6,7,8\n2,4,6,8,10,12,14,16", (), 62),
        ("1,5,2,9,4,8,3,7", (), 61),
    ],
)
def test_headers(fine, line, options, rows):
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False, header=False)
    if line is not None:
        with open("in.csv") as f:
            body = f.read()
        with open("in.csv", "w") as f:
            f.write(f"{line}\n{body}")
    facts = fine("complete", "in.csv", "-o", "out.csv", *QUICK, *options)
    assert facts["shape"] == [rows, 8]


def test_columns_that_number_the_rows_are_passed_through(fine):
    X, Y = low_rank()
    table = pd.DataFrame(Y, columns=[f"s{j}" for j in range(8)])
    table.to_csv("in.csv")  # with pandas' index
    facts = fine("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert facts["passed_through"] == [""]
    assert facts["shape"] == [60, 8]
    table.index = pd.Index(np.arange(60) * 3 + 1000, name="station")
    table.to_parquet("in.parquet")
    facts = fine("complete", "in.parquet", "-o", "out.parquet", *QUICK)
    assert facts["passed_through"] == ["station"]
    after = pd.read_parquet("out.parquet")
    assert after.index.equals(table.index)
    assert rms(after.to_numpy() - X) < 0.1


def test_types_of_columns(fine):
    X, Y = low_rank()
    table = pd.DataFrame(np.round(Y), columns=[f"s{j}" for j in range(8)])
    table["yes"] = [None if i % 5 == 0 else bool(X[i, 0] > 0) for i in range(60)]
    table["all"] = X[:, 1] > 5
    table["none"] = np.nan
    table["same"] = [np.nan if i % 7 == 0 else 4.0 for i in range(60)]
    table["count"] = pd.array([None if i % 9 == 0 else i % 4 for i in range(60)], dtype="Int64")
    table["whole"] = np.arange(60) % 3
    table.to_csv("in.csv", index=False)
    table.to_parquet("in.parquet")
    for kind in ("csv", "parquet"):
        facts = fine("complete", f"in.{kind}", "-o", f"out.{kind}")
        assert facts["left_empty"] == ["none"]
        assert "none" in facts["warnings"][-1]
        after = read(f"out.{kind}")
        assert after["none"].isna().all()
        assert after.drop(columns="none").notna().all().all()
        assert after["all"].dtype == bool
        assert after["whole"].dtype == np.int64
        assert after["count"].dtype in (np.int64, pd.Int64Dtype())
        assert after["yes"].dtype == bool
        known = table["yes"].notna()
        assert (after["yes"][known] == table["yes"][known]).all()
        assert (after["same"] == 4).all()


def test_empty_rows_are_filled_like_typical_ones(fine):
    _, Y = low_rank()
    Y[7] = np.nan
    np.save("in.npy", Y)
    fine("complete", "in.npy", "-o", "out.npy")
    assert rms(np.load("out.npy")[7] - np.nanmean(Y, axis=0)) < 0.5 < rms(Y[np.isfinite(Y)])


def test_tiny_tables_are_not_filled_with_zeros(fine):
    for text_, low, high in (
        ("a,b,c\n1,2,3\n2,4,6\n3,,9\n4,8,12\n", 5.99, 6.01),
        ("a,b,c\n10,52,99\n11,50,101\n,49,98\n9,51,100\n", 8, 12),
        ("a,b\n1,20\n,21\n", 0.5, 4),
    ):
        with open("in.csv", "w") as f:
            f.write(text_)
        fine("complete", "in.csv", "-o", "out.csv", "--force")
        hole = pd.read_csv("in.csv").isna().to_numpy()
        assert low < pd.read_csv("out.csv").to_numpy()[hole][0] < high


def test_decimal_commas_and_other_delimiters(fine):
    X, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False, sep=";", decimal=",")
    fine("complete", "in.csv", "-o", "out.csv", "--delimiter", ";", "--decimal", ",", *QUICK)
    after = pd.read_csv("out.csv", sep=";", decimal=",").to_numpy()
    assert np.array_equal(after[np.isfinite(Y)], Y[np.isfinite(Y)])
    assert rms(after - X) < 0.05


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "long"])
def test_numbers_and_words_that_mean_missing(fine, kind):
    X, Y = low_rank()
    table = pd.DataFrame(np.where(np.isnan(Y), -999.0, Y), columns=[f"s{j}" for j in range(8)])
    if kind == "npy":
        np.save("in.npy", table.to_numpy())
    elif kind == "long":
        long_file("in.csv", X, table.to_numpy())
    else:
        written(table, f"in.{kind}")
    file = "in.csv" if kind == "long" else f"in.{kind}"
    options = ("--missing", "-999", "--missing", "bad", *(LONG if kind == "long" else ()))
    facts = fine("complete", file, "-o", f"out{file[2:]}", *QUICK, *options)
    assert facts["filled"] == np.isnan(Y).sum()
    if kind == "npy":
        assert rms(np.load("out.npy") - X) < 0.05
    else:
        after = read(f"out{file[2:]}")
        assert after.select_dtypes("number").min().min() > -20


def test_bounds_seed_rank_and_offsets(fine):
    _, Y = low_rank(noise=0.3)
    pd.DataFrame(Y).to_csv("in.csv", index=False)
    first = fine("complete", "in.csv", "-o", "1.csv", "--clip", "0,30", "--seed", 3)
    again = fine("complete", "in.csv", "-o", "2.csv", "--clip", "0,30", "--seed", 3)
    assert first["held_out"] == again["held_out"]
    with open("1.csv") as a, open("2.csv") as b:
        assert a.read() == b.read()
    filled = pd.read_csv("1.csv").to_numpy()[np.isnan(Y)]
    assert filled.min() >= 0
    assert filled.max() <= 30
    facts = fine("complete", "in.csv", "-o", "3.csv", "--rank", 1, "--center", "rows")
    assert (facts["rank"], facts["center"]) == (1, "rows")
    assert fine("complete", "in.csv", "-o", "4.csv", "--hold-out", 0)["held_out"] is None


def test_a_given_rank_gets_the_offsets_that_predict_best(fine):
    X, Y = low_rank(n=200, k=12)
    np.save("in.npy", Y)
    facts = fine("complete", "in.npy", "-o", "out.npy", "--rank", 2)
    assert facts["center"] in ("both", "columns")
    assert rms(np.load("out.npy") - X) < 0.05
    plain = fine("complete", "in.npy", "-o", "plain.npy", "--rank", 2, "--center", "none")
    assert plain["held_out"]["rmse"] > 3 * facts["held_out"]["rmse"]


@pytest.mark.parametrize("options", [(), ("--rank", 2)])
def test_columns_of_unlike_scale_count_equally(fine, options):
    """Errors are compared in units of the standard deviations of the columns."""
    rng = np.random.default_rng(0)
    X, Y = low_rank(n=150, k=12)
    units = 10.0 ** rng.permutation(np.linspace(-3, 5, 12))
    np.save("in.npy", Y * units)
    facts = fine("complete", "in.npy", "-o", "out.npy", "--clip", ",1e9", *options)
    assert facts["scale"] == "columns"
    assert facts["held_out"]["rmse"] < 0.05 < 0.8 < facts["held_out"]["rmse_of_column_means"]
    found = np.load("out.npy")
    assert np.array_equal(found[np.isfinite(Y)], (Y * units)[np.isfinite(Y)])
    off = np.sqrt(np.mean((found / units - X) ** 2, axis=0))
    assert off.max() < 0.05
    clipped = fine("complete", "in.npy", "-o", "low.npy", "--clip", ",-1e9", *options)
    assert clipped["held_out"]["rmse"] > 100
    assert np.load("low.npy")[np.isnan(Y)].max() == -1e9


@pytest.mark.parametrize("centred", [False, True])
def test_errors_of_alike_columns_are_in_units_of_the_data(fine, run, centred):
    """Whatever the units of the fit: narrow tables have a noise of columns."""
    rng = np.random.default_rng(0)
    X = 5 * rng.standard_normal((300, 3)) @ rng.standard_normal((3, 8)) + 30 * centred
    Y = X + rng.standard_normal(X.shape)
    np.save("in.npy", np.where(rng.random(X.shape) < 0.2, np.nan, Y))
    for command in ("complete", "clean"):
        facts = fine(command, "in.npy", "-o", f"{command}.npy")
        # a Gaussian of the rows counts a part of it as scores
        assert 0.1 < facts["noise"] < 1.15
        code, out, _ = run(command, "in.npy", "-o", f"{command}.npy", "--force")
        assert code == 0
        assert "standardised" not in out
        if command == "complete":
            assert 1 < facts["held_out"]["rmse"] < 4 < facts["held_out"]["rmse_of_column_means"]
            assert facts["center"] != "none" or not centred


def test_a_part_of_the_rows_may_be_fitted(fine, monkeypatch):
    X, Y = low_rank(n=400)
    for kind, write in (("csv", lambda t: t.to_csv("in.csv", index=False)),
                        ("parquet", lambda t: t.to_parquet("in.parquet"))):  # fmt: skip
        write(pd.DataFrame(Y, columns=[f"s{j}" for j in range(8)]))
        facts = fine("complete", f"in.{kind}", "-o", f"out.{kind}", "--fit-rows", 50, *QUICK)
        assert facts["rows_fitted"] == 50
        assert "50 of 400 rows" in facts["warnings"][-1]
        assert rms(read(f"out.{kind}").to_numpy() - X) < 0.05
    # as if memory were enough for a hundred rows
    np.save("in.npy", Y)
    needed = 100 * 8 * survey.CELL_BYTES / survey.MEMORY_SHARE
    monkeypatch.setattr(survey, "available_memory", lambda: needed)
    monkeypatch.setattr(batches, "BATCH_CELLS", 8 * 90)
    assert fine("complete", "in.npy", "-o", "out.npy", *QUICK)["rows_fitted"] == 100
    assert rms(np.load("out.npy") - X) < 0.05


def test_many_cells_are_fitted_once(fine, limits, monkeypatch):
    """Rank and offsets are chosen on a part; the only full fit leaves out the held-out cells."""
    X, Y = low_rank(n=300, k=40, rank=3)
    fitted, parts = [], []
    real, core = fits._fitted, LocalObservations.core

    def recorded(data, most, seed):
        part = core(data, most, seed)
        parts.append(part.size)
        return part

    monkeypatch.setattr(fits, "LARGE", 2000)
    limits(table=2000)
    monkeypatch.setattr(fits, "_fitted", lambda *a: fitted.append(a[0].size) or real(*a))
    monkeypatch.setattr(LocalObservations, "core", recorded)
    _, truth = long_file("in.csv", X, Y)
    facts = fine("complete", "in.csv", *LONG, "-o", "out.csv")
    assert parts  # smaller ones to choose offsets by
    assert all(part <= 2000 for part in parts)
    assert fitted == [facts["observed"] - facts["held_out"]["cells"]]
    assert facts["held_out"]["r2"] > 0.999
    assert rms(pd.read_csv("out.csv")["rating"] - truth) < 0.05


# ---- long files


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        *((kind, kind) for kind in ("csv", "parquet", "feather")),
        *(("csv", "csv.gz"), ("csv", "parquet"), ("parquet", "csv"), ("feather", "tsv")),
    ],
)
def test_long_files_are_filled(fine, kind, out):
    X, Y = low_rank()
    table, truth = long_file("in.csv", X, Y)
    if kind != "csv":
        written(table, f"in.{kind}")
    facts = fine("complete", f"in.{kind}", *LONG, "-o", f"out.{out}", *QUICK)
    assert facts["shape"] == [60, 8]
    assert facts["filled"] == np.isnan(Y).sum()
    after = read(f"out.{out}")
    assert list(after.columns) == ["user", "when", "item", "rating"]
    assert after["user"].tolist() == table["user"].tolist()
    assert after["item"].astype(int).tolist() == table["item"].tolist()
    known = table["rating"].notna()
    assert np.array_equal(after["rating"][known], table["rating"][known])
    assert rms(after["rating"] - truth) < 0.05


def test_a_long_file_is_patched_and_never_dense(fine, monkeypatch):
    """A million rows with a thousand cells; lines with a value are preserved."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 5000)
    X, Y = low_rank(n=40, k=30)
    table, truth = long_file("in.csv", X, Y, keep=0.9)
    names = table.assign(user=table["user"].map(lambda u: f"{int(u[1:]) * 25_000:d}"))
    names.to_csv("in.csv", index=False)
    facts = fine("complete", "in.csv", "--long", "1,3,4", "-o", "out.csv", *QUICK)
    assert facts["shape"] == [40, 30]
    with open("in.csv") as a, open("out.csv") as b:
        for old, new in zip(a, b, strict=True):
            assert new == old or (old.endswith(",\n") and new.startswith(old[:-1]))
    assert rms(pd.read_csv("out.csv")["rating"] - truth) < 0.1


def test_rows_and_columns_without_any_value(fine):
    X, Y = low_rank()
    table, _ = long_file("in.csv", X, Y)
    new = [("u900", 0, 103, np.nan), ("u001", 0, 999, np.nan), ("u900", 0, 999, np.nan)]
    more = pd.DataFrame(new, columns=table.columns)
    pd.concat([table, more]).to_csv("in.csv", index=False)
    facts = fine("complete", "in.csv", *LONG, "-o", "out.csv")
    assert (facts["unknown_rows"], facts["unknown_columns"]) == (1, 1)
    assert "1 rows and 1 columns" in facts["warnings"][-1]
    user, item, both = pd.read_csv("out.csv")["rating"].to_numpy()[-3:]
    assert abs(user - np.nanmean(Y[:, 3])) < 1
    assert abs(item - X[1].mean()) < 4
    assert abs(both - np.nanmean(Y)) < 2


def test_long_files_without_names(fine):
    """All cells are numbers, so that the first line looks like the others."""
    X, Y = low_rank()
    i, j = np.nonzero(np.ones(Y.shape))
    pd.DataFrame({0: i + 1, 1: j + 1, 2: Y[i, j]}).to_csv("in.csv", index=False, header=False)
    facts = fine("complete", "in.csv", "--long", "1,2,3", "-o", "out.csv", *QUICK)
    assert facts["observed"] + facts["missing"] == Y.size
    after = pd.read_csv("out.csv", header=None)
    assert rms(after[2] - X[i, j]) < 0.05
    pd.DataFrame({0: [3, 60, 7], 1: [8, 1, 2]}).to_csv("pairs.csv", index=False, header=False)
    ask = ("--long", "1,2,3", "--predict", "pairs.csv")
    fine("complete", "in.csv", *ask, "-o", "p.csv", *QUICK)
    found = pd.read_csv("p.csv", header=None)
    assert found.iloc[:, :2].to_numpy().tolist() == [[3, 8], [60, 1], [7, 2]]
    assert rms(found[2] - X[[2, 59, 6], [7, 0, 1]]) < 0.05


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("out", ["csv", "parquet"])
def test_pairs_are_predicted(fine, kind, out):
    X, Y = low_rank()
    long_file("in.csv", X, Y)
    pairs = pd.DataFrame({"item": [103, 107, 555], "why": ["a, b", "c", "d"]})
    pairs["user"] = ["u005", "u040", "u001"]
    written(pairs, f"pairs.{kind}")
    ask = ("complete", "in.csv", *LONG, "--predict", f"pairs.{kind}", *QUICK)
    facts = fine(*ask, "-o", f"out.{out}")
    assert facts["filled"] == 3
    assert (facts["unknown_rows"], facts["unknown_columns"]) == (0, 1)
    after = read(f"out.{out}")
    assert list(after.columns) == ["item", "why", "user", "rating"]
    assert after["why"].tolist() == pairs["why"].tolist()
    assert rms(after["rating"][:2] - X[[5, 40], [3, 7]]) < 0.05
    # an existing column of values is filled where it is empty
    pairs["rating"] = [np.nan, -1.0, np.nan]
    written(pairs, f"pairs.{kind}")
    again = fine(*ask, "-o", f"again.{out}", "--quiet")
    assert again["filled"] == 2
    values = read(f"again.{out}")["rating"]
    assert values[1] == -1
    assert abs(values[0] - after["rating"][0]) < 1e-9


def test_pairs_of_a_sparse_matrix(fine, run, monkeypatch):
    X, Y = low_rank(noise=0)
    seen = np.nonzero(np.isfinite(Y))
    scipy.io.mmwrite("in.mtx", scipy.sparse.coo_array((Y[seen], seen), shape=Y.shape))
    pd.DataFrame({"row": [3, 60], "column": [8, 1]}).to_csv("pairs.csv", index=False)
    monkeypatch.setattr(arrays, "DENSE_LIMIT", 100)
    code, _, err = run("complete", "in.mtx", "-o", "out.npy")
    assert code == 2
    assert "--predict PAIRS" in err
    fine("complete", "in.mtx", "--predict", "pairs.csv", "-o", "out.csv", *QUICK)
    after = pd.read_csv("out.csv")
    assert list(after.columns) == ["row", "column", "value"]
    assert rms(after["value"] - X[[2, 59], [7, 0]]) < 0.01


@pytest.mark.parametrize(("how", "value"), [("first", 1.0), ("last", 4.0), ("mean", 2.0)])
def test_pairs_with_several_values(run, fine, monkeypatch, how, value):
    rows = [("a", "x", 1.0), ("b", "x", 9.0), ("a", "x", 1.0), ("b", "y", 7.0), ("a", "x", 4.0)]
    rows.append(("a", "y", np.nan))
    pd.DataFrame(rows, columns=["user", "item", "rating"]).to_csv("in.csv", index=False)
    code, _, err = run("complete", "in.csv", *LONG, "-o", "out.csv")
    assert code == 2
    assert "'a', 'x'" in err
    assert "2 rows repeat" in err
    assert "--duplicates mean, first or last" in err
    seen = []
    real = fits.complete
    monkeypatch.setattr(fits, "complete", lambda known, s: seen.append(known) or real(known, s))
    fine("complete", "in.csv", *LONG, "-o", "out.csv", "--duplicates", how)
    names = zip(*(i.tolist() for i in seen[0].coordinates), strict=True)
    cells = dict(zip(names, seen[0].y, strict=True))
    assert cells == {(0, 0): value, (1, 0): 9.0, (1, 1): 7.0}


# ---- clean


def corrupted(unlike=False, holes=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 15))
    wrong = rng.random(X.shape) < 0.05
    Y = X + 0.02 * rng.standard_normal(X.shape) + 8 * wrong * rng.choice([-1, 1], X.shape)
    units = 10 ** rng.uniform(-1, 3, 15) if unlike else np.ones(15)
    X, Y = ((x + 5 * unlike * np.arange(15)) * units for x in (X, Y))
    if holes:
        gone = rng.random(X.shape) < 0.1
        Y[gone], wrong = np.nan, wrong & ~gone
    return X, Y, wrong, units


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("unlike", [False, True])
def test_tables_are_cleaned(fine, unlike, holes):
    """Also if columns have unlike scales, for which one threshold would be wrong."""
    X, Y, wrong, units = corrupted(unlike, holes)
    table = frame(Y)
    table.to_csv("in.csv", index=False)
    facts = fine("clean", "in.csv", "-o", "low.csv", "--outliers", "off.csv.gz", "--low-rank")
    assert facts["scale"] == "columns"
    after = pd.read_csv("low.csv")
    assert after["note"].tolist() == table["note"].tolist()
    low = after.drop(columns=["day", "note"]).to_numpy()
    assert rms((low - X) / units) < 0.02
    off = pd.read_csv("off.csv.gz")
    found = np.zeros_like(wrong)
    found[off["row"], off["column"].str[1:].astype(int)] = True
    assert facts["outliers"] == len(off) == found.sum()
    assert found[wrong].all()
    assert wrong[found].mean() > 0.85
    assert np.allclose(off["value"], (Y - low)[found], rtol=1e-9)


def test_long_files_are_cleaned(fine):
    X, Y, wrong, _ = corrupted(holes=True)
    table, truth = long_file("in.csv", X, Y)
    args = ("-o", "low.csv", "--outliers", "off.parquet", "--report", "page.html", "--low-rank")
    facts = fine("clean", "in.csv", *LONG, *args)
    fine("clean", "in.csv", *LONG, "-o", "repaired.csv")
    repaired = pd.read_csv("repaired.csv")["rating"]
    same = (repaired == table["rating"]).to_numpy()
    assert (~same).sum() == facts["outliers"] + table["rating"].isna().sum()
    assert rms((repaired - truth)[~same]) < 0.05
    after = pd.read_csv("low.csv")
    assert after["user"].tolist() == table["user"].tolist()
    assert rms(after["rating"] - truth) < 0.02
    off = pd.read_parquet("off.parquet")
    assert facts["outliers"] == len(off)
    assert list(off.columns) == ["user", "item", "rating"]
    at = off["user"].str[1:].astype(int), off["item"].astype(int) - 100
    assert wrong[at].mean() > 0.9
    assert len(off) >= wrong.sum()


def test_narrow_tables_are_cleaned_with_the_rank_that_predicts_best(fine):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 10))
    wrong = rng.random(X.shape) < 0.03
    np.save("in.npy", X + 0.02 * rng.standard_normal(X.shape) + 8 * wrong)
    facts = fine("clean", "in.npy", "-o", "low.npy")
    assert facts["rank"] == 3
    assert 0.9 < facts["outliers"] / wrong.sum() < 1.3


# ---- report and summary


def test_the_report(fine):
    X, Y = low_rank()
    frame(Y).to_csv("in.csv", index=False)
    fine("complete", "in.csv", "-o", "out.csv", "--report", "page.html")
    with open("page.html", encoding="utf-8") as f:
        page = f.read()
    for word in ("Missing cells", "Before and after", "Accuracy", "Some columns", "The model",
                 "of column means", "90% interval", "estimated", "s7"):  # fmt: skip
        assert word in page, word
    for word in ("scales.", "of the residual", "standardised"):
        assert word not in page, word
    assert "http://" not in page.replace("http://www.w3.org", "")
    long_file("long.csv", X, Y)
    fine("complete", "long.csv", *LONG, "-o", "long.out.csv", "--report", "long.html")
    with open("long.html", encoding="utf-8") as f:
        assert f"{np.isfinite(Y).sum()} have a value" in f.read()


def test_the_summary_is_short_and_optional(run):
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False)
    code, out, err = run("complete", "in.csv", "-o", "1.csv")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("in.csv: 60 x 8, ")
    assert "missing (" in lines[0]
    assert lines[1].startswith("rank ")
    assert "R² " in lines[2]
    assert "column means" in lines[2]
    assert lines[3].startswith("filled ")
    assert lines[3].endswith(": 1.csv")
    assert run("complete", "in.csv", "-o", "2.csv", "--quiet") == (0, "", "")


def test_a_fit_that_did_not_converge_gives_a_warning(run, monkeypatch):
    monkeypatch.setattr(fits, "_common", lambda settings: {"max_iter": 1})
    _, Y = low_rank()
    np.save("in.npy", Y)
    code, out, err = run("complete", "in.npy", "-o", "out.npy", "--rank", 2, "--json")
    assert code == 0
    assert json.loads(out)["converged"] is False
    assert err.startswith("scaledgd: warning: not converged")
    assert os.path.exists("out.npy")


# ---- failures


def _table(**options):
    def write():
        pd.DataFrame(low_rank()[1], columns=list("abcdefgh")).to_csv(
            "in.csv", index=False, **options
        )

    return write


def _bytes(data, name="in.csv"):
    def write():
        with open(name, "wb") as f:
            f.write(data)

    return write


def _mixed():
    table = pd.DataFrame(low_rank()[1], columns=list("abcdefgh")).astype(object)
    table.loc[7, "c"], table.loc[9, "c"] = "n/a?", "error"
    table.to_csv("in.csv", index=False)


def _full():
    pd.DataFrame(low_rank()[0]).to_csv("in.csv", index=False)


def _cut(write, name, share=0.5):
    def cut():
        write(pd.DataFrame(low_rank()[1], columns=list("abcdefgh")), name)
        with open(name, "rb") as f:
            data = f.read()
        with open(name, "wb") as f:
            f.write(data[: int(share * len(data))])

    return cut


def _long(change):
    def write():
        table, _ = long_file("in.csv", *low_rank())
        change(table.astype({"rating": object})).to_csv("in.csv", index=False)

    return write


def _npz(table, name):
    np.savez(name, a=table, b=table)


FAILURES = {
    "semicolons": (_table(sep=";"), ["--delimiter ';'", "it has 8"], "--delimiter", ","),
    "decimal commas": (
        _table(sep=";", decimal=","), ["--delimiter ';' --decimal ','"], "--delimiter", "tab"
    ),
    "tabs": (_table(sep="\t"), ["--delimiter tab"], "--delimiter", ","),
    "decimal commas, no names": (
        _bytes(b"1,5;2,5;3,5\n2,5;3,0;1,5\n3,5;2,5;4,5\n1,0;2,0;3,0\n"),
        ["more than one number", "--delimiter ';' --decimal ','"], "--delimiter", ",",
        "--decimal", ".",
    ),
    "commas in decimals": (
        _table(sep=";", decimal=","), ["decimal commas", "--decimal ','"], "--delimiter", ";",
        "--decimal", ".",
    ),
    "mixed": (_mixed, ["line 9", "'n/a?'", "'c'", "--missing 'n/a?'", "--text c"]),
    "one word more": (_mixed, ["line 11", "'error'"], "--missing", "n/a?"),
    "full": (_full, ["nothing is missing", "--missing WORD"]),
    "nothing": (_bytes(b"a,b\n,\n,\nNA,\n"), ["every cell is empty"]),
    "words": (_bytes(b"a,b\nx,y\nu,v\n"), ["no column holds numbers", "'a', 'b'"]),
    "one column": (_bytes(b"a,b\nx,1\nu,\n"), ["'b' is the only column of numbers"]),
    "single": (_bytes(b"a\n1\n\n"), ["single column"]),
    "empty": (_bytes(b""), ["is empty"]),
    "header alone": (_bytes(b"a,b,c\n"), ["no rows"]),
    "long lines": (
        _bytes(b";".join(b"%d" % k for k in range(60_000)) + b"\n1\n"), ["line 2 has 1 cell,"]
    ),
    "short line": (_bytes(b"a,b,c\n1,2,3\n4,5\n"), ["line 3 has 2 cells", "has 3"]),
    "open quote": (_bytes(b'a,b\n1,"2\n3,4\n'), ["quotation mark in line 2", "close it"]),
    "infinity": (_bytes(b"a,b\n1,2\n3,inf\n,4\n"), ["line 3", "infinity", "--missing inf"]),
    "binary": (_bytes(bytes(range(256))), ["not text"]),
    "cut gz": (_cut(lambda t, n: t.to_csv(n), "in.csv.gz"), ["truncated"]),
    "cut parquet": (_cut(lambda t, n: t.to_parquet(n), "in.parquet"), ["truncated", "again"]),
    "stub of parquet": (_cut(lambda t, n: t.to_parquet(n), "in.parquet", 0.01), ["truncated"]),
    "cut feather": (_cut(lambda t, n: t.to_feather(n), "in.feather"), ["truncated"]),
    "cut npy": (_cut(lambda t, n: np.save(n, t), "in.npy"), ["truncated"]),
    "cut npz": (_cut(_npz, "in.npz"), ["truncated"]),
    "two arrays": (_cut(_npz, "in.npz", 1.0), ["'a', 'b'", "--array NAME"]),
    "no such array": (_cut(_npz, "in.npz", 1.0), ["'c'", "'a', 'b'"], "--array", "c"),
    "no matrix": (_bytes(b"hello", "in.mtx"), ["Matrix Market"]),
    "unknown format": (_bytes(b"hello", "in.sav"), [".csv", ".parquet"]),
    "no such text column": (_table(), ["no column 'z'", "'a'"], "--text", "z"),
    "rank": (_table(), ["--rank", "'0'"], "--rank", "0"),
    "ranks": (_table(), ["--rank", "one number"], "--rank", "2,3"),
    "clip": (_table(), ["--clip", "'5,1'"], "--clip", "5,1"),
    "predict alone": (_table(), ["--long"], "--predict", "in.csv"),
    "option": (_table(), ["No such option", "--bounds"], "--bounds", "1"),
    "choice": (_table(), ["--center", "both"], "--center", "middle"),
    "long, wrong name": (
        _long(lambda t: t), ["no column 'x'", "'rating'"], "--long", "user,item,x"
    ),
    "long, rows": (_long(lambda t: t), ["--fit-rows"], *LONG, "--fit-rows", "9"),
    "long, no pairs": (
        _long(lambda t: t), ["pairs.csv has no rows"], *LONG, "--predict", "pairs.csv"
    ),
    "long, two names": (_long(lambda t: t), ["three columns"], "--long", "user,item"),
    "long, wrong delimiter": (
        _table(sep=";"), ["--delimiter ';'"], "--long", "a,b,c", "--delimiter", ","
    ),
    "long, full": (_long(lambda t: t.dropna()), ["nothing is missing", "--predict"], *LONG),
    "long, nothing": (_long(lambda t: t.assign(rating=None)), ["no line has a value"], *LONG),
    "long, word": (
        _long(lambda t: t.assign(rating=t["rating"].where(t.index != 20, "oops"))),
        ["line 22", "'oops'", "--missing oops"], *LONG,
    ),
    "long, no name": (
        _long(lambda t: t.assign(user=t["user"].where(t.index != 5))),
        ["row 6", "'user'"], *LONG,
    ),
    "long, repeated": (_long(lambda t: pd.concat([t, t])), ["--duplicates"], *LONG),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_one_line_that_says_what_to_do(run, name):
    write, phrases, *options = FAILURES[name]
    write()
    (file,) = os.listdir()
    if "pairs.csv" in options:
        _bytes(b"user,item\n", "pairs.csv")()
    before = sorted(os.listdir())
    code, out, err = run("complete", file, "-o", "out.csv", *options)
    assert (code, out) == (2, ""), err
    assert err.startswith("scaledgd: error: ")
    assert err.count("\n") == 1
    for phrase in phrases:
        assert phrase in err
    assert sorted(os.listdir()) == before


def test_outputs_that_cannot_be_or_must_not_be_written(run, monkeypatch):
    X, Y = low_rank()
    table = pd.DataFrame(Y)
    table.to_csv("in.csv", index=False)
    with open("in.csv", "rb") as f:
        before = f.read()
    os.mkdir("folder")
    os.symlink("in.csv", "link.csv")
    with open("other.csv", "w") as f:
        f.write("mine")
    for args, phrase in {
        (): "'-o'",
        ("-o", "nowhere/out.csv"): "there is no folder",
        ("-o", "folder"): "is a folder",
        ("-o", "in.csv"): "the input itself",
        ("-o", "link.csv"): "the input itself",
        ("-o", "other.csv"): "--force",
        ("-o", "out.doc"): ".csv",
        ("-o", "out.csv", "--report", "out.csv"): "the same file",
        ("-o", "out.csv", "--report", "nowhere/page.html"): "there is no folder",
    }.items():
        code, out, err = run("complete", "in.csv", *args)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert phrase in err
    assert sorted(os.listdir()) == ["folder", "in.csv", "link.csv", "other.csv"]
    code, _, err = run("complete", "gone.csv", "-o", "out.csv")
    assert code == 2
    assert "there is no file gone.csv" in err
    with open("in.csv", "rb") as f:
        assert f.read() == before
    with open("other.csv") as f:
        assert f.read() == "mine"
    os.chmod("in.csv", 0o600)
    mode = stat.S_IMODE(os.stat("in.csv").st_mode)  # Windows has no such permissions
    monkeypatch.delattr(os, "fchmod", raising=False)  # nor this function, before Python 3.13
    assert run("complete", "in.csv", "-o", "in.csv", "--force")[0] == 0
    assert stat.S_IMODE(os.stat("in.csv").st_mode) == mode
    assert rms(pd.read_csv("in.csv").to_numpy() - X) < 0.05


def test_an_array_is_replaced_where_a_mapped_file_cannot_be(run, monkeypatch):
    X, Y = low_rank()
    np.save("in.npy", Y)
    maps, plain = [], mmap.mmap

    def mapped(*args, **kwargs):
        maps.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(mmap, "mmap", mapped)
    monkeypatch.setattr(arrays, "sys", types.SimpleNamespace(platform="win32"))
    assert run("complete", "in.npy", "-o", "in.npy", "--force", *QUICK)[0] == 0
    assert not maps
    assert rms(np.load("in.npy") - X) < 0.05


def test_a_full_disk_leaves_nothing(run, monkeypatch):
    """Writing fails after the fit."""
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TextPatcher, "write", full)
    code, out, err = run("complete", "in.csv", "-o", "out.csv", *QUICK)
    assert (code, out) == (2, "")
    assert "No space left" in err
    assert os.listdir() == ["in.csv"]


def test_an_unexpected_failure_is_one_line_that_says_how_to_see_more(run, monkeypatch):
    def broken(*args):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(fits, "complete", broken)
    np.save("in.npy", low_rank()[1])
    command = ("complete", "in.npy", "-o", "out.npy")
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    line = "scaledgd: error: unexpected failure: RuntimeError: two lines"
    assert err == f"{line} (--debug or SCALEDGD_TRACEBACK=1 prints the traceback)\n"
    assert os.listdir() == ["in.npy"]
    monkeypatch.setenv("SCALEDGD_TRACEBACK", "0")
    assert run(*command)[2] == err
    for args in (("--debug", *command), (*command, "--debug")):
        code, out, err = run(*args)
        assert (code, out) == (1, "")
        assert err.startswith("Traceback (most recent call last)")
        assert "in broken" in err
        assert err.endswith(f"RuntimeError: two\nlines\n{line}\n")
    monkeypatch.setenv("SCALEDGD_TRACEBACK", "1")
    assert run(*command)[2] == err
    # for errors with advice, too: where they are raised may say more
    code, _, err = run("complete", "mistyped.csv", "-o", "out.csv")
    assert code == 2
    assert err.startswith("Traceback (most recent call last)")
    assert err.splitlines()[-1].startswith("scaledgd: error: there is no file mistyped.csv")


def test_help_version_and_usage(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "complete" in out
    assert "clean" in out
    code, out, _ = run("complete", "--help")
    assert code == 0
    for word in ("Exit codes", "130", "--long", "--predict", "--fit-rows", "50 million"):
        assert word in out
    own = {
        "complete": {
            *("--cluster", "--hold-out", "--predict", "--workers"),
            *("--tls-ca", "--tls-cert", "--tls-key"),
        },
        "clean": {"--only-outliers", "--low-rank"},
    }
    options = {name: set(re.findall(r"--[a-z-]+", run(name, "--help")[1])) for name in own}
    shared = options["complete"] & options["clean"]
    assert {name: found - shared for name, found in options.items()} == own
    assert shared >= {
        "--output",
        "--sheet",
        "--rank",
        "--center",
        "--long",
        "--missing",
        "--text",
        "--json",
    }
    assert run("--version")[1].startswith("scaledgd 0")
    code, out, _ = run("--version", "--verbose")
    assert code == 0
    assert {"numpy", "kernels", "openpyxl"} <= {line.split()[0] for line in out.splitlines()}
    for args in (("compleet",), ("complete",)):
        code, _, err = run(*args)
        assert code == 2
        assert err.startswith("scaledgd: error: ")
        assert err.count("\n") == 1


# ---- imports


HEAVY = {"numpy", "pandas", "pyarrow", "sklearn", "scipy"}


def imported(*args):
    """Run a command in a new process; return its exit code, stderr and imported packages."""
    code = (
        "import sys\nfrom scaledgd import cli\ntry:\n    cli.main()\nfinally:\n"
        "    print(*{name.split('.')[0] for name in sys.modules})"
    )
    process = start(*args, code=code)
    out, err = process.communicate()
    return process.returncode, err, set(out.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--version",), 0),
        (("complete", "--help"), 0),
        (("complete", "mistyped.csv", "-o", "out.csv"), 2),
        (("clean", "mistyped.parquet", "-o", "out.csv"), 2),
        (("complete", "in.csv", "-o", "in.csv"), 2),
        (("complete", "in.csv", "-o", "out.csv", "--rank", "none"), 2),
    ],
)
def test_quick_answers_import_little(tmp_path, monkeypatch, args, code):
    monkeypatch.chdir(tmp_path)
    _bytes(b"a,b\n1,\n")()
    found, err, packages = imported(*args)
    assert found == code, err
    assert packages & HEAVY == set()
    assert ("typer" in packages) == (args != ("--version",))
    assert os.listdir() == ["in.csv"]


def test_work_imports_what_it_needs(tmp_path, monkeypatch):
    """The packages that the test above excludes are those that a fit imports."""
    monkeypatch.chdir(tmp_path)
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False)
    code, err, packages = imported(
        "complete", "in.csv", "-o", "out.csv", "--quiet", *map(str, QUICK)
    )
    assert code == 0, err
    assert packages >= {"pyarrow", "sklearn", "scipy"}


# ---- processes


def start(*args, code=None):
    command = ["-m", "scaledgd"] if code is None else ["-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command, *args], **pipes)


def test_the_command_as_scripts_see_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False)
    good = start("complete", "in.csv", "-o", "out.csv", "--json", "--rank", "2", "--quiet")
    bad = start("complete", "in.csv", "-o", "bad.csv", "--delimiter", ";")
    out, err = good.communicate()
    assert (good.returncode, err) == (0, "")
    assert json.loads(out)["shape"] == [60, 8]
    out, err = bad.communicate()
    assert (bad.returncode, out) == (2, "")
    assert err.startswith("scaledgd: error: in.csv has a single column")
    assert sorted(os.listdir()) == ["in.csv", "out.csv"]


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_leave_nothing(tmp_path, monkeypatch, sent, code):
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", low_rank()[1])
    slow = (
        "import time\nfrom scaledgd import cli\nfrom scaledgd.cli import fits\n"
        "fits.complete = lambda *args: time.sleep(60)\ncli.main()"
    )
    process = start("complete", "in.npy", "-o", "out.npy", code=slow)
    while len(os.listdir()) < 2 and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(sent)
    _, err = process.communicate()
    assert process.returncode == code, err
    assert os.listdir() == ["in.npy"]
    assert sent != signal.SIGINT or err == "scaledgd: error: interrupted; nothing was written\n"


@pytest.mark.slow
def test_ten_million_ratings(tmp_path, monkeypatch):
    """In three gibibytes of memory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n1, n2, m, r = 100_000, 20_000, 10_000_000, 8
    flat = np.unique(rng.integers(0, n1 * n2, int(1.01 * m)))
    u, i = np.divmod(rng.permutation(flat)[:m], n2)
    L, R = 0.35 * rng.standard_normal((n1, r)), rng.standard_normal((n2, r))
    y = 3.5 + 0.4 * rng.standard_normal(n1)[u] + 0.5 * rng.standard_normal(n2)[i]
    y += np.einsum("mr,mr->m", L[u], R[i]) + 0.5 * rng.standard_normal(len(u))
    y = np.clip(np.round(2 * y) / 2, 0.5, 5)
    hole = rng.random(len(u)) < 0.01
    users, items = (pa.array([f"{c}{k:06d}" for k in range(n)]) for c, n in (("u", n1), ("i", n2)))
    table = pa.table(
        {
            "user": users.take(pa.array(u)),
            "item": items.take(pa.array(i)),
            "rating": pa.array(y, mask=hole),
        }
    )
    plain = pyarrow.csv.WriteOptions(quoting_style="none")
    pyarrow.csv.write_csv(table, "ratings.csv", plain)
    watched = (
        "import resource, sys\nfrom scaledgd import cli\ntry:\n    cli.main()\nfinally:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    process = start("complete", "ratings.csv", *LONG, "-o", "out.csv", "--json", code=watched)
    out, err = process.communicate()
    assert process.returncode == 0, err
    facts = json.loads(out)
    peak = int(err.splitlines()[-1]) / 2**20
    print(f"{facts['seconds']:.0f} s, {peak:.2f} GiB, held out {facts['held_out']}")
    assert peak < 3
    filled = pyarrow.csv.read_csv("out.csv")["rating"].to_numpy()
    means = np.bincount(i[~hole], y[~hole]) / np.bincount(i[~hole])
    assert np.array_equal(filled[~hole], y[~hole])
    assert rms((filled - y)[hole]) < 0.7 * rms((means[i] - y)[hole])
    shutil.rmtree(tmp_path, ignore_errors=True)


# ---- failures that are said plainly


def test_what_is_common_is_no_outlier(run):
    rng = np.random.default_rng(0)
    rates = np.exp(0.5 * rng.standard_normal((200, 1)) + 0.5 * rng.standard_normal((1, 12)))
    counts = rng.poisson(0.5 * rates)
    pd.DataFrame(counts, columns=[f"s{j}" for j in range(12)]).to_csv("in.csv", index=False)
    code, out, err = run("clean", "in.csv", "-o", "out.csv", "--outliers", "wrong.csv", "--json")
    assert code == 3
    assert re.search(r"clean failed: \d+ % of the observed entries would count as outliers", err)
    assert "OUT was written without any outliers" in err
    facts = json.loads(out)
    assert facts["outliers"] == 0
    assert facts["threshold"] is None
    assert len(pd.read_csv("wrong.csv")) == 0
    assert np.array_equal(pd.read_csv("out.csv").to_numpy(), counts)
    run("clean", "in.csv", "-o", "low.csv", "--low-rank")
    low = pd.read_csv("low.csv").to_numpy()
    assert np.mean((low - rates * 0.5) ** 2) < np.mean((counts - rates * 0.5) ** 2)


def test_a_rank_that_no_table_of_the_size_has(run):
    _, Y = low_rank()
    pd.DataFrame(Y).to_csv("in.csv", index=False, header=False)
    code, _, err = run("complete", "in.csv", "-o", "out.csv", "--rank", 500)
    assert code == 0
    assert "--rank 500 is more than a table of 60 x 8 can have; 8 is used" in err


def test_advice_names_options_of_the_command_line(fine, monkeypatch):
    _, Y = low_rank(noise=0.5)
    pd.DataFrame(Y).to_csv("in.csv", index=False, header=False)
    fitted = fits._common
    monkeypatch.setattr(fits, "_common", lambda s: {**fitted(s), "max_iter": 1})
    (warning,) = fine("complete", "in.csv", "-o", "out.csv", *QUICK)["warnings"]
    assert warning.startswith("not converged: made 1 updates")
    assert not re.search(r"max_iter|max_time|\btol\b", warning)


def test_a_row_without_company(run, tmp_path):
    (tmp_path / "in.csv").write_text("a,b,c\n1,,3\n")
    code, _, err = run("complete", "in.csv", "-o", "out.csv")
    assert code == 2
    assert "only columns without any value have missing cells ('b')" in err
    assert "nothing is missing" not in err


def test_a_gpu_that_is_not_there_is_named(run, tmp_path):
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n2,\n3,6\n")
    code, _, err = run("complete", "t.csv", "-o", "out.csv", "--device", "cuda")
    assert code == 2
    assert "--device cuda" in err
    assert not (tmp_path / "out.csv").exists()
