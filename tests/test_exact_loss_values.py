"""Values of losses with order="any", within the bound of the definition; sums that no order changes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_loss_cases import CLASSES, OPTIONS, ROWS, bits, case, grid_of, numbers, truth, upstream
from helpers import assert_close

import online_softmax as osm
from online_softmax.exact import FLOAT32, FLOAT64
from online_softmax.exact_loss_state import total
from online_softmax.exact_sums import Sums

INF, NAN = np.inf, np.nan
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_option
def test_values(dtype: Any, options: dict[str, Any]) -> None:
    x, t = case(dtype)
    z = x / dtype(options.get("temperature", 1.0))
    p, unit = truth(z)
    u, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny) * 2
    rows = np.arange(ROWS)
    kept = t != options.get("ignore_index", -100)
    w = np.where(kept, options.get("weight", np.ones(CLASSES))[t], 0)
    r = options.get("row_weight", np.ones(ROWS))
    top = z.astype(np.longdouble).max(-1)
    lse = top + np.log(np.exp(z.astype(np.longdouble) - top[:, None]).sum(-1))
    nll = lse - z[rows, t]
    z_loss = options.get("z_loss", 0.0)
    e = options.get("label_smoothing", 0.0)
    e *= CLASSES / (CLASSES - 1) if options.get("smoothing") == "megatron" else 1
    every, sharp, uniform = options.get("weight", np.ones(CLASSES)), 1 - e, e / CLASSES
    spread = uniform * (every * (lse[:, None] - z.astype(np.longdouble))).sum(-1)
    each = r * (sharp * w * nll + np.where(kept, z_loss * lse**2 + spread, 0))
    error_of_log = unit.max(-1)
    off = error_of_log * (sharp * w + z_loss * 2 * np.abs(lse) + uniform * every.sum())
    off += u * (sharp * w * np.abs(nll) + 2 * z_loss * lse**2 + 4 * uniform * np.abs(every * z).sum(-1))
    off = r * off + grid_of(z) * uniform * np.abs(every * z).max(-1) + u * uniform * every.sum() * np.abs(lse)
    reduction = options.get("reduction", "mean")
    divisor = (w * r).sum() if reduction == "mean" else 1.0
    loss = osm.cross_entropy(x, t, order="any", **options)
    if reduction == "none":
        assert_close(loss, each, off + u * np.abs(each))
    else:
        assert_close(loss, each.sum() / divisor, off.sum() / divisor + 2 * u * np.abs(each).sum() / divisor)
    d = np.broadcast_to(upstream(options), ROWS) * r / divisor
    k = d * w * sharp
    taken = np.where(kept, d * uniform, 0)
    e = np.where(kept, d * 2 * z_loss * lse, 0) + taken * every.sum()
    heat = float(dtype(options.get("temperature", 1.0)))
    hot = np.zeros((ROWS, CLASSES))
    hot[rows, t] = 1
    others = np.where(hot == 1, 0, p).sum(-1)
    expected = ((k + e)[:, None] * p - taken[:, None] * every) / heat
    expected[rows, t] = (e * p[rows, t] - k * others - taken * every[t]) / heat
    error_of_e = np.abs(e) * (error_of_log / np.abs(lse) + u)
    allowed = ((np.abs(k + e) * (unit.max(-1) + 3 * u) + error_of_e)[:, None] * p) / heat + tiny
    allowed[rows, t] = (
        np.abs(k) * (others * (unit.max(-1) + 2 * u) + grid_of(z))
        + np.abs(e) * p[rows, t] * (unit.max(-1) + 2 * u)
        + error_of_e + u * np.abs(e * p[rows, t])
    ) / heat + tiny  # fmt: skip
    allowed += 4 * u * taken[:, None] * every / heat + u * np.abs(expected)
    gradient = osm.cross_entropy_backward(upstream(options), x, t, order="any", **options)
    assert_close(gradient, expected, allowed)


@pytest.mark.parametrize("gap", [1.0, 5.0, 10.0, 15.0, 20.0])
def test_the_gradient_of_a_target_that_is_nearly_sure_keeps_its_digits(gap: float) -> None:
    x = np.zeros((1, 1000), np.float32)
    x[0, 3] = gap + math.log(999)
    found = osm.cross_entropy_backward(1.0, x, np.array([3]), order="any")[0, 3]
    others = 1 / (1 + math.exp(float(x[0, 3])) / 999)
    assert abs(found / -others - 1) <= 4e-7 + 1.33e-8 * float(x[0, 3]) + 1000 * 2.0**-43.5 / others
    assert float(np.float32(1) - np.float32(1 - others)) != -found or gap < 12  # 1 - p has fewer


def test_dlse_reaches_ignored_rows_too() -> None:
    x, t = case()
    options = {"ignore_index": 17, "order": "any", "reduction": "none"}
    d_lse = numbers((ROWS,), 3, 1.0)
    made = osm.cross_entropy_backward(0.0, x, t, dlse=d_lse, **options)
    p = osm.softmax(x, order="any")
    assert np.array_equal(made[3], d_lse[3] * p[3])
    assert (np.abs(made - d_lse[:, None] * p) <= 2.0**-23 * np.abs(d_lse[:, None] * p)).all()


def test_special_rows() -> None:
    x = np.zeros((6, 5), np.float32)
    x[0, 2], x[1, 2], x[2], x[3, 2] = NAN, INF, -INF, -INF
    x[4] = [-0.0, 1e-42, -1e-42, 0, 0]
    x[5] = [2.0**40, 2.0**40, 0, -(2.0**40), -INF]
    t = np.array([1, 1, 1, 2, 1, 1])
    loss = osm.cross_entropy(x, t, order="any", reduction="none")
    log5 = np.float32(np.log(5))
    assert np.array_equal(loss, np.float32([NAN, NAN, NAN, INF, log5, np.log(2)]), equal_nan=True)
    gradient = osm.cross_entropy_backward(1.0, x, t, order="any", reduction="none")
    assert np.isnan(gradient[:3]).all()
    assert np.array_equal(gradient[3], np.float32([0.25, 0.25, -1, 0.25, 0.25]))
    assert np.array_equal(gradient[5], [0.5, -0.5, 0, 0, 0])
    ignored = osm.cross_entropy_with_gradient(x, np.where(np.arange(6) < 3, -100, t), order="any")
    assert ignored.loss == INF
    assert (ignored.gradient[:3] == 0).all()
    nothing = np.full(6, -100)
    assert np.isnan(osm.cross_entropy(x, nothing, order="any"))
    assert osm.cross_entropy(x, nothing, order="any", empty="zero") == 0
    one = osm.cross_entropy_with_gradient(np.zeros((3, 1), np.float32), np.zeros(3, np.int64), order="any")
    assert one.loss == 0
    assert not np.signbit(one.loss)
    assert (one.gradient == 0).all()
    empty = osm.cross_entropy_with_gradient(
        np.zeros((0, 4)), np.zeros(0, np.int64), order="any", reduction="sum"
    )
    assert empty.loss == 0
    assert empty.gradient.shape == (0, 4)


def test_sums_of_rows_are_exact_sums_rounded_once() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 1e300, 1e-300):
        values = rng.standard_normal(301) * 10.0 ** rng.integers(-8, 8, 301) * scale
        right = float(sum(map(Fraction, values.tolist())))
        assert total(values) == total(values[::-1]) == total(rng.permutation(values)) == right
    top = np.finfo(np.float64).max
    assert total(np.array([top, top, -top, 1.0])) == total(np.array([top, -top, 1.0, top])) == top
    assert total(np.array([top, top])) == INF
    assert total(np.array([])) == 0
    assert total(np.array([INF, 1.0, INF])) == INF
    assert math.isnan(total(np.array([INF, -INF])))


@pytest.mark.parametrize("form", [FLOAT32, FLOAT64], ids=lambda f: f.name)
def test_sums_of_scores_have_no_order(form: Any) -> None:
    rng = np.random.default_rng(2)
    for spread in (0, 3, 20, 110):
        x = rng.standard_normal((3, 500)) * 2.0 ** rng.integers(-spread, spread + 1, (3, 500))
        x = x.astype(form.dtype).astype(np.float64)
        x[:, ::50] = 0
        whole = Sums.of(x, form)
        for _ in range(10):
            cuts = np.sort(rng.integers(0, 501, 5))
            parts = [Sums.of(p, form) for p in np.split(x[:, rng.permutation(500)], cuts, axis=1)]
            merged = parts[0]
            for part in parts[1:]:
                merged = part.merge(merged)
            assert bits(merged.top, merged.a, merged.value) == bits(whole.top, whole.a, whole.value)
        right = [float(sum(map(Fraction, row.tolist()))) for row in x]
        unit = 2.0**-52 + 500 * (2.0**-43 if form is FLOAT32 else 2.0**-95)
        assert (np.abs(whole.value - right) <= unit * np.abs(x).max(-1) + 2.0**-52 * np.abs(right)).all()


def test_sums_of_what_is_not_finite() -> None:
    x = np.array([[1.0, -INF, -INF], [INF, -INF, 0], [NAN, 1, 1], [0, 0, 0], [3, INF, 1]])
    right = [-INF, NAN, NAN, 0, INF]
    assert np.array_equal(Sums.of(x, FLOAT64).value, right, equal_nan=True)
    parts = [Sums.of(x[:, i : i + 1], FLOAT64) for i in range(3)]
    assert np.array_equal(parts[2].merge(parts[0].merge(parts[1])).value, right, equal_nan=True)
    no = np.array([[0.0, -INF]])
    smooth = {"label_smoothing": 0.5, "order": "any", "reduction": "none"}
    assert osm.cross_entropy(no, np.array([0]), **smooth)[0] == INF
    assert osm.cross_entropy(no, np.array([0]), weight=[1.0, 0.0], **smooth)[0] == 0


def test_log_probabilities_of_tokens() -> None:
    for dtype in (np.float32, np.float64):
        x, t = case(dtype)
        tokens = np.stack([t, (t + 5) % CLASSES, np.zeros(ROWS, np.int64)], -1)
        z = x / dtype(0.8)
        made = osm.cross_entropy(x, t, tokens=tokens, temperature=0.8, order="any")
        logs = np.take_along_axis(osm.log_softmax(z, order="any"), tokens, -1)
        assert bits(made.log_probabilities) == bits(logs)
        assert bits(made.loss, made.lse) == bits(
            *osm.cross_entropy(x, t, temperature=0.8, order="any", return_lse=True)
        )
        assert made.entropy is None
