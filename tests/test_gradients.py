"""Value and pullback belong together, for every operator × loss × factorisation."""

import numpy as np
import pytest
from conftest import draw, slopes

import scaledgd as sg

N = 8


def operators(dtype, rng):
    flat = np.sort(rng.permutation(N * N)[:40])
    return {
        "Full": sg.Full((N, N)),
        "Entries": sg.Entries(np.unravel_index(flat, (N, N)), (N, N)),
        "Sensing": sg.Sensing(draw(rng, 30, N, N, dtype=dtype)),
        "RankOne": sg.RankOne(draw(rng, 30, N, dtype=dtype)),
    }


LOSSES = {
    "Squared": sg.Squared(),
    "Absolute": sg.Absolute(),
    "TopTrim": sg.TopTrim(0.15),
    "SoftTrim": sg.SoftTrim(lambda t: 2.0),
    "SoftTrim-median": sg.SoftTrim(sg.median_threshold()),
}
CASES = [
    (o, loss)
    for o in ("Full", "Entries", "Sensing", "RankOne")
    for loss in LOSSES
    if not (loss == "TopTrim" and o in ("Sensing", "RankOne"))
] + [("Hankel", "Squared")]


def make(operator, loss, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if operator == "Hankel":
        observed = np.arange(2 * N - 1) % 3 != 1
        y = draw(rng, 2 * N - 1, dtype=dtype) * observed
        return sg.HankelCompletion(y, observed, N), rng
    A = operators(dtype, rng)[operator]
    y = draw(rng, *A.measured, dtype=dtype)
    return sg.Observed(A, y, LOSSES[loss], scale=1.7), rng


def factors(kind, dtype, rng):
    if kind == "Symmetric":
        return sg.Symmetric(draw(rng, N, 2, dtype=dtype))
    return sg.LowRank(draw(rng, N, 2, dtype=dtype), draw(rng, N, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("kind", ["LowRank", "Symmetric"])
@pytest.mark.parametrize(("operator", "loss"), CASES)
def test_finite_differences(operator, loss, kind, dtype):
    if operator == "Hankel" and kind == "Symmetric":
        pytest.skip("the Hankel problem is about L Rᴴ")
    problem, rng = make(operator, loss, dtype)
    F = factors(kind, dtype, rng)
    state = problem.linearize(F, t=3)
    value, pullback = state  # unpacks as the mathematics writes it
    for a, b in zip(pullback(), state.gradient, strict=True):
        assert np.array_equal(a, b)
    assert float(state.objective(F)) == pytest.approx(float(value), rel=1e-13)
    for _ in range(3):
        found, expected, scale = slopes(state, F, rng, dtype)
        assert abs(found - expected) <= 1e-7 * scale


@pytest.mark.parametrize(
    ("single", "double"), [(np.float32, np.float64), (np.complex64, np.complex128)]
)
@pytest.mark.parametrize("kind", ["LowRank", "Symmetric"])
@pytest.mark.parametrize(("operator", "loss"), CASES)
def test_single_precision_agrees_and_stays_single(operator, loss, kind, single, double):
    if operator == "Hankel" and kind == "Symmetric":
        pytest.skip("the Hankel problem is about L Rᴴ")
    problem, rng = make(operator, loss, double)
    F = factors(kind, double, rng)
    narrow = narrowed(problem, single)
    F32 = F.with_blocks(tuple(B.astype(single) for B in F.blocks))
    value, grads = problem.linearize(F).value, problem.linearize(F).gradient
    state = narrow.linearize(F32)
    assert float(state.value) == pytest.approx(float(value), rel=1e-4)
    for g, h in zip(state.gradient, grads, strict=True):
        assert g.dtype == single
        assert np.linalg.norm(g - h) <= 1e-4 * np.linalg.norm(h)


def narrowed(problem, dtype):
    if isinstance(problem, sg.HankelCompletion):
        return sg.HankelCompletion(problem.y.astype(dtype), problem.observed, problem.n1)
    A = problem.operator
    if isinstance(A, sg.Sensing):
        A = sg.Sensing(A.A.astype(dtype))
    elif isinstance(A, sg.RankOne):
        A = sg.RankOne(A.a.astype(dtype))
    loss = problem.loss if not isinstance(problem.loss, sg.TopTrim) else sg.TopTrim(0.15)
    return sg.Observed(A, problem.y.astype(dtype), loss, scale=problem.scale)


def test_quadratic_samples_of_a_complex_matrix_are_real_data():
    """Real y with complex sensing vectors: phase retrieval, as users have it."""
    rng = np.random.default_rng(3)
    truth = sg.Symmetric(draw(rng, 12, 1, dtype=np.complex128))
    A = sg.RankOne(draw(rng, 150, 12, dtype=np.complex128) / np.sqrt(2))
    y = A.apply(truth).real
    problem = sg.Observed(A, y)
    result = sg.solve(problem, sg.spectral(1), sg.ScaledGD(sg.line_search()), max_iter=200)
    assert result.factors.L.dtype == np.complex128
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-7
