"""An output file that appears whole or not at all."""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .readers import PIECE, FileError


def header_bytes(shape: tuple[int, ...], dtype: np.dtype[Any], fortran_order: bool) -> bytes:
    """The .npy header of an array, padded so that the numbers start on a multiple of 64 bytes."""
    file = io.BytesIO()
    descr = npy.dtype_to_descr(dtype)
    npy.write_array_header_1_0(file, {"shape": shape, "fortran_order": fortran_order, "descr": descr})
    return file.getvalue()


class AtomicFile:
    """A file written under a temporary name in the same folder and renamed once complete. A context manager.

    Parameters: `path` is the name to appear (a symbolic link is followed: the file it names is the one
    replaced); `nbytes` is the size the file will have; `not_this` is the stat of a file that must not be
    replaced (the input). Leaving the block without `commit()`, by any exception at all, removes the temporary
    file; a process killed outright leaves only the hidden `.<name>.<hex>.partial`. A file already at `path`
    stays until the rename, and its permissions are kept.

    Raises FileError, before anything is written, if the folder is missing or not writable, if `path` is the
    input, a folder or a device, or if the file system has less than `nbytes` free.
    """

    def __init__(self, path: str | os.PathLike[str], nbytes: int, not_this: os.stat_result) -> None:
        self.path = Path(path)
        self._target = Path(os.path.realpath(self.path))
        self._nbytes = nbytes
        self._committed = False
        self._mode = self._existing_mode(not_this)
        self.bytes_written = 0

    def _existing_mode(self, not_this: os.stat_result) -> int | None:
        """Permissions of the file to be replaced, None if there is none."""
        try:
            there = os.stat(self._target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written: {error.strerror}") from error
        if os.path.samestat(there, not_this):
            raise FileError(f"{self.path}: is the input file; give the output another name")
        if not stat.S_ISREG(there.st_mode):
            raise FileError(f"{self.path}: exists and is not a regular file; give the output another name")
        return stat.S_IMODE(there.st_mode)

    def __enter__(self) -> AtomicFile:
        folder = self._target.parent
        self._temporary = folder / f".{self._target.name[:40]}.{secrets.token_hex(4)}.partial"
        try:
            space = os.statvfs(folder)
            if space.f_bavail * space.f_frsize < self._nbytes:
                raise FileError(
                    f"{self.path}: needs {self._nbytes} bytes, and its file system has "
                    f"{space.f_bavail * space.f_frsize} free"
                )
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written: {error.strerror}") from error
        return self

    def write(
        self, position: int, data: bytes | NDArray[Any], progress: Callable[[int], None] | None = None
    ) -> None:
        """Write `data` (bytes or a contiguous array) at a byte position. FileError if the device refuses."""
        view = data.view(np.uint8).data if isinstance(data, np.ndarray) else memoryview(data)
        done = 0
        while done < len(view):
            try:
                count = os.pwrite(self._fd, view[done : done + PIECE], position + done)
            except OSError as error:
                raise FileError(f"{self.path}: cannot be written: {error.strerror}") from error
            done += count
            self.bytes_written += count
            if progress is not None:
                progress(count)

    def commit(self) -> None:
        """Flush to the device, then give the file its name. FileError if either is refused."""
        try:
            if self._mode is not None:
                os.fchmod(self._fd, self._mode)
            os.fsync(self._fd)
            os.replace(self._temporary, self._target)
            self._committed = True
            # The rename itself is durable only once the folder is.
            folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written: {error.strerror}") from error

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._committed:
                self._temporary.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
