"""Every Triton kernel metered: the bytes it asks for are the model's, to the byte, tensor by tensor."""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from online_softmax.gpu import launch, ops  # noqa: E402
from online_softmax.traffic import model  # noqa: E402
from online_softmax.traffic.meter import Meter  # noqa: E402
from online_softmax.traffic.rows import SPLIT  # noqa: E402
from online_softmax.traffic.shapes import Chunks  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Rows, columns, block: one block with and without a tail, several with and without.
SHAPES = ((3, 64, 64), (5, 50, 64), (2, 256, 64), (3, 200, 64), (1, 1, 16))


def scores(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(dtype)


def totals(metered: Meter) -> tuple[int, int]:
    return metered.report.read, metered.report.written


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ["naive", "three_pass", "online"])
@pytest.mark.parametrize("operation", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize(("rows", "columns", "block"), SHAPES)
def test_looped_kernels(operation, algorithm, dtype, rows, columns, block) -> None:
    x = scores(rows, columns, dtype)
    with Meter() as m:
        getattr(ops, operation)(x, algorithm=algorithm, block=block)
    expected = model.traffic(operation, algorithm, rows, columns, x.element_size())
    assert totals(m) == (expected.read, expected.written)
    assert m["x_ptr"].read_bytes == expected["x"].read
    assert m["x_ptr"].loads.distinct_bytes == expected["x"].size
    assert m["x_ptr"].written_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize(("rows", "columns", "block"), SHAPES)
def test_cached_rows_and_those_too_long_for_a_block(operation, dtype, rows, columns, block) -> None:
    x = scores(rows, columns, dtype)
    with Meter() as m:
        getattr(ops, operation)(x, algorithm="cached", block=block)
    if columns <= block:
        expected = model.traffic(operation, "cached", rows, columns, x.element_size())
    else:
        expected = SPLIT[operation]["split"](Chunks(rows, columns, x.element_size(), block))
        states = sum(
            each[name].written_bytes for each in m.report.launches[:1] for name in ("m_ptr", "s_ptr")
        )
        assert states == expected["states"].written
    assert totals(m) == (expected.read, expected.written)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 16), (70, 33), (9, 300), (3, 1030)])
def test_several_rows_a_program(operation, dtype, rows, columns) -> None:
    """The tables' own choice: short rows share a program, and nothing is asked for twice."""
    x = scores(rows, columns, dtype)
    with Meter() as m:
        getattr(ops, operation)(x)
    expected = model.traffic(operation, "cached", rows, columns, x.element_size())
    assert totals(m) == (expected.read, expected.written)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("rows", "columns", "block"), SHAPES[:4])
def test_topk(dtype, k, rows, columns, block) -> None:
    x = scores(rows, columns, dtype)
    with Meter() as m:
        ops.softmax_topk(x, k, block=block)
    expected = model.traffic("softmax_topk", "online", rows, columns, x.element_size(), k=k)
    assert totals(m) == (expected.read, expected.written)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ["online", "cached"])
@pytest.mark.parametrize("operation", ["softmax_backward", "log_softmax_backward"])
@pytest.mark.parametrize(("rows", "columns", "block"), SHAPES)
def test_gradients(operation, algorithm, dtype, rows, columns, block) -> None:
    if algorithm == "cached" and columns > block:
        block = launch.covering(columns)
    y, dy = scores(rows, columns, dtype), scores(rows, columns, dtype)
    with Meter() as m:
        getattr(ops, operation)(y, dy, algorithm=algorithm, block=block)
    expected = model.traffic(operation, algorithm, rows, columns, y.element_size())
    assert totals(m) == (expected.read, expected.written)
    for name in ("y", "dy"):
        assert m[f"{name}_ptr"].read_bytes == expected[name].read


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns", "block"), [*SHAPES[:2], (3, 200, 256)])
def test_the_gradient_of_a_log_sum_exp(dtype, rows, columns, block) -> None:
    x = scores(rows, columns, dtype)
    lse = torch.logsumexp(x.float(), -1)
    with Meter() as m:
        ops.logsumexp_backward(x, lse, torch.ones_like(lse), block=block)
    expected = model.traffic("logsumexp_backward", "cached", rows, columns, x.element_size())
    assert totals(m) == (expected.read, expected.written)


@pytest.mark.parametrize("algorithm", ["three_pass", "online", "cached"])
def test_strided_rows_ask_for_the_same_bytes(algorithm) -> None:
    """A transposed operand: the bytes asked for are the same, the sectors they lie in are not."""
    x = scores(16, 40, torch.float32)
    with Meter() as rows:
        ops.softmax(x, algorithm=algorithm, block=64)
    with Meter() as columns:
        ops.softmax(x.T.contiguous().T, algorithm=algorithm, block=64)
    assert totals(rows) == totals(columns)
    assert columns["x_ptr"].loads.sectors == 8 * rows["x_ptr"].loads.sectors
