"""What the meter refuses and reports: accesses out of bounds, failing kernels, two meters, Triton missing."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, and kernels are defined

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from kernels import lanes, rows  # noqa: E402
from kernels.metered import floats, metered  # noqa: E402
from triton.runtime import interpreter, jit  # noqa: E402

from online_softmax.traffic.meter import Meter, OutOfBounds  # noqa: E402

TESTS = Path(__file__).parent


def hooks() -> tuple[object, ...]:
    native, executor = interpreter._interpreter, interpreter.GridExecutor
    return (
        *(getattr(native, name) for name in ("load", "store", "atomic_rmw", "atomic_cas")),
        executor.__call__,
        executor._init_args_hst,
        jit.JITFunction.run,
    )


def test_out_of_bounds_names_kernel_program_tensor_and_offset():
    out = torch.zeros(256)
    message = (
        r"kernel 'unmasked', program \(1, 0, 0\): loads 4 bytes at byte offset 800 of x \(float32\[200\]\), "
        r"which spans 800 bytes, by a lane that is not masked off; 56 of 128 active lanes lie outside"
    )
    with pytest.raises(OutOfBounds, match=message):
        metered(lanes.unmasked, (2,), floats(200), out, BLOCK=128)
    assert out[:128].tolist() == list(range(128))
    assert out[128:].tolist() == [0] * 128


def test_an_empty_tensor_has_no_bytes():
    x = torch.zeros(0)
    with pytest.raises(OutOfBounds, match=r"byte offset 0 of x \(float32\[0\]\), which spans 0 bytes"):
        metered(lanes.strided, (1,), x, torch.zeros(0), STEP=0, BLOCK=1)
    meter = metered(lanes.add, (1,), x, x, x, 0, BLOCK=64)
    meter.assert_bytes(read=0, written=0, atomic=0)
    assert {tensor.name: tensor.size for tensor in meter.report.launches[0].tensors} == {
        "x": 0,
        "y": 0,
        "out": 0,
    }


def test_out_of_bounds_before_the_start():
    with pytest.raises(OutOfBounds, match=r"byte offset -8 of x \(float32\[64\]\).*2 of 64 active"):
        metered(lanes.shifted, (1,), floats(64), torch.zeros(64), -2, BLOCK=64)


def test_out_of_bounds_in_a_nested_function_never_writes():
    storage = torch.zeros(8)
    with pytest.raises(
        OutOfBounds, match=r"'nested_fault', program .*: stores 4 bytes at byte offset 16 of out"
    ):
        metered(lanes.nested_fault, (1,), storage[:4], 4)
    assert storage.tolist() == [0] * 8


def test_tensors_reached_by_address_are_named_by_the_caller():
    x, out = floats(64), torch.zeros(64)
    table = torch.tensor([x.data_ptr()])
    with pytest.raises(OutOfBounds, match="'indirect'"):
        metered(lanes.indirect, (1,), table, out, BLOCK=64)
    with Meter(tensors={"pages": x}) as meter:
        lanes.indirect[(1,)](table, out, BLOCK=64)
    meter.assert_bytes(read={"table": 8, "pages": 256}, written={"out": 256})
    with (
        pytest.raises(ValueError, match="tensors: 'out' is a parameter of 'indirect'"),
        Meter(tensors={"out": x}),
    ):
        lanes.indirect[(1,)](table, out, BLOCK=64)


def test_a_kernel_without_tensors():
    with pytest.raises(ValueError, match="kernel 'without_tensors' takes no tensors"):
        metered(lanes.without_tensors, (1,), 3)


def test_a_failing_kernel_is_left_out_and_leaves_triton_as_it_was():
    before = hooks()
    x, out = floats(128), torch.zeros(128)
    with Meter() as meter:
        assert hooks() != before
        with pytest.raises(interpreter.InterpreterError, match="as intended"):
            lanes.broken[(1,)](x, FAIL=1)
        rows.scale[(1,)](x, out, 128, 1.0, BLOCK=128)
    assert hooks() == before
    assert [launch.kernel for launch in meter.report.launches] == ["scale"]
    with pytest.raises(interpreter.InterpreterError, match="as intended"):
        metered(lanes.broken, (1,), x, FAIL=1)
    assert hooks() == before


def test_one_meter_at_a_time():
    before = hooks()
    found: list[str] = []

    def enter() -> None:
        try:
            with Meter():
                pass
        except RuntimeError as error:
            found.append(str(error))

    with Meter() as meter:
        with pytest.raises(RuntimeError, match="a Meter is active already"), Meter():
            pass
        other = threading.Thread(target=enter)
        other.start()
        other.join()
        rows.scale[(1,)](floats(64), torch.zeros(64), 64, 1.0, BLOCK=64)
    assert len(found) == 1
    assert "active already" in found[0]
    assert meter["x"].read_bytes == 256
    assert hooks() == before


def test_meters_in_a_row_and_what_runs_between_is_not_counted():
    x, out = floats(64), torch.zeros(64)
    first = metered(rows.scale, (1,), x, out, 64, 1.0, BLOCK=64)
    rows.scale[(1,)](x, out, 64, 1.0, BLOCK=64)
    second = metered(rows.scale, (1,), x, out, 64, 1.0, BLOCK=64)
    assert first.report.read == second.report.read == 256


def test_nothing_of_the_meter_stays_in_the_kernels_module():
    metered(rows.scale, (1,), floats(64), torch.zeros(64), 64, 1.0, BLOCK=64)
    assert rows.__dict__["_interpreter"] is interpreter._interpreter
    assert "online_softmax" not in getattr(interpreter._interpreter.load, "__module__", "")


# --- where triton is not as needed --------------------------------------------------------------------


def test_a_compiled_kernel_is_refused(fresh_python):
    script = f"""
import sys, torch
sys.path.insert(0, {str(TESTS)!r})
from kernels import lanes
from online_softmax.traffic.meter import Meter
from online_softmax.traffic.meter.run import run
try:
    with Meter():
        lanes.unmasked[(1,)](torch.zeros(4), torch.zeros(4), BLOCK=4)
except RuntimeError as error:
    print(error)
try:
    run("kernels.lanes:unmasked", grid="1", arguments=("x=f32[4]", "out=f32[4]"), constexprs=("BLOCK=4",))
except ValueError as error:
    print(error)
"""
    done = fresh_python(script, TRITON_INTERPRET="0")
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first.startswith("kernel 'unmasked' is compiled, not interpreted: TRITON_INTERPRET=1 has to be in")
    assert second == "TRITON_INTERPRET: triton is imported already without it; set it to 1 before"


def test_triton_may_be_missing(fresh_python):
    script = """
import sys
sys.modules["triton"] = None
from online_softmax.extras import MissingExtra
from online_softmax.traffic.meter import Meter
from online_softmax.traffic.meter.run import load_kernel
for call in (Meter().__enter__, lambda: load_kernel("kernels.rows:cached")):
    try:
        call()
    except MissingExtra as error:
        print(error)
"""
    done = fresh_python(script)
    assert done.stderr == ""
    expected = "the meter needs triton, which is not installed: pip install 'online-softmax[triton]'"
    assert done.stdout.splitlines() == [expected] * 2
