"""The kit's cases are sound: they cover what was reported and the rules of sizes, layouts and formats, and
the oracle itself, rounded to the format of the case, keeps every one of them."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest

from online_softmax.conformance.cases import Case, Outcome, Point, literal, load_cases
from online_softmax.conformance.judge import judge
from online_softmax.conformance.operations import OPERATIONS, expected
from online_softmax.conformance.recipes import DTYPES, LAYOUTS

CASES = load_cases()
BY_ID: dict[str, list[Case]] = defaultdict(list)
for found in CASES:
    BY_ID[found.id].append(found)
SMALL = {name: cases for name, cases in BY_ID.items() if "huge" not in cases[0].tags}

#: The numbers of the faults that users of other libraries reported; "8-9" is 8 and 9.
REPORTED = """
    3 8-9 16-20 22 25-37 39-40 42-49 51-55 58-60 63-69 73-74 77-78 80-84 87-88 90-96 98-100 103-108 110
    114-121 123 125 127-128 131 133-135 137-140 142-144 147-149 151-153 157 160 162-164 166-167 170-172
    175-180 182-184 187 189-196 198-200 203 205-209 211-212 214-218 220 223-229 232-234 236-237 239 241-242
    244 247-248
"""
#: What no case can say, and where it is held instead.
NOT_CASES = {
    "B046": "a fault of a comparison: test_a_number_is_not_nan",
    "B105": "axes flattened from one on, of old ONNX operator sets: the operation has one axis",
    "B106": "axes flattened from one on, of old ONNX operator sets: the operation has one axis",
    "B107": "default axis of old ONNX operator sets: the operation's is the last",
    "B131": "strides of 2^30 elements take a file with holes: test_large",
    "B135": "a transducer loss is no operation here",
    "B183": "the gradient of logaddexp is no operation here: test_reference_gradients",
    "B187": "forward mode derivatives are no operation here",
    "B189": "second derivatives are no operation here",
    "B190": "the entropy of a softmax is no operation here",
    "B193": "the sign of a log-sum-exp is no output here: test_reported_faults",
    "B194": "complex numbers are no format here: test_reported_faults",
    "B195": "complex numbers are no format here: test_reported_faults",
    "B196": "complex numbers are no format here: test_reported_faults",
    "B198": "complex numbers are no format here: test_reported_faults",
    "B200": "masked arrays are NumPy's own: test_reported_faults",
    "B206": "a result array given by the caller is no option here: test_reported_faults",
    "B244": "sampling by temperature is no operation here",
    "B247": "sampling by temperature is no operation here",
    "B248": "memory is not seen by a law: the benchmarks count it",
}

#: Tags that some case of the operation must have.
EVERYWHERE = {"nan", "size", "layout", "threads"}
ROWS = EVERYWHERE | {
    *("posinf", "neginf", "masked", "empty", "axis", "accuracy", "low-precision", "bad-input")
}
ATTENTION = EVERYWHERE | {"masked", "empty", "gqa", "accuracy", "bad-input"}
LOSS = EVERYWHERE | {"neginf", "masked", "labels", "empty", "accuracy", "low-precision", "bad-input"}
GRADIENT = {"gradient", "size", "layout"}
TAGS = {
    "softmax": ROWS | {"dtype"},
    "log_softmax": ROWS,
    "logsumexp": ROWS | {"dtype"},
    "softmax_topk": ROWS - {"posinf", "masked"},
    "logaddexp": EVERYWHERE | {"posinf", "neginf", "empty", "accuracy"},
    "logcumsumexp": ROWS - {"masked"},
    "cross_entropy": LOSS | {"posinf", "axis", "dtype"},
    "linear_cross_entropy": LOSS,
    "attention": ATTENTION | {"posinf", "neginf", "causal", "window", "softcap", "sinks", "merge"},
    "decode_attention": ATTENTION | {"paged", "merge"},
    "varlen_attention": ATTENTION | {"varlen", "causal"},
    "merge_attention": EVERYWHERE | {"merge", "neginf", "posinf", "empty", "sinks", "accuracy"},
    "merge_states": EVERYWHERE | {"merge", "neginf", "posinf", "empty", "accuracy"},
    "softmax_grad": GRADIENT | {"masked", "nan", "neginf", "empty", "axis", "accuracy", "threads"},
    "log_softmax_grad": GRADIENT | {"masked", "nan", "neginf", "empty", "axis", "accuracy"},
    "logsumexp_grad": GRADIENT | {"masked", "nan", "neginf", "empty", "accuracy"},
    "cross_entropy_grad": GRADIENT | {"labels", "nan", "neginf", "low-precision", "accuracy", "bad-input"},
    "linear_cross_entropy_grad": GRADIENT | {"labels", "nan", "low-precision", "threads"},
    "attention_grad": GRADIENT | {"masked", "nan", "causal", "gqa", "empty", "accuracy", "threads"},
}
LENGTHS = {
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    1023,
    1024,
    1025,
}
LONG = {4095, 4096, 4097, 32767, 32768, 32769, 65537}


def numbers(text: str) -> set[str]:
    """ "3 8-9" -> {"B003", "B008", "B009"}."""
    ends = [part.partition("-") for part in text.split()]
    return {f"B{n:03d}" for first, _, last in ends for n in range(int(first), int(last or first) + 1)}


def test_every_reported_fault_is_a_case_or_cannot_be():
    reported, cited = numbers(REPORTED), {source for case in CASES for source in case.sources}
    assert len(reported) == 167
    assert cited | set(NOT_CASES) == reported
    assert not cited & set(NOT_CASES)


def test_names():
    for name, cases in BY_ID.items():
        op, _, rest = name.partition("/")
        assert op == cases[0].op, name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rest), name
        assert len({case.origin for case in cases}) == 1, name
    assert set(TAGS) == set(OPERATIONS) == {case.op for case in CASES}


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_kind_that_concerns_an_operation(op):
    there = {tag for case in CASES if case.op == op for tag in case.tags}
    assert TAGS[op] <= there, f"without a case: {', '.join(sorted(TAGS[op] - there))}"


def test_tags_are_spelt_alike():
    known = set().union(*TAGS.values()) | {"huge"}
    for case in CASES:
        assert case.tags, case.id
        assert set(case.tags) <= known, case.id


@pytest.mark.parametrize("name", BY_ID)
def test_form(name):
    """Operands, options and outputs are the operation's, and what is written down has a purpose."""
    case = BY_ID[name][0]
    operation = OPERATIONS[case.op]
    assert set(operation.operands) <= set(case.inputs) <= set(operation.operands) | set(operation.optional)
    assert set(case.options) <= set(operation.options)
    assert set(case.expected) <= set(operation.outputs)
    for alternative in case.allowed:
        assert operation.outputs[0] in alternative
        assert set(alternative) <= {"name", *operation.outputs}
    assert case.reason.endswith(".")
    assert len(case.reason) <= 220
    assert not case.expected or case.law == "value"
    assert bool(case.names) == (case.law == "raises")
    swept = str([*case.inputs.values(), *case.options.values()])
    assert all(re.search(rf"\b{name}\b", swept) for name in case.sweep)


def lengths(op: str, axis: int) -> set[int]:
    """Lengths that an axis of the operation's first operand has in some case."""
    first = next(iter(OPERATIONS[op].operands))
    cases = [cases[0] for cases in SMALL.values() if cases[0].op == op and cases[0].law == "value"]
    arrays = [point.inputs[first] for case in cases for point in case.points()]
    return {array.shape[axis] for array in arrays if array.ndim >= abs(axis)}


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_sizes_of_rows(op):
    assert lengths(op, -1) >= LENGTHS | LONG
    assert {0, 1, 2, 3, 5} <= lengths(op, -2)


@pytest.mark.parametrize(
    "op", ["cross_entropy", "softmax_grad", "log_softmax_grad", "logcumsumexp", "logaddexp"]
)
def test_sizes_of_rows_in_other_operations(op):
    assert {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129} <= lengths(op, -1)


def test_sizes_of_attention():
    """Around blocks of 16, 32, 64 and 128; features of the values that differ from the keys'."""
    points = [p for cases in SMALL.values() if cases[0].op == "attention" for p in cases[0].points()]
    around = {1, *(block + step for block in (16, 32, 64, 128) for step in (-1, 0, 1))}
    assert around <= {point.inputs["k"].shape[2] for point in points}
    assert around <= {point.inputs["q"].shape[3] for point in points}
    assert any(point.inputs["q"].shape[3] != point.inputs["v"].shape[3] for point in points)
    assert {0, 1, 2, 3, 5} <= {point.inputs["q"].shape[0] for point in points}


@pytest.mark.parametrize("op", OPERATIONS)
def test_layouts(op):
    there = {recipe.get("layout") for case in CASES if case.op == op for recipe in case.inputs.values()} - {
        None
    }
    rows = op in ("softmax", "log_softmax", "logsumexp")
    assert there >= (set(LAYOUTS) - {"contiguous"} if rows else set())
    assert len(there) >= (2 if op.endswith("_grad") or op == "logcumsumexp" else 3)


@pytest.mark.parametrize("op", OPERATIONS)
def test_formats(op):
    there = {case.dtype for case in CASES if case.op == op}
    # States are statistics: of 32 and 64 bits.
    assert there >= ({"float32", "float64"} if op == "merge_states" else {"float32", "bfloat16"})
    if op in ("softmax", "log_softmax", "logsumexp", "cross_entropy", "attention"):
        assert there >= {"float64", "float32", "float16", "bfloat16"}


def test_inputs_are_small():
    """A subject gets through all of them in about a minute: what is not tagged huge is not large."""
    sizes = {name: sum(map(elements, cases[0].points())) for name, cases in SMALL.items()}
    assert max(sizes.values()) <= 400_000, max(sizes, key=sizes.__getitem__)
    assert sum(sizes[case.id] for case in CASES if case.id in sizes) <= 10_000_000


def elements(point: Point) -> int:
    return sum(array.size for array in point.inputs.values())


def rounded(case: Case, point: Point) -> Outcome:
    """What a perfect kernel returns: the oracle's outputs, rounded once."""
    outputs = {}
    with np.errstate(over="ignore", under="ignore"):
        for name, value in expected(case.op, point.inputs, point.options).items():
            wide = np.float64 if case.dtype == "float64" else np.float32
            kind = wide if name in OPERATIONS[case.op].statistics else DTYPES[case.dtype]
            outputs[name] = value if name == "indices" else value.astype(kind)
    return Outcome(outputs=outputs)


@pytest.mark.parametrize("name", SMALL)
def test_the_oracle_keeps_every_case(name):
    for case in SMALL[name]:
        for point in case.points():
            if case.law == "raises":
                with pytest.raises((ValueError, TypeError, IndexError)):
                    expected(case.op, point.inputs, point.options)
                continue
            judgement = judge(case, point, rounded(case, point))
            assert judgement.ok, f"{case.instance} {point.label}: {judgement.problem}"
            if case.law == "value":
                assert judgement.ratio <= 1, f"{case.instance} {point.label}"


@pytest.mark.parametrize("name", [name for name, cases in SMALL.items() if cases[0].expected])
def test_the_oracle_agrees_with_what_is_written_down(name):
    """To the last bits of float32, which is what an operand is rounded to before the oracle sees it."""
    for case in SMALL[name]:
        for point in case.points():
            right, result = expected(case.op, point.inputs, point.options), rounded(case, point).outputs
            for output, written in case.expected.items():
                shown, place = literal(written), f"{case.instance} {point.label} {output}"
                assert shown.shape == right[output].shape, place
                # A truth past the format's range is written down as the infinity that it rounds to.
                past = np.isinf(result[output].astype(np.float64))
                truth = np.where(past, result[output].astype(np.float64), right[output])
                close = 1e-12 if case.dtype == "float64" else 2.0**-22
                np.testing.assert_allclose(truth, shown, rtol=close, atol=1e-40, err_msg=place)


@pytest.mark.parametrize("name", [name for name, cases in SMALL.items() if cases[0].law == "one_of"])
def test_alternatives_are_told_apart(name):
    """What one alternative says is not what another says."""
    case = SMALL[name][0]
    first = OPERATIONS[case.op].outputs[0]
    texts = [repr(literal(alternative[first]).tolist()) for alternative in case.allowed]
    assert len(set(texts)) == len(texts)
    assert len({alternative["name"] for alternative in case.allowed}) == len(texts)


@pytest.mark.parametrize(("got", "right"), [(0.3, np.nan), (np.nan, 0.5), (np.inf, 0.5), (-np.inf, np.inf)])
def test_a_number_is_not_nan(got, right):
    """B046: a comparison that takes NaN for a number, or a number for NaN, compares nothing."""
    logits = {0.5: [0.0, 0.0]}.get(right, [right, 0.0])
    case = next(c for c in CASES if c.id == "softmax/lengths" and c.dtype == "float32")
    point = Point("", {"x": np.array(logits, np.float32)}, {}, {})
    assert judge(case, point, rounded(case, point)).ok
    wrong = Outcome(outputs={"y": np.full(2, got, np.float32)})
    assert not judge(case, point, wrong).ok
