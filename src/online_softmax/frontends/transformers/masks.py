"""Masks as Transformers asks for them: a rule where one says it all, else a tensor.

Transformers describes a mask by a function of (batch, head, query, key) and asks for what its attention
implementation needs. Causal and windowed masks, padded or not, are handed on as their rule: no tensor of
(batch, 1, queries, keys) is made. Every other function (chunks, packed sequences, a caller's own) goes to
Transformers' own `sdpa_mask`, or to its `eager_mask` where the model does not take the masks of "sdpa".
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from transformers import PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing

#: Of configurations that were asked about.
_MADE_FOR: Final[dict[type, str]] = {}
_T: Final = torch.Tensor
#: What may be asked of a rule mask without its being made. Its strides are those of one byte, expanded.
_METADATA: Final = {
    getattr(_T, name).__get__
    for name, kind in vars(torch._C.TensorBase).items()
    if inspect.isgetsetdescriptor(kind) and name not in ("T", "H", "mT", "mH", "data", "real", "imag")
} | {
    _T.dim,
    _T.size,
    _T.stride,
    _T.storage_offset,
    _T.numel,
    _T.__len__,
    _T.is_floating_point,
    _T.is_contiguous,
    _T.untyped_storage,
}


class Rule(NamedTuple):
    """Which keys a query sees, by their places: query i stands at i + offset, key j at j.

    Attributes:
        causal: no key past the query's place.
        window: (left, right), keys no further away than that; None for no limit.
        offset: of the first query.
        keep: (batch, keys) bool, the keys that are no padding; None for all.
    """

    causal: bool
    window: tuple[int | None, int | None] | None
    offset: int
    keep: torch.Tensor | None


class RuleMask(torch.Tensor):
    """A mask (batch, 1, queries, keys) known by its rule: the memory of one number. It stands for a bool
    tensor, or, made in a real format, for one that is added to the scores.

    Whatever a model does to it beside handing it on is done to the tensor it stands for, which it then is.
    """

    _rule: Rule | None
    _dense: torch.Tensor | None

    @staticmethod
    def of(rule: Rule, shape: tuple[int, ...], device: Any, dtype: torch.dtype = torch.bool) -> RuleMask:
        made: RuleMask = torch.ones((), dtype=dtype, device=device).expand(shape).as_subclass(RuleMask)
        made._rule, made._dense = rule, None
        return made

    @property
    def rule(self) -> Rule | None:
        """None for a mask that has become a tensor."""
        return self._rule

    def plain(self) -> torch.Tensor:
        """The tensor, made by the first call. From then on it alone counts: it may be written to."""
        if self._dense is None:
            assert self._rule is not None
            with torch._C.DisableTorchFunctionSubclass():
                seen = _dense(self._rule, tuple(self.shape), self.device)
                self._dense = seen if self.dtype == torch.bool else _additive(seen, self.dtype)
            self._rule = None
        return self._dense

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = torch.utils._pytree.tree_map_only(RuleMask, RuleMask.plain, (args, kwargs))
        return func(*args, **kwargs)


def _dense(rule: Rule, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    batch, _, queries, keys = shape
    distance = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - rule.offset
    made = torch.ones_like(distance, dtype=torch.bool)
    if rule.causal:
        made &= distance <= 0
    left, right = rule.window or (None, None)
    if left is not None:
        made &= distance >= -left
    if right is not None:
        made &= distance <= right
    if rule.keep is not None:
        return made & rule.keep[:, None, None, :]
    return made.expand(batch, 1, queries, keys).clone()


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As "eager" has it: 0, or the lowest number."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of a layer: None, a `RuleMask` or a tensor, in the places where `sdpa_mask` of Transformers,
    whose arguments these are, would make None or a bool tensor, and `eager_mask` an additive one."""
    config = kwargs.get("config")
    made_for = "sdpa" if config is None else _made_for(type(config))
    pattern = None
    if made_for != "itself" and not (use_vmap or is_tracing(attention_mask) or is_tracing(q_offset)):
        pattern = recognised(mask_function)
    # Where neither may be skipped the model is going to work on the mask, or to be compiled with it.
    if pattern is None or not (allow_is_causal_skip if pattern[0] else allow_is_bidirectional_skip):
        theirs = masking_utils.sdpa_mask if made_for == "sdpa" else masking_utils.eager_mask
        return theirs(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
            local_size=local_size, allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip, use_vmap=use_vmap, device=device,
            **kwargs,
        )  # fmt: skip
    causal, window = pattern
    offset = int(q_offset) - kv_offset
    # Of a static cache the keys past the last query are not there yet.
    seen = min(kv_length, offset + q_length) if causal else kv_length
    keep = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if keep is not None:
        keep = keep[:, kv_offset : kv_offset + kv_length]
        if bool(keep[:, :seen].all()):
            keep = None
    if window is not None and not _limits(window, q_length, seen, offset):
        window = None
    dtype = torch.bool
    if made_for == "eager":  # may work on its mask, which is additive, and count on there being one
        dtype = kwargs.get("dtype", torch.float32)
    elif keep is None and window is None and causal:
        last = offset + 1 >= kv_length
        if offset == 0 or (q_length == 1 and last):
            return None
    if window is None and not causal:
        if keep is None:
            return None
        if dtype == torch.bool:
            return keep[:, None, None, :].expand(batch_size, 1, q_length, kv_length)
    return RuleMask.of(
        Rule(causal, window, offset, keep), (batch_size, 1, q_length, kv_length), device, dtype
    )  # fmt: skip


@torch.compiler.assume_constant_result
def _made_for(config: type) -> str:
    """The masks that the models of a configuration are written for.

    "sdpa": bool, or None where the layer's own rule says it all. "eager": additive, and never None; so are
    those of models that do not take "sdpa". "itself": these too, of models that do not leave their attention
    to the AttentionInterface and run their own.
    """
    known = _MADE_FOR.get(config)
    if known is not None:
        return known
    # No public question answers this; what Transformers asks itself reads the source of the model's module.
    ask = "_can_set_attn_implementation"
    models = _models(config)
    found = "sdpa" if all(getattr(m, "_supports_sdpa", True) for m in models) else "eager"
    if not all(getattr(m, ask)() for m in models if hasattr(m, ask)):
        found = "itself"
        logging.getLogger(__name__).warning(
            "%s: models of this kind do not call their attention through the AttentionInterface: they run "
            'their own code, as with attn_implementation="eager"', config.__name__,
        )  # fmt: skip
    if models:
        _MADE_FOR[config] = found
    return found


def _models(config: type) -> list[Any]:
    """The models of a configuration, or else those of what it is derived from."""
    every = list(_subclasses(PreTrainedModel))
    for kind in config.__mro__:
        models = [m for m in every if getattr(m, "config_class", None) is kind]
        if models:
            return models
    return []


def _subclasses(of: Any) -> Iterator[Any]:
    for kind in of.__subclasses__():
        yield kind
        yield from _subclasses(kind)


def _limits(window: tuple[int | None, int | None], queries: int, keys: int, offset: int) -> bool:
    """Whether there is a key that a window hides; or that one hides which is one narrower on both sides, as
    layers take the window of a bidirectional model that has no mask."""
    left, right = window
    if right is None:
        return left is not None and offset + queries - 1 > left
    return max(offset + queries, keys - offset) > right


def recognised(function: Callable[..., Any]) -> tuple[bool, tuple[int | None, int | None] | None] | None:
    """(causal, window) of a mask function that Transformers has made, or None for any other.

    A function is known by its code and by what that is closed over: nothing else would tell a window from
    the chunks of the same size.
    """
    m = masking_utils
    if function is m.causal_mask_function:
        return True, None
    if function is m.bidirectional_mask_function:
        return False, None
    parts = _closed_over(function, m.and_masks(m.causal_mask_function))
    if not (isinstance(parts, tuple) and len(parts) == 2):
        return None
    overlay, base = parts
    if base is m.causal_mask_function:
        size = _closed_over(overlay, m.sliding_window_overlay(1))
        return (True, (size - 1, None)) if isinstance(size, int) and size > 0 else None
    if base is m.bidirectional_mask_function:
        size = _closed_over(overlay, m.sliding_window_bidirectional_overlay(1))
        return (False, (size, size)) if isinstance(size, int) and size >= 0 else None
    return None


def _closed_over(function: Any, like: Any) -> Any:
    """What a function of the same making as `like` is closed over, or None for another function."""
    cells = getattr(function, "__closure__", None)
    if getattr(function, "__code__", None) is not like.__code__ or cells is None or len(cells) != 1:
        return None
    return cells[0].cell_contents
