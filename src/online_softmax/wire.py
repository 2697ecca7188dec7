"""States as bytes, the same on every machine, checked before they are believed. Imports nothing of this
package.

Layout, little endian: magic, version, kind of state, bytes of an entry (4 or 8), number of axes; the length
of each axis (8 bytes each); the arrays of the state, one after another, in C order; the CRC-32 of all before
it. The checksum catches every change of up to four adjacent bytes, and a cut or a longer one but for one case
in 2**32.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_HEADER: Final = struct.Struct("<4sHHHH")
_CHECK: Final = struct.Struct("<I")
_MAGIC: Final = b"OSMS"
_VERSION: Final = 1
#: What numpy serves in every version this package runs on.
_MOST_AXES: Final = 32


#: Kinds of state. A new version of a kind's meaning has a number of its own, so that versions never mix.
KINDS: Final = {
    1: "a SoftmaxState",
    2: "an AttentionState",
    32: "an ExactState in lse-22x3/1",
    34: "an ExactAttentionState in attention-32x2/1",
    64: "an ExactState in lse-32x4/1",
    66: "an ExactAttentionState in attention-32x3/1",
}


def pack(kind: int, arrays: Sequence[Array]) -> bytes:
    """`arrays`, float32 or float64, of one shape and dtype, as the state of this kind."""
    return pack_parts(kind, arrays[0].dtype.itemsize, arrays[0].shape, arrays)


def pack_parts(kind: int, itemsize: int, shape: tuple[int, ...], arrays: Sequence[Array]) -> bytes:
    """`arrays` as the state of this kind, each with its own dtype and with axes of its own after `shape`."""
    head = _HEADER.pack(_MAGIC, _VERSION, kind, itemsize, len(shape))
    entries = (np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays)
    body = b"".join((head, struct.pack(f"<{len(shape)}Q", *shape), *entries))
    return body + _CHECK.pack(zlib.crc32(body))


def kind_of(data: bytes | bytearray | memoryview) -> int:
    """The kind of the state in `data`, which `unpack` checks further."""
    raw = _raw(data)
    return int(_HEADER.unpack_from(raw)[2])


def unpack(data: bytes | bytearray | memoryview, kind: int, count: int) -> list[Array]:
    """The `count` arrays of a state of this kind.

    Raises TypeError where data is not bytes; ValueError, saying what is wrong, where a byte is missing, extra
    or changed. Cost: nothing is allocated by what data claims, only by its true length.
    """
    raw, itemsize, shape = _opened(data, kind, lambda itemsize: count * itemsize)
    start = _HEADER.size + 8 * len(shape)
    entries = math.prod(shape)
    flat = np.frombuffer(raw, dtype=f"<f{itemsize}", count=count * entries, offset=start)
    return [part.astype(part.dtype.newbyteorder("=")).reshape(shape) for part in np.split(flat, count)]


def unpack_parts(
    data: bytes | bytearray | memoryview, kind: int, parts: Sequence[tuple[str, tuple[int, ...]]]
) -> list[Array]:
    """The arrays of a state of this kind: of each its dtype and the axes after those of the state.

    Raises and costs as `unpack`.
    """
    sizes = [np.dtype(code).itemsize * math.prod(tail) for code, tail in parts]
    raw, itemsize, shape = _opened(data, kind, lambda _: sum(sizes))
    if itemsize != sizes[0]:
        raise ValueError(f"data has entries of {itemsize} bytes: {sizes[0]} would do for {KINDS[kind]}")
    at, found = _HEADER.size + 8 * len(shape), []
    for (code, tail), size in zip(parts, sizes, strict=True):
        count = math.prod(shape) * math.prod(tail)
        flat = np.frombuffer(raw, dtype=np.dtype(code).newbyteorder("<"), count=count, offset=at)
        found.append(flat.astype(code).reshape((*shape, *tail)))
        at += math.prod(shape) * size
    return found


def _raw(data: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data is a {type(data).__name__}: bytes would do")
    raw = bytes(data)
    if len(raw) < _HEADER.size + _CHECK.size or raw[: len(_MAGIC)] != _MAGIC:
        raise ValueError("data does not start like a state: bytes from to_bytes would do")
    return raw


def _opened(
    data: bytes | bytearray | memoryview, kind: int, bytes_of: Callable[[int], int]
) -> tuple[bytes, int, tuple[int, ...]]:
    """data, the bytes of its entries and its shape, found to be whole."""
    raw = _raw(data)
    _, version, found, itemsize, ndim = _HEADER.unpack_from(raw)
    if version != _VERSION or found != kind:
        held = KINDS.get(found, f"kind {found}")
        would = f"version {_VERSION}, {KINDS.get(kind, f'kind {kind}')}, would do"
        raise ValueError(f"data is of version {version}, {held}: {would}")
    end = len(raw) - _CHECK.size
    if _CHECK.unpack_from(raw, end)[0] != zlib.crc32(raw[:end]):
        raise ValueError("data fails its checksum: it was damaged or cut short")
    start = _HEADER.size + 8 * ndim
    if itemsize not in (4, 8) or ndim > _MOST_AXES or start > end:
        would = f"4 or 8, and up to {_MOST_AXES}, would do"
        raise ValueError(f"data has entries of {itemsize} bytes and {ndim} axes: {would}")
    shape = struct.unpack_from(f"<{ndim}Q", raw, _HEADER.size)
    # An axis of length 0 lets the others claim any length, up to where numpy could not count the strides.
    needed = math.prod(shape) * bytes_of(itemsize)
    if start + needed != end or math.prod(max(n, 1) for n in shape) >= 2**48:
        raise ValueError(f"data has {end - start} bytes of entries: they make no state of shape {shape}")
    return raw, itemsize, shape
