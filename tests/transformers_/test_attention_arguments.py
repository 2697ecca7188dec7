"""What a layer may give its attention, argument by argument; masks and their rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from transformers import masking_utils

from online_softmax.frontends.transformers import attention as ours
from online_softmax.frontends.transformers import masks


class Layer(torch.nn.Module):
    is_causal = True


def operands(queries: int = 5, keys: int = 5, heads: int = 4, batch: int = 2) -> tuple[Any, Any, Any]:
    g = torch.Generator().manual_seed(queries + keys)
    sizes = (batch, heads, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 6)
    return tuple(torch.randn(s, generator=g, dtype=torch.float64) for s in sizes)


def formula(q: Any, k: Any, v: Any, added: Any = 0.0, sink: Any = None) -> Any:
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], 1) for a in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + added
    if sink is not None:
        scores = torch.cat([scores, sink], -1)
    return (scores.softmax(-1)[..., : k.shape[2]] @ v).transpose(1, 2)


def visible(queries: int, keys: int, offset: int = 0, left: float = math.inf) -> Any:
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - offset
    return (distance <= 0) & (distance >= -left)


def additive(keep: Any) -> Any:
    return torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, -math.inf)


def close(got: Any, right: Any) -> None:
    torch.testing.assert_close(got, right, rtol=0, atol=1e-13)  # sums of 5 to 9 numbers near 1 in float64


def test_none_is_causal_where_the_layer_is_and_whole_where_not() -> None:
    q, k, v = operands()
    made, weights = ours.forward(Layer(), q, k, v, None)
    assert weights is None
    assert made.is_contiguous()
    close(made, formula(q, k, v, additive(visible(5, 5))))
    close(ours.forward(Layer(), q, k, v, None, is_causal=False)[0], formula(q, k, v))
    q, k, v = operands(1, 5)
    close(ours.forward(Layer(), q, k, v, None)[0], formula(q, k, v))  # decoding


def test_none_over_a_static_cache_that_is_empty() -> None:
    q, k, v = operands(4, 9)
    close(ours.forward(Layer(), q, k, v, None)[0], formula(q, k, v, additive(visible(4, 9))))


def test_none_with_a_window() -> None:
    q, k, v = operands()
    made = ours.forward(Layer(), q, k, v, None, sliding_window=2)[0]
    close(made, formula(q, k, v, additive(visible(5, 5, left=1))))
    one = ours.forward(Layer(), q[:, :, -1:], k, v, None, sliding_window=2)[0]
    close(one, made[:, -1:])


def test_masks_of_both_kinds_and_a_position_bias() -> None:
    q, k, v = operands()
    keep = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    keep |= torch.eye(5, dtype=torch.bool)
    bias = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    close(ours.forward(Layer(), q, k, v, keep)[0], formula(q, k, v, additive(keep)))
    close(ours.forward(Layer(), q, k, v, additive(keep))[0], formula(q, k, v, additive(keep)))
    for mask in (keep, additive(keep)):
        made = ours.forward(Layer(), q, k, v, mask, position_bias=bias)[0]
        close(made, formula(q, k, v, additive(keep) + bias))
    made = ours.forward(Layer(), q, k, v, None, position_bias=bias)[0]
    close(made, formula(q, k, v, additive(visible(5, 5)) + bias))


def test_sinks_of_heads_and_of_queries() -> None:
    q, k, v = operands()
    of_heads = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    right = formula(q, k, v, sink=of_heads.reshape(1, 4, 1, 1).expand(2, 4, 5, 1))
    close(ours.forward(Layer(), q, k, v, None, is_causal=False, s_aux=of_heads)[0], right)
    of_queries = torch.randn(2, 4, 5, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    made = ours.forward(Layer(), q, k, v, None, is_causal=False, sinks=of_queries)[0]
    close(made, formula(q, k, v, sink=of_queries))
    with pytest.raises(ValueError, match=r"s_aux has shape \(3,\): one for each of 4 heads"):
        ours.forward(Layer(), q, k, v, None, s_aux=of_heads[:3])


def test_softcap_and_scaling() -> None:
    q, k, v = operands()
    made = ours.forward(Layer(), q, k, v, None, is_causal=False, scaling=0.3, softcap=0.5)[0]
    repeated = k.repeat_interleave(2, 1)
    scores = 0.5 * torch.tanh(q @ repeated.mT * 0.3 / 0.5)
    close(made, (scores.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2))


def test_one_set_of_queries_or_keys_for_the_whole_batch() -> None:
    q, k, v = operands()
    made = ours.forward(Layer(), q[:1], k, v, None, is_causal=False)[0]
    close(made, formula(q[:1].expand(2, -1, -1, -1), k, v))
    made = ours.forward(Layer(), q, k[:1], v[:1], None, is_causal=False)[0]
    close(made, formula(q, k[:1], v[:1]))


def test_dropout_follows_the_generator_and_keeps_the_mean() -> None:
    q, k = torch.zeros(1, 1, 64, 8), torch.zeros(1, 1, 256, 8)
    v = torch.ones(1, 1, 256, 1)

    def drawn(seed: int) -> Any:
        torch.manual_seed(seed)
        return ours.forward(Layer(), q, k, v, None, is_causal=False, dropout=0.5)[0]

    made = drawn(1)
    assert torch.equal(drawn(1), made)
    assert not torch.equal(drawn(2), made)
    # 64 * 256 coins, each 0 or 2: the mean's deviation is 1/128.
    assert abs(made.mean() - 1) < 6 / 128
    assert made.std() > 0


def test_sequences_side_by_side_by_their_ends() -> None:
    q, k, v = operands(9, 9, batch=1)
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    made = ours.forward(Layer(), q, k, v, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)[0]
    keep = torch.block_diag(visible(4, 4), visible(5, 5)).bool()
    close(made, formula(q, k, v, additive(keep)))
    with pytest.raises(
        NotImplementedError, match="cu_seq_lens_q with 2 rows of 5 queries and 5 keys: one row"
    ):
        ours.forward(Layer(), *operands(), None, cu_seq_lens_q=ends)


def test_what_is_not_known_is_refused() -> None:
    q, k, v = operands()
    with pytest.raises(
        NotImplementedError, match="gives its attention indices, which online_softmax does not"
    ):
        ours.forward(Layer(), q, k, v, None, indices=torch.zeros(1))
    with pytest.raises(ValueError, match=r'output_attentions=True: .* attn_implementation="eager" would do'):
        ours.forward(Layer(), q, k, v, None, output_attentions=True)
    with pytest.raises(TypeError, match=r"attention_mask is torch.int64: torch.bool or a real format"):
        ours.forward(Layer(), q, k, v, torch.ones(2, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="query, key and value have 4, 3, 3 axes: four each"):
        ours.forward(Layer(), q, k[0], v[0], None)
    given = {"indices": None, "output_attentions": False, "use_cache": True, "position_ids": torch.zeros(1)}
    close(ours.forward(Layer(), q, k, v, None, **given)[0], formula(q, k, v, additive(visible(5, 5))))


# --- masks --------------------------------------------------------------------------------------------------

M = masking_utils
FUNCTIONS = {
    "causal": (M.causal_mask_function, None),
    "window": (M.sliding_window_causal_mask_function(3), 3),
    "both ways": (M.bidirectional_mask_function, None),
    "window both ways": (M.sliding_window_bidirectional_mask_function(2), 2),
    "chunks": (M.chunked_causal_mask_function(3, torch.tensor([0, 1])), 3),
}
#: q_length, kv_length, q_offset, kv_offset: whole, after a cache, a static cache, one that slides, decoding.
PLACES = [(6, 6, 0, 0), (3, 8, 5, 0), (4, 9, 0, 0), (3, 9, 2, 0), (3, 5, 6, 4), (1, 7, 6, 0), (1, 9, 4, 0)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("hidden", ["nothing", "first", "last"])
def test_a_mask_is_the_tensor_that_sdpa_would_get(
    name: str, places: tuple[int, int, int, int], hidden: str
) -> None:
    """As a tensor, and in what attention does with it."""
    queries, keys, q_offset, kv_offset = places
    function, size = FUNCTIONS[name]
    causal = not name.endswith("both ways")
    padding = None
    if hidden != "nothing":
        padding = torch.ones(2, min(keys + kv_offset, q_offset + queries), dtype=torch.bool)
        padding[0, slice(kv_offset, kv_offset + 1) if hidden == "first" else slice(-1, None)] = False
    given = {
        "batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": function, "attention_mask": padding, "local_size": size,
    }  # fmt: skip
    right = M.sdpa_mask(**given, allow_is_causal_skip=False)
    made = masks.mask(**given, allow_is_causal_skip=causal, allow_is_bidirectional_skip=not causal)
    q, k, v = operands(queries, keys)
    layer = Layer()
    layer.is_causal = causal
    seen = right.any(-1, keepdim=True)
    want = formula(q, k, v, torch.where(seen, additive(right), 0.0)) * seen.transpose(1, 2)
    close(ours.forward(layer, q, k, v, made, sliding_window=size if name == "window" else None)[0], want)
    if made is not None:
        if name != "chunks":  # one byte, or the padding itself
            assert torch.Tensor.untyped_storage(made).nbytes() <= 2 * (keys + kv_offset)
        assert made.shape == right.shape
        assert torch.equal(made & True, right)
    assert masks.mask(**given, allow_is_causal_skip=False).dtype == torch.bool


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("padded", [False, True])
def test_a_model_that_does_not_take_sdpa_gets_the_masks_of_eager(
    name: str, places: tuple[int, int, int, int], padded: bool
) -> None:
    """Additive, and never None where it is causal: it may work on its mask."""
    queries, keys, q_offset, kv_offset = places
    function, size = FUNCTIONS[name]
    causal = not name.endswith("both ways")
    padding = None
    if padded:
        padding = torch.ones(2, min(keys + kv_offset, q_offset + queries), dtype=torch.bool)
        padding[0, kv_offset] = False
    config = transformers.DeepseekV4Config
    assert not transformers.DeepseekV4Model._supports_sdpa
    given = {
        "batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": function, "attention_mask": padding, "local_size": size, "dtype": torch.float64,
        "allow_is_causal_skip": causal, "allow_is_bidirectional_skip": not causal,
    }  # fmt: skip
    right = M.eager_mask(**given)
    for kind in (config, type("Own", (config,), {})):  # and what is derived from it
        made = masks.mask(**given, config=object.__new__(kind))
        if right is None or made is None:
            assert made is right or name == "window both ways"  # one that hides nothing
            continue
        assert (made.shape, made.dtype) == (right.shape, right.dtype)
        q, k, v = operands(queries, keys)
        layer = Layer()
        layer.is_causal = False  # what it says of itself does not count
        seen = (right == 0).any(-1, keepdim=True)
        want = formula(q, k, v, right) * seen.transpose(1, 2)
        close(ours.forward(layer, q, k, v, made)[0] * seen.transpose(1, 2), want)
        assert torch.equal(torch.cat([made, made], -1), torch.cat([right, right], -1))


def test_a_rule_that_is_touched_becomes_a_tensor() -> None:
    rule = masks.Rule(True, (1, None), 0, None)
    mask = masks.RuleMask.of(rule, (2, 1, 4, 4), "cpu")
    assert mask.shape == (2, 1, 4, 4)
    assert (mask.dtype, mask.ndim, len(mask), mask.device.type) == (torch.bool, 4, 2, "cpu")
    assert mask.rule is rule
    right = visible(4, 4, left=1).expand(2, 1, 4, 4)
    assert torch.equal(mask[:, :, 1:], right[:, :, 1:])
    assert mask.rule is None
    mask[0, 0, 3, 0] = True  # written to: the change counts
    q, k, v = operands(4, 4)
    changed = right.clone()
    changed[0, 0, 3, 0] = True
    close(ours.forward(Layer(), q, k, v, mask)[0], formula(q, k, v, additive(changed)))


def test_functions_that_are_not_known_have_no_rule() -> None:
    window = M.sliding_window_causal_mask_function(3)
    assert masks.recognised(window) == (True, (2, None))
    assert masks.recognised(M.sliding_window_bidirectional_mask_function(3)) == (False, (3, 3))
    padded = M.and_masks(window, M.padding_mask_function(torch.ones(1, 4, dtype=torch.bool)))
    chunks = M.chunked_causal_mask_function(3, torch.zeros(1))
    for other in (padded, chunks, M.or_masks(window, M.causal_mask_function), lambda *a: True, print):
        assert masks.recognised(other) is None
