"""cross_entropy with order="any": bits for any cut, order and layout, and the values of the formulas."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_cases import CLASSES, CUTS, Array, bits, digest, grid_of, numbers, places, truth
from helpers import assert_close

import online_softmax as osm
from online_softmax import ExactLossState, LossState, cpu, exact
from online_softmax.exact_loss_state import total

INF, NAN = np.inf, np.nan
ROWS = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum"},
    "weight": {"weight": numbers((CLASSES,), 5, 1.0, np.float64) + 1.5},
    "row weight": {"row_weight": numbers((ROWS,), 6, 1.0, np.float64) + 1.2},
    "ignored": {"ignore_index": 17},
    "z-loss": {"z_loss": 0.03},
    "temperature": {"temperature": 0.7},
    "all": {
        "weight": numbers((CLASSES,), 7, 1.0, np.float64) + 1.5, "ignore_index": 17, "z_loss": 0.01,
        "row_weight": numbers((ROWS,), 8, 1.0, np.float64) + 1.2, "temperature": 1.3,
    },
}  # fmt: skip
FORMATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
every_format = pytest.mark.parametrize("dtype", FORMATS)


def case(dtype: Any = np.float32, scale: float = 9.0) -> tuple[Array, Array]:
    x = numbers((ROWS, CLASSES), 1, scale).astype(dtype)
    x[1, 30] = x[1].max() + np.asarray(12).astype(dtype)  # one class nearly sure
    t = places(ROWS, CLASSES, 2).astype(np.int64)
    t[1], t[3] = 30, 17
    return x, t


def part(options: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    weight = options.get("weight")
    return options if weight is None else options | {"weight": weight[start:stop]}


def shards(x: Array, t: Array, cuts: tuple[int, ...], options: dict[str, Any]) -> list[Any]:
    return [
        osm.cross_entropy(x[:, a:b], t, shard=(a, b), order="any", **part(options, a, b))
        for a, b in itertools.pairwise(cuts)
    ]


def whole_of(x: Array, t: Array, options: dict[str, Any]) -> bytes:
    made = osm.cross_entropy_with_gradient(
        x, t, return_lse=True, order="any", dloss=upstream(options), **options
    )
    return bits(*made.loss, made.gradient)


def upstream(options: dict[str, Any]) -> Any:
    return numbers((ROWS,), 9, 2.0) if options.get("reduction") == "none" else 0.37


# ---- bits


@every_format
@every_option
@pytest.mark.parametrize("cuts", CUTS, ids=lambda c: f"{len(c) - 1} parts")
def test_parts_of_the_classes_give_the_bits_of_the_whole(
    dtype: Any, options: dict[str, Any], cuts: tuple[int, ...]
) -> None:
    x, t = case(dtype)
    states = shards(x, t, cuts, options)
    expected = whole_of(x, t, options)
    for seed in range(3):
        np.random.default_rng(seed).shuffle(states)
        merged = ExactLossState.merge_many(states)
        given = {"state": merged, "order": "any"}
        gradient = [
            osm.cross_entropy_backward(
                upstream(options), x[:, a:b], t, shard=(a, b), **given, **part(options, a, b)
            )
            for a, b in itertools.pairwise(cuts)
        ]  # fmt: skip
        assert bits(merged.loss(classes=CLASSES), merged.lse, np.concatenate(gradient, 1)) == expected


def test_merges_are_associative_and_commutative_in_bits() -> None:
    x, t = case()
    a, b, c = shards(x, t, (0, 50, 51, CLASSES), {})
    trees = [p.merge(q).merge(r) for p, q, r in itertools.permutations((a, b, c))]
    trees += [p.merge(q.merge(r)) for p, q, r in itertools.permutations((a, b, c))]
    assert len({bits(s.state.m, s.state.a, s.target, s.lse, s.loss()) for s in trees}) == 1


@every_format
@every_option
def test_the_order_of_classes_and_rows_does_not_matter(dtype: Any, options: dict[str, Any]) -> None:
    x, t = case(dtype)
    shuffled = np.random.default_rng(4).permutation(CLASSES)
    back = np.argsort(shuffled)
    options = {k: v for k, v in options.items() if k != "ignore_index"}
    turned = options | ({"weight": options["weight"][shuffled]} if "weight" in options else {})
    d = upstream(options)
    there = osm.cross_entropy_with_gradient(x[:, shuffled], back[t], order="any", dloss=d, **turned)
    here = osm.cross_entropy_with_gradient(x, t, order="any", dloss=d, **options)
    assert bits(there.loss, there.gradient[:, back]) == bits(here.loss, here.gradient)
    rows = np.random.default_rng(5).permutation(ROWS)
    if "row_weight" in options:
        options = options | {"row_weight": options["row_weight"][rows]}
    again = osm.cross_entropy(x[rows], t[rows], order="any", **options)
    assert bits(again) == bits(here.loss[rows] if options.get("reduction") == "none" else here.loss)


@every_option
def test_threads_and_instruction_sets_do_not_matter(options: dict[str, Any]) -> None:
    x, t = case()
    expected = whole_of(x, t, options)
    for isa in cpu.isas():
        for threads in (1, 2, 5):
            made = osm.cross_entropy_with_gradient(
                x,
                t,
                return_lse=True,
                order="any",
                dloss=upstream(options),
                isa=isa,
                threads=threads,
                **options,
            )
            assert bits(*made.loss, made.gradient) == expected


@every_format
def test_layouts_give_the_same_bits(dtype: Any) -> None:
    x, t = case(dtype)
    x, t = np.stack([x, x[:, ::-1]]).transpose(0, 2, 1), np.stack([t, t])  # (2, classes, rows)
    x = np.ascontiguousarray(x)
    options = {"temperature": 0.7, "order": "any"}
    loss, gradient = osm.cross_entropy_with_gradient(x, t, **options)
    assert gradient.dtype == x.dtype
    wide = np.zeros((2, CLASSES, 3 * ROWS), x.dtype)
    wide[..., ::3] = x
    swapped = x.astype(x.dtype.newbyteorder()) if x.dtype.kind == "f" else x
    for laid in (np.asfortranarray(x), wide[..., ::3], x[:, :, ::-1].copy()[:, :, ::-1], swapped):
        made = osm.cross_entropy_with_gradient(laid, t, **options)
        assert bits(made.loss, made.gradient) == bits(loss, gradient)
    moved = osm.cross_entropy_with_gradient(x.transpose(0, 2, 1), t, axis=-1, **options)
    assert bits(moved.loss, moved.gradient.transpose(0, 2, 1)) == bits(loss, gradient)
    apart = np.empty_like(wide)[..., ::3]
    assert osm.cross_entropy_backward(1.0, x, t, out=apart, **options) is apart
    assert bits(apart) == bits(gradient)
    place = x.copy()
    assert osm.cross_entropy_with_gradient(place, t, out=place, **options).gradient is place
    assert bits(place) == bits(gradient)


def test_rows_that_are_worked_on_in_pieces_give_the_bits_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = case()
    x, t = np.stack([x, 2 * x, -x]), np.stack([t, t[::-1], t])
    options = {"axis": 2, "order": "any", "reduction": "none", "temperature": 0.9}
    loss = osm.cross_entropy(x, t, **options)
    gradient = osm.cross_entropy_backward(1.0, x, t, **options)
    for size in (1, 2 * CLASSES, 7 * CLASSES, 100 * CLASSES):
        monkeypatch.setattr("online_softmax.frontends.exact_rows.PIECE", size)
        assert bits(osm.cross_entropy(x, t, **options)) == bits(loss)
        assert bits(osm.cross_entropy_backward(1.0, x, t, **options)) == bits(gradient)
    one = osm.cross_entropy(x[1, 2], t[1, 2], order="any", temperature=0.9)
    assert bits(one) == bits(loss[1, 2])
    assert bits(osm.cross_entropy_backward(1.0, x[1, 2], t[1, 2], order="any", temperature=0.9)) == bits(
        gradient[1, 2]
    )


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_narrow_logits_are_their_upcast_rounded_once(narrow: Any) -> None:
    x, t = case(narrow, 3.0)
    wide = osm.cross_entropy_with_gradient(x.astype(np.float32), t, order="any", temperature=0.7)
    made = osm.cross_entropy_with_gradient(x, t, order="any", temperature=0.7)
    assert bits(made.loss, made.gradient) == bits(wide.loss, wide.gradient.astype(narrow))


@every_format
def test_the_loss_is_minus_the_log_probability_of_the_state(dtype: Any) -> None:
    x, t = case(dtype)
    wide = x.astype(exact.format_of(x.dtype).dtype)
    logs = osm.log_softmax(wide, order="any")[np.arange(ROWS), t]
    made = osm.cross_entropy(x, t, order="any", reduction="none", return_lse=True)
    assert np.array_equal(made.loss, -logs)
    assert bits(made.lse) == bits(osm.logsumexp(wide, -1, order="any"))


def test_the_golden_bits() -> None:
    """Of numbers that every machine makes alike: these hold on all of them."""
    found = []
    for dtype in (np.float32, np.float64):
        x, t = case(dtype)
        for options in OPTIONS.values():
            made = osm.cross_entropy_with_gradient(
                x, t, return_lse=True, order="any", dloss=upstream(options), **options
            )
            found += [*made.loss, made.gradient]
    assert digest(*found) == "efeba5dedb7aa48bc23f3a5004251d046a346b958210855939dce079d86786ce"


# ---- values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_option
def test_values(dtype: Any, options: dict[str, Any]) -> None:
    x, t = case(dtype)
    z = x / dtype(options.get("temperature", 1.0))
    p, unit = truth(z)
    u, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny) * 2
    rows = np.arange(ROWS)
    kept = t != options.get("ignore_index", -100)
    w = np.where(kept, options.get("weight", np.ones(CLASSES))[t], 0)
    r = options.get("row_weight", np.ones(ROWS))
    top = z.astype(np.longdouble).max(-1)
    lse = top + np.log(np.exp(z.astype(np.longdouble) - top[:, None]).sum(-1))
    nll = lse - z[rows, t]
    z_loss = options.get("z_loss", 0.0)
    each = r * (w * nll + np.where(kept, z_loss * lse**2, 0))
    error_of_log = unit[rows, t]
    off = r * (
        w * (error_of_log + u * np.abs(nll)) + z_loss * 2 * np.abs(lse) * (error_of_log + u * np.abs(lse))
    )
    reduction = options.get("reduction", "mean")
    divisor = (w * r).sum() if reduction == "mean" else 1.0
    loss = osm.cross_entropy(x, t, order="any", **options)
    if reduction == "none":
        assert_close(loss, each, off + u * np.abs(each))
    else:
        assert_close(loss, each.sum() / divisor, off.sum() / divisor + 2 * u * np.abs(each).sum() / divisor)
    d = np.broadcast_to(upstream(options), ROWS) * r / divisor
    k = d * w
    e = np.where(kept, d * 2 * z_loss * lse, 0)
    heat = float(dtype(options.get("temperature", 1.0)))
    hot = np.zeros((ROWS, CLASSES))
    hot[rows, t] = 1
    others = np.where(hot == 1, 0, p).sum(-1)
    expected = (k + e)[:, None] * p / heat
    expected[rows, t] = (e * p[rows, t] - k * others) / heat
    error_of_e = np.abs(e) * (error_of_log / np.abs(lse) + u)
    allowed = ((np.abs(k + e) * (unit.max(-1) + 3 * u) + error_of_e)[:, None] * p) / heat + tiny
    allowed[rows, t] = (
        np.abs(k) * (others * (unit.max(-1) + 2 * u) + grid_of(z))
        + np.abs(e) * p[rows, t] * (unit.max(-1) + 2 * u)
        + error_of_e + u * np.abs(e * p[rows, t])
    ) / heat + tiny  # fmt: skip
    gradient = osm.cross_entropy_backward(upstream(options), x, t, order="any", **options)
    assert_close(gradient, expected, allowed)


@pytest.mark.parametrize("gap", [1.0, 5.0, 10.0, 15.0, 20.0])
def test_the_gradient_of_a_target_that_is_nearly_sure_keeps_its_digits(gap: float) -> None:
    x = np.zeros((1, 1000), np.float32)
    x[0, 3] = gap + math.log(999)
    found = osm.cross_entropy_backward(1.0, x, np.array([3]), order="any")[0, 3]
    others = 1 / (1 + math.exp(float(x[0, 3])) / 999)
    assert abs(found / -others - 1) <= 4e-7 + 1.33e-8 * float(x[0, 3]) + 1000 * 2.0**-43.5 / others
    assert float(np.float32(1) - np.float32(1 - others)) != -found or gap < 12  # 1 - p has fewer


def test_dlse_reaches_ignored_rows_too() -> None:
    x, t = case()
    options = {"ignore_index": 17, "order": "any", "reduction": "none"}
    d_lse = numbers((ROWS,), 3, 1.0)
    made = osm.cross_entropy_backward(0.0, x, t, dlse=d_lse, **options)
    p = osm.softmax(x, order="any")
    assert np.array_equal(made[3], d_lse[3] * p[3])
    assert (np.abs(made - d_lse[:, None] * p) <= 2.0**-23 * np.abs(d_lse[:, None] * p)).all()


def test_special_rows() -> None:
    x = np.zeros((6, 5), np.float32)
    x[0, 2], x[1, 2], x[2], x[3, 2] = NAN, INF, -INF, -INF
    x[4] = [-0.0, 1e-42, -1e-42, 0, 0]
    x[5] = [2.0**40, 2.0**40, 0, -(2.0**40), -INF]
    t = np.array([1, 1, 1, 2, 1, 1])
    loss = osm.cross_entropy(x, t, order="any", reduction="none")
    log5 = np.float32(np.log(5))
    assert np.array_equal(loss, np.float32([NAN, NAN, NAN, INF, log5, np.log(2)]), equal_nan=True)
    gradient = osm.cross_entropy_backward(1.0, x, t, order="any", reduction="none")
    assert np.isnan(gradient[:3]).all()
    assert np.array_equal(gradient[3], np.float32([0.25, 0.25, -1, 0.25, 0.25]))
    assert np.array_equal(gradient[5], [0.5, -0.5, 0, 0, 0])
    ignored = osm.cross_entropy_with_gradient(x, np.where(np.arange(6) < 3, -100, t), order="any")
    assert ignored.loss == INF
    assert (ignored.gradient[:3] == 0).all()
    nothing = np.full(6, -100)
    assert np.isnan(osm.cross_entropy(x, nothing, order="any"))
    assert osm.cross_entropy(x, nothing, order="any", empty="zero") == 0
    one = osm.cross_entropy_with_gradient(np.zeros((3, 1), np.float32), np.zeros(3, np.int64), order="any")
    assert one.loss == 0
    assert not np.signbit(one.loss)
    assert (one.gradient == 0).all()
    empty = osm.cross_entropy_with_gradient(
        np.zeros((0, 4)), np.zeros(0, np.int64), order="any", reduction="sum"
    )
    assert empty.loss == 0
    assert empty.gradient.shape == (0, 4)


def test_sums_of_rows_are_exact_sums_rounded_once() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 1e300, 1e-300):
        values = rng.standard_normal(301) * 10.0 ** rng.integers(-8, 8, 301) * scale
        right = float(sum(map(Fraction, values.tolist())))
        assert total(values) == total(values[::-1]) == total(rng.permutation(values)) == right
    top = np.finfo(np.float64).max
    assert total(np.array([top, top, -top, 1.0])) == total(np.array([top, -top, 1.0, top])) == top
    assert total(np.array([top, top])) == INF
    assert total(np.array([])) == 0
    assert total(np.array([INF, 1.0, INF])) == INF
    assert math.isnan(total(np.array([INF, -INF])))


# ---- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "none"}, "order='none' is not built: 'row', 'any' would do"),
        ({"softcap": 3.0}, "softcap with order='any'"),
        ({"riders": ("entropy",)}, "riders with order='any'"),
        ({"kl_to": np.zeros((2, 3), np.float32)}, "kl_to with order='any'"),
        ({"temperature": 1e-38}, "temperature is 1e-38"),
    ],
)
def test_what_is_not_built_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    x, t = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=words):
        osm.cross_entropy(x, t, **({"order": "any"} | options))


def test_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="targets holds class probabilities with order='any'"):
        osm.cross_entropy(np.zeros((2, 3), np.float32), np.full((2, 3), 1 / 3), order="any")
    with pytest.raises(TypeError, match="order=3 is a int"):
        osm.cross_entropy(np.zeros((2, 3), np.float32), np.zeros(2, np.int64), order=3)  # type: ignore[arg-type]


def test_kinds_of_states_do_not_mix() -> None:
    x, t = case()
    exactly = osm.cross_entropy(x[:, :9], t, shard=(0, 9), order="any")
    plain = osm.cross_entropy(x[:, 9:], t, shard=(9, CLASSES))
    assert isinstance(plain, LossState)
    assert not isinstance(exactly, LossState)
    with pytest.raises(TypeError, match="other is a LossState: an ExactLossState"):
        exactly.merge(plain)
    with pytest.raises(TypeError, match="other is a ExactLossState: a LossState"):
        plain.merge(exactly)
    with pytest.raises(TypeError, match=r"states\[0\] is a LossState"):
        ExactLossState.merge_many([plain, exactly])
    with pytest.raises(ValueError, match="states is empty"):
        ExactLossState.merge_many([])
    whole = osm.cross_entropy(x, t, shard=(0, CLASSES))
    with pytest.raises(TypeError, match="state is a LossState: the merged ExactLossState"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), state=whole, order="any")
    exactly = osm.cross_entropy(x, t, shard=(0, CLASSES), order="any")
    with pytest.raises(TypeError, match="state is an ExactLossState"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), state=exactly)
    with pytest.raises(TypeError, match="state is missing"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), order="any")
    with pytest.raises(TypeError, match="shard is missing"):
        osm.cross_entropy_backward(1.0, x, t, state=exactly, order="any")
    with pytest.raises(TypeError, match="state is of float32 scores: float64"):
        osm.cross_entropy_backward(
            1.0, x.astype(np.float64), t, shard=(0, CLASSES), state=exactly, order="any"
        )


def test_states_of_other_rows_or_classes_are_refused() -> None:
    x, t = case()
    first, second, third = shards(x, t, (0, 50, 100, CLASSES), {})
    with pytest.raises(ValueError, match="classes 50 to 100 are missing"):
        first.merge(third).loss()
    with pytest.raises(ValueError, match="of which 0 to 50 are in this one too"):
        first.merge(first)
    with pytest.raises(ValueError, match="classes is 300"):
        ExactLossState.merge_many([first, second, third]).loss(classes=300)
    with pytest.raises(IndexError, match="is none of the 50 classes"):
        first.loss()
    other = osm.cross_entropy(x[:, 50:], t, shard=(50, CLASSES), order="any", temperature=2.0)
    with pytest.raises(ValueError, match=r"temperature=2\.0"):
        first.merge(other)
    wide = osm.cross_entropy(x[:, 50:].astype(np.float64), t, shard=(50, CLASSES), order="any")
    with pytest.raises(ValueError, match="float64"):
        first.merge(wide)
