"""linear_cross_entropy with order="any": logits of one definition, and the same bits for any tiles, shards,
threads and instruction set."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_loss_cases import CLASSES, CUTS, Array, bits, digest, numbers, places

import online_softmax as osm
from online_softmax import ExactLossState, cpu, exact
from online_softmax.cpu_product import product

TOKENS = 9
FORMATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
every_isa = pytest.mark.parametrize("isa", cpu.isas())


def operands(dtype: Any = np.float32, features: int = 70, classes: int = CLASSES) -> tuple[Array, ...]:
    hidden = numbers((TOKENS, features), 1, 1.0).astype(dtype)
    weight = numbers((classes, features), 2, 1.0).astype(dtype)
    bias = numbers((classes,), 3, 1.0, np.float64 if dtype == np.float64 else np.float32)
    return hidden, weight, bias, places(TOKENS, classes, 4).astype(np.int64)


def defined(hidden: Array, weight: Array, bias: Array | None) -> Array:
    """Logits by the definition: chains of fused multiply-adds over equal pieces of the features, the pieces
    added from left to right."""
    dtype = np.dtype(np.float64 if hidden.dtype == np.float64 else np.float32)
    features, most = hidden.shape[1], 384 if dtype == np.float32 else 192
    pieces = max(1, math.ceil(features / most))
    step = max(8, (math.ceil(features / pieces) + 7) // 8 * 8)
    h, w = (
        a.astype(np.float32 if dtype == np.float32 else np.float64).astype(np.float64)
        for a in (hidden, weight)
    )
    total = None if bias is None else np.broadcast_to(bias.astype(dtype), (len(h), len(w)))
    for at in range(0, max(features, 1), step):
        chain = np.zeros((len(h), len(w)))
        for i in range(at, min(at + step, features)):
            chain = exact._fused(*np.broadcast_arrays(h[:, i, None], w[None, :, i], chain), dtype)
        chain = chain.astype(dtype)
        total = chain if total is None else total + chain
    assert total is not None
    return total


@every_isa
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("features", [0, 1, 8, 70, 385, 801])
def test_logits_have_the_bits_of_the_definition(isa: str, dtype: Any, features: int) -> None:
    hidden, weight, bias, _ = operands(dtype, features, 21)
    for offset in (None, bias):
        expected = defined(hidden, weight, offset)
        for threads in (1, 3):
            out = np.empty((TOKENS, 21), expected.dtype)
            product(hidden, weight.T, out, bias=offset, fused=True, isa=isa, threads=threads)
            assert bits(out) == bits(expected)


@every_isa
def test_a_multiply_add_rounds_once(isa: str) -> None:
    """A sum of 2**30 + 2**7 and less than half a unit by 2**-40, which double does not show."""
    hidden = np.float32([[1, 8 * (1 + 2.0**-23)]])
    weight = np.float32([[2.0**30 + 2.0**7, 8 * (1 - 2.0**-23)]])
    out = np.empty((1, 1), np.float32)
    product(hidden, weight.T, out, fused=True, isa=isa)
    assert out[0, 0] == np.float32(2.0**30 + 2.0**7)
    for sign, top in ((-1, 0), (1, 2.0**8)):  # a little less than half, and a little more
        weight[0, 1] = 8 * (1 + sign * 2.0**-22)
        product(hidden, weight.T, out, fused=True, isa=isa)
        assert out[0, 0] == np.float32(2.0**30 + (top or 2.0**7))


def test_the_scalar_instruction_set_needs_the_mending() -> None:
    hidden = np.float32([[1, 8 * (1 + 2.0**-23)]])
    weight = np.float32([[2.0**30 + 2.0**7, 8 * (1 - 2.0**-23)]])
    out = np.empty((1, 1), np.float32)
    product(hidden, weight.T, out, isa="scalar")
    assert out[0, 0] == np.float32(2.0**30 + 2.0**8)  # rounded to double first, it is a tie


@pytest.mark.parametrize("dtype", FORMATS)
def test_tiles_threads_and_instruction_sets_do_not_matter(dtype: Any) -> None:
    hidden, weight, bias, t = operands(dtype)
    t[2] = -100
    options: dict[str, Any] = {
        "bias": bias, "return_lse": True, "reduction": "none", "order": "any", "temperature": 0.7,
        "z_loss": 0.01,
        "class_weight": numbers((CLASSES,), 5, 1.0, np.float64) + 1.5,
    }  # fmt: skip
    expected = bits(*osm.linear_cross_entropy(hidden, weight, t, **options))
    for isa in cpu.isas():
        for threads, memory in itertools.product((1, 2), (60 << 10, 1 << 20, 1 << 26)):
            made = osm.linear_cross_entropy(
                hidden, weight, t, isa=isa, threads=threads, memory=memory, **options
            )
            assert bits(*made) == expected
    strided = np.zeros((2 * TOKENS, hidden.shape[1]), hidden.dtype)[::2]
    strided[...] = hidden
    made = osm.linear_cross_entropy(strided, np.asfortranarray(weight), t, **options)
    assert bits(*made) == expected
    alone = [osm.linear_cross_entropy(hidden[i], weight, t[i], **options) for i in range(TOKENS)]
    assert bits([a.loss for a in alone], [a.lse for a in alone]) == expected


@pytest.mark.parametrize("cuts", CUTS, ids=lambda c: f"{len(c) - 1} parts")
@pytest.mark.parametrize("dtype", FORMATS)
def test_shards_of_the_weight_give_the_bits_of_the_whole(dtype: Any, cuts: tuple[int, ...]) -> None:
    hidden, weight, bias, t = operands(dtype)
    t[2] = -100
    states = [
        osm.linear_cross_entropy(hidden, weight[a:b], t, bias=bias[a:b], shard=(a, b), order="any")
        for a, b in itertools.pairwise(cuts)
    ]
    np.random.default_rng(1).shuffle(states)
    merged = ExactLossState.merge_many(states)
    whole = osm.linear_cross_entropy(hidden, weight, t, bias=bias, order="any", return_lse=True)
    assert bits(merged.loss(), merged.lse) == bits(*whole)


def test_it_is_the_loss_of_the_logits() -> None:
    for dtype in FORMATS:
        hidden, weight, bias, t = operands(dtype)
        logits = defined(hidden, weight, bias)
        options = {"order": "any", "return_lse": True, "temperature": 1.4}
        made = osm.linear_cross_entropy(hidden, weight, t, bias=bias, **options)
        assert bits(*made) == bits(*osm.cross_entropy(logits, t, **options))


def test_the_golden_bits() -> None:
    """Of numbers that every machine makes alike: these hold on all of them."""
    found: list[Any] = []
    for dtype in (np.float32, np.float64, np.float16):
        hidden, weight, bias, t = operands(dtype, 801)
        found += osm.linear_cross_entropy(
            hidden, weight, t, bias=bias, order="any", return_lse=True, reduction="none", temperature=5.0
        )
    assert digest(*found) == "89e9941cc522acfda0d140a127c202df030c2fbd3cec9a45d3bd1446a1118d6e"


def test_what_is_not_built_is_refused_by_name() -> None:
    hidden, weight, _, t = operands()
    for options, words in (
        ({"order": "all"}, "order='all' is not built: 'row', 'any' would do"),
        ({"order": "any", "softcap": 2.0}, "softcap with order='any' is not built"),
        ({"order": "any", "riders": ("rank",)}, "riders with order='any' is not built"),
    ):
        with pytest.raises(ValueError, match=words):
            osm.linear_cross_entropy(hidden, weight, t, **options)
    for call in (
        lambda: osm.linear_cross_entropy_backward(1.0, hidden, weight, t, order="any"),
        lambda: osm.linear_cross_entropy_with_gradient(hidden, weight, t, order="any"),
    ):
        with pytest.raises(ValueError, match="order='any' is not built: 'row' would do"):
            call()
    with pytest.raises(ValueError, match="class probabilities with order='any'"):
        osm.linear_cross_entropy(hidden, weight, np.full((TOKENS, CLASSES), 1 / CLASSES), order="any")
