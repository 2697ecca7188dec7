"""Kernels compiled for GPUs that are not here: registers, spills, widths, and the gates made of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from online_softmax.traffic.compiled import TARGETS, Compiled, asm, assert_no_spills, assert_vectorized, build

SAMPLES = Path(__file__).parent / "kernels"


def fresh(*arguments: str, **env: str) -> str:
    """What Python prints, with warnings as errors, in a process where TRITON_INTERPRET is not set."""
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, "PYTHONPATH": os.pathsep.join((str(SAMPLES), *filter(None, sys.path))), **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory, made_once):
    """The output of the script that compiles the samples, from an empty cache."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    folder, script = tmp_path_factory.mktemp("triton"), str(SAMPLES / "inspect_samples.py")
    return json.loads(made_once("samples.json", lambda: fresh(script, TRITON_CACHE_DIR=str(folder))))


@pytest.mark.parametrize("target", TARGETS)
def test_aligned_rows_move_16_bytes_a_thread_and_spill_nothing(results, target):
    found = results[f"rows.{target}"]
    assert (found["kernel"], found["target"], found["warps"]) == ("three_pass", target, 4)
    # 1024 elements over 128 threads are 8 a thread; over 256 threads of AMD's 4 warps, 4.
    each = 1 if target == "gfx942" else 2
    assert (found["loads"], found["stores"]) == ({"16": 3 * each}, {"16": each})
    assert (found["spills"], found["scratch"], found["bulk"], found["matrix"]) == (0, 0, 0, 0)
    assert 0 < found["registers"] <= 64
    assert found["shared"] == 16
    assert found["no_spills"] == found["vectorized"] == ""


@pytest.mark.parametrize("target", TARGETS)
def test_without_known_alignment_each_element_goes_alone(results, target):
    found = results[f"unaligned.{target}"]
    each = 4 if target == "gfx942" else 8
    assert (found["loads"], found["stores"]) == ({"4": 3 * each}, {"4": each})
    message = found["vectorized"].splitlines()
    assert message[0].startswith(
        f"three_pass for {target}, 4 warps: {4 * each} of {4 * each} loads and stores move less than 16 "
        "bytes, 0 allowed; is divisibility by 16 known"
    )
    assert len(message) == 1 + 8 + 1
    assert all(line.startswith("  4 bytes: ") for line in message[1:-1])
    assert message[-1] == f"  and {4 * each - 8} more"


@pytest.mark.parametrize("target", TARGETS)
def test_tensor_cores_are_seen(results, target):
    found = results[f"matmul.{target}"]
    assert found["matrix"] > 0
    assert set(found["loads"]) == set(found["stores"]) == {"16"}
    assert found["spills"] == 0


def test_a_row_too_long_for_the_registers_spills(results):
    found = results["spilling"]
    assert found["spills"] > 0
    assert found["scratch"] > 0
    assert f"cached for sm_90, 1 warps: {found['spills']} spills" in found["no_spills"]
    assert found["vectorized"] == ""


def test_spills_of_amd_are_those_of_vector_and_scalar_registers():
    text = """
    .private_segment_fixed_size: 2120
    .sgpr_spill_count: 3
    .vgpr_count:     512
    .vgpr_spill_count: 632
"""
    made = SimpleNamespace(
        asm={"ttir": "", "ttgir": "", "llir": "", "amdgcn": text},
        metadata=SimpleNamespace(num_warps=1, num_stages=2, shared=16),
    )
    found = build._amd("cached", "gfx942", made)
    assert (found.registers, found.spills, found.scratch_bytes, found.shared_bytes) == (512, 635, 2120, 16)


def test_options_are_applied(results):
    assert (results["staged"]["warps"], results["staged"]["stages"]) == (8, 2)
    assert results["matmul.sm_90"]["warps"] == 4
    # Two stages of two 64 x 64 tiles of float16, 8 KiB each.
    assert results["staged"]["shared"] >= 4 * 8192
    assert results["staged"]["shared"] < results["matmul.sm_90"]["shared"]


def test_copies_of_tiles_have_no_width(results):
    found = results["described"]
    assert (found["bulk"], found["loads"], found["stores"]) == (2, {}, {})
    assert found["vectorized"] == ""


def test_the_texts_are_kept(results):
    assert results["rows.sm_80"]["texts"] == ["llir", "ptx", "sass", "ttgir", "ttir"]
    assert results["rows.gfx942"]["texts"] == ["amdgcn", "llir", "ttgir", "ttir"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("target", "target='sm_70': 'sm_80', 'sm_90', 'sm_100', 'gfx942' would do"),
        ("unknown", "signature: three_pass has no parameter 'y': x, out, n, BLOCK"),
        ("unknown constant", "constexprs: three_pass has no parameter 'WARPS': x, out, n, BLOCK"),
        ("unknown divisible", "divisible_by_16: three_pass has no parameter 'z': x, out, n, BLOCK"),
        ("constant divisible", "divisible_by_16: 'BLOCK' is a constant; a name of signature would do"),
        ("missing", "'out' of three_pass is neither in signature nor in constexprs"),
        ("twice", "'n' is in signature and in constexprs: one of them would do"),
        ("type", "signature: 'x': 'float*' is no type; '*fp32', '*bf16' or 'i32' would do"),
        ("no kernel", "kernel=3: a @triton.jit function would do"),
    ],
)
def test_wrong_calls_name_the_argument(results, name, message):
    assert results[name] == message


def test_interpreted_kernels_cannot_be_compiled(results):
    script = """
import rows
from online_softmax.traffic.compiled import inspect
try:
    inspect(rows.scaled, {"values": "*fp32", "factor": "fp32"}, {}, target="sm_90")
except ValueError as error:
    print(error)
"""
    assert fresh("-c", script, TRITON_INTERPRET="1").strip() == (
        "kernel=scaled: defined under TRITON_INTERPRET=1, which cannot be compiled; unset it before triton "
        "is imported"
    )


def test_tools_may_be_missing(results):
    script = """
from pathlib import Path
from online_softmax.traffic import compiled
Path.is_file = lambda path: False
try:
    compiled.build._tool("nvdisasm")
except FileNotFoundError as error:
    print(error)
"""
    printed = fresh("-c", script, PATH="").strip()
    assert printed.startswith("nvdisasm is neither in ")
    assert printed.endswith("nor on the PATH")


def test_triton_may_be_missing():
    script = """
import sys
sys.modules["triton"] = None
from online_softmax.extras import MissingExtra
from online_softmax.traffic.compiled import inspect
try:
    inspect(None, {}, {}, target="sm_90")
except MissingExtra as error:
    print(error)
"""
    assert fresh("-c", script).strip() == (
        "compiling a kernel needs triton, which is not installed: pip install 'online-softmax[triton]'"
    )


# --- the readers of assembly --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "nbytes"),
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", "load", 16),
        ("ld.global.L1::evict_last.L2::cache_hint.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ], %rd2;", "load", 8),
        ("ld.global.v8.b32 { %r1, %r2 }, [ %rd1 ];", "load", 32),
        ("ld.global.nc.v4.b64 { %r1 }, [ %rd1 ];", "load", 32),
        ("ld.volatile.global.b16 { %rs1 }, [ %rd1 + 0 ];", "load", 2),
        ("ld.acquire.gpu.global.u32 %r1, [%rd1];", "load", 4),
        ("ld.global.b8 { %rs1 }, [ %rd1 + 0 ];", "load", 1),
        ("st.global.wt.v4.b32 [ %rd5 + 0 ], { %r8, %r9, %r10, %r11 };", "store", 16),
        ("@%p2 st.global.b32 [ %rd3 + 0 ], { %r5 };", "store", 4),
        ("st.global.v2.f64 [%rd1], {%fd1, %fd2};", "store", 16),
        ("cp.async.cg.shared.global [ %r77 + 0 ], [ %rd9 + 0 ], 0x10, %r78;", "load", 16),
        ("@%p1 cp.async.ca.shared.global.L2::cache_hint [ %r7 ], [ %rd9 ], 4, %rd3;", "load", 4),
    ],
)
def test_ptx_memory(line, kind, nbytes):
    found = asm.ptx(f"// ld.global.b32 in a comment\n\t{line} // st.global.b8\n")
    assert [(m.kind, m.bytes) for m in found.memory] == [(kind, nbytes)]
    assert (found.bulk_copies, found.matrix) == (0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "ld.param.b64 %rd7, [mix_param_0];",
        "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];",
        "st.shared::cta.b32 [%r1], %r2;",
        "atom.global.gpu.acq_rel.add.f32 %r6, [ %rd4 + 0 ], %r7;",
        "red.global.add.f32 [%rd1], %f1;",
        "cp.async.commit_group;",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.wait_group.read 0;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 64;",
        ".param .u64 .ptr .global .align 1 mm_param_0,",
    ],
)
def test_ptx_that_is_not_counted(line):
    assert asm.ptx(line) == asm.Instructions((), 0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %r57 }, { %r41 }, { %r45 }, { %r57 };",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 1;",
        "@%p7 tcgen05.mma.cta_group::1.kind::f16 [ %r130 + 0 ], %rd16, %rd17, %r57, %p6;",
    ],
)
def test_ptx_matrix_instructions(line):
    assert asm.ptx(line) == asm.Instructions((), 0, 1)


def test_ptx_tile_copies():
    line = (
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2}], [%r4];"
    )
    assert asm.ptx(line) == asm.Instructions((), 1, 0)


@pytest.mark.parametrize(
    ("line", "kind", "nbytes"),
    [
        ("global_load_dwordx4 v[2:5], v[24:25], off", "load", 16),
        ("global_load_dword v1, v[2:3], off", "load", 4),
        ("buffer_load_dwordx2 v[2:3], v4, s[8:11], 0 offen", "load", 8),
        ("flat_load_dwordx3 v[0:2], v[4:5]", "load", 12),
        ("global_load_ushort v1, v[2:3], off", "load", 2),
        ("global_load_sbyte v1, v[2:3], off", "load", 1),
        ("buffer_load_short_d16_hi v1, v2, s[8:11], 0 offen", "load", 2),
        ("global_load_ubyte_d16 v1, v[2:3], off", "load", 1),
        ("global_load_d16_hi_b16 v1, v[2:3], off", "load", 2),
        ("global_load_b128 v[0:3], v[4:5], off", "load", 16),
        ("global_load_lds_dwordx4 v[0:1], off", "load", 16),
        ("global_store_short v[0:1], v2, off", "store", 2),
        ("global_store_short_d16_hi v[0:1], v2, off", "store", 2),
        ("global_store_byte v[0:1], v2, off", "store", 1),
        ("buffer_store_dwordx4 v[2:5], v6, s[8:11], 0 offen", "store", 16),
    ],
)
def test_amdgcn_memory(line, kind, nbytes):
    found = asm.amdgcn(
        f"\ts_load_dwordx4 s[0:3], s[4:5], 0x0\n\t{line}\n\tglobal_atomic_add_f32 v[0:1], v2, off\n"
    )
    assert [(m.kind, m.bytes, m.text) for m in found.memory] == [(kind, nbytes, line)]


def test_amdgcn_matrix_instructions_and_metadata():
    text = "\tv_mfma_f32_32x32x8_f16 v[0:15], v[22:23], v[38:39], 0\n\tv_mul_f32 v1, v2, v3\n"
    assert asm.amdgcn(text).matrix == 1
    assert asm.amd_metadata("  - .agpr_count:     0\n    .vgpr_count:     48\n    .name: mm\n") == {
        "agpr_count": 0,
        "vgpr_count": 48,
    }


@pytest.mark.parametrize(
    ("reader", "line"),
    [(asm.ptx, "ld.global.b20 %r1, [%rd1];"), (asm.amdgcn, "\tglobal_load_tensor v1, v[2:3], off")],
)
def test_a_width_that_is_not_understood_is_an_error(reader, line):
    with pytest.raises(ValueError, match=r"the width of .* is not understood"):
        reader(line)


def test_spills_and_resources_of_nvidia():
    sass = " /*0360*/ STL.64 [R1+0x10], R4 ;\n /*0370*/ LDL R4, [R1] ;\n @!P0 STL [R1], R2 ;\n LDG.E R2 ;"
    assert asm.sass_spills(sass) == (1, 2)
    text = " Common:\n  GLOBAL:0\n Function f:\n  REG:255 STACK:432 SHARED:16 LOCAL:8 CONSTANT[0]:384"
    assert asm.resource_usage(text) == {"REG": 255, "STACK": 432, "SHARED": 16, "LOCAL": 8}


# --- the gates ----------------------------------------------------------------------------------------

CLEAN = Compiled(
    kernel="k",
    target="sm_90",
    num_warps=4,
    num_stages=3,
    registers=40,
    shared_bytes=0,
    spills=0,
    scratch_bytes=0,
    memory=(
        asm.MemoryInstruction("load", 16, "ld.global.v4.b32"),
        asm.MemoryInstruction("load", 4, "ld.global.b32"),
        asm.MemoryInstruction("store", 16, "st.global.v4.b32"),
    ),
    bulk_copies=0,
    matrix_instructions=0,
    texts={},
)


def test_narrow_accesses_are_allowed_by_number_alone():
    with pytest.raises(
        AssertionError, match=r"k for sm_90, 4 warps: 1 of 3 .* 0 allowed(.|\n)*4 bytes: ld.global.b32"
    ):
        assert_vectorized(CLEAN)
    assert_vectorized(CLEAN, allow=1)
    assert_vectorized(CLEAN, bytes=4)
    with pytest.raises(AssertionError, match="3 of 3 loads and stores move less than 32 bytes, 2 allowed"):
        assert_vectorized(CLEAN, bytes=32, allow=2)


def test_a_kernel_without_accesses_does_not_pass():
    with pytest.raises(AssertionError, match="no load or store of global memory found"):
        assert_vectorized(replace(CLEAN, memory=()))


def test_spills_and_scratch_fail():
    assert_no_spills(CLEAN)
    for change in ({"spills": 1}, {"scratch_bytes": 8}):
        with pytest.raises(AssertionError, match=r"k for sm_90, 4 warps: \d spills and \d bytes of scratch"):
            assert_no_spills(replace(CLEAN, **change))


def test_the_gate_of_the_guide_passes(tmp_path, results):
    guide = (SAMPLES.parents[1] / "docs" / "meter.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in guide.split("```python\n")[1:]]
    kernel = blocks[0].split("x = torch.randn")[0]
    (tmp_path / "softmax_kernels.py").write_text(kernel, encoding="utf-8")
    (tmp_path / "test_kernels.py").write_text(blocks[-1], encoding="utf-8")
    printed = fresh("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path))
    assert printed.splitlines()[-1].startswith("4 passed")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": ["sm_80"]}, ValueError, r"target=\['sm_80'\]"),
        ({"num_warps": 64}, ValueError, "num_warps=64: a power of two from 1 to 32"),
        ({"num_warps": "4"}, ValueError, "num_warps='4'"),
        ({"num_stages": -1}, ValueError, "num_stages=-1"),
        ({"num_stages": 1.5}, ValueError, "num_stages=1.5"),
        ({"divisible_by_16": "n"}, TypeError, "divisible_by_16='n' is one name"),
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        build.inspect(None, {}, {}, **({"target": "sm_80"} | options))


@pytest.mark.parametrize("options", [{"bytes": 0}, {"bytes": -1}, {"allow": -1}])
def test_gates_that_could_not_fail(options):
    with pytest.raises(ValueError, match="a positive width, and none or more allowed"):
        assert_vectorized(SimpleNamespace(memory=(), bulk_copies=1), **options)
