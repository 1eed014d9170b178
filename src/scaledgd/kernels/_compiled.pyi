from typing import Any

Array = Any

class Sorted:
    size: int
    rows: int
    as_measured: bool
    def counts(self) -> Array: ...

def sorted(index: list[Array], shape: list[int], mode: int) -> Sorted: ...
def rejected(kept: Array, mode: int) -> Sorted: ...
def nothing(rows: int) -> Sorted: ...
def arranged(entries: Sorted, x: Array) -> Array: ...
def distinct(index: list[Array], shape: list[int]) -> bool: ...
def parts(index: list[Array], shape: list[int]) -> int: ...
def one_pass(
    entries: Sorted,
    M: Array,
    x: Array | None,
    y: Array | None,
    weights: Array | None,
    residuals: bool,
    sums: bool,
) -> tuple[float, Array, Array]: ...
def solve_rows(
    entries: Sorted,
    table: Array,
    factors: list[Array],
    lead: int,
    turn: Array,
    *rest: Any,
) -> tuple[Array, Array, Array, float, float]: ...
def update_rows(
    entries: Sorted,
    M: Array,
    x: Array,
    y: Array,
    variances: Array,
    ridge: Array,
    sizes: Array,
    own: Array | None,
    given: Array | None,
    root: Array | None,
    kept: Array | None,
    jitter: float,
    noise: float,
) -> tuple[Array, Array, Array, Array, float, float, float, float, float]: ...
def whole_rows(
    entries: Sorted,
    M: Array,
    C: Array | None,
    known: list[int],
    x: Array,
    y: Array,
    root: Array | None,
    columns: list[int],
    ridge: Array,
    noise: float,
) -> tuple[Array, Array, Array, float, float, float, float, float]: ...
def conditional_rows(
    Z: Array, covariance: Array, precision: Array, total: bool, variances: bool, others: bool
) -> tuple[Array, Array | None, Array | None, Array | None]: ...
def turned(C: Array, M: Array) -> Array: ...
def outer_sums(entries: Sorted, factors: list[Array], weights: Array) -> Array: ...
def tucker_values(
    index: list[Array], table: Array, factors: list[Array], y: Array | None
) -> tuple[float, Array]: ...
def dense(
    L: Array, Rt: Array, Y: Array, kept: Array | None, residuals: bool, gradient: int
) -> tuple[float, Array, Array]: ...
def present(
    x: Array, observed: Array | None
) -> tuple[tuple[Array, ...] | None, Array | None, bool]: ...
def kth_magnitude(x: Array, k: int) -> float: ...
def kth_of_fibres(x: Array, k: int) -> Array: ...
def row_medians(entries: Sorted, x: Array) -> Array: ...
def spreads(x: Array) -> tuple[Array, Array]: ...
def cleaned_rows(
    Y: Array,
    Rt: Array,
    turn: Array,
    ridge: Array | None,
    whole: Array,
    floor: float,
    multiple: float,
    fall: float,
    jitter: float,
    rounds: int,
) -> Array: ...
def row_moments(entries: Sorted, x: Array) -> tuple[Array, Array]: ...
def within(x: Array, threshold: float) -> tuple[Array, int, float, float]: ...
def kept_squares(x: Array, kept: Array) -> float: ...
def fail_at(piece: int) -> None: ...
def instructions() -> str: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
