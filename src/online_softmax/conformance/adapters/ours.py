"""This library's own public functions; a variant forces the instruction set and the algorithm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import cpu
from ...frontends import attention as attention_of_numpy
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

    def softmax_topk(x: Any, k: Any, axis: Any) -> Any:
        if algorithm not in ("auto", "online"):
            raise NotOffered(f"has no algorithm {algorithm}: it is online alone")
        return tuple(osm.softmax_topk(x, k, axis, isa=isa))

    def logaddexp(a: Any, b: Any) -> Any:
        return osm.logsumexp(np.stack(np.broadcast_arrays(a, b), axis=-1), **forced)

    def merge_states(m_a: Any, s_a: Any, m_b: Any, s_b: Any) -> Any:
        if isa is not None or algorithm != "auto":
            raise NotOffered("a merge is the same in every variant: see ours")
        merged = osm.SoftmaxState(m_a, s_a).merge(osm.SoftmaxState(m_b, s_b))
        return merged.m, merged.s

    def attention(
        q: Any, k: Any, v: Any, scale: Any, causal: Any, causal_align: Any, window: Any, softcap: Any,
        mask: Any = None, bias: Any = None, sinks: Any = None,
    ) -> Any:  # fmt: skip
        if algorithm not in ("auto", "online"):
            raise NotOffered(f"has no algorithm {algorithm}: it is online alone")
        return tuple(
            attention_of_numpy.attention(
                q, k, v, mask=mask, bias=bias, scale=scale, causal=causal, causal_align=causal_align,
                window=window, softcap=softcap, sinks=sinks, return_lse=True, isa=isa,
            )
        )  # fmt: skip

    rows = (softmax, log_softmax, logsumexp, softmax_topk, logaddexp, merge_states)
    return {f.__name__: f for f in (*rows, attention)}
