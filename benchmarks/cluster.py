"""Fits of Parquet files on several processes: time, memory, and bytes that are sent.

``python benchmarks/cluster.py make FOLDER --entries 20000000`` writes the files,
``python benchmarks/cluster.py fit FOLDER --workers 4 --memory 1.5GB`` fits them, and
``python benchmarks/cluster.py overhead --entries 10000000 --rows 40000 --columns 10000 --workers
2`` compares processes with threads, in turns; with ``--errors 0.05`` some entries are grossly
wrong, and `RobustPCA` fits them. ``python benchmarks/cluster.py lose FOLDER`` fits
them while workers are killed, and ``beside FOLDER`` times Spark's ALS, too, if pyspark is there.
With ``SCALEDGD_FACTOR_MEMORY`` in the environment, a factor that takes more bytes stays on the
workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PART = 2_000_000
"""Entries in a file."""


def truth(shape: tuple[int, int], rank: int) -> tuple[Any, Any]:
    """Return the factors that all files are drawn from."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((n, rank)).astype(np.float32) for n in shape)  # type: ignore


def drawn(number: int, count: int, parts: int, shape: tuple[int, int], factors: Any) -> Any:
    """Return the entries of one file; the rows of a file are its own, so none is repeated."""
    rng = np.random.default_rng(number + 1)
    rows = np.arange(number, shape[0], parts)
    per = count // len(rows)
    # distinct columns of a row: an arithmetic progression, from anywhere
    first = rng.integers(0, shape[1], len(rows))
    step = shape[1] // per
    j = (first[:, None] + step * np.arange(per) + rng.integers(0, step, (len(rows), per))) % shape[
        1
    ]
    i = np.repeat(rows, per)
    j = j.ravel()
    L, R = factors
    y = (L[i] * R[j]).sum(axis=1) + rng.standard_normal(len(i), dtype=np.float32)
    order = rng.permutation(len(i))
    return i[order].astype(np.int32), j[order].astype(np.int32), y[order].astype(np.float32)


def make(folder: Path, entries: int, shape: tuple[int, int], rank: int) -> None:
    """Write files of entries."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    parts, factors = max(1, entries // PART), truth(shape, rank)
    for k in range(parts):
        i, j, y = drawn(k, entries // parts, parts, shape, factors)
        frame = pd.DataFrame({"row": i, "column": j, "value": y})
        frame.to_parquet(folder / f"part-{k:05d}.parquet", index=False)
    size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    print(json.dumps({"files": parts, "bytes": size}))


def loopback() -> int:
    """Bytes that went over the loopback device of Linux, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def usage() -> tuple[float, int]:
    """CPU seconds and peak bytes of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime, spent.ru_maxrss * 1024


def spilled(dask_worker: Any) -> int:
    """Bytes that a worker has moved to disk since it was started."""
    found = getattr(dask_worker.data, "cumulative_metrics", {})
    return int(
        sum(n for (what, unit), n in found.items() if (what, unit) == ("disk-write", "bytes"))
    )


def predicted(shape: tuple[int, int], rank: int, workers: int, item: int, offsets: int = 2) -> int:
    """Bytes that one sweep with its loss sends: to every worker, to shards, and back.

    Every worker gets both blocks with their variances, and every shard its rows of each block; rows
    come back with their variances.
    """
    q, beside = rank + offsets / 2, offsets / 2
    everywhere = sum(shape) * (q + rank + beside + 2 * beside)
    own = sum(shape) * (q + beside)
    back = 2 * sum(shape) * q
    return int(item * (workers * everywhere + own + back))


def predicted_far(columns: int, rank: int, workers: int, item: int) -> int:
    """The same with offsets of both sides, where the factor of the rows stays on the workers.

    Every worker gets the block of the columns with its variances, once more to make sums for the
    systems of the columns, which the workers hand on to each other; and columns come back.
    """
    q = rank + 1
    everywhere = (q + 1) + (rank + 2) + (q + 1)
    sums = q * (q + 1) // 2 + q + rank + 3
    return columns * (item * (workers * everywhere + 2 * q) + 8 * (workers - 1) * sums)


def watched() -> list[tuple[int, int]]:
    """Note, whenever all columns were solved for, how many bytes were sent until then."""
    from scaledgd.distributed import cluster as cluster_of

    sweeps: list[tuple[int, int]] = []
    updates: list[bool] = []

    def noting(plain: Any) -> Any:
        def call(self: Any, work: Any, *rest: Any, **more: Any) -> Any:
            found = plain(self, work, *rest, **more)
            updates.append(work.__name__ == "update")  # rows and columns in turn
            if work.__name__ == "update_kept" or (updates[-1] and sum(updates) % 2 == 0):
                sweeps.append((loopback(), self.sent + self.received + self.passed))
            return found

        return call

    for name in ("each", "keep"):
        setattr(cluster_of.Cluster, name, noting(getattr(cluster_of.Cluster, name)))
    return sweeps


def bytes_of(sweeps: list[tuple[int, int]]) -> dict[str, float]:
    """The median over sweeps: on the wire with everything else there, and as counted."""
    steps = np.diff(np.asarray(sweeps, dtype=np.float64), axis=0)
    middle = np.median(steps, axis=0) if len(steps) else np.zeros(2)
    return {"sweep_on_the_wire": middle[0], "sweep_counted": middle[1]}


def foretold(model: Any, rank: int, workers: int, item: int) -> int:
    """Bytes that a sweep of a fit should have sent."""
    shape = tuple(model.factors_.shape)
    if isinstance(model.factors_.L, np.ndarray):
        return predicted(shape, rank, workers, item)
    return predicted_far(shape[1], rank, workers, item)


@contextlib.contextmanager
def started(workers: int, memory: str = "auto") -> Iterator[Any]:
    """Start processes on this machine, one thread each, and return a client of them."""
    from distributed import Client, LocalCluster

    each = {"threads_per_worker": 1, "processes": True, "memory_limit": memory}
    with (
        LocalCluster(n_workers=workers, dashboard_address=":0", **each) as cluster,
        Client(cluster) as client,
    ):
        yield client


def fit(args: Any) -> None:
    """Fit the files, and print what it took."""
    import dask.dataframe as dd

    import scaledgd as sg

    sweeps = watched()
    with started(args.workers, args.memory) as client:
        before = client.run(usage)
        frame = dd.read_parquet(str(args.folder / "*.parquet"), aggregate_files=False)
        began, spent = time.perf_counter(), usage()[0]
        model = sg.MatrixCompletion(
            args.rank, center="both", scale="none", smooth="none", max_iter=args.max_iter
        )
        model.fit(frame)
        after = client.run(usage)
        cpu = usage()[0] - spent + sum(after[k][0] - before[k][0] for k in after if k in before)
        facts = {
            "entries": int(model._model.observations.size),
            "shape": list(model.factors_.shape),
            "rank": model.rank_,
            "iterations": model.n_iter_,
            "status": model.status_,
            "noise": model.noise_variance_,
            "wall": time.perf_counter() - began,
            "cpu": cpu,
            "peak_per_worker": sorted(peak for _, peak in after.values()),
            "peak_of_client": usage()[1],
            "written_to_disk": sorted(client.run(spilled).values()),
            **bytes_of(sweeps),
            "distributed": not isinstance(model.factors_.L, np.ndarray),
            "sweep_predicted": foretold(model, args.rank, args.workers, 4),
            "same_workers": set(before) == set(after),
        }
    print(json.dumps(facts, indent=1))


def overhead(args: Any) -> None:
    """Compare processes with threads on the same entries, in turns."""
    import dask.array as da

    import scaledgd as sg

    parts = max(1, args.entries // PART)
    shape, factors = (args.rows, args.columns), truth((args.rows, args.columns), args.rank)
    pieces = [drawn(k, args.entries // parts, parts, shape, factors) for k in range(parts)]
    i, j, y = (np.concatenate([p[k] for p in pieces]) for k in range(3))
    i, j, y = i.astype(np.int64), j.astype(np.int64), y.astype(np.float64)
    given: dict[str, Any] = {"center": "both", "scale": "none", "smooth": "none"}
    kind: Any = sg.MatrixCompletion
    if args.errors:
        rng = np.random.default_rng(0)
        y += 30 * rng.standard_normal(len(y)) * (rng.random(len(y)) < args.errors)
        kind, given["center"] = sg.RobustPCA, "none"
    else:
        given["max_iter"] = args.max_iter
    model = kind(args.rank, **given, n_jobs=args.workers)
    sweeps, rounds = watched(), []
    with started(args.workers) as client:
        lazy = [da.from_array(x, chunks=-(-len(y) // (4 * args.workers))) for x in (i, j, y)]
        lazy = client.persist(lazy)
        client.gather(client.map(abs, [1]))
        for _ in range(args.rounds):
            began, spent = time.perf_counter(), usage()[0]
            one = model.fit_entries((i, j), y, shape)
            facts = {"threads_wall": time.perf_counter() - began}
            facts["threads_cpu"] = usage()[0] - spent
            before = client.run(usage)
            began, spent = time.perf_counter(), usage()[0]
            many = kind(args.rank, **given)
            many.fit_entries(tuple(lazy[:2]), lazy[2], shape)
            facts["workers_wall"] = time.perf_counter() - began
            after = client.run(usage)
            facts["client_cpu"] = usage()[0] - spent
            facts["workers_cpu"] = sum(after[k][0] - before[k][0] for k in after)
            rounds.append(facts)
        some = tuple(x[:100_000] for x in (i, j))
        a, b = one.predict_entries(some), many.predict_entries(some)
    found: dict[str, Any] = {k: float(np.median([r[k] for r in rounds])) for k in rounds[0]}
    wall = [r["workers_wall"] / r["threads_wall"] for r in rounds]
    cpu = [(r["workers_cpu"] + r["client_cpu"]) / r["threads_cpu"] for r in rounds]
    found |= {"times_the_wall": wall, "times_the_cpu": cpu}
    found["difference"] = float(np.abs(a - b).max() / np.abs(a).max())
    found |= {"iterations": (one.n_iter_, many.n_iter_), "ranks": (one.rank_, many.rank_)}
    if args.errors:
        found["thresholds"] = one.threshold_, many.threshold_
    found |= bytes_of(sweeps)
    found["distributed"] = not isinstance(many.factors_.L, np.ndarray)
    found["sweep_predicted"] = foretold(many, args.rank, args.workers, 8)
    print(json.dumps(found, indent=1))


def lose(args: Any) -> None:
    """Fit the files while workers are killed at random moments, and print what that costs."""
    import dask.dataframe as dd

    import scaledgd as sg

    def timed(killed: int, moment: float) -> tuple[float, Any]:
        with started(args.workers, args.memory) as client:
            pids = list(client.run(os.getpid).values())
            timer = threading.Timer(moment, lambda: [os.kill(p, 9) for p in pids[:killed]])
            frame = dd.read_parquet(str(args.folder / "*.parquet"), aggregate_files=False)
            model = sg.MatrixCompletion(args.rank, center="both", scale="none", smooth="none")
            began = time.perf_counter()
            timer.start()
            model.fit(frame)
            timer.cancel()
            return time.perf_counter() - began, model

    rng = np.random.default_rng(0)
    usual, want = timed(0, 0.0)
    rows = rng.integers(0, want.factors_.shape[0], 100_000)
    some = rows, rng.integers(0, want.factors_.shape[1], len(rows))
    estimate = want.predict_entries(some)
    print(json.dumps({"killed": 0, "wall": usual}), flush=True)
    for killed in (1, 1, 1, args.workers - 1):
        moment = float(rng.uniform(0, usual))
        wall, model = timed(killed, moment)
        off = np.abs(model.predict_entries(some) - estimate).max() / np.abs(estimate).max()
        facts = {"killed": killed, "after": moment, "wall": wall, "times": wall / usual}
        print(json.dumps({**facts, "difference": float(off)}), flush=True)


def beside(args: Any) -> None:
    """Fit most lines of the files, here and with the ALS of Spark; print times and errors."""
    import dask.dataframe as dd

    import scaledgd as sg

    with started(args.workers) as client:
        lines = dd.read_parquet(str(args.folder / "*.parquet"), aggregate_files=False)
        hidden = (31 * lines["row"] + 17 * lines["column"]) % 20 == 0
        before, began, spent = client.run(usage), time.perf_counter(), usage()[0]
        model = sg.MatrixCompletion(args.rank, center="both", scale="none", smooth="none")
        model.fit(lines[~hidden])
        wall, after = time.perf_counter() - began, client.run(usage)
        cpu = usage()[0] - spent + sum(after[k][0] - before[k][0] for k in after if k in before)
        test = lines[hidden].compute()
    off = model.predict_entries(test[["row", "column"]]) - test["value"].to_numpy()
    facts = {"who": "scaledgd", "wall": wall, "cpu": cpu, "iterations": model.n_iter_}
    print(json.dumps({**facts, "rmse": float(np.sqrt(np.mean(off**2)))}), flush=True)
    for iterations in args.iterations:
        print(json.dumps(_spark(args, iterations)), flush=True)


def _spark(args: Any, iterations: int) -> dict[str, Any]:
    """Time ALS of Spark, with as many threads."""
    import psutil
    from pyspark.ml.recommendation import ALS
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    builder = SparkSession.builder.master(f"local[{args.workers}]")
    builder = builder.config("spark.driver.memory", "6g").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    machine = psutil.Process(spark.sparkContext._gateway.proc.pid)

    def spent() -> float:
        found = [machine, *machine.children(recursive=True)]
        return float(sum(sum(p.cpu_times()[:2]) for p in found))

    lines = spark.read.parquet(str(args.folder))
    hidden = (31 * F.col("row") + 17 * F.col("column")) % 20 == 0
    began, before = time.perf_counter(), spent()
    als = ALS(
        rank=args.rank,
        maxIter=iterations,
        regParam=args.ridge,
        userCol="row",
        itemCol="column",
        ratingCol="value",
        seed=0,
    )
    model = als.fit(lines.where(~hidden))
    facts = {"who": "Spark ALS", "wall": time.perf_counter() - began, "cpu": spent() - before}
    off = F.col("value") - F.col("prediction")
    error = model.transform(lines.where(hidden)).agg(F.sqrt(F.avg(off * off))).first()[0]
    return {**facts, "iterations": iterations, "ridge": args.ridge, "rmse": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["make", "fit", "overhead", "lose", "beside"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--entries", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--memory", default="1.5GB")
    parser.add_argument("--errors", type=float, help="share that is grossly wrong, for overhead")
    parser.add_argument("--max-iter", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="of threads and of workers")
    parser.add_argument("--iterations", type=int, nargs="*", default=[5, 10], help="of Spark")
    parser.add_argument("--ridge", type=float, default=0.02, help="of Spark: its regParam")
    parser.add_argument("--gather", type=int, help="entries up to which data are fitted here")
    args = parser.parse_args()
    if args.gather is not None:
        from scaledgd.distributed import fitting

        fitting.GATHER = fitting.CELLS = args.gather
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.command == "make":
        make(args.folder, args.entries, (args.rows, args.columns), args.rank)
    elif args.command == "fit":
        fit(args)
    elif args.command == "lose":
        lose(args)
    elif args.command == "beside":
        beside(args)
    else:
        overhead(args)


if __name__ == "__main__":
    main()
