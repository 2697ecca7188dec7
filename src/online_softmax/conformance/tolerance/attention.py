"""Attention and its gradients, from the exact probabilities.

The probabilities come from the oracle with the identity matrix as values, so masks, windows, caps, sinks and
pages are the oracle's own. A score is a dot product of length D: its error is (D + 2) * u * |scale| * |q| .
|k|, and of operands in 16 bits two roundings to their format besides. An error of a score is a relative error
of its exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import reference
from .arithmetic import Arithmetic, Array, Inputs, Options, eta


@dataclass(frozen=True)
class Weights:
    """Probabilities over what a query sees, with the relative error of each.

    Attributes:
        p: (..., keys) probabilities, 0 where masked.
        relative: relative error of each.
        of_score: absolute error of each score, 0 where masked.
        shift: largest error of a score in the row, sink included: what lse may be off by for it.
    """

    p: Array
    relative: Array
    of_score: Array
    shift: Array


def _weights(a: Arithmetic, p: Array, size: Array, further: Array, d: int) -> Weights:
    """From probabilities, |scale| * |q| . |k| and the magnitude of what is added to a score (bias, sink)."""
    live = p > 0
    size = np.where(live & np.isfinite(size), size, 0.0)
    further = np.where(np.isfinite(further), further, 0.0)
    # Scores are kept in the format where that is no gross error, else in float32.
    kept = 2 * np.minimum(a.v * (size + further), 0.05) + 2 * a.u * (size + further)
    of_score = np.where(live, (d + 6) * a.u * size + kept, 0.0)
    shift = np.max(of_score, axis=-1, initial=0.0)
    top = np.max(p, axis=-1, keepdims=True, initial=0.0)
    distance = np.where(live, np.log(np.where(live, top / np.where(live, p, 1.0), 1.0)), 0.0)
    n = max(p.shape[-1], 1)
    # Scores that err move weight between keys: p and 1 - p both stay within a factor, so a lone key errs not
    # at all, however large its score.
    apart = np.where(live, np.minimum(1.0, (1 - p) / np.where(live, p, 1.0)), 0.0)
    moved = np.where(apart > 0, apart * np.expm1(of_score + shift[..., None]), 0.0)
    relative = moved + (1 + moved) * np.expm1(2 * a.v * distance + 2 * eta(a, n) + 2 * a.e + 4 * a.v)
    # Masses that vanish below the format's range are lost to the rest of the row.
    return Weights(p, np.where(live, relative, 0.0) + n * a.tiny, of_score, shift)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), np.abs(x), 0.0)


def _scale(options: Options, d: int) -> float:
    scale = options.get("scale")
    return float(1 / np.sqrt(max(d, 1)) if scale is None else abs(scale))


def _repeat(k: Array, heads: int) -> Array:
    """(..., G, S, D) -> (..., H, S, D), each head of a group next to the others."""
    return np.repeat(k, heads // k.shape[-3], axis=-3)


def _forward(
    a: Arithmetic, w: Weights, values: Callable[[Array], Array], right: Mapping[str, Array]
) -> dict[str, Array]:
    """`values` multiplies weights of w.p's shape with |v|."""
    # No weight is off by more than 1, however uncertain its score.
    o = values(np.minimum(w.p * (w.relative + 2 * a.v), 1.0)) + 2 * a.tiny
    lse = w.shift + eta(a, max(w.p.shape[-1], 1)) + 2 * (a.v + a.e_log) * (1 + np.abs(right["lse"]))
    return {"o": o, "lse": lse}


def _score_options(inputs: Inputs, options: Options) -> dict[str, Any]:
    return {name: inputs[name] for name in ("mask", "bias", "sinks") if name in inputs} | dict(options)


def _dense(a: Arithmetic, inputs: Inputs, options: Options) -> Weights:
    """Weights of attention over whole K and V: (B, H, L, S), or without the leading axes that q lacks."""
    q, k = inputs["q"], inputs["k"]
    keys, d = k.shape[-2:]
    identity = np.broadcast_to(np.eye(keys), (*k.shape[:-2], keys, keys))
    p = reference.attention(q, k, identity, **_score_options(inputs, options))
    all_k = _repeat(_finite(k), q.shape[-3]) if k.ndim >= 3 else _finite(k)
    size = _scale(options, d) * np.einsum("...ld,...sd->...ls", _finite(q), all_k)
    further = np.broadcast_to(_finite(inputs["bias"]), size.shape) if "bias" in inputs else np.zeros(1)
    if "sinks" in inputs:
        further = further + _finite(inputs["sinks"])[:, None, None]
    return _weights(a, p, size, further, d)


def attention(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    q, v = inputs["q"], inputs["v"]
    all_v = _repeat(_finite(v), q.shape[-3]) if v.ndim >= 3 else _finite(v)
    return _forward(a, _dense(a, inputs, options), lambda p: np.asarray(p @ all_v), right)


def decode(a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]) -> dict[str, Array]:
    q, k, v = (inputs[name] for name in ("q", "k_cache", "v_cache"))
    rest = {name: inputs[name] for name in ("seqlens_k", "block_table") if name in inputs} | dict(options)
    d = q.shape[-1]
    if "block_table" in inputs:
        # Pages (blocks, size, heads, D): the identity runs over all slots, whichever sequence they belong to.
        blocks, size_of_block, groups, _ = k.shape
        slots = blocks * size_of_block
        identity = np.broadcast_to(
            np.eye(slots).reshape(blocks, size_of_block, 1, slots), (blocks, size_of_block, groups, slots)
        )
        all_k, all_v = (
            _finite(c).transpose(2, 0, 1, 3).reshape(groups, slots, c.shape[-1])[None] for c in (k, v)
        )
    else:
        slots = k.shape[-2]
        identity = np.broadcast_to(np.eye(slots), (*k.shape[:-1], slots))
        all_k, all_v = _finite(k), _finite(v)
    p = reference.decode_attention(q, k, identity, **rest)
    all_k, all_v = _repeat(all_k, q.shape[1]), _repeat(all_v, q.shape[1])
    size = _scale(options, d) * np.einsum(
        "...ld,...sd->...ls", _finite(q), np.broadcast_to(all_k, (len(q), *all_k.shape[1:]))
    )
    return _forward(a, _weights(a, p, size, np.zeros(1), d), lambda w: np.asarray(w @ all_v), right)


def varlen(a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]) -> dict[str, Array]:
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    total, groups, d = k.shape
    identity = np.broadcast_to(np.eye(total)[:, None], (total, groups, total))
    cu = (inputs["cu_seqlens_q"], inputs["cu_seqlens_k"])
    p = reference.varlen_attention(q, k, identity, *cu, **options)
    share = q.shape[1] // groups
    all_k, all_v = (np.repeat(_finite(c), share, axis=1) for c in (k, v))
    size = _scale(options, d) * np.einsum("thd,uhd->thu", _finite(q), all_k)
    w = _weights(a, p, size, np.zeros(1), d)
    return _forward(a, w, lambda weights: np.einsum("thu,uhe->the", weights, all_v), right)


def attention_grad(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    q, k, v, do = (_finite(inputs[name]) for name in ("q", "k", "v", "do"))
    w = _dense(a, inputs, options)
    heads, groups = (q.shape[-3], k.shape[-3]) if k.ndim >= 3 else (1, 1)
    all_k, all_v = (_repeat(c, heads) if c.ndim >= 3 else c for c in (k, v))
    n, queries = max(w.p.shape[-1], 1), max(w.p.shape[-2], 1)
    relative = w.relative + 3 * a.v
    dp = np.einsum("...le,...se->...ls", do, all_v)
    size = dp + (w.p * dp).sum(axis=-1, keepdims=True)
    of_sums = (w.p * dp * relative).sum(axis=-1, keepdims=True)
    steps = (v.shape[-1] + 4) * a.u + 4 * a.v + eta(a, n)
    cap = options.get("softcap")
    of_cap = 2 * w.of_score / cap if cap else 0.0
    of_ds = w.p * ((relative + steps + of_cap) * size + (1 + relative) * of_sums)
    ds = w.p * size
    scale = _scale(options, q.shape[-1])
    dq = scale * (of_ds + ((n + 2) * a.u + 2 * a.v) * ds) @ all_k
    across = ((queries * (heads // groups) + 2) * a.u) + 2 * a.v
    dk = scale * np.swapaxes(of_ds + across * ds, -1, -2) @ q
    dv = np.swapaxes(w.p * (relative + across), -1, -2) @ do
    if k.ndim >= 3:
        dk, dv = (_grouped(g, groups) for g in (dk, dv))
    return {"dq": dq + 3 * a.tiny, "dk": dk + 3 * a.tiny, "dv": dv + 3 * a.tiny}


def _grouped(gradient: Array, groups: int) -> Array:
    """(..., H, S, D) -> (..., G, S, D): the heads of a group add up."""
    *lead, heads, keys, d = gradient.shape
    return np.asarray(gradient.reshape(*lead, groups, heads // groups, keys, d).sum(axis=-3))
