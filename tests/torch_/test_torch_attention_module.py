"""Attention as a module."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import online_softmax.torch as ost

OPTIONS: dict[str, Any] = {
    "causal": True,
    "window": (3, None),
    "softcap": 5.0,
    "scale": 0.4,
    "layout": "BSHD",
}


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 4, 8, generator=draw)
    k, v = (torch.randn(2, 6, 2, 8, generator=draw) for _ in "kv")
    return q, k, v


def test_forward_is_the_function() -> None:
    q, k, v = operands()
    bias, mask = torch.randn(6, 6), torch.ones(6, 6, dtype=torch.bool).tril(2)
    module = ost.Attention(**OPTIONS)
    assert torch.equal(module(q, k, v, mask, bias), ost.attention(q, k, v, mask=mask, bias=bias, **OPTIONS))
    both = ost.Attention(**OPTIONS, return_lse=True)(q, k, v)
    assert torch.equal(both.lse, ost.attention(q, k, v, return_lse=True, **OPTIONS).lse)
    assert not list(module.parameters())


def test_dropout_is_for_training() -> None:
    q, k, v = operands()
    module = ost.Attention(dropout_p=0.5, layout="BSHD")
    torch.manual_seed(1)
    dropped = module(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(dropped, ost.attention(q, k, v, dropout_p=0.5, layout="BSHD"))
    plain = ost.attention(q, k, v, layout="BSHD")
    assert torch.equal(module.eval()(q, k, v), plain)
    assert not torch.equal(dropped, plain)


def test_sinks_are_learned() -> None:
    q, k, v = operands()
    module = ost.Attention(sinks=4, layout="BSHD", dtype=torch.float64)
    assert [n for n, _ in module.named_parameters()] == ["sinks"]
    assert module.sinks.dtype == torch.float64
    assert torch.equal(module.sinks, torch.zeros_like(module.sinks))
    step = torch.optim.SGD(module.parameters(), lr=0.5)
    before = module(q, k, v).square().sum()
    before.backward()
    step.step()
    assert module(q, k, v).square().sum() < before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(copied: Any) -> None:
    q, k, v = operands()
    module = ost.Attention(sinks=4, **OPTIONS)
    torch.nn.init.normal_(module.sinks)
    other = copied(module)
    assert torch.equal(other(q, k, v), module(q, k, v))
    assert repr(other) == repr(module)
    torch.nn.init.zeros_(other.sinks)
    assert not torch.equal(other(q, k, v), module(q, k, v))


def test_state_dict() -> None:
    module, other = ost.Attention(sinks=4), ost.Attention(sinks=4)
    torch.nn.init.normal_(module.sinks)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.sinks, module.sinks)
    assert ost.Attention().state_dict() == {}


def test_repr_says_what_is_not_default() -> None:
    assert repr(ost.Attention()) == "Attention()"
    assert repr(ost.Attention(causal=True, softcap=5.0, sinks=3)) == (
        "Attention(causal=True, softcap=5.0, sinks=3)"
    )


def test_compiled() -> None:
    q, k, v = operands()
    module = ost.Attention(sinks=4, **OPTIONS)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found, wanted = (f(q, k, v).square().sum() for f in (compiled, module))
    gradients = [torch.autograd.grad(t, module.sinks)[0] for t in (found, wanted)]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ({"sinks": 0}, ValueError, "sinks is 0"),
        ({"sinks": True}, TypeError, "sinks is True"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p is 1"),
        ({"layout": "SBHD"}, ValueError, "layout is 'SBHD'"),
        ({"window": 3}, TypeError, "window is 3"),
        ({"return_lse": None}, TypeError, "return_lse=None"),
    ],
)
def test_errors_come_when_it_is_made(given: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        ost.Attention(**given)
