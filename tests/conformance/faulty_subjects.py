"""Softmaxes for NumPy, one honest and the others each with one fault, for the tests of what runs and
reports them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NOT_CALLABLE = 42


def honest(x: Array, axis: int = -1) -> Array:
    """Right within the bound: the maximum taken out, sums in float32 or wider."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        m = np.max(wide, axis=axis, keepdims=True, initial=-np.inf)
        e = np.exp(wide - m)
        return (e / e.sum(axis=axis, keepdims=True)).astype(x.dtype)


def drops_nan(x: Array, axis: int = -1) -> Array:
    """The maximum and the sum pass over NaN."""
    with np.errstate(all="ignore"):
        m = np.fmax.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
        e = np.nan_to_num(np.exp(x - m), nan=0.0)
        return (e / e.sum(axis=axis, keepdims=True)).astype(x.dtype)


def no_shift(x: Array, axis: int = -1) -> Array:
    """The maximum is not taken out: overflows."""
    with np.errstate(all="ignore"):
        e = np.exp(x)
        return (e / e.sum(axis=axis, keepdims=True)).astype(x.dtype)


def tail_at_127(x: Array, axis: int = -1) -> Array:
    """Rows of 127 end in a tail whose last element is left out."""
    y = honest(x, axis)
    if x.ndim and x.shape[axis] == 127:
        y[(..., -1)] = 0
    return y


def long_rows(x: Array, axis: int = -1) -> Array:
    """Rows from 100 elements on lose their last one."""
    y = honest(x, axis)
    if x.ndim and x.shape[axis] >= 100:
        y[(..., -1)] = 0
    return y


def other_shape(x: Array, axis: int = -1) -> Array:
    """An axis too many."""
    return honest(x, axis)[None]


def other_dtype(x: Array, axis: int = -1) -> Array:
    """Always float64."""
    return honest(x, axis).astype(np.float64)


def segfaults(x: Array, axis: int = -1) -> Array:
    """Reads address 0 where a row is longer than 2."""
    if x.ndim and x.shape[axis] > 2:
        ctypes.string_at(0)
    return honest(x, axis)


def hangs(x: Array, axis: int = -1) -> Array:
    """Never returns where a row is longer than 2."""
    if x.ndim and x.shape[axis] > 2:
        time.sleep(3600)
    return honest(x, axis)


def hangs_with_the_lock(x: Array, axis: int = -1) -> Array:
    """Never returns, and holds the interpreter's lock meanwhile."""
    ctypes.PyDLL(None).sleep(3600)
    return honest(x, axis)


def changes_input(x: Array, axis: int = -1) -> Array:
    """Works in place."""
    y = honest(x, axis)
    if x.flags.writeable:
        x[...] = 0
    return y


def prints(x: Array, axis: int = -1) -> Array:
    """Prints on standard output and error."""
    print("softmax of", x.shape, flush=True)
    os.write(1, b"\0 straight to the descriptor\n")
    os.write(2, b"and to the other\n")
    return honest(x, axis)


def prints_without_end(x: Array, axis: int = -1) -> Array:
    """Prints more than any pipe holds."""
    for _ in range(200):
        os.write(1, b"x" * 8192)
    return honest(x, axis)


def leaves(x: Array, axis: int = -1) -> Array:
    """Ends the process."""
    os._exit(7)


def exits(x: Array, axis: int = -1) -> Array:
    """Raises SystemExit."""
    raise SystemExit(3)


def raises(x: Array, axis: int = -1) -> Array:
    """Raises an exception whose text cannot be made."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Odd


def short_sums(x: Array, axis: int = -1) -> Array:
    """Sums run in 16 bits: they stall at 2048 ones."""
    with np.errstate(all="ignore"):
        e = np.exp((x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)).astype(np.float32))
        total = np.add.accumulate(e.astype(np.float16), axis=axis, dtype=np.float16)
        total = np.take(total, [-1], axis=axis).astype(np.float32)
        return (e / total).astype(x.dtype)


_COUNT = [0]


def not_repeatable(x: Array, axis: int = -1) -> Array:
    """Every call a bit more than the one before."""
    _COUNT[0] += 1
    return (honest(x, axis) * np.float32(1 + _COUNT[0] * 1e-6)).astype(x.dtype)


_SHARED: dict[Any, Array] = {}


def shares_scratch(x: Array, axis: int = -1) -> Array:
    """Threads write into the same scratch."""
    scratch = _SHARED.setdefault(x.shape, np.empty(x.shape))
    scratch[...] = 0
    time.sleep(0.001)
    scratch += honest(x, axis)
    return scratch.astype(x.dtype)


def knows_its_batch(x: Array, axis: int = -1) -> Array:
    """A row's last bits depend on how many rows there are."""
    return (honest(x, axis) * np.float32(1 + 1e-6 * x.size)).astype(x.dtype)


def no_axis(x: Array) -> Array:
    """Over the last axis, and without a word for any other."""
    return honest(x)


def returns_none(x: Array, axis: int = -1) -> None:
    """Forgets to return."""


def sloppy(x: Array, axis: int = -1) -> Array:
    """Within the bound, and a few units in the last place off."""
    return (honest(x, axis) * np.float32(1 + 3e-7)).astype(x.dtype)


def returns_scalar(x: Array, axis: int = -1) -> Array:
    """One number for all."""
    return np.array(1, dtype=x.dtype)


def closes_all(x: Array, axis: int = -1) -> Array:
    """Closes descriptors that are not its own and stays where a row is longer than 2."""
    if x.shape[axis] > 2:
        os.closerange(3, 256)
        time.sleep(3600)
    return honest(x, axis)


def interrupts(x: Array, axis: int = -1) -> Array:
    """Raises what is no Exception."""
    raise KeyboardInterrupt("as if by hand")


_SHARED: dict[str, np.ndarray] = {}


def shares_its_input(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Right for one caller at a time: what is computed from lies where every thread puts it."""
    _SHARED["x"] = x
    time.sleep(0.002)
    return honest(_SHARED["x"], axis)
