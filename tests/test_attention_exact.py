"""States of attention in order="any": merges in any order, the law that holds the core, bytes, errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import every_isa

import online_softmax as osm
from online_softmax import ExactAttentionState, attention, cpu_attention, cpu_exact, reference
from online_softmax import attention_sums as law
from online_softmax.attention_sums import TILE
from online_softmax.frontends import exact_attention
from online_softmax.frontends.attention_call import Options, described

RNG = np.random.default_rng(9)
DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}
B, H, G, L, S = 2, 4, 2, 60, 700
INF, NAN = np.inf, np.nan


def normal(dtype: str, *shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 2).astype(DTYPES[dtype])


def operands(dtype: str, d: int = 40, dv: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(dtype, B, H, L, d), normal(dtype, B, G, S, d), normal(dtype, B, G, S, dv)


# ---- order="any": states


def cut(k: np.ndarray, v: np.ndarray, at: tuple[int, ...]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for a, b in itertools.pairwise((0, *at, k.shape[2])):
        yield a, k[:, :, a:b], v[:, :, a:b]


def shards(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, at: tuple[int, ...], **options: Any
) -> list[ExactAttentionState]:
    return [ExactAttentionState.of(q, *kv, first_key=a, **options) for a, *kv in cut(k, v, at)]


CUTS = ((), (512,), (1024, 1536), (512, 1024, 1536, 2048, 2560, 3072, 3584))  # 1, 2, 3 and 8 shards


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("at", CUTS, ids=lambda at: f"{len(at) + 1} shards")
def test_rings_in_both_directions_have_the_bits_of_the_whole(
    isa: str, dtype: str, at: tuple[int, ...]
) -> None:
    keys = 3800
    q, k, v = normal(dtype, 1, 4, 3, 24), normal(dtype, 1, 2, keys, 24), normal(dtype, 1, 2, keys, 16)
    placed = {"causal": True, "window": (3000, None), "first_query": keys - 3}
    whole = attention(q, k, v, causal=True, window=(3000, None), order="any", return_state=True, isa=isa)
    parts = shards(q, k, v, at, isa=isa, **placed)
    for start in range(len(parts)):
        for step in (1, -1):
            ring = [parts[(start + step * i) % len(parts)] for i in range(len(parts))]
            assert ExactAttentionState.merge_many(ring) == whole
    output = attention(q, k, v, causal=True, window=(3000, None), order="any", isa=isa)
    if dtype != "bfloat16":
        assert whole.output.tobytes() == output.tobytes()


def test_every_order_and_tree_of_super_tiles_has_the_same_bits() -> None:
    q, k, v = operands("float32")
    k, v = np.tile(k, (1, 1, 3, 1)), np.concatenate([v, 1e-6 * v, -1e4 * v], axis=2)
    mask = RNG.random((B, H, L, 3 * S)) < 0.3
    mask[0, 0, 0] = False
    mask[0, 0, 1, :1500] = False
    parts = [
        ExactAttentionState.of(q, *kv, first_key=a, mask=mask[..., a : a + TILE])
        for a, *kv in cut(k, v, (512, 1024, 1536, 2048))
    ]
    whole = attention(q, k, v, mask=mask, order="any", return_state=True)
    for order in itertools.permutations(parts):
        assert ExactAttentionState.merge_many(order) == whole
    a, b, c, d, e = parts
    assert a.merge(b).merge(c.merge(d.merge(e))) == whole
    assert e.merge(d.merge(b)).merge(a.merge(c)) == whole
    nothing = ExactAttentionState.identity((B, H, L), v.shape[-1])
    assert nothing.merge(whole) == whole
    assert whole.merge(nothing) == whole
    assert whole.output[0, 0, 0].tolist() == [0] * v.shape[-1]
    assert whole.lse[0, 0, 0] == -INF


def test_sinks_before_or_after() -> None:
    q, k, v = operands("float32")
    sinks = np.array([-INF, 0.0, 3.5, 80.0])
    made = attention(q, k, v, sinks=sinks, order="any", return_lse=True)
    a, b = shards(q, k, v, (512,))
    for state in (a.merge(b).with_sinks(sinks[:, None]), b.with_sinks(sinks[:, None]).merge(a)):
        assert np.array_equal(state.output, made.output)
        assert np.array_equal(state.lse, made.lse)
    swapped = attention(*(x.swapaxes(1, 2) for x in (q, k, v)), sinks=sinks, order="any", layout="BSHD")
    assert np.array_equal(swapped.swapaxes(1, 2), made.output)


# ---- order="any": the law


def assert_alike(core: law.Sums, by_law: law.Sums) -> None:
    for a, b in zip(core, by_law, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def native_and_law(call: Any, isa: str | None) -> tuple[law.Sums, law.Sums]:
    """The sums of a call by the core, and by the law from the core's partials."""
    problem, form = call.problem, law.FORMATS[np.dtype(call.result)]
    made = law.identity(call.shape[:-1], call.shape[-1], form)
    pivot, weight = np.empty(call.shape[:-1]), np.empty(call.shape[:-1])
    o = np.empty(call.shape, form.dtype)
    for first in range(0, problem.k.shape[2], TILE):
        places = call.four(o, "o"), call.three(pivot), call.three(weight)
        cpu_attention.partial(problem, (first, first + TILE), *places, isa=isa)
        made = law.merge(made, law.partial(pivot, weight, o, form))
    state = exact_attention.sums_of(call, isa=isa, threads=2)
    return state, made


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_core_gives_the_bits_of_the_law(isa: str, dtype: str) -> None:
    q, k, v = normal(dtype, 1, 8, 4, 16), normal(dtype, 1, 8, 2100, 16), normal(dtype, 1, 8, 2100, 21)
    v *= 2.0 ** RNG.integers(-60, 60, v.shape)
    v[:, 1] = 0
    v[:, 1, 700:900] = -(2.0**-120)
    v[0, 2, [3, 600, 1200], [0, 1, 2]] = [INF, -INF, NAN]
    v[0, 3, 1500] = INF
    bias = RNG.standard_normal((8, 4, 2100)) * 30
    bias[4, :, 600:] += 2000  # nothing is left of what came before
    bias[5, 0], bias[5, 1, 512:1024] = -INF, -INF
    bias[5, 2, 100], bias[5, 3, 1300] = INF, NAN
    bias[6] *= 2.0**27  # some past what has a grid, some not
    bias[7] = -(2.0**35)
    bias[7, 0, 2000] = -(2.0**36)
    call = described(q[0], k[0], v[0], Options(bias=bias))
    core, by_law = native_and_law(call, isa)
    assert_alike(core, by_law)
    made = attention(q[0], k[0], v[0], bias=bias, order="any", return_lse=True, isa=isa)
    with np.errstate(over="ignore"):
        o, lse = (array.astype(dtype) for array in law.read(by_law))
    assert np.array_equal(made.output, o, equal_nan=True)
    assert np.array_equal(made.lse, lse, equal_nan=True)
    levels = core.level[5]
    assert levels[0] == -INF
    assert levels[2] == INF
    assert np.isnan(levels[3])
    assert (np.abs(core.level[7]) > law.LARGE).all()


def partials(n: int, form: law.Format, rows: int = 50, dv: int = 3) -> list[law.Sums]:
    """Sums of one partial each, exponents wide apart and near the borders of bins."""
    made = []
    for _ in range(n):
        pivot = RNG.choice([0.0, 1.0, -30.0, 22.0, 44.5, 300.0, -(2.0**20), 2.0**29, 2.0**31, -INF], rows)
        weight = np.where(pivot == -INF, 0.0, RNG.uniform(1, 500, rows))
        o = RNG.standard_normal((rows, dv)) * 2.0 ** RNG.integers(-70, 70, (rows, dv))
        o[RNG.random((rows, dv)) < 0.1] = 0
        o[RNG.random((rows, dv)) < 0.05] = RNG.choice([INF, -INF, NAN, 1e-300])
        weight[RNG.random(rows) < 0.02] = NAN
        made.append(
            law.partial(pivot, weight, np.where(pivot[:, None] == -INF, 0, o).astype(form.dtype), form)
        )
    return made


@pytest.mark.parametrize("form", law.FORMATS.values(), ids=lambda form: form.name)
def test_merges_of_the_law_are_associative_and_commutative_in_bits(form: law.Format) -> None:
    for _ in range(20):
        parts = partials(4, form)
        assert_alike(cpu_attention.merged(parts[0], parts[1]), law.merge(parts[0], parts[1]))
        total = law.merge(law.merge(parts[0], parts[1]), parts[2])
        with np.errstate(over="ignore"):
            o, lse = law.read(total)
            read = cpu_attention.read(total)
            assert np.array_equal(read[0], o.astype(form.dtype), equal_nan=True)
        assert np.array_equal(read[1], lse, equal_nan=True)
        found = set()
        for a, b, c, d in itertools.permutations(parts):
            chain = law.merge(law.merge(law.merge(a, b), c), d)
            tree = law.merge(law.merge(a, b), law.merge(c, d))
            found |= {tuple(array.tobytes() for array in sums) for sums in (chain, tree)}
        assert len(found) == 1


class Numbers:
    """Those of native/tests/attention_sums_test.cpp."""

    def __init__(self) -> None:
        self.state = 88172645463325252

    def next(self) -> int:
        for shift in (13, -7, 17):
            moved = self.state << shift if shift > 0 else self.state >> -shift
            self.state = (self.state ^ moved) & (2**64 - 1)
        return self.state

    def uniform(self) -> float:
        return (self.next() >> 11) * 2.0**-53

    def part(self, row: int, form: law.Format) -> law.Sums:
        kind = self.next() % 12
        spread = (self.uniform() - 0.5) * (2000 if kind == 2 else 60)
        pivot = {0: -INF, 1: 3.0 if row % 3 else 1e10}.get(kind, float(form.dtype.type(spread)))
        weight = 0.0 if kind == 0 else 1 + 500 * self.uniform()
        o = np.zeros(37, form.dtype)
        for i in range(37):
            size = 2.0 ** (self.next() % 120 - 60)
            o[i] = (self.uniform() - 0.5) * size
            odd = self.next() % 400
            o[i] = INF if odd == 0 else 0 if odd % 50 == 1 or kind == 0 else o[i]
        return law.partial(np.float64(pivot)[None], np.float64(weight)[None], o[None], form)


@pytest.mark.parametrize(
    ("form", "digest"), [(law.FLOAT32, 0x717D8F0726AA4483), (law.FLOAT64, 0x0030CB324F533863)]
)
def test_the_law_has_the_digest_that_every_machine_must_meet(form: law.Format, digest: int) -> None:
    numbers, found = Numbers(), 1469598103934665603
    for row in range(40):
        total = law.identity((1,), 37, form)
        for _ in range(30):
            total = law.merge(total, numbers.part(row, form))
        level, bins, a, odd = total
        with np.errstate(over="ignore"):
            o, lse = law.read(total)
            results = o.astype(form.dtype), lse
        for array in (level, bins, np.swapaxes(a, -1, -2), odd, *results):
            for byte in array.tobytes():
                found = ((found ^ byte) * 1099511628211) % 2**64
    assert found == digest, f"{found:#x}"


@pytest.mark.parametrize("form", law.FORMATS.values(), ids=lambda form: form.name)
def test_sums_are_within_the_bound_of_the_law(form: law.Format) -> None:
    n, rows, dv = 40, 200, 5
    pivot = RNG.uniform(-40, 40, (n, rows)).astype(np.float32).astype(np.float64)
    weight = RNG.uniform(1, 500, (n, rows))
    scale = 2.0 ** RNG.integers(-30, 30, (n, rows, dv))
    o = (RNG.standard_normal((n, rows, dv)) * scale).astype(form.dtype)
    total = law.identity((rows,), dv, form)
    for i in range(n):
        total = law.merge(total, law.partial(pivot[i], weight[i], o[i], form))
    got, lse = law.read(total)
    wide = np.longdouble
    share = np.exp(pivot.astype(wide))
    of_weight = share * weight.astype(wide)
    of_o = share[..., None] * o.astype(wide)
    relative = n * 2.0 ** (-law.WIDTH * (form.slices - 1)) + 2.0**-50
    v = of_weight.sum(axis=0)
    e_v = relative * of_weight.max(axis=0)
    e_o = relative * np.abs(of_o).max(axis=0)
    right = of_o.sum(axis=0) / v[:, None]
    bound = (e_o + np.abs(right) * e_v[:, None]) / v[:, None] + 2.0**-50 * np.abs(right)
    assert (np.abs(got - right) <= bound).all()
    assert (np.abs(lse - np.log(v)) <= e_v / v + 2.0**-50 * (1 + np.abs(np.log(v)))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_as_near_as_in_row_order(dtype: str) -> None:
    q, k, v = operands(dtype)
    options: dict[str, Any] = {"causal": True, "softcap": 30.0, "sinks": RNG.standard_normal(H)}
    right = reference.attention(*(a.astype(np.float64) for a in (q, k, v)), **options)
    got = attention(q, k, v, order="any", **options)
    plain = attention(q, k, v, **options)
    eps = float(np.finfo(dtype).eps)
    worst = np.abs(plain - right).max()
    assert np.abs(got - right).max() <= 2 * worst + 4 * eps


def test_dropout_and_narrow_keys_are_the_same_for_any_shard() -> None:
    q, k, v = operands("float32")
    plain = attention(q, k, v, dropout_p=0.3, seed=5, order="any", return_state=True)
    parts = [
        attention(q, *kv, dropout_p=0.3, seed=5, origin=(0, 0, 0, a), order="any", return_state=True)
        for a, *kv in cut(k, v, (512,))
    ]
    assert parts[1].merge(parts[0]) == plain
    assert plain != attention(q, k, v, dropout_p=0.3, seed=6, order="any", return_state=True)
    narrow = [(a * 20).astype(np.int8) for a in (k, v)]
    scales = {"k_scale": 0.05, "v_scale": np.array([0.05, 0.04])}
    whole = attention(q, *narrow, order="any", return_state=True, **scales)
    assert ExactAttentionState.merge_many(shards(q, *narrow, (512,), **scales)) == whole


# ---- bytes and errors


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes(dtype: str) -> None:
    q, k, v = operands(dtype)
    state = ExactAttentionState.of(q, k, v)
    again = ExactAttentionState.from_bytes(state.to_bytes())
    assert again == state
    assert again.to_bytes() == state.to_bytes()
    assert state.format == {"float32": "attention-32x2/1", "float64": "attention-32x3/1"}[dtype]
    for empty in (ExactAttentionState.identity((0,), 3, dtype), ExactAttentionState.identity((), 0, dtype)):
        assert ExactAttentionState.from_bytes(empty.to_bytes()) == empty
    data = bytearray(state.to_bytes())
    data[60] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        ExactAttentionState.from_bytes(data)
    plain = attention(q, k, v, return_state=True)
    with pytest.raises(ValueError, match=r"an AttentionState: version 1, an ExactAttentionState"):
        ExactAttentionState.from_bytes(plain.to_bytes())
    with pytest.raises(ValueError, match=r"attention-32x\d/1: version 1, an AttentionState, would do"):
        type(plain).from_bytes(state.to_bytes())


@pytest.mark.parametrize("what", ["level", "negative zero", "bin", "under nothing", "weight", "odd"])
def test_sums_that_no_data_has_are_refused(what: str) -> None:
    state = ExactAttentionState.of_partial(np.ones((2, 3)), np.float64([1, 0]), np.float64([0, -INF]))
    level, bins, a, odd = (array.copy() for array in (state.level, state.bins, state.a, state.odd))
    if what == "level":
        level[0] = 1.0
    elif what == "negative zero":
        level[0] = -0.0
    elif what == "bin":
        bins[0, 1] = 2**30
    elif what == "under nothing":
        a[1, 1] = 1
    elif what == "weight":
        a[0, 0] = -a[0, 0]
    else:
        odd[0, 0] = 8
    broken = ExactAttentionState._wrap(law.Sums(level, bins, a, odd))
    with pytest.raises(ValueError, match="no data has"):
        ExactAttentionState.from_bytes(broken.to_bytes())
    assert ExactAttentionState.from_bytes(state.to_bytes()) == state


def test_bad_orders_and_places_are_refused() -> None:
    q, k, v = operands("float32")
    with pytest.raises(ValueError, match=r"order='column' is not built: 'row', 'any' would do"):
        attention(q, k, v, order="column")
    with pytest.raises(TypeError, match=r"order=1 is a int: 'row', 'any' would do"):
        attention(q, k, v, order=1)
    with pytest.raises(ValueError, match=r"first_key is 100: a multiple of 512"):
        ExactAttentionState.of(q, k, v, first_key=100)
    with pytest.raises(ValueError, match=r"first_key is -512"):
        ExactAttentionState.of(q, k, v, first_key=-512)
    with pytest.raises(TypeError, match=r"first_key is 1.5"):
        ExactAttentionState.of(q, k, v, first_key=1.5)
    with pytest.raises(ValueError, match="first_query is not given"):
        ExactAttentionState.of(q, k, v, causal=True)
    with pytest.raises(ValueError, match=r"origin begins at key 100 with order='any': a multiple of 512"):
        attention(q, k, v, order="any", origin=(0, 0, 0, 100))
    with pytest.raises(ValueError, match="return_state"):
        attention(q, k, v, order="any", return_state=True, sinks=np.zeros(H))


def test_arithmetic_that_is_not_as_assumed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands("float32")
    monkeypatch.setattr(cpu_exact, "_tested", set())
    monkeypatch.setattr(cpu_exact, "_EXPECTED", {"float32": 0})
    attention(q, k, v)
    for call in (lambda: attention(q, k, v, order="any"), lambda: ExactAttentionState.of(q, k, v)):
        with pytest.raises(RuntimeError, match='order="any" is refused'):
            call()


def test_states_that_do_not_fit_are_refused() -> None:
    one = ExactAttentionState.identity((2,), 3)
    with pytest.raises(TypeError, match="other is a AttentionState"):
        one.merge(osm.AttentionState.identity((2,), 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float64 states in attention-32x3/1: attention-32x2/1"):
        one.merge(ExactAttentionState.identity((2,), 3, np.float64))
    with pytest.raises(ValueError, match=r"shape \(2,\) with dv 4 where \(2,\) and 3 would do"):
        one.merge(ExactAttentionState.identity((2,), 4))
    with pytest.raises(ValueError, match="states is empty"):
        ExactAttentionState.merge_many([])
    with pytest.raises(TypeError, match="states holds a int"):
        ExactAttentionState.merge_many([1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="dtype=float16"):
        ExactAttentionState.identity((2,), 3, np.float16)
    with pytest.raises(ValueError, match=r"sinks has shape \(3,\)"):
        one.with_sinks(np.zeros(3))
    with pytest.raises(ValueError, match="weight has shape"):
        ExactAttentionState.of_partial(np.zeros((2, 3)), np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="weight and pivot disagree"):
        ExactAttentionState.of_partial(np.zeros((2, 3)), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="pivot holds a number that is none of float32"):
        ExactAttentionState.of_partial(np.zeros((2, 3), np.float32), np.ones(2), np.full(2, 0.1))
