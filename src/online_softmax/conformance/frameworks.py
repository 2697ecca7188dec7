"""Arrays of NumPy, PyTorch and JAX: the same values there and back, in the memory layout that a case asks
for.

A framework is imported by the functions that make its arrays, never by this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..extras import require

Array = NDArray[Any]

FRAMEWORKS: Final = ("numpy", "torch", "jax")
#: Layouts a framework cannot hold: its arrays are then contiguous. PyTorch has no negative strides and no
#: read-only tensors, JAX chooses the memory itself.
LACKING: Final[Mapping[str, frozenset[str]]] = {
    "numpy": frozenset(),
    "torch": frozenset({"negative", "readonly"}),
    "jax": frozenset(
        {"transposed", "strided", "rows_strided", "negative", "broadcast", "offset", "readonly"}
    ),
}
#: Formats that NumPy does not know by itself: PyTorch takes and gives their bits.
_BITS: Final = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}
_LINE: Final = 64  # bytes that a contiguous copy is aligned to


def environment(framework: str) -> dict[str, str]:
    """Environment variables that a process needs before it imports `framework`.

    JAX computes float64 cases in float64 (it would turn them into float32 without a word), on the CPU.
    """
    _known(framework)
    return {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"} if framework == "jax" else {}


def to_framework(array: Array, framework: str, layout: str = "contiguous") -> Any:
    """A fresh array of `framework` with the values, shape and format of `array`, and memory laid out as
    `layout` says.

    A layout in LACKING gives a contiguous array. Memory between the elements of a strided layout holds NaN
    (the largest integer, or True), so that reading it shows.

    Raises ValueError for an unknown framework or layout, or one that takes more axes than the array has.
    """
    _known(framework)
    laid = _laid_out(array, "contiguous" if layout in LACKING[framework] else layout)
    if framework == "numpy":
        return laid
    return _to_torch(laid) if framework == "torch" else _to_jax(laid)


def from_framework(value: Any) -> Array:
    """The NumPy array of a result: bfloat16 and float8 in ml_dtypes' formats, numbers as 0-d arrays.

    Raises TypeError for what is neither an array nor a number.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value)
    if isinstance(value, np.ndarray | np.generic | bool | int | float) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype != object:
            return array
    raise TypeError(f"a result of type {type(value).__name__}: an array or a number would do")


def vjp(
    framework: str,
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    cotangents: Sequence[Any],
    wrt: Sequence[str],
) -> tuple[Any, ...]:
    """Gradients of `function(**arrays)` with respect to the arrays named in `wrt`.

    Args:
        framework: "torch" (torch.autograd.grad) or "jax" (jax.vjp).
        function: returns an array, or a tuple of them of which the first counts.
        cotangents: the upstream gradient, at most one; none stands for ones.

    Raises ValueError for another framework, and what the function and its differentiation raise.
    """
    if framework == "torch":
        return _vjp_torch(function, arrays, cotangents, wrt)
    if framework == "jax":
        return _vjp_jax(function, arrays, cotangents, wrt)
    raise ValueError(f"framework={framework!r} has no automatic gradients: torch or jax would do")


def _known(framework: str) -> None:
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: one of {', '.join(FRAMEWORKS)} would do")


def _laid_out(array: Array, layout: str) -> Array:
    if layout in ("contiguous", "readonly"):
        made = _aligned(array, 0)
        made.flags.writeable = layout != "readonly"
        return made
    if layout not in _LAYOUTS:
        known = ", ".join(("contiguous", "readonly", *_LAYOUTS))
        raise ValueError(f"layout={layout!r}: one of {known} would do")
    least, make = _LAYOUTS[layout]
    if array.ndim < least:
        raise ValueError(f"layout={layout!r} takes {least} axes at least, given shape {array.shape}")
    return make(array)


def _aligned(array: Array, past: int) -> Array:
    """C-contiguous copy that starts `past` elements after an address that _LINE divides."""
    memory = np.empty(array.nbytes + _LINE + past * array.itemsize, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE + past * array.itemsize
    made: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def _spread(array: Array, axis: int) -> Array:
    shape = list(array.shape)
    shape[axis] *= 2
    base = np.empty(shape, dtype=array.dtype)
    base[...] = _filler(array.dtype)
    places = [slice(None)] * array.ndim
    places[axis] = slice(None, None, 2)
    made = base[tuple(places)]
    made[...] = array
    return made


def _filler(dtype: np.dtype[Any]) -> Any:
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.nan


def _transposed(array: Array) -> Array:
    return np.array(array.swapaxes(-1, -2), order="C").swapaxes(-1, -2)


def _negative(array: Array) -> Array:
    return np.array(array[..., ::-1], order="C")[..., ::-1]


def _broadcast(array: Array) -> Array:
    # Not broadcast_to, which is read-only: what writes to its input has to be seen, not stopped.
    if not array.size:
        return array.copy()
    row = _aligned(array[0], 0)
    memory = row.reshape(-1).view(np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, strides=(0, *row.strides))


_LAYOUTS: Final[Mapping[str, tuple[int, Callable[[Array], Array]]]] = {
    "transposed": (2, _transposed),
    "strided": (1, lambda array: _spread(array, -1)),
    "rows_strided": (1, lambda array: _spread(array, 0)),
    "negative": (1, _negative),
    "broadcast": (1, _broadcast),
    "offset": (0, lambda array: _aligned(array, 1)),
}


def _to_torch(array: Array) -> Any:
    torch = require("torch", "torch", "a subject of PyTorch")
    bits = _BITS.get(array.dtype.name)
    if bits is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(bits)).view(getattr(torch, array.dtype.name))


def _from_torch(tensor: Any) -> Array:
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    if name not in _BITS:
        found: Array = plain.numpy()
        return found
    bits = torch.int16 if _BITS[name] is np.int16 else torch.uint8
    raw: Array = plain.view(bits).numpy()
    return raw.view(np.dtype(getattr(ml_dtypes, name)))


def _to_jax(array: Array) -> Any:
    if array.dtype.itemsize == 8 and "jax" not in sys.modules:
        os.environ.setdefault("JAX_ENABLE_X64", "1")
    jax = require("jax", "jax", "a subject of JAX")
    made = jax.numpy.array(array)
    if made.dtype != array.dtype:
        raise ValueError(
            f"JAX made {made.dtype} of {array.dtype}: set JAX_ENABLE_X64=1 before it is imported"
        )
    return made


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _vjp_torch(
    function: Callable[..., Any], arrays: Mapping[str, Any], cotangents: Sequence[Any], wrt: Sequence[str]
) -> tuple[Any, ...]:
    torch = require("torch", "torch", "a gradient of PyTorch")
    leaves = {name: arrays[name].detach().requires_grad_(True) for name in wrt}
    y = _first(function(**{**arrays, **leaves}))
    upstream = cotangents[0].to(y.dtype) if cotangents else torch.ones_like(y)
    return tuple(torch.autograd.grad(y, list(leaves.values()), grad_outputs=upstream))


def _vjp_jax(
    function: Callable[..., Any], arrays: Mapping[str, Any], cotangents: Sequence[Any], wrt: Sequence[str]
) -> tuple[Any, ...]:
    jax = require("jax", "jax", "a gradient of JAX")

    def forward(*values: Any) -> Any:
        return _first(function(**{**arrays, **dict(zip(wrt, values, strict=True))}))

    y, backward = jax.vjp(forward, *(arrays[name] for name in wrt))
    upstream = cotangents[0].astype(y.dtype) if cotangents else jax.numpy.ones_like(y)
    return tuple(backward(upstream))
