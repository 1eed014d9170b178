"""Folders are replaced as a whole, and only those that this library wrote."""

import contextlib
import json
import os
import stat
import sys

import numpy as np
import pytest

from scaledgd import folders
from scaledgd.files import FileError


def contents(path):
    """Every file below a folder, also hidden ones, and what is in it."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None
        for p in sorted(path.rglob("*"))
    }


def write(path, text="new", names=("a", "b"), kind="table", meanwhile=lambda: None):
    with folders.replacing(path, kind, "1.0") as folder:
        for name in names:
            (folder / name).write_text(text)
        meanwhile()


@pytest.fixture(params=["one step", "two steps"])
def path(request, tmp_path, monkeypatch):
    """A folder of ours, on systems that can exchange folders and on others."""
    if request.param == "two steps":
        monkeypatch.setattr(folders, "_exchanged", lambda a, b: False)
    elif not sys.platform.startswith("linux"):
        pytest.skip("folders are exchanged in two steps here")
    write(tmp_path / "out", "old", ("a", "c"))
    return tmp_path / "out"


def test_a_folder_is_replaced_with_all_that_was_in_it(path):
    write(path)
    found = contents(path.parent)
    assert found.pop("out") is None
    marker = json.loads(found.pop(f"out{os.sep}_scaledgd.json"))
    assert marker == {"format": 1, "kind": "table", "version": "1.0", "files": ["a", "b"]}
    assert found == {f"out{os.sep}a": b"new", f"out{os.sep}b": b"new"}


def test_a_failure_leaves_the_old_folder(path):
    before = contents(path.parent)

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, "half", meanwhile=interrupted)
    assert contents(path.parent) == before


class Killed(BaseException):
    """Stands in for kill -9: whoever catches it can do nothing more."""


@contextlib.contextmanager
def killed_after(monkeypatch, count):
    """From the given change of the disk on, every change fails."""
    done = []
    with monkeypatch.context() as patch:

        def until(change):
            def call(*args, **kwargs):
                done.append(change)
                if len(done) > count:
                    raise Killed
                return change(*args, **kwargs)

            return call

        for name in ("rename", "unlink", "rmdir", "mkdir", "chmod", "fsync"):
            patch.setattr(os, name, until(getattr(os, name)))
        for name in ("unlink", "rmdir", "mkdir", "chmod"):
            patch.setattr(folders.Path, name, until(getattr(folders.Path, name)))
        patch.setattr(folders.shutil, "rmtree", until(folders.shutil.rmtree))
        patch.setattr(folders, "_exchanged", until(folders._exchanged))
        patch.setattr(folders, "_host", lambda: "here")
        yield done


def test_a_kill_at_any_moment_leaves_the_old_or_the_new(path, monkeypatch):
    monkeypatch.setattr(folders, "PATIENCE", 0.0)
    monkeypatch.setattr(folders, "_host", lambda: "here")
    whole = {"old": {"a", "c"}, "new": {"a", "b"}}
    seen, number, ended = [], 0, False
    while not ended:
        write(path, "old", ("a", "c"))
        with killed_after(monkeypatch, number) as done, contextlib.suppress(Killed):
            write(path)
        ended = len(done) <= number
        number += 1
        folders.recover(path)
        found = {p.name: p.read_text() for p in path.iterdir() if p.name != folders.MARKER}
        (text,) = set(found.values())
        assert set(found) == whole[text]
        seen.append(text)
        folders.check(path, "table")
        # the next process removes what is left
        monkeypatch.setattr(folders.files, "alive", lambda process: False)
        write(path)
        assert [p.name for p in path.parent.iterdir()] == ["out"]
    assert seen[0] == "old"
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)  # once it is new, it stays new
    assert len(seen) > 10


def test_an_exchange_that_goes_on_is_waited_for(path, monkeypatch):
    """Nothing is put back while another process may be between two steps."""
    aside = path.with_name(".out.scaledgd-old")
    path.rename(aside)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            aside.rename(path)

    monkeypatch.setattr(folders.time, "sleep", nap)
    monkeypatch.setattr(folders.time, "monotonic", lambda: 0.0)
    folders.recover(path)
    assert len(naps) == 3
    assert path.is_dir()


def test_leftovers_of_processes_that_live_or_of_other_machines_stay(path, monkeypatch):
    monkeypatch.setattr(folders, "_host", lambda: "here")
    names = (f".out.here-{os.getpid()}-77.new", ".out.there-999999999-0.new", ".other.here-1-0.new")
    for name in (*names, ".out.here-999999999-0.new"):
        (path.parent / name).mkdir()
        (path.parent / name / "part").touch()
    write(path)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(["out", *names])


# ---- what is never touched


def spoil(path, how):
    marker = path / folders.MARKER
    if how == "a file":
        (path / "mine.txt").write_text("mine")
    elif how == "a folder":
        (path / "more").mkdir()
    elif how == "a folder of that name":
        (path / "a").unlink()
        (path / "a").mkdir()
        (path / "a" / "mine.txt").write_text("mine")
    elif how == "no marker":
        marker.unlink()
    elif how == "empty":
        for p in path.iterdir():
            p.unlink()
    elif how == "no sense":
        marker.write_text("[]")
    elif how == "another program's marker":
        marker.write_text('{"format": 1, "kind": "table", "files": "all"}')
    elif how == "newer":
        found = json.loads(marker.read_text())
        marker.write_text(json.dumps({**found, "format": 2, "version": "9.9"}))
    elif how == "not a folder":
        for p in path.iterdir():
            p.unlink()
        path.rmdir()
        path.write_text("mine")


REFUSED = {
    "a file": "also holds mine.txt, which scaledgd did not write",
    "a folder": "also holds more, which",
    "a folder of that name": "also holds a, which",
    "no marker": "has no _scaledgd.json.*earlier version",
    "empty": "has no _scaledgd.json",
    "no sense": "has no _scaledgd.json",
    "another program's marker": "has no _scaledgd.json",
    "newer": r"newer version, 9\.9; upgrade",
    "not a folder": "is not a folder",
}


@pytest.mark.parametrize("how", REFUSED)
def test_folders_of_others_are_refused(path, how):
    spoil(path, how)
    before = contents(path.parent)
    with pytest.raises(FileError, match=REFUSED[how]), folders.replacing(path, "table", "1.0"):
        raise AssertionError
    assert contents(path.parent) == before


def test_folders_of_another_kind_are_refused(path):
    with pytest.raises(FileError, match="holds Parquet files, not a saved model"):
        write(path, kind="model")
    assert (path / "a").read_text() == "old"


def test_the_current_folder_is_refused(path, monkeypatch):
    (path.parent / "beside").mkdir()
    for here, name in ((path, "."), (path, path), (path.parent / "beside", "..")):
        monkeypatch.chdir(here)
        before = contents(path.parent)
        with pytest.raises(FileError, match="current folder"):
            write(name)
        assert contents(path.parent) == before


@pytest.mark.parametrize("name", [".", "a", ".."])
def test_inputs_are_not_replaced(path, name):
    given = [path / name]
    with pytest.raises(FileError, match="holds the input"):
        folders.check(path, "table", given)
    folders.check(path, "table", [path.parent / "beside"])


def test_a_link_is_followed(path):
    link = path.parent / "link"
    link.symlink_to(path, target_is_directory=True)
    write(link)
    assert link.is_symlink()
    assert (path / "a").read_text() == "new"
    folders.check(link, "table")


def test_a_marker_cannot_name_files_elsewhere(path):
    (path.parent / "mine.txt").write_text("mine")
    found = json.loads((path / folders.MARKER).read_text())
    names = [*found["files"], "../mine.txt", str(path.parent / "mine.txt"), "."]
    (path / folders.MARKER).write_text(json.dumps({**found, "files": names}))
    write(path)
    assert (path.parent / "mine.txt").read_text() == "mine"
    assert (path / "a").read_text() == "new"


# ---- what comes in between


@pytest.mark.parametrize("how", ["a file", "no marker", "not a folder"])
def test_work_is_kept_if_the_place_is_taken_meanwhile(path, how):
    (path.parent / "out-new-1").touch()  # is not replaced, either
    with pytest.raises(FileError, match=r"what was to be written there is in .*out-new-2$"):
        write(path, meanwhile=lambda: spoil(path, how))
    assert path.is_file() or (path / "a").read_text() == "old"
    assert path.is_dir() or path.read_text() == "mine"
    assert (path.parent / "out-new-2" / "a").read_text() == "new"
    assert sorted(p.name for p in path.parent.iterdir()) == ["out", "out-new-1", "out-new-2"]


def test_what_appears_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileError, match="exists now"):
        write(out, "second", meanwhile=lambda: write(out, "first"))
    assert (out / "a").read_text() == "first"
    assert (tmp_path / "out-new-1" / "a").read_text() == "second"


def test_a_file_that_comes_in_the_last_moment_is_not_removed(path, monkeypatch):
    """Between the check and the exchange."""
    plain = folders._exchange

    def late(fresh, target):
        (target / "mine.txt").write_text("mine")
        plain(fresh, target)

    monkeypatch.setattr(folders, "_exchange", late)
    write(path)
    assert (path / "b").read_text() == "new"
    assert [p.read_text() for p in path.parent.rglob("mine.txt")] == ["mine"]
    monkeypatch.setattr(folders, "_exchange", plain)
    monkeypatch.setattr(folders.files, "alive", lambda process: False)
    write(path)
    assert [p.read_text() for p in path.parent.rglob("mine.txt")] == ["mine"]


def test_a_folder_that_cannot_be_moved_stays(path, monkeypatch):
    def busy(a, b):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(folders, "_exchange", busy)
    with pytest.raises(FileError, match=r"out: Device or resource busy; .* is in .*out-new-1"):
        write(path)
    assert (path / "a").read_text() == "old"


# ---- permissions


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_permissions_are_kept_and_new_folders_follow_the_umask(path):
    path.chmod(0o750)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    before = os.umask(0o027)
    try:
        write(path.parent / "other")
    finally:
        os.umask(before)
    assert stat.S_IMODE((path.parent / "other").stat().st_mode) == 0o750


# ---- what reads such a folder


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # what Dask does within pandas
def test_the_marker_is_no_table_to_readers_of_parquet(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": np.arange(3.0)})
    with folders.replacing(tmp_path / "out", "table", "1.0") as folder:
        frame.to_parquet(folder / "part-00000.parquet", index=False)
    assert pd.read_parquet(tmp_path / "out").equals(frame)
    dd = pytest.importorskip("dask.dataframe")
    assert dd.read_parquet(str(tmp_path / "out")).compute().equals(frame)
