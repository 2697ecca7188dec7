"""Cross-entropy and its gradient against the reference: options in pairs, sizes, formats.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits
from loss_cases import INF, NAN, chosen, every_format, every_isa, hold, limits, operands, pairs, truth

import online_softmax as osm
from online_softmax import cpu

RICH = {"label_smoothing": 0.1, "z_loss": 0.01, "reduction": "none"}


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@every_isa
def test_options_alone_and_in_pairs(isa: str, kind: str) -> None:
    logits, targets = operands("f32", kind=kind)
    for case in pairs(kind):
        hold(logits, targets, isa=isa, label=case.id, **chosen(case.values[0]))


@pytest.mark.parametrize("fmt", ["f64", "f16", "bf16"])
@every_isa
def test_options_in_other_formats(isa: str, fmt: str) -> None:
    for kind in ("indices", "probabilities"):
        logits, targets = operands(fmt, kind=kind)
        # Every fifth pair, another fifth for each format: all are gone through in float32.
        for case in pairs(kind)[list(FORMATS).index(fmt) :: 5]:
            hold(logits, targets, isa=isa, label=f"{kind} {case.id}", **chosen(case.values[0]))


def test_rows_of_more_dimensions() -> None:
    for kind, shape in itertools.product(("indices", "probabilities"), ((3, 21, 2), (21,), (2, 21, 3, 2))):
        logits, targets = operands("f32", shape, kind)
        for case in pairs(kind)[::4]:
            options = chosen(case.values[0])
            if "row_weight" in options:
                options["row_weight"] = 0.75
            hold(logits, targets, label=f"{kind} {shape} {case.id}", **options)


#: Around vectors, pairs of them, groups, blocks (256 to 1024 elements, by instruction set), segments.
SIZES = (
    *(
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        32,
        33,
        47,
        48,
        49,
        63,
        64,
        65,
        95,
        96,
        97,
        127,
        128,
        129,
        255,
        256,
        257,
        511,
        513,
    ),
    *(1023, 1024, 1025, 1055, 1056, 1057, 2047, 2049),
)
LONG = (32767, 32768, 32769, 65537)


@every_isa
@every_format
def test_sizes(fmt: str, isa: str) -> None:
    for n in SIZES:
        logits, targets = operands(fmt, (3, n), seed=n)
        targets[:2] = 0, n - 1
        hold(logits, targets, isa=isa, label=f"{n}")
        weight = np.linspace(0.5, 2, n)
        hold(logits, targets, isa=isa, label=f"{n} rich", weight=weight, **RICH)
        hold(*operands(fmt, (3, n), "probabilities", seed=n), isa=isa, label=f"{n} probabilities")


@every_isa
@every_format
def test_long_rows(fmt: str, isa: str) -> None:
    for n in LONG if isa == cpu.default_isa() else LONG[1:3]:
        logits, targets = operands(fmt, (2, n), seed=n)
        targets[:] = n - 1, 0
        hold(logits, targets, isa=isa, label=f"{n}")
        hold(logits, targets, isa=isa, label=f"{n} rich", weight=np.linspace(0.5, 2, n), **RICH)
    hold(*operands(fmt, (2, n), "probabilities", seed=n), isa=isa, label=f"{n} probabilities")


@every_isa
@every_format
def test_every_place_of_the_target(fmt: str, isa: str) -> None:
    """One target a row, at each class: what is kept apart is that class and no other."""
    n = 131
    logits = np.broadcast_to(operands(fmt, (1, n))[0], (n, n)).copy()
    hold(logits, np.arange(n), isa=isa, reduction="none")
    hold(logits, np.arange(n), isa=isa, weight=np.linspace(0.5, 2, n), **RICH)


@every_isa
@every_format
def test_far_from_zero_and_far_apart(fmt: str, isa: str) -> None:
    plain, targets = operands(fmt, (5, 300))
    for shift in (300, -300, 1e4, -1e4):
        logits = (plain.astype(np.float64) + shift).astype(FORMATS[fmt])
        hold(logits, targets, isa=isa, label=f"{shift}")
        hold(logits, targets, isa=isa, label=f"{shift} rich", **RICH)
        hold(logits, operands(fmt, (5, 300), "probabilities")[1], isa=isa, label=f"{shift} probabilities")
    scaled = (plain.astype(np.float64) * 1e3).astype(FORMATS[fmt])
    for options in ({}, RICH, {"softcap": 30.0}, {"temperature": 7.0}):
        hold(scaled, targets, isa=isa, label=f"scaled {list(options)}", **options)
    # Steps of more than what a pivot may be below: rows that are gone through again by their maximum.
    rising = np.sort(scaled[:, :64] / 40, axis=1).astype(FORMATS[fmt])
    hold(rising, targets % 64, isa=isa, label="rising")


@every_isa
@every_format
def test_classes_out_of_the_distribution(fmt: str, isa: str) -> None:
    """-inf: probability and gradient 0; a loss of inf at the target or where it weighs anything."""
    odd = np.where(np.arange(40) % 3, 1.0, 0.0)
    choices: list[dict[str, Any]] = [
        {}, {"label_smoothing": 0.1}, {"weight": odd}, {"weight": odd, "label_smoothing": 0.1},
        {"softcap": 3.0}, {"temperature": 0.5}, {"z_loss": 0.1},
    ]  # fmt: skip
    for options in choices:
        logits, targets = operands(fmt, (6, 40))
        logits[:, ::3] = -INF
        targets[:] = 1, 2, 4, 3, -100, 38
        hold(logits, targets, isa=isa, label=f"{list(options)}", reduction="none", **options)
        upstream = np.arange(6.0)
        hold(logits, targets, isa=isa, reduction="none", dlse=upstream, **options)
        p = np.where(np.isneginf(logits.astype(np.float64)), 0, operands(fmt, (6, 40), "probabilities")[1])
        hold(logits, p, isa=isa, label=f"probabilities {list(options)}", reduction="none", **options)
        lone = np.full((2, 40), -INF).astype(FORMATS[fmt])
        lone[:, 38] = 1.5
        hold(lone, np.array([38, 1]), isa=isa, reduction="none", **options)


@every_isa
@every_format
def test_special_values(fmt: str, isa: str) -> None:
    """Row by row: NaN, infinities, nothing but -inf. No other row is touched, nor a row that is ignored."""
    for options in ({}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 3.0}, {"temperature": 3.0}):
        logits, targets = operands(fmt, (10, 40))
        targets[[0, 2, 4, 6]] = -100
        targets[1] = 0
        logits[0, 3], logits[2], logits[4], logits[6, 1] = NAN, INF, -INF, -INF
        for reduction in ("mean", "none"):
            hold(logits, targets, isa=isa, reduction=reduction, label=f"ignored {list(options)}", **options)
        logits[1, 1], logits[3, 39], logits[5], logits[7, targets[7]] = NAN, INF, -INF, -INF
        logits[8, targets[8]] = INF
        if "softcap" in options:  # where infinities are caps, and slopes 0 times 0
            continue
        hold(logits, targets, isa=isa, reduction="none", label=f"special {list(options)}", **options)
        hold(logits, targets, isa=isa, reduction="none", dlse=np.arange(10.0), **options)


@every_isa
def test_ignored_rows_are_exactly_zero(isa: str) -> None:
    for fmt, fill in itertools.product(FORMATS, (NAN, INF, -INF)):
        logits = np.full((3, 50), fill).astype(FORMATS[fmt])
        logits[1] = 0
        targets = np.array([-100, 7, -100])
        for extra in (
            {},
            {"label_smoothing": 0.2},
            {"z_loss": 1.0},
            {"softcap": 2.0},
            {"riders": ("entropy",)},
        ):
            made = osm.cross_entropy_with_gradient(logits, targets, reduction="sum", isa=isa, **extra)
            assert (made.gradient[[0, 2]].view(f"u{made.gradient.itemsize}") == 0).all()
            assert np.isfinite(made.gradient[1].astype(np.float64)).all()
            assert np.isfinite(made.loss.loss if "riders" in extra else made.loss)


@every_isa
@every_format
def test_small_and_great_gradients_of_the_loss(fmt: str, isa: str) -> None:
    """The factor of the exponentials must not lose its bits on the way, however small dloss."""
    logits, targets = operands(fmt, (3, 1000))
    single = (1e-12, 1e-20, 1e-30, 1e-36)
    smallest = {"f32": single, "bf16": single, "f16": (1e-5,), "f64": (1e-20, 1e-150, 1e-290)}[fmt]
    weight = np.linspace(0.5, 2, 1000)
    for dloss in (*smallest, 1.0 if fmt == "f16" else 1e20, 0.0, -3.0):
        hold(logits, targets, isa=isa, dloss=dloss, reduction="sum", label=f"{dloss}")
        smoothed = {"label_smoothing": 0.1, "weight": weight, "reduction": "sum", "isa": isa}
        hold(logits, targets, dloss=dloss, label=f"{dloss} smoothed", **smoothed)
        want = osm.cross_entropy_backward(dloss, logits, targets, **smoothed)
        room = logits.copy()
        osm.cross_entropy_backward(dloss, room, targets, out=room, **smoothed)
        assert_same_bits(room, want)
    # The target far above the elements that the pivot is taken from.
    for score in (10, 15, 17, 25, 35, 39, 41, 60, 85):
        logits[:, 500] = score
        for dloss in (1.0, 2.0**-12, 2.0**-30):
            hold(logits, np.full(3, 500), isa=isa, dloss=dloss, reduction="sum", label=f"{score} {dloss}")
            hold(logits, np.full(3, 7), isa=isa, dloss=dloss, reduction="sum", label=f"not {score} {dloss}")


# ---- formats


def test_formats_of_other_kinds() -> None:
    whole = np.random.default_rng(0).integers(-5, 6, (4, 9))
    targets = np.arange(4)
    want = osm.cross_entropy_with_gradient(whole.astype(np.float64), targets, return_lse=True)
    for dtype in (np.int8, np.int32, np.int64, np.int16):
        got = osm.cross_entropy_with_gradient(whole.astype(dtype), targets, return_lse=True)
        assert_same_bits(got.loss.loss, want.loss.loss)
        assert_same_bits(got.gradient, want.gradient)
    assert osm.cross_entropy(whole > 0, targets).dtype == np.float64
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        small = whole.astype(np.float32).astype(dtype)
        got = osm.cross_entropy_with_gradient(small, targets, return_lse=True)
        wide = osm.cross_entropy_with_gradient(small.astype(np.float32), targets, return_lse=True)
        assert got.gradient.dtype == dtype
        assert_same_bits(got.loss.loss, wide.loss.loss)
        assert_same_bits(got.gradient, wide.gradient.astype(dtype))
        out = small.copy()
        assert osm.cross_entropy_backward(1.0, out, targets, out=out) is out
        assert_same_bits(out, got.gradient)
    swapped = whole.astype(">f4")
    assert_same_bits(
        osm.cross_entropy(swapped, targets), osm.cross_entropy(whole.astype(np.float32), targets)
    )


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_probabilities_of_any_format(dtype: Any) -> None:
    for fmt in FORMATS:
        logits, p = operands(fmt, kind="probabilities")
        held = p.astype(dtype)
        right = truth(logits, held.astype(np.float64))
        made = osm.cross_entropy(logits, held)
        allowed = limits(right, logits.dtype, {})[0].mean() + np.spacing(abs(made))
        assert_close(np.asarray(made), np.asarray(right.loss), allowed, fmt)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, ">i4"])
def test_targets_of_any_integers(dtype: Any) -> None:
    logits, targets = operands("f32")
    given = targets.astype(dtype)
    assert_same_bits(osm.cross_entropy(logits, given), osm.cross_entropy(logits, targets))
    assert osm.cross_entropy(logits, list(map(int, targets))) == osm.cross_entropy(logits, targets)


def test_losses_of_integers_and_of_16_bits_are_wide() -> None:
    for fmt, dtype in FORMATS.items():
        wide = np.float64 if fmt == "f64" else np.float32
        logits, targets = operands(fmt)
        for reduction in ("mean", "sum", "none"):
            assert np.asarray(osm.cross_entropy(logits, targets, reduction=reduction)).dtype == wide
        assert osm.cross_entropy_backward(1.0, logits, targets).dtype == dtype


def test_many_rows_of_16_bits_do_not_stall() -> None:
    """Sums over rows go on in float64."""
    logits, targets = np.zeros((300_000, 3), ml_dtypes.bfloat16), np.zeros(300_000, int)
    assert osm.cross_entropy(logits, targets) == np.float32(np.log(3.0))
    total = osm.cross_entropy(logits, targets, reduction="sum")
    assert abs(float(total) - 300_000 * np.log(3.0)) <= np.spacing(total)
