"""The variational model with whole covariances, noise of columns and heavy tails; joint starts."""

import numpy as np
import pytest
from conftest import library

import scaledgd as sg
from scaledgd.estimators import holes as holes_module
from scaledgd.estimators.hashing import chosen_by_hash
from scaledgd.estimators.holes import held_out
from scaledgd.variational import extended


def entries(X, p=1.0, noise=0.0, rng=0):
    """Some entries of a table with noise, as a problem, and where they are."""
    rng = np.random.default_rng(rng)
    seen = rng.random(X.shape) < p
    index = np.nonzero(seen)
    y = X[index] + noise * rng.standard_normal(index[0].size)
    return sg.Observed(sg.Entries(index, X.shape), y), seen


def low_rank(shape, rank, rng=0):
    rng = np.random.default_rng(rng)
    n1, n2 = shape
    return rng.standard_normal((n1, rank)) @ rng.standard_normal((rank, n2)) / np.sqrt(rank)


def run(problem, init, method, sweeps=40):
    return sg.solve(problem, init, method, max_iter=sweeps, stop=lambda *_: None)


def relative(F, X):
    return np.linalg.norm(F.full() - X) / np.linalg.norm(X)


def with_offsets(shape, rank, rng):
    """Random Bordered factors with offsets of both sides."""
    L, R = (rng.standard_normal((n, rank + 1)) for n in shape)
    return sg.Bordered(L, R, np.ones(shape[0]), np.ones(shape[1]))


def outside(R, V):
    """How much of the directions of V is outside the span of R, from 0 to 1."""
    Q = np.linalg.qr(R)[0]
    V = np.linalg.qr(V)[0]
    return float(np.linalg.norm(V - Q @ (Q.T @ V), 2))


@pytest.mark.parametrize("offsets", [False, True])
def test_power_iterations_turn_a_start_towards_the_data(offsets):
    X = low_rank((300, 200), 3)
    b = np.random.default_rng(1).standard_normal(200)
    problem, _ = entries(X + 5 * b * offsets, 0.3, 0.1)
    start = None
    if offsets:
        R = np.concatenate([np.zeros((200, 0)), 5 * b[:, None]], axis=1)
        start = sg.Bordered(np.zeros((300, 0)), R, np.ones(300), None)
    V = np.linalg.svd(X)[2][:3].T
    angles, noise, sizes = [], [], []
    for rounds in (0, 1, 2):
        first = sg.joint(8, rounds=rounds, start=start)(problem)
        R = first.factors.R[:, :8]
        sizes.append(np.linalg.norm(R))
        angles.append(outside(R, V))
        noise.append(run(problem, first, sg.Variational(), 2).state.memory.method.noise)
    assert angles[0] > 0.9 > 0.5 > angles[1] > 1.2 * angles[2]
    assert noise[0] > 2 * noise[2] > 0.01
    np.testing.assert_allclose(sizes, sizes[0])


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_power_iterations_keep_all_directions(name):
    """Even if single precision hides them behind one that dominates."""
    xp = library(name)
    rng = np.random.default_rng(0)
    X = 1e4 + low_rank((80, 60), 2)
    index = np.nonzero(rng.random(X.shape) < 0.6)
    y = xp.asarray(X[index].astype(np.float32))
    problem = sg.Observed(sg.Entries(tuple(map(xp.asarray, index)), X.shape), y)
    R = np.asarray(sg.joint(6, rounds=2)(problem).factors.R)
    assert R.dtype == np.float32
    values = np.linalg.svd(R)[1]
    assert values[-1] > 0.2 * values[0]
    # columns with few entries are kept small
    seen = np.bincount(index[1], minlength=60)
    assert outside(R, (seen / (seen + seen.mean()))[:, None]) < 0.02


def test_power_iterations_need_no_fused_pass(monkeypatch):
    problem, _ = entries(low_rank((40, 30), 2), 0.5, 0.1)
    fused = sg.joint(4, rounds=2)(problem).factors.R
    monkeypatch.setattr(sg.Entries, "fuses", lambda *_: False)
    np.testing.assert_allclose(sg.joint(4, rounds=2)(problem).factors.R, fused, rtol=1e-8)


def test_whole_covariances_solve_the_normal_equations():
    """Of the expected squares, row by row, written out."""
    rng = np.random.default_rng(0)
    X = low_rank((12, 9), 2)
    problem, seen = entries(X, 0.7, 0.1)
    F = with_offsets(X.shape, 2, rng)
    state = problem.linearize(F)
    method = sg.Variational(full=True)
    for _ in range(3):
        F, posterior = method(problem, state)
        state = problem.linearize(F).remembering(posterior)
    before = state.memory.method
    moved, after = sg.variational.solved(state.view, state.factors, before, 0)
    Y = np.zeros(X.shape)
    Y[seen] = problem.y
    a, b = state.factors.modes
    D = np.zeros((9, 4, 4))
    free = [0, 1, 3]  # R and c; the third column is given
    D[np.ix_(range(9), free, free)] = before.covariance[1]
    for i in range(12):
        S = sum(np.outer(b[j], b[j]) + D[j] for j in np.flatnonzero(seen[i]))
        rhs = sum(Y[i, j] * b[j] for j in np.flatnonzero(seen[i])) - S[:, 3] * a[i, 3]
        G = S[:3, :3] + np.diag(before.noise / before.prior[0])
        np.testing.assert_allclose(moved.L[i], np.linalg.solve(G, rhs[:3]), rtol=1e-8)
        np.testing.assert_allclose(
            after.covariance[0][i], before.noise * np.linalg.inv(G), rtol=1e-6
        )


@pytest.mark.parametrize("full", [False, True])
def test_the_noise_is_what_residual_and_uncertainty_show(full):
    problem, seen = entries(low_rank((14, 10), 2), 0.8, 0.1)
    result = run(problem, sg.joint(3), sg.Variational(full=full), 5)
    one = run(problem, result.state, sg.Variational(full=full, columns=True), 1)
    # all columns together have the noise that one level for all has
    same = run(problem, result.state, sg.Variational(full=full), 1)
    counts = seen.sum(axis=0)
    posterior = one.state.memory.method
    mean = (
        float(posterior.noise) * float(np.sum((counts + 1) * posterior.columns) - 10) / counts.sum()
    )
    assert mean == pytest.approx(float(same.state.memory.method.noise), rel=1e-6)


def test_it_does_not_depend_on_the_parameterisation():
    rng = np.random.default_rng(0)
    problem, _ = entries(low_rank((30, 20), 3), 0.6, 0.05)
    start = sg.joint(4)(problem)
    first = run(problem, start, sg.Variational(full=True), 1).state
    rows, columns = rng.permutation(30), rng.permutation(20)
    i, j = problem.operator.index
    place = [np.argsort(rows), np.argsort(columns)]
    other = sg.Observed(sg.Entries((place[0][i], place[1][j]), (30, 20)), problem.y)
    F = start.factors
    turned = other.linearize(sg.Bordered(F.L[rows], F.R[columns]))
    again = run(other, turned.remembering(start.memory.method), sg.Variational(full=True), 1).state
    np.testing.assert_allclose(
        again.factors.full(), first.factors.full()[np.ix_(rows, columns)], atol=1e-10
    )


def test_columns_have_their_noise():
    rng = np.random.default_rng(0)
    X, noise = low_rank((400, 12), 2), np.geomspace(0.05, 0.5, 12)
    Y = X + noise * rng.standard_normal(X.shape)
    problem = sg.Observed(sg.Full(X.shape), Y)
    result = run(problem, sg.joint(6), sg.Variational(full=True, columns=True), 60)
    posterior = result.state.memory.method
    found = np.sqrt(float(posterior.noise) * posterior.columns)
    np.testing.assert_allclose(found, noise, rtol=0.25)
    plain = run(problem, sg.joint(6), sg.Variational(full=True), 60)
    assert relative(result.factors, X) < 0.8 * relative(plain.factors, X)


@pytest.mark.parametrize("full", [False, True])
def test_heavy_tails_reject_gross_errors(full):
    rng = np.random.default_rng(0)
    X = low_rank((120, 40), 3)
    wrong = rng.random(X.shape) < 0.1
    Y = X + 0.05 * rng.standard_normal(X.shape) + wrong * rng.uniform(5, 10, X.shape)
    problem = sg.Observed(sg.Full(X.shape), Y)
    init = sg.joint(6, variance=1.0)
    robust = run(problem, init, sg.Variational(full=full, freedom=1.0), 60)
    weight = robust.state.memory.method.weight
    assert weight[wrong].max() < 0.1 < 0.5 < np.median(weight[~wrong])
    assert relative(robust.factors, X) < 0.06
    assert relative(run(problem, init, sg.Variational(full=full), 60).factors, X) > 0.2


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_above_the_truth_does_not_hurt(noise, seed):
    rng = np.random.default_rng(seed)
    X = low_rank((100, 80), 2, seed)
    holes = np.where(rng.random(X.shape) < 0.3, X + noise * rng.standard_normal(X.shape), np.nan)
    model = sg.MatrixCompletion(4, random_state=0).fit(holes)
    assert model.rank_ == 2
    assert np.linalg.norm(model.reconstruct() - X) < max(1e-6, 2 * noise) * np.linalg.norm(X)


def conditioned(shape, rank, kappa, rng):
    """A matrix with singular values from 1 to 1/κ, times a constant: entries have size 1."""
    U, V = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in shape)
    return (U * np.geomspace(1, 1 / kappa, rank)) @ V.T * np.sqrt(np.prod(shape))


@pytest.mark.parametrize("kappa", [1e2, 1e3, 1e5])
@pytest.mark.parametrize("shape", [(30, 12), (60, 20), (100, 40)])
def test_small_components_are_not_taken_for_noise(shape, kappa):
    """The noise of a joint start is larger than they are: they are found once the others are."""
    rng = np.random.default_rng(3)
    X, noise = conditioned(shape, 3, kappa, rng), 0.03 / kappa
    holes = rng.random(shape) < 0.2
    given = np.where(holes, np.nan, X + noise * rng.standard_normal(shape))
    model = sg.MatrixCompletion(random_state=0).fit(given)
    error = np.sqrt(np.mean((model.reconstruct() - X)[holes] ** 2))
    assert 0.2 * noise < error < 3 * noise  # without them, it is at least 30 times the noise


@pytest.mark.parametrize("options", [{}, {"center": "none"}, {"center": "both", "scale": "both"}])
def test_large_means_hide_nothing(options):
    rng = np.random.default_rng(0)
    X = 1000 + rng.standard_normal((30, 2)) @ rng.standard_normal((2, 12))
    holes = rng.random(X.shape) < 0.2
    given = np.where(holes, np.nan, X + 0.1 * rng.standard_normal(X.shape))
    model = sg.MatrixCompletion(random_state=0, **options).fit(given)
    assert 0.05 < np.sqrt(np.mean((model.reconstruct() - X)[holes] ** 2)) < 0.15


def test_an_extended_state_is_the_same_fit():
    """New columns begin without effect, and as uncertain as the noise that they are to explain."""
    X = low_rank((20, 15), 2)
    problem, _ = entries(X, 0.8, 0.1)
    for method in (sg.Variational(full=True), sg.Variational(full=True, columns=True)):
        state = run(problem, sg.joint(3), method, 20).state
        more = extended(state, 2)
        np.testing.assert_allclose(more.factors.full(), state.factors.full(), rtol=1e-12)
        assert more.factors.rank == 5
        known, before = more.memory.method, state.memory.method
        assert known.noise == pytest.approx(0.1 * before.noise)
        assert known.prior[0][3] * known.prior[1][3] * 2 == pytest.approx(0.9 * before.noise)
        for k in (0, 1):
            for new, old in (
                (known.covariance[k], before.covariance[k]),
                (known.total[k], before.total[k]),
            ):
                np.testing.assert_allclose(new[..., :3, :3], 0.1 * old, rtol=1e-12)
                assert not new[..., 3:, :].any()
                assert not new[..., 3:].any()
        again = run(problem, more, method, 60)
        assert relative(again.factors, X) < 1.05 * relative(state.factors, X)


@pytest.mark.parametrize(
    ("shape", "seen", "rank", "kappa", "noise"),
    [
        ((600, 200), 0.5, 12, 100, 0),
        ((300, 300), 0.5, 7, 1, 0),
        ((300, 300), 0.5, 12, 1e4, 0),
        ((100, 80), 0.7, 12, 1e4, 0),
        ((2000, 300), 0.5, 12, 1e5, 3e-7),
    ],
)
def test_no_component_reproduces_a_single_column(shape, seen, rank, kappa, noise):
    """Least squares with too many components did: a fifth to half of the signal was lost."""
    rng = np.random.default_rng(1)
    X = conditioned(shape, 5, kappa, rng)
    holes = rng.random(shape) >= seen
    given = np.where(holes, np.nan, X + noise * rng.standard_normal(shape))
    model = sg.MatrixCompletion(rank, random_state=0).fit(given)
    assert model.rank_ == 5
    assert np.abs(model.reconstruct() - X)[holes].max() < 1e-8 + 10 * noise


@pytest.mark.parametrize(
    ("shape", "seen", "rank", "kappa", "options"),
    [
        ((300, 200), 1.0, 12, 1, {}),
        ((300, 200), 0.6, 12, 100, {}),
        ((300, 200), 0.6, 12, 100, {"center": "none"}),
        ((300, 200), 0.6, 12, 1, {"center": "both"}),
        ((1000, 100), 0.6, 7, 100, {}),
        ((2000, 300), 1.0, 12, 100, {}),
    ],
)
def test_no_component_reproduces_gross_errors(shape, seen, rank, kappa, options):
    """Components of single rows and columns were up to hundreds of times as large as the data."""
    rng = np.random.default_rng(0)
    X = conditioned(shape, 5, kappa, rng)
    wrong = X + 10 * (rng.random(shape) < 0.05) * rng.standard_normal(shape)
    wrong[rng.random(shape) >= seen] = np.nan
    model = sg.RobustPCA(rank, random_state=0, **options).fit(wrong)
    assert model.rank_ == 5
    assert np.abs(model.reconstruct() - X).max() < 1e-7


def test_weights_count_as_repetitions_do():
    """An entry of weight 4 is one whose noise is half as large."""
    X = low_rank((20, 15), 2)
    problem, _ = entries(X, 0.8, 0.1)
    root = np.where(np.arange(problem.y.size) % 2, 2.0, 1.0)
    heavy = sg.Observed(sg.Weighted(problem.operator, root), root * problem.y)
    start = sg.joint(3)(problem)
    method = sg.Variational(full=True)
    ours = run(heavy, heavy.linearize(start.factors).remembering(start.memory.method), method, 1)
    view = problem.linearize(start.factors).view.reweighted(root**2)
    F, _ = sg.variational.solved(view, start.factors, start.memory.method, 0)
    F, _ = sg.variational.solved(
        view, F, sg.variational.solved(view, start.factors, start.memory.method, 0)[1], 1
    )
    np.testing.assert_allclose(ours.factors.full(), F.full(), atol=1e-10)


@pytest.fixture
def elsewhere(monkeypatch):
    """A device that is not the default one, where NumPy cannot read."""
    strict = library("array_api_strict")
    there, here = strict.Device("device1"), strict.Device("CPU_DEVICE")

    def read(x):
        return np.asarray(x if isinstance(x, np.ndarray) else x.to_device(here))

    monkeypatch.setattr(sg.variational.posterior, "to_host", read)
    monkeypatch.setattr(holes_module, "host", read)
    return lambda x: strict.asarray(x, device=there)


@pytest.mark.parametrize("offsets", [False, True])
def test_whole_covariances_stay_on_their_device(elsewhere, offsets):
    X = low_rank((20, 15), 2)
    expected, _ = entries(X)
    index = tuple(elsewhere(i) for i in expected.operator.index)
    problem = sg.Observed(sg.Entries(index, X.shape), elsewhere(expected.y))
    found = []
    for P, put in ((expected, np.asarray), (problem, elsewhere)):
        sides = (put(np.zeros((n, int(offsets)))) for n in X.shape)
        border = [put(np.ones(n)) if offsets else None for n in X.shape]
        start = sg.joint(3, start=sg.Bordered(*sides, *border))(P)
        found.append(sg.solve(P, start, sg.Variational(full=True), max_iter=3).factors)
    assert found[1].L.device == problem.y.device
    X = sg.variational.posterior.to_host(found[1].full())
    np.testing.assert_allclose(X, found[0].full(), rtol=1e-9, atol=1e-12)


# ---- what is held out


def gaps(shape, rng, length=10, share=0.2):
    """Runs along the first mode."""
    holes = np.zeros(shape, dtype=bool)
    while holes.mean() < share:
        start, column = rng.integers(shape[0] - length), rng.integers(shape[1])
        holes[start : start + length, column] = True
    return holes


def runs(mask):
    """The mean length of runs along the first mode."""
    starts = mask & ~np.vstack([np.zeros_like(mask[:1]), mask[:-1]])
    return mask.sum() / max(1, starts.sum())


def test_gaps_are_held_out_where_there_are_gaps():
    rng = np.random.default_rng(0)
    holes = gaps((300, 12), rng)
    index = np.nonzero(~holes)
    parts = held_out(index, holes.shape, 0.1, 0, 2)
    masks = []
    for part in parts:
        mask = np.zeros(holes.shape, dtype=bool)
        mask[tuple(i[part] for i in index)] = True
        assert 0.05 < part.mean() < 0.25
        assert runs(mask) > 0.5 * runs(holes) > 4
        masks.append(mask)
    assert not (masks[0] & masks[1]).any()
    order = rng.permutation(index[0].size)
    again = held_out(tuple(i[order] for i in index), holes.shape, 0.1, 0, 2)
    np.testing.assert_array_equal(again[0], parts[0][order])


def test_what_is_held_out_stays_on_its_device(elsewhere):
    holes = gaps((300, 12), np.random.default_rng(0))
    index = tuple(elsewhere(i) for i in np.nonzero(~holes))
    assert held_out(index, holes.shape, 0.1, 0, 1)[0].device == index[0].device


def test_single_entries_are_held_out_where_they_are_missing():
    rng = np.random.default_rng(0)
    for missing in (0.0, 0.2, 0.7):
        index = np.nonzero(rng.random((200, 30)) >= missing)
        ours, plain = held_out(index, (200, 30), 0.1, 3, 2), chosen_by_hash(index, 0.1, 3, 2)
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_array_equal(a, b)


def test_gaps_choose_what_predicts_gaps():
    """Conformal intervals calibrated on gaps hold in gaps."""
    rng = np.random.default_rng(1)
    time = np.cumsum(rng.standard_normal((600, 2)), axis=0) / 10
    X = (
        time @ rng.standard_normal((2, 12))
        + 0.5 * np.cumsum(rng.standard_normal((600, 12)), axis=0) / 5
    )
    holes = gaps(X.shape, rng, 25, 0.2)
    model = sg.MatrixCompletion(calibrate=0.1, random_state=0).fit(np.where(holes, np.nan, X))
    low, high = model.interval(np.nonzero(holes), 0.9, kind="conformal")
    inside = (low <= X[holes]) & (X[holes] <= high)
    assert inside.mean() > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_small_tables_with_gross_errors_are_recovered(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((17, 2)) @ rng.standard_normal((2, 20)) + rng.standard_normal((17, 1))
    wrong = rng.random(X.shape) < 0.15
    Y = X + wrong * rng.choice([-1, 1], X.shape) * rng.uniform(3, 10, X.shape)
    model = sg.RobustPCA(random_state=0).fit(Y)
    assert model.rank_ == 3
    assert np.abs(model.reconstruct() - X).max() < 1e-6
    found = np.zeros(X.shape, dtype=bool)
    found[model.outliers_.coords] = True
    np.testing.assert_array_equal(found, wrong)


@pytest.mark.filterwarnings("ignore:estimates vary:scaledgd.DataWarning")
def test_a_component_of_one_row_is_an_error_of_that_row():
    worst = []
    for seed in (1, 12, 3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((26, 2)) @ rng.standard_normal((2, 13)) / np.sqrt(2) + 1000
        wrong = rng.random(X.shape) < 0.1
        Y = X + 0.1 * rng.standard_normal(X.shape) + wrong * rng.uniform(-50, 50, X.shape)
        Y[5:13, 3:7] = np.nan
        worst.append(np.abs(sg.RobustPCA(random_state=0).fit(Y).reconstruct() - X).max())
    print("largest errors", np.round(worst, 2))
    assert max(worst) < 3


def test_fibres_that_are_lost_are_held_out_as_fibres():
    rng = np.random.default_rng(0)
    lost = np.broadcast_to((rng.random((40, 7)) < 0.2)[:, None, :], (40, 30, 7))
    index = np.nonzero(~lost)
    part = held_out(index, lost.shape, 0.1, 0, 1)[0]
    chosen = np.zeros(lost.shape, dtype=int)
    chosen[index] = part
    assert set(np.unique(chosen.sum(axis=1))) == {0, 30}
    single = np.nonzero(rng.random(lost.shape) < 0.8)
    chosen[...] = 0
    chosen[single] = held_out(single, lost.shape, 0.1, 0, 1)[0]
    assert chosen.sum(axis=1).max() < 15


def test_least_squares_that_leave_nothing_but_noise_get_a_ridge_and_no_contest(limits):
    limits(joint=1_000_000)  # larger tables are slow to test
    rng = np.random.default_rng(0)
    X = 3 * low_rank((800, 600), 5)
    Y = X + 0.3 * rng.standard_normal(X.shape)
    i, j = np.nonzero(rng.random(X.shape) < 0.2)
    model = sg.MatrixCompletion(rank=5, random_state=0).fit_entries((i, j), Y[i, j], X.shape)
    assert [trial["why"] for trial in model.rank_path_] == ["given, and leaves nothing but noise"]
    assert model.noise_variance_ == pytest.approx(0.09, rel=0.03)
    # every row and column has its share of the noise: r degrees of freedom each
    error = np.sqrt(np.mean((model.reconstruct() - X) ** 2))
    assert error < 1.05 * 0.3 * np.sqrt(5 * (800 + 600) / i.size)
    # a rank that is too small leaves more than noise
    few = sg.MatrixCompletion(rank=3, random_state=0).fit_entries((i, j), Y[i, j], X.shape)
    assert len(few.rank_path_) > 1
