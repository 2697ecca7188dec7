"""The running code against claims of proofs/ on whole numbers, windows and attention that no other test
names."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import exact_rows
import numpy as np
import pytest

import online_softmax as osm
from online_softmax import AttentionState, exact, reference, state
from online_softmax.exact import FLOAT32, FLOAT64, Format

ROOT = Path(__file__).resolve().parent.parent
SLICES = (ROOT / "proofs" / "Slices.v").read_text(encoding="utf-8")
#: Bits after the point of a significand, and the exponent of the unit that elements are counted in.
FRACTION, UNIT = {32: 24, 64: 53}, {32: -149, 64: -1074}
U = 2.0**-53
formats = pytest.mark.parametrize("form", [FLOAT32, FLOAT64], ids=lambda f: f.name)


def nearest(n: int, s: int) -> int:
    """`nearest` of proofs/Slices.v: n / 2**s to the nearest whole number, ties to even."""
    if s <= 0:
        return n << -s
    q, r = n >> s, n & ((1 << s) - 1)
    return q + (2 * r > 1 << s or (2 * r == 1 << s and q % 2))


def elements(form: Format) -> Any:
    """Numbers whose terms are summed: edges of the format, edges of bins, moderate ones."""
    x = [v for v in exact_rows.edges(form) if abs(v) <= form.large]
    return np.concatenate([np.array(x, form.dtype), exact_rows.moderate((2000,), 9, form.dtype)])


# ---- whole numbers


def test_slices_are_those_of_the_proofs_examples() -> None:
    found = re.findall(r"^Example \w+ : cut (\d+) (\d) (\d+) (\d+) = \[([-\d; ]+)\]\.", SLICES, re.M)
    assert len(found) == 8
    for width, count, significand, s, wanted in found:
        form = FLOAT32 if int(width) == FLOAT32.width else FLOAT64
        assert (int(width), int(count)) == (form.width, form.slices)
        # significand / 2**s in units of bin 0 is p * 2**n with n = fraction - s.
        fraction = FRACTION[form.kind]
        p, n = np.array([int(significand) / 2.0**fraction]), np.array([fraction - int(s)])
        for b in (0, 3):
            made = exact.slices(p, n + b * form.width, np.array([b]), form)[0]
            assert made.tolist() == [int(v) for v in wanted.split(";")]
    x = np.array([1.0, -3.25, 14.9, -20.0], np.float32)
    significands = (exact.terms(x, FLOAT32)[0] * 2.0**24).astype(int).tolist()
    assert sorted(significands) == sorted({int(f[2]) for f in found if f[0] == "22"})


def test_constants_are_those_of_the_proofs() -> None:
    scale, shift = re.search(
        r"exponent_22x3 \(x : Z\) : Z := nearest \(x \* (\d+)\) (\d+)\.", SLICES
    ).groups()  # type: ignore[union-attr]
    assert int(scale) * 2.0**-24 == FLOAT32.log2e
    assert int(shift) == 24 - UNIT[32]
    pattern = r"terms_format (\d+) (\d+) [\w ]+ \(- 2 \^ (\d+)\) \(2 \^ (\d+)\) (\d) wrap64\."
    for form, found in zip((FLOAT32, FLOAT64), re.findall(pattern, SLICES), strict=True):
        width, fraction, low, high, count = map(int, found)
        assert (width, count, fraction) == (form.width, form.slices, FRACTION[form.kind])
        assert low == high == math.log2(form.large) - UNIT[form.kind]


@formats
def test_terms_are_within_what_the_proofs_assume(form: Format) -> None:
    """Significands in (0, 2) of so many bits; in float32 the exponent is round(x * log2(e)), ties to even."""
    x = elements(form)
    p, n = exact.terms(x, form)
    assert ((p > 0) & (p < 2)).all()
    assert (p * 2.0 ** FRACTION[form.kind] % 1 == 0).all()
    assert (np.diff(exact.bin_of(n, form)[np.argsort(x, kind="stable")]) >= 0).all()
    if form is FLOAT32:
        units = [int(v * 2.0**149) for v in x.astype(np.float64).tolist()]
        assert [nearest(v * 24204406, 173) for v in units] == n.tolist()


@formats
def test_nothing_is_left_of_an_element_that_many_bins_below(form: Format) -> None:
    x = np.sort(elements(form))
    p, n = exact.terms(x, form)
    for top in range(0, len(x), 97):
        b = exact.bin_of(n[top], form)
        below = n <= n[top]
        cut = exact.slices(p[below], n[below], np.full(below.sum(), b), form)
        assert (cut[n[below] + form.width * form.slices <= n[top]] == 0).all()
        assert (np.abs(cut) <= 2 ** (form.width - 1)).all()


# ---- windows


@pytest.mark.parametrize("window", [1, 2, 3, 8, 20])
def test_a_push_merges_at_most_window_plus_one_times(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    merge, counts = state.merge, [0]

    def counted(a: state.State, b: state.State) -> state.State:
        counts[-1] += 1
        return merge(a, b)

    monkeypatch.setattr(state, "merge", counted)
    slide = osm.SlidingLogSumExp(window)
    for k in range(5 * window):
        slide.push(float(k % 7))
        counts.append(0)
    assert max(counts) == (1 if window == 1 else window + 1)
    assert sum(counts) <= 3 * 5 * window


# ---- attention


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stairs", [1, 7, 9, 40])
def test_scores_that_rise_give_the_same_whether_the_pivot_follows(dtype: Any, stairs: int) -> None:
    """Scores that rise by 40 in all, in steps below and above the 8 that a pivot may stay behind."""
    rise = re.search(
        r"kRise = (\d+);", (ROOT / "native" / "attention_scores.inl.h").read_text(encoding="utf-8")
    )
    assert rise
    assert rise[1] == "8"
    n, dv = 1200, 128  # wide values: chunks of 256 keys in float32, 128 in float64
    scores = np.floor(np.linspace(-20, 20, n) / stairs) * stairs + np.arange(n) % 3
    rng = np.random.default_rng(stairs)
    k, v = scores[:, None].astype(dtype), rng.uniform(-1, 1, (n, dv)).astype(dtype)
    q, key, value = np.ones((1, 1, 1, 1), dtype), k[None, None], v[None, None]
    o, lse = osm.attention(q, key, value, scale=1.0, return_lse=True)
    right, right_lse = reference.attention(q, key, value, scale=1.0, return_lse=True)
    # Scores and differences are whole: what is rounded is weights (2 u each) and sums of n terms.
    u = 2.0**-24 if dtype == np.float32 else U
    np.testing.assert_allclose(o, right, rtol=0, atol=(n + 20) * u)
    np.testing.assert_allclose(lse, right_lse, rtol=0, atol=(n + 20) * U + 20 * u)
    assert np.abs(o).max() <= np.abs(v).max() * (1 + n * u)
    backwards = osm.attention(q, key[..., ::-1, :], value[..., ::-1, :], scale=1.0)
    np.testing.assert_allclose(backwards, o, rtol=0, atol=2 * (n + 20) * u)


def test_a_sink_for_each_split_shrinks_the_output_as_the_formula_says() -> None:
    rng = np.random.default_rng(3)
    x, v, sink = rng.normal(size=(5, 24)), rng.normal(size=(5, 24, 2)), 0.75
    whole = AttentionState.of(x, v)
    right = whole.with_sinks(sink)
    s, e = np.exp(x).sum(-1), math.exp(sink)
    for k in (1, 2, 3, 8):
        parts = [AttentionState.of(a, b) for a, b in zip(np.split(x, k, 1), np.split(v, k, 1), strict=True)]
        np.testing.assert_allclose(AttentionState.merge_many(parts).with_sinks(sink).o, right.o, rtol=200 * U)
        each = AttentionState.merge_many([p.with_sinks(sink) for p in parts])
        shrunk = right.o * ((s + e) / (s + k * e))[:, None]
        np.testing.assert_allclose(each.o, shrunk, rtol=200 * U)
        np.testing.assert_allclose(each.lse, np.log(s + k * e), rtol=200 * U)
        assert (k == 1) == np.allclose(each.o, right.o, rtol=1e-3)
    alone = AttentionState.identity(5, 2, np.float64).with_sinks(sink)
    assert (alone.o == 0).all()
    assert (alone.lse == sink).all()
    assert whole.with_sinks(-np.inf) == whole


def test_the_gradient_of_scores_is_p_times_dp_less_do_dot_o() -> None:
    rng = np.random.default_rng(4)
    q, k, v, do = (rng.normal(size=(2, n, d)) for n, d in ((3, 4), (9, 4), (9, 5), (3, 5)))
    bias, dlse = rng.normal(size=(2, 3, 9)), rng.normal(size=(2, 3))
    made = reference.attention_vjp(q, k, v, do, bias=bias, dlse=dlse)
    o, lse = reference.attention(q, k, v, bias=bias, return_lse=True)
    p = np.exp(np.einsum("hqd,hkd->hqk", q, k) / 2 + bias - lse[..., None])
    d = (do * o).sum(-1)
    np.testing.assert_allclose(d, (p * np.einsum("hqe,hke->hqk", do, v)).sum(-1), rtol=0, atol=500 * U)
    ds = p * (np.einsum("hqe,hke->hqk", do, v) - d[..., None] + dlse[..., None])
    np.testing.assert_allclose(made.bias, ds, rtol=0, atol=500 * U)
    np.testing.assert_allclose(ds.sum(-1), dlse, rtol=0, atol=500 * U)
    np.testing.assert_allclose(made.v, np.einsum("hqk,hqe->hke", p, do), rtol=0, atol=500 * U)
    four = [np.array(a[None]) for a in (do, q, k, v, o)]
    native = osm.attention_backward(
        *four, lse[None], dlse=dlse[None], bias=bias[None], bias_grad=True, layout="BHSD"
    )
    np.testing.assert_allclose(native.bias[0], ds, rtol=0, atol=2000 * U)
