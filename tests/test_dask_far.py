"""Factors that stay distributed: the same answers, and no more than a vector in one place."""

import gc
import os
import threading
import time

import numpy as np
import pytest
from sklearn.base import clone

import scaledgd as sg

dask = pytest.importorskip("dask", reason="needs scaledgd[dask]")
distributed = pytest.importorskip("distributed", reason="needs scaledgd[dask]")
psutil = pytest.importorskip("psutil", reason="needs scaledgd[dask]")
pytest.importorskip("pandas", reason="needs scaledgd[dask]")

from test_dask import (  # noqa: E402
    MODELS,
    RANK,
    SHAPE,
    alone,  # noqa: F401
    chunked,
    client,  # noqa: F401
    da,
    dd,
    entries,
    fitted,
    labelled,
    large,  # noqa: F401
    left_behind,
    options,
    pd,
    started,
)

from scaledgd.distributed import cluster as cluster_module  # noqa: E402
from scaledgd.distributed import fitting, in_shards, remembered, systems, tasks  # noqa: E402
from scaledgd.distributed.cluster import size_of  # noqa: E402
from scaledgd.distributed.shards import Chain, Shard  # noqa: E402
from scaledgd.distributed.tall import RowsOfTable, Tall  # noqa: E402
from scaledgd.distributed.tasks import Ask, Other, Own, Unsure  # noqa: E402
from scaledgd.distributed.workers import Here  # noqa: E402
from scaledgd.estimators.plans import LARGEST_RANK  # noqa: E402
from scaledgd.files import FileError  # noqa: E402
from scaledgd.kernels import cpp  # noqa: E402
from scaledgd.kernels.entries import jitter  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # what Dask does within pandas
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]


@pytest.fixture
def far(large, monkeypatch):  # noqa: F811
    """The factor of so many rows is too large."""
    monkeypatch.setenv(fitting.LIMIT, str(8 * (RANK + 2) * 250))


@pytest.fixture(autouse=True)
def released():
    yield
    gc.collect()  # models let go of their rows


def alike(one, many, i, j, tol=1e-9):
    """A model whose factor is here, and one whose factor is not, with the same answers."""
    assert isinstance(many.factors_.L, da.Array)
    assert many.factors_.L.shape == (SHAPE[0], max(1, one.rank_))
    assert (one.rank_, one.center_, one.scale_) == (many.rank_, many.center_, many.scale_)
    assert one.n_iter_ == many.n_iter_
    want = one.predict_entries((i, j))
    assert np.abs(many.predict_entries((i, j)) - want).max() <= tol * np.abs(want).max()
    for name in ("singular_values_", "row_offset_", "column_offset_", "noise_variance_"):
        a, b = getattr(one, name), getattr(many, name)
        assert isinstance(b, np.ndarray | float)
        assert np.allclose(a, b, rtol=tol, atol=tol * np.abs(want).max())


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *(("given", parts) for parts in (1, 2, 4, 7)),
        *(("auto", 4), ("ridge", 4), ("columns", 7), ("parts", 2)),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_distributed_factor_gives_the_same_answers(name, parts, far, alone, limits, monkeypatch):  # noqa: F811
    i, j, y = entries()
    y = np.abs(y) if name == "parts" else y
    rank = {"auto": LARGEST_RANK}.get(name, MODELS[name].rank)
    monkeypatch.setenv(fitting.LIMIT, str(8 * (rank + 2) * 250))
    limits(shard=-(-len(y) // parts))
    one, many = fitted(MODELS[name], i, j, y), fitted(MODELS[name], *chunked(i, j, y))
    alike(one, many, i, j)
    assert many.factors_.L.numblocks == (parts, 1)
    L = many.factors_.L.compute()
    X = one.factors_.full()
    assert np.abs(L @ many.factors_.R.T - X).max() <= 1e-9 * np.abs(X).max()


def test_exact_data_single_precision_and_scaled_rows(far, alone, limits, monkeypatch):  # noqa: F811
    limits(shard=4000)
    i, j, y = entries(noise=0, offsets=False)
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    alike(one, many, i, j, 1e-7)
    assert np.abs(many.predict_entries((i, j)) - y).max() < 1e-7
    i, j, y = entries()
    rows = clone(MODELS["given"]).set_params(center="rows", scale="rows")
    alike(fitted(rows, i, j, y), fitted(rows, *chunked(i, j, y)), i, j)
    monkeypatch.setenv(fitting.LIMIT, str(4 * (RANK + 2) * 250))
    y = y.astype(np.float32)
    many = fitted(MODELS["given"], *chunked(i, j, y))
    assert many.factors_.L.dtype == many.predict_entries((i, j)).dtype == np.float32
    assert (
        np.abs(
            fitted(MODELS["given"], i, j, y).predict_entries((i, j)) - many.predict_entries((i, j))
        ).max()
        < 1e-3
    )


def test_no_more_than_a_vector_is_gathered_or_broadcast(far, alone, limits, monkeypatch):  # noqa: F811
    """What comes back, and what all shards are sent, is smaller than two columns of the factor."""
    limits(shard=3000)
    monkeypatch.setattr(remembered, "SHARE", 0.5)  # of few entries, every value is common
    seen = []
    for name in ("each", "keep", "added"):
        plain = getattr(Here, name)

        def watched(self, work, shards, own, *rest, plain=plain, name=name, **more):
            found = plain(self, work, shards, own, *rest, **more)
            back = found[1] if name == "keep" else found
            shared = rest[2:] if name == "added" else rest
            if work.__name__ not in ("nearest", "held"):  # a part of the entries, to choose by
                seen.append(
                    (work.__name__, name, size_of(back), max(map(size_of, shared), default=0))
                )
            return found

        monkeypatch.setattr(Here, name, watched)
    shape = 1500, 30
    rng = np.random.default_rng(0)
    i, j = np.divmod(rng.choice(shape[0] * shape[1], 20_000, replace=False), shape[1])
    L, R = (rng.standard_normal((n, RANK)) for n in shape)
    y = (L[i] * R[j]).sum(axis=1) + 0.1 * rng.standard_normal(len(i))
    model = clone(MODELS["given"]).fit_entries(chunked(i, j), chunked(y)[0], shape)
    assert isinstance(model.factors_.L, da.Array)
    names = {name for name, *_ in seen}
    assert {"update_kept", "column_systems", "squares", "_product"} <= names
    most = 8 * 2 * shape[0]
    assert {one for one in seen if max(one[2:]) > most} == set()


def test_a_cluster_keeps_the_factor(far, limits, client):  # noqa: F811
    limits(shard=4000)
    i, j, y = entries()
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    alike(one, many, i, j)
    lazy = many.predict_entries(chunked(i, j, chunks=1000))
    assert lazy.chunks == da.from_array(i, chunks=1000).chunks
    assert np.allclose(lazy.compute(), one.predict_entries((i, j)), rtol=1e-9, atol=1e-9)
    assert left_behind(client)  # the factor, as long as there is a model
    del many, lazy
    gc.collect()
    assert not left_behind(client)


def test_frames_are_joined_by_part(far, alone, limits, monkeypatch):  # noqa: F811
    limits(shard=4000)
    frame = labelled(*entries())
    lines = dd.from_pandas(frame, npartitions=3)
    model = clone(MODELS["given"]).set_params(clip=(-3.0, 3.0)).fit(lines)
    assert isinstance(model.factors_.L, da.Array)
    asked = dd.from_pandas(frame.sample(frac=1.0, random_state=0), npartitions=5, sort=False)
    lazy = model.predict_entries(asked[["item", "user"]])
    assert isinstance(lazy, dd.Series)
    assert lazy.npartitions == asked.npartitions
    with monkeypatch.context() as patch:
        patch.setenv(fitting.LIMIT, "1e9")
        want = clone(model).fit(lines).predict_entries(frame[["user", "item"]])
    found = lazy.compute()
    assert np.abs(want).max() == 3.0
    assert np.allclose(found.loc[frame.index], want, rtol=1e-9, atol=1e-9)
    strange = asked[["user", "item"]].assign(user="nobody")
    with pytest.raises(KeyError, match="nobody"):
        model.predict_entries(strange).compute()


def test_held_out_entries_are_scored(far, alone, limits, monkeypatch):  # noqa: F811
    limits(shard=4000)
    monkeypatch.setattr(in_shards, "SUMS", 8 * 15 * 50)  # columns are asked for in parts
    i, j, y = entries()
    model = clone(MODELS["given"]).set_params(calibrate=0.1)
    one, many = fitted(model, i, j, y), fitted(model, *chunked(i, j, y))
    assert isinstance(many.factors_.L, da.Array)
    assert np.allclose(one._model.scores, many._model.scores, rtol=1e-9)


@pytest.mark.long
def test_files_in_parts_are_filled(far, tmp_path, client, monkeypatch):  # noqa: F811
    pytest.importorskip("typer", reason="needs scaledgd[cli]")
    from scaledgd.cli.commands import folders

    frame = labelled(*entries())
    lost = np.arange(len(frame)) % 40 == 0
    holes = frame.assign(stars=frame["stars"].mask(lost))
    strange = pd.DataFrame({"user": ["nobody", frame["user"][0]], "item": [frame["item"][0], -1]})
    holes = pd.concat([holes, strange.assign(stars=np.nan)])
    for k, part in enumerate((holes.iloc[:7000], holes.iloc[7000:])):
        part.to_parquet(tmp_path / f"part{k}.parquet", index=False)
    found = {}
    for name in ("distributed", "here"):
        if name == "here":
            monkeypatch.setenv(fitting.LIMIT, "1e9")
        beside = {"interval": 0.9, "std": True, "report": tmp_path / f"{name}.html"}
        asked = options(tmp_path, client, out=tmp_path / name, raw=True, **beside)
        facts = folders.run(asked).facts(1.0)
        parts = sorted((tmp_path / name).glob("*.parquet"))
        columns = pd.concat(map(pd.read_parquet, parts))[["stars", "lower", "upper", "std"]]
        found[name] = facts["held_out"], columns.to_numpy()
        assert "Before and after" in (tmp_path / f"{name}.html").read_text()
    assert found["here"][0] == pytest.approx(found["distributed"][0], rel=1e-8)
    one, two = found["here"][1], found["distributed"][1]
    assert np.isfinite(one[:-2][lost]).all()
    assert np.allclose(one, two, rtol=1e-8, atol=1e-8, equal_nan=True)
    gc.collect()
    assert not left_behind(client)


def test_rows_are_transformed(far, alone, limits):  # noqa: F811
    limits(shard=4000)
    i, j, y = entries()
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    X = np.full(SHAPE, np.nan)
    X[i, j] = y
    want = one.transform(X[:50])
    assert np.allclose(many.transform(X[:50]), want, rtol=1e-9, atol=1e-9)
    lazy = many.transform(da.from_array(X[:50], chunks=(20, 70)))
    assert np.allclose(lazy.compute(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::scaledgd.estimators.diagnostics.DataWarning")
def test_parts_that_nothing_joins_are_aligned(far, alone, limits):  # noqa: F811
    limits(shard=2000)
    i, j, y = entries()
    apart = (i < 100) == (j < 80)
    i, j, y = i[apart], j[apart], y[apart]
    model = clone(MODELS["given"]).set_params(center="none")
    one, many = fitted(model, i, j, y), fitted(model, *chunked(i, j, y))
    assert one._model.observations.components() == 2
    between = np.arange(50), np.arange(150, 200)
    alike(one, many, i, j)
    alike(one, many, *between)


def test_constant_rows_stay_constant(far, alone, limits):  # noqa: F811
    limits(shard=4000)
    i, j, y = entries()
    y = np.where(i == 7, 1.25, y)
    one, many = fitted(MODELS["given"], i, j, y), fitted(MODELS["given"], *chunked(i, j, y))
    index = np.full(SHAPE[1], 7), np.arange(SHAPE[1])
    assert np.array_equal(one.predict_entries(index), np.full(SHAPE[1], 1.25))
    assert np.array_equal(many.predict_entries(index), one.predict_entries(index))
    lazy = many.predict_entries(chunked(*index))
    assert np.array_equal(lazy.compute(), one.predict_entries(index))


def test_a_model_is_saved_in_parts(far, alone, limits, tmp_path):  # noqa: F811
    limits(shard=4000)
    frame = labelled(*entries())
    model = clone(MODELS["given"]).fit(dd.from_pandas(frame, npartitions=2))
    want = model.predict_entries(frame[["user", "item"]])
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")  # replaces the folder
    parts = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert parts == ["_scaledgd.json", "model.npz", *(f"rows-{k:05}.npz" for k in range(3))]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    del model
    gc.collect()
    again = sg.load(tmp_path / "model")
    assert isinstance(again.factors_.L, da.Array)
    assert again.factors_.L.numblocks == (3, 1)
    assert np.array_equal(again.predict_entries(frame[["user", "item"]]), want)
    assert again.rank_ == RANK
    again.save(tmp_path / "copy")
    mine = tmp_path / "copy" / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(FileError, match=r"also holds mine\.txt, which scaledgd did not write"):
        again.save(tmp_path / "copy")
    assert mine.read_text() == "mine"
    mine.unlink()
    # a version before had no marker: such models are read, and not replaced
    (tmp_path / "copy" / "_scaledgd.json").unlink()
    assert sg.load(tmp_path / "copy").rank_ == RANK
    with pytest.raises(FileError, match="an earlier version of scaledgd; remove or rename it"):
        again.save(tmp_path / "copy")
    # a kill between the two steps of an exchange left it aside
    again.save(tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / ".moved.scaledgd-old")
    assert sg.load(tmp_path / "moved").rank_ == RANK
    assert not (tmp_path / ".moved.scaledgd-old").exists()
    part = tmp_path / "copy" / "rows-00001.npz"
    whole = part.read_bytes()
    part.write_bytes(whole[:-200] + b"0" * 200)
    with pytest.raises(FileError, match=r"rows-00001\.npz"):
        sg.load(tmp_path / "copy").predict_entries(frame[["user", "item"]])
    part.unlink()
    with pytest.raises(FileError, match=r"rows-00001\.npz is missing"):
        sg.load(tmp_path / "copy")


def test_files_of_rows_go_with_the_model(far, alone, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = fitted(MODELS["given"], *chunked(*entries()))
    rows = model.factors_.L
    assert list(tmp_path.glob("scaledgd-*"))
    del model
    gc.collect()
    assert rows.compute().shape == (SHAPE[0], RANK)
    del rows
    gc.collect()
    assert not list(tmp_path.glob("scaledgd-*"))


def test_what_would_need_all_rows_is_refused(far, alone, monkeypatch):  # noqa: F811
    i, j, y = entries()
    model = fitted(MODELS["given"], *chunked(i, j, y))
    index = i[:5], j[:5]
    with pytest.raises(MemoryError, match="the whole estimate would need"):
        model.reconstruct()
    for ask in (
        lambda: model.interval(index),
        lambda: model.predict_entries(index, return_std=True),
    ):
        with pytest.raises(NotImplementedError, match="intervals would need"):
            ask()
    with pytest.raises(NotImplementedError):
        model.sample(index=index)
    with pytest.raises(IndexError, match="rows run from"):
        model.predict_entries(chunked(i + SHAPE[0], j)).compute()
    shuffled = []
    monkeypatch.setattr(Here, "shuffle", lambda *_: shuffled.append(1))
    with pytest.raises(ValueError, match="checkpoint would hold the row factor"):
        fitted(clone(MODELS["given"]).set_params(checkpoint="fit.npz"), *chunked(i, j, y))
    with pytest.raises(MemoryError, match="swap rows and columns"):
        clone(MODELS["given"]).fit_entries(chunked(j, i), chunked(y)[0], SHAPE[::-1])
    assert not shuffled  # before the long work starts


def interrupted(monkeypatch, kind, number):
    """Ctrl-C when arrays are left on the workers for so many times."""
    plain, calls = kind.keep, []

    def keep(self, *args, **named):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return plain(self, *args, **named)

    monkeypatch.setattr(kind, "keep", keep)


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_interrupted_leaves_its_last_iterate(far, alone, monkeypatch):  # noqa: F811
    i, j, y = entries()
    interrupted(monkeypatch, Here, 12)
    model = clone(MODELS["given"])
    with pytest.raises(KeyboardInterrupt):
        model.fit_entries(chunked(i, j), chunked(y)[0], SHAPE)
    assert isinstance(model.factors_.L, da.Array)
    off = model.predict_entries((i, j)) - y
    assert np.sqrt(np.mean(off**2)) < 0.8 * y.std()


def test_a_fit_that_fails_leaves_nothing_on_the_cluster(far, client, monkeypatch):  # noqa: F811
    interrupted(monkeypatch, cluster_module.Cluster, 1)
    with pytest.raises(KeyboardInterrupt):
        fitted(MODELS["given"], *chunked(*entries()))
    gc.collect()
    assert not left_behind(client)


class Limited:
    """Workers with some memory."""

    def __init__(self, least):
        self.least = least


@pytest.mark.parametrize(
    ("rank", "here", "there", "given", "want"),
    [
        (14, 1e12, 1e12, None, False),
        (14, 1e12, 8e9, None, True),  # 12.8 GB on the worker that has least
        (14, 8e9, 1e12, None, True),  # and on this machine
        (14, 1e12, np.inf, None, False),
        (None, 1e12, 2e11, None, True),  # whatever rank is found
        (14, 1e12, 1e12, "1e9", True),
        (14, 8e9, 8e9, "1e11", False),
    ],
)
def test_when_a_factor_stays_distributed(rank, here, there, given, want, monkeypatch):
    from scaledgd.distributed.sources import Source

    monkeypatch.delenv(fitting.LIMIT, raising=False)
    if given is not None:
        monkeypatch.setenv(fitting.LIMIT, given)
    monkeypatch.setattr(fitting, "available_memory", lambda: here)
    counts = np.broadcast_to(np.int64(100), (10**8,)), np.zeros(1)
    source = Source([], (10**8, 1000), np.dtype(np.float64), counts)
    assert fitting.too_long(Limited(there), source, rank) is want


# ---- the array, and the systems of columns


@pytest.fixture
def tall():
    """Random arrays in three parts, here and as tall arrays."""
    workers = Here()
    rows = RowsOfTable(workers, [None] * 3, [(0, 4), (4, 5), (5, 12)])
    rng = np.random.default_rng(0)

    def made(*shape):
        x = rng.standard_normal((12, *shape))
        return x, rows.zeros(shape, np.dtype(float)) + x

    yield made
    workers.close()


def test_tall_arrays_do_what_numpy_does(tall):
    (x, X), (y, Y), (u, U) = tall(3), tall(3), tall()
    M, s = np.random.default_rng(1).standard_normal((3, 2)), np.arange(3.0)
    pairs = [
        (x @ M, X @ M),
        (x * s - 2, X * s - 2),
        (np.where(x > y, x, y), np.where(X > Y, X, Y)),
        (np.concatenate([x, u[:, None]], axis=1), np.concatenate([X, U[:, None]], axis=1)),
        (x[:, [2, 0]] / u[:, None], X[:, [2, 0]] / U[:, None]),
        (np.zeros_like(x), np.zeros_like(X)),
        (x + y, X.arrived() + Y),
        (np.sqrt(np.sum(x * x, axis=1)), np.sqrt(np.sum(X * X, axis=1))),
    ]
    for want, found in pairs:
        assert isinstance(found, Tall)
        assert found.shape == want.shape
        assert np.allclose(found.take(np.arange(12)), want, rtol=1e-14)
    sums = [
        (x.T @ y, X.T @ Y),
        (u @ x, U.T @ X),
        (np.ones((2, 12)) @ x, np.ones((2, 12)) @ X),
        (x.sum(), np.sum(X)),
        (x.mean(axis=0), np.mean(X, axis=0)),
        (x.max(axis=0), np.max(X, axis=0)),
        (np.argmax(x, axis=0), np.argmax(X, axis=0)),
        (x[[7, 0, 7]], X[np.asarray([7, 0, 7])]),
        (x[0, :2], X[0, :2]),
        (u[u > 0], U[U > 0]),
        (u, np.asarray(U)),
    ]
    for want, found in sums:
        assert not isinstance(found, Tall)
        assert np.allclose(found, want, rtol=1e-13)
    Q, A = np.linalg.qr(X)
    q = Q.take(np.arange(12))
    assert np.allclose(q @ A, x)
    assert np.allclose(q.T @ q, np.eye(3))
    with pytest.raises(MemoryError, match="stays on the cluster"):
        np.asarray(X)
    with pytest.raises(NotImplementedError, match=r"numpy\.sort"):
        np.sort(X, axis=0)


def test_notes_do_not_grow_without_end(tall):
    x, X = tall(2)
    for _ in range(100):
        x, X = 0.5 * x + 1, 0.5 * X + 1
    assert np.allclose(X.take(np.arange(12)), x)
    from scaledgd.distributed.tall import LONGEST, _nodes

    assert len(list(_nodes(X.tree))) <= LONGEST


def test_a_step_leads_where_it_should(tall):
    _, X = tall(2)
    target, Y = tall(2)[1], tall(2)[1]
    step = X.leading_to(target)
    assert X + -step is target
    assert X - step is not target
    assert Y + -step is not target


@pytest.mark.skipif(not cpp.AVAILABLE, reason="needs the compiled kernels")
@pytest.mark.parametrize("border", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_of_columns_make_the_systems_of_the_kernels(border, dtype):
    i, j, y = entries()
    y, (n1, n2), q, rng = y.astype(dtype), SHAPE, 4, np.random.default_rng(0)
    L, R = (rng.standard_normal((n, q)).astype(dtype) for n in SHAPE)
    u, v = (1 + rng.random(n).astype(dtype) if border else None for n in SHAPE)
    variance = rng.random((n1, q)).astype(dtype)
    r = q - 1 if border else q
    partner = np.concatenate([L[:, :r], u[:, None]], axis=1) if border else L
    ridge, chain = np.linspace(0.5, 1, q).astype(dtype), Chain().then("scaled", 2.0)
    pieces = j.astype(np.int32), i.astype(np.int32), y
    whole = Shard.assembled(1, (0, n2), SHAPE, False, pieces)
    given = np.stack([L[:, r], variance[:, r]], axis=1) if border else None
    unsure = Unsure(variance[:, :r], ridge, 0.3, given)
    want = tasks.update(whole, Own(R, v), None, Other(L, u), unsure, chain, None)
    least = tasks.step(whole, Own(R, v), None, ridge, Other(L, u), chain, None, True)
    units = variance[:, :r].max(axis=0).astype(float)
    doubt = [(variance[:, :r] / units).astype(np.float32)]
    doubt = np.concatenate([*doubt, variance[:, r:]], axis=1) if border else doubt[0]
    updated, stepped = [], []
    for ask in (
        Ask(0, 90, R[:90], v[:90] if border else None),
        Ask(90, n2, R[90:], v[90:] if border else None),
    ):
        total, plain = 0, 0
        for first, last in ((0, 100), (100, 101), (101, n1)):
            here = (i >= first) & (i < last)
            part = Shard.assembled(
                0,
                (first, last),
                SHAPE,
                False,
                (i[here].astype(np.int32), j[here].astype(np.int32), y[here]),
            )
            own = Own(L[first:last], u[first:last] if border else None)
            total = total + tasks.column_systems(part, own, doubt[first:last], ask, chain)
            plain = plain + tasks.column_systems(part, own, None, ask, chain)
        sizes = cpp.sizes_of(partner.T @ partner, ridge)
        how = systems.Unsure(sizes, units, ridge, 0.3, jitter(partner), dtype)
        updated.append(systems.updated(total, ask, how))
        asked = systems.Asked(partner.T @ partner, ridge, True, dtype)
        stepped.append(systems.stepped(plain, ask, asked))
    tol = 1e-10 if dtype == np.float64 else 1e-4
    for name in ("solved", "variance"):
        assert np.allclose(
            np.concatenate([getattr(one, name) for one in updated]),
            getattr(want, name),
            rtol=tol,
            atol=tol,
        )
    for name in ("total", "moments"):
        assert np.allclose(
            sum(getattr(one, name) for one in updated), getattr(want, name), rtol=tol
        )
    sums = np.sum([one.sums for one in updated], axis=0)
    assert np.allclose(sums, want.sums, rtol=tol)
    assert np.allclose(
        np.concatenate([one.step for one in stepped]), least.step, rtol=10 * tol, atol=tol
    )
    assert np.allclose(
        np.concatenate([one.diagonal for one in stepped]), least.diagonal, rtol=10 * tol, atol=tol
    )
    assert np.allclose(sum(one.total for one in stepped), least.total, rtol=10 * tol, atol=tol)


# ---- workers that are lost


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 1), (2, 1), (3, 3)])
def test_rows_on_lost_workers_are_solved_again(far, limits, monkeypatch, seed, count):
    limits(shard=2000)
    i, j, y = entries()
    want = fitted(MODELS["given"], i, j, y)
    number, steps, done = int(np.random.default_rng(seed).integers(20, 180)), [], threading.Event()
    with started(4, processes=True) as cluster, distributed.Client(cluster) as client:  # noqa: F811
        pids = client.run(os.getpid)

        def later():
            time.sleep(0.02)
            for pid in list(pids.values())[:count]:
                psutil.Process(pid).kill()
            done.set()

        for name in ("each", "keep", "added"):
            plain = getattr(cluster_module.Cluster, name)

            def call(self, work, *args, plain=plain, **named):
                steps.append(work.__name__)
                if len(steps) == number:
                    threading.Thread(target=later, daemon=True).start()
                return plain(self, work, *args, **named)

            monkeypatch.setattr(cluster_module.Cluster, name, call)
        found = fitted(MODELS["given"], *chunked(i, j, y))
        assert done.is_set()
        alike(want, found, i, j)
        del found
        gc.collect()
        assert not left_behind(client)
