"""Check coverage of intervals, checkpoints of killed processes, hostile files and threads.

``python -m benchmarks.reliability`` runs everything (about 20 minutes on two cores). Name some of
``coverage``, ``student``, ``kills``, ``mutations`` and ``threads`` to run only those, and give
``--count`` for more or fewer seeds, kills or mutations. The coverage on real data is in
``benchmarks.answers``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg
from scaledgd import files

from .estimators import Line, matrix, run_part, spectrum

Array = Any


# ---- coverage


def inside(interval: tuple[Array, Array], values: Array) -> float:
    """Return the share of values inside their intervals."""
    lower, upper = interval
    return float(np.mean((lower <= values) & (values <= upper)))


def noisy_matrix(seed: int, decibels: float) -> tuple[Array, float, Array, Any]:
    """Make a 1000×800 matrix, rank 8, κ = 10: truth, noise level, 30 % mask, generator."""
    rng = np.random.default_rng(seed)
    X = matrix((1000, 800), spectrum(10, 8), rng)
    return X, 10 ** (-decibels / 20), rng.random(X.shape) < 0.3, rng


def noisy_tensor(seed: int, decibels: float) -> tuple[Array, float, Array, Any]:
    """Make a 60×50×40 tensor, rank 3, κ = 10: truth, noise level, 30 % mask, generator."""
    rng = np.random.default_rng(seed)
    X = sg.datasets.low_rank_tensor((60, 50, 40), 3, kappa=10, rng=seed).full()
    X = X / np.sqrt(np.mean(X**2))
    return X, 10 ** (-decibels / 20), rng.random(X.shape) < 0.3, rng


def covered(instance: Any, model: Any, noise: Callable[[Any, Any], Array]) -> tuple[float, float]:
    """Return the coverage of true entries (model) and of new observations (conformal)."""
    X, level, seen, rng = instance
    Y = np.where(seen, X + level * noise(rng, X.shape), np.nan)
    index = np.nonzero(~seen)
    truth = X[index]
    whole = model.set_params(calibrate=None).fit(Y)
    plug_in = inside(whole.interval(index, 0.95), truth)
    held = model.set_params(calibrate=0.1).fit(Y)
    new = truth + level * noise(rng, truth.shape)
    return plug_in, inside(held.interval(index, 0.95, kind="conformal"), new)


def normal(rng: Any, shape: Any) -> Array:
    """Draw normal noise."""
    return rng.standard_normal(shape)


def heavy(rng: Any, shape: Any) -> Array:
    """Draw Student noise with 2.2 degrees of freedom."""
    return rng.standard_t(2.2, shape)


def coverage(count: int = 20) -> Iterator[Line]:
    """Measure how far the coverage of 95 % intervals is from 95 % under normal noise."""
    cases = {"matrix": (noisy_matrix, sg.MatrixCompletion(8, random_state=0))}
    cases["tensor"] = (noisy_tensor, sg.TensorCompletion(3, random_state=0))
    for name, (instance, model) in cases.items():
        for decibels in (20, 40):
            pairs = [covered(instance(seed, decibels), model, normal) for seed in range(count)]
            for kind, mean in zip(("model", "conformal"), np.mean(pairs, axis=0), strict=True):
                what = f"{name}, {decibels} dB, {kind} intervals cover {mean:.2%}"
                yield what, abs(mean - 0.95), 0.02


def student(count: int = 20) -> Iterator[Line]:
    """Measure the coverage of 95 % intervals under Student noise (2.2 degrees of freedom)."""
    for name, instance, model in (
        ("matrix", noisy_matrix, sg.MatrixCompletion(8, random_state=0)),
        ("tensor", noisy_tensor, sg.TensorCompletion(3, random_state=0)),
    ):
        pairs = [covered(instance(seed, 20), model, heavy) for seed in range(count)]
        plug_in, conformal = np.mean(pairs, axis=0)
        yield f"{name}, conformal intervals cover {conformal:.2%}", abs(conformal - 0.95), 0.01
        yield f"{name}, model intervals cover {plug_in:.2%}, as it is", 0.0, 1.0


# ---- checkpoints


def interrupted_fit() -> tuple[Any, Array]:
    """Return an estimator and data whose fit has many stages and takes about a second."""
    rng = np.random.default_rng(0)
    X = matrix((150, 100), spectrum(20, 4), rng) + 3 + 0.1 * rng.standard_normal((150, 100))
    return sg.MatrixCompletion(random_state=0, n_jobs=1), np.where(
        rng.random(X.shape) < 0.4, X, np.nan
    )


def _child(path: str, answer: str | None) -> None:
    from scaledgd.estimators import journal

    journal.EVERY, journal.SHARE = 0.0, 0.5  # a third of the time is spent writing
    warnings.simplefilter("ignore")
    model, X = interrupted_fit()
    model.set_params(checkpoint=path).fit(X)
    if answer is not None:
        np.save(answer, model.reconstruct())


def _run(path: str, answer: str | None = None) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_child, args=(path, answer))
    process.start()
    return process


def kills(count: int = 500) -> Iterator[Line]:
    """Kill a checkpointing process at random moments, and resume from its checkpoint."""
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path, copy, answer = (str(Path(folder) / n) for n in ("fit.npz", "copy.npz", "answer.npy"))
        model, X = interrupted_fit()
        began = time.perf_counter()
        expected = model.fit(X).reconstruct()
        took = time.perf_counter() - began
        unreadable = different = found = 0
        for _ in range(count):
            process = _run(path)
            time.sleep(random.uniform(0, 1.2 * took))
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            if os.path.exists(path):
                found += 1
                try:
                    files.read(path, "checkpoint")
                except files.FileError:
                    unreadable += 1
                shutil.copy(path, copy)
            _run(copy, answer).join()
            different += not np.array_equal(np.load(answer), expected)
            os.unlink(answer)
            left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
            if len(left) > 2:
                different += 1
    yield f"{count} kills, {found} checkpoints, unreadable", unreadable, 0
    yield "resumed fits with a different result, to the bit", different, 0


# ---- hostile files


def small_model(path: str) -> Any:
    """Fit a small model, save it to `path` and return it."""
    rng = np.random.default_rng(0)
    X = matrix((20, 15), spectrum(3, 2), rng) + 0.1 * rng.standard_normal((20, 15))
    model = sg.MatrixCompletion(2, center="both", calibrate=0.1, random_state=0)
    model.fit(np.where(rng.random(X.shape) < 0.7, X, np.nan)).save(path)
    return model


def resealed(path: str, edit: Callable[[str, bytes], bytes], **options: Any) -> None:
    """Rewrite the members of a saved file and give it a valid checksum."""
    with zipfile.ZipFile(path) as z:
        members = {m.filename: z.read(m) for m in z.infolist()}
    with open(path, "w+b") as f:
        with zipfile.ZipFile(f, "w", **options) as z:
            z.comment = files.MARK + b"0" * files.DIGITS
            for name, data in members.items():
                z.writestr(zipfile.ZipInfo(name), edit(name, data), options.get("compression"))
        digest = files._digest(f, f.tell())
        f.seek(-files.DIGITS, os.SEEK_END)
        f.write(digest)


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _pickled(data: bytes, rng: random.Random) -> bytes:
    import pickle

    return pickle.dumps(np.asarray([print], dtype=object))


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bit flip": _flipped,
    "truncation": lambda data, rng: data[: rng.randrange(len(data))],
    "addition": lambda data, rng: data + rng.randbytes(rng.randint(1, 5000)),
    "noise": lambda data, rng: rng.randbytes(rng.randint(0, 20000)),
    "pickle": _pickled,
}
"""Changes of the raw bytes of a file."""


def mutate(path: str, kind: str, rng: random.Random) -> None:
    """Corrupt a model file in one of the ways that KINDS names."""
    with zipfile.ZipFile(path) as z:
        members = {m.filename: z.read(m) for m in z.infolist() if m.filename.endswith(".npy")}
    victim = rng.choice(list(members))
    if kind in DAMAGE:
        Path(path).write_bytes(DAMAGE[kind](Path(path).read_bytes(), rng))
        return
    options: dict[str, Any] = {}
    change: Callable[[bytes], bytes]
    if kind == "huge shape":
        n = str(10 ** rng.randint(6, 18))
        change = lambda b: _header(b, f"({n}, {rng.randint(1, 9)})")  # noqa: E731
    elif kind == "wrong shape":
        change = lambda b: _array_file(np.zeros((rng.randint(1, 9), 777)))  # noqa: E731
    elif kind == "object array":
        change = lambda b: _header(b, "(1,)", "'|O'")  # noqa: E731
    elif kind == "not finite":
        victim = rng.choice([n for n, b in members.items() if b"<f8" in b and len(b) > 128])
        change = lambda b: b[:-8] + np.float64(rng.choice([np.nan, np.inf])).tobytes()  # noqa: E731
    elif kind == "bomb":
        options = {"compression": zipfile.ZIP_DEFLATED}
        change = lambda b: b + b"\0" * 200_000_000 if rng.random() < 0.02 else b  # noqa: E731
    elif kind == "description":
        victim, change = "tree.json", lambda b: _description(b, rng)
    else:
        raise ValueError(kind)
    resealed(path, lambda name, b: change(b) if name == victim else b, **options)


KINDS = (
    *DAMAGE,
    "huge shape",
    "wrong shape",
    "object array",
    "not finite",
    "bomb",
    "description",
)


def _header(member: bytes, shape: str, kind: str = "'<f8'") -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust((-len(text) - 11) % 64 + len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + member[128:]


def _array_file(array: Array) -> bytes:
    import io

    f = io.BytesIO()
    np.save(f, array)
    return f.getvalue()


def _description(text: bytes, rng: random.Random) -> bytes:
    """Return a corrupted description: wrong kind, too deep, an unknown class, changed names."""
    changes: list[Callable[[], bytes]] = [
        lambda: b"[" * 100_000,
        lambda: b"{" + text,
        lambda: text.replace(b'"Bordered"', b'"os.system"'),
        lambda: text.replace(b'"model"', b'"checkpoint"'),
        lambda: text.replace(b'"format": 1', b'"format": 2'),
        lambda: text.replace(b'"factors"', b'"fit"'),
        lambda: text.replace(b'"MatrixCompletion"', b'"Pipeline"'),
        lambda: text.replace(b'"rank": 2', b'"rank": "many"'),
        lambda: text.replace(b'{"$array": 0}', b'{"$array": 1}'),
        lambda: text.replace(b'{"$array": 0}', b'{"$array": -1}'),
        lambda: text.replace(b'{"$array": 0}', b"null"),
        lambda: text.replace(b'"shape"', b'"form"'),
        lambda: text.replace(b'"size": ', b'"size": 1e999, "unit_": '),
        lambda: b" " * (files.TREE_LIMIT + 1),
    ]
    return rng.choice(changes)()


def mutations(count: int = 2000) -> Iterator[Line]:
    """Load corrupted model files, many of them with a valid checksum."""
    rng = random.Random(0)
    accepted, other, most, slowest = [], [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        original, path = (str(Path(folder) / name) for name in ("model.npz", "corrupted.npz"))
        small_model(original)
        sg.load(original)
        for k in range(count):
            kind = KINDS[k % len(KINDS)]
            shutil.copy(original, path)
            mutate(path, kind, rng)
            tracemalloc.start()
            began = time.perf_counter()
            try:
                if Path(path).read_bytes() == Path(original).read_bytes():
                    raise RuntimeError("the file was not changed")
                sg.load(path)
                accepted.append(kind)
            except sg.FileError:
                pass
            except Exception as error:
                other.append(f"{kind}: {error!r}")
            slowest = max(slowest, time.perf_counter() - began)
            most = max(most, tracemalloc.get_traced_memory()[1] / 2**20)
            tracemalloc.stop()
    yield f"{count} corrupted files, accepted {sorted(set(accepted))}", len(accepted), 0
    yield f"other errors {other[:3]}", len(other), 0
    yield "most MiB used to read one", most, 100
    yield "most seconds spent reading one", slowest, 5


# ---- fits at the same time


def threads(count: int = 2) -> Iterator[Line]:
    """Compare simultaneous fits, in threads and joblib workers, with the same fits run alone."""
    from joblib import Parallel, delayed

    rng = np.random.default_rng(0)
    X = matrix((300, 200), spectrum(10, 4), rng) + 0.05 * rng.standard_normal((300, 200))
    tables = [np.where(rng.random(X.shape) < 0.4, X, np.nan) for _ in range(max(2, count))]

    def fitted(Y: Array) -> Array:
        return sg.MatrixCompletion(4, n_jobs=1).fit(Y).reconstruct()

    alone = [fitted(Y) for Y in tables]
    together: list[Any] = [None] * len(tables)

    def work(k: int) -> None:
        together[k] = fitted(tables[k])

    running = [threading.Thread(target=work, args=(k,)) for k in range(len(tables))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    workers = Parallel(n_jobs=2)(delayed(fitted)(Y) for Y in tables)
    for name, found in (("threads", together), ("joblib workers", workers)):
        off = max(float(np.max(np.abs(a - b))) for a, b in zip(alone, found, strict=True))
        yield f"{name}: largest difference", off, 1e-10


PARTS: dict[str, Callable[..., Iterator[Line]]] = {
    part.__name__: part for part in (coverage, student, kills, mutations, threads)
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts named on the command line, or all; return how many lines missed their limit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--count", type=int, help="of seeds, kills or mutations")
    given = parser.parse_args(arguments)
    options = {} if given.count is None else {"count": given.count}
    parts = {name: PARTS[name] for name in given.parts or PARTS}
    return sum(
        run_part(name, partial(part, **options), part.__doc__) for name, part in parts.items()
    )


if __name__ == "__main__":
    raise SystemExit(main())
