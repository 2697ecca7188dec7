"""softmax, log_softmax and logsumexp of tensors: bits of the NumPy faces, derivatives of every kind."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from row_cases import FORMATS, WIDE, assert_same_bits, layouts, noise, numpy_of
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import online_softmax
import online_softmax.torch as ost

OPS = ("softmax", "log_softmax", "logsumexp")
WHERE = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]], dtype=torch.bool)
OPTIONS: dict[str, dict[str, Any]] = {
    "last": {"dim": -1},
    "first": {"dim": 0},
    "both": {"dim": (0, 1)},
    "none": {"axis": ()},
    "where": {"dim": 1, "where": WHERE},
}


def ours(op: str, key: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        found = getattr(ost, op)(x, **OPTIONS[key])
        # Elsewhere it is -inf, which no difference quotient likes.
        return torch.where(WHERE, found, 0) if (op, key) == ("log_softmax", "where") else found

    return function


def plain(op: str, key: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same by PyTorch's own operations."""

    def function(x: torch.Tensor) -> torch.Tensor:
        if key == "none":
            return {"softmax": x * 0 + 1, "log_softmax": x * 0, "logsumexp": x * 1}[op]
        hidden = x if key != "where" else x.masked_fill(~WHERE, -torch.inf)
        over = OPTIONS[key]["dim"]
        lse = torch.logsumexp(hidden, over, keepdim=True)
        if op == "logsumexp":
            return torch.logsumexp(hidden, over)
        if op == "softmax":
            return (hidden - lse).exp()
        return torch.where(WHERE, x - lse, 0) if key == "where" else x - lse

    return function


CASES = [pytest.param(op, key, id=f"{op}-{key}") for op, key in itertools.product(OPS, OPTIONS)]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


# Values


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_bits_of_the_numpy_face(op: str, dtype: torch.dtype) -> None:
    for name, x in layouts(dtype).items():
        for dim in {None, -1, 0, tuple(range(x.ndim))} if x.ndim else {None}:
            options = {} if dim is None else {"dim": dim}
            found = getattr(ost, op)(x, **options)
            assert_same_bits(found, getattr(online_softmax, op)(numpy_of(x), **options), f"{name} {dim}")


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_small_and_larger_calls_agree(op: str, dtype: torch.dtype) -> None:
    """What goes from the tensor to the kernel has the bits of the registered operation, at every size."""
    for shape in ((1,), (3,), (1, 1), (7, 129), (200, 3), (1030, 2), (2, 3, 4), (16, 1024), (17, 1024)):
        x = noise(*shape, dtype=dtype)
        x.view(-1)[::7] = -torch.inf
        registered = getattr(torch.ops.online_softmax, op)(
            x.as_strided(x.shape, x.stride()), [x.ndim - 1], None
        )
        found = getattr(ost, op)(x)
        assert_same_bits(found, numpy_of(registered))
        assert_same_bits(found, getattr(online_softmax, op)(numpy_of(x), dim=-1), str(shape))
        assert found.is_contiguous()
        assert not found.requires_grad


@pytest.mark.parametrize("op", OPS)
def test_special_values(op: str) -> None:
    rows = [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, -np.inf, -np.inf], [-np.inf, 1, 2], [3e38, -3e38, 0]]
    for dtype in WIDE[:2]:
        x = torch.tensor(rows, dtype=dtype)
        assert_same_bits(getattr(ost, op)(x), getattr(online_softmax, op)(x.numpy()))


@pytest.mark.parametrize("op", OPS)
def test_where(op: str) -> None:
    x = noise(4, 5)
    for mask in (WHERE, WHERE[0], WHERE[:, :1], torch.zeros(4, 5, dtype=torch.bool)):
        expected = getattr(online_softmax, op)(x.numpy(), where=mask.numpy())
        assert_same_bits(getattr(ost, op)(x, where=mask), expected)


def test_options_of_the_result() -> None:
    x = noise(4, 5, dtype=torch.float32)
    assert_same_bits(ost.softmax(x, dtype=torch.float64), online_softmax.softmax(x.numpy(), dtype="float64"))
    assert_same_bits(ost.softmax(x, dtype=torch.float16), online_softmax.softmax(x.numpy(), dtype="float16"))
    for keepdim in (True, False):
        for dim in (0, 1, (0, 1)):
            expected = online_softmax.logsumexp(x.numpy(), dim=dim, keepdims=keepdim)
            assert_same_bits(ost.logsumexp(x, dim=dim, keepdim=keepdim), expected)
    assert ost.softmax(x.t(), 0).stride() == torch.empty_like(x.t()).stride()


def test_weights_and_signs() -> None:
    x, b = noise(4, 5), noise(4, 5, seed=1)
    b[0] = 0
    b[1, 2] = 0
    x[1, 2] = torch.inf
    for options in ({}, {"dim": 0}, {"axis": None}, {"axis": ()}, {"where": WHERE}):
        given = {k: numpy_of(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        expected = online_softmax.logsumexp(x.numpy(), b=b.numpy(), return_sign=True, **given)
        for found, wanted in zip(ost.logsumexp(x, b=b, return_sign=True, **options), expected, strict=True):
            assert_same_bits(found, wanted)
        assert_same_bits(
            ost.logsumexp(x, b=b, **options), online_softmax.logsumexp(x.numpy(), b=b.numpy(), **given)
        )
    lse, sign = ost.logsumexp(torch.tensor([[1.0, 2], [-np.inf, -np.inf]]), return_sign=True)
    assert sign.tolist() == [1, 0]
    assert_same_bits(lse, online_softmax.logsumexp(np.float32([[1, 2], [-np.inf, -np.inf]])))
    for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"):
        narrow = x.nan_to_num(posinf=3).to(getattr(torch, name))
        expected = online_softmax.logsumexp(numpy_of(narrow), b=b.numpy())
        assert_same_bits(ost.logsumexp(narrow, b=b), expected, name)


# Derivatives


@pytest.mark.parametrize(("op", "key"), CASES)
def test_gradcheck(op: str, key: str) -> None:
    f, x = ours(op, key), noise(4, 5).requires_grad_()
    close(f(x), plain(op, key)(x))
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(f, x, **options)
    assert torch.autograd.gradgradcheck(f, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("options", [{}, {"dim": (0, 1)}, {"axis": ()}, {"where": WHERE[0]}], ids=str)
def test_gradcheck_of_weights(options: dict[str, Any]) -> None:
    def f(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ost.logsumexp(x, b=b, return_sign=True, **options)[0]

    operands = tuple(noise(4, 5, seed=s).requires_grad_() for s in (0, 1))
    checks = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(f, operands, **checks)
    assert torch.autograd.gradgradcheck(f, operands, check_fwd_over_rev=True)


@pytest.mark.parametrize(("op", "key"), CASES)
def test_transforms_and_their_compositions(op: str, key: str) -> None:
    f, g, x = ours(op, key), plain(op, key), noise(4, 5)

    def scalar(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: (function(x) ** 2).sum()

    t = noise(4, 5, seed=1)
    close(jvp(f, (x,), (t,)), jvp(g, (x,), (t,)))
    y, back = vjp(f, x)
    close(back(torch.ones_like(y)), vjp(g, x)[1](torch.ones_like(y)))
    for outer in (jacfwd, jacrev):
        close(outer(f)(x), outer(g)(x))
        for inner in (jacfwd, jacrev):
            close(outer(inner(scalar(f)))(x), outer(inner(scalar(g)))(x))
            close(jacrev(outer(inner(scalar(f))))(x), jacrev(outer(inner(scalar(g))))(x))


@pytest.mark.parametrize("op", OPS)
def test_vmap(op: str) -> None:
    f, x = getattr(ost, op), noise(3, 4, 5)
    for along in (0, 1, 2, -1):
        expected = torch.stack([f(part, 0) for part in x.unbind(along)])
        assert_same_bits(vmap(lambda x: f(x, 0), in_dims=along)(x), expected.numpy())
    close(vmap(jacrev(f))(x[0]), torch.stack([jacrev(f)(row) for row in x[0]]))
    close(vmap(grad(lambda x: f(x).sum()))(x[0]), torch.stack([grad(lambda x: f(x).sum())(r) for r in x[0]]))
    masks = torch.stack([WHERE[:, :1], ~WHERE[:, :1], WHERE[:, 1:2]])
    expected = torch.stack([f(a, 0, where=b) for a, b in zip(x, masks, strict=True)])
    assert_same_bits(vmap(lambda x, b: f(x, 0, where=b))(x, masks), expected.numpy())
    expected = torch.stack([f(x[0], 0, where=b) for b in masks])
    assert_same_bits(vmap(lambda b: f(x[0], 0, where=b))(masks), expected.numpy())


def test_rows_of_minus_infinity_have_gradient_0() -> None:
    x = torch.full((2, 3), -torch.inf, dtype=torch.float64)
    x[1] = torch.tensor([0.0, 1, -torch.inf])
    x.requires_grad_()
    lse = ost.logsumexp(x)
    (dx,) = torch.autograd.grad(lse, x, torch.ones_like(lse))
    assert dx[0].tolist() == [0, 0, 0]
    close(dx[1], torch.softmax(x[1], 0).detach())
    (masked,) = torch.autograd.grad(ost.logsumexp(x, where=torch.tensor([True, True, False])).sum(), x)
    assert masked[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_gradients_have_the_format_of_their_operand(op: str, dtype: torch.dtype) -> None:
    x = noise(3, 5, dtype=dtype).requires_grad_()
    y = getattr(ost, op)(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    wide = x.detach().double().requires_grad_()
    z = getattr(torch, op)(wide, -1)
    (expected,) = torch.autograd.grad(z, wide, torch.ones_like(z))
    assert dx.dtype == dtype
    # A handful of roundings of numbers below 5 (the sum of a row of log_softmax's gradient).
    torch.testing.assert_close(dx.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)


# What PyTorch does around a call


def test_requires_grad_of_subsets() -> None:
    for x_wants, b_wants in itertools.product((True, False), repeat=2):
        x, b = noise(4, 5).requires_grad_(x_wants), noise(4, 5, seed=1).abs().requires_grad_(b_wants)
        y = ost.logsumexp(x, b=b)
        assert y.requires_grad is (x_wants or b_wants)
        if y.requires_grad:
            y.sum().backward()
        assert (x.grad is not None, b.grad is not None) == (x_wants, b_wants)


@pytest.mark.parametrize("op", OPS)
def test_modes_without_gradients(op: str) -> None:
    x = noise(4, 5).requires_grad_()
    f = getattr(ost, op)
    with torch.no_grad():
        assert not f(x).requires_grad
    with torch.inference_mode():
        made = f(x)
        assert made.is_inference()
    assert_same_bits(made, f(x).detach().numpy())
    assert f(torch.nn.Parameter(x.detach())).requires_grad
    assert not f(x.detach()).requires_grad
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        anomaly = torch.autograd.detect_anomaly(check_nan=True)
    with anomaly, pytest.raises(RuntimeError, match="nan"):
        f(torch.full((3,), torch.nan, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("op", OPS)
def test_what_is_saved_is_freed(op: str) -> None:
    x = noise(4, 5).requires_grad_()
    y = getattr(ost, op)(x * 1)
    kept = weakref.ref(y.grad_fn)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    del y
    gc.collect()
    assert kept() is None


def test_saved_tensors_that_change_are_seen() -> None:
    x = noise(4, 5).requires_grad_()
    y = ost.softmax(x)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_autocast_as_pytorch(op: str, dtype: torch.dtype) -> None:
    x = noise(4, 5, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        assert getattr(ost, op)(x).dtype == dtype
        assert getattr(torch, op)(x, -1).dtype == torch.float32 or dtype == getattr(torch, op)(x, -1).dtype
        assert getattr(ost, op)(x.clone().requires_grad_()).dtype == dtype


class Marked(torch.Tensor):
    """A subclass that keeps its type."""


@pytest.mark.parametrize("op", OPS)
def test_subclasses(op: str) -> None:
    x = noise(4, 5)
    found = getattr(ost, op)(x.as_subclass(Marked))
    assert type(found) is Marked
    assert_same_bits(found.as_subclass(torch.Tensor), getattr(ost, op)(x).numpy())


@pytest.mark.parametrize("op", OPS)
def test_lazy_negation(op: str) -> None:
    x = torch.complex(noise(4, 5), noise(4, 5, seed=1)).conj().imag
    assert x.is_neg()
    assert_same_bits(getattr(ost, op)(x), getattr(ost, op)(x.resolve_neg()).numpy())
    x = x.requires_grad_()
    assert_same_bits(getattr(ost, op)(x).detach(), getattr(ost, op)(x.detach().resolve_neg()).numpy())


@pytest.mark.parametrize("op", OPS)
def test_zeros_without_memory(op: str) -> None:
    for shape, dim in (((4,), 0), ((4, 5), 0)):
        found = getattr(ost, op)(torch._efficientzerotensor(shape), dim)
        assert_same_bits(found, getattr(ost, op)(torch.zeros(shape), dim).numpy())


@pytest.mark.parametrize("op", OPS)
def test_tensors_without_data(op: str) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    f, x = getattr(ost, op), noise(4, 5)
    assert f(x.to("meta")).shape == f(x).shape
    with FakeTensorMode() as mode:
        made = f(mode.from_tensor(x), 0)
    assert (made.shape, made.dtype) == (f(x, 0).shape, x.dtype)
    graph = make_fx(lambda x: f(x))(x)
    assert any(node.target == getattr(torch.ops.online_softmax, op).default for node in graph.graph.nodes)
    assert_same_bits(graph(x + 1), f(x + 1).numpy())


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_jit_trace_keeps_the_operation() -> None:
    traced = torch.jit.trace(lambda x: ost.softmax(x, 0), noise(4, 5))
    assert "online_softmax::softmax" in str(traced.graph)
    x = noise(4, 5, seed=3)
    assert_same_bits(traced(x), ost.softmax(x, 0).numpy())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scaled = ost.softmax(x * 2) + ost.log_softmax(x, 0, where=WHERE).exp()
        return scaled + ost.logsumexp(x, keepdim=True) + ost.logsumexp(x)[:, None]

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for seed in (0, 1):
        x = noise(4, 5, seed=seed).requires_grad_()
        found, expected = compiled(x), f(x)
        close(found, expected)
        up = noise(4, 5, seed=2)
        close(torch.autograd.grad(found, x, up), torch.autograd.grad(expected, x, up))


def test_compiled_transforms() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return hessian(lambda x: (ost.softmax(x) ** 2).sum())(x)

    x = noise(4, 5)
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


def test_export() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ost.softmax(x, -1) + ost.logsumexp(x, 0)

    x = noise(4, 5)
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(Module(), (x,), dynamic_shapes={"x": {0: rows}})
    targets = {node.target for node in exported.graph.nodes}
    assert torch.ops.online_softmax.softmax.default in targets
    more = noise(7, 5)
    close(exported.module()(more), Module()(more))


def test_threads_at_once() -> None:
    x = noise(64, 300).requires_grad_()
    expected = ost.softmax(x).detach()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                y = ost.softmax(x)
                assert torch.equal(y, expected)
                torch.autograd.grad((y**2).sum(), x)
        except BaseException as error:  # noqa: BLE001  (handed over to the test)
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


class _Softmaxes(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return ost.softmax(noise(300, 1000, dtype=torch.float32, seed=index))


# Other tests of the process may have loaded JAX, which warns of every fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_in_processes_that_a_data_loader_forks() -> None:
    expected = [_Softmaxes()[i] for i in range(4)]  # the pool of threads has started before the fork
    loader = torch.utils.data.DataLoader(
        _Softmaxes(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for found, wanted in zip(loader, expected, strict=True):
        assert torch.equal(found, wanted)


def test_results_are_tensors_like_any_other() -> None:
    for op in OPS:
        y = getattr(ost, op)(noise(4, 5))
        y.resize_(40)
        assert y.numel() == 40


# Errors


@pytest.mark.parametrize("op", OPS)
def test_errors(op: str) -> None:
    f, x = getattr(ost, op), noise(4, 5)
    for value, error, message in (
        (x.numpy(), TypeError, r"x is a numpy\.ndarray: a torch\.Tensor would do"),
        ([1.0], TypeError, r"x is a builtins\.list"),
        (x.int(), TypeError, r"x is int32: .* would do; x\.float\(\) converts"),
        (torch.complex(x, x), TypeError, "x is complex128"),
        (torch.complex(x, x).requires_grad_(), TypeError, "x is complex128"),
        (x.to_sparse(), TypeError, r"x has layout torch\.sparse_coo"),
        (x.to_sparse().requires_grad_(), TypeError, r"x has layout torch\.sparse_coo"),
    ):
        with pytest.raises(error, match=message):
            f(value)
    with pytest.raises(IndexError, match="axis=2 is out of range"):
        f(x, 2)
    with pytest.raises(ValueError, match=r"axis=-1 and dim=-1 were both given"):
        f(x, -1, dim=-1)
    with pytest.raises(TypeError, match=r"where is torch\.float64"):
        f(x, where=x)
    with pytest.raises(ValueError, match=r"where has shape \(4,\)"):
        f(x, where=torch.ones(4, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="where lies on meta and x on cpu"):
        f(x, where=torch.ones(5, dtype=torch.bool, device="meta"))


def test_errors_of_options() -> None:
    x = noise(4, 5)
    with pytest.raises(TypeError, match=r"dtype=torch\.int64"):
        ost.softmax(x, dtype=torch.int64)
    with pytest.raises(TypeError, match="keepdim=1 is a int"):
        ost.logsumexp(x, keepdim=1)
    with pytest.raises(ValueError, match=r"b has shape \(4,\)"):
        ost.logsumexp(x, b=torch.ones(4))
    with pytest.raises(RuntimeError, match="b lies on meta"):
        ost.logsumexp(x, b=torch.ones(5, device="meta"))
