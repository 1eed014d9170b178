"""Find and load the real data sets, which may not be redistributed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Default folder, beside the checkout."""


def find_folder(given: Path | None = None) -> Path | None:
    """Return the folder of the real data, or None if there is none.

    Parameters
    ----------
    given : path, optional
        Folder named by the user. The default is the environment variable SCALEDGD_DATA, then
        the folder ``shared/data`` beside the checkout.

    Returns
    -------
    path or None
    """
    if given is not None:
        if not given.is_dir():
            raise FileNotFoundError(f"{given} is not a folder; give the folder of the real data")
        return given
    named = os.environ.get("SCALEDGD_DATA")
    folder = Path(named) if named else BESIDE
    return folder if folder.is_dir() else None


def load(folder: Path, name: str, file: str = "*") -> Any:
    """Load the npz file in the subfolder `name` of `folder`."""
    paths = sorted((folder / name).glob(f"{file}.npz"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no data set {name}")
    return np.load(paths[0], allow_pickle=False)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--data`` to a parser."""
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the real data; by default SCALEDGD_DATA, or shared/data beside the "
        "checkout",
    )


def left_out(part: str) -> None:
    """Say that a part was skipped because there are no real data."""
    print(f"{part}: skipped; it needs the real data: give --data FOLDER or set SCALEDGD_DATA")
