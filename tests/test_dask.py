"""Fits of Dask collections: the same answers as on one machine, for any shards."""

import gc
import pathlib
import pickle
import time
import types
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import sklearn.exceptions
from sklearn.base import clone

import scaledgd as sg

dask = pytest.importorskip("dask", reason="needs scaledgd[dask]")
distributed = pytest.importorskip("distributed", reason="needs scaledgd[dask]")
pytest.importorskip("pandas", reason="needs scaledgd[dask]")
da = pytest.importorskip("dask.array", reason="needs scaledgd[dask]")
dd = pytest.importorskip("dask.dataframe", reason="needs scaledgd[dask]")
pd = pytest.importorskip("pandas", reason="needs scaledgd[dask]")

from scaledgd.distributed import (  # noqa: E402
    fitting,
    memory,
    residuals,
    sources,
    trimming,
    workers,
)
from scaledgd.distributed.cluster import Cluster  # noqa: E402
from scaledgd.distributed.places import Places  # noqa: E402
from scaledgd.distributed.remembered import RememberedObservations  # noqa: E402
from scaledgd.distributed.shards import Shard  # noqa: E402
from scaledgd.distributed.sorting import by_slice, repeated  # noqa: E402
from scaledgd.distributed.workers import Here  # noqa: E402
from scaledgd.estimators.local_observations import LocalObservations  # noqa: E402
from scaledgd.kernels import backend, cpp  # noqa: E402

SHAPE, RANK = (300, 200), 3
TLS = pathlib.Path(__file__).with_name("tls.pem")
"""A certificate that signs itself, and its key, which is good for nothing else."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # what Dask does within pandas
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]


def entries(noise=0.3, m=12_000, seed=0, offsets=True):
    """Coordinates and values of a noisy low-rank table."""
    rng = np.random.default_rng(seed)
    i, j = np.divmod(rng.choice(SHAPE[0] * SHAPE[1], m, replace=False), SHAPE[1])
    L, R = (rng.standard_normal((n, RANK)) for n in SHAPE)
    y = (L[i] * R[j]).sum(axis=1) + noise * rng.standard_normal(m)
    return i, j, y + (2 + rng.standard_normal(SHAPE[0])[i] if offsets else 0)


def chunked(*arrays, chunks=2500):
    return tuple(da.from_array(x, chunks=chunks) for x in arrays)


def fitted(model, i, j, y, **more):
    return clone(model).fit_entries((i, j), y, SHAPE, **more)


@pytest.fixture
def large(limits):
    """Small data count as large: they are fitted in shards, and chosen for on a part."""
    limits(gathered=0, cells=0, joint=0, table=5000)


@pytest.fixture
def alone(monkeypatch):
    """No cluster, even if there is an active client."""
    monkeypatch.setattr(workers, "_active", lambda: None)


@pytest.fixture(scope="module")
def client():
    """A cluster in this process."""
    with (
        dask.config.set({"distributed.worker.memory.terminate": False}),
        started(2) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def started(workers, processes=False):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=processes, dashboard_address=":0"
    )


def left_behind(client):
    """What the scheduler still knows of, once it has heard of what was released."""
    for _ in range(100):
        found = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        if not found:
            break
        time.sleep(0.05)
    return found


def alike(a, b, tol=1e-9):
    """Two fits with the same answers."""
    assert a.rank_ == b.rank_
    assert (a.center_, a.scale_) == (b.center_, b.scale_)
    assert a.n_iter_ == b.n_iter_
    X, Y = a.reconstruct(), b.reconstruct()
    assert np.abs(X - Y).max() <= tol * np.abs(X).max()
    for name in ("singular_values_", "row_offset_", "column_offset_", "noise_variance_"):
        one, two = getattr(a, name), getattr(b, name)
        assert np.allclose(one, two, rtol=tol, atol=tol * np.abs(X).max())


MODELS = {
    name: sg.MatrixCompletion(**params, smooth="none", random_state=0)
    for name, params in {
        "given": {"rank": RANK},
        "auto": {},
        "ridge": {"rank": RANK, "ridge": 0.1},
        "columns": {"rank": RANK, "center": "columns", "scale": "columns"},
        "parts": {"rank": 2, "non_negative": True, "max_iter": 8},
    }.items()
}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *(("given", parts) for parts in (1, 2, 4, 7)),
        *(("auto", 4), ("auto", 7), ("ridge", 4), ("columns", 7), ("parts", 2)),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_shards_do_not_matter(name, parts, large, alone, limits, monkeypatch):
    i, j, y = entries()
    y = np.abs(y) if name == "parts" else y
    limits(shard=-(-len(y) // parts))
    seen = []
    watched = fitting.sharded
    monkeypatch.setattr(fitting, "sharded", lambda *a: seen.append(watched(*a)) or seen[-1])
    one = fitted(MODELS[name], i, j, y)
    many = fitted(MODELS[name], *chunked(i, j, y))
    alike(one, many)
    assert [len(side) for side in seen[0].shards] == [parts, parts]


def test_exact_data_are_reproduced(large, limits):
    limits(shard=4000)
    i, j, y = entries(noise=0, offsets=False)
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    alike(one, many)
    assert np.abs(many.predict_entries((i, j)) - y).max() < 1e-7


def test_the_order_of_files_does_not_matter(large, limits, client):
    limits(shard=4000)
    i, j, y = entries()
    parts = np.array_split(np.random.default_rng(1).permutation(len(y)), 5)
    found = []
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        arrays = [
            da.concatenate([da.from_array(x[parts[k]], chunks=-1) for k in order])
            for x in (i, j, y)
        ]
        found.append(fitted(MODELS["given"], *arrays).reconstruct())
    assert np.array_equal(*found)
    assert not left_behind(client)


def test_a_cluster_answers_like_one_machine(large, limits, client):
    limits(shard=4000)
    i, j, y = entries()
    model = clone(MODELS["given"]).set_params(calibrate=0.1)
    one, many = fitted(model, i, j, y), fitted(model, *chunked(i, j, y))
    alike(one, many)
    assert np.allclose(one._model.scores, many._model.scores, rtol=1e-9)
    index = i[:40], j[:40]
    for kind in ("model", "prediction", "conformal"):
        bounds = [model.interval(index, 0.9, kind) for model in (one, many)]
        assert np.allclose(*bounds, rtol=1e-9, atol=1e-9)
    deviation = many.predict_entries(index, return_std=True)[1]
    assert np.allclose(one.predict_entries(index, return_std=True)[1], deviation, rtol=1e-9)
    assert not left_behind(client)


def test_single_precision_stays(large, limits):
    limits(shard=4000)
    i, j, y = entries()
    y = y.astype(np.float32)
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    assert many.factors_.L.dtype == many.predict_entries((i, j)).dtype == np.float32
    assert np.abs(one.reconstruct() - many.reconstruct()).max() < 1e-3


def test_few_entries_are_fitted_here():
    i, j, y = entries()
    alike(fitted(MODELS["auto"], i, j, y), fitted(MODELS["auto"], *chunked(i, j, y)), 1e-10)


class Holders:
    """A client of workers that have some shards."""

    def __init__(self, threads, has):
        self.threads, self.has, self.moved = threads, has, []

    def nthreads(self):
        return self.threads

    def who_has(self, shards):
        return {shard.key: self.has.get(shard.key, ()) for shard in shards}

    def replicate(self, shards, n, workers):
        self.moved += [(shard.key, *workers) for shard in shards]


@pytest.mark.parametrize(
    ("threads", "has", "counts", "moved"),
    [
        ({"a": 1, "b": 1}, "aabb", {"a": 2, "b": 2}, 0),
        ({"a": 1, "b": 1}, "aaab", {"a": 2, "b": 2}, 1),
        ({"a": 1, "b": 1}, "aaa", {"a": 2, "b": 1}, 1),
        ({"a": 2, "b": 1}, "aaaaaa", {"a": 4, "b": 2}, 2),
        ({"a": 1, "b": 1}, ["ab", "ab", "a", "a"], {"a": 2, "b": 2}, 0),
        ({"a": 1}, ["a", "", "c"], {"a": 1, None: 2}, 0),
    ],
)
def test_every_thread_has_as_many_shards(threads, has, counts, moved):
    shards = [types.SimpleNamespace(key=f"shard-{k}") for k in range(len(has))]
    client = Holders(threads, {s.key: tuple(who) for s, who in zip(shards, has, strict=True)})
    places = Places(client).of(shards)
    assert Counter(places) == counts
    assert len(client.moved) == moved
    for shard, place in zip(shards, places, strict=True):
        there = {worker for key, worker in client.moved if key == shard.key}
        assert place is None or place in client.has[shard.key] or place in there


@pytest.mark.parametrize("seed", range(4))
def test_entries_in_order(seed):
    rng = np.random.default_rng(seed)
    shape, m = (int(rng.integers(1, 9)), int(rng.integers(1, 9))), int(rng.integers(0, 40))
    own, others = (rng.integers(0, n, m, dtype=np.int32) for n in shape)
    y = np.arange(m, dtype=np.float32)
    starts, there, values = by_slice(own, others, y, shape)
    order = np.lexsort((others, own))
    assert np.array_equal(there, others[order])
    assert np.array_equal(np.diff(starts), np.bincount(own, minlength=shape[0]))
    assert np.array_equal(np.sort(values), y)
    assert (there.dtype, values.dtype) == (np.int32, np.float32)
    pairs = own[order] * shape[1] + others[order]
    assert np.array_equal(repeated(starts, there), np.flatnonzero(np.diff(pairs) == 0) + 1)


@pytest.mark.parametrize("mode", [0, 1])
def test_coordinates_are_read_back_from_the_kernels(mode):
    i, j, y = entries()
    own, others = ((i, j), (j, i))[mode]
    bounds = 0, SHAPE[mode]
    pieces = own.astype(np.int32), others.astype(np.int32), y
    shard = Shard.assembled(mode, bounds, SHAPE, False, pieces)
    want = shard.others.copy()
    if cpp.AVAILABLE:
        shard.pattern.entries(mode)
        assert shard.places is None
    assert np.array_equal(shard.others, want)
    assert shard.others.dtype == np.int32
    assert np.array_equal(pickle.loads(pickle.dumps(shard)).places, want)
    shard.operator  # noqa: B018
    gone, _ = weakref.ref(shard), gc.disable()
    try:
        del shard
        assert gone() is None  # without a collection, which workers hardly ever do
    finally:
        gc.enable()


@pytest.mark.parametrize("told", ["65536", None, str(1 << 30)])
def test_workers_keep_memory_only_if_dask_forbade_it(told, monkeypatch):
    calls = []
    library = types.SimpleNamespace(
        mallopt=lambda *given: calls.append(given), malloc_trim=lambda _: calls.append("trim")
    )
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: library)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if told is not None:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", told)
    memory.keep()
    changed = told == "65536"
    assert calls == ([(-1, memory.KEPT), (-3, memory.LARGEST)] if changed else [])
    calls.clear()
    memory.as_before()
    assert calls == ([(-1, 65536), (-3, memory.SMALLEST)] if changed else []) + ["trim"]


# ---- fits that are broken off


def broken_off(monkeypatch, number=None):
    """Ctrl-C at a step of the next fit; return the names of the steps."""
    plain, steps = Here.each, []

    def each(self, work, *args):
        steps.append(work.__name__)
        if len(steps) == number:
            raise KeyboardInterrupt
        return plain(self, work, *args)

    monkeypatch.setattr(Here, "each", each)
    return steps


def in_sweeps(steps):
    """The number of a step in the middle of the last sweeps."""
    sweeps = [k for k, name in enumerate(steps) if name == "update"]
    return sweeps[-3] + 1


def test_a_fit_resumes_from_its_checkpoint(large, alone, limits, monkeypatch, tmp_path):
    limits(shard=4000, checkpoint_seconds=0)
    i, j, y = entries()
    with monkeypatch.context() as patch:
        usual = broken_off(patch)
        want = fitted(MODELS["given"], *chunked(i, j, y))
    model = clone(MODELS["given"]).set_params(checkpoint=tmp_path / "fit.npz")
    with monkeypatch.context() as patch:
        broken_off(patch, in_sweeps(usual))
        with pytest.raises(KeyboardInterrupt):
            fitted(model, *chunked(i, j, y))
    assert (tmp_path / "fit.npz").exists()
    limits(shard=3000)  # other shards are no other fit
    steps = broken_off(monkeypatch)
    alike(want, fitted(model, *chunked(i, j, y)))
    assert len(steps) < len(usual)
    assert not (tmp_path / "fit.npz").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_interrupted_ends_with_its_last_iterate(large, alone, monkeypatch):
    i, j, y = entries()
    with monkeypatch.context() as patch:
        usual = broken_off(patch)
        fitted(MODELS["given"], *chunked(i, j, y))
    broken_off(monkeypatch, in_sweeps(usual))
    model = fitted(clone(MODELS["given"]).set_params(interrupt="return"), *chunked(i, j, y))
    assert model.status_.startswith("interrupted at iteration")
    assert model.predict_entries((i, j)).shape == y.shape


def test_progress_and_time_limits(large, capsys, limits):
    limits(quiet_seconds=0)
    i, j, y = entries()
    fitted(clone(MODELS["given"]).set_params(verbose=2), *chunked(i, j, y))
    assert "MatrixCompletion" in capsys.readouterr().err
    hurried = clone(MODELS["given"]).set_params(max_time=1e-9)
    with (
        pytest.warns(sklearn.exceptions.ConvergenceWarning, match="time limit"),
        pytest.warns(sg.DataWarning, match="could judge it: raise max_time"),
    ):
        model = fitted(hurried, *chunked(i, j, y))
    assert "time limit" in model.status_


def test_a_warm_start_begins_where_the_last_fit_ended(large):
    i, j, y = entries()
    one, many = (clone(MODELS["given"]).set_params(warm_start=True) for _ in range(2))
    for _ in range(2):
        one, many = fitted_again(one, i, j, y), fitted_again(many, *chunked(i, j, y))
    alike(one, many)


def fitted_again(model, i, j, y):
    return model.fit_entries((i, j), y, SHAPE)


# ---- kinds of input


def table(i, j, y):
    X = np.full(SHAPE, np.nan)
    X[i, j] = y
    return X


@pytest.mark.parametrize("sharded", [False, True])
def test_a_table_with_holes(sharded, request, limits):
    if sharded:
        request.getfixturevalue("large")
        limits(shard=4000)
    X = table(*entries())
    model = MODELS["given"]
    one = clone(model).fit(X)
    unknown = da.from_array(X, chunks=(70, 200))
    unknown = unknown[da.from_array(np.ones(len(X), dtype=bool), chunks=70)]
    for blocks in (da.from_array(X, chunks=(90, 60)), unknown):
        many = clone(model).fit(blocks)
        alike(one, many)
        filled = many.transform(blocks)
        assert filled.chunks[1] == blocks.chunks[1]
        assert len(filled.chunks[0]) == len(blocks.chunks[0])
        assert np.allclose(filled.compute(), one.transform(X), rtol=1e-8, atol=1e-8)
    assert many.n_features_in_ == SHAPE[1]


def test_observed_says_what_counts(large):
    X = table(*entries())
    seen = ~np.isnan(X)
    whole = np.where(seen, X, 7.0)
    model = MODELS["given"]
    many = clone(model).fit(
        da.from_array(whole, chunks=90), observed=da.from_array(seen, chunks=50)
    )
    alike(clone(model).fit(X), many)


def labelled(i, j, y, seed=1):
    """The same entries with labels of people and things, in any order."""
    frame = pd.DataFrame({"user": [f"u{k:04d}" for k in i], "item": 10 * j - 50, "stars": y})
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def numbered(frame):
    """The coordinates of labels."""
    users = frame["user"].astype(str).str[1:].astype(int)
    return users.to_numpy(), ((frame["item"] + 50) // 10).to_numpy()


@pytest.mark.parametrize("kind", [str, "category"])
def test_a_frame_of_labels(kind, large, limits, client):
    limits(shard=4000)
    i, j, y = entries()
    frame = labelled(i, j, y)
    frame["user"] = frame["user"].astype(kind)
    lines = dd.from_pandas(frame, npartitions=5)
    model = clone(MODELS["given"]).fit(lines)
    alike(fitted(MODELS["given"], i, j, y), model)
    assert model.feature_names_in_[0] == "-50"
    lazy = model.predict_entries(lines[["user", "item"]])
    assert lazy.npartitions == lines.npartitions
    estimate = lazy.compute()
    assert estimate.index.equals(frame.index)
    wanted = model.predict_entries(numbered(frame))
    assert np.array_equal(estimate, wanted)
    few = frame[["user", "item"]].iloc[:3]
    assert np.array_equal(model.predict_entries(few), wanted[:3])
    with pytest.raises(KeyError, match="'nobody' was not among"):
        model.predict_entries(pd.DataFrame({"user": ["nobody"], "item": [-50]}))


def test_lazy_predictions_in_the_chunks_that_came(large):
    i, j, y = entries()
    model = fitted(MODELS["given"], *chunked(i, j, y))
    lazy = model.predict_entries(chunked(i, j, chunks=999))
    assert lazy.chunks == da.from_array(i, chunks=999).chunks
    assert lazy.dtype == np.float64
    assert np.array_equal(lazy.compute(), model.predict_entries((i, j)))


def test_empty_parts_and_missing_values_are_fine(large):
    i, j, y = entries()
    frame = labelled(i, j, y)
    more = frame.iloc[:50].assign(stars=np.nan, user=frame["user"].iloc[0])
    parts = [frame.iloc[:0], frame.iloc[:5000], more, frame.iloc[5000:], frame.iloc[:0]]
    lines = dd.concat([dd.from_pandas(part, npartitions=1) for part in parts])
    alike(fitted(MODELS["given"], i, j, y), clone(MODELS["given"]).fit(lines))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_model_is_saved_without_the_data(large, tmp_path):
    i, j, y = entries()
    model = clone(MODELS["given"]).fit(dd.from_pandas(labelled(i, j, y), npartitions=3))
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    pairs = labelled(i, j, y)[["user", "item"]]
    assert np.array_equal(again.predict_entries(pairs), model.predict_entries(pairs))
    assert again.noise_variance_ == model.noise_variance_
    X = table(i, j, y)
    assert np.array_equal(again.transform(X), model.transform(X))
    with pytest.raises(ValueError, match="intervals need the data of the fit"):
        again.interval((i[:3], j[:3]))
    with pytest.raises(NotImplementedError, match="fitted on a cluster"):
        model.score(X)
    with pytest.raises(NotImplementedError, match="partial_fit needs the data"):
        model.partial_fit(X)
    assert model.fit(X)._model.observations.size == len(y)
    with pytest.raises(TypeError, match="tuple of integer arrays"):
        model.predict_entries(pairs)


# ---- bad input: a clear sentence before the long work, and nothing left behind


def frame_of(parts):
    """A frame with parts as they are, whatever their types."""
    whole = dd.from_pandas(parts[0], npartitions=1)

    def part(number):
        return parts[number]

    return dd.from_map(part, range(len(parts)), meta=whole._meta)


def bad_frames():
    frame = labelled(*entries())
    half = len(frame) // 2
    first, second = frame.iloc[:half], frame.iloc[half:]
    missing = second.copy()
    missing.loc[missing.index[3], "user"] = None
    words = second.assign(stars=["good"] * len(second))
    numbers = second.assign(user=np.arange(len(second)))
    again = pd.concat([second, first.iloc[[7]]])
    user, item = first["user"].iloc[7], first["item"].iloc[7]
    return {
        "label": (
            [first, missing],
            ValueError,
            "part 1 of the frame: 1 line has no label in 'user'",
        ),
        "words": ([first, words], TypeError, "part 1 of the frame: 'stars' holds .*, not numbers"),
        "types": (
            [first, numbers],
            TypeError,
            "labels in 'user' are .* in some parts and .* in others",
        ),
        "twice": ([first, again], ValueError, f"user '{user}', item {item} is given more than"),
        "infinite": ([first, second.assign(stars=np.inf)], ValueError, "'stars' holds infinity"),
        "nothing": ([first.assign(stars=np.nan)], ValueError, "no entry with a value"),
        "columns": ([first.assign(more=1)], ValueError, "three columns: row, column and value"),
    }


@pytest.mark.parametrize("name", ["label", "words", "types", "twice", "infinite", "nothing"])
@pytest.mark.parametrize("where", ["cluster", "here"])
def test_bad_frames(name, where, large, request):
    parts, error, words = bad_frames()[name]
    client = request.getfixturevalue("client" if where == "cluster" else "alone")
    model = clone(MODELS["given"])
    with dask.config.set({"dataframe.convert-string": False}), pytest.raises(error, match=words):
        model.fit(frame_of(parts))
    assert not hasattr(model, "factors_")
    if where == "cluster":
        assert not left_behind(client)


def spoilt(folder, name):
    """Files, one of which is not like the others."""
    frame = labelled(*entries())
    parts = [frame.iloc[:4000], frame.iloc[4000:8000], frame.iloc[8000:]]
    if name == "type":
        parts[1] = parts[1].assign(stars=parts[1]["stars"].astype(str))
    elif name == "column":
        parts[1] = parts[1].rename(columns={"stars": "rating"})
    elif name == "pair":
        parts[2] = pd.concat([parts[2], parts[0].iloc[[5]]])
    for k, part in enumerate(parts):
        part.to_parquet(folder / f"part{k}.parquet", index=False)
    lines = dd.read_parquet(str(folder / "*.parquet"))
    if name == "gone":
        (folder / "part1.parquet").unlink()
    elif name == "broken":
        (folder / "part1.parquet").write_bytes(b"nothing that Parquet knows")
    return lines


@pytest.mark.parametrize("where", ["cluster", "here"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("type", "part 1 of the frame: 'stars' holds .*, not numbers"),
        ("column", "part 1 of the frame cannot be read .*stars"),
        ("pair", "is given more than once"),
        ("gone", "part 1 of the frame cannot be read .*No such file"),
        ("broken", "part 1 of the frame cannot be read "),
    ],
)
def test_bad_files(name, words, where, large, tmp_path, request):
    client = request.getfixturevalue("client" if where == "cluster" else "alone")
    model = clone(MODELS["given"])
    with pytest.raises((ValueError, TypeError), match=words):
        model.fit(spoilt(tmp_path, name))
    assert not hasattr(model, "factors_")
    if client is not None:
        assert not left_behind(client)


def test_no_files_at_all(tmp_path):
    with pytest.raises(ValueError, match="no columns: no file was found"):
        clone(MODELS["given"]).fit(dd.read_parquet(str(tmp_path / "none*.parquet")))


def test_nothing_is_left_on_the_disk_of_this_process(large, alone, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    i, j, y = entries()
    fitted(MODELS["given"], *chunked(i, j, y))
    with pytest.raises(ValueError, match="is given more than once"):
        fitted(MODELS["given"], *chunked(*(np.append(x, x[:1]) for x in (i, j, y))))
    assert not list(tmp_path.glob("scaledgd-*"))


def test_bad_arrays(large):
    i, j, y = entries()
    model = clone(MODELS["given"])

    def refused(error, words, *given, shape=SHAPE, **more):
        with pytest.raises(error, match=words):
            model.fit_entries(given[:2], given[2], shape, **more)
        assert not hasattr(model, "factors_")

    far = i.copy()
    far[9000] = SHAPE[0]
    refused(ValueError, r"chunk 3 of index\[0\] runs from", *chunked(far, j, y))
    gone = y.copy()
    gone[3] = np.nan
    refused(ValueError, "chunk 0 of values", *chunked(i, j, gone))
    refused(TypeError, r"index\[0\] must hold integers", *chunked(i + 0.5, j, y))
    refused(ValueError, "Complex data", *chunked(i, j, y + 1j))
    refused(ValueError, "of one length", *chunked(i, j), da.from_array(y[:-1], chunks=2500))
    refused(ValueError, "only matrices", *chunked(i, j, y), shape=(3, 4, 5))
    twice = np.append(i, i[:1]), np.append(j, j[:1]), np.append(y, 0.0)
    refused(ValueError, "is given more than once", *chunked(*twice))
    refused(NotImplementedError, "weights", *chunked(i, j, y), entry_weight=y)
    with pytest.raises(ValueError, match="three columns: row, column and value"):
        model.fit(dd.from_pandas(bad_frames()["columns"][0][0], npartitions=2))
    table = da.full((40, 30), np.nan, chunks=10)
    with pytest.raises(ValueError, match="no observed entry"):
        model.fit(table)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(da.full((40, 30), np.inf, chunks=10))
    with pytest.raises(TypeError, match="dates"):
        model.fit(da.from_array(np.zeros((4, 3), dtype="M8[s]"), chunks=2))


def test_a_closed_client():
    with started(1) as cluster:
        client = distributed.Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(ValueError, match="client is closed; start another"):
            fitted(MODELS["given"], *chunked(*entries()), client=client)


# ---- gross errors


@pytest.fixture
def judged(limits):
    """Small data count as too large to fit again where there are gross errors."""
    limits(judged_again=0)


def with_errors(noise=0.3, share=0.05):
    """The same entries, some of which are grossly wrong."""
    i, j, y = entries(noise, offsets=False)
    rng = np.random.default_rng(2)
    return i, j, y + 20 * rng.standard_normal(len(y)) * (rng.random(len(y)) < share)


ROBUST = {
    "given": sg.RobustPCA(RANK, smooth="none"),
    "auto": sg.RobustPCA(smooth="none"),
    "columns": sg.RobustPCA(RANK, center="columns", scale="columns", smooth="none"),
    "share": sg.MatrixCompletion(RANK, outliers=0.06, smooth="none"),
    "completion": sg.MatrixCompletion(
        RANK, outliers="auto", calibrate=0.1, smooth="none", random_state=0
    ),
}


@pytest.mark.parametrize(
    ("name", "parts", "noise"),
    [
        *(("given", parts, 0.3) for parts in (1, 2, 7)),
        *(("given", 4, 0.0), ("auto", 4, 0.3), ("auto", 2, 0.0)),
        *(("columns", 4, 0.3), ("share", 4, 0.3), ("completion", 4, 0.3)),
    ],
)
def test_robust_fits_in_shards(name, parts, noise, large, judged, alone, limits):
    i, j, y = with_errors(noise)
    limits(shard=-(-len(y) // parts))
    one, many = fitted(ROBUST[name], i, j, y), fitted(ROBUST[name], *chunked(i, j, y))
    assert type(many._model.observations) is RememberedObservations
    if noise:
        alike(one, many)
    else:  # the noise is what rounding leaves
        assert np.allclose(one.reconstruct(), many.reconstruct(), rtol=1e-9, atol=1e-9)
    assert many.threshold_ == pytest.approx(one.threshold_, rel=1e-12)
    found = [abs(model.outliers_.tocsr()) for model in (one, many)]
    assert found[0].nnz == found[1].nnz > 300
    assert abs(found[0] - found[1]).max() < 1e-8
    if name == "completion":
        index = i[:40], j[:40]
        for kind in ("model", "prediction", "conformal"):
            bounds = [model.interval(index, 0.9, kind) for model in (one, many)]
            assert np.allclose(*bounds, rtol=1e-8, atol=1e-8)


def test_a_cluster_finds_gross_errors(large, judged, client, limits, tmp_path):
    limits(shard=4000)
    i, j, y = with_errors()
    lines = dd.from_pandas(labelled(i, j, y), npartitions=3)
    one, many = fitted(ROBUST["given"], i, j, y), clone(ROBUST["given"]).fit(lines)
    alike(one, many)
    assert many.threshold_ == pytest.approx(one.threshold_, rel=1e-12)
    gc.collect()
    assert not left_behind(client)
    many.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert abs(again.outliers_ - many.outliers_).max() == 0
    assert again.outliers_.nnz == one.outliers_.nnz


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_tables_that_are_nearly_full(missing, large, judged, alone, limits):
    limits(shard=17_000)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SHAPE[0], RANK)) @ rng.standard_normal((RANK, SHAPE[1]))
    X = X + 0.1 * rng.standard_normal(SHAPE)
    X[rng.random(SHAPE) < missing] = np.nan
    wrong = X + 10 * (rng.random(SHAPE) < 0.05)
    for model, table in ((MODELS["given"], X), (ROBUST["given"], wrong)):
        one = clone(model).fit(table)
        many = clone(model).fit(da.from_array(table, chunks=(70, 90)))
        assert np.allclose(one.reconstruct(), many.reconstruct(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("few", [0, 30, 10**6])
def test_order_statistics_of_shards(dtype, few, large, alone, limits, monkeypatch):
    limits(shard=500)
    monkeypatch.setattr(trimming, "FEW", few)
    i, j, y = entries(m=2000)
    y = np.where(np.arange(2000) % 5 == 0, np.round(y), y).astype(dtype)  # ties and zeros
    y[:3] = 0, 1e-30, 1e30
    with workers.opened(None) as here:
        source = sources.of_entries(here, chunked(i, j), da.from_array(y, chunks=700), SHAPE)
        data = fitting.sharded(here, source)
        sizes = np.sort(np.abs(y))[::-1]
        for k in (1, 2, 500, 1999, 2000):
            found = backend(data.y).kth_magnitude(data.y, k)
            assert found == sizes[k - 1]
            assert found.dtype == dtype
        _, count, squares, largest = backend(data.y).within(data.y, 1.0)
        inside = sizes[sizes <= 1]
        assert (count, largest) == (len(inside), inside[0])
        assert squares == pytest.approx(np.sum(inside.astype(float) ** 2), rel=1e-6)
        assert data.typical(0.7) == LocalObservations((i, j), y, SHAPE).typical(0.7)


def test_outliers_and_parts_need_memory(large, judged, alone, monkeypatch):
    arrays = chunked(*with_errors())
    monkeypatch.setattr(residuals, "available_memory", lambda: 1e3)
    with pytest.raises(MemoryError, match="entries, would take about"):
        fitted(ROBUST["given"], *arrays)


# ---- fits that are not distributed


def test_tensors_are_brought_here(monkeypatch):
    rng = np.random.default_rng(0)
    T = sg.datasets.low_rank_tensor((12, 10, 8), 2, kappa=2, rng=0).full()
    T = np.where(rng.random(T.shape) < 0.7, T, np.nan)
    index, model = np.nonzero(~np.isnan(T)), sg.TensorCompletion(2)
    lazy = da.from_array(T, chunks=7)
    one, many = clone(model).fit(T), clone(model).fit(lazy)
    assert np.allclose(one.reconstruct(), many.reconstruct(), rtol=1e-9, atol=1e-9)
    estimate = many.transform(lazy)
    assert estimate.chunks == lazy.chunks
    assert np.allclose(estimate.compute(), one.transform(T), rtol=1e-8, atol=1e-8)
    arrays = chunked(*index, T[index], chunks=100)
    many = sg.TensorCompletion(2).fit_entries(arrays[:3], arrays[3], T.shape)
    assert np.allclose(one.reconstruct(), many.reconstruct(), rtol=1e-8, atol=1e-8)
    monkeypatch.setattr(fitting, "available_memory", lambda: 1e4)
    with pytest.raises(MemoryError, match="not distributed"):
        clone(model).fit(lazy)


# ---- the command line


def options(tmp_path, client, **given):
    from scaledgd.cli.commands.options import CompleteOptions

    usual = {"file": tmp_path / "*.parquet", "out": tmp_path / "out", "quiet": True}
    usual |= {"long": ("user", "item", "stars"), "cluster": client.scheduler.address}
    return CompleteOptions(**{**usual, "rank": RANK, "center": "both", "scale": "none", **given})


def test_files_in_parts_are_filled(large, tmp_path, client, monkeypatch):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders, parts

    i, j, y = entries()
    frame = labelled(i, j, y).assign(note="as it was")
    lost = np.arange(len(frame)) % 40 == 0
    holes = frame.assign(stars=frame["stars"].mask(lost))
    stranger = frame.iloc[[0]].assign(user="nobody", stars=np.nan)
    for k, part in enumerate((holes.iloc[:7000], pd.concat([holes.iloc[7000:], stranger]))):
        part.to_parquet(tmp_path / f"part{k}.parquet", index=False)
    page = tmp_path / "page.html"
    asked = options(tmp_path, client, report=page, interval=0.8, std=True)
    folders.check(asked)
    monkeypatch.setattr(parts, "TOGETHER", 100)  # intervals of one file after the other
    summary = folders.run(asked)
    facts = summary.facts(1.0)
    assert (facts["missing"], facts["unknown_rows"]) == (lost.sum() + 1, 1)
    assert facts["held_out"]["rmse"] < 0.5 * facts["held_out"]["rmse_of_column_means"]
    found = pd.concat([pd.read_parquet(p) for p in sorted((tmp_path / "out").glob("*.parquet"))])
    assert list(found.columns) == [*frame.columns, "lower", "upper", "std"]
    assert found["note"].eq("as it was").all()
    off = found["stars"].to_numpy()[:-1] - frame["stars"].to_numpy()
    assert np.array_equal(off[~lost], np.zeros((~lost).sum()))
    assert np.sqrt(np.mean(off[lost] ** 2)) < 0.6
    assert not left_behind(client)
    # the intervals of one machine, for cells that were missing only
    model = clone(MODELS["given"]).set_params(center="both", scale="none", calibrate=0.1)
    order = np.lexsort((frame["item"], frame["user"]))
    known = frame.iloc[order[~lost[order]]]
    model.fit_entries(numbered(known), known["stars"].to_numpy(), SHAPE)
    index, bounds = numbered(frame[lost]), found[["lower", "upper"]].to_numpy()[:-1]
    assert np.allclose(bounds[lost].T, model.interval(index, 0.8, "prediction"), rtol=1e-6)
    low, high = model.interval(index, 0.6826894921370859, "prediction")
    assert np.allclose(found["std"].to_numpy()[:-1][lost], (high - low) / 2, rtol=1e-6)
    assert np.isnan(found[["lower", "upper", "std"]].to_numpy()[~np.append(lost, False)]).all()
    truth = frame["stars"].to_numpy()[lost]
    inside = (bounds[lost, 0] < truth) & (truth < bounds[lost, 1])
    assert 0.7 < inside.mean() < 0.9
    # the report of one machine
    text = page.read_text()
    for word in (
        "Accuracy",
        "Missing cells",
        "Before and after",
        "The model",
        f"{lost.sum() + 1:,}",
    ):
        assert word in text
    assert [len(n) for n in summary.counts.values()] == list(SHAPE)
    assert sum(summary.counts["rows"]) == sum(summary.counts["columns"]) == (~lost).sum()


def test_pairs_are_predicted_in_parts(large, tmp_path, client):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders

    i, j, y = entries()
    frame = labelled(i, j, y)
    frame.iloc[:10_000].to_parquet(tmp_path / "part.parquet", index=False)
    pairs = frame.iloc[10_000:][["item", "user"]].assign(more=1)
    (tmp_path / "asked").mkdir()
    for k, part in enumerate((pairs.iloc[:700], pairs.iloc[700:])):
        part.to_parquet(tmp_path / "asked" / f"{k}.parquet", index=False)
    asked = options(tmp_path, client, predict=tmp_path / "asked" / "*.parquet")
    folders.check(asked)
    summary = folders.run(asked)
    assert summary.facts(1.0)["missing"] == len(pairs)
    found = pd.concat([pd.read_parquet(p) for p in sorted((tmp_path / "out").glob("*.parquet"))])
    assert list(found.columns) == ["user", "item", "stars"]
    assert np.array_equal(found["user"], pairs["user"])
    off = found["stars"].to_numpy() - frame["stars"].iloc[10_000:]
    assert np.sqrt(np.mean(off**2)) < 0.6


def test_what_files_in_parts_refuse(tmp_path, client):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders
    from scaledgd.cli.failures import Failure

    labelled(*entries()).to_parquet(tmp_path / "part.parquet", index=False)

    def refused(words, run=False, **given):
        asked = options(tmp_path, client, **given)
        with pytest.raises(Failure, match=words):
            folders.run(asked) if run else folders.check(asked)
        assert not (tmp_path / "out").exists()

    refused("give --long", long=None)
    refused("contradict", workers=2)
    refused("there is no file", cluster=None, workers=1, file=tmp_path / "none*.parquet")
    refused("must be a folder", out=tmp_path / "out.parquet")
    refused("there is no folder", report=tmp_path / "none" / "page.html")
    refused("--text does not go with", text=["user"])
    (tmp_path / "more").mkdir()
    named = labelled(*entries()).assign(std=1.0)
    named.to_parquet(tmp_path / "more" / "a.parquet", index=False)
    refused("--std adds a column 'std'", run=True, std=True, file=tmp_path / "more" / "*.parquet")
    refused("nothing is missing", run=True)
    refused("no column 'stairs'", run=True, long=("user", "item", "stairs"))
    pd.DataFrame({"user": ["u0001"]}).to_parquet(tmp_path / "pairs.pq", index=False)
    refused("no column 'item'", run=True, predict=tmp_path / "pairs.pq")
    refused("no scheduler answers", run=True, cluster="tcp://127.0.0.1:9")


# ---- folders that are replaced


IN_PARTS = "--long", "user,item,stars", "--rank", 1, "--workers", 1


@pytest.mark.parametrize(
    ("out", "files", "words"),
    [
        (
            "mine",
            ["mine/notes.txt", "mine/more/photo.jpg"],
            "has no _scaledgd.json",
        ),
        ("mine", ["mine/part-00000.parquet"], "has no _scaledgd.json"),
        (".", [], "is the current folder, or holds it"),
        ("..", [], "is the current folder, or holds it"),
        ("p", [], "holds the input"),
        ("mine", ["mine"], "is not a folder"),
        ("nowhere/out", [], "there is no folder"),
    ],
)
def test_force_replaces_no_folder_of_others(run, out, files, words):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    here = pathlib.Path()
    for name in ("p/a.parquet", "p/more/b.txt", *files):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("mine")
    before = sorted(here.rglob("*"))
    said = run("complete", "p/*.parquet", *IN_PARTS, "-o", out, "--force")
    assert said[:2] == (2, "")
    assert said[2].startswith(f"scaledgd: error: -o {out}")
    assert said[2].count("\n") == 1
    assert words in said[2]
    assert sorted(here.rglob("*")) == before


def test_a_folder_of_ours_is_replaced_with_force_only(large, tmp_path, client, monkeypatch):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders
    from scaledgd.cli.failures import Failure

    frame = labelled(*entries())
    frame["stars"] = frame["stars"].mask(np.arange(len(frame)) % 40 == 0)
    for k, part in enumerate((frame.iloc[:7000], frame.iloc[7000:])):
        part.to_parquet(tmp_path / f"part{k}.parquet", index=False)
    asked, out = options(tmp_path, client, center="none", hold_out=0.0), tmp_path / "out"
    folders.check(asked)
    folders.run(asked)
    names = ["_scaledgd.json", "part-00000.parquet", "part-00001.parquet"]
    assert sorted(p.name for p in out.iterdir()) == names
    with pytest.raises(Failure, match="--force to replace a folder that this command wrote"):
        folders.check(asked)
    (tmp_path / "part1.parquet").unlink()
    again = replace(asked, force=True)
    part = out / "part-00000.parquet"
    inside = {"file": out / "*.parquet"}, {"predict": part}, {"report": out / "page.html"}
    for given in inside:
        with pytest.raises(Failure, match=r"out holds the input|page\.html lies in"):
            folders.check(replace(again, **given))
    folders.check(again)
    folders.run(again)
    assert sorted(p.name for p in out.iterdir()) == names[:2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "part0.parquet"]
    # a file that is put there during the work
    plain = folders.parts.write

    def late(*args):
        (out / "notes.txt").write_text("mine")
        return plain(*args)

    monkeypatch.setattr(folders.parts, "write", late)
    with pytest.raises(Failure, match=r"-o .*out also holds notes\.txt.* is in .*out-new-1"):
        folders.run(again)
    assert (out / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in (tmp_path / "out-new-1").iterdir()) == names[:2]


# ---- who is listened to


def test_dashboards_are_for_this_machine(tmp_path, client):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    import psutil

    from scaledgd.cli.commands.clients import opened_client

    ours = psutil.Process()
    known = {one.laddr for one in ours.net_connections()}
    with opened_client(options(tmp_path, client, cluster=None, workers=1)):
        found = [
            one.laddr
            for process in (ours, *ours.children(recursive=True))
            for one in process.net_connections()
            if one.status == psutil.CONN_LISTEN and one.laddr not in known
        ]
    assert len(found) > 2
    assert {address.ip for address in found} == {"127.0.0.1"}


@pytest.fixture
def encrypted():
    """A cluster that takes those who have its certificate."""
    names = ("ca_file", "client_cert", "scheduler_cert", "worker_cert")
    security = distributed.security.Security(
        require_encryption=True, **{f"tls_{name}": str(TLS) for name in names}
    )
    with distributed.LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tls://",
        security=security,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


def test_a_cluster_with_certificates(large, encrypted, tmp_path, client):
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders
    from scaledgd.cli.failures import Failure

    frame = labelled(*entries())
    frame["stars"] = frame["stars"].mask(np.arange(len(frame)) % 40 == 0)
    frame.to_parquet(tmp_path / "part.parquet", index=False)
    certificate, key = TLS.read_text().split("-----BEGIN PRIVATE")
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE" + key)
    usual = {"center": "none", "hold_out": 0.0, "cluster": encrypted.scheduler_address}
    asked = options(tmp_path, client, **usual)
    ours = {"tls_ca": TLS, "tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    for given, words in (
        ({}, "give --tls-ca FILE"),
        ({"tls_ca": TLS}, "give --tls-cert FILE"),
        (
            {"tls_ca": TLS, "tls_cert": tmp_path / "cert.pem"},
            "PEM format, and the key",
        ),
        ({"tls_ca": tmp_path / "part.parquet", "tls_cert": TLS}, "PEM format, and the key"),
    ):
        folders.check(replace(asked, **given))
        with pytest.raises(Failure, match=words):
            folders.run(replace(asked, **given))
    for given, words in (
        ({**ours, "cluster": None, "workers": 1}, "--tls-ca is for --cluster; leave it out"),
        ({**ours, "cluster": "tcp://127.0.0.1:9"}, "an address that begins with tls://"),
        ({**ours, "tls_key": tmp_path / "none.pem"}, "--tls-key: there is no file .*none.pem"),
    ):
        with pytest.raises(Failure, match=words):
            folders.check(replace(asked, **given))
    assert not (tmp_path / "out").exists()
    folders.check(replace(asked, **ours))
    assert folders.run(replace(asked, **ours)).missing == frame["stars"].isna().sum()
    # or from the configuration of Dask
    settings = {"ca-file": str(TLS), "client.cert": str(TLS)}
    with dask.config.set({f"distributed.comm.tls.{name}": x for name, x in settings.items()}):
        again = replace(asked, out=tmp_path / "again")
        assert folders.run(again).missing == frame["stars"].isna().sum()


# ---- more than five workers


def test_every_worker_is_seen(large, monkeypatch):
    """Many versions of Dask tell of five, unless they are asked for all."""
    plain, small = distributed.Client.scheduler_info, 80_000

    def five(self, n_workers=5, **more):
        return plain(self, n_workers=n_workers, **more)

    monkeypatch.setattr(distributed.Client, "scheduler_info", five)
    monkeypatch.delenv(fitting.LIMIT, raising=False)
    idle = {f"distributed.worker.memory.{x}": False for x in ("target", "spill", "pause")}
    usual = {"processes": False, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({**idle, "distributed.worker.memory.terminate": False}),
        distributed.LocalCluster(n_workers=6, memory_limit="1GB", **usual) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = Cluster(client)
        assert (found.memory, found.least, found.threads) == (6e9, 1e9, 6)
        cluster.new_spec["options"]["memory_limit"] = small
        cluster.scale(7)
        client.wait_for_workers(7, timeout=60)
        assert (found.memory, found.least, found.threads) == (6e9 + small, small, 7)
        i, j, y = entries()
        model = fitted(MODELS["given"], *chunked(i, j, y))
        # the rows would not fit into the memory of the last worker
        assert isinstance(model.factors_.L, da.Array)
        want = model.predict_entries((i[:50], j[:50]))
        del model
        gc.collect()
    here = fitted(MODELS["given"], i, j, y).predict_entries((i[:50], j[:50]))
    assert np.allclose(here, want, rtol=1e-9, atol=1e-9)
