"""The byte model against the table it is made from, worked out here by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from online_softmax.ops import ALGORITHMS, OPERATIONS
from online_softmax.traffic import model

R, C = 8192, 4096
T = 134_217_728


def test_the_case_of_8192_rows_of_4096_float32() -> None:
    moved = {a: model.traffic("softmax", a, R, C, 4) for a in ("naive", "three_pass", "online", "cached")}
    assert R * C * 4 == T
    assert {a: t.total for a, t in moved.items()} == {
        "naive": 402_653_184,
        "three_pass": 536_870_912,
        "online": 402_653_184,
        "cached": 268_435_456,
    }
    microseconds = {a: round(t.seconds(2.0e12) * 1e6, 1) for a, t in moved.items()}
    assert (microseconds["three_pass"], microseconds["online"], microseconds["cached"]) == (
        268.4,
        201.3,
        134.2,
    )
    assert Fraction(moved["three_pass"].total, moved["online"].total) == Fraction(4, 3)
    assert Fraction(moved["three_pass"].total, moved["cached"].total) == 2
    assert moved["cached"].intensity == Fraction(11, 8)


@pytest.mark.parametrize(
    ("operation", "algorithm", "reads", "writes", "exps"),
    [
        ("softmax", "naive", 2, 1, 2),
        ("softmax", "three_pass", 3, 1, 2),
        ("softmax", "online", 2, 1, 2),
        ("softmax", "cached", 1, 1, 1),
        ("log_softmax", "naive", 2, 1, 1),
        ("log_softmax", "three_pass", 3, 1, 1),
        ("log_softmax", "online", 2, 1, 1),
        ("log_softmax", "cached", 1, 1, 1),
        ("logsumexp", "naive", 1, 0, 1),
        ("logsumexp", "three_pass", 2, 0, 1),
        ("logsumexp", "online", 1, 0, 1),
        ("logsumexp", "cached", 1, 0, 1),
    ],
)
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_traversals(
    operation: str, algorithm: str, reads: int, writes: int, exps: int, itemsize: int
) -> None:
    rows, columns = 17, 1001
    got = model.traffic(operation, algorithm, rows, columns, itemsize)
    t = rows * columns * itemsize
    assert (got.reads, got.writes) == (reads, writes)
    assert got.read == reads * t
    lse = rows * max(4, itemsize) if operation == "logsumexp" else 0
    assert got.written == writes * t + lse
    assert got.allocated == 0
    assert got.exps == exps * rows * columns
    assert got.total == got.read + got.written
    assert all(type(n) is int for n in (got.read, got.written, got.exps, got.flops, got.total))


def test_flops_are_eight_an_exponential_and_the_plain_operations() -> None:
    plain = {
        "softmax": {"naive": 2, "three_pass": 4, "online": 4, "cached": 3},
        "log_softmax": {"naive": 2, "three_pass": 4, "online": 4, "cached": 3},
        "logsumexp": {"naive": 1, "three_pass": 2, "online": 2, "cached": 2},
    }
    for operation, counts in plain.items():
        for algorithm, flops in counts.items():
            got = model.traffic(operation, algorithm, 3, 5, 4)
            assert got.flops == 8 * got.exps + flops * 15


def test_write_allocation_reads_each_written_line() -> None:
    with_it = model.traffic("softmax", "online", R, C, 4, write_allocate=True)
    assert with_it.allocated == T
    assert with_it.total == 4 * T
    assert with_it.read == 2 * T
    # 10 results of 4 bytes touch one line of 64.
    assert model.traffic("logsumexp", "online", 10, C, 4, write_allocate=True).allocated == 64
    assert model.traffic("softmax", "cached", 1, 17, 4, write_allocate=True).allocated == 128


@pytest.mark.parametrize(("itemsize", "lse"), [(2, 4), (4, 4), (8, 8)])
def test_topk_reads_once_and_writes_only_what_it_found(itemsize: int, lse: int) -> None:
    got = model.traffic("softmax_topk", "online", 6, 1000, itemsize, k=5)
    assert got.read == 6000 * itemsize
    assert got.written == 6 * (5 * (itemsize + 8) + lse)
    assert got.exps == 6000 + 30


def test_python_integers_do_not_overflow() -> None:
    got = model.traffic("softmax", "three_pass", 2**40, 2**30, 8)
    assert got.total == 4 * 2**73
    assert model.traffic("softmax", "online", 0, 5, 4).total == 0


def test_every_operation_and_algorithm_has_a_count() -> None:
    for name, row in OPERATIONS.items():
        assert model.algorithms(name) == tuple(row.passes)
        for algorithm in model.algorithms(name):
            assert model.traffic(name, algorithm, 2, 8, 4).total > 0
    assert set(model.algorithms("softmax")) == set(ALGORITHMS) - {"auto"}


def test_expected_maxima_follow_the_harmonic_numbers() -> None:
    assert model.expected_maxima(1) == 1
    assert model.expected_maxima(4) == Fraction(25, 12)
    assert float(model.expected_maxima(4096)) == pytest.approx(
        math.log(4096) + 0.5772156649 + 1 / 8192, abs=1e-8
    )
    # All but 0.22 % of the updates of such a row rescale nothing.
    assert round(100 * (1 - float(model.expected_maxima(4096)) / 4096), 2) == 99.78


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("sofmax", "online", 1, 1, 4), "operation='sofmax'"),
        (("softmax", "auto", 1, 1, 4), "algorithm='auto'"),
        (("softmax_topk", "cached", 1, 1, 4), "algorithm='cached'"),
        (("softmax", "online", -1, 1, 4), "rows=-1"),
        (("softmax", "online", 1, -1, 4), "columns=-1"),
        (("softmax", "online", 1, 1, 3), "itemsize=3"),
    ],
)
def test_wrong_calls_name_the_argument(arguments: tuple[str, str, int, int, int], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        model.traffic(*arguments)


def test_more_wrong_calls() -> None:
    with pytest.raises(ValueError, match="k=9"):
        model.traffic("softmax_topk", "online", 1, 8, 4, k=9)
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="bytes_per_second"):
            model.traffic("softmax", "online", 1, 8, 4).seconds(rate)
    with pytest.raises(ValueError, match="operation='x'"):
        model.algorithms("x")
