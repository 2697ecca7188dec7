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
from collections.abc import Sequence
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


def pack(kind: int, arrays: Sequence[Array]) -> bytes:
    """`arrays`, float32 or float64, of one shape and dtype, as the state of this kind."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    head = _HEADER.pack(_MAGIC, _VERSION, kind, dtype.itemsize, len(shape))
    entries = (np.ascontiguousarray(a, dtype=dtype.newbyteorder("<")).tobytes() for a in arrays)
    body = b"".join((head, struct.pack(f"<{len(shape)}Q", *shape), *entries))
    return body + _CHECK.pack(zlib.crc32(body))


def unpack(data: bytes | bytearray | memoryview, kind: int, count: int) -> list[Array]:
    """The `count` arrays of a state of this kind.

    Raises TypeError where data is not bytes; ValueError, saying what is wrong, where a byte is missing, extra
    or changed. Cost: nothing is allocated by what data claims, only by its true length.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data is a {type(data).__name__}: bytes would do")
    raw = bytes(data)
    if len(raw) < _HEADER.size + _CHECK.size or raw[: len(_MAGIC)] != _MAGIC:
        raise ValueError("data does not start like a state: bytes from to_bytes would do")
    _, version, found, itemsize, ndim = _HEADER.unpack_from(raw)
    if version != _VERSION or found != kind:
        raise ValueError(f"data is of version {version}, kind {found}: {_VERSION} and {kind} would do")
    end = len(raw) - _CHECK.size
    if _CHECK.unpack_from(raw, end)[0] != zlib.crc32(raw[:end]):
        raise ValueError("data fails its checksum: it was damaged or cut short")
    start = _HEADER.size + 8 * ndim
    if itemsize not in (4, 8) or ndim > _MOST_AXES or start > end:
        would = f"4 or 8, and up to {_MOST_AXES}, would do"
        raise ValueError(f"data has entries of {itemsize} bytes and {ndim} axes: {would}")
    shape = struct.unpack_from(f"<{ndim}Q", raw, _HEADER.size)
    entries = math.prod(shape)
    # An axis of length 0 lets the others claim any length, up to where numpy could not count the strides.
    if start + count * entries * itemsize != end or math.prod(max(n, 1) for n in shape) >= 2**48:
        raise ValueError(f"data has {end - start} bytes of entries: they make no state of shape {shape}")
    flat = np.frombuffer(raw, dtype=f"<f{itemsize}", count=count * entries, offset=start)
    return [part.astype(part.dtype.newbyteorder("=")).reshape(shape) for part in np.split(flat, count)]
