"""Data on which fits once failed without a word.

They were found among random tables, tensors and measurements, and are frozen in `failed_once.npz`:
factors whose outer products add up to the truth, which entries are observed, and what was added to
these (noise and gross errors). The name of a case is what had failed. Every case asserts what is
true of a good answer to it: how far from the truth it may be, and a doubt where the data, or the
options, do not determine the answer.
"""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import scaledgd as sg

FROZEN = Path(__file__).with_name("failed_once.npz")
ANY = ""
"""A doubt in whatever words."""


@dataclass(frozen=True)
class Case:
    """Data, how to fit them, and what must be true of the answer.

    Attributes
    ----------
    name : str
        What had failed.
    model : estimator
    whole, columns : float, optional
        Bounds on the error of all cells, as a share of the deviation of the truth: as they are, and
        with every column (slice of the last mode) in its own units. Of measurements: on the error
        of predictions.
    doubt : str, optional
        What a warning about the answer must say.
    form, kind, scale : str, str, float
        How data are passed, their type, and a factor of all of them.
    """

    name: str
    model: Any
    whole: float | None = None
    columns: float | None = None
    doubt: str | None = None
    form: str = "array"
    kind: str = "float64"
    scale: float = 1.0

    def frozen(self):
        """The arrays of this case by their names."""
        start = re.sub(r"\W+", "_", self.name) + "/"
        with np.load(FROZEN, allow_pickle=False) as data:
            found = {k.removeprefix(start): data[k] for k in data.files if k.startswith(start)}
        return {k: v if k == "seen" else v.astype(float) for k, v in found.items()}

    def entries(self):
        """The truth, what is given (NaN where nothing is observed), and weights, unscaled."""
        frozen = self.frozen()
        factors = [frozen[k] for k in sorted(frozen) if k.startswith("factor")]
        modes = "abcd"[: len(factors)]
        truth = np.einsum(",".join(f"{m}z" for m in modes) + "->" + modes, *factors)
        if self.kind == "int64":
            truth = np.rint(10 * truth)
        seen = np.ones(truth.shape, dtype=bool)
        if "seen" in frozen:
            seen = np.unpackbits(frozen["seen"], count=truth.size).reshape(truth.shape) > 0
        given = np.where(seen, truth, np.nan)
        unit = np.broadcast_to(frozen.get("unit", 1.0), truth.shape)
        given[seen] += unit[seen] * frozen.get("added", 0.0)
        return truth, given, frozen.get("weight")

    def fitted(self, given, weight):
        """The model of entries."""
        given = self.scale * given
        seen = np.nonzero(np.isfinite(given))
        model = clone(self.model).set_params(random_state=0)
        if self.kind == "float32":
            given = given.astype(np.float32)
        elif self.kind == "int64" and len(seen[0]) == given.size:
            given = given.astype(np.int64)
        if self.form == "entries":
            assert weight is None
            return model.fit_entries(seen, given[seen], given.shape)
        if self.form == "sparse":
            given = sparse.csr_array((given[seen], seen), shape=given.shape)
        elif self.form == "masked":
            given = np.ma.masked_invalid(given)
        elif self.form == "frame":
            given = pytest.importorskip("pandas").DataFrame(given)
        return model.fit(given, entry_weight=weight)


def rms(X):
    return float(np.sqrt(np.mean(X**2)))


def errors_of_entries(case):
    """The errors of all cells: as they are, and with columns in their own units."""
    truth, given, weight = case.entries()
    model = case.fitted(given, weight)
    estimate = np.asarray(model.reconstruct(), dtype=float) / case.scale
    some = tuple(k[:20] for k in np.nonzero(np.ones(truth.shape)))
    values, std = model.predict_entries(some, return_std=True)
    assert np.all(np.isfinite(values))
    assert not np.any(np.isnan([std, *model.interval(some)]))
    deviation = np.std(truth) or 1.0
    own = np.std(truth, axis=tuple(range(truth.ndim - 1)))
    left = estimate - truth
    return rms(left / deviation), rms(left / np.where(own > 0, own, deviation))


def errors_of_predictions(case):
    """The errors of predictions of other measurements, as a share of their deviation."""
    frozen = case.frozen()
    A, y, coefficient = (frozen[k] for k in ("A", "y", "coef"))
    model = clone(case.model).set_params(random_state=0)
    kind = np.dtype(case.kind)
    model.fit(A.astype(kind), (case.scale * y).astype(kind))
    other = np.random.default_rng(0).standard_normal((200, *coefficient.shape))
    right = np.tensordot(other, coefficient, coefficient.ndim)
    found = rms(np.asarray(model.predict(other), float) / case.scale - right) / np.std(right)
    return found, found


CASES = [
    Case(
        "weights of Student's distribution were negative",
        sg.RobustPCA(),
        columns=0.0001,
        kind="float32",
    ),
    Case(
        "scales of rows lost small columns",
        sg.MatrixCompletion(rank=4, scale="rows"),
        whole=0.15,
        doubt=ANY,
    ),
    Case(
        "a ridge without columns",
        sg.MatrixCompletion(center="columns", scale="columns", ridge=1.8, calibrate=0.234),
        doubt="the data do not",
        form="masked",
        kind="float32",
    ),
    Case(
        "residuals whose squares vanish",
        sg.TensorCompletion(),
        columns=0.001,
        form="entries",
        scale=1e-150,
    ),
    Case(
        "a slice of constants was rejected",
        sg.TensorRobustPCA(rank=5),
        columns=1e-05,
    ),
    Case(
        "too few measurements",
        sg.TensorRegressor(),
        whole=1.1,
        doubt="intercept only",
        kind="float32",
    ),
    Case(
        "a component was the gross errors of one row",
        sg.RobustPCA(rank=22, scale="none", smooth="rows"),
        columns=0.005,
        kind="float32",
    ),
    Case(
        "a fit to most entries explained all of them better",
        sg.RobustPCA(rank=1),
        whole=0.5,
        scale=1e-09,
    ),
    Case(
        "a threshold fell so fast that half of the entries were rejected",
        sg.TensorRobustPCA(),
        columns=1e-05,
        scale=1e150,
    ),
    Case(
        "residuals of large slices were interpolated into small ones",
        sg.TensorCompletion(rank=1),
        whole=0.65,
        columns=1.0,
    ),
    Case(
        "ranks too large reproduced the data in many ways",
        sg.TensorCompletion(rank=3),
        columns=1e-05,
    ),
    Case(
        "columns of three entries were not seen to be unlike",
        sg.MatrixCompletion(),
        whole=0.8,
        doubt=ANY,
        kind="int64",
    ),
    Case(
        "factors of a robust tensor were not finite",
        sg.TensorRobustPCA(),
        whole=1.2,
        doubt="no observation",
        form="entries",
        kind="float32",
    ),
    Case(
        "one entry was held out to choose by",
        sg.TensorCompletion(),
        whole=0.35,
        doubt="too few to check",
        form="masked",
        kind="float32",
    ),
    Case(
        "a narrow table of little but noise",
        sg.MatrixCompletion(),
        whole=1.5,
        doubt="do not support a low-rank part",
        form="masked",
    ),
    Case(
        "a rank below that of the data, and medians beside it",
        sg.TensorRobustPCA(rank=1),
        whole=0.3,
        scale=1e150,
    ),
    Case(
        "short columns of unlike scale",
        sg.MatrixCompletion(rank=1, center="rows", ridge=0.000678),
        whole=1.0,
        doubt="column means predict",
    ),
    Case(
        "one threshold for columns of unlike scale",
        sg.RobustPCA(rank=4, center="both", scale="none"),
        doubt=ANY,
    ),
    Case(
        "components that explained the errors of rows",
        sg.RobustPCA(scale="none"),
        columns=1e-05,
    ),
    Case(
        "weights of a whole tensor",
        sg.TensorCompletion(rank=(11, 9, 10), center="none"),
        columns=0.005,
    ),
    Case(
        "a given ridge ended elsewhere than with most of the entries",
        sg.MatrixCompletion(rank=2, center="auto", scale="none", ridge=0.00137),
        whole=0.05,
        columns=0.2,
        form="sparse",
        kind="float32",
    ),
    Case(
        "a rank was lost that most of the entries had shown",
        sg.MatrixCompletion(rank=300, center="none", scale="columns", outliers="auto"),
        columns=0.005,
        form="frame",
        kind="float32",
    ),
    Case(
        "large columns were predicted worse than by means",
        sg.MatrixCompletion(rank=1, center="none", scale="auto", non_negative=True),
        whole=0.8,
        doubt=ANY,
        scale=1e-09,
    ),
    Case(
        "nonnegative factors of what is negative",
        sg.MatrixCompletion(
            rank=16, center="none", scale="none", non_negative=True, calibrate=0.241
        ),
        whole=1.0,
        doubt=ANY,
    ),
    Case(
        "too few held-out entries to speak for ranks",
        sg.TensorCompletion(rank=1, center="auto", outliers="auto"),
        whole=1.5,
        doubt=ANY,
        form="masked",
        scale=1000000.0,
    ),
    Case(
        "a component was three errors of a row",
        sg.RobustPCA(rank="auto", center="columns", scale="auto"),
        doubt=ANY,
        kind="float32",
    ),
    Case(
        "noise as large as the signal in a small tensor",
        sg.TensorRobustPCA(),
        whole=0.8,
        form="masked",
        kind="int64",
    ),
    Case(
        "a constant took the place of medians of slices",
        sg.TensorRobustPCA(rank=1, calibrate=0.117),
        whole=0.15,
    ),
    Case(
        "a core so small that its inverse overflowed",
        sg.TensorRobustPCA(rank=1),
        whole=1e-05,
        form="entries",
    ),
    Case(
        "estimates far outside the range of the data",
        sg.MatrixCompletion(rank=3, center="both", scale="none", outliers="auto", smooth="rows"),
        doubt=ANY,
        kind="int64",
    ),
    Case(
        "squares of large factors overflowed",
        sg.TensorCompletion(),
        columns=0.05,
        scale=1e150,
    ),
    Case(
        "few entries of two columns led far away",
        sg.MatrixCompletion(rank=33, center="none", scale="rows", non_negative=True),
        whole=0.5,
        scale=1e150,
    ),
    Case(
        "ranks that exclude nothing reproduced everything",
        sg.TensorCompletion(rank=40, center="auto"),
        columns=0.01,
    ),
    Case(
        "half a tensor followed its gross errors",
        sg.TensorRobustPCA(),
        whole=0.5,
        doubt=ANY,
    ),
    Case(
        "gross errors outvoted a row of small columns",
        sg.RobustPCA(rank=3, center="both", scale="auto"),
        whole=0.05,
        columns=0.6,
        kind="int64",
    ),
    Case(
        "components of two rows with gross errors",
        sg.RobustPCA(rank="auto", center="columns", scale="auto"),
        columns=0.05,
        form="entries",
        kind="float32",
    ),
    Case(
        "scales of rows where columns differ",
        sg.MatrixCompletion(rank="auto", center="auto", scale="rows", calibrate=0.114),
        columns=0.3,
        scale=1e-09,
    ),
    Case(
        "ranks that noise filled",
        sg.TensorCompletion(rank=7, center="none", smooth="none"),
        doubt=ANY,
        scale=1000000.0,
    ),
    Case(
        "small slices that were solved again",
        sg.TensorCompletion(rank=120, center="columns", smooth="none"),
        whole=0.3,
        doubt=ANY,
    ),
    Case(
        "a slice of few noisy entries",
        sg.TensorCompletion(),
        whole=1.5,
    ),
    Case(
        "squares of unbalanced factors overflowed",
        sg.MatrixCompletion(rank=36, center="none", scale="auto", non_negative=True),
        whole=0.02,
        columns=0.2,
        kind="float32",
    ),
    Case(
        "nonnegative factors of negative data",
        sg.MatrixCompletion(rank=32, center="none", scale="columns", non_negative=True),
        whole=1.0,
        doubt="observed entries are negative",
        form="sparse",
        kind="float32",
    ),
    Case(
        "two constant slices hid that all of the third was rejected",
        sg.TensorRobustPCA(rank=30),
        doubt="would count as outliers",
        kind="float32",
    ),
    Case(
        "a coefficient of noise was not judged",
        sg.MatrixRegressor(rank=1),
        whole=1.1,
        doubt="intercept only",
        scale=1e150,
    ),
    Case(
        "many noisy measurements of a given rank were not judged",
        sg.MatrixRegressor(rank=1),
        whole=1.1,
    ),
    Case(
        "slices of unlike size had a component of gross errors",
        sg.TensorRobustPCA(),
        columns=1e-05,
    ),
    Case(
        "means of two equal slices are exact",
        sg.TensorCompletion(rank=1, center="columns"),
        whole=0.05,
        doubt="column means predict",
        kind="float32",
    ),
    Case(
        "components that explain gross errors of rows",
        sg.RobustPCA(),
        columns=0.002,
    ),
    Case(
        "heavy tails, beside a better fit by rejection",
        sg.RobustPCA(rank=3),
        whole=0.002,
    ),
    Case(
        "no gap in the spectrum led to rank 1",
        sg.RobustPCA(center="rows", scale="both", calibrate=0.147),
        columns=0.5,
    ),
    Case(
        "a rank near the number of columns is no bound",
        sg.RobustPCA(rank=17, center="both", smooth="none"),
        columns=0.1,
    ),
    Case(
        "a column was rejected as a whole",
        sg.RobustPCA(),
        columns=1e-05,
    ),
    Case(
        "components that only the held-out entries could drop",
        sg.TensorRobustPCA(rank=8),
        columns=1e-05,
    ),
    Case(
        "a robust fit found nothing, and a small rank was there",
        sg.RobustPCA(),
        columns=0.005,
    ),
    Case(
        "a robust fit far off",
        sg.RobustPCA(rank=44, center="none", scale="none"),
        whole=1.0,
        doubt=ANY,
        kind="int64",
    ),
    Case(
        "a fit that follows few entries",
        sg.MatrixCompletion(),
        whole=0.3,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_failed_once(case):
    measure = (
        errors_of_predictions if "Regressor" in type(case.model).__name__ else errors_of_entries
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        whole, columns = measure(case)
    others = [w for w in caught if w.category not in (sg.DataWarning, ConvergenceWarning)]
    assert not others, others[0].message
    assert np.isfinite([whole, columns]).all()
    assert case.whole is None or whole <= case.whole
    assert case.columns is None or columns <= case.columns
    said = "; ".join(str(w.message) for w in caught if w.category is sg.DataWarning)
    assert case.doubt is None or (said and case.doubt in said), said
