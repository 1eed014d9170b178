"""Fits that are broken off: by a crash, by kill -9, by Ctrl-C, by the clock, by a callback."""

import copy
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from fitted import CASES, fresh, table
from sklearn.exceptions import ConvergenceWarning

import scaledgd as sg
from scaledgd.estimators import journal, matrix_estimator
from scaledgd.estimators.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")


class Crash(BaseException):
    """As if the power had gone."""


@pytest.fixture
def often(limits):
    """A checkpoint at every iterate."""
    limits(checkpoint_seconds=0.0, checkpoint_share=1e9)


def crashing(monkeypatch, after):
    """Let the fit crash after some iterates; return how to count them."""
    whole, count = Session.watched, [0]

    def watched(self, *args):
        count[0] += 1
        if count[0] > after:
            raise Crash
        return whole(self, *args)

    monkeypatch.setattr(Session, "watched", watched)
    return count


def crash(monkeypatch, after, model, *data):
    """Begin a fit that crashes after some iterates."""
    with monkeypatch.context() as broken:
        crashing(broken, after)
        with pytest.raises(Crash):
            model.fit(*data)


def alike(a, b):
    """Whether two fits are the same, to the bit."""
    blocks = zip(a.factors_.blocks, b.factors_.blocks, strict=True)
    values = [[(r["t"], r["value"], r["stage"]) for r in m.history_] for m in (a, b)]
    return all(np.array_equal(x, y) for x, y in blocks) and values[0] == values[1]


# ---- crashes

SLOW = ("auto", "noise", "outliers", "robust auto")
"""Cases that take the longest and share their steps with others."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in CASES]
)
def test_a_fit_that_crashed_again_and_again_ends_as_if_it_had_not(
    name, often, monkeypatch, tmp_path
):
    model, data = fresh(name, n_jobs=1)
    with monkeypatch.context() as counting:
        count = crashing(counting, 10**9)
        model.fit(*data)
    chance = random.Random(0)
    again, _ = fresh(name, n_jobs=1, checkpoint=tmp_path / "fit.npz")
    crashes = 0
    for _ in range(200):
        with monkeypatch.context() as broken:
            crashing(broken, chance.randint(1, max(2, count[0] // 3)))
            try:
                again.fit(*data)
                break
            except Crash:
                crashes += 1
                assert not [f for f in os.listdir(tmp_path) if f.endswith(".tmp")]
    assert crashes >= 2
    assert alike(model, again)
    assert model.status_ == again.status_
    assert not os.listdir(tmp_path)  # nothing is left to go on from


@pytest.mark.long
def test_a_resumed_fit_does_not_do_again_what_was_done(often, monkeypatch, tmp_path):
    model, data = fresh("auto", checkpoint=tmp_path / "fit.npz")
    with monkeypatch.context() as counting:
        total = crashing(counting, 10**9)
        fresh("auto")[0].fit(*data)
    crash(monkeypatch, int(0.8 * total[0]), model, *data)
    with monkeypatch.context() as counting:
        rest = crashing(counting, 10**9)
        model.fit(*data)
    assert rest[0] < 0.3 * total[0]


def test_without_a_seed_the_fit_goes_on_with_the_draw_it_began_with(often, monkeypatch, tmp_path):
    model, data = fresh("auto", checkpoint=tmp_path / "fit.npz")
    model.set_params(random_state=None)
    seeds = []
    for _ in range(2):
        crash(monkeypatch, 20, model, *data)
        tree = journal.files.read(tmp_path / "fit.npz", "checkpoint")
        seeds.append(journal.unpack(tree["about"])["seed"])
    assert seeds[0] == seeds[1]


@pytest.mark.parametrize(
    ("params", "data", "what"),
    [
        ({"rank": 2}, table(), "rank"),
        ({"tol": 1e-4}, table(), "tol"),
        ({}, table(seed=5), "data"),
        ({"random_state": 1}, table(), "random_state"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(params, data, what, often, monkeypatch, tmp_path):
    model, (X,) = fresh("noise", checkpoint=tmp_path / "fit.npz")
    crash(monkeypatch, 6, model, X)
    before = (tmp_path / "fit.npz").read_bytes()
    with pytest.raises(ValueError, match=f"another fit .*{what}.* differ.*delete it"):
        model.set_params(**params).fit(data)
    assert (tmp_path / "fit.npz").read_bytes() == before


def test_what_does_not_change_the_answer_may_differ(often, monkeypatch, tmp_path):
    model, data = fresh("ridge", checkpoint=tmp_path / "fit.npz")
    crash(monkeypatch, 6, model, *data)
    model.set_params(verbose=1, max_time=1000, n_jobs=1).fit(*data)
    assert model.converged_


def test_a_damaged_checkpoint_and_a_bad_path_are_refused(tmp_path):
    model, data = fresh("noise", checkpoint=tmp_path / "fit.npz")
    (tmp_path / "fit.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(sg.FileError):
        model.fit(*data)
    with pytest.raises(OSError, match="nowhere"):
        model.set_params(checkpoint=tmp_path / "nowhere" / "fit.npz").fit(*data)
    with pytest.raises(TypeError, match="path"):
        model.set_params(checkpoint=3).fit(*data)


def test_writing_takes_a_small_share_of_the_time(monkeypatch, tmp_path, clock):
    """Of a fit on a clock that moves by a second when it is read, and by 30 for a checkpoint."""
    written = []
    clock.tick = 1.0
    slow = journal._write

    def write(*args):
        written.append(clock.now)
        clock.skip(30)
        slow(*args)

    monkeypatch.setattr(journal, "_write", write)
    model, data = fresh("auto", checkpoint=tmp_path / "fit.npz", n_jobs=1)
    model.fit(*data)
    assert len(written) > 2
    assert min(np.diff(written)) > 30 / journal.SHARE


# ---- kill -9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process that is killed is a fork")
def test_kill_at_any_moment_leaves_a_whole_checkpoint():
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.reliability"]
    done = subprocess.run(
        [*command, "kills", "--count", "5"],
        cwd=pathlib.Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   5 kills" in done.stdout
    assert " 0 checkpoints" not in done.stdout


# ---- Ctrl-C


def interrupting(monkeypatch, after):
    """Press Ctrl-C after some iterates."""
    whole, count = Session.watched, [0]

    def watched(self, *args):
        result = whole(self, *args)
        count[0] += 1
        if count[0] == after:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(Session, "watched", watched)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_control_c_leaves_the_last_iterate(name, monkeypatch, tmp_path):
    model, data = fresh(name, checkpoint=tmp_path / "fit.npz", n_jobs=1)
    with monkeypatch.context() as pressed:
        interrupting(pressed, 4)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data)
    assert "interrupted at iteration" in model.status_
    assert not model.converged_
    assert np.all(np.isfinite(model.reconstruct()))
    whole, _ = fresh(name, n_jobs=1)
    whole.fit(*data)
    assert not alike(whole, model)
    # and the fit can be gone on with
    assert os.listdir(tmp_path) == ["fit.npz"]
    assert alike(whole, model.fit(*data))


def test_control_c_can_be_asked_to_return(monkeypatch):
    model, data = fresh("noise", interrupt="return")
    interrupting(monkeypatch, 4)
    assert model.fit(*data) is model
    assert "interrupted" in model.status_
    index = np.nonzero(np.isfinite(data[0]))
    off = model.predict_entries(index) - data[0][index]
    assert np.std(off) < 0.2 * np.std(data[0][index])


def pressed(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("center", ["auto", "none"])
@pytest.mark.parametrize("name", CASES)
def test_before_there_is_an_iterate_offsets_are_fitted(name, center, monkeypatch, tmp_path):
    model, data = fresh(name, interrupt="return", center=center)
    monkeypatch.setattr(type(model), "_search", pressed)
    model.fit(*data)
    assert "interrupted before the first iterate" in model.status_
    assert not model.converged_
    if "regression" not in name:
        X, seen = data[0], np.isfinite(data[0])
        off = (model.reconstruct() - X)[seen]
        typical = np.median if hasattr(model, "outliers_") else np.mean
        size = typical(np.abs(X[seen]))
        assert typical(np.abs(off)) <= 1.01 * size
    else:
        assert np.allclose(model.predict(data[0]), np.mean(data[1]) if center == "auto" else 0.0)
    model.save(tmp_path / "model.npz")
    sg.load(tmp_path / "model.npz").reconstruct()


def test_while_a_model_is_built_control_c_waits(monkeypatch):
    model, data = fresh("noise", interrupt="return")
    whole, count = type(model)._modelled, [0]

    def modelled(self, *args):
        count[0] += 1
        return pressed() if count[0] == 1 else whole(self, *args)

    monkeypatch.setattr(type(model), "_modelled", modelled)
    model.fit(*data)
    assert "interrupted at iteration" in model.status_


def test_before_data_are_read_nothing_is_fitted(monkeypatch):
    model, data = fresh("noise", interrupt="return")
    monkeypatch.setattr(matrix_estimator, "read_matrix", pressed)
    with pytest.raises(KeyboardInterrupt, match="before the data were read: nothing is fitted"):
        model.fit(*data)
    assert not hasattr(model, "factors_")


def test_nothing_replaces_an_answer_that_is_raised(monkeypatch):
    model, data = fresh("noise")
    monkeypatch.setattr(matrix_estimator, "search", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data)
    assert not hasattr(model, "factors_")


def test_an_interrupted_refit_keeps_the_model_that_was(monkeypatch):
    model, data = fresh("noise")
    before = model.fit(*data).factors_
    monkeypatch.setattr(matrix_estimator, "search", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data)
    assert model.factors_ is before


def anywhere(monkeypatch, model, data, after):
    """Press Ctrl-C at some line of the library; return whether it was pressed."""
    left = [after]

    def trace(frame, event, arg):
        if "scaledgd/estimators" not in frame.f_code.co_filename:
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        model.fit(*data)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["noise", "robust", "tensor", "regression"])
def test_control_c_at_any_line_leaves_the_old_model_or_a_new_one(name, monkeypatch, tmp_path):
    model, data = fresh(name)
    smaller = (data[0][:-3], *(y[:-3] for y in data[1:]))
    fitted = model.fit(*smaller)
    whole = fitted.reconstruct()
    chance = random.Random(0)
    pressed = 0
    for _ in range(5):
        model = copy.deepcopy(fitted)
        pressed += anywhere(monkeypatch, model, data, chance.randint(1, 4000))
        same = model.reconstruct().shape == whole.shape
        if same and "interrupted" not in model.status_ and name != "regression":
            assert np.array_equal(model.reconstruct(), whole)
        index = tuple(np.arange(3) for _ in model.factors_.shape)
        model.predict_entries(index, return_std=True)
        model.save(tmp_path / "model.npz")
        sg.load(tmp_path / "model.npz")
    assert pressed >= 2


def test_a_refit_of_another_width_is_all_or_nothing(monkeypatch):
    model, (Y,) = fresh("noise")
    model.fit(Y[:, :20])
    monkeypatch.setattr(matrix_estimator, "search", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.fit(Y)
    assert model.n_features_in_ == 20
    assert model.transform(Y[:, :20]).shape == (40, 20)


@pytest.mark.parametrize("how", ["warm", "partial"])
def test_what_went_on_from_an_earlier_fit_can_be_gone_on_with(how, often, monkeypatch, tmp_path):
    model, (Y,) = fresh("noise", warm_start=how == "warm", n_jobs=1)
    whole, _ = fresh("noise", warm_start=how == "warm", n_jobs=1)

    def go(m):
        return m.fit(Y) if how == "warm" else m.partial_fit(Y[30:])

    for m in (model, whole):
        m.fit(Y[:30] if how == "partial" else Y + 0.01)
    before = model.factors_
    model.set_params(checkpoint=tmp_path / "fit.npz")
    with monkeypatch.context() as pressing:
        interrupting(pressing, 3)
        with pytest.raises(KeyboardInterrupt):
            go(model)
    assert model.factors_ is before
    assert alike(go(whole), go(model))
    assert model.factors_.shape == (40, 30)


def test_while_ways_are_tried_the_best_so_far_is_kept(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40)) + 30 * rng.standard_normal(40)
    Y = np.where(rng.random(X.shape) < 0.6, X + 0.1 * rng.standard_normal(X.shape), np.nan)
    for after in range(40, 200, 20):
        model = sg.MatrixCompletion(random_state=0, interrupt="return")
        with monkeypatch.context() as pressing:
            interrupting(pressing, after)
            model.fit(Y)
        if "interrupted" in model.status_ and model.center_ != "none":
            assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < 5


def test_a_first_guess_is_not_worth_the_model_that_was(monkeypatch):
    model, data = fresh("noise")
    before = model.fit(*data).factors_
    interrupting(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data)
    assert model.factors_ is before


def test_what_was_done_before_control_c_is_in_the_history(monkeypatch):
    model, data = fresh("noise", interrupt="return")
    interrupting(monkeypatch, 4)
    model.fit(*data)
    assert len(model.history_) == 4
    assert model.n_iter_ == 3
    assert "interrupted at iteration 3" in model.status_


# ---- a disk that is full


def full(*args, **kwargs):
    raise OSError(28, "No space left on device")


def test_a_fit_is_worth_more_than_its_checkpoint(often, monkeypatch, tmp_path):
    model, data = fresh("noise", checkpoint=tmp_path / "fit.npz", n_jobs=1)
    monkeypatch.setattr(journal, "_write", full)
    with pytest.warns(UserWarning, match="cannot be written: .*No space"):
        model.fit(*data)
    assert model.converged_
    interrupting(monkeypatch, 4)
    with (
        pytest.warns(UserWarning, match="cannot be written"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(*data)
    assert "interrupted" in model.status_


def test_a_checkpoint_of_other_steps_is_refused(often, monkeypatch, tmp_path):
    path = tmp_path / "fit.npz"
    model, data = fresh("auto", checkpoint=path)
    crash(monkeypatch, 60, model, *data)
    tree = journal.files.read(path, "checkpoint")
    for spoil in (
        lambda name, done, value: ["another", done, value],
        lambda name, done, value: [name, done, 3],
    ):
        entries = {k: spoil(*v) for k, v in tree["entries"].items()}
        journal.files.write(path, {**tree, "entries": entries}, "checkpoint", "0")
        with pytest.raises(sg.FileError, match="delete it"):
            model.fit(*data)


# ---- the clock


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [sg.MatrixCompletion, sg.TensorCompletion])
def test_what_was_found_while_the_rank_was_chosen_is_not_thrown_away(made, clock):
    rng = np.random.default_rng(0)
    if made is sg.MatrixCompletion:
        X = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 80))
    else:
        X = sg.datasets.low_rank_tensor((25, 20, 15), 2, kappa=2, rng=0).full()
        X = X / X.std()
    Y = np.where(rng.random(X.shape) < 0.5, X + 0.05 * rng.standard_normal(X.shape), np.nan)
    clock.tick = 1000.0
    model = made(random_state=0, n_jobs=1).fit(Y)
    whole, seconds = np.linalg.norm(model.reconstruct() - X), clock.passed
    for share in (0.4, 0.8):
        clock.restart()
        model.set_params(max_time=share * seconds).fit(Y)
        assert "time limit" in model.status_
        # a candidate that was not compared with others may be a little worse
        assert np.linalg.norm(model.reconstruct() - X) < max(1.5 * whole, 0.05 * np.linalg.norm(X))


def test_a_fit_that_ran_out_of_time_goes_on_next_time(tmp_path, clock):
    clock.tick = 1.0
    model, data = fresh("noise", checkpoint=tmp_path / "fit.npz", max_time=50, n_jobs=1)
    whole, _ = fresh("noise", n_jobs=1)
    whole.fit(*data)
    clock.restart()
    with pytest.warns(ConvergenceWarning, match="time limit"):
        model.fit(*data)
    assert (tmp_path / "fit.npz").exists()
    model.set_params(max_time=None).fit(*data)
    assert alike(whole, model)
    assert not (tmp_path / "fit.npz").exists()


# ---- side by side


def test_fits_in_threads_and_workers_are_as_alone():
    from benchmarks.reliability import threads

    for what, value, most in threads():
        assert value <= most, what


def test_threads_are_given_back_when_the_last_fit_ends():
    from threadpoolctl import threadpool_info, threadpool_limits

    model, data = fresh("no noise", n_jobs=1)
    model.fit(*data)  # whatever it loads is loaded now
    with threadpool_limits(limits=2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        assert 2 in before
        models = [fresh("no noise", n_jobs=1)[0] for _ in range(3)]
        fits = [threading.Thread(target=model.fit, args=data) for model in models]
        for fit in fits:
            fit.start()
        for fit in fits:
            fit.join()
        assert [pool["num_threads"] for pool in threadpool_info()] == before


# ---- what is seen meanwhile


class Terminal:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_progress_is_shown_to_a_terminal_only(monkeypatch, capfd):
    model, data = fresh("noise", verbose=1)
    model.fit(*data)
    assert capfd.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.progress", None)  # as if it were not installed
    model.fit(*data)
    assert "[MatrixCompletion] joint: iteration 0, loss" in terminal.text
    model.set_params(verbose=0)
    terminal.text = ""
    model.fit(*data)
    assert terminal.text == ""


@pytest.mark.parametrize("broken", [None, "closed"])
def test_without_a_place_to_show_it_a_fit_goes_on(broken, monkeypatch, tmp_path):
    if broken == "closed":
        broken = open(tmp_path / "log", "w")  # noqa: SIM115
        broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    model, data = fresh("noise", verbose=1)
    assert model.fit(*data).converged_


def test_progress_has_loss_rate_and_time_left(monkeypatch):
    pytest.importorskip("rich")
    from scaledgd.estimators import progress

    terminal, shown = Terminal(), []
    show = progress.Bar.show

    def recorded(self, *args):
        shown.append(args)
        show(self, *args)

    monkeypatch.setattr(progress.Bar, "show", recorded)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    model, data = fresh("noise", verbose=1)
    model.fit(*data)
    assert "done" in terminal.text
    stages, texts, shares = zip(*shown, strict=True)
    assert {"joint", "cut"} <= set(stages)
    assert all("loss" in text for text in texts)
    assert any("rate" in text and "s left" in text for text in texts)
    assert all(0 <= share <= 1 for share in shares)


def test_the_log_is_quiet_unless_asked(caplog, capfd):
    model, data = fresh("auto")
    model.fit(*data)
    assert capfd.readouterr().err == ""
    with caplog.at_level(logging.INFO, logger="scaledgd"):
        model.fit(*data)
    assert any("held-out" in message for message in caplog.messages)
    assert any(model.status_ in message for message in caplog.messages)


def test_the_history_is_a_frame_on_demand():
    pytest.importorskip("pandas")
    model, data = fresh("noise")
    frame = model.fit(*data).history_frame()
    assert {"t", "value", "seconds", "stage"} <= set(frame.columns)
    assert len(frame) == len(model.history_)
    assert frame["t"].is_monotonic_increasing
    assert frame["seconds"].is_monotonic_increasing


class Recorder:
    """A callback of scikit-learn's kind."""

    def __init__(self, stop=None):
        self.stop, self.events, self.seen = stop, [], []

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.events.append("begin")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.events.append("end")
        if fitted_estimator is not None:
            self.seen.append(fitted_estimator)
        return self.stop is not None and self.events.count("end") >= self.stop


@pytest.mark.parametrize("name", ["noise", "robust", "tensor"])
def test_callbacks_of_scikit_learn_see_every_iterate(name):
    pytest.importorskip("sklearn.callback")
    model, data = fresh(name)
    alone = model.fit(*data).factors_
    recorder = Recorder()
    model.set_callbacks(recorder).fit(*data)
    assert recorder.events[0] == "setup"
    assert recorder.events[-1] == "teardown"
    assert recorder.events.count("begin") == recorder.events.count("end") > 3
    first, last = (recorder.seen[k].score(data[0], force=True) for k in (0, -1))
    assert last > (0.5 if name == "robust" else 0.9)
    assert last >= first
    for a, b in zip(alone.blocks, model.factors_.blocks, strict=True):
        assert np.array_equal(a, b)  # to be watched changes nothing


def test_a_callback_can_save_what_there_is(tmp_path):
    pytest.importorskip("sklearn.callback")

    class Saver(Recorder):
        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            if fitted_estimator is not None:
                fitted_estimator.save(tmp_path / "model.npz")

    model, data = fresh("ridge")
    model.set_callbacks(Saver()).fit(*data)
    assert sg.load(tmp_path / "model.npz").status_ == "not ended yet"


def test_callbacks_can_end_a_fit():
    pytest.importorskip("sklearn.callback")
    model, data = fresh("noise")
    with pytest.warns(ConvergenceWarning, match="stopped by a callback"):
        model.set_callbacks(Recorder(stop=2)).fit(*data)
    assert len(model.history_) < 6
