"""Arrays go to a framework and come back with every bit, in the memory layout that was asked for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from online_softmax.conformance import frameworks
from online_softmax.conformance.recipes import DTYPES, LAYOUTS

torch = pytest.importorskip("torch")

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


def values(dtype: str) -> np.ndarray:
    """Equal rows, so that every layout can hold them, with infinities and NaN where there are some."""
    row = np.array([0.5, -1.0, np.inf, np.nan, -np.inf, 3.0])
    with np.errstate(invalid="ignore", over="ignore"):
        return np.tile(row.astype(DTYPES[dtype]), (4, 1))


def given(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.broadcast_to(np.array([True, False, True]), (4, 3)).copy()
    if dtype.startswith("int"):
        return np.broadcast_to(np.array([1, -100, 7]), (4, 3)).astype(dtype)
    return values(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "int32", "bool"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_bit_comes_back(framework: str, dtype: str, layout: str) -> None:
    array = given(dtype)
    back = frameworks.from_framework(frameworks.to_framework(array, framework, layout))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert bits(back) == bits(array)


def strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("contiguous", (6, 1)),
        ("transposed", (1, 4)),
        ("strided", (12, 2)),
        ("rows_strided", (12, 1)),
        ("negative", (6, -1)),
        ("broadcast", (0, 1)),
        ("offset", (6, 1)),
        ("readonly", (6, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layouts_lie_in_memory_as_they_say(dtype: str, layout: str, expected: tuple[int, ...]) -> None:
    array = values(dtype)
    made = frameworks.to_framework(array, "numpy", layout)
    assert strides(made) == expected
    assert made.flags.writeable == (layout != "readonly")
    assert made.ctypes.data % 64 == (array.itemsize if layout == "offset" else 0) or layout not in (
        "contiguous",
        "offset",
    )
    tensor = frameworks.to_framework(array, "torch", layout)
    lacks = layout in frameworks.LACKING["torch"]
    assert tensor.stride() == ((6, 1) if lacks else expected)


def test_what_lies_between_the_elements_would_show() -> None:
    made = frameworks.to_framework(np.zeros((2, 3), np.float32), "numpy", "strided")
    assert np.isnan(made.base[:, 1::2]).all()
    labels = frameworks.to_framework(np.zeros(3, np.int64), "numpy", "strided")
    assert (labels.base[1::2] == np.iinfo(np.int64).max).all()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["contiguous", "broadcast", "offset", "strided"])
def test_the_given_array_is_never_shared(framework: str, layout: str) -> None:
    array = np.ones((2, 3), np.float32)
    made = frameworks.to_framework(array, framework, layout)
    made[0] = 5
    assert (array == 1).all()
    assert (frameworks.from_framework(made)[0] == 5).all()


@pytest.mark.parametrize(
    "layout", ["contiguous", "strided", "rows_strided", "negative", "broadcast", "offset"]
)
def test_empty_arrays_have_layouts(layout: str) -> None:
    for shape in ((0, 3), (3, 0)):
        assert frameworks.to_framework(np.zeros(shape, np.float32), "numpy", layout).shape == shape


@pytest.mark.parametrize(
    ("layout", "shape", "says"),
    [("transposed", (3,), "2 axes"), ("strided", (), "1 axes"), ("upside", (3,), "upside")],
)
def test_a_layout_without_its_axes_is_refused(layout: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        frameworks.to_framework(np.zeros(shape), "numpy", layout)


def test_an_unknown_framework_is_refused() -> None:
    for call in (lambda: frameworks.to_framework(np.zeros(2), "tf"), lambda: frameworks.environment("tf")):
        with pytest.raises(ValueError, match="framework='tf': one of numpy, torch, jax would do"):
            call()


@pytest.mark.parametrize(
    "value", [2.5, np.float32(2.5), np.array(2.5), torch.tensor(2.5), ml_dtypes.bfloat16(2.5)]
)
def test_numbers_come_back_as_arrays_without_axes(value: object) -> None:
    back = frameworks.from_framework(value)
    assert back.shape == ()
    assert back == 2.5


@pytest.mark.parametrize("value", [None, "text", object(), {"y": 1}, [1.0, 2.0]])
def test_what_is_no_array_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="an array or a number would do"):
        frameworks.from_framework(value)


def test_views_of_pytorch_come_back_in_order() -> None:
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    assert frameworks.from_framework(tensor).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_gradient_of_pytorch_is_that_of_the_first_output() -> None:
    x, w = (frameworks.to_framework(np.array(a), "torch") for a in ([1.0, 2.0], [3.0, 5.0]))
    (dx,) = frameworks.vjp(
        "torch", lambda x, w: (x * x * w, x), {"x": x, "w": w}, [torch.tensor([1.0, 10.0])], ["x"]
    )
    assert frameworks.from_framework(dx).tolist() == [6.0, 200.0]
    assert not x.requires_grad
    both = frameworks.vjp("torch", lambda x, w: (x * w).sum(), {"x": x, "w": w}, [], ["x", "w"])
    assert [frameworks.from_framework(g).tolist() for g in both] == [[3.0, 5.0], [1.0, 2.0]]


def test_upstream_gradients_take_the_format_of_the_result() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    (dx,) = frameworks.vjp("torch", lambda x: x * 2, {"x": x}, [torch.tensor([1.0, 0.5])], ["x"])
    assert frameworks.from_framework(dx).dtype == DTYPES["bfloat16"]
    assert dx.tolist() == [2.0, 1.0]


def test_numpy_has_no_gradients() -> None:
    with pytest.raises(ValueError, match="torch or jax would do"):
        frameworks.vjp("numpy", lambda x: x, {"x": np.ones(2)}, [], ["x"])


def test_jax_is_told_to_keep_float64() -> None:
    assert frameworks.environment("jax")["JAX_ENABLE_X64"] == "1"
    assert frameworks.environment("numpy") == frameworks.environment("torch") == {}


def test_arrays_of_jax_in_a_process_of_their_own() -> None:
    """Formats, gradients, and float64 that stays: JAX is set up by its process' environment."""
    pytest.importorskip("jax")
    import os
    import subprocess
    import sys

    program = """
import numpy as np
from online_softmax.conformance import frameworks as f
from online_softmax.conformance.recipes import DTYPES
for name in ("float64", "float32", "float16", "bfloat16", "int64", "bool"):
    array = np.array([[0, 1], [1, 0]]).astype(DTYPES[name])
    back = f.from_framework(f.to_framework(array, "jax", "transposed"))
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes(), name
x = f.to_framework(np.array([1.0, 2.0]), "jax")
w = f.to_framework(np.array([3.0, 5.0]), "jax")
up = f.to_framework(np.array([1.0, 10.0], np.float32), "jax")
(dx,) = f.vjp("jax", lambda x, w: (x * x * w, x), {"x": x, "w": w}, [up], ["x"])
assert f.from_framework(dx).tolist() == [6.0, 200.0]
both = f.vjp("jax", lambda x, w: (x * w).sum(), {"x": x, "w": w}, [], ["x", "w"])
assert [f.from_framework(g).tolist() for g in both] == [[3.0, 5.0], [1.0, 2.0]]
print("done")
"""
    path = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": path, **frameworks.environment("jax")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["done"], done.stderr


def test_jax_that_would_round_is_refused() -> None:
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="JAX made float32 of float64"):
            frameworks.to_framework(np.ones(2), "jax")
    finally:
        jax.config.update("jax_enable_x64", before)
