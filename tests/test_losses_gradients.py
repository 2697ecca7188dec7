"""Gradients of cross-entropy: PyTorch's in float64, differences of losses, and what has to hold of any.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import DEPTH, EXP_UNITS, EXP_UNITS_OF_16_BITS, FORMATS, REFERENCE_UNITS, ulp
from loss_cases import (
    OPTIONS,
    Array,
    chosen,
    every_format,
    every_isa,
    hold,
    limits,
    operands,
    pairs,
    truth,
)

import online_softmax as osm

U = 2.0**-53
#: Both work in float64: sums of up to 21 rows of 21 terms of size up to 20, a few roundings each.
ROUNDING = 21 * 21 * 20 * 4 * U
#: What torch.nn.functional.cross_entropy has.
TORCHS = ("weight", "ignored", "smoothing", "none", "sum")


def torch_of(options: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("shape", [(7, 21), (21,), (3, 21, 2), (2, 21, 3, 2)], ids=str)
def test_pytorch_in_every_pair_of_its_options(shape: tuple[int, ...], kind: str) -> None:
    names = [name for name in TORCHS if kind == "indices" or name != "ignored"]
    for some in [()] + [(n,) for n in names] + list(itertools.combinations(names, 2)):
        if {"none", "sum"} <= set(some):
            continue
        logits, targets = operands("f64", shape, kind)
        options = chosen(some)
        leaf = torch.from_numpy(logits).requires_grad_()
        loss = F.cross_entropy(leaf, torch.as_tensor(targets), **torch_of(options))
        dloss = np.random.default_rng(1).standard_normal(tuple(loss.shape))
        (gradient,) = torch.autograd.grad(loss, leaf, torch.as_tensor(dloss))
        made = osm.cross_entropy_with_gradient(logits, targets, dloss=dloss, **options)
        assert np.shape(made.loss) == tuple(loss.shape), some
        np.testing.assert_allclose(made.loss, loss.detach(), rtol=0, atol=ROUNDING, err_msg=str(some))
        np.testing.assert_allclose(made.gradient, gradient, rtol=0, atol=ROUNDING, err_msg=str(some))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_pytorchs_autograd_of_what_it_has_no_option_for(reduction: str) -> None:
    """softcap, temperature, z-loss, row weights, the gradient of the lse, from torch's pieces."""
    logits, targets = operands("f64")
    targets[3] = -100
    options = {"weight": OPTIONS["weight"]["weight"], "label_smoothing": 0.2}
    by_row = np.random.default_rng(2).uniform(0, 2, 7)
    for softcap, temperature, z_loss in itertools.product((None, 2.5), (1.0, 0.4), (0.0, 0.25)):
        leaf = torch.from_numpy(logits).requires_grad_()
        z = leaf if softcap is None else softcap * torch.tanh(leaf / softcap)
        z = z / temperature
        lse = torch.logsumexp(z, 1)
        kept = torch.from_numpy((targets != -100).astype(np.float64))
        rows = F.cross_entropy(z, torch.from_numpy(targets), reduction="none", **torch_of(options))
        rows = (rows + z_loss * lse**2 * kept) * torch.from_numpy(by_row)
        size = torch.from_numpy(options["weight"][np.where(targets < 0, 0, targets)] * by_row) * kept
        loss = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / size.sum()}[reduction]
        dloss = np.random.default_rng(1).standard_normal(tuple(loss.shape))
        dlse = np.random.default_rng(3).standard_normal(7)
        (gradient,) = torch.autograd.grad((loss, lse), leaf, (torch.as_tensor(dloss), torch.from_numpy(dlse)))
        given = {
            "row_weight": by_row, "z_loss": z_loss, "softcap": softcap, "temperature": temperature,
            "reduction": reduction,
        } | options  # fmt: skip
        made = osm.cross_entropy(logits, targets, return_lse=True, **given)
        np.testing.assert_allclose(made.loss, loss.detach(), rtol=0, atol=4 * ROUNDING)
        np.testing.assert_allclose(made.lse, lse.detach(), rtol=0, atol=4 * ROUNDING)
        back = osm.cross_entropy_backward(dloss, logits, targets, dlse=dlse, **given)
        np.testing.assert_allclose(back, gradient, rtol=0, atol=4 * ROUNDING)


# ---- differences of losses


def differences(function: Any, x: Array) -> Array:
    """Of fourth order: an error of h^4 times a fifth derivative, and of the roundings of f over h."""
    h = 2.0**-9
    made = np.empty_like(x)
    for at in np.ndindex(x.shape):
        ends = []
        for step in (-2, -1, 1, 2):
            moved = x.copy()
            moved[at] += step * h
            ends.append(float(function(moved)))
        made[at] = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * h)
    return made


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_differences_for_every_option(kind: str) -> None:
    rng = np.random.default_rng(4)
    logits, targets = operands("f64", (3, 7), kind, seed=4)
    if kind == "indices":
        targets[1] = 3
    changed = {"weight": {"weight": rng.uniform(0, 3, 7)}, "row weight": {"row_weight": rng.uniform(0, 2, 3)}}
    dloss, dlse = rng.standard_normal(3), rng.standard_normal(3)
    for case in pairs(kind):
        names = case.values[0]
        if "none" in names or "sum" in names or (len(names) == 2 and "ignored" in names):
            continue
        options = {k: v for name in names for k, v in changed.get(name, OPTIONS[name]).items()}
        options["reduction"] = "none"

        def total(x: Array, options: dict[str, Any] = options) -> Any:
            made = osm.cross_entropy(x, targets, return_lse=True, **options)
            return (made.loss * dloss).sum() + (made.lse * dlse).sum()

        gradient = osm.cross_entropy_backward(dloss, logits, targets, dlse=dlse, **options)
        # h^4 / 30 times fifth derivatives, which softmax and tanh have up to 24 of the terms' sizes (weights
        # to 3, z-loss 2 * 0.25 * lse, over the fifth power of the temperature); roundings of sums up to 100.
        bound = 2.0**-36 / 30 * 24 * 10 / options.get("temperature", 1.0) ** 5 + 100 * 8 * U * 2.0**9
        np.testing.assert_allclose(gradient, differences(total, logits), rtol=0, atol=bound, err_msg=case.id)


# ---- the rule of Megatron


@pytest.mark.parametrize("classes", [2, 5, 33])
def test_megatrons_smoothing_is_its_formula(classes: int) -> None:
    """(1 - e) * -log p of the target and e / (C - 1) of each other: with no share for the target."""
    e = 0.3
    logits, targets = operands("f64", (4, classes), seed=classes)
    log_p = osm.log_softmax(logits)
    own = np.take_along_axis(log_p, targets[:, None], 1)[:, 0]
    # As Megatron-LM writes it: smoothing = e * C / (C - 1), (1 - smoothing) * loss - smoothing * mean(log p).
    s = e * classes / (classes - 1)
    as_written = (1 - s) * -own - s * log_p.mean(axis=1)
    by_shares = -(1 - e) * own - e / (classes - 1) * (log_p.sum(axis=1) - own)
    rounding = 64 * U * (1 + float(np.abs(log_p).sum(axis=1).max()))
    made = osm.cross_entropy(logits, targets, label_smoothing=e, smoothing="megatron", reduction="none")
    np.testing.assert_allclose(made, as_written, rtol=0, atol=rounding)
    np.testing.assert_allclose(made, by_shares, rtol=0, atol=rounding)
    gradient = osm.cross_entropy_backward(
        np.ones(4), logits, targets, label_smoothing=e, smoothing="megatron", reduction="none"
    )
    share = np.full((4, classes), e / (classes - 1))
    share[np.arange(4), targets] = 1 - e
    np.testing.assert_allclose(gradient, np.exp(log_p) - share, rtol=0, atol=64 * U)
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.6 with smoothing='megatron'"):
        osm.cross_entropy(np.zeros((1, 2)), [0], label_smoothing=0.6, smoothing="megatron")
    # All there is to share out.
    edge = osm.cross_entropy(np.zeros((1, 2)), [0], label_smoothing=0.5, smoothing="megatron")
    np.testing.assert_allclose(edge, np.log(2.0), rtol=4 * U)


# ---- what holds of any gradient


@every_isa
@every_format
def test_rows_of_gradients_sum_to_nothing(fmt: str, isa: str) -> None:
    """Without z-loss, dlse, softcap: c * sum(p) - sum(c), whatever the weights."""
    for n in (1, 2, 33, 300, 5000):
        for kind, options in itertools.product(
            ("indices", "probabilities"),
            ({}, {"label_smoothing": 0.1}, {"weight": np.linspace(0.25, 2, n)}, {"temperature": 0.5}),
        ):
            logits, targets = operands(fmt, (4, n), kind, seed=n)
            gradient = osm.cross_entropy_backward(1.0, logits, targets, isa=isa, **options)
            right = truth(logits, targets, **options)
            # Each element within its bound, and rounded once.
            each = limits(right, logits.dtype, options)[2] + 0.5 * ulp(right.gradient, logits.dtype)
            unit = REFERENCE_UNITS * 2.0 ** (-53 if fmt == "f64" else -24)
            allowed = (each + unit * np.abs(right.gradient)).sum(axis=1)
            total = np.abs(gradient.astype(np.float64).sum(axis=1))
            assert (total <= allowed).all(), (n, kind, list(options), total / allowed)


def sure(x: float, fmt: str, n: int, place: int, reach: float = 2.0) -> tuple[Array, mpmath.mpf, float]:
    """A row whose target is x, others within `reach` below 0: (row, others' share over the target's, greatest
    distance)."""
    rng = np.random.default_rng(int(x))
    row = rng.uniform(-reach, 0, n).astype(FORMATS[fmt])
    row[place] = x
    wide = row.astype(np.float64)
    with mpmath.workdps(50):
        ratio = mpmath.fsum(
            mpmath.exp(mpmath.mpf(v) - mpmath.mpf(wide[place])) for i, v in enumerate(wide) if i != place
        )
    return row, ratio, float(wide[place] - wide.min())


@every_isa
@every_format
@pytest.mark.parametrize("place", [0, 3, 60, 99])
def test_b142_sure_rows_keep_the_bits_of_loss_and_gradient(fmt: str, isa: str, place: int) -> None:
    """p - 1 and -log p down to 1e-30 (float64: 1e-280), relatively: neither is taken from a rounded p."""
    wide = FORMATS["f64" if fmt == "f64" else "f32"]
    u = 2.0 ** (-53 if fmt == "f64" else -24)
    scores = (0.5, 4.0, 8.0, 15.0, 17.0, 25.0, 40.0, 64.0, *((300.0, 640.0) if fmt == "f64" else ()))
    for x in scores:
        row, ratio, far = sure(x, fmt, 100, place)
        with mpmath.workdps(50):
            loss, rest = float(mpmath.log1p(ratio)), float(ratio / (1 + ratio))
        made = osm.cross_entropy_with_gradient(row, place, isa=isa)
        of_exp = EXP_UNITS_OF_16_BITS if row.dtype.itemsize == 2 else EXP_UNITS
        # Exponentials, whose arguments may be rounded differences, and their sum; one rounding of the result.
        relative = u * (of_exp + DEPTH + far + 4)
        assert abs(float(made.loss) - loss) <= relative * loss + 0.5 * ulp(np.asarray(loss), wide), (
            x,
            made.loss,
        )
        for upstream in (1.0, 2.0**-12):
            gradient = osm.cross_entropy_backward(upstream, row, place, isa=isa)
            right = -upstream * rest
            allowed = relative * abs(right) + (0.5 + u) * ulp(np.asarray(right), row.dtype)
            assert abs(float(gradient[place]) - right) <= allowed, (x, gradient[place], right)
        # The same row as a probability of 1.
        p = np.eye(100)[place]
        again = osm.cross_entropy_with_gradient(row, p, isa=isa)
        assert abs(float(again.loss) - loss) <= relative * loss + 0.5 * ulp(np.asarray(loss), wide), x
        assert again.loss >= 0
        allowed = relative * rest + (0.5 + u) * ulp(np.asarray(rest), row.dtype)
        assert abs(float(again.gradient[place]) + rest) <= allowed, x


@every_isa
def test_b142_as_it_was_reported(isa: str) -> None:
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float32):
        logits = np.array([[7.59375, 0]], dtype)
        gradient = osm.cross_entropy_backward(1.0, logits, [0], isa=isa)[0].astype(np.float64)
        right = -1 / (1 + np.exp(7.59375))
        np.testing.assert_allclose(
            gradient, [right, -right], rtol=float(ml_dtypes.finfo(dtype).eps) / 2 + 3e-6
        )


@every_isa
@every_format
def test_gradient_of_the_lse_is_a_softmax(fmt: str, isa: str) -> None:
    logits, targets = operands(fmt, (6, 50))
    targets[[1, 4]] = -100
    dlse = np.array([1.0, -2.0, 0.0, 3.0, 0.5, 1e-3])
    for dloss in (0.0, np.linspace(-1, 1, 6)):
        hold(logits, targets, isa=isa, reduction="none", dloss=dloss, dlse=dlse)
        hold(
            logits,
            targets,
            isa=isa,
            reduction="none",
            dloss=dloss,
            dlse=dlse,
            label_smoothing=0.1,
            z_loss=0.1,
        )
        hold(logits, targets, isa=isa, reduction="none", dloss=dloss, dlse=dlse, softcap=2.0, temperature=3.0)
    hold(logits, targets, isa=isa, dlse=0.25)
    only = osm.cross_entropy_backward(0.0, logits.astype(np.float64), targets, dlse=1.0, isa=isa)
    np.testing.assert_allclose(only, osm.softmax(logits.astype(np.float64), isa=isa), rtol=64 * U, atol=0)


def test_upstream_of_every_shape() -> None:
    logits, targets = operands("f64", (3, 21, 2))
    each = np.random.default_rng(1).standard_normal((3, 2))
    one = osm.cross_entropy_backward(each, logits, targets, reduction="none")
    for i, j in np.ndindex(3, 2):
        alone = osm.cross_entropy_backward(
            each[i, j], logits[i, :, j].copy(), targets[i, j], reduction="none"
        )
        np.testing.assert_array_equal(one[i, :, j], alone)
    for wide in (each[:, :1], each[:1], each[0, 0], np.float32(2), 3, True):
        full = np.broadcast_to(np.asarray(wide, np.float64), (3, 2))
        np.testing.assert_array_equal(
            osm.cross_entropy_backward(wide, logits, targets, reduction="none"),
            osm.cross_entropy_backward(full, logits, targets, reduction="none"),
        )
    np.testing.assert_array_equal(
        osm.cross_entropy_backward([2.0], logits, targets), osm.cross_entropy_backward(2.0, logits, targets)
    )
    for bad in (each, [1.0, 2.0]):
        with pytest.raises(ValueError, match="dloss has shape"):
            osm.cross_entropy_backward(bad, logits, targets)
    for bad in (np.ones(3), np.ones((3, 2, 1))):
        with pytest.raises(ValueError, match=r"dloss has shape .* broadcasts to \(3, 2\)"):
            osm.cross_entropy_backward(bad, logits, targets, reduction="none")
        with pytest.raises(ValueError, match=r"dlse has shape .* broadcasts to \(3, 2\)"):
            osm.cross_entropy_backward(1.0, logits, targets, dlse=bad)
