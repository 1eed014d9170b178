"""The kernels for GPUs compile, and fit on a processor; no GPU is needed to find out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

from scaledgd.kernels.gpu import backend  # noqa: E402

ROOT = Path(__file__).parent.parent


def is_kernel(x: Any) -> bool:
    return type(x).__name__ in ("JITFunction", "InterpretedFunction")


@pytest.mark.long
def test_every_kernel_compiles(tmp_path: Path) -> None:
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("this build of Triton has no compiler for NVIDIA GPUs")
    # the widths that all kernels are used for
    done = subprocess.run(
        [sys.executable, "scripts/compile_kernels.py", "90", "--rank", "64", "128", "--single"],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = set(re.findall(r"^  (\w+) +\d+", done.stdout, re.MULTILINE))
    assert compiled == {name for name, x in vars(backend).items() if is_kernel(x)}
    shared = [int(n) for n in re.findall(r"^  \w+ +\d+ +(\d+)", done.stdout, re.MULTILINE)]
    assert max(shared) <= 64 * 1024  # the least that a GPU of compute capability 7.5 or later has
