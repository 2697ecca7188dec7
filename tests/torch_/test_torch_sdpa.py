"""scaled_dot_product_attention by PyTorch's own signature: its rules, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as peer

import online_softmax.torch as ost
from online_softmax.frontends.torch.sdpa import unserved

ours = ost.scaled_dot_product_attention


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)


def same(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, **options: Any) -> torch.Tensor:
    """Output and gradients are those of PyTorch's reference, in float64: some ten roundings near 1."""
    tensors = [t.detach().requires_grad_() for t in (q, k, v)]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.detach().requires_grad_()
        tensors.append(mask)
    found = ours(*tensors[:3], mask, **options)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = peer(*tensors[:3], mask, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    above = normal(*found.shape, seed=9)
    for a, b in zip(*(torch.autograd.grad(t, tensors, above) for t in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    return found


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)])
def test_ranks(leading: tuple[int, ...]) -> None:
    q, k, v = normal(*leading, 4, 5), normal(*leading, 6, 5, seed=1), normal(*leading, 6, 7, seed=2)
    same(q, k, v)
    same(q, k, v, is_causal=True)
    same(q, k, v, scale=0.3)
    same(q, k, v, torch.rand(4, 6, generator=torch.Generator().manual_seed(1)) > 0.4)
    same(q, k, v, normal(4, 6))
    same(q, k, v, normal(*leading, 4, 6))
    same(q, k, v, normal(*leading[:-1], *(1 for _ in leading[-1:]), 1, 6))


SHAPES = [
    ((2, 1, 4, 5), (1, 3, 6, 5), (2, 3, 6, 5)),
    ((2, 3, 4, 5), (1, 1, 6, 5), (1, 3, 6, 2)),
    ((1, 3, 4, 5), (2, 3, 6, 5), (2, 1, 6, 5)),
    ((4, 5), (2, 3, 6, 5), (2, 3, 6, 5)),
    ((2, 3, 4, 5), (6, 5), (6, 2)),
    ((3, 4, 5), (2, 3, 6, 5), (3, 6, 5)),
    ((2, 1, 3, 4, 5), (1, 2, 3, 6, 5), (3, 6, 5)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_what_lies_before_length_broadcasts(shapes: Any) -> None:
    q, k, v = (normal(*s, seed=i) for i, s in enumerate(shapes))
    found = same(q, k, v)
    same(q, k, v, normal(*found.shape[:-1], 6))
    same(q, k, v, normal(*found.shape[:-1], 6) > 0.5 if found.ndim < 4 else normal(1, 3, 1, 6) > -1)


@pytest.mark.parametrize(("heads", "groups"), [(6, 3), (6, 1), (4, 4)])
def test_grouped_heads(heads: int, groups: int) -> None:
    q, k, v = normal(2, heads, 4, 5), normal(2, groups, 6, 5, seed=1), normal(2, groups, 6, 5, seed=2)
    same(q, k, v, enable_gqa=True)
    same(q, k, v, normal(2, 1, 4, 6), enable_gqa=True)
    same(q[0], k[0], v[0], enable_gqa=True)


def test_a_query_that_sees_nothing_gets_zero() -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4, seed=1), normal(1, 2, 5, 4, seed=2)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    for given in (mask, torch.zeros(3, 5, dtype=torch.float64).masked_fill(~mask, -torch.inf)):
        found = ours(q, k, v, given)
        assert torch.equal(found[:, :, 1], torch.zeros(1, 2, 4, dtype=torch.float64))
        torch.testing.assert_close(found, peer(q, k, v, given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 4, 0), (0, 3, 4, 4), (2, 0, 4, 4)])
def test_empty(shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    q, k = normal(batch, heads, queries, 5), normal(batch, heads, keys, 5)
    found = ours(q, k, k)
    assert found.shape == q.shape
    assert torch.equal(found, torch.zeros_like(q))
    assert ours(q[:1], k, k).shape == q.shape


def test_memory_layout() -> None:
    x = normal(2, 9, 3, 8).transpose(1, 2)
    assert ours(x, x, x).stride() == peer(x, x, x).stride() == x.stride()
    y = x.contiguous()
    assert ours(y, y, y).stride() == peer(y, y, y).stride() == y.stride()


def test_dropout() -> None:
    q = normal(2, 3, 40, 8).requires_grad_()
    torch.manual_seed(0)
    first, second = ours(q, q, q, dropout_p=0.5), ours(q, q, q, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(ours(q, q, q, dropout_p=0.5), first)
    assert not torch.equal(first, second)
    nothing = ours(q, q, q, dropout_p=1.0)
    assert torch.equal(nothing, torch.zeros_like(nothing))
    assert torch.equal(torch.autograd.grad(nothing.sum(), q)[0], torch.zeros_like(q))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masks_of_float32_go_with_any_format(dtype: torch.dtype) -> None:
    q, mask = normal(1, 2, 4, 8, dtype=dtype), normal(4, 4, dtype=torch.float32)
    wanted = peer(q.double(), q.double(), q.double(), mask.double())
    bound = 2 * torch.finfo(dtype).eps * float(wanted.abs().max()) + 16 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(ours(q, q, q, mask).double(), wanted, rtol=0, atol=bound)


def refused() -> dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]]:
    q, k, v = normal(2, 6, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 5)
    whole = (q, q, q)
    return {
        "heads": (RuntimeError, r"enable_gqa", (q, k, v), {}),
        "groups": (RuntimeError, r"enable_gqa", (q[:, :4], k, v), {"enable_gqa": True}),
        "features": (RuntimeError, r"as many features", (q, q[..., 1:], q), {}),
        "values": (RuntimeError, r"as many values", (q, q, q[:, :, 1:]), {}),
        "one axis": (RuntimeError, r"query has 1 dimensions", (q[0, 0, 0], k, v), {}),
        "formats": (RuntimeError, r"one format would do", (q, q.float(), q), {}),
        "devices": (RuntimeError, r"key lies on meta", (q, q.to("meta"), q), {}),
        "mask": (RuntimeError, r"attn_mask has shape \(3, 4\)", (*whole, normal(3, 4)), {}),
        "mask's rank": (RuntimeError, r"attn_mask has shape", (*whole, normal(1, 1, 1, 4, 4)), {}),
        "mask's format": (RuntimeError, r"attn_mask is torch\.int64", (*whole, torch.zeros(4, 4).long()), {}),
        "both": (
            RuntimeError,
            r"attn_mask is given and is_causal",
            (*whole, normal(4, 4)),
            {"is_causal": True},
        ),
        "dropout": (RuntimeError, r"dropout_p is 1\.5", whole, {"dropout_p": 1.5}),
        "array": (TypeError, r"query is a numpy\.ndarray", (q.numpy(), q, q), {}),
        "integers": (NotImplementedError, r"query is int64", (q.long(), q.long(), q.long()), {}),
        "sparse": (NotImplementedError, r"not dense", (q.to_sparse(), q, q), {}),
        "wide": (NotImplementedError, r"more than 1024 features", (torch.zeros(1, 1, 2, 1025),) * 3, {}),
    }


REFUSED = refused()


@pytest.mark.parametrize("name", REFUSED)
def test_errors(name: str) -> None:
    kind, match, args, options = REFUSED[name]
    with pytest.raises(kind, match=match):
        ours(*args, **options)


def test_unserved_says_why() -> None:
    q = normal(2, 3, 4)
    assert unserved(q, q, q) is None
    assert unserved(q, q, q, normal(4, 3), 0.1, False, 0.5, True) is None
    assert unserved(q.to("meta"), q.to("meta"), q.to("meta")) is None
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    for reason, args in {
        "query is nested": (nested, nested, nested),
        "value is torch.sparse_coo": (q, q, q.to_sparse()),
        "key is int32": (q, q.int(), q),
        "query, key and value are": (q, q.float(), q),
        "attn_mask is complex64": (q, q, q, q.to(torch.complex64)),
        "attn_mask and is_causal": (q, q, q, q > 0, 0.0, True),
        "query is a list": ([1.0], q, q),
    }.items():
        assert str(unserved(*args)).startswith(reason)
    with torch.autocast("cpu", torch.bfloat16):
        assert unserved(q.float(), q.bfloat16(), q.float()) is None
