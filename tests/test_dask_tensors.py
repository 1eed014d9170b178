"""Tensors in Dask arrays: the same answers as on one machine, for any shards."""

import gc
import pickle

import numpy as np
import pytest
from sklearn.base import clone

import scaledgd as sg

dask = pytest.importorskip("dask", reason="needs scaledgd[dask]")
distributed = pytest.importorskip("distributed", reason="needs scaledgd[dask]")
da = pytest.importorskip("dask.array", reason="needs scaledgd[dask]")

from test_dask import alone, broken_off, chunked, client, left_behind, started  # noqa: E402, F401
from test_dask_loss import at_step, kill  # noqa: E402

from scaledgd.distributed import fitting  # noqa: E402
from scaledgd.distributed.observations import ShardedObservations  # noqa: E402
from scaledgd.distributed.remembered import RememberedObservations  # noqa: E402
from scaledgd.estimators.local_observations import LocalObservations  # noqa: E402

SHAPE, RANKS = (24, 20, 16), (2, 3, 2)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def entries(noise=0.1, offsets=False, shape=SHAPE, ranks=RANKS, m=3000):
    """Coordinates and values of a noisy tensor of low multilinear rank."""
    rng = np.random.default_rng(0)
    factors = tuple(rng.standard_normal((n, r)) for n, r in zip(shape, ranks, strict=True))
    T = sg.Tucker(factors, rng.standard_normal(ranks))
    index = np.unravel_index(rng.choice(np.prod(shape), m, replace=False), shape)
    y = T.gather(index) + noise * rng.standard_normal(m)
    return index, y + (2 + 3 * rng.standard_normal(shape[0])[index[0]] if offsets else 0)


def lazily(model, index, y, shape=SHAPE, **more):
    """The fit of the same entries in chunks."""
    *index, y = chunked(*index, y, chunks=800)
    return clone(model).fit_entries(tuple(index), y, shape, **more)


@pytest.fixture
def large(limits):
    """Small data count as large: they are fitted in shards, and judged by a part."""
    limits(gathered=0, cells=0, shard=1000, judged_tensor=2000)


MODEL = sg.TensorCompletion(RANKS, smooth="none", random_state=0)


def alike(a, b, tol=1e-9):
    """Two fits with the same answers."""
    assert (a.rank_, a.center_, a.n_iter_) == (b.rank_, b.center_, b.n_iter_)
    X, Y = a.reconstruct(), b.reconstruct()
    assert np.abs(X - Y).max() <= tol * np.abs(X).max()
    assert np.isclose(a.noise_variance_, b.noise_variance_, rtol=1e-3 if tol > 1e-9 else 1e-9)


@pytest.mark.parametrize(
    ("parts", "noise", "offsets"),
    [(1, 0.1, False), (2, 0.1, False), (4, 0.1, True), (7, 0.1, False), (4, 0.0, False)],
)
def test_shards_do_not_matter(parts, noise, offsets, large, alone, limits, monkeypatch):  # noqa: F811
    index, y = entries(noise, offsets)
    limits(shard=-(-len(y) // parts))
    seen, plain = [], fitting.sharded
    monkeypatch.setattr(fitting, "sharded", lambda *a: seen.append(plain(*a)) or seen[-1])
    one, many = clone(MODEL).fit_entries(index, y, SHAPE), lazily(MODEL, index, y)
    alike(one, many, 1e-9 if noise else 1e-8)
    assert [len(side) for side in seen[0].shards] == [parts] * 3
    assert type(many._model.observations) is RememberedObservations


@pytest.mark.parametrize("given", [{"ridge": 0.05}, {"center": "rows"}, {"rank": 2}])
def test_other_models(given, large):
    index, y = entries(offsets=True)
    model = clone(MODEL).set_params(**given)
    alike(clone(model).fit_entries(index, y, SHAPE), lazily(model, index, y))


def test_ranks_are_chosen_here_or_on_a_part(large, monkeypatch):
    index, y = entries()
    model = clone(MODEL).set_params(rank="auto")
    alike(clone(model).fit_entries(index, y, SHAPE), lazily(model, index, y))
    monkeypatch.setattr(fitting, "room_here", lambda *_: (2.0, 1.0))
    many = lazily(model, index, y)
    assert type(many._model.observations) is RememberedObservations
    assert many.rank_ == RANKS
    assert 0.8 < many.noise_variance_ / 0.1**2 < 1.2
    with pytest.raises(MemoryError, match=r"not distributed \("):
        lazily(clone(MODEL).set_params(outliers="auto", calibrate=0.1), index, y)


def test_intervals_read_the_entries_again(large):
    index, y = entries(offsets=True)
    model = clone(MODEL).set_params(calibrate=0.1)
    one, many = clone(model).fit_entries(index, y, SHAPE), lazily(model, index, y)
    alike(one, many)
    assert np.allclose(one._model.scores, many._model.scores, rtol=1e-8)
    some = tuple(i[:40] for i in index)
    for kind in ("model", "prediction", "conformal"):
        bounds = [model.interval(some, 0.9, kind) for model in (one, many)]
        assert np.allclose(*bounds, rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="ask before saving"):
        pickle.loads(pickle.dumps(many)).interval(some)


@pytest.mark.parametrize(("parts", "noise", "outliers"), [(4, 0.1, "auto"), (7, 0.0, 0.06)])
def test_gross_errors(parts, noise, outliers, large, limits, tmp_path):
    index, y = entries(noise)
    rng = np.random.default_rng(3)
    y = y + 20 * rng.standard_normal(len(y)) * (rng.random(len(y)) < 0.05)
    limits(shard=-(-len(y) // parts))
    model = clone(MODEL).set_params(outliers=outliers)
    one, many = clone(model).fit_entries(index, y, SHAPE), lazily(model, index, y)
    assert type(many._model.observations) is RememberedObservations
    if noise:
        alike(one, many)
    else:  # the noise is what rounding leaves
        assert np.allclose(one.reconstruct(), many.reconstruct(), rtol=1e-9, atol=1e-9)
    assert many.scale_ == one.scale_
    assert many.threshold_ == pytest.approx(one.threshold_, rel=1e-12)
    assert one.outliers_.nnz == many.outliers_.nnz > 100
    many.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    for found, want in zip(again.outliers_.coords, many.outliers_.coords, strict=True):
        assert np.array_equal(found, want)


def test_four_modes(large):
    shape, ranks = (9, 8, 7, 6), (2, 2, 2, 2)
    index, y = entries(shape=shape, ranks=ranks, m=1500)
    model = clone(MODEL).set_params(rank=ranks)
    alike(clone(model).fit_entries(index, y, shape), lazily(model, index, y, shape))


def test_a_cluster_answers_like_one_machine(large, client):  # noqa: F811
    index, y = entries()
    one, many = clone(MODEL).fit_entries(index, y, SHAPE), lazily(MODEL, index, y)
    alike(one, many)
    assert one.diagnostics_ == many.diagnostics_
    gc.collect()
    assert not left_behind(client)
    X = np.full(SHAPE, np.nan)
    X[index] = y
    blocks = da.from_array(X, chunks=(9, 20, 7))
    many = clone(MODEL).fit(blocks)
    alike(one, many)
    filled = many.transform(blocks)
    assert filled.chunks == blocks.chunks
    assert np.allclose(filled.compute(), one.transform(X), rtol=1e-8, atol=1e-8)
    again = pickle.loads(pickle.dumps(many))
    assert np.array_equal(again.reconstruct(), many.reconstruct())
    with pytest.raises(NotImplementedError, match="fitted on a cluster"):
        many.sample(1)


def test_fits_that_are_broken_off(large, alone, limits, monkeypatch, tmp_path):  # noqa: F811
    limits(checkpoint_seconds=0)
    index, y = entries()
    with monkeypatch.context() as patch:
        usual = broken_off(patch)
        want = lazily(MODEL, index, y)
    number = max(k for k, name in enumerate(usual) if name == "step") - 6
    with monkeypatch.context() as patch:
        broken_off(patch, number)
        some = lazily(clone(MODEL).set_params(interrupt="return"), index, y)
    assert some.status_.startswith("interrupted at iteration")
    assert type(some._model.observations) is RememberedObservations
    model = clone(MODEL).set_params(checkpoint=tmp_path / "fit.npz")
    with monkeypatch.context() as patch:
        broken_off(patch, number)
        with pytest.raises(KeyboardInterrupt):
            lazily(model, index, y)
    limits(shard=700)  # other shards are no other fit
    steps = broken_off(monkeypatch)
    alike(want, lazily(model, index, y))
    assert len(steps) < len(usual)
    assert not (tmp_path / "fit.npz").exists()


def test_a_warm_start_begins_where_the_last_fit_ended(large):
    index, y = entries()
    one, many = (clone(MODEL).set_params(warm_start=True) for _ in range(2))
    for _ in range(2):
        one.fit_entries(index, y, SHAPE)
        *places, values = chunked(*index, y, chunks=800)
        many.fit_entries(tuple(places), values, SHAPE)
    alike(one, many)


def test_a_model_is_saved_without_its_data(large, tmp_path):
    index, y = entries()
    many = lazily(MODEL, index, y)
    many.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert np.array_equal(again.reconstruct(), many.reconstruct())
    assert again._model.observations.size == len(y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("seed", "count", "name"), [(0, 1, "each"), (1, 1, "added"), (2, 1, "each"), (3, 3, "each")]
)
def test_lost_workers(large, monkeypatch, seed, count, name):
    # rows are solved for by each shard, cores by sums over all shards ("added")
    index, y = entries()
    want = clone(MODEL).fit_entries(index, y, SHAPE)
    with started(4, processes=True) as cluster, distributed.Client(cluster) as own:
        number = int(np.random.default_rng(seed).integers(10, 40))
        done = at_step(monkeypatch, number, kill(own, count), name)
        alike(want, lazily(MODEL, index, y))
        assert done.is_set()
        assert not left_behind(own)


def test_reductions_of_shards(large, limits, monkeypatch):
    """What fits ask of entries, beside what one machine answers."""
    index, y = entries(offsets=True)
    apart = (index[0] < 12) & (index[1] < 10) & (index[2] < 8)
    apart |= (index[0] >= 12) & (index[1] >= 10) & (index[2] >= 8)
    index, y = tuple(i[apart] for i in index), y[apart]  # two parts that share no slice
    seen, plain = [], fitting.sharded
    limits(shard=200)
    monkeypatch.setattr(fitting, "sharded", lambda *a: seen.append(plain(*a)) or seen[-1])

    class Asked(sg.TensorCompletion):
        def _fit(self, data, kind, **more):
            found.append(checked(data))
            raise StopIteration

    def checked(data):
        assert isinstance(data, ShardedObservations)
        here = LocalObservations(index, y, SHAPE)
        for k in range(3):
            for name in ("counts", "means", "medians", "squares"):
                assert np.allclose(getattr(data, name)(k), getattr(here, name)(k), rtol=1e-12)
        assert data.components() == here.components() == 2
        some, others = data.core(300, 0), here.core(300, 0)
        assert some.shape == others.shape
        assert np.isclose(np.sort(some.y), np.sort(others.y)).all()
        (fit, held), *_ = data.split(0.2, 3)
        (_, want), *_ = here.split(0.2, 3)
        assert fit.size + held.size == len(y)
        assert np.array_equal(np.sort(held.y), np.sort(want.y))
        return True

    found = []
    with pytest.raises(StopIteration):
        lazily(Asked(RANKS), index, y)
    assert found == [True]


def test_bad_arrays(large, client):  # noqa: F811
    index, y = entries()
    model = clone(MODEL)

    def refused(error, words, index, y, shape=SHAPE, **more):
        with pytest.raises(error, match=words):
            model.fit_entries(tuple(index), y, shape, **more)
        assert not hasattr(model, "factors_")
        assert not left_behind(client)

    i, j, k, values = chunked(*index, y, chunks=800)
    far = index[2].copy()
    far[2500] = SHAPE[2]
    refused(
        ValueError, r"chunk 3 of index\[2\] runs from", (i, j, *chunked(far, chunks=800)), values
    )
    gone = y.copy()
    gone[3] = np.nan
    refused(ValueError, "chunk 0 of values", (i, j, k), *chunked(gone, chunks=800))
    refused(TypeError, r"index\[2\] must hold integers", (i, j, k + 0.5), values)
    refused(ValueError, "of one length", (i, j, k), values[:-1])
    refused(ValueError, "a tuple of 3 arrays", (i, j), values)
    refused(NotImplementedError, "weights", (i, j, k), values, entry_weight=y)
    twice = [np.append(x, x[:1]) for x in (*index, y)]
    place = ", ".join(str(int(x[0])) for x in index)
    *where, doubled = chunked(*twice, chunks=800)
    refused(ValueError, rf"entry \({place}\) is given more than once", where, doubled)
    with pytest.raises(ValueError, match="no observed entry"):
        model.fit(da.full((4, 3, 2), np.nan, chunks=2))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(da.full((4, 3, 2), np.inf, chunks=2))
    assert not left_behind(client)


def test_a_closed_client(large):
    with started(1) as cluster:
        own = distributed.Client(cluster, set_as_default=False)
        own.close()
        with pytest.raises(ValueError, match="client is closed; start another"):
            lazily(MODEL, *entries(), client=own)
