"""Store measurements, so that an interrupted reproduction resumes unless the code has changed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import scaledgd as sg

from .item import Case, Row, Setting

PACKAGE = Path(sg.__file__).parent
COMPILED = "scaledgd.kernels._compiled"
SUFFIXES = {".py", ".so", ".pyd", ".dylib", ".npz"}
"""Files that measurements depend on: modules, the compiled library, bundled data."""


def fingerprint(setting: Setting | None = None, package: Path | None = None) -> str:
    """Return a hash of everything that measurements depend on.

    These are all modules of the package, the compiled library, the bundled data, and the user's
    own data if `setting` names them.

    Parameters
    ----------
    setting : Setting, optional
    package : path, optional
        Folder of the package, by default the one that was imported.

    Returns
    -------
    str
        16 hexadecimal digits.

    Examples
    --------
    >>> from scaledgd.experiments.journal import fingerprint
    >>> len(fingerprint()), fingerprint() == fingerprint()
    (16, True)
    """
    package = PACKAGE if package is None else package
    digest = hashlib.sha256(sg.__version__.encode())
    for name, path in sorted(_sources(package).items()):
        digest.update(f"\n{name}\n".encode())
        digest.update(path.read_bytes())
    if setting is not None and setting.chlorine is not None:
        given = setting.chlorine
        for path in sorted(given.iterdir()) if given.is_dir() else [given]:
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(package: Path) -> dict[str, Path]:
    """Return the files of the package by their relative names."""
    found = {
        path.relative_to(package).as_posix(): path
        for path in package.rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    }
    # an editable installation keeps the compiled library in another folder
    spec = importlib.util.find_spec(COMPILED)
    if spec is not None and spec.origin is not None:
        library = Path(spec.origin)
        if library.name not in {path.name for path in found.values()}:
            found[library.name] = library
    return found


class Journal:
    """The measured cases of one item, in a file of JSON lines.

    A line counts only for the code and data that wrote it. A truncated line is ignored.

    Parameters
    ----------
    path : path
        The file; it need not exist.
    code : str
        What the measurements depend on, see `fingerprint`.
    fresh : bool
        Delete the measurements of an earlier run.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from scaledgd.experiments.journal import Journal
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "item.jsonl"
    >>> Journal(path, "code").add({"kappa": 2}, [{"count": 40}], seconds=0.1)
    >>> {"kappa": 2} in Journal(path, "code"), {"kappa": 2} in Journal(path, "other code")
    (True, False)
    """

    def __init__(self, path: Path, code: str, fresh: bool = False) -> None:
        self._path, self._code = path, code
        self._known: dict[str, tuple[list[Row], float]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
                self._known[entry["key"]] = entry["rows"], entry["seconds"]
            except (ValueError, KeyError):
                continue

    def _key(self, case: Case) -> str:
        return f"{self._code} {json.dumps(case, sort_keys=True, default=str)}"

    def __contains__(self, case: Case) -> bool:
        return self._key(case) in self._known

    def __getitem__(self, case: Case) -> tuple[list[Row], float]:
        """Return the rows of a measured case and the seconds it took."""
        return self._known[self._key(case)]

    def add(self, case: Case, rows: list[Row], seconds: float) -> None:
        """Write a measured case to the file.

        Failures are not written, so that the next run measures them again.

        Parameters
        ----------
        case : dict
            Parameters of the case.
        rows : list of dict
            What was measured.
        seconds : float
            How long it took.
        """
        line = json.dumps({"key": self._key(case), "rows": rows, "seconds": seconds}, default=float)
        # keep the numbers as a resumed run would read them, so that both agree
        self._known[self._key(case)] = json.loads(line)["rows"], seconds
        if not any("failure" in row for row in rows):
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
