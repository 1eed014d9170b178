"""Measurements: A(X) of a factored X, and the adjoint A*(w)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from array_api_compat import array_namespace, device, is_array_api_obj

from . import checks, kernels
from .ambient import Ambient, Dense, RankOneSum, Sparse
from .factors import Factors, Tucker
from .kernels import Grid, Pattern
from .linalg import conj, conjugate_gradients, is_complex
from .losses import Loss

Array = Any


class Operator:
    """A linear map from low-rank objects of a shape to measurements.

    The adjoint is taken in the real inner product Re⟨·, ·⟩:
    Re⟨A(X), w⟩ = Re⟨X, A*(w)⟩.
    """

    shape: tuple[int, ...]
    """The shape of X."""

    symmetric: bool = False
    """Whether the starts make `Symmetric` factors unless told otherwise."""

    @property
    def measured(self) -> tuple[int, ...]:
        """The shape of A(X)."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays it holds: the data must be of their library and device."""
        return {}

    def apply(self, factors: Factors) -> Array:
        raise NotImplementedError

    def adjoint(self, w: Array) -> Ambient:
        raise NotImplementedError

    def residual(self, factors: Factors, y: Array) -> Array:
        """A(X) − y."""
        return self.apply(factors) - y

    def squares_and_gradient(
        self, factors: Factors, y: Array, k: int
    ) -> tuple[float, Array] | None:
        """‖A(X) − y‖² and the gradient of ½ that by block k, where one pass gives both."""
        return None

    def fused_step(
        self,
        factors: Factors,
        k: int,
        y: Array,
        kept: Array | None,
        ridge: Array | None,
        spread: bool,
        root: Array | None = None,
    ) -> Any:
        """`step_block` for least squares over what is kept, where a kernel does all of it.

        `root` multiplies A(X).
        """
        design = factors.design(k)
        if self.rows is None or design is None or not factors.alone(k):
            return None
        if type(self) not in (Full, Entries):
            return None  # whoever measures in another way means it
        x = factors.as_mode(k, factors.blocks[k])
        return self.rows.step_rows(design, k, x, y, ridge, root, kept, spread)

    def step_block(
        self,
        factors: Factors,
        k: int,
        y: Array,
        loss: Loss,
        ridge: Array | None = None,
        steps: int = 10,
        spread: bool = False,
        residual: Array | None = None,
    ) -> Any:
        """What block k is to be moved by, backwards, to where a frozen loss is least.

        The least squares that stand for the loss, plus ½ Σ ridge |B|². The residual may be known.
        """
        if loss.least_squares:
            found = self.fused_step(factors, k, y, loss.kept, ridge, spread)
            if found is not None:
                return found
        residual = self.residual(factors, y) if residual is None else residual
        gradient = factors.pullback_block(self.adjoint(loss(residual)[1]), k)
        if ridge is not None:
            gradient = gradient + ridge * factors.blocks[k]
        weights = loss.curvature(residual)
        return self.solve_block(factors, k, gradient, ridge, weights, steps, spread)

    def exact_step(
        self,
        factors: Factors,
        k: int,
        y: Array,
        loss: Loss,
        ridge: Array | None = None,
        residual: Array | None = None,
    ) -> Array:
        """`step_block` that is exact where rows are systems of their own, however large."""
        exact = self.rows is not None and factors.design(k) is not None
        step = self.step_block(factors, k, y, loss, ridge, spread=exact, residual=residual)
        return step[0] if exact else step

    def solve_block(
        self,
        factors: Factors,
        k: int,
        gradient: Array,
        ridge: Array | None = None,
        weights: Array | None = None,
        steps: int = 10,
        spread: bool = False,
    ) -> Any:
        """The D of least ½ Σ w |A(X_D)|² − Re⟨gradient, D⟩ + ½ Σ ridge |D|², X_D linear in D.

        It is what block k is to be moved by, backwards. Where the entries of X are observed,
        each row of a mode matrix is a small system of its own. Otherwise conjugate gradients
        with ScaledGD's preconditioner need nothing but `apply` and `adjoint`. `spread` is for
        rows only: see `solve_rows`.
        """
        design = factors.design(k)
        if self.rows is not None and design is not None:
            target = factors.as_mode(k, gradient)
            x = self.rows.solve_rows(design, k, target, ridge, weights, spread)
            return (factors.as_mode(k, x[0]), *x[1:]) if spread else factors.as_mode(k, x)

        def normal(D: Array) -> Array:
            measured = self.apply(factors.linear(k, D))
            Z = self.adjoint(measured if weights is None else weights * measured)
            G = factors.pullback_block(Z, k)
            return G if ridge is None else G + ridge * D

        def precondition(G: Array) -> Array:
            return factors.precondition_block(G, k)

        return conjugate_gradients(normal, gradient, precondition, 1e-2, steps)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        """How much each entry of X counts: Σ w |A(E)|² for the unit matrix E of that entry.

        Without weights w they are ones, of the kind of another array.
        """
        raise TypeError(f"{type(self).__name__} does not observe entries one by one")

    @property
    def rows(self) -> Grid | Pattern | None:
        """The entries that are observed, where entries are what is observed."""
        return None

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        """What a spectral start decomposes: A*(y).

        Where only `kept` of the measurements are left in y (the truncated start of the l1
        problems), those stand for all of them.
        """
        return self.adjoint(y if kept is None else y * (math.prod(self.measured) / kept))


@dataclass(frozen=True, eq=False)
class Full(Operator):
    """Every entry is observed.

    Parameters
    ----------
    shape : tuple of int
        The shape of X and of y.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.Symmetric(np.asarray([[1.0], [2.0]]))
    >>> sg.Full((2, 2)).apply(X)
    array([[1., 2.],
           [2., 4.]])
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checks.shape("shape", self.shape))

    @property
    def measured(self) -> tuple[int, ...]:
        return self.shape

    def apply(self, factors: Factors) -> Array:
        return factors.full()

    def adjoint(self, w: Array) -> Ambient:
        return Dense(w)

    def residual(self, factors: Factors, y: Array) -> Array:
        # whoever measures in another way means it
        if type(self).apply is not Full.apply or isinstance(factors, Tucker):
            return super().residual(factors, y)
        L, R = factors.modes
        return kernels.dense_residual(L, R, y)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        xp = array_namespace(like)
        return Dense(xp.ones(self.shape, dtype=like.dtype, device=device(like)) if w is None else w)

    @property
    def rows(self) -> Grid:
        return kernels.grid(self.shape)


@dataclass(frozen=True, eq=False)
class Entries(Operator):
    """Some entries are observed.

    Parameters
    ----------
    index : tuple of integer arrays, each of shape (m,)
        The coordinates of the observed entries, one array per mode, no entry twice.
    shape : tuple of int
        The shape of X.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Entries((np.asarray([0, 1]), np.asarray([1, 1])), (2, 2))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([2., 4.])
    """

    index: tuple[Array, ...]
    shape: tuple[int, ...]
    pattern: Pattern = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = checks.shape("shape", self.shape)
        index = checks.index(self.index, shape)
        if index[0].shape[0] == 0:
            raise ValueError("index is empty: no entry is observed, so nothing can be recovered")
        if math.prod(shape) >= 2**63:
            raise ValueError(f"shape {shape} has more entries than 64-bit integers can number")
        if not kernels.distinct(index, shape):
            raise ValueError(
                "index names some entry more than once; average repeated observations first"
            )
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "pattern", kernels.pattern(index, shape))

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.index[0].shape[0]),)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"index": self.index[0]}

    def apply(self, factors: Factors) -> Array:
        return self._values(factors, None)

    def residual(self, factors: Factors, y: Array) -> Array:
        if type(self).apply is not Entries.apply:
            return super().residual(factors, y)
        return self._values(factors, y)

    def _values(self, factors: Factors, y: Array | None) -> Array:
        found = None
        if not isinstance(factors, Tucker):
            found = self.pattern.residual(factors.modes, y)
        return factors.gather(self.index, y) if found is None else found

    def squares_and_gradient(
        self, factors: Factors, y: Array, k: int
    ) -> tuple[float, Array] | None:
        if isinstance(factors, Tucker) or factors.copies > 1 or type(self) is not Entries:
            return None
        modes = factors.modes
        found = self.pattern.squares_and_gradient(modes[k], modes[1 - k], y, k)
        return None if found is None else (found[0], factors.part(k, found[1]))

    def adjoint(self, w: Array) -> Ambient:
        return Sparse(self.pattern, w)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        return Sparse(self.pattern, self.pattern.ones(like) if w is None else w)

    @property
    def rows(self) -> Pattern:
        return self.pattern


class Around(Operator):
    """What is made of the measurements of another operator, its field `operator`."""

    operator: Operator

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.operator.shape

    @property
    def measured(self) -> tuple[int, ...]:
        return self.operator.measured

    @property
    def arrays(self) -> dict[str, Array]:
        return self.operator.arrays


@dataclass(frozen=True, eq=False)
class Weighted(Around):
    """Measurements of different worth: A(X) times the square root of a weight each.

    The data must be multiplied by `root` too.

    Parameters
    ----------
    operator : Operator
    root : array of the shape of A(X), nonnegative
        Square roots of the weights.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Weighted(sg.Full((2, 2)), np.asarray([[1.0, 2.0], [0.0, 1.0]]))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([[1., 4.],
           [0., 4.]])
    """

    operator: Operator
    root: Array

    def __post_init__(self) -> None:
        checks.floating(root=self.root)
        checks.finite("root", self.root)
        if tuple(self.root.shape) != self.measured:
            raise ValueError(
                f"root must have the shape of the measurements, {self.measured}, "
                f"not {tuple(self.root.shape)}"
            )

    @property
    def arrays(self) -> dict[str, Array]:
        return {"root": self.root, **self.operator.arrays}

    def apply(self, factors: Factors) -> Array:
        return self.root * self.operator.apply(factors)

    def adjoint(self, w: Array) -> Ambient:
        return self.operator.adjoint(self.root * w)

    def solve_block(
        self,
        factors: Factors,
        k: int,
        gradient: Array,
        ridge: Array | None = None,
        weights: Array | None = None,
        steps: int = 10,
        spread: bool = False,
    ) -> Any:
        whole = self.root**2 if weights is None else self.root**2 * weights
        return self.operator.solve_block(factors, k, gradient, ridge, whole, steps, spread)

    @property
    def rows(self) -> Grid | Pattern | None:
        return self.operator.rows

    def fused_step(
        self,
        factors: Factors,
        k: int,
        y: Array,
        kept: Array | None,
        ridge: Array | None,
        spread: bool,
        root: Array | None = None,
    ) -> Any:
        whole = self.root if root is None else root * self.root
        return self.operator.fused_step(factors, k, y, kept, ridge, spread, whole)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        return self.operator.coverage(self.root**2 if w is None else self.root**2 * w, like)


@dataclass(frozen=True, eq=False)
class Sensing(Operator):
    """Linear measurements y = A vec(X), with vec in C order.

    Parameters
    ----------
    A : array of shape (m, n1, ..., nd), or (m, n1 ⋯ nd) with `shape`, or a linear operator
        A linear operator has `shape` (m, n1 ⋯ nd), `matvec` and `rmatvec`, as those of SciPy
        and PyLops do; it is never made dense, and what it returns is kept in the precision
        of the data. An array is not conjugated, so that it means
        what the operator with the same matrix means: for complex data the measurements
        ⟨A_i, X⟩ of the monograph are `Sensing(conj(A))`.
    shape : tuple of int, optional
        The shape of X where A does not tell it.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Sensing(np.ones((1, 2, 2)))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([9.])
    """

    A: Any
    shape: tuple[int, ...] = ()
    matrix: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = tuple(getattr(self.A, "shape", ()))
        if self.dense:
            checks.floating(A=self.A)
            if len(size) < 2 or (len(size) == 2 and not self.shape):
                raise ValueError(
                    f"A must be a stack of shape (m, n1, n2, ...), or (m, n1·n2) with "
                    f"shape=(n1, n2); it has shape {size}"
                )
            checks.finite("A", self.A)
        elif not (hasattr(self.A, "matvec") and hasattr(self.A, "rmatvec") and len(size) == 2):
            raise TypeError(
                "A must be an array or a linear operator with shape, matvec and rmatvec, "
                f"not {type(self.A).__name__}"
            )
        elif not self.shape:
            raise ValueError("give shape=(n1, n2), the shape of X, with a linear operator")
        shape = checks.shape("shape", self.shape or size[1:])
        if math.prod(shape) != math.prod(size[1:]) or (len(size) > 2 and shape != size[1:]):
            raise ValueError(
                f"A of shape {size} does not measure objects of shape {shape}: {size[1:]} "
                f"is not {shape}"
            )
        if 0 in size:
            raise ValueError(f"A of shape {size} makes no measurement")
        object.__setattr__(self, "shape", shape)
        matrix = self.A
        if self.dense:
            matrix = array_namespace(self.A).reshape(self.A, (size[0], math.prod(shape)))
        object.__setattr__(self, "matrix", matrix)

    @property
    def dense(self) -> bool:
        return bool(is_array_api_obj(self.A))

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.A.shape[0]),)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"A": self.A} if self.dense else {}

    def apply(self, factors: Factors) -> Array:
        X = factors.full()
        x = array_namespace(X).reshape(X, (-1,))
        return (
            self.matrix @ x if self.dense else _like(self.matrix.matvec(x), x, self.matrix.shape[0])
        )

    def adjoint(self, w: Array) -> Ambient:
        x = (
            conj(self.matrix.T @ conj(w))
            if self.dense
            else _like(self.matrix.rmatvec(w), w, self.matrix.shape[1])
        )
        return Dense(array_namespace(w).reshape(x, self.shape))

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        # the l1 problems take measurements of unit variance, so a mean estimates X
        return self.adjoint(y if kept is None else y / kept)


def _like(result: Array, given: Array, n: int) -> Array:
    """What a linear operator returned, in the dtype it was given; it must be of one library."""
    xp = checks.namespace(data=given, **{"what A returned": result})
    if tuple(result.shape) != (n,):
        raise ValueError(f"A must return vectors of shape ({n},), not {tuple(result.shape)}")
    if is_complex(result) and not is_complex(given):
        raise TypeError("A is complex but the data are real; make y complex")
    return xp.astype(result, given.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class RankOne(Operator):
    """Quadratic sampling: y_k = a_kᴴ X a_k.

    Parameters
    ----------
    a : array of shape (m, n)
        The sensing vectors, in rows.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.RankOne(np.asarray([[1.0, 1.0]]))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([9.])
    """

    a: Array
    symmetric = True

    def __post_init__(self) -> None:
        checks.floating(a=self.a)
        checks.dimensions("a", self.a, 2)
        checks.finite("a", self.a)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        n = int(self.a.shape[1])
        return n, n

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.a.shape[0]),)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"a": self.a}

    def apply(self, factors: Factors) -> Array:
        xp = array_namespace(self.a)
        left, right = factors.modes
        left = conj(self.a) @ left
        if isinstance(factors, Tucker):
            left = left @ factors.core
        return xp.sum(left * (self.a @ right), axis=1)

    def adjoint(self, w: Array) -> Ambient:
        return RankOneSum(self.a, w)

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        # for Gaussian a, E y a aᴴ = c X + tr(X) I with c = 2 (real) or 1 (complex), E y = tr X
        xp = array_namespace(y)
        fold = 1 if is_complex(self.a) else 2
        w = y / (fold * (self.measured[0] if kept is None else kept))
        return RankOneSum(self.a, w, shift=-xp.sum(w))
