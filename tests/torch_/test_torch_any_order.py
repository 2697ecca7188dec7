"""order="any" of tensors: the bits of NumPy's face, whatever PyTorch does around the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from row_cases import FORMATS, WIDE, assert_same_bits, layouts, noise, numpy_of

import online_softmax as osm
import online_softmax.torch as ost

FUNCTIONS = ("softmax", "log_softmax", "logsumexp")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_those_of_numpys_face(name: str, dtype: torch.dtype) -> None:
    for layout, x in layouts(dtype).items():
        found = getattr(ost, name)(x, order="any")
        assert_same_bits(found, getattr(osm, name)(numpy_of(x), order="any"), layout)


def test_dims_masks_and_empty_dims() -> None:
    x, keep = noise(3, 4, 5, dtype=torch.float32), noise(3, 1, 5, seed=1) > 0
    for axis in (0, (0, 2), None, ()):
        for where in (None, keep):
            for name in FUNCTIONS:
                found = getattr(ost, name)(x, axis, where=where, order="any")
                mask = None if where is None else where.numpy()
                right = getattr(osm, name)(x.numpy(), axis, where=mask, order="any")
                assert_same_bits(found, right, f"{name} {axis}")
    assert_same_bits(osm.softmax(x, order="any"), osm.softmax(x.numpy(), order="any"))  # through the router


@pytest.mark.parametrize("dtype", WIDE[:2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    """Those of the same function in the other order, but for rounding."""
    x, dy = noise(6, 40, dtype=dtype), noise(6, 40, dtype=dtype, seed=1)
    found = []
    for order in ("any", "row"):
        leaf = x.clone().requires_grad_()
        y = getattr(ost, name)(leaf, order=order)
        (y * (dy if y.ndim == 2 else dy[:, 0])).sum().backward()
        assert leaf.grad is not None
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    if name == "logsumexp":
        leaf = x.clone().requires_grad_()
        ost.logsumexp(leaf, order="any").sum().backward()
        assert leaf.grad is not None
        assert_same_bits(leaf.grad, osm.softmax(x.numpy(), order="any"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_and_transforms(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return getattr(ost, name)(x, order="any")

    leaf = noise(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(function, leaf, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaf)
    x = noise(2, 3, 7)
    assert_same_bits(torch.func.vmap(function, in_dims=1, out_dims=1)(x), numpy_of(function(x)))


def test_compiled_whole() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        return ost.log_softmax(x * 2, order="any").exp().sum() + ost.logsumexp(x, order="any").sum()

    x = noise(4, 9, dtype=torch.float32).requires_grad_()
    step(x).backward()
    assert_same_bits(
        torch.compile(lambda x: ost.softmax(x, order="any"), fullgraph=True, backend="aot_eager")(x.detach()),
        osm.softmax(x.detach().numpy(), order="any"),
    )
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
def test_threads_change_nothing() -> None:
    x = noise(4, 200_000, dtype=torch.float32)
    x[0, :1000] = 1e-39
    for name in FUNCTIONS:
        right = getattr(osm, name)(x.numpy(), order="any", threads=1)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert_same_bits(getattr(ost, name)(x, order="any"), right)


def test_what_is_not_built() -> None:
    x = noise(3, 4)
    with pytest.raises(ValueError, match="order='tree' is not built: 'row', 'any' would do"):
        ost.softmax(x, order="tree")
    with pytest.raises(TypeError, match="order=3 is a int"):
        ost.logsumexp(x, order=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="b with order='any' is not built"):
        ost.logsumexp(x, b=torch.ones(4, dtype=torch.float64), order="any")
