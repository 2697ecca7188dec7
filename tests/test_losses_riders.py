"""What cross-entropy finds beside the loss, against plain float64: entropy, rank, correctness,
log-probabilities, divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    DEPTH,
    EXP_UNITS,
    EXP_UNITS_OF_16_BITS,
    FORMATS,
    LOG_UNITS,
    assert_close,
    assert_same_bits,
    ulp,
)
from loss_cases import INF, NAN, Array, every_format, every_isa, operands

import online_softmax as osm
from online_softmax import reference
from online_softmax.numerics import bounds

ALL = ("entropy", "rank", "correct")


def plain(
    logits: Array, targets: Array | None, tokens: Array | None = None, other: Array | None = None
) -> dict[str, Array]:
    """Classes last; by the definitions."""
    x = logits.astype(np.float64)
    log_p = reference.log_softmax(x)
    p = np.exp(log_p)
    found = {"entropy": -np.where(p > 0, p * np.where(p > 0, log_p, 0), 0).sum(axis=-1)}
    found["entropy"] = np.where(np.isnan(log_p).any(axis=-1), NAN, found["entropy"])
    if targets is not None:
        kept = targets >= 0
        safe = np.where(kept, targets, 0)[..., None]
        own = np.take_along_axis(x, safe, -1)
        before = (x > own) | ((x == own) & (np.arange(x.shape[-1]) < safe))
        kept = kept & ~np.isnan(log_p).any(axis=-1)
        found["rank"] = np.where(kept, before.sum(axis=-1), -1)
    if tokens is not None:
        found["log_probabilities"] = np.take_along_axis(log_p, tokens, -1)
    if other is not None:
        log_q = reference.log_softmax(other.astype(np.float64))
        with np.errstate(invalid="ignore"):
            each = np.where(p > 0, p * (log_p - log_q), 0).sum(axis=-1)
        odd = np.isnan(log_p).any(axis=-1) | np.isnan(log_q).any(axis=-1)
        found["divergence"] = np.where(odd, NAN, each)
    return found


def errors(logits: Array, other: Array | None = None) -> dict[str, Any]:
    """Bounds in what is computed in: float32 for operands of up to 32 bits. Classes last."""
    single = logits.dtype != np.float64
    computed = FORMATS["f32" if single else "f64"]
    u = bounds.unit_roundoff(computed)
    short = logits.dtype.itemsize == 2

    def of(rows: Array) -> tuple[Array, Array, Array, Array]:
        wide = rows.astype(np.float64)
        wide = np.where(np.isfinite(wide.max(axis=-1, keepdims=True)), wide, 0.0)
        limits = bounds.error_bound(
            wide, "batch", computed, depth=DEPTH,
            exp_error=u * (EXP_UNITS_OF_16_BITS if short else EXP_UNITS),
            log_error=LOG_UNITS * u, exact_top=False,
        )  # fmt: skip
        log_p = reference.log_softmax(wide)
        return limits.y, limits.log_y, log_p, np.exp(log_p)

    y, log_y, log_p, p = of(logits)
    live = p > 0
    size = np.where(live, np.abs(np.where(live, log_p, 0)), 0)
    # Sum of e * (z - pivot), the pivot one of the row: two roundings of a term, three additions in float.
    finite = np.where(np.isfinite(logits.astype(np.float64)), logits.astype(np.float64), np.nan)
    reach = np.nan_to_num(np.nanmax(finite, axis=-1) - np.nanmin(finite, axis=-1))
    entropy = (y * size + np.where(live, p * log_y, 0)).sum(axis=-1)
    entropy = entropy + 8 * u * (
        (p * size).sum(axis=-1) + (p * np.minimum(size, reach[..., None])).sum(axis=-1)
    )
    # A pivot may lie 40 below the maximum (in float32) before the row is gone through again.
    entropy = entropy + (8 * u * np.minimum(reach, 40) if single else 0)
    found = {"entropy": entropy, "log_probabilities": log_y}
    if other is not None:
        _, log_z, log_q, _ = of(other)
        apart = np.where(live & np.isfinite(log_q), np.abs(np.where(live, log_p, 0) - log_q), 0)
        terms = y * apart + np.where(live, p * (log_y + log_z), 0)
        found["divergence"] = terms.sum(axis=-1) + 2.0**-53 * p.shape[-1] * np.where(live, p * apart, 0).sum(
            axis=-1
        )
    return found


def check(logits: Array, targets: Array, isa: str | None, seed: int = 0, **options: Any) -> None:
    """All riders, forward and beside the gradient, which stays as it was. Classes last."""
    rng = np.random.default_rng(seed)
    n = logits.shape[-1]
    tokens = rng.integers(0, n, (*targets.shape, 3))
    tokens[..., 0] = np.where(targets >= 0, targets, 0)
    other = (2 * rng.standard_normal(logits.shape)).astype(logits.dtype)
    call = {"riders": ALL, "tokens": tokens, "kl_to": other, "isa": isa, **options}
    made = osm.cross_entropy(logits, targets, **call)
    right, allowed = plain(logits, targets, tokens, other), errors(logits, other)
    wide = FORMATS["f64" if logits.dtype == np.float64 else "f32"]
    chosen = np.take_along_axis(np.broadcast_to(allowed["log_probabilities"], logits.shape), tokens, -1)
    for name, limit in (
        ("entropy", allowed["entropy"]),
        ("divergence", allowed["divergence"]),
        ("log_probabilities", chosen),
    ):
        got = getattr(made, name)
        assert got.dtype == wide
        odd = ~np.isfinite(right[name])
        assert_close(got, right[name], np.where(odd, 0, limit) + 0.5 * ulp(right[name], wide), f"{name} {n}")
    assert made.rank.dtype == np.int64
    np.testing.assert_array_equal(made.rank, right["rank"])
    assert made.correct.dtype == bool
    np.testing.assert_array_equal(made.correct, right["rank"] == 0)
    both = osm.cross_entropy_with_gradient(logits, targets, **call)
    for name in ("loss", "lse", "rank", "correct", "entropy", "divergence", "log_probabilities"):
        assert_same_bits(np.asarray(getattr(both.loss, name)), np.asarray(getattr(made, name)), name)
    hard = osm.cross_entropy_with_gradient(logits, targets, isa=isa, **options)
    assert_same_bits(both.gradient, hard.gradient)
    assert_same_bits(np.asarray(made.loss), np.asarray(hard.loss))


@every_isa
@every_format
def test_riders(fmt: str, isa: str) -> None:
    for n in (1, 2, 3, 15, 17, 31, 33, 64, 65, 129, 255, 257, 1023, 1025, 1057):
        logits, targets = operands(fmt, (5, n), seed=n)
        targets[0], targets[1], targets[3] = 0, n - 1, -100
        check(logits, targets, isa, seed=n)
        check(logits, targets, isa, seed=n, label_smoothing=0.2, weight=np.linspace(0.5, 2, n))
    check(*operands(fmt, (2, 33_000)), isa)
    shifted = (operands(fmt, (5, 100))[0].astype(np.float64) + 1000).astype(FORMATS[fmt])
    check(shifted, operands(fmt, (5, 100))[1], isa)


@every_isa
@every_format
def test_ties_go_to_the_lower_number(fmt: str, isa: str) -> None:
    """As a stable sort in descending order has them; -0 equals 0."""
    rng = np.random.default_rng(0)
    for n in (2, 31, 67, 300):
        logits = rng.integers(-2, 3, (40, n)).astype(FORMATS[fmt])
        logits[:10] = 0
        logits[5] = np.where(rng.random(n) < 0.5, -0.0, 0.0)
        logits[6] = -0.0
        for targets in (np.arange(40) % n, rng.integers(0, n, 40)):
            made = osm.cross_entropy(logits, targets, riders=("rank", "correct"), isa=isa)
            order = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")
            np.testing.assert_array_equal(made.rank, np.argmax(order == targets[:, None], axis=1))
            np.testing.assert_array_equal(made.correct, order[:, 0] == targets)
            assert made.entropy is None
        equal = osm.cross_entropy(np.zeros((n, n), FORMATS[fmt]), np.arange(n), riders=["rank"], isa=isa)
        np.testing.assert_array_equal(equal.rank, np.arange(n))
        assert equal.correct is None


@every_isa
@every_format
def test_neighbouring_numbers_are_no_ties(fmt: str, isa: str) -> None:
    dtype = FORMATS[fmt]
    for centre in (0.0, 1.0, -1.0, 3.0, -100.0):
        middle = np.array(centre, dtype)
        row = np.stack([np.nextafter(middle, dtype.type(side)) for side in (-INF, INF)] + [middle] * 2)
        logits = np.tile(row, (4, 10))
        targets = np.array([0, 1, 2, 3])
        made = osm.cross_entropy(logits, targets, riders=("rank",), isa=isa)
        np.testing.assert_array_equal(made.rank, [30, 0, 10, 11])


@every_isa
@every_format
def test_classes_out_of_the_distribution(fmt: str, isa: str) -> None:
    for n in (6, 70):
        logits, targets = operands(fmt, (6, n), seed=n)
        logits[:, ::3] = -INF
        targets[:] = 0, 1, n - 1, 3, -100, 2
        right = plain(logits, targets, np.tile([[0, 1, 3]], (6, 1)), logits)
        made = osm.cross_entropy(
            logits, targets, riders=ALL, tokens=np.tile([[0, 1, 3]], (6, 1)), kl_to=logits, isa=isa
        )
        np.testing.assert_array_equal(made.rank, right["rank"])
        limits = errors(logits, logits)
        assert_close(made.entropy, right["entropy"], limits["entropy"] + np.spacing(np.float32(9)))
        np.testing.assert_array_equal(np.isneginf(made.log_probabilities), [[True, False, True]] * 6)
        # The same in both: no 0 * inf, and nothing apart.
        assert_close(made.divergence, np.zeros(6), limits["divergence"])
        # What the second rules out and the first does not.
        full = operands(fmt, (6, n), seed=n)[0]
        np.testing.assert_array_equal(
            osm.cross_entropy(full, targets, kl_to=logits, isa=isa).divergence, [INF] * 6
        )
        assert np.isfinite(osm.cross_entropy(logits, targets, kl_to=full, isa=isa).divergence).all()


@every_isa
@every_format
def test_rows_without_a_distribution(fmt: str, isa: str) -> None:
    logits, targets = operands(fmt, (7, 40))
    logits[0, 3], logits[1, 3], logits[2] = NAN, INF, -INF
    logits[5, 1], targets[5] = NAN, -100
    tokens = np.zeros((7, 1), int)
    made = osm.cross_entropy(
        logits, targets, riders=ALL, tokens=tokens, kl_to=logits, reduction="none", isa=isa
    )
    odd = np.isin(np.arange(7), [0, 1, 2, 5])
    np.testing.assert_array_equal(made.rank[odd], [-1] * 4)
    np.testing.assert_array_equal(np.isnan(made.entropy), odd)
    np.testing.assert_array_equal(np.isnan(made.divergence), odd)
    np.testing.assert_array_equal(np.isnan(made.log_probabilities[:, 0]), odd)
    np.testing.assert_array_equal(made.lse[[0, 1, 2, 5]], [NAN, INF, -INF, NAN])
    assert not made.correct[odd].any()
    assert made.loss[5] == 0
    second = np.zeros_like(logits)
    second[3, 0], second[4], second[6, 0] = NAN, -INF, INF
    both = osm.cross_entropy(logits, targets, kl_to=second, isa=isa).divergence
    np.testing.assert_array_equal(np.isnan(both), [True] * 7)


@every_isa
@every_format
def test_entropy_and_divergence_are_not_negative_past_the_bound(fmt: str, isa: str) -> None:
    """Rows sure of some class, the target or not, wherever it lies."""
    for score, place, target in ((20.0, 2, 2), (20.0, 70, 70), (20.0, 70, 3), (39.0, 70, 3), (60.0, 70, 3)):
        logits = np.zeros((1, 100), FORMATS[fmt])
        logits[0, place] = score
        made = osm.cross_entropy(logits, [target], riders=("entropy",), kl_to=logits, isa=isa)
        right = plain(logits, np.array([target]), None, logits)
        limits = errors(logits, logits)
        assert_close(made.entropy, right["entropy"], limits["entropy"] + np.spacing(np.float32(1e-6)))
        assert_close(made.divergence, right["divergence"], limits["divergence"])
    equal = osm.cross_entropy(np.zeros((1, 64), FORMATS[fmt]), [0], riders=("entropy",), isa=isa)
    assert_close(equal.entropy, np.array([np.log(64.0)]), errors(np.zeros((1, 64), FORMATS[fmt]))["entropy"])


def test_softcap_and_temperature_hold_for_both_streams() -> None:
    logits, targets = operands("f64")
    other = operands("f64", seed=9)[0]
    tokens = np.tile([[0, 5]], (7, 1))
    mapped = [2.0 * np.tanh(x / 2.0) / 0.5 for x in (logits, other)]
    made = osm.cross_entropy(
        logits, targets, riders=ALL, tokens=tokens, kl_to=other, softcap=2.0, temperature=0.5, return_lse=True
    )
    right = plain(mapped[0], targets, tokens, mapped[1])
    for name in ("entropy", "log_probabilities", "divergence"):
        np.testing.assert_allclose(getattr(made, name), right[name], rtol=0, atol=400 * 2.0**-53)
    np.testing.assert_array_equal(made.rank, right["rank"])


def test_riders_of_probabilities() -> None:
    logits, p = operands("f64", kind="probabilities")
    tokens = np.tile([[0, 5]], (7, 1))
    made = osm.cross_entropy(logits, p, riders=("entropy",), tokens=tokens, kl_to=-logits)
    right = plain(logits, None, tokens, -logits)
    for name in ("entropy", "log_probabilities", "divergence"):
        np.testing.assert_allclose(getattr(made, name), right[name], rtol=0, atol=400 * 2.0**-53)
    assert made.rank is None


@every_isa
def test_riders_of_columns_and_strides(isa: str) -> None:
    logits, targets = operands("f32", (5, 33, 4))
    other = operands("f32", (5, 33, 4), seed=3)[0]
    tokens = np.random.default_rng(0).integers(0, 33, (5, 4, 2))
    call = {"riders": ALL, "tokens": tokens, "isa": isa}
    made = osm.cross_entropy(logits, targets, kl_to=other, **call)
    last = np.ascontiguousarray(np.moveaxis(logits, 1, -1))
    again = osm.cross_entropy(last, targets, axis=-1, kl_to=np.moveaxis(other, 1, -1), **call)
    turned = osm.cross_entropy(logits, targets, kl_to=np.asfortranarray(other), **call)
    for name in ("loss", "lse", "entropy", "rank", "correct", "log_probabilities", "divergence"):
        want = np.asarray(getattr(made, name))
        assert_same_bits(np.asarray(getattr(again, name)), want, name)
        assert_same_bits(np.asarray(getattr(turned, name)), want, name)
    np.testing.assert_array_equal(made.rank, plain(last, targets)["rank"])
    none = osm.cross_entropy(logits, targets, tokens=tokens[..., :0])
    assert none.log_probabilities.shape == (5, 4, 0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"riders": "rank"}, TypeError, "riders is 'rank'"),
        ({"riders": 3}, TypeError, "riders is 3"),
        (
            {"riders": ("rank", "ranks")},
            ValueError,
            "riders is 'ranks': 'entropy', 'rank', 'correct' would do",
        ),
        ({"riders": (0,)}, ValueError, "riders is 0"),
        ({"tokens": [[0, 1]]}, ValueError, r"tokens has shape \(1, 2\): \(2, 'k'\)"),
        ({"tokens": [0, 1]}, ValueError, r"tokens has shape \(2,\)"),
        ({"tokens": [[0.0], [1.0]]}, TypeError, "tokens holds float64"),
        ({"tokens": [[0], [3]]}, IndexError, r"tokens\[1, 0\] = 3 is out of range for 3 classes"),
        ({"tokens": [[0], [-1]]}, IndexError, r"tokens\[1, 0\] = -1"),
        ({"kl_to": np.zeros((2, 4))}, ValueError, r"kl_to has shape \(2, 4\)"),
        ({"kl_to": np.zeros((2, 3)) * 1j}, TypeError, "kl_to is complex128"),
        ({"return_lse": 1}, TypeError, "return_lse=1 is a int"),
        (
            {"targets": np.full((2, 3), 1 / 3), "riders": ("rank",)},
            ValueError,
            "riders has 'rank' with class prob",
        ),
        ({"targets": np.full((2, 3), 1 / 3), "riders": ("correct",)}, ValueError, "riders has 'correct'"),
    ],
)
def test_wrong_calls(change: dict[str, Any], error: type[Exception], words: str) -> None:
    call = {"logits": np.zeros((2, 3), np.float32), "targets": [0, 1]} | change
    with pytest.raises(error, match=words):
        osm.cross_entropy(**call)
    with pytest.raises(error, match=words):
        osm.cross_entropy_with_gradient(**call)
