"""``python -m scaledgd``: complete matrices of growing condition number, two ways."""

from __future__ import annotations

import argparse
import sys

from .experiments import demonstration

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scaledgd", description=__doc__)
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves (needs matplotlib)")
    sys.exit(demonstration.main(plot=parser.parse_args().plot))
