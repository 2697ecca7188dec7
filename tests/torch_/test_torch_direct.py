"""Plain calls that go from tensors straight to the core: the bits of the NumPy faces, and what they leave to
the general way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import online_softmax
import online_softmax.torch as ost
from online_softmax import _core
from online_softmax.frontends.torch import attention_direct, loss_kernels, memory

FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WIDE = {torch.float64: torch.float64}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(t: torch.Tensor, a: Any) -> None:
    assert np.array_equal(memory.array(t), a, equal_nan=True)


def operands(name: str, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """q, k and v, and options that the core is told of directly."""
    q, k, v = normal(2, 4, 5, 8, dtype=dtype), *(normal(2, 2, 70, 8, seed=i, dtype=dtype) for i in (1, 2))
    if name == "plain":
        return (q, k, v), {}
    if name == "by place":
        turned = (
            normal(2, n, h, 8, seed=n, dtype=dtype).transpose(1, 2) for n, h in ((5, 4), (9, 2), (9, 2))
        )
        return tuple(turned), {"causal": True, "scale": 0.3}
    if name == "wider values":
        return (q[:, :, 1:4], k[..., ::2, :], normal(2, 2, 35, 11, seed=3, dtype=dtype)), {"window": (30, 2)}
    bias = normal(4, 1, 70, seed=4, dtype=WIDE.get(dtype, torch.float32))
    mask = normal(2, 1, 5, 1, seed=5) > -1
    return (q, k, v), {"bias": bias, "mask": mask, "softcap": 3.0, "causal_align": "upper_left"}


NAMES = ("plain", "by place", "wider values", "added")


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [1, 2])
def test_attention_has_the_bits_of_arrays(name: str, dtype: torch.dtype, threads: int) -> None:
    own, options = operands(name, dtype)
    arrays = {n: memory.array(o) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    values = [memory.array(t) for t in own]
    wanted = online_softmax.attention(*values, **arrays, return_lse=True)
    up, up_lse = normal(*wanted.output.shape, seed=6, dtype=dtype), normal(*wanted.lse.shape, seed=7)
    found = online_softmax.attention_backward(
        memory.array(up), *values, wanted.output, wanted.lse, dlse=memory.array(up_lse), **arrays
    )
    leaves = [t.detach().requires_grad_() for t in own]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        output, lse = ost.attention(*own, **options, return_lse=True)
        same(output, wanted.output), same(lse, wanted.lse)
        assert output.transpose(1, 2).is_contiguous() or name != "by place"
        output, lse = ost.attention(*leaves, **options, return_lse=True)
        same(output, wanted.output), same(lse, wanted.lse)
        for _ in range(2):
            gradients = torch.autograd.grad(
                (output, lse), leaves, (up, up_lse.to(lse.dtype)), retain_graph=True
            )
            for t, of in zip(gradients, "qkv", strict=True):
                same(t, getattr(found, of))
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch without DLPack's exchange API"
)
def test_which_calls_are_plain() -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    numbers = attention_direct.Numbers()

    def served(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any = None, mask: Any = None) -> bool:
        return attention_direct.forward(q, k, v, bias, mask, numbers) is not None

    assert served(q, k, v)
    assert served(q.requires_grad_(), k, v, normal(3, 5), normal(1, 5) > 0)
    lazily = torch.complex(normal(1, 2, 3, 4), q.detach()).conj().imag
    assert lazily.is_neg()
    for other in (lazily, q.double(), q[..., :3], q[0], q.to("meta"), q.to_sparse(), q[:, :0]):
        assert not served(other, k, v)
    assert not served(q, k, v[:, :1])
    assert not served(q, k[:, :, :4], v)
    assert not served(q, k, v, normal(3, 4)), "does not broadcast"
    assert not served(q, k, v, normal(3, 5).double())
    assert not served(q, k, v, None, normal(3, 5))
    same(ost.attention(lazily, k, v), online_softmax.attention(-q.detach().numpy(), k.numpy(), v.numpy()))

    logits, targets = normal(3, 4), torch.tensor([0, 3, 1])

    def indices(logits: torch.Tensor, targets: torch.Tensor, axis: int = 1, ignore: int = -100) -> bool:
        return loss_kernels.of_indices(logits, targets, axis, ignore, 1, None) is not None

    assert indices(logits, targets)
    assert indices(logits.T, targets, 0)
    assert indices(logits, targets, 1, 3)
    for other in (targets.int(), targets[:2], targets - 1, targets + 1, torch.full((3,), -100)):
        assert not indices(logits, other)
    assert not indices(logits.to("meta"), targets)


def test_the_gradient_of_an_output_that_is_negated_lazily() -> None:
    q, k, v = (normal(1, 2, 3, 4, seed=i).requires_grad_() for i in range(3))
    up = normal(1, 2, 3, 4, seed=3)
    lazily = torch.complex(normal(1, 2, 3, 4), up).conj().imag
    found = torch.autograd.grad(ost.attention(q, k, v), (q, k, v), lazily)
    wanted = torch.autograd.grad(ost.attention(q, k, v), (q, k, v), -up)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_gradients_of_the_lse_alone_and_of_a_bias() -> None:
    q, k, v = (normal(1, 2, 3, 4, seed=i, dtype=torch.float64).requires_grad_() for i in range(3))
    bias = normal(3, 3, dtype=torch.float64).requires_grad_()

    def lse(*args: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ost.attention(*args[:3], bias=args[3], return_lse=True).lse
        return found

    assert torch.autograd.gradcheck(lse, (q, k, v, bias))
    assert torch.autograd.gradcheck(lambda *args: ost.attention(*args[:3], bias=args[3]), (q, k, v, bias))
    assert torch.autograd.gradgradcheck(lambda *args: ost.attention(*args), (q, k, v))


def test_a_change_of_what_was_kept_is_seen() -> None:
    q, k, v = (normal(1, 2, 3, 4, seed=i).requires_grad_() for i in range(3))
    output = ost.attention(q, k, v)
    with torch.no_grad():
        k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_sums_in_the_order_of_arrays(reduction: str) -> None:
    """In float64, where an other order would show."""
    for rows in (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 136, 200, 255, 256, 257, 1000, 1031):
        logits = 4 * normal(rows, 3, seed=rows, dtype=torch.float64)
        targets = torch.randint(0, 3, (2, rows), generator=torch.Generator().manual_seed(rows)).T[:, 0]
        targets[rows // 2 : rows // 2 + rows // 4] = -100
        array, index = logits.numpy(), targets.numpy()
        wanted = online_softmax.cross_entropy(array, index, reduction=reduction)
        same(ost.cross_entropy(logits, targets, reduction=reduction), wanted)
        leaf = logits.clone().requires_grad_()
        loss = ost.cross_entropy(leaf, targets, reduction=reduction)
        same(loss.detach(), wanted)
        up = torch.ones_like(loss)
        (gradient,) = torch.autograd.grad(loss, leaf, up)
        same(
            gradient,
            online_softmax.cross_entropy_backward(up.numpy(), array, index, reduction=reduction),
        )


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_cross_entropy_of_strided_targets(dtype: torch.dtype) -> None:
    logits = normal(3, 5, 4, 2, dtype=dtype)
    targets = torch.randint(0, 5, (2, 4, 3), generator=torch.Generator().manual_seed(1)).permute(2, 1, 0)
    for given in (
        {},
        {"ignore_index": 2},
        {"label_smoothing": 0.1},
        {"temperature": 0.5, "reduction": "sum"},
    ):
        wanted = online_softmax.cross_entropy(memory.array(logits), targets.numpy(), **given)
        found = ost.cross_entropy(logits, targets, **given)
        assert found.dtype == WIDE.get(dtype, torch.float32)
        same(found, wanted)


def test_a_core_without_small_calls_gives_the_same() -> None:
    """Where an algorithm is asked for in the environment, all calls go by the general way."""
    q, k, v = (normal(1, 2, 30, 4, seed=i) for i in range(3))
    logits, targets = normal(30, 7), torch.arange(30) % 7
    calls = (lambda: ost.attention(q, k, v), lambda: ost.cross_entropy(logits, targets))
    wanted = [call() for call in calls]
    _core.set_default_isa("")
    try:
        found = [call() for call in calls]
    finally:
        _core.set_default_isa(online_softmax.cpu.default_isa())
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


# --- a backward that is compiled by itself

_TARGETS = torch.tensor([0, 3, -100, 2])
BACKWARDS = {
    "attention": lambda x, w: ost.attention(*(t[None, None] for t in (x, x, w))).square().sum(),
    "attention with its sums": lambda x, w: sum(
        t.square().sum() for t in ost.attention(*(t[None, None] for t in (x, w, w)), return_lse=True)
    ),
    "softmax": lambda x, w: ost.softmax(x @ w.T).square().sum(),
    "cross_entropy": lambda x, w: ost.cross_entropy(x @ w.T, _TARGETS),
    "losses of rows": lambda x, w: ost.cross_entropy(x @ w.T, _TARGETS, reduction="none").square().sum(),
    "linear_cross_entropy": lambda x, w: ost.linear_cross_entropy(x, w, _TARGETS),
}  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # its own
@pytest.mark.parametrize("name", BACKWARDS)
def test_compiled_autograd_takes_the_backward_whole(name: str) -> None:
    """The forward was a plain call, whose graph torch.compile then traces."""
    compiled_autograd = pytest.importorskip(
        "torch._dynamo.compiled_autograd", reason="this PyTorch compiles no backward by itself"
    )
    torch.manual_seed(0)
    x, w = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    call = BACKWARDS[name]
    right = torch.autograd.grad(call(x, w), (x, w))
    torch._dynamo.reset()
    loss = call(x, w)
    with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    for made, expected in zip((x.grad, w.grad), right, strict=True):
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-15)  # sums of a few numbers below 1
