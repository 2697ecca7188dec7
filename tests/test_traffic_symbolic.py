"""The closed forms: numbers put into them give the counts, for each operation, algorithm and element size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import sympy

from online_softmax.extras import MissingExtra
from online_softmax.traffic import model
from online_softmax.traffic.count import Traffic, ceil_div, greatest, least, sum_over
from online_softmax.traffic.shapes import Attention, Projection, Rows, States

PAIRS = [(name, algorithm) for name in model.OPERATIONS for algorithm in model.algorithms(name)]
ATTENTION = [(name, algorithm) for name, algorithm in PAIRS if model.shape_of(name) is Attention]
ITEMSIZES = (1, 2, 4, 8)
#: Tails everywhere: sizes that are no multiples of the blocks, both ways of unequal lengths, shared heads.
SHAPES: dict[type, tuple[Any, ...]] = {
    Rows: (Rows(7, 1001, 4, 5), Rows(1, 1, 4, 1), Rows(3, 64, 4, 64)),
    Projection: (Projection(7, 5, 11, 4, 3, 4), Projection(1, 1, 1, 4), Projection(300, 64, 1000, 4)),
    Attention: (
        Attention(2, 6, 2, 7, 12, 3, 4, 3, 5, 5),
        Attention(1, 2, 1, 11, 4, 3, 4, 3, 3, 3),
        Attention(1, 1, 1, 5, 9, 2, 4),
    ),
    States: (States(7, 9, 3), States(1, 1, 1), States(2, 2, 64)),
}
HUGE: dict[type, Any] = {
    Rows: Rows(10**30, 10**25, 4, 10**20),
    Projection: Projection(10**30, 10**20, 10**25, 4),
    Attention: Attention(10**6, 10**8, 10**7, 10**30, 10**28, 10**6, 4, splits=10**9),
    States: States(10**30, 10**20, 10**10),
}


def cases(pairs: list[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    return [(name, algorithm, shape) for name, algorithm in pairs for shape in SHAPES[model.shape_of(name)]]


def numbers(traffic: Traffic) -> dict[str, Any]:
    """Every number of a count, by name."""
    found: dict[str, Any] = {
        name: getattr(traffic, name)
        for name in (
            "read", "written", "allocated", "total", "workspace",
            "exps", "plain_flops", "matrix_flops", "vector_flops", "flops",
        )
    }  # fmt: skip
    for operand in traffic.operands:
        found |= {f"{operand.name}.{way}": getattr(operand, way) for way in ("size", "read", "written")}
    return found


#: The closed forms, made once: sums take sympy a while.
symbolic = cache(model.symbolic)


def put(expressions: Mapping[str, Any], shape: Any) -> dict[str, int]:
    """The values of expressions for these sizes; equal ones are worked out once."""
    symbols = {
        sympy.Symbol(field.name, integer=True, positive=True): getattr(shape, field.name)
        for field in fields(shape)
        if field.name != "causal"
    }
    values = {
        expression: sympy.sympify(expression).subs(symbols).doit() for expression in expressions.values()
    }
    assert all(value.is_Integer for value in values.values()), values
    return {name: int(values[expression]) for name, expression in expressions.items()}


def assert_same(closed: Traffic, counted: Traffic, shape: Any) -> None:
    assert [(o.name, o.temporary) for o in closed.operands] == [
        (o.name, o.temporary) for o in counted.operands
    ]
    assert (closed.reads, closed.writes) == (counted.reads, counted.writes)
    assert put(numbers(closed), shape) == numbers(counted)


@pytest.mark.parametrize(("operation", "algorithm", "shape"), cases(PAIRS))
def test_numbers_put_in_give_the_count(operation: str, algorithm: str, shape: Any) -> None:
    assert_same(symbolic(operation, algorithm), model.count(operation, algorithm, shape), shape)


@pytest.mark.parametrize(("operation", "algorithm", "shape"), cases(ATTENTION))
def test_causal_numbers_put_in_give_the_count(operation: str, algorithm: str, shape: Any) -> None:
    causal = replace(shape, causal=True)
    assert_same(
        symbolic(operation, algorithm, causal=True), model.count(operation, algorithm, causal), causal
    )


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize(("operation", "algorithm"), [p for p in PAIRS if model.shape_of(p[0]) is not States])
def test_every_size_of_an_element(operation: str, algorithm: str, itemsize: int) -> None:
    """Statistics are as wide as the elements only at 8 bytes: the closed form must know."""
    shape = replace(SHAPES[model.shape_of(operation)][0], itemsize=itemsize)
    assert_same(symbolic(operation, algorithm), model.count(operation, algorithm, shape), shape)


def test_a_closed_form_reads_as_on_paper() -> None:
    rows, columns, itemsize = sympy.symbols("rows columns itemsize", integer=True, positive=True)
    for algorithm, times in (("naive", 3), ("three_pass", 4), ("online", 3), ("cached", 2)):
        total = symbolic("softmax", algorithm).total
        assert sympy.expand(total - times * rows * columns * itemsize) == 0
        assert total.free_symbols == {rows, columns, itemsize}


def test_causal_is_for_attention_alone() -> None:
    with pytest.raises(ValueError, match="causal"):
        model.symbolic("softmax", "online", causal=True)


def test_wrong_names_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="operation='x'"):
        model.symbolic("x", "online")
    with pytest.raises(ValueError, match="algorithm='auto'"):
        model.symbolic("softmax", "auto")
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(MissingExtra, match=r"sympy.*pip install 'online-softmax\["):
        model.symbolic("softmax", "online")


# ---- numbers in, numbers out


@pytest.mark.parametrize(("operation", "algorithm", "shape"), cases(PAIRS))
def test_counts_are_python_integers(operation: str, algorithm: str, shape: Any) -> None:
    shapes = [shape, replace(shape, causal=True)] if isinstance(shape, Attention) else [shape]
    for each in shapes:
        got = model.count(operation, algorithm, each, write_allocate=True)
        assert {name: type(value) for name, value in numbers(got).items() if type(value) is not int} == {}
        assert all(type(n) is int for n in (got.reads, got.writes) if n is not None)
        if got.total:
            assert type(got.intensity) is Fraction
            assert got.intensity * got.total == got.flops


@pytest.mark.parametrize(("operation", "algorithm"), PAIRS)
def test_huge_sizes_are_exact(operation: str, algorithm: str) -> None:
    """Far past 64 bits and past what a float holds: the same closed forms, digit by digit."""
    shape = HUGE[model.shape_of(operation)]
    got = model.count(operation, algorithm, shape)
    assert got.total > 10**50
    assert all(type(value) is int for value in numbers(got).values())
    assert_same(symbolic(operation, algorithm), got, shape)


def test_helpers_of_whole_numbers() -> None:
    for a in range(-9, 30):
        for b in range(1, 9):
            assert ceil_div(a, b) == -(-a // b) == min(n for n in range(-9, 31) if n * b >= a)
            assert (least(a, b), greatest(a, b)) == (min(a, b), max(a, b))
    assert ceil_div(10**40 + 1, 10**20) == 10**20 + 1
    assert sum_over(0, lambda i: i) == 0
    assert sum_over(5, lambda i: i * i) == 30
    n = sympy.Symbol("n", integer=True, positive=True)
    assert sympy.expand(sympy.sympify(sum_over(n, lambda i: i)).doit() - n * (n - 1) / 2) == 0
    assert least(n, 3) == sympy.Min(n, 3)
    assert greatest(n, 3) == sympy.Max(n, 3)
