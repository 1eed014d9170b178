"""Checkpoints: a file with the finished steps of a fit, from which the fit resumes exactly.

A fit is deterministic apart from the results of its steps. The journal stores each result under
the position of the step in the order of calls. A restarted fit makes the same calls, receives the
stored results, and continues where they end.
"""

from __future__ import annotations

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from .. import files
from .packing import pack, unpack

log = logging.getLogger("scaledgd")
log.addHandler(logging.NullHandler())

P = ParamSpec("P")
T = TypeVar("T")
Shrink = Callable[[Any], Any]
Restore = Callable[..., Any]

EVERY = 2.0
"""Seconds between checkpoints."""
SHARE = 0.05
"""Largest share of the time that may be spent writing them."""


def _never() -> bool:
    return False


class Journal:
    """Stored results of the steps of a fit.

    Steps may contain steps. The inner ones are dropped when the outer one finishes, or notes an
    intermediate result.

    Parameters
    ----------
    path : path, optional
        The checkpoint file. Without it nothing is stored.
    about : dict
        What identifies the fit. A checkpoint with a different description is refused.
    over : callable
        Returns True once the fit is being interrupted. Results from then on are not stored, because
        a resumed fit must not treat them as complete.
    """

    def __init__(
        self,
        path: Any = None,
        about: dict[str, Any] | None = None,
        over: Callable[[], bool] = _never,
    ) -> None:
        self.path = None if path is None else os.path.expanduser(os.fspath(path))
        self.about = about or {}
        self.over = over
        self.entries: dict[str, tuple[str, bool, Any]] = {}
        self._position: list[int] = [0]
        self._next, self._dirty = time.perf_counter() + EVERY, False
        if self.path is not None:
            files.clear(self.path)
            folder = os.path.dirname(os.path.realpath(self.path))
            if not os.access(folder, os.W_OK):
                raise OSError(f"checkpoint {self.path}: cannot write to the folder {folder}")
            if os.path.exists(self.path):
                self._read(self.path)

    def _read(self, path: str) -> None:
        found = files.read(path, "checkpoint")
        try:
            about, entries = unpack(found["about"]), found["entries"]
            differing = [k for k in {**self.about, **about} if self.about.get(k) != about.get(k)]
            differing = [k for k in differing if k != "seed"]
            self.entries = {
                k: (str(name), bool(done), unpack(value))
                for k, (name, done, value) in entries.items()
            }
        except Exception as error:
            raise files.FileError(f"the checkpoint {path} {error}") from None
        if differing:
            raise ValueError(
                f"the checkpoint {path} belongs to another fit ({', '.join(sorted(differing))} "
                "differ); delete it to start over, or give another path"
            )
        self.about = about
        log.info("resuming from the checkpoint %s", path)

    def step(self, name: str) -> Step:
        """Begin the next step and return it, with what an earlier run stored for it."""
        key = ".".join(map(str, self._position))
        stored = {} if self.path is None else self.entries
        known, done, kept = stored.get(key, (name, False, None))
        if kept is not None and known != name:
            raise self.refused(f"{name!r} was expected where it has {known!r}")
        if done:
            self._position[-1] += 1
        else:
            self._position.append(0)
        return Step(self, key, name, done, kept)

    def store(self, key: str, name: str, done: bool, value: Any) -> None:
        """Store a packable result, and write the file when it is due."""
        if self.path is None:
            return
        if self.over():
            self.close()
            return
        self.entries = {k: v for k, v in self.entries.items() if not k.startswith(key + ".")}
        self.entries[key] = name, done, value
        self._dirty = True
        if time.perf_counter() >= self._next:
            self.write()

    def refused(self, why: object) -> files.FileError:
        """Return the error for a checkpoint whose steps do not match this fit."""
        return files.FileError(f"the checkpoint {self.path} is of another fit: {why}; delete it")

    def write(self) -> None:
        """Write the checkpoint file atomically."""
        if self.path is None or not self._dirty:
            return
        began = time.perf_counter()
        entries = {k: [name, done, pack(v)] for k, (name, done, v) in self.entries.items()}
        try:
            _write(self.path, {"about": pack(self.about), "entries": entries}, "checkpoint")
        except OSError as error:
            # the fit matters more than its checkpoint, and the previous file is still intact
            warnings.warn(f"the checkpoint {self.path} cannot be written: {error}", stacklevel=2)
        took = time.perf_counter() - began
        self._next, self._dirty = time.perf_counter() + max(EVERY, took / SHARE), False
        log.debug("wrote the checkpoint %s in %.3f s", self.path, took)

    def close(self) -> None:
        """Write what is stored, and store nothing more."""
        self.write()
        self.path = None

    def finish(self) -> None:
        """Delete the checkpoint of a fit that is complete."""
        if self.path is not None:
            files.clear(self.path)
            if os.path.exists(self.path):
                os.unlink(self.path)


class Step:
    """One step of a fit.

    Attributes
    ----------
    done : bool
        Whether an earlier run finished it; then `kept` is its result.
    kept : object or None
        What an earlier run stored last.
    """

    def __init__(self, journal: Journal, key: str, name: str, done: bool, kept: Any) -> None:
        self.journal, self.key, self.name, self.done, self.kept = journal, key, name, done, kept

    def restored(self, restore: Callable[[Any], Any]) -> Any:
        """Return the stored result, or None; refuse a checkpoint that does not contain it."""
        if self.kept is None:
            return None
        try:
            return restore(self.kept)
        except Exception as error:
            raise self.journal.refused(error) from None

    @property
    def recording(self) -> bool:
        """Whether results are stored at all."""
        return self.journal.path is not None

    def note(self, value: Any) -> None:
        """Store an intermediate result, from which the step can continue."""
        self.journal.store(self.key, self.name, False, value)
        self.journal._position[-1] = 0

    def finish(self, value: Any) -> None:
        """Store the result of the step."""
        position = self.journal._position
        position.pop()
        self.journal.store(self.key, self.name, True, value)
        position[-1] = int(self.key.rpartition(".")[2]) + 1


def _write(path: str, tree: Any, kind: str) -> None:
    from .. import __version__

    files.write(path, tree, kind, __version__)


def _as_it_is(value: Any, *_: Any, **__: Any) -> Any:
    return value


class _Record:
    """A step of the journal, together with its effect on the outcome of a session."""

    def __init__(self, session: Any, name: str, shrink: Shrink, restore: Restore) -> None:
        self.outcome, self.since = session.outcome, len(session.outcome.history)
        self.step, self.shrink, self.restore = session.journal.step(name), shrink, restore

    def last(self, *args: Any, **kwargs: Any) -> Any:
        """Return what was stored, given the arguments of the function, or None."""

        def redone(kept: Any) -> Any:
            self.outcome.restore(kept, self.since)
            return self.restore(kept["value"], *args, **kwargs)

        return self.step.restored(redone)

    def packed(self, value: Any) -> Any:
        if not self.step.recording:
            return None
        return {**self.outcome.packed(self.since), "value": self.shrink(value)}


def remembered(
    name: str, shrink: Shrink = _as_it_is, restore: Restore = _as_it_is
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function a step of the journal; its first argument is a session.

    Parameters
    ----------
    name : str
        Stored with the result, to detect a checkpoint of other steps.
    shrink : callable
        Converts a result to something that can be packed.
    restore : callable
        ``restore(kept, *arguments)`` converts it back; the arguments are those of the function
        without the session.
    """

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def whole(*args: P.args, **kwargs: P.kwargs) -> T:
            record = _Record(args[0], name, shrink, restore)
            value: Any = record.last(*args[1:], **kwargs)
            if not record.step.done:
                value = work(*args, **kwargs)
                record.step.finish(record.packed(value))
            return value  # type: ignore[no-any-return]

        return whole

    return decorate


def remembered_steps(
    name: str, shrink: Shrink = _as_it_is, restore: Restore = _as_it_is
) -> Callable[[Callable[Concatenate[Any, T, P], Iterator[T]]], Callable[Concatenate[Any, T, P], T]]:
    """Make a generator function one step of the journal, as `remembered` does.

    The function takes a session and a value, and yields better values. Each replaces the one
    stored before, and the last is the result. A resumed fit passes the stored value in.
    """

    def decorate(
        work: Callable[Concatenate[Any, T, P], Iterator[T]],
    ) -> Callable[Concatenate[Any, T, P], T]:
        @functools.wraps(work)
        def whole(session: Any, value: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
            record = _Record(session, name, shrink, restore)
            last: Any = record.last(value, *args, **kwargs)
            if record.step.done:
                return last  # type: ignore[no-any-return]
            reached = value if last is None else last
            for better in work(session, reached, *args, **kwargs):
                reached = better
                record.step.note(record.packed(reached))
            record.step.finish(record.packed(reached))
            return reached

        return whole

    return decorate
