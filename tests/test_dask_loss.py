"""Workers that are lost, and workers that join, in the middle of a fit: real processes."""

import os
import threading
import time

import numpy as np
import pytest
from sklearn.base import clone

dask = pytest.importorskip("dask", reason="needs scaledgd[dask]")
distributed = pytest.importorskip("distributed", reason="needs scaledgd[dask]")
psutil = pytest.importorskip("psutil", reason="needs scaledgd[dask]")

from test_dask import (  # noqa: E402
    MODELS,
    ROBUST,
    chunked,
    entries,
    fitted,
    judged,  # noqa: F401
    large,  # noqa: F401
    left_behind,
    started,
    with_errors,
)

from scaledgd.distributed import cluster as cluster_module  # noqa: E402
from scaledgd.distributed import places  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # a cluster that loses workers complains


@pytest.fixture
def cluster(large, limits):  # noqa: F811
    limits(shard=1000)
    with started(4, processes=True) as found, distributed.Client(found) as client:
        yield found, client


def at_step(monkeypatch, number, act, name="each"):
    """Do something soon after a step of the fit has begun."""
    plain, steps, done = getattr(cluster_module.Cluster, name), [], threading.Event()

    def later():
        time.sleep(0.02)
        act()
        done.set()

    def each(self, work, *args):
        steps.append(work.__name__)
        if len(steps) == number:
            threading.Thread(target=later, daemon=True).start()
        return plain(self, work, *args)

    monkeypatch.setattr(cluster_module.Cluster, name, each)
    return done


def kill(client, count):
    def act():
        for pid in list(pids.values())[:count]:
            psutil.Process(pid).kill()

    pids = client.run(os.getpid)
    return act


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 1), (2, 1), (3, 3)])
def test_lost_workers(cluster, monkeypatch, seed, count):
    _, client = cluster
    i, j, y = entries()
    want = fitted(MODELS["given"], i, j, y)
    number = int(np.random.default_rng(seed).integers(10, 100))
    done = at_step(monkeypatch, number, kill(client, count))
    found = fitted(MODELS["given"], *chunked(i, j, y))
    assert done.is_set()
    X, Y = want.reconstruct(), found.reconstruct()
    assert np.abs(X - Y).max() <= 1e-9 * np.abs(X).max()
    assert not left_behind(client)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "count", "name"), [(0, 1, "each"), (1, 1, "added"), (2, 1, "each"), (3, 3, "each")]
)
def test_workers_lost_while_errors_are_looked_for(cluster, judged, monkeypatch, seed, count, name):  # noqa: F811
    # thresholds are found by sums over all shards ("added"), and applied by each of them
    _, client = cluster
    i, j, y = with_errors()
    want = fitted(ROBUST["given"], i, j, y)
    number = int(np.random.default_rng(seed).integers(3, 8 if name == "added" else 60))
    done = at_step(monkeypatch, number, kill(client, count), name)
    found = fitted(ROBUST["given"], *chunked(i, j, y))
    assert done.is_set()
    X, Y = want.reconstruct(), found.reconstruct()
    assert np.abs(X - Y).max() <= 1e-9 * np.abs(X).max()
    assert found.threshold_ == pytest.approx(want.threshold_, rel=1e-12)
    assert found.outliers_.nnz == want.outliers_.nnz > 300
    assert not left_behind(client)


def in_shuffle(monkeypatch, number, delay, act):
    """Do something while entries are brought into rows, or into columns."""
    plain, calls, done = cluster_module.Cluster.shuffle, [], threading.Event()

    def later():
        time.sleep(delay)
        act()
        done.set()

    def shuffle(self, blocks, cut, *rest):
        def slowly(*args):
            time.sleep(0.3)
            return cut(*args)

        calls.append(number)
        if len(calls) == number:
            threading.Thread(target=later, daemon=True).start()
        found = plain(self, blocks, slowly, *rest)
        assert done.is_set() == (len(calls) >= number)  # not before and not after
        return found

    monkeypatch.setattr(cluster_module.Cluster, "shuffle", shuffle)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 1), (2, 1), (3, 3)])
def test_workers_lost_while_entries_are_distributed(cluster, monkeypatch, seed, count):
    _, client = cluster
    i, j, y = entries()
    want = fitted(MODELS["given"], i, j, y)
    rng = np.random.default_rng(seed)
    number, delay = int(rng.integers(1, 3)), rng.uniform(0, 0.5)
    in_shuffle(monkeypatch, number, delay, kill(client, count))
    found = fitted(MODELS["given"], *chunked(i, j, y))
    X, Y = want.reconstruct(), found.reconstruct()
    assert np.abs(X - Y).max() <= 1e-9 * np.abs(X).max()
    assert not left_behind(client)


@pytest.mark.slow
def test_a_worker_that_joins_is_used(large, limits, monkeypatch):  # noqa: F811
    monkeypatch.setattr(places, "WATCH", 0.05)
    limits(shard=2000)
    i, j, y = entries()
    model = clone(MODELS["given"]).set_params(center="both", scale="none", max_iter=5)
    want = fitted(model, i, j, y)
    with started(1, processes=True) as cluster, distributed.Client(cluster) as client:
        (first,) = client.nthreads()
        plain, steps = cluster_module.Cluster.each, []

        def each(self, work, *args):
            steps.append(work.__name__)
            if len(steps) == 5:
                cluster.scale(2)
                client.wait_for_workers(2)
            return plain(self, work, *args)

        monkeypatch.setattr(cluster_module.Cluster, "each", each)
        found = fitted(model, *chunked(i, j, y))
        assert np.allclose(want.reconstruct(), found.reconstruct(), rtol=1e-9, atol=1e-9)
        done = client.run(lambda dask_worker: dask_worker.state.executed_count)
        assert done.pop(first) > 0
        assert min(done.values()) > 0
