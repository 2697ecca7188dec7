"""The library in the place of PyTorch's functions, in code that knows nothing of it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  (torch may be missing)
from torch.nn import functional  # noqa: E402

import online_softmax.torch as ost  # noqa: E402
from online_softmax.frontends.torch import swap, swap_functions  # noqa: E402
from online_softmax.frontends.torch.swap_functions import NAMES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    swap_functions._TOLD.clear()
    yield
    ost.disable()


def ours_of(function: Any) -> set[str]:
    """Names of our operations in the graph that a function is traced to."""
    seen: set[str] = set()

    def backend(module: Any, inputs: Any) -> Any:
        seen.update(str(n.target) for n in module.graph.nodes if str(n.target).startswith("online_softmax"))
        return module

    torch._dynamo.reset()
    torch.compile(function, fullgraph=True, backend=backend)()
    return {name.split(".")[1] for name in seen}


def rows() -> Any:
    torch.manual_seed(0)
    return torch.randn(4, 5)


TARGETS = torch.tensor([1, -100, 0, 4])
LOSS = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")
#: What code there is calls, by the name to be swapped and our operation behind it.
CALLS: dict[str, tuple[str, str, Any]] = {
    "F.softmax": ("softmax", "softmax", lambda x: functional.softmax(x, -1)),
    "F.softmax dtype": ("softmax", "softmax", lambda x: functional.softmax(x, 1, dtype=torch.float64)),
    "torch.softmax": ("softmax", "softmax", lambda x: torch.softmax(x, dim=0)),
    "torch.softmax dtype": ("softmax", "softmax", lambda x: torch.softmax(x, 0, torch.float64)),
    "nn.Softmax": ("softmax", "softmax", lambda x: nn.Softmax(1)(x)),
    "F.log_softmax": ("log_softmax", "log_softmax", lambda x: functional.log_softmax(x, dim=0)),
    "torch.log_softmax": ("log_softmax", "log_softmax", lambda x: torch.log_softmax(input=x, dim=1)),
    "nn.LogSoftmax": ("log_softmax", "log_softmax", lambda x: nn.LogSoftmax(-1)(x)),
    "torch.logsumexp": ("logsumexp", "logsumexp", lambda x: torch.logsumexp(x, 1)),
    "torch.logsumexp 2": ("logsumexp", "logsumexp", lambda x: torch.logsumexp(x, (0, 1), keepdim=True)),
    "F.cross_entropy": ("cross_entropy", "cross_entropy", lambda x: functional.cross_entropy(x, TARGETS)),
    "nn.CrossEntropyLoss": (
        "cross_entropy", "cross_entropy",
        lambda x: LOSS(x, TARGETS),
    ),
    "probabilities": (
        "cross_entropy", "cross_entropy",
        lambda x: functional.cross_entropy(x, x.detach().abs(), reduction="sum"),
    ),
    "F.sdpa": (
        "scaled_dot_product_attention", "attention",
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("call", CALLS)
def test_results_and_gradients_have_pytorchs_formats_and_values(
    call: str, dtype: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name, _, function = CALLS[call]
    x = rows().to(dtype)
    found = []
    for on in (False, True):
        leaf = x.clone().requires_grad_()
        with (ost.enable if on else ost.disable)(name), torch.random.fork_rng():
            assert ost.enabled(name) is on
            result = function(leaf)
            result.sum().backward()
        found.append((result.detach(), leaf.grad))
    (theirs, their_gradient), (result, gradient) = found
    assert (result.dtype, result.shape) == (theirs.dtype, theirs.shape)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(result, theirs, rtol=8 * eps, atol=8 * eps)
    torch.testing.assert_close(gradient, their_gradient, rtol=32 * eps, atol=32 * eps)
    assert not caplog.records


@pytest.mark.parametrize("call", CALLS)
def test_compiled_code_is_compiled_again_when_the_choice_changes(call: str) -> None:
    name, operation, function = CALLS[call]
    x = rows()
    graphs: list[set[str]] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append({str(n.target).split(".")[1] for n in module.graph.nodes
                       if str(n.target).startswith("online_softmax")})  # fmt: skip
        return module

    torch._dynamo.reset()
    ost.enable(name)
    ost.disable()  # from here on functions of ours are in place
    compiled = torch.compile(lambda x: function(x), fullgraph=True, backend=backend)
    for on in (False, True, False, True):
        with (ost.enable if on else ost.disable)(name):
            torch.testing.assert_close(compiled(x), function(x))
    assert graphs == [set(), {operation}]


def test_a_loss_that_is_made_in_compiled_code_is_not_out_of_date() -> None:
    x = rows()
    called: list[bool] = []

    def step(x: Any) -> Any:
        return nn.CrossEntropyLoss()(x, TARGETS)

    def backend(module: Any, inputs: Any) -> Any:
        from torch._functorch.aot_autograd import aot_module_simplified

        def inner(module: Any, inputs: Any) -> Any:
            called.append(any("online_softmax" in str(n.target) for n in module.graph.nodes))
            return module.forward

        return aot_module_simplified(module, inputs, fw_compiler=inner)

    torch._dynamo.reset()
    ost.disable()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for on in (False, True, True, False):
        with (ost.enable if on else ost.disable)():
            torch.testing.assert_close(compiled(x), step(x))
            assert called[-1] is on


def test_inside_of_compiled_code() -> None:
    x = rows()

    def inside() -> Any:
        with ost.enable("softmax"):
            first = functional.softmax(x, -1)
            with ost.disable("softmax"):
                second = torch.softmax(x, -1)
        return first, second, functional.log_softmax(x, -1)

    ost.disable()
    assert ours_of(inside) == {"softmax"}
    assert ost.enabled() == ()

    def off_within_on() -> Any:
        with ost.disable("softmax"):
            return functional.softmax(x, -1) + torch.softmax(x, -1)

    with ost.enable():
        assert ours_of(off_within_on) == set()
        assert ours_of(lambda: functional.softmax(x, -1)) == {"softmax"}


def test_multi_head_attention_in_eager_and_compiled_code() -> None:
    torch.manual_seed(1)
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 3, 8)
    for need in (False, True):

        def attend(x: Any = x, need: bool = need) -> Any:
            return module(x, x, x, need_weights=need)[0]

        expected = attend()
        with ost.enable():
            torch.testing.assert_close(attend(), expected)
            assert ours_of(attend) == {"softmax" if need else "attention"}
        assert ours_of(attend) == set()


def test_what_was_compiled_before_the_first_call_is_not_out_of_date() -> None:
    script = """
import torch
from torch.nn import functional
import online_softmax.torch as ost
theirs = functional.softmax
x = torch.randn(3, 4)
ran = []
def backend(module, inputs):
    ran.append([str(n.target) for n in module.graph.nodes if n.op == "call_function"])
    return module
compiled = torch.compile(lambda: functional.softmax(x, -1), fullgraph=True, backend=backend)
compiled()
assert functional.softmax is theirs
try:
    torch.compile(lambda: ost.enable().__enter__(), backend="eager", fullgraph=True)()
except Exception as error:
    assert "called outside" in str(error), error
else:
    raise AssertionError
with ost.enable():
    compiled()
assert len(ran) == 2 and ran[1] == ["online_softmax.softmax.default"], ran
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


@pytest.mark.parametrize(
    ("name", "reason", "call"),
    [
        ("softmax", "class _Mine", lambda x: functional.softmax(x.as_subclass(_Mine), 1)),
        ("softmax", "on meta", lambda x: torch.softmax(x.to("meta"), 1)),
        ("log_softmax", "no dim", lambda x: functional.log_softmax(x)),
        ("softmax", "out=", lambda x: torch.softmax(x, 1, out=torch.empty(4, 5))),
        ("logsumexp", "out=", lambda x: torch.logsumexp(x, 1, out=torch.empty(4))),
        ("logsumexp", "torch.int64", lambda x: torch.logsumexp(x.long(), 1)),
        ("cross_entropy", "size_average", lambda x: functional.cross_entropy(x, TARGETS, size_average=True)),
        ("cross_entropy", "label_smoothing=1",
         lambda x: functional.cross_entropy(x, TARGETS, label_smoothing=1)),
        ("cross_entropy", "below 0", lambda x: functional.cross_entropy(x, -x.abs())),
        ("cross_entropy", "not finite", lambda x: functional.cross_entropy(x, TARGETS, x[0] * torch.inf)),
        ("cross_entropy", "requires a gradient",
         lambda x: functional.cross_entropy(x, x.abs(), x[0].clone().requires_grad_())),
        ("scaled_dot_product_attention", "torch.float64",
         lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None].repeat(1, 1, 300))),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(Implicit dimension choice|size_average).*:UserWarning")
def test_what_is_not_served_is_pytorchs_and_said_once(
    name: str, reason: str, call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "scaled_dot_product_attention":
        reason = "1024 features"
    x = rows()
    expected = call(x)
    with ost.enable(), caplog.at_level(logging.WARNING, "online_softmax"):
        for _ in range(3):
            result = call(x)
    torch.testing.assert_close(result, expected, equal_nan=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith(f"{name}: ")
    assert reason in caplog.messages[0]


class _Mine(torch.Tensor):
    """A tensor of a class of its own."""


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.softmax(x, 7),
        lambda x: functional.softmax(x.tolist(), 0),
        lambda x: functional.softmax(x.long(), 0),
        lambda x: torch.softmax(x),
        lambda x: torch.softmax(x, 0, where=x > 0),
        lambda x: torch.logsumexp(x, (0, 0)),
        lambda x: torch.logsumexp(x, ()),
        lambda x: torch.logsumexp(x),
        lambda x: functional.cross_entropy(x, TARGETS[:2]),
        lambda x: functional.cross_entropy(x, TARGETS.int()),
        lambda x: functional.cross_entropy(x, TARGETS + 200),
        lambda x: functional.cross_entropy(x, TARGETS.abs() * 0 + 5),
        lambda x: functional.cross_entropy(x, TARGETS, x[0].double()),
        lambda x: functional.cross_entropy(x, TARGETS, reduction="avg"),
        lambda x: functional.cross_entropy(x, TARGETS, label_smoothing=2.0),
        lambda x: functional.cross_entropy(x.long(), TARGETS),
        lambda x: functional.cross_entropy(x, x, ignore_index=1),
        lambda x: functional.cross_entropy(x, TARGETS, x[0].clone().requires_grad_()),
        lambda x: functional.scaled_dot_product_attention(x, x[:, :3], x),
        lambda x: functional.scaled_dot_product_attention(x, x, x.double()),
    ],
)
def test_wrong_calls_raise_what_pytorch_raises(call: Any) -> None:
    x = rows()
    with pytest.raises(Exception) as theirs:  # noqa: PT011  (PyTorch's, whatever it is)
        call(x)
    with ost.enable(), pytest.raises(type(theirs.value)):
        call(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_autocast(dtype: Any) -> None:
    x = rows().to(dtype)
    for name in ("F.softmax", "torch.logsumexp", "F.cross_entropy", "probabilities", "F.sdpa"):
        formats = set()
        for on in (False, True):
            switch = ost.enable if on else ost.disable
            with torch.autocast("cpu", dtype=torch.bfloat16), switch():
                formats.add(CALLS[name][2](x).dtype)
        assert len(formats) == 1, name


# ---- the switch itself


def test_names_nesting_and_order() -> None:
    assert ost.enabled() == ()
    with ost.enable("softmax", "cross_entropy") as outer:
        assert ost.enabled() == ("softmax", "cross_entropy")
        with ost.disable("softmax"):
            assert ost.enabled() == ("cross_entropy",)
            with outer:  # entered again: the last word
                assert ost.enabled("softmax")
            assert not ost.enabled("softmax")
        ost.disable()
        assert ost.enabled() == ()
        ost.enable("logsumexp")
    assert ost.enabled() == ("logsumexp",)
    with ost.enable():
        assert ost.enabled() == NAMES
    assert ost.enabled() == ("logsumexp",)
    ost.disable("logsumexp")
    assert ost.enabled() == ()
    switch = ost.enable("softmax")
    assert repr(switch) == "enable('softmax')"
    assert ost.enabled("softmax")
    with switch:
        ost.enable("log_softmax")
    assert ost.enabled() == ("log_softmax",)


def test_an_error_within_ends_the_context() -> None:
    with pytest.raises(ZeroDivisionError), ost.enable():
        raise ZeroDivisionError
    assert ost.enabled() == ()


@pytest.mark.parametrize("make", [ost.enable, ost.disable, ost.enabled])
def test_unknown_names(make: Any) -> None:
    with pytest.raises(ValueError, match=r"'softmin' is no function that is swapped.*'logsumexp'"):
        make("softmin")


def test_in_threads_that_overlap() -> None:
    failures: list[Any] = []
    x = rows()
    expected = functional.softmax(x, -1)

    def work(name: str) -> None:
        for _ in range(200):
            with ost.enable(name):
                if not ost.enabled(name) or not torch.allclose(functional.softmax(x, -1), expected):
                    failures.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in NAMES for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ost.enabled() == ()


def test_no_thread_takes_back_what_another_said() -> None:
    """`enable(name)` says it for good, until it is entered: another thread may be between the two."""
    before = sys.getswitchinterval()

    def work() -> None:
        for _ in range(1000):
            with ost.enable("softmax"):
                pass

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert ost.enabled() == ()


def test_words_said_in_between_are_taken_back_one_by_one() -> None:
    first, second = ost.enable("softmax"), ost.enable("softmax")
    with first:
        assert ost.enabled("softmax")
    assert ost.enabled("softmax")  # by the second
    with second:
        assert ost.enabled("softmax")
    assert not ost.enabled("softmax")
    for _ in range(5):
        ost.enable("softmax")
    assert len(swap._said["softmax"]) <= 2  # of what cannot be taken back, the last word
    ost.disable("softmax")


@pytest.mark.parametrize("at", range(1, 60, 2))
def test_an_interrupt_anywhere_leaves_nothing_on(at: int) -> None:
    """KeyboardInterrupt between any two lines of what enters and leaves a context."""
    watched = {"_unsay", "_leave", "_settle", "_next", "_counting", "_install"}
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        inside = frame.f_code.co_name in watched and frame.f_globals.get("__name__") == swap.__name__
        if not inside:
            return trace if event == "call" else None
        if event == "line":
            count += 1
            if count == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    interrupted = False
    try:
        sys.settrace(trace)
        with ost.enable():
            pass
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sys.settrace(before)
    assert interrupted == (count >= at)
    assert ost.enabled() == ()
    assert not swap._entered
    with ost.enable():
        assert ost.enabled() == NAMES


def test_a_context_is_left_that_was_not_entered() -> None:
    context = ost.enable("softmax")
    with pytest.raises(RuntimeError, match=r"enable\('softmax'\) is left but was not entered"):
        context.__exit__(None, None, None)
    with context:
        assert ost.enabled("softmax")
    assert ost.enabled() == ()


def test_pytorchs_warning_still_points_at_the_caller() -> None:
    for on in (False, True):
        with (ost.enable if on else ost.disable)(), pytest.warns(UserWarning, match="Implicit") as seen:
            functional.softmax(rows())
        assert seen[0].filename == __file__


def test_second_derivatives_and_vmap_where_swapped() -> None:
    x = rows().double()
    with ost.enable():
        found = torch.func.hessian(lambda x: functional.cross_entropy(x, TARGETS))(x)
        many = torch.func.vmap(lambda x: functional.softmax(x, -1))(x)
    torch.testing.assert_close(found, torch.func.hessian(lambda x: functional.cross_entropy(x, TARGETS))(x))
    torch.testing.assert_close(many, functional.softmax(x, -1))
