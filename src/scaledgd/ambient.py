"""Gradients Z in the space of X, as returned by adjoints; structured ones are not formed.

Methods and starts need only the contractions of Z with mode matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import device

from .kernels import Pattern
from .linalg import adjoint, conj, is_complex, magnitude2, mode_product, mode_products, unfold
from .namespaces import array_namespace

Array = Any
Modes = tuple[Array, ...]

BLOCK = 1 << 21
"""Size of a temporary array in a dense contraction."""


class Ambient:
    """An element Z of the space of X. A subclass needs `shape` and `contract`."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        """Return Z ×_j modes[j]ᴴ for every mode j but `skip`."""
        raise NotImplementedError

    def columnwise(self, modes: Modes, skip: int) -> Array:
        """Contract Z with column c of conj(modes[j]) for every j but `skip`, for each c.

        The array has the shape of ``modes[skip]``, which may have other columns or be None.
        """
        one = next(M for j, M in enumerate(modes) if j != skip)
        xp = array_namespace(one)
        found = []
        for c in range(one.shape[1]):
            columns = tuple(
                one[:1, :1] if j == skip else M[:, c : c + 1] for j, M in enumerate(modes)
            )
            found.append(xp.reshape(self.contract(columns, skip), (-1, 1)))
        return xp.concat(found, axis=1)

    def times(self, V: Array) -> Array:
        """Return Z V, for a matrix Z."""
        return self.contract((V, conj(V)), skip=0)

    def adjoint_times(self, U: Array) -> Array:
        """Return Zᴴ U, for a matrix Z."""
        return adjoint(self.contract((U, conj(U)), skip=1))

    def gram_times(self, V: Array) -> Array:
        """Return Z Zᴴ V, for a matrix Z."""
        return self.times(self.adjoint_times(V))

    def tucker_gradients(self, modes: Modes, core: Array) -> tuple[Array, ...]:
        """Return the gradients of Tucker factors by the chain rule, factors then core."""
        partial = [self.contract(modes, skip=k) for k in range(len(modes))]
        factors = (unfold(C, k) @ adjoint(unfold(core, k)) for k, C in enumerate(partial))
        return (*factors, mode_product(partial[-1], adjoint(modes[-1]), len(modes) - 1))

    def unfold(self, mode: int) -> Ambient:
        """Return the matrix whose rows are indexed by `mode`; its columns come in any order."""
        raise ValueError("this problem is about matrices only; use spectral as its start")

    def squares(self, mode: int) -> Array:
        """Return Σ |Z|² over every slice of a mode: the diagonal of the Gram of its unfolding."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Dense(Ambient):
    """Z as an array, of any order."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        return mode_products(self.array, [adjoint(M) for M in modes], skip)

    def columnwise(self, modes: Modes, skip: int) -> Array:
        xp, shape = array_namespace(self.array), self.shape
        others = [j for j in range(len(shape)) if j != skip]
        last = max(others, key=lambda j: shape[j])  # a product of matrices sums the longest mode
        rest = [j for j in others if j != last]
        Z = xp.permute_dims(self.array, (skip, *rest, last))
        B = conj(modes[last])
        rows = max(1, BLOCK // (B.shape[1] * math.prod(shape[j] for j in rest)))
        found = []
        for first in range(0, shape[skip], rows):
            part = Z[first : first + rows, ...]
            total = xp.reshape(part, (-1, shape[last])) @ B
            for j in reversed(rest):
                total = xp.reshape(total, (-1, shape[j], B.shape[1]))
                total = xp.sum(total * conj(modes[j])[None, :, :], axis=1)
            found.append(xp.reshape(total, (-1, B.shape[1])))
        return xp.concat(found)

    def unfold(self, mode: int) -> Ambient:
        return Dense(unfold(self.array, mode))

    def squares(self, mode: int) -> Array:
        xp = array_namespace(self.array)
        square = xp.sum(magnitude2(unfold(self.array, mode)), axis=1)
        return xp.astype(square, self.array.dtype)


@dataclass(frozen=True, eq=False)
class Ones(Ambient):
    """Z with 1 everywhere, of any order."""

    size: tuple[int, ...]
    like: Array
    """An array of the library, dtype and device of Z."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        xp, Z = array_namespace(self.like), self._ones(())
        for j, M in enumerate(modes):
            row = self._ones((self.size[j],)) if j == skip else xp.sum(conj(M), axis=0)
            Z = Z[..., None] * row
        return Z

    def columnwise(self, modes: Modes, skip: int) -> Array:
        xp, sums = array_namespace(self.like), self._ones((self.size[skip], 1))
        for j, M in enumerate(modes):
            if j != skip:
                sums = sums * xp.sum(conj(M), axis=0)
        return sums

    def unfold(self, mode: int) -> Ambient:
        n = self.size[mode]
        return Ones((n, math.prod(self.size) // n), self.like)

    def squares(self, mode: int) -> Array:
        n = self.size[mode]
        return self._ones((n,)) * float(math.prod(self.size) // n)

    def _ones(self, shape: tuple[int, ...]) -> Array:
        xp, there = array_namespace(self.like), device(self.like)
        return xp.ones(shape, dtype=self.like.dtype, device=there)


@dataclass(frozen=True, eq=False)
class Sparse(Ambient):
    """Z with weights on a pattern of entries and zero elsewhere."""

    pattern: Pattern
    weights: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pattern.shape

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        return self.pattern.contract(self.weights, modes, skip)

    def columnwise(self, modes: Modes, skip: int) -> Array:
        return self.pattern.columnwise(self.weights, modes, skip)

    def tucker_gradients(self, modes: Modes, core: Array) -> tuple[Array, ...]:
        return self.pattern.tucker_gradients(self.weights, modes, core)

    def unfold(self, mode: int) -> Ambient:
        return Sparse(self.pattern.unfold(mode), self.weights)

    def squares(self, mode: int) -> Array:
        return self.pattern.squares(self.weights, mode)


class _Structured(Ambient):
    """A matrix given by its products, which a subclass defines."""

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        if skip == 1:
            return adjoint(self.adjoint_times(modes[0]))
        ZM = self.times(conj(modes[1]))
        return ZM if skip == 0 else adjoint(modes[0]) @ ZM


@dataclass(frozen=True, eq=False)
class RankOneSum(_Structured):
    """Z = Σ_k w_k a_k a_kᴴ + shift · I, with the a_k in the rows of `a` (m, n)."""

    a: Array
    weights: Array
    shift: float | Array = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        n = int(self.a.shape[1])
        return n, n

    def times(self, V: Array) -> Array:
        return self.a.T @ (self.weights[:, None] * (conj(self.a) @ V)) + self.shift * V

    def adjoint_times(self, U: Array) -> Array:
        return RankOneSum(self.a, conj(self.weights), self.shift).times(U)


@dataclass(frozen=True, eq=False)
class Hankel(_Structured):
    """Z = H(z) + A Bᴴ, where H(z)_{ij} = z_{i+j}; products with H(z) are correlations, by FFT.

    Parameters
    ----------
    z : array of shape (n1 + n2 - 1,)
    n1 : int
    low_rank : (A, B), optional
        Arrays of shapes (n1, r) and (n2, r).
    """

    z: Array
    n1: int
    low_rank: tuple[Array, Array] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n1, self.z.shape[0] - self.n1 + 1

    def times(self, V: Array) -> Array:
        ZV = correlate(self.z, V, self.n1)
        if self.low_rank is None:
            return ZV
        A, B = self.low_rank
        return ZV + A @ (adjoint(B) @ V)

    def adjoint_times(self, U: Array) -> Array:
        # Hᴴ is the Hankel matrix of conj(z) with as many rows as H has columns
        flipped = None if self.low_rank is None else self.low_rank[::-1]
        return Hankel(conj(self.z), self.shape[1], flipped).times(U)


def _spectrum(x: Array, n: int) -> Array:
    """Return the DFT along the first axis of x padded with zeros to length n."""
    xp = array_namespace(x)
    if not is_complex(x):
        x = x + xp.zeros_like(x) * xp.asarray(1j, dtype=_complex_dtype(x))
    return xp.fft.fft(x, n=n, axis=0)


def _complex_dtype(x: Array) -> Any:
    xp = array_namespace(x)
    return xp.complex64 if xp.finfo(x.dtype).bits == 32 else xp.complex128


def _back(spectrum: Array, length: int, example: Array) -> Array:
    """Return the first `length` samples of the inverse DFT, real where the example is."""
    xp = array_namespace(spectrum)
    x = xp.fft.ifft(spectrum, axis=0)[:length, ...]
    return x if is_complex(example) else xp.real(x)


def correlate(z: Array, M: Array, rows: int) -> Array:
    """Return H(z) M for the Hankel matrix with `rows` rows: (H M)_{ik} = Σ_j z_{i+j} M_{jk}."""
    xp = array_namespace(z)
    n = z.shape[0]
    # Σ_j z_{i+j} M_j is entry i + (cols − 1) of the convolution of z with M reversed;
    # a cyclic convolution of length n wraps only the entries before it
    product = _spectrum(z, n)[:, None] * _spectrum(xp.flip(M, axis=0), n)
    return _back(product, n, z)[n - rows :, :]


def antidiagonal_sums(L: Array, R: Array) -> Array:
    """Return Σ_{i+j=k} (L Rᴴ)_{ij} for every k, of shape (n1 + n2 − 1,)."""
    xp = array_namespace(L)
    n = L.shape[0] + R.shape[0] - 1
    return _back(xp.sum(_spectrum(L, n) * _spectrum(conj(R), n), axis=1), n, L)
