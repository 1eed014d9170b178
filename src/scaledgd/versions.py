"""What is installed, for reports of defects."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

NEEDED = ("numpy", "scipy", "scikit-learn", "array-api-compat", "threadpoolctl")
OPTIONAL = (
    *("pandas", "pyarrow", "openpyxl", "python-calamine", "defusedxml", "typer", "rich"),
    *("matplotlib", "polars", "xarray", "torch", "triton", "dask", "distributed"),
)
INSTRUCTIONS = {"baseline": "baseline", "wide": "AVX2", "widest": "AVX-512"}
"""Instruction sets that the kernels are compiled for, by their names in the build."""
VARIABLES = ("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_")
"""How variables of other libraries begin that change speed or results."""


def show_versions() -> None:
    """Print the versions of everything that a fit depends on, to paste into a bug report.

    That is Python, the packages, whether the kernels are compiled and for which instruction set,
    the BLAS, and the number of threads. ``scaledgd --version --verbose`` prints the same.

    Examples
    --------
    >>> import scaledgd as sg
    >>> sg.show_versions()  # doctest: +ELLIPSIS
    scaledgd          ...
    Python            ...
    """
    for what, value in _facts():
        print(f"{what:<20} {value}")


def _facts() -> Iterator[tuple[str, str]]:
    from . import __version__

    yield "scaledgd", __version__
    yield "Python", " ".join(sys.version.split())
    yield "platform", platform.platform()
    yield "cores", str(os.cpu_count())
    for name in NEEDED:
        yield name, _version(name) or "not installed"
    found = {name: _version(name) for name in OPTIONAL}
    yield from ((name, version) for name, version in found.items() if version)
    yield "not installed", ", ".join(name for name in found if not found[name]) or "nothing"
    yield "kernels", _kernels()
    yield from _libraries()
    for name in sorted(os.environ):
        if name.startswith(("SCALEDGD_", *VARIABLES)) and os.environ[name]:
            yield name, os.environ[name]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _kernels() -> str:
    try:
        compiled = importlib.import_module(".kernels._compiled", __package__)
    except ImportError as error:
        why = " ".join(str(error).split())
        return (
            f"not compiled ({why}); NumPy and SciPy do their work, several times more slowly. "
            "Install again with a C++ compiler, GCC or Clang, to have them"
        )
    which = INSTRUCTIONS[compiled.instructions()]
    return f"compiled, using {which} instructions and {compiled.get_num_threads()} threads"


def _libraries() -> Iterator[tuple[str, str]]:
    """The BLAS and OpenMP libraries that are loaded, with their threads."""
    import numpy
    import scipy.linalg  # noqa: F401  (it may bring a BLAS of its own)
    from threadpoolctl import threadpool_info

    built = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    yield "BLAS of NumPy", f"{built.get('name')} {built.get('version')}"
    for library in threadpool_info():
        if library["user_api"] in ("blas", "openmp"):
            kind = "BLAS" if library["user_api"] == "blas" else "OpenMP"
            words = (library["internal_api"], library.get("version"), library.get("architecture"))
            name = " ".join(word for word in words if word)
            file = os.path.basename(library["filepath"])
            yield f"loaded {kind}", f"{name}, {library['num_threads']} threads ({file})"
