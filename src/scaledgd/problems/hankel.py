"""Spectrally sparse signals from some of their samples: a Hankel matrix of low rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from array_api_compat import device

from .. import checks
from ..ambient import Ambient, Hankel, antidiagonal_sums
from ..factors import Factors, LowRank
from ..linalg import is_complex, magnitude2
from ..namespaces import array_namespace
from .base import Problem, View

Array = Any


@dataclass(frozen=True, eq=False)
class HankelCompletion(Problem):
    """Recover a spectrally sparse signal x from some of its samples: H(x) has low rank.

    H(x)_{ij} = x_{i+j} is never formed. With x the signal on the antidiagonals of
    X = L Rᴴ, the loss is ½‖X − H(x)‖²_F + 1/(2p) ‖H P_Ω(x − y)‖²_F. Its value is exact to the
    rounding of ‖X‖², so a line search reaches only half of the digits.

    Parameters
    ----------
    y : array of shape (n,)
        The samples, with zeros where not observed; real or complex.
    observed : boolean array of shape (n,)
        True where observed.
    n1 : int
        Rows of the Hankel matrix; it has n2 = n − n1 + 1 columns.
    p : float, optional
        The probability of an observation; by default the fraction observed.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> x = np.exp(2j * np.pi * 0.1 * np.arange(41))
    >>> observed = np.arange(41) % 3 != 0
    >>> problem = sg.HankelCompletion(x * observed, observed, n1=21)
    >>> result = sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=60)
    >>> bool(np.allclose(problem.signal(result.factors), x))
    True
    """

    y: Array
    observed: Array
    n1: int
    p: Any = None

    def __post_init__(self) -> None:
        xp = checks.namespace(y=self.y, observed=self.observed)
        checks.floating(y=self.y)
        checks.dimensions("y", self.y, 1)
        if tuple(self.observed.shape) != tuple(self.y.shape):
            raise ValueError(
                f"observed must have the shape of y, {tuple(self.y.shape)}, "
                f"not {tuple(self.observed.shape)}"
            )
        if not xp.isdtype(self.observed.dtype, "bool"):
            raise TypeError(f"observed must be boolean, not {self.observed.dtype}")
        checks.finite("y", self.y)
        seen = int(xp.count_nonzero(self.observed))
        if seen == 0:
            raise ValueError("observed is False everywhere: nothing can be recovered")
        if bool(xp.any((self.y != 0) & ~self.observed)):
            raise ValueError("y must be zero where it is not observed; multiply it by observed")
        n1 = checks.count("n1", self.n1, least=1)
        if n1 > self.y.shape[0]:
            raise ValueError(f"n1 must be at most the length of y, {self.y.shape[0]}, not {n1}")
        p = seen / self.y.shape[0] if self.p is None else self.p
        object.__setattr__(self, "n1", n1)
        object.__setattr__(self, "p", checks.number("p", p, least=0, most=1, open_=True))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the Hankel matrix."""
        return self.n1, self.y.shape[0] - self.n1 + 1

    @property
    def example(self) -> Array:
        """An array of the kind, dtype and device that the factors must have."""
        return self.y

    @property
    def size(self) -> int:
        """The number of samples that were observed."""
        return int(array_namespace(self.y).count_nonzero(self.observed))

    @property
    def sampling(self) -> float:
        """The probability of an observation, p."""
        return float(self.p)

    @property
    def lengths(self) -> Array:
        """w_k, the length of the k-th antidiagonal."""
        xp = array_namespace(self.y)
        n1, n2 = self.shape
        k = xp.arange(n1 + n2 - 1, device=device(self.y))
        real = xp.real(self.y).dtype if is_complex(self.y) else self.y.dtype
        short = xp.where(k < n1 + n2 - 1 - k, k, n1 + n2 - 2 - k) + 1
        return xp.astype(xp.where(short < min(n1, n2), short, min(n1, n2)), real)

    def signal(self, factors: LowRank) -> Array:
        """Return the means of L Rᴴ along its antidiagonals.

        Parameters
        ----------
        factors : LowRank

        Returns
        -------
        array of shape (n,)
        """
        return antidiagonal_sums(factors.L, factors.R) / self.lengths

    def view(self, factors: Factors, t: int = 0, memory: Any = None) -> View:
        if not isinstance(factors, LowRank):
            raise TypeError(f"HankelCompletion is about LowRank factors, not {factors!r}")
        return _HankelView(self, factors)

    @cached_property
    def value_at_zero(self) -> float:
        """The loss of X = 0, as a reference for values."""
        xp = array_namespace(self.y)
        return float(0.5 / self.p * xp.sum(self.lengths * magnitude2(self.y)))

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        """The ambient gradient at X = 0, as a reference for gradients."""
        return Hankel(-self.y / self.p, self.n1)

    def backproject(self, keep: float | None = None) -> Ambient:
        """Return the matrix that a spectral start decomposes: H(y) / p.

        Parameters
        ----------
        keep : None
            Only for problems with outliers.

        Returns
        -------
        Ambient
        """
        if keep is not None:
            raise ValueError("keep is for problems with outliers; HankelCompletion has none")
        return Hankel(self.y / self.p, self.n1)


class _HankelView(View):
    """The loss at L Rᴴ, whose antidiagonals have the means x."""

    problem: HankelCompletion
    factors: LowRank

    def __init__(self, problem: HankelCompletion, factors: LowRank) -> None:
        self.problem, self.factors, self.memory = problem, factors, None
        xp = array_namespace(problem.y)
        x = problem.signal(factors)
        self._signal = x
        self._misfit = xp.where(problem.observed, x - problem.y, xp.zeros_like(x))

    @cached_property
    def value(self) -> Array:
        """The loss, a 0-d array."""
        # ‖X − H(x)‖² = ‖X‖² − ‖H(x)‖² because H(x) is the projection of X; exact to the
        # rounding of ‖X‖², which is the price of not forming X
        xp = array_namespace(self._signal)
        w, p = self.problem.lengths, self.problem.p
        off = self.factors.norm() ** 2 - xp.sum(w * magnitude2(self._signal))
        off = xp.where(off > 0, off, xp.zeros_like(off))
        return 0.5 * off + 0.5 / p * xp.sum(w * magnitude2(self._misfit))

    def ambient(self) -> Ambient:
        # Z = (X − H(x)) + H P_Ω(x − y) / p
        F, z = self.factors, self._misfit / self.problem.p - self._signal
        return Hankel(z, self.problem.n1, (F.L, F.R))

    def pullback(self) -> tuple[Array, ...]:
        return self.factors.pullback(self.ambient())

    def moved(self, factors: Factors) -> View:
        return self.problem.view(factors)
