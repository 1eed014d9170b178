"""The experiments of the monograph, one module per figure, table or theorem.

Run them with `reproduce`, or with ``scaledgd reproduce`` on the command line.
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
"""Names of the items: those of the monograph, in its order, then those of companion papers."""

from .item import Claim, Item, Rows, Setting, Verdict  # noqa: E402
from .runner import Finding, item, reproduce  # noqa: E402

__all__ = ["ITEMS", "Claim", "Finding", "Item", "Rows", "Setting", "Verdict", "item", "reproduce"]
