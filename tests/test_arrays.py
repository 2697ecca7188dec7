"""Who serves a call: told by the kinds of its arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import array_api_strict as xs
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
from array_calls import CALLS, X, call
from helpers import assert_close, bound, truth

import online_softmax
from online_softmax import scipy
from online_softmax.frontends import arrays

SERVED_BY_FACES = [name for name in CALLS if not name.endswith(arrays._DERIVATIVES)]
DERIVATIVES = [name for name in CALLS if name.endswith(arrays._DERIVATIVES)]


class Recorder(types.ModuleType):
    """A stand-in for the face of a framework: every function returns its name and arguments."""

    def __init__(self, names: list[str]) -> None:
        super().__init__("face")
        for name in names:
            setattr(self, name, self._recorded(name))

    @staticmethod
    def _recorded(name: str) -> Callable[..., Any]:
        def function(*args: Any, **options: Any) -> Any:
            return name, args, options

        return function


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in ("torch", "jax"):
        monkeypatch.setitem(vars(online_softmax), framework, Recorder(SERVED_BY_FACES))


MAKERS = {"torch": lambda a: torch.from_numpy(np.array(a)), "jax": lambda a: jnp.asarray(a)}


def test_every_public_function_of_arrays_is_tried() -> None:
    functions = {n for n in online_softmax.__all__ if n.islower() and not n.startswith("_")}
    assert functions - {"info", "dropout_mask"} == set(CALLS)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", SERVED_BY_FACES)
@pytest.mark.usefixtures("recorders")
def test_a_framework_serves_its_own_arrays(framework: str, name: str) -> None:
    args, options = CALLS[name]
    called, positional, keywords = call(name, MAKERS[framework])
    assert called == name
    given = dict(zip(positional_names(name), positional, strict=False)) | keywords
    expected = dict(zip(positional_names(name), args, strict=False)) | options
    assert given.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert isinstance(given[key], torch.Tensor if framework == "torch" else jax.Array)
            np.testing.assert_array_equal(np.asarray(given[key]), np.asarray(MAKERS[framework](value)))
        else:
            assert given[key] == value


def positional_names(name: str) -> tuple[str, ...]:
    return tuple(inspect.signature(getattr(online_softmax, name)).parameters)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.usefixtures("recorders")
def test_derivatives_are_the_framework_s(framework: str, name: str) -> None:
    by_itself = {
        "torch": "PyTorch differentiates online_softmax.",
        "jax": "JAX differentiates online_softmax.",
    }
    would = by_itself[framework]
    if name == "merge_attention_vjp":  # a method of AttentionState merges, which is NumPy's alone
        would = f"NumPy arrays would do, online_softmax.{framework} has no merge_attention_vjp"
    with pytest.raises(TypeError, match=f"{name} takes NumPy arrays and .*: {would}"):
        call(name, MAKERS[framework])


@pytest.mark.usefixtures("recorders")
def test_defaults_are_not_passed_on() -> None:
    x = torch.ones(2)
    assert online_softmax.softmax(x) == ("softmax", (x,), {})
    assert online_softmax.softmax(x=x, threads=None) == ("softmax", (x,), {})
    assert online_softmax.logsumexp(x, -1, keepdims=True)[2] == {"axis": -1, "keepdims": True}
    name, args, options = online_softmax.segment_softmax(x, axis=0, num_segments=3)
    assert (name, args, options) == ("segment_softmax", (x,), {"num_segments": 3})


@pytest.mark.usefixtures("recorders")
def test_tracers_and_kinds_of_tensors() -> None:
    seen = []

    def traced(x: Any) -> Any:
        seen.append(online_softmax.softmax(x))
        return x

    jax.jit(traced)(jnp.ones(3))
    jax.grad(lambda x: traced(x).sum())(jnp.ones(3))
    jax.vmap(traced)(jnp.ones((2, 3)))
    parameter = torch.nn.Parameter(torch.ones(2))
    seen.append(online_softmax.softmax(parameter))
    assert [name for name, *_ in seen] == ["softmax"] * 4
    assert all(isinstance(args[0], jax.core.Tracer) for _, args, _ in seen[:3])
    assert seen[3][1][0] is parameter


@pytest.mark.usefixtures("recorders")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t, j, n, s: online_softmax.attention(t, n, t), "k is a numpy.ndarray and q a torch.Tensor"),
        (lambda t, j, n, s: online_softmax.attention(n, t, t), "q is a numpy.ndarray and k a torch.Tensor"),
        (lambda t, j, n, s: online_softmax.attention(t, j, t), "k is a jax.Array and q a torch.Tensor"),
        (lambda t, j, n, s: online_softmax.attention(j, j, t), "v is a torch.Tensor and q a jax.Array"),
        (lambda t, j, n, s: online_softmax.softmax(n, where=t), "x is a numpy.ndarray and where a torch"),
        (lambda t, j, n, s: online_softmax.softmax(t, where=n), "where is a numpy.ndarray and x a torch"),
        (lambda t, j, n, s: online_softmax.softmax(t, out=n), "out is a numpy.ndarray and x a torch.Tensor"),
        (lambda t, j, n, s: online_softmax.logsumexp(t, b=[1, 2]), "b is a list and x a torch.Tensor"),
        (lambda t, j, n, s: online_softmax.cross_entropy(t, (1,)), "targets is a tuple and logits a torch"),
        (lambda t, j, n, s: online_softmax.softmax(t, where=pd.Series([True])), "where is a pandas.Series"),
        (lambda t, j, n, s: online_softmax.softmax(s, where=t), "where is a torch.Tensor and x a array_api"),
        (lambda t, j, n, s: online_softmax.softmax(s, where=n), "where is a numpy.ndarray and x a array_api"),
        (lambda t, j, n, s: online_softmax.logaddexp(n, s), "a is a numpy.ndarray and b a array_api_strict"),
    ],
)
def test_frameworks_do_not_mix(function: Callable[..., Any], message: str) -> None:
    n = np.ones(2, np.float32)
    with pytest.raises(TypeError, match=f"{message}.*: arrays of one library would do"):
        function(torch.ones(2), jnp.ones(2), n, xs.asarray(n))


@pytest.mark.usefixtures("recorders")
def test_jax_takes_what_its_numpy_takes() -> None:
    x, where = jnp.ones(2), np.array([True, False])
    assert online_softmax.softmax(x, where=where)[2]["where"] is where
    assert online_softmax.softmax(where, where=x)[1][0] is where


def test_a_framework_s_function_need_not_have_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    face = types.ModuleType("face")
    face.softmax = lambda x, axis=-1, *, where=None: x.nothing() if where is not None else "served"
    monkeypatch.setitem(vars(online_softmax), "torch", face)
    x = torch.ones(2)
    assert online_softmax.softmax(x, axis=0) == "served"
    wanted = "isa is an option for NumPy arrays and x is a torch.Tensor, which has axis, where: one of these"
    with pytest.raises(TypeError, match=wanted):
        online_softmax.softmax(x, isa="scalar")
    with pytest.raises(AttributeError, match="nothing"):
        online_softmax.softmax(x, where=x > 0)
    with pytest.raises(TypeError, match=r"NumPy arrays would do, online_softmax\.torch has no sample"):
        online_softmax.sample(x)


def test_an_error_of_the_framework_s_function_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def softmax(x: Any, axis: int = -1) -> Any:
        raise TypeError("axis is odd")

    monkeypatch.setitem(vars(online_softmax), "torch", types.SimpleNamespace(softmax=softmax))
    with pytest.raises(TypeError, match=r"^axis is odd$"):
        online_softmax.softmax(torch.ones(2), axis=3)


def test_compiled_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to the face is one that torch.compile follows without a break."""
    face = types.ModuleType("face")
    face.softmax = lambda x, axis=-1: torch.softmax(x, axis)
    face.logaddexp = lambda a, b: torch.logaddexp(a, b)
    monkeypatch.setitem(vars(online_softmax), "torch", face)
    softmax, logaddexp = online_softmax.softmax, online_softmax.logaddexp

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return logaddexp(softmax(x, axis=0), x)

    x = torch.from_numpy(X)
    assert torch.equal(compiled(x), torch.logaddexp(torch.softmax(x, 0), x))


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_the_faces_themselves(framework: str, name: str) -> None:
    """Through the router, without stand-ins: the face's own kind, the values within the bound of float32."""
    made = getattr(online_softmax, name)(MAKERS[framework](X), axis=-1)
    assert isinstance(made, torch.Tensor if framework == "torch" else jax.Array)
    rows = X.astype(np.float64)
    expected = truth(name, rows)
    assert_close(np.asarray(made), expected, bound(name, rows, expected, X.dtype))
    if framework == "torch":
        assert torch.equal(made, getattr(online_softmax.torch, name)(torch.from_numpy(X)))
        function = getattr(online_softmax, name)
        compiled = torch.compile(lambda x: function(x, axis=-1), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.from_numpy(X)), made)
        leaf = torch.from_numpy(X).requires_grad_()
        assert function(leaf).sum().requires_grad
    else:
        jitted = jax.jit(lambda x: getattr(online_softmax, name)(x, axis=-1))(jnp.asarray(X))
        assert_close(np.asarray(jitted), expected, bound(name, rows, expected, X.dtype))


def test_what_a_call_says_is_passed_on_though_it_is_numpys_default() -> None:
    """A face may have another default: JAX's layout, and the seed of tensors."""
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, heads, 5, 4), dtype=np.float32) for heads in (4, 2))
    expected = online_softmax.attention(q, k, k)
    made = online_softmax.attention(*map(jnp.asarray, (q, k, k)), layout="BHSD")
    np.testing.assert_array_equal(np.asarray(made), expected)
    first, second = (online_softmax.sample(torch.zeros(3, 1000), seed=0).tokens for _ in range(2))
    assert torch.equal(first, second)
    np.testing.assert_array_equal(first.numpy(), online_softmax.sample(np.zeros((3, 1000), "f4")).tokens)
    assert online_softmax.softmax(torch.from_numpy(X), threads=None).shape == X.shape
    assert online_softmax.logsumexp(torch.from_numpy(X), -1, keepdims=True).shape == (*X.shape[:-1], 1)


def test_signatures_and_documents_are_kept() -> None:
    for name in CALLS:
        function = getattr(online_softmax, name)
        assert function.__name__ == name
        assert function.__doc__
        assert "args" not in inspect.signature(function).parameters


def test_a_wrong_number_of_arguments_is_python_s_error() -> None:
    with pytest.raises(TypeError, match=r"logaddexp\(\) takes 2 positional arguments but 3 were given"):
        online_softmax.logaddexp(xs.asarray(1.0), 1.0, 2.0)


@pytest.mark.parametrize("make", [*MAKERS.values(), xs.asarray, np.asarray])
def test_an_argument_given_twice_is_python_s_error(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"softmax_topk\(\) got multiple values for argument 'k'"):
        online_softmax.softmax_topk(make(X), 1, k=2)


@pytest.mark.parametrize("make", [torch.from_numpy, jnp.asarray])
def test_lists_of_arrays_that_numpy_cannot_read(make: Callable[..., Any]) -> None:
    def listed(x: Any) -> Any:
        return online_softmax.logsumexp([x, x]).sum()

    gradient = jax.grad if make is jnp.asarray else torch.func.grad
    with pytest.raises(
        TypeError, match=r"(?s)x could not be read as an array: .*one of them all, by .* stack"
    ):
        gradient(listed)(make(np.array(X)))


def test_an_out_of_jax_is_refused_by_what_it_is() -> None:
    with pytest.raises(
        TypeError, match=r"out is an option for NumPy arrays and the arguments are a jax\.Array"
    ):
        online_softmax.softmax(X, out=jnp.zeros((3, 5)))


@pytest.mark.parametrize("name", SERVED_BY_FACES)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_by_name(name: str, layout: torch.layout) -> None:
    def nested(a: np.ndarray) -> torch.Tensor:
        t = torch.from_numpy(np.array(a))
        return torch.nested.nested_tensor([t, t], layout=layout) if t.ndim else t

    with pytest.raises(TypeError, match=r"is a nested tensor: a dense one, by .to_padded_tensor"):
        call(name, nested)


@pytest.mark.parametrize("name", SERVED_BY_FACES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
def test_masked_tensors_are_refused_by_name(name: str) -> None:
    def masked(a: np.ndarray) -> torch.Tensor:
        t = torch.from_numpy(np.array(a))
        return (
            torch.masked.masked_tensor(t, torch.ones_like(t, dtype=torch.bool))
            if t.is_floating_point()
            else t
        )

    with pytest.raises(TypeError, match=r"is a torch.masked.MaskedTensor: \w+.get_data\(\) would do"):
        call(name, masked)


def test_groups_of_meta_tensors_have_to_be_counted() -> None:
    x, ids = torch.ones(3, device="meta"), torch.zeros(3, dtype=torch.int64, device="meta")
    with pytest.raises(
        ValueError, match="num_segments was not given and ids lies on meta: the number of grou"
    ):
        online_softmax.segment_logsumexp(x, ids=ids)
    assert online_softmax.segment_logsumexp(x, ids=ids, num_segments=2).shape == (2,)


ONES = (1,) * 64


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: online_softmax.softmax(np.zeros(ONES), axis=()), "axis=.. of an array of 64 dimensions"),
        (lambda: online_softmax.logsumexp(np.zeros(ONES), axis=()), "axis=.. of an array of 64 dimensions"),
        (lambda: scipy.logsumexp(np.zeros(ONES, "g"), axis=()), "axis=.. of an array of 64 dimensions"),
        (lambda: online_softmax.softmax(torch.zeros(ONES), axis=()), "axis=.. of an array of 64 dimensions"),
        (lambda: online_softmax.softmax(torch.zeros((2, *ONES)), axis=0), "x has 65 dimensions: 64 at most"),
        (lambda: online_softmax.softmax(torch.zeros((*ONES, 20_000))), "x has 65 dimensions: 64 at most"),
        (lambda: online_softmax.sample(torch.zeros((*ONES, 2))), "logits has 65 dimensions: 64 at most"),
        (lambda: online_softmax.softmax(jnp.zeros(ONES)), "of an array of 64 dimensions: axes of at most 62"),
        (lambda: online_softmax.softmax(jnp.zeros(ONES), axis=()), "64 dimensions: axes of at most 62"),
    ],
)
def test_too_many_dimensions_are_refused(function: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function()


def test_many_dimensions_are_served() -> None:
    assert online_softmax.softmax(np.zeros(ONES[1:]), axis=()).shape == ONES[1:]
    assert online_softmax.softmax(torch.zeros(ONES), axis=0).shape == ONES
    assert online_softmax.softmax(jnp.zeros(ONES[2:]), axis=()).shape == ONES[2:]
    assert online_softmax.softmax(jnp.zeros(ONES), axis=3).shape == ONES
    a, b = np.zeros((*ONES[2:], 2, 1)), np.zeros((1, 3))  # numpy.broadcast_shapes takes 32 dimensions
    assert online_softmax.logaddexp(a, b).shape == (*ONES[2:], 2, 3)
    assert scipy.logsumexp(b, b=np.ones((*ONES[2:], 2, 1)), axis=-1).shape == (*ONES[2:], 2)
    with pytest.raises(ValueError, match="shapes that broadcast to each other would do"):
        online_softmax.logaddexp(np.zeros((*ONES, 2)[1:]), np.zeros(3))


@pytest.mark.parametrize("name", ["softmax", "attention", "segment_softmax", "logsumexp", "window_logsumexp"])
def test_texts_of_any_length_are_refused_by_name(name: str) -> None:
    texts = np.dtypes.StringDType()
    with pytest.raises(TypeError, match=r"^\w+ holds StringDType"):
        call(name, lambda a: a.astype(str).astype(texts) if a.dtype.kind == "f" else a)


def in_a_new_process(script: str) -> str:
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.parametrize("used", [False, True])
def test_nothing_is_loaded_by_the_package_and_for_numpy_arrays(used: bool) -> None:
    calls = """
x = np.ones((2, 3), np.float32)
o.softmax(x), o.log_softmax(x), o.logsumexp(x), o.softmax_topk(x, 1), o.logaddexp(x, x), o.softmax([1, 2])
o.attention(x, x, x), o.cross_entropy(x, np.array([0, 1]))
"""
    script = f"""
import sys, numpy as np, online_softmax as o
{calls if used else ""}
print(sorted({{n.split(".")[0] for n in sys.modules}} & {{
    "torch", "jax", "jaxlib", "scipy", "transformers", "array_api_compat", "dask", "pandas"}}))
"""
    assert in_a_new_process(script).strip() == "[]"


def test_faces_are_attributes_and_are_not_listed() -> None:
    script = """
import sys, online_softmax as o
assert o.scipy.softmax([0.0]) == 1.0 and "scipy" not in sys.modules
assert not {"torch", "jax", "scipy", "transformers"} & {*dir(o), *o.__all__}
try:
    o.tensorflow
except AttributeError as error:
    print(error)
"""
    assert "has no attribute 'tensorflow'" in in_a_new_process(script)
