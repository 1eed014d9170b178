"""The reproduction measures once, judges from the data alone, resumes, and writes one page."""

import csv
import importlib.machinery
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from browser import complaints, fetched, opened, overflow

from scaledgd import experiments
from scaledgd.experiments import journal, phase, runs
from scaledgd.experiments.item import Case, Claim, Item, Rows, Setting, Verdict

SMALL = ["figure1", "figure3", "theorem3"]


# ---- numbers read from a run


def test_needed_counts_iterations():
    errors = [1.0, 0.5, 0.1, 0.01]
    assert runs.needed(errors, 0.1) == 2
    assert runs.needed(errors, 1.0) == 0
    assert runs.needed(errors, 1e-3) == math.inf


@pytest.mark.parametrize("factor", [0.3, 0.9])
def test_rate_finds_a_contraction_after_a_slow_start_and_above_rounding(factor):
    errors = np.concatenate([np.ones(5), factor ** np.arange(200)]) + 1e-15
    assert runs.rate(errors) == pytest.approx(factor, rel=0.02)
    assert runs.rate(1 / errors) == math.inf
    assert runs.rate([1.0, math.nan]) == math.inf


def test_slope_is_the_power():
    x = np.asarray([1.0, 2, 5, 10])
    assert runs.slope(x, 3 * x**1.7) == pytest.approx(1.7)
    assert runs.slope(x, [1, math.inf, 5.0, math.nan]) == pytest.approx(1.0)
    assert math.isnan(runs.slope(x[:1], [1.0]))


def test_kappa_free_allows_a_tenth_and_two():
    assert runs.free([40, 46])
    assert not runs.free([40, 47])


def test_kappa_claims_are_about_both_methods():
    def rows(scaled, plain):
        found = Rows()
        for method, counts in (("ScaledGD", scaled), ("GD", plain)):
            for kappa, count in zip((1, 5, 20), counts, strict=True):
                row = {"method": method, "kappa": kappa, "count": count}
                found.append({**row, "level": 1e-6, "limit": 3000})
        return found

    def holds(*counts):
        return [c.holds for c in runs.kappa_claims(rows(*counts), 1e-6, (0.7, 1.4))]

    assert holds((40, 41, 42), (40, 200, 800)) == [True, True]
    assert holds((40, 41, 42), (40, 200, math.inf)) == [True, False]  # at least 3000, too steep
    assert holds((40, 41, 80), (40, 41, 42)) == [False, False]


def trials(edge, rising):
    return Rows(
        {"amount": a, "seed": s, "success": int((a >= edge) == rising)}
        for a in (1, 2, 4, 8, 16)
        for s in range(2)
    )


def test_the_border_is_where_half_succeed():
    assert phase.border(trials(8, True), "amount") == pytest.approx(math.sqrt(32))
    assert phase.border(trials(8, False), "amount", rising=False) == pytest.approx(math.sqrt(32))
    assert math.isnan(phase.border(trials(1, True), "amount"))  # the border is below the grid
    assert math.isnan(phase.border(trials(99, True), "amount"))


def test_borders_move_by_a_power():
    rows = Rows({**r, "n": n} for n, edge in ((1, 2), (4, 8)) for r in trials(edge, True))
    found, power = phase.borders(rows, "amount", "n")
    assert found.tolist() == pytest.approx([math.sqrt(2), math.sqrt(32)])
    assert power == pytest.approx(1.0)


def test_rows_are_grouped_in_order():
    rows = Rows([{"a": 2, "x": 1}, {"a": 1, "x": 2}, {"a": 2, "x": 3}, {"x": 4}])
    assert [(key, part.column("x").tolist()) for key, part in rows.groups("a")] == [
        ((2,), [1, 3]),
        ((1,), [2]),
    ]
    assert rows.distinct("a") == [2, 1]


# ---- the items


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", experiments.ITEMS)
def test_every_item_names_its_cases(name, quick):
    item = experiments.item(name)
    cases = item.cases(Setting(quick))
    assert item.name == name
    assert cases
    texts = [json.dumps(case, sort_keys=True) for case in cases]
    assert len(set(texts)) == len(texts)


def test_every_item_is_a_module_and_every_item_module_is_listed():
    modules = Path(experiments.__file__).parent.glob("*.py")
    found = {m.stem for m in modules if "\nITEM = " in m.read_text(encoding="utf-8")}
    assert found == set(experiments.ITEMS)


def test_an_unknown_item_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no item 'figure9'; choose from figure1"):
        experiments.reproduce(tmp_path, ["figure9"])


# ---- the run


@pytest.fixture
def counted(monkeypatch):
    """An item that counts its measurements and can be made to fail."""
    seen: list[Case] = []
    state = {"fail": False, "holds": True}

    def measure(k):
        seen.append({"k": k})
        if state["fail"] and k == 2:
            raise RuntimeError("no luck")
        return [{"square": k * k}]

    def judge(rows):
        total = sum(r["square"] for r in rows)
        return Verdict([Claim("squares add up", f"{total}", state["holds"] and total == 14)])

    item = Item(
        "counted",
        "Count",
        "Squares",
        "Some squares.",
        lambda s: [{"k": k} for k in (1, 2, 3)],
        measure,
        judge,
    )
    module = type(sys)("scaledgd.experiments.counted")
    module.ITEM = item
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(experiments.runner, "ITEMS", ("counted",))
    return seen, state


def run(folder, **kwargs):
    (found,) = experiments.reproduce(folder, ["counted"], Setting(True), jobs=1, **kwargs)
    return found


def test_what_was_measured_is_not_measured_again(tmp_path, counted):
    seen, state = counted
    assert run(tmp_path).holds
    assert len(seen) == 3
    assert run(tmp_path).holds
    assert len(seen) == 3
    state["holds"] = False  # judged again from the same data
    assert not run(tmp_path).holds
    assert len(seen) == 3
    run(tmp_path, fresh=True)
    assert len(seen) == 6


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be edited; journals depend on it."""
    copy = tmp_path / "package" / "scaledgd"
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(journal.PACKAGE, copy, ignore=left_out)
    monkeypatch.setattr(journal, "PACKAGE", copy)
    return copy


def test_a_change_of_any_module_or_of_the_library_invalidates(package):
    before = journal.fingerprint()
    files = [p for p in package.rglob("*") if p.suffix in (".py", ".so", ".pyd")]
    assert len(files) > 50
    assert {package / "linalg.py", package / "experiments" / "runs.py"} < set(files)
    some = [p for p in files if p.suffix != ".py"] + files[::12]
    for file in (*some, package / "linalg.py", package / "experiments" / "runs.py"):
        content = file.read_bytes()
        file.write_bytes(content + b"\n")
        assert journal.fingerprint() != before, file
        file.write_bytes(content)
    assert journal.fingerprint() == before
    (package / "new.py").touch()
    assert journal.fingerprint() != before


def test_nothing_is_measured_again_until_the_package_changes(tmp_path, counted, package):
    seen, _ = counted
    for expected in (3, 3):
        assert run(tmp_path / "out").holds
        assert len(seen) == expected
    with (package / "linalg.py").open("a") as file:
        file.write("# another line\n")
    for expected in (6, 6):
        assert run(tmp_path / "out").holds
        assert len(seen) == expected


def test_a_compiled_library_in_another_folder_counts(package, tmp_path, monkeypatch):
    for library in [p for p in package.rglob("*") if p.suffix in (".so", ".pyd")]:
        library.unlink()
    elsewhere = tmp_path / "_compiled.so"
    elsewhere.write_bytes(b"one")
    spec = importlib.machinery.ModuleSpec("_compiled", None, origin=str(elsewhere))
    monkeypatch.setattr(journal.importlib.util, "find_spec", lambda name: spec)
    before = journal.fingerprint()
    elsewhere.write_bytes(b"two")
    assert journal.fingerprint() != before


def test_other_data_at_the_same_path_are_measured_again(tmp_path):
    data = tmp_path / "cl2fullLarge"
    data.write_text("1 2")
    setting = Setting(chlorine=data)
    before = journal.fingerprint(setting)
    assert before == journal.fingerprint(setting) != journal.fingerprint()
    data.write_text("1 3")
    assert journal.fingerprint(setting) != before


def test_a_journal_that_was_cut_short_costs_one_case(tmp_path, counted):
    seen, _ = counted
    run(tmp_path)
    file = tmp_path / ".journal" / "counted.jsonl"
    file.write_text(file.read_text(encoding="utf-8")[:-20])
    assert run(tmp_path).holds
    assert len(seen) == 4


def test_a_case_that_fails_is_a_claim_that_does_not_hold(tmp_path, counted):
    seen, state = counted
    state["fail"] = True
    found = run(tmp_path)
    assert not found.holds
    assert "RuntimeError: no luck" in found.verdict.claims[0].measured
    assert "no luck" in (tmp_path / "report.html").read_text(encoding="utf-8")
    state["fail"] = False
    assert run(tmp_path).holds  # only the failed case is measured again
    assert len(seen) == 4


def test_progress_is_told(tmp_path, counted):
    told, done = [], []
    run(tmp_path, watch=lambda *a: told.append(a), done=done.append)
    assert told == [("Count", 1, 3), ("Count", 2, 3), ("Count", 3, 3)]
    assert [f.item.name for f in done] == ["counted"]


def test_the_data_say_how_they_came_about(tmp_path, counted):
    run(tmp_path)
    lines = (tmp_path / "data" / "counted.csv").read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    assert {line[2:].split(":")[0] for line in head} >= {"scaledgd", "numpy", "machine", "item"}
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert rows == [{"k": str(k), "square": str(k * k)} for k in (1, 2, 3)]


SOME = ("figure1", "figure3", "theorem3")
"""Items that every run of the tests measures; those marked long measure all of them."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SOME, id="some"),
        pytest.param(tuple(experiments.ITEMS), id="all", marks=pytest.mark.long),
    ],
)
def quick(request, tmp_path_factory):
    """Items at reduced size, as ``scaledgd reproduce --quick`` runs them."""
    folder = tmp_path_factory.mktemp("quick")
    return folder, experiments.reproduce(folder, request.param, Setting(True)), request.param


@pytest.mark.reproduce
def test_every_claim_of_the_quick_run_holds(quick):
    folder, found, items = quick
    assert [f.item.name for f in found] == list(items)
    # claims about time may fail on a machine that is busy with other tests
    wrong = [
        (f.item.name, c) for f in found if not f.item.alone for c in f.verdict.claims if not c.holds
    ]
    assert wrong == []
    assert all(f.verdict.claims for f in found)
    for one in found:
        assert (folder / "data" / f"{one.item.name}.csv").stat().st_size > 200
        assert not any("failure" in row for row in one.rows)
    assert len(list((folder / "plots").glob("*.png"))) > (40 if items != SOME else 2)


@pytest.mark.reproduce
@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_the_report_is_fit_to_show(quick, browser, width):
    folder, found, items = quick
    opened(browser, folder / "report.html", width)
    assert complaints(browser) == []
    assert fetched(browser) == []
    assert overflow(browser) <= 0
    drawn = browser.find_elements("css selector", "figure svg[role=img]")
    assert len(drawn) == len(list((folder / "plots").glob("*.png")))
    ticks = browser.find_elements(
        "css selector", "section:first-of-type td .yes, section:first-of-type td .no"
    )
    assert len(ticks) == sum(len(f.verdict.claims) for f in found)
    links = browser.find_elements("css selector", "a.file")
    assert [a.get_attribute("download") for a in links] == [f"{n}.csv" for n in items]


@pytest.mark.reproduce
@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to a group of processes")
def test_control_c_and_again(tmp_path):
    """An interrupted run ends with one line, keeps what was measured, and resumes."""

    items = ["figure1", "step_size"]
    command = [sys.executable, "-m", "scaledgd", "reproduce", *items]
    command += ["--quick", "--jobs", "2", "--out", str(tmp_path)]
    file = tmp_path / ".journal" / "step_size.jsonl"
    pipe = subprocess.PIPE
    first = subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )
    while not (file.exists() and file.read_text(encoding="utf-8").count("\n") > 3):
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # a terminal signals the workers, too
    _, told = first.communicate(timeout=300)
    assert first.returncode == 130
    assert told == "scaledgd: error: interrupted; run it again to continue\n"
    known = file.read_text(encoding="utf-8").count("\n")
    total = len(experiments.item("step_size").cases(Setting(True)))
    assert 3 < known < total
    seen = []
    found = experiments.reproduce(
        tmp_path, items, Setting(True), jobs=1, watch=lambda *a: seen.append(a)
    )
    assert all(f.holds for f in found)
    assert len(seen) < total + 6 - known + 1
