"""Linear cross-entropy of tensors: against the loss of logits that exist, and the NumPy face's bits."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import online_softmax as osm

torch = pytest.importorskip("torch")

from torch.func import grad, jacfwd, jacrev, vmap  # noqa: E402  (torch may be missing)
from torch.nn import functional  # noqa: E402

import online_softmax.torch as ost  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

F64 = torch.float64
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "none", "label_smoothing": 0.1},
    {"row_weight": True, "z_loss": 0.3, "softcap": 1.5, "return_lse": True},
    {"class_weight": True, "temperature": 0.5, "reduction": "sum"},
]


def operands(dtype: Any = F64) -> tuple[Any, Any, Any, Any]:
    """hidden (4, 3), weight (5, 3), bias (5,), targets."""
    torch.manual_seed(0)
    made = (torch.randn(n, dtype=F64).to(dtype) for n in ((4, 3), (5, 3), (5,)))
    return *made, torch.tensor([1, -100, 0, 4])


def given(options: dict[str, Any]) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(5)
    found = dict(options)
    for name, n in (("class_weight", 5), ("row_weight", 4)):
        if found.get(name):
            found[name] = torch.rand(n, dtype=F64, generator=rng) + 0.1
    return found


def of_logits(hidden: Any, weight: Any, bias: Any, targets: Any, o: dict[str, Any]) -> Any:
    """The same from logits."""
    rest = {("weight" if n == "class_weight" else n): v for n, v in o.items()}
    return ost.cross_entropy(hidden @ weight.T + bias, targets, **rest)


def one(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return sum((part**2).sum() for part in parts)


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives_of_every_kind(options: dict[str, Any], probabilities: bool) -> None:
    hidden, weight, bias, targets = operands()
    if probabilities:
        targets = torch.rand(4, 5, dtype=F64)
    o = given(options)

    def ours(h: Any, w: Any, b: Any, *t: Any) -> Any:
        found = ost.linear_cross_entropy(h, w, t[0] if t else targets, bias=b, **o)
        return tuple(found) if o.get("return_lse") else found

    leaves = (hidden, weight, bias, *((targets,) if probabilities else ()))
    inputs = tuple(t.clone().requires_grad_() for t in leaves)
    assert torch.autograd.gradcheck(
        ours, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(ours, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)

    def square(h: Any, w: Any) -> Any:
        return one(ours(h, w, bias))

    def theirs(h: Any, w: Any) -> Any:
        return one(of_logits(h, w, bias, targets, o))

    torch.testing.assert_close(square(hidden, weight), theirs(hidden, weight))
    expected = jacrev(jacrev(theirs, (0, 1)), (0, 1))(hidden, weight)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(square, (0, 1)), (0, 1))(hidden, weight), expected)
    many, weights = torch.randn(3, 4, 3, dtype=F64), torch.randn(3, 5, 3, dtype=F64)
    found = vmap(square, in_dims=(0, None))(many, weight)
    torch.testing.assert_close(found, torch.stack([square(h, weight) for h in many]))
    found = vmap(grad(square, (0, 1)))(many, weights)
    apart = [grad(square, (0, 1))(h, w) for h, w in zip(many, weights, strict=True)]
    for part, parts in zip(found, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(parts))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", OPTIONS)
def test_results_are_the_numpy_faces_bits(dtype: Any, options: dict[str, Any]) -> None:
    hidden, weight, bias, targets = operands(dtype)
    o = given(options)
    arrays = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in o.items()}
    call = (hidden.numpy(), weight.numpy(), targets.numpy())
    with torch.no_grad():
        ours = ost.linear_cross_entropy(hidden, weight, targets, bias=bias, **o)
    theirs = osm.linear_cross_entropy(*call, bias=bias.numpy(), **arrays)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
        assert a.dtype == dtype
        np.testing.assert_array_equal(a.numpy(), b)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    arrays.pop("return_lse", None)
    loss = ost.linear_cross_entropy(*leaves[:2], targets, bias=leaves[2], **{**o, "return_lse": False})
    loss.backward(torch.ones_like(loss))
    expected = osm.linear_cross_entropy_backward(np.ones(loss.shape), *call, bias=bias.numpy(), **arrays)
    for leaf, gradient in zip(leaves, expected, strict=True):
        np.testing.assert_array_equal(leaf.grad.numpy(), gradient)


def test_report() -> None:
    hidden, weight, _, targets = operands()
    o = {"riders": ("entropy", "rank", "correct"), "z_loss": 0.1}
    tokens = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 1]])
    ours = ost.linear_cross_entropy(hidden, weight, targets, tokens=tokens, **o)
    theirs = osm.linear_cross_entropy(
        hidden.numpy(), weight.numpy(), targets.numpy(), tokens=tokens.numpy(), **o
    )
    for name, expected in theirs._asdict().items():
        found = getattr(ours, name)
        if expected is None:
            assert found is None
        else:
            np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)
    leaf = hidden.clone().requires_grad_()
    with_gradient = ost.linear_cross_entropy(leaf, weight, targets, tokens=tokens, **o)
    assert torch.equal(with_gradient.rank, ours.rank)
    assert not with_gradient.entropy.requires_grad
    with_gradient.loss.backward()
    expected = osm.linear_cross_entropy_backward(
        1.0, hidden.numpy(), weight.numpy(), targets.numpy(), z_loss=0.1
    )
    np.testing.assert_array_equal(leaf.grad.numpy(), expected.hidden)


def test_operations_are_registered_as_pytorch_wants_them() -> None:
    hidden, weight, bias, targets = (t.requires_grad_() if t.is_floating_point() else t for t in operands())
    o = (1, -100, 0.1, False, 0.2, 1.5, 1.0, 1, False)
    weights = (torch.rand(5, dtype=F64), torch.rand(4, dtype=F64))
    up = torch.ones((), dtype=F64, requires_grad=True)
    tokens = torch.zeros(4, 2, dtype=torch.int64)
    plain = (hidden.detach().float().requires_grad_(), weight.detach().bfloat16(), targets, None, None, None)
    for name, call in (
        ("linear_cross_entropy", (hidden, weight, targets, bias, *weights, None, 1, 1, 1 << 20, -1.0, *o)),
        ("linear_cross_entropy", (*plain, tokens, 7, 0, 1 << 20, -1.0, *o)),
        ("linear_cross_entropy_backward",
         (up, torch.ones(4, dtype=F64), hidden, weight, targets, bias, *weights, 1 << 20, -1.0, *o)),
    ):  # fmt: skip
        results = torch.library.opcheck(getattr(torch.ops.online_softmax, name), call)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph(backend: str) -> None:
    hidden, weight, _, targets = operands(torch.float32)

    def loss(h: Any, w: Any) -> Any:
        return ost.linear_cross_entropy(h, w, targets, label_smoothing=0.1) * 0.5

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    found = []
    for function in (compiled, loss):
        a, b = (t.clone().requires_grad_() for t in (hidden, weight))
        function(a, b).backward()
        found.append((a.grad, b.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_exported() -> None:
    hidden, weight, _, targets = operands()

    class Model(torch.nn.Module):
        def forward(self, h: Any) -> Any:
            return ost.linear_cross_entropy(h, weight, targets)

    program = torch.export.export(Model(), (hidden,))
    assert torch.equal(program.module()(hidden), ost.linear_cross_entropy(hidden, weight, targets))


@pytest.mark.parametrize("formats", list(itertools.product(("bfloat16", "float16", "float32"), repeat=2)))
def test_mixed_formats(formats: tuple[str, str]) -> None:
    hidden, weight, _, targets = operands()
    h, w = (t.to(getattr(torch, f)).requires_grad_() for t, f in zip((hidden, weight), formats, strict=True))
    loss = ost.linear_cross_entropy(h, w, targets)
    loss.backward()
    assert (loss.dtype, h.grad.dtype, w.grad.dtype) == (torch.float32, h.dtype, w.dtype)
    a, b = (t.detach().double().requires_grad_() for t in (h, w))
    wide = ost.linear_cross_entropy(a, b, targets)
    wide.backward()
    torch.testing.assert_close(loss.double(), wide, rtol=1e-6, atol=0)
    for ours, theirs in ((h.grad, a.grad), (w.grad, b.grad)):
        eps = torch.finfo(ours.dtype).eps
        # One rounding to the format, of sums that are right in float32.
        torch.testing.assert_close(ours.double(), theirs, rtol=eps / 2 + 1e-5, atol=1e-7)


def test_autocast_rounds_the_operands_and_not_the_loss() -> None:
    hidden, weight, bias, targets = operands(torch.float32)
    rounded = [t.bfloat16() for t in (hidden, weight, bias)]
    expected = ost.linear_cross_entropy(*rounded[:2], targets, bias=rounded[2])
    torch._dynamo.reset()

    def loss(h: Any, w: Any, b: Any) -> Any:
        return ost.linear_cross_entropy(h, w, targets, bias=b)

    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = function(*leaves)
        found.backward()
        assert found.dtype == torch.float32
        assert found.detach() == expected
        assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)
        assert all(torch.equal(leaf.grad, leaf.grad.bfloat16().float()) for leaf in leaves)
    with torch.autocast("cpu", dtype=torch.float16):
        leaf = hidden.clone().requires_grad_()
        ost.linear_cross_entropy(leaf, weight, targets).mul(2.0**14).backward()
    assert leaf.grad.isfinite().all()


def test_small_gradients_in_float16_survive_a_scaler() -> None:
    torch.manual_seed(1)
    hidden = (torch.randn(64, 8) * 1e-3).half().requires_grad_()
    weight = (torch.randn(512, 8) * 1e-3).half().requires_grad_()
    targets = torch.randint(0, 512, (64,))
    scale = 2.0**16
    (ost.linear_cross_entropy(hidden, weight, targets) * scale).backward()
    a, b = (t.detach().double().requires_grad_() for t in (hidden, weight))
    ost.linear_cross_entropy(a, b, targets).backward()
    for ours, theirs in ((hidden.grad, a.grad), (weight.grad, b.grad)):
        torch.testing.assert_close(ours.double() / scale, theirs, rtol=2e-3, atol=2.0**-25 / scale)


@pytest.mark.parametrize("wanted", list(itertools.product((True, False), repeat=3)))
def test_gradients_of_those_who_want_them(wanted: tuple[bool, ...]) -> None:
    *parts, targets = operands()
    leaves = [t.requires_grad_(w) for t, w in zip(parts, wanted, strict=True)]
    loss = ost.linear_cross_entropy(*leaves[:2], targets, bias=leaves[2])
    assert loss.requires_grad == any(wanted)
    if any(wanted):
        loss.backward()
    assert tuple(leaf.grad is not None for leaf in leaves) == wanted


def test_backward_twice_scaled_and_through_the_lse() -> None:
    hidden, weight, _, targets = operands()
    leaf = hidden.requires_grad_()
    loss, lse = ost.linear_cross_entropy(leaf, weight, targets, return_lse=True)
    (first,) = torch.autograd.grad(loss, leaf, torch.tensor(3.0, dtype=F64), retain_graph=True)
    (second,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    torch.testing.assert_close(first, 3 * second)
    (both,) = torch.autograd.grad(loss + lse.sum(), leaf)
    expected = osm.linear_cross_entropy_backward(
        1.0, hidden.detach().numpy(), weight.numpy(), targets.numpy(), dlse=1.0
    )
    np.testing.assert_array_equal(both.numpy(), expected.hidden)


def test_saved_tensors_are_freed_after_the_backward() -> None:
    hidden, weight, _, targets = operands()
    y = hidden.requires_grad_() * 1
    loss = ost.linear_cross_entropy(y, weight, targets)
    saved = weakref.ref(y)
    del y
    loss.backward()
    gc.collect()
    assert saved() is None


def test_ignored_rows_are_not_read_and_nothing_left() -> None:
    hidden, weight, _, targets = operands()
    hidden[1] = torch.nan
    leaf = hidden.clone().requires_grad_()
    loss = ost.linear_cross_entropy(leaf, weight, targets)
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(leaf.grad[1], torch.zeros(3, dtype=F64))
    (once,) = torch.autograd.grad(ost.linear_cross_entropy(leaf, weight, targets), leaf, create_graph=True)
    (twice,) = torch.autograd.grad(once[0, 0], leaf)
    assert twice.isfinite().all()
    gone = torch.full((4,), -100)
    assert ost.linear_cross_entropy(leaf, weight, gone).isnan()
    assert ost.linear_cross_entropy(leaf, weight, gone, empty="zero") == 0
    none = torch.empty(0, 3, dtype=F64, requires_grad=True)
    total = ost.linear_cross_entropy(none, weight, torch.empty(0, dtype=torch.int64), reduction="sum")
    total.backward()
    assert total == 0
    assert none.grad.shape == (0, 3)


def test_filter_below_leaves_small_blocks_out() -> None:
    hidden, weight, _, targets = operands()
    leaf = hidden.clone().requires_grad_()
    ost.linear_cross_entropy(leaf, weight, targets, filter_below=10.0).backward()
    assert torch.equal(leaf.grad, torch.zeros(4, 3, dtype=F64))


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (IndexError, r"targets\[0\] = 5", lambda h, w, t: ost.linear_cross_entropy(h, w, t * 0 + 5)),
        (ValueError, "weight has shape", lambda h, w, t: ost.linear_cross_entropy(h, w.T, t)),
        (ValueError, "bias has shape", lambda h, w, t: ost.linear_cross_entropy(h, w, t, bias=h[0])),
        (ValueError, "targets has shape", lambda h, w, t: ost.linear_cross_entropy(h, w, t[:2])),
        (ValueError, "no dimensions", lambda h, w, t: ost.linear_cross_entropy(h[0, 0], w, t)),
        (TypeError, "hidden is int64", lambda h, w, t: ost.linear_cross_entropy(h.long(), w, t)),
        (TypeError, "weight is a builtins.list", lambda h, w, t: ost.linear_cross_entropy(h, [[1.0]], t)),
        (RuntimeError, "weight lies on meta", lambda h, w, t: ost.linear_cross_entropy(h, w.to("meta"), t)),
        (RuntimeError, "targets lies on meta", lambda h, w, t: ost.linear_cross_entropy(h, w, t.to("meta"))),
        (ValueError, "memory is 0", lambda h, w, t: ost.linear_cross_entropy(h, w, t, memory=0)),
        (TypeError, "memory is 1.5", lambda h, w, t: ost.linear_cross_entropy(h, w, t, memory=1.5)),
        (ValueError, "filter_below is -1",
         lambda h, w, t: ost.linear_cross_entropy(h, w, t, filter_below=-1)),
        (RuntimeError, "class_weight requires grad",
         lambda h, w, t: ost.linear_cross_entropy(h, w, t, class_weight=w[:, 0].clone().requires_grad_())),
        (ValueError, "riders has",
         lambda h, w, t: ost.linear_cross_entropy(h, w, h @ w.T * 0, riders=("rank",))),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(error: type[Exception], match: str, call: Any) -> None:
    hidden, weight, _, targets = operands()
    with pytest.raises(error, match=match):
        call(hidden, weight, targets)


_PEAK = """
import torch
import online_softmax.torch as ost
from torch.nn import functional

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

torch.set_num_threads(1)
tokens, classes, features = 1024, 32768, 64
hidden = torch.randn(tokens, features, requires_grad=True)
weight = torch.nn.Parameter(torch.randn(classes, features) * 0.1)
targets = torch.randint(0, classes, (tokens,))
ost.linear_cross_entropy(hidden[:8], weight[:64], targets[:8] % 64).backward()
functional.linear(hidden[:8].detach(), weight[:64].detach())
hidden.grad = weight.grad = None
before = peak()
if WHICH == "ours":
    loss = ost.linear_cross_entropy(hidden, weight, targets, memory=16 << 20)
else:
    loss = functional.cross_entropy(functional.linear(hidden, weight), targets)
loss.backward()
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")
def test_the_logits_are_never_in_memory() -> None:
    rose = {}
    for which in ("ours", "theirs"):
        run = subprocess.run(
            [sys.executable, "-c", f"WHICH = {which!r}\n{_PEAK}"],
            capture_output=True, text=True, check=True, env=dict(os.environ),
        )  # fmt: skip
        rose[which] = int(run.stdout)
    logits, gradients = 4 * 1024 * 32768, 4 * 64 * (1024 + 32768)
    # Beside what the budget counts: PyTorch's own bookkeeping, and pages that come in large pieces.
    assert rose["ours"] <= gradients + (16 << 20) + (8 << 20) < logits
    assert rose["theirs"] >= logits


def test_a_training_step_is_that_of_pytorch() -> None:
    torch.manual_seed(6)
    hidden, targets = torch.randn(2, 6, 8, dtype=F64), torch.randint(0, 11, (2, 6))
    layers = [torch.nn.Linear(8, 11, dtype=F64) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ost.linear_cross_entropy(hidden, layers[0].weight, targets, bias=layers[0].bias).backward()
    functional.cross_entropy(layers[1](hidden).flatten(0, 1), targets.flatten()).backward()
    for ours, theirs in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
