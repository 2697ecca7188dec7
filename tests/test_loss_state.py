"""Cross-entropy of a vocabulary in parts: every cut, every order of merging, losses, gradients and errors."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, ulp
from loss_cases import (
    INF,
    NAN,
    OPTIONS,
    Array,
    chosen,
    every_format,
    every_isa,
    limits,
    operands,
    pairs,
    truth,
)

import online_softmax as osm
from online_softmax.conformance.tolerance.losses import targets as coefficients

#: loss() is asked with these; what is left has to be the same in all parts.
OF_LOSS = ("reduction", "empty")
PARTS_OF_21 = ((0, 21), (0, 20, 21), (0, 1, 21), (0, 7, 14, 21), (0, 3, 4, 18, 21), tuple(range(22)))


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {k: v for k, v in options.items() if k not in OF_LOSS},
        {k: v for k, v in options.items() if k in OF_LOSS},
    )


def states(
    logits: Array, targets: Array, cut: tuple[int, ...], isa: str | None = None, **options: Any
) -> list[osm.LossState]:
    """Of the parts between the numbers of `cut`."""
    weight = options.pop("weight", None)
    return [
        osm.cross_entropy(
            logits[:, a:b],
            targets,
            shard=(a, b),
            weight=None if weight is None else weight[a:b],
            isa=isa,
            **options,
        )
        for a, b in itertools.pairwise(cut)
    ]


def gradients(
    state: osm.LossState, logits: Array, targets: Array, cut: tuple[int, ...], dloss: Any = 1.0,
    isa: str | None = None, **options: Any,
) -> Array:  # fmt: skip
    weight = options.pop("weight", None)
    parts = [
        osm.cross_entropy_backward(
            dloss, logits[:, a:b], targets, shard=(a, b), state=state, isa=isa,
            weight=None if weight is None else weight[a:b], **options,
        )
        for a, b in itertools.pairwise(cut)
    ]  # fmt: skip
    return np.concatenate(parts, axis=1)


def hold_parts(
    logits: Array, targets: Array, cut: tuple[int, ...], label: str, isa: str | None = None, **options: Any
) -> None:
    """Loss, lse and gradient of the parts, merged, are within the bound of the whole's."""
    given, asked = split(options)
    state = functools.reduce(lambda a, b: a.merge(b), states(
        logits, targets, cut, isa, **given
    ))  # fmt: skip
    assert state.classes == cut[-1]
    right = truth(logits, targets, **options)
    of_loss, of_lse, of_gradient = limits(right, logits.dtype, options)
    shape = targets.shape
    wide = FORMATS["f64" if logits.dtype == np.float64 else "f32"]
    u = 2.0**-53
    # States are float64: a rescale and an addition a merge, and sums of scores as great as the scores are.
    merged = (
        8 * u * len(cut) * (1 + np.abs(np.where(np.isfinite(right.z), right.z, 0)).max(axis=1, initial=0))
    )
    merged = np.where(np.isfinite(right.rows), merged, 0) * (1 + right.share.sum(axis=1))
    reduction = options.get("reduction", "mean")
    allowed = of_loss + merged * right.weights
    if reduction == "none":
        allowed = allowed.reshape(shape)
    else:
        allowed = allowed.sum() + len(allowed) * u * np.abs(right.rows[np.isfinite(right.rows)]).sum()
        allowed = allowed / right.denominator if reduction == "mean" and right.denominator else allowed
    loss = np.asarray(state.loss(**asked))
    assert loss.dtype == wide
    assert_close(loss, right.loss, allowed + 0.5 * ulp(np.asarray(right.loss), wide), f"loss {label}")
    lse = right.lse.reshape(shape)
    assert state.lse.dtype == wide
    odd = ~np.isfinite(lse)
    assert_close(
        state.lse,
        lse,
        np.where(odd, 0, (of_lse + merged).reshape(shape)) + 0.5 * ulp(lse, wide),
        f"lse {label}",
    )
    upstream = np.linspace(0.5, 1, targets.size).reshape(shape) if reduction == "none" else 1.0
    right = truth(logits, targets, dloss=upstream, **options)
    of_gradient = limits(right, logits.dtype, options)[2]
    made = gradients(state, logits, targets, cut, upstream, isa, **options)
    back = np.moveaxis(of_gradient.reshape(*shape, -1), -1, 1)
    size = np.where(np.isfinite(right.gradient), np.abs(right.gradient), 0)
    per_row = (right.g * merged)[:, None] * right.share + (right.g * merged * right.share.sum(axis=1))[
        :, None
    ]
    back = back + np.moveaxis(per_row.reshape(*shape, -1), -1, 1)
    back = back + 0.5 * ulp(right.gradient, logits.dtype) + (u if wide == np.float64 else 2.0**-24) * size
    assert_close(made, right.gradient, back, f"gradient {label}")


@every_isa
def test_every_cut_with_every_option(isa: str) -> None:
    logits, targets = operands("f32")
    targets[2] = 3
    for i, case in enumerate(pairs()):
        for cut in (PARTS_OF_21[i % len(PARTS_OF_21)], PARTS_OF_21[(i * 5 + 2) % len(PARTS_OF_21)]):
            hold_parts(logits, targets, cut, f"{case.id} {cut}", isa=isa, **chosen(case.values[0]))


@every_isa
@every_format
def test_every_format(fmt: str, isa: str) -> None:
    logits, targets = operands(fmt)
    targets[4] = -100
    for cut in PARTS_OF_21:
        for options in ({}, {"label_smoothing": 0.1}, {"softcap": 2.0, "z_loss": 0.1, "reduction": "sum"}):
            hold_parts(logits, targets, cut, f"{cut} {list(options)}", isa=isa, **options)
    logits, targets = operands(fmt, (3, 2100, 2))
    for options in ({}, {"label_smoothing": 0.1, "weight": np.linspace(0.5, 2, 2100)}):
        hold_parts(logits, targets, (0, 700, 1024, 2100), f"long {list(options)}", isa=isa, **options)


@every_isa
@every_format
def test_far_from_zero_and_far_apart(fmt: str, isa: str) -> None:
    plain, targets = operands(fmt)
    for shift, scale in ((1000, 1), (-1000, 1), (0, 300)):
        logits = (plain.astype(np.float64) * scale + shift).astype(FORMATS[fmt])
        for options in ({}, {"label_smoothing": 0.1}):
            hold_parts(
                logits, targets, (0, 7, 14, 21), f"{shift} {scale} {list(options)}", isa=isa, **options
            )


@every_isa
@every_format
def test_parts_that_are_all_out_of_the_distribution(fmt: str, isa: str) -> None:
    """A padded vocabulary: -inf at the end, with no weight where something weighs it."""
    logits, targets = operands(fmt)
    logits[:, 14:] = -INF
    targets[:] = np.arange(7)
    weight = np.where(np.arange(21) < 14, 1.5, 0.0)
    for cut in PARTS_OF_21:
        for options in ({}, {"weight": weight}, {"weight": weight, "label_smoothing": 0.1}, {"z_loss": 0.1}):
            hold_parts(logits, targets, cut, f"{cut} {list(options)}", isa=isa, **options)
    # A target among them has an infinite loss; so has smoothing that weighs them.
    targets[3] = 20
    for cut in PARTS_OF_21:
        hold_parts(logits, targets, cut, f"target {cut}", isa=isa, reduction="none")
        hold_parts(logits, targets, cut, f"smoothed {cut}", isa=isa, reduction="none", label_smoothing=0.1)


@every_isa
@every_format
def test_special_values(fmt: str, isa: str) -> None:
    for at in (0, 8, 20):  # first, middle and last part
        logits, targets = operands(fmt)
        targets[:] = at, 4, 20, -100, 3, -100, 0
        logits[0, at], logits[1, at], logits[3, at] = NAN, INF, NAN
        logits[4], logits[5] = -INF, -INF
        for cut in PARTS_OF_21:
            for options in ({}, {"label_smoothing": 0.1}, {"z_loss": 0.5}):
                hold_parts(
                    logits, targets, cut, f"{at} {cut} {list(options)}", isa=isa, reduction="none", **options
                )


@every_isa
def test_any_order_of_merging(isa: str) -> None:
    logits, targets = operands("f32")
    parts = states(logits, targets, (0, 4, 9, 15, 21), isa, label_smoothing=0.1)
    want = functools.reduce(lambda a, b: a.merge(b), parts).loss(reduction="none")
    for order in itertools.permutations(range(4)):
        a, b, c, d = (parts[i] for i in order)
        for merged in (
            a.merge(b).merge(c).merge(d),
            a.merge(b).merge(c.merge(d)),
            a.merge(b.merge(c.merge(d))),
        ):
            assert merged.parts == ((0, 4), (4, 9), (9, 15), (15, 21))
            # Float64 sums in another order, rounded to float32.
            np.testing.assert_allclose(merged.loss(reduction="none"), want, rtol=2.0**-23, atol=0)
            np.testing.assert_allclose(merged.lse, a.merge(b).merge(c).merge(d).lse, rtol=2.0**-23, atol=0)
        assert_same_bits(a.merge(b).m, b.merge(a).m)
        assert_same_bits(a.merge(b).s, b.merge(a).s)


def test_merging_leaves_both_as_they_were() -> None:
    logits, targets = operands("f32")
    a, b = states(logits, targets, (0, 10, 21), label_smoothing=0.1)
    before = [np.array(x) for x in (a.m, a.s, a.target, a.scores, b.m, b.s, b.target, b.scores)]
    a.merge(b)
    for x, y in zip((a.m, a.s, a.target, a.scores, b.m, b.s, b.target, b.scores), before, strict=True):
        assert_same_bits(x, y)
    assert a.classes == 10


def test_threads_and_layout_of_a_part_do_not_show() -> None:
    logits, targets = operands("f32", (60, 9000))
    first, *others = (
        osm.cross_entropy(logits[:, 2000:7000], targets, shard=(2000, 7000), label_smoothing=0.1, threads=n)
        for n in (1, 2, 3)
    )
    others.append(
        osm.cross_entropy(
            np.asfortranarray(logits)[:, 2000:7000], targets, shard=(2000, 7000), label_smoothing=0.1
        )
    )
    for other in others:
        for name in ("m", "s", "target", "scores"):
            assert_same_bits(getattr(other, name), getattr(first, name), name)


def test_mean_over_nothing() -> None:
    logits = np.zeros((2, 4), np.float32)
    state = functools.reduce(lambda a, b: a.merge(b), states(logits, np.array([-100, -100]), (0, 2, 4)))
    assert np.isnan(state.loss())
    assert state.loss(empty="zero") == 0
    assert state.loss(reduction="sum") == 0
    np.testing.assert_array_equal(state.loss(reduction="none"), [0, 0])
    for empty in ("nan", "zero"):
        made = gradients(state, logits, np.array([-100, -100]), (0, 2, 4), empty=empty)
        np.testing.assert_array_equal(made, np.zeros((2, 4)))
    no_rows = states(np.zeros((0, 4), np.float32), np.zeros(0, int), (0, 2, 4))
    merged = no_rows[0].merge(no_rows[1])
    assert np.isnan(merged.loss())
    assert merged.loss(reduction="none").shape == (0,)


@pytest.mark.parametrize("empty", ["nan", "zero"])
def test_weights_that_sum_to_nothing(empty: str) -> None:
    logits, targets = operands("f64", (2, 4))
    options = {"weight": np.zeros(4), "empty": empty}
    given, asked = split(options)
    merged = functools.reduce(lambda a, b: a.merge(b), states(logits, targets, (0, 2, 4), **given))
    whole = osm.cross_entropy(logits, targets, **options)
    assert_same_bits(np.asarray(merged.loss(**asked)), np.asarray(whole))
    with np.errstate(all="ignore"):
        want = osm.cross_entropy_backward(1.0, logits, targets, **options)
    assert_same_bits(np.isnan(gradients(merged, logits, targets, (0, 2, 4), **options)), np.isnan(want))


# ---- errors

LOGITS, TARGETS = operands("f32")


def part(a: int, b: int, **options: Any) -> osm.LossState:
    weight = options.pop("weight", None)
    targets = options.pop("targets", TARGETS)
    logits = options.pop("logits", LOGITS)
    return osm.cross_entropy(logits[:, a:b], targets, shard=(a, b), weight=weight, **options)


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        (part(0, 10), part(9, 21), ValueError, "classes 9 to 21, of which 0 to 10 are in this one"),
        (part(5, 10), part(0, 21), ValueError, "of which 5 to 10|target in row"),
        (part(0, 10), part(0, 10), ValueError, "of which 0 to 10|target in row"),
        (part(0, 10), part(10, 21, label_smoothing=0.1), ValueError, "label_smoothing=0.1"),
        (part(0, 10), part(10, 21, z_loss=0.1), ValueError, "z_loss=0.1"),
        (part(0, 10), part(10, 21, softcap=2.0), ValueError, "softcap=2.0"),
        (part(0, 10), part(10, 21, temperature=2.0), ValueError, "temperature=2.0"),
        (part(0, 10), part(10, 21, ignore_index=1), ValueError, "ignore_index=1|other targets"),
        (part(0, 10), part(10, 21, targets=np.full(7, -100)), ValueError, "other targets"),
        (part(0, 10), part(10, 21, logits=LOGITS.astype(np.float64)), ValueError, "one format would do"),
        (part(0, 10), part(10, 21, logits=LOGITS[:3], targets=TARGETS[:3]), ValueError, r"shape \(3,\)"),
        (
            part(0, 10, targets=np.full(7, 3)),
            part(10, 21, targets=np.full(7, 12)),
            ValueError,
            "target in row 0",
        ),
        (part(0, 10, row_weight=2.0), part(10, 21), ValueError, "row_weight"),
        (part(0, 10), part(10, 21, row_weight=2.0), ValueError, "row_weight"),
        (part(0, 10, row_weight=2.0), part(10, 21, row_weight=3.0), ValueError, "row_weight"),
        (part(0, 10), 3, TypeError, "other is a int"),
        (part(0, 10), None, TypeError, "other is a NoneType"),
    ],
)
def test_states_that_do_not_go_together(first: Any, second: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        first.merge(second)


def test_a_loss_asked_too_early() -> None:
    for merged, missing in (
        (part(10, 21), "0 to 10"),
        (part(0, 3).merge(part(10, 21)), "3 to 10"),
        (part(10, 21).merge(part(0, 3)), "3 to 10"),
    ):
        with pytest.raises(ValueError, match=f"classes {missing} are missing"):
            merged.loss()
        with pytest.raises(ValueError, match=f"classes {missing} are missing"):
            osm.cross_entropy_backward(1.0, LOGITS[:, 10:], TARGETS, shard=(10, 21), state=merged)
    targets = TARGETS.copy()
    targets[5] = 21
    short = part(0, 10, targets=targets).merge(part(10, 21, targets=targets))
    with pytest.raises(IndexError, match=r"targets\[5\] is none of the 21 classes"):
        short.loss()
    huge = np.array([0, 2**63 + 1, 0, 0, 0, 0, 0], np.uint64)
    with pytest.raises(IndexError, match=r"targets\[1\] is none of the 21 classes"):
        part(0, 21, targets=huge).loss()
    for word, value in (("reduction", "all"), ("empty", "one")):
        with pytest.raises(ValueError, match=f"{word} is '{value}'"):
            part(0, 21).loss(**{word: value})


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"shard": 3}, TypeError, "shard is 3"),
        ({"shard": (0,)}, TypeError, r"shard is \(0,\)"),
        ({"shard": (0, 20)}, ValueError, r"shard is \(0, 20\): \(start, start \+ 21\)"),
        ({"shard": (-1, 20)}, ValueError, r"shard is \(-1, 20\)"),
        ({"shard": (0.0, 21)}, TypeError, "shard is 0.0: an integer"),
        ({"shard": (True, 22)}, TypeError, "shard is True"),
        ({"shard": (21, 0)}, ValueError, r"shard is \(21, 0\)"),
        ({"shard": (0, 21), "targets": np.full((7, 21), 0.1)}, TypeError, "targets holds float64 with shard"),
        ({"shard": (0, 21), "return_lse": True}, ValueError, "return_lse with shard"),
        ({"shard": (0, 21), "riders": ("rank",)}, ValueError, "riders with shard"),
        ({"shard": (0, 21), "tokens": np.zeros((7, 1), int)}, ValueError, "tokens with shard"),
        ({"shard": (0, 21), "kl_to": LOGITS}, ValueError, "kl_to with shard"),
        ({"shard": (0, 21), "weight": np.ones(22)}, ValueError, r"weight has shape \(22,\): \(21,\)"),
        ({"shard": (0, 21), "targets": [0, 1, -1, 0, 0, 0, 0]}, IndexError, r"targets\[2\] = -1"),
    ],
)
def test_wrong_shards(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        osm.cross_entropy(**{"logits": LOGITS, "targets": TARGETS} | change)


def test_wrong_backwards_of_parts() -> None:
    whole = part(0, 10).merge(part(10, 21))
    call = {"logits": LOGITS[:, :10], "targets": TARGETS}
    for change, error, words in (
        ({"shard": (0, 10)}, TypeError, "state is missing"),
        ({"state": whole}, TypeError, "shard is missing"),
        ({"shard": (0, 10), "state": 3}, TypeError, "state is"),
        ({"shard": (0, 10), "state": whole, "label_smoothing": 0.1}, ValueError, "label_smoothing=0.0 where"),
        ({"shard": (0, 10), "state": whole, "z_loss": 0.1}, ValueError, "z_loss=0.0 where this one has 0.1"),
        (
            {"shard": (0, 10), "state": whole, "logits": LOGITS[:3, :10], "targets": TARGETS[:3]},
            ValueError, "state is of rows",
        ),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            osm.cross_entropy_backward(1.0, **{**call, **change})


def test_a_state_reduces_as_it_was_asked_to() -> None:
    given = [part(0, 10, reduction="sum"), part(10, 21, reduction="sum")]
    whole = osm.LossState.merge_many(given)
    assert whole.loss() == osm.cross_entropy(LOGITS, TARGETS, reduction="sum")
    np.testing.assert_array_equal(
        whole.loss(reduction="none"), osm.cross_entropy(LOGITS, TARGETS, reduction="none")
    )
    with pytest.raises(ValueError, match="reduction='mean' where this one has 'sum'"):
        given[0].merge(part(10, 21))


def test_the_last_classes_may_be_missing() -> None:
    targets = np.zeros(7, np.int64)
    state = part(0, 10, targets=targets)
    with pytest.raises(ValueError, match="classes is 21 where 10 were merged"):
        state.loss(classes=21)
    assert state.merge(part(10, 21, targets=targets)).loss(classes=21) == pytest.approx(
        osm.cross_entropy(LOGITS, targets), rel=1e-6
    )


def test_names_of_options_hold_what_they_say() -> None:
    """The coefficients that the bounds are made of are those of the reference: one of the pairs by hand."""
    share, _, divisor = coefficients(
        {"logits": np.zeros((1, 4)), "targets": np.array([1]), "weight": np.array([1.0, 2, 3, 4])},
        {"label_smoothing": 0.4},
    )
    np.testing.assert_allclose(share, [[0.1, 1.2 + 0.2, 0.3, 0.4]], rtol=1e-15)
    np.testing.assert_array_equal(divisor, [2.0])
    assert set(OPTIONS["megatron"]) == {"label_smoothing", "smoothing"}
