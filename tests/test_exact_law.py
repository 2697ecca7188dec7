"""The law of `exact`: the bits of its states are those of the model in fractions, and no split, order or
tree of merges changes one."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

import exact_model
import exact_rows
import ml_dtypes
import numpy as np
import pytest
from exact_rows import FORMATS, Array

from online_softmax import cpu_exact, exact
from online_softmax.exact import FLOAT32, FLOAT64, Format, State, format_of

NAMES = [form.name for form in FORMATS]
Merge = Callable[[State, State], State]


def defined(left: State, right: State) -> State:
    return exact.merge(left, right, format_of(left[0].dtype))


MERGES = {"definition": defined, "native": cpu_exact.merge}
formats = pytest.mark.parametrize("form", FORMATS, ids=NAMES)
merges = pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)


def same(made: State, wanted: State) -> None:
    """Bit for bit, the sign of 0 and the pattern of NaN included."""
    for a, b in zip(made, wanted, strict=True):
        assert a.dtype == b.dtype
        a, b = (np.ascontiguousarray(part).view(f"u{part.dtype.itemsize}") for part in (a, b))
        np.testing.assert_array_equal(a, b)


def modelled(states: list[exact_model.ModelState], form: Format) -> State:
    return np.array([s[0] for s in states], form.dtype), np.array([s[1] for s in states], np.int64)


def held(state: State, rows: Array, form: Format) -> None:
    """States and all that is read off them are the model's."""
    m, a = state
    lists = rows.tolist()
    wanted = [exact_model.state(row, form) for row in lists]
    same(state, modelled(wanted, form))
    with np.errstate(over="ignore"):
        made = (
            exact.lse(m, a, form),
            exact.value(rows, m[:, None], a[:, None], form),
            exact.log_value(rows, m[:, None], a[:, None], form),
        )
    right = (
        [exact_model.lse(s, form) for s in wanted],
        [[exact_model.value(x, s, form) for x in row] for row, s in zip(lists, wanted, strict=True)],
        [[exact_model.log_value(x, s, form) for x in row] for row, s in zip(lists, wanted, strict=True)],
    )
    for array, numbers in zip(made, right, strict=True):
        same((array, a), (np.array(numbers, form.dtype), a))


# --- against the model ---


@formats
@pytest.mark.parametrize("make", [exact_rows.moderate, exact_rows.wide, exact_rows.offset, exact_rows.ties])
def test_rows_are_the_models(make: Callable[..., Array], form: Format) -> None:
    rows = make((25, 16), 101, form.dtype)
    held(exact.state(rows, form), rows, form)


@formats
@pytest.mark.parametrize("make", [exact_rows.edge_rows, exact_rows.bin_rows])
def test_rows_of_edges_are_the_models(make: Callable[..., Array], form: Format) -> None:
    rows = make((60, 6), 102, form)
    held(exact.state(rows, form), rows, form)


@formats
def test_every_edge_alone_and_twice(form: Format) -> None:
    rows = np.array(exact_rows.edges(form), form.dtype)[:, None]
    held(exact.state(rows, form), rows, form)
    m, a = exact.state(np.repeat(rows, 2, axis=1), form)
    same((m, a), modelled([exact_model.state([x, x], form) for x in rows[:, 0].tolist()], form))
    alone = exact.state(rows, form)
    same((m, a), (alone[0], 2 * alone[1]))
    one = exact.lse(*alone, form)
    least = np.where(np.abs(rows[:, 0]) < form.least, form.dtype.type(0), rows[:, 0])
    np.testing.assert_array_equal(one, least)  # of a single element it is the element


@formats
def test_gaps_at_every_place_of_the_maximum_in_its_bin(form: Format) -> None:
    """A maximum in each of the places of a bin, another element 15 to 46 (float64: to 100) below it."""
    pitch = float(exact_rows.LOG2)
    tops = np.arange(-form.width - 1, form.width + 2) * pitch
    gaps = np.arange(15, 47 if form.kind == 32 else 100)
    top, gap = (part.ravel() for part in np.meshgrid(tops, gaps))
    rows = np.stack([top, top - gap], axis=-1).astype(form.dtype)[:: 1 if form.kind == 32 else 5]
    made = exact.state(rows, form)
    same(made, modelled([exact_model.state(row, form) for row in rows.tolist()], form))
    same(defined(*(exact.state(rows[:, k : k + 1], form) for k in (0, 1))), made)
    same(defined(*(exact.state(rows[:, k : k + 1], form) for k in (1, 0))), made)
    lone = exact.state(rows[:, :1], form)[1]
    lost = (made[1] == lone).all(axis=-1)
    assert lost.any() != lost.all()


# --- all orders and all trees ---


def subsets(rows: Array, form: Format) -> list[State]:
    """The state of each subset of 7 columns, by the bits of its number."""
    n = rows.shape[1]
    return [exact.state(rows[:, [k for k in range(n) if chosen >> k & 1]], form) for chosen in range(1 << n)]


@merges
@formats
@pytest.mark.parametrize("seed", range(6))
def test_all_permutations_and_trees_of_7_elements(seed: int, form: Format, merge: Merge) -> None:
    """A node of a binary tree over a permuted row merges the states of two disjoint subsets. If every such
    pair, in both orders, gives the bits of the state of their union, so does every tree over every order: of
    a row, 665,280 of them."""
    rows = np.concatenate(
        [exact_rows.edge_rows((36, 7), 200 + seed, form), exact_rows.bin_rows((20, 7), 300 + seed, form)]
    )
    states = subsets(rows, form)
    for union in range(1, 1 << 7):
        parts = [s for s in range(1 << 7) if s & union == s]
        left = tuple(np.stack([states[s][k] for s in parts]) for k in (0, 1))
        right = tuple(np.stack([states[union ^ s][k] for s in parts]) for k in (0, 1))
        m, a = states[union]
        wanted = np.broadcast_to(m, left[0].shape), np.broadcast_to(a, left[1].shape)
        same(merge(left, right), wanted)


def trees(items: tuple[int, ...]) -> Iterator[object]:
    """Every binary tree over items in their order."""
    if len(items) == 1:
        yield items[0]
    for k in range(1, len(items)):
        yield from itertools.product(trees(items[:k]), trees(items[k:]))


@formats
def test_all_permutations_and_trees_of_4_elements_one_by_one(form: Format) -> None:
    rows = np.concatenate([exact_rows.edge_rows((60, 4), 400, form), exact_rows.bin_rows((60, 4), 401, form)])
    leaves = [exact.state(rows[:, k : k + 1], form) for k in range(4)]
    wanted = exact.state(rows, form)

    def fold(tree: object) -> State:
        return defined(fold(tree[0]), fold(tree[1])) if isinstance(tree, tuple) else leaves[tree]

    count = 0
    for order in itertools.permutations(range(4)):
        for tree in trees(order):
            same(fold(tree), wanted)
            count += 1
    assert count == 24 * 5


@formats
def test_all_permutations_of_7_elements_in_one_push(form: Format) -> None:
    orders = np.array(list(itertools.permutations(range(7))))
    for row in np.concatenate(
        [exact_rows.edge_rows((4, 7), 500, form), exact_rows.bin_rows((4, 7), 501, form)]
    ):
        m, a = exact.state(row[orders], form)
        wanted = modelled([exact_model.state(row.tolist(), form)], form)
        same((m, a), (np.repeat(wanted[0], len(orders)), np.repeat(wanted[1], len(orders), axis=0)))


@merges
@formats
def test_merges_of_any_fields_are_associative(form: Format, merge: Merge) -> None:
    """Sums of 64 bits that wrap, under every kind of maximum: what matters is that m is canonical, and that
    nothing stands under -inf and NaN."""
    pool = exact.canonical(np.array(exact_rows.edges(form), form.dtype), form)
    h = exact_rows.hashed((3, 20_000), 600)
    m = pool[(h % np.uint64(pool.size)).astype(np.int64)]
    sums = exact_rows.hashed((3, 20_000, form.slices), 601).view(np.int64)
    sums = np.where((np.isnan(m) | np.isneginf(m))[..., None], 0, sums)
    a, b, c = ((m[k], sums[k]) for k in range(3))
    left, right = merge(merge(a, b), c), merge(a, merge(b, c))
    same(left, right)
    same(merge(a, b), merge(b, a))
    same(merge(a, exact.identity(m[0].shape, form)), a)
    same(merge(exact.identity(m[0].shape, form), a), a)
    few = 1500
    model = [
        exact_model.merge((p, tuple(u)), (q, tuple(v)), form)
        for p, u, q, v in zip(*(part[:few].tolist() for part in (*a, *b)), strict=True)
    ]
    same(tuple(part[:few] for part in merge(a, b)), modelled(model, form))
    wraps = (a[1] > 0) & (b[1] > 0) & (merge(a, b)[1] < 0)
    assert wraps.any()


@merges
@formats
def test_nan_absorbs_and_infinities_are_counted(form: Format, merge: Merge) -> None:
    of = form.dtype.type
    every = exact.state(np.array(exact_rows.edges(form), form.dtype)[:, None], form)
    nan = exact.state(np.full((len(every[0]), 1), of(np.nan)), form)
    pattern = np.array(np.nan, form.dtype).view(f"u{form.dtype.itemsize}")
    assert pattern >> np.uint64(form.dtype.itemsize * 8 - 1) == 0
    for made in (merge(every, nan), merge(nan, every), nan):
        assert (made[0].view(pattern.dtype) == pattern).all()
        assert (made[1] == 0).all()
    negative = exact.state(np.array([[-np.nan, 1.0]], form.dtype), form)
    assert negative[0].view(pattern.dtype) == pattern
    three = exact.state(np.array([[np.inf, 5.0, np.inf, -np.inf, np.inf]], form.dtype), form)
    same(three, (np.array([np.inf], form.dtype), np.array([[3] + [0] * (form.slices - 1)])))
    assert exact.lse(*three, form) == np.inf
    nothing = exact.state(np.full((1, 4), -np.inf, form.dtype), form)
    same(nothing, exact.identity((1,), form))
    assert exact.lse(*nothing, form) == -np.inf


# --- long rows ---

MILLION = 1 << 20


def below_the_grid(form: Format) -> tuple[float, float]:
    """A maximum at the bottom of its bin, and the greatest number below it of which nothing is left."""
    m = min(x for x in exact_rows.borders(form, range(1)) if exact_model.top_bin(x, form) == 0)
    gap = (form.width * (form.slices - 1) - 0.5) * float(exact_rows.LOG2)
    x = form.dtype.type(m - gap)
    while any(exact_model.slices(float(x), 0, form)):
        x = np.nextafter(x, form.dtype.type(-np.inf))
    while not any(exact_model.slices(float(np.nextafter(x, form.dtype.type(0))), 0, form)):
        x = np.nextafter(x, form.dtype.type(0))
    return m, float(x)


def long_row(kind: str, form: Format) -> Array:
    """2**20 elements, of few hundred different values so that the model has them."""
    h = exact_rows.hashed((MILLION,), 700) >> np.uint64(13)
    if kind == "scores":
        pool = exact_rows.moderate((700,), 701, form.dtype)
    elif kind == "edges":
        pool = np.array([x for x in exact_rows.edges(form) if abs(x) < form.large / 8], form.dtype)
    elif kind == "lost":
        row = np.full(MILLION, below_the_grid(form)[1], form.dtype)
        row[MILLION // 3] = below_the_grid(form)[0]
        return row
    elif kind == "rising":
        return (np.arange(MILLION) // 4096).astype(form.dtype)
    else:
        pool = np.array(exact_rows.borders(form, range(-1, 2)), form.dtype)
    return pool[(h % np.uint64(pool.size)).astype(np.int64)]


@formats
@pytest.mark.parametrize("kind", ["lost", "scores", "edges", "bins", "rising"])
def test_a_million_elements_in_any_parts(kind: str, form: Format) -> None:
    row = long_row(kind, form)
    wanted = modelled([exact_model.state(Counter(row.tolist()), form)], form)
    same(exact.state(row[None], form), wanted)
    order = np.argsort(exact_rows.hashed((MILLION,), 702), kind="stable")
    for parts, shuffled in ((7, row), (40, row[order])):
        cuts = np.sort(exact_rows.hashed((parts,), 703) % np.uint64(MILLION)).astype(np.int64)
        states = [exact.state(part[None], form) for part in np.split(shuffled, cuts)]
        total = exact.identity((1,), form)
        for k in np.argsort(exact_rows.hashed((len(states),), 704)):
            total = defined(total, states[k])
        same(total, wanted)


@formats
def test_all_splits_in_two(form: Format) -> None:
    for row in (
        exact_rows.moderate((60,), 800, form.dtype),
        exact_rows.bin_rows((1, 60), 801, form)[0],
        np.array([x for x in exact_rows.edges(form)[::2] if abs(x) < form.large], form.dtype),
    ):
        (m, a) = exact.state(row[None], form)
        for at in range(len(row) + 1):
            same(defined(exact.state(row[None, :at], form), exact.state(row[None, at:], form)), (m, a))


# --- what follows ---


@formats
def test_equal_elements_divide_evenly(form: Format) -> None:
    for x in (0.0, -3.25, 11.5, float(form.large), 2.0 * form.large, below_the_grid(form)[0]):
        for n in (1, 2, 3, 10, 64, 1000, 4096):
            row = np.full((1, n), x, form.dtype)
            m, a = exact.state(row, form)
            y = exact.value(row, m[:, None], a[:, None], form)
            # n times a term is a double in float32. Of float64 the sum is rounded twice and its inverse once.
            loose = 0 if form.kind == 32 or n & (n - 1) == 0 else 3
            np.testing.assert_array_max_ulp(
                y, np.full_like(y, form.dtype.type(1) / form.dtype.type(n)), loose
            )
            lse = float(exact.lse(m, a, form)[0])
            assert abs(lse - (x + math.log(n))) <= np.spacing(form.dtype.type(abs(x) + math.log(n)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_16_bits_are_their_float32_upcast(dtype: str) -> None:
    rows = exact_rows.moderate((20, 300), 900, exact_rows.DTYPES[dtype])
    wide = rows.astype(np.float32)
    same(cpu_exact.state(rows, (1,)), exact.state(wide, FLOAT32))
    y, of_wide = np.empty_like(rows), np.empty_like(wide)
    for log in (False, True):
        cpu_exact.softmax(rows, y, (1,), log=log)
        cpu_exact.softmax(wide, of_wide, (1,), log=log)
        np.testing.assert_array_equal(y.view(np.uint16), of_wide.astype(rows.dtype).view(np.uint16))
    assert ml_dtypes.finfo(rows.dtype).bits == 16


def test_the_formats_differ() -> None:
    """A float32 row in the other format is another state, and nearer to the truth."""
    rows = exact_rows.moderate((5, 100), 901, np.dtype(np.float32))
    narrow, wide = (
        exact.lse(*exact.state(rows.astype(form.dtype), form), form).astype(np.float64) for form in FORMATS
    )
    assert FLOAT32.name != FLOAT64.name
    assert (narrow != wide).all()
    np.testing.assert_allclose(narrow, wide, rtol=2e-7, atol=0)
