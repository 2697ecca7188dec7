"""Reading .npy files piece by piece, every claim of the header checked before the first number is used.

Plain positioned reads, not a memory map: the bytes read are then a count and not a guess, the memory held is
the caller's buffer and nothing else, and a file cut short while it is read is an error and not a SIGBUS.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Array = NDArray[Any]

# One system call moves at most this much, so that a progress display moves on inside a large block.
PIECE = 32 << 20


class FileError(ValueError):
    """A file that can't be read or written as asked; the message is one line and names the file."""


@dataclass(frozen=True)
class Header:
    """What a .npy header says.

    `shape` and `dtype` are as stored (`dtype` may be byte-swapped), `fortran_order` says that the first axis
    varies fastest, and `offset` is where the numbers start, in bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of data after the header."""
        return self.size * self.dtype.itemsize

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """The native float type of results: the file's own if it is one, float64 for integers and bool."""
        return self.dtype.newbyteorder("=") if self.dtype.kind == "f" else np.dtype(np.float64)


def _parse(file: BinaryIO, path: Path) -> Header:
    """Parse the header at the file's position; FileError if it is not one."""
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise FileError(
                f"{path}: .npy format version {version[0]}.{version[1]} is unknown; 1.0 to 3.0 are read"
            )
        # Version 3 differs from 2 in the encoding of field names alone, and fields are refused below.
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except FileError:
        raise
    except (ValueError, EOFError, SyntaxError, UnicodeError, OverflowError) as error:
        raise FileError(f"{path}: not a .npy file ({' '.join(str(error).split())[:120]})") from error
    if any(length < 0 for length in shape):
        raise FileError(f"{path}: the header gives a negative length in shape {shape}")
    return Header(shape, dtype, fortran_order, file.tell())


def _refuse_dtype(dtype: np.dtype[Any], path: Path) -> None:
    """FileError for an element type that no operation is defined on."""
    if dtype.hasobject:
        raise FileError(f"{path}: holds Python objects, which are not read; save it as float32 or float64")
    if dtype.names is not None or dtype.subdtype is not None:
        raise FileError(f"{path}: holds records ({dtype}); save one field as a plain array")
    if dtype.kind == "V":
        raise FileError(
            f"{path}: holds opaque {dtype.itemsize}-byte elements ({dtype.str}), which is how NumPy saves "
            f"bfloat16; save it as float32"
        )
    if dtype.kind == "f" and dtype.itemsize > 8:
        raise FileError(f"{path}: holds {dtype}; float64 is the widest type computed in")
    if dtype.kind not in "fiub":
        raise FileError(f"{path}: holds {dtype}; softmax is defined here for real floats, integers and bool")


def _check(header: Header, file_size: int, path: Path) -> None:
    _refuse_dtype(header.dtype, path)
    if file_size - header.offset < header.nbytes:
        raise FileError(
            f"{path}: truncated: shape {header.shape} of {header.dtype} needs {header.nbytes} bytes of data, "
            f"the file has {max(file_size - header.offset, 0)}"
        )


class NpyReader:
    """An open .npy file, read at element positions in file order. A context manager.

    Parameters: `path` names a regular .npy file of real numbers. Attributes: `path`, `header`, `stat` (as
    when opened) and `bytes_read` (header included).

    Raises FileError, before any number is read, if the file can't be opened, is not a regular file, is not
    .npy, is shorter than its header says, or holds objects, records, opaque, complex or textual elements.
    Trailing bytes are ignored, as NumPy does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # O_NONBLOCK: opening a FIFO that nobody writes would otherwise wait for ever.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be read: {error.strerror}") from error
        try:
            self.stat = os.fstat(self._fd)
            if not stat.S_ISREG(self.stat.st_mode):
                raise FileError(f"{self.path}: not a regular file, and a .npy file is needed")
            with os.fdopen(self._fd, "rb", closefd=False) as file:
                self.header = _parse(file, self.path)
            _check(self.header, self.stat.st_size, self.path)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        except BaseException:
            os.close(self._fd)
            raise
        self.bytes_read = self.header.offset

    def __enter__(self) -> NpyReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def read(self, first: int, into: Array, progress: Callable[[int], None] | None = None) -> None:
        """Fill `into` (1-D, contiguous, of the stored dtype) with the elements from number `first` on.

        `progress` is called with the bytes of each piece. Raises FileError if the file ends early or the
        device fails.
        """
        view = into.view(np.uint8).data
        position = self.header.offset + first * self.header.dtype.itemsize
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done : done + PIECE]], position + done)
            except OSError as error:
                raise FileError(f"{self.path}: cannot be read: {error.strerror}") from error
            if count == 0:
                raise FileError(f"{self.path}: ended early: it was cut short while it was read")
            done += count
            self.bytes_read += count
            if progress is not None:
                progress(count)

    def check_unchanged(self) -> None:
        """FileError if the file was written to since it was opened: a state and its rows would not match."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns):
            raise FileError(f"{self.path}: changed while it was read; run again when nothing writes to it")
