"""This library's own public functions; a variant forces the instruction set and the algorithm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ... import cpu
from ...attention_state import AttentionState
from ...frontends import attention as of_numpy
from ...frontends import linear_losses, scans
from ...frontends import losses as losses_of
from ...frontends import numpy as osm
from ..cases import NotOffered
from . import Adapter, Library, versions_of


def load(variant: str) -> Adapter:
    """`variant`: "" or "isa.algorithm", where "*" leaves a part to the library.

    Raises ValueError for a name that this machine does not know.
    """
    isa, algorithm = _parts(variant)
    return Library(
        name=f"ours:{variant}" if variant else "ours",
        framework="numpy",
        versions={"online-softmax": _version()} | versions_of("numpy"),
        functions=_functions(isa, algorithm),
        lacks="not built yet",
    )


def _version() -> str:
    # Of the package as it is imported: run from its sources it is not installed.
    return str(sys.modules[__name__.partition(".")[0]].__version__)


def _parts(variant: str) -> tuple[str | None, str]:
    if not variant:
        return None, "auto"
    isa, dot, algorithm = variant.partition(".")
    isas, algorithms = (*cpu.isas(), "*"), (*cpu.ALGORITHMS, "*")
    if not dot or isa not in isas or algorithm not in algorithms:
        would = f"ISA.ALGORITHM of {', '.join(isas)} and {', '.join(algorithms)} would do"
        raise ValueError(f"variant {variant!r} of ours: {would}")
    return None if isa == "*" else isa, "auto" if algorithm == "*" else algorithm


def _functions(isa: str | None, algorithm: str) -> dict[str, Callable[..., Any]]:
    forced: dict[str, Any] = {"isa": isa, "algorithm": algorithm}

    def softmax(x: Any, axis: Any, where: Any = None) -> Any:
        return osm.softmax(x, axis, where=where, **forced)

    def log_softmax(x: Any, axis: Any, where: Any = None) -> Any:
        return osm.log_softmax(x, axis, where=where, **forced)

    def logsumexp(x: Any, axis: Any, keepdims: Any, b: Any = None, where: Any = None) -> Any:
        return osm.logsumexp(x, axis, b=b, where=where, keepdims=keepdims, **forced)

    def one_algorithm() -> None:
        if algorithm not in ("auto", "online"):
            raise NotOffered(f"has no algorithm {algorithm}: it is online alone")

    def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
        one_algorithm()
        return tuple(osm.softmax_topk(x, k, axis, isa=isa))

    def logaddexp(a: Any, b: Any) -> Any:
        one_algorithm()
        return scans.logaddexp(a, b, isa=isa)

    def logcumsumexp(x: Any, axis: Any) -> Any:
        one_algorithm()
        return scans.logcumsumexp(x, axis, isa=isa)

    def merge_states(m_a: Any, s_a: Any, m_b: Any, s_b: Any) -> Any:
        if isa is not None or algorithm != "auto":
            raise NotOffered("a merge is the same in every variant: see ours")
        merged = osm.SoftmaxState(m_a, s_a).merge(osm.SoftmaxState(m_b, s_b))
        return merged.m, merged.s

    rows = (softmax, log_softmax, logsumexp, softmax_topk, logaddexp, logcumsumexp, merge_states)
    functions = {f.__name__: f for f in rows} | _attention(isa, algorithm)
    return functions | _losses(isa, algorithm) | _linear_losses(isa, algorithm)


def _linear_losses(isa: str | None, algorithm: str) -> dict[str, Callable[..., Any]]:
    def linear_cross_entropy(
        hidden: Any, weight: Any, targets: Any, ignore_index: Any, label_smoothing: Any, reduction: Any,
        softcap: Any, bias: Any = None,
    ) -> Any:  # fmt: skip
        _online(algorithm)
        return linear_losses.linear_cross_entropy(
            hidden, weight, targets, bias=bias, softcap=softcap, ignore_index=ignore_index,
            label_smoothing=label_smoothing, reduction=reduction, isa=isa,
        )  # fmt: skip

    def linear_cross_entropy_grad(
        hidden: Any, weight: Any, targets: Any, ignore_index: Any, label_smoothing: Any, reduction: Any,
        softcap: Any, bias: Any = None,
    ) -> Any:  # fmt: skip
        _online(algorithm)
        made = linear_losses.linear_cross_entropy_backward(
            1.0, hidden, weight, targets, bias=bias, softcap=softcap, ignore_index=ignore_index,
            label_smoothing=label_smoothing, reduction=reduction, isa=isa,
        )  # fmt: skip
        return made.hidden, made.weight

    return {f.__name__: f for f in (linear_cross_entropy, linear_cross_entropy_grad)}


def _online(algorithm: str) -> None:
    if algorithm not in ("auto", "online"):
        raise NotOffered(f"has no algorithm {algorithm}: it is online alone")


def _attention(isa: str | None, algorithm: str) -> dict[str, Callable[..., Any]]:
    def forced() -> dict[str, Any]:
        if algorithm not in ("auto", "online"):
            raise NotOffered(f"has no algorithm {algorithm}: it is online alone")
        return {"isa": isa}

    def attention(
        q: Any, k: Any, v: Any, scale: Any, causal: Any, causal_align: Any, window: Any, softcap: Any,
        mask: Any = None, bias: Any = None, sinks: Any = None,
    ) -> Any:  # fmt: skip
        return tuple(
            of_numpy.attention(
                q, k, v, scale=scale, causal=causal, causal_align=causal_align, window=window,
                softcap=softcap, mask=mask, bias=bias, sinks=sinks, return_lse=True, **forced(),
            )
        )  # fmt: skip

    def varlen_attention(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, scale: Any, causal: Any
    ) -> Any:
        return tuple(
            of_numpy.attention(
                q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, scale=scale, causal=causal,
                return_lse=True, **forced(),
            )
        )  # fmt: skip

    def decode_attention(
        q: Any, k_cache: Any, v_cache: Any, scale: Any, block_table: Any = None, seqlens_k: Any = None
    ) -> Any:
        return tuple(
            of_numpy.attention(
                q, k_cache, v_cache, block_table=block_table, seqlens_k=seqlens_k, scale=scale,
                return_lse=True, **forced(),
            )
        )  # fmt: skip

    def merge_attention(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
        if isa is not None or algorithm != "auto":
            raise NotOffered("a merge is the same in every variant: see ours")
        merged = AttentionState.from_lse(o_a, lse_a).merge(AttentionState.from_lse(o_b, lse_b))
        return merged.to_lse(dtype=o_a.dtype)

    def attention_grad(
        q: Any, k: Any, v: Any, do: Any, scale: Any, causal: Any, causal_align: Any, window: Any,
        softcap: Any, mask: Any = None, bias: Any = None, sinks: Any = None,
    ) -> Any:  # fmt: skip
        options = {
            "scale": scale, "causal": causal, "causal_align": causal_align, "window": window,
            "softcap": softcap, "mask": mask, "bias": bias, "sinks": sinks, **forced(),
        }  # fmt: skip
        output, lse = of_numpy.attention(q, k, v, return_lse=True, **options)
        gradients = of_numpy.attention_backward(do, q, k, v, output, lse, **options)
        return gradients.q, gradients.k, gradients.v

    functions = (attention, varlen_attention, decode_attention, merge_attention, attention_grad)
    return {f.__name__: f for f in functions}


def _losses(isa: str | None, algorithm: str) -> dict[str, Callable[..., Any]]:
    def forced() -> dict[str, Any]:
        if algorithm not in ("auto", "online"):
            raise NotOffered(f"has no algorithm {algorithm}: it is online alone")
        return {"isa": isa}

    def cross_entropy(
        logits: Any, targets: Any, ignore_index: Any, label_smoothing: Any, reduction: Any, weight: Any = None
    ) -> Any:
        return losses_of.cross_entropy(
            logits, targets, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
            reduction=reduction, **forced(),
        )  # fmt: skip

    def cross_entropy_grad(
        logits: Any, targets: Any, ignore_index: Any, label_smoothing: Any, reduction: Any, weight: Any = None
    ) -> Any:
        return losses_of.cross_entropy_backward(
            1.0, logits, targets, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
            reduction=reduction, **forced(),
        )  # fmt: skip

    return {f.__name__: f for f in (cross_entropy, cross_entropy_grad)}
