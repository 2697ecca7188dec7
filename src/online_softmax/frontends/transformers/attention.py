"""A layer's call of its attention, as Transformers makes it, brought to `online_softmax.torch.attention`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ..torch import attention
from . import NAME
from .masks import RuleMask

#: What reaches every attention function and says nothing about the result of one that is given a mask.
_WITHOUT_EFFECT: Final = frozenset({
    "cache", "cache_position", "cu_seq_lens_k", "deterministic", "encoder_attention_mask",
    "encoder_hidden_states", "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "position_embeddings", "position_ids", "return_dict", "seq_idx", "use_cache",
})  # fmt: skip


class _Scope(NamedTuple):
    """Which keys are seen: the options of `attention`, and how many keys there are."""

    keys: int
    mask: torch.Tensor | None
    bias: torch.Tensor | None
    causal: bool
    window: tuple[int | None, int | None] | None


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of "online_softmax".

    Args:
        query: (batch, heads, queries, d), key and value likewise with as many heads or a divisor of them.
        attention_mask: bool, True takes part; or real, added to the scores; or None: every key, or where the
            layer is causal and has several queries those up to each query's place, and those of the window.
            A tensor counts as it is: window and causality are in it already.
        scaling: factor of the scores; None for 1/sqrt(d).
        dropout: probability for each weight. Layers give 0 outside training.
        is_causal: None for what the module says.
        sliding_window: how many keys up to its own a query sees.
        softcap: scores become softcap * tanh(score / softcap).
        s_aux: (heads,) logits with a value of 0.
        sinks: the same, one for each query: (batch, heads, queries, 1).
        position_bias: added to the scores.
        cu_seq_lens_q: where sequences packed into one row begin and end; used where there is no mask.

    Returns: (batch, queries, heads, d of value), and None for the weights, which are never there.

    Raises: NotImplementedError for an argument it does not know that is given; ValueError for
        output_attentions; what `attention` raises.
    """
    _refuse(others)
    query, key, value = _of_one_batch(query, key, value)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scope = _scope(attention_mask, query, key, causal, sliding_window)
    if cu_seq_lens_q is not None and (attention_mask is None or isinstance(attention_mask, RuleMask)):
        scope = scope._replace(mask=_packed(scope.mask, cu_seq_lens_q, query, key))
    if position_bias is not None:
        position_bias = position_bias[..., : scope.keys]
        scope = scope._replace(bias=position_bias if scope.bias is None else scope.bias + position_bias)
    options: dict[str, Any] = {
        "mask": scope.mask, "bias": scope.bias, "scale": scaling, "causal": scope.causal,
        "window": scope.window, "softcap": softcap, "sinks": _of_heads(s_aux, query), "dropout_p": dropout,
    }  # fmt: skip
    key, value = key[:, :, : scope.keys], value[:, :, : scope.keys]
    if sinks is None:
        output = attention(query, key, value, **options)
    else:
        output, lse = attention(query, key, value, return_lse=True, **options)
        # The share of the keys beside a sink of each query's own.
        output = output * torch.sigmoid(lse - sinks.squeeze(-1)).to(output.dtype).unsqueeze(-1)
    return output.transpose(1, 2).contiguous(), None


def _of_one_batch(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """query, key and value; one that is there once, as learned queries are, once for each of the others."""
    if any(x.ndim != 4 for x in operands):
        axes = ", ".join(str(x.ndim) for x in operands)
        raise ValueError(f"query, key and value have {axes} axes: four each would do")
    batch = max(x.shape[0] for x in operands)
    return tuple(x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in operands)


def _refuse(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name == "output_attentions":
            if value:
                raise ValueError(
                    f"output_attentions=True: {NAME} never has the weights; "
                    'attn_implementation="eager" would do'
                )
        elif value is not None and name not in _WITHOUT_EFFECT:
            raise NotImplementedError(
                f"the model gives its attention {name}, which {NAME} does not know: "
                'attn_implementation="sdpa" or "eager" would do'
            )


def _scope(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, causal: bool, sliding: int | None
) -> _Scope:
    queries, keys = query.shape[2], key.shape[2]
    if isinstance(mask, RuleMask):
        rule = mask.rule
        if rule is None or tuple(mask.shape[-2:]) != (queries, keys):
            mask = mask.plain()
        else:
            # `attention` has the last query stand at the last key.
            keys = min(keys, rule.offset + queries) if rule.causal else keys
            keep = None if rule.keep is None else rule.keep[:, None, None, :keys]
            if rule.offset + queries == keys or not (rule.causal or rule.window is not None):
                return _Scope(keys, keep, None, rule.causal, rule.window)
            mask = mask.plain()[..., :keys]
    if mask is None:
        causal = bool(queries > 1 and causal)
        if causal and keys > queries:  # an empty static cache: the others have not been written
            keys = queries
        window = None if sliding is None else (sliding - 1, None if causal or queries == 1 else sliding - 1)
        return _Scope(keys, None, None, causal, window)
    if mask.dtype == torch.bool:
        return _Scope(keys, mask, None, False, None)
    if not mask.dtype.is_floating_point:
        raise TypeError(f"attention_mask is {mask.dtype}: torch.bool or a real format would do")
    return _Scope(keys, None, mask, False, None)


def _packed(
    mask: torch.Tensor | None, cu_seq_lens: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """The mask of sequences that lie one after another in one row, and what a mask leaves of it."""
    if query.shape[2] != key.shape[2] or query.shape[0] != 1:
        raise NotImplementedError(
            f"cu_seq_lens_q with {query.shape[0]} rows of {query.shape[2]} queries and {key.shape[2]} keys: "
            "one row, and as many keys as queries, would do"
        )
    places = torch.arange(query.shape[2], device=query.device)
    of = torch.bucketize(places, cu_seq_lens.to(places.dtype), right=True)
    same = (of[:, None] == of)[None, None]
    return same if mask is None else same & mask


def _of_heads(s_aux: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    if s_aux is None:
        return None
    if s_aux.numel() != query.shape[1]:
        raise ValueError(
            f"s_aux has shape {tuple(s_aux.shape)}: one for each of {query.shape[1]} heads would do"
        )
    return s_aux.reshape(-1)
