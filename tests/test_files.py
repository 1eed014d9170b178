"""Models in files: the same model comes back, and nothing else is let in."""

import io
import os
import pickle
import random
import shutil
import stat
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pytest
from benchmarks import reliability
from fitted import CASES, fresh

import scaledgd as sg
from scaledgd import files

pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = Path(__file__).parent / "models"


def answers(model, data):
    """All that a model can be asked, more or less."""
    index = tuple(np.arange(3) % n for n in model.factors_.shape)
    found = [*model.predict_entries(index, return_std=True), model.reconstruct()]
    if hasattr(model, "transform"):
        found += [
            model.transform(data[0]),
            model.transform(data[0][:7]),
            model.sample(2, index, random_state=0),
        ]
        found += [*model.interval(index, 0.8, kind="conformal"), model.score(data[0], force=True)]
        found += [*model.interval(index, 0.8)]
    else:
        found += [*model.predict(data[0], return_std=True)]
        found += [*model.interval(data[0], 0.8, kind="conformal")]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_model_comes_back_as_it_was(name, tmp_path):
    model, data = fresh(name, calibrate=0.2)
    model.fit(*data).save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert type(again) is type(model)
    assert again.get_params() == {**model.get_params(), "n_jobs": None}
    assert set(vars(again)) == set(vars(model))
    assert again.history_ == model.history_
    assert (again.status_, again.rank_, again.rank_path_) == (
        model.status_,
        model.rank_,
        model.rank_path_,
    )
    for a, b in zip(answers(model, data), answers(again, data), strict=True):
        assert np.array_equal(a, b)
    if hasattr(model, "partial_fit"):
        more = data[0][:9]
        a, b = model.partial_fit(more).reconstruct(), again.partial_fit(more).reconstruct()
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("name", ["noise", "robust", "tensor", "regression"])
def test_pickle_and_joblib_work_too(name, tmp_path):
    model, data = fresh(name, calibrate=0.2)
    model.fit(*data)
    joblib.dump(model, tmp_path / "model.joblib")
    for again in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        for a, b in zip(answers(model, data), answers(again, data), strict=True):
            assert np.array_equal(a, b)


def test_torch_models_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    model, (X,) = fresh("noise")
    model.fit(torch.from_numpy(X)).save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert torch.equal(again.reconstruct(), model.reconstruct())


def test_a_model_that_is_not_fitted_cannot_be_saved(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        sg.MatrixCompletion().save(tmp_path / "model.npz")
    assert not os.listdir(tmp_path)


def test_numpy_opens_a_file(tmp_path):
    model, data = fresh("noise")
    model.fit(*data).save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as found:
        assert any(
            found[name].shape == model.factors_.L.shape
            for name in found.files
            if name != "tree.json"
        )


def test_generators_and_paths_of_this_machine_are_left_out(tmp_path):
    model, data = fresh("noise", checkpoint=tmp_path / "fit.npz")
    model.set_params(random_state=np.random.RandomState(0)).fit(*data).save(tmp_path / "m.npz")
    again = sg.load(tmp_path / "m.npz")
    assert again.random_state is None
    assert again.checkpoint is None


# ---- files of earlier versions


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.npz")), ids=lambda path: path.stem)
def test_files_of_earlier_versions_are_read(path):
    model = sg.load(path)
    expected = np.load(path.with_suffix(".npy"))
    index = tuple(np.arange(4) % n for n in model.factors_.shape)
    np.testing.assert_allclose(model.predict_entries(index, return_std=True), expected, rtol=1e-9)


def test_there_are_files_of_this_version():
    assert {p.stem.split("-")[1] for p in MODELS.glob("*.npz")} >= {
        "MatrixCompletion",
        "TensorCompletion",
        "MatrixRegressor",
    }


# ---- writing


def test_whoever_reads_finds_the_old_file_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "tree.npz"
    files.write(path, {"n": 1}, "model", "1")

    def fails(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fails)
    with pytest.raises(OSError, match="no space"):
        files.write(path, {"n": np.eye(3)}, "model", "1")
    assert files.read(path, "model") == {"n": 1}
    assert os.listdir(tmp_path) == ["tree.npz"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    os.symlink(tmp_path / "there" / "real.npz", tmp_path / "link.npz")
    files.write(tmp_path / "link.npz", {"n": 1}, "model", "1")
    assert (tmp_path / "link.npz").is_symlink()
    assert files.read(tmp_path / "there" / "real.npz", "model") == {"n": 1}


def test_equal_trees_make_equal_files(tmp_path):
    for name in "ab":
        files.write(tmp_path / name, {"x": np.arange(5), "t": (1.5, None, True)}, "model", "1")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        (1, (2, [3.25, "ä"])),
        np.asarray(2.5),
        np.zeros((0, 3)),
        np.asarray(["a", "bc"]),
        np.asarray(["2020-01-01"], dtype="M8[ns]"),
        np.asarray([True, False]),
        2**70,
    ],
    ids=repr,
)
def test_values_come_back(value, tmp_path):
    files.write(tmp_path / "t", {"x": value}, "model", "1")
    found = files.read(tmp_path / "t", "model")["x"]
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype
        assert found.shape == value.shape
    np.testing.assert_equal(found, value)


@pytest.mark.parametrize("value", [np.asarray([None]), object(), {1: 2}, {"$array": 0}])
def test_what_is_not_plain_is_not_written(value, tmp_path):
    with pytest.raises(TypeError):
        files.write(tmp_path / "t", {"x": value}, "model", "1")
    assert not os.listdir(tmp_path)


# ---- hostile files


def test_every_bit_counts(tmp_path):
    path = tmp_path / "tree.npz"
    files.write(path, {"L": np.eye(2), "rank": 2}, "model", "1")
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(spoilt)
        with pytest.raises(sg.FileError):
            files.read(path, "model")


@pytest.mark.parametrize("kind", reliability.KINDS)
def test_spoilt_models_are_refused(kind, tmp_path):
    import random
    import shutil

    rng = random.Random(3)
    original, path = str(tmp_path / "model.npz"), str(tmp_path / "spoilt.npz")
    reliability.small_model(original)
    for _ in range(6):
        shutil.copy(original, path)
        reliability.mutate(path, kind, rng)
        with pytest.raises(sg.FileError):
            sg.load(path)


def test_a_file_that_runs_code_when_unpickled_does_not_run_it(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    path = tmp_path / "model.npz"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(sg.FileError):
        sg.load(path)
    inside = io.BytesIO()
    np.save(inside, np.asarray([Bomb()], dtype=object), allow_pickle=True)
    reliability.small_model(str(path))
    reliability.resealed(
        str(path), lambda name, data: inside.getvalue() if name == "0.npy" else data
    )
    with pytest.raises(sg.FileError, match="does not write"):
        sg.load(path)
    assert not (tmp_path / "executed").exists()


def test_members_that_overlap_do_not_multiply(tmp_path):
    """A zip whose entries all point at the same bytes is larger inside than outside."""
    path = tmp_path / "model.npz"
    reliability.small_model(str(path))
    with open(path, "w+b") as f:
        with zipfile.ZipFile(f, "w") as z:
            z.comment = files.MARK + b"0" * files.DIGITS
            z.writestr("0.npy", b"x" * 100_000)
            for k in range(1, 50):
                twin = zipfile.ZipInfo(f"{k}.npy")
                first = z.filelist[0]
                for name in ("header_offset", "file_size", "compress_size", "CRC"):
                    setattr(twin, name, getattr(first, name))
                z.filelist.append(twin)
            z.writestr("tree.json", b"{}")
        digest = files._digest(f, f.tell())
        f.seek(-files.DIGITS, os.SEEK_END)
        f.write(digest)
    with pytest.raises(sg.FileError, match="more than its own size"):
        sg.load(path)


@pytest.mark.parametrize(
    ("header", "member"),
    [
        ("{'descr': '<U1', 'fortran_order': False, 'shape': (30000000, 0), }", None),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (30000000, 0), }", None),
        ("{'descr': '<U500000000', 'fortran_order': False, 'shape': (0,), }", None),
    ],
)
def test_what_is_empty_is_not_long(header, member, tmp_path):
    import tracemalloc

    path = str(tmp_path / "model.npz")
    reliability.small_model(path)
    text = header.ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path) as z:
        last = z.namelist()[-1]
    reliability.resealed(path, lambda name, old: data if name == last else old)
    tracemalloc.start()
    with pytest.raises(sg.FileError):
        sg.load(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rank": 2', b'"rank": 2.5'),
        (b'"n_jobs": null', b'"n_jobs": "many"'),
        (b'"n_jobs": null', b'"n_jobs": 0'),
        (
            b'"center": "both", "scale": "none", "robust"',
            b'"center": "none", "scale": "none", "robust"',
        ),
        (b'{"class": "dtype", "fields": {"name": "float64"}}', b'"U10000000"'),
        (b'{"class": "dtype", "fields": {"name": "float64"}}', b'"float64"'),
        (b'"converged_": true', b'"converged_": 3'),
        (b'"threshold": null', b'"threshold": {}'),
        (b'"threshold": null', b'"threshold": 1.0'),
        (b'"typical": null', b'"typical": {"class": "dict", "fields": {}}'),
        (b'"MatrixCompletion"', b'"RobustPCA"'),
        (b'"settings"', b'"fitted"'),
        (b'"size": ', b'"size": 0.0, "v": '),
        (b'"noise": ', b'"noise": -'),
        (b'"free": ', b'"free": "a'),
        (b'"how": "numpy"', b'"how": "torch"'),
    ],
)
def test_models_that_make_no_sense_are_refused(old, new, tmp_path):
    path = str(tmp_path / "model.npz")
    reliability.small_model(path)
    edited = []

    def edit(name, data):
        if name == "tree.json":
            assert old in data
            edited.append(name)
            return data.replace(old, new, 1)
        return data

    reliability.resealed(path, edit)
    assert edited
    with pytest.raises(sg.FileError):
        sg.load(path)


def test_parts_before_or_besides_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    reliability.small_model(str(path))
    with zipfile.ZipFile(path, "a") as z:
        z.writestr("extra.npy", b"")
    reliability.resealed(str(path), lambda name, data: data)
    with pytest.raises(sg.FileError, match="nothing refers to"):
        sg.load(path)


def test_parameters_may_change_after_the_fit(tmp_path):
    model, data = fresh("auto")
    model.fit(*data)
    model.set_params(rank=model.rank_, center="rows", outliers="auto").save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert np.array_equal(again.reconstruct(), model.reconstruct())


def test_parameters_may_be_arrays(tmp_path):
    _, (Y,) = fresh("noise")
    sg.MatrixCompletion(np.int64(2), clip=np.asarray([-1, 1])).fit(Y).save(tmp_path / "m.npz")
    again = sg.load(tmp_path / "m.npz")
    assert again.clip == [-1, 1]
    again.fit(Y)


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-300])
def test_data_of_any_size_come_back(scale, tmp_path):
    _, (Y,) = fresh("noise")
    model = sg.MatrixCompletion(2, calibrate=0.2, random_state=0).fit(Y * scale)
    model.save(tmp_path / "m.npz")
    assert np.array_equal(sg.load(tmp_path / "m.npz").reconstruct(), model.reconstruct())


def test_a_file_cannot_choose_where_to_write(tmp_path):
    path = str(tmp_path / "model.npz")
    reliability.small_model(path)

    def edit(name, data):
        old = b'"checkpoint": null'
        assert name != "tree.json" or old in data
        return data.replace(old, b'"checkpoint": "elsewhere"') if name == "tree.json" else data

    reliability.resealed(path, edit)
    with pytest.raises(sg.FileError):
        sg.load(path)


def test_estimators_of_others_are_not_saved(tmp_path):
    class Mine(sg.MatrixCompletion):
        pass

    _, data = fresh("noise")
    mine = Mine(3).fit(*data)
    with pytest.raises(TypeError, match="not an estimator of this library"):
        mine.save(tmp_path / "model.npz")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_its_permissions_and_a_new_one_follows_the_umask(mode, tmp_path):
    path, (_, data) = tmp_path / "model.npz", fresh("noise")
    path.touch()
    path.chmod(mode)
    before = os.umask(0o022)
    try:
        for name in ("model.npz", "new.npz"):
            sg.MatrixCompletion(1).fit(*data).save(tmp_path / name)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "new.npz").stat().st_mode) == 0o644
    assert sg.load(path).rank_ == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_nobody_else_may_open_what_is_being_written(tmp_path):
    path = tmp_path / "model.npz"
    path.touch(0o600)
    modes = []
    plain = os.open

    def opened(*args, **kwargs):
        number = plain(*args, **kwargs)
        modes.append(stat.S_IMODE(os.fstat(number).st_mode))
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opened)
        with files.replacing(path):
            (temporary,) = set(tmp_path.iterdir()) - {path}
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
    assert modes[0] == 0o600


def on_windows(monkeypatch, handle, error=0, waited=0):
    """A system where signal 0 is Ctrl-C, and where handles tell whether a process lives."""

    def killed(*args):
        raise AssertionError("Ctrl-C was sent")

    class Kernel:
        closed = ()

        class OpenProcess:
            def __new__(cls, access, inherit, process):
                return handle

        def WaitForSingleObject(self, given, milliseconds):
            assert (given.value, milliseconds) == (handle, 0)
            return waited

        def CloseHandle(self, given):
            Kernel.closed += (given.value,)

    monkeypatch.setattr(os, "kill", killed)
    monkeypatch.setattr(files.sys, "platform", "win32")
    monkeypatch.setattr(files.ctypes, "WinDLL", lambda *_, **__: Kernel(), raising=False)
    monkeypatch.setattr(files.ctypes, "get_last_error", lambda: error, raising=False)
    return Kernel


@pytest.mark.parametrize(
    ("handle", "error", "waited", "there"),
    [
        (2**40, 0, 258, True),  # it has not ended
        (2**40, 0, 0, False),  # it has ended, and somebody still has a handle
        (None, 87, 0, False),  # there is no such process
        (None, 5, 0, True),  # that of another user
    ],
)
def test_temporary_files_are_cleared_on_windows(
    handle, error, waited, there, monkeypatch, tmp_path
):
    left = tmp_path / ".fit.4321-1-0.tmp"
    left.touch()
    with monkeypatch.context() as patch:
        kernel = on_windows(patch, handle, error, waited)
        files.clear(tmp_path / "fit")
    assert left.exists() == there
    assert kernel.closed == (() if handle is None else (handle,))


def test_writers_that_are_alive_are_left_alone(tmp_path):
    mine = tmp_path / f".fit.{os.getpid()}-1-0.tmp"
    gone = tmp_path / ".fit.999999999-1-0.tmp"
    other = tmp_path / ".fit.npz.999999999-1-0.tmp"
    for path in (mine, gone, other):
        path.touch()
    files.clear(tmp_path / "fit")
    assert mine.exists()
    assert not gone.exists()
    assert other.exists()


def test_other_things_are_not_models(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("row,column,value\n" * 100)
    np.savez(tmp_path / "arrays.npz", X=np.eye(3))
    files.write(tmp_path / "checkpoint", {}, "checkpoint", "1")
    others = ["empty", "text", "arrays.npz", "checkpoint", ""]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        others.append("pipe")
    for name in others:
        with pytest.raises(sg.FileError):
            sg.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        sg.load(tmp_path / "nowhere")


def test_a_newer_format_asks_for_an_upgrade(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 99)
    files.write(tmp_path / "m", {}, "model", "9.9")
    monkeypatch.undo()
    with pytest.raises(sg.FileError, match=r"9\.9; upgrade"):
        sg.load(tmp_path / "m")


@pytest.mark.slow
def test_two_thousand_spoilt_models():
    for what, value, most in reliability.mutations(2000):
        assert value <= most or what.startswith("seconds"), what


@pytest.mark.parametrize("kind", ["not finite", "wrong shape"])
def test_no_array_of_a_model_is_taken_as_it_comes(tmp_path, kind):
    """Covariances of columns, and the noise in the history, were."""
    original, path = str(tmp_path / "model.npz"), str(tmp_path / "other.npz")
    reliability.small_model(original)
    rng = random.Random(0)
    for _ in range(60):
        shutil.copy(original, path)
        reliability.mutate(path, kind, rng)
        with pytest.raises(sg.FileError):
            sg.load(path)
