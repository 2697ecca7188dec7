"""sample of tensors with order="any": the tokens and the bits of NumPy's face."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from row_cases import FORMATS, assert_same_bits, layouts, noise, numpy_of

import online_softmax as osm
import online_softmax.torch as ost

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.8, "draw": 3},
    {"temperature": 1.5, "min_p": 0.1, "origin": (4, 100)},
    {"temperature": torch.tensor([0.0, 0.5, 2.0]), "top_k": 4, "top_p": 0.9, "min_p": 0.05},
)


def check(x: torch.Tensor, axis: int, options: dict[str, Any], what: str) -> None:
    plain = {name: numpy_of(v) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    found = ost.sample(x, axis, seed=11, order="any", **options)
    right = osm.sample(numpy_of(x), axis, seed=11, order="any", **plain)
    assert found.tokens.tolist() == right.tokens.tolist(), what
    assert_same_bits(found.log_probabilities, right.log_probabilities, what)


@pytest.mark.parametrize("dtype", FORMATS)
def test_bits_are_those_of_numpys_face(dtype: torch.dtype) -> None:
    for layout, x in layouts(dtype).items():
        if x.ndim and layout != "large":
            check(x, -1, {}, layout)
            check(x, 0 if x.shape[0] else -1, {"temperature": 0.7, "top_p": 0.9}, layout)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options: dict[str, Any]) -> None:
    x = noise(4, 3, 50, dtype=torch.float32)
    x[0, 0, 3], x[1, 0, 2], x[2, 1] = torch.nan, -torch.inf, -torch.inf
    check(x, -1, options, str(options))
    check(x.transpose(1, 2), 1, options, str(options))


def test_log_probabilities_are_minus_the_losses() -> None:
    x = noise(200, 30, dtype=torch.float32)
    found = ost.sample(x, temperature=0.7, seed=2, order="any")
    loss = ost.cross_entropy(x, found.tokens, temperature=0.7, reduction="none", order="any")
    assert_same_bits(found.log_probabilities, numpy_of(-loss))


def test_around_the_call() -> None:
    x = noise(2, 3, 40, dtype=torch.float32)

    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(ost.sample(x, seed=5, top_k=9, order="any"))  # type: ignore[return-value]

    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")(x)
    batched = torch.func.vmap(draw)(x)
    each = [draw(one) for one in x]
    for part, (whole, mapped) in enumerate(zip(compiled, batched, strict=True)):
        assert torch.equal(whole, draw(x)[part])
        assert torch.equal(mapped, torch.stack([one[part] for one in each]))
    torch.manual_seed(3)
    first = ost.sample(x, order="any").tokens
    torch.manual_seed(3)
    assert torch.equal(ost.sample(x, order="any").tokens, first)
    routed = osm.sample(x, seed=5, order="any")
    assert torch.equal(routed.tokens, ost.sample(x, seed=5, order="any").tokens)  # type: ignore[arg-type]


def test_what_is_not_built() -> None:
    x = noise(3, 4)
    with pytest.raises(ValueError, match="order='tree' is not built: 'row', 'any' would do"):
        ost.sample(x, order="tree")
    with pytest.raises(TypeError, match="order=None is a NoneType"):
        ost.sample(x, order=None)  # type: ignore[arg-type]
