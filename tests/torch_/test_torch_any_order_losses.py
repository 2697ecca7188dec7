"""Cross-entropy of tensors with order="any": the bits of NumPy's face, whatever PyTorch does around the
call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from row_cases import FORMATS, WIDE, assert_same_bits, layouts, noise, numpy_of

import online_softmax as osm
import online_softmax.torch as ost

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "sum", "z_loss": 1e-3},
    {"reduction": "none", "label_smoothing": 0.1, "temperature": 0.7},
    {"reduction": "mean", "smoothing": "megatron", "label_smoothing": 0.2, "ignore_index": 3},
    {"reduction": "mean", "weight": True, "row_weight": True, "label_smoothing": 0.1, "z_loss": 1e-2},
)


def targets_of(logits: torch.Tensor, axis: int) -> torch.Tensor:
    shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    return torch.randint(logits.shape[axis], shape, generator=torch.Generator().manual_seed(5))


def filled(options: dict[str, Any], logits: torch.Tensor, axis: int) -> dict[str, Any]:
    """Options with tensors in place of True."""
    made = dict(options)
    if made.get("weight"):
        made["weight"] = noise(logits.shape[axis], seed=1).abs()
    if made.get("row_weight"):
        made["row_weight"] = noise(*logits.shape[:axis], *logits.shape[axis + 1 :], seed=2).abs()
    return made


def as_numpy(options: dict[str, Any]) -> dict[str, Any]:
    return {name: numpy_of(v) if isinstance(v, torch.Tensor) else v for name, v in options.items()}


def check(logits: torch.Tensor, options: dict[str, Any], what: str, axis: int = -1) -> None:
    """Loss, lse and gradient have the bits of the NumPy face."""
    targets = targets_of(logits, axis % logits.ndim)
    given = filled(options, logits, axis % logits.ndim)
    plain = as_numpy(given)
    arrays = numpy_of(logits), numpy_of(targets)
    leaf = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss, lse = ost.cross_entropy(leaf, targets, axis=axis, return_lse=True, order="any", **given)
    right = osm.cross_entropy(*arrays, axis=axis, return_lse=True, order="any", **plain)
    assert_same_bits(loss.detach(), right.loss, what)
    assert_same_bits(lse.detach(), right.lse, what)
    alone = ost.cross_entropy(logits, targets, axis=axis, order="any", **given)
    assert_same_bits(alone, right.loss, what)
    up = noise(*loss.shape, dtype=loss.dtype, seed=3)
    of_lse = noise(*lse.shape, dtype=lse.dtype, seed=4)
    for d_lse in (None, of_lse):
        parts = (loss, lse) if d_lse is not None else (loss,)
        ups = (up, d_lse) if d_lse is not None else (up,)
        (gradient,) = torch.autograd.grad(parts, leaf, ups, retain_graph=True)
        expected = osm.cross_entropy_backward(
            numpy_of(up), *arrays, dlse=None if d_lse is None else numpy_of(d_lse), axis=axis, order="any",
            **plain,
        )  # fmt: skip
        assert_same_bits(gradient, expected, what)


@pytest.mark.parametrize("dtype", FORMATS)
def test_bits_are_those_of_numpys_face(dtype: torch.dtype) -> None:
    for layout, x in layouts(dtype).items():
        if x.ndim and layout != "large":
            check(x, {}, layout)
            check(x, {"reduction": "none"}, layout)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", WIDE)
def test_options(options: dict[str, Any], dtype: torch.dtype) -> None:
    x = noise(6, 11, dtype=dtype)
    x[0, 2], x[1, 4] = -torch.inf, torch.nan
    check(x, options, str(options))
    check(noise(3, 7, 2, dtype=dtype), options, str(options), axis=1)
    check(noise(40, dtype=dtype), options, str(options))


def test_tokens_and_the_router() -> None:
    x, targets, tokens = (
        noise(4, 9, dtype=torch.float32),
        torch.tensor([1, 2, 8, -100]),
        torch.tensor([[0, 8]] * 4),
    )
    found = ost.cross_entropy(x, targets, tokens=tokens, order="any")
    right = osm.cross_entropy(x.numpy(), targets.numpy(), tokens=tokens.numpy(), order="any")
    assert_same_bits(found.log_probabilities, right.log_probabilities)
    assert_same_bits(found.lse, right.lse)
    assert_same_bits(found.loss, right.loss)
    assert found.entropy is found.rank is found.divergence is None
    routed = osm.cross_entropy(x, targets, order="any")
    assert_same_bits(routed, osm.cross_entropy(x.numpy(), targets.numpy(), order="any"))  # type: ignore[arg-type]


def test_rows_and_classes_in_any_order() -> None:
    """A mean over rows is an exact sum: neither the order of classes nor that of rows shows."""
    x, targets = noise(64, 300, dtype=torch.float32), targets_of(noise(64, 300), 1)
    rows, classes = torch.randperm(64), torch.randperm(300)
    there = torch.empty_like(classes)
    there[classes] = torch.arange(300)
    found = ost.cross_entropy(x[rows][:, classes], there[targets[rows]], order="any")
    assert_same_bits(found, ost.cross_entropy(x, targets, order="any"))


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_second_derivatives(options: dict[str, Any]) -> None:
    targets = torch.tensor([0, 3, 2])

    def function(x: torch.Tensor) -> Any:
        return tuple(ost.cross_entropy(x, targets, return_lse=True, order="any", **options))

    leaf = noise(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(function, leaf, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, leaf)


def test_transforms() -> None:
    x, targets = noise(3, 5, 7), torch.tensor([[0, 1, 6, 2, 3]] * 3)

    def loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = ost.cross_entropy(x, targets, order="any")
        return made

    each = torch.stack([loss(*pair) for pair in zip(x, targets, strict=True)])
    assert_same_bits(torch.func.vmap(loss)(x, targets), numpy_of(each))
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(x, targets[0])
    for found, one in zip(gradients, x, strict=True):
        expected = osm.cross_entropy_backward(1.0, one.numpy(), targets[0].numpy(), order="any")
        assert_same_bits(found, expected)
    row = torch.func.hessian(lambda x: ost.cross_entropy(x, targets[0]))(x[0])
    torch.testing.assert_close(torch.func.hessian(lambda x: loss(x, targets[0]))(x[0]), row)


def test_compiled_whole() -> None:
    targets = torch.tensor([0, 8, -100, 3])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = ost.cross_entropy(x, targets, order="any")
        return made

    x = noise(4, 9, dtype=torch.float32).requires_grad_()
    loss = step(x)
    loss.backward()
    assert x.grad is not None
    plain = x.detach().numpy(), targets.numpy()
    assert_same_bits(loss.detach(), osm.cross_entropy(*plain, order="any"))
    assert_same_bits(x.grad, osm.cross_entropy_backward(1.0, *plain, order="any"))


def test_module() -> None:
    x, targets = noise(4, 9, dtype=torch.float32), torch.tensor([0, 8, -100, 3])
    module = ost.CrossEntropyLoss(noise(9).abs(), label_smoothing=0.1, order="any")
    plain = {"weight": numpy_of(module.weight), "label_smoothing": 0.1, "order": "any"}  # type: ignore[arg-type]
    assert_same_bits(module(x, targets), osm.cross_entropy(x.numpy(), targets.numpy(), **plain))
    assert "order='any'" in repr(module)
    with pytest.raises(ValueError, match="order='tree' is not built: 'row', 'any' would do"):
        ost.CrossEntropyLoss(order="tree")
    with pytest.raises(ValueError, match="softcap with order='any' is not built"):
        ost.CrossEntropyLoss(softcap=30.0, order="any")


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
def test_threads_change_nothing() -> None:
    x = noise(3, 150_000, dtype=torch.float32)
    targets = torch.tensor([5, 149_999, 70_000])
    right = osm.cross_entropy(x.numpy(), targets.numpy(), order="any", threads=1)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert_same_bits(ost.cross_entropy(x, targets, order="any"), right)


def test_what_is_not_built() -> None:
    x, targets = noise(3, 4), torch.tensor([0, 1, 2])
    for order, kind, said in (
        ("tree", ValueError, "order='tree' is not built: 'row', 'any' would do"),
        (3, TypeError, "order=3 is a int"),
    ):
        with pytest.raises(kind, match=said):
            ost.cross_entropy(x, targets, order=order)  # type: ignore[arg-type]
    for name, value in (("softcap", 30.0), ("riders", ("entropy",)), ("kl_to", x)):
        with pytest.raises(ValueError, match=f"{name} with order='any' is not built"):
            ost.cross_entropy(x, targets, order="any", **{name: value})
    with pytest.raises(ValueError, match="targets holds class probabilities with order='any'"):
        ost.cross_entropy(x, x.softmax(1), order="any")
    with pytest.raises(ValueError, match=r"temperature is 1e-38: from .* to .* with order='any' would do"):
        ost.cross_entropy(x.float(), targets, temperature=1e-38, order="any")
    with pytest.raises(IndexError, match="targets"):
        ost.cross_entropy(x, torch.tensor([0, 1, 4]), order="any")
    meta = ost.cross_entropy(x.to("meta"), targets.to("meta"), reduction="none", order="any")
    assert meta.shape == (3,)
    assert np.isfinite(float(ost.cross_entropy(x, targets, order="any")))
