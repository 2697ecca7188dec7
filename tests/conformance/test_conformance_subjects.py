"""Subjects by name, what each library offers, and how a person's own function is called."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from online_softmax import cpu
from online_softmax.conformance import frameworks, subjects
from online_softmax.conformance.adapters import callable as custom
from online_softmax.conformance.cases import NotOffered
from online_softmax.conformance.operations import OPERATIONS, expected
from online_softmax.conformance.recipes import DTYPES
from online_softmax.conformance.subjects import SubjectError, parse
from online_softmax.conformance.tolerance import tolerance

NEEDS = {"numpy": "scipy", "torch": "torch", "jax": "jax", "onnxruntime": "onnxruntime", "triton": "triton"}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def operands(op: str) -> dict[str, np.ndarray]:
    """Plain operands of every operation."""
    x, q = normal(3, 5), normal(1, 2, 3, 4)
    one = {"x": x, "dy": normal(3, 5, seed=1), "dlse": normal(3, seed=2), "a": x, "b": normal(3, 5, seed=3)}
    one |= {
        "logits": x,
        "targets": np.array([1, 0, 4]),
        "hidden": normal(3, 2),
        "weight": normal(5, 2, seed=4),
    }
    one |= {
        "q": q,
        "k": normal(1, 2, 3, 4, seed=5),
        "v": normal(1, 2, 3, 4, seed=6),
        "do": normal(1, 2, 3, 4, seed=7),
    }
    one |= {"k_cache": normal(1, 2, 6, 4, seed=8), "v_cache": normal(1, 2, 6, 4, seed=9)}
    one |= {"m_a": np.array([1.0]), "s_a": np.array([1.5]), "m_b": np.array([2.0]), "s_b": np.array([1.25])}
    one |= {"o_a": normal(3, 4), "lse_a": normal(3), "o_b": normal(3, 4, seed=1), "lse_b": normal(3, seed=2)}
    if op == "varlen_attention":
        one |= {name: normal(7, 2, 4, seed=n) for n, name in enumerate("qkv")}
        one |= {"cu_seqlens_q": np.array([0, 3, 7]), "cu_seqlens_k": np.array([0, 3, 7])}
    chosen = {name: one[name] for name in OPERATIONS[op].operands}
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in chosen.items()}


def offered(spec: str) -> list[tuple[str, str]]:
    """(spec, operation) for all that a library has for plain float32 operands."""
    module = NEEDS.get(spec.partition(":")[0])
    if module is not None and importlib.util.find_spec(module) is None:
        return []
    adapter = parse(spec).load()
    return [(spec, op) for op in OPERATIONS if adapter.offers(op, "float32")]


SPECS = (
    "ours",
    f"ours:{cpu.isas()[-1]}.online",
    "numpy",
    "torch",
    "torch:chunked",
    "torch:flex",
    "onnxruntime",
)


@pytest.mark.parametrize(("spec", "op"), [pair for spec in SPECS for pair in offered(spec)])
def test_every_function_on_offer_gives_the_operation(spec: str, op: str) -> None:
    """A wrong argument, a swapped axis or another reduction would be off by far more than the tolerance."""
    subject = parse(spec)
    arrays, options = operands(op), {"k": 2} if op == "softmax_topk" else {}
    given = {name: frameworks.to_framework(array, subject.framework) for name, array in arrays.items()}
    adapter, refused = subject.load(), _ABSENT.get((spec.partition(".")[0], op))
    if refused is not None:
        with pytest.raises(NotOffered, match=refused):
            adapter.call(op, given, options)
        return
    outputs = adapter.call(op, given, options)
    right = expected(op, arrays, options)
    allowed = tolerance(op, "float32", arrays, options, right)
    assert next(iter(outputs)) == OPERATIONS[op].outputs[0]
    for name, value in outputs.items():
        got = frameworks.from_framework(value)
        assert got.shape == right[name].shape
        if name == "indices":
            assert (got == right[name]).all()
        else:
            assert (np.abs(got.astype(np.float64) - right[name]) <= allowed[name]).all(), name


#: What is refused though the function is there: (spec, operation) -> the reason.
_ABSENT = {
    (f"ours:{cpu.isas()[-1]}", "merge_states"): "a merge is the same in every variant: see ours",
    (f"ours:{cpu.isas()[-1]}", "merge_attention"): "a merge is the same in every variant: see ours",
    ("torch:flex", "attention_grad"): "FlexAttention does not support backward on CPU",
}


@pytest.mark.parametrize(
    ("spec", "op", "options", "extra", "why"),
    [
        ("numpy", "softmax", {}, {"where": np.ones((3, 5), bool)}, "has no where"),
        ("numpy", "softmax_topk", {"k": 2}, {}, "neither SciPy nor NumPy has one"),
        ("numpy", "softmax_grad", {}, {}, "neither SciPy nor NumPy has one"),
        ("torch", "logsumexp", {}, {"b": np.ones((3, 5), np.float32)}, "has no b"),
        ("torch", "attention", {"softcap": 3.0}, {}, "has no softcap"),
        ("torch", "attention", {"window": (1, 1)}, {}, "has no window"),
        ("onnxruntime", "cross_entropy", {"label_smoothing": 0.1}, {}, "has no label_smoothing"),
        ("ours", "softmax_grad", {}, {}, "not built yet"),
    ],
)
def test_what_a_library_lacks_is_not_offered(spec, op, options, extra, why) -> None:
    pytest.importorskip(NEEDS.get(spec, "numpy"))
    subject = parse(spec)
    arrays = {**operands(op), **extra}
    given = {name: frameworks.to_framework(array, subject.framework) for name, array in arrays.items()}
    with pytest.raises(NotOffered, match=why):
        subject.load().call(op, given, options)


def test_an_option_at_its_default_is_no_obstacle() -> None:
    pytest.importorskip("torch")
    arrays = {name: frameworks.to_framework(array, "torch") for name, array in operands("attention").items()}
    outputs = (
        parse("torch").load().call("attention", arrays, {"softcap": None, "window": None, "causal": True})
    )
    assert list(outputs) == ["o"]


@pytest.mark.parametrize("spec", ["torch", "onnxruntime"])
def test_a_format_without_a_kernel_is_not_offered(spec: str) -> None:
    pytest.importorskip(spec)
    subject = parse(spec)
    x = frameworks.to_framework(np.ones((2, 3)).astype(DTYPES["float8_e4m3fn"]), subject.framework)
    with pytest.raises(NotOffered, match=r"Float8|float8"):
        subject.load().call("softmax", {"x": x}, {})


@pytest.mark.parametrize("spec", ["torch", "onnxruntime"])
def test_what_a_library_says_about_wrong_input_passes(spec: str) -> None:
    pytest.importorskip(spec)
    subject = parse(spec)
    x = frameworks.to_framework(np.ones((2, 3), np.float32), subject.framework)
    with pytest.raises(Exception, match=r"[Dd]imension|axis") as caught:
        subject.load().call("softmax", {"x": x}, {"axis": 5})
    assert not isinstance(caught.value, NotOffered)


def test_torch_aligns_causal_masks_as_asked() -> None:
    torch = pytest.importorskip("torch")
    q, kv = torch.zeros(1, 1, 2, 4), torch.eye(4).reshape(1, 1, 4, 4)
    adapter = parse("torch").load()
    for align, counts in (("lower_right", [3, 4]), ("upper_left", [1, 2])):
        o = adapter.call("attention", {"q": q, "k": kv, "v": kv}, {"causal": True, "causal_align": align})[
            "o"
        ]
        assert [int((row > 0).sum()) for row in o[0, 0]] == counts


def test_variants_are_all_that_this_machine_has() -> None:
    specs = [subject.spec for subject in subjects.variants()]
    assert len(specs) == len(cpu.isas()) * 3
    assert not any("naive" in spec or "auto" in spec for spec in specs)
    assert [s.spec for s in subjects.variants(naive=True)] == [f"ours:{isa}.naive" for isa in cpu.isas()]
    for spec in specs:
        assert parse(spec).load().name == spec


def test_a_forced_variant_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plan = cpu.plan_of
    monkeypatch.setattr(cpu, "plan_of", lambda *args: asked.append(args[:2]) or plan(*args))
    isa = cpu.isas()[-1]
    x = {"x": np.ones((2, 3), np.float32)}
    parse(f"ours:{isa}.three_pass").load().call("softmax", x, {})
    parse(f"ours:{isa}.*").load().call("softmax", x, {})
    assert asked == [(isa, "three_pass"), (isa, "auto")]
    naive = parse(f"ours:{isa}.naive").load().call("softmax", {"x": np.full((1, 2), 1e3, np.float32)}, {})
    assert np.isnan(naive["y"]).all()


def test_environments_are_set_where_a_subject_needs_them() -> None:
    assert parse("triton:online").environment == {"TRITON_INTERPRET": "1"}
    assert parse("jax").environment["JAX_ENABLE_X64"] == "1"
    assert parse("a.b:c", "softmax", "jax").environment["JAX_ENABLE_X64"] == "1"
    assert parse("torch").environment == parse("ours").environment == {}


@pytest.mark.parametrize(
    ("spec", "op", "framework", "says"),
    [
        (
            "tensorflow",
            None,
            None,
            "one of ours, triton, numpy, torch, jax, onnxruntime or package.module:callable",
        ),
        ("torch:", None, None, "ends with a colon"),
        (":softmax", "softmax", None, "package.module:callable would do"),
        ("math:exp", None, None, "op has to say what it computes"),
        ("torch:jit", None, None, r"variants of torch are compile, chunked, flex\): op has to say"),
        ("math:exp", "softmx", None, "op='softmx': one of softmax"),
        ("math:exp", "softmax", "tf", "framework='tf': one of numpy, torch, jax"),
        ("torch", None, "jax", "torch takes arrays of torch"),
    ],
)
def test_a_text_that_names_nothing_is_refused(spec, op, framework, says) -> None:
    with pytest.raises(SubjectError, match=says):
        parse(spec, op, framework)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("ours:mmx.online", "one of|would do"),
        ("ours:online", "ISA.ALGORITHM"),
        ("numpy:pi", "is a float: a callable would do"),
        ("no.such.module:f", "importing no.such.module failed"),
        ("math:no_such_function", "math has no no_such_function"),
        ("math:pi", "is a float: a callable would do"),
    ],
)
def test_what_cannot_be_loaded_says_why(spec: str, says: str) -> None:
    op = None if spec.startswith("ours") else "softmax"
    with pytest.raises(SubjectError, match=says):
        parse(spec, op).load()


def test_an_algorithm_that_triton_lacks_is_refused() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    with pytest.raises(SubjectError, match=r"variant 'slow' of triton: one of .*online.* would do"):
        parse("triton:slow").load()


# ---- a person's own function
# -----------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module, and gives the adapter of one of its functions."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str, op: str = "softmax", framework: str = "numpy") -> custom.Custom:
        (tmp_path / "their_module.py").write_text(
            f"import numpy as np\nseen = []\n{text}\n", encoding="utf-8"
        )
        monkeypatch.delitem(sys.modules, "their_module", raising=False)
        return parse("their_module:f", op, framework).load()

    return make


def seen() -> list[object]:
    return sys.modules["their_module"].seen


X = {"x": np.ones((2, 3))}


@pytest.mark.parametrize(
    ("signature", "options", "keywords"),
    [
        ("x, axis=None", {}, {"axis": -1}),
        ("x, axis=None", {"axis": 0}, {"axis": 0}),
        ("x, *, dim", {"axis": 0}, {"dim": 0}),
        ("x, axis, dim=3", {"axis": 0}, {"axis": 0}),
        ("x", {}, {}),
        ("x", {"axis": -1}, {}),
        ("x, **rest", {}, {"axis": -1}),
    ],
)
def test_the_axis_goes_by_the_name_of_the_signature(mine, signature, options, keywords) -> None:
    adapter = mine(
        f"def f({signature}):\n"
        "    seen.append({k: v for k, v in locals().items() if k != 'x'})\n"
        "    return x"
    )
    adapter.call("softmax", dict(X), options)
    (got,) = seen()
    got = {**got, **got.pop("rest", {})}
    assert {name: got[name] for name in keywords} == keywords


def test_options_are_given_where_they_differ_from_their_defaults(mine) -> None:
    adapter = mine("def f(x, axis=-1, **rest):\n    seen.append(rest)\n    return x.sum(axis)", "logsumexp")
    adapter.call("logsumexp", dict(X), {"keepdims": False})
    adapter.call("logsumexp", dict(X), {"keepdims": True})
    adapter.call("logsumexp", {**X, "b": np.ones((2, 3))}, {})
    assert [sorted(rest) for rest in seen()] == [[], ["keepdims"], ["b"]]


@pytest.mark.parametrize(
    ("arrays", "options", "why"),
    [
        ({"where": np.ones((2, 3), bool)}, {}, "has no where"),
        ({}, {"axis": 0}, "has neither axis nor dim"),
    ],
)
def test_what_the_signature_lacks_is_not_offered(mine, arrays, options, why) -> None:
    with pytest.raises(NotOffered, match=why):
        mine("def f(x):\n    return x").call("softmax", {**X, **arrays}, options)


def test_operands_go_by_position_whatever_they_are_called(mine) -> None:
    adapter = mine("def f(first, second, /):\n    return first - second", "logaddexp")
    outputs = adapter.call("logaddexp", {"b": np.array([1.0]), "a": np.array([5.0])}, {})
    assert outputs["lse"] == 4.0
    assert not adapter.offers("softmax", "float32")
    with pytest.raises(NotOffered, match="was named for logaddexp"):
        adapter.call("softmax", dict(X), {})


def test_several_outputs_come_in_the_kits_order(mine) -> None:
    adapter = mine("def f(x, k):\n    return x[:, :k], np.zeros((2, k), int)", "softmax_topk")
    outputs = adapter.call("softmax_topk", dict(X), {"k": 2})
    assert list(outputs) == ["values", "indices"]
    assert outputs["values"].shape == (2, 2)


def test_a_builtin_without_a_signature_takes_the_frameworks_name_of_the_axis() -> None:
    torch = pytest.importorskip("torch")
    adapter = parse("torch.special:softmax", "softmax", "torch").load()
    y = adapter.call("softmax", {"x": torch.zeros(2, 4)}, {"axis": 0})["y"]
    assert (y == 0.5).all()
    with pytest.raises(NotOffered, match="has no where"):
        adapter.call("softmax", {"x": torch.zeros(2, 4), "where": torch.ones(2, 4) > 0}, {})


def test_a_librarys_own_function_can_be_named() -> None:
    torch = pytest.importorskip("torch")
    subject = parse("torch:logsumexp", "logsumexp")
    assert subject.custom
    assert subject.framework == "torch"
    lse = subject.load().call("logsumexp", {"x": torch.zeros(2, 4)}, {"axis": 0})["lse"]
    assert lse.tolist() == pytest.approx([math.log(2)] * 4, rel=1e-6)
    assert not parse("torch:compile").custom


def test_a_gradient_is_the_forward_function_differentiated(mine) -> None:
    torch = pytest.importorskip("torch")
    adapter = mine("def f(x, dim):\n    return x * x", "softmax_grad", "torch")
    arrays = {"x": torch.tensor([1.0, 3.0]), "dy": torch.tensor([1.0, 10.0])}
    assert adapter.call("softmax_grad", arrays, {})["dx"].tolist() == [2.0, 60.0]


def test_a_gradient_of_numpy_is_a_function_of_its_own(mine) -> None:
    adapter = mine("def f(x, dy, axis):\n    return dy - x", "softmax_grad")
    outputs = adapter.call("softmax_grad", {"x": np.ones(2), "dy": np.full(2, 4.0)}, {})
    assert outputs["dx"].tolist() == [3.0, 3.0]


def test_the_version_of_the_framework_is_named(mine) -> None:
    assert mine("def f(x):\n    return x").versions == {"numpy": np.__version__}
