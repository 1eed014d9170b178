"""Columns of times in files: found, named, refused, and written back as they were."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from scaledgd.cli.readers import text

QUICK = ("--rank", 1, "--hold-out", 0)
"""For tests that are not about the values."""
HOURS = pd.date_range("2024-03-04", periods=120, freq="h")
FORMATS = {
    "iso": "%Y-%m-%d %H:%M:%S",
    "iso with T and a zone": "%Y-%m-%dT%H:%M:%S+01:00",
    "iso without seconds": "%Y-%m-%d %H:%M",
    "German": "%d.%m.%Y %H:%M",
    "British": "%d/%m/%Y %H:%M",
    "American": "%m/%d/%Y %I:%M %p",
    "short year": "%d.%m.%y %H:%M",
    "words": "%d %b %Y %H:%M",
    "comma": "%b %d, %Y %H:%M",
}


def waves(seed=0, rows=120):
    """Return smooth series, and the same with noise, single gaps, and a blackout of six rows."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)[:, None]
    parts = np.concatenate([np.sin(2 * np.pi * (t / 24 + rng.random(3))), t / rows], axis=1)
    X = parts @ rng.standard_normal((4, 8)) + 5
    Y = np.round(X + 0.02 * rng.standard_normal(X.shape), 4)
    Y[rng.random(X.shape) < 0.2] = np.nan
    Y[50:56] = np.nan
    return X, Y


def frame(Y, words, at=0):
    table = pd.DataFrame(Y, columns=[f"s{j}" for j in range(Y.shape[1])])
    table.insert(at, "when", words)
    return table


def write(at=0, words=None, path="in.csv"):
    X, Y = waves()
    frame(Y, HOURS.strftime("%Y-%m-%d %H:%M") if words is None else words, at).to_csv(
        path, index=False
    )
    return X, Y


def column(path, name="when"):
    return pd.read_csv(path, dtype=str, keep_default_na=False)[name].tolist()


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


# ---- found


@pytest.mark.parametrize("name", FORMATS)
def test_times_are_found_and_written_back_unchanged(fine, name):
    X, Y = write(3, HOURS.strftime(FORMATS[name]))
    facts = fine("complete", "in.csv", "-o", "out.csv", "--hold-out", 0)
    assert (facts["date"], facts["smooth"], facts["warnings"]) == ("when", "rows", [])
    assert facts["passed_through"] == ["when"]
    with open("in.csv", "rb") as before, open("out.csv", "rb") as after:
        pairs = [(a.split(b","), b.split(b",")) for a, b in zip(before, after, strict=True)]
    assert all(a[-6] == b[-6] for a, b in pairs)
    assert column("in.csv") == column("out.csv")
    filled = pd.read_csv("out.csv").drop(columns="when").to_numpy()
    assert rms((filled - X)[np.isnan(Y)]) < 0.1
    assert rms((filled - X)[50:56]) < 0.25  # the blackout


@pytest.mark.parametrize("kind", ["parquet", "feather"])
@pytest.mark.parametrize("zone", [None, "Europe/Oslo"])
def test_times_of_typed_files(fine, kind, zone):
    X, Y = waves()
    table = frame(Y, HOURS.tz_localize(zone), 2)
    getattr(table, f"to_{kind}")(f"in.{kind}")
    facts = fine("complete", f"in.{kind}", "-o", f"out.{kind}", "--hold-out", 0)
    assert (facts["date"], facts["smooth"]) == ("when", "rows")
    after = getattr(pd, f"read_{kind}")(f"out.{kind}")
    pd.testing.assert_series_equal(after["when"], table["when"])
    assert rms((after.drop(columns="when").to_numpy() - X)[50:56]) < 0.25


def test_rows_in_any_order_are_filled_alike(fine):
    write()
    table = pd.read_csv("in.csv", dtype=str)
    mixed = table.sample(frac=1, random_state=0)
    mixed.to_csv("mixed.csv", index=False)
    fine("complete", "in.csv", "-o", "a.csv", "--hold-out", 0)
    fine("complete", "mixed.csv", "-o", "b.csv", "--hold-out", 0)
    a, b = (pd.read_csv(f"{k}.csv").set_index("when") for k in "ab")
    assert b.index.tolist() == mixed["when"].tolist()
    assert rms((b.loc[a.index] - a).to_numpy()) < 0.02


def test_small_blocks_make_the_same_file(fine, monkeypatch):
    write()
    fine("complete", "in.csv", "-o", "a.csv", "--hold-out", 0)
    monkeypatch.setattr(text, "BLOCK_BYTES", 1000)
    fine("complete", "in.csv", "-o", "b.csv", "--hold-out", 0)
    with open("a.csv", "rb") as a, open("b.csv", "rb") as b:
        assert a.read() == b.read()


def test_a_part_of_the_rows_with_times_may_be_fitted(fine):
    X, Y = write()
    facts = fine("complete", "in.csv", "-o", "out.csv", "--hold-out", 0, "--fit-rows", 90)
    assert (facts["rows_fitted"], facts["smooth"]) == (90, "rows")
    filled = pd.read_csv("out.csv").drop(columns="when").to_numpy()
    assert np.isfinite(filled).all()
    assert rms((filled - X)[np.isnan(Y)]) < 0.2
    code = fine("complete", "in.csv", "-o", "none.csv", "--fit-rows", 90, "--date", "none", *QUICK)
    assert code["smooth"] == "none"  # rows drawn at random are no neighbours


def test_tables_with_times_are_cleaned(fine):
    X, _ = waves()
    rng = np.random.default_rng(1)
    wrong = rng.random(X.shape) < 0.05
    Y = np.where(wrong, X + 8, X + 0.02 * rng.standard_normal(X.shape))
    frame(Y, HOURS).to_csv("in.csv", index=False)
    facts = fine("clean", "in.csv", "-o", "out.csv", "--outliers", "wrong.csv")
    assert facts["date"] == "when"
    assert column("in.csv") == column("out.csv")
    assert rms(pd.read_csv("out.csv").drop(columns="when").to_numpy() - X) < 0.1
    found = pd.read_csv("wrong.csv")
    assert set(zip(*np.nonzero(wrong), strict=True)) <= {
        (i, int(name[1:])) for i, name in zip(found["row"], found["column"], strict=True)
    }


# ---- named, and refused


def test_numbers_are_times_if_they_are_named(fine):
    days = pd.date_range("2024-03-04", periods=120).strftime("%Y%m%d")
    write(2, days)
    assert fine("complete", "in.csv", "-o", "a.csv", *QUICK)["date"] is None
    for name in ("when", "3"):
        facts = fine("complete", "in.csv", "-o", "b.csv", "--date", name, "--force", *QUICK)
        assert facts["date"] == "when"
        assert column("in.csv") == column("b.csv")


def test_times_may_be_refused_and_smoothness_too(fine):
    write()
    seen = {}
    for options in (("--date", "none"), ("--smooth", "none"), ("--smooth", "rows")):
        facts = fine("complete", "in.csv", "-o", "out.csv", "--hold-out", 0, "--force", *options)
        seen[options] = facts["date"], facts["smooth"]
        assert column("in.csv") == column("out.csv")
    assert seen["--date", "none"][0] is None
    assert seen["--smooth", "none"] == ("when", "none")
    assert seen["--smooth", "rows"] == ("when", "rows")


def test_columns_may_follow_each_other(fine):
    rng = np.random.default_rng(0)
    X = np.cumsum(rng.standard_normal((8, 150)), axis=1)
    Y = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    np.save("in.npy", Y)
    facts = fine("complete", "in.npy", "-o", "out.npy", "--smooth", "columns", "--hold-out", 0)
    assert facts["smooth"] == "columns"
    assert rms((np.load("out.npy") - X)[np.isnan(Y)]) < 1.2


REPEATED = HOURS.strftime("%Y-%m-%d %H:%M").where(np.arange(120) != 7, "2024-03-04 03:00")
FAULTS = {
    "word": (HOURS.strftime("%Y-%m-%d %H:%M").where(np.arange(120) != 7, "soon"), "line 9", "soon"),
    "missing": (HOURS.strftime("%Y-%m-%d %H:%M").where(np.arange(120) != 7, ""), "line 9", "time"),
    "far away": (
        HOURS.strftime("%Y-%m-%d").where(np.arange(120) != 7, "9999-12-31"),
        "line 9",
        "9",
    ),
    "repeated": (REPEATED, "2024-03-04 03:00 is repeated", "1 repeated in all"),
    "month or day": (
        ["01/02/2024", *(f"{d:02d}/{m:02d}/{2000 + k}" for k, (d, m) in enumerate([(3, 3)] * 119))],
        "days and months",
        "told apart",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_with_times_is_said(run, name):
    words, *phrases = FAULTS[name]
    write(0, words)
    code, out, err = run("complete", "in.csv", "-o", "out.csv", "--date", "when")
    assert (code, out) == (2, "")
    assert err.startswith("scaledgd: error: in.csv: ")
    assert err.count("\n") == 1
    for phrase in (*phrases, "'when'", "--date none"):
        assert phrase in err
    assert os.listdir() == ["in.csv"]
    # where nobody said that the column holds the times of rows, it is text
    code, out, err = run("complete", "in.csv", "-o", "out.csv", "--json", *QUICK)
    assert code == 0
    assert json.loads(out)["date"] is None
    assert "scaledgd: warning: the column 'when' holds times, but" in err
    for phrase in phrases:
        assert phrase in err
    assert column("in.csv") == column("out.csv")


def test_columns_that_hold_no_times(run, fine):
    write(1, [f"station {k}" for k in range(120)])
    assert fine("complete", "in.csv", "-o", "out.csv", *QUICK)["date"] is None
    for options, phrase in {
        ("--date", "when"): "'station 0'",
        ("--date", "what"): "no column 'what'",
        ("--long", "when,s0,s1", "--date", "when"): "--date applies to tables",
        ("--long", "when,s0,s1", "--smooth", "rows"): "--smooth applies to tables",
        ("--smooth", "rows", "--fit-rows", "30"): "--fit-rows",
        ("--smooth", "sideways"): "--smooth",
    }.items():
        code, _, err = run("complete", "in.csv", "-o", "other.csv", *options)
        assert code == 2, options
        assert phrase in err
    np.save("in.npy", waves()[1])
    code, _, err = run("complete", "in.npy", "-o", "other.npy", "--date", "when")
    assert code == 2
    assert "--date applies to tables with columns of times" in err


# ---- said


def test_the_summary_and_the_report_have_times(run):
    write()
    code, out, err = run("complete", "in.csv", "-o", "out.csv", "--report", "page.html")
    assert (code, err) == (0, "")
    assert "times of the rows: 'when', 2024-03-04 to 2024-03-08 23:00" in out
    assert "smooth: rows" in out
    with open("page.html", encoding="utf-8") as f:
        assert "4 Mar 06:00" in f.read()
