"""Attention of tensors: values, gradients, layouts, formats, dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_torch_cases import (
    BATCH,
    GROUPS,
    HEADS,
    KEYS,
    QUERIES,
    arrays,
    equal_bits,
    of_arrays,
    operands,
    options,
    strided,
    truth,
)

import online_softmax as om
import online_softmax.torch as ost
from online_softmax.frontends.torch import memory

OPTIONS = options()
FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Largest error of values near 1 in units of the format's rounding: sums of some ten rounded terms.
UNITS = 16


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, compute: torch.dtype) -> None:
    """One rounding to `dtype` and some to `compute`, relative to the greatest value."""
    size = float(wanted[torch.isfinite(wanted)].abs().max().clamp_min(1)) if wanted.numel() else 1.0
    bound = size * (torch.finfo(dtype).eps + UNITS * torch.finfo(compute).eps)
    torch.testing.assert_close(found.double(), wanted.double(), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", OPTIONS)
def test_values_are_those_of_torch_and_of_the_array_face_in_bits(name: str, dtype: torch.dtype) -> None:
    q, k, v = operands(dtype)
    output, lse = ost.attention(q, k, v, return_lse=True, **OPTIONS[name])
    wanted, wanted_lse = truth(q, k, v, **OPTIONS[name])
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    assert output.dtype == dtype
    assert lse.dtype == compute
    close(output, wanted, dtype, compute)
    close(lse, wanted_lse, compute, compute)
    found = of_arrays(q, k, v, **OPTIONS[name])
    assert equal_bits(output, found.output)
    assert equal_bits(lse, found.lse)
    assert torch.equal(ost.attention(q, k, v, **OPTIONS[name]), output)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_torch(name: str) -> None:
    q, k, v = operands(grad=True)
    own = {n: t.clone().requires_grad_() for n, t in OPTIONS[name].items() if n in ("bias", "sinks")}
    given = OPTIONS[name] | own
    over = (q, k, v, *own.values())
    results, wanted = ost.attention(q, k, v, return_lse=True, **given), truth(q, k, v, **given)
    some = wanted[1] != -torch.inf
    above = torch.randn(results[0].shape, dtype=torch.float64), torch.randn(some.shape, dtype=torch.float64)
    found = torch.autograd.grad(
        (results[0], results[1][some]), over, (above[0], above[1][some]), retain_graph=True
    )
    expected = torch.autograd.grad((wanted[0], wanted[1][some]), over, (above[0], above[1][some]))
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs, torch.float64, torch.float64)


@pytest.mark.parametrize("dtype", FORMATS[1:])
def test_gradients_of_narrow_formats_are_those_of_the_array_face(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype, grad=True)
    bias = OPTIONS["all"]["bias"].float().requires_grad_()
    sinks = OPTIONS["all"]["sinks"].float().requires_grad_()
    given = OPTIONS["all"] | {"bias": bias, "sinks": sinks}
    output, lse = ost.attention(q, k, v, return_lse=True, **given)
    do, dlse = torch.randn(output.shape).to(dtype), torch.randn(lse.shape)
    found = torch.autograd.grad((output, lse), (q, k, v, bias, sinks), (do, dlse))
    wanted = om.attention_backward(
        *(memory.array(t) for t in (do, q, k, v, output, lse)),
        dlse=memory.array(dlse), bias_grad=True, **arrays(given),
    )  # fmt: skip
    for t, a, over in zip(found, wanted, (q, k, v, bias, sinks), strict=True):
        assert t.dtype == over.dtype
        assert equal_bits(t, a)


@pytest.mark.parametrize("kept", range(1, 8))
def test_only_what_is_asked_for_has_a_gradient(kept: int) -> None:
    tensors = operands()
    whole = [t.clone().requires_grad_() for t in tensors]
    some = [t.clone().requires_grad_(bool(kept >> i & 1)) for i, t in enumerate(tensors)]
    for three in (whole, some):
        ost.attention(*three).square().sum().backward()
    for i in range(3):
        assert (some[i].grad is None) == (not kept >> i & 1)
        assert some[i].grad is None or torch.equal(some[i].grad, whole[i].grad)


def test_lse_alone_and_output_alone_pass_gradients() -> None:
    q, k, v = operands(grad=True)
    output, lse = ost.attention(q, k, v, return_lse=True)
    wanted = truth(q, k, v)
    for i, found in enumerate((output, lse)):
        mine = torch.autograd.grad(found.sum(), (q, k), retain_graph=True)
        theirs = torch.autograd.grad(wanted[i].sum(), (q, k), retain_graph=True)
        for a, b in zip(mine, theirs, strict=True):
            close(a, b, torch.float64, torch.float64)


# Layouts


@pytest.mark.parametrize("way", ["transposed", "every other", "offset", "turned"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_strides_do_not_show(way: str, dtype: torch.dtype) -> None:
    plain = operands(dtype, grad=True)
    others = [strided(t.detach(), way).requires_grad_() for t in plain]
    outputs = ost.attention(*plain), ost.attention(*others)
    assert torch.equal(*outputs)
    above = torch.randn(outputs[0].shape).to(dtype)
    for output, over, do in zip(outputs, (plain, others), (above, strided(above, way)), strict=True):
        output.backward(do)
        assert all(t.grad is not None for t in over)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [5, 3000])
def test_results_are_laid_out_as_q_is(length: int, dtype: torch.dtype) -> None:
    x = torch.randn(1, length, 3, 64).to(dtype).requires_grad_()
    turned = x.transpose(1, 2)
    output = ost.attention(turned, turned[:, :, :4], turned[:, :, :4])
    assert output.stride() == turned.stride()
    assert output.transpose(1, 2).is_contiguous()
    plain = ost.attention(*(t.contiguous() for t in (turned, turned[:, :, :4], turned[:, :, :4])))
    assert plain.is_contiguous()
    assert torch.equal(plain, output)
    by_place = ost.attention(x, x[:, :4], x[:, :4], layout="BSHD")
    assert by_place.is_contiguous()
    assert torch.equal(by_place, output.transpose(1, 2))
    output.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_layout_and_rank() -> None:
    q, k, v = operands()
    wanted = ost.attention(q, k, v, causal=True, return_lse=True)
    by_place = ost.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), causal=True, return_lse=True, layout="BSHD"
    )
    assert torch.equal(by_place.output.transpose(1, 2), wanted.output)
    assert torch.equal(by_place.lse.transpose(1, 2), wanted.lse)
    one = ost.attention(q[0], k[0], v[0], causal=True, return_lse=True)
    assert torch.equal(one.output, wanted.output[0])
    assert torch.equal(one.lse, wanted.lse[0])
    alone = ost.attention(q[0, 0], k[0, 0], v[0, 0], causal=True, return_lse=True)
    assert torch.equal(alone.output, wanted.output[0, 0])
    assert torch.equal(alone.lse, wanted.lse[0, 0])


def test_expanded_operands_are_read_in_place() -> None:
    q, k, v = operands(grad=True)
    one = [t[:1].detach().requires_grad_() for t in (k, v)]
    repeated = [t.expand(BATCH, -1, -1, -1) for t in one]
    output = ost.attention(q, *repeated)
    assert torch.equal(output, ost.attention(q, *(t.contiguous() for t in repeated)))
    output.sum().backward()
    wanted = truth(q, *repeated)[0]
    expected = torch.autograd.grad(wanted.sum(), one)
    for t, e in zip(one, expected, strict=True):
        close(t.grad, e, torch.float64, torch.float64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape", [(0, 2, 2, 3, 4), (2, 0, 0, 3, 4), (2, 2, 2, 0, 4), (2, 2, 2, 3, 0), (1, 2, 1, 0, 0)]
)
def test_empty(shape: tuple[int, ...]) -> None:
    batch, heads, groups, queries, keys = shape
    q = torch.randn(batch, heads, queries, 5, requires_grad=True)
    k, v = (torch.randn(batch, groups, keys, d, requires_grad=True) for d in (5, 3))
    output, lse = ost.attention(q, k, v, return_lse=True)
    assert output.shape == (batch, heads, queries, 3)
    assert lse.shape == (batch, heads, queries)
    assert torch.equal(output, torch.zeros_like(output))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))
    output.sum().backward()
    for t in (q, k, v):
        assert t.grad is not None
        assert torch.equal(t.grad, torch.zeros_like(t))


def test_what_a_mask_hides_is_not_read() -> None:
    q, k, v = operands(grad=True)
    mask = torch.ones(KEYS, dtype=torch.bool)
    mask[2] = False
    wanted = ost.attention(q, k, v, mask=mask)
    gradient = torch.autograd.grad(wanted.sum(), q)[0]
    spoilt = [t.detach().clone() for t in (k, v)]
    for t in spoilt:
        t[:, :, 2] = torch.nan
    output = ost.attention(q, *spoilt, mask=mask)
    assert torch.equal(output, wanted)
    assert torch.equal(torch.autograd.grad(output.sum(), q)[0], gradient)


# Sequences side by side, in pools, in 8 bits


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_side_by_side_is_each_sequence_alone(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    q = torch.randn(9, HEADS, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(8, GROUPS, 4, generator=draw, dtype=torch.float64, requires_grad=True) for _ in "kv")
    of_q, of_k = [0, 3, 3, 8], [0, 2, 5, 7]
    starts = {
        "cu_seqlens_q": torch.tensor(of_q, dtype=dtype),
        "cu_seqlens_k": torch.tensor(of_k, dtype=dtype),
    }
    output, lse = ost.attention(q, k, v, causal=True, return_lse=True, **starts)
    parts = [
        ost.attention(q[a:b], k[c:d], v[c:d], causal=True, return_lse=True, layout="BSHD")
        for a, b, c, d in zip(of_q, of_q[1:], of_k, of_k[1:], strict=False)
    ]
    assert torch.equal(output[:8], torch.cat([p.output for p in parts]))
    assert torch.equal(lse[:8], torch.cat([p.lse for p in parts]))
    assert torch.equal(output[8:], torch.zeros(1, HEADS, 4, dtype=torch.float64))
    assert bool((lse[8:] == -torch.inf).all())
    found = torch.autograd.grad(output.square().sum(), (q, k, v))
    wanted = torch.autograd.grad(sum(p.output.square().sum() for p in parts), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def paged() -> dict[str, torch.Tensor]:
    return {"block_table": torch.tensor([[1, 0], [2, 3]]), "seqlens_k": torch.tensor([5, 3])}


def test_pools_are_those_of_the_array_face() -> None:
    q, pool = torch.randn(2, HEADS, 2, 8), torch.randn(4, 3, GROUPS, 8)
    found = ost.attention(q, pool, pool, causal=True, return_lse=True, **paged())
    wanted = of_arrays(q, pool, pool, causal=True, **paged())
    assert equal_bits(found.output, wanted.output)
    assert equal_bits(found.lse, wanted.lse)
    rows = torch.randn(3, HEADS, 8)
    starts = torch.tensor([0, 1, 3])
    found = ost.attention(rows, pool, pool, cu_seqlens_q=starts, return_lse=True, **paged())
    wanted = of_arrays(rows, pool, pool, cu_seqlens_q=starts, **paged())
    assert equal_bits(found.output, wanted.output)
    assert equal_bits(found.lse, wanted.lse)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits(dtype: torch.dtype) -> None:
    q, k, v = operands(torch.bfloat16)
    k, v = ((10 * t).to(dtype) for t in (k, v))
    scales = {"k_scale": 0.1, "v_scale": torch.tensor([0.1, 0.2])}
    found = ost.attention(q, k, v, return_lse=True, **scales)
    wanted = of_arrays(q, k, v, **scales)
    assert equal_bits(found.output, wanted.output)
    assert equal_bits(found.lse, wanted.lse)
    with pytest.raises(NotImplementedError, match=r"q requires a gradient"):
        ost.attention(q.requires_grad_(), k, v, **scales)
    with torch.no_grad():
        assert torch.equal(ost.attention(q, k, v, **scales), found.output)


def test_origin_makes_a_part_of_a_whole() -> None:
    q, k, v = operands(grad=True)
    whole = {"dropout_p": 0.4, "seed": 3, "window": (2, 0)}
    wanted = ost.attention(q, k, v, origin=(0, 0, 1, 0), **whole)
    part = ost.attention(q[1:, :, 2:], k[1:], v[1:], origin=(1, 0, 3, 0), **whole)
    assert torch.equal(part, wanted[1:, :, 2:])
    found, expected = (torch.autograd.grad(t.sum(), q)[0][1:, :, 2:] for t in (part, wanted[1:, :, 2:]))
    assert torch.equal(found, expected)


# Dropout


def test_dropout_drops_what_dropout_mask_says() -> None:
    q, k, v = operands()
    p, seed = 0.3, (1 << 64) - 2
    keep = om.dropout_mask((BATCH, HEADS, QUERIES, KEYS), p, seed)
    wide_k, wide_v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
    weights = torch.softmax(q @ wide_k.mT / q.shape[-1] ** 0.5, -1) * torch.from_numpy(keep) / (1 - p)
    close(ost.attention(q, k, v, dropout_p=p, seed=seed), weights @ wide_v, torch.float64, torch.float64)
    tensor = torch.tensor(seed - (1 << 64))
    assert torch.equal(ost.attention(q, k, v, dropout_p=p, seed=tensor), ost.attention(
        q, k, v, dropout_p=p, seed=seed))  # fmt: skip


def test_seeds_come_from_the_generator() -> None:
    q, k, v = operands()

    def drawn(**more: Any) -> torch.Tensor:
        found: torch.Tensor = ost.attention(q, k, v, dropout_p=0.5, **more)
        return found

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    torch.manual_seed(3)
    assert torch.equal(drawn(), first)
    assert torch.equal(drawn(), second)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    own = torch.Generator().manual_seed(3)
    assert torch.equal(drawn(generator=own), first)
    ost.attention(q, k, v)
    assert torch.equal(torch.get_rng_state(), state)
