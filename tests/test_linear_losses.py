"""Linear cross-entropy against the reference: options, sizes, formats, strides, and the bits of results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from linear_cases import BF16, Case, all_pairs, check_gradients, check_loss, unit

import online_softmax as osm
from online_softmax import cpu, reference

#: Every two values of two options meet. The smaller memories make chunks of a few tokens, tiles of some
#: classes.
OPTIONS = all_pairs(
    {
        "kind": ["index", "ignored", "probabilities"],
        "dtype": [np.float32, BF16, np.float64, np.float16],
        "memory": [1 << 26, 10000, 16000],
        "reduction": ["mean", "none", "sum"],
        "bias": [False, True],
        "class_weight": [False, True],
        "row_weight": [False, True],
        "softcap": [None, 3.0],
        "temperature": [1.0, 0.7],
        "label_smoothing": [0.0, 0.1],
        "smoothing": ["pytorch", "megatron"],
        "z_loss": [0.0, 1e-2],
    }
)


def case_of(chosen: dict[str, Any], tokens: int = 23, classes: int = 70, features: int = 9) -> Case:
    parts = ("kind", "dtype", "bias", "class_weight", "row_weight")
    options = {name: value for name, value in chosen.items() if name not in (*parts, "memory")}
    return Case(tokens, classes, features, options=options, **{name: chosen[name] for name in parts})


def named(chosen: dict[str, Any]) -> str:
    return "-".join(getattr(value, "__name__", str(value)) for value in chosen.values())


@pytest.mark.parametrize("chosen", OPTIONS, ids=named)
@pytest.mark.parametrize("isa", cpu.isas())
def test_all_pairs_of_options(isa: str, chosen: dict[str, Any]) -> None:
    case = case_of(chosen)
    operands, more = (case.hidden, case.weight, case.targets), {"memory": chosen["memory"], "isa": isa}
    loss, lse = osm.linear_cross_entropy(*operands, return_lse=True, **case.arguments, **more)
    check_loss(case, loss, lse)
    check_loss(case, osm.linear_cross_entropy(*operands, **case.arguments, **more))
    dloss = np.linspace(-1, 2, case.tokens) if chosen["reduction"] == "none" else 1.5
    both = osm.linear_cross_entropy_with_gradient(*operands, dloss=dloss, **case.arguments, **more)
    check_loss(case, both.loss)
    check_gradients(case, both.gradients, dloss)
    dlse = np.linspace(-2, 1, case.tokens)
    for given in (None, dlse):
        made = osm.linear_cross_entropy_backward(dloss, *operands, dlse=given, **case.arguments, **more)
        check_gradients(case, made, dloss, given)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float64])
@pytest.mark.parametrize("tokens", [1, 7, 129])
@pytest.mark.parametrize(
    ("classes", "features"), [(1, 1), (2, 5), (17, 385), (513, 16), (1025, 33), (4099, 3)]
)
def test_sizes_around_every_block(dtype: Any, tokens: int, classes: int, features: int) -> None:
    case = Case(tokens, classes, features, dtype, bias=True, seed=classes)
    operands = (case.hidden, case.weight, case.targets)
    check_loss(case, *osm.linear_cross_entropy(*operands, return_lse=True, **case.arguments))
    both = osm.linear_cross_entropy_with_gradient(*operands, **case.arguments)
    check_loss(case, both.loss)
    check_gradients(case, both.gradients)


@pytest.mark.parametrize(
    ("hidden", "weight"),
    [
        (np.float32, BF16),
        (BF16, np.float32),
        (np.float16, BF16),
        (np.float64, np.float32),
        (BF16, np.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory", [1 << 26, 60000])
def test_formats_that_differ(hidden: Any, weight: Any, memory: int) -> None:
    case = Case(40, 300, 20, hidden, weight_dtype=weight, bias=True, kind="ignored")
    operands = (case.hidden, case.weight, case.targets)
    both = osm.linear_cross_entropy_with_gradient(*operands, **case.arguments, memory=memory)
    check_loss(case, both.loss)
    check_gradients(case, both.gradients)


def test_integers_are_doubles() -> None:
    hidden, weight = np.arange(-6, 6).reshape(4, 3), np.arange(15).reshape(5, 3) % 4
    loss = osm.linear_cross_entropy(hidden, weight, [0, 1, 2, 4])
    assert loss.dtype == np.float64
    right = reference.linear_cross_entropy(hidden, weight, [0, 1, 2, 4])
    assert abs(loss - right) <= 32 * unit(np.float64) * right
    made = osm.linear_cross_entropy_backward(1.0, hidden, weight, [0, 1, 2, 4])
    assert made.hidden.dtype == made.weight.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("kind", ["index", "ignored", "probabilities"])
def test_shapes_and_strides(dtype: Any, kind: str) -> None:
    case = Case(24, 65, 12, dtype, kind=kind)
    loss = osm.linear_cross_entropy(case.hidden, case.weight, case.targets, reduction="none")
    made = osm.linear_cross_entropy_backward(1.0, case.hidden, case.weight, case.targets)
    room = np.zeros((65, 36), dtype)
    room[::-1, ::3] = case.weight
    hidden = np.asfortranarray(case.hidden.reshape(2, 3, 4, 12))
    targets = case.targets.reshape(2, 3, 4, *case.targets.shape[1:])
    hidden.flags.writeable = targets.flags.writeable = False
    weight = room[::-1, ::3]
    other = osm.linear_cross_entropy(hidden, weight, targets, reduction="none")
    assert np.array_equal(other, loss.reshape(2, 3, 4))
    again = osm.linear_cross_entropy_backward(1.0, hidden, weight, targets)
    assert np.array_equal(again.hidden, made.hidden.reshape(2, 3, 4, 12))
    assert np.array_equal(again.weight, made.weight)
    lone = osm.linear_cross_entropy(case.hidden[1], weight, case.targets[1], return_lse=True)
    assert lone.loss == loss[1]
    assert lone.lse.shape == ()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("memory", [1 << 26, 300_000])
@pytest.mark.parametrize("isa", cpu.isas())
def test_bits_do_not_depend_on_threads(isa: str, memory: int, dtype: Any) -> None:
    case = Case(200, 1500, 40, dtype, kind="ignored", bias=True)
    operands = (case.hidden, case.weight, case.targets)
    found = []
    for threads in (1, 2, 5):
        more = {"memory": memory, "isa": isa, "threads": threads, **case.arguments}
        loss, lse = osm.linear_cross_entropy(*operands, return_lse=True, **more)
        both = osm.linear_cross_entropy_with_gradient(*operands, **more)
        found.append((loss, lse, both.loss, *both.gradients))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("isa", cpu.isas())
def test_a_row_knows_nothing_of_the_others(isa: str) -> None:
    case = Case(50, 5000, 30)
    whole = osm.linear_cross_entropy(case.hidden, case.weight, case.targets, reduction="none", isa=isa)
    for rows in (slice(0, 1), slice(3, 44), slice(49, 50)):
        part = osm.linear_cross_entropy(
            case.hidden[rows], case.weight, case.targets[rows], reduction="none", isa=isa
        )
        assert np.array_equal(part, whole[rows])


@pytest.mark.parametrize("riders", [("entropy",), ("rank", "correct"), ("entropy", "rank", "correct")])
@pytest.mark.parametrize("memory", [1 << 26, 20_000])
def test_riders_are_those_of_the_logits(riders: tuple[str, ...], memory: int) -> None:
    case = Case(31, 90, 8, np.float64, kind="ignored", bias=True)
    assert case.offset is not None
    logits = case.hidden @ case.weight.T + case.offset
    asked = {"riders": riders, "tokens": np.arange(62).reshape(31, 2) % 90}
    right = osm.cross_entropy(logits, case.targets, **asked)
    operands = (case.hidden, case.weight, case.targets)
    both = osm.linear_cross_entropy_with_gradient(*operands, bias=case.offset, memory=memory, **asked)
    alone = osm.linear_cross_entropy(*operands, bias=case.offset, memory=memory, **asked)
    for made in (alone, both.loss):
        for name in ("loss", "lse", "entropy", "log_probabilities"):
            got, value = getattr(made, name), getattr(right, name)
            assert (got is None) == (value is None)
            if value is not None:
                assert np.abs(got - value).max() <= 1e-13 * (1 + np.abs(value).max())
        for name in ("rank", "correct"):
            assert np.array_equal(getattr(made, name), getattr(right, name))


@pytest.mark.parametrize("fault", ["B175", "B176", "B177"])
def test_reported_faults(fault: str) -> None:
    if fault == "B175":
        # No gradient asked for, and the loss is there all the same.
        loss = osm.linear_cross_entropy(np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32), [0] * 4)
        assert abs(loss - np.log(3)) <= 2 * unit(np.float32) * np.log(3)
    elif fault == "B176":
        hidden, weight = np.ones((1, 1), np.float32), np.zeros((2, 1), np.float32)
        bias = np.array([0, 10], np.float32)
        loss = osm.linear_cross_entropy(hidden, weight, [0], bias=bias)
        assert abs(loss - 10.000045398899218) <= 4 * unit(np.float32) * 10
    else:
        case = Case(8192, 32, 128, ml_dtypes.bfloat16)
        for memory in (1 << 26, 1 << 20):
            made = osm.linear_cross_entropy_backward(
                1.0, case.hidden, case.weight, case.targets, memory=memory
            )
            check_gradients(case, made)
