"""The one loop: states, `iterate`, `solve`, its result, and when to stop."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from . import checks
from .ambient import Ambient
from .factors import Blocks, Factors
from .linalg import epsilon, inner, is_complex

Array = Any
Memory = Mapping[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class State:
    """One iterate, and the problem as it looks from there.

    Unpacks as ``value, pullback = problem.linearize(factors, t)``.

    Parameters
    ----------
    t : int
        How many updates made it.
    factors : Factors
    value : 0-d array
        The loss.
    pullback : callable
        ``pullback()`` is the gradient, one array per block. Use `gradient`, which keeps it.
    objective : callable
        The loss of this iterate, thresholds and trimmed entries frozen, at other factors.
    memory : mapping
        What the method and the loss remember from iterate to iterate. With `t` and
        `factors` it is all that resuming needs, and all that pickling keeps.
    problem : Problem
    block_step : callable, optional
        ``block_step(k)`` is what block k has to move by, backwards, to minimise the loss as a
        function of that block alone; see `Operator.solve_block`.
    ambient : callable, optional
        ``ambient()`` is the gradient with respect to X.
    coverage : callable, optional
        ``coverage()`` says how much every entry of X counts in the loss.
    again : callable, optional
        This iterate moved to other factors, thresholds and trimmed entries still frozen.
    """

    t: int
    factors: Factors
    value: Array
    pullback: Callable[[], Blocks]
    objective: Callable[[Factors], Array]
    memory: Memory = field(default_factory=dict)
    problem: Any = None
    block_step: Callable[..., Array] | None = None
    ambient: Callable[[], Ambient] | None = None
    coverage: Callable[[], Ambient] | None = None
    again: Callable[[Factors], State] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("t", "factors", "value", "memory")}

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.pullback))

    @cached_property
    def gradient(self) -> Blocks:
        return self.pullback()


class Problem(Protocol):
    """What the loop needs of a problem."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def example(self) -> Array:
        """An array of the kind, dtype and device the factors must have."""

    @property
    def symmetric(self) -> bool:
        """Whether the starts make `Symmetric` factors unless told otherwise."""

    @property
    def comparable(self) -> bool:
        """Whether the values of different iterates are values of one function."""

    @property
    def smooth(self) -> bool:
        """Whether the gradients are gradients, not only subgradients."""

    def linearize(self, factors: Factors, t: int = 0, memory: Memory | None = None) -> State: ...

    @property
    def value_at_zero(self) -> float:
        """The loss of X = 0: what values are to be compared with."""

    @property
    def gradient_at_zero(self) -> Ambient:
        """The ambient gradient at X = 0: what gradients are to be compared with."""

    def backproject(self, keep: float | None = None) -> Ambient: ...


Method = Callable[[Problem, State], tuple[Factors, Memory]]
Init = Callable[[Problem], Factors]


def iterate(
    problem: Problem, factors: Factors, method: Method, t: int = 0, memory: Memory | None = None
) -> Iterator[State]:
    """The iterates F_t, F_{t+1}, … of a method on a problem, without end.

    Parameters
    ----------
    problem : Problem
    factors : Factors
        The first iterate.
    method : callable
        ``method(problem, state)`` returns the next factors and memory.
    t : int
        The number of the first iterate: where a run stopped, to go on there.
    memory : mapping, optional
        The memory of the state where a run stopped.

    Examples
    --------
    >>> import itertools, numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> states = sg.iterate(problem, sg.LowRank(np.eye(2), 2 * np.eye(2)), sg.ScaledGD(0.5))
    >>> [f"{float(state.value):.2g}" for state in itertools.islice(states, 3)]
    ['1', '0.016', '1.2e-05']
    """
    while True:
        state = problem.linearize(factors, t, memory)
        yield state  # metrics, callbacks and stopping rules run here, off the clock
        factors, memory = method(problem, state)
        t += 1


@dataclass(frozen=True, eq=False)
class Result:
    """What `solve` returns.

    Attributes
    ----------
    factors : Factors
        The last iterate; after a divergence, the best finite one.
    state : State
        That iterate as a state, to resume from.
    status : str
        A sentence that says why the run ended.
    converged : bool
        Whether a rule of convergence was met.
    n_iter : int
        Updates made by this call.
    history : list of dict
        One per iterate: "t" (updates done), "value", "seconds" spent computing so far, and
        the metrics. ``history[0]`` is the start.
    """

    state: State
    status: str
    converged: bool
    history: list[Record]

    @property
    def factors(self) -> Factors:
        return self.state.factors

    @property
    def n_iter(self) -> int:
        return int(self.history[-1]["t"] - self.history[0]["t"]) if self.history else 0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `solve`; `result` holds the last whole iterate."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.status)
        self.result = result


class DivergenceWarning(RuntimeWarning):
    """A run left the finite numbers and was rolled back, or is on its way there."""


@dataclass(frozen=True)
class Stop:
    """A stopping rule's verdict: why to stop, and whether that is convergence."""

    reason: str
    converged: bool = True


StoppingRule = Callable[[State, list[Record]], Stop | None]


def loss_change(tol: float = 1e-9) -> StoppingRule:
    """Stop when the loss changes by less than `tol` of itself, or vanishes to rounding.

    It vanishes where it is rounding next to the loss of X = 0. Values of losses whose
    threshold moves are not comparable: use `gradient_norm` there.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> start = sg.LowRank(np.eye(2), 2 * np.eye(2))
    >>> sg.solve(problem, start, sg.ScaledGD(0.5), stop=sg.loss_change(1e-6)).converged
    True
    """
    tol = checks.number("tol", tol, least=0)

    def rule(state: State, history: list[Record]) -> Stop | None:
        value, zero = history[-1]["value"], state.problem.value_at_zero
        eps = epsilon(state.factors.blocks[0])
        # rounding is eps of the data, and a smooth loss is quadratic there
        if value <= 20 * (eps**2 if state.problem.smooth else eps) * zero:
            return Stop(f"the loss vanished: {value:.2g}, from {zero:.2g} at X = 0")
        if len(history) > 1 and abs(history[-2]["value"] - value) <= tol * value:
            return Stop(f"the loss changed by less than {tol:.2g} of itself")
        return None

    return rule


def gradient_norm(tol: float = 1e-9, update: tuple[int, ...] | None = None) -> StoppingRule:
    """Stop when the scaled gradient is at most `tol` of that of the data alone.

    The norm is √⟨g, P g⟩ with ScaledGD's preconditioner P; it is compared with the same for
    the gradient at X = 0 pulled back to the same factors. The ratio does not depend on the
    parameterisation, nor on the scales of the data, the operator or the loss. It does not
    vanish for `Absolute`, whose subgradients do not. Looked at every third iterate, because
    it costs as much as a gradient.

    Parameters
    ----------
    tol : float
        Taken as ten times the precision of the data where it is less.
    update : tuple of int, optional
        The blocks to look at; give those that the method updates where it was told which.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> start = sg.LowRank(np.eye(2), 2 * np.eye(2))
    >>> sg.solve(problem, start, sg.ScaledGD(0.5), stop=sg.gradient_norm(1e-6)).converged
    True
    """
    tol = checks.number("tol", tol, least=0)

    def size(factors: Factors, grads: Blocks) -> float:
        direction = factors.precondition(grads)
        chosen = factors.free if update is None else update
        square = sum(_float(inner(grads[k], direction[k])) for k in chosen)
        return math.sqrt(max(square, 0.0))

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) % 3 != 1:  # the comparison costs as much as a gradient
            return None
        F = state.factors
        ours, whole = size(F, state.gradient), size(F, F.pullback(state.problem.gradient_at_zero))
        if ours <= max(tol, 10 * epsilon(F.blocks[0])) * whole:
            return Stop(f"the scaled gradient is {ours / (whole or 1.0):.2g} of that of the data")
        return None

    return rule


def time_limit(seconds: float) -> StoppingRule:
    """Stop after so many seconds of computing (metrics and callbacks not counted)."""
    seconds = checks.number("seconds", seconds, least=0)

    def rule(state: State, history: list[Record]) -> Stop | None:
        if history[-1]["seconds"] >= seconds:
            return Stop(f"the time limit of {seconds:g} s was reached", converged=False)
        return None

    return rule


def solve(
    problem: Problem,
    init: Init | Factors | State,
    method: Method,
    *,
    max_iter: int = 100,
    stop: StoppingRule | Iterable[StoppingRule] | None = None,
    metrics: Mapping[str, Callable[[Any], Any]] | None = None,
    callback: Callable[[State], Any] | None = None,
    interrupt: Literal["raise", "return"] = "raise",
) -> Result:
    """Run a method on a problem.

    Parameters
    ----------
    problem : Problem
    init : callable, Factors or State
        A start such as `spectral(rank)`, factors, or the state of an earlier result: then
        the run goes on where that one ended, schedules and memory included.
    method : Method
        `ScaledGD`, `GradientDescent`, or a callable of their kind.
    max_iter : int
        Updates to make at most; exactly so many where `stop` is None.
    stop : stopping rule or several, optional
        `loss_change`, `gradient_norm`, `time_limit`, or functions of (state, history) that
        return a `Stop` or None. The first verdict ends the run.
    metrics : mapping of names to functions of the factors, optional
        Recorded in the history, off the clock.
    callback : callable, optional
        Called with every state, off the clock; the run ends if it returns something true or
        raises StopIteration.
    interrupt : {"raise", "return"}
        What Ctrl-C does: raise `Interrupted`, a KeyboardInterrupt that carries the partial
        result, or return that result.

    Returns
    -------
    Result

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(120, 90, rank=3, kappa=10, p=0.5, rng=0)
    >>> result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=60)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """
    max_iter = checks.count("max_iter", max_iter)
    if interrupt not in ("raise", "return"):
        raise ValueError(f'interrupt must be "raise" or "return", not {interrupt!r}')
    _check_pieces(problem, method, metrics, callback)
    rules = _rules(stop)
    history: list[Record] = []
    state = init if isinstance(init, State) else None
    seen = _Seen(problem)
    verdict: Stop | None = None
    clock = _Clock()
    try:
        # overflow is looked for, and reported in words that help
        quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")
        with quiet, _threads(problem):
            with clock:
                factors, t, memory = _start(problem, init)
                states = iterate(problem, factors, method, t, memory)
            while verdict is None:
                with clock:
                    fresh = next(states)
                    value = _float(fresh.value)
                record = {"t": fresh.t, "value": value, "seconds": clock.seconds}
                for name, metric in (metrics or {}).items():
                    record[name] = _plain(metric(fresh.factors))
                history.append(record)
                if not math.isfinite(value):
                    break
                state = fresh
                seen.add(fresh, len(history) - 1)
                if callback is not None and _stops(callback, state):
                    verdict = Stop("stopped by the callback", converged=False)
                with clock:  # what it takes to know when to stop counts
                    for rule in rules:
                        verdict = verdict or rule(state, history)
                if verdict is None and state.t - t >= max_iter:
                    verdict = _exhausted(max_iter, rules)
            best = seen.best(state) if verdict is None and state is not None and seen else None
    except KeyboardInterrupt:
        if state is None:
            raise
        whole = [record for record in history if record["t"] <= state.t]
        partial = Result(state, f"interrupted at iteration {state.t}", False, whole)
        if interrupt == "return":
            return partial
        raise Interrupted(partial) from None
    if state is None or (verdict is None and best is None):
        raise FloatingPointError(
            "the loss is not finite at the start: the data or the first factors overflow; "
            "rescale the data"
        )
    if verdict is None:
        return _rolled_back(best, history)  # type: ignore[arg-type]
    status = f"{verdict.reason} (iteration {state.t})"
    if not verdict.converged and _grew(problem, history):
        status = f"diverging: the loss grew to {history[-1]['value']:.2g}; {ADVICE}; {status}"
        warnings.warn(status, DivergenceWarning, stacklevel=2)
    return Result(state, status, verdict.converged, history)


def _threads(problem: Any) -> Any:
    """Where kernels do the work, threads of the BLAS would only be in their way."""
    if not getattr(problem, "calm", False):
        return contextlib.nullcontext()
    from .kernels.threads import limited

    return limited(1, None)


def _check_pieces(problem: Any, method: Any, metrics: Any, callback: Any) -> None:
    if not hasattr(problem, "linearize"):
        raise TypeError(f"problem must be Observed(...) or the like, not {type(problem).__name__}")
    if isinstance(method, type):
        raise TypeError(f"write {method.__name__}(...), not {method.__name__}")
    if not callable(method):
        raise TypeError(f"method must be ScaledGD() or the like, not {method!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of the state, not {callback!r}")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError('metrics must map names to functions, such as {"error": lambda F: ...}')
    taken = {"t", "value", "seconds"} & set(metrics or ())
    if taken:
        raise ValueError(f"metrics may not be named {sorted(taken)}: history has these already")


def _stops(callback: Callable[[State], Any], state: State) -> bool:
    try:
        return bool(callback(state))
    except StopIteration:
        return True


def _rules(stop: Any) -> list[StoppingRule]:
    if stop is None:
        return []
    rules = list(stop) if isinstance(stop, Iterable) else [stop]
    for rule in rules:
        if rule in (loss_change, gradient_norm, time_limit):
            raise TypeError(f"write stop={rule.__name__}(...), not stop={rule.__name__}")
        if not callable(rule):
            raise TypeError(
                f"stop must be loss_change(tol), gradient_norm(tol), time_limit(seconds) or "
                f"functions of (state, history), not {rule!r}"
            )
    return rules


class _Clock:
    """Adds up the seconds spent inside `with clock`."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


def _start(problem: Problem, init: Init | Factors | State) -> tuple[Factors, int, Memory]:
    """The first factors, their t, and what is remembered there."""
    if isinstance(init, State):
        factors, t, memory = init.factors, init.t, init.memory
    else:
        factors, t, memory = init(problem) if callable(init) else init, 0, {}
    if not isinstance(factors, Factors):
        raise TypeError(
            "init must be a start such as spectral(rank), factors such as LowRank(L, R), or "
            f"the state of an earlier result, not {init!r}"
        )
    if factors.shape != tuple(problem.shape):
        raise ValueError(
            f"init has factors of an object of shape {factors.shape}, but the problem is about "
            f"shape {tuple(problem.shape)}"
        )
    checks.floating(init=factors.blocks[0], data=problem.example)
    for block in factors.blocks:
        checks.finite("init", block)
    return factors, t, memory


def _plain(x: Any) -> Any:
    """A 0-d array as a Python number; anything else as it is."""
    if getattr(x, "ndim", None) != 0:
        return x
    return complex(x) if is_complex(x) else _float(x)


def _float(x: Array) -> float:
    """A 0-d array as a number; torch wants to be told that its gradient is not needed."""
    return float(x.detach() if hasattr(x, "detach") else x)


class _Seen:
    """The iterates of a run among which to choose where it has to be rolled back.

    Where the threshold of a loss moves, values of different iterates are not comparable: they
    are looked at again, through the newest threshold, when it comes to that. Then after the
    first ten every tenth is kept.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kept: list[tuple[int, Factors, Memory]] = []
        self.lowest: State | None = None

    def __bool__(self) -> bool:
        return self.lowest is not None or bool(self.kept)

    def add(self, state: State, n: int) -> None:
        """The n-th of the run."""
        if not self.problem.comparable:
            if n <= 10 or n % 10 == 0:
                self.kept.append((state.t, state.factors, state.memory))
        elif self.lowest is None or _float(state.value) <= _float(self.lowest.value):
            self.lowest = state

    def best(self, last: State) -> State:
        """The best of them, and of the last finite one."""
        if self.lowest is not None:
            return self.lowest
        values = [_float(last.objective(factors)) for _, factors, _ in self.kept]
        k = min(range(len(values)), key=values.__getitem__)
        if _float(last.value) <= values[k]:
            return last
        t, factors, memory = self.kept[k]
        return self.problem.linearize(factors, t, memory)


def _grew(problem: Problem, history: list[Record]) -> bool:
    """Whether a run went the wrong way: far above its start, and above X = 0."""
    first, value = history[0]["value"], history[-1]["value"]
    return bool(problem.comparable and value > 1e3 * first and value > problem.value_at_zero)


def _exhausted(max_iter: int, rules: list[StoppingRule]) -> Stop:
    if not rules:
        return Stop(f"made the {max_iter} updates asked for", converged=False)
    return Stop(
        f"made max_iter={max_iter} updates before a stopping rule was met; raise max_iter or "
        "loosen the rule",
        converged=False,
    )


ADVICE = "lower the step, use step=line_search(), or set damping > 0"


def _rolled_back(best: State, history: list[Record]) -> Result:
    status = (
        f"diverged: the loss is not finite at iteration {history[-1]['t']}; rolled back to "
        f"iteration {best.t}, the best; {ADVICE}"
    )
    warnings.warn(status, DivergenceWarning, stacklevel=3)
    return Result(best, status, False, history)
