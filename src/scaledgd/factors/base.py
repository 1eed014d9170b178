"""The base class of factorisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

from .. import checks
from ..ambient import Ambient
from ..kernels import Design, numbered
from ..linalg import conj, norm
from ..namespaces import array_namespace

Array = Any
Blocks = tuple[Array, ...]


class Factors:
    """A low-rank object X = φ(F), held as the blocks F. Base class of all factorisations.

    Subclasses are frozen dataclasses whose fields are the blocks. They must have `blocks`,
    `modes`, `assemble`, `pullback`, `precondition` and `default_step`. The rest has defaults that
    are right for every factorisation, and that a subclass may replace by something faster.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.LowRank(np.ones((3, 1)), np.ones((2, 1)))
    >>> isinstance(X, sg.Factors), X.shape, float(X.norm())
    (True, (3, 2), 2.449489742783178)
    """

    bilinear: ClassVar[bool] = False
    """Whether X = M₁ M₂ᵀ with the mode matrices M₁ and M₂, and nothing between them."""

    rowwise: ClassVar[bool] = False
    """Whether block k is mode matrix k, or some of its columns, so that kernels for the entries of
    M₁ M₂ᵀ give its gradient."""

    multilinear: ClassVar[bool] = False
    """Whether X is linear in each block, so that methods may solve for one block at a time."""

    copies: ClassVar[int] = 1
    """How often each block occurs in X. The gradient of a block is divided by this number, so that
    a step means the same for every factorisation."""

    @property
    def default_step(self) -> float:
        """The default step of ScaledGD."""
        raise NotImplementedError(f"{type(self).__name__} must define default_step")

    @property
    def blocks(self) -> Blocks:
        """The arrays that a method updates."""
        raise NotImplementedError(f"{type(self).__name__} must define blocks")

    @property
    def modes(self) -> Blocks:
        """The mode matrices M₁, M₂, … that span the modes of X."""
        raise NotImplementedError(f"{type(self).__name__} must define modes")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of X."""
        return tuple(M.shape[0] for M in self.modes)

    @property
    def free(self) -> tuple[int, ...]:
        """The blocks that a method updates by default."""
        return tuple(range(len(self.blocks)))

    def with_blocks(self, blocks: Blocks) -> Self:
        """Return the same kind of factors with other blocks.

        Parameters
        ----------
        blocks : tuple of arrays

        Returns
        -------
        Factors
        """
        return type(self)(*blocks)

    def assemble(self, modes: Blocks) -> Array:
        """Return X with other mode matrices, as a dense array.

        Parameters
        ----------
        modes : tuple of arrays of shapes (m_k, r_k)

        Returns
        -------
        array of shape (m_1, ..., m_d)
        """
        raise NotImplementedError(f"{type(self).__name__} must define assemble")

    def full(self) -> Array:
        """Return X itself, dense.

        Returns
        -------
        array of shape (n_1, ..., n_d)
        """
        return self.assemble(self.modes)

    def at(self, index: tuple[Array, ...]) -> Array:
        """Return the entries of X at coordinates, without forming X if possible.

        Parameters
        ----------
        index : tuple of integer arrays of shape (m,), one per mode

        Returns
        -------
        array of shape (m,)
        """
        return self.gather(checks.index(index, self.shape))

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        """Return the entries of X minus y, at coordinates that were already checked.

        Parameters
        ----------
        index : tuple of integer arrays of shape (m,), one per mode
        y : array of shape (m,), optional

        Returns
        -------
        array of shape (m,)
        """
        X = self.full()
        flat = numbered(index, self.shape)
        values = array_namespace(X).take(array_namespace(X).reshape(X, (-1,)), flat)
        return values if y is None else values - y

    def norm(self) -> Array:
        """Return ‖X‖_F, a 0-d array, without forming X.

        Returns
        -------
        0-d array
        """
        xp = array_namespace(self.modes[0])
        return norm(self.assemble(tuple(xp.linalg.qr(M)[1] for M in self.modes)))

    def distance(self, other: Factors, level: float = 0.0) -> float:
        """Return ‖X − X'‖_F for other factors X', without forming either.

        Parameters
        ----------
        other : Factors of the same shape
        level : float
            Rounding errors that are small compared with this level are accepted.

        Returns
        -------
        float
        """
        xp = array_namespace(self.modes[0])
        ours, theirs = [], []
        # in an orthonormal basis of both their ranges, each is a small core
        for A, B in zip(self.modes, other.modes, strict=True):
            T = xp.linalg.qr(xp.concat([A, B], axis=1))[1]
            ours.append(T[:, : A.shape[1]])
            theirs.append(T[:, T.shape[1] - B.shape[1] :])
        return float(norm(self.assemble(tuple(ours)) - other.assemble(tuple(theirs))))

    def pullback(self, Z: Ambient) -> Blocks:
        """Return the gradient of every block, given the gradient Z with respect to X.

        Parameters
        ----------
        Z : Ambient

        Returns
        -------
        tuple of arrays like the blocks
        """
        raise NotImplementedError(f"{type(self).__name__} must define pullback")

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        """Return ScaledGD's direction: the gradients times inverse (damped) Gram matrices.

        Parameters
        ----------
        grads : tuple of arrays like the blocks
        damping : float
            λ.

        Returns
        -------
        tuple of arrays like the blocks
        """
        raise NotImplementedError(f"{type(self).__name__} must define precondition")

    def moved(self, k: int, D: Array) -> Self:
        """Return the factors with D added to block k.

        Parameters
        ----------
        k : int
        D : array like block k

        Returns
        -------
        Factors
        """
        blocks = (B + D if j == k else B for j, B in enumerate(self.blocks))
        return self.with_blocks(tuple(blocks))

    def linear(self, k: int, D: Array) -> Factors:
        """Return the change of X if block k changes by D, for multilinear factors.

        Parameters
        ----------
        k : int
        D : array like block k

        Returns
        -------
        Factors
        """
        return self.with_blocks((*self.blocks[:k], D, *self.blocks[k + 1 :]))

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        """Return the gradient of block k alone.

        Parameters
        ----------
        Z : Ambient
        k : int

        Returns
        -------
        array like block k
        """
        return self.pullback(Z)[k]

    def preconditioner(self, k: int) -> Callable[[Array], Array]:
        """Return ScaledGD's direction for block k alone, as a function of its gradient.

        Parameters
        ----------
        k : int

        Returns
        -------
        callable
        """

        def precondition(grad: Array) -> Array:
            zero = (array_namespace(B).zeros_like(B) for B in self.blocks)
            return self.precondition(tuple(grad if j == k else z for j, z in enumerate(zero)))[k]

        return precondition

    def design(self, k: int) -> Design | None:
        """Return the vectors that multiply the rows of mode matrix k in the entries of X.

        None if block k is not a mode matrix, or if they are not known.

        Parameters
        ----------
        k : int

        Returns
        -------
        Design or None
        """
        return None

    def alone(self, k: int) -> bool:
        """Return whether X is mode matrix k times its design, without other terms.

        Parameters
        ----------
        k : int

        Returns
        -------
        bool
        """
        return True

    def part(self, k: int, G: Array) -> Array:
        """Return the columns of mode matrix k that are block k.

        Parameters
        ----------
        k : int
        G : array like mode matrix k

        Returns
        -------
        array like block k
        """
        return G

    def as_mode(self, k: int, B: Array) -> Array:
        """Convert block k to mode matrix k or back (an involution; conjugates R).

        Parameters
        ----------
        k : int
        B : array like block k

        Returns
        -------
        array like mode matrix k
        """
        return B

    def clip_rows(self, radius: float) -> Self:
        """Return the scaled projection P_B with B = radius.

        Parameters
        ----------
        radius : float

        Returns
        -------
        Factors
        """
        raise TypeError(f"{type(self).__name__} has no projection onto incoherent factors")

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        """Return the balancing regulariser of the earlier literature, and its gradient.

        Parameters
        ----------
        level : float
            The size that it gives to tensor factors.

        Returns
        -------
        value : 0-d array
        gradient : tuple of arrays like the blocks
        """
        raise TypeError(f"{type(self).__name__} has no balancing regulariser; set balance=0")


def clipped_rows(M: Array, partner_gram: Array, radius: float) -> Array:
    """Return M with rows scaled so that √n · ‖M_i Pᴴ‖ ≤ radius; norms come from PᴴP."""
    xp = array_namespace(M)
    square = xp.real(xp.sum(M @ partner_gram * conj(M), axis=1))
    # rounding can make the square of a vanishing row slightly negative; zero rows get factor 1
    size = math.sqrt(M.shape[0]) * xp.sqrt(xp.where(square > 0, square, xp.zeros_like(square)))
    ones = xp.ones_like(size)
    scale = xp.where(size > radius, radius / xp.where(size > 0, size, ones), ones)
    return M * xp.astype(scale, M.dtype)[:, None]
