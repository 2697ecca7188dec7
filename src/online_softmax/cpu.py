"""Face of the native core: chooses instruction set, algorithm and threads, and hands arrays over as
addresses.

The one place that decides; front ends validate shapes, axes and dtypes before they call. Arrays are NumPy
arrays of a served dtype with any strides (multiples of one byte, aligned elements). Nothing here copies an
operand.

Environment variables ONLINE_SOFTMAX_ISA, ONLINE_SOFTMAX_ALGORITHM and ONLINE_SOFTMAX_THREADS set the
defaults, read at the first call; an argument wins over them. A value that makes no sense is raised
by the first call.
"""

from __future__ import annotations

import math
import os
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _core, host
from .traffic import cache

Array = NDArray[Any]

DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
SHORT: Final = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
ALGORITHMS: Final = ("naive", "three_pass", "online", "cached", "auto")
PRECISIONS: Final = ("exact", "fast")
OPS: Final = ("softmax", "log_softmax", "logsumexp", "softmax_topk")

# Codes of native/table.h.
_OP: Final = {"softmax": 0, "log_softmax": 1, "logsumexp": 2, "state": 3}
CODES: Final = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(ml_dtypes.bfloat16): 3,
}
_ALGORITHM: Final = {"auto": -1, "naive": 0, "three_pass": 1, "online": 2, "cached": 3}
_NO_STRIDES: Final[list[int]] = []
_LARGE_RESULT: Final = 1 << 20  # results from here on come from large pages and a pool


_VARIABLES: Final = ("ONLINE_SOFTMAX_ISA", "ONLINE_SOFTMAX_ALGORITHM", "ONLINE_SOFTMAX_THREADS")


def isas() -> tuple[str, ...]:
    """Instruction sets usable on this CPU, best first."""
    return _core.isas()


def _from_environment(name: str, allowed: tuple[str, ...], default: str) -> str:
    given = os.environ.get(name)
    if given is None or given == "":
        return default
    if given not in allowed:
        raise ValueError(f"environment variable {name} is {given!r}: one of {', '.join(allowed)} would do")
    return given


def _threads_from_environment() -> int:
    given = os.environ.get("ONLINE_SOFTMAX_THREADS")
    if given is None or given == "":
        return _core.usable_cores()
    if not (given.isascii() and given.isdigit() and int(given) >= 1):
        raise ValueError(
            f"environment variable ONLINE_SOFTMAX_THREADS is {given!r}: a whole number of at least 1 would do"
        )
    return int(given)


class _Defaults:
    """What the environment asks for. A bad value is kept and raised on first use, not by the import."""

    def __init__(self) -> None:
        self.isa, self.algorithm, self.threads = isas()[0], "auto", 1
        self.set_by = frozenset(name for name in _VARIABLES if os.environ.get(name))
        self.error: ValueError | None = None
        try:
            self.isa = _from_environment("ONLINE_SOFTMAX_ISA", isas(), self.isa)
            self.algorithm = _from_environment("ONLINE_SOFTMAX_ALGORITHM", ALGORITHMS, self.algorithm)
            self.threads = _threads_from_environment()
        except ValueError as error:
            self.error = error
        small_calls = self.error is None and self.algorithm == "auto"
        _core.set_default_isa(self.isa if small_calls else "")

    def checked(self) -> _Defaults:
        if self.error is not None:
            raise self.error
        return self


_DEFAULTS: Final = _Defaults()


def _set_limits() -> None:
    """Hand the model's choice of algorithm to the kernels: it rests on the sizes of the caches alone, so
    that the
    same machine always chooses alike."""
    caches = host.caches()
    for operation, op in _OP.items():
        for dtype, code in CODES.items():
            _core.set_cached_limit(op, code, cache.cached_columns(operation, dtype.itemsize, caches))
    _core.set_cached_column(cache.cached_column_length(caches))


_set_limits()


def default_isa() -> str:
    """Instruction set used when none is asked for. ValueError for a bad value in the environment."""
    return _DEFAULTS.checked().isa


def default_algorithm() -> str:
    """Algorithm used when none is asked for."""
    return _DEFAULTS.checked().algorithm


def default_threads() -> int:
    """Most threads a call uses when no number is asked for: the cores this process may run on."""
    return _DEFAULTS.checked().threads


def variants() -> tuple[str, ...]:
    """Ids `<op>.<dtype>.<isa>.<algorithm>` of all that can be forced here."""
    return tuple(
        f"{op}.{short}.{isa}.{algorithm}"
        for op in OPS
        for short in SHORT.values()
        for isa in isas()
        for algorithm in (("online",) if op == "softmax_topk" else ALGORITHMS)
    )


def plan_of(isa: str | None, algorithm: str, threads: int | None, precision: str) -> _core.Plan:
    defaults = _DEFAULTS.checked()
    if isa is None:
        isa = defaults.isa
    elif isa not in isas():
        known = " (built, but this CPU lacks it)" if isa in _core.compiled() else ""
        raise ValueError(f"isa is {isa!r}{known}: one of {', '.join(isas())} would do")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHM:
        raise ValueError(f"algorithm is {algorithm!r}: one of {', '.join(ALGORITHMS)} would do")
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}: one of {', '.join(PRECISIONS)} would do")
    if threads is None:
        threads = defaults.threads
    elif isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
        raise TypeError(f"threads is {threads!r}: a whole number of at least 1 would do")
    elif threads < 1:
        raise ValueError(f"threads is {threads}: a whole number of at least 1 would do")
    chosen = defaults.algorithm if algorithm == "auto" else algorithm
    return _core.Plan(isa, _ALGORITHM[chosen], precision == "fast", min(int(threads), 1024))


def address(a: Array) -> int:
    return int(a.__array_interface__["data"][0])


def _mask(axes: tuple[int, ...]) -> int:
    return sum(1 << a for a in axes)


def _optional(a: Array | None) -> tuple[int, Any]:
    return (0, _NO_STRIDES) if a is None else (address(a), a.strides)


def _left(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of one of `DTYPES`. Raises ValueError for another name."""
    found: dict[str, np.dtype[Any]] = {dtype.name: dtype for dtype in CODES}
    if name in found:
        return found[name]
    raise ValueError(f"dtype={name!r}: one of {', '.join(DTYPES)} would do")


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float64 for float64, float32 for the narrower formats."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def empty(shape: tuple[int, ...], dtype: DTypeLike, like: Array | None = None) -> Array:
    """An uninitialised result array.

    From 1 MiB on its memory comes in large pages from a pool that keeps what is released (`info()` says how
    much), so that a fresh result costs no page faults on repeated calls.

    Args:
        like: the result has this array's order of axes in memory (NumPy's order "K"), densely packed.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if like is not None and like.shape == tuple(shape):
        plain = like.flags.c_contiguous
    else:
        like, plain = None, True
    if nbytes < _LARGE_RESULT:
        return np.empty_like(like, dtype=dtype, subok=False) if like is not None else np.empty(shape, dtype)
    memory = _core.buffer(nbytes)
    if plain or like is None:
        return memory.view(dtype).reshape(shape)
    # Axes from the largest stride of `like` to the smallest; broadcast ones (stride 0) where they stand.
    order = sorted(range(len(shape)), key=lambda d: -abs(like.strides[d]))
    flat = memory.view(dtype).reshape([shape[d] for d in order])
    return flat.transpose(np.argsort(order))


def softmax(
    x: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    log: bool = False,
    isa: str | None = None,
    algorithm: str = "auto",
    threads: int | None = None,
    precision: str = "exact",
) -> None:
    """Softmax, or log-softmax, of x over `axes` into `out`.

    Args:
        x, out: the same shape and served dtype, any strides; the same memory with the same strides, or
            disjoint.
        axes: non-negative, unique.
        where: bool of x's shape (strides may be 0), or None.

    Raises: ValueError or TypeError for an unknown isa, algorithm or precision, or a bad number of threads.

    Cost: see `online_softmax.traffic.model`; scratch of at most about 1 MiB a thread (the row, where a mask,
    a strided multi-axis reduction or a teaching algorithm needs it gathered).
    """
    plan = plan_of(isa, algorithm, threads, precision)
    op = _OP["log_softmax" if log else "softmax"]
    _core.map_array(
        plan, op, CODES[x.dtype], x.shape, _mask(axes), address(x), x.strides, address(out), out.strides,
        *_optional(where),
    )  # fmt: skip


def _reduce(
    op: str,
    x: Array,
    axes: tuple[int, ...],
    plan: _core.Plan,
    where: Array | None,
    b: Array | None,
    dtype: np.dtype[Any] | None = None,
) -> tuple[Array, Array | None]:
    shape, dtype = _left(x.shape, axes), state_dtype(x.dtype) if dtype is None else dtype
    first = np.empty(shape, dtype)
    second = np.empty(shape, dtype) if op == "state" or b is not None else None
    _core.reduce_array(
        plan, _OP[op], CODES[x.dtype], x.shape, _mask(axes), address(x), x.strides,
        address(first), 0 if second is None else address(second), dtype != np.float64,
        *_optional(where), *_optional(b),
    )  # fmt: skip
    return first, second


def _doubles(b: Array | None) -> Array | None:
    """Weights in float64, without writing out what is broadcast."""
    if b is None or b.dtype == np.float64:
        return b
    once = b[tuple(slice(0, 1) if step == 0 else slice(None) for step in b.strides)]
    return np.broadcast_to(once.astype(np.float64), b.shape)


def logsumexp(
    x: Array,
    axes: tuple[int, ...],
    *,
    b: Array | None = None,
    where: Array | None = None,
    isa: str | None = None,
    algorithm: str = "auto",
    threads: int | None = None,
) -> tuple[Array, Array | None]:
    """(log|sum(b*exp(x))|, sign) over `axes`, which are removed; float64 where x is, else float32.

    Without weights no sum is negative, and the sign is None: `sign_of(lse)` makes it.

    Args:
        b: float64 or float32 weights of x's shape, any strides; elements of weight 0 drop out.
        where: bool of x's shape, or None.

    Cost: one read of x.
    """
    return _reduce("logsumexp", x, axes, plan_of(isa, algorithm, threads, "exact"), where, _doubles(b))


def sign_of(lse: Array) -> Array:
    """Sign of sums without weights: 0 where lse is -inf, NaN where it is, else 1."""
    return np.where(np.isnan(lse), lse, np.where(np.isneginf(lse), lse.dtype.type(0), lse.dtype.type(1)))


def state(
    x: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    wide: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> tuple[Array, Array]:
    """States (m, s) of x over `axes`, which are removed: the true maximum and the sum of exp(x - m).

    `wide` keeps both in float64, as they are summed, for states that will be merged further.

    (-inf, 0) for rows with nothing in them, (NaN, NaN) for rows with a NaN, (+inf, number of +inf) for rows
    with +inf. float64 where x is, else float32. One read of x.
    """
    dtype = np.dtype(np.float64) if wide else None
    m, s = _reduce("state", x, axes, plan_of(isa, "auto", threads, "exact"), where, None, dtype)
    assert s is not None  # states have both
    return m, s


def topk(
    x: Array, k: int, axis: int, *, isa: str | None = None, threads: int | None = None
) -> tuple[Array, Array, Array]:
    """The k most probable elements along `axis`: (probabilities, places, lse of the whole row).

    Probabilities in x's dtype, int64 places, lse float64 where x is, else float32. Descending by logit, ties
    by the lower place, NaN the largest. One read of x.
    """
    plan = plan_of(isa, "auto", threads, "exact")
    rows = _left(x.shape, (axis,))
    values, places = np.empty((*rows, k), np.float64), np.empty((*rows, k), np.int64)
    lse = np.empty(rows, np.float64)
    _core.topk_array(
        plan, CODES[x.dtype], x.shape, axis, address(x), x.strides, k,
        address(values), address(places), address(lse),
    )  # fmt: skip
    with np.errstate(over="ignore", under="ignore"):
        values = values.astype(x.dtype, copy=False)
        lse = lse.astype(state_dtype(x.dtype), copy=False)
    return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis), lse


def normalize(
    x: Array,
    m: Array,
    s: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    log: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """The write pass alone: out = exp(x - m)/s, or (x - m) - log(s), for states of longer rows.

    Args:
        x, out: the same shape and served dtype, any strides; the same memory or disjoint.
        m, s: states, of x's shape without `axes`. Rows whose m is not finite or whose s is NaN come out NaN.

    Cost: one read and one write.
    """
    first, second = np.ascontiguousarray(m, dtype=np.float64), np.ascontiguousarray(s, dtype=np.float64)
    _core.normalize_array(
        plan_of(isa, "online", threads, "exact"), _OP["log_softmax" if log else "softmax"],
        CODES[x.dtype], x.shape, _mask(axes), address(x), x.strides, address(out), out.strides,
        address(first), address(second),
    )  # fmt: skip


def exp(x: Array, *, isa: str | None = None) -> Array:
    """The kernels' float32 exp, element by element, over the whole range."""
    source = np.ascontiguousarray(x, dtype=np.float32)
    y = np.empty(source.shape, np.float32)
    plan_of(isa, "auto", None, "exact")
    _core.exp_array(isa or default_isa(), address(source), address(y), source.size)
    return y


def info() -> dict[str, Any]:
    """What is in force and why: instruction set, algorithm, threads, caches, whether XLA can call the
    core, and the result pool (bytes).

    The pool keeps the memory of released results of 1 MiB and more, up to `pool_limit`, so that the next
    result costs no page faults; `pool_kept` of it is held now.
    """

    def because(variable: str, otherwise: str) -> str:
        return f"{variable} was set at the first call" if variable in _DEFAULTS.set_by else otherwise

    built = bool(_core.jax_targets(plan_of(None, "auto", None, "exact")))
    return {
        "cpu": host.model(),
        "isa": default_isa(),
        "isa_reason": because("ONLINE_SOFTMAX_ISA", "best of the usable ones"),
        "isas_usable": isas(),
        "isas_built": _core.compiled(),
        "algorithm": default_algorithm(),
        "algorithm_reason": because(
            "ONLINE_SOFTMAX_ALGORITHM", "cached while two rows fit the second-level cache, online beyond"
        ),
        "threads": default_threads(),
        "threads_reason": because("ONLINE_SOFTMAX_THREADS", "cores this process may run on"),
        "caches": host.caches(),
        "jax_ffi": built,
        "jax_ffi_reason": f"built {'with' if built else 'without'} jaxlib's headers",
        "pool_kept": _core.pool_kept(),
        "pool_limit": _core.pool_limit(),
    }
