"""softmax, log_softmax and logsumexp of every algorithm against the reference, in Triton's interpreter."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, noise, row, row_kinds

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

import triton
import triton.language as tl
from gpu_helpers import NARROW, gpu_bound, to_numpy, to_torch

from online_softmax import reference
from online_softmax.gpu import launch, ops, tiles

OPS = ("softmax", "log_softmax", "logsumexp")
ALGORITHMS = ("naive", "three_pass", "online", "cached")
SHIFTED = ALGORITHMS[1:]
BLOCK = 16
#: Rows that "naive" has no trouble with.
TAME = ("random", "ramp", "constant")
INF, NAN = np.inf, np.nan

each_op = pytest.mark.parametrize("op", OPS)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
shifted_only = pytest.mark.parametrize("algorithm", SHIFTED)
each_dtype = pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW)


def check(op: str, x: np.ndarray, algorithm: str, block: int | None) -> None:
    got = to_numpy(getattr(ops, op)(to_torch(x), algorithm=algorithm, block=block))
    assert got.dtype == (np.float32 if op == "logsumexp" else x.dtype)
    true = getattr(reference, op)(x)
    allowed = gpu_bound(op, x.astype(np.float64), true, x.dtype, block, shifted=algorithm != "naive")
    assert_close(got, true, allowed, f"{op} {algorithm} block={block} {x.shape}")


@each_dtype
@each_algorithm
@each_op
def test_rows_that_lose_accuracy(op: str, algorithm: str, dtype: np.dtype) -> None:
    """Three blocks, the last of them cut short."""
    kinds = TAME if algorithm == "naive" else row_kinds(dtype)
    check(op, np.stack([row(kind, dtype, 2 * BLOCK + 5) for kind in kinds]), algorithm, BLOCK)


@each_dtype
@each_algorithm
@each_op
def test_sizes_around_a_block(op: str, algorithm: str, dtype: np.dtype) -> None:
    for columns in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK):
        check(op, noise((1, columns), dtype, seed=columns), algorithm, BLOCK)


@each_algorithm
@each_op
def test_sizes_around_the_blocks_of_the_tables(op: str, algorithm: str) -> None:
    dtype = NARROW["f32"] if algorithm in ("online", "naive") else NARROW["bf16"]
    for columns in (512, 513, 1025, 4096, 4097):
        check(op, noise((1, columns), dtype, seed=columns), algorithm, None)


@each_dtype
@each_op
def test_several_rows_a_program(op: str, dtype: np.dtype) -> None:
    """One row past a full program of each entry in the table of rows, and a size with none to spare."""
    for limit, rows in launch.ROWS[:-1]:
        check(op, noise((rows + 1, limit), dtype, seed=rows), "cached", None)
    check(op, noise((6, 3), dtype), "cached", None)


@each_dtype
@each_op
def test_long_rows_in_chunks(op: str, dtype: np.dtype) -> None:
    columns = launch.MAX_BLOCK + 1
    assert launch.plan(op, "auto", 2, columns, dtype.itemsize)[0].kernel == "chunk_states"
    check(op, noise((2, columns), dtype), "auto", None)


@each_op
def test_more_states_than_are_merged_at_a_time(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_STATES", 2)
    check(op, noise((1, 5 * BLOCK), NARROW["f32"]), "cached", BLOCK)


@shifted_only
@each_op
def test_special_rows(op: str, algorithm: str) -> None:
    columns = BLOCK + 3
    x = noise((9, columns), NARROW["f32"])
    x[0, 0] = x[1, BLOCK - 1] = x[2, -1] = NAN
    x[3, 5] = INF
    x[4, [2, -1]] = INF
    x[5] = -INF
    x[6, 1:] = -INF
    x[7, :-1] = -INF
    x[8, [3, -2]] = -INF, NAN
    x[8, 0] = INF
    got = to_numpy(getattr(ops, op)(to_torch(x), algorithm=algorithm, block=BLOCK))
    true = getattr(reference, op)(x)
    assert_close(got, true, gpu_bound(op, x.astype(np.float64), true, x.dtype, BLOCK, shifted=True))
    for at in (3, 4, 5):
        assert np.isnan(true[at]).all() if op != "logsumexp" else true[at] == (-INF if at == 5 else INF)


@shifted_only
@each_dtype
def test_a_nan_anywhere_taints_its_row_alone(dtype: np.dtype, algorithm: str) -> None:
    columns = 2 * BLOCK + 1
    places = (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK)
    x = noise((len(places) + 1, columns), dtype)
    x[np.arange(len(places)), places] = NAN
    for op in OPS:
        got = np.isnan(
            to_numpy(getattr(ops, op)(to_torch(x), algorithm=algorithm, block=BLOCK)).astype(float)
        )
        assert got[:-1].all()
        assert not got[-1].any()


@each_op
def test_naive_is_naive(op: str) -> None:
    x = np.array([[100.0, 99.0], [-200.0, -200.0]], np.float32)
    got = to_numpy(getattr(ops, op)(to_torch(x), algorithm="naive"))
    if op == "softmax":
        assert np.isnan(got).any(axis=-1).all()
    else:
        assert not np.isfinite(got).any()


@shifted_only
def test_a_common_shift_changes_nothing_where_it_is_exact(algorithm: str) -> None:
    x = to_torch(np.arange(-20, 20, dtype=np.float32)[None, ::-1] / 4)
    for shift in (2.0**10, -(2.0**20)):
        for op in ("softmax", "log_softmax"):
            run = getattr(ops, op)
            assert_same_bits(
                to_numpy(run(x + shift, algorithm=algorithm, block=BLOCK)),
                to_numpy(run(x, algorithm=algorithm, block=BLOCK)),
                f"{op} {shift}",
            )


@shifted_only
@each_dtype
def test_equal_logits_share_alike(dtype: np.dtype, algorithm: str) -> None:
    for n in (1, 3, 10, 37):
        y = to_numpy(ops.softmax(to_torch(np.full((1, n), 1e4, dtype)), algorithm=algorithm, block=BLOCK))
        assert_same_bits(y, np.full((1, n), np.float32(1) / np.float32(n)).astype(dtype))


def test_a_dominant_term_leaves_the_logarithm_of_the_rest() -> None:
    """lse of (0, -8): log1p(exp(-8)), of which log(s) keeps what s = 1 + 3.4e-4 holds."""
    lse = ops.logsumexp(torch.tensor([[0.0, -8.0]]))
    s = np.float32(1 + np.exp(-8.0))
    assert abs(lse.item() - np.log(np.float64(s))) <= np.spacing(np.float32(lse.item()))


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of x's shape in memory of different order."""
    wide = torch.zeros(*x.shape[:2], 2 * x.shape[2], 3 * x.shape[3])
    spread = wide[:, :, ::2, ::3]
    spread.copy_(x)
    return {
        "leading axes that do not join": x.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3),
        "columns first": x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
        "steps": spread,
        "two levels": x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3),
    }


@pytest.mark.parametrize("algorithm", ["online", "cached"])
def test_strides_change_no_bit(algorithm: str) -> None:
    x = to_torch(noise((2, 2, 3, 18), NARROW["f32"]))
    for op in ("softmax", "logsumexp"):
        run = getattr(ops, op)
        expected = to_numpy(run(x, algorithm=algorithm, block=BLOCK))
        for name, view in layouts(x).items():
            assert torch.equal(view, x)
            assert_same_bits(to_numpy(run(view, algorithm=algorithm, block=BLOCK)), expected, f"{op} {name}")


@each_op
@pytest.mark.parametrize(
    ("algorithm", "shape"), [("cached", (2, 19, 3)), ("three_pass", (2, 3, 4)), ("online", (3, 2, 2))]
)
def test_every_axis(op: str, algorithm: str, shape: tuple[int, ...]) -> None:
    x = to_torch(noise(shape, NARROW["f16"]))
    run = getattr(ops, op)
    for dim in (0, 1, -1):
        expected = run(x.movedim(dim, -1).contiguous(), algorithm=algorithm)
        expected = expected.movedim(-1, dim) if op != "logsumexp" else expected
        got = run(x, dim, algorithm=algorithm)
        assert got.shape == expected.shape
        assert_same_bits(to_numpy(got), to_numpy(expected), f"{dim}")


def test_expanded_rows_and_columns() -> None:
    line = to_torch(noise((20,), NARROW["f32"]))
    one = ops.softmax(line)
    assert torch.equal(ops.softmax(line.expand(3, 20)), one.expand(3, 20))
    assert torch.equal(ops.softmax(line[:2, None].expand(2, 20)), torch.full((2, 20), 1 / 20))


@triton.jit
def start_kernel(o_ptr, row, inner, outer_stride, inner_stride, N: tl.constexpr):
    rows = row + tl.arange(0, N).to(tl.int64)
    tl.store(o_ptr + tl.arange(0, N), tiles.start(rows, inner, outer_stride, inner_stride, 4))


def test_rows_start_at_offsets_of_64_bits() -> None:
    for first, inner, outer, within in (
        (2**33, 1, 2**20, 0),
        (2**31 - 1, 3, 2**31, 2**33),
        (5, 2, 12, 2**31),
    ):
        starts = torch.empty(4, dtype=torch.int64)
        start_kernel[(1,)](starts, first, inner, outer, within, 4)
        rows = range(first, first + 4)
        assert starts.tolist() == [r // inner * outer + r % inner * within for r in rows]


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    x = to_torch(noise((67, 14), NARROW["f32"]))
    whole = ops.softmax(x)
    for at in (0, 13, 66):
        assert torch.equal(ops.softmax(x[at : at + 1]), whole[at : at + 1])


@each_algorithm
def test_out_is_written_and_may_be_x_itself(algorithm: str) -> None:
    x = to_torch(noise((3, 40), NARROW["f32"]))
    expected = ops.softmax(x, algorithm=algorithm, block=BLOCK)
    out = torch.full((40, 3), NAN).T
    assert ops.softmax(x, algorithm=algorithm, block=BLOCK, out=out) is out
    assert torch.equal(out, expected)
    wide = torch.zeros(3, 80)
    wide[:, ::2] = x
    ops.softmax(wide[:, ::2], algorithm=algorithm, block=BLOCK, out=wide[:, 1::2])
    assert torch.equal(wide[:, 1::2], expected)
    assert torch.equal(wide[:, ::2], x)
    assert ops.softmax(x, algorithm=algorithm, block=BLOCK, out=x) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 4), (0,)])
def test_nothing_to_do(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    for algorithm in ALGORITHMS:
        assert ops.softmax(x, algorithm=algorithm).shape == shape
        assert ops.log_softmax(x, 0, algorithm=algorithm).shape == shape
        lse = ops.logsumexp(x, algorithm=algorithm)
        assert lse.shape == shape[:-1]
        assert (lse == -INF).all()
    assert ops.softmax_backward(x, x).shape == shape
    assert ops.logsumexp_backward(x, lse, lse).shape == shape
