"""The compiled kernels answer with an exception whatever goes wrong, and never end Python."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from scaledgd.kernels import cpp

pytestmark = pytest.mark.skipif(not cpp.AVAILABLE, reason="built without a compiler")

C = cpp.C
N1, N2, M, Q = 3000, 1000, 300_000, 8


@pytest.fixture(autouse=True)
def _two_threads():
    before = C.get_num_threads()
    C.set_num_threads(2)
    yield
    C.fail_at(-1)
    C.set_num_threads(before)


# ---- a piece of work that fails


def calls(dtype):
    """Every kernel that divides its work, by name, on data that make several pieces."""
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, N1, M), rng.integers(0, N2, M)
    x, R = rng.random((N1, Q)).astype(dtype), rng.random((N2, Q)).astype(dtype)
    y, eye = rng.random(M).astype(dtype), np.eye(Q, dtype=dtype)
    holes = rng.random((N1, N2)).astype(dtype)
    holes[rng.random(holes.shape) < 0.5] = np.nan
    whole = rng.random((N1, N2)).astype(dtype)
    kept = (whole < 0.9).astype(np.uint8)
    Rt, fibres = np.ascontiguousarray(R.T), whole.reshape(1, N1, N2)
    side = C.sorted([i, j], [N1, N2], 0)
    given = (side, R[:, None, :], [], 0, eye)
    plain = (x, None, y, None, None, None, None)
    ones = np.ones(Q, dtype)
    uncertain = (side, R, x, y, R * R, ones, np.ones(Q), None, None, None, None, 1e-10, 1.0)
    spread = R[:, :, None] * R[:, None, :]
    table, alike = np.ascontiguousarray(holes[:, :50], dtype=float), np.eye(50)
    cube = C.sorted([i, j, i % 7], [N1, N2, 7], 0)
    small, third = rng.random((N1, 2 * Q)).astype(dtype), rng.random((7, 2)).astype(dtype)
    return {
        "sorted": lambda: C.sorted([i, j], [N1, N2], 1).size,
        "rejected": lambda: C.rejected(kept, 1).size,
        "arranged": lambda: C.arranged(side, y),
        "one_pass": lambda: C.one_pass(side, R, x, y, None, True, True),
        "solve_rows": lambda: C.solve_rows(*given, *plain, 1e-10, 0, 0.0, True),
        "update_rows": lambda: C.update_rows(*uncertain),
        "whole_rows": lambda: C.whole_rows(
            side, R, spread, [*range(Q)], x, y, None, [*range(Q)], ones, 0.5
        ),
        "conditional_rows": lambda: C.conditional_rows(table, alike, 2 * alike, True, False, True),
        "turned": lambda: C.turned(np.repeat(spread, 60, axis=0), eye + R[:Q]),
        "solve_rows by steps": lambda: C.solve_rows(*given, *plain, 1e-10, 3, 0.0, False)[0],
        "outer_sums": lambda: C.outer_sums(cube, [R, third], y),
        "tucker_values": lambda: C.tucker_values([i, i % 7, j], small, [third, R], y),
        "dense by rows": lambda: C.dense(x, Rt, whole, kept, True, 0),
        "dense by columns": lambda: C.dense(x, Rt, whole, kept, False, 1)[2],
        "present": lambda: C.present(holes, None)[1],
        "kth_magnitude": lambda: C.kth_magnitude(whole, 12345),
        "kth_of_fibres": lambda: C.kth_of_fibres(fibres, 1234),
        "row_medians": lambda: C.row_medians(side, y),
        "row_moments": lambda: C.row_moments(side, y),
        "spreads": lambda: C.spreads(fibres),
        "cleaned_rows": lambda: C.cleaned_rows(
            whole, Rt, eye, None, eye.astype(float), 0.1, 4.5, 0.6, 1e-10, 3
        ),
        "within": lambda: C.within(whole, 0.5),
        "kept_squares": lambda: C.kept_squares(whole, kept),
    }


SERIAL = {"nothing", "distinct", "parts", "fail_at", "get_num_threads", "set_num_threads"}


def test_no_kernel_is_left_out():
    names = {name for name in vars(C) if not isinstance(getattr(C, name), (type, str, int))}
    there = {name for name in names if not name.startswith("_")}
    assert there - SERIAL - {"instructions"} == {name.split(" ")[0] for name in calls(np.float64)}


def flat(found):
    return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_piece_that_fails_is_an_exception_and_the_next_call_works(dtype, number):
    C.set_num_threads(number)
    for name, call in calls(dtype).items():
        expected = flat(call())
        for piece in (0, 1, 3):
            C.fail_at(piece)
            try:
                call()
            except MemoryError:
                pass
            else:
                assert piece, name  # there is a first piece always
            C.fail_at(-1)
        for a, b in zip(expected, flat(call()), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_every_piece_may_be_the_one_that_fails():
    whole = np.random.default_rng(0).random((N1, N2))
    expected, pieces = C.kth_magnitude(whole, 777), 0
    while True:
        C.fail_at(pieces)
        try:
            found = C.kth_magnitude(whole, 777)
        except MemoryError:
            pieces += 1
        else:
            break
    assert found == expected
    assert pieces > 2


def test_failures_in_many_threads_of_python_at_once():
    """Whoever brought the work gets the exception, and nobody else."""
    x, wrong, failures = np.random.default_rng(0).random(1 << 21), [], []
    expected = C.within(x, 0.5)[1:]

    def work():
        for _ in range(20):
            try:
                if C.within(x, 0.5)[1:] != expected:
                    wrong.append(1)
            except MemoryError:
                failures.append(1)

    crowd = [threading.Thread(target=work) for _ in range(4)]
    for thread in crowd:
        thread.start()
    fired = 0
    while any(thread.is_alive() for thread in crowd):
        C.fail_at(2)
        fired += 1
        crowd[0].join(0.002)
    C.fail_at(-1)
    assert not wrong
    assert len(failures) <= fired


def run(code):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "SCALEDGD_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on memory")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers reserve memory of their own")
def test_too_little_memory_is_a_memory_error():
    """Large buffers of selection, and the vectors of one long row."""
    done = run("""
import resource, numpy as np
from scaledgd.kernels import _compiled as C

x = np.random.default_rng(0).random((1, 10**6, 32), dtype=np.float32).astype(np.float64)
m = 10**6
rows = C.sorted([np.zeros(m, dtype=np.int64), np.arange(m)], [2, m], 0)
table, y = np.ones((m, 1, 40)), np.ones(m)
C.within(x, 0.5)  # the threads have begun
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (120 << 20),) * 2)
caught = 0
for _ in range(5):
    try:
        C.kth_of_fibres(x, 5 * 10**5)
    except MemoryError:
        caught += 1
    try:
        given = np.ones((2, 40)), None, y, None, None, None, None, 1e-10, 3, 0.0, False
        C.solve_rows(rows, table, [], 0, np.eye(40), *given)
    except MemoryError:
        caught += 1
print(caught, C.within(x[0, :1000], 2.0)[1])
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "32000"]


# ---- arrays that change while they are read


@pytest.mark.parametrize(
    "kind", ["present", "observed", "kth_magnitude", "rejected", "sorted", "conditional_rows"]
)
def test_arrays_that_change_meanwhile_do_no_harm(kind):
    """In another process, because a heap that was overrun may end it."""
    done = run(f"""
import threading, numpy as np
from scaledgd.kernels import _compiled as C

kind, n = {kind!r}, 1 << 20
x, mask = np.zeros((1024, n // 1024)), np.zeros((1024, n // 1024), dtype=np.uint8)
rows, columns = np.zeros(n, dtype=np.int64), np.arange(n)
narrow, square = x.reshape(-1, 32), (np.eye(32), np.eye(32))
x[0, 0], mask[0, 0], rows[0] = np.nan, 1, 1
ended = False

def change():
    step = 0
    while not ended:
        step += 1
        x[:] = (np.nan, 1.0, 2.0)[step % 3]
        mask[:] = step % 2
        rows[:] = (0, 3, 10**12)[step % 3]

work = dict(
    present=lambda: C.present(x, None),
    observed=lambda: C.present(x, mask),
    kth_magnitude=lambda: C.kth_magnitude(x, n // 2),
    rejected=lambda: C.rejected(mask, 1),
    conditional_rows=lambda: C.conditional_rows(narrow, *square, True, True, True),
    sorted=lambda: (C.sorted([rows, columns], [4, n], 0), C.distinct([rows, columns], [4, n])),
)[kind]
other = threading.Thread(target=change)
other.start()
for _ in range(60):
    try:
        work()
    except (RuntimeError, ValueError):
        pass
ended = True
other.join()
""")
    assert done.returncode == 0, done.stderr


# ---- places that are not there


def test_matrices_of_another_size_are_refused():
    Z, right, wrong = np.zeros((3, 4)), np.eye(4), np.eye(5)
    for pair in ((wrong, right), (right, wrong), (right[:3], right), (right, wrong[:4])):
        with pytest.raises(ValueError, match="does not fit"):
            C.conditional_rows(Z, *(np.ascontiguousarray(x) for x in pair), True, True, True)
    for empty in (np.zeros((0, 4)), np.zeros((3, 0))):
        eye = np.eye(empty.shape[1])
        found = C.conditional_rows(empty, eye, eye, True, True, True)
        assert [x.shape for x in found] == [empty.shape, eye.shape, empty.shape, empty.shape]


def test_places_outside_are_refused():
    i, j = np.asarray([0, 1]), np.asarray([0, 4])
    for mode in (-1, 2, 7):
        with pytest.raises(ValueError, match="no such mode"):
            C.sorted([i, j], [2, 5], mode)
        with pytest.raises(ValueError, match="no such mode"):
            C.rejected(np.ones((2, 2), dtype=np.uint8), mode)
    for wrong in ([2, 4], [1, 5]):
        with pytest.raises(ValueError, match="out of range"):
            C.sorted([i, j], wrong, 0)
        with pytest.raises(ValueError, match="out of range"):
            C.parts([i, j], wrong)
    with pytest.raises(ValueError, match="out of range"):
        C.parts([i, -j], [2, 5])
    with pytest.raises(ValueError, match="out of range"):
        C.sorted([i, -j], [2, 5], 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_matrices_with_too_few_rows_are_refused(dtype):
    i, j = np.asarray([0, 1]), np.asarray([0, 4])
    side, short, w = C.sorted([i, j], [2, 5], 0), np.ones((4, 2), dtype), np.ones(2, dtype)
    with pytest.raises(ValueError, match="fit the entries"):
        C.one_pass(side, short, None, None, w, False, True)
    given = np.ones((2, 2), dtype), None, w, None, None, None, None, 1e-10, 0, 0.0, False
    eye = np.eye(2, dtype=dtype)
    with pytest.raises(ValueError, match="fit the entries"):
        C.solve_rows(side, short[:, None, :], [], 0, eye, *given)
    ones, x = np.ones(2, dtype), np.ones((2, 2), dtype)
    rest = ones, np.ones(2), None, None, None, None, 1e-10, 1.0
    with pytest.raises(ValueError, match="fit the entries"):
        C.update_rows(side, short, x, w, short, *rest)
    with pytest.raises(ValueError, match="variances do not fit"):
        C.update_rows(side, np.ones((5, 2), dtype), x, w, short, *rest)
    with pytest.raises(ValueError, match="fit the entries"):
        C.whole_rows(side, short, None, [], x, w, None, [0], w[:1], 1.0)
    for columns in ([2], [-1], [1, 0], [0, 0]):
        with pytest.raises(ValueError, match="no such column"):
            C.whole_rows(
                side, np.ones((5, 2), dtype), None, [], x, w, None, columns, w[: len(columns)], 1.0
            )
    cube = C.sorted([i, j, i], [2, 5, 2], 0)
    pair = np.ones((2, 1), dtype)
    with pytest.raises(ValueError, match="fit the entries"):
        C.solve_rows(cube, np.ones((2, 4, 2), dtype), [np.ones((4, 4), dtype)], 1, eye, *given)
    with pytest.raises(ValueError, match="fit the entries"):
        C.outer_sums(cube, [short, pair], w)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_tucker_values_refuse_places_outside(dtype, wrong):
    right, places = np.asarray([0, 1]), np.asarray([0, wrong])
    small, factors = np.ones((3, 8), dtype), [np.ones((3, n), dtype) for n in (2, 2, 2)]
    for bad in range(4):
        index = [right] * 4
        index[bad] = places
        with pytest.raises(IndexError):
            C.tucker_values(index, small, factors, None)
        with pytest.raises(IndexError):
            C.tucker_values([places, right], small[:, :2].copy(), factors[:1], None)
