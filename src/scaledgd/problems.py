"""Problems: what was measured, and how a misfit is counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from . import checks
from .ambient import Ambient, Hankel, antidiagonal_sums
from .factors import Blocks, Factors, LowRank
from .linalg import inner, is_complex, magnitude2
from .losses import Loss, Squared
from .operators import Operator
from .solve import Memory, State

Array = Any


@dataclass(frozen=True, eq=False)
class _Look:
    """A problem at some factors, seen through a frozen loss; what is not asked is not computed."""

    problem: Observed
    factors: Factors
    loss: Loss
    known: Array | None = None

    @cached_property
    def residual(self) -> Array:
        if self.known is not None:
            return self.known
        return self.problem.operator.residual(self.factors, self.problem.y)

    @property
    def formed(self) -> Array | None:
        """The residual, if it was needed before."""
        return self.__dict__.get("residual", self.known)

    @cached_property
    def _first(self) -> tuple[float, Array] | None:
        """What one pass over the data gives, where it gives the value and a gradient at once."""
        if self.known is not None or not isinstance(self.loss, Squared):
            return None
        return self.problem.operator.squares_and_gradient(self.factors, self.problem.y, 0)

    @cached_property
    def value(self) -> Array:
        if self._first is None:
            return self.loss.value(self.residual)
        return array_namespace(self.problem.y).asarray(
            0.5 * self._first[0], dtype=self.problem.y.dtype
        )

    def ambient(self) -> Ambient:
        weight, scale = self.loss(self.residual)[1], self.problem.scale
        return self.problem.operator.adjoint(weight if scale == 1 else scale * weight)

    def pullback(self) -> Blocks:
        if self._first is None:
            return self.factors.pullback(self.ambient())
        operator, scale = self.problem.operator, self.problem.scale
        second = operator.squares_and_gradient(self.factors, self.problem.y, 1)
        return scale * self._first[1], scale * second[1]  # type: ignore[index]


@dataclass(frozen=True, eq=False)
class Observed:
    """Recover X from y ≈ A(X): minimise scale · loss(A(X) − y).

    Parameters
    ----------
    operator : Operator
        `Full`, `Entries`, `Sensing`, `RankOne`.
    y : array of the shape of A(X)
        The data. Its library, dtype and device are those of the factors.
    loss : Loss
        `Squared`, `Absolute`, `TopTrim`, `SoftTrim`.
    scale : float
        Multiplies the value and the backprojection: 1/p for completion.
    ridge : tuple of arrays or None, one per block, optional
        Adds ½ Σ_k Σ λ_k |B_k|², which holds rows that few data speak about. λ_k is an array
        that multiplies block k: one number per column, or an array of its shape.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rows, columns = np.nonzero(np.ones((3, 2)))
    >>> problem = sg.Observed(sg.Entries((rows, columns), (3, 2)), np.ones(6))
    >>> sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=5).factors.full().round(6)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]])
    """

    operator: Operator
    y: Array
    loss: Loss = field(default_factory=Squared)
    scale: float = 1.0
    ridge: tuple[Array | None, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.operator, Operator):
            raise TypeError(
                "operator must be Full, Entries, Sensing, RankOne or another Operator, "
                f"not {self.operator!r}"
            )
        if not isinstance(self.loss, Loss):
            raise TypeError(
                "loss must be Squared(), Absolute(), TopTrim(fraction), SoftTrim(schedule) or "
                f"another Loss, not {self.loss!r}"
            )
        xp = checks.namespace(y=self.y, **self.operator.arrays)
        checks.floating(y=self.y)
        for name, x in self.operator.arrays.items():
            if xp.isdtype(x.dtype, "integral"):
                continue
            # quadratic samples of a complex X are real
            same = x.dtype == self.y.dtype
            if not (same or (is_complex(x) and xp.real(x[:0, ...]).dtype == self.y.dtype)):
                raise TypeError(
                    f"y is {self.y.dtype} but {name} is {x.dtype}; convert them to one dtype"
                )
        if tuple(self.y.shape) != self.operator.measured:
            raise ValueError(
                f"y has shape {tuple(self.y.shape)}, but {type(self.operator).__name__} measures "
                f"{self.operator.measured}"
            )
        checks.finite("y", self.y)
        scale = checks.number("scale", self.scale, least=0, open_=True)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "loss", self.loss.bind(self.operator))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.operator.shape

    @property
    def example(self) -> Array:
        complex_arrays = (x for x in self.operator.arrays.values() if is_complex(x))
        return next(complex_arrays, self.y)

    @property
    def symmetric(self) -> bool:
        return self.operator.symmetric

    @property
    def calm(self) -> bool:
        """Whether the kernels do the work, and leave but small products to the BLAS."""
        return self.operator.rows is not None and isinstance(self.y, np.ndarray) and self.y.ndim < 3

    @property
    def comparable(self) -> bool:
        return self.loss.comparable

    @property
    def smooth(self) -> bool:
        return self.loss.smooth

    def linearize(self, factors: Factors, t: int = 0, memory: Memory | None = None) -> State:
        if isinstance(self.loss, Squared):  # nothing to freeze: the residual may never be formed
            return self._state(_Look(self, factors, self.loss), t, memory or {})
        residual = self.operator.residual(factors, self.y)
        loss, memory = self.loss.freeze(residual, t, memory or {})
        return self._state(_Look(self, factors, loss, residual), t, memory)

    def block_step(self, factors: Factors, k: int, ridge: Array | None = None) -> Array:
        """What block k is to be moved by, backwards, exactly if rows can be; for least squares."""
        return self.operator.exact_step(factors, k, self.y, self.loss, ridge)

    def _state(self, look: _Look, t: int, memory: Memory) -> State:
        """The state at some factors, of a loss that is frozen."""
        F, loss = look.factors, look.loss

        def block_step(
            k: int,
            ridge: Array | None = None,
            steps: int = 10,
            spread: bool = False,
            at: Factors | None = None,
        ) -> Any:
            if ridge is None and self.ridge is not None:
                ridge = self.ridge[k]
            if ridge is not None:
                ridge = ridge / self.scale
            where = F if at is None else at
            known = look.formed if where is F else None
            return self.operator.step_block(where, k, self.y, loss, ridge, steps, spread, known)

        def coverage() -> Ambient:
            plain = loss.least_squares and loss.kept is None
            kept = None if plain else loss.curvature(look.residual)
            return self.operator.coverage(kept, self.y)

        return State(
            t,
            F,
            self.scale * look.value + self._penalty(F),
            pullback=lambda: self._with_ridge(F, look.pullback()),
            objective=lambda G: (
                self.scale * loss.value(self.operator.residual(G, self.y)) + self._penalty(G)
            ),
            memory=memory,
            problem=self,
            block_step=block_step,
            ambient=look.ambient,
            coverage=coverage,
            again=lambda G: self._state(_Look(self, G, loss), t, memory),
        )

    def _penalty(self, factors: Factors) -> Array | float:
        """½ Σ_k Σ λ_k |B_k|²."""
        if self.ridge is None:
            return 0.0
        pairs = zip(factors.blocks, self.ridge, strict=True)
        return 0.5 * sum(inner(B, G * B) for B, G in pairs if G is not None)

    def _with_ridge(self, factors: Factors, grads: Blocks) -> Blocks:
        if self.ridge is None:
            return grads
        triples = zip(grads, factors.blocks, self.ridge, strict=True)
        return tuple(g if G is None else g + G * B for g, B, G in triples)

    @cached_property
    def value_at_zero(self) -> float:
        residual = -self.y
        return float(self.scale * self.loss.freeze(residual, 0, {})[0].value(residual))

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        return self.operator.adjoint(self.scale * self.loss(-self.y)[1])

    def backproject(self, keep: float | None = None) -> Ambient:
        """What a spectral start decomposes: scale · A*(y), of the data as the loss cleans them.

        With `keep` only that share of the measurements, those of smallest magnitude. The
        operator has its say: `RankOne` averages and takes out the part along the identity.
        """
        y = self.loss.clean(self.y)
        y = y if self.scale == 1 else self.scale * y
        if keep is None:
            return self.operator.spectral(y, None)
        keep = checks.number("keep", keep, least=0, most=1, open_=True)
        xp = array_namespace(y)
        flat = xp.reshape(y, (-1,))
        kept = math.ceil(keep * flat.shape[0] - 1e-9)
        ranks = xp.argsort(xp.argsort(xp.abs(flat), stable=True), stable=True)
        flat = xp.where(ranks < kept, flat, xp.zeros_like(flat))
        return self.operator.spectral(xp.reshape(flat, y.shape), kept)


@dataclass(frozen=True, eq=False)
class HankelCompletion:
    """Recover a spectrally sparse signal x from some of its samples: H(x) has low rank.

    H(x)_{ij} = x_{i+j} is never formed. With x the signal on the antidiagonals of
    X = L Rᴴ, the loss is ½‖X − H(x)‖²_F + 1/(2p) ‖H P_Ω(x − y)‖²_F. Its value is exact to the
    rounding of ‖X‖², so a line search gets no further than half of the digits.

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

    symmetric = False
    comparable = True
    smooth = True

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
    def shape(self) -> tuple[int, int]:
        return self.n1, self.y.shape[0] - self.n1 + 1

    @property
    def example(self) -> Array:
        return self.y

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
        """The means of L Rᴴ along its antidiagonals, of shape (n,)."""
        return antidiagonal_sums(factors.L, factors.R) / self.lengths

    def linearize(self, factors: Any, t: int = 0, memory: Memory | None = None) -> State:
        if not isinstance(factors, LowRank):
            raise TypeError(f"HankelCompletion is about LowRank factors, not {factors!r}")
        x, misfit = self._misfit(factors)
        # Z = (X − H(x)) + H P_Ω(x − y) / p
        Z = Hankel(misfit / self.p - x, self.n1, (factors.L, factors.R))
        return State(
            t,
            factors,
            self._value(factors, x, misfit),
            pullback=lambda: factors.pullback(Z),
            objective=lambda F: self._value(F, *self._misfit(F)),
            memory=memory or {},
            problem=self,
        )

    @cached_property
    def value_at_zero(self) -> float:
        xp = array_namespace(self.y)
        return float(0.5 / self.p * xp.sum(self.lengths * magnitude2(self.y)))

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        return Hankel(-self.y / self.p, self.n1)

    def backproject(self, keep: float | None = None) -> Ambient:
        if keep is not None:
            raise ValueError("keep is for problems with outliers; HankelCompletion has none")
        return Hankel(self.y / self.p, self.n1)

    def _misfit(self, factors: Any) -> tuple[Array, Array]:
        xp = array_namespace(self.y)
        x = self.signal(factors)
        return x, xp.where(self.observed, x - self.y, xp.zeros_like(x))

    def _value(self, factors: Any, x: Array, misfit: Array) -> Array:
        # ‖X − H(x)‖² = ‖X‖² − ‖H(x)‖² because H(x) is the projection of X; exact to the
        # rounding of ‖X‖², which is the price of not forming X
        xp = array_namespace(x)
        w = self.lengths
        off = factors.norm() ** 2 - xp.sum(w * magnitude2(x))
        off = xp.where(off > 0, off, xp.zeros_like(off))
        return 0.5 * off + 0.5 / self.p * xp.sum(w * magnitude2(misfit))
