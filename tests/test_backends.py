"""NumPy, PyTorch and array-api-strict take the same path, and give back what they were given."""

import functools
import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace, device
from conftest import LIBRARIES, draw, library

import scaledgd as sg


def converter(name, dtype=np.float64):
    """A function from NumPy to the library's arrays, floats in one dtype."""
    xp = library(name)

    def convert(x):
        x = np.asarray(x)
        if x.dtype.kind in "fc":
            kind = np.result_type(dtype, np.complex64) if x.dtype.kind == "c" else dtype
            x = x.astype(kind)
        return np.asarray(x) if name == "numpy" else xp.asarray(x)

    return convert


def to_numpy(x):
    return np.asarray(x)


def problems(convert):
    rng = np.random.default_rng(0)
    d = sg.datasets
    p, _ = d.matrix_sensing(20, 16, 2, 5, 300, rng=rng)
    yield "sensing", sg.Observed(sg.Sensing(convert(p.operator.A)), convert(p.y)), sg.spectral(2)
    p, _ = d.matrix_completion(60, 50, 3, 5, 0.6, rng=rng)
    order = rng.permutation(p.y.shape[0])
    index = tuple(convert(i[order]) for i in p.operator.index)
    entries, y = sg.Entries(index, (60, 50)), convert(p.y[order])
    yield "completion", sg.Observed(entries, y, scale=1 / 0.6), sg.spectral(3)
    spiked = convert(p.y[order] + (rng.random(order.size) < 0.05))
    yield "top-entries", sg.Observed(entries, spiked, sg.TopTrim(0.1)), sg.spectral(3)
    p, _ = d.robust_pca(60, 50, 3, 5, 0.05, rng=rng)
    full, Y = sg.Full((60, 50)), convert(p.y)
    yield "top", sg.Observed(full, Y, sg.TopTrim(0.05)), sg.spectral(3)
    yield "soft", sg.Observed(full, Y, sg.SoftTrim(sg.geometric(0.1, 0.9))), sg.spectral(3)
    median = sg.SoftTrim(sg.median_threshold())
    yield "soft-median", sg.Observed(full, Y, median), sg.spectral(3)
    yield "absolute", sg.Observed(full, Y, sg.Absolute()), sg.spectral(3, keep=0.9)
    p, _ = d.quadratic_sampling(20, 2, 5, 300, 0.1, rng=rng)
    quadratic = sg.RankOne(convert(p.operator.a))
    yield "quadratic", sg.Observed(quadratic, convert(p.y)), sg.spectral(2, keep=0.9)
    p, _ = d.hankel_completion(40, 30, 2, 5, 0.6, rng=rng)
    hankel = sg.HankelCompletion(convert(p.y), convert(p.observed), 40)
    yield "hankel", hankel, sg.spectral(2)
    z = draw(rng, 30, 2, dtype=complex) @ draw(rng, 2, 20, dtype=complex)
    z = z + 0.3 * draw(rng, 30, 20, dtype=complex)
    yield "complex", sg.Observed(sg.Full((30, 20)), convert(z)), sg.small_random(2, 3.0, rng=1)
    i, j = np.nonzero(rng.random((30, 20)) < 0.7)
    some = sg.Entries((convert(i), convert(j)), (30, 20))
    yield "complex-entries", sg.Observed(some, convert(z[i, j]), scale=1 / 0.7), sg.spectral(2)
    A = draw(rng, 900, 30, 20, dtype=complex) / 30
    linear = sg.Observed(sg.Sensing(convert(A)), convert(np.tensordot(A, z, 2)), scale=0.5)
    yield "complex-sensing", linear, sg.spectral(2)
    a, u = draw(rng, 300, 9, dtype=complex) / np.sqrt(2), draw(rng, 9, 1, dtype=complex)
    phaseless = sg.Observed(sg.RankOne(convert(a)), convert(np.abs(a.conj() @ u)[:, 0] ** 2))
    yield "phaseless", phaseless, sg.spectral(1)
    cube = d.low_rank_tensor((14, 12, 10), (3, 2, 2), 3, rng).full()
    cube = cube + 0.1 * cube.std() * draw(rng, *cube.shape)
    index = np.nonzero(rng.random(cube.shape) < 0.4)
    kept = sg.Entries(tuple(convert(k) for k in index), cube.shape)
    values, ranks = convert(cube[index]), (3, 2, 2)
    yield "tensor", sg.Observed(kept, values, scale=2.5), sg.diagonal_deleted(ranks)
    yield "tensor-top", sg.Observed(kept, values, sg.TopTrim(0.2)), sg.hosvd(ranks)
    yield "tensor-full", sg.Observed(sg.Full(cube.shape), convert(cube)), sg.hosvd(ranks)
    w = convert(cube + 0.3j * cube[::-1])
    yield "tensor-complex", sg.Observed(sg.Full(cube.shape), w), sg.hosvd((4, 3, 3))
    z = convert((cube + 0.3j * cube[::-1])[index])
    yield "tensor-complex-entries", sg.Observed(kept, z, scale=2.5), sg.hosvd((4, 3, 3))
    A = convert(draw(rng, 700, *cube.shape) / np.sqrt(700))
    measured = convert(np.tensordot(to_numpy(A), cube, 3))
    yield "tensor-sensing", sg.Observed(sg.Sensing(A), measured), sg.hosvd(ranks, sequential=True)
    yield "small-random", sg.Observed(entries, y), sg.small_random(4, 1e-3, rng=0)
    yield "mixed", sg.Observed(entries, y, scale=1 / 0.6), sg.mixed(3, 0.1, 1e-3, rng=0)


@functools.cache
def instances(lib):
    """The problems in double precision, by name."""
    return {name: (problem, start) for name, problem, start in problems(converter(lib))}


NAMES = list(instances("numpy"))


def methods(name):
    if name in ("quadratic", "phaseless"):
        return {"line-search": sg.ScaledGD(sg.line_search())}
    if name == "absolute":
        return {"polyak": sg.ScaledGD(sg.polyak(best=100.0))}
    if name == "small-random":
        return {"damped": sg.ScaledGD(0.3, damping=0.1)}
    if name.startswith("tensor"):
        chosen = {
            "scaled": sg.ScaledGD(project=sg.incoherence(2.0)),
            "damped": sg.ScaledGD(0.2, damping=0.01),
            "gd": sg.GradientDescent((0.1, 0.1, 0.1, 0.05), balance=0.1),
        }
        if name != "tensor-full":  # there the start is nearly optimal, and a search sees rounding
            chosen["search"] = sg.ScaledGD(sg.line_search())
        return chosen
    if name == "hankel":
        return {"scaled": sg.ScaledGD(0.5), "gd": sg.GradientDescent(1e-4)}
    return {
        "scaled": sg.ScaledGD(0.5, project=sg.incoherence(1.5e3)),
        "gd": sg.GradientDescent(1e-3, balance=0.1),
        "search": sg.ScaledGD(sg.line_search()),
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lib", LIBRARIES[1:])
def test_lock_step(lib, name):
    (reference, start), (other, _) = instances("numpy")[name], instances(lib)[name]
    for label, method in methods(name).items():
        ours = sg.iterate(reference, start(reference), method)
        theirs = sg.iterate(other, start(other), method)
        for a, b in itertools.islice(zip(ours, theirs, strict=True), 16):
            assert all(type(B) is type(other.example) for B in b.factors.blocks), label
            X, Y = a.factors.full(), to_numpy(b.factors.full())
            assert np.linalg.norm(X - Y) <= 1e-9 * np.linalg.norm(X), (label, a.t)
            value = float(a.value)
            assert abs(float(b.value) - value) <= 1e-8 * value + 1e-13 * np.linalg.norm(X) ** 2


@pytest.mark.parametrize("lib", LIBRARIES)
def test_single_precision_stays_single_everywhere(lib):
    convert = converter(lib, np.float32)
    for name, problem, start in problems(convert):
        for method in methods(name).values():
            result = sg.solve(problem, start, method, max_iter=3)
            for B in result.factors.blocks:
                assert B.dtype == problem.example.dtype, name
                assert str(device(B)) == str(device(problem.example))
            assert result.state.value.dtype == array_namespace(B).abs(problem.example).dtype


@pytest.mark.parametrize("lib", LIBRARIES)
def test_ties_are_trimmed_alike(lib):
    convert = converter(lib)
    rng = np.random.default_rng(0)
    Y = rng.integers(-3, 4, (40, 30)).astype(float)
    expected = sg.TopTrim(0.2).bind(sg.Full(Y.shape)).clean(Y)
    trimmed = sg.TopTrim(0.2).bind(sg.Full(Y.shape)).clean(convert(Y))
    np.testing.assert_array_equal(to_numpy(trimmed), expected)
    index = tuple(convert(i) for i in np.unravel_index(np.arange(Y.size), Y.shape))
    listed = sg.TopTrim(0.2).bind(sg.Entries(index, Y.shape)).clean(convert(Y.ravel()))
    np.testing.assert_array_equal(to_numpy(listed), expected.ravel())


@pytest.mark.parametrize("lib", LIBRARIES)
def test_metrics_take_every_library(lib):
    convert = converter(lib)
    rng = np.random.default_rng(0)
    L, R = draw(rng, 20, 3), draw(rng, 15, 3)
    F, G = sg.LowRank(L, R), sg.LowRank(L + 1e-3 * draw(rng, 20, 3), R)
    A, B = (sg.LowRank(convert(X.L), convert(X.R)) for X in (F, G))
    for metric in (sg.metrics.relative_error, sg.metrics.dist):
        assert float(metric(B, A)) == pytest.approx(float(metric(G, F)), rel=1e-9)
    for metric in (sg.metrics.condition_number, sg.metrics.incoherence):
        assert float(metric(A)) == pytest.approx(float(metric(F)), rel=1e-9)


def test_torch_can_differentiate_through_iterations():
    """The mathematics layer is functional: unfolded iterations have gradients."""
    torch = library("torch")
    problem, truth = sg.datasets.matrix_completion(20, 15, 2, 3, 0.7, rng=0)
    index = tuple(torch.asarray(i) for i in problem.operator.index)
    unfolded = sg.Observed(sg.Entries(index, (20, 15)), torch.asarray(problem.y), scale=1 / 0.7)
    F = sg.spectral(2)(unfolded)
    X = torch.asarray(truth.full())

    def error(step):
        state = unfolded.linearize(F)
        for _ in range(3):
            direction = state.factors.precondition(state.pullback())
            blocks = (B - step * d for B, d in zip(state.factors.blocks, direction, strict=True))
            state = unfolded.linearize(sg.LowRank(*blocks), state.t + 1)
        return torch.linalg.norm(state.factors.full() - X)

    step = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    error(step).backward()
    h = 1e-5
    slope = (error(0.4 + h) - error(0.4 - h)) / (2 * h)
    assert float(step.grad) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.parametrize("kind", ["table", "entries", "tensor"])
def test_a_fit_to_tensors_can_be_brought_to_the_host(kind):
    from scaledgd.estimators.saving import brought_to_host

    torch = library("torch")
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (18, 16, 14)))
    X += 0.1 * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < 0.2] = np.nan
    if kind == "tensor":
        model = sg.TensorCompletion(rank=2).fit(torch.asarray(X))
    else:
        X = X[:, :, 0] if kind == "table" else X[:, 0, :]
        model = sg.MatrixCompletion(rank=2)
        if kind == "table":
            model.fit(torch.asarray(X))
        else:
            index = np.nonzero(~np.isnan(X))
            model.fit_entries(tuple(map(torch.asarray, index)), torch.asarray(X[index]), X.shape)
    expected = model.reconstruct().numpy()
    found = brought_to_host(model)
    assert type(found.reconstruct()) is np.ndarray
    np.testing.assert_allclose(found.reconstruct(), expected, rtol=1e-12, atol=1e-13)
    assert type(found.factors_.blocks[0]) is np.ndarray


def test_candidates_of_tensors_are_compared_on_the_host():
    """So tensors, on a GPU too, lead to the choices that NumPy arrays lead to, to the bit."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40)) + rng.standard_normal((60, 1))
    X += 0.3 * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < 0.4] = np.nan
    of_array, of_tensor = (
        sg.MatrixCompletion(random_state=0).fit(x) for x in (X, torch.from_numpy(X.copy()))
    )
    seen = [[e.get("held_out") for e in m.rank_path_] for m in (of_array, of_tensor)]
    assert seen[0] == seen[1]
    assert len(seen[0]) > 3
    assert isinstance(of_tensor.factors_.L, torch.Tensor)
    np.testing.assert_allclose(to_numpy(of_tensor.reconstruct()), of_array.reconstruct(), rtol=1e-8)


def test_rows_with_outliers_are_solved_in_large_pieces_on_a_device(monkeypatch):
    torch = pytest.importorskip("torch")
    from scaledgd.estimators import local_observations

    whole, calls = local_observations.LocalObservations.rows_without_outliers, 0

    def counted(self, *arguments, **named):
        nonlocal calls
        calls += 1
        return whole(self, *arguments, **named)

    monkeypatch.setattr(local_observations.LocalObservations, "rows_without_outliers", counted)
    rng = np.random.default_rng(4)
    X = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 20))
    X[rng.random(X.shape) < 0.05] += 20
    seen = []
    for size in (local_observations.PIECE_ON_DEVICE, 100):
        monkeypatch.setattr(local_observations, "PIECE_ON_DEVICE", size)
        sg.RobustPCA(rank=2, center="none", random_state=0).fit(torch.from_numpy(X.copy()))
        seen.append(calls)
    assert seen[1] - seen[0] > 4 * seen[0] > 0
