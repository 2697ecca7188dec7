"""cross_entropy with order="any": bits for any cut, order and layout, and the values of the formulas."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_loss_cases import CLASSES, CUTS, OPTIONS, ROWS, Array, bits, case, digest, upstream

import online_softmax as osm
from online_softmax import ExactLossState, LossState, cpu, exact

FORMATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
every_format = pytest.mark.parametrize("dtype", FORMATS)


def part(options: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    weight = options.get("weight")
    return options if weight is None else options | {"weight": weight[start:stop]}


def shards(x: Array, t: Array, cuts: tuple[int, ...], options: dict[str, Any]) -> list[Any]:
    return [
        osm.cross_entropy(x[:, a:b], t, shard=(a, b), order="any", **part(options, a, b))
        for a, b in itertools.pairwise(cuts)
    ]


def whole_of(x: Array, t: Array, options: dict[str, Any]) -> bytes:
    made = osm.cross_entropy_with_gradient(
        x, t, return_lse=True, order="any", dloss=upstream(options), **options
    )
    return bits(*made.loss, made.gradient)


# ---- bits


@every_format
@every_option
@pytest.mark.parametrize("cuts", CUTS, ids=lambda c: f"{len(c) - 1} parts")
def test_parts_of_the_classes_give_the_bits_of_the_whole(
    dtype: Any, options: dict[str, Any], cuts: tuple[int, ...]
) -> None:
    x, t = case(dtype)
    states = shards(x, t, cuts, options)
    expected = whole_of(x, t, options)
    for seed in range(3):
        np.random.default_rng(seed).shuffle(states)
        merged = ExactLossState.merge_many(states)
        given = {"state": merged, "order": "any"}
        gradient = [
            osm.cross_entropy_backward(
                upstream(options), x[:, a:b], t, shard=(a, b), **given, **part(options, a, b)
            )
            for a, b in itertools.pairwise(cuts)
        ]  # fmt: skip
        assert bits(merged.loss(classes=CLASSES), merged.lse, np.concatenate(gradient, 1)) == expected


def test_merges_are_associative_and_commutative_in_bits() -> None:
    x, t = case()
    a, b, c = shards(x, t, (0, 50, 51, CLASSES), {})
    trees = [p.merge(q).merge(r) for p, q, r in itertools.permutations((a, b, c))]
    trees += [p.merge(q.merge(r)) for p, q, r in itertools.permutations((a, b, c))]
    assert len({bits(s.state.m, s.state.a, s.target, s.lse, s.loss()) for s in trees}) == 1


@every_format
@every_option
def test_the_order_of_classes_and_rows_does_not_matter(dtype: Any, options: dict[str, Any]) -> None:
    x, t = case(dtype)
    shuffled = np.random.default_rng(4).permutation(CLASSES)
    back = np.argsort(shuffled)
    options = {k: v for k, v in options.items() if k != "ignore_index"}
    turned = options | ({"weight": options["weight"][shuffled]} if "weight" in options else {})
    d = upstream(options)
    there = osm.cross_entropy_with_gradient(x[:, shuffled], back[t], order="any", dloss=d, **turned)
    here = osm.cross_entropy_with_gradient(x, t, order="any", dloss=d, **options)
    assert bits(there.loss, there.gradient[:, back]) == bits(here.loss, here.gradient)
    rows = np.random.default_rng(5).permutation(ROWS)
    if "row_weight" in options:
        options = options | {"row_weight": options["row_weight"][rows]}
    again = osm.cross_entropy(x[rows], t[rows], order="any", **options)
    assert bits(again) == bits(here.loss[rows] if options.get("reduction") == "none" else here.loss)


@every_option
def test_threads_and_instruction_sets_do_not_matter(options: dict[str, Any]) -> None:
    x, t = case()
    expected = whole_of(x, t, options)
    for isa in cpu.isas():
        for threads in (1, 2, 5):
            made = osm.cross_entropy_with_gradient(
                x,
                t,
                return_lse=True,
                order="any",
                dloss=upstream(options),
                isa=isa,
                threads=threads,
                **options,
            )
            assert bits(*made.loss, made.gradient) == expected


@every_format
def test_layouts_give_the_same_bits(dtype: Any) -> None:
    x, t = case(dtype)
    x, t = np.stack([x, x[:, ::-1]]).transpose(0, 2, 1), np.stack([t, t])  # (2, classes, rows)
    x = np.ascontiguousarray(x)
    options = {"temperature": 0.7, "order": "any"}
    loss, gradient = osm.cross_entropy_with_gradient(x, t, **options)
    assert gradient.dtype == x.dtype
    wide = np.zeros((2, CLASSES, 3 * ROWS), x.dtype)
    wide[..., ::3] = x
    swapped = x.astype(x.dtype.newbyteorder()) if x.dtype.kind == "f" else x
    for laid in (np.asfortranarray(x), wide[..., ::3], x[:, :, ::-1].copy()[:, :, ::-1], swapped):
        made = osm.cross_entropy_with_gradient(laid, t, **options)
        assert bits(made.loss, made.gradient) == bits(loss, gradient)
    moved = osm.cross_entropy_with_gradient(x.transpose(0, 2, 1), t, axis=-1, **options)
    assert bits(moved.loss, moved.gradient.transpose(0, 2, 1)) == bits(loss, gradient)
    apart = np.empty_like(wide)[..., ::3]
    assert osm.cross_entropy_backward(1.0, x, t, out=apart, **options) is apart
    assert bits(apart) == bits(gradient)
    place = x.copy()
    assert osm.cross_entropy_with_gradient(place, t, out=place, **options).gradient is place
    assert bits(place) == bits(gradient)


def test_rows_that_are_worked_on_in_pieces_give_the_bits_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = case()
    x, t = np.stack([x, 2 * x, -x]), np.stack([t, t[::-1], t])
    options = {"axis": 2, "order": "any", "reduction": "none", "temperature": 0.9}
    loss = osm.cross_entropy(x, t, **options)
    gradient = osm.cross_entropy_backward(1.0, x, t, **options)
    for size in (1, 2 * CLASSES, 7 * CLASSES, 100 * CLASSES):
        monkeypatch.setattr("online_softmax.frontends.exact_rows.PIECE", size)
        monkeypatch.setattr("online_softmax.frontends.exact_rows.CACHED", size)
        assert bits(osm.cross_entropy(x, t, **options)) == bits(loss)
        assert bits(osm.cross_entropy_backward(1.0, x, t, **options)) == bits(gradient)
    one = osm.cross_entropy(x[1, 2], t[1, 2], order="any", temperature=0.9)
    assert bits(one) == bits(loss[1, 2])
    assert bits(osm.cross_entropy_backward(1.0, x[1, 2], t[1, 2], order="any", temperature=0.9)) == bits(
        gradient[1, 2]
    )


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_narrow_logits_are_their_upcast_rounded_once(narrow: Any) -> None:
    x, t = case(narrow, 3.0)
    wide = osm.cross_entropy_with_gradient(x.astype(np.float32), t, order="any", temperature=0.7)
    made = osm.cross_entropy_with_gradient(x, t, order="any", temperature=0.7)
    assert bits(made.loss, made.gradient) == bits(wide.loss, wide.gradient.astype(narrow))


@every_format
def test_the_loss_is_minus_the_log_probability_of_the_state(dtype: Any) -> None:
    x, t = case(dtype)
    wide = x.astype(exact.format_of(x.dtype).dtype)
    logs = osm.log_softmax(wide, order="any")[np.arange(ROWS), t]
    made = osm.cross_entropy(x, t, order="any", reduction="none", return_lse=True)
    assert np.array_equal(made.loss, -logs)
    assert bits(made.lse) == bits(osm.logsumexp(wide, -1, order="any"))


def test_the_golden_bits() -> None:
    """Of numbers that every machine makes alike: these hold on all of them."""
    found = []
    for dtype in (np.float32, np.float64):
        x, t = case(dtype)
        for options in OPTIONS.values():
            made = osm.cross_entropy_with_gradient(
                x, t, return_lse=True, order="any", dloss=upstream(options), **options
            )
            found += [*made.loss, made.gradient]
    assert digest(*found) == "a6ad5a36e9757ad60d2329b912273bbf7baa0d626ee22ea426a45ed9e8d270e2"


CHILD = """
import sys
import numpy as np
import online_softmax as osm
from exact_loss_cases import OPTIONS, case, digest, upstream
if sys.argv[1] == "flush":
    import torch
    assert torch.set_flush_denormal(True)
    assert float(np.float32(1e-40) * np.float32(1)) == 0
found = []
for dtype in (np.float32, np.float64):
    least = float(np.finfo(dtype).tiny)
    x, t = case(dtype, 40.0)
    x[2, :40] = least / 4 * np.arange(40)
    for options in OPTIONS.values():
        for scale in (1.0, least * 1e3):
            d = np.asarray(upstream(options)) * scale
            made = osm.cross_entropy_with_gradient(x, t, order="any", return_lse=True, dloss=d, **options)
            drawn = osm.sample(x, order="any", top_p=0.9, temperature=0.7)
            found += [*made.loss, made.gradient, *drawn]
print(digest(*found))
"""


def test_flushing_subnormal_numbers_changes_nothing() -> None:
    pytest.importorskip("torch")
    found = []
    for mode in ("keep", "flush"):
        paths = os.pathsep.join((str(Path(osm.__file__).parents[1]), str(Path(__file__).parent)))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, mode],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]


# ---- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "none"}, "order='none' is not built: 'row', 'any' would do"),
        ({"softcap": 3.0}, "softcap with order='any'"),
        ({"riders": ("entropy",)}, "riders with order='any'"),
        ({"kl_to": np.zeros((2, 3), np.float32)}, "kl_to with order='any'"),
        ({"temperature": 1e-38}, "temperature is 1e-38"),
    ],
)
def test_what_is_not_built_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    x, t = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=words):
        osm.cross_entropy(x, t, **({"order": "any"} | options))


def test_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="targets holds class probabilities with order='any'"):
        osm.cross_entropy(np.zeros((2, 3), np.float32), np.full((2, 3), 1 / 3), order="any")
    with pytest.raises(TypeError, match="order=3 is a int"):
        osm.cross_entropy(np.zeros((2, 3), np.float32), np.zeros(2, np.int64), order=3)  # type: ignore[arg-type]


def test_kinds_of_states_do_not_mix() -> None:
    x, t = case()
    exactly = osm.cross_entropy(x[:, :9], t, shard=(0, 9), order="any")
    plain = osm.cross_entropy(x[:, 9:], t, shard=(9, CLASSES))
    assert isinstance(plain, LossState)
    assert not isinstance(exactly, LossState)
    with pytest.raises(TypeError, match="other is a LossState: an ExactLossState"):
        exactly.merge(plain)
    with pytest.raises(TypeError, match="other is a ExactLossState: a LossState"):
        plain.merge(exactly)
    with pytest.raises(TypeError, match=r"states\[0\] is a LossState"):
        ExactLossState.merge_many([plain, exactly])
    with pytest.raises(ValueError, match="states is empty"):
        ExactLossState.merge_many([])
    whole = osm.cross_entropy(x, t, shard=(0, CLASSES))
    with pytest.raises(TypeError, match="state is a LossState: the merged ExactLossState"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), state=whole, order="any")
    exactly = osm.cross_entropy(x, t, shard=(0, CLASSES), order="any")
    with pytest.raises(TypeError, match="state is an ExactLossState"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), state=exactly)
    with pytest.raises(TypeError, match="state is missing"):
        osm.cross_entropy_backward(1.0, x, t, shard=(0, CLASSES), order="any")
    with pytest.raises(TypeError, match="shard is missing"):
        osm.cross_entropy_backward(1.0, x, t, state=exactly, order="any")
    with pytest.raises(TypeError, match="state is of float32 scores: float64"):
        osm.cross_entropy_backward(
            1.0, x.astype(np.float64), t, shard=(0, CLASSES), state=exactly, order="any"
        )


def test_states_of_other_rows_or_classes_are_refused() -> None:
    x, t = case()
    first, second, third = shards(x, t, (0, 50, 100, CLASSES), {})
    with pytest.raises(ValueError, match="classes 50 to 100 are missing"):
        first.merge(third).loss()
    with pytest.raises(ValueError, match="of which 0 to 50 are in this one too"):
        first.merge(first)
    with pytest.raises(ValueError, match="classes is 300"):
        ExactLossState.merge_many([first, second, third]).loss(classes=300)
    with pytest.raises(IndexError, match="is none of the 50 classes"):
        first.loss()
    other = osm.cross_entropy(x[:, 50:], t, shard=(50, CLASSES), order="any", temperature=2.0)
    with pytest.raises(ValueError, match=r"temperature=2\.0"):
        first.merge(other)
    wide = osm.cross_entropy(x[:, 50:].astype(np.float64), t, shard=(50, CLASSES), order="any")
    with pytest.raises(ValueError, match="float64"):
        first.merge(wide)
