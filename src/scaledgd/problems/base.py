"""The base classes of problems, and of their views from an iterate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from array_api_compat import device

from ..ambient import Ambient
from ..factors import Blocks, Factors, LowRank, Tucker
from ..kernels import RowSolution, RowUpdate, UnsureRows
from ..namespaces import array_namespace

if TYPE_CHECKING:
    from ..state import Memory, State

Array = Any


class View:
    """A problem as seen from one iterate: its value and gradient there, and more on demand.

    A view needs a value and a way to compute the gradient. What else it can do depends on the
    problem; a method that needs something else gets a TypeError that says so.

    Parameters
    ----------
    problem : Problem
    factors : Factors
    value : 0-d array
        The loss.
    pullback : callable
        ``pullback()`` returns the gradient, one array per block.
    memory : object, optional
        What the problem needs at the next iterate, such as a threshold.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> view = problem.view(sg.LowRank(np.eye(2), 2 * np.eye(2)))
    >>> float(view.value), view.gradient[1]
    (1.0, array([[1., 0.],
           [0., 1.]]))
    """

    def __init__(
        self,
        problem: Any,
        factors: Factors,
        value: Array,
        pullback: Callable[[], Blocks] | None,
        memory: Any = None,
    ) -> None:
        self.problem, self.factors, self.memory = problem, factors, memory
        self._value, self._pullback = value, pullback

    def __reduce__(self) -> Any:
        # a pickled view and a problem are enough to resume
        return View, (None, self.factors, self.value, None, self.memory)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.pullback))

    def forget(self) -> None:
        """Release arrays as large as the data; they are formed again when needed."""

    @property
    def value(self) -> Array:
        """The loss, a 0-d array."""
        return self._value

    def pullback(self) -> Blocks:
        """Compute the gradient; `gradient` keeps it.

        Returns
        -------
        tuple of arrays like the blocks
        """
        if self._pullback is None:
            raise TypeError("this state was pickled without its problem; pass it to solve")
        return self._pullback()

    @cached_property
    def gradient(self) -> Blocks:
        """The gradient, one array per block."""
        return self.pullback()

    def objective(self, factors: Factors) -> Array:
        """Return the loss at other factors, with thresholds and trimmed entries frozen.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        0-d array
        """
        return self.moved(factors).value

    def moved(self, factors: Factors) -> View:
        """Return the view from other factors, with thresholds and trimmed entries frozen.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        View
        """
        if not self.problem.comparable:
            self._missing("moved")
        view: View = self.problem.linearize(factors).view
        return view

    def ambient(self) -> Ambient:
        """Return the gradient with respect to X.

        Returns
        -------
        Ambient
        """
        self._missing("ambient")

    def coverage(self) -> Ambient:
        """Return the weight of every entry of X in the loss.

        Returns
        -------
        Ambient
        """
        self._missing("coverage")

    def block_step(
        self, k: int, *, at: Factors | None = None, ridge: Array | None = None, steps: int = 10
    ) -> Array:
        """Return the step to subtract from block k to minimise the loss over this block.

        Parameters
        ----------
        k : int
        at : Factors, optional
            The factors to move from; by default those of the view.
        ridge : array, optional
            One number per column of the block, or an array of its shape.
        steps : int
            Maximum number of conjugate-gradient steps, if rows are not separate systems.

        Returns
        -------
        array like block k
        """
        self._missing("block_step")

    def block_move(self, k: int, *, at: Factors | None = None, steps: int = 10) -> RowSolution:
        """Return `block_step`, and the decrease of the loss if it is known.

        Parameters
        ----------
        k : int
        at : Factors, optional
        steps : int

        Returns
        -------
        RowSolution
            Its squares are given only if half of them is the loss.
        """
        return RowSolution(self.block_step(k, at=at, steps=steps))

    def reweighted(self, weight: Array) -> View:
        """Return the view with a weight per measurement.

        Parameters
        ----------
        weight : array of the shape of the measurements

        Returns
        -------
        View
        """
        self._missing("reweighted")

    def pulled(self) -> Ambient:
        """Return A*(w y), with the weights w of the frozen loss.

        Returns
        -------
        Ambient
        """
        self._missing("pulled")

    def block_solution(
        self, k: int, *, at: Factors | None = None, ridge: Array | None = None
    ) -> RowSolution:
        """Return `block_step` with the inverses of the systems of the rows.

        Parameters
        ----------
        k : int
        at : Factors, optional
        ridge : array, optional

        Returns
        -------
        RowSolution
        """
        self._missing("block_solution")

    @property
    def plain(self) -> bool:
        """Whether 2 · value is the weighted sum of squared residuals, and nothing else."""
        return False

    def block_update(self, system: UnsureRows, *, at: Factors) -> RowUpdate | None:
        """Return the update of uncertain rows by one pass over the data, or None.

        Parameters
        ----------
        system : UnsureRows
            Its mode says which block of matrix factors is updated.
        at : Factors
            The factors to move from.

        Returns
        -------
        RowUpdate or None
        """
        return None

    def _missing(self, what: str) -> NoReturn:
        raise TypeError(
            f"{type(self.problem).__name__} has no `{what}`, which this method, start or stopping "
            "rule needs; use another one, or add it to the view"
        )


class Problem:
    """Something to recover. Base class of all problems.

    A subclass must have `shape`, `example` and `view`. `view` may return a `View`, or simply
    the pair (value, pullback) of the loss and a function that returns its gradient.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> class Denoise(sg.Problem):  # minimise ½ ‖X − Y‖²
    ...     def __init__(self, Y):
    ...         self.example, self.shape = Y, Y.shape
    ...
    ...     def view(self, factors, t=0, memory=None):
    ...         r = factors.full() - self.example
    ...         return 0.5 * np.sum(r * r), lambda: (r @ factors.R, r.T @ factors.L)
    >>> Y = np.outer([1.0, 2.0], [3.0, 4.0])
    >>> start = sg.LowRank(np.ones((2, 1)), np.ones((2, 1)))
    >>> result = sg.solve(Denoise(Y), start, sg.ScaledGD(), max_iter=40)
    >>> bool(np.allclose(result.factors.full(), Y))
    True
    """

    shape: tuple[int, ...]
    """The shape of X."""

    example: Array
    """An array of the kind, dtype and device that the factors must have."""

    symmetric: bool = False
    """Whether starts make `Symmetric` factors by default."""

    comparable: bool = True
    """Whether the values of different iterates are values of one function."""

    smooth: bool = True
    """Whether the gradients are gradients, not only subgradients."""

    blas_threads: int | None = None
    """How many threads the BLAS should use during a run; None leaves that as it is."""

    @property
    def size(self) -> int:
        """The number of measurements."""
        return math.prod(self.shape)

    @property
    def sampling(self) -> float:
        """The share of the entries that is observed, the p of the theory."""
        return min(1.0, self.size / math.prod(self.shape))

    def view(self, factors: Factors, t: int = 0, memory: Any = None) -> Any:
        """Return the view of the problem from factors.

        Parameters
        ----------
        factors : Factors
        t : int
            The number of the iterate.
        memory : object
            The `memory` of the view of the last iterate; None at first.

        Returns
        -------
        View, or the pair (value, pullback)
        """
        raise NotImplementedError(f"{type(self).__name__} must define view(factors, t, memory)")

    def linearize(self, factors: Factors, t: int = 0, memory: Memory | None = None) -> State:
        """Return the state at factors; it unpacks as (value, pullback).

        Parameters
        ----------
        factors : Factors
        t : int
            The number of the iterate.
        memory : Memory, optional
            What was remembered before.

        Returns
        -------
        State
        """
        from ..state import Memory, State

        memory = Memory() if memory is None else memory
        view = self.view(factors, t, memory.loss)
        if not isinstance(view, View):
            value, pullback = view
            view = View(self, factors, value, pullback)
        return State(t, view, replace(memory, loss=view.memory))

    @cached_property
    def _view_at_zero(self) -> View:
        """The view from X = 0, as factors of rank 1."""
        xp, like = array_namespace(self.example), self.example
        where = {"dtype": like.dtype, "device": device(like)}
        blocks = [xp.zeros((n, 1), **where) for n in self.shape]
        if len(blocks) == 2:
            return self.linearize(LowRank(*blocks)).view
        core = xp.zeros((1,) * len(blocks), **where)
        return self.linearize(Tucker(tuple(blocks), core)).view

    @cached_property
    def value_at_zero(self) -> float:
        """The loss of X = 0, as a reference for values."""
        return float(self._view_at_zero.value)

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        """The ambient gradient at X = 0, as a reference for gradients."""
        return self._view_at_zero.ambient()

    def measured_square(self, factors: Factors) -> Array:
        """Return scale · ‖A(X)‖², the curvature of the loss along the factors.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        0-d array
        """
        raise TypeError(f"{type(self).__name__} does not measure factors other than its iterates")

    def backproject(self, keep: float | None = None) -> Ambient:
        """Return the object that a spectral start decomposes.

        Parameters
        ----------
        keep : float in (0, 1], optional
            The share of the measurements to use, those of smallest magnitude.

        Returns
        -------
        Ambient
        """
        raise TypeError(
            f"{type(self).__name__} has no backproject, which spectral starts need; begin with "
            "small_random(rank, scale) or with factors"
        )
