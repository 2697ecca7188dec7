"""Where the meter takes hold of Triton: launches, and the four functions that touch memory, for a while.

The functions are set on the interpreter's native module, not the name `_interpreter`: Triton copies the
names of its interpreter into the modules of kernels, where a stand-in would stay behind. Signatures as in
Triton 3.7 to 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from ...extras import require
from .record import ATOMIC, LOAD, STORE, ProgramId

Access = Callable[[int, Any, Any, int, ProgramId, ProgramId], None]


class Listener(Protocol):
    """What a launch is reported to."""

    def begin(self, kernel: str, arguments: dict[str, Any]) -> Access:
        """A launch begins with these host arguments; returns what takes its accesses."""

    def end(self, grid: ProgramId) -> None:
        """The launch has ended well."""

    def failed(self) -> BaseException | None:
        """The launch has ended with an error; returns the listener's own if that caused it."""


_in_use = threading.Lock()


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report launches of interpreted kernels to `listener`.

    Raises RuntimeError while another does, MissingExtra without Triton.
    """
    require("triton", "triton", "the meter")
    interpreter = require("triton.runtime.interpreter", "triton", "the meter")
    jit = require("triton.runtime.jit", "triton", "the meter")
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("a Meter is active already: launches are counted by one at a time")
    try:
        with contextlib.ExitStack() as stack:
            hook = _Hook(interpreter, listener)
            native, executor = interpreter._interpreter, interpreter.GridExecutor
            for owner, name, make in (
                (native, "load", hook.load),
                (native, "store", hook.store),
                (native, "atomic_rmw", hook.atomic_rmw),
                (native, "atomic_cas", hook.atomic_cas),
                (executor, "_init_args_hst", hook.arguments),
                (executor, "__call__", hook.launch),
                (jit.JITFunction, "run", hook.compiled),
            ):
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, make(original))
            yield
    finally:
        _in_use.release()


class _Hook:
    """Makes the replacement of each function from the original."""

    def __init__(self, interpreter: Any, listener: Listener) -> None:
        self._builder = interpreter.interpreter_builder
        self._failure = interpreter.InterpreterError
        self._listener = listener
        self._access: Access | None = None

    def _take(self, kind: int, pointers: Any, mask: Any, itemsize: int) -> None:
        if self._access is not None:
            builder = self._builder
            self._access(kind, pointers, mask, itemsize, builder.grid_idx, builder.grid_dim)

    def load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
            self._take(LOAD, pointers, mask, np.dtype(dtype).itemsize)
            return original(pointers, mask, other, dtype)

        return load

    def store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def store(pointers: Any, value: Any, mask: Any) -> Any:
            self._take(STORE, pointers, mask, np.asarray(value).itemsize)
            return original(pointers, value, mask)

        return store

    def atomic_rmw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def atomic_rmw(operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:
            self._take(ATOMIC, pointers, mask, np.asarray(value).itemsize)
            return original(operation, pointers, value, mask, order)

        return atomic_rmw

    def atomic_cas(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def atomic_cas(pointers: Any, expected: Any, value: Any, order: Any) -> Any:
            self._take(ATOMIC, pointers, None, np.asarray(value).itemsize)
            return original(pointers, expected, value, order)

        return atomic_cas

    def arguments(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init_args_hst(executor: Any, args: Any, kwargs: Any) -> Any:
            host_args, host_kwargs = original(executor, args, kwargs)
            bound = inspect.getcallargs(executor.fn, *host_args, **host_kwargs)
            self._access = self._listener.begin(executor.fn.__name__, bound)
            return host_args, host_kwargs

        return init_args_hst

    def launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(executor, *args, **kwargs)
                self._listener.end(self._builder.grid_dim)
                return result
            except self._failure:
                cause = self._listener.failed()
                if cause is None:
                    raise
                raise cause from None
            finally:
                self._access = None

        return launch

    def compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("warmup"):
                return original(kernel, *args, **kwargs)
            raise RuntimeError(
                f"kernel {kernel.__name__!r} is compiled, not interpreted: TRITON_INTERPRET=1 has to be in "
                "the environment before triton is imported and the kernel is defined"
            )

        return run
