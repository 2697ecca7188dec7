"""sample of tensors: NumPy's tokens for the same seed, PyTorch's generator without one."""

from __future__ import annotations

import pytest
import torch
from row_cases import FORMATS, assert_same_bits, layouts, noise, numpy_of
from torch.func import vmap

import online_softmax
import online_softmax.torch as ost


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_tokens_of_the_numpy_face(dtype: torch.dtype) -> None:
    for name, x in layouts(dtype).items():
        for axis in range(x.ndim):
            if not x.shape[axis]:
                continue
            for options in (
                {},
                {"top_k": 3, "min_p": 0.1, "temperature": 0.7},
                {"top_p": 0.8, "draw": 2**63},
            ):
                found = ost.sample(x, axis, seed=2**64 - 5, **options)
                expected = online_softmax.sample(numpy_of(x), axis, seed=2**64 - 5, **options)
                assert (found.tokens.numpy() == expected.tokens).all(), name
                assert_same_bits(found.log_probabilities, expected.log_probabilities, name)


def test_options_of_rows_and_places_in_a_whole() -> None:
    x = noise(4, 50)
    options = {"temperature": torch.tensor([0, 0.5, 1, 2]), "top_k": torch.tensor([1, 5, 50, 7])}
    found = ost.sample(x, seed=3, draw=9, origin=(5, 100), **options)
    given = {name: value.numpy() for name, value in options.items()}
    expected = online_softmax.sample(x.numpy(), seed=3, draw=9, origin=(5, 100), **given)
    assert (found.tokens.numpy() == expected.tokens).all()
    assert_same_bits(found.log_probabilities, expected.log_probabilities)
    assert torch.equal(ost.sample(x, dim=1, seed=torch.tensor(3)).tokens, ost.sample(x, seed=3).tokens)


def test_the_generator_governs_the_seed() -> None:
    x = noise(64, 50)
    torch.manual_seed(4)
    first, second = ost.sample(x).tokens, ost.sample(x).tokens
    torch.manual_seed(4)
    assert torch.equal(ost.sample(x).tokens, first)
    assert not torch.equal(first, second)
    own = [ost.sample(x, generator=torch.Generator().manual_seed(8)).tokens for _ in range(2)]
    assert torch.equal(*own)
    assert not torch.equal(own[0], first)


def test_nothing_is_differentiable() -> None:
    tokens, found = ost.sample(noise(4, 5).requires_grad_(), seed=1)
    assert not tokens.requires_grad
    assert not found.requires_grad


def test_vmap_is_a_loop() -> None:
    x = noise(3, 4, 50)
    expected = torch.stack([ost.sample(part, seed=1).tokens for part in x])
    assert torch.equal(vmap(lambda x: ost.sample(x, seed=1).tokens)(x), expected)
    torch.manual_seed(0)
    drawn = vmap(lambda x: ost.sample(x).tokens, randomness="different")(x[:1].expand(3, 4, 50))
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_calls_draw_from_the_generator_too(backend: str) -> None:
    x = noise(64, 50)
    seeded = torch.compile(lambda x: ost.sample(x, seed=5, top_k=9), fullgraph=True, backend=backend)
    assert torch.equal(seeded(x)[0], ost.sample(x, seed=5, top_k=9).tokens)
    free = torch.compile(lambda x: ost.sample(x)[0], fullgraph=True, backend=backend)
    torch.manual_seed(1)
    first, second = free(x), free(x)
    torch.manual_seed(1)
    assert torch.equal(free(x), first)
    assert not torch.equal(first, second)


def test_errors() -> None:
    x = noise(4, 5)
    for options, error, message in (
        ({"temperature": -1.0}, ValueError, "temperature is -1.0"),
        ({"temperature": None}, TypeError, "temperature is None"),
        ({"top_p": 1.5}, ValueError, "top_p is 1.5"),
        ({"top_k": 0}, ValueError, "top_k is 0"),
        ({"top_k": 1.5}, TypeError, "top_k holds float64"),
        ({"top_k": "all"}, TypeError, "top_k is a str: a number or a tensor would do"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": torch.tensor(1.0)}, TypeError, r"seed is torch\.float32 of shape \(\)"),
        ({"seed": 1, "generator": torch.Generator()}, ValueError, "seed and generator were both given"),
        ({"generator": 3}, TypeError, "generator is a int"),
        ({"origin": (1,)}, TypeError, "origin is"),
        ({"min_p": torch.ones(3)}, ValueError, r"min_p has shape \(3,\)"),
    ):
        with pytest.raises(error, match=message):
            ost.sample(x, **options)
    with pytest.raises(ValueError, match="logits has no dimensions"):
        ost.sample(x[0, 0])
    with pytest.raises(ValueError, match="a vocabulary of no tokens"):
        ost.sample(x[:, :0])
    with pytest.raises(RuntimeError, match="top_k lies on meta"):
        ost.sample(x, top_k=torch.ones(4, dtype=torch.int64, device="meta"))
