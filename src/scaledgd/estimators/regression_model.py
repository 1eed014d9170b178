"""The model of a fitted regression."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace, device

from ..factors import Factors, LowRank, Tucker
from ..kernels import numbered
from ..linalg import epsilon, fix_signs, smallest, unfold
from ..operators import Sensing
from ..state import State
from . import validation
from .coefficient import Coefficient, CoefficientReading, Ranks, Trail
from .information import Information
from .packing import packable
from .scaling import singular
from .tucker import degrees, spectra
from .uncertainty import PART, conformal_quantile, student_quantile

Array = Any


@packable
@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionModel:
    """y ≈ ⟨A, coefficient⟩ + intercept.

    Attributes
    ----------
    factors : LowRank or Tucker
        The coefficient, in the units of the data.
    fitted : LowRank or Tucker
        The same in the units of the fit, to continue from.
    rank : int or tuple of int
    ridge : float
    intercept : float
    noise_variance : float
    free : float
        The degrees of freedom of the estimate of the noise.
    information : Information
    center : str
    scores : array, optional
        Conformal scores of the measurements held out, sorted.
    trail : list of dict
    """

    factors: Coefficient
    fitted: Coefficient
    rank: Any
    ridge: float
    intercept: float
    noise_variance: float
    free: float
    information: Information
    center: str = "auto"
    scores: Array | None = None
    trail: Trail = field(default_factory=list)

    @classmethod
    def of(
        cls,
        state: State,
        reading: CoefficientReading,
        ranks: Ranks,
        A: Array,
        y: Array,
        center: str,
    ) -> RegressionModel:
        """Return the model of a fit to a design and its measurements."""
        xp, m = array_namespace(y), y.shape[0]
        # nothing was measured, or the ridge left nothing
        live = float(xp.max(xp.abs(A))) > 0 and reading.ridge < 1.0
        factors, rank = _in_units(state.factors, reading.unit, live)
        fitted = Sensing(A, shape=factors.shape).apply(factors)
        intercept = center != "none"
        constant = float(xp.mean(y - fitted)) if intercept else 0.0
        off = y - fitted - constant
        free = m - degrees(ranks, factors.shape) - intercept
        held_by = getattr(state.problem, "ridge", None)
        strength = 0.0 if held_by is None else float(xp.max(held_by[-1])) * reading.wide**2
        strength *= reading.unit if isinstance(factors, LowRank) else 1.0
        return cls(
            factors=factors,
            fitted=state.factors,  # type: ignore[arg-type]
            rank=rank,
            ridge=reading.ridge,
            intercept=constant,
            noise_variance=float(xp.sum(off * off)) / max(free, 0.1 * m, 1),
            free=float(free),
            information=Information.of(factors, A, intercept, strength),
            center=center,
            trail=list(reading.trail),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.factors.shape)

    @cached_property
    def published(self) -> dict[str, Any]:
        """The fitted attributes of the estimator, by name."""
        xp, F = array_namespace(self.factors.blocks[0]), self.factors
        values: Any
        components: Any
        if isinstance(F, Tucker):
            values = tuple(
                xp.sqrt(xp.sum(unfold(F.core, k) ** 2, axis=1)) for k in range(F.core.ndim)
            )
            components = tuple(U.T for U in F.factors)
        else:
            lengths = [xp.sqrt(xp.sum(B * B, axis=0))[: self.rank] for B in F.blocks]
            values = lengths[0] * lengths[1]
            components = (F.R[:, : self.rank] / lengths[1][None, :]).T
        return {
            "factors_": F,
            "rank_": self.rank,
            "singular_values_": values,
            "components_": components,
            "intercept_": self.intercept,
            "ridge_": self.ridge,
            "noise_variance_": self.noise_variance,
            "rank_path_": self.trail,
            "center_": self.center,
            "scale_": "none",
            "shape_": self.shape,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "published"}

    # ---- predictions

    def predict(self, A: Array) -> Array:
        """Return ⟨A, coefficient⟩ + intercept for every row of a flat design."""
        return Sensing(A, shape=self.shape).apply(self.factors) + self.intercept

    def prediction_std(self, A: Array) -> Array:
        """Return the expected errors of new measurements."""
        xp = array_namespace(A)
        share = 1 + self.information.leverage(self.factors, A)
        tiny = smallest(A)
        return math.sqrt(self.noise_variance) * xp.sqrt(share) + tiny

    def known(self, std: Array) -> Array:
        """Return standard errors; infinite if there were too few measurements."""
        return std if self.free > 0 else std + math.inf

    def half_width(self, A: Array, level: float, kind: str) -> Array:
        """Return the half width of intervals for new measurements."""
        std = self.prediction_std(A)
        if kind != "conformal":
            return student_quantile(level, self.free) * self.known(std)
        if self.scores is None:
            raise ValueError(
                'kind="conformal" needs entries that the fit did not see: fit with calibrate=0.1, '
                "which holds out a tenth of them"
            )
        return conformal_quantile(self.scores, level) * std

    def deviation(self, index: tuple[Array, ...]) -> Array:
        """Return standard errors of the coefficient at coordinates."""
        example = self.factors.blocks[0]
        xp, found = array_namespace(example), []
        size = math.prod(self.shape)
        flat = numbered(index, self.shape)
        every = xp.arange(size, device=device(flat))
        step = max(1, PART // size)
        for s in range(0, flat.shape[0], step):
            one = xp.astype(flat[s : s + step, None] == every[None, :], example.dtype)
            found.append(self.information.leverage(self.factors, one, centred=False))
        if not found:
            return xp.astype(flat, example.dtype)
        return self.known(math.sqrt(self.noise_variance) * xp.sqrt(xp.concat(found)))

    def at(self, index: tuple[Array, ...]) -> Array:
        """Return the coefficient at coordinates."""
        return self.factors.gather(index)

    def full(self) -> Array:
        """Return the coefficient as an array."""
        return self.factors.full()

    def validate(self) -> None:
        """Raise a FileError if the model does not make sense."""
        must, number = validation.must, validation.number
        must(isinstance(self.factors, (LowRank, Tucker)), "no factors")
        shape = self.shape
        validation.factors(self.factors, type(self.factors), shape)
        validation.factors(self.fitted, type(self.factors), shape)
        if isinstance(self.factors, Tucker):
            must(tuple(self.rank) == self.factors.ranks, "a rank")
        else:
            must(isinstance(self.rank, int) and 0 <= self.rank <= self.factors.rank, "a rank")
        number(self.intercept)
        number(self.ridge, least=0)
        number(self.free)
        must(isinstance(self.noise_variance, float) and self.noise_variance >= 0, "the noise")
        must(isinstance(self.center, str), "a choice")
        known = self.information
        must(isinstance(known, Information), "no information")
        q = sum(math.prod(B.shape) for B in self.factors.blocks)
        validation.shaped(known.mean, (q,))
        validation.shaped(known.total, (q, q), optional=True)
        number(known.m, least=1)
        number(known.square, least=0)
        if self.scores is not None:
            validation.shaped(self.scores, (self.scores.shape[0],), least=0)
        validation.trail(self.trail)


def _in_units(F: Factors, unit: float, live: bool) -> tuple[Coefficient, Any]:
    """Factors in the units of the data, in canonical form, and the rank."""
    if isinstance(F, Tucker):
        found, _ = spectra(Tucker(F.factors, unit * F.core))
        return found, found.ranks
    if not isinstance(F, LowRank):
        raise TypeError(f"a coefficient has LowRank or Tucker factors, not {type(F).__name__}")
    xp = array_namespace(F.L)
    U, s, V = singular(F)
    phase = fix_signs(V)
    U, V = U * phase[None, :], V * phase[None, :]
    least = max(1e-10, 10 * epsilon(F.L))
    r = int((s > least * max(float(s[0]), 1e-300)).sum()) if live else 0
    root = xp.sqrt(s * unit)[None, : max(r, 1)] * (1.0 if r else 0.0)
    return LowRank(U[:, : max(r, 1)] * root, V[:, : max(r, 1)] * root), r
