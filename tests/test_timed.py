"""Tables whose rows follow each other: stretches, likeness of neighbours, and the grid of times."""

import numpy as np
from numpy.testing import assert_allclose

from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.stamps import NANO
from scaledgd.estimators.timed import LARGEST, Layout, largest_rank, likeness, stretch


def test_a_stretch_of_a_table_stays_together():
    rng = np.random.default_rng(0)
    y, order = rng.standard_normal((1000, 40)), rng.permutation(1000)
    data = LocalObservations(None, y, y.shape, None, (3600 * NANO * order, None))
    for most, shape in ((20_000, (500, 40)), (900, (30, 30))):
        part = stretch(data, 0, most, 0)
        assert part.shape == shape
        assert np.all(np.diff(part.stamps[0]) == 3600 * NANO)
    assert np.array_equal(part.y, np.asarray(data.y)[np.argsort(order)][485:515][:, _kept(part, y)])
    assert stretch(data, 1, 900, 0).shape == (30, 30)
    assert largest_rank(data, 0) ** 2 * 1000 <= LARGEST


def _kept(part, y):
    """The columns of a table that a part of it has."""
    return [int(np.flatnonzero((y == v).any(axis=0))[0]) for v in part.y[0]]


def test_likeness_is_beyond_chance():
    alike = np.cumsum(np.random.default_rng(0).standard_normal((200, 10)), axis=0)
    data = LocalObservations(None, alike, alike.shape)
    assert likeness(data, 0) > 0.5
    assert likeness(data, 1) == 0.0
    for seed in range(5):
        noise = np.random.default_rng(seed).standard_normal((200, 10))
        assert likeness(LocalObservations(None, noise, noise.shape), 0) == 0


def test_a_layout_puts_entries_in_order():
    rng = np.random.default_rng(0)
    holes = np.where(rng.random((60, 8)) < 0.3, np.nan, rng.standard_normal((60, 8)))
    order = rng.permutation(60)
    known = np.nonzero(np.isfinite(holes[order]))
    stamps = (3600 * NANO * order, None)
    data = LocalObservations(known, holes[order][known], holes.shape, None, stamps)
    layout = Layout.of(data, 0)
    grid = layout.table(data)
    assert_allclose(np.where(grid.weight > 0, grid.Z, np.nan), holes)
    assert_allclose(layout.full(grid.Z), np.nan_to_num(holes[order]))
    assert_allclose(layout.at(grid.Z, data.coordinates), data.flat)
