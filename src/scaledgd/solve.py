"""The one loop: `iterate`, `solve` and its result."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from . import checks
from .factors import Factors
from .linalg import careful, is_complex, plain_float
from .problems import Problem
from .state import Memory, State
from .stopping import Record, Stop, StoppingRule, gradient_norm, loss_change, time_limit

Array = Any


Method = Callable[[Problem, State], tuple[Factors, Any]]
Init = Callable[[Problem], Factors]
Begun = Callable[[Problem], State]
"""A start that also contains what the method remembers."""


def iterate(
    problem: Problem,
    factors: Factors,
    method: Method,
    t: int = 0,
    memory: Memory | None = None,
    known: float | None = None,
) -> Iterator[State]:
    """Yield the iterates F_t, F_{t+1}, … of a method on a problem, without end.

    Parameters
    ----------
    problem : Problem
    factors : Factors
        The first iterate.
    method : callable
        ``method(problem, state)`` returns the next factors, and what to remember.
    t : int
        The number of the first iterate; to continue a run, that of its last iterate.
    memory : Memory, optional
        The memory of the state to continue from.
    known : float, optional
        The loss of the first iterate, if it is known.

    Yields
    ------
    State

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
        if known is not None:
            state = replace(state, known=known)
        yield state  # metrics, callbacks and stopping rules run here, off the clock
        found = method(problem, state)
        state.view.forget()  # before the next residual is formed
        factors, kept = (found, None) if isinstance(found, Factors) else found
        known = getattr(found, "loss", None)
        memory = kept if isinstance(kept, Memory) else replace(state.memory, method=kept)
        t += 1


@dataclass(frozen=True, eq=False)
class Result:
    """The result of `solve`.

    Parameters
    ----------
    state : State
        The last iterate; after a divergence, the best finite one. A run can resume from it.
    status : str
        A sentence that says why the run ended.
    converged : bool
        Whether a stopping rule found convergence.
    history : list of dict
        One per iterate: "t" (updates done), "value", "seconds" spent computing so far, and
        the metrics. ``history[0]`` is the start.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, _ = sg.datasets.matrix_sensing(9, 8, rank=1, kappa=1, m=90, rng=0)
    >>> result = sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=5)
    >>> result.n_iter, result.converged, result.status
    (5, False, 'made the 5 updates asked for (iteration 5)')
    """

    state: State
    status: str
    converged: bool
    history: list[Record]

    @property
    def factors(self) -> Factors:
        """The last iterate; after a divergence, the best finite one."""
        return self.state.factors

    @property
    def n_iter(self) -> int:
        """The number of updates that this call made."""
        return int(self.history[-1]["t"] - self.history[0]["t"]) if self.history else 0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `solve`. Its `result` holds the last complete iterate.

    Parameters
    ----------
    result : Result
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result.status)
        self.result = result


class DivergenceWarning(RuntimeWarning):
    """A run reached inf or NaN and was rolled back, or its loss keeps growing."""


def solve(
    problem: Problem,
    init: Init | Begun | Factors | State,
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
        A start such as `spectral(rank)`, factors, or the state of an earlier result, from which the
        run continues with its schedules and memory.
    method : Method
        `ScaledGD`, `GradientDescent`, or another method.
    max_iter : int
        The largest number of updates; if `stop` is None, the exact number.
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
    _check_arguments(problem, method, metrics, callback)
    rules = _rules(stop)
    history: list[Record] = []
    state = init if isinstance(init, State) else None
    seen = _Seen(problem)
    cautious = isinstance(problem.example, np.ndarray)  # NumPy checks, because it costs nothing
    verdict: Stop | None = None
    clock = _Clock()
    try:
        # overflow is detected and reported below
        quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")
        with quiet, _threads(problem), contextlib.ExitStack() as with_care:
            with clock:
                factors, t, memory = _start(problem, init)
                known = None
                if isinstance(init, State) and init.view.problem is problem:
                    known = init.known
                states = iterate(problem, factors, method, t, memory, known)
            while verdict is None:
                with clock:
                    fresh = next(states)
                    value = plain_float(fresh.value)
                record = {"t": fresh.t, "value": value, "seconds": clock.seconds}
                for name, metric in (metrics or {}).items():
                    record[name] = _plain(metric(fresh.factors))
                if not math.isfinite(value) and state is not None and not cautious:
                    # a Gram matrix may have been singular: repeat the step with checks
                    cautious = True
                    with_care.enter_context(careful())
                    states = iterate(problem, state.factors, method, state.t, state.memory)
                    next(states)
                    continue
                history.append(record)
                if not math.isfinite(value):
                    break
                state = fresh
                seen.add(fresh, len(history) - 1, value)
                if callback is not None and _stops(callback, state):
                    verdict = Stop("stopped by the callback", converged=False)
                with clock:  # the time that stopping rules take counts
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
        return _rolled_back(best, history, method)  # type: ignore[arg-type]
    status = f"{verdict.reason} (iteration {state.t})"
    if not verdict.converged and _grew(problem, history):
        advice = _advice(method)
        status = f"diverging: the loss grew to {history[-1]['value']:.2g}; {advice}; {status}"
        warnings.warn(status, DivergenceWarning, stacklevel=2)
    return Result(state, status, verdict.converged, history)


def _threads(problem: Problem) -> contextlib.AbstractContextManager[None]:
    """Limit the threads of the BLAS if they would compete with the kernels for cores."""
    if problem.blas_threads is None:
        return contextlib.nullcontext()
    from .kernels.threads import limited

    return limited(problem.blas_threads, None)


def _check_arguments(problem: Any, method: Any, metrics: Any, callback: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem must be Observed(...) or another Problem, not {type(problem).__name__}"
        )
    if isinstance(method, type):
        raise TypeError(f"write {method.__name__}(...), not {method.__name__}")
    if not callable(method):
        raise TypeError(f"method must be ScaledGD() or another method, not {method!r}")
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


def _start(problem: Problem, init: Init | Begun | Factors | State) -> tuple[Factors, int, Memory]:
    """Return the first factors, their t, and their memory."""
    found: Any = init(problem) if callable(init) else init
    if isinstance(found, State):
        factors, t, memory = found.factors, found.t, found.memory
    else:
        factors, t, memory = found, 0, Memory()
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
    """Return a 0-d array as a Python number, and anything else unchanged."""
    if getattr(x, "ndim", None) != 0:
        return x
    return complex(x) if is_complex(x) else plain_float(x)


class _Seen:
    """The iterates to which a run may be rolled back.

    If the threshold of a loss moves, values of different iterates are not comparable, so the kept
    iterates are evaluated again with the latest threshold. After the first ten, every tenth is
    kept.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kept: list[tuple[int, Factors, Memory]] = []
        self.lowest: State | None = None
        self.least = math.inf

    def __bool__(self) -> bool:
        return self.lowest is not None or bool(self.kept)

    def add(self, state: State, n: int, value: float) -> None:
        """Record the n-th iterate and its loss."""
        if not self.problem.comparable:
            if n <= 10 or n % 10 == 0:
                self.kept.append((state.t, state.factors, state.memory))
        elif value <= self.least:
            self.lowest, self.least = state, value

    def best(self, last: State) -> State:
        """Return the best of the kept iterates and the last finite one."""
        if self.lowest is not None:
            return self.lowest
        try:
            values = [plain_float(last.view.objective(factors)) for _, factors, _ in self.kept]
        except TypeError:  # a view that cannot be moved to other factors
            return last
        k = min(range(len(values)), key=values.__getitem__)
        if plain_float(last.value) <= values[k]:
            return last
        t, factors, memory = self.kept[k]
        return self.problem.linearize(factors, t, memory)


def _grew(problem: Problem, history: list[Record]) -> bool:
    """Return whether the loss ended far above its start, and above that of X = 0."""
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


def _advice(method: Method) -> str:
    """Return what a method says about its own divergence."""
    return str(getattr(method, "advice", "begin closer to a solution, or use another method"))


def _rolled_back(best: State, history: list[Record], method: Method) -> Result:
    status = (
        f"diverged: the loss is not finite at iteration {history[-1]['t']}; rolled back to "
        f"iteration {best.t}, the best; {_advice(method)}"
    )
    warnings.warn(status, DivergenceWarning, stacklevel=3)
    return Result(best, status, False, history)
