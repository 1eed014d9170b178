"""One iterate, and what is remembered from one iterate to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .factors import Blocks, Factors
from .problems import Problem, View

Array = Any


@dataclass(frozen=True)
class Memory:
    """What is remembered from one iterate to the next. Only its owner reads each part.

    Parameters
    ----------
    loss : object
        Kept by the problem: the threshold of a trimming loss.
    method : object
        Kept by the method: step sizes, curvature pairs, a posterior.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> result = sg.solve(problem, sg.spectral(1), sg.Variational(), max_iter=2)
    >>> type(result.state.memory.method).__name__, result.state.memory.loss
    ('Posterior', None)
    """

    loss: Any = None
    method: Any = None


@dataclass(frozen=True, eq=False)
class State:
    """One iterate: its number, a view of the problem, and a memory.

    A state, even a pickled one, and the problem are all that a run needs to continue. It unpacks as
    (value, pullback).

    Parameters
    ----------
    t : int
        The number of updates that led here.
    view : View
    memory : Memory
    known : float, optional
        The loss, if the method has already computed it.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> state = problem.linearize(sg.LowRank(np.eye(2), 2 * np.eye(2)))
    >>> state.t, float(state.value)
    (0, 1.0)
    """

    t: int
    view: View
    memory: Memory = Memory()
    known: float | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.view)

    @property
    def problem(self) -> Problem:
        """The problem; None after unpickling."""
        return self.view.problem  # type: ignore[no-any-return]

    @property
    def factors(self) -> Factors:
        """The iterate."""
        return self.view.factors

    @property
    def value(self) -> Array:
        """The loss, a 0-d array or a number."""
        return self.view.value if self.known is None else self.known

    @property
    def gradient(self) -> Blocks:
        """The gradient, one array per block."""
        return self.view.gradient

    @property
    def pullback(self) -> Callable[[], Blocks]:
        """A function that computes the gradient; `gradient` keeps it."""
        return self.view.pullback

    def objective(self, factors: Factors) -> Array:
        """Return the loss at other factors, with thresholds and trimmed entries frozen.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        0-d array
        """
        return self.view.objective(factors)

    def moved(self, factors: Factors) -> State:
        """Return the state at other factors, with thresholds and trimmed entries frozen.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        State
        """
        return replace(self, view=self.view.moved(factors), known=None)

    def remembering(self, method: Any) -> State:
        """Return the state with another memory of the method.

        Parameters
        ----------
        method : object

        Returns
        -------
        State
        """
        return replace(self, memory=replace(self.memory, method=method))


class Found(tuple[Factors, Any]):
    """The factors and the memory that a method returns, and the loss if it was computed as well.

    Parameters
    ----------
    factors : Factors
    memory : object
    loss : float, optional
    """

    loss: float | None

    def __new__(cls, factors: Factors, memory: Any, loss: float | None = None) -> Found:
        found = super().__new__(cls, (factors, memory))
        found.loss = loss
        return found
