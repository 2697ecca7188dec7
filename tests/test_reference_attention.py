"""Attention of the reference: torch's scaled_dot_product_attention, the formula composed in torch where it
lacks an option (both in float64, gradients by autograd), 50 digits, and the rules where nothing is left.

Faults that users of other libraries reported are in test_reference_attention_faults.
"""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from online_softmax import reference

INF, NAN = np.inf, np.nan
U = 2.0**-53
#: torch works in float64: sums of up to 8 queries of 3 heads of a group, 9 keys and 6 features, of terms of
#: size up to 50, a few roundings each.
ROUNDING = 8 * 3 * 9 * 6 * 50 * U
B, HQ, HK, LQ, LK, D, DV = 2, 6, 2, 5, 9, 6, 3


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * scale


def operands(lq: int = LQ, lk: int = LK) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return noise(B, HQ, lq, D), noise(B, HK, lk, D, seed=1), noise(B, HK, lk, DV, seed=2)


def composed(
    q,
    k,
    v,
    *,
    mask=None,
    bias=None,
    scale=None,
    causal=False,
    causal_align="lower_right",
    window=None,
    softcap=None,
    sinks=None,
    alibi_slopes=None,
    dropout_p=0.0,
    keep=None,
):
    """(output, lse) by the formula, all scores at once, as tensors of 4 dimensions."""
    (batch, heads, lq, d), lk = q.shape, k.shape[2]
    k, v = (torch.repeat_interleave(a, heads // a.shape[1], 1) for a in (k, v))
    s = q @ k.transpose(-1, -2) * (d**-0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    offset = lk - lq if causal_align == "lower_right" else 0
    ahead = torch.arange(lk) - torch.arange(lq)[:, None] - offset
    if alibi_slopes is not None:
        s = s - torch.from_numpy(alibi_slopes)[..., None, None] * ahead.abs()
    keys = torch.ones(batch, heads, lq, lk, dtype=torch.bool)
    keys = keys if mask is None else keys & torch.from_numpy(mask)
    keys = keys & (ahead <= 0) if causal else keys
    left, right = window or (None, None)
    keys = keys if left is None else keys & (ahead >= -left)
    keys = keys if right is None else keys & (ahead <= right)
    s = torch.where(keys, s, -INF)
    if sinks is not None:
        s = torch.cat([s, sinks[:, None, None].expand(batch, heads, lq, 1)], -1)
    # A row of nothing has NaN gradients in torch: any other row will do, and is cut off behind.
    nothing = (s == -INF).all(-1, keepdim=True)
    s = torch.where(nothing, 0.0, s)
    p = torch.where(nothing, 0.0, torch.softmax(s, -1))[..., :lk]
    if keep is not None:
        p = p * torch.from_numpy(keep) / (1 - dropout_p)
    lse = torch.where(nothing[..., 0], -INF, torch.logsumexp(s, -1))
    return p @ v, lse


MASK = np.random.default_rng(3).random((B, HQ, LQ, LK)) < 0.6
MASK[0, 1, 2] = False
SCORES = (B, HQ, LQ, LK)
#: One value of each option; every one alone and in pairs with every other.
OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {"mask": MASK},
    "mask of keys": {"mask": MASK[:, :1, :1]},
    "bias": {"bias": noise(*SCORES, seed=4)},
    "bias of heads": {"bias": noise(HQ, 1, LK, seed=5)},
    "scale": {"scale": 0.9},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "upper_left": {"causal_align": "upper_left"},
    "left": {"window": (3, None)},
    "softcap": {"softcap": 0.8},
    "sinks": {"sinks": noise(HQ, seed=6)},
    "alibi": {"alibi_slopes": np.linspace(0.1, 0.6, HQ)},
    "dropout": {"dropout_p": 0.25, "keep": np.random.default_rng(7).random(SCORES) < 0.75},
}
PAIRS = [
    *((a,) for a in OPTIONS),
    # Two values of one option make no pair.
    *(p for p in itertools.combinations(OPTIONS, 2) if not OPTIONS[p[0]].keys() & OPTIONS[p[1]].keys()),
    ("causal", "window", "upper_left"),
    ("mask", "bias", "causal", "softcap", "sinks", "dropout"),
    (),
]


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_options_alone_and_in_pairs(names: tuple[str, ...]) -> None:
    check(operands(), {k: v for name in names for k, v in OPTIONS[name].items()})


@pytest.mark.parametrize(("lq", "lk"), [(1, 1), (1, 9), (8, 3), (5, 5), (3, 0)])
@pytest.mark.parametrize("align", ["lower_right", "upper_left"])
def test_lengths(lq: int, lk: int, align: str) -> None:
    for window in (None, (0, 0), (1, None), (None, 1), (0, 2)):
        for causal in (False, True):
            check(operands(lq, lk), {"causal": causal, "causal_align": align, "window": window})


def check(arrays: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    """Output, lse and every gradient against autograd of the composed formula."""
    leaves = [torch.from_numpy(a).requires_grad_() for a in arrays]
    named = {n: torch.from_numpy(options[n]).requires_grad_() for n in ("bias", "sinks") if n in options}
    out, lse = composed(*leaves, **{**options, **named})
    got, got_lse = reference.attention(*arrays, return_lse=True, **options)
    assert got.shape == tuple(out.shape)
    assert got_lse.shape == tuple(lse.shape)
    np.testing.assert_allclose(got, out.detach(), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(got_lse, lse.detach(), rtol=0, atol=ROUNDING)
    do, dlse = noise(*out.shape, seed=8), noise(*lse.shape, seed=9)
    # Where nothing is left, the lse is a constant.
    inputs = [*leaves, *named.values()]
    wanted = torch.autograd.grad(
        (out, torch.where(lse == -INF, 0.0, lse)),
        inputs,
        (torch.from_numpy(do), torch.from_numpy(dlse)),
        allow_unused=True,
    )
    made = reference.attention_vjp(*arrays, do, dlse=dlse, **options)
    assert (made.bias is None, made.sinks is None) == ("bias" not in options, "sinks" not in options)
    for gradient, leaf, truth in zip([g for g in made if g is not None], inputs, wanted, strict=True):
        assert gradient.shape == tuple(leaf.shape)
        expected = torch.zeros_like(leaf) if truth is None else truth
        np.testing.assert_allclose(gradient, expected.detach(), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_torchs_own(heads: int, causal: bool, masked: bool) -> None:
    q, k, v = noise(B, HQ, LQ, D), noise(B, heads, LK, D, seed=1), noise(B, heads, LK, DV, seed=2)
    leaves = [torch.from_numpy(a).requires_grad_() for a in (q, k, v)]
    mask = MASK | (np.arange(LK) == 0) if masked else None
    if masked and causal:
        combined = torch.from_numpy(mask) & torch.ones(LQ, LK, dtype=torch.bool).tril()
        out = F.scaled_dot_product_attention(*leaves, attn_mask=combined, scale=0.3, enable_gqa=True)
    else:
        out = F.scaled_dot_product_attention(
            *leaves,
            attn_mask=None if mask is None else torch.from_numpy(mask),
            is_causal=causal,
            scale=0.3,
            enable_gqa=True,
        )
    options = {"mask": mask, "causal": causal, "causal_align": "upper_left", "scale": 0.3}
    np.testing.assert_allclose(reference.attention(q, k, v, **options), out.detach(), rtol=0, atol=ROUNDING)
    do = noise(*out.shape, seed=8)
    wanted = torch.autograd.grad(out, leaves, torch.from_numpy(do))
    for a, b in zip(reference.attention_vjp(q, k, v, do, **options), wanted, strict=False):
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING)


def test_gradients_are_those_of_finite_differences() -> None:
    # Nothing of torch and no formula of a gradient: the forward alone.
    q, k, v = (a[:1, :2] for a in operands(3, 4))
    options = {"softcap": 1.5, "window": (2, 0), "bias": noise(3, 4, seed=4), "sinks": np.array([0.3, -0.2])}
    do, dlse = noise(1, 2, 3, DV, seed=8), noise(1, 2, 3, seed=9)
    made = reference.attention_vjp(q, k, v, do, dlse=dlse, **options)
    given = {"q": q, "k": k, "v": v, "bias": options["bias"], "sinks": options["sinks"]}

    def value(name: str, moved: np.ndarray) -> float:
        out, lse = reference.attention(**{**options, **given, name: moved}, return_lse=True)
        return float((out * do).sum() + (lse * dlse).sum())

    step = 2.0**-13
    for name, array in given.items():
        for place in np.ndindex(array.shape):
            at = np.zeros(array.shape)
            at[place] = step
            # Central differences of two steps, the cubic term taken out: fifth derivatives times step^4 are
            # left (below 1e3 here), and the rounding of values of size up to 30.
            one, two = (
                (value(name, array + n * at) - value(name, array - n * at)) / (2 * n * step) for n in (1, 2)
            )
            slope = (4 * one - two) / 3
            error = 1e3 * step**4 + 2 * 30 * U / step
            assert abs(getattr(made, name)[place] - slope) <= error, (name, place)


def test_one_query_to_the_last_place() -> None:
    q, k, v, sink = [[0.5, -1.25]], [[1.0, 2.0], [-3.0, 0.5], [0.25, 4.0]], [[1.0], [3.0], [0.5]], 0.75
    bias, cap, scale = [[0.125, -2.0, 0.5]], 3.0, 0.75
    out, lse = reference.attention(
        q, k, v, bias=bias, softcap=cap, scale=scale, sinks=[sink], return_lse=True
    )
    with mpmath.workdps(50):
        raw = [scale * mpmath.fsum(a * b for a, b in zip(q[0], row, strict=True)) for row in k]
        scores = [cap * mpmath.tanh(s / cap) + b for s, b in zip(raw, bias[0], strict=True)]
        total = mpmath.fsum([*map(mpmath.exp, scores), mpmath.exp(sink)])
        wanted = mpmath.fsum(mpmath.exp(s) * x[0] for s, x in zip(scores, v, strict=True)) / total
        # One rounding to float64; the wide float's are of scores up to 5.
        units = (1.05 if np.finfo(np.longdouble).nmant >= 63 else 100) * U
        assert abs(mpmath.mpf(float(out[0, 0])) - wanted) <= units * wanted
        assert abs(mpmath.mpf(float(lse[0])) - mpmath.log(total)) <= units * abs(mpmath.log(total))


@pytest.mark.parametrize("lead", [(), (HQ,)])
def test_fewer_dimensions(lead: tuple[int, ...]) -> None:
    q, k, v = noise(*lead, LQ, D), noise(*lead, LK, D, seed=1), noise(*lead, LK, DV, seed=2)
    full = [a.reshape(1, *((1,) if not lead else ()), *a.shape) for a in (q, k, v)]
    options = {"bias": noise(LQ, LK, seed=4), "causal": True}
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    wide, wide_lse = reference.attention(*full, return_lse=True, **options)
    np.testing.assert_array_equal(out, wide.reshape(out.shape))
    np.testing.assert_array_equal(lse, wide_lse.reshape(*lead, LQ))
    made = reference.attention_vjp(q, k, v, out, **options)
    for a, b in zip(made[:4], reference.attention_vjp(*full, wide, **options)[:4], strict=True):
        np.testing.assert_array_equal(a, b.reshape(a.shape))
    assert made.bias.shape == (LQ, LK)


def test_scores_of_infinity_and_nan() -> None:
    q, v = [[1.0]], [[1.0], [NAN], [3.0]]
    # -inf takes no part, whether by the bias or by the product; NaN and +inf taint.
    for k, bias, out, lse in (
        ([[0.0], [-INF], [0.0]], [[0.0, 0.0, 0.0]], 2.0, np.log(2)),
        ([[0.0], [NAN], [0.0]], [[0.0, -INF, 0.0]], 2.0, np.log(2)),
        ([[-INF], [-INF], [-INF]], [[0.0, 0.0, 0.0]], 0.0, -INF),
        ([[0.0], [0.0], [INF]], [[0.0, -INF, 0.0]], NAN, INF),
        ([[NAN], [0.0], [0.0]], [[0.0, -INF, 0.0]], NAN, NAN),
    ):
        got, got_lse = reference.attention(q, k, v, bias=bias, return_lse=True)
        np.testing.assert_array_equal(got, [[out]])
        np.testing.assert_array_equal(got_lse, [lse])


def test_masked_keys_and_gradients_of_empty_rows_are_not_read() -> None:
    q, k, v = operands()
    mask = np.broadcast_to(np.arange(LK) < 6, (B, HQ, LQ, LK)).copy()
    mask[1, :, 2] = False
    do, bias = noise(B, HQ, LQ, DV, seed=8), noise(*SCORES, seed=4)
    before = reference.attention(q, k, v, mask=mask, bias=bias)
    gradients = reference.attention_vjp(q, k, v, do, mask=mask, bias=bias)
    k[:, :, 6:], v[:, :, 6:], bias[~mask] = NAN, INF, NAN
    q[1, :, 2], do[1, :, 2] = NAN, INF
    np.testing.assert_array_equal(reference.attention(q, k, v, mask=mask, bias=bias), before)
    for a, b in zip(reference.attention_vjp(q, k, v, do, mask=mask, bias=bias), gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not gradients.q[1, :, 2].any()
    assert not gradients.k[:, :, 6:].any()


def test_dropped_values_are_not_read() -> None:
    q, k, v = operands()
    keep = np.broadcast_to(np.arange(LK) != 3, SCORES)
    v[:, :, 3] = NAN
    for p in (0.5, 1.0):
        assert np.isfinite(reference.attention(q, k, v, dropout_p=p, keep=keep)).all()
    assert not reference.attention(q, k, v, dropout_p=1.0, keep=keep).any()
    with pytest.raises(ValueError, match="needs keep"):
        reference.attention(q, k, v, dropout_p=0.5)


Q, K, V = operands()


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.attention(Q[0, 0, 0], K, V), ValueError, "q has shape"),
        (lambda: reference.attention(Q, K[0], V), ValueError, "k has shape"),
        (lambda: reference.attention(Q, K[:1], V[:1]), ValueError, "k has shape .* batch of 2"),
        (lambda: reference.attention(Q, K[..., :4], V), ValueError, "k has shape .* 6 features"),
        (lambda: reference.attention(Q, K, V[:, :, :4]), ValueError, "v has shape"),
        (lambda: reference.attention(Q * 1j, K, V), TypeError, "q holds"),
        (lambda: reference.attention(Q[:, :3], K, V), ValueError, "k has 2 heads for 3 of q"),
        (lambda: reference.attention(Q, K[:, :0], V[:, :0]), ValueError, "k has 0 heads"),
        (lambda: reference.attention(Q, K, V, mask=MASK[..., :4]), ValueError, "mask has shape"),
        (lambda: reference.attention(Q, K, V, mask=MASK * 1.0), TypeError, "mask holds"),
        (lambda: reference.attention(Q, K, V, bias=np.zeros((3, LK))), ValueError, "bias has shape"),
        (lambda: reference.attention(Q, K, V, scale=INF), ValueError, "scale=inf"),
        (lambda: reference.attention(Q, K, V, scale="1"), TypeError, "scale holds"),
        (lambda: reference.attention(Q, K, V, causal=1), TypeError, "causal=1"),
        (lambda: reference.attention(Q, K, V, causal_align="left"), ValueError, "causal_align='left'"),
        (lambda: reference.attention(Q, K, V, window=3), TypeError, "window=3"),
        (lambda: reference.attention(Q, K, V, window=(1.5, 0)), TypeError, "window="),
        (lambda: reference.attention(Q, K, V, window=(-1, 0)), ValueError, r"window=\(-1, 0\)"),
        (lambda: reference.attention(Q, K, V, softcap=-2.0), ValueError, "softcap=-2.0"),
        (lambda: reference.attention(Q, K, V, softcap=0), ValueError, "softcap=0"),
        (lambda: reference.attention(Q, K, V, sinks=[0.0]), ValueError, "sinks has shape"),
        (lambda: reference.attention(Q, K, V, alibi_slopes=[0.0]), ValueError, "alibi_slopes has shape"),
        (lambda: reference.attention(Q, K, V, dropout_p=1.5), ValueError, "dropout_p=1.5"),
        (lambda: reference.attention_vjp(Q, K, V, Q), ValueError, "do has shape"),
        (lambda: reference.attention_vjp(Q, K, V, 1.0, dlse=Q), ValueError, "dlse has shape"),
        (lambda: reference.attention_vjp(Q, K, V, 1.0, dilation=2), TypeError, "dilation"),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()
