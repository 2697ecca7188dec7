"""softmax_topk of tensors: NumPy's bits, derivatives of values and lse, transforms, compilation."""

from __future__ import annotations

import pytest
import torch
from row_cases import FORMATS, assert_same_bits, layouts, noise, numpy_of
from torch.func import hessian, jacfwd, jacrev, vmap

import online_softmax
import online_softmax.torch as ost


def both(x: torch.Tensor) -> torch.Tensor:
    """Values and lse of rows in one tensor."""
    values, _, lse = ost.softmax_topk(x, 3)
    return torch.cat([values, lse.unsqueeze(-1)], -1)


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.softmax(-1).topk(3).values, x.logsumexp(-1, keepdim=True)], -1)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_bits_of_the_numpy_face(dtype: torch.dtype) -> None:
    for name, x in layouts(dtype).items():
        for dim in range(x.ndim):
            for k in {0, min(2, x.shape[dim]), x.shape[dim]}:
                found, expected = (
                    ost.softmax_topk(x, k, dim),
                    online_softmax.softmax_topk(numpy_of(x), k, dim),
                )
                assert found._fields == expected._fields
                assert_same_bits(found.values, expected.values, name)
                assert_same_bits(found.lse, expected.lse, name)
                assert (found.indices.numpy() == expected.indices).all()


def test_derivatives() -> None:
    x = noise(4, 6).requires_grad_()
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(both, x, **options)
    assert torch.autograd.gradgradcheck(both, x, check_fwd_over_rev=True, check_rev_over_rev=True)
    assert not ost.softmax_topk(x, 2).indices.requires_grad
    y = x.detach()
    close(both(y), plain(y))
    for jacobian in (jacfwd, jacrev):
        close(jacobian(both)(y), jacobian(plain)(y))
    close(hessian(lambda x: both(x).sin().sum())(y), hessian(lambda x: plain(x).sin().sum())(y))


def test_gradients_in_narrow_formats() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = noise(4, 6, dtype=dtype).requires_grad_()
        values, _, lse = ost.softmax_topk(x, 3)
        assert lse.dtype == torch.float32
        (dx,) = torch.autograd.grad((values.float().sum() + lse.sum()), x)
        wide = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(plain(wide).sum(), wide)
        assert dx.dtype == dtype
        # Numbers of up to 1, rounded a few times.
        torch.testing.assert_close(dx.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_vmap_and_compile() -> None:
    x = noise(3, 4, 6)
    for along in (0, 1, 2):
        expected = torch.stack([both(part) for part in x])
        assert torch.equal(vmap(both, in_dims=along)(x.movedim(0, along)), expected)
    leaf = x.clone().requires_grad_()
    for backend in ("aot_eager", "inductor"):
        found = torch.compile(both, fullgraph=True, backend=backend)(leaf)
        close(found, both(leaf))
        close(torch.autograd.grad(found.sum(), leaf)[0], torch.autograd.grad(both(leaf).sum(), leaf)[0])
    meta = ost.softmax_topk(x.to("meta"), 2, 1)
    assert (meta.values.shape, meta.lse.shape) == ((3, 2, 6), (3, 6))


def test_errors() -> None:
    x = noise(4, 6)
    with pytest.raises(ValueError, match="k=7 is out of range"):
        ost.softmax_topk(x, 7)
    with pytest.raises(TypeError, match=r"k=1\.5 is a float"):
        ost.softmax_topk(x, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x has no dimensions"):
        ost.softmax_topk(x[0, 0], 1)
    with pytest.raises(TypeError, match="x is int64"):
        ost.softmax_topk(x.long(), 1)
