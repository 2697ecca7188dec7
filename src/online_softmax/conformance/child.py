"""The process a subject lives in, as its parent sees it: started, asked, watched, killed.

Questions and answers are pickles with a length before them, on two pipes of their own, so that nothing a
subject prints gets among them. What it prints is read too, and the end of it is kept for the message about
a crash.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HEADER: Final = struct.Struct(">8sQ")
MAGIC: Final = b"os-check"
#: Seconds between two looks at whether a silent child is alive.
_TICK: Final = 0.05
#: Seconds past its limit after which a child that has not ended itself is killed, and the rate of the pipes
#: assumed on top for large arrays.
_GRACE: Final = 2.0
_BYTES_PER_SECOND: Final = 5e7
_CHUNK: Final = 1 << 20
_TAIL_BYTES: Final = 1 << 16
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep
_OURS: Final = os.path.dirname(__file__) + os.sep
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+) in (.+)')


class SubjectError(ValueError):
    """A subject that cannot be run at all: not importable, not callable, dead before it was loaded."""


class ChildError(Exception):
    """The child gave no answer. `kind` is "crash" or "timeout"; the message says how it ended and where."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Load:
    """Question: load this subject. The answer is `Loaded` or `Refused`."""

    subject: Any


@dataclass(frozen=True)
class Loaded:
    """The subject is there: the framework whose arrays it takes, and versions by library."""

    framework: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Refused:
    """It is not: the exception's type and text."""

    kind: str
    message: str


@dataclass(frozen=True)
class Call:
    """Question: call the subject. The answer is an `Outcome`.

    Attributes:
        op, dtype: operation and format of the case.
        inputs, layouts, options: those of a `Point`.
        mode: "once", "repeat", "threads" or "rows".
        calls: how often, in the modes repeat and threads.
        rows: mode rows: operand -> its axes along which it is cut, one index after the other; those of an
            axis of the batch stand in the same place in each tuple, None where the operand does not have it.
        limit: seconds after which the child ends itself.
    """

    op: str
    dtype: str
    inputs: Mapping[str, Array]
    layouts: Mapping[str, str]
    options: Mapping[str, Any]
    mode: str = "once"
    calls: int = 1
    rows: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    limit: float = 20.0


class Child:
    """One child process. Use as a context manager, or call `close`.

    `environment`: variables beside those of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ask_read, self._ask = os.pipe()
        self._answer, answer_write = os.pipe()
        os.set_blocking(self._ask, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", str(ask_read), str(answer_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(ask_read, answer_write),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                | dict(environment or {}),
                start_new_session=True,  # a subject may have children of its own, which have to go with it
            )
        except BaseException:
            for end in (self._ask, self._answer):
                os.close(end)
            raise
        finally:
            os.close(ask_read)
            os.close(answer_write)
        self._tail = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child and all it started. Safe to call twice."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for end in (self._ask, self._answer):
            if end >= 0:
                os.close(end)
        self._ask = self._answer = -1
        self._reader.join(timeout=1.0)

    def ask(self, question: Load | Call, seconds: float) -> Any:
        """The child's answer. ChildError where none comes within `seconds`, or it dies; it is closed then."""
        body = pickle.dumps(question, protocol=5)
        started = time.monotonic()
        deadline = started + seconds + _GRACE + len(body) / _BYTES_PER_SECOND
        try:
            self._write(HEADER.pack(MAGIC, len(body)) + body, deadline)
            magic, length = HEADER.unpack(self._read(HEADER.size, deadline))
            if magic != MAGIC:
                raise ChildError("crash", "the child's answers were written over by the subject")
            return pickle.loads(self._read(length, deadline + length / _BYTES_PER_SECOND))
        except ChildError as error:
            late = time.monotonic() - started >= seconds
            left = error.kind == "crash" and not self._ends()
            self.close()
            if left:
                raise ChildError("crash", "closed the pipe that its answers go through") from None
            if error.kind == "timeout" or (late and self._process.returncode == 1):
                raise ChildError("timeout", f"no answer within {seconds:g} s{self._place()}") from None
            raise ChildError(error.kind, str(error) or f"{self._ending()}{self._place()}") from None
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def said(self) -> str:
        """The end of what the child printed."""
        return bytes(self._tail).decode(errors="replace")

    def _drain(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while piece := os.read(stream.fileno(), _TAIL_BYTES):
                self._tail += piece
                del self._tail[:-_TAIL_BYTES]

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._ask, selectors.EVENT_WRITE, deadline)
            try:
                view = view[os.write(self._ask, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ChildError("crash", "") from None

    def _read(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._wait(self._answer, selectors.EVENT_READ, deadline)
            piece = os.read(self._answer, min(count - len(parts), _CHUNK))
            if not piece:
                raise ChildError("crash", "")
            parts += piece
        return bytes(parts)

    def _wait(self, end: int, event: int, deadline: float) -> None:
        """Until the pipe is ready. A process the child left behind may hold the pipe open: the child's own
        end counts."""
        with selectors.DefaultSelector() as selector:
            selector.register(end, event)
            while not selector.select(_TICK):
                if self._process.poll() is not None and not selector.select(0):
                    raise ChildError("crash", "")
                if time.monotonic() > deadline:
                    raise ChildError("timeout", "")

    def _ends(self) -> bool:
        """Whether the process, whose pipe is closed, comes to its end by itself."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ending(self) -> str:
        code = self._process.returncode
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"ended by {names.get(-code, f'signal {-code}')}"
        said = self.said().strip()
        last = f" ({said.splitlines()[-1][:200]})" if "Traceback (most recent call last)" in said else ""
        return f"ended its process with exit code {code}{last}"

    def _place(self) -> str:
        """Where the subject was, as the fault handler printed it; empty where it could not. The standard
        library's own frames say little, so the subject's is taken where there is one."""
        text = self.said()
        start = max(text.rfind("Current thread"), text.rfind("Thread 0x"))
        found = _FRAME.findall(text, start) if start >= 0 else []
        for file, line, name in [frame for frame in found if _is_theirs(frame[0])] or found:
            return f", in {name.strip()} ({os.path.basename(file)}, line {line})"
        return ""


def _is_theirs(file: str) -> bool:
    return "site-packages" in file or not file.startswith((_STANDARD, _OURS, "<"))


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays agree in shape, format and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(_bytes(a), _bytes(b)))


def _bytes(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)
