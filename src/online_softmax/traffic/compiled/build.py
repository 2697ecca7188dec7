"""Compiles a kernel for a GPU that need not be there, and reads what came out."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...extras import require
from . import asm

#: Target -> backend, architecture and threads of a warp, as Triton has them.
TARGETS: Final = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
_PURPOSE: Final = "compiling a kernel"
_TYPE: Final = re.compile(
    r"\*?(?:[iu](?:1|8|16|32|64)|fp(?:16|32|64)|bf16|fp8e5|fp8e4nv|fp8e4b8|fp8e5b16|fp8e4b15)|tensordesc<.+>"
)


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel. Counts are static: the body of a loop counts once.

    Attributes:
        kernel, target: names.
        num_warps, num_stages: in force.
        registers: of a thread; vector registers on AMD.
        shared_bytes: shared memory (LDS) of a program.
        spills: NVIDIA: loads and stores of local memory; AMD: registers spilled, vector and scalar.
        scratch_bytes: memory of a thread beside its registers: NVIDIA's stack, AMD's private segment.
        memory: loads and stores of global memory; see `asm.Instructions` for what is left out.
        bulk_copies: tile copies by hardware (TMA).
        matrix_instructions: tensor-core or matrix-core instructions.
        texts: "ttir", "ttgir", "llir" and "ptx" and "sass", or "amdgcn".
    """

    kernel: str
    target: str
    num_warps: int
    num_stages: int
    registers: int
    shared_bytes: int
    spills: int
    scratch_bytes: int
    memory: tuple[asm.MemoryInstruction, ...] = field(repr=False)
    bulk_copies: int
    matrix_instructions: int
    texts: Mapping[str, str] = field(repr=False)

    @property
    def loads(self) -> dict[int, int]:
        """Width in bytes -> number of load instructions, the widest first."""
        return self._widths("load")

    @property
    def stores(self) -> dict[int, int]:
        """Width in bytes -> number of store instructions, the widest first."""
        return self._widths("store")

    def _widths(self, kind: str) -> dict[int, int]:
        count = Counter(found.bytes for found in self.memory if found.kind == kind)
        return dict(sorted(count.items(), reverse=True))


def inspect(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object],
    *,
    target: str,
    num_warps: int = 4,
    num_stages: int | None = None,
    divisible_by_16: Iterable[str] = (),
) -> Compiled:
    """Compile a @triton.jit kernel and say what it became. Needs no GPU; takes about half a second.

    Args:
        kernel: the function; one under triton.autotune is taken from under it.
        signature: parameter -> type: "*fp32", "*bf16", "i32", "fp32" and so on.
        constexprs: value of each tl.constexpr parameter.
        target: "sm_80", "sm_90", "sm_100" or "gfx942".
        num_stages: Triton's default for the target where None.
        divisible_by_16: parameters that hold a multiple of 16 (pointers: their address). Triton finds that
            out by itself at a launch, and needs it for 16-byte accesses; here nothing is assumed.

    Raises ValueError, naming the argument: an unknown target, a parameter unknown, left out or given twice,
    an unknown type, a kernel defined under TRITON_INTERPRET=1. MissingExtra without Triton, FileNotFoundError
    where NVIDIA's cuobjdump or nvdisasm cannot be found. Triton's own errors pass through.
    """
    if not isinstance(target, str) or target not in TARGETS:
        raise ValueError(f"target={target!r}: {', '.join(map(repr, TARGETS))} would do")
    _check_options(num_warps, num_stages, divisible_by_16)
    triton = require("triton", "triton", _PURPOSE)
    function = _function(kernel)
    aligned = set(divisible_by_16)
    _check(function, signature, constexprs, aligned)
    backend, architecture, warp = TARGETS[target]
    source = require("triton.compiler", "triton", _PURPOSE).ASTSource(
        fn=function,
        signature={name: signature.get(name, "constexpr") for name in function.arg_names},
        constexprs=dict(constexprs),
        attrs={(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": num_warps, "enable_fp_fusion": triton.knobs.language.default_fp_fusion}
    if num_stages is not None:
        options["num_stages"] = num_stages
    gpu = require("triton.backends.compiler", "triton", _PURPOSE).GPUTarget(backend, architecture, warp)
    made = triton.compile(source, target=gpu, options=options)
    return (_nvidia if backend == "cuda" else _amd)(function.__name__, target, made)


def _function(kernel: Any) -> Any:
    jit = require("triton.runtime.jit", "triton", _PURPOSE)
    interpreter = require("triton.runtime.interpreter", "triton", _PURPOSE)
    while not isinstance(kernel, (jit.JITFunction, interpreter.InterpretedFunction)):
        if not hasattr(kernel, "fn"):
            raise ValueError(f"kernel={kernel!r}: a @triton.jit function would do")
        kernel = kernel.fn
    language = require("triton.language", "triton", _PURPOSE)
    if any(isinstance(of, interpreter.InterpretedFunction) for of in (kernel, language.sum)):
        raise ValueError(
            f"kernel={kernel.__name__}: defined under TRITON_INTERPRET=1, which cannot be compiled; unset it "
            "before triton is imported"
        )
    return kernel


def _check_options(num_warps: object, num_stages: object, divisible_by_16: Iterable[str]) -> None:
    if not isinstance(num_warps, int) or num_warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"num_warps={num_warps!r}: a power of two from 1 to 32 would do")
    if num_stages is not None and not (isinstance(num_stages, int) and num_stages >= 0):
        raise ValueError(f"num_stages={num_stages!r}: a whole number of at least 0, or None, would do")
    if isinstance(divisible_by_16, str):
        raise TypeError(f"divisible_by_16={divisible_by_16!r} is one name: a list of names would do")


def _check(
    function: Any, signature: Mapping[str, str], constexprs: Mapping[str, object], aligned: set[str]
) -> None:
    names = ", ".join(function.arg_names)
    given = (("signature", signature), ("constexprs", constexprs), ("divisible_by_16", aligned))
    for argument, found in given:
        for name in found:
            if name not in function.arg_names:
                raise ValueError(f"{argument}: {function.__name__} has no parameter {name!r}: {names}")
    for name in function.arg_names:
        if name in signature and name in constexprs:
            raise ValueError(f"{name!r} is in signature and in constexprs: one of them would do")
        if name not in signature and name not in constexprs:
            raise ValueError(f"{name!r} of {function.__name__} is neither in signature nor in constexprs")
    for name in aligned & constexprs.keys():
        raise ValueError(f"divisible_by_16: {name!r} is a constant; a name of signature would do")
    for name, kind in signature.items():
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise ValueError(f"signature: {name!r}: {kind!r} is no type; '*fp32', '*bf16' or 'i32' would do")


def _nvidia(kernel: str, target: str, made: Any) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        usage = asm.resource_usage(_tool("cuobjdump", "-res-usage", str(path)))
        sass = _tool("nvdisasm", "-c", str(path))
    found = asm.ptx(made.asm["ptx"])
    return Compiled(
        kernel=kernel,
        target=target,
        num_warps=made.metadata.num_warps,
        num_stages=made.metadata.num_stages,
        registers=usage["REG"],
        shared_bytes=made.metadata.shared,
        spills=sum(asm.sass_spills(sass)),
        scratch_bytes=usage["STACK"] + usage["LOCAL"],
        memory=found.memory,
        bulk_copies=found.bulk_copies,
        matrix_instructions=found.matrix,
        texts={name: made.asm[name] for name in ("ttir", "ttgir", "llir", "ptx")} | {"sass": sass},
    )


def _amd(kernel: str, target: str, made: Any) -> Compiled:
    text = made.asm["amdgcn"]
    found, metadata = asm.amdgcn(text), asm.amd_metadata(text)
    return Compiled(
        kernel=kernel,
        target=target,
        num_warps=made.metadata.num_warps,
        num_stages=made.metadata.num_stages,
        registers=metadata["vgpr_count"],
        shared_bytes=made.metadata.shared,
        spills=metadata["vgpr_spill_count"] + metadata["sgpr_spill_count"],
        scratch_bytes=metadata["private_segment_fixed_size"],
        memory=found.memory,
        bulk_copies=found.bulk_copies,
        matrix_instructions=found.matrix,
        texts={name: made.asm[name] for name in ("ttir", "ttgir", "llir", "amdgcn")},
    )


def _tool(name: str, *arguments: str) -> str:
    """What one of NVIDIA's tools prints: the one that comes with Triton, or else that of the PATH."""
    package = Path(require("triton", "triton", _PURPOSE).__file__).parent
    bundled = package / "backends" / "nvidia" / "bin" / name
    found = str(bundled) if bundled.is_file() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither in {bundled.parent} nor on the PATH")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
