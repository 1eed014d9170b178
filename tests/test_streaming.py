"""Entries that do not fit on a GPU: the fit of parts that are sent there is the fit of all.

The device is the CPU here, and its kernels are those of PyTorch; `test_gpu` has the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import scaledgd as sg  # noqa: E402
from scaledgd.cli import fits  # noqa: E402
from scaledgd.distributed import streaming  # noqa: E402
from scaledgd.distributed.shards import DuplicateError  # noqa: E402

SHAPE = (60, 40)
HERE = torch.device("cpu")
ELSEWHERE = torch.device("cpu", 0)
"""The same memory, but not the same device."""


@pytest.fixture(autouse=True)
def large(limits) -> None:
    """Treat small tables as large ones: chosen on a part, and without whole covariances."""
    limits(table=400, joint=0, streamed=0)
    limits(sorted_on_device=64)  # two or three pieces in every part


def entries(dtype: Any = torch.float64) -> tuple[Any, Any]:
    """Noisy entries of a matrix of rank 2 with offsets, in any order."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SHAPE[0], 2)) @ rng.standard_normal((2, SHAPE[1]))
    X += 3 * rng.standard_normal(SHAPE[1]) + rng.standard_normal((SHAPE[0], 1))
    i, j = np.nonzero(rng.random(SHAPE) < 0.5)
    order = rng.permutation(len(i))
    i, j = i[order], j[order]
    y = X[i, j] + 0.5 * rng.standard_normal(len(i))
    return (torch.tensor(i), torch.tensor(j)), torch.tensor(y, dtype=dtype)


def fitted(
    monkeypatch: pytest.MonkeyPatch, bytes_per_entry: int | None, place: Any = HERE, **options: Any
) -> Any:
    """A fit with so much room on the device; None leaves it to PyTorch where the entries are."""
    index, y = entries(options.pop("dtype", torch.float64))
    monkeypatch.setattr(
        streaming, "place_of", lambda data: None if bytes_per_entry is None else place
    )
    monkeypatch.setenv(streaming.LIMIT, str((bytes_per_entry or 0) * len(y)))
    model = sg.MatrixCompletion(random_state=0, **options)
    return model.fit_entries(index, y, SHAPE)


def apart(a: Any, b: Any) -> float:
    X, Y = a.reconstruct(), b.reconstruct()
    return float((X - Y).abs().max() / X.abs().max())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float64, {"rank": 2}),
        (torch.float32, {"rank": 2}),
        # later iterates amplify the rounding in columns that vanish
        (torch.float64, {"rank": "auto", "max_iter": 5}),
        (torch.float32, {"rank": "auto", "max_iter": 5}),
        (torch.float64, {"rank": 2, "center": "both", "scale": "columns"}),
        (torch.float64, {"rank": 2, "ridge": 0.1}),
        (torch.float32, {"rank": 2, "non_negative": True}),
        (torch.float32, {"rank": 2, "calibrate": 0.1}),
    ],
)
def test_streamed_fits_are_those_of_all_entries(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], dtype: Any
) -> None:
    whole = fitted(monkeypatch, None, dtype=dtype, **options)
    streamed = fitted(monkeypatch, 24 if dtype == torch.float64 else 16, dtype=dtype, **options)
    assert "streamed" not in whole.status_
    assert f" of {len(entries()[1]):,} entries were streamed to the GPU" in streamed.status_
    assert "; 0 of" not in streamed.status_
    assert (whole.rank_, whole.center_) == (streamed.rank_, streamed.center_)
    assert apart(whole, streamed) <= (1e-12 if dtype == torch.float64 else 2e-5)
    if "calibrate" in options:
        index = (torch.tensor([0, 1]), torch.tensor([1, 2]))
        bounds = zip(*(m.interval(index, kind="conformal") for m in (whole, streamed)), strict=True)
        for a, b in bounds:
            torch.testing.assert_close(a, b)


def test_a_streamed_model_answers_as_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    model = fitted(monkeypatch, 24, rank=2)
    whole = fitted(monkeypatch, None, rank=2)
    index, y = entries()
    some = tuple(i[:5] for i in index)
    for kind in ("model", "prediction"):
        for a, b in zip(
            model.interval(some, kind=kind), whole.interval(some, kind=kind), strict=True
        ):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(model.noise_variance_, whole.noise_variance_)
    rows = torch.full((3, SHAPE[1]), torch.nan, dtype=torch.float64)
    rows[:, ::2] = 1.0
    torch.testing.assert_close(model.transform(rows), whole.transform(rows))
    model.save(tmp_path / "model.sgd")
    again = sg.load(tmp_path / "model.sgd")
    torch.testing.assert_close(again.predict_entries(some), model.predict_entries(some))
    assert again.status_ == model.status_
    monkeypatch.setattr(streaming, "place_of", lambda data: HERE)
    monkeypatch.setenv(streaming.LIMIT, str(24 * len(y)))
    model.set_params(warm_start=True).fit_entries(index, y, SHAPE)
    monkeypatch.setattr(streaming, "place_of", lambda data: None)
    whole.set_params(warm_start=True).fit_entries(index, y, SHAPE)
    assert [h["stage"] for h in model.history_] == [h["stage"] for h in whole.history_]
    assert apart(model, whole) < 1e-9


def test_entries_that_fit_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(monkeypatch, None, rank=2)
    sent = fitted(monkeypatch, 1000, ELSEWHERE, rank=2)
    assert sent.status_ == whole.status_
    assert apart(whole, sent) == 0
    assert sent.factors_.L.device == HERE


def test_parts_hold_every_entry_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    index, y = entries()
    monkeypatch.setenv(streaming.LIMIT, str(20 * len(y)))
    data = sg.EntryTable(index, y, SHAPE).observations
    parts = streaming.streamed(data, HERE)
    assert len(parts.shards[0]) == 4
    assert sum(part.stays for part in parts.shards[0]) == 2
    assert len(y) / 3 < parts.sent < 2 * len(y) / 3
    table = torch.full(SHAPE, torch.nan, dtype=y.dtype)
    table[index] = y
    for mode in (0, 1):
        found = torch.full_like(table, torch.nan)
        for part in parts.shards[mode]:
            own = part.own + part.first
            both = (own, part.others.long()) if mode == 0 else (part.others.long(), own)
            found[both] = part.y
            key = part.own * SHAPE[1 - mode] + part.others
            assert bool((key[1:] > key[:-1]).all())
        torch.testing.assert_close(found, table, equal_nan=True)
        assert sum(part.size for part in parts.shards[mode]) == len(y)
    assert parts.components() == data.components() == 1


def test_parts_that_no_entry_joins_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(streaming.LIMIT, "1000")
    index = torch.arange(30), torch.arange(30) // 2
    data = sg.EntryTable(index, torch.ones(30), (30, 15)).observations
    assert streaming.streamed(data, HERE).components() == data.components() == 15


def test_what_is_not_streamed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"outliers": "auto"}, {"smooth": "rows"}):
        (name,) = options
        with pytest.raises(NotImplementedError, match=f"do not fit on the GPU, and {name} needs"):
            fitted(monkeypatch, 30, rank=2, **options)
    index, y = entries()
    with pytest.raises(NotImplementedError, match="weights needs"):
        sg.MatrixCompletion(rank=2).fit_entries(index, y, SHAPE, entry_weight=1 + y.abs())
    twice = tuple(torch.cat([i, i[:1]]) for i in index)
    with pytest.raises(DuplicateError, match="is given more than once"):
        sg.MatrixCompletion(rank=2).fit_entries(twice, torch.cat([y, y[:1]]), SHAPE)
    monkeypatch.setenv(streaming.LIMIT, "10")
    with pytest.raises(MemoryError, match="leave no room"):
        sg.MatrixCompletion(rank=2).fit_entries(index, y, SHAPE)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("limited", [False, True])
def test_the_command_line_sends_tables_and_brings_models_back(
    monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    index, y = (x for x in entries())
    data = sg.EntryTable(tuple(i.numpy() for i in index), y.numpy(), SHAPE).observations
    monkeypatch.setattr(fits, "_for_gpu", lambda: (torch.as_tensor, torch.as_tensor))
    monkeypatch.setattr(streaming, "place_of", lambda data: ELSEWHERE)
    if limited:
        monkeypatch.setenv(streaming.LIMIT, str(24 * len(y)))
    here, there = (sg.MatrixCompletion(rank=2, random_state=0) for _ in range(2))
    fits._fit(here, data, "cpu")
    fits._fit(there, data, "cuda")
    assert ("streamed" in there.status_) == limited
    assert isinstance(there.factors_.L, np.ndarray)
    assert isinstance(there._model.observations.y, np.ndarray)
    X, Y = here.reconstruct(), there.reconstruct()
    assert np.abs(X - Y).max() <= 1e-9 * np.abs(X).max()
