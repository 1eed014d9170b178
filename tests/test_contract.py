"""What docs/built.md promises whoever adds a class: the smallest legal member of each kind works.

Each member below has what the documentation asks for and nothing else. It is run through every
method that should take it, and methods that need more say what is missing.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.ambient import Dense

SHAPE = (12, 9)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ---- the smallest legal members


@dataclass(frozen=True, eq=False)
class USV(sg.Factors):
    """X = U S Vᵀ with a full r × r matrix S in the middle."""

    U: np.ndarray
    S: np.ndarray
    V: np.ndarray

    default_step = 0.3

    @property
    def blocks(self):
        return self.U, self.S, self.V

    @property
    def modes(self):
        return self.U, self.V

    def assemble(self, modes):
        return modes[0] @ self.S @ modes[1].T

    def pullback(self, Z):
        return (
            Z.contract(self.modes, skip=0) @ self.S.T,
            Z.contract(self.modes),
            Z.contract(self.modes, skip=1).T @ self.S,
        )

    def precondition(self, grads, damping=0.0):
        def inverse(M):
            return np.linalg.pinv(M.T @ M + damping * np.eye(M.shape[1]))

        U, S, V = self.blocks
        return (
            grads[0] @ inverse(V @ S.T),
            inverse(U) @ grads[1] @ inverse(V),
            grads[2] @ inverse(U @ S),
        )


class LinearUSV(USV):
    """The same, declared to be linear in each block."""

    multilinear = True


@dataclass(frozen=True, eq=False)
class Margins(sg.Operator):
    """The sums of rows and columns."""

    shape: tuple

    @property
    def measured(self):
        return (sum(self.shape),)

    def apply(self, factors):
        X = factors.full()
        return np.concatenate([X.sum(axis=1), X.sum(axis=0)])

    def adjoint(self, w):
        return Dense(w[: self.shape[0], None] + w[None, self.shape[0] :])


class Quartic(sg.Loss):
    """¼ Σ r⁴, whose curvature no constant bounds."""

    def __call__(self, residual, t=0):
        return 0.25 * np.sum(residual**4), residual**3


class Cosh(sg.Loss):
    """Σ log cosh r, with a bound on its curvature."""

    def __call__(self, residual, t=0):
        return np.sum(np.log(np.cosh(residual))), np.tanh(residual)

    def curvature(self, residual):
        return np.ones_like(residual)


class Denoise(sg.Problem):
    """½ ‖X − Y‖², by the members that a problem must have."""

    def __init__(self, Y):
        self.example, self.shape = Y, Y.shape

    def view(self, factors, t=0, memory=None):
        r = factors.full() - self.example
        return 0.5 * np.sum(r * r), lambda: factors.pullback(Dense(r))


def half(problem, state):
    """A method: half a scaled step."""
    F = state.factors
    step = F.precondition(state.gradient)
    return F.with_blocks(tuple(B - 0.5 * d for B, d in zip(F.blocks, step, strict=True))), None


# ---- a factorisation


def usv(kind=USV, seed=0):
    return kind(draw(12, 2, seed=seed), draw(2, 2, seed=seed + 1), draw(9, 2, seed=seed + 2))


def problems_of(X):
    i, j = np.nonzero(np.random.default_rng(3).random(X.shape) < 0.8)
    A = draw(400, *X.shape, seed=4) / 20
    square = X[:9, :9]
    yield "Full", sg.Observed(sg.Full(X.shape), X), X
    yield "Entries", sg.Observed(sg.Entries((i, j), X.shape), X[i, j], scale=1.25), X
    yield "Sensing", sg.Observed(sg.Sensing(A), np.tensordot(A, X, 2)), X
    a = draw(300, 9, seed=5)
    y = np.einsum("ki,ij,kj->k", a, square, a)
    yield "RankOne", sg.Observed(sg.RankOne(a), y), square


def test_a_factorisation_has_the_value_it_should_have_everywhere():
    """0.1.0 multiplied U and V as if nothing stood between them."""
    F = usv()
    X = F.full()
    np.testing.assert_allclose(float(F.norm()), np.linalg.norm(X))
    index = np.asarray([0, 3, 11]), np.asarray([1, 8, 0])
    np.testing.assert_allclose(F.at(index), X[index])
    Y = draw(*SHAPE, seed=9)
    for name, problem, _ in problems_of(Y):
        G = usv() if name != "RankOne" else USV(F.U[:9], F.S, F.V)
        off = problem.operator.apply(sg.LowRank(G.U @ G.S, G.V)) - problem.y
        expected = 0.5 * problem.scale * np.sum(off**2)
        state = problem.linearize(G)
        np.testing.assert_allclose(float(state.value), expected, err_msg=name)
        for k, B in enumerate(G.blocks):  # and the gradient of that value
            D, h = draw(*B.shape, seed=k), 1e-6
            up, down = (float(state.objective(G.moved(k, s * h * D))) for s in (1, -1))
            slope = float(np.sum(state.gradient[k] * D))
            assert (up - down) / (2 * h) == pytest.approx(slope, rel=1e-5), (name, k)


@pytest.mark.parametrize(
    "method",
    [
        sg.ScaledGD(),
        sg.ScaledGD(sg.line_search()),
        sg.ScaledGD(sg.line_search(), damping=1e-8),
        sg.ScaledLBFGS(),
        half,
    ],
    ids=["ScaledGD", "line search", "damped", "L-BFGS", "own"],
)
@pytest.mark.parametrize("name", ["Full", "Entries", "Sensing"])
def test_a_factorisation_runs_through_the_methods(method, name):
    truth = usv()
    problem = {n: p for n, p, _ in problems_of(truth.full())}[name]
    start = USV(*(B + 0.1 * draw(*B.shape, seed=7 + k) for k, B in enumerate(truth.blocks)))
    stops = [sg.loss_change(1e-14), sg.gradient_norm(1e-10)]
    result = sg.solve(problem, start, method, max_iter=300, stop=stops)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-5


def test_blocks_are_solved_where_a_factorisation_says_that_it_is_linear_in_them():
    truth = usv(LinearUSV)
    problem = sg.Observed(sg.Full(SHAPE), truth.full())
    start = LinearUSV(*(B + 0.1 * draw(*B.shape, seed=7 + k) for k, B in enumerate(truth.blocks)))
    result = sg.solve(problem, start, sg.Alternating(steps=30), max_iter=60)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-6
    with pytest.raises(TypeError, match="Alternating needs factors in whose blocks X is linear"):
        sg.solve(problem, USV(*start.blocks), sg.Alternating())


def test_what_a_factorisation_does_not_have_is_said():
    problem = sg.Observed(sg.Full(SHAPE), draw(*SHAPE))
    with pytest.raises(TypeError, match="USV has no projection"):
        sg.solve(problem, usv(), sg.ScaledGD(project=sg.incoherence(1.0)))
    with pytest.raises(TypeError, match="USV has no balancing regulariser"):
        sg.solve(problem, usv(), sg.GradientDescent(0.01, balance=1.0))
    with pytest.raises(TypeError, match="Variational needs LowRank or Bordered"):
        sg.solve(problem, usv(), sg.Variational())
    with pytest.raises(TypeError, match="NonNegative needs real LowRank factors"):
        sg.solve(problem, usv(), sg.NonNegative())
    with pytest.raises(TypeError, match="Variational is for real data"):
        sg.solve(sg.Observed(sg.Full(SHAPE), 1j * draw(*SHAPE)), sg.spectral(1), sg.Variational())
    with pytest.raises(TypeError, match="widened"):
        sg.growth.widened(problem.linearize(usv()), 1)


# ---- an operator


@pytest.mark.parametrize(
    "method",
    [sg.ScaledGD(sg.line_search()), sg.Alternating(), sg.ScaledLBFGS()],
    ids=["ScaledGD", "Alternating", "L-BFGS"],
)
def test_an_operator_runs_through_the_methods(method):
    rng = np.random.default_rng(0)
    X = sg.LowRank(1 + rng.random((12, 1)), 1 + rng.random((9, 1)))
    A, w = Margins(SHAPE), rng.random(21)
    np.testing.assert_allclose(A.apply(X) @ w, np.sum(X.full() * A.adjoint(w).array))  # dot test
    problem = sg.Observed(A, A.apply(X))
    start = sg.LowRank(X.L * (1 + 0.1 * draw(12, 1)), X.R * (1 + 0.1 * draw(9, 1, seed=1)))
    result = sg.solve(problem, start, method, max_iter=400)
    np.testing.assert_allclose(A.apply(result.factors), problem.y, rtol=1e-5)


def test_what_an_operator_does_not_have_is_said():
    problem = sg.Observed(Margins(SHAPE), np.ones(21))
    start = sg.LowRank(np.ones((12, 1)), np.ones((9, 1)))
    for method in (sg.Variational(), sg.NonNegative()):
        with pytest.raises(TypeError, match="Margins does not observe entries one by one"):
            sg.solve(problem, start, method)
    with pytest.raises(TypeError, match="TopTrim trims rows and columns"):
        sg.Observed(Margins(SHAPE), np.ones(21), sg.TopTrim(0.1))


def test_a_subclass_that_measures_in_its_own_way_is_not_bypassed():
    """Kernels stand in for `apply` and `adjoint` of Entries, but not for those of a subclass."""

    class Doubled(sg.Entries):
        def apply(self, factors):
            return 2 * super().apply(factors)

        def adjoint(self, w):
            return super().adjoint(2 * w)

    class Named(sg.Entries):
        title = "the same measurements"

    assert sg.Entries.fused
    assert not Doubled.fused
    assert Named.fused
    i, j = np.nonzero(np.ones(SHAPE))
    F = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    problem = sg.Observed(Doubled((i, j), SHAPE), 2 * F.full()[i, j])
    assert float(problem.linearize(F).value) < 1e-25
    start = sg.LowRank(F.L + 0.1, F.R)
    result = sg.solve(problem, start, sg.Alternating(), max_iter=60)
    assert float(sg.metrics.relative_error(result.factors, F)) < 1e-8


def test_a_mixin_or_another_residual_is_not_bypassed_either():
    class Doubling:
        def apply(self, factors):
            return 2 * super().apply(factors)

        def adjoint(self, w):
            return super().adjoint(2 * w)

    class Mixed(Doubling, sg.Entries):
        pass

    class Shifted(sg.Entries):
        def residual(self, factors, y):
            return self.apply(factors) - y - 1

    class Tripled(sg.Weighted):
        def apply(self, factors):
            return 3 * super().apply(factors)

        def adjoint(self, w):
            return super().adjoint(3 * w)

    i, j = np.nonzero(np.ones(SHAPE))
    F = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    y = F.full()[i, j]
    assert float(sg.Observed(Mixed((i, j), SHAPE), 2 * y).linearize(F).value) < 1e-25
    shifted = sg.Observed(Shifted((i, j), SHAPE), y)
    assert float(shifted.linearize(F).value) == pytest.approx(0.5 * y.size)
    tripled = sg.Observed(Tripled(sg.Entries((i, j), SHAPE), np.ones(y.size)), 3 * y)
    start = sg.LowRank(F.L + 0.1, F.R)
    result = sg.solve(tripled, start, sg.Alternating(steps=30), max_iter=60)
    assert float(sg.metrics.relative_error(result.factors, F)) < 1e-6


def test_blocks_that_are_no_mode_matrices_have_their_own_gradient():
    @dataclass(frozen=True, eq=False)
    class Stretched(sg.Factors):
        A: np.ndarray
        B: np.ndarray

        bilinear = multilinear = True
        default_step = 0.5
        d = 1 + np.arange(12.0)[:, None]

        @property
        def blocks(self):
            return self.A, self.B

        @property
        def modes(self):
            return self.d * self.A, self.B

        def assemble(self, modes):
            return modes[0] @ modes[1].T

        def pullback(self, Z):
            return self.d * Z.times(self.B), Z.adjoint_times(self.d * self.A)

        def precondition(self, grads, damping=0.0):
            return grads

    i, j = np.nonzero(np.random.default_rng(0).random(SHAPE) < 0.7)
    F = Stretched(draw(12, 2), draw(9, 2, seed=1))
    state = sg.Observed(sg.Entries((i, j), SHAPE), draw(len(i), seed=2)).linearize(F)
    for k in (0, 1):
        D, h = draw(*F.blocks[k].shape, seed=3), 1e-6
        up, down = (float(state.objective(F.moved(k, s * h * D))) for s in (1, -1))
        slope = float(np.sum(state.gradient[k] * D))
        assert (up - down) / (2 * h) == pytest.approx(slope, rel=1e-5)


# ---- a loss


def test_a_loss_that_counts_in_its_own_way_is_not_least_squares():
    class Halved(sg.Squared):
        def __call__(self, residual, t=0):
            value, weight = super().__call__(residual)
            return 0.5 * value, 0.5 * weight

    i, j = np.nonzero(np.ones(SHAPE))
    F = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    operator, y = sg.Entries((i, j), SHAPE), np.zeros(len(i))
    whole, half_ = (
        float(sg.Observed(operator, y, f()).linearize(F).value) for f in (sg.Squared, Halved)
    )
    assert half_ == pytest.approx(0.5 * whole)


def test_a_loss_needs_a_curvature_where_blocks_are_solved():
    """In 0.1.0 this went to 1e57, with advice about a step that the method does not have."""
    X = usv().full()
    start = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    quartic = sg.Observed(sg.Full(SHAPE), X, Quartic())
    with pytest.raises(TypeError, match=r"Quartic has no curvature.*define curvature\(residual\)"):
        sg.solve(quartic, start, sg.Alternating())
    with pytest.raises(TypeError, match="Absolute has no curvature"):
        sg.solve(sg.Observed(sg.Full(SHAPE), X, sg.Absolute()), start, sg.Alternating())
    descent = sg.solve(quartic, start, sg.ScaledGD(sg.line_search()), max_iter=200)
    assert descent.history[-1]["value"] < 1e-4 * descent.history[0]["value"]
    bounded = sg.Observed(sg.Full(SHAPE), X, Cosh())
    for method in (sg.Alternating(), sg.ScaledGD(sg.line_search()), sg.ScaledLBFGS(), half):
        result = sg.solve(bounded, start, method, max_iter=400)
        np.testing.assert_allclose(result.factors.full(), X, atol=1e-4)


def test_a_loss_must_say_what_it_is():
    class Nothing(sg.Loss):
        pass

    with pytest.raises(NotImplementedError, match="must define __call__ or freeze"):
        sg.solve(
            sg.Observed(sg.Full(SHAPE), draw(*SHAPE), Nothing()), sg.spectral(1), sg.ScaledGD()
        )


def test_the_advice_is_about_the_method_that_diverged():
    class Wrong(Cosh):
        def curvature(self, residual):
            return np.full_like(residual, 1e-3)  # far below the second derivative

    X = usv().full()
    start = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    problem = sg.Observed(sg.Full(SHAPE), X, Wrong())
    with pytest.warns(sg.DivergenceWarning, match=r"check Loss\.curvature") as caught:
        sg.solve(problem, start, sg.Alternating(), max_iter=60)
    assert "step" not in str(caught[0].message)


# ---- a problem


def test_a_problem_of_the_documented_members_runs():
    """0.1.0 died on members that its documentation did not mention."""
    truth = usv()
    Y = truth.full()
    problem = Denoise(Y)
    start = sg.LowRank(truth.U @ truth.S + 0.1 * draw(12, 2), truth.V)
    for method in (sg.ScaledGD(), sg.ScaledGD(sg.line_search()), sg.ScaledLBFGS(), half):
        result = sg.solve(problem, start, method, max_iter=200, stop=sg.loss_change(1e-12))
        np.testing.assert_allclose(result.factors.full(), Y, atol=1e-5)
    assert problem.value_at_zero == pytest.approx(0.5 * np.sum(Y**2))
    damped = sg.ScaledGD(damping=1.0)
    random = sg.solve(problem, sg.small_random(2, 1e-3, rng=0), damped, max_iter=200)
    np.testing.assert_allclose(random.factors.full(), Y, atol=1e-5)
    halfway = sg.solve(problem, start, sg.ScaledGD(sg.line_search()), max_iter=5)
    rest = sg.solve(problem, halfway.state, sg.ScaledGD(sg.line_search()), max_iter=5)
    whole = sg.solve(problem, start, sg.ScaledGD(sg.line_search()), max_iter=10)
    np.testing.assert_array_equal(rest.factors.L, whole.factors.L)


def test_what_a_problem_does_not_have_is_said():
    problem = Denoise(usv().full())
    start = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    with pytest.raises(TypeError, match="Denoise has no backproject, which spectral starts need"):
        sg.solve(problem, sg.spectral(2), sg.ScaledGD())
    for method, what in (
        (sg.Alternating(), "block_step"),
        (sg.Variational(), "coverage"),
        (sg.NonNegative(), "coverage"),
    ):
        with pytest.raises(TypeError, match=f"Denoise has no `{what}`"):
            sg.solve(problem, start, method)
    with pytest.raises(TypeError, match="Denoise has no `ambient`"):
        sg.solve(problem, start, sg.ScaledGD(), stop=sg.gradient_norm(1e-3))
    with pytest.raises(TypeError, match="problem must be Observed"):
        sg.solve(object(), start, sg.ScaledGD())


def test_a_tensor_problem_of_the_documented_members_runs():
    truth = sg.datasets.low_rank_tensor((8, 7, 6), 2, kappa=2, rng=0)
    problem = Denoise(truth.full())
    result = sg.solve(problem, sg.small_random(2, 1.0, rng=0), sg.ScaledGD(), max_iter=200)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-6
    assert problem.value_at_zero == pytest.approx(0.5 * float(truth.norm()) ** 2)


def test_a_method_may_return_factors_alone():
    def plain(problem, state):
        return half(problem, state)[0]

    truth = usv()
    problem = Denoise(truth.full())
    start = sg.LowRank(truth.U @ truth.S + 0.1 * draw(12, 2), truth.V)
    found = [sg.solve(problem, start, method, max_iter=9).factors.L for method in (plain, half)]
    np.testing.assert_array_equal(*found)


def test_an_incomparable_problem_that_diverges_is_rolled_back():
    class Moving(Denoise):
        comparable = False

    Y = usv().full()
    start = sg.LowRank(draw(12, 2), draw(9, 2, seed=1))
    with pytest.warns(sg.DivergenceWarning, match="rolled back"):
        result = sg.solve(Moving(Y), start, sg.ScaledGD(1e200), max_iter=20)
    assert np.all(np.isfinite(result.factors.full()))


# ---- a backend


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_factors_of_too_low_a_rank_do_as_well_on_a_device(dtype):
    """Singular matrices are not looked for there, until a step fails and is repeated with care."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 20))
    i, j = np.nonzero(rng.random(X.shape) < 0.7)
    y = X[i, j] + 0.1 * rng.standard_normal(len(i))

    def solved(kind, blocks, method):
        def to(x):
            return torch.from_numpy(x) if kind == "torch" else x

        problem = sg.Observed(sg.Entries((to(i), to(j)), X.shape), to(y.astype(dtype)))
        start = sg.LowRank(*(to(B.astype(dtype)) for B in blocks))
        return sg.solve(problem, start, method, max_iter=8).history[-1]["value"]

    L, R = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
    padded = [np.concatenate([B, 0 * B], axis=1) for B in (L, R)]
    doubled = [np.concatenate([B, B], axis=1) for B in (L, R)]
    for method in (sg.Alternating(), sg.Variational(), sg.ScaledGD(0.1)):
        expected = solved("numpy", padded, method)
        assert solved("torch", padded, method) == pytest.approx(expected, rel=1e-3)
    expected = solved("numpy", doubled, sg.Alternating())
    assert solved("torch", doubled, sg.Alternating()) == pytest.approx(expected, rel=1e-3)
    # a variational fit tells two equal columns apart by rounding alone: no two libraries agree
    start = 0.5 * np.sum(((2 * L @ R.T)[i, j] - y) ** 2)
    assert solved("torch", doubled, sg.Variational()) < 0.5 * start
    nothing = [0 * L, 0 * R]
    assert solved("torch", nothing, sg.ScaledGD()) == pytest.approx(0.5 * np.sum(y**2), rel=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(8))
def test_equal_columns_are_not_told_apart_by_rounding(seed, dtype):
    """A Gram matrix is singular to rounding if a column is a multiple of another one."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 20))
    index = np.nonzero(rng.random(X.shape) < 0.7)
    size = 10.0 ** rng.integers(-2, 3)
    blocks = [np.concatenate([B, size * B], 1) for B in rng.standard_normal((2, 30, 2))]
    values = []
    for to in (np.asarray, torch.from_numpy):
        operator = sg.Entries(tuple(map(to, index)), X.shape)
        problem = sg.Observed(operator, to(X[index].astype(dtype)))
        start = sg.LowRank(*(to(B[:n].astype(dtype)) for B, n in zip(blocks, X.shape, strict=True)))
        history = sg.solve(problem, start, sg.ScaledGD(0.1), max_iter=8).history
        values.append([record["value"] for record in history])
    assert values[1] == pytest.approx(values[0], rel=1e-3 if dtype == "float32" else 1e-9)
    assert 0 < values[0][-1] < 0.5 * values[0][0]


@pytest.mark.parametrize(
    ("method", "most"),
    [(sg.ScaledGD(), 1), (sg.Alternating(), 1), (sg.Variational(), 2)],
    ids=["ScaledGD", "Alternating", "Variational"],
)
def test_an_iteration_on_a_device_synchronises_once(method, most, monkeypatch):
    """Only the value is read; `Variational` also reads two r × r matrices."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils._python_dispatch import TorchDispatchMode

    waits = {"_local_scalar_dense", "nonzero", "_linalg_check_errors", "equal", "masked_select"}
    waits |= {"_linalg_eigh", "_linalg_svd", "_unique2"}
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            if name in waits:
                seen.append(name)
            return function(*args, **(kwargs or {}))

    read = sg.variational.posterior.to_host
    monkeypatch.setattr(
        sg.variational.posterior, "to_host", lambda x: seen.append("to_host") or read(x)
    )
    plain, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.5, rng=0)
    index = tuple(torch.from_numpy(np.ascontiguousarray(i)) for i in plain.operator.index)
    y = torch.from_numpy(plain.y)
    problem = sg.Observed(sg.Entries(index, plain.shape), y, scale=plain.scale)
    start = sg.LowRank(*(torch.from_numpy(B) for B in sg.spectral(3)(plain).blocks))
    states = sg.iterate(problem, start, method)
    float(next(states).value)
    float(next(states).value)
    seen.clear()
    with Watch():
        for _ in range(5):
            float(next(states).value)
    assert 5 <= len(seen) <= 5 * most, sorted(seen)
