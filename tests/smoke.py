"""A small fit with what is installed: the test of a wheel."""

import importlib.util
import sys

import numpy as np


def main():
    import scaledgd as sg

    compiled = importlib.util.find_spec("scaledgd.kernels._compiled") is not None
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))
    holes = np.where(rng.random(X.shape) < 0.6, X, np.nan)
    error = np.abs(sg.MatrixCompletion(2, random_state=0).fit_transform(holes) - X).max()
    print(f"scaledgd {sg.__version__}, compiled: {compiled}, largest error {error:.1e}")
    assert error < 1e-5
    return compiled


if __name__ == "__main__":
    # wheels for Windows have no compiled kernels
    assert main() or sys.platform == "win32", "the kernels were not built"
