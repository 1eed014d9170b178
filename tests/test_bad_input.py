"""Every kind of bad input has an error that names the argument and says what to do."""

import numpy as np
import pytest
from conftest import library
from scipy.sparse.linalg import aslinearoperator

import scaledgd as sg

I2 = (np.asarray([0, 1, 2]), np.asarray([0, 1, 1]))
GOOD = sg.Observed(sg.Full((4, 3)), np.ones((4, 3)))


CUBE = sg.Observed(sg.Full((4, 3, 3)), np.ones((4, 3, 3)))
RANDOM = sg.small_random(1, 1.0, rng=0)(GOOD)
SQUARE = sg.LowRank(np.ones((3, 1)), np.ones((3, 1)))
COMPLEX = sg.Observed(sg.Sensing(aslinearoperator(1j * np.ones((5, 9))), shape=(3, 3)), np.ones(5))


class Columns:
    """A linear operator that answers with columns."""

    shape = (5, 9)

    def matvec(self, x):
        return np.ones((5, 1))

    def rmatvec(self, w):
        return np.ones((9, 1))


def solve(problem=GOOD, method=sg.ScaledGD(), **kwargs):  # noqa: B008
    return sg.solve(problem, RANDOM, method, **kwargs)


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
    "line-search": (lambda: sg.line_search(decrease=1.0), ValueError, "decrease must be"),
    "spectral-tol": (lambda: sg.spectral(1, tol=-1.0), ValueError, "tol must be"),
    "step-bool": (lambda: sg.ScaledGD(True), TypeError, "step must be a number"),
    "step-string": (lambda: sg.ScaledGD("0.5"), TypeError, "step must be a number"),
    "step-block-none": (lambda: sg.ScaledGD((None, 0.5)), TypeError, "step must be a number"),
    "max-iter-bool": (
        lambda: sg.solve(GOOD, sg.spectral(1), sg.ScaledGD(), max_iter=True),
        TypeError,
        "max_iter",
    ),
    "step-schedule": (
        lambda: sg.solve(GOOD, RANDOM, sg.ScaledGD(lambda t: -1.0)),
        ValueError,
        r"step\(0\) must be",
    ),
    "damping-function": (
        lambda: sg.solve(GOOD, RANDOM, sg.ScaledGD(damping=lambda s: -1.0)),
        ValueError,
        r"damping\(state\) must be",
    ),
    "threshold-schedule": (
        lambda: sg.SoftTrim(lambda t: -1.0)(np.ones(3)),
        ValueError,
        r"schedule\(1\) must be",
    ),
    "threshold-nan": (lambda: sg.SoftTrim(lambda t: np.nan)(np.ones(3)), ValueError, "schedule"),
    "threshold-class": (lambda: sg.SoftTrim(sg.median_threshold), TypeError, "write median_th"),
    "median-multiple": (lambda: sg.median_threshold(-3.0), ValueError, "multiple must be"),
    "median-ratio": (lambda: sg.median_threshold(3.0, 5.0), ValueError, "ratio must be"),
    "update": (
        lambda: sg.solve(GOOD, RANDOM, sg.ScaledGD(update=(2,))),
        ValueError,
        "update must name blocks",
    ),
    # wrong kinds of things
    "masked": (
        lambda: sg.Observed(sg.Full((2, 2)), np.ma.ones((2, 2))),
        TypeError,
        "masked array.*Entries",
    ),
    "rank-zero-factors": (lambda: sg.Symmetric(np.ones((3, 0))), ValueError, "L of shape.*empty"),
    "nan-factors": (
        lambda: sg.solve(GOOD, sg.LowRank(nan_at((4, 1)), np.ones((3, 1))), sg.ScaledGD()),
        ValueError,
        "init holds NaN",
    ),
    "half": (lambda: completion(np.ones(3, np.float16)), TypeError, "y must be.*float16"),
    "long-double": (lambda: completion(np.ones(3, np.longdouble)), TypeError, "y must be"),
    "big-endian": (lambda: completion(np.ones(3, ">f8")), TypeError, "y must be"),
    "full-vector": (lambda: sg.Full((4,)), ValueError, "2 modes or more"),
    "spectral-tensor": (
        lambda: sg.spectral(1)(sg.Observed(sg.Full((4, 4, 4)), np.ones((4, 4, 4)))),
        ValueError,
        "spectral is for matrices.*hosvd",
    ),
    "hankel-symmetric": (
        lambda: sg.solve(
            sg.HankelCompletion(np.ones(5), np.ones(5, bool), 3),
            sg.Symmetric(np.ones((3, 1))),
            sg.ScaledGD(),
        ),
        TypeError,
        "LowRank",
    ),
    "stop-number": (lambda: solve(stop=1e-6), TypeError, "stop must be loss_change"),
    "stop-uncalled": (lambda: solve(stop=sg.loss_change), TypeError, "write stop=loss_change"),
    "method-class": (lambda: solve(method=sg.ScaledGD), TypeError, "write ScaledGD"),
    "method-none": (lambda: solve(method=None), TypeError, "method must be"),
    "problem": (lambda: solve(problem=np.ones((4, 3))), TypeError, "problem must be"),
    "metrics": (lambda: solve(metrics=[1]), TypeError, "metrics must map"),
    "metrics-name": (lambda: solve(metrics={"t": float}), ValueError, "may not be named"),
    "callback": (lambda: solve(callback=3), TypeError, "callback must be"),
    "project": (lambda: sg.ScaledGD(project=3.0), TypeError, "project must be"),
    "at-negative": (
        lambda: RANDOM.at((np.asarray([-1]), np.asarray([0]))),
        ValueError,
        "runs from -1",
    ),
    "at-lengths": (
        lambda: RANDOM.at((np.asarray([0, 1]), np.asarray([0]))),
        ValueError,
        "of one length",
    ),
    "error-shapes": (
        lambda: sg.metrics.relative_error(np.ones((3, 3)), np.ones((3, 1))),
        ValueError,
        "the estimate has shape",
    ),
    "complex-operator": (
        lambda: sg.small_random(1, 1.0, rng=0)(COMPLEX) and COMPLEX.linearize(SQUARE).value,
        TypeError,
        "A is complex",
    ),
    "update-int": (lambda: sg.ScaledGD(update=0), ValueError, "update must be a tuple"),
    "update-empty": (lambda: sg.ScaledGD(update=()), ValueError, "update must be a tuple"),
    "update-twice": (lambda: sg.ScaledGD(update=(0, 0)), ValueError, "update must be a tuple"),
    "update-bool": (lambda: sg.ScaledGD(update=(True,)), ValueError, "update must be a tuple"),
    "project-uncalled": (
        lambda: sg.ScaledGD(project=sg.incoherence),
        TypeError,
        r"write project=incoherence\(radius\)",
    ),
    "start-project": (lambda: sg.spectral(1, 3.0), TypeError, "project must be"),
    "operator-shape": (
        lambda: (
            sg.Observed(sg.Sensing(Columns(), shape=(3, 3)), np.ones(5)).linearize(SQUARE).value
        ),
        ValueError,
        r"vectors of shape \(5,\)",
    ),
    "thresholds": (lambda: sg.thresholds(1.0, 1.0, 2.0), ValueError, "ratio must be"),
    "kappa": (lambda: sg.datasets.low_rank(9, 8, 2, kappa=0.0), ValueError, "kappa must be"),
    "probability": (
        lambda: sg.datasets.matrix_completion(9, 8, 2, 1, p=2.0),
        ValueError,
        "p must be",
    ),
    # tensors
    "hosvd-tol": (lambda: sg.hosvd(2, tol="x"), TypeError, "tol must be"),
    "hosvd-hankel": (
        lambda: sg.hosvd(1)(sg.HankelCompletion(np.ones(5), np.ones(5, bool), 3)),
        ValueError,
        "use spectral",
    ),
    "ranks-bool": (lambda: sg.hosvd(True)(CUBE), TypeError, "ranks must be"),
    "metric-ranks": (
        lambda: sg.metrics.condition_number(np.ones((3, 3, 3)), (1, 1)),
        ValueError,
        "one entry per mode",
    ),
    "dist-tucker": (
        lambda: sg.metrics.dist(sg.hosvd(1)(CUBE), sg.hosvd(1)(CUBE)),
        TypeError,
        "LowRank or Symmetric",
    ),
    "ranks-length": (lambda: sg.hosvd((2, 2))(CUBE), ValueError, "one rank per mode"),
    "ranks-large": (lambda: sg.hosvd((5, 2, 2))(CUBE), ValueError, r"ranks\[0\] must be"),
    "ranks-zero": (lambda: sg.diagonal_deleted((2, 0, 2))(CUBE), ValueError, "between 1 and 3"),
    "ranks-product": (lambda: sg.hosvd((4, 1, 2))(CUBE), ValueError, "more than the product"),
    "ranks-float": (lambda: sg.hosvd(2.5)(CUBE), TypeError, "ranks must be"),
    "ranks-random": (lambda: sg.small_random((9, 1, 1), 1.0)(CUBE), ValueError, "ranks"),
    "mixed-tensor": (lambda: sg.mixed(1, 0.1, 1e-3)(CUBE), ValueError, "matri"),
    "variant": (lambda: sg.diagonal_deleted(1, variant="x"), ValueError, "variant must be"),
    "sequential": (
        lambda: sg.hosvd(1, sequential=True)(
            sg.Observed(sg.Entries((*I2, I2[0]), (4, 3, 3)), np.ones(3))
        ),
        ValueError,
        "sequential",
    ),
    "tucker-order": (
        lambda: sg.Tucker((np.ones((3, 1)),) * 2, np.ones((1, 1, 1))),
        ValueError,
        "needs 3 factors",
    ),
    "tucker-columns": (
        lambda: sg.Tucker((np.ones((3, 1)), np.ones((3, 2))), np.ones((1, 1))),
        ValueError,
        r"factors\[1\] has 2 columns",
    ),
    "tucker-array": (lambda: sg.Tucker(np.ones((3, 1)), np.ones((1,))), TypeError, "tuple of"),
    "tucker-vector": (
        lambda: sg.Tucker((np.ones(3), np.ones((3, 1))), np.ones((1, 1))),
        ValueError,
        r"factors\[0\] must have 2",
    ),
    "tucker-shape": (
        lambda: sg.solve(
            GOOD, sg.Tucker((np.ones((3, 1)),) * 3, np.ones((1, 1, 1))), sg.ScaledGD()
        ),
        ValueError,
        "init has factors",
    ),
    "tucker-steps": (
        lambda: sg.solve(CUBE, sg.hosvd(1), sg.GradientDescent((0.1, 0.1, 0.1))),
        ValueError,
        "step has 3 entries but Tucker has 4",
    ),
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
