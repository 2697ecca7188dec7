"""Every wrong call raises before any compute, and says which argument is wrong, what was given and what
would do."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest

import online_softmax as osm
from online_softmax.frontends import numpy as frontend

X = np.arange(12, dtype=np.float32).reshape(3, 4)
READ_ONLY = np.zeros((3, 4), np.float32)
READ_ONLY.flags.writeable = False

#: (case, keyword arguments, error, what the message holds) for softmax, log_softmax, logsumexp alike.
COMMON = [
    ("axis past the rank", {"axis": 2}, ValueError, r"axis=2.*2 dimensions.*-2 to 1"),
    ("axis before the rank", {"axis": -3}, ValueError, r"axis=-3.*-2 to 1"),
    ("axis far out", {"axis": 2**40}, ValueError, "axis=1099511627776"),
    ("axis twice", {"axis": (0, 0)}, ValueError, r"axis=\(0, 0\).*twice"),
    ("axis twice by sign", {"axis": (1, -1)}, ValueError, r"axis=\(1, -1\).*twice"),
    ("axis out of range in a tuple", {"axis": (0, 5)}, ValueError, r"axis=\(0, 5\)"),
    ("axis a float", {"axis": 1.0}, TypeError, "axis=1.0.*int"),
    ("axis a string", {"axis": "1"}, TypeError, "axis='1'.*int"),
    ("axis a bool", {"axis": True}, TypeError, "axis=True.*bool"),
    ("axis a list", {"axis": [0, 1]}, TypeError, r"axis=\[0, 1\].*list"),
    ("axis a nested tuple", {"axis": ((0,), 1)}, TypeError, "axis=.*tuple"),
    ("axis and dim", {"axis": 0, "dim": 0}, ValueError, "axis=0 and dim=0"),
    ("default axis by name, and dim", {"axis": -1, "dim": 0}, ValueError, "axis=-1 and dim=0"),
    ("dim past the rank", {"dim": 2}, ValueError, "dim=2"),
    ("dim a string", {"dim": "0"}, TypeError, "dim='0'"),
    ("order not built", {"order": "tree"}, ValueError, "order='tree'.*'row'"),
    ("order unknown", {"order": "column"}, ValueError, "order='column'.*'row'"),
    ("order no string", {"order": 1}, TypeError, "order=1"),
    ("algorithm unknown", {"algorithm": "fastest"}, ValueError, "algorithm.*fastest.*online"),
    ("algorithm no string", {"algorithm": 3}, (TypeError, ValueError), "algorithm"),
    ("algorithm None", {"algorithm": None}, (TypeError, ValueError), "algorithm"),
    ("isa unknown", {"isa": "mmx"}, ValueError, "isa.*mmx.*scalar"),
    ("isa no string", {"isa": 512}, (TypeError, ValueError), "isa"),
    ("threads zero", {"threads": 0}, ValueError, "threads.*0"),
    ("threads negative", {"threads": -1}, ValueError, "threads.*-1"),
    ("threads a float", {"threads": 2.0}, TypeError, "threads.*2.0"),
    ("threads a string", {"threads": "2"}, TypeError, "threads.*2"),
    ("threads a bool", {"threads": True}, TypeError, "threads"),
    ("where not bool", {"where": np.ones((3, 4))}, TypeError, "where.*float64.*bool"),
    ("where of integers", {"where": [1, 0, 1, 1]}, TypeError, "where.*int.*bool"),
    ("where too long", {"where": np.ones(5, bool)}, ValueError, r"where.*\(5,\).*\(3, 4\)"),
    ("where enlarges x", {"where": np.ones((2, 3, 4), bool)}, ValueError, r"where.*\(2, 3, 4\)"),
    ("where transposed", {"where": np.ones((4, 3), bool)}, ValueError, r"where.*\(4, 3\)"),
    ("where masked", {"where": np.ma.array(np.ones((3, 4), bool))}, TypeError, "where.*masked"),
    ("where ragged", {"where": [[True], [True, False]]}, ValueError, "where"),
]
MAPS = [
    ("precision unknown", {"precision": "best"}, ValueError, "precision.*best.*exact"),
    ("precision no string", {"precision": 1}, (TypeError, ValueError), "precision"),
    ("dtype an integer", {"dtype": np.int32}, TypeError, "dtype=int32.*float32"),
    ("dtype complex", {"dtype": complex}, TypeError, "dtype=complex128"),
    ("dtype wider than served", {"dtype": np.longdouble}, TypeError, "dtype=.*float64"),
    ("dtype unknown", {"dtype": "float33"}, TypeError, "dtype='float33'"),
    ("dtype of no kind", {"dtype": 3.5}, TypeError, "dtype=3.5"),
    ("dtype bool", {"dtype": bool}, TypeError, "dtype=bool"),
    ("out of another shape", {"out": np.zeros((4, 3), np.float32)}, ValueError, r"out.*\(4, 3\).*\(3, 4\)"),
    ("out broadcastable only", {"out": np.zeros((1, 4), np.float32)}, ValueError, r"out.*\(1, 4\)"),
    ("out larger", {"out": np.zeros((2, 3, 4), np.float32)}, ValueError, r"out.*\(2, 3, 4\)"),
    ("out of another format", {"out": np.zeros((3, 4))}, TypeError, "out is float64.*float32"),
    ("out of integers", {"out": np.zeros((3, 4), np.int64)}, TypeError, "out is int64.*float32"),
    (
        "out not of dtype",
        {"out": np.zeros((3, 4), np.float32), "dtype": "float64"},
        TypeError,
        "out is float32.*float64",
    ),
    ("out of another byte order", {"out": np.zeros((3, 4), ">f4")}, TypeError, "out is >f4"),
    ("out read-only", {"out": READ_ONLY}, ValueError, "out is read-only"),
    ("out a list", {"out": [[0.0] * 4] * 3}, TypeError, "out is a list"),
    ("out a tuple of arrays", {"out": (np.zeros((3, 4), np.float32),)}, TypeError, "out is a tuple"),
    ("out masked", {"out": np.ma.zeros((3, 4), np.float32)}, TypeError, "out is a MaskedArray"),
]
REDUCTION = [
    ("b too long", {"b": np.ones(5)}, ValueError, r"b has shape \(5,\).*\(3, 4\)"),
    ("b enlarges x", {"b": np.ones((2, 3, 4))}, ValueError, r"b has shape \(2, 3, 4\)"),
    ("b complex", {"b": np.ones(4, complex)}, TypeError, "b is complex128"),
    ("b of strings", {"b": ["1", "2", "3", "4"]}, TypeError, "b holds"),
    ("b of objects", {"b": np.array([1, 2, 3, None])}, TypeError, "b holds object"),
    ("b masked", {"b": np.ma.array([1.0, 2, 3, 4])}, TypeError, "b is a masked array"),
    ("b wider than served", {"b": np.ones(4, np.longdouble)}, TypeError, "b is .*float64"),
    ("keepdims no bool", {"keepdims": "no"}, TypeError, "keepdims='no'"),
    ("keepdims a number", {"keepdims": 1}, TypeError, "keepdims=1"),
    ("return_sign no bool", {"return_sign": None}, TypeError, "return_sign=None"),
]
TOPK = [
    ("k negative", {"k": -1}, ValueError, "k=-1.*0 to 4"),
    ("k past the axis", {"k": 5}, ValueError, "k=5.*4 entries"),
    ("k past another axis", {"k": 4, "axis": 0}, ValueError, "k=4.*3 entries"),
    ("k a float", {"k": 2.0}, TypeError, "k=2.0"),
    ("k a bool", {"k": True}, TypeError, "k=True"),
    ("k None", {"k": None}, TypeError, "k=None"),
    ("axis a tuple", {"k": 1, "axis": (0, 1)}, TypeError, r"axis=\(0, 1\).*one axis"),
    ("axis None", {"k": 1, "axis": None}, TypeError, "axis=None"),
    ("axis out of range", {"k": 1, "axis": 2}, ValueError, "axis=2"),
    ("axis and dim", {"k": 1, "axis": 0, "dim": 0}, ValueError, "axis=0 and dim=0"),
    ("order", {"k": 1, "order": "tree"}, ValueError, "order='tree'"),
    ("isa", {"k": 1, "isa": "mmx"}, ValueError, "isa.*mmx"),
    ("threads", {"k": 1, "threads": 0}, ValueError, "threads"),
]
CASES = (
    [(f, *case) for f in ("softmax", "log_softmax", "logsumexp") for case in COMMON]
    + [(f, *case) for f in ("softmax", "log_softmax") for case in MAPS]
    + [("logsumexp", *case) for case in REDUCTION]
    + [("softmax_topk", *case) for case in TOPK]
)
OPERANDS = [
    ("complex", np.ones(3, complex), TypeError, "x is complex128"),
    ("complex64", np.ones(3, np.complex64), TypeError, "x is complex64"),
    ("objects", np.array([1, None]), TypeError, "x holds object"),
    ("integers past 64 bits", [2**70, 1], TypeError, "x holds object"),
    ("strings", ["a", "b"], TypeError, "x holds <U1"),
    ("bytes", np.array([b"1"]), TypeError, "x holds"),
    ("dates", np.array(["2020-01-01"], "M8[D]"), TypeError, "x holds datetime64"),
    ("records", np.zeros(2, [("a", "f4")]), TypeError, "x holds"),
    ("longdouble", np.ones(3, np.longdouble), TypeError, "x is .*float64 is the widest"),
    ("masked array", np.ma.array([1.0, 2], mask=[0, 1]), TypeError, "x is a masked array.*where="),
    ("float8 of another kind", np.ones(3, ml_dtypes.float8_e4m3fnuz), TypeError, "x holds float8_e4m3fnuz"),
    ("int4", np.ones(3, ml_dtypes.int4), TypeError, "x holds int4"),
    ("ragged", [[1.0], [1.0, 2.0]], ValueError, "x could not be read"),
    ("None", None, TypeError, "x holds object"),
    ("dict", {"a": 1}, TypeError, "x holds object"),
]


def call(name: str, x, **keywords):
    return getattr(osm, name)(x, **keywords)


@pytest.mark.parametrize(
    ("name", "case", "keywords", "error", "message"), CASES, ids=[f"{f}, {case}" for f, case, *_ in CASES]
)
def test_wrong_call(name, case, keywords, error, message):
    before = X.copy()
    with pytest.raises(error, match=message):
        call(name, X, **keywords)
    np.testing.assert_array_equal(X, before)
    if name in ("softmax", "log_softmax") and "out" not in keywords and keywords.get("dtype") is None:
        # Before any compute: a good out= is as it was, and x too where it is the output itself.
        out = np.full(X.shape, 7, np.float32)
        with pytest.raises(error, match=message):
            call(name, X, out=out, **keywords)
        assert (out == 7).all()
        own = X.copy()
        with pytest.raises(error, match=message):
            call(name, own, out=own, **keywords)
        np.testing.assert_array_equal(own, before)


@pytest.mark.parametrize(
    ("name", "case", "keywords", "error", "message"),
    [
        c
        for c in CASES
        if "axis" not in c[2] and "out" not in c[2] and c[2].get("where") is None and "b" not in c[2]
    ],
)
def test_wrong_options_raise_for_empty_operands_too(name, case, keywords, error, message):
    """No early return for nothing to do: what is wrong for one size is wrong for all."""
    if name == "softmax_topk" and error is ValueError and "k=" in message:
        message = "k="
    if "dim" in keywords and keywords["dim"] == 2:
        keywords = {"dim": 3}
        message = "dim=3"
    with pytest.raises(error, match=message):
        call(name, np.empty((0, 4), np.float32), **keywords)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "softmax_topk"])
@pytest.mark.parametrize(("case", "x", "error", "message"), OPERANDS, ids=[o[0] for o in OPERANDS])
def test_wrong_operand(name, case, x, error, message):
    with pytest.raises(error, match=message):
        call(name, x, **({"k": 1} if name == "softmax_topk" else {}))
    with pytest.raises(error, match=message):
        call(name, x, dim=0, **({"k": 1} if name == "softmax_topk" else {}))


def test_zero_dimensions():
    for axis in (1, -2, (0, 1)):
        for name in ("softmax", "log_softmax", "logsumexp"):
            with pytest.raises(ValueError, match="axis="):
                call(name, 5.0, axis=axis)
    with pytest.raises(ValueError, match=r"axis=.*twice"):
        osm.softmax(5.0, (0, -1))
    with pytest.raises(ValueError, match="x has no dimensions"):
        osm.softmax_topk(5.0, 1)


def test_out_that_shares_memory_with_itself():
    buffer = np.full(12, 7, np.float32)
    stride = np.lib.stride_tricks.as_strided
    for view in (
        stride(buffer, (3, 4), (0, 4)),
        stride(buffer, (3, 4), (4, 4)),
        stride(buffer, (3, 4), (8, 4)),
    ):
        for op in (osm.softmax, osm.log_softmax):
            with pytest.raises(ValueError, match="out has strides"):
                op(X, out=view)
    assert (buffer == 7).all()


def test_out_over_the_mask():
    memory = np.zeros(48, np.uint8)
    with pytest.raises(ValueError, match="out overlaps where"):
        osm.softmax(X, where=memory[:12].view(bool).reshape(3, 4), out=memory.view(np.float32).reshape(3, 4))


@pytest.mark.parametrize("op", [osm.softmax, osm.log_softmax])
def test_simple_calls_check_out_too(op):
    """The short way for small arrays refuses what the long way refuses."""
    x = np.arange(64, dtype=np.float32)
    before = x.copy()
    frozen = np.zeros(64, np.float32)
    frozen.flags.writeable = False
    for out, error, message in (
        (np.zeros(63, np.float32), ValueError, "out has shape"),
        (np.zeros((1, 64), np.float32), ValueError, "out has shape"),
        (np.zeros(64), TypeError, "out is float64"),
        (np.zeros(64, np.uint32), TypeError, "out is uint32"),
        (frozen, ValueError, "out is read-only"),
        (x[::-1], ValueError, "out overlaps x"),
        (np.broadcast_to(np.float32(0), 64), ValueError, "out is read-only"),
        (x.tolist(), TypeError, "out is a list"),
        (memoryview(x), TypeError, "out is a memoryview"),
        (np.ma.zeros(64, np.float32), TypeError, "out is a MaskedArray"),
    ):
        with pytest.raises(error, match=message):
            op(x, out=out)
    shared = np.zeros(65, np.float32)
    with pytest.raises(ValueError, match="out overlaps x"):
        op(shared[:-1], out=shared[1:])
    np.testing.assert_array_equal(x, before)
    assert (frozen == 0).all()


def test_unknown_keywords_and_positions():
    for name in ("softmax", "log_softmax", "logsumexp"):
        with pytest.raises(TypeError, match="softcap"):
            call(name, X, softcap=30.0)
        with pytest.raises(TypeError, match="positional"):
            getattr(osm, name)(X, -1, None)
    with pytest.raises(TypeError, match="positional"):
        osm.softmax_topk(X, 1, -1, None)


def test_signatures_say_what_the_defaults_are():
    for name in ("softmax", "log_softmax", "logsumexp", "softmax_topk"):
        signature = inspect.signature(getattr(osm, name))
        assert signature.parameters["axis"].default == -1
        assert "axis: 'Any' = -1" in str(signature)
        doc = inspect.getdoc(getattr(osm, name)) or ""
        for word in ("Raises", "Cost"):
            assert word in doc or "Arguments, errors and cost as for" in doc, f"{name}: {word}"
    assert frontend.__doc__


def test_states_name_their_arguments():
    for x, error, message in (
        (np.ones(3, complex), TypeError, "x holds complex128"),
        (np.ma.array([1.0]), TypeError, "x is a masked array"),
        (["a"], TypeError, "x holds"),
    ):
        with pytest.raises(error, match=message):
            osm.SoftmaxState.of(x)
    with pytest.raises(ValueError, match="axis=2"):
        osm.SoftmaxState.of(X, 2)
    with pytest.raises(ValueError, match="where"):
        osm.SoftmaxState.of(X, where=np.ones(5, bool))
    with pytest.raises(ValueError, match="shape"):
        osm.SoftmaxState.of(X).merge(osm.SoftmaxState.of(X, 0))
    with pytest.raises(ValueError, match="states is empty"):
        osm.SoftmaxState.merge_many([])
