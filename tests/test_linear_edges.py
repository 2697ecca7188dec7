"""Linear cross-entropy: differences, what is left out, what is not finite, parts of a vocabulary, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from linear_cases import BF16, Case, check_gradients, check_loss, unit

import online_softmax as osm
from online_softmax import cpu
from online_softmax.cpu_linear_gradient import BLOCK_CLASSES, BLOCK_TOKENS

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    "options", [{}, {"softcap": 2.0, "z_loss": 0.1, "label_smoothing": 0.2, "temperature": 1.5}]
)
@pytest.mark.parametrize("kind", ["ignored", "probabilities"])
def test_gradients_are_the_differences_of_the_loss(kind: str, options: dict[str, Any]) -> None:
    case = Case(
        5, 12, 4, np.float64, kind=kind, bias=True, class_weight=True, row_weight=True, options=options
    )
    assert case.offset is not None
    given = {"hidden": case.hidden, "weight": case.weight, "bias": case.offset}
    rest = {name: value for name, value in case.arguments.items() if name != "bias"}

    def loss(arrays: dict[str, np.ndarray]) -> float:
        return float(
            osm.linear_cross_entropy(
                arrays["hidden"], arrays["weight"], case.targets, bias=arrays["bias"], **rest
            )
        )

    made = osm.linear_cross_entropy_backward(
        1.0, case.hidden, case.weight, case.targets, bias=case.offset, **rest
    )
    step = 1e-5
    for name, gradient in zip(given, made, strict=True):
        for at in np.ndindex(given[name].shape):
            up, down = (dict(given) for _ in range(2))
            for moved, by in ((up, step), (down, -step)):
                moved[name] = given[name].copy()
                moved[name][at] += by
            slope = (loss(up) - loss(down)) / (2 * step)
            # Third derivatives of a few units, and roundings of the loss divided by the step.
            assert abs(slope - gradient[at]) <= 1e-8


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("memory", [1 << 26, 40_000])
def test_ignored_rows_leave_no_trace(memory: int, dtype: Any) -> None:
    case = Case(60, 200, 16, dtype, kind="ignored", bias=True)
    clean = osm.linear_cross_entropy_with_gradient(
        case.hidden, case.weight, case.targets, memory=memory, **case.arguments
    )
    case.hidden[::3] = [[NAN, INF] * 8]
    operands = (case.hidden, case.weight, case.targets)
    made = osm.linear_cross_entropy_with_gradient(*operands, memory=memory, **case.arguments)
    assert made.loss == clean.loss
    for got, right in zip(made.gradients, clean.gradients, strict=True):
        assert np.array_equal(got, right)
    assert not made.gradients.hidden[::3].any()
    asked = osm.linear_cross_entropy_with_gradient(*operands, return_lse=True, **case.arguments)
    assert np.isnan(asked.loss.lse[::3]).all()
    assert np.isfinite(asked.loss.lse[1::3]).all()
    rows = osm.linear_cross_entropy(*operands, reduction="none", **case.arguments)
    assert not rows[::3].any()
    nothing = osm.linear_cross_entropy_with_gradient(
        case.hidden, case.weight, np.full(60, -100), empty="zero", **case.arguments
    )
    assert nothing.loss == 0
    assert not any(np.asarray(g, np.float64).any() for g in nothing.gradients)


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("memory", [1 << 26, 6000])
def test_what_is_not_finite_stays_in_its_row(memory: int, isa: str) -> None:
    case = Case(9, 40, 4)
    case.hidden[4, 1] = NAN
    rows = osm.linear_cross_entropy(
        case.hidden, case.weight, case.targets, reduction="none", memory=memory, isa=isa
    )
    assert np.flatnonzero(np.isnan(rows)).tolist() == [4]
    # A class switched off by its bias has no part in it, and one that is the target costs all.
    case = Case(9, 40, 4, options={"reduction": "none"})
    bias = np.zeros(40, np.float32)
    bias[7] = -INF
    case.targets[:] = 3
    case.targets[2] = 7
    more = {"bias": bias, "memory": memory, "isa": isa}
    rows = osm.linear_cross_entropy(case.hidden, case.weight, case.targets, reduction="none", **more)
    assert np.flatnonzero(np.isposinf(rows)).tolist() == [2]
    made = osm.linear_cross_entropy_backward(
        1.0, case.hidden, case.weight, case.targets, reduction="sum", **more
    )
    assert np.isfinite(made.hidden).all()
    assert np.isfinite(made.weight).all()


def test_a_tile_that_is_switched_off_in_a_second_sweep() -> None:
    """16-bit weights in a small memory: a whole tile of classes has scores of -inf, and gradient 0."""
    case = Case(40, 64, 4, BF16, bias=True)
    assert case.offset is not None
    case.offset[16:48] = -INF
    case.targets %= 16
    made, right = (
        osm.linear_cross_entropy_with_gradient(
            case.hidden, case.weight, case.targets, bias=case.offset, memory=memory, threads=1
        )
        for memory in (6000, 1 << 26)
    )
    assert not made.gradients.weight[16:48].astype(np.float32).any()
    for got, value in zip(made.gradients, right.gradients, strict=True):
        assert value is not None
        scale = np.abs(value.astype(np.float32)).max()
        assert np.abs(got.astype(np.float32) - value.astype(np.float32)).max() <= 2 * unit(BF16) * scale


# ---- negligible blocks


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("memory", [1 << 26, 2_000_000])
def test_blocks_left_out_are_within_their_bound(memory: int, dtype: Any) -> None:
    tokens, classes = 2 * BLOCK_TOKENS + 5, 5 * BLOCK_CLASSES + 7
    case = Case(tokens, classes, 12, dtype, bias=True, options={"reduction": "sum"})
    assert case.offset is not None
    case.offset[BLOCK_CLASSES : 4 * BLOCK_CLASSES] = -30  # blocks whose gradients are all tiny
    case.targets[:] %= BLOCK_CLASSES
    operands, more = (case.hidden, case.weight, case.targets), {"memory": memory, **case.arguments}
    below = 1e-6
    exact = osm.linear_cross_entropy_backward(1.0, *operands, **more)
    made = osm.linear_cross_entropy_backward(1.0, *operands, filter_below=below, **more)
    assert not made.weight[BLOCK_CLASSES : 4 * BLOCK_CLASSES].astype(np.float32).any()
    assert exact.weight[BLOCK_CLASSES : 4 * BLOCK_CLASSES].astype(np.float32).any()
    bounds = case.gradient_errors()
    left_out = slice(BLOCK_CLASSES, 4 * BLOCK_CLASSES)
    more_hidden = below * np.abs(case.weight[left_out].astype(np.float64)).sum(axis=0)
    more_weight = np.zeros((classes, 12))
    more_weight[left_out] = below * np.abs(case.hidden.astype(np.float64)).sum(axis=0)
    right = case.right_gradients()
    rounding = 0.0 if dtype == np.float32 else unit(dtype)
    for got, value, bound in (
        (made.hidden, right[0], bounds[0] + more_hidden),
        (made.weight, right[1], bounds[1] + more_weight),
    ):
        error = np.abs(got.astype(np.float64) - value)
        assert (error <= bound * (1 + rounding) + rounding * np.abs(value) + 1e-37).all()
    assert np.array_equal(made.bias, exact.bias)


def test_a_filter_that_leaves_nothing_out_changes_roundings_alone() -> None:
    case = Case(300, 1100, 10, kind="ignored")
    made = osm.linear_cross_entropy_backward(1.0, case.hidden, case.weight, case.targets, filter_below=0)
    check_gradients(case, made)
    case.hidden[1, 2] = NAN
    taken = osm.linear_cross_entropy_backward(1.0, case.hidden, case.weight, case.targets, filter_below=1e30)
    assert np.isnan(taken.weight).all()


# ---- parts of a vocabulary


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float64])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 5.0}], ids=str)
@pytest.mark.parametrize("memory", [1 << 26, 60_000])
def test_shards_make_the_whole(memory: int, options: dict[str, Any], dtype: Any) -> None:
    case = Case(50, 300, 8, dtype, kind="ignored", bias=True, class_weight=True, options=options)
    parts = [(0, 100), (100, 130), (130, 300)]

    def of(part: tuple[int, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        some = slice(*part)
        assert case.offset is not None
        assert case.of_class is not None
        more = {
            "bias": case.offset[some],
            "class_weight": case.of_class[some],
            "shard": part,
            "memory": memory,
        }
        return (case.hidden, case.weight[some], case.targets), options | more

    states = [osm.linear_cross_entropy(*of(part)[0], **of(part)[1]) for part in parts]
    state = states[2].merge(states[0]).merge(states[1])
    check_loss(case, state.loss(), state.lse)
    made = [
        osm.linear_cross_entropy_backward(1.0, *of(part)[0], state=state, **of(part)[1]) for part in parts
    ]
    assert all(m.bias is not None for m in made)
    right, bounds = case.right_gradients(), case.gradient_errors()
    whole = (
        sum(m.hidden.astype(np.float64) for m in made),
        np.concatenate([m.weight for m in made]),
        np.concatenate([m.bias for m in made]),
    )
    # Each part of hidden's gradient is rounded once.
    size = sum(np.abs(m.hidden.astype(np.float64)) for m in made)
    for got, value, bound, parts_size in zip(whole, right, bounds, (size, 0, 0), strict=True):
        rounding = 0.0 if np.dtype(dtype) != BF16 else unit(BF16)
        most = bound * (1 + rounding) + rounding * (np.abs(value) + parts_size) + 1e-37
        assert (np.abs(got.astype(np.float64) - value) <= most).all()


# ---- no rows, wrong calls


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_no_rows(dtype: Any) -> None:
    hidden, weight, none = np.zeros((0, 4), dtype), np.ones((5, 4), dtype), np.zeros(0, int)
    assert osm.linear_cross_entropy(hidden, weight, none, reduction="none").shape == (0,)
    assert np.isnan(osm.linear_cross_entropy(hidden, weight, none))
    both = osm.linear_cross_entropy_with_gradient(hidden, weight, none, bias=np.zeros(5, dtype), empty="zero")
    assert both.loss == 0
    assert both.gradients.hidden.shape == (0, 4)
    assert not both.gradients.weight.astype(np.float32).any()
    assert both.gradients.bias is not None
    assert not both.gradients.bias.astype(np.float32).any()
    # No features: all logits are the bias.
    loss = osm.linear_cross_entropy(np.zeros((2, 0), dtype), np.zeros((3, 0), dtype), [0, 1])
    assert abs(loss - np.log(3)) <= 4 * unit(np.float32)


H, W, T = np.ones((4, 3), np.float32), np.ones((5, 3), np.float32), np.arange(4)
WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "hidden", {"hidden": np.float32(1)}),
    (TypeError, "hidden", {"hidden": np.ones((4, 3), complex)}),
    (TypeError, "weight", {"weight": np.ones((5, 3), ml_dtypes.float8_e4m3fn)}),
    (ValueError, "weight", {"weight": np.ones((5, 4), np.float32)}),
    (ValueError, "weight", {"weight": np.ones((0, 3), np.float32)}),
    (ValueError, "weight", {"weight": np.ones(3, np.float32)}),
    (ValueError, "targets", {"targets": np.arange(5)}),
    (IndexError, r"targets\[3\]", {"targets": [0, 1, 2, 5]}),
    (IndexError, r"targets\[0\]", {"targets": [-1, 1, 2, 3]}),
    (ValueError, "targets", {"targets": np.ones((4, 4))}),
    (ValueError, "targets", {"targets": -np.ones((4, 5))}),
    (ValueError, "bias", {"bias": np.ones(4)}),
    (ValueError, "class_weight", {"class_weight": np.ones(4)}),
    (ValueError, "class_weight", {"class_weight": [1, 1, NAN, 1, 1]}),
    (ValueError, "row_weight", {"row_weight": np.ones(3)}),
    (ValueError, "softcap", {"softcap": 0}),
    (ValueError, "temperature", {"temperature": 0}),
    (ValueError, "label_smoothing", {"label_smoothing": 1}),
    (ValueError, "smoothing", {"smoothing": "other"}),
    (ValueError, "reduction", {"reduction": "average"}),
    (ValueError, "empty", {"empty": "one"}),
    (TypeError, "ignore_index", {"ignore_index": 0.5}),
    (ValueError, "memory", {"memory": 0}),
    (TypeError, "memory", {"memory": 1e6}),
    (ValueError, "threads", {"threads": 0}),
    (ValueError, "isa", {"isa": "nonsense"}),
    (ValueError, "riders", {"riders": ("mode",)}),
    (ValueError, "shard", {"shard": (0, 4)}),
    (IndexError, "tokens", {"tokens": np.full((4, 1), 5)}),
]


@pytest.mark.parametrize(("error", "words", "given"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_calls_name_the_argument(error: type[Exception], words: str, given: dict[str, Any]) -> None:
    operands = {"hidden": H, "weight": W, "targets": T}
    call = operands | given
    with pytest.raises(error, match=words):
        osm.linear_cross_entropy(**call)
    if "riders" in given or "tokens" in given or "shard" in given:
        return
    with pytest.raises(error, match=words):
        osm.linear_cross_entropy_backward(1.0, **call)
    with pytest.raises(error, match=words):
        osm.linear_cross_entropy_with_gradient(**call)


def test_wrong_gradients_name_the_argument() -> None:
    with pytest.raises(ValueError, match="dloss"):
        osm.linear_cross_entropy_backward([1.0, 2.0], H, W, T)
    with pytest.raises(ValueError, match="dlse"):
        osm.linear_cross_entropy_backward(1.0, H, W, T, dlse=np.ones(3))
    with pytest.raises(ValueError, match="filter_below"):
        osm.linear_cross_entropy_backward(1.0, H, W, T, filter_below=-1)
    with pytest.raises(TypeError, match="state"):
        osm.linear_cross_entropy_backward(1.0, H, W, T, shard=(0, 5))


@pytest.mark.parametrize("parts", [[(0, 1), (1, 12)], [(2, 12), (0, 2)]])
def test_a_part_may_be_too_small_for_megatrons_smoothing(parts: list[tuple[int, int]]) -> None:
    """It is the whole vocabulary that the smoothing is shared out among."""
    case = Case(9, 12, 4, np.float64, options={"label_smoothing": 0.6, "smoothing": "megatron"})
    whole = osm.linear_cross_entropy(case.hidden, case.weight, case.targets, **case.options)
    made = [
        osm.linear_cross_entropy(case.hidden, case.weight[a:b], case.targets, shard=(a, b), **case.options)
        for a, b in parts
    ]
    state = made[0].merge(made[1])
    np.testing.assert_allclose(state.loss(), whole, rtol=2.0**-50)
    want = osm.linear_cross_entropy_backward(1.0, case.hidden, case.weight, case.targets, **case.options)
    for a, b in parts:
        got = osm.linear_cross_entropy_backward(
            1.0, case.hidden, case.weight[a:b], case.targets, shard=(a, b), state=state, **case.options
        )
        np.testing.assert_allclose(got.weight, want.weight[a:b], rtol=2.0**-46, atol=2.0**-50)


def test_a_state_of_other_rows_or_classes_gives_no_gradient() -> None:
    x, targets = np.random.default_rng(0).standard_normal((3, 8)), np.array([0, 5, 7])
    state = osm.cross_entropy(x[:, :4], targets, shard=(0, 4)).merge(
        osm.cross_entropy(x[:, 4:], targets, shard=(4, 8))
    )
    for logits, start, stop in ((x[:, :4], 0, 4), (x[:, 2:6], 2, 6), (x, 0, 8)):  # of parts that touch too
        osm.cross_entropy_backward(1.0, logits, targets, shard=(start, stop), state=state)
    weighed = osm.cross_entropy(x, targets, shard=(0, 8), row_weight=[1, 2, 3])
    wrong: list[tuple[str, Any, Any, tuple[int, int]]] = [
        (r"state is of the classes 0 to 4, 4 to 8: .* shard, 6 to 10,", state, targets, (6, 10)),
        (r"state is of the classes 0 to 4, 4 to 8: .* shard, 8 to 12,", state, targets, (8, 12)),
        ("state was made with another targets", state, [-100, 5, 7], (0, 4)),
        ("state was made with another row_weight", weighed, targets, (0, 4)),
    ]
    for words, given, indices, (start, stop) in wrong:
        out = np.full((3, 4), 7.0)
        with pytest.raises(ValueError, match=words):
            osm.cross_entropy_backward(1.0, x[:, :4], indices, shard=(start, stop), state=given, out=out)
        assert (out == 7).all()
    for name in ("m", "s", "target", "target_weight", "kept"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(state, name)[0] = 0
    with pytest.raises(ValueError, match=r"shard is .* up to 9223372036854775807, would do"):
        osm.cross_entropy(x, targets, shard=(2**63, 2**63 + 8))


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "weight": [1, 1, 0, 0, 1, 2]}, {"z_loss": 1e-3}]
)
def test_a_part_that_is_switched_off_in_a_row_far_from_0(
    isa: str, dtype: Any, options: dict[str, Any]
) -> None:
    """The part has no maximum of its own, and exponentials relative to 0 would be past every format."""
    base = np.array([[-1.0, -3, -INF, -INF, -2, 0], [-1, -INF, -INF, -INF, -INF, -INF]])
    weight = options.get("weight", [1] * 6)
    rest = {name: value for name, value in options.items() if name != "weight"}
    for shift in (0.0, -1024.0, 1024.0, -(2.0**15)):
        x, targets, parts = (base + shift).astype(dtype), [4, 0], [(0, 2), (2, 4), (4, 6)]
        states = [
            osm.cross_entropy(x[:, a:b], targets, shard=(a, b), weight=weight[a:b], isa=isa, **rest)
            for a, b in parts
        ]
        state = states[2].merge(states[0].merge(states[1]))
        want = osm.cross_entropy_backward(
            [1.0, 1.0], x, targets, reduction="none", weight=weight, isa=isa, **rest
        )
        got = [
            osm.cross_entropy_backward(
                [1.0, 1.0], x[:, a:b], targets, reduction="none", weight=weight[a:b], shard=(a, b),
                state=state, isa=isa, **rest,
            )
            for a, b in parts
        ]  # fmt: skip
        assert np.isfinite(want.astype(np.float64)).all()
        scale = 2 * abs(shift) * 2e-3 + 4 if "z_loss" in rest else 4
        unit_ = max(unit(np.dtype(dtype)), 2.0**-50 if dtype == np.float64 else 2.0**-20)
        np.testing.assert_allclose(
            np.concatenate(got, 1).astype(np.float64),
            want.astype(np.float64),
            rtol=4 * unit_,
            atol=scale * unit_,
        )


def test_a_row_without_a_distribution_is_nan_though_its_target_weighs_nothing() -> None:
    x = np.array([[NAN, 0, 1], [0, INF, 1], [-INF, -INF, -INF], [0, 1, 2]])
    state = osm.cross_entropy(x[:, :1], [0] * 4, shard=(0, 1), weight=[0]).merge(
        osm.cross_entropy(x[:, 1:], [0] * 4, shard=(1, 3), weight=[1, 1])
    )
    want = osm.cross_entropy(x, [0] * 4, weight=[0, 1, 1], reduction="none")
    np.testing.assert_array_equal(want, [NAN, NAN, NAN, 0])
    np.testing.assert_array_equal(state.loss(reduction="none"), want)
