"""The benchmark that looks for answers which cannot be trusted: instances, judgement, shrinking."""

import json
import multiprocessing
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import scaledgd as sg
from scaledgd.linalg import inner

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.trust import __main__ as trust
from benchmarks.trust import instances, judge, record
from benchmarks.trust.instances import ESTIMATORS, REGRESSORS, Recipe, determined, drawn, made
from benchmarks.trust.judge import clear, errors, opinion, simple, verdict
from benchmarks.trust.shrink import shrunk, simpler

GOOD = {"finite": True, "warned": False, "determined": True, "error": 0.1, "means": 1.0}


def test_an_instance_depends_on_two_numbers():
    for number in range(200):
        recipe = drawn(3, number)
        assert recipe == drawn(3, number)
        assert Recipe.of(json.loads(json.dumps(recipe.plain))) == recipe
    assert drawn(3, 0) != drawn(4, 0)
    a, b = (made(drawn(3, 5)) for _ in range(2))
    assert np.array_equal(a.given, b.given, equal_nan=True)


def test_instances_are_of_all_kinds():
    recipes = [drawn(0, n) for n in range(600)]
    assert {r.estimator for r in recipes} == set(ESTIMATORS)
    for name in ("pattern", "kind", "form", "scale", "heavy"):
        assert len({getattr(r, name) for r in recipes}) > 1
    assert min(min(r.shape) for r in recipes) == 1
    assert max(max(r.shape) for r in recipes) > 200
    small = [r for r in recipes if np.prod(r.shape) < 2000]
    share = np.mean([determined(r, made(r)) for r in small])
    assert 0.05 < share < 0.95


@pytest.mark.parametrize("number", range(40))
def test_data_are_as_the_recipe_says(number):
    recipe = drawn(1, number)
    data = made(recipe)
    if recipe.estimator in REGRESSORS:
        assert data.design.shape == (len(data.given), *recipe.shape)
        return
    assert data.given.shape == data.truth.shape == recipe.shape
    assert data.seen.any()
    assert data.seen.all() or recipe.seen < 1
    assert data.given.dtype == (np.float32 if recipe.kind == "float32" else np.float64)
    for k in range(recipe.constants):
        column = data.given[..., k % recipe.shape[-1]]
        assert len(np.unique(column[np.isfinite(column)])) <= 1


def test_without_noise_what_is_seen_is_true():
    data = made(Recipe(shape=(20, 15), rank=2, seen=0.5, offset=3.0, seed=4))
    assert np.allclose(data.given[data.seen], data.truth[data.seen])
    assert np.linalg.matrix_rank(data.truth) <= 4
    exact = made(Recipe(shape=(20, 15), constants=1, seed=4))
    assert np.ptp(exact.given[:, 0]) == 0


def test_simple_estimates():
    X = np.array([[1.0, np.nan], [3.0, 5.0]])
    columns, both = simple(X, False, 1.0)
    assert columns.tolist() == [[2, 5], [2, 5]]
    assert both.tolist() == [[1, 4], [2.5, 5.5]]


def test_errors_are_those_of_what_was_not_seen():
    recipe = Recipe(shape=(20, 15), rank=2, seen=0.5, seed=4)
    data = made(recipe)
    found = errors(recipe, data, np.where(data.seen, 1e9, data.truth))
    assert found["error"] == 0
    assert 0.5 < found["means"] < 2


def test_a_column_of_nothing_but_noise_does_not_outweigh_the_others():
    recipe = Recipe(shape=(40, 5), spread=0.1, noise=0.1, seen=0.5, seed=4)
    data = made(recipe)
    truth = np.where(np.arange(5) == 2, 1e-9 * data.truth, data.truth)
    found = errors(recipe, replace(data, truth=truth), truth + 0.03)
    assert found["error"] < 0.3
    assert found["error"] < found["means"]


def test_columns_of_unlike_scale_are_judged_in_two_ways():
    recipe = Recipe(shape=(40, 5), spread=4.0, seen=0.5, seed=4)
    data = made(recipe)
    sizes = np.std(data.truth, axis=0)
    for column, name in ((np.argmin(sizes), ""), (np.argmax(sizes), "plain ")):
        wrong = data.truth + 10 * sizes * (np.arange(5) == column)
        found = errors(recipe, data, wrong)
        assert opinion({**GOOD, **found, "constant": 0.0}) == ["bad, determined"]
        assert found[f"{name}error"] > 1.1 * found[f"{name}means"]
    assert "plain error" not in errors(replace(recipe, spread=0.0), data, data.truth)


def test_only_warnings_of_ours_speak_of_an_answer(monkeypatch):
    def answer(recipe, data):
        warnings.warn("something else", FutureWarning, stacklevel=1)
        return {"error": 2.0, "means": 1.0, "offsets": 1.0, "finite": True}

    monkeypatch.setattr(judge, "_answer", answer)
    assert verdict(Recipe(shape=(30, 20)))["failures"] == ["bad, determined"]


@pytest.mark.parametrize(
    ("category", "words", "failures"),
    [
        (sg.DataWarning, "means of columns predict better", []),
        (ConvergenceWarning, "not converged", ["bad, determined"]),
        (ConvergenceWarning, "not converged; offsets alone are given", []),
    ],
)
def test_that_a_fit_has_not_converged_is_no_excuse(category, words, failures, monkeypatch):
    def answer(recipe, data):
        warnings.warn(words, category, stacklevel=1)
        return {"error": 2.0, "means": 1.0, "offsets": 1.0, "finite": True}

    monkeypatch.setattr(judge, "_answer", answer)
    assert verdict(Recipe(shape=(30, 20)))["failures"] == failures


@pytest.mark.parametrize(
    ("change", "failures"),
    [
        ({}, []),
        ({"error": 1.2}, ["bad, determined"]),
        ({"error": 1.2, "determined": False}, ["bad"]),
        ({"error": 1.2, "warned": True}, []),
        ({"error": 1.05}, []),
        ({"plain error": 1.2, "plain means": 1.0}, ["bad, determined"]),
        ({"plain error": 0.2, "plain means": 1.0}, []),
        ({"finite": False}, ["not finite"]),
        ({"constant": 1.0}, ["constant"]),
    ],
)
def test_opinions(change, failures):
    assert opinion({**GOOD, **change}) == failures
    assert opinion({}) == []


def test_only_sentences_of_ours_are_clear():
    def told(error):
        try:
            raise error
        except Exception as raised:
            return clear(raised)

    assert not told(ValueError("this sentence was written by a test"))
    assert not told(np.linalg.LinAlgError("the matrix is singular, it is"))
    with pytest.raises(ValueError, match="could not be broadcast together") as found:
        inner(np.ones(3), np.ones(4))  # NumPy's words, at a line of ours
    assert not clear(found.value)
    refused = verdict(Recipe(shape=(3, 3), seen=0.4, options={"calibrate": 0.3}, seed=2))
    assert refused["failures"] in ([], ["refused"])
    wrong = verdict(Recipe(shape=(3, 3), options={"rank": "no"}))
    assert wrong["failures"] == ["refused"]
    assert "rank must be" in wrong["message"]


def test_a_good_answer_has_no_failure():
    found = verdict(Recipe(shape=(30, 20), rank=2, seen=0.6, seed=1))
    assert found["failures"] == []
    assert found["determined"]
    assert found["error"] < 1e-6


def test_the_smallest_case_is_found():
    def large(recipe):
        wrong = recipe.shape[0] >= 7 and recipe.scale > 1
        return {"failures": ["bad"] if wrong else ["slow"] if recipe.rank == 9 else []}

    start = Recipe(shape=(100, 50), rank=3, scale=1e6, noise=0.3, options={"rank": 2}, outliers=0.1)
    small, found = shrunk(start, large, most=200)
    assert found["failures"] == ["bad"]
    assert small == replace(Recipe(), shape=small.shape, scale=1e6)
    assert small.shape == (7, 1)
    assert all(other != small for other in simpler(small))
    assert shrunk(Recipe(), large)[1]["failures"] == []


def test_answers_are_judged_where_processes_have_no_clock(monkeypatch):
    for name in ("setitimer", "SIGPROF", "ITIMER_PROF"):
        monkeypatch.delattr(signal, name, raising=False)
    assert verdict(Recipe())["failures"] == []


@pytest.mark.parametrize("methods", [["spawn"], ["spawn", "forkserver"]])
def test_a_record_is_resumed(methods, tmp_path, monkeypatch, capsys):
    known = set(methods) & set(multiprocessing.get_all_start_methods())
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: known)
    plain = {method: multiprocessing.get_context(method) for method in known}
    monkeypatch.setattr(multiprocessing, "get_context", plain.__getitem__)
    ran = []

    def apart(context, seed, number):
        ran.append(number)
        line = {"number": number, "seed": seed, "recipe": drawn(seed, number).plain}
        return {**line, **GOOD, "offsets": 1.0, "cpu": 0.1, "failures": ["bad"] * (number == 1)}

    monkeypatch.setattr(trust, "apart", apart)
    record = tmp_path / "record.jsonl"
    assert trust.main(["--count", "2", "--record", str(record)]) == 1
    record.write_text(record.read_text() + '{"number": 2')  # the power had gone
    trust.main(["--count", "4", "--record", str(record)])
    trust.main(["--count", "4", "--record", str(record)])
    assert ran == [0, 1, 2, 3]
    said = capsys.readouterr().out
    assert "4 instances, 4 answered" in said
    assert "--seed 0 --only 1      bad" in said
    assert trust.main(["--report", str(record)]) == 1
    assert "1  bad" in capsys.readouterr().out
    trust.main(["--count", "4", "--again", "--record", str(record)])
    assert ran == [0, 1, 2, 3, 1]


def test_what_needs_a_missing_library_is_skipped(monkeypatch):
    monkeypatch.setattr(instances, "find_spec", lambda name: None)
    assert verdict(Recipe(form="polars"))["failures"] == ["skipped"]
    assert verdict(Recipe(form="array"))["failures"] == []


@pytest.mark.parametrize("form", ["frame", "polars", "xarray"])
@pytest.mark.parametrize("times", ["", "irregular"])
def test_labelled_tables_are_judged(form, times):
    pytest.importorskip(instances.LABELLED[form])
    found = verdict(Recipe(shape=(30, 8), seen=0.7, form=form, times=times, memory=0.9, seed=2))
    assert found["failures"] == []
    assert found["error"] < 0.1


def test_slices_of_a_tensor_agree_with_its_fit():
    """Components that nearly cancel each other made rows that explained nothing."""
    found = verdict(
        Recipe(
            estimator="TensorCompletion",
            options={"random_state": 0},
            seed=2108967279,
            shape=(5, 5, 4, 10),
            rank=4,
            constants=1,
            scale=1e6,
        )
    )
    assert found["failures"] == []
    assert found["error"] < 1e-4


def test_a_word_that_is_no_text_is_shown(tmp_path):
    pytest.importorskip("typer")
    from benchmarks.trust.promises import commanded

    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b,c\n1,2,3\n4,\xb5,6\n7,8,9\n1,5,6\n")
    code, told = commanded(["clean", str(path), "-o", str(tmp_path / "clean.csv")])
    assert code == 2
    assert "line 3" in told
    assert "µ" in told  # Windows-1252


def test_answers_far_from_the_truth_are_counted():
    plain = Recipe(noise=0.01, offset=1.0).plain
    line = {"seed": 0, "number": 0, "recipe": plain, "determined": True, "warned": False}
    line |= {"error": 0.2, "means": 1.0, "offsets": 0.9, "failures": [], "cpu": 0.1}
    assert record.lost(line)
    assert not record.lost({**line, "error": 0.09})
    assert not record.lost({**line, "warned": True})
    assert not record.lost({**line, "determined": False})
    # one component and two offsets need a rank of 3
    for rank, far in ((1, False), (3, True), ("auto", True)):
        asked = {**plain, "options": {"rank": rank}}
        assert record.lost({**line, "recipe": asked}) == far
    assert not record.lost({**line, "recipe": {**plain, "options": {"ridge": 0.1}}})
    # nonnegative factors cannot have the negative entries that offsets bring
    assert not record.lost({**line, "recipe": {**plain, "options": {"non_negative": True}}})
    said = "     1  far from the truth that the data determine, without a warning"
    assert said in record.table([line])
