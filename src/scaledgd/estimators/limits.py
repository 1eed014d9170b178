"""The numbers that steer the judgement of tables, each with its reason and the data that set it.

Held-out errors are in units of the noise of their column unless stated otherwise.
"""

from __future__ import annotations

# ---- what is held out

FRACTION = 0.1
"""Share of the entries in a fold: most rows keep most of their entries."""

ENOUGH = 4000
"""Held-out entries, over all folds, that decide: .02 of a mean square is then beyond chance."""

FEWEST = 20
"""Number of entries below which none are held out."""

FEWEST_FOLDS = 3
"""Fewest folds in time: gaps err together, and a single draw of them says little."""

FOLDS = 10
"""Most folds: with tenths, every entry has been held out once."""

TOGETHER = 2.0
"""Mean squared correlation of missing columns, over that by chance, above which gaps are copied."""

LARGE = 300_000
"""Entries above which candidates are judged by a part of the data."""

FEWER = 6
"""How many times fewer entries are enough to choose offsets and units of a large table."""

# ---- how candidates are fitted

FIRST_RANK = 14
"""Rank of the first fits; full covariances converge faster with a few columns to spare."""

WIDER = 3
"""Factor of the rank as long as nearly all columns are needed."""

FINE = 1e-3
"""Relative change of the noise that ends the fit of a candidate; the final fit ends at 2e-4."""

FORGET = 10
"""Sweeps that forget held-out entries; with 20 the choice was no better on 44 real tables."""

QUIET = 0.02
"""Share of noise in the variance below which growing the rank may do better."""

# ---- how they are judged

BOUND = 3.0
"""Error beyond which an entry counts no more than at it: a few entries must not decide."""

OWN = 30
"""Held-out errors of a column that count as much as those of all columns, for its unit."""

LEAST = 0.1
"""Smallest unit of a column in its deviations: an exact column must not decide alone."""

EVIDENCE = 2.0
"""Standard errors by which a candidate must be worse than the best to be judged no further."""

ALIKE = 0.01
"""Share of a squared error by which candidates may differ and count as equally good."""

HARDLY = 0.9
"""Share of the squared error of column means above which offsets alone are tried, too."""

# ---- the Gaussian of the rows

AFFORDABLE = 3e7
"""Multiplications of an iteration up to which it is a candidate: choosing takes some hundred."""

GROUPS = 3
"""Groups of rows that are left out in turn to choose the shrinkage."""
