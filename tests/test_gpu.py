"""Kernels for CUDA tensors, in lock-step with definitions in NumPy.

Without a GPU they run in Triton's interpreter. With one, the same tests run on it:
``TRITON_INTERPRET=0 pytest -n 0 tests/test_gpu.py``.
"""

from __future__ import annotations

import gc
import inspect
import os
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from sklearn.base import clone  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import scaledgd as sg  # noqa: E402
from scaledgd import kernels  # noqa: E402
from scaledgd.estimators.local_observations import LocalObservations  # noqa: E402
from scaledgd.kernels import Contracted, Rows, RowSystem, UnsureRows  # noqa: E402
from scaledgd.kernels.generic import Generic  # noqa: E402
from scaledgd.kernels.gpu import sorting  # noqa: E402
from scaledgd.kernels.gpu.backend import Gpu  # noqa: E402
from scaledgd.linalg import careful  # noqa: E402
from scaledgd.variational.posterior import HOLD  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(),
    reason="there is no GPU, and TRITON_INTERPRET is not 1",
)
SHAPE = (12, 9)
PRECISION = {np.float64: 1e-12, np.float32: 2e-5 if INTERPRETED else 2e-2}
"""Of one step. Gram matrices of single precision are summed in TF32 on a GPU."""


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut rows into pieces, some of them long rows of several."""
    monkeypatch.setattr(sorting, "PIECE", 4)


def given(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(given, x))
    return None if x is None else torch.tensor(np.asarray(x), device=DEVICE)


def plain(x: Any) -> Any:
    if isinstance(x, tuple):
        return np.asarray([float(one) for one in x])
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def close(a: Any, b: Any, tolerance: float) -> None:
    a, b = plain(a), plain(b)
    assert a.shape == b.shape
    assert np.max(np.abs(a - b)) <= tolerance * max(np.max(np.abs(a)), 1e-30)


def entries(rng: Any, shape: tuple[int, ...], fraction: float = 0.4) -> tuple[Any, ...]:
    """Some entries in any order; the first row is full, and the fourth is empty."""
    mask = rng.random(shape) < fraction
    mask[0], mask[3] = True, False
    index = np.nonzero(mask)
    order = rng.permutation(len(index[0]))
    return tuple(i[order] for i in index)


def updated(index: Any, system: UnsureRows, x: Any, y: Any, root: Any) -> tuple[Any, ...]:
    """`update_rows` as it is defined, row by row."""
    M, r = system.M, system.variance.shape[1]
    q, n = M.shape[1], x.shape[0]
    rows, others = index[system.mode], index[1 - system.mode]
    jitter = max(1e-10, 8 * np.finfo(M.dtype).eps)
    sizes = np.sum(M.astype(float) ** 2, axis=0)
    solved, variance, total = np.zeros((n, q)), np.zeros((n, q)), np.zeros((q, q))
    sums = np.zeros(5)
    for i in range(n):
        mine = rows == i
        w = np.ones(mine.sum()) if root is None else root[mine].astype(float)
        V = w[:, None] * M[others[mine]]
        off = V @ x[i] - y[mine]
        spill = 0.0
        if system.own is not None:
            off = off + w * system.own[i] * system.given[others[mine], 0]
            spill = system.own[i] ** 2 * np.sum(w**2 * system.given[others[mine], 1])
        u = np.zeros(q)
        u[:r] = np.sum((w**2)[:, None] * system.variance[others[mine]], axis=0)
        G = V.T @ V
        size = np.max(np.diag(G) / sizes) * jitter
        inverse = np.linalg.inv(G + np.diag(system.ridge + u + size * sizes))
        solved[i] = x[i] - inverse @ (V.T @ off + (system.ridge + u) * x[i])
        after = off + V @ (solved[i] - x[i])
        variance[i] = system.noise * np.diag(inverse)
        total += system.noise * inverse
        sums += [
            off @ off,
            after @ after,
            np.sum(w**2),
            np.sum((np.diag(G) + u) * np.diag(inverse)),
            np.sum(u * solved[i] ** 2) + spill,
        ]
    return solved, variance, total, np.sum(solved**2 + variance, axis=0), sums


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "r", "border", "beside", "weighted"),
    [
        (np.float64, 3, True, True, False),
        (np.float64, 2, False, False, True),
        (np.float32, 3, True, False, True),
        (np.float32, 17, False, True, False),
        (np.float64, 40, True, False, False),
        (np.float32, 70, False, False, False),
    ],
)
def test_uncertain_rows_are_updated_as_defined(
    dtype: Any, r: int, border: bool, beside: bool, weighted: bool, mode: int
) -> None:
    rng = np.random.default_rng(r)
    index, n = entries(rng, SHAPE), SHAPE[mode]
    others, q = SHAPE[1 - mode], r + border

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    y, root = normal(len(index[0])), np.abs(normal(len(index[0]))) if weighted else None
    # steps are short, as in a fit: rounding is relative to their length
    x, M, variance = 0.1 * normal(n, q), normal(others, q), np.abs(normal(others, r))
    own, known = (normal(n), np.abs(normal(others, 2))) if beside else (None, None)
    ridge = 0.5 + np.abs(normal(q))
    system = UnsureRows(M, variance, ridge, 0.3, mode, own, known)
    expected = updated(index, system, x, y, root)
    there = UnsureRows(*map(given, (M, variance, ridge)), 0.3, mode, given(own), given(known))
    pattern = Gpu().pattern(given(index), SHAPE)
    found = pattern.update_rows(there, given(x), given(y), given(root))
    assert found is not None
    # four blocks are eliminated in turn, and each adds to the rounding
    tolerance = PRECISION[dtype] * (5 if r > 64 else 1)
    for a, b in zip(expected, found, strict=True):
        close(a, b, tolerance)


@pytest.mark.parametrize("mode", [0, 1])
def test_updates_pass_over_what_is_not_kept(mode: int) -> None:
    rng = np.random.default_rng(8)
    index = entries(rng, SHAPE)
    y, kept = rng.standard_normal(len(index[0])), rng.random(len(index[0])) < 0.6
    x, M = (rng.standard_normal((SHAPE[k], 2)) for k in (mode, 1 - mode))
    system = UnsureRows(M, 0 * M, np.ones(2), 0.3, mode)
    expected = updated(index, system, x, y * kept, kept)
    there = UnsureRows(*map(given, (M, 0 * M, np.ones(2))), 0.3, mode)
    pattern = Gpu().pattern(given(index), SHAPE)
    found = pattern.update_rows(there, given(x), given(y), kept=given(kept))
    for a, b in zip(expected, found, strict=True):
        close(a, b, 1e-12)


def test_systems_that_single_precision_cannot_invert_are_solved_with_care() -> None:
    rng, r = np.random.default_rng(3), 40
    index = entries(rng, SHAPE)
    y = rng.standard_normal(len(index[0]))
    M = rng.standard_normal((SHAPE[1], 1)) + 1e-4 * rng.standard_normal((SHAPE[1], r))
    x, ridge = rng.standard_normal((SHAPE[0], r)), np.full(r, 1e-5)
    x, y, M = (z.astype(np.float32).astype(float) for z in (x, y, M))
    expected = updated(index, UnsureRows(M, 0 * M, ridge, 0.3, 0), x, y, None)[0] @ M.T
    single = [given(z.astype(np.float32)) for z in (M, 0 * M, ridge)]
    pattern, there = Gpu().pattern(given(index), SHAPE), UnsureRows(*single, 0.3, 0)
    start = [given(z.astype(np.float32)) for z in (x, y)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hasty = plain(pattern.update_rows(there, *start).solved)
    with careful():
        found = pattern.update_rows(there, *start)
    assert found.solved.dtype == torch.float32
    # what a solution predicts is determined, though single numbers hardly are
    size = np.abs(expected).max()
    assert np.abs(plain(found.solved) @ M.T - expected).max() < 1e-2 * size
    assert not np.abs(hasty @ M.T - expected).max() < 0.1 * size


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("ridge", ["none", "one", "each"])
def test_steps_of_rows_are_those_of_the_reference(ridge: str, dtype: Any, mode: int) -> None:
    rng, shape = np.random.default_rng(1), (6, 7)
    index, q = entries(rng, shape, 0.8), 2  # without a ridge, rows need entries enough
    y, w = rng.standard_normal((2, len(index[0]))).astype(dtype)
    w = np.abs(w)
    x = rng.standard_normal((shape[mode], q)).astype(dtype)
    M = rng.standard_normal((shape[1 - mode], q)).astype(dtype)
    held = {"none": None, "one": np.ones(q, dtype), "each": np.abs(x) + dtype(0.1)}[ridge]
    reference = Generic().pattern(index, shape)
    pattern = Gpu().pattern(given(index), shape)
    here = RowSystem(Rows(M, 1 - mode), mode, held, True)
    there = RowSystem(Rows(given(M), 1 - mode), mode, given(held), True)
    modes = (x, M) if mode == 0 else (M, x)
    root = np.sqrt(w)
    residual = root * (reference.residual(modes) * root - y)
    gradient = reference.contract(residual, modes, mode)
    gradient = gradient if mode == 0 else gradient.T
    gradient = gradient if held is None else gradient + held * x
    assert pattern.steps(there, given(root), given(x), given(y))
    tolerance = 1e-9 if dtype is np.float64 else 1e-3
    for a, b, c in zip(
        reference.solve_rows(here, gradient, w)[:3],
        pattern.step_rows(there, given(x), given(y), given(root))[:3],
        pattern.solve_rows(there, given(gradient), given(w))[:3],
        strict=True,
    ):
        close(a, b, tolerance)
        close(a, c, tolerance)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_column_that_has_vanished_does_not_spoil_the_others(parallel: bool) -> None:
    """Its ridge is huge, and so is what single precision would make of it in other units."""
    rng, shape, q = np.random.default_rng(4), (6, 7), 3
    index = entries(rng, shape, 0.9)
    y = rng.standard_normal(len(index[0]))
    M = rng.standard_normal((shape[1], q))
    M[:, 2] *= 1e-14
    if parallel:  # so that columns are mixed, instead of scaled alone
        M[:, 1] = M[:, 0] * (1 + 1e-6 * M[:, 1])
    held = np.array([0.5, 0.5, HOLD])
    x = np.zeros((shape[0], q))
    x[:, :2] = rng.standard_normal((shape[0], 2))
    expected = np.zeros((shape[0], q))
    for i in range(shape[0]):
        V, target = M[index[1][index[0] == i], :2], y[index[0] == i]
        expected[i, :2] = np.linalg.solve(V.T @ V + 0.5 * np.eye(2), V.T @ target)
    single = [given(z.astype(np.float32)) for z in (x, y, M, held)]
    there = RowSystem(Rows(single[2], 1), 0, single[3], False)
    found = Gpu().pattern(given(index), shape).step_rows(there, *single[:2])[0]
    close(expected @ M.T, (x - plain(found)) @ M.T, 1e-3)


@pytest.mark.parametrize("ranks", [(3, 2, 2), (2, 1, 2), (1, 1, 1)])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_steps_of_tucker_factors_are_those_of_the_reference(
    mode: int, ranks: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    shape = (5, 4, 4)
    index = entries(rng, shape, 0.7)
    y = rng.standard_normal(len(index[0]))
    modes = [rng.standard_normal((n, r)) for n, r in zip(shape, ranks, strict=True)]
    core = rng.standard_normal(ranks)
    others = tuple(k for k in range(3) if k != mode)
    unfolded = np.moveaxis(core, mode, 0).reshape(ranks[mode], -1).copy()
    here = RowSystem(Contracted(unfolded, tuple(modes[k] for k in others), others), mode)
    there = RowSystem(
        Contracted(given(unfolded), given(tuple(modes[k] for k in others)), others), mode
    )
    reference, pattern = Generic().pattern(index, shape), Gpu().pattern(given(index), shape)
    residual = Generic().gather(tuple(modes), index, core, y)
    gradient = np.moveaxis(reference.contract(residual, tuple(modes), mode), mode, 0)
    gradient = gradient.reshape(shape[mode], -1) @ unfolded.T
    there_all = given(tuple(modes))
    values = Gpu().gather(there_all, given(index), given(core), given(y))
    close(residual, values, 1e-12)
    whole = reference.contract(y, tuple(modes))
    close(whole, pattern.contract(given(y), there_all), 1e-12)
    expected = reference.solve_rows(here, gradient)
    found = pattern.step_rows(there, given(modes[mode]), given(y))
    close(expected.step, found.step, 1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mode", [0, 1])
def test_passes_are_those_of_the_reference(mode: int, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    index = entries(rng, SHAPE)
    y = rng.standard_normal(len(index[0])).astype(dtype)
    modes = tuple(rng.standard_normal((n, 5)).astype(dtype) for n in SHAPE)
    reference, pattern = Generic().pattern(index, SHAPE), Gpu().pattern(given(index), SHAPE)
    tolerance = 20 * np.finfo(dtype).eps
    there = given(modes)
    close(reference.residual(modes, y), pattern.residual(there, given(y)), tolerance)
    close(reference.residual(modes), pattern.residual(there), tolerance)
    close(reference.contract(y, modes, mode), pattern.contract(given(y), there, mode), tolerance)
    ones = reference.contract(reference.ones(y), modes, mode)
    close(ones, pattern.contract(pattern.ones(given(y)), there, mode), tolerance)
    for values in (None, y):
        expected = reference.sums(values, mode, y)
        close(expected, pattern.sums(given(values), mode, given(y)), tolerance)
    x, M = modes[mode], modes[1 - mode]
    expected = reference.squares_and_gradient(x, M, y, mode)
    found = pattern.squares_and_gradient(given(x), given(M), given(y), mode)
    close(expected[0], found[0], tolerance)
    close(expected[1], found[1], tolerance)


def test_sorted_entries_cover_every_row_once() -> None:
    rng = np.random.default_rng(4)
    index = entries(rng, SHAPE)
    entries_by = sorting.Sorted.by(given(index), SHAPE, 0)
    work = entries_by.work(16)
    counts = np.bincount(index[0], minlength=SHAPE[0])
    assert sorted(work.single.tolist() + work.long.tolist()) == list(range(SHAPE[0]))
    assert sorted(work.long.tolist()) == np.flatnonzero(counts > 4).tolist()
    lengths = (work.ends - work.begins).tolist()
    assert max(lengths) <= 4
    assert sum(lengths) == counts[counts > 4].sum()
    values = given(rng.standard_normal(len(index[0])))
    again = entries_by.measured(entries_by.arranged(values))
    assert bool((again == values).all())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_order_statistics_are_exact(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((31, 37)) * 10.0 ** rng.integers(-12, 12, (31, 37))).astype(dtype)
    x[3, :9] = 0
    ordered = np.sort(np.abs(x), axis=None)[::-1]
    for k in (1, 2, 500, 1147):
        assert Gpu().kth_magnitude(given(x), k).item() == ordered[k - 1]
    assert Gpu().median_magnitude(given(x)).item() == np.sort(ordered)[(x.size - 1) // 2]


class Reads(TorchFunctionMode):
    """Counts how often the host reads tensors, and so waits for a device."""

    NAMES = (
        *("item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "equal"),
        *("is_nonzero", "__float__", "__int__", "__bool__", "__index__"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.NAMES and not self._interpreting():
            self.count += 1
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _interpreting() -> bool:
        """Whether the interpreter of kernels is at work, which reads all the time."""
        frame = inspect.currentframe()
        while frame is not None:
            if "triton" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


@pytest.mark.parametrize("offsets", [False, True])
def test_the_host_reads_once_per_iteration(monkeypatch: Any, offsets: bool) -> None:
    """The moments of factors, together with the loss and the noise."""
    from scaledgd.estimators.joint import Joint, rules_of

    monkeypatch.setattr(kernels, "on_gpu", lambda x: True)
    rng, shape = np.random.default_rng(7), (5, 4)
    index = np.nonzero(rng.random(shape) < 0.7)
    y = given(rng.standard_normal(len(index[0])))
    problem = sg.Observed(sg.Entries(given(index), shape), y)
    start = None
    if offsets:
        zeros = (y.new_zeros((n, 1)) for n in shape)
        start = sg.Bordered(*zeros, *(y.new_ones(n) for n in shape))
    reads, seen = Reads(), []
    with reads:
        sg.solve(
            problem,
            sg.joint(2, start=start),
            sg.Variational(),
            max_iter=3,
            stop=rules_of(Joint(2)),
            callback=lambda state: seen.append(reads.count),
        )
    assert np.diff(seen[1:]).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_streamed_entries_give_the_rows_of_all(monkeypatch: Any, dtype: Any) -> None:
    """Row by row the same numbers; sums over rows are added up in another order."""
    from scaledgd.distributed import streaming
    from scaledgd.factors import Bordered
    from scaledgd.losses import Squared
    from scaledgd.operators import BlockProblem

    monkeypatch.setattr(kernels, "on_gpu", lambda x: True)
    monkeypatch.setattr(streaming, "PART", 0)
    monkeypatch.setattr(streaming, "SORTING", 0)
    rng = np.random.default_rng(6)
    index = np.nonzero(rng.random(SHAPE) < 0.6)
    y = rng.standard_normal(len(index[0])).astype(dtype)
    monkeypatch.setenv(streaming.LIMIT, str(2.5 * y.itemsize * len(y)))
    data = LocalObservations(given(index), given(y), SHAPE)
    parts = streaming.streamed(data, torch.device(DEVICE))
    assert 0 < parts.sent < len(y) > 2 * len(parts.shards[0]) > 4
    # memory of a part that was sent is used again, but not while results refer to it
    found = parts.gathered()
    for a, b in zip((*found.coordinates, found.flat), (*data.coordinates, data.flat), strict=True):
        assert plain(a).tolist() == plain(b).tolist()
    seen = []

    def work(part: Any) -> None:
        assert part.operator.pattern is part.pattern
        seen.append((weakref.ref(part), part.stays))

    gc.disable()  # which frees cycles of references, and what they hold, later
    try:
        parts.each(work, 0)
        assert [ref() is not None for ref, _ in seen] == [stays for _, stays in seen]
    finally:
        gc.enable()
    assert {stays for _, stays in seen} == {False, True}
    L, R = (given(rng.standard_normal((n, 3)).astype(dtype)) for n in SHAPE)
    # offsets of rows are solved for, and those of columns are given
    F = Bordered(L, R[:, :2], None, R[:, 2])
    whole, streamed = data.problem(), parts.problem()
    tolerance = 20 * np.finfo(dtype).eps
    close(whole.linearize(F).value, streamed.linearize(F).value, tolerance)
    for k, r in ((0, 2), (1, 2)):
        variance = F.blocks[1 - k][:, :r] ** 2
        own = None if k == 0 else R[:, 2]
        beside = None if k == 0 else torch.cat([L[:, 2:], L[:, 2:] ** 2], 1)
        ridge = torch.ones(F.blocks[k].shape[1], dtype=L.dtype, device=DEVICE)
        system = UnsureRows(F.partner(k), variance, ridge, 0.3, k, own, beside)
        both = [
            problem.operator.update_block(BlockProblem(F, k, problem.y, Squared()), system)
            for problem in (whole, streamed)
        ]
        assert bool((both[0].solved == both[1].solved).all())
        assert bool((both[0].variance == both[1].variance).all())
        for a, b in zip(both[0][2:], both[1][2:], strict=True):
            close(a, b, tolerance)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("estimator", "kind"),
    [
        (sg.MatrixCompletion(rank=1, smooth="none"), "matrix"),
        pytest.param(sg.RobustPCA(rank=1, smooth="none"), "matrix", marks=pytest.mark.slow),
        pytest.param(sg.TensorCompletion(rank=(1, 1, 1)), "tensor", marks=pytest.mark.slow),
    ],
    ids=["completion", "robust PCA", "tensor"],
)
def test_fits_are_those_of_arrays(
    monkeypatch: Any, tmp_path: Any, estimator: Any, kind: str
) -> None:
    """One iteration of every stage, and what a fitted model is asked."""
    rng = np.random.default_rng(0)
    sizes = (7, 6) if kind == "matrix" else (4, 3, 3)
    subscripts = {"matrix": "ia,ja->ij", "tensor": "ia,ja,ka->ijk"}[kind]
    X = np.einsum(subscripts, *(rng.standard_normal((n, 1)) for n in sizes))
    X += 0.1 * rng.standard_normal(sizes)
    X[rng.random(sizes) < 0.2] = np.nan
    estimator.set_params(center="none", scale="none", max_iter=1, random_state=0)
    here = clone(estimator).fit(X)
    monkeypatch.setattr(kernels, "on_gpu", lambda x: True)
    there = clone(estimator).fit(given(X))
    assert here.rank_ == there.rank_
    close(here.reconstruct(), there.reconstruct(), 1e-9)
    close(here.transform(X), there.transform(given(X)), 1e-9)
    index = tuple(np.arange(3) for _ in sizes)
    for a, b in zip(here.interval(index), there.interval(given(index)), strict=True):
        close(a, b, 1e-7)
    there.save(tmp_path / "model.sgd")
    close(here.reconstruct(), sg.load(tmp_path / "model.sgd").reconstruct(), 1e-9)


def test_arrays_of_other_libraries_on_a_gpu_are_taken_in() -> None:
    from scaledgd.estimators.reading import taken_in

    class Elsewhere:
        """An array of a library that is not PyTorch."""

        def __init__(self, x: Any, kind: int) -> None:
            self.x, self.kind = x, kind

        def __dlpack_device__(self) -> tuple[int, int]:
            return (self.kind, 0)

        def __dlpack__(self, **options: Any) -> Any:
            return self.x.__dlpack__(**options)

    x = given(np.arange(6.0))
    if not INTERPRETED:
        assert taken_in(Elsewhere(x, 2)).data_ptr() == x.data_ptr()
    here = Elsewhere(x, 1)
    assert taken_in(here) is here
    assert taken_in(x) is x
