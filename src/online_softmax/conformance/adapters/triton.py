"""This library's Triton kernels in Triton's interpreter: its process has TRITON_INTERPRET=1
(`Subject.environment`)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from ...extras import require
from ..cases import NotOffered
from . import Adapter, Library, versions_of

#: Elements of a call at most: the interpreter takes milliseconds for each step of a program.
LONGEST: Final = 20_000

#: The interpreter keeps the program that runs in variables of its module, so one call at a time; a GPU has no
#: such limit.
_one_at_a_time = threading.Lock()


def load(variant: str) -> Adapter:
    """`variant`: an algorithm of `gpu.launch`, or "" for "auto".

    Raises MissingExtra where Triton or PyTorch is not installed, ValueError for an algorithm that no
    operation has.
    """
    for module in ("torch", "triton"):
        require(module, "triton", "the subject triton")
    from ...gpu import launch

    algorithms = sorted({name for names in launch.ALGORITHMS.values() for name in names} | {"auto"})
    if variant and variant not in algorithms:
        raise ValueError(f"variant {variant!r} of triton: one of {', '.join(algorithms)} would do")
    return Library(
        name=f"triton:{variant}" if variant else "triton",
        framework="torch",
        versions=versions_of("triton", "torch"),
        functions=_functions(variant or "auto"),
        lacks="not built yet",
        differentiable=False,
        formats=frozenset({"float32", "float16", "bfloat16"}),
    )


def _functions(algorithm: str) -> dict[str, Callable[..., Any]]:
    from ...gpu import launch, ops

    def forced(op: str, x: Any) -> dict[str, Any]:
        if x.numel() > LONGEST:
            raise NotOffered("too long for the interpreter")
        if not x.ndim:
            raise NotOffered("takes arrays of one axis at least")
        if algorithm != "auto" and algorithm not in launch.ALGORITHMS[op]:
            raise NotOffered(f"{op} has no algorithm {algorithm}")
        return {"algorithm": algorithm}

    def softmax(x: Any, axis: Any) -> Any:
        return ops.softmax(x, axis, **forced("softmax", x))

    def log_softmax(x: Any, axis: Any) -> Any:
        return ops.log_softmax(x, axis, **forced("log_softmax", x))

    def logsumexp(x: Any, axis: Any, keepdims: Any) -> Any:
        lse = ops.logsumexp(x, axis, **forced("logsumexp", x))
        return lse.unsqueeze(axis) if keepdims else lse

    def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
        forced("softmax_topk", x)
        return tuple(ops.softmax_topk(x, k, axis))

    def softmax_grad(x: Any, dy: Any, axis: Any) -> Any:
        chosen = forced("softmax_backward", x)
        return ops.softmax_backward(ops.softmax(x, axis), dy, axis, **chosen)

    def log_softmax_grad(x: Any, dy: Any, axis: Any) -> Any:
        chosen = forced("log_softmax_backward", x)
        return ops.log_softmax_backward(ops.log_softmax(x, axis), dy, axis, **chosen)

    def logsumexp_grad(x: Any, dlse: Any, axis: Any) -> Any:
        forced("logsumexp_backward", x)
        return ops.logsumexp_backward(x, ops.logsumexp(x, axis), dlse.float(), axis)

    made = (
        softmax, log_softmax, logsumexp, softmax_topk, softmax_grad, log_softmax_grad, logsumexp_grad,
    )  # fmt: skip
    return {f.__name__: _alone(f) for f in made}


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _one_at_a_time:
            return function(*args, **kwargs)

    return call
