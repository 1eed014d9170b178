"""The loop: history, stopping, divergence, interruption, resumption."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from conftest import draw

import scaledgd as sg


@pytest.fixture
def instance():
    return sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.6, rng=0)


def blocks_equal(F, G):
    return all(np.array_equal(A, B) for A, B in zip(F.blocks, G.blocks, strict=True))


def test_history_has_one_record_per_iterate(instance):
    problem, truth = instance
    error = lambda F: sg.metrics.relative_error(F, truth)  # noqa: E731
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=7, metrics={"error": error})
    assert [record["t"] for record in result.history] == list(range(8))
    assert result.n_iter == 7
    assert result.state.t == 7
    assert not result.converged
    assert "7 updates" in result.status
    for record in result.history:
        assert set(record) == {"t", "value", "seconds", "error"}
        assert all(type(record[k]) is float for k in ("value", "seconds", "error"))
    seconds = [record["seconds"] for record in result.history]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_no_update_is_a_run_too(instance):
    problem, _ = instance
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=0)
    assert len(result.history) == 1
    assert blocks_equal(result.factors, sg.spectral(3)(problem))


def test_metrics_and_callbacks_are_off_the_clock(instance, clock):
    problem, _ = instance
    result = sg.solve(
        problem,
        sg.spectral(3),
        sg.ScaledGD(),
        max_iter=5,
        metrics={"slow": lambda F: clock.skip(1000) or 0.0},
        callback=lambda state: clock.skip(1000),
    )
    assert clock.passed == pytest.approx(6 * 2000)
    assert result.history[-1]["seconds"] == 0.0


@pytest.mark.parametrize("verdict", [True, np.bool_(True), 1])
def test_a_callback_can_stop(instance, verdict):
    problem, _ = instance
    result = sg.solve(
        problem, sg.spectral(3), sg.ScaledGD(), callback=lambda s: verdict if s.t == 4 else None
    )
    assert result.state.t == 4
    assert not result.converged
    assert "callback" in result.status


def test_a_callback_can_stop_by_raising(instance):
    problem, _ = instance
    states = iter(range(5))
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), callback=lambda s: next(states) < 0)
    assert result.state.t == 5
    assert "callback" in result.status


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rule", [sg.loss_change(1e-6), sg.gradient_norm(1e-6)])
def test_stopping_rules_are_scale_free(rule, factor):
    problem, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.6, noise=1e-3, rng=0)
    scaled = sg.Observed(problem.operator, factor * problem.y, scale=problem.scale)
    result = sg.solve(scaled, sg.spectral(3), sg.ScaledGD(), max_iter=500, stop=rule)
    plain = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=500, stop=rule)
    assert result.converged
    assert 5 < result.n_iter < 200
    assert abs(result.n_iter - plain.n_iter) <= 1


@pytest.mark.parametrize("rule", [sg.loss_change(1e-12), sg.gradient_norm(1e-9)])
@pytest.mark.parametrize(
    ("operator", "scale"), [(1e-6, 1.0), (1e3, 1.0), (1e4, 1.0), (1.0, 1e-10), (1.0, 1e8)]
)
def test_stopping_rules_do_not_see_the_scale_of_the_operator(rule, operator, scale):
    """A start that is off by the square of the operator's scale must not fool them."""
    rng = np.random.default_rng(5)
    truth = sg.datasets.low_rank(20, 15, 2, 5, rng)
    A = sg.Sensing(operator * draw(rng, 700, 20, 15))
    problem = sg.Observed(A, A.apply(truth), scale=scale)
    method = sg.ScaledGD(sg.line_search())
    result = sg.solve(problem, sg.spectral(2), method, max_iter=500, stop=rule)
    assert result.converged, result.status
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-7


@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
def test_loss_change_knows_where_an_l1_loss_vanishes(factor):
    rng = np.random.default_rng(0)
    truth = sg.datasets.low_rank(20, 15, 2, 5, rng)
    A = sg.Sensing(draw(rng, 700, 20, 15))
    problem = sg.Observed(A, factor * A.apply(truth), sg.Absolute())
    result = sg.solve(
        problem,
        sg.spectral(2, keep=1.0),
        sg.ScaledGD(sg.polyak()),
        max_iter=500,
        stop=sg.loss_change(1e-12),
    )
    assert result.converged
    big = sg.LowRank(factor * truth.L, truth.R)
    assert float(sg.metrics.relative_error(result.factors, big)) < 1e-13


def test_loss_change_stops_where_the_loss_vanishes(instance):
    problem, truth = instance
    result = sg.solve(
        problem, sg.spectral(3), sg.ScaledGD(), max_iter=500, stop=sg.loss_change(1e-12)
    )
    assert result.converged
    assert result.n_iter < 200
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-13


def test_gradient_norm_is_invariant_under_reparameterisation(instance):
    problem, _ = instance
    F = sg.spectral(3)(problem)
    Q = np.linalg.qr(draw(np.random.default_rng(0), 3, 3))[0] * np.asarray([1.0, 3.0, 10.0])
    G = sg.LowRank(F.L @ Q, F.R @ np.linalg.inv(Q).T)
    stops = [
        sg.solve(problem, X, sg.ScaledGD(), max_iter=99, stop=sg.gradient_norm(1e-5)).n_iter
        for X in (F, G)
    ]
    assert stops[0] == stops[1]


def test_time_limit_is_not_convergence(instance, clock):
    problem, _ = instance
    clock.tick = 1.0
    result = sg.solve(
        problem, sg.spectral(3), sg.ScaledGD(), max_iter=10**6, stop=sg.time_limit(20)
    )
    assert "time limit" in result.status
    assert not result.converged
    *before, last = (record["seconds"] for record in result.history)
    assert max(before) < 20 <= last < 25


def test_several_rules_and_max_iter(instance):
    problem, _ = instance
    rules = [sg.time_limit(1e9), sg.gradient_norm(1e-5)]
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=300, stop=rules)
    assert result.converged
    assert "scaled gradient" in result.status
    short = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=3, stop=rules)
    assert not short.converged
    assert "raise max_iter" in short.status


def test_divergence_is_rolled_back_and_said():
    problem, truth = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.6, rng=0)
    with pytest.warns(sg.DivergenceWarning, match="lower the step"):
        result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(3.0), max_iter=2000)
    assert not result.converged
    assert result.status.startswith("diverged")
    values = [record["value"] for record in result.history]
    assert not np.isfinite(values[-1])
    assert np.all(np.isfinite(values[:-1]))
    assert float(result.state.value) == min(values[:-1])
    assert np.all(np.isfinite(result.factors.full()))
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1


def test_singular_grams_are_no_crash():
    """Data of zero have the start zero, whose Grams are zero: it stays there, and is right."""
    problem = sg.Observed(sg.Full((4, 3)), np.zeros((4, 3)))
    result = sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=5)
    np.testing.assert_array_equal(result.factors.full(), np.zeros((4, 3)))
    assert result.n_iter == 5
    stopped = sg.solve(problem, sg.spectral(1), sg.ScaledGD(), stop=sg.loss_change())
    assert stopped.converged
    rng = np.random.default_rng(0)
    deficient = sg.LowRank(np.outer(draw(rng, 6), [1.0, 1.0]), np.outer(draw(rng, 5), [1.0, 1.0]))
    Y = np.outer(draw(rng, 6), draw(rng, 5))
    run = sg.solve(sg.Observed(sg.Full((6, 5)), Y), deficient, sg.ScaledGD(), max_iter=60)
    np.testing.assert_allclose(run.factors.full(), Y, atol=1e-8)


@pytest.mark.parametrize("best_at", [3, 20])
def test_after_a_moving_threshold_the_best_iterate_is_chosen_at_one_threshold(best_at):
    """Values at different thresholds are not comparable: here they fall while the fit worsens."""
    Y = np.outer(np.arange(1.0, 7.0), np.arange(1.0, 6.0))
    problem = sg.Observed(sg.Full((6, 5)), Y, sg.SoftTrim(sg.geometric(10.0, 0.5)))

    def at_distance(gap):
        return sg.LowRank(np.arange(1.0, 7.0)[:, None], (1 + gap) * np.arange(1.0, 6.0)[:, None])

    def scripted(problem, state):
        gap = 0.1 + 0.02 * abs(state.t + 1 - best_at)
        return at_distance(gap if state.t < 24 else np.nan), state.memory

    with pytest.warns(sg.DivergenceWarning):
        result = sg.solve(problem, at_distance(1.0), scripted, max_iter=99)
    values = [record["value"] for record in result.history[:-1]]
    assert np.argmin(values) > best_at  # the raw minimum is the wrong one
    assert result.state.t == best_at


def test_the_start_must_be_finite():
    problem = sg.Observed(sg.Full((4, 3)), np.ones((4, 3)))
    huge = sg.LowRank(np.full((4, 1), 1e200), np.full((3, 1), 1e200))
    with pytest.raises(FloatingPointError, match="rescale"):
        sg.solve(problem, huge, sg.ScaledGD())


CASES = {
    "fixed": (sg.Squared(), sg.ScaledGD(0.5)),
    "schedule": (sg.Squared(), sg.ScaledGD(sg.geometric(0.6, 0.99))),
    "line-search": (sg.Squared(), sg.ScaledGD(sg.line_search())),
    "line-search-per-block": (
        sg.Squared(),
        sg.GradientDescent((sg.line_search(), sg.line_search())),
    ),
    "soft-schedule": (sg.SoftTrim(sg.geometric(0.1, 0.9)), sg.ScaledGD(0.5)),
    "soft-median": (sg.SoftTrim(sg.median_threshold()), sg.ScaledGD(0.5)),
    "level": (sg.Absolute(), sg.ScaledGD(sg.polyak(best=None))),
    "top": (sg.TopTrim(0.1), sg.GradientDescent(0.3)),
}


@pytest.mark.parametrize("name", CASES)
def test_stopped_and_resumed_equals_uninterrupted(instance, name):
    problem, _ = instance
    loss, method = CASES[name]
    problem = sg.Observed(problem.operator, problem.y, loss, scale=problem.scale)
    whole = sg.solve(problem, sg.spectral(3), method, max_iter=20)
    half = sg.solve(problem, sg.spectral(3), method, max_iter=8)
    rest = sg.solve(problem, half.state, method, max_iter=12)
    assert [r["t"] for r in rest.history] == list(range(8, 21))
    assert [r["value"] for r in half.history[:-1] + rest.history] == [
        r["value"] for r in whole.history
    ]
    assert blocks_equal(rest.factors, whole.factors)
    assert rest.n_iter == 12
    assert rest.state.memory == whole.state.memory


def test_t_factors_and_memory_are_all_that_resuming_needs(instance):
    problem, _ = instance
    problem = sg.Observed(problem.operator, problem.y, sg.SoftTrim(sg.median_threshold()))
    method = sg.ScaledGD(sg.line_search())
    whole = sg.solve(problem, sg.spectral(3), method, max_iter=12)
    half = sg.solve(problem, sg.spectral(3), method, max_iter=5).state
    t, blocks, memory = pickle.loads(pickle.dumps((half.t, half.factors.blocks, half.memory)))
    states = sg.iterate(problem, sg.LowRank(*blocks), method, t, memory)
    last = next(itertools.islice(states, 7, None))
    assert last.t == 12
    assert blocks_equal(last.factors, whole.factors)


RULES = [0.4, (0.3, 0.3), sg.geometric(0.5, 0.99), sg.line_search(), (sg.line_search(), 0.2)]
RULES += [sg.polyak(0.0), sg.polyak(best=None)]


@pytest.mark.parametrize("loss", [sg.Squared(), sg.Absolute()])
@pytest.mark.parametrize("first", RULES)
@pytest.mark.parametrize("second", RULES)
def test_a_run_can_go_on_with_another_rule(instance, first, second, loss):
    problem, _ = instance
    half = sg.solve(problem, sg.spectral(3), sg.ScaledGD(first), max_iter=3)
    other = sg.Observed(problem.operator, problem.y, loss)
    rest = sg.solve(other, half.state, sg.ScaledGD(second, damping=1.0), max_iter=3)
    assert rest.state.t == 6


def test_states_and_results_can_be_pickled(instance):
    problem, _ = instance
    method = sg.ScaledGD(sg.line_search())
    whole = sg.solve(problem, sg.spectral(3), method, max_iter=12)
    half = pickle.loads(pickle.dumps(sg.solve(problem, sg.spectral(3), method, max_iter=5)))
    assert half.history[-1]["t"] == 5
    rest = sg.solve(problem, half.state, method, max_iter=7)
    assert blocks_equal(rest.factors, whole.factors)


class Nervous(sg.Full):
    """A full observation that is interrupted at its n-th evaluation."""

    def __init__(self, shape, at):
        super().__init__(shape)
        object.__setattr__(self, "left", [at])

    def apply(self, factors):
        self.left[0] -= 1
        if self.left[0] == 0:
            raise KeyboardInterrupt
        return super().apply(factors)


def test_ctrl_c_before_the_first_iterate_of_a_resumed_run_keeps_the_state():
    Y = np.outer(np.arange(1.0, 7.0), np.arange(1.0, 6.0))
    start = sg.LowRank(np.ones((6, 1)), np.ones((5, 1)))
    half = sg.solve(sg.Observed(sg.Full((6, 5)), Y), start, sg.ScaledGD(), max_iter=3)
    nervous = sg.Observed(Nervous((6, 5), at=1), Y)
    result = sg.solve(nervous, half.state, sg.ScaledGD(), interrupt="return")
    assert result.state is half.state
    assert result.n_iter == 0
    with pytest.raises(KeyboardInterrupt):
        sg.solve(sg.Observed(Nervous((6, 5), at=1), Y), start, sg.ScaledGD(), interrupt="return")


def test_ctrl_c_while_a_divergence_is_rolled_back():
    Y = np.outer(np.arange(1.0, 7.0), np.arange(1.0, 6.0))
    start = sg.LowRank(np.ones((6, 1)), np.ones((5, 1)))

    def scripted(problem, state):
        L, R = state.factors.blocks
        return sg.LowRank(np.nan * L if state.t == 14 else L, R), {}

    loss = sg.SoftTrim(0.5)
    calls = []

    class Counting(sg.Full):
        def apply(self, factors):
            calls.append(bool(np.all(np.isfinite(factors.L))))
            if len(calls) > 1 and not calls[-2]:
                raise KeyboardInterrupt
            return super().apply(factors)

    problem = sg.Observed(Counting((6, 5)), Y, loss)
    result = sg.solve(problem, start, scripted, interrupt="return")
    assert "interrupted" in result.status
    assert result.state.t == 14


def interrupting(at):
    def callback(state):
        if state.t == at:
            raise KeyboardInterrupt

    return callback


def test_ctrl_c_is_raised_with_the_partial_result(instance):
    problem, _ = instance
    with pytest.raises(KeyboardInterrupt) as caught:
        sg.solve(problem, sg.spectral(3), sg.ScaledGD(), callback=interrupting(6))
    result = caught.value.result
    assert isinstance(caught.value, sg.Interrupted)
    assert result.state.t == 6
    assert len(result.history) == 7
    assert "interrupted" in result.status
    resumed = sg.solve(problem, result.state, sg.ScaledGD(), max_iter=4)
    whole = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=10)
    assert blocks_equal(resumed.factors, whole.factors)


def test_a_caller_can_ask_for_the_partial_result_instead(instance):
    problem, _ = instance
    result = sg.solve(
        problem, sg.spectral(3), sg.ScaledGD(), callback=interrupting(6), interrupt="return"
    )
    assert result.state.t == 6
    assert not result.converged


SIGNALS = """
import signal, threading
import numpy as np, scaledgd as sg

problem, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.6, rng=0)
for k in range(40):
    # from some moment after the first iterate on: before it there is nothing to keep
    timer = threading.Timer(0.002 + 0.0013 * k, signal.raise_signal, [signal.SIGINT])
    begin = lambda state: timer.start() if state.t == 0 else None
    result = sg.solve(
        problem,
        sg.spectral(3),
        sg.ScaledGD(sg.line_search() if k % 2 else 0.5),
        max_iter=10**7,
        metrics={"norm": lambda F: F.norm()},
        callback=begin,
        stop=lambda state, history: None,
        interrupt="return",
    )
    timer.join()
    assert "interrupted" in result.status, result.status
    assert [record["t"] for record in result.history] == list(range(result.state.t + 1))
    assert float(result.state.value) == result.history[-1]["value"]
    assert all("norm" in record for record in result.history)
    assert np.all(np.isfinite(result.factors.full()))
print("whole", k + 1)
"""


def test_a_real_signal_at_any_moment_leaves_a_whole_iterate():
    """In a process of its own, which a signal that goes astray may end."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "whole 40", done.stdout + done.stderr


def test_inputs_are_never_modified():
    rng = np.random.default_rng(0)
    truth = sg.datasets.low_rank(20, 15, 2, 3, rng)
    index = np.nonzero(rng.random((20, 15)) < 0.7)
    y = truth.at(index)
    L, R = draw(rng, 20, 2), draw(rng, 15, 2)
    given = (*index, y, L, R)
    copies = [x.copy() for x in given]
    for x in given:
        x.flags.writeable = False
    problem = sg.Observed(sg.Entries(index, (20, 15)), y, sg.TopTrim(0.1))
    sg.solve(problem, sg.LowRank(L, R), sg.ScaledGD(sg.line_search()), max_iter=5)
    for x, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_single_precision_in_single_precision_out(dtype):
    rng = np.random.default_rng(0)
    truth = sg.LowRank(draw(rng, 40, 2, dtype=dtype), draw(rng, 30, 2, dtype=dtype))
    index = np.nonzero(rng.random((40, 30)) < 0.6)
    # np.float64 scalars as parameters must not widen anything
    problem = sg.Observed(sg.Entries(index, (40, 30)), truth.at(index), scale=np.float64(1 / 0.6))
    for method in (
        sg.ScaledGD(np.float64(0.5), damping=np.float64(1e-3), project=sg.incoherence(1e9)),
        sg.ScaledGD(sg.line_search()),
        sg.ScaledGD(sg.geometric(0.5, 0.999)),
    ):
        result = sg.solve(problem, sg.spectral(2), method, max_iter=150)
        assert all(B.dtype == dtype for B in result.factors.blocks)
        assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-4


def test_what_it_takes_to_know_when_to_stop_is_on_the_clock(instance, clock):
    problem, _ = instance

    def slow(state, history):
        clock.skip(1000)

    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=6, stop=slow)
    assert result.history[-1]["seconds"] == pytest.approx(6 * 1000)


def test_a_finite_divergence_is_said_too(instance):
    problem, _ = instance
    with pytest.warns(sg.DivergenceWarning, match="diverging: the loss grew"):
        result = sg.solve(problem, sg.spectral(3), sg.GradientDescent(5.0), max_iter=4)
    assert result.state.t == 4
    assert result.status.startswith("diverging")


def test_gradient_norm_looks_at_the_blocks_that_move(instance):
    problem, _ = instance
    method = sg.ScaledGD(0.5, update=(0,))
    rule = sg.gradient_norm(1e-6, update=(0,))
    result = sg.solve(problem, sg.spectral(3), method, max_iter=200, stop=rule)
    assert result.converged
    other = sg.solve(problem, sg.spectral(3), method, max_iter=200, stop=sg.gradient_norm(1e-6))
    assert not other.converged


def test_gradient_norm_knows_single_precision(instance):
    problem, _ = instance
    single = sg.Observed(problem.operator, problem.y.astype(np.float32), scale=problem.scale)
    result = sg.solve(single, sg.spectral(3), sg.ScaledGD(), max_iter=300, stop=sg.gradient_norm())
    assert result.converged


def test_another_threshold_rule_does_not_inherit(instance):
    problem, _ = instance
    first = sg.Observed(problem.operator, problem.y, sg.SoftTrim(sg.median_threshold()))
    half = sg.solve(first, sg.spectral(3), sg.ScaledGD(), max_iter=5)
    for loss in (sg.SoftTrim(1e-3), sg.SoftTrim(sg.median_threshold(5.0))):
        second = sg.Observed(problem.operator, problem.y, loss)
        resumed = sg.solve(second, half.state, sg.ScaledGD(), max_iter=0)
        fresh = second.linearize(half.factors, half.state.t)
        assert resumed.history[0]["value"] == float(fresh.value)


class Halving:
    """A user's own rule, which need not be hashable."""

    __hash__ = None

    def pick(self, ray):
        step = 0.8 if ray.remembered is None else 0.5 * ray.remembered
        return step, step


def test_a_user_can_write_a_step_rule(instance):
    problem, _ = instance
    rule = Halving()
    ours = sg.solve(problem, sg.spectral(3), sg.ScaledGD(rule), max_iter=4)
    same = sg.solve(problem, sg.spectral(3), sg.ScaledGD(sg.geometric(0.8, 0.5)), max_iter=4)
    assert blocks_equal(ours.factors, same.factors)
