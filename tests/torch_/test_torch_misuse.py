"""What callers get wrong, and what they may do with results: arguments of a wrong kind are named before any
work, and what is written into a result is no matter of the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import online_softmax.torch as ost

TARGETS = torch.tensor([0, 1, 2])
LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda hidden, weight: ost.cross_entropy(hidden, TARGETS),
    "linear_cross_entropy": lambda hidden, weight: ost.linear_cross_entropy(hidden, weight, TARGETS),
}
Q = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_a_gradient_is_the_callers_to_write_into(name: str, factor: float) -> None:
    """Of a graph that is retained: the next backward is no other for it."""
    hidden = torch.randn(3, 5, requires_grad=True)
    weight = torch.randn(7, 5, requires_grad=True)
    operands = [hidden, weight] if name == "linear_cross_entropy" else [hidden]
    loss = LOSSES[name](hidden, weight) * factor
    first = torch.autograd.grad(loss, operands, retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.zero_()
    for retain in (True, False):
        again = torch.autograd.grad(loss, operands, retain_graph=retain)
        for a, b in zip(again, kept, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("value", [None, "q", 1.0, np.ones((1, 2, 4, 8), np.float32)])
def test_attention_of_what_is_no_tensor(which: int, value: Any) -> None:
    operands: list[Any] = [Q, Q, Q]
    operands[which] = value
    with pytest.raises(TypeError, match=f"^{'qkv'[which]} is a .*: a torch.Tensor would do"):
        ost.attention(*operands)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.5}, {"dropout_p": 0.5, "seed": 1}])
def test_a_generator_is_one(options: dict[str, Any]) -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"generator is a int: a torch\.Generator would do"):
        ost.attention(Q, Q, Q, generator=wrong, **options)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scales_lie_where_the_keys_lie(name: str) -> None:
    scale: dict[str, Any] = {name: torch.ones(2, device="meta")}
    with pytest.raises(RuntimeError, match=f"{name} lies on meta and q on cpu"):
        ost.attention(Q, Q, Q, **scale)


MANY = np.ones((3, 5), np.float32)


@pytest.mark.parametrize("value", [MANY, torch.from_numpy(MANY), torch.eye(3).to_sparse()])
@pytest.mark.parametrize("name", ["causal_align", "dropout_p", "layout"])
def test_attentions_options_are_no_arrays(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises((TypeError, ValueError), match=f"(?s)^{name} is .*would do"):
        ost.attention(Q, Q, Q, **wrong)


@pytest.mark.parametrize("value", [MANY, torch.from_numpy(MANY), torch.eye(3).to_sparse(), torch.tensor(1.0)])
@pytest.mark.parametrize(
    "name",
    [
        "ignore_index", "label_smoothing", "smoothing", "z_loss", "softcap", "temperature", "reduction",
        "empty", "riders",
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", LOSSES)
def test_losses_options_are_no_arrays(function: str, name: str, value: Any) -> None:
    operands = (torch.randn(3, 5), torch.randn(7, 5)) if function != "cross_entropy" else (torch.randn(3, 5),)
    wrong: dict[str, Any] = {name: value}
    with pytest.raises((TypeError, ValueError), match=f"(?s)^{name} .*would do"):
        getattr(ost, function)(*operands, TARGETS, **wrong)


@pytest.mark.parametrize("name", ["label_smoothing", "z_loss", "temperature"])
def test_losses_numbers_are_no_bools(name: str) -> None:
    wrong: dict[str, Any] = {name: name == "temperature"}
    with pytest.raises(TypeError, match=f"{name} is .*: a number would do"):
        ost.cross_entropy(torch.randn(3, 5), TARGETS, **wrong)


@pytest.mark.parametrize("value", [None, "a", 3, float("nan"), torch.tensor(True)])
@pytest.mark.parametrize("name", ["is_causal", "enable_gqa"])
def test_flags_of_scaled_dot_product_attention(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=f"{name}=.*True or False would do"):
        ost.scaled_dot_product_attention(Q, Q, Q, **wrong)
    with ost.enable(), pytest.raises(TypeError, match=name):  # PyTorch's own words
        torch.nn.functional.scaled_dot_product_attention(Q, Q, Q, **wrong)


@pytest.mark.parametrize("value", [None, "a", torch.tensor(0.5), MANY])
def test_dropout_of_scaled_dot_product_attention(value: Any) -> None:
    with pytest.raises(TypeError, match=r"(?s)dropout_p is .*: a number would do"):
        ost.scaled_dot_product_attention(Q, Q, Q, dropout_p=value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ost.softmax(x),
        lambda x: ost.logsumexp(x, 0),
        lambda x: ost.cross_entropy(x, TARGETS),
        lambda x: ost.linear_cross_entropy(x, torch.ones(7, 5), TARGETS),
        lambda x: ost.attention(x, x, x),
        lambda x: ost.attention(x[None, None], x[None, None], x[None, None]),
        lambda x: ost.scaled_dot_product_attention(x, x, x),
        lambda x: ost.logcumsumexp(x),
    ],
)
def test_zeros_without_memory(call: Callable[..., Any]) -> None:
    """What forward mode makes of a tangent that is not there: it has an address of 0."""
    torch.testing.assert_close(call(torch._efficientzerotensor((3, 5))), call(torch.zeros(3, 5)))


@pytest.mark.parametrize("number", ["scale", "label_smoothing"])
def test_lengths_and_numbers_may_be_left_open_in_compiled_code(number: str) -> None:
    """torch.compile makes symbols of both: no check may ask of them what it cannot trace."""
    q, logits = torch.randn(1, 2, 5, 8), torch.randn(4, 9)
    targets = torch.arange(4)

    def call(q: torch.Tensor, logits: torch.Tensor, value: float) -> torch.Tensor:
        if number == "scale":
            return ost.attention(q, q, q, causal=True, scale=value)
        return ost.cross_entropy(logits, targets, label_smoothing=value)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for value in (0.25, 0.5):
        assert torch.equal(compiled(q, logits, value), call(q, logits, value))
