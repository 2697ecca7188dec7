"""Arrays and contenders of an attention case: ours and PyTorch's, on the same memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import online_softmax
from benchmarks.attention_cases import (
    DROPOUT,
    FORMS,
    GRADIENTS,
    OURS,
    READ,
    SDPA,
    SPREAD,
    WINDOW,
    Case,
    Sizes,
)
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array
from benchmarks.ours import LINE
from benchmarks.peers import TORCH_SETTLE
from online_softmax import _core

Entry = Contender | Absent
Arrays = tuple[Array, Array, Array]
Call = Callable[[], Any]
Ceilings = dict[str, Callable[[], float]]

TORCH_MISSING = importlib.util.find_spec("torch") is None


def operands(sizes: Sizes, dtype: str) -> Arrays:
    """q, k and v of normal numbers: scores with a standard deviation of 1."""
    rng = np.random.default_rng(0)
    s = sizes
    shapes = (
        (s.batch, s.heads, s.queries, s.d),
        (s.batch, s.kv_heads, s.keys, s.d),
        (s.batch, s.kv_heads, s.keys, s.dv),
    )
    q, k, v = (rng.standard_normal(shape, np.float32).astype(DTYPES[dtype], copy=False) for shape in shapes)
    return q, k, v


def tensor(a: Array) -> Any:
    """The same memory as a tensor of PyTorch."""
    import torch

    if a.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def flat(results: Any) -> Array:
    """One array, or several in a row, as float32: to see that two contenders do the same work."""
    parts: Iterable[Any] = results if isinstance(results, (tuple, list)) else (results,)
    made = [(p if isinstance(p, np.ndarray) else p.detach().float().numpy()) for p in parts if p is not None]
    return np.concatenate([np.asarray(p, np.float32).ravel() for p in made])


def pair(option: str, ours: Call, theirs: Call | None, result: Callable[[Any], Array] = flat) -> list[Entry]:
    """Both contenders of one option; `theirs` None where PyTorch has nothing of the kind.

    result: reads ours in PyTorch's order.
    """
    names = [f"{name} {option}" if option else name for name in (OURS, SDPA)]
    entries: list[Entry] = [Contender(names[0], ours, result)]
    if TORCH_MISSING:
        entries.append(Absent(names[1], "torch not installed"))
    elif theirs is not None:
        entries.append(Contender(names[1], theirs, flat, TORCH_SETTLE))
    return entries


def _sdpa() -> Callable[..., Any]:
    import torch

    function: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention
    return function


def _sdpa_call(q: Array, k: Array, v: Array, **options: Any) -> Call | None:
    if TORCH_MISSING:
        return None
    function, tensors = _sdpa(), [tensor(a) for a in (q, k, v)]
    return lambda: function(*tensors, **options)


def _read(arrays: tuple[Array, ...], threads: int) -> Callable[[], float]:
    """One read of as many bytes as the arrays have: a call that returns its seconds."""
    spans = [(-(-a.ctypes.data // LINE) * LINE, (a.nbytes - LINE) // LINE * LINE) for a in arrays]
    return lambda: sum(float(_core.probe("read", start, 0, nbytes, threads)) for start, nbytes in spans)


def _forward(case: Case) -> tuple[list[Entry], Ceilings]:
    """`forward` and `decode`."""
    q, k, v = operands(case.sizes, case.dtype)
    shared = case.sizes.heads != case.sizes.kv_heads
    theirs = _sdpa_call(q, k, v, is_causal=case.causal, enable_gqa=shared)
    entries = pair("", _ours_call((q, k, v), {"causal": case.causal, "threads": case.threads}), theirs)
    return entries, {READ: _read((k, v), case.threads)} if case.family == "decode" else {}


def _ours_call(arrays: tuple[Array, ...], options: dict[str, Any]) -> Call:
    return lambda: online_softmax.attention(*arrays, **options)


def _training(case: Case) -> list[Entry]:
    """Output and the gradients of q, k and v."""
    q, k, v = operands(case.sizes, case.dtype)
    do = operands(case.sizes, case.dtype)[0][..., ::-1].copy()
    options: dict[str, Any] = {"causal": case.causal, "threads": case.threads}

    def ours() -> Any:
        output, lse = online_softmax.attention(q, k, v, return_lse=True, **options)
        made = online_softmax.attention_backward(do, q, k, v, output, lse, **options)
        return output, made.q, made.k, made.v

    def theirs() -> Any:
        import torch

        out = _sdpa()(*leaves, is_causal=case.causal)
        return out, *torch.autograd.grad(out, leaves, gradient)

    if not TORCH_MISSING:
        leaves, gradient = [tensor(a).requires_grad_() for a in (q, k, v)], tensor(do)
    return pair("", ours, theirs)


def rising(q: Array, k: Array) -> tuple[Array, Array]:
    """q and k whose scores rise along the keys by `SPREAD`: the worst order for a running maximum."""
    q, k = q.copy(), k.copy()
    steps = np.linspace(0, SPREAD * np.sqrt(q.shape[-1]), k.shape[-2])
    q[..., 0], k[..., 0] = 1, steps.astype(k.dtype)
    return q, k


def _strided(a: Array) -> Array:
    """The same numbers, with features as many elements apart as there are places."""
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


def _of_bshd(output: Array) -> Array:
    return flat(output.swapaxes(1, 2))


def _forms(case: Case) -> list[Entry]:
    """The plain forward, and it in every form of FORMS, of as many flops but where half the keys are dead."""
    q, k, v = operands(case.sizes, case.dtype)
    s = case.sizes
    # Half as many features more in q and k, half as many fewer in v: the flops stay.
    narrow = operands(
        Sizes(s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.d * 3 // 2, s.d // 2), case.dtype
    )
    side = tuple(np.ascontiguousarray(a.swapaxes(1, 2)) for a in (q, k, v))
    live = (np.arange(s.keys) < s.keys // 2)[None, None, None]
    steep = (*rising(q, k), v)
    apart = tuple(_strided(a) for a in (q, k, v))
    table: dict[str, tuple[tuple[Array, ...], dict[str, Any], Call | None]] = {
        "": ((q, k, v), {}, _sdpa_call(q, k, v)),
        "dropout": ((q, k, v), {"dropout_p": DROPOUT}, _sdpa_call(q, k, v, dropout_p=DROPOUT)),
        "3-D": ((q[0], k[0], v[0]), {}, _sdpa_call(q[0], k[0], v[0])),
        "dv != d": (narrow, {}, _sdpa_call(*narrow)),
        "strided": (apart, {}, _sdpa_call(*apart)),
        "BSHD": (side, {"layout": "BSHD"}, _sdpa_call(*(a.swapaxes(1, 2) for a in side))),
        "half masked": ((q, k, v), {"mask": live}, None if TORCH_MISSING else _sdpa_call(
            q, k, v, attn_mask=tensor(live)
        )),
        "rising": (steep, {}, _sdpa_call(*steep)),
    }  # fmt: skip
    assert set(table) == {"", *FORMS}
    entries: list[Entry] = []
    for form, (arrays, options, theirs) in table.items():
        call = _ours_call(arrays, options | {"threads": case.threads})
        entries += pair(form, call, theirs, _of_bshd if form == "BSHD" else flat)
    return entries


def _window(case: Case) -> list[Entry]:
    """A sliding window at two lengths, against the mask that says the same."""
    entries: list[Entry] = []
    s = case.sizes
    for n in (case.shorter, s.keys):
        arrays = operands(Sizes(s.batch, s.heads, s.kv_heads, n, n, s.d, s.dv), case.dtype)
        options = {"causal": True, "window": (WINDOW - 1, 0), "threads": case.threads}
        away = np.arange(n)[:, None] - np.arange(n)
        mask = (away >= 0) & (away < WINDOW)
        theirs = None if TORCH_MISSING else _sdpa_call(*arrays, attn_mask=tensor(mask))
        entries += pair(str(n), _ours_call(arrays, options), theirs)
    return entries


def _gradients(case: Case) -> list[Entry]:
    """The backward alone, plain and with what it may have beside."""
    q, k, v = operands(case.sizes, case.dtype)
    do = operands(case.sizes, case.dtype)[0][..., ::-1].copy()
    rng = np.random.default_rng(1)
    s = case.sizes
    bias = rng.standard_normal((s.batch, s.heads, s.queries, s.keys), np.float32)
    dlse = rng.standard_normal((s.batch, s.heads, s.queries))
    # Options of the forward, of the backward alone, and PyTorch's bias where it can.
    table: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "": ({}, {}),
        "bias": ({"bias": bias}, {}),
        "bias gradient": ({"bias": bias}, {"bias_grad": True}),
        "sinks": ({"sinks": np.zeros(s.heads)}, {}),
        "lse gradient": ({}, {"dlse": dlse}),
    }
    assert set(table) == {"", *GRADIENTS}

    def ours(options: dict[str, Any], alone: dict[str, Any]) -> Call:
        output, lse = online_softmax.attention(q, k, v, return_lse=True, threads=case.threads, **options)
        options = options | alone | {"threads": case.threads}
        return lambda: online_softmax.attention_backward(do, q, k, v, output, lse, **options)[:4]

    def theirs(of_bias: bool) -> Call | None:
        if TORCH_MISSING:
            return None
        import torch

        leaves = [tensor(a).requires_grad_() for a in (q, k, v)]
        added = tensor(bias.astype(q.dtype)).requires_grad_() if of_bias else None
        out, gradient = _sdpa()(*leaves, attn_mask=added), tensor(do)
        wanted = leaves if added is None else [*leaves, added]
        return lambda: torch.autograd.grad(out, wanted, gradient, retain_graph=True)

    entries: list[Entry] = []
    for name, (options, alone) in table.items():
        known = name in ("", "bias gradient")
        entries += pair(name, ours(options, alone), theirs(name != "") if known else None)
    return entries


_BUILDERS: dict[str, Callable[[Case], list[Entry]]] = {
    "training": _training,
    "forms": _forms,
    "window": _window,
    "gradients": _gradients,
}


def build(case: Case) -> tuple[list[Entry], Ceilings]:
    """Every contender of a case, and the ceiling of decoding; PyTorch is told how many threads to use."""
    if not TORCH_MISSING:
        import torch

        torch.set_num_threads(case.threads)
    if case.family in ("forward", "decode"):
        return _forward(case)
    return _BUILDERS[case.family](case), {}
