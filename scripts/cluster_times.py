"""How long a sweep over many entries would take on many machines, from what is measured here.

``python scripts/cluster_times.py`` times what a worker does with one shard on one core, and
computes from it the time of a sweep (both blocks solved for, and the loss), what is sent, the time
to distribute entries that are read, and the memory that is needed. A factor of the rows that is too
large stays on the workers, as in a fit. Network, machines and the shape of the data are
assumptions, which options change; a machine is one worker with as many threads as cores.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from scaledgd.distributed import tasks
from scaledgd.distributed.cluster import FAN
from scaledgd.distributed.fitting import PART, SHARE
from scaledgd.distributed.in_shards import SUMS
from scaledgd.distributed.shards import Chain, Shard, boundaries, pieces
from scaledgd.distributed.tasks import Ask, Other, Own, Unsure
from scaledgd.kernels.threads import limited

BYTES = 24
"""What workers hold of an entry: its place in the other mode and its value, both twice."""
AGAIN = 8
"""What they hold besides where the factor of the rows stays: its place by column in its shard."""
PIECE = 16
"""What is sent of an entry: both places and its value."""
REDUCTIONS = 12
"""Sums over the rows of a factor that stays that a sweep asks for, about."""


def nanoseconds(entries: int, rank: int, seed: int = 0) -> tuple[float, float]:
    """Measure the CPU time of one core for one entry and one sweep.

    Also where the factor of the rows stays, so that shards of rows form the systems of columns.
    """
    rng = np.random.default_rng(seed)
    n1, n2 = max(10, entries // 200), 20_000
    i, j = np.divmod(np.unique(rng.integers(0, n1 * n2, entries)), n2)
    y = rng.standard_normal(len(i))
    shape, blocks = (n1, n2), [rng.standard_normal((n, rank)) for n in (n1, n2)]
    spent, apart, scaled = 0.0, 0.0, Chain().then("scaled", 2.0)
    for mode, (own, other) in enumerate(((i, j), (j, i))):
        limits = (0, shape[mode])
        shard = Shard.assembled(mode, limits, shape, False, (own, other.astype(np.int32), y))
        mine, others = Own(blocks[mode], None), Other(blocks[1 - mode], None)
        unsure = Unsure(np.full(blocks[1 - mode].shape, 0.01), np.ones(rank), 1.0, None)
        with limited(1, 1):
            # what is prepared once does not count
            tasks.squares(shard, mine, None, others, Chain(), None)
            began = time.process_time()
            tasks.update(shard, mine, None, others, unsure, scaled, None)
            took = time.process_time() - began
            spent += took
            if mode == 0:
                apart = took + columns_apart(shard, blocks)
    return 1e9 * spent / len(y), 1e9 * apart / len(y)


def columns_apart(shard: Shard, blocks: list[Any]) -> float:
    """Measure the CPU time in which a shard of rows adds up the systems of all columns."""
    L, R = blocks
    own, ask, chain = Own(L, None), Ask(0, len(R), R), Chain().then("scaled", 2.0)
    doubt = np.full(L.shape, 0.01, dtype=np.float32)
    tasks.column_systems(shard, own, doubt, ask, chain)  # what is prepared once does not count
    began = time.process_time()
    tasks.column_systems(shard, own, doubt, ask, chain)
    return time.process_time() - began


def scheduling(count: int = 2000) -> float:
    """Measure the seconds that a scheduler, with all that is here, needs for a task."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(1, processes=False, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(abs, range(10)))
        began = time.process_time()
        client.gather(client.map(divmod, range(count), [7] * count, pure=False))
        return (time.process_time() - began) / count


def distributing(entries: int, parts: int = 16, seed: int = 0) -> float:
    """Measure the CPU time of one core to bring one entry into its row and its column."""
    rng = np.random.default_rng(seed)
    shape = max(10, entries // 200), 20_000
    i, j = np.divmod(np.unique(rng.integers(0, shape[0] * shape[1], entries)), shape[1])
    order = rng.permutation(len(i))
    block: Any = (i[order], j[order], rng.standard_normal(len(i)))
    began = time.process_time()
    for mode in (0, 1):
        n = shape[mode]
        bounds = boundaries(np.ones(n, dtype=np.int64), parts)
        cut = pieces(block, bounds, (np.int32, np.int32))
        shards = [
            Shard.assembled(mode, limits, shape, False, piece)
            for limits, piece in zip(bounds, cut, strict=True)
        ]
        moved = [shard.piece(1 - mode) for shard in shards]
        block = tuple(np.concatenate([piece[k] for piece in moved]) for k in range(3))
    return 1e9 * (time.process_time() - began) / len(i)


def table(each: float, apart: float, once: float, task: float, args: Any) -> list[str]:
    """Return a line for every number of entries and of machines."""
    lines = [
        "| entries | machines | row factor | distributed | a sweep computes | sends "
        "| schedules | with 30 sweeps | fits |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    memory, q = args.memory * 2**30, args.rank + 1
    for entries in (10**9, 10**10, 10**11):
        rows, columns = entries // args.per_row, min(args.columns, entries // args.per_row)
        for machines in (10, 100):
            threads = machines * args.cores
            shards = threads * math.ceil(entries / (PART * threads))
            far = 8 * rows * (args.rank + 2) > SHARE * memory
            passes = math.ceil(math.log2(machines + 1))
            if far:
                # the block of the columns goes out, sums of systems are passed on, columns back
                sums = columns * (q * (q + 1) // 2 + q + args.rank + 3)
                sent = columns * ((3 * q + 3) * passes + 2 * q) + sums * (1 + 1 / FAN + 1 / FAN**2)
                parts = max(args.cores, math.ceil(8 * sums / SUMS))
                count = 2 * shards + parts * (machines + math.ceil(machines / FAN) + 1)
                count += REDUCTIONS * machines
                held = (BYTES + AGAIN) * entries / machines + 8 * 6 * rows * q / machines
                held += 8 * 4 * (columns * 4 * q + sums * args.cores / parts)
            else:
                # a block and its variances pass from worker to worker, and rows come back once
                sent = (2 * passes + 3) * (rows + columns) * q
                count = 2 * shards
                held = BYTES * entries / machines + 2 * 8 * (rows + columns) * q
            computing = 1e-9 * (apart if far else each) * entries / threads
            sending = 8 * 8 * sent / (1e9 * args.gigabits)
            # an entry travels twice, to its row and to its column
            first = 1e-9 * once * entries / threads
            first += 8 * 2 * PIECE * entries / (machines * 1e9 * args.gigabits)
            whole = first + 30 * (computing + sending + task * count)
            why = "yes" if held < memory else f"no: {held / 2**30:.0f} GiB on a machine"
            lines.append(
                f"| {entries:.0e} | {machines} | {'stays' if far else 'is sent'} | {first:.3g} s "
                f"| {computing:.3g} s | {sending:.3g} s | {task * count:.3g} s "
                f"| {whole / 60:.3g} min | {why} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000, help="to measure with")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--cores", type=int, default=16, help="of a machine")
    parser.add_argument("--memory", type=float, default=128, help="GiB of a machine")
    parser.add_argument("--gigabits", type=float, default=10, help="per second of the network")
    parser.add_argument("--per-row", type=int, default=200, help="entries of a row")
    parser.add_argument("--columns", type=int, default=1_000_000, help="at most")
    args = parser.parse_args()
    (each, apart), once = nanoseconds(args.entries, args.rank), distributing(args.entries)
    task = scheduling()
    print(f"one core: {each:.0f} ns for an entry and a sweep, rank {args.rank},")
    print(f"{apart:.0f} ns where the row factor stays,")
    print(f"{once:.0f} ns to bring it into its row and its column,")
    print(f"and {1e6 * task:.0f} µs for a task of the scheduler\n")
    print("\n".join(table(each, apart, once, task, args)))


if __name__ == "__main__":
    main()
