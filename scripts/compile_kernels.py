"""Compile the kernels for GPUs, on a machine without one.

    python scripts/compile_kernels.py            # every kernel, for every architecture
    python scripts/compile_kernels.py 90 --rank 32

Triton's interpreter shows that kernels compute the right numbers, but not that a compiler accepts
them, or that they fit on a processor. This script calls the functions that launch them, with a
driver that compiles instead. For every kernel it prints the number of variants, and of the largest
one the bytes of shared memory, the registers of a thread, and the bytes that these spill. It fails
if a program needs more shared memory than an architecture has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
warnings.simplefilter("ignore")

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import JITFunction, driver  # noqa: E402

from scaledgd.kernels import Contracted, Rows, RowSystem, UnsureRows  # noqa: E402
from scaledgd.kernels.gpu import sorting  # noqa: E402
from scaledgd.kernels.gpu.backend import WIDEST, Gpu  # noqa: E402
from scaledgd.linalg import careful  # noqa: E402

Array = Any

SHARED = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Shared memory of a program in KiB, by compute capability (times ten)."""

GPUS = {
    75: "T4, RTX 20",
    80: "A100",
    86: "A10, RTX 30",
    89: "L4, RTX 40",
    90: "H100, H200",
    100: "B200",
    120: "RTX 50",
}
"""Devices of each."""


class Compiler:
    """A driver of a device that is not there."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # compiled kernels are kept by device

    def get_current_stream(self, device: int = 0) -> int:
        return 0


@contextlib.contextmanager
def compiling(capability: int) -> Iterator[dict[str, Any]]:
    """Compile kernels instead of launching them; yield those compiled so far."""
    found: dict[str, Any] = {}
    launch = JITFunction.run

    def compiled(kernel: Any, *args: Any, warmup: bool, **how: Any) -> None:
        result = launch(kernel, *args, warmup=True, **how)
        found.setdefault(result.hash, result)

    driver.set_active(Compiler(capability))
    JITFunction.run = compiled
    try:
        yield found
    finally:
        JITFunction.run = launch


def launches(rank: int, dtype: Any) -> None:
    """Call all that launches kernels; results are meaningless."""
    shape = 200, 180  # larger than the rank, or Gram matrices would be singular
    torch.manual_seed(0)
    index = torch.nonzero(torch.rand(shape) < 0.5, as_tuple=True)
    pattern, m = Gpu().pattern(index, shape), index[0].shape[0]

    def normal(*sizes: int) -> Array:
        return torch.randn(sizes, dtype=dtype)

    y, root, kept = normal(m), normal(m).abs(), torch.rand(m) < 0.9
    L, R = (normal(n, rank) for n in shape)
    pattern.residual((L, R), y)
    pattern.contract(pattern.ones(y), (L, R), 0)
    pattern.sums(y, 1, y)
    pattern.squares_and_gradient(L, R, y, 0)
    Gpu().gather((L, R), index)
    Gpu().kth_magnitude(y, 3)
    if rank > WIDEST[dtype]:
        return
    ridge = normal(rank).abs() + 1
    plain = UnsureRows(R, R.abs(), ridge, 0.3, 0)
    wider, more = normal(shape[1], rank + 1), normal(rank + 1).abs()
    others = normal(shape[0]), normal(shape[1], 2)
    beside = UnsureRows(wider, R.abs(), more, 0.3, 0, *others)
    for weights in (None, root):
        pattern.update_rows(plain, L, y, weights)
        pattern.update_rows(beside, normal(shape[0], rank + 1), y, weights, kept)
    if rank <= WIDEST[torch.float64]:
        with careful():
            pattern.update_rows(plain, L, y)
    for held, spread in ((None, True), (ridge, False), (L.abs(), True)):
        system = RowSystem(Rows(R, 1), 0, held, spread)
        pattern.step_rows(system, L, y, root)
        pattern.solve_rows(system, L)


def tensor_launches(ranks: tuple[int, int, int], dtype: Any) -> None:
    """The same for tensors."""
    shape = (12, 11, 10)
    torch.manual_seed(0)
    index = torch.nonzero(torch.rand(shape) < 0.7, as_tuple=True)
    pattern, y = Gpu().pattern(index, shape), torch.randn(index[0].shape[0], dtype=dtype)
    modes = tuple(torch.randn(n, r, dtype=dtype) for n, r in zip(shape, ranks, strict=True))
    core = torch.randn(ranks, dtype=dtype)
    Gpu().gather(modes, index, core, y)
    pattern.contract(y, modes)
    for k in range(3):
        others = tuple(j for j in range(3) if j != k)
        unfolded = torch.moveaxis(core, k, 0).reshape(ranks[k], -1).contiguous()
        system = RowSystem(Contracted(unfolded, tuple(modes[j] for j in others), others), k)
        pattern.step_rows(system, modes[k], y)


def resources(kernel: Any) -> tuple[int, int]:
    """The registers of a thread, and the bytes of its stack, where registers are spilled."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert used is not None, said
    return int(used[1]), int(used[2])


def main(arguments: list[str] | None = None) -> int:
    """Compile, print what was compiled, and return 1 if something does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("capability", type=int, nargs="*", help="75, 80, ... 120; all by default")
    parser.add_argument("--rank", type=int, nargs="*", default=[8, 32, 64, 128])
    parser.add_argument("--single", action="store_true", help="single precision alone")
    given = parser.parse_args(arguments)
    sorting.PIECE, failed = 4, 0  # so that rows are cut into pieces
    for capability in given.capability or SHARED:
        room = SHARED[capability] * 1024
        with compiling(capability) as found:
            for dtype in (torch.float32,) if given.single else (torch.float32, torch.float64):
                for rank in given.rank:
                    launches(rank, dtype)
                tensor_launches((4, 3, 2), dtype)
                tensor_launches((8, 8, 8), dtype)
        largest: dict[str, tuple[int, ...]] = {}
        for kernel in found.values():
            name, shared = kernel.metadata.name, kernel.metadata.shared
            known = largest.get(name, (0, 0, 0, 0))
            most = map(max, known[1:], (shared, *resources(kernel)))
            largest[name] = (known[0] + 1, *most)
            failed += shared > room
        print(f"compute capability {capability / 10:.1f} ({GPUS[capability]}): {room} bytes")
        for name, used in sorted(largest.items()):
            numbers = "".join(f"{n:8}" for n in used)
            print(f"  {name:16}{numbers}{'  too large' * (used[1] > room)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
