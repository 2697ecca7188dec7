"""Which axes of attention's operands and results are cut together: the batch, and groups of heads."""

from __future__ import annotations

from typing import Any

from .primitives import Axes, Factors

Array = Any
#: Operands past q, k and v.
ORDER = ("bias", "sinks", "mask", "slopes", "numbers", "firsts")


def in_order(options: Any) -> tuple[str, ...]:
    """Names of the operands of a call."""
    return ("q", "k", "v", *options.present)


def gradient_factors(operands: tuple[Array, ...], options: Any, wrt: tuple[str, ...]) -> Factors:
    """Of the gradient, whose operands are led by those of output and lse; of the forward without `wrt`."""
    m = len(options.smooth)
    names: tuple[str, ...] = in_order(options)
    if wrt:
        names = ("do", "dlse", *names[:m], "out", "lse", *names[m:])
    given = dict(zip(names, operands, strict=True))
    at = 2 if options.bshd else 1
    heads, groups = given["q"].shape[at], given["k"].shape[at]
    sizes = {"g": groups, "r": heads // max(groups, 1)}
    # Heads that all share one of k are not cut: the gradients of k and v would be sums over devices.
    of_q: str | tuple[str, str] = "g" if groups == heads else ("g", "r") if groups > 1 else "h"
    of_k = "g" if groups == heads or groups > 1 else "k1"

    def three(head: str | tuple[str, str], length: str) -> Axes:
        return ("b", length, head) if options.bshd else ("b", head, length)

    known: dict[str, Axes] = {
        "q": (*three(of_q, "s"), "d"), "k": (*three(of_k, "t"), "d"), "v": (*three(of_k, "t"), "e"),
        "out": (*three(of_q, "s"), "e"), "lse": three(of_q, "s"), "slopes": ("b", of_q),
        "numbers": ("b", "n"), "firsts": (of_q,),
    }  # fmt: skip
    known |= {"do": known["out"], "dlse": known["lse"]}
    whole = (given["q"].shape[0], heads, given["q"].shape[3 - at], given["k"].shape[3 - at])
    for name in ("bias", "mask"):
        if name in given:
            axes = ("b", of_q, "s", "t")
            known[name] = tuple(
                axis if n == full else f"{name}{i}"
                for i, (axis, n, full) in enumerate(zip(axes, given[name].shape, whole, strict=True))
            )
    if "sinks" in given:
        known["sinks"] = ("b" if given["sinks"].shape[0] == whole[0] else "sinks0", of_q)
    return Factors([known[n] for n in names], [known[n] for n in (wrt or ("out", "lse"))], {"b", "g"}, sizes)
