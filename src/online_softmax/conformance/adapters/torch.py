"""PyTorch: called eagerly, through torch.compile, or by a further implementation of its own.

Variants: "" (eager), "compile" (TorchInductor), "chunked" (linear_cross_entropy in chunks), "flex"
(flex_attention).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Final

from ...extras import require
from ..cases import NotOffered
from . import Adapter, Library, versions_of

VARIANTS: Final = ("", "compile", "chunked", "flex")
#: A compiled call takes seconds for each shape: these operations in these formats, and no gradients.
COMPILED: Final = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
COMPILED_FORMATS: Final = frozenset({"float32", "bfloat16"})
_NO_KERNEL: Final = r"not implemented for '(Half|BFloat16|Double|Float8_\w+)'|not support backward on CPU"
_MANY: Final = 1_000_000


def load(variant: str) -> Adapter:
    """The adapter of a name in VARIANTS. MissingExtra where PyTorch is not installed, ValueError for another
    name."""
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} of torch: one of {', '.join(VARIANTS[1:])} would do")
    require("torch", "torch", "the subject torch")
    return Library(
        name=f"torch:{variant}" if variant else "torch",
        framework="torch",
        versions=versions_of("torch"),
        functions=_functions(variant),
        refusals=(NotImplementedError,),
        refusal=_NO_KERNEL,
        formats=COMPILED_FORMATS if variant == "compile" else None,
        differentiable=variant != "compile",
        lacks=f"not among the functions of torch:{variant}" if variant else "PyTorch has no such function",
    )


def _functions(variant: str) -> dict[str, Callable[..., Any]]:
    eager: tuple[Callable[..., Any], ...] = (
        softmax, log_softmax, logsumexp, softmax_topk, logaddexp, logcumsumexp, cross_entropy,
        linear_cross_entropy, attention, decode_attention, varlen_attention,
    )  # fmt: skip
    named = {f.__name__: f for f in eager}
    if variant == "compile":
        return {name: _compiled(named[name]) for name in COMPILED}
    if variant == "chunked":
        return {"linear_cross_entropy": chunked_linear_cross_entropy}
    return {"attention": flex_attention} if variant == "flex" else named


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    # One compilation for each shape, however many shapes there are: the default limit would fall back to
    # eager.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _MANY
    made = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return made(*args, **kwargs)

    return call


def softmax(x: Any, axis: Any, where: Any = None) -> Any:
    """torch.softmax; torch.masked.softmax with a mask."""
    import torch
    import torch.masked

    if where is None:
        return torch.softmax(x, axis)
    return torch.masked.softmax(x, axis, mask=where)


def log_softmax(x: Any, axis: Any, where: Any = None) -> Any:
    """torch.log_softmax; torch.masked.log_softmax with a mask."""
    import torch
    import torch.masked

    if where is None:
        return torch.log_softmax(x, axis)
    return torch.masked.log_softmax(x, axis, mask=where)


def logsumexp(x: Any, axis: Any, keepdims: Any, where: Any = None) -> Any:
    """torch.logsumexp; torch.masked.logsumexp with a mask."""
    import torch
    import torch.masked

    if where is None:
        return torch.logsumexp(x, axis, keepdim=keepdims)
    return torch.masked.logsumexp(x, axis, keepdim=keepdims, mask=where)


def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
    """torch.topk of torch.softmax, as a sampler does it."""
    import torch

    values, indices = torch.topk(torch.softmax(x, axis), k, dim=axis)
    return values, indices


def logaddexp(a: Any, b: Any) -> Any:
    """torch.logaddexp."""
    import torch

    return torch.logaddexp(a, b)


def logcumsumexp(x: Any, axis: Any) -> Any:
    """torch.logcumsumexp."""
    import torch

    return torch.logcumsumexp(x, axis)


def cross_entropy(
    logits: Any, targets: Any, ignore_index: Any, label_smoothing: Any, reduction: Any, weight: Any = None
) -> Any:
    """torch.nn.functional.cross_entropy."""
    from torch.nn import functional

    return functional.cross_entropy(
        logits,
        targets,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    targets: Any,
    ignore_index: Any,
    label_smoothing: Any,
    reduction: Any,
    bias: Any = None,
    chunks: Any = None,
) -> Any:
    """torch.nn.functional.linear_cross_entropy, from version 2.13 on."""
    from torch.nn import functional

    if not hasattr(functional, "linear_cross_entropy"):
        raise NotOffered("this version of PyTorch has none")
    return functional.linear_cross_entropy(
        hidden,
        weight,
        targets,
        linear_bias=bias,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        options=chunks,
    )


def chunked_linear_cross_entropy(
    hidden: Any,
    weight: Any,
    targets: Any,
    ignore_index: Any,
    label_smoothing: Any,
    reduction: Any,
    bias: Any = None,
) -> Any:
    """The same with options=LinearCrossEntropyOptions(): chunks, gradients made in the forward pass."""
    import torch

    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        raise NotOffered("this version of PyTorch has none")
    chunks = torch.nn.LinearCrossEntropyOptions()
    return linear_cross_entropy(
        hidden, weight, targets, ignore_index, label_smoothing, reduction, bias=bias, chunks=chunks
    )


def attention(
    q: Any, k: Any, v: Any, scale: Any, causal: Any, causal_align: Any, mask: Any = None, bias: Any = None
) -> Any:
    """torch.nn.functional.scaled_dot_product_attention, and torch.nn.attention.bias for masks aligned lower
    right."""
    from torch.nn import functional
    from torch.nn.attention.bias import causal_lower_right

    if mask is not None and bias is not None:
        raise NotOffered("attn_mask is one of a bool mask and added scores")
    attn_mask = bias if mask is None else mask
    lower_right = causal and causal_align == "lower_right" and q.shape[-2] != k.shape[-2]
    if lower_right:
        if attn_mask is not None:
            raise NotOffered("attn_mask is one of causal_lower_right and a tensor")
        attn_mask = causal_lower_right(q.shape[-2], k.shape[-2])
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        is_causal=causal and not lower_right,
        scale=scale,
        enable_gqa=q.shape[-3] != k.shape[-3],
    )


def decode_attention(q: Any, k_cache: Any, v_cache: Any, scale: Any) -> Any:
    """torch.nn.functional.scaled_dot_product_attention over the whole cache: it takes no lengths."""
    return attention(q, k_cache, v_cache, scale, False, "lower_right")


def varlen_attention(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, scale: Any, causal: Any
) -> Any:
    """scaled_dot_product_attention of jagged nested tensors; torch.nn.attention.varlen has no CPU kernel."""
    from torch import nested
    from torch.nn import functional

    if causal:
        raise NotOffered("is_causal of nested tensors aligns upper left")
    if q.shape[-2] != k.shape[-2]:
        raise NotOffered("enable_gqa does not take nested tensors")
    if any(len(t) != cu[-1] for t, cu in ((q, cu_seqlens_q), (k, cu_seqlens_k))):
        raise NotOffered("nested tensors have no rows beyond their last sequence")
    queries = nested.nested_tensor_from_jagged(q, cu_seqlens_q).transpose(1, 2)
    keys, values = (nested.nested_tensor_from_jagged(t, cu_seqlens_k).transpose(1, 2) for t in (k, v))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
        o = functional.scaled_dot_product_attention(queries, keys, values, scale=scale)
    return o.transpose(1, 2).values()


def flex_attention(
    q: Any,
    k: Any,
    v: Any,
    scale: Any,
    causal: Any,
    causal_align: Any,
    window: Any,
    softcap: Any,
    mask: Any = None,
    bias: Any = None,
) -> Any:
    """torch.nn.attention.flex_attention: softcap and bias in score_mod, masks, causality and windows in a
    block mask."""
    import torch
    from torch.nn.attention import flex_attention as flex

    queries, keys = q.shape[-2], k.shape[-2]
    shift = keys - queries if causal_align == "lower_right" else 0
    left, right = window if window is not None else (None, None)
    shape = (*q.shape[:2], queries, keys)
    allowed, added = (None if t is None else t.expand(shape) for t in (mask, bias))

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added[b, h, i, j]

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        keep = i >= 0
        for limit in (
            j <= i + shift if causal else None,
            None if allowed is None else allowed[b, h, i, j],
            None if left is None else j >= i + shift - left,
            None if right is None else j <= i + shift + right,
        ):
            keep = keep if limit is None else keep & limit
        return keep

    masked = causal or mask is not None or window is not None
    blocks = flex.create_block_mask(mask_mod, *shape, device=q.device) if masked else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        o, aux = flex.flex_attention(
            q,
            k,
            v,
            score_mod=score_mod if softcap is not None or bias is not None else None,
            block_mask=blocks,
            scale=scale,
            enable_gqa=q.shape[-3] != k.shape[-3],
            return_aux=flex.AuxRequest(lse=True),
        )
    return o, aux.lse
