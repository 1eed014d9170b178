"""How long a sweep over many entries would take on many machines, from what is measured here.

``python scripts/cluster_times.py`` times what a worker does with one shard on one core, and
computes from it the time of a sweep (both blocks solved for, and the loss), what is sent, the time
to distribute entries that are read, and the memory that is needed. Network, machines and the shape
of the data are assumptions, which options change.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from scaledgd.distributed import tasks
from scaledgd.distributed.shards import Chain, Shard, boundaries, pieces
from scaledgd.distributed.tasks import Other, Own, Unsure
from scaledgd.kernels.threads import limited

BYTES = 24
"""What workers hold of an entry: its place in the other mode and its value, both twice."""
PIECE = 16
"""What is sent of an entry: both places and its value."""
COPIES = 4
"""Copies of both blocks, with their variances, that the client has at a time, about."""


def nanoseconds(entries: int, rank: int, seed: int = 0) -> float:
    """Measure the CPU time of one core for one entry and one sweep."""
    rng = np.random.default_rng(seed)
    n1, n2 = max(10, entries // 200), 20_000
    i, j = np.divmod(np.unique(rng.integers(0, n1 * n2, entries)), n2)
    y = rng.standard_normal(len(i))
    shape, blocks = (n1, n2), [rng.standard_normal((n, rank)) for n in (n1, n2)]
    spent = 0.0
    for mode, (own, other) in enumerate(((i, j), (j, i))):
        limits = (0, shape[mode])
        shard = Shard.assembled(mode, limits, shape, False, (own, other.astype(np.int32), y))
        mine, others = Own(blocks[mode], None), Other(blocks[1 - mode], None)
        unsure = Unsure(np.full(blocks[1 - mode].shape, 0.01), np.ones(rank), 1.0, None)
        with limited(1, 1):
            tasks.squares(shard, mine, others, Chain())  # what is prepared once does not count
            began = time.process_time()
            tasks.update(shard, mine, others, unsure, Chain().then("scaled", 2.0))
            if mode == 0:
                tasks.squares(shard, mine, others, Chain().then("scaled", 2.0))
            spent += time.process_time() - began
    return 1e9 * spent / len(y)


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
        moved = [shard.piece(np.int32) for shard in shards]
        block = tuple(np.concatenate([piece[k] for piece in moved]) for k in range(3))
    return 1e9 * (time.process_time() - began) / len(i)


def table(each: float, once: float, args: Any) -> list[str]:
    """Return a line for every number of entries and of machines."""
    lines = [
        "| entries | machines | distributed | a sweep computes | a sweep sends | with 30 sweeps "
        "| fits |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for entries in (10**9, 10**10, 10**11):
        rows, columns = entries // args.per_row, min(args.columns, entries // args.per_row)
        block = 8 * (rows + columns) * (args.rank + 1)
        for machines in (10, 100):
            computing = 1e-9 * each * entries / (machines * args.cores)
            # a block and its variances pass from worker to worker, and rows come back once
            sent = (2 * math.ceil(math.log2(machines + 1)) + 3) * block
            sending = 8 * sent / (1e9 * args.gigabits)
            # an entry travels twice, to its row and to its column
            first = 1e-9 * once * entries / (machines * args.cores)
            first += 8 * 2 * PIECE * entries / (machines * 1e9 * args.gigabits)
            held = BYTES * entries / machines + 2 * block
            enough = held < args.memory * 2**30 and COPIES * block < args.memory * 2**30
            why = "yes" if enough else f"no: factors of {block / 2**30:.0f} GiB"
            if held - 2 * block >= args.memory * 2**30:
                why = f"no: {BYTES * entries / machines / 2**30:.0f} GiB of entries on a machine"
            lines.append(
                f"| {entries:.0e} | {machines} | {first:.3g} s | {computing:.3g} s | "
                f"{sending:.3g} s | {(first + 30 * (computing + sending)) / 60:.3g} min | {why} |"
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
    each, once = nanoseconds(args.entries, args.rank), distributing(args.entries)
    print(f"one core: {each:.0f} ns for an entry and a sweep, rank {args.rank},")
    print(f"and {once:.0f} ns to bring it into its row and its column\n")
    print("\n".join(table(each, once, args)))


if __name__ == "__main__":
    main()
