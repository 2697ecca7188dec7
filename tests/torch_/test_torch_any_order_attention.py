"""attention of tensors with order="any": the bits of NumPy's face, whatever PyTorch does around the call."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from attention_torch_cases import HEADS, QUERIES, operands, options
from row_cases import WIDE, assert_same_bits, noise, numpy_of

import online_softmax as osm
import online_softmax.torch as ost

CASES = options()


def as_numpy(given: dict[str, Any]) -> dict[str, Any]:
    return {name: numpy_of(v) if isinstance(v, torch.Tensor) else v for name, v in given.items()}


def check(tensors: tuple[torch.Tensor, ...], given: dict[str, Any], what: str) -> None:
    found = ost.attention(*tensors, return_lse=True, order="any", **given)
    arrays = tuple(map(numpy_of, tensors))
    right = osm.attention(*arrays, return_lse=True, order="any", **as_numpy(given))
    assert_same_bits(found.output, right.output, what)
    assert_same_bits(found.lse, right.lse, what)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", WIDE)
def test_bits_are_those_of_numpys_face(dtype: torch.dtype, name: str) -> None:
    check(operands(dtype), CASES[name], name)


@pytest.mark.parametrize("dtype", WIDE)
def test_several_super_tiles(dtype: torch.dtype) -> None:
    q, k, v = (
        noise(1, 4, 3, 16, dtype=dtype),
        noise(1, 2, 1300, 16, dtype=dtype),
        noise(1, 2, 1300, 16, dtype=dtype),
    )
    check((q, k, v), {"causal": True}, "causal")
    check((q, k, v), {"window": (600, 5), "origin": (0, 0, 1000, 512)}, "placed")
    by_place = tuple(t.transpose(1, 2).contiguous() for t in (q, k, v))
    check(by_place, {"layout": "BSHD"}, "by place")
    check(tuple(t.transpose(1, 2) for t in by_place), {}, "transposed")
    check((q, k, v), {"dropout_p": 0.3, "seed": 7}, "dropout")
    # Shards of the keys merge to these bits.
    states = [
        osm.ExactAttentionState.of(*(numpy_of(t) for t in (q, k[:, :, a:b], v[:, :, a:b])), first_key=a)
        for a, b in ((1024, 1300), (0, 512), (512, 1024))
    ]
    _, lse = ost.attention(q, k, v, return_lse=True, order="any")
    assert_same_bits(lse, osm.ExactAttentionState.merge_many(states).lse)


def test_sequences_side_by_side_and_pages() -> None:
    q, k, v = (
        noise(7, 4, 8, dtype=torch.float32),
        noise(9, 2, 8, dtype=torch.float32),
        noise(9, 2, 8, dtype=torch.float32),
    )
    starts = torch.tensor([0, 3, 6])
    check((q, k, v), {"cu_seqlens_q": starts, "cu_seqlens_k": torch.tensor([0, 4, 9])}, "side by side")
    pools = noise(5, 4, 2, 8, dtype=torch.float32), noise(5, 4, 2, 8, dtype=torch.float32, seed=1)
    pages = {"block_table": torch.tensor([[4, 0], [1, 3]]), "seqlens_k": torch.tensor([5, 8])}
    check((noise(2, 4, 3, 8, dtype=torch.float32), *pools), pages, "pages")
    q, k, v = operands(torch.float32)
    narrow = tuple(t.to(torch.float8_e4m3fn) for t in (k, v))
    found = ost.attention(q, *narrow, k_scale=0.5, v_scale=2.0, order="any")
    arrays = (t.float().numpy().astype(ml_dtypes.float8_e4m3fn) for t in narrow)
    assert_same_bits(found, osm.attention(q.numpy(), *arrays, k_scale=0.5, v_scale=2.0, order="any"))


@pytest.mark.parametrize("name", ["plain", "causal", "bias", "sinks", "all"])
@pytest.mark.parametrize("dtype", WIDE)
def test_gradients_are_those_of_numpys_backward(dtype: torch.dtype, name: str) -> None:
    q, k, v = operands(dtype, grad=True)
    given = CASES[name]
    output, lse = ost.attention(q, k, v, return_lse=True, order="any", **given)
    do, dlse = noise(*output.shape, dtype=dtype), noise(*lse.shape, dtype=lse.dtype, seed=1)
    dlse = torch.where(lse.isfinite(), dlse, 0)
    found = torch.autograd.grad((output, lse), (q, k, v), (do, dlse))
    arrays = [numpy_of(t) for t in (do, q, k, v, output, lse)]
    right = osm.attention_backward(*arrays, dlse=dlse.numpy(), **as_numpy(given))
    for gradient, expected in zip(found, right[:3], strict=True):
        assert_same_bits(gradient, expected, name)


def test_derivatives_and_transforms() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return tuple(ost.attention(q, k, v, causal=True, return_lse=True, order="any"))

    leaves = [noise(1, 2, 3, 4, seed=i).requires_grad_() for i in range(3)]
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves)
    batched = [noise(3, 1, 2, 3, 4, dtype=torch.float32, seed=i) for i in range(3)]
    bias = noise(1, 1, 3, 3, dtype=torch.float32)

    def biased(*operands: torch.Tensor) -> Any:
        return ost.attention(*operands, bias=bias, order="any")

    each = torch.stack([biased(*one) for one in zip(*batched, strict=True)])
    assert_same_bits(torch.func.vmap(biased)(*batched), numpy_of(each))


def test_compiled_whole_and_cast() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return ost.attention(q, k, v, order="any")

    q, k, v = operands(torch.float32, grad=True)
    output = step(q, k, v)
    assert_same_bits(output.detach(), osm.attention(*map(numpy_of, (q, k, v)), order="any"))
    output.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        cast = ost.attention(q, k, v, order="any")
    narrow = (t.detach().bfloat16() for t in (q, k, v))
    assert_same_bits(cast, numpy_of(ost.attention(*narrow, order="any")))
    routed = osm.attention(*(t.detach() for t in (q, k, v)), order="any")
    assert_same_bits(routed, numpy_of(output))


def test_module() -> None:
    q, k, v = operands(torch.float32)
    module = ost.Attention(causal=True, sinks=HEADS, order="any")
    right = osm.attention(
        *map(numpy_of, (q, k, v)), causal=True, sinks=np.zeros(HEADS, np.float32), order="any"
    )
    assert_same_bits(module(q, k, v).detach(), right)
    assert "order='any'" in repr(module)
    with pytest.raises(ValueError, match="order='tree' is not built"):
        ost.Attention(order="tree")


def test_what_is_not_built() -> None:
    q, k, v = operands(torch.float32)
    assert q.shape[2] == QUERIES
    with pytest.raises(ValueError, match="order='tree' is not built: 'row', 'any' would do"):
        ost.attention(q, k, v, order="tree")
    with pytest.raises(TypeError, match="order=1 is a int"):
        ost.attention(q, k, v, order=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="origin begins at key 100 with order='any': a multiple of 512"):
        ost.attention(q, k, v, origin=(0, 0, 100, 100), order="any")
