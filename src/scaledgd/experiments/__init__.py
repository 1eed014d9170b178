"""The monograph, item by item: one module per figure, table or theorem.

`reproduce` runs them, or ``scaledgd reproduce`` on the command line.
"""

ITEMS = (
    "figure1",
    "figure2",
    "table1_iterations",
    "table1_samples",
    "table2",
    "theorem1",
    "theorem2",
    "theorem3",
    "theorem4",
    "theorem5",
    "theorem6",
    "theorem7",
    "cost",
    "overparameterised",
    "figure3",
    "figure4",
    "noise",
    "step_size",
    "run_time",
    "hankel",
    "robust_sensing",
    "quadratic_sampling",
    "tensor_robust_pca",
)
"""In the order of the monograph, then those of its companion papers."""

from .item import Claim, Item, Rows, Setting, Verdict  # noqa: E402
from .runner import Finding, item, reproduce  # noqa: E402

__all__ = ["ITEMS", "Claim", "Finding", "Item", "Rows", "Setting", "Verdict", "item", "reproduce"]
