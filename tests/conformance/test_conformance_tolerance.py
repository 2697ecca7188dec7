"""The tolerance lets sensible kernels through, in every format, and catches those that are not.

The kernels here are PyTorch's own functions, or a few lines of NumPy in the operands' format with sums in
float32: what a careful person would write. Each has to be within the tolerance on ordinary operands, and a
faulty twin outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from online_softmax import reference
from online_softmax.conformance import recipes
from online_softmax.conformance.cases import Case, Outcome, Point
from online_softmax.conformance.judge import Judgement, judge
from online_softmax.conformance.operations import OPERATIONS, expected
from online_softmax.conformance.tolerance import tolerance

FORMATS = ("float64", "float32", "float16", "bfloat16")
rng = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    global rng
    rng = np.random.default_rng(1)


def case(op: str, dtype: str, law: str = "value", verdict: str = "must") -> Case:
    return Case(
        id=f"{op}/made", op=op, dtype=dtype, verdict=verdict, law=law, reason="-", tags=(), sources=(),
        inputs={}, options={}, sweep={}, expected={},
    )  # fmt: skip


def judged(
    op: str, dtype: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Any], **options: Any
) -> Judgement:
    point = Point("", dict(inputs), {}, options)
    return judge(case(op, dtype), point, Outcome({n: np.asarray(v) for n, v in outputs.items()}))


def noise(*shape: int, dtype: str, scale: float = 3.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(recipes.DTYPES[dtype])


def tensor(array: np.ndarray, *, grad: bool = False) -> torch.Tensor:
    if array.dtype == recipes.DTYPES["bfloat16"]:
        made = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        made = torch.from_numpy(array.copy())
    return made.requires_grad_(grad)


def back(value: torch.Tensor) -> np.ndarray:
    value = value.detach()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(recipes.DTYPES["bfloat16"])
    return value.numpy()


#: Rows that bring out different parts of the bound.
ROWS: Mapping[str, Callable[[int], np.ndarray]] = {
    "random": lambda n: 3 * rng.standard_normal((4, n)),
    "constant": lambda n: np.full((4, n), 3.25),
    "ascending": lambda n: np.tile(np.linspace(-4, 4, n), (4, 1)),
    "shifted": lambda n: 1000 + 3 * rng.standard_normal((4, n)),
    "one far above": lambda n: np.concatenate([np.full((4, 1), 9.0), np.zeros((4, n - 1))], axis=1),
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n", [1, 2, 17, 128, 1000, 5000])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_rows_of_pytorch_pass(op: str, kind: str, n: int, dtype: str) -> None:
    x = ROWS[kind](n).astype(recipes.DTYPES[dtype])
    function = {"softmax": F.softmax, "log_softmax": F.log_softmax, "logsumexp": torch.logsumexp}[op]
    output = OPERATIONS[op].outputs[0]
    result = judged(op, dtype, {"x": x}, {output: back(function(tensor(x), dim=-1))})
    assert result.ok, result.problem
    assert 0 <= result.ratio <= 1


def naive_16(x: np.ndarray) -> np.ndarray:
    """Differences, exponentials and quotients in the operands' format, sums in float32."""
    kind = x.dtype
    e = np.exp((x - x.max(axis=-1, keepdims=True)).astype(np.float32)).astype(kind)
    s = e.astype(np.float32).sum(axis=-1, keepdims=True)
    return (e.astype(np.float32) / s.astype(kind).astype(np.float32)).astype(kind)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 17, 128, 1000, 5000])
@pytest.mark.parametrize("kind", ROWS)
def test_exponentials_kept_in_sixteen_bits_pass(kind: str, n: int, dtype: str) -> None:
    x = ROWS[kind](n).astype(recipes.DTYPES[dtype])
    result = judged("softmax", dtype, {"x": x}, {"y": naive_16(x)})
    assert result.ok, result.problem


@pytest.mark.parametrize(("dtype", "n"), [("float16", 4096), ("bfloat16", 512)])
def test_a_sum_kept_in_sixteen_bits_fails(dtype: str, n: int) -> None:
    kind = recipes.DTYPES[dtype]
    x = np.zeros((1, n), kind)
    total = np.zeros((), kind)
    for _ in range(n):
        total = (total + np.ones((), kind)).astype(kind)
    assert total == n // 2  # it stalls
    result = judged("softmax", dtype, {"x": x}, {"y": np.full((1, n), 1 / float(total)).astype(kind)})
    assert "y at [0, 0] is" in result.problem
    assert not result.ok


@pytest.mark.parametrize("dtype", FORMATS)
def test_one_wrong_element_is_found(dtype: str) -> None:
    """A relative error of 40 units of roundoff, in one place of a short row."""
    x = noise(3, 40, dtype=dtype)
    y = reference.softmax(x)
    units = 40 * np.finfo(dtype).eps if dtype != "bfloat16" else 40 * 2.0**-8
    y[1, 7] *= 1 + units
    got = y.astype(recipes.DTYPES[dtype])
    result = judged("softmax", dtype, {"x": x}, {"y": got})
    assert not result.ok
    assert result.problem.startswith("y at [1, 7] is")


def test_a_logarithm_of_base_two_is_found() -> None:
    x = noise(5, 30, dtype="float32")
    result = judged(
        "logsumexp", "float32", {"x": x}, {"lse": (reference.logsumexp(x) / np.log(2)).astype(np.float32)}
    )
    assert not result.ok
    assert "5 of 5 wrong" in result.problem


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_pytorch_passes(
    dtype: str, reduction: str, smoothing: float, weighted: bool
) -> None:
    logits, targets = noise(40, 50, dtype=dtype), rng.integers(0, 50, 40)
    targets[3] = -100
    inputs = {"logits": logits, "targets": targets}
    if weighted:
        inputs["weight"] = rng.uniform(0.5, 2, 50).astype(recipes.DTYPES[dtype])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    x = tensor(logits, grad=True)
    weight = tensor(inputs["weight"]) if weighted else None
    loss = F.cross_entropy(x, torch.from_numpy(targets), weight=weight, **options)
    result = judged("cross_entropy", dtype, inputs, {"loss": back(loss)}, **options)
    assert result.ok, result.problem
    loss.sum().backward()
    result = judged("cross_entropy_grad", dtype, inputs, {"dlogits": back(x.grad)}, **options)
    assert result.ok, result.problem


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_linear_cross_entropy_of_pytorch_passes(dtype: str) -> None:
    hidden, weight = noise(20, 16, dtype=dtype, scale=1.0), noise(50, 16, dtype=dtype, scale=0.5)
    targets = rng.integers(0, 50, 20)
    h, w = tensor(hidden, grad=True), tensor(weight, grad=True)
    loss = F.cross_entropy(h @ w.T, torch.from_numpy(targets))
    inputs = {"hidden": hidden, "weight": weight, "targets": targets}
    result = judged("linear_cross_entropy", dtype, inputs, {"loss": back(loss)})
    assert result.ok, result.problem
    loss.backward()
    made = {"dhidden": back(h.grad), "dweight": back(w.grad)}
    result = judged("linear_cross_entropy_grad", dtype, inputs, made)
    assert result.ok, result.problem


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("op", ["softmax_grad", "log_softmax_grad", "logsumexp_grad"])
@pytest.mark.parametrize("kind", ROWS)
def test_gradients_of_pytorch_pass(op: str, kind: str, dtype: str) -> None:
    x = ROWS[kind](200).astype(recipes.DTYPES[dtype])
    upstream = "dlse" if op == "logsumexp_grad" else "dy"
    dy = noise(*((4,) if op == "logsumexp_grad" else (4, 200)), dtype=dtype)
    function = {
        "softmax_grad": F.softmax,
        "log_softmax_grad": F.log_softmax,
        "logsumexp_grad": torch.logsumexp,
    }[op]
    leaf = tensor(x, grad=True)
    function(leaf, dim=-1).backward(tensor(dy))
    result = judged(op, dtype, {"x": x, upstream: dy}, {"dx": back(leaf.grad)})
    if op == "logsumexp_grad" and kind == "shifted" and dtype in ("float16", "bfloat16"):
        # exp(x - lse) from an lse of 1000 that was rounded to 16 bits: probabilities that sum to 2, or to 6.
        assert not result.ok
        return
    assert result.ok, result.problem


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2)])
def test_attention_of_pytorch_passes(dtype: str, causal: bool, heads: int, groups: int) -> None:
    q, do = (noise(2, heads, 33, d, dtype=dtype, scale=1.0) for d in (16, 16))
    k, v = (noise(2, groups, 33, 16, dtype=dtype, scale=1.0) for _ in range(2))
    leaves = [tensor(a, grad=True) for a in (q, k, v)]
    o = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    inputs = {"q": q, "k": k, "v": v}
    result = judged("attention", dtype, inputs, {"o": back(o)}, causal=causal)
    assert result.ok, result.problem
    o.backward(tensor(do))
    made = {name: back(leaf.grad) for name, leaf in zip(("dq", "dk", "dv"), leaves, strict=True)}
    result = judged("attention_grad", dtype, inputs | {"do": do}, made, causal=causal)
    assert result.ok, result.problem
    if causal:
        off = F.scaled_dot_product_attention(*leaves, is_causal=False, enable_gqa=True)
        assert not judged("attention", dtype, inputs, {"o": back(off)}, causal=True).ok


def test_a_head_of_the_wrong_group_is_found() -> None:
    q, k, v = (
        noise(1, 4, 5, 8, dtype="float32"),
        noise(1, 2, 5, 8, dtype="float32"),
        noise(1, 2, 5, 8, dtype="float32"),
    )
    wrong = reference.attention(q, k[:, [0, 1, 0, 1]], v[:, [0, 1, 0, 1]]).astype(np.float32)
    assert not judged("attention", "float32", {"q": q, "k": k, "v": v}, {"o": wrong}).ok


def test_what_the_probabilities_of_a_long_tail_lose_is_allowed_and_no_more() -> None:
    """float16: exponentials under 2^-25 vanish, which costs up to n * 2^-24 of the mass and not more."""
    n = 30000
    x = np.full((1, n), -17.5, np.float16)
    x[0, 0] = 0
    assert judged("softmax", "float16", {"x": x}, {"y": naive_16(x)}).ok
    allowed = tolerance("softmax", "float16", {"x": x}, {}, expected("softmax", {"x": x}, {}))["y"]
    assert allowed[0, 0] < 3 * n * 2.0**-24
