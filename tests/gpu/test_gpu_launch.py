"""The tables of launches: what is chosen, by hand for a few calls, and by rule for all."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

from online_softmax.gpu import launch, ops
from online_softmax.ops import OPERATIONS

TABLES = {
    name: getattr(launch, name)
    for name in ("LOOP_BLOCK", "TOPK_BLOCK", "BACKWARD_BLOCK", "CHUNK", "ROWS", "THREADS")
}
COLUMNS = (1, 16, 17, 256, 257, 1000, 1024, 4097, 8192, 16384, 16385, 50257, 2**20, 2**20 + 1)


@pytest.mark.parametrize("name", TABLES)
def test_limits_rise_and_values_are_powers_of_two(name: str) -> None:
    limits = [limit for limit, _ in TABLES[name]]
    assert limits == sorted(set(limits))
    assert all(value & (value - 1) == 0 for _, value in TABLES[name])


def test_an_entry_holds_up_to_its_limit() -> None:
    assert launch.look_up(launch.ROWS, 16) == 64
    assert launch.look_up(launch.ROWS, 17) == 32
    assert launch.look_up(launch.ROWS, 513) == 1
    assert launch.look_up(launch.LOOP_BLOCK, 1024) == 1024
    assert launch.look_up(launch.LOOP_BLOCK, 1025) == 4096


def test_every_algorithm_that_is_counted_is_there() -> None:
    for name, row in OPERATIONS.items():
        assert set(launch.ALGORITHMS[name]) == set(row.passes)


@pytest.mark.parametrize("op", launch.ALGORITHMS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_programs_cover_the_data_in_blocks_that_warps_hold(op: str, columns: int) -> None:
    rows = 100
    for algorithm in (*launch.ALGORITHMS[op], "auto"):
        if algorithm == "cached" and op.startswith(("softmax_b", "log_softmax_b")) and columns > 8192:
            continue
        for made in launch.plan(op, algorithm, rows, columns, 2):
            if made.kernel == "row_lse":
                assert made.grid == (rows,)
                continue
            block, many = made.constants["BLOCK"], made.constants.get("ROWS", 1)
            arrays = 2 if made.kernel.startswith("backward") else 1
            assert launch.MIN_BLOCK <= block <= launch.MAX_BLOCK
            assert arrays * block * many <= 32 * made.threads
            assert 8 * made.threads <= block * many or made.threads == 32
            loops = "VECTOR" in made.constants
            assert made.grid == (-(-rows // many) * (1 if loops else -(-columns // block)),)
            assert columns % made.constants["ALIGN"] == 0


def test_a_softmax_of_8192_rows_of_4096() -> None:
    (made,) = launch.plan("softmax", "auto", 8192, 4096, 4)
    constants = {"OP": "softmax", "ALIGN": 16, "EXACT": True, "ROWS": 1, "BLOCK": 4096}
    assert made == launch.Launch("cached", (8192,), constants, 256)
    assert made.options() == {"num_warps": 8, "enable_fp_fusion": True}
    assert made.options(warp_size=64) == {"num_warps": 4, "enable_fp_fusion": True}


def test_elements_that_make_no_wide_access_get_twice_the_threads() -> None:
    for columns, threads in ((16384, 512), (16383, 1024), (4096, 256), (4095, 512)):
        assert launch.plan("softmax", "cached", 8, columns, 2)[0].threads == threads
    assert launch.plan("softmax", "cached", 8, 4095, 4)[0].threads == 512
    assert launch.plan("softmax", "cached", 8, 16383, 4)[0].threads == launch.MAX_THREADS_EXACT
    assert launch.plan("softmax", "online", 8, 100, 2)[0].threads == 64


def test_long_rows_are_cut_into_chunks() -> None:
    first, last = launch.plan("softmax", "cached", 3, 50257, 2)
    assert (first.kernel, last.kernel) == ("chunk_states", "chunk_results")
    assert first.grid == last.grid == (3 * 7,)
    assert last.constants["STATES"] == 8
    assert [made.kernel for made in launch.plan("logsumexp", "cached", 3, 50257, 2)] == [
        "chunk_states",
        "row_lse",
    ]


def test_a_forced_block_is_taken() -> None:
    for op, algorithms in launch.ALGORITHMS.items():
        for algorithm in algorithms:
            columns = 30 if op.endswith("_backward") and algorithm == "cached" else 100
            for made in launch.plan(op, algorithm, 3, columns, 4, block=32):
                assert made.kernel == "row_lse" or made.constants["BLOCK"] == 32


def test_gradients_of_long_rows_go_online() -> None:
    longest = launch.MAX_BACKWARD_BLOCK
    assert launch.resolve("softmax_backward", "auto", longest) == "cached"
    assert launch.resolve("softmax_backward", "auto", longest + 1) == "online"


def test_alignment_is_the_largest_power_of_two_in_all() -> None:
    assert launch.alignment(4096, 8192, 0) == 16
    assert launch.alignment(1000, 1000) == 8
    assert launch.alignment(50257) == 1
    assert launch.alignment(64, 36) == 4


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match=r"^itemsize=8: 2 or 4 bytes would do$"):
        launch.plan("softmax", "auto", 1, 1, 8)
    with pytest.raises(ValueError, match=r"^2147483648 rows of 5000 columns take over 2147483647 programs"):
        launch.plan("softmax", "auto", 2**31, 5000, 4)
    assert launch.plan("softmax", "auto", 0, 5, 4) == ()
    assert launch.plan("softmax", "auto", 5, 0, 4) == ()


def test_launches_carry_the_kernels_themselves() -> None:
    made = ops.launches("logsumexp", "cached", 4, 100, torch.float16, 16)
    assert [m.kernel for m in made] == [ops.KERNELS["chunk_states"], ops.KERNELS["row_lse"]]
    for kernel, grid, constants, options in made:
        assert set(constants) <= set(kernel.arg_names)
        assert grid == (28,) or kernel is ops.KERNELS["row_lse"]
        assert options["num_warps"] >= 1
