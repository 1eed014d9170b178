"""Compare the default answers of the estimators with those of other libraries.

``python -m benchmarks.answers`` runs all sections; name some to run only those. Every estimator
has its default settings, except that ratings are clipped to their range and a row may name a rank.
Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from .. import real_data
from .asked import Ask, Row, SkippedError
from .defaults import defaults
from .determined import above, determined
from .families import families
from .intervals import intervals
from .ratings import ratings, skewed
from .robust import faces, robust, video
from .tables import narrow, sensors
from .tensors import tensors

BASELINE = Path(__file__).with_name("errors-0.1.0.json")
SECTIONS: dict[str, Callable[[Ask], Iterator[Row]]] = {
    section.__name__: section
    for section in (
        ratings,
        skewed,
        narrow,
        sensors,
        families,
        tensors,
        robust,
        faces,
        video,
        above,
        determined,
        intervals,
        defaults,
    )
}


def line(section: str, row: Row) -> str:
    """Return a row of the table."""
    cpu = f"{row['cpu']:9.2f}" if "cpu" in row else " " * 9
    who, what = row.get("who", "scaledgd"), row["measure"]
    shown = f"{section:<10} {row['case']:<44} {who:<28} {what:<24} {row['value']:>10.4g} {cpu}"
    return f"{shown} {row.get('note', '')}".rstrip()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    real_data.add_option(parser)
    parser.add_argument("--peers", action="store_true", help="run other libraries, too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument(
        "--only", default="", help="rows with this in 'case, who'; numbers FROM:TO for determined"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        default=BASELINE,
        help="recorded errors that determined compares with; by default those of 0.1.0",
    )
    parser.add_argument("--record", type=Path, help="file for the errors of determined, resumable")
    given = parser.parse_args(arguments)
    unknown = set(given.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Run the sections named on the command line, or all, and print their rows."""
    given = parsed(arguments)
    ask = Ask(
        real_data.find_folder(given.data),
        given.peers,
        given.quick,
        given.only,
        given.baseline,
        given.record,
    )
    missing = [p for p in ("cmfrec", "myfm", "tensorly") if ask.peers and not find_spec(p)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}")
    rows = []
    for name in given.sections or SECTIONS:
        try:
            for row in SECTIONS[name](ask):
                rows.append({"section": name, **row})
                print(line(name, row), flush=True)
                if given.json is not None:
                    given.json.write_text(json.dumps(rows, indent=1) + "\n")
        except SkippedError as reason:
            print(f"{name:<10} skipped: {reason}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
