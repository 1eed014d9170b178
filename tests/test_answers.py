"""The benchmark of default answers draws the same data every time, and its sections run."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.answers import determined, families, peers, ratings, robust, tables, tensors
from benchmarks.answers.__main__ import BASELINE, SECTIONS, main
from benchmarks.answers.asked import Ask, Hidden, SkippedError


def test_a_table_depends_on_its_number_only():
    first, again, other = (determined.table(n) for n in (7, 7, 8))
    np.testing.assert_array_equal(first.holes, again.holes)
    assert first.holes.shape != other.holes.shape
    # recorded errors stay comparable only as long as the draw is this one
    assert float(np.nansum(first.holes)) == pytest.approx(55.32064159197179, rel=1e-9)


@pytest.mark.parametrize("number", range(20))
def test_a_table_is_determined(number):
    drawn = determined.table(number)
    seen = np.isfinite(drawn.holes)
    free = drawn.rank * (sum(seen.shape) - drawn.rank)
    assert np.linalg.matrix_rank(drawn.truth) == drawn.rank
    assert seen.sum() > 2.4 * free
    assert min(seen.sum(0).min(), seen.sum(1).min()) >= drawn.rank + 2
    if drawn.noise == 0:
        np.testing.assert_array_equal(drawn.holes[seen], drawn.truth[seen])


def test_recorded_errors_are_resumed_and_compared(tmp_path, capsys):
    record = tmp_path / "errors.jsonl"
    command = ["determined", "--only", "1:2", "--record", str(record)]
    assert main(command) == 0
    kept = record.read_text()
    assert main([*command, "--baseline", str(record)]) == 0
    assert record.read_text() == kept
    shown = capsys.readouterr().out
    assert "median ratio" in shown
    record.write_text(kept.replace('"version": "', '"version": "not '))
    assert main(command) == 0
    assert "skipped" in capsys.readouterr().out


def test_small_errors_count_as_equal():
    assert determined.ratio(1e-12, 1e-7) == determined.ratio(1e-7, 1e-12) == 1
    assert determined.ratio(2e-3, 1e-3) == pytest.approx(2)
    assert determined.ratio(1e-3, 0.0) == pytest.approx(1e3)


def test_the_errors_of_the_last_release_are_there():
    kept = determined.recorded(BASELINE)
    assert sorted(kept) == list(range(determined.COUNT))
    assert all(0 <= line[kind] < 1.5 for line in kept.values() for kind in ("auto", "given"))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: determined.above_table(3, 1e-3).holes,
        lambda: ratings.power_law(40, 30, 500, 2).values,
        lambda: robust.narrow_table(3, 1).observed,
        lambda: robust.far_off(1).observed,
        lambda: tensors.lost((5, 6, 7), 1),
        lambda: tables.gaps((100, 8), "blocks"),
    ],
)
def test_draws_repeat(draw):
    np.testing.assert_array_equal(draw(), draw())


@pytest.mark.parametrize("kind", tables.GAPS)
def test_gaps_hide_some_of_every_kind(kind):
    hidden = tables.gaps((200, 8), kind)
    assert 0.02 < hidden.mean() < 0.4
    if kind == "blackout":
        np.testing.assert_array_equal(hidden.any(axis=1), hidden.all(axis=1))


def test_a_lost_fibre_is_lost_whole():
    hidden = tensors.lost((6, 5, 4), 1)
    assert 0 < hidden.mean() < 1
    np.testing.assert_array_equal(hidden.any(axis=1), hidden.all(axis=1))


def test_a_part_of_a_section_runs_beside_peers():
    ask = Ask(peers=True, quick=True, only="linnerud")
    rows = list(SECTIONS["narrow"](ask))
    assert {row["case"] for row in rows} == {"linnerud"}
    assert [row["who"] for row in rows] == [
        "MatrixCompletion()",
        "KNNImputer(10)",
        "IterativeImputer()",
        "Gaussian EM",
    ]
    assert all(0.3 < row["value"] < 3 and row["cpu"] >= 0 for row in rows)


def test_a_peer_that_fails_is_named_and_the_others_go_on():
    def broken(table):
        raise ImportError("no such library")

    table = Hidden(np.eye(2), np.eye(2, dtype=bool))
    ways = {"broken": broken, "right": lambda table: table.truth}
    rows = list(Ask().compared("case", lambda: [table], ways, (), {"RMSE": Hidden.rmse}))
    assert [row["measure"] for row in rows] == ["failed", "RMSE"]
    assert "no such library" in rows[0]["note"]
    assert rows[1]["value"] == 0


def test_sections_without_data_say_so(tmp_path):
    for name in ("ratings", "sensors", "tensors", "faces", "video", "intervals"):
        for data in (None, tmp_path):
            with pytest.raises(SkippedError, match=r"data"):
                list(SECTIONS[name](Ask(data=data)))


def test_the_normal_model_predicts_by_regression():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2)) @ np.array([[1, 0.5, 0.5], [0, 1, -1]])
    hidden = np.zeros(X.shape, dtype=bool)
    hidden[:100, 0] = True
    table = Hidden(X, hidden)
    # the first column is the sum of the others
    assert table.rmse(peers.gaussian(table.holes)) < 0.02 < table.rmse(np.zeros(X.shape))


def test_pursuit_separates_outliers():
    rng = np.random.default_rng(0)
    X = np.outer(rng.standard_normal(60), rng.standard_normal(50))
    Y = X + 10 * (rng.random(X.shape) < 0.05)
    low = peers.principal_component_pursuit(Y)
    assert np.abs(low - X).max() < 1e-3 < np.abs(Y - X).max()


@pytest.mark.parametrize("family", families.FAMILIES)
def test_tables_of_families_depend_on_their_number_only(family):
    first, again, other = (families.table(family, k) for k in (3, 3, 4))
    np.testing.assert_array_equal(first.holes, again.holes)
    assert not np.array_equal(first.holes, other.holes, equal_nan=True)
    for one in (first, other):
        assert np.isfinite(one.truth).all()
        assert one.hidden.any()
        assert not one.hidden.all(axis=0).any()  # every column has an entry
        assert families.error(one, one.truth) == 0
        assert 0.05 < families.means(one) < 20
