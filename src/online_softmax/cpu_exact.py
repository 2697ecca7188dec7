"""Statistics, softmax and log-sum-exp of rows whose bits depend on the elements alone: `exact`, native.

Arrays as in `cpu`: a served dtype, any strides. float16 and bfloat16 count as their float32 upcast, results
are rounded to the format once. NaN, infinities and empty rows as in `cpu`.

The first call of each instruction set goes through `self_test`, and each call looks at the rounding mode,
which a thread may change at any time: what is promised holds where arithmetic is that of IEEE 754, rounded
to nearest.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import _core, cpu, exact

Array = NDArray[Any]

# Codes of native/table.h.
_SOFTMAX, _LOG_SOFTMAX, _LSE, _STATE = 0, 1, 2, 3
_SINGLE, _DOUBLE = 0, 1
_NO_STRIDES: Final[list[int]] = []
#: What the definition in `exact` makes of `_probe`, by dtype: CRC-32 of the bytes of state, lse, softmax and
#: log-softmax.
_EXPECTED: Final = {"float32": 0x5D12643C, "float64": 0x95B10696}
_tested: set[str] = set()


def _probe(dtype: np.dtype[Any]) -> Array:
    """Rows that use every bit of a term: quotients of whole numbers by powers of two, so exact anywhere."""
    whole = (np.arange(4 * 131, dtype=np.int64) * 7919 + 104729) % 65521 - 32768
    scales = np.ldexp(1.0, np.array([[-19], [-12], [-10], [-8]]))  # 2.0**-19 has a bit off in some modes
    x: Array = (whole.reshape(4, 131) * scales).astype(dtype)
    return x


def _checksum(x: Array, plan: _core.Plan) -> int:
    out, log_out = np.empty_like(x), np.empty_like(x)
    m, a = _state(x, (1,), None, plan)
    _map(x, out, (1,), None, _SOFTMAX, plan, None)
    _map(x, log_out, (1,), None, _LOG_SOFTMAX, plan, None)
    return zlib.crc32(b"".join(r.tobytes() for r in (m, a, _lse(m, a, plan), out, log_out)))


def self_test(isa: str | None = None) -> None:
    """Makes sure that this process computes as the definition assumes; about a thousand values, once.

    Raises:
        RuntimeError: another rounding mode is set, or a kernel was built in a way that changes results.
    """
    isa = cpu.default_isa() if isa is None else isa
    exact.nearest()
    if isa in _tested:
        return
    for name in (isa, "scalar"):
        plan = cpu.plan_of(name, "auto", 1, "exact")
        for dtype, expected in _EXPECTED.items():
            if _checksum(_probe(np.dtype(dtype)), plan) != expected:
                what = f"the {name} kernels of {dtype} do not give the bits of the definition"
                cause = "they were built with options that reassociate, or this CPU departs from IEEE 754"
                raise RuntimeError(f'order="any" is refused: {what}: {cause}')
    _tested.update((isa, "scalar"))


def _plan(isa: str | None, threads: int | None) -> _core.Plan:
    plan = cpu.plan_of(isa, "auto", threads, "exact")
    self_test(isa)
    return plan


def _mask(axes: tuple[int, ...]) -> int:
    return sum(1 << a for a in axes)


def _optional(a: Array | None) -> tuple[int, Any]:
    return (0, _NO_STRIDES) if a is None else (cpu.address(a), a.strides)


def _left(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def _where(where: Array | None, x: Array) -> Array | None:
    return None if where is None else np.broadcast_to(where, x.shape)


def _state(x: Array, axes: tuple[int, ...], where: Array | None, plan: _core.Plan) -> exact.State:
    form, left = exact.format_of(x.dtype), _left(x, axes)
    m, a = cpu.empty(left, form.dtype), cpu.empty((*left, form.slices), np.int64)
    _core.exact_array(
        plan, _STATE, False, cpu.CODES[x.dtype], x.shape, _mask(axes), cpu.address(x), x.strides, 0,
        _NO_STRIDES, *_optional(where), cpu.address(m), cpu.address(a), 0,
    )  # fmt: skip
    return m, a


def _map(
    x: Array,
    out: Array,
    axes: tuple[int, ...],
    where: Array | None,
    op: int,
    plan: _core.Plan,
    given: exact.State | None,
) -> None:
    m, a = (0, 0) if given is None else (cpu.address(given[0]), cpu.address(given[1]))
    _core.exact_array(
        plan, op, given is not None, cpu.CODES[x.dtype], x.shape, _mask(axes), cpu.address(x), x.strides,
        cpu.address(out), out.strides, *_optional(where), m, a, 0,
    )  # fmt: skip


def _lse(m: Array, a: Array, plan: _core.Plan) -> Array:
    result = cpu.empty(m.shape, m.dtype)
    code = _DOUBLE if m.dtype == np.float64 else _SINGLE
    _core.exact_lse(plan, code, m.size, cpu.address(m), cpu.address(a), cpu.address(result))
    return result


def _dense(state: exact.State, shape: tuple[int, ...] | None = None) -> exact.State:
    """A state in C order, of `shape` if given."""
    m, a = state
    if shape is not None:
        m, a = np.broadcast_to(m, shape), np.broadcast_to(a, (*shape, a.shape[-1]))
    return np.ascontiguousarray(m).reshape(m.shape), np.ascontiguousarray(a, dtype=np.int64)


def state(
    x: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> exact.State:
    """States (m, a) of x over `axes`, which are removed; a has a last axis of `Format.slices`."""
    return _state(x, axes, _where(where, x), _plan(isa, threads))


def logsumexp(
    x: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> Array:
    """Log-sum-exp over `axes`, which are removed; float64 where x is, else float32."""
    plan = _plan(isa, threads)
    result = cpu.empty(_left(x, axes), cpu.state_dtype(x.dtype))
    _core.exact_array(
        plan, _LSE, False, cpu.CODES[x.dtype], x.shape, _mask(axes), cpu.address(x), x.strides, 0,
        _NO_STRIDES, *_optional(_where(where, x)), 0, 0, cpu.address(result),
    )  # fmt: skip
    return result


def softmax(
    x: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    log: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Softmax, or log-softmax, of x over `axes` into `out`: x's shape and dtype, x itself or memory apart.

    What `where` leaves out gives 0, or -inf; a row with nothing left alike.
    """
    op = _LOG_SOFTMAX if log else _SOFTMAX
    _map(x, out, axes, _where(where, x), op, _plan(isa, threads), None)


def normalize(
    x: Array,
    m: Array,
    a: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    log: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """The write pass alone: probabilities, or their logarithms, of x under states of longer rows."""
    given = _dense((m, a), _left(x, axes))
    _map(x, out, axes, None, _LOG_SOFTMAX if log else _SOFTMAX, _plan(isa, threads), given)


def merge(left: exact.State, right: exact.State) -> exact.State:
    """The states of what either has seen; one shape and format."""
    plan = _plan(None, None)
    (m_a, a), (m_b, b) = _dense(left), _dense(right)
    m, sums = cpu.empty(m_a.shape, m_a.dtype), cpu.empty(a.shape, np.int64)
    code = _DOUBLE if m.dtype == np.float64 else _SINGLE
    _core.exact_merge(plan, code, m.size, *map(cpu.address, (m_a, a, m_b, b, m, sums)))
    return m, sums


def lse(m: Array, a: Array) -> Array:
    """Log-sum-exp of states."""
    return _lse(*_dense((m, a)), _plan(None, None))


def log_sum(m: Array, a: Array) -> Array:
    """What lse has above m, float64."""
    plan = _plan(None, None)
    m, a = _dense((m, a))
    result = cpu.empty(m.shape, np.float64)
    code = _DOUBLE if m.dtype == np.float64 else _SINGLE
    _core.exact_log_sum(plan, code, m.size, cpu.address(m), cpu.address(a), cpu.address(result))
    return result
