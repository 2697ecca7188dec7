"""Derivatives of attention where care is needed: tile borders, tiles not to be made, keys and queries that
may not be read, values that are not finite, formats, layouts, memory and wrong calls."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import FORMATS, assert_same_bits
from test_attention_derivatives import ROUNDING, Problem, close, draw, hold

import online_softmax as osm
from online_softmax import attention_tiles, reference
from online_softmax.frontends import attention_derivatives as front
from online_softmax.frontends.attention_derivatives import attention_double_backward, attention_jvp

INF, NAN = np.inf, np.nan
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def both(problem: Problem, **changes: Any) -> dict[str, np.ndarray]:
    """All results of both functions, by name."""
    moved, made = problem.jvp(**changes), problem.double(**changes)
    found = {f"jvp {n}": a for n, a in moved._asdict().items()}
    return found | {f"double {n}": a for n, a in made._asdict().items() if a is not None}


def same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, a in expected.items():
        assert_same_bits(got[name], a, name)


@pytest.mark.parametrize("queries", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("keys", [7, 8, 9, 16, 17])
def test_tile_borders(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    """Tiles of 4 queries of 2 heads against 8 keys give what one tile gives."""
    everything = {
        "causal": True, "window": (6, None), "softcap": 2.0, "sinks": draw(1, 4), "alibi_slopes": draw(2, 4),
        "bias": draw(3, 1, 4, 1, keys), "mask": draw(4, queries, keys) < 1.0,
    }  # fmt: skip
    problems = [Problem({}, queries, keys), Problem(everything, queries, keys)]
    whole = [both(p) for p in problems]
    monkeypatch.setattr(attention_tiles, "ROWS", 8)
    monkeypatch.setattr(attention_tiles, "KEYS", 8)
    for problem, expected in zip(problems, whole, strict=True):
        for name, got in both(problem).items():
            # Another order of the same sums.
            finite = np.isfinite(expected[name])
            np.testing.assert_array_equal(got[~finite], expected[name][~finite])
            close(got[finite], expected[name][finite])


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 40), "softcap": 1.0}], ids=str)
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_the_real_tile_borders(options: dict[str, Any], off: int) -> None:
    queries, keys = attention_tiles.ROWS + off, attention_tiles.KEYS + off
    hold(Problem(options, queries, keys, batch=1, heads=1, groups=1), 2 * (keys + 1) * ROUNDING)


def test_tiles_that_are_hidden_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "ROWS", 8)
    monkeypatch.setattr(attention_tiles, "KEYS", 8)
    asked: list[tuple[int, int, int, int]] = []

    def keep(batch: int, head: int, queries: slice, keys: slice) -> np.ndarray:
        asked.append((queries.start, queries.stop, keys.start, keys.stop))
        return np.ones((queries.stop - queries.start, keys.stop - keys.start), np.bool_)

    looked: list[slice] = []
    look = attention_tiles._seen

    def seen_of(options: Any, cell: Any, queries: slice, keys: slice) -> np.ndarray:
        looked.append(keys)
        return look(options, cell, queries, keys)

    monkeypatch.setattr(front, "keep_of", lambda dropout_p, seed: keep)
    monkeypatch.setattr(attention_tiles, "_seen", seen_of)
    one = {"batch": 1, "heads": 1, "groups": 1}
    for options in ({"causal": True}, {"window": (5, 3)}, {"causal": True, "causal_align": "upper_left"}):
        problem = Problem(options, 40, 60, **one)
        place = 0 if "causal_align" in options else 20
        left, right = options.get("window", (None, 0))
        problem.jvp()
        at, keys = np.arange(40)[:, None] + place, np.arange(60)
        seen = (keys <= at + right) & (keys >= at - (60 if left is None else left))
        met = np.zeros_like(seen)
        for top, bottom, first, end in asked:
            assert seen[top:bottom, first:end].any()
            met[top:bottom, first:end] = True
        assert met[seen].all()
        assert len(looked) == len(asked)  # those outside the band are not even looked at
        asked.clear()
        looked.clear()
    mask = np.zeros((40, 60), np.bool_)
    mask[:8, 8:16] = True
    Problem({"mask": mask}, 40, 60, **one).double()
    assert asked == [(0, 8, 8, 16)] * 2


HIDING: dict[str, tuple[dict[str, Any], int]] = {
    "mask": ({"mask": np.arange(11) != 4}, 4),
    "bias": ({"bias": np.where(np.arange(11) == 4, -INF, 0.5)}, 4),
    "causal": ({"causal": True, "causal_align": "upper_left"}, 8),
    "window": ({"window": (2, 2)}, 2),
    "score": ({}, 4),
}


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("name", HIDING)
def test_keys_nobody_sees_leave_no_trace(name: str, poison: float) -> None:
    options, hidden = HIDING[name]
    problem = Problem(options | {"softcap": 2.0} if name != "score" else options)
    if name == "score":  # a key of -inf beside a q of 1 in that feature: it takes no part
        problem.operands[0][..., 0] = 1.0
        problem.moves[0][..., 0] = 0.0
        problem.operands[1][:, :, hidden, 0] = -INF
    clean = both(problem)
    for arrays in (problem.operands, problem.moves):
        for a in arrays[2:] if name == "score" else arrays[1:]:
            a[:, :, hidden] = poison
    if name == "bias":
        problem.d_bias[hidden] = poison
    same(both(problem), clean)
    for part in "kv":
        assert (clean[f"double {part}"][:, :, hidden] == 0).all()
    assert np.isfinite(clean["double q"]).all()


@pytest.mark.parametrize("part", ["k", "v", "dk", "dv"])
def test_a_key_that_is_nan_reaches_those_who_see_it_and_no_others(part: str) -> None:
    seen = np.random.default_rng(5).random((2, 1, 5, 11)) < 0.5
    problem = Problem({"mask": seen})
    without = seen.copy()
    without[..., 4] = False
    clean = both(Problem({"mask": without}))
    index = {"k": (problem.operands, 1), "v": (problem.operands, 2)} | {
        "dk": (problem.moves, 1), "dv": (problem.moves, 2),
    }  # fmt: skip
    arrays, place = index[part]
    arrays[place][:, :, 4] = NAN
    got = both(problem)
    who = seen[:, :, :, 4]  # (batch, 1, queries), heads alike
    for name in ("jvp d_output", "double do", "double q"):
        hit = np.isnan(got[name]).any(axis=-1)
        np.testing.assert_array_equal(hit, np.broadcast_to(who, hit.shape), err_msg=name)
        assert_same_bits(got[name][~hit], clean[name][~hit], name)
    touched = (seen & who[..., None]).any(axis=2)  # keys that share a query with the NaN
    touched[..., 4] = True
    assert (who.any(axis=-1)).all()
    hit = np.isnan(got["double k"]).any(axis=-1)
    np.testing.assert_array_equal(hit, np.broadcast_to(touched, hit.shape))
    assert_same_bits(got["double k"][~hit], clean["double k"][~hit])


def test_queries_that_see_nothing_are_not_read_and_give_nothing() -> None:
    for options in ({}, {"sinks": np.array([0.5, -3.0, 4.0, -INF])}):
        mask = np.ones((5, 11), np.bool_)
        mask[2] = False
        problem = Problem({"mask": mask} | options)
        clean = both(problem)
        problem.operands[0][:, :, 2] = problem.moves[0][:, :, 2] = problem.do[:, :, 2] = NAN
        if not options:
            problem.dlse[:, :, 2] = NAN
        same(both(problem), clean)
        for name in ("jvp output", "jvp d_output", "double do", "double q"):
            assert (clean[name][:, :, 2] == 0).all()
        sinks = options.get("sinks", np.full(4, -INF))
        moves = np.where(sinks == -INF, 0, problem.d_sinks) if options else np.zeros(4)
        np.testing.assert_array_equal(clean["jvp lse"][:, :, 2], np.broadcast_to(sinks, (2, 4)))
        np.testing.assert_array_equal(clean["jvp d_lse"][:, :, 2], np.broadcast_to(moves, (2, 4)))
        if options:  # that a sink of -inf moves is not read either
            problem.d_sinks[3] = NAN
            same(both(problem), clean)


def test_what_dropout_drops_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stays = np.random.default_rng(6).random((2, 4, 5, 11)) < 0.7
    stays[:, :, :, 3] = stays[:, :, 1] = False
    monkeypatch.setattr(front, "keep_of", lambda p, seed: lambda b, h, i, j: stays[b, h, i, j])
    problem = Problem({"dropout_p": 0.25})
    clean = both(problem)
    problem.operands[2][:, :, 3] = problem.moves[2][:, :, 3] = problem.do[:, :, 1] = NAN
    same(both(problem), clean)
    assert (clean["jvp d_output"][:, :, 1] == 0).all()
    assert (clean["jvp d_lse"][:, :, 1] != 0).all()


def test_dropout_drops_what_the_forward_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "ROWS", 4)
    monkeypatch.setattr(attention_tiles, "KEYS", 4)
    chosen = {"dropout_p": 0.25, "seed": 2**63 + 5}
    problem = Problem(chosen)
    keep = osm.dropout_mask((2, 4, 5, 11), **chosen)
    assert keep.any()
    assert not keep.all()
    close(problem.jvp().output, reference.attention(*problem.operands, dropout_p=0.25, keep=keep))
    truth = both(problem)
    monkeypatch.setattr(front, "keep_of", lambda p, seed: lambda b, h, i, j: keep[b, h, i, j])
    same(both(problem), truth)


@pytest.mark.parametrize("score", [NAN, INF])
def test_scores_that_are_not_finite(score: float) -> None:
    problem = Problem({}, batch=1, heads=1, groups=1)
    problem.operands[0][..., 0] = np.array([1.0, 1, 1, 0, 1])[:, None].T
    problem.operands[1][..., 4, 0] = score
    got, right = both(problem), reference.attention(*problem.operands, return_lse=True)
    np.testing.assert_array_equal(got["jvp output"], np.full_like(right[0], NAN))
    np.testing.assert_array_equal(got["jvp lse"], right[1])
    for name in ("jvp d_output", "jvp d_lse", "double do", "double q", "double k", "double v"):
        assert np.isnan(got[name]).all(), name


@pytest.mark.parametrize("sink", [NAN, INF])
def test_sinks_that_are_not_finite(sink: float) -> None:
    problem = Problem({"sinks": np.array([sink, 0.5, 0.5, 0.5])})
    got, right = both(problem), reference.attention(*problem.operands, sinks=problem.sinks, return_lse=True)
    np.testing.assert_array_equal(np.isnan(got["jvp output"]), np.isnan(right[0]))
    np.testing.assert_array_equal(got["jvp lse"][:, 0], right[1][:, 0])
    for name in ("jvp d_output", "jvp d_lse", "double do", "double q"):
        assert np.isnan(got[name][:, 0]).all(), name
        assert np.isfinite(got[name][:, 1:]).all(), name
    for name in ("double k", "double v"):
        assert np.isnan(got[name][:, 0]).all(), name
        assert np.isfinite(got[name][:, 1]).all(), name


def test_no_tangent_is_a_tangent_of_zero() -> None:
    problem = Problem({"bias": draw(1, 11), "sinks": draw(2, 4), "softcap": 2.0, "causal": True})
    given = [*problem.moves, problem.d_bias, problem.d_sinks]
    for left_out in (*range(5), None):
        zeros = [np.zeros_like(a) if n == left_out or left_out is None else a for n, a in enumerate(given)]
        nones = [None if n == left_out or left_out is None else a for n, a in enumerate(given)]
        found = []
        for q, k, v, problem.d_bias, problem.d_sinks in (zeros, nones):
            problem.moves = [q, k, v]
            found.append(both(problem))
        for name, truth in found[0].items():  # a product of zeros may change the order of a sum
            close(found[1][name], truth)
    for name in ("jvp d_output", "jvp d_lse", "double q", "double k", "double bias"):
        assert (found[1][name] == 0).all(), name
    quiet, silent = Problem({}), Problem({})
    silent.dlse = np.zeros_like(silent.dlse)
    assert quiet.double(dlse=None).dlse is None
    for name in ("do", "q", "k", "v"):
        assert_same_bits(getattr(quiet.double(dlse=None), name), getattr(silent.double(), name))


def test_more_heads_than_rows_of_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "ROWS", 3)
    hold(Problem({"alibi_slopes": draw(1, 4), "sinks": draw(2, 4)}, groups=1))


@pytest.mark.parametrize("name", [*(d.name for d in FORMATS.values()), "float8_e4m3fn", "int64"])
def test_formats(name: str) -> None:
    """What float64 makes of the same numbers, rounded (to 8 bits by way of float32)."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    options = {"bias": draw(1, 4, 1, 11).astype(np.float32), "sinks": draw(2, 4).astype(np.float16)}
    problem = Problem(options | {"softcap": 2.0})
    arrays = [*problem.operands, *problem.moves, problem.do]
    scaled = [a * 3 if name == "int64" else a for a in arrays]
    *first, problem.do = (a.astype(dtype) for a in scaled)
    problem.operands, problem.moves = first[:3], first[3:]
    got = both(problem)
    *first, problem.do = (a.astype(np.float64) for a in (*first, problem.do))
    problem.operands, problem.moves = first[:3], first[3:]
    result = np.dtype(np.float64) if name == "int64" else dtype
    wide = np.dtype(np.float64 if result == np.float64 else np.float32)
    kinds = {"lse": wide, "d_lse": wide, "dlse": wide, "bias": np.float32, "sinks": np.float16}
    for label, truth in both(problem).items():
        kind = np.dtype(kinds.get(label.split()[1], result))
        narrow = truth.astype(np.float32) if kind.itemsize == 1 else truth
        assert_same_bits(got[label], narrow.astype(kind), label)


def test_layouts_ranks_and_strides() -> None:
    problem = Problem({"bias": draw(1, 4, 5, 1), "sinks": draw(2, 4), "causal": True})
    whole = both(problem)

    def changed(change: Callable[[np.ndarray], np.ndarray], **options: Any) -> dict[str, np.ndarray]:
        other = Problem(problem.extras)
        other.d_bias, other.d_sinks = problem.d_bias, problem.d_sinks
        other.operands, other.moves = ([change(a) for a in b] for b in (problem.operands, problem.moves))
        other.do, other.dlse = change(problem.do), change(problem.dlse)
        return both(other, **options)

    moved = changed(lambda a: np.ascontiguousarray(np.moveaxis(a, 1, 2)), layout="BSHD")
    unmoved = {n: a if n.split()[1] in ("bias", "sinks") else np.moveaxis(a, 1, 2) for n, a in moved.items()}
    same(unmoved, whole)
    same(changed(lambda a: np.repeat(a, 2, axis=-1)[..., ::2]), whole)
    same(changed(np.asfortranarray), whole)
    plain = both(Problem({}))
    for place in ((1,), (1, 0)):
        part = Problem({})
        part.operands, part.moves = ([a[place] for a in b] for b in (part.operands, part.moves))
        part.do, part.dlse = part.do[place], part.dlse[place]
        if len(place) == 1:
            same(both(part), {n: a[place] for n, a in plain.items()})
        else:  # one head of two that share keys
            assert_same_bits(part.jvp().d_output, plain["jvp d_output"][place])
            assert part.double().k.shape == part.operands[1].shape


def test_empty_shapes() -> None:
    for sizes in ({"queries": 0}, {"keys": 0}, {"batch": 0}, {"heads": 0, "groups": 0}):
        problem = Problem({"bias": draw(1, 1)}, **sizes)
        for name, a in both(problem).items():
            expected = -INF if name == "jvp lse" else 0
            assert (a == expected).all(), name
    problem = Problem({"sinks": draw(2, 4)}, keys=0)
    np.testing.assert_array_equal(problem.jvp().d_lse, np.broadcast_to(problem.d_sinks[:, None], (2, 4, 5)))


def test_memory_stays_far_below_a_byte_a_score() -> None:
    queries, keys = 4096, 8192
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 8)).astype(np.float32) for n in (queries, keys, keys))
    do = rng.standard_normal((queries, 8)).astype(np.float32)
    tracemalloc.start()
    try:
        attention_jvp(q, k, v, q, k, v, causal=True)
        attention_double_backward(do, q, k, v, q, k, v, causal=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tile = attention_tiles.ROWS * attention_tiles.KEYS * 8
    held = 8 * (queries + keys) * 8 * 8
    assert peak < 21 * tile + held
    assert peak < queries * keys / 3


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dq": np.zeros((2, 4, 5, 7))}, ValueError, r"dq has shape \(2, 4, 5, 7\): \(2, 4, 5, 6\), that of q"),
    (
        {"dk": np.zeros((2, 2, 11, 6), np.float32)},
        TypeError,
        "dk is float32: float64, the format of q, k and",
    ),
    ({"dv": "x"}, TypeError, "dv holds"),
    ({"k": np.zeros((2, 2, 11, 6), np.float32)}, TypeError, "k is float32 and q is float64"),
    ({"k": np.zeros((2, 2, 11, 5))}, ValueError, "k has 5 features and q 6"),
    ({"dbias": np.zeros(11)}, ValueError, "dbias is given and bias is not: bias of the shape"),
    (
        {"bias": np.zeros(11), "dbias": np.zeros(1)},
        ValueError,
        r"dbias has shape \(1,\): \(11,\), that of bias",
    ),
    ({"dsinks": np.zeros(4)}, ValueError, "dsinks is given and sinks is not"),
    ({"sinks": np.zeros(3)}, ValueError, r"sinks has shape \(3,\): \(4,\) would do"),
    ({"bias": np.zeros(10)}, ValueError, r"bias of shape \(10,\) does not broadcast"),
    ({"mask": np.zeros(11)}, TypeError, "mask is float64: bool"),
    ({"layout": "SBHD"}, ValueError, "layout is 'SBHD': one of BHSD, BSHD"),
    ({"softcap": 0}, ValueError, "softcap is 0: a positive number"),
    ({"causal_align": "left"}, ValueError, "causal_align is 'left'"),
    ({"window": (-1, 0)}, ValueError, "window is"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p is 1.0: at least 0 and below 1"),
    ({"seed": -1}, ValueError, "seed is -1: a whole number from 0"),
    ({"scale": NAN}, ValueError, "scale is nan"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_wrong_calls(change: dict[str, Any], error: type[Exception], words: str) -> None:
    p = Problem({})
    named = dict(zip(("q", "k", "v"), p.operands, strict=True))
    moves = dict(zip(("dq", "dk", "dv"), p.moves, strict=True))
    with pytest.raises(error, match=words):
        attention_jvp(**named | moves | change)
    new = {n: f"g{n}" for n in ("dq", "dk", "dv", "dbias", "dsinks")}
    renamed = {new.get(n, n): a for n, a in (moves | change).items() if n not in named}
    given = named | {n: a for n, a in change.items() if n in named}
    with pytest.raises(error, match=words):
        attention_double_backward(p.do, **given, **renamed)


def test_wrong_gradients() -> None:
    p = Problem({})
    with pytest.raises(ValueError, match=r"do has shape .*: \(2, 4, 5, 3\), that of the output, would do"):
        attention_double_backward(p.do[..., :2], *p.operands, *p.moves)
    with pytest.raises(TypeError, match="do is float32: float64"):
        attention_double_backward(p.do.astype(np.float32), *p.operands, *p.moves)
    with pytest.raises(ValueError, match=r"dlse has shape \(4, 5\): \(2, 4, 5\), that of the lse"):
        p.double(dlse=p.dlse[0])
