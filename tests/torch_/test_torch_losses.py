"""Cross-entropy of tensors: PyTorch's own values and gradients, the NumPy face's bits, every derivative."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import online_softmax as osm

torch = pytest.importorskip("torch")

from torch.func import grad, hessian, jacfwd, jacrev, vmap  # noqa: E402  (torch may be missing)
from torch.nn import functional  # noqa: E402

import online_softmax.torch as ost  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

F64 = torch.float64
#: Everything that a loss can be, a few at a time.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "none"},
    {"reduction": "sum", "label_smoothing": 0.1, "weight": True},
    {"row_weight": True, "z_loss": 0.3, "weight": True},
    {"softcap": 1.5, "temperature": 0.7, "z_loss": 0.1, "label_smoothing": 0.2, "reduction": "none"},
    {"return_lse": True, "softcap": 2.0, "label_smoothing": 0.1, "smoothing": "megatron"},
]


def given(options: dict[str, Any], rows: int = 4, classes: int = 5) -> dict[str, Any]:
    """Options with weights in the place of True."""
    rng = torch.Generator().manual_seed(5)
    found = dict(options)
    for name, n in (("weight", classes), ("row_weight", rows)):
        if found.get(name):
            found[name] = torch.rand(n, dtype=F64, generator=rng) + 0.1
    return found


def plain(x: Any, targets: Any, o: dict[str, Any]) -> Any:
    """The loss of (rows, classes) in PyTorch's operations."""
    cap, e, classes = o.get("softcap"), o.get("label_smoothing", 0.0), x.shape[1]
    z = cap * torch.tanh(x / cap) if cap else x
    z = z / o.get("temperature", 1.0)
    if o.get("smoothing") == "megatron":
        e = e * classes / (classes - 1)
    loss = functional.cross_entropy(z, targets, reduction="none", weight=o.get("weight"), label_smoothing=e)
    lse = torch.logsumexp(z, -1)
    kept = (targets != -100).double() if targets.dtype == torch.int64 else torch.ones(len(x), dtype=F64)
    rows = o.get("row_weight", torch.ones(len(x), dtype=F64))
    loss = (loss + o.get("z_loss", 0.0) * lse**2 * kept) * rows
    of_class = torch.ones(len(x), dtype=F64)
    if targets.dtype == torch.int64 and "weight" in o:
        of_class = o["weight"][targets.clamp(0)]
    reduction = o.get("reduction", "mean")
    if reduction == "mean":
        loss = loss.sum() / (of_class * rows * kept).sum()
    elif reduction == "sum":
        loss = loss.sum()
    return (loss, lse) if o.get("return_lse") else loss


def one(result: Any) -> Any:
    """A number of all that came back."""
    parts = result if isinstance(result, tuple) else (result,)
    return sum((part**2).sum() for part in parts)


def operands(probabilities: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    x = torch.randn(4, 5, dtype=F64)
    return x, torch.rand(4, 5, dtype=F64) if probabilities else torch.tensor([1, -100, 0, 4])


# ---- PyTorch's own


@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (2, 5, 2, 3), (5,)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], reduction: str) -> None:
    torch.manual_seed(1)
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    for smoothing, weighted, probabilities in itertools.product((0.0, 0.1), (False, True), (False, True)):
        x = torch.randn(shape, dtype=F64)
        targets = torch.rand(shape, dtype=F64) if probabilities else torch.randint(0, 5, rows)
        if not probabilities and rows:
            targets.view(-1)[0] = -100
        o = {"label_smoothing": smoothing, "reduction": reduction}
        o["weight"] = torch.rand(5, dtype=F64) + 0.1 if weighted else None
        results = []
        for function in (ost.cross_entropy, functional.cross_entropy):
            a = x.clone().requires_grad_()
            t = targets.clone().requires_grad_(probabilities)
            loss = function(a, t, **o)
            loss.backward(torch.linspace(0.5, 1, loss.numel(), dtype=F64).view(loss.shape))
            results.append((loss.detach(), a.grad, t.grad if probabilities else torch.zeros(())))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
def test_results_are_the_numpy_faces_bits(dtype: Any, options: dict[str, Any]) -> None:
    x, targets = operands(False)
    o = given(options)
    x = x.to(dtype)
    array = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if dtype == torch.bfloat16 else x.numpy()
    arrays = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in o.items()}
    theirs = osm.cross_entropy(array, targets.numpy(), **arrays)
    ours = ost.cross_entropy(x, targets, **o)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
        assert a.dtype == (F64 if dtype == F64 else torch.float32)
        np.testing.assert_array_equal(a.numpy(), b)
    leaf = x.clone().requires_grad_()
    loss = ost.cross_entropy(leaf, targets, **{**o, "return_lse": False})
    up = torch.full(loss.shape, 0.5, dtype=loss.dtype)  # by which a gradient is multiplied without rounding
    loss.backward(up)
    arrays.pop("return_lse", None)
    expected = osm.cross_entropy_backward(up.numpy(), array, targets.numpy(), **arrays)
    found = (
        leaf.grad.view(torch.int16).numpy().view(array.dtype)
        if dtype == torch.bfloat16
        else leaf.grad.numpy()
    )
    np.testing.assert_array_equal(found, expected)


def test_a_loss_taken_as_it_is_has_the_native_gradient_bit_for_bit() -> None:
    x, targets = operands(False)
    for dtype in (torch.float32, torch.float64):
        leaf = x.to(dtype).requires_grad_()
        ost.cross_entropy(leaf, targets).backward()
        expected = osm.cross_entropy_backward(1.0, leaf.detach().numpy(), targets.numpy())
        np.testing.assert_array_equal(leaf.grad.numpy(), expected)


def test_report_has_what_the_numpy_face_reports() -> None:
    x, targets = operands(False)
    tokens = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 1]])
    o = {"riders": ("entropy", "rank", "correct"), "z_loss": 0.1}
    ours = ost.cross_entropy(x, targets, tokens=tokens, kl_to=x.flip(1), **o)
    theirs = osm.cross_entropy(
        x.numpy(), targets.numpy(), tokens=tokens.numpy(), kl_to=x.flip(1).numpy(), **o
    )
    for name, expected in theirs._asdict().items():
        np.testing.assert_array_equal(getattr(ours, name).numpy(), expected, err_msg=name)
    leaf = x.clone().requires_grad_()
    report = ost.cross_entropy(leaf, targets, riders=("entropy",))
    assert report.rank is None
    assert not report.entropy.requires_grad
    (report.loss + report.lse.sum()).backward()
    expected = osm.cross_entropy_backward(1.0, x.numpy(), targets.numpy(), dlse=1.0)
    np.testing.assert_array_equal(leaf.grad.numpy(), expected)


# ---- derivatives and transforms


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives_of_every_kind(options: dict[str, Any], probabilities: bool) -> None:
    x, targets = operands(probabilities)
    o = given(options)

    def ours(x: Any, *t: Any) -> Any:
        found = ost.cross_entropy(x, t[0] if t else targets, **o)
        return tuple(found) if o.get("return_lse") else found

    inputs = tuple(t.clone().requires_grad_() for t in ((x, targets) if probabilities else (x,)))
    assert torch.autograd.gradcheck(
        ours, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(ours, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)

    def square(x: Any) -> Any:
        return one(ours(x))

    def theirs(x: Any) -> Any:
        return one(plain(x, targets, o))

    torch.testing.assert_close(square(x), theirs(x))
    expected = jacrev(jacrev(theirs))(x)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(square))(x), expected)
    torch.testing.assert_close(jacrev(hessian(square))(x), jacrev(jacrev(jacrev(theirs)))(x))
    many = torch.randn(3, 4, 5, dtype=F64)
    for function in (square, grad(square)):
        torch.testing.assert_close(vmap(function)(many), torch.stack([function(a) for a in many]))


def test_vmap_over_targets_and_weights() -> None:
    torch.manual_seed(2)
    x, targets = torch.randn(4, 3, 5, dtype=F64), torch.randint(0, 5, (3, 4))
    weights, rows = torch.rand(3, 5, dtype=F64), torch.rand(4, 3, dtype=F64)
    for reduction in ("mean", "none"):

        def loss(x: Any, t: Any, w: Any, r: Any, reduction: str = reduction) -> Any:
            return ost.cross_entropy(x, t, weight=w, row_weight=r, reduction=reduction)

        found = vmap(loss, in_dims=(1, 0, 0, 1))(x, targets, weights, rows)
        apart = [loss(x[:, i], targets[i], weights[i], rows[:, i]) for i in range(3)]
        torch.testing.assert_close(found, torch.stack(apart))
        found = vmap(loss, in_dims=(1, 0, None, 1))(x, targets, weights[0], rows)
        apart = [loss(x[:, i], targets[i], weights[0], rows[:, i]) for i in range(3)]
        torch.testing.assert_close(found, torch.stack(apart))


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_report", "cross_entropy_backward"])
def test_operations_are_registered_as_pytorch_wants_them(name: str) -> None:
    x, targets = operands(False)
    o = (1, -100, 0.1, False, 0.2, 1.5, 1.0, 1, False)
    weights = (torch.rand(5, dtype=F64), torch.rand(4, dtype=F64))
    leaf, up = x.clone().requires_grad_(), torch.ones((), dtype=F64, requires_grad=True)
    calls = {
        "cross_entropy": [
            (leaf, targets, *weights, 1, *o),
            (leaf.detach().float(), x.abs(), None, None, 0, *o),
        ],
        "cross_entropy_report": [
            (leaf, targets, None, None, torch.zeros(4, 2, dtype=torch.int64), x, 7, *o),
            (leaf, targets, None, None, None, None, 1, *o),
        ],
        "cross_entropy_backward": [(up, torch.ones(4, dtype=F64), leaf, targets, *weights, *o)],
    }  # fmt: skip
    for call in calls[name]:
        results = torch.library.opcheck(getattr(torch.ops.online_softmax, name), call)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph(backend: str) -> None:
    x, targets = operands(False)
    o = given(OPTIONS[4])

    def loss(x: Any) -> Any:
        return ost.cross_entropy(x, targets, **o).sum() * 2

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    compiled(a).backward()
    loss(b).backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch._dynamo.reset()
    of_func = torch.compile(lambda x: hessian(loss)(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(of_func(x), hessian(loss)(x))


def test_compiled_refuses_bad_arguments_in_plain_words() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, t: ost.cross_entropy(x, t), backend="aot_eager")
    x, targets = operands(False)
    with pytest.raises(IndexError, match=r"targets\[2\] = 9 is out of range for 5 classes"):
        compiled(x, torch.tensor([0, 1, 9, 2]))
    torch.testing.assert_close(compiled(x, targets), ost.cross_entropy(x, targets))


def test_exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, t: Any) -> Any:
            return ost.cross_entropy(x, t, label_smoothing=0.1)

    x, targets = operands(False)
    program = torch.export.export(Model(), (x, targets))
    assert torch.equal(program.module()(x, targets), ost.cross_entropy(x, targets, label_smoothing=0.1))


# ---- rows and shapes at the edges


def test_ignored_rows_are_not_read() -> None:
    x = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], requires_grad=True)
    loss = ost.cross_entropy(x, torch.tensor([1, -100]))
    loss.backward()
    assert loss == ost.cross_entropy(x.detach()[:1], torch.tensor([1]))
    assert torch.equal(x.grad[1], torch.zeros(2))

    def double(x: Any) -> Any:
        return torch.autograd.grad(ost.cross_entropy(x, torch.tensor([1, -100])), x, create_graph=True)[0]

    (again,) = torch.autograd.grad(double(x)[0, 0], x)
    assert torch.equal(again[1], torch.zeros(2))
    assert again[0].isfinite().all()


def test_nothing_left_and_nothing_at_all() -> None:
    x, gone = torch.randn(3, 4, requires_grad=True), torch.full((3,), -100)
    assert ost.cross_entropy(x, gone).isnan()
    loss = ost.cross_entropy(x, gone, empty="zero")
    loss.backward()
    assert loss == 0
    assert torch.equal(x.grad, torch.zeros(3, 4))
    none = torch.empty(0, 4, requires_grad=True)
    assert ost.cross_entropy(none, torch.empty(0, dtype=torch.int64)).isnan()
    total = ost.cross_entropy(none, torch.empty(0, dtype=torch.int64), reduction="sum")
    total.backward()
    assert total == 0
    assert none.grad.shape == (0, 4)


@pytest.mark.parametrize("kind", ["int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"])
def test_targets_of_any_integers(kind: str) -> None:
    x = torch.randn(3, 4)
    targets = torch.tensor([0, 3, 1])
    assert torch.equal(ost.cross_entropy(x, targets.to(getattr(torch, kind))), ost.cross_entropy(x, targets))


def test_any_strides_and_a_lazy_negation() -> None:
    torch.manual_seed(3)
    wide = torch.randn(5, 8, dtype=F64)
    targets = torch.randint(0, 5, (8,)).flip(0)[::2]
    for x in (
        wide.t()[::2],
        torch.randn(4, 5, dtype=torch.complex128).imag,
        wide.t()[::2].conj().resolve_conj(),
    ):
        theirs, ours = x.clone().requires_grad_(), x.detach().requires_grad_()
        functional.cross_entropy(theirs, targets).backward()
        ost.cross_entropy(ours, targets).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    negated = torch.complex(wide, wide).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(
        ost.cross_entropy(negated, torch.arange(5)), functional.cross_entropy(-wide, torch.arange(5))
    )


# ---- refused


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (IndexError, r"targets\[1\] = 5", lambda x, t: ost.cross_entropy(x, torch.tensor([0, 5, 1, 2]))),
        (IndexError, r"targets\[0\] = -1", lambda x, t: ost.cross_entropy(x, torch.tensor([-1, 0, 1, 2]))),
        (TypeError, "logits is int64.*float\\(\\)", lambda x, t: ost.cross_entropy(x.long(), t)),
        (TypeError, "logits is complex128", lambda x, t: ost.cross_entropy(x + 0j, t)),
        (TypeError, "logits is a numpy.ndarray", lambda x, t: ost.cross_entropy(x.numpy(), t)),
        (TypeError, "targets holds bool", lambda x, t: ost.cross_entropy(x, t > 0)),
        (TypeError, "logits has layout", lambda x, t: ost.cross_entropy(x.to_sparse(), t)),
        (ValueError, "targets has shape", lambda x, t: ost.cross_entropy(x, t[:2])),
        (ValueError, "targets has shape", lambda x, t: ost.cross_entropy(x, x[:, :2])),
        (ValueError, "ignore_index is 0: class prob", lambda x, t: ost.cross_entropy(x, x, ignore_index=0)),
        (ValueError, "targets.*is -1.0: probabilities", lambda x, t: ost.cross_entropy(x, -x.new_ones(4, 5))),
        (ValueError, "without classes", lambda x, t: ost.cross_entropy(x[:, :0], t)),
        (ValueError, "no dimensions", lambda x, t: ost.cross_entropy(x[0, 0], t)),
        (IndexError, "axis=2", lambda x, t: ost.cross_entropy(x, t, axis=2)),
        (RuntimeError, "targets lies on meta", lambda x, t: ost.cross_entropy(x, t.to("meta"))),
        (RuntimeError, "weight lies on meta", lambda x, t: ost.cross_entropy(x, t, weight=x[0].to("meta"))),
        (RuntimeError, "weight requires grad",
         lambda x, t: ost.cross_entropy(x, t, weight=x[0].clone().requires_grad_())),
        (RuntimeError, "row_weight requires grad.*none",
         lambda x, t: ost.cross_entropy(x, t, row_weight=x[:, 0].clone().requires_grad_())),
        (ValueError, "weight has shape", lambda x, t: ost.cross_entropy(x, t, weight=x[0, :2])),
        (ValueError, "row_weight has shape", lambda x, t: ost.cross_entropy(x, t, row_weight=x[0])),
        (ValueError, "label_smoothing is 1", lambda x, t: ost.cross_entropy(x, t, label_smoothing=1.0)),
        (ValueError, "temperature is 0", lambda x, t: ost.cross_entropy(x, t, temperature=0)),
        (ValueError, "softcap is -1", lambda x, t: ost.cross_entropy(x, t, softcap=-1)),
        (ValueError, "reduction is 'avg'", lambda x, t: ost.cross_entropy(x, t, reduction="avg")),
        (ValueError, "empty is 'one'", lambda x, t: ost.cross_entropy(x, t, empty="one")),
        (ValueError, "riders is 'perplexity'", lambda x, t: ost.cross_entropy(x, t, riders=("perplexity",))),
        (ValueError, "riders has 'rank' with", lambda x, t: ost.cross_entropy(x, x.abs(), riders=("rank",))),
        (ValueError, "smoothing='megatron'",
         lambda x, t: ost.cross_entropy(x, t, label_smoothing=0.9, smoothing="megatron")),
        (TypeError, "ignore_index is True", lambda x, t: ost.cross_entropy(x, t, ignore_index=True)),
        (TypeError, "return_lse=1", lambda x, t: ost.cross_entropy(x, t, return_lse=1)),
        (IndexError, "tokens", lambda x, t: ost.cross_entropy(x, t, tokens=t.view(4, 1).abs() * 9)),
        (ValueError, "kl_to has shape", lambda x, t: ost.cross_entropy(x, t, kl_to=x[:2])),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(error: type[Exception], match: str, call: Any) -> None:
    x, targets = operands(False)
    with pytest.raises(error, match=match):
        call(x, targets)


def test_meta_tensors_have_shapes() -> None:
    x = torch.empty(3, 4, 5, device="meta", dtype=torch.bfloat16)
    targets = torch.empty(3, 5, device="meta", dtype=torch.int64)
    loss = ost.cross_entropy(x, targets, reduction="none", return_lse=True)
    assert (loss.loss.shape, loss.lse.shape, loss.loss.dtype) == ((3, 5), (3, 5), torch.float32)


# ---- training


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_those_who_want_them(wanted: tuple[bool, bool]) -> None:
    x, targets = operands(True)
    x, targets = x.requires_grad_(wanted[0]), targets.requires_grad_(wanted[1])
    loss = ost.cross_entropy(x, targets)
    assert loss.requires_grad == any(wanted)
    if any(wanted):
        loss.backward()
    assert (x.grad is not None, targets.grad is not None) == wanted


def test_backward_twice_and_with_other_gradients() -> None:
    x, targets = operands(False)
    for dtype in (F64, torch.bfloat16):
        leaf = x.to(dtype).requires_grad_()
        loss = ost.cross_entropy(leaf, targets)
        first = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
        kept = first.clone()
        twice = torch.autograd.grad(loss, leaf, torch.tensor(2.0, dtype=loss.dtype), retain_graph=True)[0]
        assert torch.equal(first, kept)
        torch.testing.assert_close(twice, 2 * first)
        # PyTorch's own rule: what was saved is gone, unless it was asked to be kept.
        torch.autograd.grad(loss, leaf)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, leaf)


def test_saved_tensors_are_freed_after_the_backward() -> None:
    x = torch.randn(40, 50, requires_grad=True)
    y = x * 1
    loss = ost.cross_entropy(y, torch.zeros(40, dtype=torch.int64))
    saved = weakref.ref(y)
    del y
    assert saved() is not None
    loss.backward()
    gc.collect()
    assert saved() is None
    assert loss.isfinite()


def test_a_change_in_place_between_forward_and_backward_is_refused() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = x * 1
    loss = ost.cross_entropy(y, torch.tensor([0, 1, 2, 3]))
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_anomaly_mode_and_saved_tensor_hooks() -> None:
    x, targets = operands(False)
    leaf = x.requires_grad_()
    expected = torch.autograd.grad(ost.cross_entropy(leaf, targets), leaf)[0]
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        assert torch.equal(torch.autograd.grad(ost.cross_entropy(leaf, targets), leaf)[0], expected)
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append(t)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = ost.cross_entropy(leaf, targets)
    assert packed
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], expected)
    from torch.utils.checkpoint import checkpoint

    again = checkpoint(lambda x: ost.cross_entropy(x, targets), leaf, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, leaf)[0], expected)


def test_backward_in_several_threads() -> None:
    torch.manual_seed(4)
    x = torch.randn(64, 300, requires_grad=True)
    targets = torch.randint(0, 300, (64,))
    loss = ost.cross_entropy(x, targets)
    expected = torch.autograd.grad(ost.cross_entropy(x, targets), x)[0]
    found: list[Any] = []

    def work() -> None:
        found.append(torch.autograd.grad(loss, x, retain_graph=True)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for gradient in found:
        assert torch.equal(gradient, expected)


class _Losses(torch.utils.data.Dataset[Any]):
    """A data set whose items are losses: they are made in the workers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return ost.cross_entropy(torch.arange(12.0).view(3, 4), torch.tensor([i % 4, 0, 1]))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
# Other tests of the process may have loaded JAX, which warns of every fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_in_workers_of_a_data_loader() -> None:
    expected = [_Losses()[i] for i in range(4)]
    loader = torch.utils.data.DataLoader(_Losses(), num_workers=2, multiprocessing_context="fork")
    for found, value in zip(loader, expected, strict=True):
        assert torch.equal(found[0], value)


def test_autocast_leaves_the_loss_in_float32() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = x @ torch.eye(5)
        loss = ost.cross_entropy(logits, torch.tensor([0, 1, 2, 3]))
    assert (logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    loss.backward()
    assert x.grad.dtype == torch.float32


def test_reports_pickle() -> None:
    report = ost.cross_entropy(*operands(False), return_lse=True)
    again = pickle.loads(pickle.dumps(report))
    assert torch.equal(again.lse, report.lse)
