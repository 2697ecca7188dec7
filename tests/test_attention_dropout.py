"""Dropout: which weights go follows from seed, batch, head, query and key, and from nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from attention_cases import SHORT, every_isa, operands
from helpers import assert_same_bits

import online_softmax as osm
from online_softmax import reference


def test_the_mask_is_that_of_the_definition() -> None:
    """The generator written down again, in Python's integers."""

    def mixed(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        x = (x ^ x >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        return x ^ x >> 31

    def number(seed: int, batch: int, head: int, query: int, key: int) -> int:
        row = seed
        for part in (batch, head, query):
            row = mixed((row + 0x9E3779B97F4A7C15 * (part + 1)) & (1 << 64) - 1)
        low, high = row & 0xFFFFFFFF, row >> 32
        x = (key * 0x9E3779B9 + low) & 0xFFFFFFFF
        x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
        x = ((x ^ x >> 15) + high) * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    for seed, p in ((0, 0.5), (12345678901234567890, 0.1)):
        mask = osm.dropout_mask((2, 3, 4, 5), p, seed)
        for place in np.ndindex(mask.shape):
            assert mask[place] == (number(seed, *place) >= round(p * 2**32))


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
def test_what_is_dropped_is_what_the_mask_says(isa: str, dtype: str) -> None:
    q, k, v = operands(2, 1, 50, 130, 8, 8, dtype)
    made = osm.attention(q, k, v, dropout_p=0.4, seed=3, return_lse=True, isa=isa)
    keep = osm.dropout_mask((2, 2, 50, 130), 0.4, 3)
    right = reference.attention(q, k, v, dropout_p=0.4, keep=keep)
    # Weights times values of a few units, divided by 0.6: float32 sums and one rounding to the format.
    u = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    atol = u * 64 if dtype.endswith(("32", "64")) else u * 2
    np.testing.assert_allclose(made.output.astype(np.float64), right, rtol=u, atol=atol)
    assert_same_bits(made.lse, osm.attention(q, k, v, return_lse=True, isa=isa).lse)


@every_isa
def test_a_dropped_value_is_not_read(isa: str) -> None:
    q, k, v = operands(1, 1, 60, 40, 8, 8, batch=1)
    clean = osm.attention(q, k, v, dropout_p=0.5, seed=1, isa=isa)
    v[0, 0, 7] = np.nan
    keep = osm.dropout_mask((1, 1, 60, 40), 0.5, 1)[0, 0, :, 7]
    got = osm.attention(q, k, v, dropout_p=0.5, seed=1, isa=isa)
    np.testing.assert_array_equal(np.isnan(got[0, 0]).all(axis=-1), keep)
    assert_same_bits(got[0, 0][~keep], clean[0, 0][~keep])


@every_isa
def test_any_split_of_queries_has_its_part_of_the_mask(isa: str) -> None:
    q, k, v = operands(4, 2, 30, 300, 8, 8)
    options = {"dropout_p": 0.3, "seed": 9, "isa": isa}
    whole = osm.attention(q, k, v, **options)
    for threads in (1, 3):
        assert_same_bits(osm.attention(q, k, v, threads=threads, **options), whole)
    assert_same_bits(osm.attention(q[:, :, :4], k, v, **options), whole[:, :, :4])
    assert_same_bits(osm.attention(q[:1, :2], k[:1, :1], v[:1, :1], **options), whole[:1, :2])
    larger = osm.dropout_mask((2, 3, 5, 8), 0.3, 9)
    assert_same_bits(osm.dropout_mask((1, 2, 4, 6), 0.3, 9), larger[:1, :2, :4, :6])


@every_isa
def test_a_part_told_its_place_has_its_part_of_the_whole(isa: str) -> None:
    """Keys, queries, heads and batch split, with dropout, a causal triangle, a window and slopes."""
    q, k, v = operands(4, 2, 30, 30, 8, 8, "float64")
    slopes = np.array([0.5, 0.25, 0.125, 0.0625])
    options = {"dropout_p": 0.3, "seed": 9, "causal": True, "window": (20, None), "isa": isa}
    whole = osm.attention(q, k, v, alibi_slopes=slopes, return_lse=True, **options)
    states = [
        osm.attention(
            q[1:, 2:, 10:], k[1:, 1:, a:b], v[1:, 1:, a:b], alibi_slopes=slopes[2:], origin=(1, 2, 10, a),
            return_state=True, **options,
        )
        for a, b in ((0, 7), (7, 25), (25, 30))
    ]  # fmt: skip
    merged = osm.AttentionState.merge_many(states)
    np.testing.assert_allclose(merged.o, whole.output[1:, 2:, 10:], rtol=0, atol=2.0**-53 * 512)
    np.testing.assert_allclose(merged.lse, whole.lse[1:, 2:, 10:], rtol=0, atol=2.0**-53 * 512)
    mask = osm.dropout_mask((2, 4, 30, 30), 0.3, 9)
    part = osm.dropout_mask((1, 2, 20, 18), 0.3, 9, origin=(1, 2, 10, 7))
    assert_same_bits(part, mask[1:, 2:, 10:, 7:25])
    # The gradients of a part of the queries, too: dq of these, and what they add to dk and dv.
    do = np.random.default_rng(2).standard_normal(whole.output.shape)
    of_whole = osm.attention_backward(do, q, k, v, *whole, alibi_slopes=slopes, **options)
    sums = [np.zeros_like(k), np.zeros_like(v)]
    for a, b in ((0, 10), (10, 30)):
        rows = slice(a, b)
        made = osm.attention_backward(
            do[:, :, rows], q[:, :, rows], k, v, whole.output[:, :, rows], whole.lse[:, :, rows],
            alibi_slopes=slopes, origin=(0, 0, a, 0), **options,
        )  # fmt: skip
        np.testing.assert_allclose(made.q, of_whole.q[:, :, rows], rtol=0, atol=2.0**-53 * 4096)
        sums = [sums[0] + made.k, sums[1] + made.v]
    np.testing.assert_allclose(sums[0], of_whole.k, rtol=0, atol=2.0**-53 * 4096)
    np.testing.assert_allclose(sums[1], of_whole.v, rtol=0, atol=2.0**-53 * 4096)


@pytest.mark.parametrize("p", [0.0, 0.01, 0.1, 0.5, 0.9])
def test_as_many_are_kept_as_asked_for(p: float) -> None:
    mask = osm.dropout_mask((4, 8, 64, 512), p, 42)
    n = mask.size
    # Five standard deviations of a binomial count.
    assert abs(mask.sum() - n * (1 - p)) <= 5 * np.sqrt(n * p * (1 - p))
    if not p:
        assert mask.all()


def test_neighbours_are_independent() -> None:
    """Correlations along every axis and between seeds, of a million entries, within five of their standard
    deviations."""
    masks = [osm.dropout_mask((4, 8, 64, 512), 0.5, seed) for seed in (0, 1, 2**63)]
    signs = [mask * 2.0 - 1 for mask in masks]
    for a, b in itertools.combinations(signs, 2):
        assert abs((a * b).mean()) <= 5 / np.sqrt(a.size)
    for axis in range(4):
        for lag in (1, 2, 3):
            a = np.moveaxis(signs[0], axis, 0)
            product = a[lag:] * a[:-lag]
            assert abs(product.mean()) <= 5 / np.sqrt(product.size)
    # Runs of eight keys: each pattern as often as the others, chi-squared with 255 degrees of freedom.
    patterns = np.packbits(masks[0].reshape(-1, 8), axis=1).ravel()
    counts = np.bincount(patterns, minlength=256)
    expected = len(patterns) / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 255) <= 5 * np.sqrt(2 * 255)


def test_wrong_calls_name_what_is_wrong() -> None:
    for shape in ((2, 3, 4), [1, 1, 1, 1], (1, 1, 1, -1), (1, 1, 1, 2.0), (True, 1, 1, 1)):
        with pytest.raises(ValueError, match="shape is"):
            osm.dropout_mask(shape, 0.5)
    with pytest.raises(ValueError, match=r"dropout_p is 1\.5"):
        osm.dropout_mask((1, 1, 1, 1), 1.5)
