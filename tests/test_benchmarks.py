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
