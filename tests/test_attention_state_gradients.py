"""The gradient of a merge: against the complex step, finite differences, PyTorch; empty sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from online_softmax import reference
from online_softmax.attention_state import AttentionState, MergeGradients, merge_attention_vjp

INF, NAN = math.inf, math.nan
U = 2.0**-53
NAMES = MergeGradients._fields


def operands(seed: int, spread: float = 3.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    o, lse = (lambda: rng.normal(size=(2, 3, 4))), (lambda: spread * rng.normal(size=(2, 3)))
    return {"o_a": o(), "lse_a": lse(), "o_b": o(), "lse_b": lse(), "do": o(), "dlse": lse()}


def scale(given: dict[str, np.ndarray]) -> float:
    """What bounds the loss sum(do * o) + sum(dlse * lse), its derivatives and the terms of its sums."""
    o, lse = (max(float(np.abs(given[f"{n}_{side}"]).max()) for side in "ab") for n in ("o", "lse"))
    return 2 * o * float(np.abs(given["do"]).sum()) + (1 + lse) * float(np.abs(given["dlse"]).sum())


def merge(
    o_a: np.ndarray, lse_a: np.ndarray, o_b: np.ndarray, lse_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formula, for complex numbers too."""
    e_a, e_b = np.exp(lse_a), np.exp(lse_b)
    s = e_a + e_b
    return (e_a[..., None] * o_a + e_b[..., None] * o_b) / s[..., None], np.log(s)


@pytest.mark.parametrize("seed", range(3))
def test_complex_step(seed: int) -> None:
    """The imaginary part of f(x + ih) is h * f'(x), without a difference: right to rounding."""
    given = operands(seed)
    four = {name: given[name] for name in NAMES}
    found = merge_attention_vjp(**given)
    h = 1e-30
    size = 1 + max(float(np.abs(a).max()) for a in given.values())
    for name in NAMES:
        gradient = np.empty_like(four[name])
        for place in np.ndindex(gradient.shape):
            moved = {n: a.astype(complex) for n, a in four.items()}
            moved[name][place] += 1j * h
            o, lse = merge(**moved)
            gradient[place] = (np.sum(o.imag * given["do"]) + np.sum(lse.imag * given["dlse"])) / h
        # Some 60 roundings: 2 * 24 products and sums of the loss, and those of the merge; exp and log of
        # numbers up to size.
        limit = (60 + 10 * size) * U * size**2
        np.testing.assert_allclose(getattr(found, name), gradient, rtol=0, atol=limit, err_msg=name)


def test_finite_differences_of_the_merge_itself() -> None:
    given = operands(11)

    def loss(four: dict[str, np.ndarray]) -> float:
        merged = AttentionState(four["o_a"], four["lse_a"]).merge(AttentionState(four["o_b"], four["lse_b"]))
        return float(np.sum(merged.o * given["do"]) + np.sum(merged.lse * given["dlse"]))

    found = merge_attention_vjp(**given)
    h = 2.0**-17
    size = scale(given)
    for name in NAMES:
        for place in np.ndindex(given[name].shape):
            ends = []
            for sign in (1, -1):
                moved = {n: given[n].copy() for n in NAMES}
                moved[name][place] += sign * h
                ends.append(loss(moved))
            # h**2 / 6 of the third derivative (1/8 at most of a weight's), and the rounding of two losses.
            limit = h**2 * size + 50 * U * size / h
            assert abs((ends[0] - ends[1]) / (2 * h) - getattr(found, name)[place]) <= limit


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_autograd_of_pytorch(dtype: str) -> None:
    given = {name: a.astype(dtype) for name, a in operands(5).items()}
    leaves = [torch.tensor(given[name].astype("float64"), requires_grad=True) for name in NAMES]
    o_a, lse_a, o_b, lse_b = leaves
    lse = torch.logaddexp(lse_a, lse_b)
    w_a, w_b = (torch.exp(side - lse)[..., None] for side in (lse_a, lse_b))
    ends = [torch.from_numpy(given[name].astype("float64")) for name in ("do", "dlse")]
    right = torch.autograd.grad((w_a * o_a + w_b * o_b, lse), leaves, ends)
    found = merge_attention_vjp(**given)
    size = 1 + max(float(np.abs(a).max()) for a in given.values())
    for mine, theirs in zip(found, right, strict=True):
        assert mine.dtype == dtype
        limit = 60 * U * size**3 + (2.0**-24 * np.abs(theirs.numpy()) if dtype == "float32" else 0)
        assert (np.abs(mine.astype("float64") - theirs.numpy()) <= limit).all()


def test_it_is_the_gradient_of_the_reference_too() -> None:
    """One direction at once: the loss moves by the sum of gradient times step."""
    given, step = operands(7), operands(8)
    h = 2.0**-17

    def loss(t: float) -> float:
        o, lse = reference.merge_attention(*(given[n] + t * step[n] for n in NAMES))
        return float(np.sum(o * given["do"]) + np.sum(lse * given["dlse"]))

    found = merge_attention_vjp(**given)
    along = sum(float(np.sum(getattr(found, n) * step[n])) for n in NAMES)
    # Along the step a third derivative has up to three factors of it, on each of the two sides.
    longest = 1 + 2 * max(float(np.abs(step[n]).max()) for n in NAMES)
    limit = h**2 * longest**3 * scale(given) + 50 * U * scale(given) / h
    assert abs((loss(h) - loss(-h)) / (2 * h) - along) <= limit


def test_without_dlse_only_the_output_counts() -> None:
    given = operands(2)
    del given["dlse"]
    zero = merge_attention_vjp(**given, dlse=np.zeros((2, 3)))
    for mine, theirs in zip(merge_attention_vjp(**given), zero, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_empty_side_gets_zero_and_the_other_all() -> None:
    given = operands(3)
    given["lse_a"][0], given["o_a"][0] = -INF, NAN
    given["lse_b"][1, 0], given["o_b"][1, 0] = -INF, INF
    for name in ("lse_a", "lse_b"):
        given[name][1, 1] = -INF
    given["o_a"][1, 1] = given["do"][1, 1] = given["dlse"][1, 1] = NAN
    found = merge_attention_vjp(**given)
    assert all(np.isfinite(gradient).all() for gradient in found)
    for empty, other, rows in (("a", "b", np.s_[0]), ("b", "a", np.s_[1, 0])):
        for part, whole in (("o", "do"), ("lse", "dlse")):
            assert not getattr(found, f"{part}_{empty}")[rows].any()
            np.testing.assert_array_equal(getattr(found, f"{part}_{other}")[rows], given[whole][rows])
    assert not any(gradient[1, 1].any() for gradient in found)


def test_tainted_rows_have_no_gradient_but_empty_sides_have_zero() -> None:
    o, do = np.ones((3, 2)), np.ones((3, 2))
    found = merge_attention_vjp(o, [INF, NAN, INF], o, [0.0, 0.0, -INF], do, np.ones(3))
    for side in ("o_a", "lse_a"):
        assert np.isnan(getattr(found, side)).all()
    for side in ("o_b", "lse_b"):
        gradient = getattr(found, side)
        assert np.isnan(gradient[:2]).all()
        assert not gradient[2].any()


def test_far_sides_keep_small_gradients() -> None:
    one = np.ones(1)
    found = merge_attention_vjp(one, -40.0, 0 * one, 0.0, one, 0.0)
    share = math.exp(-40) / (1 + math.exp(-40))
    assert float(found.o_a[0]) == pytest.approx(share, rel=90 * U, abs=0)
    assert float(found.lse_a) == pytest.approx(share / (1 + math.exp(-40)), rel=180 * U, abs=0)
    assert float(found.lse_b) == -float(found.lse_a)
    equal = merge_attention_vjp(one, 1e30, -one, 1e30, one, 1.0)
    assert [float(np.squeeze(g)) for g in equal] == [0.5, 1.0, 0.5, 0.0]


def test_gradients_have_the_formats_of_their_operands() -> None:
    o, lse = np.ones((2, 3), np.float16), np.zeros(2, np.float32)
    found = merge_attention_vjp(o, lse, o, np.zeros(2, int), o, lse)
    assert [g.dtype.name for g in found] == ["float16", "float32", "float16", "float64"]


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda o, lse: merge_attention_vjp(1.0, 1.0, 1.0, 1.0, 1.0), ValueError, r"o_a has shape \(\)"),
        (lambda o, lse: merge_attention_vjp(o, lse[:1], o, lse, o), ValueError, r"lse_a .*\(1,\).*\(2,\)"),
        (lambda o, lse: merge_attention_vjp(o, lse, o[:1], lse, o), ValueError, r"o_b has shape \(1, 3\)"),
        (lambda o, lse: merge_attention_vjp(o, lse, o, lse, o[0]), ValueError, r"do has shape \(3,\)"),
        (lambda o, lse: merge_attention_vjp(o, lse, o, lse, o, 1.0), ValueError, r"dlse has shape \(\)"),
        (lambda o, lse: merge_attention_vjp(o, lse, o, lse, o * 1j), TypeError, "do holds complex128"),
    ],
)
def test_wrong_calls_name_the_argument(
    call: Callable[[np.ndarray, np.ndarray], object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        call(np.ones((2, 3)), np.zeros(2))
