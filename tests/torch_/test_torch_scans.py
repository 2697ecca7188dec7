"""Scans, windows and groups of tensors: NumPy's bits, derivatives, transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from row_cases import FORMATS, WIDE, assert_same_bits, layouts, noise, numpy_of
from torch.func import hessian, jacfwd, jacrev, vmap

import online_softmax
import online_softmax.torch as ost

IDS = torch.tensor([0, 0, 1, 3, 3, 3])
OFFSETS = torch.tensor([0, 2, 2, 6])
Function = Callable[..., torch.Tensor]


def _lse(x: torch.Tensor, groups: list[slice]) -> torch.Tensor:
    return torch.stack([x[:, part].logsumexp(1) for part in groups], 1)


def _prefixes(x: torch.Tensor) -> torch.Tensor:
    """Not torch.logcumsumexp: its forward derivative is not good to the last digits of float64."""
    return _lse(x, [slice(i + 1) for i in range(x.shape[1])])


# Ours, and the same by PyTorch's own operations, of x (4, 6).
CASES: dict[str, tuple[Function, Function]] = {
    "prefixes": (ost.logcumsumexp, _prefixes),
    "suffixes": (
        lambda x: ost.logcumsumexp(x, 0, reverse=True), lambda x: _prefixes(x.t().flip(1)).flip(1).t()
    ),
    "exclusive": (
        lambda x: ost.logcumsumexp(x, exclusive=True)[:, 1:], lambda x: _prefixes(x)[:, :-1]
    ),
    "exclusive suffixes": (
        lambda x: ost.logcumsumexp(x, exclusive=True, reverse=True)[:, :-1],
        lambda x: _prefixes(x.flip(1)).flip(1)[:, 1:],
    ),
    "windows": (
        lambda x: ost.window_logsumexp(x, 3),
        lambda x: _lse(x, [slice(max(0, i - 2), i + 1) for i in range(x.shape[1])]),
    ),
    "pairs": (lambda x: ost.logaddexp(x, x.flip(1)), lambda x: torch.logaddexp(x, x.flip(1))),
    "broadcast": (lambda x: ost.logaddexp(x, x[:, :1]), lambda x: torch.logaddexp(x, x[:, :1])),
    "groups": (
        lambda x: ost.segment_logsumexp(x, ids=IDS, num_segments=4, axis=1)[:, [0, 1, 3]],
        lambda x: _lse(x, [slice(2), slice(2, 3), slice(3, 6)]),
    ),
    "groups by offsets": (
        lambda x: ost.segment_logsumexp(x, offsets=OFFSETS, dim=1)[:, [0, 2]],
        lambda x: _lse(x, [slice(2), slice(2, 6)]),
    ),
    "softmax of groups": (
        lambda x: ost.segment_softmax(x, offsets=OFFSETS, axis=1),
        lambda x: torch.cat([x[:, :2].softmax(1), x[:, 2:].softmax(1)], 1),
    ),
}  # fmt: skip


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    f, x = CASES[name][0], noise(4, 6).requires_grad_()
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(f, x, **options)
    assert torch.autograd.gradgradcheck(f, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("name", CASES)
def test_transforms(name: str) -> None:
    f, g = CASES[name]
    x = noise(4, 6)
    close(f(x), g(x))
    close(jacfwd(f)(x), jacfwd(g)(x))
    close(jacrev(f)(x), jacrev(g)(x))
    close(hessian(lambda x: (f(x) ** 2).sum())(x), hessian(lambda x: (g(x) ** 2).sum())(x))
    close(jacrev(hessian(lambda x: f(x).sin().sum()))(x), jacrev(hessian(lambda x: g(x).sin().sum()))(x))
    more = noise(3, 4, 6)
    for along in (0, 1, 2):
        moved = more.movedim(0, along)
        close(vmap(f, in_dims=along)(moved), torch.stack([f(part) for part in more]))
    close(vmap(jacrev(f))(more), torch.stack([jacrev(f)(part) for part in more]))


@pytest.mark.parametrize("name", CASES)
def test_compile(name: str) -> None:
    f, x = CASES[name][0], noise(4, 6).requires_grad_()
    found = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    expected = f(x)
    close(found, expected)
    close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x))


def test_tensors_without_data() -> None:
    x, offsets = noise(4, 6).to("meta"), OFFSETS.to("meta")
    for found in (
        ost.logcumsumexp(x, exclusive=True), ost.window_logsumexp(x, 2, 0), ost.logaddexp(x, x[:1]),
        ost.segment_softmax(x, offsets=offsets, axis=1),
    ):  # fmt: skip
        assert found.shape == x.shape
    assert ost.segment_logsumexp(x, offsets=offsets, axis=1).shape == (4, 3)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_bits_of_the_numpy_face(dtype: torch.dtype) -> None:
    for name, x in layouts(dtype).items():
        a = numpy_of(x)
        for reverse in (False, True):
            found = ost.logcumsumexp(x, reverse=reverse)
            assert_same_bits(found, online_softmax.logcumsumexp(a, reverse=reverse), name)
            found = ost.logcumsumexp(x, reverse=reverse, exclusive=True)
            assert_same_bits(found, online_softmax.logcumsumexp(a, reverse=reverse, exclusive=True), name)
        assert_same_bits(ost.window_logsumexp(x, 3), online_softmax.window_logsumexp(a, 3), name)
        if x.ndim:
            offsets = torch.tensor([0, x.shape[0] // 2, x.shape[0]])
            for op in ("segment_logsumexp", "segment_softmax"):
                found = getattr(ost, op)(x, offsets=offsets)
                assert_same_bits(found, getattr(online_softmax, op)(a, offsets=offsets.numpy()), name)
        if dtype in WIDE:
            assert_same_bits(ost.logaddexp(x, -x), online_softmax.logaddexp(a, -a), name)


def test_ids_and_formats_of_pairs() -> None:
    x = noise(6, 2, dtype=torch.float32)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        found = ost.segment_logsumexp(x, ids=IDS.to(dtype))
        assert_same_bits(found, online_softmax.segment_logsumexp(x.numpy(), ids=IDS.numpy()))
    assert ost.logaddexp(x, 2).dtype == torch.float32
    assert_same_bits(ost.logaddexp(x, 2), online_softmax.logaddexp(x.numpy(), 2))
    assert_same_bits(ost.logaddexp(2.5, x), online_softmax.logaddexp(2.5, x.numpy()))
    assert ost.logaddexp(x, x.double()).dtype == torch.float64
    assert ost.logaddexp(x.half(), x.bfloat16()).dtype == torch.float32


def test_gradients_where_nothing_is() -> None:
    x = torch.tensor([-np.inf, -np.inf, 1.0, 2.0], dtype=torch.float64).requires_grad_()
    for found in (
        ost.logcumsumexp(x), ost.window_logsumexp(x, 2), ost.logaddexp(x, x),
        ost.segment_logsumexp(x, offsets=torch.tensor([0, 2, 4])),
    ):  # fmt: skip
        alive = torch.where(found == -torch.inf, 0, found)
        (dx,) = torch.autograd.grad(alive.sum(), x, create_graph=True)
        assert dx[:2].tolist() == [0, 0]
        assert dx.isfinite().all()
        (again,) = torch.autograd.grad(dx.sum(), x)
        assert again[:2].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_gradients_have_the_format_of_their_operand(dtype: torch.dtype) -> None:
    for f, g in CASES.values():
        x = noise(4, 6, dtype=dtype).requires_grad_()
        (dx,) = torch.autograd.grad(f(x).sum(), x)
        wide = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(g(wide).sum(), wide)
        assert dx.dtype == dtype
        # Weights of at most 6 results, each up to 1 and rounded a few times with their operands.
        torch.testing.assert_close(dx.double(), expected, rtol=0, atol=32 * torch.finfo(dtype).eps)


def test_errors() -> None:
    x = noise(4, 6)
    with pytest.raises(TypeError, match=r"a is a float and b a int: one tensor"):
        ost.logaddexp(1.0, 2)
    with pytest.raises(ValueError, match=r"a has shape \(4, 6\) and b \(4,\)"):
        ost.logaddexp(x, x[:, 0])
    with pytest.raises(RuntimeError, match="b lies on meta and a on cpu"):
        ost.logaddexp(x, x.to("meta"))
    with pytest.raises(TypeError, match="x is int64"):
        ost.logcumsumexp(IDS)
    with pytest.raises(TypeError, match="takes one axis"):
        ost.logcumsumexp(x, (0, 1))
    with pytest.raises(ValueError, match="window=0"):
        ost.window_logsumexp(x, 0)
    with pytest.raises(ValueError, match="neither ids nor offsets"):
        ost.segment_softmax(x)
    with pytest.raises(TypeError, match=r"ids is torch\.float64"):
        ost.segment_softmax(x, ids=x[:, 0])
    with pytest.raises(ValueError, match="ids has 6 entries: one for each of the 4"):
        ost.segment_logsumexp(x, ids=IDS)
    with pytest.raises(ValueError, match="comes after"):
        ost.segment_logsumexp(x, ids=IDS.flip(0), num_segments=4, axis=1)
    with pytest.raises(ValueError, match=r"offsets\[-1\]=6"):
        ost.segment_logsumexp(x, offsets=OFFSETS)
    with pytest.raises(ValueError, match="num_segments=7 where offsets make 3"):
        ost.segment_logsumexp(x, offsets=OFFSETS, num_segments=7, axis=1)
