"""Faults that users of other libraries reported against softmax, log_softmax, logsumexp and merges, each
with the right value.

One table a kind of fault. The ids (B...) name the reports, which are kept with the project's cases. Those
about attention, cross-entropy and gradients are cases of the conformance kit (its data files name them in
`sources`) and tests of the reference (test_reference_attention_faults, test_reference_losses,
test_reference_gradients).

Sizes past 2^31 (B125, B127, B128, B131) are in test_large.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, bound, noise, ulp

import online_softmax as osm
from online_softmax import SoftmaxState, cpu, reference

NAN, INF = np.nan, np.inf
F64, F32, F16, BF16 = (FORMATS[f] for f in ("f64", "f32", "f16", "bf16"))
LOWEST = float(np.finfo(np.float32).min)
LN2 = np.log(2.0)


def case(*values, ids: str, of: str = ""):
    return pytest.param(*values, id=f"{ids} {of}".strip())


def array(values, dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(dtype)


def near(got, expected, ulps: float = 2.0) -> None:
    """Equal but for `ulps` of the result's format (two: one for exp or log, one for the last rounding)."""
    expected = np.asarray(expected, np.float64)
    assert_close(got, expected, ulps * ulp(expected, np.asarray(got).dtype))


every_algorithm = pytest.mark.parametrize("algorithm", [a for a in cpu.ALGORITHMS if a != "naive"])

SOFTMAX = [
    # inf - inf: rows that hold infinities alone, or among finite entries
    case([INF, 0, INF], F32, [NAN] * 3, ids="B020"),
    case([0, INF, -INF], F32, [NAN] * 3, ids="B019"),
    case([[INF, 0], [INF, -INF], [0, -INF]], F64, [[NAN] * 2, [NAN] * 2, [1, 0]], ids="B025"),
    case([[INF], [-INF], [3], [NAN]], F32, [[NAN], [NAN], [1], [NAN]], ids="B030", of="axis of one entry"),
    case([-NAN, -INF, INF], F32, [NAN] * 3, ids="B032", of="softmin"),
    case([[-INF] * 64, [NAN] + [0] * 63, [INF] + [0] * 63], F32, [[NAN] * 64] * 3, ids="B018"),
    # finite stand-ins for -inf must be able to win
    case([-20000, -20001], F32, [0.7310585786300049, 0.2689414213699951], ids="B044"),
    case([-20000, -20000], F32, [0.5, 0.5], ids="B054", of="all far below"),
    case([-524288], F32, [1], ids="B073"),
    case([LOWEST, LOWEST], F32, [0.5, 0.5], ids="B039"),
    case(
        [[LOWEST] * 3, [0] * 3, [LOWEST, 0, LOWEST]], F32, [[1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]], ids="B040"
    ),
    # exp that saturates, clamps or flushes
    case([[0, -INF], [0, -100]], F16, [[1, 0], [1, 0]], ids="B080"),
    case([0] + [-1e30] * 511, F32, [1] + [0] * 511, ids="B081"),
    case([0, -740], F64, [1, 4.199557719e-322], ids="B082", of="f64 subnormal"),
    case([0, -100], F32, [1, 3.7200759760208356e-44], ids="B082", of="f32 subnormal"),
    # no shift taken out
    case([100, 101], F32, [0.2689414213699951, 0.7310585786300049], ids="B152 B153"),
    case([100, 101], F16, [0.2689414213699951, 0.7310585786300049], ids="B153", of="f16"),
    case([1e50, 1e50], F64, [0.5, 0.5], ids="B148"),
    # 16-bit running sums
    case([0] * 4096, F16, [1 / 4096] * 4096, ids="B137", of="f16"),
    case([0] * 512, BF16, [1 / 512] * 512, ids="B137 B138", of="bf16"),
    case([1.5] * 70_000, F16, [1 / 70_000] * 70_000, ids="B140"),
    # integers
    case([1, 2, 3], np.int64, [0.09003057317038046, 0.24472847105479764, 0.6652409557748218], ids="B203"),
    case([1, 2], np.int32, [0.2689414213699951, 0.7310585786300049], ids="B205"),
    case(3, np.int64, 1, ids="B205", of="0-d"),
    # nothing to sum
    case(np.empty((2, 0)), F32, np.empty((2, 0)), ids="B092 B093"),
]


@every_algorithm
@pytest.mark.parametrize(("x", "dtype", "expected"), SOFTMAX)
def test_softmax(x, dtype, expected, algorithm):
    got = osm.softmax(array(x, dtype), algorithm=algorithm)
    assert got.dtype == (F64 if np.dtype(dtype).kind == "i" else dtype)
    near(got, expected)


LOG_SOFTMAX = [
    case([0, INF, -INF], F32, [NAN] * 3, ids="B019"),
    case([NAN, INF, -INF], F32, [NAN] * 3, ids="B031"),
    case([0, 0, 0], F32, [-np.log(3)] * 3, ids="B016", of="shorter than a block"),
    case([1e8, 1e8], F32, [-LN2] * 2, ids="B143"),
    *(case([v, v], F32, [-LN2] * 2, ids="B144", of=f"at {v:g}") for v in (1.0, 1e4, 1e8, 1e20)),
    case([1e5, 1e5 - 1], F32, [-0.31326168751822286, -1.3132616875182228], ids="B147"),
    case([0] * 512, BF16, [-np.log(512)] * 512, ids="B138"),
    case(np.empty((10, 0)), F32, np.empty((10, 0)), ids="B090"),
]


@every_algorithm
@pytest.mark.parametrize(("x", "dtype", "expected"), LOG_SOFTMAX)
def test_log_softmax(x, dtype, expected, algorithm):
    near(osm.log_softmax(array(x, dtype), algorithm=algorithm), expected)


LOGSUMEXP = [
    case([[-1, -INF], [-INF, -INF], [-INF, -INF]], F64, 0, [-1, -INF], ids="B003"),
    case([-INF] * 5, F32, None, -INF, ids="B008"),
    case([[INF, 0], [0, 0]], F32, -1, [INF, LN2], ids="B022"),
    case([4e38], F32, -1, INF, ids="B026", of="one term that overflowed"),
    case([[1, INF], [INF, INF], [INF, 1], [-INF, -INF]], F32, -1, [INF, INF, INF, -INF], ids="B028"),
    case([0, 0], F32, -1, LN2, ids="B059 B060", of="natural logarithm"),
    case([-524288], F32, -1, -524288, ids="B073"),
    case([], F64, None, -INF, ids="B084 B088 B098"),
    case(np.empty((0, 3)), F64, 0, [-INF] * 3, ids="B084 B094"),
    case(np.empty((3, 0)), F64, 0, np.empty(0), ids="B084", of="kept axis empty"),
    case([0, 1, 2], np.int64, -1, 2.4076059644443806, ids="B087"),
    case([], F64, -1, -INF, ids="B087", of="empty"),
    case([1e50, 1e50], F64, -1, 1e50, ids="B148"),
]


@every_algorithm
@pytest.mark.parametrize(("x", "dtype", "axis", "expected"), LOGSUMEXP)
def test_logsumexp(x, dtype, axis, expected, algorithm):
    near(osm.logsumexp(array(x, dtype), axis, algorithm=algorithm), expected)


@pytest.mark.parametrize(
    ("x", "b", "lse", "sign"),
    [
        case([INF, INF], [1, -1], NAN, NAN, ids="B029", of="difference of infinities"),
        case([3, 3], [1, -1], -INF, 0, ids="B029", of="difference of equals"),
        case([-INF, -INF], [1, -1], -INF, 0, ids="B029", of="difference of nothings"),
        case([3, 0, 4], [2, 3, -0.5], 2.764556, 1, ids="B192", of="largest term negative"),
        case([INF], None, INF, 1, ids="B193"),
        case([0, 1], [1, -1], 0.5413248546129181, -1, ids="B199"),
    ],
)
def test_weights_and_signs(x, b, lse, sign):
    got = osm.logsumexp(np.array(x, np.float64), b=b, return_sign=True)
    if b == [2, 3, -0.5]:
        lse = np.log(2 * np.exp(3.0) + 3 - 0.5 * np.exp(4.0))
    near(got[0], lse, ulps=8)  # a sum of both signs loses bits: 70.5 - 27.3 two of them
    np.testing.assert_array_equal(got[1], sign)


@pytest.mark.parametrize("length", range(1, 258))
def test_minus_infinity_at_every_length(length):
    """B009: tails of a vector treat a row of -inf as its body does."""
    x = np.full((2, length), -INF, np.float32)
    assert np.isnan(osm.softmax(x)).all()
    assert np.isnan(osm.log_softmax(x)).all()
    assert (osm.logsumexp(x) == -INF).all()


MASKED = [
    case([-1, 0, 1], [1, 0, 1], F32, [0.11920292202211755, 0, 0.8807970779778824], ids="B054"),
    case([[3, 1], [0, 9]], [[0, 0], [1, 0]], F32, [[0, 0], [1, 0]], ids="B047"),
    case([1, 2, 3], [0, 0, 0], F32, [0, 0, 0], ids="B048"),
    case([-20000, 5], [1, 0], F32, [1, 0], ids="B074"),
    case([1, 2, 60000], [1, 1, 0], F16, [0.2689414213699951, 0.7310585786300049, 0], ids="B077"),
    case([-1e10, 4, 4], [0, 0, 0], F16, [0, 0, 0], ids="B078"),
    case([NAN, INF, 4], [0, 0, 1], F16, [0, 0, 1], ids="B078", of="what is masked is not read"),
    case(
        np.zeros((16, 5)), [[0] * 5] * 14 + [[1] * 5] * 2, F16, [[0] * 5] * 14 + [[0.2] * 5] * 2, ids="B051"
    ),
    case(
        np.zeros((16, 5)),
        [[1] * 5] * 8 + [[0] * 5] * 8,
        F16,
        [[0.2] * 5] * 8 + [[0] * 5] * 8,
        ids="B051",
        of="end",
    ),
]


@every_algorithm
@pytest.mark.parametrize(("x", "where", "dtype", "expected"), MASKED)
def test_masks(x, where, dtype, expected, algorithm):
    near(osm.softmax(array(x, dtype), where=np.array(where, bool), algorithm=algorithm), expected)


@pytest.mark.parametrize(
    ("x", "dtype", "expected"),
    [
        case(-100, F32, 3.7200759760208356e-44, ids="B082"),
        case(88.7, F32, 3.3244e38, ids="B082", of="near the top"),
        case(NAN, F32, NAN, ids="B083", of="nan"),
        case(INF, F32, INF, ids="B083", of="inf"),
        case(-INF, F32, 0, ids="B083", of="-inf"),
        case(88.7229, F32, INF, ids="B083", of="88.7229"),
        case(89, F32, INF, ids="B083", of="89"),
        case(-87, F32, None, ids="B083", of="-87"),
        case(-95, F32, None, ids="B083", of="-95"),
        case(-104, F32, 0, ids="B083", of="-104"),
    ],
)
@pytest.mark.parametrize("isa", cpu.isas())
def test_exp(x, dtype, expected, isa):
    given = np.array([x] * 19, dtype)
    if expected is None or (np.isfinite(expected) and expected != 0):
        expected = np.exp(np.float64(given[0]))
    near(cpu.exp(given, isa=isa), np.full(19, expected), ulps=1)


AXES = [
    case((2, 3, 4), (1, 2), 1 / 12, ids="B105 B106", of="axes from one on, flattened"),
    case((1, 10, 4, 5), (1, 2, 3), 1 / 200, ids="B107"),
    case((6, 1000), 1, 1 / 1000, ids="B108"),
    case((6, 1000), -1, 1 / 1000, ids="B108", of="from the end"),
    case((10, 4, 3), -2, 1 / 4, ids="B100"),
    case((2, 3, 4), -1, 1 / 4, ids="B103"),
]


@pytest.mark.parametrize(("shape", "axis", "expected"), AXES)
def test_axes(shape, axis, expected):
    near(osm.softmax(np.zeros(shape, np.float32), axis), np.full(shape, expected))


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        case(np.ones((2, 3)), 2, ids="B099"),
        case(np.ones((10, 4, 3)), -4, ids="B100"),
        case(np.float32(5), 1, ids="B104"),
    ],
)
def test_axes_past_the_rank_are_refused(x, axis):
    for op in (osm.softmax, osm.log_softmax, osm.logsumexp):
        with pytest.raises(ValueError, match=f"axis={axis}"):
            op(x, axis)


def test_zero_dimensions():
    """B104."""
    for axis in (-1, 0):
        assert osm.softmax(np.float32(5), axis) == 1
        assert osm.log_softmax(np.float32(5), axis) == 0


def padded() -> np.ndarray:
    buffer = np.full((2, 32), NAN, np.float32)
    return np.lib.stride_tricks.as_strided(buffer, (2, 4, 2, 2), (128, 16, 8, 4))


def filled(view: np.ndarray) -> np.ndarray:
    view[...] = noise(view.shape, view.dtype)
    return view


@pytest.mark.parametrize(
    "x",
    [
        case(np.arange(6, dtype=np.float32).reshape(3, 2).T, ids="B110"),
        case(noise((32, 32), F32).T, ids="B114"),
        case(filled(padded()), ids="B116"),
        case(noise((3, 5, 7, 9), F16).transpose(0, 2, 1, 3), ids="B117"),
        case(np.broadcast_to(noise((2, 10, 1), F32), (2, 10, 4)), ids="B119", of="the operand alone"),
        case(noise((4, 60), F32)[:, ::2], ids="B120", of="the operand alone"),
        case(noise((4, 2, 8), F32).transpose(1, 0, 2), ids="B118", of="the operand alone"),
    ],
)
def test_layouts(x):
    for axis in range(x.ndim):
        rows = np.moveaxis(x, axis, -1).astype(np.float64)
        for op in ("softmax", "log_softmax"):
            expected = getattr(reference, op)(rows)
            got = np.moveaxis(getattr(osm, op)(x, axis), axis, -1)
            assert_close(got, expected, bound(op, rows, expected, x.dtype), f"{op} {axis}")


def test_transposed_values():
    """B110."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    row = np.exp([-4.0, -2, 0]) / np.exp([-4.0, -2, 0]).sum()
    near(osm.softmax(x), [row, row], ulps=4)


STATES = [
    case([], -INF, ids="B055", of="none"),
    case([[], []], -INF, ids="B055", of="two empty"),
    case([[]] * 5, -INF, ids="B055", of="five empty"),
    case([[], [1, 2]], np.log(np.e + np.e**2), ids="B052", of="first block empty"),
    case([[1, 2], [], []], np.log(np.e + np.e**2), ids="B065", of="idle splits"),
    case([[0, 0, 0], [0]], np.log(4), ids="B058"),
    case([[-INF, -INF], [-INF]], -INF, ids="B055", of="-inf only"),
    case([[0], [INF], [1]], INF, ids="B027"),
    case([[NAN], [0], [1]], NAN, ids="B033"),
    case([[0, 0], [100]], 100, ids="B067", of="sink above all"),
    case([[], [0.5]], 0.5, ids="B067", of="sink alone"),
    case([[-200, -200], [0]], 0, ids="B068"),
    case([[], [0, 0], [0]], np.log(3), ids="B066", of="a sink counts once"),
]


@pytest.mark.parametrize(("blocks", "expected"), STATES)
def test_merged_states(blocks, expected):
    states = [SoftmaxState.of(np.array(block, np.float32)) for block in blocks]
    folded = SoftmaxState.identity()
    for state in states:
        folded = folded.merge(state)
    near(folded.lse, expected)
    near(SoftmaxState.merge_many([SoftmaxState.identity(), *states]).lse, expected)
    reverse = SoftmaxState.identity()
    for state in states[::-1]:
        reverse = state.merge(reverse)
    near(reverse.lse, expected)


PREFIXES = [
    case([-INF, 0], [-INF, 0], ids="B017"),
    case([2, -INF, -INF, 1], [2, 2, 2, 2.313261687518223], ids="B017", of="-inf inside"),
    case([0, INF, 1], [0, INF, INF], ids="B027"),
    case([NAN, 0, 1], [NAN] * 3, ids="B033"),
]


@pytest.mark.parametrize(("x", "expected"), PREFIXES)
def test_running_states(x, expected):
    state, seen = SoftmaxState.identity(), []
    for entry in x:
        state = state.push(np.array([entry], np.float32))
        seen.append(float(state.lse))
    near(np.array(seen, np.float32), expected)


@pytest.mark.parametrize(
    ("x", "rest", "expected"),
    [
        case([0, 0, 0], [0], 1 / 4, ids="B058"),
        case([0, 0], [100], np.exp(-100.0), ids="B067"),
        case([-200, -200], [0], 0, ids="B068"),
        case([-30], [0], 9.357622968839299e-14, ids="B069"),
        case([0, 0], [0], 1 / 3, ids="B066"),
        case([1e8], [1e8], 0.5, ids="B148", of="m and s apart"),
    ],
)
def test_values_under_a_merged_state(x, rest, expected):
    x = np.array(x, np.float32)
    both = SoftmaxState.of(x).merge(SoftmaxState.of(np.array(rest, np.float32)))
    near(both.value(x), np.full(x.shape, expected))


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        case([-0.15, 0.28], F32, ids="B241"),
        case([0.1, 2.0, -1.0, 0.3, 0.7, -0.2], F64, ids="B242"),
        case(noise((64,), F32), F32, ids="B151"),
        case(noise((8192,), BF16, scale=1.0), BF16, ids="B139"),
        case(np.array([1.0000001, 0.9999997], np.float32) / np.float32(1e-6), F32, ids="B149"),
    ],
)
def test_rows_sum_to_one(x, dtype):
    """Within the rounding of each entry, half an ulp of its own and what exp and the sum leave; not
    exactly."""
    x = np.asarray(x, np.float64).astype(dtype)
    y = osm.softmax(x).astype(np.float64)
    wide = x.astype(np.float64)
    allowed = bound("softmax", wide, reference.softmax(wide), dtype)
    assert abs(y.sum() - 1) <= allowed.sum()
    assert allowed.sum() < 0.01


def test_the_maximum_and_the_exponent_round_alike():
    """B149: one-hot, whatever the last bit of a large score."""
    for k in range(50):
        z = (np.array([1 + k * 2e-5, 1], np.float32) / np.float32(1e-6)).astype(np.float32)
        wide = z.astype(np.float64)
        expected = reference.softmax(wide)
        assert_close(osm.softmax(z), expected, bound("softmax", wide, expected, F32))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        case(lambda: osm.logsumexp(np.array([INF + 4j])), TypeError, "complex", ids="B194"),
        case(lambda: osm.logsumexp(np.array([1 + 30j, 1])), TypeError, "complex", ids="B195"),
        case(lambda: osm.logsumexp(np.array([0, 1e-17j])), TypeError, "complex", ids="B196"),
        case(lambda: osm.logsumexp([1 + 1j], return_sign=True), TypeError, "complex", ids="B198"),
        case(
            lambda: osm.logsumexp(np.ma.array([0.0, 1, 2], mask=[1, 0, 0])),
            TypeError,
            "masked array",
            ids="B200",
        ),
        case(
            lambda: osm.softmax([0.4, 0.6], out=np.zeros(2, np.int64)), TypeError, "out is int64", ids="B206"
        ),
        case(lambda: osm.softmax([0.0, 100], softcap=50), TypeError, "softcap", ids="B228"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_a_masked_array_should_have_been():
    """B200, asked for in the way the refusal names."""
    x = np.ma.array([0.0, 1, 2], mask=[1, 0, 0])
    near(osm.logsumexp(x.data, where=~x.mask), np.log(np.e + np.e**2))


def test_comparison_of_nan_with_a_number_fails():
    """B046: a check that accepts NaN against a number checks nothing."""
    for got, expected in ((0.3, NAN), (NAN, 0.3), (INF, 0.3), (INF, -INF), (NAN, INF)):
        with pytest.raises(AssertionError):
            assert_close(np.array([got]), [expected], 1e9)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        case((17, 300, 40), 1, ids="B233", of="axis not the last"),
        case((8, 5000), -1, ids="B234", of="rows longer than a vector"),
        case((3, 100), -1, ids="B239", of="small calls"),
    ],
)
def test_shared_scratch(shape, axis):
    """Calls at once keep their own memory: same bits as alone, again and again."""
    operands = [noise(shape, F32, seed=s) for s in range(8)]
    alone = [osm.softmax(x, axis) for x in operands]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            for got, want in zip(pool.map(lambda x: osm.softmax(x, axis), operands), alone, strict=True):
                assert_same_bits(got, want)
