"""Random instances: data of many kinds, an estimator and options, all drawn from two numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

Array = Any

TABLES = ("MatrixCompletion", "RobustPCA")
TENSORS = ("TensorCompletion", "TensorRobustPCA")
REGRESSORS = ("MatrixRegressor", "TensorRegressor")
ROBUST = ("RobustPCA", "TensorRobustPCA")
ESTIMATORS = (*TABLES, *TENSORS, *REGRESSORS)
CHANCES = (0.5, 0.2, 0.1, 0.07, 0.07, 0.06)
PATTERNS = ("uniform", "power law", "blocks")
LABELLED = {"frame": "pandas", "polars": "polars", "xarray": "xarray"}
"""Forms that need a library, and which."""
LARGEST = 300
ROUNDING = 12**-0.5
"""Standard deviation of the errors of rounding to integers."""


@dataclass(frozen=True)
class Recipe:
    """How an instance is made, as plain values that can be recorded and simplified.

    Attributes
    ----------
    estimator : str
    options : dict
        Parameters of the estimator.
    seed : int
        Of the numbers that are drawn.
    shape : tuple of int
    rank : int
        Of the truth, offsets not included.
    decay : float
        Decades between the largest and the smallest singular value.
    noise : float
        Standard deviation, as a share of that of the truth.
    heavy : bool
        Whether the noise has tails of a Student distribution with two degrees of freedom.
    offset : float
        Size of the offsets of rows and columns, as a multiple of the deviation of the truth.
    spread : float
        Decades between the scales of columns.
    seen : float
        Share of entries that are observed.
    pattern : {"uniform", "power law", "blocks"}
    outliers : float
        Share of the observed entries that are grossly wrong.
    constants : int
        Columns, and as many rows, that are constant.
    duplicates : int
        Rows that repeat the first one.
    scale : float
        Factor of all data.
    kind : {"float64", "float32", "int64"}
    form : {"array", "masked", "sparse", "entries", "frame", "polars", "xarray"}
        How the data are passed.
    memory : float
        Correlation of neighbouring rows of the truth.
    times : {"", "regular", "irregular"}
        Times that label the rows of a frame.
    weights : bool
        Whether entries have weights, which are unrelated to their noise.
    """

    estimator: str = "MatrixCompletion"
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    shape: tuple[int, ...] = (10, 10)
    rank: int = 1
    decay: float = 0.0
    noise: float = 0.0
    heavy: bool = False
    offset: float = 0.0
    spread: float = 0.0
    seen: float = 1.0
    pattern: str = "uniform"
    outliers: float = 0.0
    constants: int = 0
    duplicates: int = 0
    scale: float = 1.0
    kind: str = "float64"
    form: str = "array"
    memory: float = 0.0
    times: str = ""
    weights: bool = False

    @property
    def lacking(self) -> str:
        """A required library is not installed."""
        library = LABELLED.get(self.form, "")
        return library if library and find_spec(library) is None else ""

    @property
    def robust(self) -> bool:
        """Whether the estimator expects errors."""
        return self.estimator in ROBUST or self.options.get("outliers") is not None

    @property
    def plain(self) -> dict[str, Any]:
        """The fields that differ from their defaults, to be recorded."""
        usual = Recipe()
        return {
            f.name: asdict(self)[f.name]
            for f in fields(self)
            if getattr(self, f.name) != getattr(usual, f.name) or f.name in ("estimator", "shape")
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Recipe:
        """Return the recipe that `plain` describes."""
        given = {**plain, "shape": tuple(plain["shape"])}
        options = dict(given.get("options", {}))
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = tuple(value)
        return cls(**{**given, "options": options})


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a recipe.

    Attributes
    ----------
    truth : array
        Without noise and errors; for regression, the coefficient.
    given : array
        With noise, errors and NaN; for regression, the measurements.
    design : array, optional
        For regression.
    free : int
        Degrees of freedom of the truth.
    noise : array of shape (n_d,), or 0
        The size of the noise of every column.
    """

    truth: Array
    given: Array
    design: Array | None
    free: int
    noise: Array = 0.0

    @property
    def seen(self) -> Array:
        return np.isfinite(self.given)


def drawn(seed: int, number: int) -> Recipe:
    """Draw a recipe, which depends only on the seed and the number."""
    rng = np.random.default_rng([seed, number])
    estimator = str(rng.choice(ESTIMATORS, p=CHANCES))
    recipe = Recipe(estimator, seed=int(rng.integers(2**31)), shape=_shape(rng, estimator))
    small = min(recipe.shape)
    rank = int(min(small, 1 + rng.geometric(0.4) - 1))
    recipe = replace(
        recipe,
        rank=max(rank, 0 if rng.random() < 0.05 else 1),
        decay=float(rng.choice([0.0, 1.0, 3.0], p=[0.5, 0.3, 0.2])),
        noise=0.0 if rng.random() < 0.3 else float(10 ** rng.uniform(-4, 0.5)),
        heavy=bool(rng.random() < 0.15),
        offset=0.0 if rng.random() < 0.6 else float(10 ** rng.uniform(-1, 2)),
        spread=0.0 if rng.random() < 0.7 else float(rng.uniform(0, 6)),
        seen=1.0 if rng.random() < 0.2 else float(rng.uniform(0.02, 1.0)),
        pattern=str(rng.choice(PATTERNS)),
        outliers=float(rng.uniform(0, 0.2)) if recipe.robust and rng.random() < 0.7 else 0.0,
        constants=int(rng.integers(1, 3)) if rng.random() < 0.15 else 0,
        duplicates=int(rng.integers(1, 4)) if rng.random() < 0.1 else 0,
        scale=float(rng.choice([1.0, 1e-150, 1e150, 1e-9, 1e6], p=[0.6, 0.1, 0.1, 0.1, 0.1])),
        kind=str(rng.choice(["float64", "float32", "int64"], p=[0.7, 0.15, 0.15])),
        form=str(rng.choice(["array", "masked", "sparse", "entries"], p=[0.7, 0.1, 0.1, 0.1])),
    )
    if rng.random() < 0.5:  # so that many are determined
        seen = max(recipe.seen, float(rng.uniform(0.4, 1.0)))
        recipe = replace(recipe, heavy=False, spread=0.0, decay=0.0, seen=seen)
    if recipe.kind != "float64":
        recipe = replace(recipe, scale=1.0, spread=min(recipe.spread, 3.0))
    recipe = replace(recipe, options=_options(rng, recipe))
    return recipe if recipe.estimator in REGRESSORS else _in_time(rng, recipe)


def _in_time(rng: Any, recipe: Recipe) -> Recipe:
    """Give some instances rows that follow each other, times, weights, labels, or little time."""
    options, table = dict(recipe.options), recipe.estimator in TABLES
    if rng.random() < 0.25:
        recipe = replace(recipe, memory=float(rng.choice([0.5, 0.9, 0.99])))
    if table and rng.random() < 0.2:
        form = str(rng.choice([*LABELLED]))
        recipe = replace(recipe, form=form, times=str(rng.choice(["", "regular", "irregular"])))
    free = options.get("ridge") is None and not options.get("non_negative")
    if free and recipe.estimator != "TensorRobustPCA" and rng.random() < 0.2:
        sides = ["none", "rows", "columns"] if table else ["none", 0]
        options["smooth"] = sides[int(rng.integers(len(sides)))]
    if rng.random() < 0.1:
        recipe = replace(recipe, weights=True)
    if rng.random() < 0.1:
        options["max_time"] = float(10 ** rng.uniform(-2, 0.5))
    if isinstance(options.get("rank"), int) and rng.random() < 0.2:
        near = max(1, min(recipe.shape) - int(rng.integers(0, 3)))
        options["rank"] = near if table or rng.random() < 0.5 else recipe.shape
    return replace(recipe, options=options)


def _shape(rng: Any, estimator: str) -> tuple[int, ...]:
    order, largest = 2, LARGEST
    if estimator in TENSORS or estimator == "TensorRegressor":
        order = int(rng.choice([2, 3, 4], p=[0.15, 0.7, 0.15]))
        largest = {2: 100, 3: 40, 4: 12}[order]
    if estimator in REGRESSORS:
        order = 2 if estimator == "MatrixRegressor" else max(order, 3)
        largest = 15 if order == 2 else 6
    least = 0.5 * (rng.random() < 0.5)
    return tuple(round(largest ** rng.uniform(least, 1)) for _ in range(order))


def _options(rng: Any, recipe: Recipe) -> dict[str, Any]:
    """Options of an estimator; half of the instances have none."""
    options: dict[str, Any] = {"random_state": 0}
    if rng.random() < 0.5:
        return options
    small, name = min(recipe.shape), recipe.estimator
    ranks = ["auto", max(recipe.rank, 1), recipe.rank + 2, 1, small, 10 * small]
    options["rank"] = ranks[rng.integers(len(ranks))]
    options["rank"] = options["rank"] if isinstance(options["rank"], str) else int(options["rank"])
    if name in TABLES:
        sides = ["auto", "none", "rows", "columns", "both"]
        options["center"], options["scale"] = (str(rng.choice(sides)) for _ in range(2))
    if name == "MatrixCompletion":
        extra = rng.random()
        if extra < 0.1:
            options.update(non_negative=True, center="none")
        elif extra < 0.25:
            options["ridge"] = float(10 ** rng.uniform(-4, 1))
        elif extra < 0.45:
            options["outliers"] = "auto" if rng.random() < 0.5 else float(rng.uniform(0, 0.3))
    if name == "TensorCompletion":
        options["center"] = str(rng.choice(["auto", "none", "rows", "columns", "both"]))
        if rng.random() < 0.2:
            options.update(outliers="auto", center="auto")
    if rng.random() < 0.1:
        options["calibrate"] = float(rng.uniform(0.05, 0.3))
    if rng.random() < 0.1:
        options["max_iter"] = int(rng.integers(1, 20))
    return options


# ---- data


def made(recipe: Recipe) -> Data:
    """Make the data of a recipe."""
    rng = np.random.default_rng(recipe.seed)
    truth = _low_rank(rng, recipe)
    if recipe.estimator in REGRESSORS:
        return _measured(rng, recipe, truth)
    free = recipe.rank * (sum(recipe.shape) - recipe.rank) + (
        sum(recipe.shape) if recipe.offset else 0
    )
    if recipe.offset and recipe.spread:
        # scales of columns turn offsets into products
        rank = recipe.rank + len(recipe.shape)
        free = rank * max(1, sum(recipe.shape) - rank)
    deviation = float(np.std(truth)) or 1.0
    truth = truth / deviation
    for axis, n in enumerate(recipe.shape if recipe.offset else ()):
        offsets = recipe.offset * rng.standard_normal(n)
        truth = truth + np.expand_dims(offsets, tuple(k for k in range(truth.ndim) if k != axis))
    for k in range(recipe.duplicates):
        truth[-1 - k % len(truth)] = truth[0]
    values = truth + _noise(rng, recipe, truth.shape)
    unit = 10 ** rng.uniform(-recipe.spread / 2, recipe.spread / 2, recipe.shape[-1])
    truth, values = truth * unit, values * unit
    for k in range(recipe.constants):
        level = 0.0 if k == 0 and rng.random() < 0.5 else float(rng.integers(1, 9))
        for whole in (truth, values):
            whole[..., k % recipe.shape[-1]] = level
    wrong = rng.random(truth.shape) < recipe.outliers
    wrong[..., : recipe.constants] = False
    size = np.std(truth, axis=0) + unit
    values = values + wrong * rng.choice([-1, 1], truth.shape) * size * rng.uniform(5, 50)
    seen, noise = _pattern(rng, recipe), recipe.noise * unit
    if recipe.kind == "int64":
        truth, values = np.rint(10 * truth), np.rint(10 * values)
        noise = np.hypot(10 * noise, ROUNDING)
    noise[: recipe.constants] = 0
    values, truth, noise = (recipe.scale * x for x in (values, truth, noise))
    given = np.where(seen, values, np.nan)
    if recipe.kind == "float32":
        given = given.astype(np.float32)
    return Data(truth, given, None, free, noise)


def _low_rank(rng: Any, recipe: Recipe) -> Array:
    shape, r = recipe.shape, recipe.rank
    if not r:
        return np.zeros(shape)
    weight = np.geomspace(1, 10**-recipe.decay, r)
    factors = [rng.standard_normal((n, r)) for n in shape]
    first = factors[0]
    for t in range(1, len(first)):  # neighbours are correlated according to the recipe
        first[t] = recipe.memory * first[t - 1] + math.sqrt(1 - recipe.memory**2) * first[t]
    if recipe.options.get("non_negative"):
        factors = [np.abs(f) for f in factors]
    letters = "abcd"[: len(shape)]
    spec = ",".join(f"{c}z" for c in letters) + ",z->" + letters
    return np.einsum(spec, *factors, weight)


def _noise(rng: Any, recipe: Recipe, shape: tuple[int, ...]) -> Array:
    draw = rng.standard_t(2, shape) if recipe.heavy else rng.standard_normal(shape)
    return recipe.noise * draw


def _pattern(rng: Any, recipe: Recipe) -> Array:
    """Which entries are observed; at least one."""
    shape, p = recipe.shape, recipe.seen
    if p >= 1:
        return np.ones(shape, dtype=bool)
    if recipe.pattern == "blocks":
        seen = np.ones(shape, dtype=bool)
        length = max(1, shape[0] // 8)
        flat = seen.reshape(shape[0], -1)
        for j in range(flat.shape[1]):
            for _ in range(200):
                if flat[:, j].mean() <= p:
                    break
                start = rng.integers(-length + 1, shape[0])
                flat[max(start, 0) : start + length, j] = False
    else:
        chance = rng.gumbel(size=shape)
        if recipe.pattern == "power law":
            for axis, n in enumerate(shape):
                rate = -1.2 * np.log(1 + rng.permutation(n))
                others = tuple(k for k in range(len(shape)) if k != axis)
                chance = chance + np.expand_dims(rate, others)
        seen = chance >= np.quantile(chance, 1 - p)
    if not seen.any():
        seen.reshape(-1)[rng.integers(seen.size)] = True
    return seen


def _measured(rng: Any, recipe: Recipe, truth: Array) -> Data:
    free = recipe.rank * (sum(recipe.shape) - recipe.rank) if len(recipe.shape) == 2 else 0
    free = free or recipe.rank * sum(recipe.shape)
    m = max(2, round(recipe.seen * 6 * (free + 2)))
    A = rng.standard_normal((m, *recipe.shape))
    y = np.tensordot(A, truth, truth.ndim)
    deviation = float(np.std(y)) or 1.0
    truth = truth * (recipe.scale / deviation)
    noise = _noise(rng, recipe, (m,))
    y = recipe.scale * (y / deviation + noise + recipe.offset)
    if recipe.kind == "float32":
        A, y = A.astype(np.float32), y.astype(np.float32)
    return Data(truth, y, A, free)


def determined(recipe: Recipe, data: Data) -> bool:
    """Whether an instance is determined: it has many entries, and noise below the signal.

    If some entries are grossly wrong, they are less than a third of every slice.
    """
    count = int(data.seen.sum())
    return (
        count >= 3 * max(data.free, 1)
        and recipe.noise < 1
        and recipe.rank > 0
        and not recipe.heavy
        and _each_line(data, recipe.rank + 2)
        and (not recipe.outliers or _mostly_right(recipe, data))
        and math.log10(max(recipe.noise, 1e-300)) < -recipe.decay + 0.5
    )


def _mostly_right(recipe: Recipe, data: Data) -> bool:
    """Whether less than a third of the entries of every slice are grossly wrong."""
    off = np.abs((data.given - data.truth) / recipe.scale)
    truth = data.truth / recipe.scale
    level = np.std(truth) * (4 + 4 * recipe.noise) + 1
    if recipe.spread:  # every column has its own size
        level = np.std(truth, axis=tuple(range(truth.ndim - 1))) * (4 + 4 * recipe.noise)
    wrong = np.where(data.seen, off > level, False)
    for axis in range(wrong.ndim):
        others = tuple(k for k in range(wrong.ndim) if k != axis)
        if np.any(3 * wrong.sum(axis=others) >= data.seen.sum(axis=others)):
            return False
    return True


def _each_line(data: Data, least: int) -> bool:
    """Whether every slice has several entries."""
    if data.design is not None:
        return True
    axes = range(data.given.ndim)
    return all(
        int(data.seen.sum(axis=tuple(k for k in axes if k != axis)).min()) >= least for axis in axes
    )
