"""The benchmarks compare libraries to one accuracy, check it, and resume."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import measure, problems, report
from benchmarks.contestants import OURS, PEERS, Contestant


def small(target=1e-6):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    i, j = np.nonzero(rng.random(X.shape) < 0.5)
    data = {"rows": i, "columns": j, "values": X[i, j]}

    def error(estimate):
        return float(np.linalg.norm(estimate() - X) / np.linalg.norm(X))

    return problems.Problem("small", "completion", X.shape, 2, data, target, error)


def test_a_contest_is_to_the_same_accuracy():
    peer = next(p for p in PEERS if p.package == "scipy")
    problem, ours = small(), OURS["completion"]
    effort, _ = measure.least_effort(ours, problem)
    record = measure.contest(ours, peer, problem, 3, effort)
    assert record["reached"]
    assert len(record["times"]["ours"]) == len(record["times"]["theirs"]) == 3
    assert max(record["errors"]["ours"] + record["errors"]["theirs"]) <= 1e-6
    assert record["ratio"] == record["seconds"]["theirs"] / record["seconds"]["ours"]
    assert "small" in report.contests([record])


def test_the_least_effort_is_found():
    counted = []
    fake = problems.Problem(
        "fake", "completion", (1, 1), 1, {}, 2.0**-13, lambda e: 2.0 ** -counted[-1]
    )

    def run(problem, effort):
        counted.append(effort)
        return None

    contestant = Contestant("halving", "numpy", ("completion",), run, (1, 100))
    assert measure.least_effort(contestant, fake)[0] == 13
    hopeless = problems.Problem("fake", "completion", (1, 1), 1, {}, 0.0, lambda e: 1.0)
    assert measure.least_effort(contestant, hopeless) == (None, 1.0)


def test_a_run_that_misses_its_target_is_not_reported():
    wobbly = iter([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    problem = problems.Problem("p", "completion", (1, 1), 1, {}, 0.5, lambda e: next(wobbly))
    contestant = Contestant("c", "numpy", ("completion",), lambda p, e: None, (1, 1))
    with pytest.raises(RuntimeError, match="ended at"):
        measure.contest(contestant, contestant, problem, 2, 1)


def test_results_survive_and_are_gone_on_with(tmp_path):
    results = measure.Results(tmp_path / "found" / "measured.json")
    results.put("a", {"seconds": 1.0})
    assert "a" in measure.Results(tmp_path / "found" / "measured.json")
    assert json.loads((tmp_path / "found" / "measured.json").read_text())["a"]["seconds"] == 1.0


def test_problems_are_what_they_say():
    P1 = problems.completion(100, 1e-6)
    i, j, y = (P1.data[k] for k in ("rows", "columns", "values"))
    assert 0.19 < len(y) / 1e6 < 0.21
    assert np.sqrt(np.mean(y**2)) == pytest.approx(1.0, rel=0.05)
    assert P1.error(lambda: np.zeros((1000, 1000))) == pytest.approx(1.0)
    P2 = problems.large(share=0.05)
    truth = P2.data["values"]
    assert P2.error(lambda at: np.zeros(len(at[0]))) > 10
    assert 0.9 < np.sqrt(np.mean(truth**2)) < 1.1
    P4 = problems.robust(10)
    assert P4.error(P4.data["Y"]) > 1
    P5 = problems.tensor(10)
    assert 0.09 < P5.data["observed"].mean() < 0.11
    assert max(i.max(), j.max()) < 1000


def test_skewed_counts_follow_power_laws():
    rng = np.random.default_rng(0)
    i, j = problems.skewed_index(2000, 500, 30_000, rng.random)
    assert len(np.unique(i * 500 + j)) == len(i) > 20_000
    for places, n, least in ((i, 2000, 0.25), (j, 500, 0.35)):
        counts = np.sort(np.bincount(places, minlength=n))[::-1]
        assert least < counts[: n // 10].sum() / counts.sum() < 0.8  # a tenth has this share


def test_skewed_problem_has_its_noise_and_hides_its_test_entries(monkeypatch):
    monkeypatch.setattr(
        problems, "skewed_index", lambda n1, n2, m, uniform: np.nonzero(uniform((n1, n2)) < 2e-4)
    )
    problem = problems.skewed(1000)
    held = problem.error(lambda at: np.zeros(len(at[0])))
    assert 1.0 < held < 1.1  # of a matrix of rms 1 with noise 0.3
    assert problem.data["values"].size > 15_000


def test_movielens_hides_the_first_fold(tmp_path):
    fold = np.asarray([1, 2, 3, 1, 2, 3])
    table = {"user": np.arange(6) % 3, "item": np.arange(6) % 2, "rating": np.arange(6) % 5 + 1}
    np.savez(tmp_path / "ml.npz", fold_u1_u5=fold, **table)
    problem = problems.movielens(tmp_path / "ml.npz")
    assert problem.shape == (3, 2)
    assert problem.data["values"].tolist() == [2, 3, 5, 1]
    assert problem.error(lambda at: np.asarray([1.0, 9.0])) == pytest.approx(np.sqrt(0.5))


def test_time_is_that_of_the_processor_with_one_thread(monkeypatch):
    ticks = {"wall": iter([0.0, 5.0]), "cpu": iter([0.0, 2.0])}
    monkeypatch.setattr(measure, "CLOCKS", {k: (lambda t=t: next(t)) for k, t in ticks.items()})
    contestant = Contestant("c", "numpy", ("completion",), lambda p, e: None, (1, 1))
    problem = problems.Problem("p", "completion", (1, 1), 1, {}, 0.5, lambda e: 0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert measure.timed(contestant, problem, 1) == (2.0, 0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert measure.timed(contestant, problem, 1) == (5.0, 0.0)


def test_the_plot_fits_a_page_and_shows_the_fastest(tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    made = [
        {"problem": f"P{k}", "peer": peer, "reached": True, "ratio": ratio}
        for k in range(20)
        for peer, ratio in (("slow", 9.0), ("fast", 3.0))
    ]
    assert [r["peer"] for r in report._fastest(made)] == ["fast"] * 20
    grown = [
        {"kind": kind, "entries": 10**k, "rank": 2**k, "threads": t, "seconds": 10.0**k}
        for kind in ("entries", "rank")
        for k in (2, 3)
        for t in (1, 2)
    ]
    report.plot({"contests": made, "growth": grown}, tmp_path / "plot.png")
    height, width = image.imread(tmp_path / "plot.png").shape[:2]
    assert width == 1125
    assert 0.7 * width < height < 1.3 * width
