"""Face of the native core's losses: a call described, then run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from . import _core
from .cpu import CODES, address, plan_of
from .loss_rules import Rule, Whole

Array = NDArray[Any]
#: What `targets` has for rows that take no part, and for those whose target is not among these classes.
IGNORED: Final = -2
ELSEWHERE: Final = -1


@dataclass(frozen=True)
class Problem:
    """One call, checked by whoever makes it.

    Attributes:
        logits: of a served dtype, any strides, at least one class along `axis`.
        targets: (rows,) int64, C-contiguous: classes, or IGNORED, or ELSEWHERE; rows in the order of the
            other axes. None where there are probabilities.
        probabilities: of the logits' shape and any served dtype.
        class_weights: (classes,), row_weights: (rows,), float64, C-contiguous.
        other: a second stream of logits, of the first's shape and dtype.
        tokens: (rows, k) int64, C-contiguous: classes whose log-probabilities are wanted.
    """

    logits: Array
    axis: int
    rule: Rule
    targets: Array | None = None
    probabilities: Array | None = None
    class_weights: Array | None = None
    row_weights: Array | None = None
    other: Array | None = None
    tokens: Array | None = None


def run(
    problem: Problem,
    made: dict[str, Array],
    *,
    gradient: Array | None = None,
    d_loss: Array | None = None,
    d_lse: Array | None = None,
    whole: Whole | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """The arrays of `made` and the gradient, in one read of the logits.

    Args:
        made: what is wanted, (rows,) float64 and C-contiguous each: "loss", "lse", "entropy", "divergence",
            "m", "s", "target_score", "scores", "moment" (the last five are a part's statistics, all or none
            of the first three); "rank" int64; "log_probabilities" (rows, k).
        gradient: of the logits' shape and dtype, any strides; their own memory or disjoint from it.
        d_loss: () or (rows,) float64; d_lse: (rows,) float64 or None for 0.

    Cost: scratch of one row of float32 (float64) a thread; some 256 KiB of copies a thread where classes do
    not lie side by side, or softcap, temperature or probabilities are given.
    """
    p = problem
    plan = plan_of(isa, "auto", threads, "exact")
    call = _core.Losses(plan, CODES[p.logits.dtype], p.logits.shape, p.axis)
    if not p.logits.size:
        return
    arrays = {"x": p.logits, "y": gradient, "other": p.other, "probabilities": p.probabilities}
    for name, array in arrays.items():
        if array is not None:
            call.array(name, address(array), array.strides, CODES[array.dtype])
    if p.targets is not None:
        call.targets(address(p.targets))
    numbers = {
        "class_weights": p.class_weights,
        "row_weights": p.row_weights,
        "d_loss": d_loss,
        "d_lse": d_lse,
    }
    if whole is not None:
        numbers |= {
            "whole_m": whole.m, "whole_s": whole.s, "whole_target": whole.target,
            "target_weight": whole.target_weight,
        }  # fmt: skip
    single = {name: array for name, array in made.items() if name not in ("rank", "log_probabilities")}
    for name, array in (numbers | single).items():
        if array is not None:
            call.numbers(name, address(array))
    if "rank" in made:
        call.rank(address(made["rank"]))
    if p.tokens is not None:
        call.tokens(address(p.tokens), p.tokens.shape[1], address(made["log_probabilities"]))
    r = p.rule
    call.rule(r.sharp, r.uniform, r.z_loss, r.softcap, r.inverse_temperature)
    of_rows = made.keys() - {"loss"}
    call.run(
        d_loss is not None and d_loss.ndim > 0,
        bool(of_rows) or d_lse is not None,
        0.0 if whole is None else whole.weight_sum,
    )
