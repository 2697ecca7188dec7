"""Softmax, log-softmax, log-sum-exp and states whose bits depend on the elements alone: `exact`, on a GPU.

Neither the size of a block, the number of warps, the split of a row into states nor the order in which they
are merged changes a bit; nor does the device: the results are those of `online_softmax.exact` to the bit.
What a device must do for that, IEEE 754 arithmetic, is tested at the first use of each.

Tensors as in `ops`. float16 and bfloat16 count as their float32 upcast; results are rounded to the format
once, and every NaN has one pattern.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from .. import exact
from . import checks, device, exact_launch, exact_rows, launch, layout

_SLICES: Final = exact.FLOAT32.slices


class States(NamedTuple):
    """Statistics of rows: m, their maxima, float32, and a, int64 with a last axis of three sums."""

    m: torch.Tensor
    a: torch.Tensor


def state(x: torch.Tensor, dim: int = -1, *, block: int | None = None) -> States:
    """The states of x over `dim`, which is removed.

    Raises TypeError and ValueError as `ops.softmax` does, RuntimeError where `tested` does. Cost: x is read
    once, 28 bytes are written a row, and written and read again for each chunk of a long row.
    """
    x, dim = _operand(x, dim, block)
    return _states(x, dim, block)


def merge(left: States, right: States) -> States:
    """The states of what either has seen: commutative and associative, bit for bit.

    Raises TypeError and ValueError where they are no states of one shape on one device.
    """
    left, right = _checked(left, "left"), _checked(right, "right")
    checks.same(right.m, "right.m", tuple(left.m.shape), torch.float32, left.m.device, "left.m")
    return merge_many(States(torch.stack((left.m, right.m)), torch.stack((left.a, right.a))))


def merge_many(states: States) -> States:
    """The states merged over their first axis, in no order that matters; of none, the state of nothing."""
    states = _checked(states, "states")
    if not states.m.ndim:
        raise ValueError("states has no dimensions: a first axis to merge over would do")
    tested(states.m.device)
    made = _empty(states.m.shape[1:], states.m)
    if states.m.numel():
        _merge(states, made, len(states.m), 1, made.m.numel())
    else:
        _fill_with_nothing(made)
    return made


def lse(states: States) -> torch.Tensor:
    """The log-sum-exps of states: float32."""
    states = _checked(states, "states")
    tested(states.m.device)
    y = torch.empty_like(states.m)
    if y.numel():
        _read(*states, y)
    return y


def normalize(
    x: torch.Tensor,
    states: States,
    dim: int = -1,
    *,
    log: bool = False,
    block: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The probabilities, or with `log` their logarithms, of x under the states of its rows.

    The states may have seen more than x: other shards of its rows. They have x's shape without `dim`. `out`
    as for `ops.softmax`.
    """
    x, dim = _operand(x, dim, block)
    states = _checked(states, "states")
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    checks.same(states.m, "states.m", shape, torch.float32, x.device, "a state for each row of x")
    y = torch.empty_like(x) if out is None else checks.output(out, x)
    if x.numel():
        _results("log_softmax" if log else "softmax", x, states, y, dim, block, foreign=True)
    return _returned(y, out)


def normalised(
    op: str, x: torch.Tensor, dim: int, block: int | None, out: torch.Tensor | None
) -> torch.Tensor:
    """`ops.softmax` and `ops.log_softmax`, their arguments checked, `out` too."""
    tested(x.device)
    y = torch.empty_like(x) if out is None else out
    if not x.numel():
        return y
    if x.shape[dim] > (block or exact_launch.BLOCK):
        _results(op, x, _states(x, dim, block), y, dim, block)
    else:
        _whole(op, x, y, dim, block)
    return y


def logsumexp(x: torch.Tensor, dim: int, block: int | None) -> torch.Tensor:
    """`ops.logsumexp`, its arguments checked."""
    tested(x.device)
    y = x.new_empty((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=torch.float32)
    if not x.numel():
        return y.fill_(-math.inf)
    if x.shape[dim] > (block or exact_launch.BLOCK):
        _read(*_states(x, dim, block), y)
    else:
        _whole("logsumexp", x, y, dim, block)
    return y


@functools.cache
def tested(on: torch.device) -> None:
    """Raises RuntimeError where the arithmetic of a device is not what the law is written for.

    About a thousand numbers, at the first use, against NumPy: bit for bit.
    """
    form = exact.FLOAT32
    x = trial()
    m, a = exact.state(x, form)
    rows = (m[:, None], a[:, None])
    given = torch.from_numpy(x).to(on)
    y = torch.empty_like(given)
    found = dict(zip(("m", "a"), _states(given, 1, None), strict=True))
    found["logsumexp"] = torch.empty_like(found["m"])
    _read(found["m"], found["a"], found["logsumexp"])
    wanted = {"m": m, "a": a, "logsumexp": exact.lse(m, a, form)}
    for op, law in (("softmax", exact.value), ("log_softmax", exact.log_value)):
        _whole(op, given, y, 1, None)
        found[op] = y.clone()
        wanted[op] = law(x, *rows, form)
    for name, right in wanted.items():
        if found[name].cpu().numpy().tobytes() != right.tobytes():
            raise RuntimeError(
                f"order='any': {name} on {on} differs in bits from its definition: the compiler or the "
                "device does not round as IEEE 754 says; order='row' would do"
            )


def trial() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows that tell arithmetics apart: borders of bins, ties, far numbers, subnormals, infinities, NaN."""
    lane = np.arange(128)
    spread = (lane * 2654435761 % 2**32) / 2.0**32
    rows = np.stack(
        [
            spread * 30 - 10,
            -lane * spread,
            ((lane - 64) * 11 - 0.5 + (spread - 0.5) * 2.0**-10) * math.log(2) / 8,
            (spread - 0.7) * 2.0 ** -(100 + lane // 2),
            2.0**19 + 40 * (spread - 1),
            (lane - 2.0**24) * 32,
            np.where(spread > 0.5, 3e9, spread),
            np.where(lane == 77, math.inf, spread),
            np.where(lane == 77, math.nan, spread),
        ]
    )
    return rows.astype(np.float32)


def _operand(x: Any, dim: Any, block: int | None) -> tuple[torch.Tensor, int]:
    x = checks.tensor(x, "x", interpreted=device.INTERPRETED)
    dim = checks.axis(dim, x.ndim)
    launch.check_block(block)
    tested(x.device)
    return x, dim


def _checked(states: Any, name: str) -> States:
    """`states`, adjacent. Raises TypeError and ValueError where it is not a (m, a) that kernels can read."""
    if not isinstance(states, tuple) or len(states) != 2:
        raise TypeError(f"{name} is a {type(states).__name__}: a pair (m, a), as `state` returns, would do")
    m, a = states
    for value, part in ((m, f"{name}.m"), (a, f"{name}.a")):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{part} is a {type(value).__name__}: a torch.Tensor would do")
    if m.device.type != "cuda" and not (device.INTERPRETED and m.device.type == "cpu"):
        raise ValueError(f"{name}.m is on {m.device}: a tensor on a GPU would do")
    checks.same(m, f"{name}.m", tuple(m.shape), torch.float32, m.device, "a float32 maximum a row")
    wanted = (*m.shape, _SLICES)
    checks.same(a, f"{name}.a", wanted, torch.int64, m.device, "three int64 sums for each maximum")
    return States(m.detach().resolve_neg().contiguous(), a.contiguous())


def _empty(shape: tuple[int, ...], like: torch.Tensor) -> States:
    m = like.new_empty(shape, dtype=torch.float32)
    return States(m, like.new_empty((*shape, _SLICES), dtype=torch.int64))


def _fill_with_nothing(states: States) -> None:
    states.m.fill_(-math.inf)
    states.a.zero_()


def _returned(y: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return y
    torch.autograd.graph.increment_version(out)  # so that autograd knows of what was overwritten
    return out


def _rows(states: States, first: int, rows: int) -> States:
    return States(states.m.view(-1)[first : first + rows], states.a.view(-1, _SLICES)[first : first + rows])


def _launch(kernel: Any, programs: int, arguments: dict[str, Any], threads: int, on: torch.Tensor) -> None:
    with device.of(on):
        named = {name: arguments[name] for name in kernel.arg_names}
        kernel[(programs,)](**named, **exact_launch.options(threads, device.warp_size()))


def _cuts(tensors: dict[str, torch.Tensor], dim: int, block: int | None) -> Any:
    """For each slab of the rows: its first row, how it is cut, and what kernels call it."""
    x, first = tensors["x"], 0
    columns = x.shape[dim]
    for slab in layout.slabs(tensors, dim):
        starts = [stride for strides in slab.strides.values() for stride in strides[:2]]
        align = launch.alignment(columns, *starts)
        cut = exact_launch.cut(slab.rows, columns, x.dtype.itemsize, align, block)
        constants = {"ROWS": cut.many, "ALIGN": align, "BLOCK": cut.block, "PARTS": cut.parts}
        sizes = {"columns": columns, "chunks": cut.chunks}
        yield first, cut, {**slab.arguments(), **sizes, **constants}
        first += slab.rows


def _states(x: torch.Tensor, dim: int, block: int | None) -> States:
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    states = _empty(shape, x)
    if not x.numel():
        _fill_with_nothing(states)
        return states
    for first, cut, arguments in _cuts({"x": x}, dim, block):
        rows = arguments["rows"]
        made = _rows(states, first, rows)
        of_chunks = made
        if cut.chunks > 1:
            of_chunks = _empty((rows * cut.chunks,), x)
        arguments |= {"m_ptr": of_chunks.m, "a_ptr": of_chunks.a}
        _launch(exact_rows.states, cut.programs, arguments, cut.threads, x)
        if cut.chunks > 1:
            _merge(of_chunks, made, cut.chunks, cut.chunks, 1)
    return states


def _merge(states: States, made: States, count: int, row_stride: int, state_stride: int) -> None:
    """`count` states for each of the rows of `made`, strides counted in states."""
    rows = made.m.numel()
    lanes = min(launch.covering_power(count), exact_launch.STATES)
    many = exact_launch.STATES // lanes
    arguments = {
        "m_ptr": states.m,
        "a_ptr": states.a,
        "m_out_ptr": made.m,
        "a_out_ptr": made.a,
        "rows": rows,
        "count": count,
        "row_stride": row_stride,
        "state_stride": state_stride,
        "ROWS": many,
        "STATES": lanes,
    }
    _launch(exact_rows.merged, launch.chunks_of(rows, many), arguments, exact_launch.STATES, made.m)


def _read(m: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> None:
    rows, many = m.numel(), exact_launch.STATES
    arguments = {"m_ptr": m, "a_ptr": a, "y_ptr": y, "rows": rows, "ROWS": many}
    _launch(exact_rows.read, launch.chunks_of(rows, many), arguments, exact_launch.STATES, m)


def _whole(op: str, x: torch.Tensor, y: torch.Tensor, dim: int, block: int | None) -> None:
    """Rows that one block holds."""
    few = op == "logsumexp"
    for first, cut, arguments in _cuts({"x": x} if few else {"x": x, "y": y}, dim, block):
        if few:
            arguments |= {"y_ptr": y.view(-1)[first:], "y_outer": 0, "y_inner": 0, "y_col": 1}
        _launch(exact_rows.whole, cut.programs, {**arguments, "OP": op}, cut.threads, x)


def _results(
    op: str,
    x: torch.Tensor,
    states: States,
    y: torch.Tensor,
    dim: int,
    block: int | None,
    foreign: bool = False,
) -> None:
    """The write pass, under the states of the rows, or others."""
    for first, cut, arguments in _cuts({"x": x, "y": y}, dim, block):
        of_rows = _rows(states, first, arguments["rows"])
        arguments |= {"m_ptr": of_rows.m, "a_ptr": of_rows.a, "OP": op, "FOREIGN": foreign}
        _launch(exact_rows.results, cut.programs, arguments, cut.threads, x)
