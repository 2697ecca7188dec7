"""segment_logsumexp and segment_softmax of tensors: groups that are neighbours along one dimension."""

from __future__ import annotations

from typing import Any

import torch

from .. import checks as arguments
from .. import windows
from . import checks, segment_ops


def segment_logsumexp(
    x: torch.Tensor, *, ids: torch.Tensor | None = None, offsets: torch.Tensor | None = None,
    num_segments: int | None = None, axis: int = 0, dim: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """log(sum(exp(x))) of each group along one dimension: x's shape with the groups in place of it, in x's
    format.

    Args:
        x: float64, float32, float16, bfloat16 (float8: computed in float32) with at least one dimension, any
            strides. Other dimensions than `axis` are features.
        ids: integers from 0 on that do not decrease, the group of each entry of the dimension.
        offsets: integers, one more than there are groups, from 0 to the length of the dimension: group g is
            [offsets[g], offsets[g + 1]). Either ids or offsets is given.
        num_segments: number of groups, at least ids[-1] + 1, which is the default. With ids, torch.compile
            and torch.export need it: the shape of the result must not depend on numbers in a tensor.
        axis, dim: one argument under two names.

    Returns: -inf of an empty group and of one that is all -inf, with gradient 0. Differentiable to any order.

    Raises: TypeError and ValueError naming the argument; those about numbers in ids and offsets come from the
    kernel, before any result. RuntimeError for tensors of two devices.

    Cost: one read of x, and of ids one pass. Gradients past the first take temporaries of x's size.
    """
    x, places, is_ids, groups, over = _grouped(x, ids, offsets, num_segments, axis, dim)
    result: torch.Tensor = segment_ops.LSE(x, places, is_ids, groups, over)
    return result


def segment_softmax(
    x: torch.Tensor, *, ids: torch.Tensor | None = None, offsets: torch.Tensor | None = None,
    num_segments: int | None = None, axis: int = 0, dim: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """exp(x) / sum(exp(x)) within each group along one dimension: x's shape and format.

    Arguments, derivatives and errors as for `segment_logsumexp`. Cost: as `softmax`.
    """
    x, places, is_ids, groups, over = _grouped(x, ids, offsets, num_segments, axis, dim)
    result: torch.Tensor = segment_ops.SOFTMAX(x, places, is_ids, groups, over)
    return result


def _grouped(
    x: Any, ids: Any, offsets: Any, num_segments: Any, axis: Any, dim: Any
) -> tuple[torch.Tensor, torch.Tensor, bool, int, int]:
    x = checks.tensor(x, "x", converted=True)
    over = arguments.single_axis(checks.LAST_AXIS if dim is not None and axis == 0 else axis, dim, x.ndim)
    if (ids is None) == (offsets is None):
        both = "neither ids nor offsets was" if ids is None else "ids and offsets were both"
        raise ValueError(f"{both} given: one of them would do")
    name, given = ("ids", ids) if offsets is None else ("offsets", offsets)
    places = checks.any_tensor(given, name)
    if places.dtype not in _INTEGERS:
        raise TypeError(f"{name} is {places.dtype}: integers, torch.int64 for example, would do")
    if places.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(places.shape)}: one dimension would do")
    checks.same_device(**{"x": x, name: places})
    count = None if num_segments is None else windows.whole(num_segments, "num_segments", 0)
    if ids is not None:
        if len(places) != x.shape[over]:
            would = f"one for each of the {x.shape[over]} along axis would do"
            raise ValueError(f"ids has {len(places)} entries: {would}")
        if count is None and places.is_meta:
            raise ValueError("num_segments was not given and ids lies on meta: the number of groups would do")
        if count is None:
            count = int(places[-1]) + 1 if len(places) else 0
    elif not len(places):
        raise ValueError("offsets is empty: one entry more than there are groups would do")
    elif count is not None and count != len(places) - 1:
        would = f"where offsets make {len(places) - 1} groups: that would do"
        raise ValueError(f"num_segments={count} {would}")
    else:
        count = len(places) - 1
    return x, places, ids is not None, max(count, 0), over


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
