"""linear_loss: the loss of a model and its gradients without its logits."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import re
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
import torch
import transformers as t
from torch.nn.functional import cross_entropy

from online_softmax.frontends.transformers.logits import Logits
from online_softmax.transformers import linear_loss

_SMALL = {**tiny._GROUPED, "num_hidden_layers": 1}


def scaled(family: str) -> Any:
    """Models that multiply their logits by a number from their configuration."""
    torch.manual_seed(5)
    config = {
        "granite": lambda: t.GraniteConfig(**_SMALL, logits_scaling=3.0),
        "cohere": lambda: t.CohereConfig(
            **{k: v for k, v in _SMALL.items() if k != "head_dim"}, logit_scale=0.4
        ),
    }[family]()
    return t.AutoModelForCausalLM.from_config(config).double().eval()


def model_of(family: str) -> Any:
    return scaled(family) if family in ("granite", "cohere") else tiny.build(family)


def step(model: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    model.zero_grad()
    found = model(**given)
    found.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found.loss.detach(), gradients, found.logits


FAMILIES = [
    "gpt2", "llama", "gemma2", "gemma3", "qwen3", "mistral", "opt", "bert", "distilbert", "t5", "whisper",
    "granite", "cohere",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_and_its_gradients_without_logits(family: str) -> None:
    """Tied heads (GPT-2, Gemma, Cohere), heads of their own, with bias (BERT); softcap (Gemma 2); factors."""
    model = model_of(family)
    given = tiny.inputs(family if family not in ("granite", "cohere") else "llama", "right")
    right, gradients, logits = step(model, given)
    assert logits.shape[-1] == tiny.VOCABULARY
    with linear_loss(model):
        made, ours, nothing = step(model, given)
    assert nothing is None
    assert made.dtype == right.dtype
    # Transformers rounds the logits of causal models to float32, each by 2^-24 of itself, and so do both the
    # loss: so much of the greatest is what a loss may be off by, and twice that relatively a gradient.
    u = 2.0**-24 if right.dtype == torch.float32 else 2.0**-50
    assert abs(made - right) <= 4 * u * (logits.abs().max() + right)
    assert ours.keys() == gradients.keys()
    largest = max(g.abs().max() for g in gradients.values())
    for name, gradient in gradients.items():
        assert (ours[name] - gradient).abs().max() <= 8 * u * max(1, logits.abs().max()) * largest, name


def test_a_call_after_it_is_as_it_was() -> None:
    model, given = tiny.build("llama"), tiny.inputs("llama")
    before = model(**given).logits
    signature = inspect.signature(model.forward)
    hook = linear_loss(model)
    assert inspect.signature(model.forward) == signature  # what a Trainer reads
    assert torch.equal(model(input_ids=given["input_ids"]).logits, before)  # without labels
    assert model(**given).logits is None
    hook.remove()
    hook.remove()
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.lm_head)
    assert torch.equal(model(**given).logits, before)


@pytest.mark.parametrize("read", ["before", "after"])
def test_beside_functions_that_are_swapped(read: str) -> None:
    """`enable` puts ours in the place of PyTorch's, before or after the stand-in for the logits is read."""
    code = """
import sys, torch, tiny_models as tiny, online_softmax.torch as ours
if sys.argv[1] == "before":
    from online_softmax.transformers import linear_loss
    ours.enable()
else:
    ours.enable()
    from online_softmax.transformers import linear_loss
model, given = tiny.build("llama"), tiny.inputs("llama")
right = model(**given).loss
with linear_loss(model):
    torch.testing.assert_close(model(**given).loss, right)
    ours.disable()
    torch.testing.assert_close(model(**given).loss, right)
    assert model(**given).logits is None
"""
    here = os.path.dirname(__file__)
    # As pytest has them, whatever PYTHONPATH is relative to.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, read], cwd=here, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_patch_on_top_of_it_stays() -> None:
    model, given = tiny.build("llama"), tiny.inputs("llama")
    hook = linear_loss(model)
    below = model.forward
    model.forward = lambda *a, **k: below(*a, **k)
    hook.remove()
    assert model(**given).logits.shape[-1] == tiny.VOCABULARY


def test_generation_inside_is_as_outside() -> None:
    model = tiny.build("gpt2")
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    right = model.generate(tiny.tokens(2, 5), **options)
    with linear_loss(model):
        assert torch.equal(model.generate(tiny.tokens(2, 5), **options), right)


def test_positional_labels_and_tuples() -> None:
    model, given = tiny.build("llama"), tiny.inputs("llama")
    right = model(**given).loss
    with linear_loss(model):
        made = model(**given, return_dict=False)
    assert made[0].item() == pytest.approx(right.item(), rel=1e-6)
    assert made[1] is None


@pytest.mark.parametrize("items", [7, torch.tensor(7)])
def test_items_of_a_batch_that_is_accumulated(items: Any) -> None:
    """What a Trainer gives: the sum divided by the tokens of all parts; parts add up to the whole."""
    model, given = tiny.build("llama"), tiny.inputs("llama", "right")
    right = model(**given, num_items_in_batch=items).loss
    with linear_loss(model):
        whole = model(**given, num_items_in_batch=items).loss
        parts = [
            model(**{k: v[i : i + 1] for k, v in given.items()}, num_items_in_batch=items).loss
            for i in (0, 1)
        ]
    assert whole.item() == pytest.approx(right.item(), rel=2.0**-22)
    assert sum(parts).item() == pytest.approx(whole.item(), rel=2.0**-22)


def test_shifted_labels_and_ignored_ones() -> None:
    model, given = tiny.build("llama"), tiny.inputs("llama")
    ids = given["input_ids"]
    shifted = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()
    with linear_loss(model):
        right = model(**given).loss
        assert model(input_ids=ids, labels=ids, shift_labels=shifted).loss.item() == right.item()
        assert model(input_ids=ids, labels=torch.full_like(ids, -100)).loss.isnan()  # as cross_entropy
        kept = model(input_ids=ids, labels=ids, logits_to_keep=0).loss
    assert kept.item() == right.item()


def test_what_is_not_served_is_refused_and_the_model_given_back() -> None:
    with pytest.raises(TypeError, match=r"BertModel has no output embedding: one with a torch.nn.Linear"):
        linear_loss(tiny.build("bert").base_model)
    with pytest.raises(TypeError, match="model is a Linear: a PreTrainedModel of Transformers would do"):
        linear_loss(torch.nn.Linear(2, 2))
    model = tiny.build("llama")
    own = type(model).forward

    class Shifted(type(model)):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return own(self, *args, **kwargs)

    model.__class__ = Shifted
    with pytest.raises(TypeError, match=r"Shifted.forward takes no labels: a model with a loss would do"):
        linear_loss(model)
    model = tiny.build("llama")
    model.loss_function = lambda logits, labels, **_: logits.exp().mean()
    given = tiny.inputs("llama")
    with linear_loss(model), pytest.raises(NotImplementedError, match="asks for exp of its logits"):
        model(**given)
    assert model(**given).logits.shape[-1] == tiny.VOCABULARY


def deferred() -> Logits:
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(s, 4, generator=g, dtype=torch.float64) for s in (6, 5))
    return Logits(hidden.reshape(2, 3, 4), weight, None, torch.float64)


_CLASSES = torch.linspace(-1, 1, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda z: z[..., :3], "indexing"), (lambda z: z[:, :, 0], "indexing"), (lambda z: z + 1, "a sum"),
        (lambda z: z * torch.ones(5), "multiplication by a tensor"), (lambda z: z.view(-1, 15), "reshape"),
        (lambda z: z.flatten(), "flatten"), (lambda z: z.tanh().tanh(), "a second tanh"),
        (lambda z: torch.softmax(z, -1), "softmax"), (lambda z: z.argmax(-1), "argmax"),
        (lambda z: z.to("meta"), "to('meta')"), (lambda z: z == z, "eq"), (lambda z: z != 0, "ne"),
        (lambda z: bool(z), "truth"), (lambda z: -z, "neg"), (lambda z: 2 / z, "rtruediv"),
        (lambda z: z ** 2, "pow"), (lambda z: z.__setitem__(0, 1), "setitem"), (lambda z: z in [1], "eq"),
        (lambda z: z * z, "multiplication by a Logits"), (lambda z: z / np.ones(5), "division by a ndarray"),
        (lambda z: np.asarray(z), "array"), (lambda z: z @ z, "matmul"), (lambda z: z.mul_(2), "mul_"),
        (lambda z: torch.div(z, 2, rounding_mode="floor"), "division of this form"),
        (lambda z: z.view(-1), "reshape"), (lambda z: z.view(2, -1), "reshape"),
        (lambda z: z[..., None], "indexing"),
        (lambda z: z[torch.ones(2, 3, 5).bool()], "indexing"), (lambda z: z[0, :, [1, 2]], "indexing"),
        (lambda z: z + torch.ones(2, 3, 5), "a sum"), (lambda z: z + torch.ones(5), "a sum"),
        (lambda z: torch.add(z, _CLASSES, alpha=2), "a sum with alpha"),
        (lambda z: z.tanh() + _CLASSES, "a sum"),
        (lambda z: cross_entropy(0 * z[0], torch.zeros(3).long()), "0.0 times logits"),
        (lambda z: cross_entropy(z[0] * -1, torch.zeros(3).long()), "-1.0 times logits"),
        (lambda z: cross_entropy(z, torch.zeros(2, 5).long()), "cross_entropy of this form"),
        (lambda z: cross_entropy(-1 * z[0].tanh(), torch.zeros(3).long()), "-1.0 * tanh"),
    ],
)  # fmt: skip
def test_what_else_is_asked_of_logits(use: Any, what: str) -> None:
    with pytest.raises(NotImplementedError, match=re.escape(f"asks for {what}")):
        use(deferred())


@pytest.mark.parametrize(
    "scores",
    [
        lambda z: z, lambda z: 0.3 * z, lambda z: 2.0 * torch.tanh(z / 2.0),
        lambda z: 3.0 * torch.tanh(z / 2.0),
        lambda z: z + _CLASSES, lambda z: _CLASSES[None, None] + z, lambda z: (z * 2 - _CLASSES) * 0.3,
        lambda z: torch.tanh((z + _CLASSES) / 2.0), lambda z: torch.add(0.5 * z, _CLASSES),
        lambda z: torch.mul(torch.tensor(0.3), z), lambda z: torch.tensor(3) * z, lambda z: torch.div(z, 2),
    ],
)  # fmt: skip
def test_what_logits_go_through_is_what_the_loss_takes(scores: Any) -> None:
    z = deferred()
    targets = torch.tensor([0, 4, -100, 2])
    class_weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    options = {"weight": class_weight, "label_smoothing": 0.1}
    right = cross_entropy(scores(z.hidden @ z.weight.T)[:, 1:].reshape(-1, 5), targets, **options)
    made = cross_entropy(scores(z)[:, 1:].reshape(-1, 5), targets, **options)
    assert made.item() == pytest.approx(right.item(), rel=1e-14)


@pytest.mark.parametrize(
    "index",
    [
        (0,), (slice(None), slice(1, None)), (..., slice(None)), (0, ..., slice(None)), (slice(None), 1),
        (None,),
        (None, slice(None), slice(None), slice(None)), (slice(None), None), (torch.tensor([1, 0]),),
        (torch.tensor([1, 0]), torch.tensor([2, 2])), (torch.tensor([[1, 0]]),),
        ([1], slice(None), slice(None)), (1, ...), (slice(None), slice(None), ...),
        (torch.tensor([[True, False, True], [False, False, True]]),),
        (np.array([[True, False, True], [False, False, True]]), slice(None)), (..., None, slice(None)),
    ],
    ids=str,
)  # fmt: skip
def test_tokens_are_taken_as_of_a_tensor(index: Any) -> None:
    z = deferred()
    right = (z.hidden @ z.weight.T)[index]
    made = z[index]
    assert made.shape == right.shape
    torch.testing.assert_close(made.hidden @ z.weight.T, right)
    assert len(made) == len(right)
    assert [row.shape for row in z] == [(3, 5), (3, 5)]


def test_the_memory_that_is_saved(fresh_python: Any) -> None:
    """40000 classes, 1024 tokens: logits of 156 MiB in float32, beside a weight of 5 MiB."""
    script = """
import torch, transformers as t
from online_softmax.transformers import linear_loss
torch.set_num_threads(1)
config = t.LlamaConfig(vocab_size=40000, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                       num_attention_heads=2, tie_word_embeddings=True)
model = t.AutoModelForCausalLM.from_config(config)
ids = torch.randint(0, 40000, (1, 1024))
def peak():  # not ru_maxrss, which starts from the parent's
    lines = open("/proc/self/status", encoding="ascii").readlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
model(input_ids=ids[:, :8], labels=ids[:, :8]).loss.backward()
start = peak()
with linear_loss(model):
    model(input_ids=ids, labels=ids).loss.backward()
ours = peak()
model(input_ids=ids, labels=ids).loss.backward()
print(ours - start, peak() - start)
"""
    found = fresh_python(script, timeout=240)
    assert found.returncode == 0, found.stderr
    ours, theirs = map(int, found.stdout.split()[-2:])
    logits = 4 * 40000 * 1024
    assert theirs > 1.5 * logits  # themselves and their gradient, at least in part at once
    assert ours < 0.6 * logits


def test_a_trainer_trains_alike(tmp_path: Any) -> None:
    pytest.importorskip("accelerate", reason="accelerate, which a Trainer of Transformers needs, is missing")
    rows = [{"input_ids": ids, "labels": ids} for ids in tiny.tokens(8, 11)]

    def trained(hook: bool) -> tuple[list[float], float]:
        model = tiny.build("llama", dtype=torch.float32, num_hidden_layers=1)
        options = t.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=2,
            report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = t.Trainer(model, options, train_dataset=rows, eval_dataset=rows)
        with linear_loss(model) if hook else contextlib.nullcontext():
            trainer.train()
            held_out = trainer.evaluate()["eval_loss"]
        return [line["loss"] for line in trainer.state.log_history if "loss" in line], held_out

    right, made = trained(False), trained(True)
    assert made[0] == pytest.approx(right[0], rel=2.0**-18)  # float32, two steps of the weights
    assert made[1] == pytest.approx(right[1], rel=2.0**-18)
    assert right[0][0] != right[0][1]


def test_compiled_whole() -> None:
    model, given = tiny.build("llama", dtype=torch.float32, num_hidden_layers=1), tiny.inputs("llama")
    right = model(**given).loss
    with linear_loss(model):
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(**given)
        found.loss.backward()
    assert found.logits is None
    assert found.loss.item() == pytest.approx(right.item(), rel=2.0**-20)
    assert model.lm_head.weight.grad.abs().max() > 0


# --- copies, several at once, what torch.compile has made ---------------------------------------------------


@pytest.mark.parametrize("patched", [False, True])
def test_a_copy_made_meanwhile_has_weights_of_its_own(patched: bool) -> None:
    model, given = tiny.build("llama", num_hidden_layers=1), tiny.inputs("llama")
    if patched:  # by another library, on the instance
        model.forward = types.MethodType(type(model).forward, model)
    with linear_loss(model), linear_loss(model):
        signature = inspect.signature(model.forward)
        copied = copy.deepcopy(model)
        if not patched:
            stored = io.BytesIO()
            torch.save(model, stored)
            stored.seek(0)
    copies = [copied, copy.deepcopy(copied)] + ([] if patched else [torch.load(stored, weights_only=False)])
    right = model(**given)
    for other in copies:
        same = other(**given)
        assert torch.equal(same.logits, right.logits)
        assert inspect.signature(other.forward) == signature == inspect.signature(model.forward)
        with torch.no_grad():
            other.lm_head.weight.mul_(2)
        assert torch.equal(other(**given).logits, 2 * right.logits)
        with linear_loss(other):
            made = other(**given)
        assert made.logits is None
        assert made.loss.item() == pytest.approx(cross_loss(2 * right.logits, given["labels"]), rel=1e-6)


def cross_loss(logits: Any, labels: Any) -> Any:
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_several_are_removed_in_any_order(order: tuple[int, ...]) -> None:
    model, given = tiny.build("llama", num_hidden_layers=1), tiny.inputs("llama")
    right = model(**given)
    hooks = [linear_loss(model) for _ in range(3)]
    for n in order:
        made = model(**given)
        assert made.logits is None
        assert made.loss.item() == pytest.approx(right.loss.item(), rel=1e-6)
        hooks[n].remove()
    assert torch.equal(model(**given).logits, right.logits)
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.lm_head)
    assert vars(model).keys() == vars(tiny.build("llama", num_hidden_layers=1)).keys()


def test_the_head_is_called_as_before() -> None:
    model = tiny.build("llama", num_hidden_layers=1)
    x = torch.randn(2, 32, dtype=torch.float64)
    right = model.lm_head(x)
    with linear_loss(model):
        assert torch.equal(model.lm_head(input=x), right)
        assert inspect.signature(model.lm_head.forward) == inspect.signature(torch.nn.Linear(1, 1).forward)


def test_a_model_that_is_compiled_already() -> None:
    model, given = tiny.build("llama", dtype=torch.float32, num_hidden_layers=1), tiny.inputs("llama")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    right = compiled(**given)
    with linear_loss(compiled):
        made = compiled(**given)
    assert made.logits is None
    assert made.loss.item() == pytest.approx(right.loss.item(), rel=2.0**-20)
    assert torch.equal(compiled(**given).logits, right.logits)


def test_a_model_that_is_exported() -> None:
    model, given = tiny.build("llama", dtype=torch.float32, num_hidden_layers=1), tiny.inputs("llama")
    given = {**{k: v for k, v in given.items() if v is not None}, "use_cache": False}
    with linear_loss(model):
        exported = torch.export.export(model, (), given)
    made = exported.module()(**given)
    assert made.logits is None
    assert made.loss.item() == pytest.approx(model(**given).loss.item(), rel=2.0**-20)


# --- a bias of classes that is added after the head ---------------------------------------------------------


@pytest.mark.parametrize(
    ("auto", "config"),
    [
        ("AutoModelForSeq2SeqLM", t.BartConfig(
            vocab_size=tiny.VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48,
            decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4, dropout=0.0,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )),
        ("AutoModelForMaskedLM", t.EsmConfig(**{**tiny._BERT, "mask_token_id": 3})),
    ],
    ids=["bart", "esm"],
)  # fmt: skip
def test_a_bias_beside_the_head(auto: str, config: Any) -> None:
    """A buffer of BART's, a parameter of ESM's."""
    torch.manual_seed(5)
    model = getattr(t, auto).from_config(config).double().eval()
    bias = getattr(model, "final_logits_bias", None)
    bias = model.lm_head.bias if bias is None else bias
    with torch.no_grad():
        bias.normal_()
    given = tiny.inputs("bert", "right")
    right, gradients, logits = step(model, given)
    with linear_loss(model):
        made, ours, nothing = step(model, given)
    assert nothing is None
    assert made.item() == pytest.approx(right.item(), rel=1e-14)
    assert ours.keys() == gradients.keys()
    assert bias.grad is None or bias.grad.abs().max() > 0
    largest = max(g.abs().max() for g in gradients.values())
    for name, gradient in gradients.items():
        assert (ours[name] - gradient).abs().max() <= 1e-13 * max(1, logits.abs().max()) * largest, name
