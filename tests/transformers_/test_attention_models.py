"""attn_implementation="online_softmax" in tiny models of many families, against the formula in float64,
"sdpa" and "eager"."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tiny_models as tiny
import torch
import transformers as t

from online_softmax.frontends.transformers import attention as ours
from online_softmax.transformers import register

#: Two orders of float64 sums: 2^-53 a rounding, some thousand roundings in a row, a factor of 1000 between
#: layers. What is wrong by a key, a scale or a place is off by more than 1e-3.
TIGHT = 1e-10
CASES = (
    [(f, side) for f in tiny.ENCODERS for side in ("none", "right")]
    + [(f, side) for f in tiny.DECODERS for side in ("left", "right")]
    + [(f, "none") for f in ("llama", "mistral")]
    + [(f, "right") for f in tiny.PAIRS]
    + [("vit", "none"), ("clip", "right")]
)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register()
    register()  # changes nothing
    tiny.register_plain()


@functools.cache
def model_of(family: str) -> Any:
    return tiny.build(family)


def run(model: Any, implementation: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What the model gives where nothing is padded, and the gradients of its loss."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    found = model(**given)
    main = next(found[name] for name in ("logits", "logits_per_image", "last_hidden_state") if name in found)
    loss = found["loss"] if "loss" in found else main.square().mean()
    loss.backward()
    mask = given.get("decoder_attention_mask", given.get("attention_mask"))
    if mask is not None and main.shape[:2] == mask.shape:
        main = main[mask.bool()]
    return main.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "side"), CASES)
def test_outputs_and_gradients_of_all_parameters(family: str, side: str) -> None:
    model, given = model_of(family), tiny.inputs(family, side)
    right, gradients = run(model, "plain", given)
    got, made = run(model, "online_softmax", given)
    assert right.dtype == torch.float64
    assert (got - right).abs().max() <= TIGHT * right.abs().max()
    assert made.keys() == gradients.keys()
    largest = max(g.abs().max() for g in gradients.values())
    for name, gradient in gradients.items():
        assert (made[name] - gradient).abs().max() <= TIGHT * largest, name
    if model._supports_sdpa and family != "gemma2":  # no softcap there
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            theirs = run_forward(model, given)
        assert (got - theirs).abs().max() <= TIGHT * right.abs().max()


def run_forward(model: Any, given: dict[str, Any]) -> Any:
    found = model(**given)
    main = next(found[name] for name in ("logits", "logits_per_image", "last_hidden_state") if name in found)
    mask = given.get("decoder_attention_mask", given.get("attention_mask"))
    return main[mask.bool()] if mask is not None and main.shape[:2] == mask.shape else main


@pytest.mark.parametrize(
    ("family", "theirs", "dtype"),
    [
        ("gemma2", "eager", torch.float32), ("gpt_oss", "eager", torch.float32),
        ("bert", "sdpa", torch.float32), ("mistral", "sdpa", torch.bfloat16),
    ],
)  # fmt: skip
def test_no_further_from_the_truth_than_theirs(family: str, theirs: str, dtype: torch.dtype) -> None:
    """Two orders of sums in a format: each is within an error of its own of the model in float64."""
    given = tiny.inputs(family, "right")
    with torch.no_grad():
        truth = run_forward(tiny.build(family, "plain"), given)
        errors = {
            name: (run_forward(tiny.build(family, name, dtype), given) - truth).abs().max()
            for name in (theirs, "online_softmax")
        }
    assert 0 < errors["online_softmax"] <= 2 * errors[theirs] + torch.finfo(dtype).eps * truth.abs().max()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_queries_give_what_sdpa_gives(side: str) -> None:
    """Hidden from every key they give 0 there too."""
    model, given = model_of("llama"), tiny.inputs("llama", side)
    made = {}
    for name in ("sdpa", "online_softmax"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            made[name] = model(**given).logits
    assert (made["online_softmax"] - made["sdpa"]).abs().max() <= TIGHT * made["sdpa"].abs().max()


def generated(model: Any, implementation: str, **options: Any) -> Any:
    model.set_attn_implementation(implementation)
    if "input_features" not in options:
        options = {"input_ids": tiny.tokens(2, 9), "attention_mask": tiny.padding("left", 2, 9), **options}
    return model.generate(
        **options, max_new_tokens=4, max_length=None, do_sample=False, pad_token_id=0, disable_compile=True
    )


WAYS = {
    "greedy": {},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "no cache": {"use_cache": False},
}
GENERATED = [(f, way) for f in (*tiny.DECODERS, "t5") for way in ("greedy", "static")] + [
    ("llama", "beams"), ("gpt_oss", "beams"), ("t5", "beams"), ("mistral", "no cache"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "way"), GENERATED)
def test_generated_tokens(family: str, way: str) -> None:
    model = model_of(family)
    right = generated(model, "plain", **WAYS[way])
    assert torch.equal(generated(model, "online_softmax", **WAYS[way]), right)
    if family != "t5":  # whose embeddings, its head too, make it repeat itself
        assert right.unique().numel() > 6


def test_generated_tokens_of_speech() -> None:
    model = model_of("whisper")
    model.generation_config.max_length = None
    features = tiny.inputs("whisper")["input_features"]
    for options in ({}, {"num_beams": 2}):
        found = [
            generated(model, name, input_features=features, **options) for name in ("sdpa", "online_softmax")
        ]
        assert torch.equal(*found)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_filled_in_pieces(family: str, kind: str) -> None:
    """Several queries after keys that are there: the last query stands at the last key."""
    model, ids, mask = model_of(family), tiny.tokens(), tiny.padding("left")
    places = (mask.cumsum(1) - 1).clamp(min=0)
    model.set_attn_implementation("plain")
    with torch.no_grad():
        right = model(input_ids=ids, attention_mask=mask, position_ids=places).logits
        model.set_attn_implementation("online_softmax")
        cache = (
            t.DynamicCache(config=model.config)
            if kind == "dynamic"
            else t.StaticCache(config=model.config, max_cache_len=16)
        )
        made = [
            model(
                input_ids=ids[:, piece], attention_mask=mask[:, : piece.stop], position_ids=places[:, piece],
                cache=cache, use_cache=True,
            ).logits
            for piece in (slice(0, 6), slice(6, 10), slice(10, 11))
        ]  # fmt: skip
    off = (torch.cat(made, 1) - right)[mask.bool()].abs().max()
    assert off <= TIGHT * right.abs().max()


def test_packed_sequences_do_not_see_each_other() -> None:
    model = model_of("mistral")
    model.set_attn_implementation("online_softmax")
    first, second = tiny.tokens(1, 7), tiny.tokens(1, 8, seed=3)
    places = torch.cat([torch.arange(7), torch.arange(8)])[None]
    ends = torch.tensor([0, 7, 15])
    packed = torch.cat([first, second], 1)
    with torch.no_grad():
        right = torch.cat([model(input_ids=first).logits, model(input_ids=second).logits], 1)
        by_places = model(input_ids=packed, position_ids=places, use_cache=False).logits
        # A cache has the places say nothing about the mask: then the ends do.
        by_ends = model(
            input_ids=packed, position_ids=places, cache=t.DynamicCache(), cu_seq_lens_q=ends,
            cu_seq_lens_k=ends, max_length_q=8, max_length_k=8,
        ).logits  # fmt: skip
    for made in (by_places, by_ends):
        assert (made - right).abs().max() <= TIGHT * right.abs().max()


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize(
    "config",
    [
        # Its layers do not say that they are causal.
        t.BigBirdPegasusConfig(
            vocab_size=61, d_model=32, encoder_layers=1, decoder_layers=2, decoder_attention_heads=4,
            encoder_attention_heads=4, decoder_ffn_dim=48, encoder_ffn_dim=48, max_position_embeddings=64,
            dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ),
        # Its layers append the places of compressed keys to their mask.
        t.DeepseekV4Config(
            **tiny._COMMON, head_dim=8, num_key_value_heads=1, qk_rope_head_dim=8, q_lora_rank=8,
            moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, sliding_window=4,
            layer_types=["heavily_compressed_attention", "compressed_sparse_attention"], index_topk=4,
            index_n_heads=2, index_head_dim=16, max_position_embeddings=64,
        ),
    ],
    ids=["bigbird_pegasus", "deepseek_v4"],
)  # fmt: skip
def test_models_that_do_not_take_sdpa(config: Any, side: str) -> None:
    torch.manual_seed(5)
    model = t.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    if model._can_set_experts_implementation():  # products of experts by groups know no float64
        model.set_experts_implementation("eager")
    assert not model._supports_sdpa
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    given = {"input_ids": tiny.tokens(), "attention_mask": tiny.padding(side), "use_cache": False}
    made = {}
    for name in ("eager", "online_softmax"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            made[name] = run_forward(model, given)
    # Norms and rotations are in float32 within: what goes in there rounds alike or apart by 2^-24.
    assert (made["eager"] - made["online_softmax"]).abs().max() <= 2.0**-18 * made["eager"].abs().max()


def test_what_a_layer_hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key heads as they are, rules in place of masks."""
    seen: list[tuple[Any, Any]] = []
    right = ours.attention

    def watched(q: Any, k: Any, v: Any, **options: Any) -> Any:
        seen.append((k.shape, options))
        return right(q, k, v, **options)

    monkeypatch.setattr(ours, "attention", watched)
    model = model_of("mistral")
    model.set_attn_implementation("online_softmax")
    with torch.no_grad():
        for side in ("none", "right"):
            model(**tiny.inputs("mistral", side))
    shapes = {tuple(shape) for shape, _ in seen}
    assert shapes == {(2, 2, 11, 8)}
    whole, padded = seen[0][1], seen[-1][1]
    assert (whole["mask"], whole["causal"], whole["window"]) == (None, True, (4, None))
    assert (padded["causal"], padded["window"]) == (True, (4, None))
    assert padded["mask"].shape == (2, 1, 1, 11)


def test_layers_that_are_run_again_for_the_gradient() -> None:
    """Gradient checkpointing hands the masks on a second time."""
    model, given = tiny.build("mistral"), tiny.inputs("mistral", "right")
    _, right = run(model, "online_softmax", given)
    model.activation_checkpointing_enable()
    _, made = run(model.train(), "online_softmax", {**given, "use_cache": False})
    for name, gradient in right.items():
        assert torch.equal(made[name], gradient), name


def test_loaded_from_a_folder(tmp_path: Any) -> None:
    tiny.build("bert", dtype=torch.float32).base_model.save_pretrained(tmp_path)
    made = {}
    for name in ("sdpa", "online_softmax"):
        model = t.AutoModel.from_pretrained(tmp_path, attn_implementation=name).eval()
        assert model.config._attn_implementation == name
        with torch.no_grad():
            made[name] = model(input_ids=tiny.tokens())[0]
    assert (made["sdpa"] - made["online_softmax"]).abs().max() <= 1e-5  # of layer-normed numbers, in float32


# --- models that do not ask ---------------------------------------------------------------------------------


#: What makes their configurations, and whether they ask for a mask.
WITHOUT: dict[str, tuple[Any, bool]] = {
    "bloom": (
        lambda: t.BloomConfig(
            vocab_size=61, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
        ),
        True,
    ),
    "mpt": (lambda: t.MptConfig(vocab_size=61, d_model=32, n_heads=4, n_layers=2), True),
    "longformer": (lambda: t.LongformerConfig(**tiny._BERT, attention_window=4), True),
    "deberta": (lambda: t.DebertaV2Config(**tiny._BERT, relative_attention=True), False),
    "xlnet": (
        lambda: t.XLNetConfig(vocab_size=61, d_model=32, n_layer=2, n_head=4, d_inner=48, dropout=0.0),
        False,
    ),
}


@pytest.mark.parametrize("family", WITHOUT)
def test_models_with_an_attention_of_their_own_run_it(
    family: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They never call the interface: the bits of "eager", and a warning where their mask is asked for."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("called")

    monkeypatch.setattr(ours, "attention", never)
    make, asks = WITHOUT[family]
    made = {}
    for name in ("eager", "online_softmax"):
        torch.manual_seed(5)
        model = t.AutoModel.from_config(make(), attn_implementation=name).eval()
        assert not model._can_set_attn_implementation()
        with torch.no_grad():
            made[name] = model(input_ids=tiny.tokens(), attention_mask=tiny.padding("left"))[0]
    assert torch.equal(made["eager"], made["online_softmax"])
    assert ("do not call their attention" in caplog.text) == asks


@pytest.mark.parametrize(
    "config",
    [
        t.FalconConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        t.GPTNeoConfig(
            vocab_size=61, hidden_size=32, num_layers=1, num_heads=4, attention_types=[[["global"], 1]]
        ),
    ],
    ids=["falcon", "gpt_neo"],
)
def test_models_that_look_their_attention_up_by_name_refuse(config: Any) -> None:
    with pytest.raises(KeyError, match="online_softmax"):
        t.AutoModel.from_config(config, attn_implementation="online_softmax")
