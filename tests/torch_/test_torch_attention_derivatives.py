"""Attention of tensors under PyTorch's transforms: derivatives, vmap, compile, export, opcheck."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import online_softmax.torch as ost
from online_softmax.frontends.torch.attention_options import Rest

# PyTorch's own forward mode loads scripts in the format that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")

OPS = torch.ops.online_softmax
STARTS = {"cu_seqlens_q": torch.tensor([0, 1, 3]), "cu_seqlens_k": torch.tensor([0, 2, 3])}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small(packed: bool) -> tuple[torch.Tensor, ...]:
    if packed:
        return normal(4, 2, 1), normal(4, 1, 1, seed=1), normal(4, 1, 1, seed=2)
    return normal(2, 2, 2, 1), normal(2, 1, 3, 1, seed=1), normal(2, 1, 3, 1, seed=2)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap, window": {"softcap": 2.0, "window": (1, 1)},
    "lengths": {"seqlens_k": torch.tensor([1, 3]), "causal": True},
    "dropout, slopes": {"dropout_p": 0.3, "seed": 5, "alibi_slopes": torch.tensor([[0.5, 1.0], [2.0, 0.25]])},
    "bias, sinks": {"bias": normal(2, 3, seed=3), "sinks": normal(2, seed=4), "causal": True},
    "bias of each": {"bias": normal(2, 1, 2, 3, seed=5), "mask": torch.tensor([[True], [True], [False]]).mT},
    "packed": {"causal": True, "bias": normal(2, 1, 4, seed=6), "sinks": normal(2, seed=7), **STARTS},
    "packed, dropout": {"dropout_p": 0.2, "seed": 3, **STARTS},
}


def of(options: dict[str, Any]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """(a function of q, k, v, bias and sinks, those). -inf is made finite: gradcheck subtracts."""
    own = [n for n in ("bias", "sinks") if n in options]

    def f(q: Any, k: Any, v: Any, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        given = options | dict(zip(own, more, strict=True))
        output, lse = ost.attention(q, k, v, return_lse=True, **given)
        return output, lse.nan_to_num(neginf=0)

    packed = "cu_seqlens_q" in options
    tensors = [*small(packed), *(options[n] for n in own)]
    return f, [t.clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("name", CASES)
def test_first_derivatives(name: str) -> None:
    f, tensors = of(CASES[name])
    assert torch.autograd.gradcheck(
        f, tensors, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    f, tensors = of(CASES[name])
    assert torch.autograd.gradgradcheck(f, tensors, check_fwd_over_rev=True, check_rev_over_rev=True)


def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Plain attention of PyTorch's operations."""
    share = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(share, 1).mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v.repeat_interleave(share, 1)


def squared(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def g(*tensors: torch.Tensor) -> torch.Tensor:
        return f(*tensors).square().sum()

    return g


def agree(transform: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Ours and the peer's, transformed alike; sums of few terms of size 1 in float64."""
    found, wanted = transform(ost.attention)(*tensors), transform(peer)(*tensors)
    for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("of_which", range(3))
@pytest.mark.parametrize("inner", [jacfwd, jacrev])
@pytest.mark.parametrize("outer", [None, jacfwd, jacrev])
def test_orders_of_torch_func(outer: Any, inner: Any, of_which: int) -> None:
    q, k, v = small(False)
    if outer is None:
        agree(lambda f: inner(f, argnums=of_which), q, k, v)
        return
    agree(lambda f: outer(inner(squared(f)), argnums=of_which), q, k, v)


@pytest.mark.parametrize(
    "order", [(jacfwd, jacfwd, jacfwd), (jacrev, jacfwd, jacrev), (jacfwd, jacrev, jacrev)]
)
def test_third_derivatives(order: tuple[Any, Any, Any]) -> None:
    a, b, c = order
    q, k, v = (t[:1] for t in small(False))
    agree(lambda f: a(b(c(squared(f)))), q, k, v)


def test_no_sequence_at_all() -> None:
    q, k, v = small(True)
    starts = torch.tensor([0])

    def f(q: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ost.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts)
        return found

    for transform in (jacfwd(f), jacrev(f), hessian(squared(f)), jacrev(jacrev(squared(f)))):
        found = transform(q)
        assert torch.equal(found, torch.zeros_like(found))


# vmap

DIMS = [(0, None, None), (None, 0, None), (None, None, 2), (1, 0, None), (0, 1, 2), (-1, None, 0)]


@pytest.mark.parametrize("in_dims", DIMS)
def test_vmap_over_each_operand(in_dims: tuple[int | None, ...]) -> None:
    tensors = [
        t if d is None else torch.stack([t, t + 1, -t], d) for t, d in zip(small(False), in_dims, strict=True)
    ]
    agree(lambda f: vmap(f, in_dims=in_dims), *tensors)
    agree(lambda f: vmap(grad(squared(f), argnums=(0, 1, 2)), in_dims=in_dims), *tensors)
    agree(lambda f: vmap(jacfwd(f, argnums=1), in_dims=in_dims), *tensors)


OVER: dict[str, torch.Tensor] = {
    "bias": normal(3, 2, 3, seed=1),
    "sinks": normal(3, 2, seed=2),
    "mask": torch.rand(3, 2, 1, 2, 3, generator=torch.Generator().manual_seed(3)) > 0.4,
    "alibi_slopes": normal(3, 2, seed=4).abs(),
    "seqlens_k": torch.tensor([[1, 3], [2, 2], [3, 0]]),
}


@pytest.mark.parametrize("base", ["plain", "bias, sinks", "dropout, slopes", "lengths"])
@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("with_q", [False, True])
def test_vmap_over_each_option(name: str, base: str, with_q: bool) -> None:
    """An example of a batch is what the call with that example gives, forward and backward."""
    q, k, v = small(False)
    queries = torch.stack([q, q * 2, -q])
    fixed = {n: o for n, o in CASES[base].items() if n != name}

    def loss(q: torch.Tensor, option: torch.Tensor) -> Any:
        output, lse = ost.attention(q, k, v, return_lse=True, **(fixed | {name: option}))
        return output.square().sum() + lse.nan_to_num(neginf=0).sum(), output

    over: tuple[int, ...] = (0, 1) if name in ("bias", "sinks") else (0,)
    both = grad(loss, argnums=over, has_aux=True)
    found = vmap(both, in_dims=(0 if with_q else None, 0))(queries if with_q else q, OVER[name])
    for i in range(3):
        gradients, output = both(queries[i] if with_q else q, OVER[name][i])
        torch.testing.assert_close(found[1][i], output, rtol=1e-12, atol=1e-12)
        for a, b in zip(found[0], gradients, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-12, atol=1e-12)


def test_vmap_of_sequences_side_by_side() -> None:
    q, k, v = small(True)
    queries = torch.stack([q, -q], 1)
    for given in (CASES["packed"], CASES["packed, dropout"]):
        found = vmap(lambda q, given=given: ost.attention(q, k, v, **given), in_dims=1)(queries)
        for i in range(2):
            wanted = ost.attention(queries[:, i], k, v, **given)
            torch.testing.assert_close(found[i], wanted, rtol=1e-12, atol=1e-12)


def test_vmap_makes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples are part of the batch, not a loop."""
    import online_softmax.frontends.torch.attention_direct as direct

    calls = []
    forward = direct.forward
    monkeypatch.setattr(direct, "forward", lambda *args: (calls.append(args[0].shape), forward(*args))[1])
    q, k, v = small(False)
    vmap(ost.attention, in_dims=(0, None, None))(q.expand(5, *q.shape), k, v)
    assert calls == [(10, 2, 2, 1)]


def test_vmapped_dropout_follows_randomness() -> None:
    q, k, v = (t.repeat_interleave(8, 2) for t in small(False))

    def drop(q: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ost.attention(q, k, v, dropout_p=0.5)
        return found

    same = vmap(drop, randomness="same")(q.expand(2, *q.shape))
    assert torch.equal(same[0], same[1])
    different = vmap(drop, randomness="different")(q.expand(2, *q.shape))
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(drop)(q.expand(2, *q.shape))


# Compiled, exported, checked


def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    first = ost.attention(q, k, v, bias=b, sinks=s, causal=True, softcap=4.0)
    turned = (t.transpose(1, 2) for t in (q, k, v))
    output, lse = ost.attention(*turned, window=(2, None), return_lse=True, layout="BSHD")
    return first.sin().sum() + output.square().sum() + lse.sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend: str) -> None:
    tensors = [*small(False), normal(2, 3, seed=3), normal(2, seed=4)]
    tensors = [t.requires_grad_() for t in tensors]
    wanted = loss(*tensors)
    expected = torch.autograd.grad(wanted, tensors)
    torch._dynamo.reset()
    found = torch.compile(loss, fullgraph=True, backend=backend)(*tensors)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(found, tensors), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_compiled_dropout_draws_from_the_generator() -> None:
    q, k, v = small(False)
    torch._dynamo.reset()
    function = torch.compile(
        lambda q, k, v: ost.attention(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(1)
    found = function(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(found, ost.attention(q, k, v, dropout_p=0.5))


def test_compiled_hessian() -> None:
    q, k, v = (t[:1] for t in small(False))
    torch._dynamo.reset()
    function = torch.compile(
        lambda q: hessian(lambda q: squared(ost.attention)(q, k, v))(q), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(
        function(q), hessian(lambda q: squared(peer)(q, k, v))(q), rtol=1e-11, atol=1e-11
    )


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = ost.Attention(causal=True, sinks=2)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(q, k, v)
        return found


def test_exported_with_lengths_left_open() -> None:
    n, m = torch.export.Dim("n", min=2, max=64), torch.export.Dim("m", min=2, max=64)
    model = _Model()
    tensors = tuple(t.float() for t in small(False))
    program = torch.export.export(model, tensors, dynamic_shapes={"q": {2: n}, "k": {2: m}, "v": {2: m}})
    longer = tuple(t.float() for t in (normal(2, 2, 9, 1), normal(2, 1, 11, 1), normal(2, 1, 11, 1)))
    for three in (tensors, longer):
        assert torch.equal(program.module()(*three), model(*three))


def checked() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    q, k, v = (t.requires_grad_() for t in small(False))
    bias, sinks = normal(2, 3, seed=3).requires_grad_(), normal(2, seed=4).requires_grad_()
    rest = Rest(mask=torch.tensor([True, False, True]), softcap=3.0, right=0)
    lengths = Rest(seqlens_k=torch.tensor([1, 3]), seed=torch.tensor(3), dropout_p=0.2)
    packed = Rest(cu_seqlens_q=torch.tensor([0, 1, 2]), cu_seqlens_k=torch.tensor([0, 2, 3]))
    with torch.no_grad():
        output, lse = OPS.attention(q, k, v, bias, sinks, *rest)
    do, dlse = normal(*output.shape, seed=8).requires_grad_(), normal(*lse.shape, seed=9)
    five = (q, k, v, bias, sinks)
    turned = normal(2, 3, 2, 1).transpose(1, 2).bfloat16()
    plain = [t.detach() for t in (q, k, v)]
    stored = [t.detach().to(torch.int8) for t in (k, v)]
    one = torch.tensor(0.5)
    return {
        "forward": (OPS.attention, (*five, *rest)),
        "lengths": (OPS.attention, (q, k, v, None, None, *lengths)),
        "turned": (OPS.attention, (turned, *(t.bfloat16() for t in plain[1:]), None, None, *Rest())),
        "packed": (OPS.attention, (*(t[:1] for t in plain), None, None, *packed)),
        "backward": (OPS.attention_backward, (do, dlse, *five, output, lse, True, *rest)),
        "backward without": (OPS.attention_backward, (do, None, *five[:4], None, output, lse, False, *rest)),
        "jvp": (OPS.attention_jvp, (*five, q, None, v, bias, None, *rest)),
        "double": (OPS.attention_double_backward, (do, dlse, *five, q, None, v, bias, None, *rest)),
        "stored": (
            OPS.attention_stored, (q.detach().float(), *stored, None, None, None, one, one, *Rest())
        ),
        "keep": (OPS.attention_keep, (torch.tensor(3), 2, 4, 3, 4, None, None, 0.2, None)),
    }  # fmt: skip


CHECKED = checked()


@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name: str) -> None:
    op, args = CHECKED[name]
    found = torch.library.opcheck(op, args)
    assert set(found.values()) == {"SUCCESS"}
