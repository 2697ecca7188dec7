"""Arrays of other libraries: read in place, answered in their own kind, or refused by name."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import array_api_strict as xs
import numpy as np
import pandas as pd
import pytest
from array_calls import CALLS, X, call
from scipy import sparse

import online_softmax
from online_softmax.frontends import array_api


@pytest.mark.parametrize("name", list(CALLS))
def test_the_array_api_s_arrays_give_their_own_kind(name: str) -> None:
    """The same bits as of NumPy's arrays, in every array of a result."""

    def compare(made: Any, expected: Any) -> int:
        if isinstance(expected, tuple):
            assert type(made) is type(expected)
            return sum(compare(a, b) for a, b in zip(made, expected, strict=True))
        if expected is None:
            assert made is None
            return 0
        assert isinstance(made, type(xs.asarray(0.0)))
        assert made.shape == np.shape(expected)
        read = np.from_dlpack(made)
        assert read.dtype == expected.dtype
        np.testing.assert_array_equal(read, expected)
        return 1

    assert compare(call(name, lambda a: xs.asarray(np.array(a))), call(name, lambda a: a)) > 0


def test_dtype_and_out_of_the_array_api() -> None:
    x = xs.asarray(X)
    made = online_softmax.softmax(x, dtype=xs.float64)
    assert made.dtype == xs.float64
    np.testing.assert_array_equal(np.from_dlpack(made), online_softmax.softmax(X, dtype=np.float64))
    out = xs.zeros((3, 5), dtype=xs.float32)
    assert online_softmax.softmax(x, out=out) is out
    np.testing.assert_array_equal(np.from_dlpack(out), online_softmax.softmax(X))
    targets = xs.asarray([0, 1, 2])
    made = online_softmax.cross_entropy_with_gradient(x, targets, out=out)
    assert made.gradient is out
    expected = online_softmax.cross_entropy_with_gradient(X, np.array([0, 1, 2])).gradient
    np.testing.assert_array_equal(np.from_dlpack(out), expected)
    with pytest.raises(TypeError, match="the result is bfloat16, of which array_api_strict makes no array"):
        online_softmax.softmax(x, dtype="bfloat16")


def test_a_result_lies_where_the_operand_does() -> None:
    x = xs.asarray(X, device=xs.Device("device1"))
    made = online_softmax.softmax(x)
    assert made.device == x.device
    np.testing.assert_array_equal(np.from_dlpack(made), online_softmax.softmax(X))


def test_scalars_and_lists_beside_the_array_api() -> None:
    made = online_softmax.logsumexp(xs.asarray(X), b=[1, 2, 3, 4, 5])
    np.testing.assert_array_equal(np.from_dlpack(made), online_softmax.logsumexp(X, b=[1, 2, 3, 4, 5]))
    made = online_softmax.logaddexp(xs.asarray(X), 1.0)
    assert made.dtype == xs.float32
    assert online_softmax.logsumexp(xs.asarray([1.0])).shape == ()


class Exported:
    """An array that knows DLPack and nothing else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device, self.asked = array, device, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked += 1
        return self.array.__dlpack__(**options)


def test_dlpack_alone_is_answered_in_numpy() -> None:
    x = Exported(X)
    made = online_softmax.softmax(x, axis=0)
    assert type(made) is np.ndarray
    np.testing.assert_array_equal(made, online_softmax.softmax(X, axis=0))
    assert x.asked == 1
    made = online_softmax.logaddexp(Exported(X), X)  # NumPy's own beside it
    np.testing.assert_array_equal(made, online_softmax.logaddexp(X, X))


def test_dlpack_copies_nothing() -> None:
    x = X.copy()
    assert np.shares_memory(array_api.read(Exported(x), "x"), x)
    strict = xs.asarray(x, copy=False)
    assert np.shares_memory(array_api.read(strict, "x"), x)
    out = Exported(x)
    assert online_softmax.softmax(X, out=out) is out
    np.testing.assert_array_equal(x, online_softmax.softmax(X))


@pytest.mark.parametrize("device", [1, 3, 11])
def test_memory_that_the_cpu_reads(device: int) -> None:
    assert online_softmax.logsumexp(FallsBack(X, (device, 0))).shape == (3,)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ((2, 1), "cuda:1"),
        ((10, 0), "rocm:0"),
        ((13, 0), "cuda_managed:0"),
        ((8, 0), "metal:0"),
        ((99, 2), "DLPack device 99:2"),
    ],
)
def test_devices_are_refused_by_name(device: tuple[int, int], place: str) -> None:
    away = Exported(X, device)
    with pytest.raises(TypeError, match=f"x lies on {place} .it is a .*Exported.: CPU memory would do"):
        online_softmax.softmax(away)
    with pytest.raises(TypeError, match=f"v lies on {place}"):
        online_softmax.attention(X, X, away)
    with pytest.raises(TypeError, match=f"where lies on {place}"):
        online_softmax.logsumexp(X, where=away)
    assert away.asked == 0


class Silent(Exported):
    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("no device")


class FallsBack(Exported):
    """Has a format or a device that NumPy does not take by DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not this one")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


def test_what_dlpack_cannot_numpy_may() -> None:
    np.testing.assert_array_equal(online_softmax.softmax(FallsBack(X)), online_softmax.softmax(X))
    with pytest.raises(TypeError, match=r"x is a .*Silent that does not tell its device .no device."):
        online_softmax.softmax(Silent(X))
    unreadable = FallsBack(np.array([None]))
    with pytest.raises(TypeError, match=r"x is a .*FallsBack, which NumPy reads as objects.*: a dense array"):
        online_softmax.softmax(unreadable)


def test_the_exporter_s_reason_is_told() -> None:
    class Refuses(Exported):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("tensors that require gradient are not exported")

    with pytest.raises(TypeError, match=r"b is a .*Refuses, .* through DLPack not at all .tensors that requ"):
        online_softmax.logsumexp(X, b=Refuses(X))


class CopiedByDLPack(Exported):
    def __dlpack__(self, **options: Any) -> Any:
        return self.array.copy().__dlpack__(**options)


class CopiedByNumPy(FallsBack):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array.copy()


@pytest.mark.parametrize("kind", [CopiedByDLPack, CopiedByNumPy])
def test_a_copy_of_out_is_not_written(kind: type[Exported]) -> None:
    out = kind(np.full_like(X, 7))
    with pytest.raises(TypeError, match=rf"out is a .*{kind.__name__}, of which NumPy gets a copy: an array"):
        online_softmax.softmax(X, out=out)
    with pytest.raises(TypeError, match=r"out is a .* copy"):
        online_softmax.logaddexp(Exported(X), X, out=out)
    np.testing.assert_array_equal(out.array, 7)
    np.testing.assert_array_equal(online_softmax.softmax(kind(X)), online_softmax.softmax(X))


def test_arrays_of_one_library_lie_on_one_device() -> None:
    here, there = xs.asarray(X), xs.asarray(X, device=xs.Device("device1"))
    with pytest.raises(TypeError, match=r"b lies on .*device1.* and a on .*CPU_DEVICE.*: one device for all"):
        online_softmax.logaddexp(here, there)
    out = xs.zeros((3, 5), dtype=xs.float32, device=there.device)
    with pytest.raises(TypeError, match=r"out lies on .*: one device for all would do"):
        online_softmax.softmax(here, out=out)
    assert online_softmax.logaddexp(there, there).device == there.device


def test_memory_of_a_gpu_without_dlpack_is_refused() -> None:
    class OnGPU:
        __cuda_array_interface__ = None

    with pytest.raises(TypeError, match=r"where lies on a GPU .it is a .*OnGPU.: CPU memory would do"):
        online_softmax.softmax(X, where=OnGPU())


class NoArray:
    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("sparse")


def test_an_array_that_cannot_be_read() -> None:
    with pytest.raises(
        TypeError, match=r"x is a .*NoArray, which could be read neither .* .sparse.: a dense array"
    ):
        online_softmax.softmax(NoArray())


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.dia_matrix])
def test_sparse_matrices_are_refused_by_name(make: Callable[..., Any]) -> None:
    x = make(np.eye(3))
    with pytest.raises(TypeError, match=rf"x is a scipy.sparse.{make.__name__}: .* x.toarray\(\), would do"):
        online_softmax.softmax(x)
    with pytest.raises(TypeError, match=rf"logits is a scipy.sparse.{make.__name__}: a dense array"):
        online_softmax.cross_entropy(x, np.arange(3))
    with pytest.raises(TypeError, match=r"b is a scipy.sparse"):
        online_softmax.logsumexp(np.eye(3), b=x)


def test_dask_arrays_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        pass

    stand_in = types.ModuleType("dask.array")
    stand_in.Array = Array
    monkeypatch.setitem(sys.modules, "dask.array", stand_in)
    with pytest.raises(TypeError, match=r"x is a dask array, .*: x.compute\(\), or .*map_blocks .* would do"):
        online_softmax.logsumexp(Array())


def test_pandas_is_read_as_numpy_reads_it() -> None:
    frame = pd.DataFrame(X.astype(np.float64), columns=list("abcde"))
    made = online_softmax.softmax(frame)
    assert type(made) is np.ndarray
    np.testing.assert_array_equal(made, online_softmax.softmax(X.astype(np.float64)))
    assert online_softmax.logsumexp(frame["a"]) == online_softmax.logsumexp(X[:, 0].astype(np.float64))
    mask = frame > 0
    np.testing.assert_array_equal(
        online_softmax.softmax(frame, where=mask),
        online_softmax.softmax(frame.to_numpy(), where=mask.to_numpy()),
    )


def test_objects_are_refused_with_what_converts_them() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False]})  # NumPy reads numbers beside bool as objects
    with pytest.raises(TypeError, match=r"x holds object: .*; x.astype\('float64'\) converts numbers$"):
        online_softmax.softmax(frame)
    assert online_softmax.softmax(frame.astype("float64")).shape == (2, 2)


def test_types_are_not_arrays() -> None:
    with pytest.raises(TypeError, match=r"x holds object: .*bool\)$"):
        online_softmax.softmax(np.ndarray)
    with pytest.raises(TypeError, match=r"x holds object: .*bool\)$"):
        online_softmax.softmax(object())
