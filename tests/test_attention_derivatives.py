"""Attention's tangents and the backward of its backward against autograd and against differences of the
reference: options alone and in pairs. What may not be read, formats, sizes and errors are in
test_attention_derivatives_edges.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

from online_softmax import reference
from online_softmax.frontends import attention_derivatives as front
from online_softmax.frontends.attention_derivatives import attention_double_backward, attention_jvp

INF, NAN = np.inf, np.nan
BATCH, HEADS, GROUPS, QUERIES, KEYS, D, DV = 2, 4, 2, 5, 11, 6, 3
ROUNDING = 2.0**-53
#: Rounding of what autograd and the tiles make, in float64: sums of at most 60 terms on either side.
RELATIVE = 120 * ROUNDING

#: The first torch.func.jvp of a process loads scripts of PyTorch's own.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def draw(seed: int, *shape: int) -> np.ndarray:
    """Normal numbers of few bits, so that steps between them are exact."""
    return np.round(np.random.default_rng(seed).standard_normal(shape) * 256) / 256


DROPPED = np.random.default_rng(8).random((BATCH, HEADS, QUERIES, KEYS)) < 0.7
OPTIONS: dict[str, Any] = {
    "plain": {},
    "causal": {"causal": True},
    "upper left": {"causal": True, "causal_align": "upper_left"},
    "window": {"window": (3, 2)},
    "left window": {"window": (0, None)},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": -0.3},
    "mask": {"mask": np.random.default_rng(1).random((BATCH, HEADS, QUERIES, KEYS)) < 0.6},
    "padding mask": {"mask": np.arange(KEYS) < 7},
    "bias": {"bias": draw(2, 1, HEADS, QUERIES, 1)},
    "whole bias": {"bias": draw(3, BATCH, HEADS, QUERIES, KEYS)},
    "bias of -inf": {"bias": np.where(np.arange(KEYS) % 3, 0.25, -INF)},
    "sinks": {"sinks": np.array([0.5, -3.0, 4.0, -INF])},
    "slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625])},
    "slopes of a batch": {"alibi_slopes": np.abs(draw(4, BATCH, HEADS))},
    "dropout": {"dropout_p": 0.25},
}


def combinations() -> list[Any]:
    chosen = [(name,) for name in OPTIONS] + list(itertools.combinations(OPTIONS, 2))
    return [
        pytest.param(names, id=" + ".join(names))
        for names in chosen
        if len({key for name in names for key in OPTIONS[name]}) == sum(len(OPTIONS[name]) for name in names)
        and ("plain" not in names or len(names) == 1)
    ]


@pytest.fixture(autouse=True)
def dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays under dropout is DROPPED."""

    def keep_of(dropout_p: float, seed: int) -> Any:
        return (lambda b, h, queries, keys: DROPPED[b, h, queries, keys]) if dropout_p else None

    monkeypatch.setattr(front, "keep_of", keep_of)


class Problem:
    """Operands, a direction for each and cotangents, of the same sizes for all options unless asked."""

    def __init__(
        self, options: dict[str, Any], queries: int = QUERIES, keys: int = KEYS, **sizes: int
    ) -> None:
        batch, heads, groups = (
            sizes.get(n, d) for n, d in (("batch", BATCH), ("heads", HEADS), ("groups", GROUPS))
        )
        shapes = ((heads, queries, D), (groups, keys, D), (groups, keys, DV))
        self.operands = [draw(n, batch, *shape) for n, shape in enumerate(shapes, 10)]
        self.moves = [draw(n, batch, *shape) for n, shape in enumerate(shapes, 20)]
        self.options = dict(options)
        self.bias, self.sinks = self.options.pop("bias", None), self.options.pop("sinks", None)
        self.d_bias, self.d_sinks = (
            None if a is None else draw(n, *a.shape) for n, a in ((23, self.bias), (24, self.sinks))
        )
        self.do, self.dlse = draw(30, batch, heads, queries, DV), draw(31, batch, heads, queries)

    @property
    def extras(self) -> dict[str, Any]:
        return self.options | {"bias": self.bias, "sinks": self.sinks}

    def jvp(self, **changes: Any) -> Any:
        given = {"dbias": self.d_bias, "dsinks": self.d_sinks} | self.extras | changes
        return attention_jvp(*self.operands, *self.moves, **given)

    def double(self, **changes: Any) -> Any:
        given = {"dlse": self.dlse, "gdbias": self.d_bias, "gdsinks": self.d_sinks} | self.extras | changes
        return attention_double_backward(self.do, *self.operands, *self.moves, **given)


def explicit(q: Any, k: Any, v: Any, bias: Any, sinks: Any, options: dict[str, Any]) -> Any:
    """Attention of tensors with its whole matrix, and the lse: what sees nothing has 0, and an lse of 0 or of
    its sink."""
    batch, heads, queries, d = q.shape
    keys, each = k.shape[2], heads // k.shape[1]
    k, v = k.repeat_interleave(each, dim=1), v.repeat_interleave(each, dim=1)
    scores = (q @ k.mT) * options.get("scale", d**-0.5)
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    place = 0 if options.get("causal_align") == "upper_left" else keys - queries
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - place
    seen = torch.ones_like(scores, dtype=torch.bool)
    left, right = options.get("window", (None, None))
    right = 0 if options.get("causal") else right
    if left is not None:
        seen = seen & (distance >= -left)
    if right is not None:
        seen = seen & (distance <= right)
    if "mask" in options:
        seen = seen & torch.from_numpy(options["mask"])
    if bias is not None:
        seen = seen & ~torch.isneginf(bias)
        scores = scores + torch.where(torch.isneginf(bias), 0.0, bias)
    if "alibi_slopes" in options:
        scores = scores - torch.from_numpy(options["alibi_slopes"])[..., None, None] * distance.abs()
    scores = torch.where(seen, scores, -INF)
    if sinks is not None:
        sink = torch.where(torch.isneginf(sinks), -INF, sinks)
        scores = torch.cat([scores, sink[None, :, None, None].expand(batch, -1, queries, 1)], dim=-1)
    dead = torch.isneginf(scores).all(dim=-1, keepdim=True)
    scores = torch.where(dead, 0.0, scores)
    weights = torch.where(dead, 0.0, torch.softmax(scores, dim=-1))[..., :keys]
    if options.get("dropout_p"):
        weights = weights * torch.from_numpy(DROPPED) / (1 - options["dropout_p"])
    return weights @ v, torch.where(dead[..., 0], 0.0, torch.logsumexp(scores, dim=-1))


def by_autograd(problem: Problem) -> tuple[list[Any], dict[str, Any]]:
    """(d_output, d_lse) by torch.func.jvp, and the gradients of the backward's gradients, by name."""
    names = ["q", "k", "v"] + [n for n in ("bias", "sinks") if getattr(problem, n) is not None]
    values = [*problem.operands, *(getattr(problem, n) for n in names[3:])]
    moves = [*problem.moves, *(getattr(problem, f"d_{n}") for n in names[3:])]
    moves = [torch.from_numpy(a) for a in moves]

    def run(*given: Any) -> Any:
        named = dict(zip(names, given, strict=True))
        return explicit(*given[:3], named.get("bias"), named.get("sinks"), problem.options)

    inputs = [torch.from_numpy(a) for a in values]
    _, tangents = torch.func.jvp(run, tuple(inputs), tuple(moves))
    inputs = [a.requires_grad_() for a in inputs]
    do, dlse = (torch.from_numpy(a).requires_grad_() for a in (problem.do, problem.dlse))
    output, lse = run(*inputs)
    first = torch.autograd.grad((output * do).sum() + (lse * dlse).sum(), inputs, create_graph=True)
    # What is differentiated is known to be linear in do: its gradients are there even where they are 0.
    total = sum((a * b).sum() for a, b in zip(first, moves, strict=True))
    second = torch.autograd.grad(total, [do, dlse, *inputs], materialize_grads=True)
    return [t.numpy() for t in tangents], {
        name: g.numpy() for name, g in zip(["do", "dlse", *names], second, strict=True)
    }


def close(got: np.ndarray, truth: np.ndarray, relative: float = RELATIVE) -> None:
    np.testing.assert_allclose(got, truth, rtol=0, atol=relative * max(np.abs(truth).max(initial=0), 1.0))


def hold(problem: Problem, relative: float = RELATIVE) -> None:
    """Both functions give what autograd does."""
    tangents, gradients = by_autograd(problem)
    moved, made = problem.jvp(), problem.double()
    close(moved.d_output, tangents[0], relative)
    close(moved.d_lse, tangents[1], relative)
    assert {name for name, g in made._asdict().items() if g is not None} == set(gradients)
    for name, truth in gradients.items():
        assert getattr(made, name).shape == truth.shape
        close(getattr(made, name), truth, relative)


@pytest.mark.parametrize("names", combinations())
def test_options_alone_and_in_pairs_against_autograd(names: tuple[str, ...]) -> None:
    hold(Problem({key: value for name in names for key, value in OPTIONS[name].items()}))


def differences(f: Callable[[float], np.ndarray], size: float) -> tuple[np.ndarray, float]:
    """The derivative of f at 0 by central differences, twice extrapolated, and what it may be off by: the
    last extrapolation but one, and f's rounding (of terms that add up to `size`), divided by the step."""
    step = 2.0**-12
    slopes = [(f(n * step) - f(-n * step)) / (2 * n * step) for n in (1, 2, 4)]
    once = [(4 * a - b) / 3 for a, b in itertools.pairwise(slopes)]
    off = np.abs(once[0] - once[1]).max(initial=0)
    return (16 * once[0] - once[1]) / 15, float(off + 2 * ROUNDING * size / step)


def keep_option(options: dict[str, Any]) -> dict[str, Any]:
    return options | ({"keep": DROPPED} if "dropout_p" in options else {})


def along(a: Any, direction: Any, t: float) -> Any:
    return None if a is None else a + t * direction


@pytest.mark.parametrize("name", OPTIONS)
def test_tangents_are_differences_of_the_reference(name: str) -> None:
    p = Problem(OPTIONS[name])

    def run(part: int) -> Callable[[float], np.ndarray]:
        def f(t: float) -> np.ndarray:
            moved = [along(a, d, t) for a, d in zip(p.operands, p.moves, strict=True)]
            bias, sinks = along(p.bias, p.d_bias, t), along(p.sinks, p.d_sinks, t)
            options = keep_option(p.options)
            lse = reference.attention(*moved, bias=bias, sinks=sinks, return_lse=True, **options)[part]
            return np.where(lse == -INF, 0, lse)

        return f

    made = p.jvp()
    truth = reference.attention(*p.operands, return_lse=True, **keep_option(p.extras))
    close(made.output, truth[0])
    finite = np.isfinite(truth[1])
    np.testing.assert_array_equal(made.lse[~finite], truth[1][~finite])
    close(made.lse[finite], truth[1][finite])
    for got, part in ((made.d_output, 0), (made.d_lse, 1)):
        slope, off = differences(run(part), 2 * np.abs(truth[part][np.isfinite(truth[part])]).max())
        np.testing.assert_allclose(got, slope, rtol=0, atol=off)


@pytest.mark.parametrize("name", OPTIONS)
def test_second_gradients_are_differences_of_the_reference(name: str) -> None:
    p = Problem(OPTIONS[name])
    made = p.double()
    moves = [*p.moves, p.d_bias, p.d_sinks]
    inputs = {"do": p.do, "dlse": p.dlse} | dict(zip("qkv", p.operands, strict=True))
    inputs |= {n: a for n, a in (("bias", p.bias), ("sinks", p.sinks)) if a is not None}
    directions = {n: draw(40 + i, *a.shape) for i, (n, a) in enumerate(inputs.items())}

    def terms(t: float) -> np.ndarray:
        at = {n: along(a, directions[n], t) for n, a in inputs.items()}
        operands = [at.pop(n) for n in ("q", "k", "v", "do")]
        first = reference.attention_vjp(*operands, **at, **keep_option(p.options))
        pairs = [(g, m) for g, m in zip(first, moves, strict=True) if g is not None]
        return np.concatenate([(g.astype(np.longdouble) * m).ravel() for g, m in pairs])

    slope, off = differences(lambda t: terms(t).sum(), 2 * float(np.abs(terms(0.0)).sum()))
    total = sum((getattr(made, n) * d).sum() for n, d in directions.items())
    np.testing.assert_allclose(total, float(slope), rtol=0, atol=off)


def test_tangents_and_the_backward_are_adjoint() -> None:
    """<do, d_output> + <dlse, d_lse> is the sum of <gradient, tangent>; and the backward, linear in do and
    dlse, has tangents for gradients of these, bit for bit."""
    p = Problem(OPTIONS["bias"] | OPTIONS["sinks"] | OPTIONS["causal"] | OPTIONS["softcap"])
    moved, made = p.jvp(), p.double()
    assert_same_bits(made.do, moved.d_output)
    assert_same_bits(made.dlse, moved.d_lse)
    first = reference.attention_vjp(*p.operands, p.do, dlse=p.dlse, **p.extras)
    terms = [g * d for g, d in zip(first, (*p.moves, p.d_bias, p.d_sinks), strict=True)]
    forward = (p.do * moved.d_output).sum() + (p.dlse * moved.d_lse).sum()
    size = sum(np.abs(t).sum() for t in terms)
    np.testing.assert_allclose(sum(t.sum() for t in terms), forward, rtol=0, atol=RELATIVE * size)
