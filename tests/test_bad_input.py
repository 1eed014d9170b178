"""Every kind of bad input has an error that names the argument and says what to do."""

import numpy as np
import pytest
from conftest import library

import scaledgd as sg

I2 = (np.asarray([0, 1, 2]), np.asarray([0, 1, 1]))
GOOD = sg.Observed(sg.Full((4, 3)), np.ones((4, 3)))


def completion(y, index=I2, shape=(4, 3), **kwargs):
    return sg.Observed(sg.Entries(index, shape), y, **kwargs)


def nan_at(shape):
    x = np.ones(shape)
    x.flat[0] = np.nan
    return x


CASES = {
    # wrong shapes
    "y-shape": (lambda: completion(np.ones(4)), ValueError, r"y has shape \(4,\)"),
    "y-shape-full": (lambda: sg.Observed(sg.Full((4, 3)), np.ones((3, 4))), ValueError, "y has"),
    "L-vector": (lambda: sg.LowRank(np.ones(3), np.ones((3, 1))), ValueError, "L must have 2"),
    "columns": (lambda: sg.LowRank(np.ones((3, 2)), np.ones((3, 1))), ValueError, "columns"),
    "symmetric-vector": (lambda: sg.Symmetric(np.ones(3)), ValueError, "L must have 2"),
    "full-shape": (lambda: sg.Full((4, 0)), ValueError, "shape must be"),
    "full-shape-type": (lambda: sg.Full((4, 2.5)), TypeError, "shape must be"),
    "entries-shape": (lambda: sg.Entries(I2[:1], (4,)), ValueError, "2 modes or more"),
    "index-count": (lambda: sg.Entries((*I2, I2[0]), (4, 3)), ValueError, "one array of coord"),
    "index-lengths": (
        lambda: sg.Entries((I2[0], I2[1][:2]), (4, 3)),
        ValueError,
        "of one length",
    ),
    "index-array": (lambda: sg.Entries(np.ones((3, 2), int), (4, 3)), TypeError, "tuple of"),
    "sensing-2d": (lambda: sg.Sensing(np.ones((5, 12))), ValueError, "shape="),
    "sensing-shape": (
        lambda: sg.Sensing(np.ones((5, 12)), shape=(4, 4)),
        ValueError,
        "does not measure",
    ),
    "sensing-empty": (lambda: sg.Sensing(np.ones((0, 4, 3))), ValueError, "no measurement"),
    "sensing-type": (lambda: sg.Sensing("A"), TypeError, "matvec"),
    "rank-one-shape": (lambda: sg.RankOne(np.ones(3)), ValueError, "a must have 2"),
    "init-shape": (
        lambda: sg.solve(GOOD, sg.LowRank(np.ones((3, 1)), np.ones((4, 1))), sg.ScaledGD()),
        ValueError,
        "init has factors",
    ),
    "symmetric-start": (
        lambda: sg.spectral(1, symmetric=True)(GOOD),
        ValueError,
        "square",
    ),
    "observed-shape": (
        lambda: sg.HankelCompletion(np.ones(5), np.ones(4, bool), 3),
        ValueError,
        "observed must have the shape",
    ),
    # indices
    "index-range": (
        lambda: sg.Entries((np.asarray([0, 4]), np.asarray([0, 1])), (4, 3)),
        ValueError,
        r"index\[0\] runs from 0 to 4",
    ),
    "index-negative": (
        lambda: sg.Entries((np.asarray([0, 1]), np.asarray([0, -1])), (4, 3)),
        ValueError,
        r"index\[1\] runs from -1",
    ),
    "index-duplicate": (
        lambda: sg.Entries((np.asarray([0, 1, 0]), np.asarray([2, 1, 2])), (4, 3)),
        ValueError,
        "more than once",
    ),
    "index-empty": (
        lambda: sg.Entries((np.asarray([], int), np.asarray([], int)), (4, 3)),
        ValueError,
        "index is empty",
    ),
    "index-float": (
        lambda: sg.Entries((np.asarray([0.0]), np.asarray([0])), (4, 3)),
        TypeError,
        r"index\[0\] must hold integers",
    ),
    # values
    "y-nan": (lambda: completion(nan_at(3)), ValueError, "y holds NaN"),
    "y-inf": (lambda: completion(np.asarray([1, np.inf, 2])), ValueError, "y holds NaN or inf"),
    "A-nan": (lambda: sg.Sensing(nan_at((5, 4, 3))), ValueError, "A holds NaN"),
    "a-nan": (lambda: sg.RankOne(nan_at((5, 4))), ValueError, "a holds NaN"),
    "hankel-unobserved": (
        lambda: sg.HankelCompletion(np.ones(5), np.arange(5) > 1, 3),
        ValueError,
        "zero where it is not observed",
    ),
    "hankel-nothing": (
        lambda: sg.HankelCompletion(np.zeros(5), np.zeros(5, bool), 3),
        ValueError,
        "nothing can be recovered",
    ),
    "hankel-rows": (
        lambda: sg.HankelCompletion(np.zeros(5), np.ones(5, bool), 6),
        ValueError,
        "n1 must be at most",
    ),
    "hankel-mask-type": (
        lambda: sg.HankelCompletion(np.zeros(5), np.ones(5), 3),
        TypeError,
        "observed must be boolean",
    ),
    # ranks
    "rank-zero": (lambda: sg.spectral(0)(GOOD), ValueError, "rank must be between 1 and 3"),
    "rank-large": (lambda: sg.spectral(4)(GOOD), ValueError, "rank must be between 1 and 3"),
    "rank-float": (lambda: sg.spectral(2.0)(GOOD), TypeError, "rank must be an integer"),
    "rank-text": (lambda: sg.spectral("2")(GOOD), TypeError, "rank must be an integer"),
    "rank-bool": (lambda: sg.spectral(True)(GOOD), TypeError, "rank must be an integer"),
    "rank-random": (lambda: sg.small_random(9, 1e-3)(GOOD), ValueError, "rank must be between"),
    "rank-mixed": (lambda: sg.mixed(0, 0.1, 1e-3)(GOOD), ValueError, "rank must be between"),
    # dtypes
    "y-integer": (lambda: completion(np.asarray([1, 2, 3])), TypeError, "y must be real or com"),
    "y-bool": (lambda: completion(np.asarray([True, False, True])), TypeError, "y must be"),
    "y-object": (lambda: completion(np.asarray([1, 2, 3], object)), TypeError, "y must be"),
    "y-text": (lambda: completion(np.asarray(["a", "b", "c"])), TypeError, "y must be"),
    "y-list": (lambda: completion([1.0, 2.0, 3.0]), TypeError, "y must be an array"),
    "L-integer": (lambda: sg.Symmetric(np.ones((3, 1), int)), TypeError, "L must be real or"),
    "mixed-precision": (
        lambda: sg.Observed(sg.Sensing(np.ones((5, 4, 3))), np.ones(5, np.float32)),
        TypeError,
        "y is float32 but A is float64",
    ),
    "mixed-factors": (
        lambda: sg.LowRank(np.ones((3, 1), np.float32), np.ones((3, 1))),
        TypeError,
        "L is float32, R is float64",
    ),
    "init-dtype": (
        lambda: sg.solve(
            GOOD,
            sg.LowRank(np.ones((4, 1), np.float32), np.ones((3, 1), np.float32)),
            sg.ScaledGD(),
        ),
        TypeError,
        "init is float32, data is float64",
    ),
    # parameters
    "damping": (lambda: sg.ScaledGD(damping=-1.0), ValueError, "damping must be a finite number"),
    "damping-nan": (lambda: sg.ScaledGD(damping=np.nan), ValueError, "damping must be a finite"),
    "step": (lambda: sg.ScaledGD(-0.5), ValueError, "step must be a finite number at least 0"),
    "step-text": (lambda: sg.ScaledGD("big"), TypeError, "step must be a number"),
    "step-block": (lambda: sg.GradientDescent((0.1, -0.1)), ValueError, "step must be"),
    "step-none": (lambda: sg.GradientDescent(None), TypeError, "line_search"),
    "step-class": (lambda: sg.ScaledGD(sg.polyak), TypeError, r"write polyak\(\)"),
    "balance": (lambda: sg.GradientDescent(0.1, balance=-1), ValueError, "balance must be"),
    "geometric": (lambda: sg.geometric(1.0, 1.5), ValueError, "ratio must be"),
    "scale": (lambda: completion(np.ones(3), scale=0.0), ValueError, "scale must be"),
    "fraction": (lambda: sg.TopTrim(1.5), ValueError, "fraction must be"),
    "threshold": (lambda: sg.SoftTrim(-1.0), ValueError, "schedule must be"),
    "radius": (lambda: sg.incoherence(0.0), ValueError, "radius must be"),
    "random-scale": (lambda: sg.small_random(2, -1.0), ValueError, "scale must be"),
    "mixed-damping": (lambda: sg.mixed(2, 0.0, 1e-3), ValueError, "damping must be"),
    "keep": (lambda: sg.spectral(1, keep=1.5)(GOOD), ValueError, "keep must be"),
    "max-iter": (
        lambda: sg.solve(GOOD, sg.spectral(1), sg.ScaledGD(), max_iter=-1),
        ValueError,
        "max_iter",
    ),
    "max-iter-float": (
        lambda: sg.solve(GOOD, sg.spectral(1), sg.ScaledGD(), max_iter=1.5),
        TypeError,
        "max_iter",
    ),
    "interrupt": (
        lambda: sg.solve(GOOD, sg.spectral(1), sg.ScaledGD(), interrupt="no"),
        ValueError,
        "interrupt",
    ),
    "tol": (lambda: sg.loss_change(-1.0), ValueError, "tol must be"),
    "seconds": (lambda: sg.time_limit(-1.0), ValueError, "seconds must be"),
    "p": (lambda: sg.HankelCompletion(np.zeros(5), np.ones(5, bool), 3, 1.5), ValueError, "p must"),
    # wrong kinds of things
    "init": (lambda: sg.solve(GOOD, 3, sg.ScaledGD()), TypeError, "init must be a start"),
    "loss": (lambda: completion(np.ones(3), loss=sg.Squared), TypeError, "loss must be"),
    "operator": (lambda: sg.Observed(np.ones(3), np.ones(3)), TypeError, "operator must be"),
    "trim-sensing": (
        lambda: sg.Observed(sg.Sensing(np.ones((5, 4, 3))), np.ones(5), sg.TopTrim(0.1)),
        TypeError,
        "TopTrim trims rows and columns",
    ),
    "trim-unbound": (lambda: sg.TopTrim(0.1)(np.ones((2, 2))), TypeError, "bind"),
}


@pytest.mark.parametrize("name", CASES)
def test_error_names_the_argument_and_the_remedy(name):
    make, error, message = CASES[name]
    with pytest.raises(error, match=message):
        make()


def test_mismatched_libraries():
    torch = library("torch")
    strict = library("array_api_strict")
    with pytest.raises(TypeError, match=r"y .*index .*different array libraries"):
        completion(torch.ones(3, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"L .*R .*different array libraries"):
        sg.LowRank(np.ones((3, 1)), torch.ones((3, 1), dtype=torch.float64))
    F = sg.LowRank(strict.ones((4, 1)), strict.ones((3, 1)))
    with pytest.raises(TypeError, match=r"init .*data .*different array libraries"):
        sg.solve(GOOD, F, sg.ScaledGD())


def test_mismatched_devices():
    torch = library("torch")
    meta = torch.ones((3, 1), device="meta")
    with pytest.raises(ValueError, match=r"L on cpu, R on meta.*one device"):
        sg.LowRank(torch.ones((3, 1)), meta)


def test_numpy_integers_are_integers():
    F = sg.spectral(np.int64(2))(GOOD)
    assert F.rank == 2
    sg.solve(GOOD, sg.spectral(1), sg.ScaledGD(), max_iter=np.int32(2))
