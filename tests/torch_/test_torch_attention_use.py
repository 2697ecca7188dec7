"""Attention of tensors in use: memory, threads, autocast, meta tensors, errors."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from attention_torch_cases import GROUPS, HEADS, KEYS, QUERIES, operands, options, strided

import online_softmax.torch as ost

OPTIONS = options()

# Memory, threads, modes


def test_nothing_is_kept_after_use() -> None:
    q, k, v = operands(grad=True)
    held = [t.clone() for t in (q, k, v)]
    watched = [weakref.ref(t) for t in held]
    gc.disable()
    try:
        output = ost.attention(*held)
        watched.append(weakref.ref(output))
        total = output.sum()
        held.clear()
        del output
        total.backward()
        del total
        assert all(ref() is None for ref in watched)
    finally:
        gc.enable()


def test_a_second_backward_and_a_change_in_place_are_refused() -> None:
    q, k, v = operands(grad=True)
    output = ost.attention(q, k, v)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.sum().backward()
    values = v.detach().clone()
    output = ost.attention(q, k, values)
    values.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_the_number_of_threads_does_not_show() -> None:
    tensors = [torch.randn(2, 4, 300, 32, requires_grad=True) for _ in "qkv"]
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            output = ost.attention(*tensors, causal=True)
            found.append((output, *torch.autograd.grad(output.sum(), tensors)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_backward_from_several_threads() -> None:
    q, k, v = operands(grad=True)
    output = ost.attention(q, k, v)
    wanted = torch.autograd.grad(output.sum(), (q, k, v), retain_graph=True)
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        found[i] = torch.autograd.grad(output.sum(), (q, k, v), retain_graph=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        assert all(torch.equal(a, b) for a, b in zip(each, wanted, strict=True))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_anomaly_mode_names_nothing_wrong() -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        q, k, v = operands(grad=True)
        ost.attention(q, k, v, mask=OPTIONS["mask"]["mask"]).sum().backward()
        assert q.grad is not None
        assert bool(torch.isfinite(q.grad).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_torch(dtype: torch.dtype) -> None:
    q, k, v = operands(torch.float32, grad=True)
    k, v = (t.detach().repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
    bias = torch.randn(QUERIES, KEYS)
    narrow = [t.detach().to(dtype) for t in (q, k, v, bias)]
    with torch.autocast("cpu", dtype):
        output = ost.attention(q, k, v, bias=bias)
        peer = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
        mixed = ost.attention(q.to(dtype), k, v, bias=bias)
    assert output.dtype == peer.dtype == dtype
    assert torch.equal(output, ost.attention(*narrow[:3], bias=narrow[3]))
    assert torch.equal(mixed, output)
    output.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32
    assert ost.attention(*(t.double() for t in (q, k, v))).dtype == torch.float64


def test_meta_tensors_give_shapes_and_strides() -> None:
    q, k, v = operands(torch.bfloat16)
    turned = strided(q, "transposed")
    for of in (q, turned):
        real = ost.attention(of, k, v, return_lse=True)
        meta = ost.attention(*(t.to("meta") for t in (of, k, v)), return_lse=True)
        for a, b in zip(real, meta, strict=True):
            assert b.device.type == "meta"
            assert (a.shape, a.stride(), a.dtype) == (
                b.shape,
                b.stride(),
                b.dtype,
            )


# Errors


def wrong() -> dict[str, tuple[type[Exception], str, dict[str, Any]]]:
    q, _, v = operands(torch.float32)
    ones = torch.ones(QUERIES, KEYS)
    return {
        "array": (TypeError, r"k is a numpy\.ndarray", {"k": np.zeros((2, 2, 7, 6))}),
        "integers": (TypeError, r"q is int64", {"q": q.long()}),
        "complex": (TypeError, r"q is complex64", {"q": q.to(torch.complex64)}),
        "format": (TypeError, r"v is float64 and q is float32", {"v": v.double()}),
        "sparse": (TypeError, r"q has layout torch\.sparse_coo", {"q": q.to_sparse()}),
        "device": (RuntimeError, r"k lies on meta", {"k": operands(torch.float32)[1].to("meta")}),
        "mask's device": (RuntimeError, r"mask lies on meta", {"mask": ones.bool().to("meta")}),
        "heads": (ValueError, r"q has 3 heads and k 2", {"q": q[:, :3]}),
        "batches": (ValueError, r"batches of 1, 2 and 2", {"q": q[:1]}),
        "features": (ValueError, r"k has 6 features and q 5", {"q": q[..., :5]}),
        "values": (ValueError, r"v has 6 values for 7 keys", {"v": v[:, :, 1:]}),
        "rank": (ValueError, r"k has 4 dimensions: 3 like q", {"q": q[0]}),
        "mask": (TypeError, r"mask is torch\.float32: bool would do", {"mask": ones}),
        "mask's shape": (ValueError, r"mask of shape \(5, 6\)", {"mask": ones[:, 1:].bool()}),
        "bias": (TypeError, r"bias is bool", {"bias": ones.bool()}),
        "bias's shape": (ValueError, r"bias of shape \(4, 7\)", {"bias": ones[1:]}),
        "scale": (TypeError, r"scale is '1'", {"scale": "1"}),
        "infinite": (ValueError, r"scale is inf", {"scale": float("inf")}),
        "causal": (TypeError, r"causal=1 is a int", {"causal": 1}),
        "align": (ValueError, r"causal_align is 'left'", {"causal_align": "left"}),
        "window": (ValueError, r"window is \(-1, 2\)", {"window": (-1, 2)}),
        "softcap": (ValueError, r"softcap is 0", {"softcap": 0}),
        "sinks": (ValueError, r"sinks has shape \(5,\)", {"sinks": torch.zeros(5)}),
        "dropout": (ValueError, r"dropout_p is 1", {"dropout_p": 1.0}),
        "seed": (ValueError, r"seed is -1", {"seed": -1, "dropout_p": 0.1}),
        "seed's kind": (TypeError, r"seed is a tensor of torch\.float32", {"seed": torch.zeros(())}),
        "lengths": (TypeError, r"seqlens_k is float32", {"seqlens_k": torch.zeros(2)}),
        "too long": (ValueError, r"seqlens_k\[1\] is 8", {"seqlens_k": torch.tensor([1, 8])}),
        "half a call": (ValueError, r"cu_seqlens_k is given without", {"cu_seqlens_k": torch.tensor([0, 2])}),
        "layout": (ValueError, r"layout is 'BDSH'", {"layout": "BDSH"}),
        "lse": (TypeError, r"return_lse=1", {"return_lse": 1}),
        "slopes": (
            NotImplementedError, r"alibi_slopes requires a gradient",
            {"alibi_slopes": torch.ones(HEADS, requires_grad=True)},
        ),
        "unscaled": (
            ValueError, r"k_scale is not given: int8",
            {"k": torch.ones(2, 2, 7, 6).to(torch.int8), "v": torch.ones(2, 2, 7, 3).to(torch.int8)},
        ),
    }  # fmt: skip


WRONG = wrong()


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_argument(name: str) -> None:
    kind, match, given = WRONG[name]
    three = dict(zip("qkv", operands(torch.float32), strict=True))
    with pytest.raises(kind, match=match):
        ost.attention(**(three | given))
