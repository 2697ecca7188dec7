"""linear_cross_entropy of tensors with order="any": the bits of NumPy's face, and no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from row_cases import WIDE, assert_same_bits, noise, numpy_of

import online_softmax as osm
import online_softmax.torch as ost

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "none", "z_loss": 1e-3, "temperature": 0.7},
    {"reduction": "sum", "label_smoothing": 0.1, "memory": 1 << 23},
    {"smoothing": "megatron", "label_smoothing": 0.2},
)
TARGETS = torch.tensor([0, 3, 69, 12, -100])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", WIDE)
def test_bits_are_those_of_numpys_face(dtype: torch.dtype, options: dict[str, Any]) -> None:
    hidden, weight, bias = noise(5, 48, dtype=dtype), noise(70, 48, dtype=dtype, seed=1), noise(70, seed=2)
    weights = {"class_weight": noise(70, seed=3).abs(), "row_weight": noise(5, seed=4).abs()}
    for beside in ({}, {"bias": bias.to(dtype)}, weights):
        plain = {name: numpy_of(t) for name, t in beside.items()}
        arrays = numpy_of(hidden), numpy_of(weight), numpy_of(TARGETS)
        right = osm.linear_cross_entropy(*arrays, return_lse=True, order="any", **plain, **options)
        found = ost.linear_cross_entropy(
            hidden, weight, TARGETS, return_lse=True, order="any", **beside, **options
        )
        assert_same_bits(found.loss, right.loss)
        assert_same_bits(found.lse, right.lse)
        alone = ost.linear_cross_entropy(hidden, weight, TARGETS, order="any", **beside, **options)
        assert_same_bits(alone, right.loss)


def test_memory_strides_and_the_router_change_nothing() -> None:
    hidden, weight = noise(48, 5, dtype=torch.float32).t(), noise(70, 96, dtype=torch.float32)[:, ::2]
    right = osm.linear_cross_entropy(hidden.numpy(), weight.numpy(), TARGETS.numpy(), order="any")
    for memory in (1 << 23, 1 << 26):
        found = ost.linear_cross_entropy(hidden, weight, TARGETS, memory=memory, order="any")
        assert_same_bits(found, right)
    routed = osm.linear_cross_entropy(hidden, weight, TARGETS, order="any")
    assert_same_bits(routed, right)  # type: ignore[arg-type]


def test_around_the_call() -> None:
    hidden, weight = noise(2, 5, 48, dtype=torch.float32), noise(70, 48, dtype=torch.float32)

    def loss(hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = ost.linear_cross_entropy(hidden, weight, TARGETS, order="any")
        return made

    each = torch.stack([loss(one) for one in hidden])
    assert_same_bits(torch.func.vmap(loss)(hidden), numpy_of(each))
    assert_same_bits(torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden[0]), numpy_of(each[0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = loss(hidden[0])
    narrow = (t.bfloat16() for t in (hidden[0], weight))
    assert_same_bits(cast, numpy_of(ost.linear_cross_entropy(*narrow, TARGETS, order="any")))


def test_no_gradient() -> None:
    hidden, weight, bias = noise(5, 8), noise(70, 8), noise(70)
    said = (
        "with order='any' requires a gradient, which it does not get: torch.no_grad.., or order='row', would"
    )
    for name in ("hidden", "weight", "bias"):
        given = {"hidden": hidden, "weight": weight, "bias": bias}
        given[name] = given[name].clone().requires_grad_()
        with pytest.raises(NotImplementedError, match=f"{name} {said}"):
            ost.linear_cross_entropy(targets=TARGETS, order="any", **given)
        with torch.no_grad():
            found = ost.linear_cross_entropy(targets=TARGETS, order="any", **given)
        assert not found.requires_grad
        assert found.isfinite()

    def loss(hidden: torch.Tensor) -> Any:
        return ost.linear_cross_entropy(hidden, weight, TARGETS, order="any")

    with pytest.raises(NotImplementedError, match=f"hidden {said}"):
        torch.func.grad(loss)(hidden)
    with pytest.raises(NotImplementedError, match="no derivative with order='any'"):
        torch.func.jvp(loss, (hidden,), (hidden,))


def test_module() -> None:
    module = ost.LinearCrossEntropyLoss(8, 70, order="any")
    hidden = noise(5, 8, dtype=torch.float32)
    assert "order='any'" in repr(module)
    with pytest.raises(NotImplementedError, match="weight with order='any' requires a gradient"):
        module(hidden, TARGETS)
    assert module.weight is not None
    with torch.no_grad():
        found = module(hidden, TARGETS)
    right = osm.linear_cross_entropy(
        hidden.numpy(), module.weight.detach().numpy(), TARGETS.numpy(), order="any"
    )
    assert_same_bits(found, right)


def test_what_is_not_built() -> None:
    hidden, weight = noise(5, 8), noise(70, 8)
    for name, value in (("softcap", 30.0), ("riders", ("rank",)), ("tokens", torch.zeros(5, 1).long())):
        with pytest.raises(ValueError, match=f"{name} with order='any' is not built"):
            ost.linear_cross_entropy(hidden, weight, TARGETS, order="any", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order='tree' is not built: 'row', 'any' would do"):
        ost.linear_cross_entropy(hidden, weight, TARGETS, order="tree")
    with pytest.raises(ValueError, match="targets holds class probabilities with order='any'"):
        ost.linear_cross_entropy(hidden, weight, noise(5, 70).softmax(1), order="any")
