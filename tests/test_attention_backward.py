"""The gradients of attention against the reference, finite differences and autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import (
    INF,
    NAN,
    SHORT,
    chosen,
    every_isa,
    of_reference,
    operands,
    optional_operands,
    pairs,
)
from helpers import assert_same_bits

import online_softmax as osm
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance

#: Errors of float64 sums over some hundred terms of size 10, and of the exponentials of such scores.
CLOSE = 2.0**-53 * 4096


def made_and_right(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any], *, seed: int = 3, **how: Any
) -> tuple[osm.AttentionGradients, reference.AttentionGradients]:
    """Ours and the reference's, with a gradient of the lse."""
    output, lse = osm.attention(q, k, v, return_lse=True, **options, **how)
    rng = np.random.default_rng(seed)
    do = rng.standard_normal(output.shape).astype(q.dtype)
    dlse = rng.standard_normal(lse.shape)
    with_bias = "bias" in options
    made = osm.attention_backward(do, q, k, v, output, lse, dlse=dlse, bias_grad=with_bias, **options, **how)
    shape = (*q.shape[:-1], k.shape[-2])
    return made, reference.attention_vjp(q, k, v, do, dlse=dlse, **of_reference(options, shape))


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize(
    ("queries", "keys", "d", "dv"),
    [
        (1, 1, 1, 1), (1, 2, 3, 5), (5, 7, 8, 8), (47, 49, 16, 17), (48, 64, 64, 64), (49, 65, 65, 33),
        (97, 31, 40, 128), (3, 300, 128, 72), (2, 130, 256, 1), (13, 17, 1, 256),
    ],
)  # fmt: skip
def test_sizes(isa: str, dtype: str, queries: int, keys: int, d: int, dv: int) -> None:
    q, k, v = operands(2, 1, queries, keys, d, dv, dtype)
    output, lse = osm.attention(q, k, v, return_lse=True, isa=isa)
    do = np.random.default_rng(5).standard_normal(output.shape).astype(q.dtype)
    made = osm.attention_backward(do, q, k, v, output, lse, isa=isa)
    right = reference.attention_vjp(q, k, v, do)
    truth = {"dq": right.q, "dk": right.k, "dv": right.v}
    allowed = tolerance("attention_grad", dtype, {"q": q, "k": k, "v": v, "do": do}, {}, truth)
    for got, name in ((made.q, "dq"), (made.k, "dk"), (made.v, "dv")):
        assert got.dtype == q.dtype
        assert got.shape == truth[name].shape
        assert (np.abs(got.astype(np.float64) - truth[name]) <= allowed[name]).all(), name
    assert made.bias is None
    assert made.sinks is None


#: Around tiles of 48 queries, folds of 4096, chunks of 128 keys of 64 features, segments of 1024, panels.
@pytest.mark.parametrize(
    ("queries", "keys", "d", "dv"),
    [
        *((3, keys, 8, 8) for keys in (15, 31, 33, 63, 65, 1023, 1024, 1025, 2049)),
        *((50, keys, 64, 9) for keys in (127, 128, 129, 257)),
        *((queries, 5, 3, 3) for queries in (95, 96, 97, 4095, 4096, 4097)),
        *((3, 7, d, 3) for d in (15, 17, 33, 127, 129, 255, 257, 1024)),
        *((49, 7, 3, dv) for dv in (15, 17, 33, 127, 129, 255, 257, 1024)),
    ],
)  # fmt: skip
def test_sizes_around_blocks(queries: int, keys: int, d: int, dv: int) -> None:
    q, k, v = operands(1, 1, queries, keys, d, dv, "float64", batch=1)
    made, right = made_and_right(q, k, v, {"scale": 1 / d**0.5})
    for got, truth in zip(made[:3], right[:3], strict=True):
        np.testing.assert_allclose(got, truth, rtol=0, atol=CLOSE * max(1, queries // 64))


@pytest.mark.parametrize("names", pairs())
def test_options_alone_and_in_pairs(names: tuple[str, ...]) -> None:
    made, right = made_and_right(*optional_operands("float64"), chosen(names))
    for name in ("q", "k", "v", "bias", "sinks"):
        got, truth = getattr(made, name), getattr(right, name)
        assert (got is None) == (truth is None)
        if got is not None:
            assert got.shape == truth.shape
            np.testing.assert_allclose(got, truth, rtol=0, atol=CLOSE, err_msg=name)


@every_isa
def test_keys_and_queries_past_one_segment(isa: str) -> None:
    q, k, v = operands(2, 2, 40, 2300, 8, 4, "float64", batch=1)  # three segments of keys
    made, right = made_and_right(q, k, v, {"causal": True}, isa=isa)
    for got, truth in zip(made[:3], right[:3], strict=True):
        np.testing.assert_allclose(got, truth, rtol=0, atol=CLOSE)
    q, k, v = operands(8, 1, 600, 20, 4, 4, "float64", batch=1)  # 4800 rows share each key
    made, right = made_and_right(q, k, v, {}, isa=isa)
    np.testing.assert_allclose(made.k, right.k, rtol=0, atol=CLOSE * 16)


@pytest.mark.parametrize(
    "shape",
    [(2, 4, 9, 21), (9, 21), (1, 4, 9, 21), (2, 1, 9, 21), (1, 1, 1, 21), (4, 1, 1), (2, 1, 9, 1), ()],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gradient_of_a_bias_has_its_shape(shape: tuple[int, ...], dtype: str) -> None:
    bias = np.random.default_rng(9).standard_normal(shape)
    made, right = made_and_right(*optional_operands(dtype), {"bias": bias})
    assert made.bias is not None
    assert right.bias is not None
    assert made.bias.shape == shape
    # A sum of up to 1512 gradients of size 1, each within some 100 roundings of its format.
    atol = CLOSE if dtype == "float64" else 2.0**-24 * 128
    np.testing.assert_allclose(made.bias, right.bias, rtol=0, atol=atol * max(1, 1512 // bias.size // 8))


def test_finite_differences_of_the_forward() -> None:
    q, k, v = operands(2, 1, 5, 7, 3, 2, "float64", batch=1)
    options: dict[str, Any] = {
        "causal": True,
        "softcap": 2.0,
        "dropout_p": 0.2,
        "sinks": np.array([0.1, -0.2]),
    }
    made, _ = made_and_right(q, k, v, options)
    rng = np.random.default_rng(3)
    do, dlse = rng.standard_normal((1, 2, 5, 2)), rng.standard_normal((1, 2, 5))

    def value(**changed: Any) -> float:
        given = {"q": q, "k": k, "v": v} | options | changed
        output, lse = osm.attention(given.pop("q"), given.pop("k"), given.pop("v"), return_lse=True, **given)
        return float((output * do).sum() + (lse * dlse).sum())

    step = 1e-5
    for name, array in {"q": q, "k": k, "v": v, "sinks": options["sinks"]}.items():
        found = np.empty(array.shape)
        for place in np.ndindex(array.shape):
            up, down = array.copy(), array.copy()
            up[place] += step
            down[place] -= step
            found[place] = (value(**{name: up}) - value(**{name: down})) / (2 * step)
        # A third derivative of up to 10 makes step**2 * 10; rounding makes 1e-15 * 100 / step.
        np.testing.assert_allclose(getattr(made, name), found, rtol=0, atol=2e-8, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_the_same_as_autograd(causal: bool) -> None:
    q, k, v = operands(4, 4, 33, 33, 16, 16)
    tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
    do = np.random.default_rng(4).standard_normal(q.shape).astype(np.float32)
    theirs = torch.autograd.grad(out, tensors, torch.from_numpy(do))
    output, lse = osm.attention(q, k, v, causal=causal, return_lse=True)
    ours = osm.attention_backward(do, q, k, v, output, lse, causal=causal)
    truth = {"dq": ours.q, "dk": ours.k, "dv": ours.v}
    arrays = {"q": q, "k": k, "v": v, "do": do}
    allowed = tolerance("attention_grad", "float32", arrays, {"causal": causal}, truth)
    for mine, other, name in zip(ours[:3], theirs, truth, strict=True):
        assert (np.abs(mine - other.numpy()) <= 2 * allowed[name]).all(), name


@every_isa
def test_what_nobody_may_look_at_leaves_no_trace(isa: str) -> None:
    q, k, v = operands(2, 2, 50, 40, 8, 8)
    mask = np.random.default_rng(3).random((2, 1, 50, 40)) < 0.5
    mask[..., 30:] = False
    mask[:, :, 7] = False
    output, lse = osm.attention(q, k, v, mask=mask, return_lse=True, isa=isa)
    do = np.random.default_rng(6).standard_normal(output.shape).astype(np.float32)
    clean = osm.attention_backward(do, q, k, v, output, lse, mask=mask, isa=isa)
    assert (clean.q[:, :, 7] == 0).all()
    assert (clean.k[:, :, 30:] == 0).all()
    k[:, :, 30:], v[:, :, 30:] = NAN, INF
    q[:, :, 7], do[:, :, 7] = NAN, INF
    poisoned = osm.attention_backward(do, q, k, v, output, lse, mask=mask, isa=isa)
    for got, truth in zip(poisoned[:3], clean[:3], strict=True):
        assert_same_bits(got, truth)
    # A value that is NaN reaches the gradients of the queries that see it, and the keys that these see.
    v[0, 0, 5] = NAN
    output, lse = osm.attention(q, k, v, mask=mask, return_lse=True, isa=isa)
    got = osm.attention_backward(do, q, k, v, output, lse, mask=mask, isa=isa)
    sees = mask[0, 0, :, 5]
    np.testing.assert_array_equal(np.isnan(got.q[0, 0]).all(axis=-1), sees)
    np.testing.assert_array_equal(np.isnan(got.k[0, 0]).all(axis=-1), mask[0, 0][sees].any(axis=0))
    np.testing.assert_array_equal(np.isnan(got.v[0, 0]).any(axis=-1), False)
    for whole in (got.q[1], got.k[1], got.q[0, 1], got.k[0, 1]):
        assert np.isfinite(whole).all()


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
def test_bits_depend_on_no_thread_count(isa: str, dtype: str) -> None:
    q, k, v = operands(2, 1, 30, 3100, 8, 8, dtype, batch=1)
    output, lse = osm.attention(q, k, v, return_lse=True, isa=isa)
    do = np.random.default_rng(8).standard_normal(output.shape).astype(q.dtype)
    bias = np.random.default_rng(9).standard_normal((30, 3100))
    options: dict[str, Any] = {"bias": bias, "bias_grad": True, "isa": isa}
    whole = osm.attention_backward(do, q, k, v, output, lse, threads=1, **options)
    for threads in (2, 3, 7):
        other = osm.attention_backward(do, q, k, v, output, lse, threads=threads, **options)
        for got, truth in zip(other[:4], whole[:4], strict=True):
            assert_same_bits(got, truth)


def test_any_strides_and_ranks() -> None:
    q, k, v = operands(4, 2, 10, 12, 6, 8)
    output, lse = osm.attention(q, k, v, return_lse=True)
    do = np.random.default_rng(8).standard_normal(output.shape).astype(np.float32)
    whole = osm.attention_backward(do, q, k, v, output, lse)
    moved = [np.ascontiguousarray(np.moveaxis(a, 1, 2)) for a in (do, q, k, v, output)]
    bshd = osm.attention_backward(*moved, np.moveaxis(lse, 1, 2), layout="BSHD")
    for got, truth in zip(bshd[:3], whole[:3], strict=True):
        assert_same_bits(np.moveaxis(got, 2, 1), truth)
    one = osm.attention_backward(do[1], q[1], k[1], v[1], output[1], lse[1])
    wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in (do, q, k, v, output)]
    for got, strided, truth in zip(one[:3], osm.attention_backward(*wide, lse)[:3], whole[:3], strict=True):
        assert_same_bits(got, truth[1])
        assert_same_bits(strided, truth)


def test_sequences_side_by_side_and_lengths() -> None:
    rng = np.random.default_rng(11)
    q, k, v = (rng.standard_normal((n, heads, 6)) for n, heads in ((12, 4), (25, 2), (25, 2)))
    starts_q, starts_k = np.array([0, 3, 3, 10]), np.array([0, 9, 11, 20])
    bias = rng.standard_normal((4, 12, 25))
    options: dict[str, Any] = {"causal": True, "bias": bias, "sinks": rng.standard_normal(4)}
    starts: dict[str, Any] = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    output, lse = osm.attention(q, k, v, return_lse=True, **starts, **options)
    do, dlse = rng.standard_normal(output.shape), rng.standard_normal(lse.shape)
    do[10:], q[10:], k[20:] = NAN, NAN, NAN
    made = osm.attention_backward(do, q, k, v, output, lse, dlse=dlse, bias_grad=True, **starts, **options)
    right = reference.varlen_attention_vjp(q, k, v, starts_q, starts_k, do, dlse=dlse, **options)
    for name in ("q", "k", "v", "bias", "sinks"):
        np.testing.assert_allclose(
            getattr(made, name), getattr(right, name), rtol=0, atol=CLOSE, err_msg=name
        )
    q, k, v = operands(2, 2, 4, 9, 5, 5, "float64")
    lengths = np.array([3, 9])
    mask = np.arange(9) < lengths[:, None, None, None]
    output, lse = osm.attention(q, k, v, seqlens_k=lengths, return_lse=True)
    short = osm.attention_backward(output, q, k, v, output, lse, seqlens_k=lengths)
    masked = osm.attention_backward(output, q, k, v, output, lse, mask=mask)
    for got, truth in zip(short[:3], masked[:3], strict=True):
        np.testing.assert_allclose(got, truth, rtol=0, atol=CLOSE)


def test_empty_arrays() -> None:
    q, k, v = operands(2, 1, 4, 3, 8, 5)
    for cut_q, cut_k in (((0, slice(None)), slice(None)), ((slice(None), slice(0)), slice(None))):
        a, b, c = q[:, :, cut_q[1]][: None if cut_q[0] else 2], k[:, :, cut_k], v[:, :, cut_k]
        output, lse = osm.attention(a, b, c, return_lse=True)
        made = osm.attention_backward(output, a, b, c, output, lse)
        assert made.q.shape == a.shape
        assert (made.k == 0).all() or a.shape[2]
    output, lse = osm.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    made = osm.attention_backward(output, q, k[:, :, :0], v[:, :, :0], output, lse)
    assert (made.q == 0).all()
    assert made.v.shape == (2, 1, 0, 5)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"do": np.zeros((2, 4, 3, 7), np.float32)},
            ValueError,
            r"do has shape \(2, 4, 3, 7\): \(2, 4, 3, 8\)",
        ),
        ({"output": np.zeros((4, 3, 8), np.float32)}, ValueError, r"output has shape \(4, 3, 8\)"),
        ({"lse": np.zeros((2, 4), np.float32)}, ValueError, r"lse has shape \(2, 4\): \(2, 4, 3\)"),
        ({"dlse": np.zeros((2, 4, 1), np.float32)}, ValueError, "dlse has shape"),
        ({"bias_grad": True}, ValueError, "bias_grad is True without a bias"),
        ({"bias_grad": 1}, TypeError, "bias_grad"),
        (
            {"k": np.zeros((2, 2, 5, 8), np.int8), "v": np.zeros((2, 2, 5, 8), np.int8)},
            TypeError,
            "k is int8",
        ),
        ({"softcap": -1.0}, ValueError, "softcap is -1"),
        ({"do": np.zeros((2, 4, 3, 8), complex)}, TypeError, "do is complex128"),
    ],
)
def test_wrong_calls_name_what_is_wrong(change: dict[str, Any], error: type[Exception], words: str) -> None:
    call: dict[str, Any] = {
        "do": np.zeros((2, 4, 3, 8), np.float32), "q": np.zeros((2, 4, 3, 8), np.float32),
        "k": np.zeros((2, 2, 5, 8), np.float32), "v": np.zeros((2, 2, 5, 8), np.float32),
        "output": np.zeros((2, 4, 3, 8), np.float32), "lse": np.zeros((2, 4, 3), np.float32),
    } | change  # fmt: skip
    given = [call.pop(name) for name in ("do", "q", "k", "v", "output", "lse")]
    with pytest.raises(error, match=words):
        osm.attention_backward(*given, **call)
