"""Models of many families, random and tiny, and what they are called with.

Two layers, 32 wide. In float64, so that two implementations of attention differ by roundings of 2^-53 and
nothing that is wrong can hide below the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as t
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

VOCABULARY = 61
_COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
_BERT = {**_COMMON, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip
_VISION = {k: v for k, v in _COMMON.items() if "token" not in k and k != "vocab_size"}


def _gpt2() -> Any:
    return t.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def _gemma(config: type, **more: Any) -> Any:
    return config(
        **_GROUPED, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8, **more,
    )  # fmt: skip


def _whisper() -> Any:
    return t.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=10, max_target_positions=40, dropout=0.0, pad_token_id=0, bos_token_id=1,
        eos_token_id=None, decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def _t5() -> Any:
    return t.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip


#: Encoders of tokens.
ENCODERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "bert": ("AutoModelForMaskedLM", lambda: t.BertConfig(**_BERT)),
    "roberta": ("AutoModelForMaskedLM", lambda: t.RobertaConfig(**_BERT)),
    "distilbert": (
        "AutoModelForMaskedLM",
        lambda: t.DistilBertConfig(
            vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0,
            attention_dropout=0.0, pad_token_id=0,
        ),
    ),
    "modernbert": (
        "AutoModelForMaskedLM",
        lambda: t.ModernBertConfig(
            **{**_COMMON, "cls_token_id": 1, "sep_token_id": 2}, max_position_embeddings=64,
            local_attention=6, global_attn_every_n_layers=2,
        ),
    ),
}  # fmt: skip
#: Causal language models.
DECODERS: dict[str, Callable[[], Any]] = {
    "gpt2": _gpt2,
    "llama": lambda: t.LlamaConfig(**_GROUPED),
    "mistral": lambda: t.MistralConfig(**_GROUPED, sliding_window=5),
    "gemma2": lambda: _gemma(t.Gemma2Config, attn_logit_softcapping=1.5, final_logit_softcapping=0.7),
    "gemma3": lambda: _gemma(t.Gemma3TextConfig),
    "qwen3": lambda: t.Qwen3Config(**_GROUPED),
    "gpt_oss": lambda: t.GptOssConfig(
        **_GROUPED, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "opt": lambda: t.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, dropout=0.0, word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=None,
    ),
    "llama4": lambda: t.Llama4TextConfig(
        **_GROUPED, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48,
        layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0],
    ),
}  # fmt: skip
#: Encoder and decoder with cross-attention.
PAIRS: dict[str, tuple[str, Callable[[], Any]]] = {
    "t5": ("AutoModelForSeq2SeqLM", _t5),
    "whisper": ("AutoModelForSpeechSeq2Seq", _whisper),
}
#: Images.
IMAGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "vit": ("AutoModel", lambda: t.ViTConfig(**_VISION, image_size=8, patch_size=4)),
    "clip": (
        "AutoModel",
        lambda: t.CLIPConfig(
            text_config={**_COMMON, "max_position_embeddings": 32, "projection_dim": 16, "eos_token_id": 2},
            vision_config={**_VISION, "image_size": 8, "patch_size": 4, "projection_dim": 16},
            projection_dim=16,
        ),
    ),
}


def kind(family: str) -> tuple[str, Callable[[], Any]]:
    """The automatic class of a family and what makes its configuration."""
    if family in DECODERS:
        return "AutoModelForCausalLM", DECODERS[family]
    return {**ENCODERS, **PAIRS, **IMAGES}[family]


def build(
    family: str, implementation: str = "eager", dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """A model whose weights depend on the family alone, large enough that attention picks its keys."""
    auto, make = kind(family)
    config = make()
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(5)
    # Products of experts by groups know no float64.
    more = {"experts_implementation": "eager"} if family == "gpt_oss" else {}
    model = getattr(t, auto).from_config(config, attn_implementation=implementation, **more)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name or "bias" in name:  # those are zeros
                parameter.normal_(std=0.5)
            elif parameter.ndim > 1 and family not in ("t5", "clip"):
                parameter.mul_(8)
    return model.to(dtype).eval()


# --- the oracle ---------------------------------------------------------------------------------------------


def plain(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
    dropout: float = 0.0, softcap: float | None = None, s_aux: Any = None, position_bias: Any = None,
    **others: Any,
) -> Any:  # fmt: skip
    """The formula, in the format of its operands, with the additive mask of "eager"."""
    groups = query.shape[1] // key.shape[1]
    key, value = (a.repeat_interleave(groups, 1) for a in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for added in (position_bias, attention_mask):
        if added is not None:
            scores = scores + added
    if s_aux is not None:
        sink = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def register_plain() -> None:
    AttentionInterface.register("plain", plain)
    AttentionMaskInterface.register("plain", masking_utils.eager_mask)


# --- inputs -------------------------------------------------------------------------------------------------


def tokens(batch: int = 2, length: int = 11, seed: int = 0) -> Any:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side: str, batch: int = 2, length: int = 11, by: int = 4) -> Any:
    """Of the first row: a mask with zeros on a side, or None for no mask."""
    if side == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, slice(None, by) if side == "left" else slice(-by, None)] = 0
    return mask


def inputs(family: str, side: str = "none") -> dict[str, Any]:
    """What a model of the family is called with, labels included where it takes them."""
    ids, mask = tokens(), padding(side)
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if family == "vit":
        return {"pixel_values": pixels}
    if family == "clip":
        return {"pixel_values": pixels, "input_ids": ids, "attention_mask": mask, "return_loss": True}
    labels = ids
    if mask is not None:
        # What a padded query gives is nobody's business, so neither is the token that follows it.
        labels = ids.masked_fill((mask == 0) | (mask.roll(1, 1) == 0), -100)
    if family == "whisper":
        features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return {
            "input_features": features,
            "decoder_input_ids": ids,
            "decoder_attention_mask": mask,
            "labels": labels,
        }
    given = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if family == "t5":
        given["labels"] = tokens(length=6, seed=2)
    return given
