"""What people rely on, measured: coverage, checkpoints that survive kills, hostile files, threads.

``python -m scaledgd.experiments.reliability`` runs everything (about 20 minutes on two cores);
name some of ``coverage``, ``student``, ``real``, ``kills``, ``mutations`` and ``threads`` to run
those, and give ``--count`` for more or fewer seeds, kills or mutations.
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

from .estimators import Line, matrix, report, spectrum, table

Array = Any


# ---- coverage


def inside(interval: tuple[Array, Array], values: Array) -> float:
    lower, upper = interval
    return float(np.mean((lower <= values) & (values <= upper)))


def noisy_matrix(seed: int, decibels: float) -> tuple[Array, float, Array, Any]:
    """1000×800, rank 8, κ = 10: the truth, the noise, what is seen of it (30 %), randomness."""
    rng = np.random.default_rng(seed)
    X = matrix((1000, 800), spectrum(10, 8), rng)
    return X, 10 ** (-decibels / 20), rng.random(X.shape) < 0.3, rng


def noisy_tensor(seed: int, decibels: float) -> tuple[Array, float, Array, Any]:
    """60×50×40, multilinear rank 3, κ = 10, seen to 30 %."""
    rng = np.random.default_rng(seed)
    X = sg.datasets.low_rank_tensor((60, 50, 40), 3, kappa=10, rng=seed).full()
    X = X / np.sqrt(np.mean(X**2))
    return X, 10 ** (-decibels / 20), rng.random(X.shape) < 0.3, rng


def covered(instance: Any, model: Any, noise: Callable[[Any, Any], Array]) -> tuple[float, float]:
    """The shares of true entries in model intervals and of new observations in conformal ones."""
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
    return rng.standard_normal(shape)


def heavy(rng: Any, shape: Any) -> Array:
    return rng.standard_t(2.2, shape)


def coverage(count: int = 20) -> Iterator[Line]:
    """95 % intervals under normal noise: how far their mean coverage is from 95 %."""
    cases = {"matrix": (noisy_matrix, sg.MatrixCompletion(8, random_state=0))}
    cases["tensor"] = (noisy_tensor, sg.TensorCompletion(3, random_state=0))
    for name, (instance, model) in cases.items():
        for decibels in (20, 40):
            pairs = [covered(instance(seed, decibels), model, normal) for seed in range(count)]
            for kind, mean in zip(("model", "conformal"), np.mean(pairs, axis=0), strict=True):
                what = f"{name}, {decibels} dB, {kind} intervals cover {mean:.2%}"
                yield what, abs(mean - 0.95), 0.02


def student(count: int = 20) -> Iterator[Line]:
    """95 % intervals under Student noise with 2.2 degrees of freedom."""
    for name, instance, model in (
        ("matrix", noisy_matrix, sg.MatrixCompletion(8, random_state=0)),
        ("tensor", noisy_tensor, sg.TensorCompletion(3, random_state=0)),
    ):
        pairs = [covered(instance(seed, 20), model, heavy) for seed in range(count)]
        plug_in, conformal = np.mean(pairs, axis=0)
        yield f"{name}, conformal intervals cover {conformal:.2%}", abs(conformal - 0.95), 0.01
        yield f"{name}, model intervals cover {plug_in:.2%}, as it is", 0.0, 1.0


def real(count: int = 3) -> Iterator[Line]:
    """90 % conformal intervals of real data, half of which is hidden."""
    tables = {
        "chlorine": table("chlorine")["X"].T[:120, :180],
        "electricity": table("electricity-321")["X"].astype(float),
        "metr-la": table("metr-la-week")["X"].astype(float),
    }
    for name, X in tables.items():
        shares, widths = [], []
        for seed in range(count):
            seen = np.random.default_rng(seed).random(X.shape) < 0.5
            made = sg.MatrixCompletion if X.ndim == 2 else sg.TensorCompletion
            model: Any = made(calibrate=0.1, random_state=seed)
            model.fit(np.where(seen, X, np.nan))
            index = np.nonzero(~seen)
            lower, upper = model.interval(index, 0.9, kind="conformal")
            shares.append(inside((lower, upper), X[index]))
            widths.append(np.mean(upper - lower) / X.std())
        mean = float(np.mean(shares))
        what = f"{name}, {mean:.2%} covered, mean width {np.mean(widths):.2f} standard deviations"
        yield what, abs(mean - 0.9), 0.02


# ---- checkpoints


def interrupted_fit() -> tuple[Any, Array]:
    """A fit of many stages that takes about a second."""
    rng = np.random.default_rng(0)
    X = matrix((150, 100), spectrum(20, 4), rng) + 3 + 0.1 * rng.standard_normal((150, 100))
    return sg.MatrixCompletion(random_state=0, n_jobs=1), np.where(
        rng.random(X.shape) < 0.4, X, np.nan
    )


def _child(path: str, answer: str | None) -> None:
    from ..estimators import journal

    journal.EVERY, journal.SHARE = 0.0, 0.5  # a third of the time goes into writing
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
    """A checkpointing process killed at any moment: is what it leaves whole, and as good?"""
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
    yield "resumed fits that end elsewhere, to the bit", different, 0


# ---- hostile files


def small_model(path: str) -> Any:
    rng = np.random.default_rng(0)
    X = matrix((20, 15), spectrum(3, 2), rng) + 0.1 * rng.standard_normal((20, 15))
    model = sg.MatrixCompletion(2, center="both", calibrate=0.1, random_state=0)
    model.fit(np.where(rng.random(X.shape) < 0.7, X, np.nan)).save(path)
    return model


def resealed(path: str, edit: Callable[[str, bytes], bytes], **options: Any) -> None:
    """Rewrite the members of a file, with a checksum that is right again."""
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


def mutate(path: str, kind: str, rng: random.Random) -> None:
    """Spoil a model file."""
    data = bytearray(Path(path).read_bytes())
    with zipfile.ZipFile(path) as z:
        arrays = [m.filename for m in z.infolist() if m.filename.endswith(".npy")]
    victim = rng.choice(arrays)

    def only(change: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
        return lambda name, member: change(member) if name == victim else member

    if kind == "bit flip":
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "truncation":
        data = data[: rng.randrange(len(data))]
    elif kind == "addition":
        data += rng.randbytes(rng.randint(1, 5000))
    elif kind == "noise":
        data = bytearray(rng.randbytes(rng.randint(0, 20000)))
    elif kind == "pickle":
        import pickle

        payload = pickle.dumps(np.asarray([print], dtype=object))
        data = bytearray(payload)
    else:
        options: dict[str, Any] = {}
        edit: Callable[[str, bytes], bytes]
        if kind == "huge shape":
            n = str(10 ** rng.randint(6, 18))
            edit = only(lambda b: _header(b, f"({n}, {rng.randint(1, 9)})"))
        elif kind == "wrong shape":
            edit = only(lambda b: _array_file(np.zeros((rng.randint(1, 9), 777))))
        elif kind == "object array":
            edit = only(lambda b: _header(b, "(1,)", "'|O'"))
        elif kind == "not finite":
            floats = [
                n for n in arrays if b"<f8" in _member(path, n) and len(_member(path, n)) > 128
            ]
            victim = rng.choice(floats)
            edit = only(lambda b: b[:-8] + np.float64(rng.choice([np.nan, np.inf])).tobytes())
        elif kind == "bomb":
            options = {"compression": zipfile.ZIP_DEFLATED}
            edit = only(lambda b: b + b"\0" * 200_000_000 if rng.random() < 0.02 else b)
        elif kind == "description":
            edit = lambda name, b: _description(b, rng) if name == "tree.json" else b  # noqa: E731
        else:
            raise ValueError(kind)
        resealed(path, edit, **options)
        return
    Path(path).write_bytes(bytes(data))


KINDS = (
    "bit flip",
    "truncation",
    "addition",
    "noise",
    "pickle",
    "huge shape",
    "wrong shape",
    "object array",
    "not finite",
    "bomb",
    "description",
)


def _member(path: str, name: str) -> bytes:
    with zipfile.ZipFile(path) as z:
        return z.read(name)


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
    """Another JSON: of the wrong kind, too deep, of a class that is none, with names changed."""
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
    """Model files that were spoilt, many with a checksum that is right again."""
    rng = random.Random(0)
    accepted, other, most, slowest = [], [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        original, path = (str(Path(folder) / name) for name in ("model.npz", "spoilt.npz"))
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
                    raise RuntimeError("nothing was spoilt")
                sg.load(path)
                accepted.append(kind)
            except sg.FileError:
                pass
            except Exception as error:
                other.append(f"{kind}: {error!r}")
            slowest = max(slowest, time.perf_counter() - began)
            most = max(most, tracemalloc.get_traced_memory()[1] / 2**20)
            tracemalloc.stop()
    yield f"{count} spoilt files, accepted {sorted(set(accepted))}", len(accepted), 0
    yield f"other errors {other[:3]}", len(other), 0
    yield "MiB that reading one took at most", most, 100
    yield "seconds that reading one took at most", slowest, 5


# ---- side by side


def threads(count: int = 2) -> Iterator[Line]:
    """Fits side by side, in threads and in joblib's workers, against the same alone."""
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
    for name, found in (("threads", together), ("joblib's workers", workers)):
        off = max(float(np.max(np.abs(a - b))) for a, b in zip(alone, found, strict=True))
        yield f"{name}: largest difference", off, 1e-10


PARTS: dict[str, Callable[..., Iterator[Line]]] = {
    part.__name__: part for part in (coverage, student, real, kills, mutations, threads)
}


def main(arguments: list[str] | None = None) -> int:
    """Run some parts; return how many lines missed their limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--count", type=int, help="of seeds, kills or mutations")
    given = parser.parse_args(arguments)
    missed = 0
    for name in given.parts or list(PARTS):
        options = {} if given.count is None else {"count": given.count}
        missed += report(name, partial(PARTS[name], **options))
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
