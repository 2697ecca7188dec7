"""Each law holds where it should, and says what is wrong where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from online_softmax.conformance.cases import Case, Outcome, Point
from online_softmax.conformance.judge import FACTOR, PART, PLAIN, Judgement, against_peers, judge
from online_softmax.conformance.recipes import DTYPES

NAN, INF = np.nan, np.inf
BF16 = DTYPES["bfloat16"]


def case(
    law: str = "value", verdict: str = "must", op: str = "softmax", dtype: str = "float32", **more: Any
) -> Case:
    return Case(
        id=f"{op}/made", op=op, dtype=dtype, verdict=verdict, law=law, reason="-", tags=(), sources=(),
        inputs={}, options={}, sweep={}, expected={}, **more,
    )  # fmt: skip


def point(x: Any, dtype: Any = np.float32, **options: Any) -> Point:
    return Point("", {"x": np.asarray(x, dtype)}, {}, options)


def y(values: Any, dtype: Any = np.float32, **more: Any) -> Outcome:
    return Outcome({"y": np.asarray(values, dtype)}, **more)


TWO = point([0.0, 0.0])


def test_the_right_value_passes_with_its_ratio() -> None:
    assert judge(case(), TWO, y([0.5, 0.5])) == Judgement(
        True, ratio=0.0, unit=judge(case(), TWO, y([0.5, 0.5])).unit
    )
    near = judge(case(), TWO, y([np.nextafter(np.float32(0.5), 1), 0.5]))
    assert near.ok
    assert 0 < near.ratio < 1
    assert 0 < near.unit < 1


@pytest.mark.parametrize(
    ("x", "got", "problem"),
    [
        ([0, 0], [0.5, 0.6], "y at [1] is 0.6000000238418579, and has to be 0.5, off by 0.1 where"),
        ([0, 0], [0.5, NAN], "y at [1] is nan, and has to be 0.5, 1 of 2 wrong"),
        ([NAN, 0], [NAN, 0], "y at [1] is 0.0, and has to be nan"),
        ([INF, 0], [1, 0], "y at [0] is 1.0, and has to be nan"),
        ([0, 0], [0.5, INF], "y at [1] is inf, and has to be 0.5"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(x: list[float], got: list[float], problem: str) -> None:
    found = judge(case(), point(x), y(got))
    assert not found.ok
    assert found.problem.startswith(problem)


def test_a_nan_in_place_of_a_number_is_not_lost_in_a_loose_comparison() -> None:
    """B046: a comparison with NaN is false, and must not count as close."""
    assert not judge(case(), TWO, y([NAN, NAN])).ok
    assert not judge(case(), point([NAN, 1.0]), y([0.3, 0.7])).ok
    assert judge(case(), point([NAN, 1.0]), y([NAN, NAN])).ok


def test_shape_and_format_count() -> None:
    assert judge(case(), TWO, y([[0.5, 0.5]])).problem == "y has shape (1, 2), and has to have (2,)"
    assert judge(case(), TWO, y([0.5, 0.5], np.float64)).problem == "y is float64, and has to be float32"
    narrow = point([0, 0], np.float16)
    assert (
        judge(case(dtype="float16"), narrow, y([0.5, 0.5], np.float32)).problem
        == "y is float32, and has to be float16"
    )
    of_lse = Outcome({"lse": np.float32(np.log(2))})
    assert judge(case(op="logsumexp", dtype="float16"), narrow, of_lse).ok  # statistics may be wider


def test_infinities_keep_their_sign() -> None:
    lse = case(op="logsumexp")
    assert judge(lse, point([-INF, -INF]), Outcome({"lse": np.float32(-INF)})).ok
    assert not judge(lse, point([-INF, -INF]), Outcome({"lse": np.float32(INF)})).ok
    assert not judge(lse, point([-INF, -INF]), Outcome({"lse": np.float32(NAN)})).ok
    # 65504 + log 2 lies within the rounding of float16's largest number, 65536 does not.
    top = point([65504, 65504], np.float16)
    assert judge(case(op="logsumexp", dtype="float16"), top, Outcome({"lse": np.float16(65504)})).ok
    assert not judge(case(op="logsumexp", dtype="float16"), top, Outcome({"lse": np.float16(-INF)})).ok


def test_what_the_subject_did_instead_is_said() -> None:
    assert judge(case(), TWO, Outcome(error="ValueError", message="no")).problem == "raised ValueError: no"
    assert judge(case(), TWO, Outcome(error="crash", message="SIGSEGV")).problem == "crash: SIGSEGV"
    assert judge(case(), TWO, replace(y([0.5, 0.5]), changed=("x",))).problem == "changed its input x"
    # A crash fails a free case too: it is no convention.
    assert not judge(case(verdict="free"), TWO, Outcome(error="crash", message="SIGSEGV")).ok
    assert not judge(case("raises"), TWO, Outcome(error="timeout", message="20 s")).ok


def test_a_call_that_has_to_raise() -> None:
    assert judge(case("raises"), TWO, Outcome(error="IndexError", message="axis 2")).ok
    assert (
        judge(case("raises"), TWO, y([0.5, 0.5])).problem == "returned y = [0.5, 0.5] where it had to raise"
    )


@pytest.mark.parametrize(
    ("law", "good", "bad"),
    [
        ("finite", [0.5, 0.5], [0.5, NAN]),
        ("nan", [NAN, NAN], [NAN, 0]),
        ("zeros", [0, -0.0], [0, 1e-30]),
        ("distribution", [0.25, 0.75], [0.5, 0.6]),
        ("distribution", [0, 1], [-0.5, 1.5]),
        ("sums_to_one", [0.5, 0.5], [0.5, 0.5001]),
    ],
)
def test_laws_about_all_elements(law: str, good: list[float], bad: list[float]) -> None:
    assert judge(case(law), TWO, y(good)).ok
    assert not judge(case(law), TWO, y(bad)).ok
    assert not judge(case(law, "must_not"), TWO, y(good)).ok
    assert judge(case(law, "must_not"), TWO, y(bad)).ok
    assert judge(case(law, "must_not"), TWO, Outcome(error="ValueError")).ok
    assert [judge(case(law, "free"), TWO, y(values)).recorded for values in (good, bad)] == ["yes", "no"]


def test_one_of_several_conventions_is_recorded_by_name() -> None:
    allowed = ({"name": "strict", "y": [NAN, NAN]}, {"name": "limit", "y": [1.0, 0.0]})
    at = point([INF, 0.0])
    assert judge(case("one_of", "free", allowed=allowed), at, y([1, 0])).recorded == "limit"
    assert judge(case("one_of", "free", allowed=allowed), at, y([NAN, NAN])).recorded == "strict"
    assert judge(case("one_of", "free", allowed=allowed), at, y([NAN, 0])).recorded == "other"
    assert (
        judge(case("one_of", "free", allowed=allowed), at, Outcome(error="ValueError")).recorded
        == "raises ValueError"
    )
    assert judge(case("one_of", allowed=allowed), at, y([1, 0])).ok
    assert judge(case("one_of", allowed=allowed), at, y([NAN, 0])).problem.endswith(
        "none of what is allowed: strict, limit"
    )


@pytest.mark.parametrize("law", ["repeatable", "threads", "batch_invariant"])
def test_the_same_bits(law: str) -> None:
    same = replace(y([0.5, NAN], BF16), several=({"y": np.asarray([0.5, NAN], BF16)},))
    assert judge(case(law, dtype="bfloat16"), TWO, same).ok
    zero = replace(y([0.0, 1.0]), several=({"y": np.asarray([-0.0, 1.0], np.float32)},))
    assert judge(case(law), TWO, zero).problem.startswith("y of call 2 differs in bits from the first")
    longer = replace(y([0.5]), several=({"y": np.asarray([0.5, 0.5], np.float32)},))
    assert not judge(case(law), TWO, longer).ok


def test_indices_may_differ_where_the_entries_are_equal() -> None:
    at = point([3.0, 1.0, 3.0, 2.0], k=2)
    values = np.exp(np.array([3.0, 3.0], np.float32)) / np.exp([3.0, 1, 3, 2]).sum(dtype=np.float64)

    def got(indices: Any) -> Outcome:
        return Outcome({"values": values.astype(np.float32), "indices": np.asarray(indices)})

    topk = case(op="softmax_topk")
    assert judge(topk, at, got([0, 2])).ok
    assert judge(topk, at, got([2, 0])).ok
    assert judge(topk, at, got([0, 3])).problem == "indices are [0, 3], and have to be [0, 2]"
    assert judge(topk, at, got([0, 4])).problem == "indices hold [0, 4], out of the axis' 4 entries"
    assert judge(topk, at, got([0.0, 2.0])).problem == "indices are float64, and have to be integers"


def test_worse_than_every_peer_fails_within_the_bound() -> None:
    within = Judgement(True, ratio=0.5, unit=0.001)
    assert against_peers(within, worst=0.5 / FACTOR).ok
    assert not against_peers(within, worst=0.4 / FACTOR).ok
    problem = against_peers(within, worst=0.01, peer="torch").problem
    assert problem == (
        "worse than every peer: the largest error is 250 units in the last place, 50 times that of torch; "
        "up to 4 times would do"
    )
    broken = Judgement(False, problem="y at [0] is 1", ratio=9.0)
    assert against_peers(broken, worst=0.0) == broken


def test_peers_that_are_exact_leave_room() -> None:
    """An error of a few units of a long bound is let through, so is a part of a short one, and no more."""
    assert against_peers(Judgement(True, ratio=PLAIN * 1e-6, unit=1e-6), worst=0.0).ok
    assert not against_peers(Judgement(True, ratio=PLAIN * 2e-6, unit=1e-6), worst=0.0).ok
    assert against_peers(Judgement(True, ratio=PART, unit=0.1), worst=0.0).ok
    assert not against_peers(Judgement(True, ratio=2 * PART, unit=0.1), worst=0.0).ok
