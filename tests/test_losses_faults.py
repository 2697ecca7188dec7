"""Cross-entropy: faults reported of other libraries, each with the right value, and bad input one by one.

Ids (B...) name the reports, which are kept with the project's cases. B118, B119 and B120 are in
test_losses_layouts, B142 in test_losses_gradients.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from loss_cases import INF, NAN, Array, every_isa

import online_softmax as osm

U = 2.0**-24
LN2, LN3 = np.log(2.0), np.log(3.0)
LOSSES_1_3 = [[0.0, np.log(np.expm1(1.0))], [np.log(np.expm1(3.0)), 0.0]]
TWO = 2 + np.log1p(np.exp(-1) + np.exp(-2))  # -log p of the first of 1, 2, 3


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


@every_isa
@pytest.mark.parametrize(
    ("logits", "targets", "options", "expected"),
    [
        pytest.param([[1e8, 1e8]], [1], {}, LN2, id="B143"),
        pytest.param(np.full((1, 3), -1e20), [1], {}, LN3, id="B143 far below"),
        pytest.param(
            [[1, 2, 3]] * 3, [0, 255, 1], {"ignore_index": 255, "reduction": "none"}, [TWO, 0, TWO - 1],
            id="B162",
        ),
        pytest.param([[1, 2, 3]] * 3, [0, 255, 1], {"ignore_index": 255}, TWO - 0.5, id="B162 mean"),
        pytest.param([[5, 0], [0, 0]], [-100, 0], {}, LN2, id="B163"),
        pytest.param([[5, 0], [0, 0]], [-100, 0], {"reduction": "none"}, [0, LN2], id="B163 rows"),
        pytest.param([[1, 2, 3]], [[0.0, 0.0, 0.0]], {}, 0.0, id="B164"),
        pytest.param([[1, 2, 3]], [-1], {"ignore_index": -1, "reduction": "sum"}, 0.0, id="B164 ignored"),
        pytest.param([[0, 0], [3, 1]], [1, 0], {"ignore_index": 0}, LN2, id="B164 a class ignored"),
        pytest.param(LOSSES_1_3, [0, 1], {"weight": [1, 3]}, 2.5, id="B171"),
        pytest.param([[2, 0]] * 4, [0, 0, 0, 1], {}, 0.6269280110429726, id="B172"),
        pytest.param(np.zeros((4, 3)), [0] * 4, {}, LN3, id="B175"),
        pytest.param([[-INF, 0]], [[0.0, 1.0]], {}, 0.0, id="B178"),
        pytest.param([[-INF, 0]], [1], {}, 0.0, id="B178 index"),
        pytest.param([[0, 0, -INF]], [[0.5, 0.5, 0.0]], {}, LN2, id="B179"),
        pytest.param([[0, -INF]], [0], {}, 0.0, id="B180"),
        pytest.param([[0, -INF]], [0], {"label_smoothing": 0.1}, INF, id="B180 smoothed"),
        pytest.param([[0, -INF]], [0], {"label_smoothing": 0.1, "weight": [1, 0]}, 0.0, id="B180 weightless"),
        pytest.param([[0, -INF]], [1], {}, INF, id="a target without probability"),
        pytest.param([[0, -INF]], [1], {"weight": [1, 0], "reduction": "sum"}, 0.0, id="and without weight"),
        pytest.param([[0, INF]], [1], {}, NAN, id="+inf"),
        pytest.param([[-INF, -INF]], [0], {}, NAN, id="all -inf"),
        pytest.param([[NAN, 0], [0, 0]], [-100, 0], {"z_loss": 1.0}, LN2 + LN2**2, id="NaN is ignored"),
        pytest.param([[0, -100], [-16384, -16384], [0, -16384]], [1, 1, 1], {"reduction": "none"},
                     [100, LN2, 16384], id="B082 B044"),
    ],
)  # fmt: skip
def test_values_known_by_hand(
    isa: str, logits: Any, targets: Any, options: dict[str, Any], expected: Any
) -> None:
    for dtype, rtol in ((np.float32, 4 * U), (np.float64, 4 * 2.0**-53), (ml_dtypes.bfloat16, 2.0**-8)):
        given = np.array(logits, dtype)
        if dtype is ml_dtypes.bfloat16 and not np.array_equal(
            given.astype(np.float64), logits, equal_nan=True
        ):
            continue
        if dtype is not np.float64 and logits is LOSSES_1_3:
            rtol = rtol + 4 * U  # the logits are rounded
        got = osm.cross_entropy(given, targets, isa=isa, **options)
        np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=rtol, atol=0)
        both = osm.cross_entropy_with_gradient(given, targets, isa=isa, **options)
        np.testing.assert_array_equal(both.loss, got)


@every_isa
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_b091_b095_b166_b167_a_mean_over_nothing(isa: str, dtype: Any) -> None:
    empty = np.zeros((0, 10), dtype), np.zeros(0, int)
    assert osm.cross_entropy(*empty, reduction="none", isa=isa).shape == (0,)
    ignored = np.zeros((2, 3), dtype), np.array([-100, -100])
    for logits, targets in (empty, (np.zeros((0, 5, 4), dtype), np.zeros((0, 4), int)), ignored,
                            (np.zeros((4, 5, 0), dtype), np.zeros((4, 0), int))):  # fmt: skip
        assert np.isnan(osm.cross_entropy(logits, targets, isa=isa))
        assert osm.cross_entropy(logits, targets, empty="zero", isa=isa) == 0
        assert osm.cross_entropy(logits, targets, reduction="sum", isa=isa) == 0
        assert (osm.cross_entropy(logits, targets, reduction="none", isa=isa) == 0).all()
        for rule in ("nan", "zero"):
            dx = osm.cross_entropy_backward(1.0, logits, targets, empty=rule, isa=isa)
            np.testing.assert_array_equal(dx, np.zeros_like(logits))
            # B166: both in one call have the rule of each alone.
            both = osm.cross_entropy_with_gradient(logits, targets, empty=rule, isa=isa)
            np.testing.assert_array_equal(both.gradient, dx)
            np.testing.assert_array_equal(both.loss, osm.cross_entropy(logits, targets, empty=rule, isa=isa))
    assert np.isnan(osm.cross_entropy(np.zeros((0, 3), dtype), np.zeros((0, 3)), isa=isa))
    assert osm.cross_entropy(np.zeros((0, 3), dtype), np.zeros((0, 3)), empty="zero", isa=isa) == 0
    # All weights 0, or all row weights: 0/0 likewise.
    for weights in ({"weight": [0.0, 1.0]}, {"row_weight": 0.0}):
        one = np.array([[1, 2]], dtype), [0]
        assert np.isnan(osm.cross_entropy(*one, isa=isa, **weights))
        assert osm.cross_entropy(*one, empty="zero", isa=isa, **weights) == 0
        np.testing.assert_array_equal(
            osm.cross_entropy_backward(1.0, *one, empty="zero", isa=isa, **weights), [[0, 0]]
        )
    made = osm.cross_entropy(*empty, riders=("entropy", "rank"), tokens=np.zeros((0, 2), int), isa=isa)
    assert made.entropy.shape == made.rank.shape == made.lse.shape == (0,)
    assert made.log_probabilities.shape == (0, 2)


def test_b170_the_mean_of_indices_and_of_probabilities() -> None:
    logits, weight = np.random.default_rng(0).standard_normal((2, 3)), [25.0, 25.0, 100.0]
    rows = osm.cross_entropy(logits, [0, 2], reduction="none")
    total = 25 * rows[0] + 100 * rows[1]
    # PyTorch's two rules: the sum of the weights, and the number of rows.
    np.testing.assert_allclose(osm.cross_entropy(logits, [0, 2], weight=weight), total / 125, rtol=2.0**-50)
    by_row = osm.cross_entropy(logits, np.eye(3)[[0, 2]], weight=weight)
    np.testing.assert_allclose(by_row, total / 2, rtol=2.0**-50)


@every_isa
def test_b078_ignored_rows_hold_anything(isa: str) -> None:
    logits = f32([[NAN, 1], [0, 0], [INF, INF], [-INF, -INF]])
    made = osm.cross_entropy_with_gradient(logits, [-100, 0, -100, -100], isa=isa)
    np.testing.assert_allclose(made.loss, LN2, rtol=U)
    np.testing.assert_array_equal(made.gradient, [[0, 0], [-0.5, 0.5], [0, 0], [0, 0]])


# ---- labels out of range

FORWARD_AND_BACKWARD = (
    osm.cross_entropy,
    lambda logits, targets, **options: osm.cross_entropy_backward(1.0, logits, targets, **options),
    osm.cross_entropy_with_gradient,
)


@pytest.mark.parametrize(
    ("shape", "targets", "ignore", "place"),
    [
        pytest.param((3, 5), [0, 1, -4], -1, r"targets\[2\] = -4", id="B157"),
        pytest.param(
            (3, 2), [1, 2, 0], -100, r"targets\[1\] = 2 is out of range for 2 classes: 0 to 1", id="B160"
        ),
        pytest.param((1, 3), [-1], -100, r"targets\[0\] = -1", id="B164"),
        pytest.param((2, 3, 2), [[0, 1], [2, 3]], -100, r"targets\[1, 1\] = 3", id="two dimensions"),
        pytest.param((3,), 7, -100, "targets = 7", id="one row"),
        pytest.param((1, 3), np.array([2**63 + 1], np.uint64), -100, "9223372036854775809", id="uint64"),
        pytest.param(
            (1, 3), np.array([2**64 - 100], np.uint64), -100, "18446744073709551516", id="-100 as uint64"
        ),
        pytest.param((2, 300), np.array([-100, -128], np.int8), -100, r"targets\[1\] = -128", id="int8"),
        pytest.param((2, 3), [0, -100], 255, r"targets\[1\] = -100", id="the default is no longer ignored"),
        pytest.param((2, 3), [0, 3], 2**70, r"targets\[1\] = 3", id="an index past all integers"),
    ],
)
def test_labels_out_of_range(shape: tuple[int, ...], targets: Any, ignore: int, place: str) -> None:
    for call in FORWARD_AND_BACKWARD:
        with pytest.raises(IndexError, match=place):
            call(np.zeros(shape, np.float32), targets, ignore_index=ignore)


# ---- one wrong argument

X, T = np.zeros((2, 3), np.float32), np.array([0, 1])
P = np.full((2, 3), 1 / 3)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"logits": f32(0.0), "targets": 0}, ValueError, "logits has no dimensions"),
    ({"logits": np.zeros((2, 0), np.float32)}, ValueError, r"logits has shape \(2, 0\), without classes"),
    ({"logits": np.zeros(0), "targets": 0}, ValueError, r"logits has shape \(0,\), without classes"),
    ({"logits": X * 1j}, TypeError, "logits is complex64"),
    ({"logits": np.ma.array(X)}, TypeError, "logits is a masked array"),
    ({"logits": [["a", "b"]], "targets": [0]}, TypeError, "logits holds <U1"),
    ({"logits": X.astype(object)}, TypeError, "logits holds object"),
    ({"logits": [[0.0], [0.0, 1.0]]}, ValueError, "logits could not be read"),
    ({"targets": [0]}, ValueError, r"targets has shape \(1,\): \(2,\) would do"),
    ({"targets": [[0], [1]]}, ValueError, r"targets has shape \(2, 1\)"),
    ({"targets": 0}, ValueError, r"targets has shape \(\)"),
    ({"targets": [0.0, 1.0]}, ValueError, r"targets has shape \(2,\) and holds float64: \(2, 3\)"),
    ({"targets": P.T}, ValueError, r"targets has shape \(3, 2\)"),
    ({"targets": [True, False]}, TypeError, "targets holds bool: integers"),
    ({"targets": P > 0}, TypeError, "targets holds bool"),
    ({"targets": np.array([0, 1]) * 1j}, TypeError, "targets is complex128"),
    ({"targets": ["0", "1"]}, TypeError, "targets holds <U1"),
    ({"targets": None}, TypeError, "targets holds object"),
    ({"targets": np.ma.array([0, 1], mask=[0, 1])}, TypeError, "targets is a masked array"),
    ({"targets": [[0.5, 0.5, 0], [0.5, -1e-9, 0.5]]}, ValueError, r"targets\[1, 1\] is -1e-09: prob"),
    ({"targets": [[0.5, 0.5, 0], [0.5, 0, -INF]]}, ValueError, r"targets\[1, 2\] is -inf"),
    ({"targets": P, "ignore_index": 0}, ValueError, "ignore_index is 0: class probabilities have no index"),
    ({"weight": [1.0]}, ValueError, r"weight has shape \(1,\): \(3,\), one for each class"),
    ({"weight": 2.0}, ValueError, r"weight has shape \(\)"),
    ({"weight": np.ones((3, 1))}, ValueError, r"weight has shape \(3, 1\)"),
    ({"weight": [1.0, NAN, 1.0]}, ValueError, r"weight\[1\] is nan"),
    ({"weight": [1.0, 1.0, INF]}, ValueError, r"weight\[2\] is inf"),
    ({"weight": ["a"] * 3}, TypeError, "weight holds <U1"),
    ({"weight": np.ones(3) * 1j}, TypeError, "weight is complex128"),
    ({"weight": np.ma.array([1, 1, 1])}, TypeError, "weight is a masked array"),
    ({"row_weight": [1.0, 2.0, 3.0]}, ValueError, r"row_weight has shape \(3,\): .* broadcasts to \(2,\)"),
    ({"row_weight": np.ones((2, 1))}, ValueError, r"row_weight has shape \(2, 1\)"),
    ({"row_weight": "ab"}, TypeError, "row_weight holds <U2"),
    ({"ignore_index": 0.5}, TypeError, "ignore_index is 0.5: an integer"),
    ({"ignore_index": None}, TypeError, "ignore_index is None"),
    ({"ignore_index": True}, TypeError, "ignore_index is True"),
    ({"label_smoothing": -0.1}, ValueError, "label_smoothing is -0.1: from 0 on and below 1"),
    ({"label_smoothing": 1.0}, ValueError, "label_smoothing is 1.0"),
    ({"label_smoothing": 1}, ValueError, "label_smoothing is 1:"),
    ({"label_smoothing": NAN}, ValueError, "label_smoothing is nan"),
    ({"label_smoothing": None}, TypeError, "label_smoothing is None"),
    ({"label_smoothing": True}, TypeError, "label_smoothing is True"),
    ({"label_smoothing": "0.1"}, TypeError, "label_smoothing is '0.1'"),
    ({"label_smoothing": 0.9, "smoothing": "megatron"}, ValueError, "label_smoothing is 0.9 with smoothing="),
    ({"smoothing": "torch"}, ValueError, "smoothing is 'torch': 'pytorch', 'megatron' would do"),
    ({"smoothing": None}, ValueError, "smoothing is None"),
    ({"z_loss": NAN}, ValueError, "z_loss is nan"),
    ({"z_loss": INF}, ValueError, "z_loss is inf"),
    ({"z_loss": [0.1]}, TypeError, r"z_loss is \[0.1\]"),
    ({"softcap": 0}, ValueError, "softcap is 0: a positive number would do, None for no cap"),
    ({"softcap": 0.0}, ValueError, "softcap is 0.0"),
    ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
    ({"softcap": NAN}, ValueError, "softcap is nan"),
    ({"softcap": 10**400}, ValueError, "softcap is a number past the range"),
    ({"softcap": "30"}, TypeError, "softcap is '30'"),
    ({"temperature": 0}, ValueError, "temperature is 0: a positive number"),
    ({"temperature": -1.0}, ValueError, "temperature is -1.0"),
    ({"temperature": NAN}, ValueError, "temperature is nan"),
    ({"temperature": INF}, ValueError, "temperature is inf"),
    ({"temperature": 1e-320}, ValueError, "temperature is 1e-320"),
    ({"temperature": 1e-39}, ValueError, "temperature is 1e-39: .* whose inverse float32 holds"),
    ({"temperature": None}, TypeError, "temperature is None"),
    ({"reduction": "avg"}, ValueError, "reduction is 'avg': 'none', 'mean', 'sum' would do"),
    ({"reduction": None}, ValueError, "reduction is None"),
    ({"empty": "one"}, ValueError, "empty is 'one': 'nan', 'zero' would do"),
    ({"axis": 2}, IndexError, "axis=2 is out of range for 2 dimensions"),
    ({"axis": -3}, IndexError, "axis=-3"),
    ({"axis": (0, 1)}, TypeError, r"axis=\(0, 1\)"),
    ({"axis": 1.0}, TypeError, "axis=1.0"),
    ({"axis": True}, TypeError, "axis=True is a bool"),
    ({"axis": 0}, ValueError, r"targets has shape \(2,\): \(3,\) would do"),
    ({"isa": "sse9"}, ValueError, "sse9"),
    ({"threads": 0}, ValueError, "threads"),
    ({"threads": 1.5}, TypeError, "threads"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "words"), WRONG, ids=[str(list(w[0].items()))[:50] for w in WRONG]
)
def test_one_wrong_argument(change: dict[str, Any], error: type[Exception], words: str) -> None:
    """The error names the argument, and the memory for the gradient is as it was."""
    call = {"logits": X, "targets": T} | change
    options = {k: v for k, v in call.items() if k not in ("logits", "targets")}
    out = np.full((2, 3), 7, np.float32)
    with pytest.raises(error, match=words):
        osm.cross_entropy(**call)
    with pytest.raises(error, match=words):
        osm.cross_entropy_backward(1.0, call["logits"], call["targets"], out=out, **options)
    with pytest.raises(error, match=words):
        osm.cross_entropy_with_gradient(**call, out=out)
    assert (out == 7).all()


def read_only() -> Array:
    made = np.zeros((2, 3), np.float32)
    made.flags.writeable = False
    return made


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.zeros((3, 2), np.float32), ValueError, r"out has shape \(3, 2\)"),
        (np.zeros((2, 4), np.float32), ValueError, r"out has shape \(2, 4\)"),
        (np.zeros((2, 3)), TypeError, "out is float64: the format of the result, float32"),
        (np.zeros((2, 3), np.float16), TypeError, "out is float16"),
        (np.zeros((2, 3), np.int32), TypeError, "out is int32"),
        (read_only(), ValueError, "out is read-only"),
        ([[0.0] * 3] * 2, TypeError, "out is a list"),
        (np.ma.array(np.zeros((2, 3), np.float32)), TypeError, "out is a MaskedArray"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (2, 3), (0, 4)),
            ValueError,
            "out has strides",
        ),
    ],
)
def test_wrong_memory_for_the_gradient(out: Any, error: type[Exception], words: str) -> None:
    for call in (
        lambda: osm.cross_entropy_backward(1.0, X, T, out=out),
        lambda: osm.cross_entropy_with_gradient(X, T, out=out),
    ):
        with pytest.raises(error, match=words):
            call()
    assert (np.asarray(out) == 0).all()


def test_memory_for_the_gradient_that_is_also_read() -> None:
    room = np.random.default_rng(0).uniform(0, 1, 40).astype(np.float32)
    before = room.copy()
    logits = room[:12].reshape(3, 4)
    targets = np.array([0, 1, 2])
    wrong = (
        (room[1:13].reshape(3, 4), "out overlaps x in part", {}),
        (logits[::-1], "out overlaps x in part", {}),
        (room[12:24].reshape(3, 4), "out overlaps targets", {"targets": room[12:24].reshape(3, 4)}),
        (room[12:24].reshape(3, 4), "out overlaps targets", {"targets": room[14:26].reshape(3, 4)}),
        (room[12:24].reshape(3, 4), "out overlaps kl_to", {"kl_to": room[12:24].reshape(3, 4)}),
        (logits, "out overlaps kl_to", {"kl_to": room[2:14].reshape(3, 4)}),
        (logits, "out overlaps kl_to", {"kl_to": logits}),
    )
    for out, words, change in wrong:
        with pytest.raises(ValueError, match=words):
            osm.cross_entropy_with_gradient(**{"logits": logits, "targets": targets, **change}, out=out)
    wide = np.random.default_rng(0).uniform(0, 1, (4, 4))
    with pytest.raises(ValueError, match="out overlaps weight"):
        osm.cross_entropy_backward(1.0, np.zeros((3, 4)), targets, weight=wide[1], out=wide[:3])
    np.testing.assert_array_equal(room, before)


def test_errors_leave_logits_given_as_out_untouched() -> None:
    """In place, and the last argument is wrong."""
    logits = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    before = logits.copy()
    for change in ({"dloss": np.ones(3)}, {"riders": ("no",)}, {"kl_to": np.zeros(3)}, {"tokens": [[5], [0]]},
                   {"isa": "sse9"}, {"threads": -1}, {"dloss": "1"}):  # fmt: skip
        with pytest.raises((TypeError, ValueError, IndexError)):
            osm.cross_entropy_with_gradient(logits, T, out=logits, **change)
        np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_upstream_that_is_not_finite_stays_in_its_row(value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    targets = np.array([0, 1, -100, 3])
    dloss = np.array([1.0, value, value, 1.0])
    for options in ({}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 2.0}):
        made = osm.cross_entropy_backward(dloss, logits, targets, reduction="none", **options)
        assert not np.isfinite(made[1]).any()
        assert (made[2] == 0).all()
        assert np.isfinite(made[[0, 3]]).all()


def test_numbers_of_other_kinds_that_are_fine() -> None:
    want = osm.cross_entropy(
        X + f32([1, 2, 3]), T, label_smoothing=0.25, z_loss=0.5, softcap=2, temperature=4
    )
    got = osm.cross_entropy(
        X + f32([1, 2, 3]), T, label_smoothing=np.float32(0.25), z_loss=np.float16(0.5), softcap=np.int8(2),
        temperature=np.float64(4), ignore_index=np.int16(-100), axis=np.int64(-1),
    )  # fmt: skip
    assert got == want
    assert osm.cross_entropy(X, T, weight=[1, 2, 3]) == osm.cross_entropy(X, T, weight=np.array([1.0, 2, 3]))
    assert osm.cross_entropy(X, T, row_weight=[True, False]) == osm.cross_entropy(X, T, row_weight=[1.0, 0.0])
    # A cap so great that it caps nothing.
    assert osm.cross_entropy(X, T, softcap=1e300) == osm.cross_entropy(X, T)


@every_isa
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_ignored_rows_have_gradient_0_whatever_is_asked_beside(isa: str, dtype: Any) -> None:
    """Their logits are read then, and a softcap's slope at NaN is NaN."""
    logits = np.array([[NAN, 1], [0, 0], [NAN, NAN], [1, -INF]], dtype)
    targets = [-100, 0, -100, -100]
    for options in ({"softcap": 5.0}, {"softcap": 5.0, "temperature": 2.0}, {"temperature": 2.0}, {}):
        for beside in ({"return_lse": True}, {"riders": ("entropy",)}, {"kl_to": logits}, {}):
            made = osm.cross_entropy_with_gradient(logits, targets, isa=isa, **options, **beside)
            alone = osm.cross_entropy_backward(1.0, logits, targets, isa=isa, **options)
            np.testing.assert_array_equal(made.gradient, alone)
            assert (made.gradient[[0, 2, 3]] == 0).all()


def test_numbers_past_a_format_warn_of_nothing() -> None:
    """Warnings are errors here."""
    for weights in ({"row_weight": 1e308}, {"row_weight": [INF, -INF]}, {"weight": [1e308] * 3},
                    {"weight": [1e200] * 3, "row_weight": 1e200}):  # fmt: skip
        assert not np.isfinite(osm.cross_entropy(X, T, **weights))
        parts = osm.cross_entropy(X, T, **weights, shard=(0, 3))
        assert not np.isfinite(parts.loss())
    far = f32([[3e38, -3e38]])
    assert osm.cross_entropy(far, [1], tokens=[[1]]).log_probabilities == -INF
    assert osm.cross_entropy(far, [1], shard=(0, 2), temperature=1e-30).lse == INF


def test_numbers_of_classes_that_lie_where_the_gradient_goes() -> None:
    """Writing there must not change what has been checked."""
    room, logits = np.zeros((4, 8)), np.random.default_rng(0).standard_normal((4, 8))
    want = osm.cross_entropy_with_gradient(logits, [0, 1, 2, 3], tokens=[[1, 2]] * 4)
    for name, place in (("targets", room.reshape(-1)[:4]), ("tokens", room.reshape(-1)[:8].reshape(4, 2))):
        numbers = place.view(np.int64)
        numbers[...] = [0, 1, 2, 3] if name == "targets" else [1, 2]
        given = {"targets": [0, 1, 2, 3], "tokens": [[1, 2]] * 4} | {name: numbers}
        got = osm.cross_entropy_with_gradient(logits, **given, out=room)
        np.testing.assert_array_equal(got.loss.log_probabilities, want.loss.log_probabilities)
        np.testing.assert_array_equal(got.gradient, want.gradient)
