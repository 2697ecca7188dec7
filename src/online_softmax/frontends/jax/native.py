"""The native core as XLA calls it: registration of the handlers, once and when first needed, and calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from ... import _core, cpu

Array = Any


class Handlers(NamedTuple):
    """Whether the native handlers serve this process, and why not where they do not."""

    available: bool
    why: str


@cache
def handlers() -> Handlers:
    """Registers the handlers with XLA at the first call.

    Raises: ValueError for a bad value in the environment (see `online_softmax.info`).
    """
    targets = _core.jax_targets(cpu.plan_of(None, "auto", None, "exact"))
    if not targets:
        return Handlers(False, "built without jaxlib's headers")
    try:
        for name, capsule in targets.items():
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except RuntimeError as error:  # XLA refuses a handler of another version of its interface
        return Handlers(False, f"jaxlib {jax.lib.__version__} does not take the handlers: {error}")
    return Handlers(True, "handlers of the native core, registered with XLA")


def call(target: str, results: Sequence[Any], operands: Sequence[Array], **attributes: Any) -> list[Array]:
    """The handler `target`, on dense arrays in row-major order.

    Args:
        attributes: ints, bools and floats, handed over as int64 and float64; threads are added.
    """
    typed = {name: _typed(value) for name, value in attributes.items()}
    typed["threads"] = np.int64(cpu.default_threads())
    made = jax.ffi.ffi_call(target, tuple(results))(*operands, **typed)
    return list(made)


def _typed(value: Any) -> Any:
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def info() -> dict[str, Any]:
    """What serves JAX arrays on this CPU, and why: `jax_ffi` is whether the native handlers do.

    With what `online_softmax.info` says of the core. Raises: ValueError for a bad value in the environment.
    """
    found = handlers()
    served = {"jax": jax.__version__, "jax_ffi": found.available, "jax_ffi_reason": found.why}
    return {**cpu.info(), **served}
