"""Completion takes O(|Ω| + (n₁ + n₂) r) memory: no array of size n₁ · n₂ is ever made."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from conftest import draw

import scaledgd as sg


def peak_of_completion(n1, n2, m, rank, iterations):
    """Peak bytes of a whole completion, the operator's own arrays included."""
    rng = np.random.default_rng(0)
    truth = sg.LowRank(draw(rng, n1, rank), draw(rng, n2, rank))
    flat = np.unique(rng.integers(0, n1 * n2, m))
    index = np.unravel_index(flat, (n1, n2))
    y = truth.at(index)
    tracemalloc.start()
    operator = sg.Entries(index, (n1, n2))
    problem = sg.Observed(operator, y, scale=n1 * n2 / y.size)
    method = sg.ScaledGD(sg.line_search(), project=sg.incoherence(1e9))
    result = sg.solve(problem, sg.spectral(rank, tol=1e-3), method, max_iter=iterations)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.all(np.isfinite(result.factors.L))
    return peak, y.size


def test_memory_follows_the_entries_and_the_factors():
    n1, n2, rank = 20_000, 10_000, 10
    peak, m = peak_of_completion(n1, n2, 200_000, rank, iterations=3)
    law = 8 * (20 * m + 40 * (n1 + n2) * rank)
    assert peak < law
    assert law < n1 * n2  # a matrix of single bytes would already break it


@pytest.mark.slow
def test_five_million_entries_in_two_gibibytes():
    peak, m = peak_of_completion(100_000, 50_000, 5_000_000, 10, iterations=5)
    print(f"{m} entries: peak {peak / 2**30:.2f} GiB")
    assert m > 4_990_000
    assert peak < 2 * 2**30


def test_hankel_is_not_formed():
    n1 = n2 = 5_000
    x = np.exp(2j * np.pi * 0.01 * np.arange(n1 + n2 - 1))
    observed = np.random.default_rng(0).random(x.size) < 0.3
    tracemalloc.start()
    problem = sg.HankelCompletion(x * observed, observed, n1)
    sg.solve(problem, sg.spectral(2, tol=1e-6), sg.ScaledGD(), max_iter=3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * 16 * (n1 + n2)
    assert 200 * 16 * (n1 + n2) < n1 * n2 * 16


BESIDE = """
import numpy as np, scaledgd as sg

def used(what):
    # VmHWM is the peak of this process: that of getrusage may be its parent's
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(what))

rng = np.random.default_rng(0)
{make}
sg.{kind}(rank=2).fit(rng.standard_normal((30, 20)))  # imports
before, peak = used("VmRSS"), used("VmHWM")
assert peak < before + 0.3 * size  # or the peak would hide part of the fit
sg.{kind}({options}random_state=0).{fit}
print((used("VmHWM") - before) / size)
"""

ENTRIES = """
i = np.repeat(np.arange(20_000), 200)
j = rng.integers(0, 20, (20_000, 200))
j += 20 * np.arange(200)
j = j.ravel()
L, R = rng.standard_normal((20_000, 4)), rng.standard_normal((4000, 4))
y = np.empty(len(i))
for part in np.array_split(np.arange(len(i)), 100):
    y[part] = np.einsum("ek,ek->e", L[i[part]], R[j[part]])
    y[part] += 0.3 * rng.standard_normal(len(part))
size = i.nbytes + j.nbytes + y.nbytes
"""

TABLE = """
X = rng.standard_normal((1500, 4)) @ rng.standard_normal((4, 1000))
wrong = rng.integers(0, X.size, X.size // 20)
X.ravel()[wrong] += 9.0
for row in X:
    row += 0.1 * rng.standard_normal(len(row))
size = X.nbytes
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is needed")
@pytest.mark.parametrize(
    ("kind", "options", "make", "fit", "most"),
    [
        ("MatrixCompletion", "rank=4, ", ENTRIES, "fit_entries((i, j), y, (20_000, 4000))", 2.3),
        # a small table, beside which what Python itself takes counts
        ("RobustPCA", "", TABLE, "fit(X)", 4.5),
    ],
)
def test_fits_take_little_beside_the_data(kind, options, make, fit, most):
    """Compiled kernels allocate memory that Python does not trace."""
    code = BESIDE.format(kind=kind, options=options, make=make, fit=fit)
    # arrays that are let go of go back to the system at once, whatever was allocated before
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert 0.3 < float(done.stdout) < most
