"""What an assembly text holds: memory instructions with their widths, matrix instructions, spills.

NVIDIA: loads, stores and matrix instructions are counted in PTX, because ptxas unrolls loops; spills in its
output. AMD: all in the amdgcn text. Counts are static: the body of a loop counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class MemoryInstruction:
    """A load from or a store to global memory.

    Attributes:
        kind: "load" or "store".
        bytes: that one thread moves.
        text: the instruction.
    """

    kind: str
    bytes: int
    text: str


@dataclass(frozen=True)
class Instructions:
    """The instructions of a text that are counted.

    Attributes:
        memory: loads and stores of global memory, in the text's order. Scalar loads of kernel arguments
            (ld.param, s_load), atomics and local memory are not among them.
        bulk_copies: copies of whole tiles by the hardware (TMA), which have no width.
        matrix: tensor-core or matrix-core instructions.
    """

    memory: tuple[MemoryInstruction, ...]
    bulk_copies: int
    matrix: int


_PTX_MEMORY: Final = re.compile(
    r"(?:^|\s)(?P<op>ld|st)(?P<modifiers>(?:\.\w[\w:]*)*?\.global(?:\.\w[\w:]*)*)\s"
)
_PTX_TYPE: Final = re.compile(r"(?:\.v(?P<count>[248]))?\.[busf]f?(?P<bits>8|16|32|64|128)$")
#: cp.async.cg.shared.global [to], [from], 0x10, ...: the third operand is the size.
_PTX_ASYNC: Final = re.compile(
    r"(?:^|\s)cp\.async\.c[ag]\.shared[\w:.]*\.global[\w:.]*\s[^\]]*\],[^\]]*\],\s*(?P<bytes>0x[0-9a-f]+|\d+)"
)
_PTX_BULK: Final = re.compile(r"(?:^|\s)cp\.async\.bulk\.(?!commit_group|wait_group|prefetch)")
_PTX_MATRIX: Final = re.compile(r"(?:^|\s)(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_SASS_SPILL: Final = re.compile(r"\s(LDL|STL)(?:\.[\w.]+)?\s")

_AMD_MEMORY: Final = re.compile(
    r"^[ \t]*(?P<text>(?:global|buffer|flat)_(?P<op>load|store)_(?P<rest>\w+).*)$", re.MULTILINE
)
_AMD_WIDTH: Final = re.compile(r"(?:lds_|tr_)?(?:d16_(?:hi_)?)?(?P<width>[a-z]+\d*)(?:_d16(?:_hi)?)?")
_AMD_MATRIX: Final = re.compile(r"^\s*v_(?:mfma|smfmac|wmma|swmmac)_", re.MULTILINE)
_AMD_BYTES: Final = {
    **dict.fromkeys(("byte", "ubyte", "sbyte", "b8", "u8", "i8"), 1),
    **dict.fromkeys(("short", "ushort", "sshort", "b16", "u16", "i16"), 2),
    **dict.fromkeys(("dword", "b32"), 4),
    **dict.fromkeys(("dwordx2", "b64"), 8),
    **dict.fromkeys(("dwordx3", "b96"), 12),
    **dict.fromkeys(("dwordx4", "b128"), 16),
}


def ptx(text: str) -> Instructions:
    """The instructions of a PTX text. ValueError where the width of a global access is not understood."""
    memory = []
    bulk = matrix = 0
    for line in _code(text):
        if match := _PTX_ASYNC.search(line):
            memory.append(MemoryInstruction("load", int(match["bytes"], 0), line))
        elif match := _PTX_MEMORY.search(line):
            kind = "load" if match["op"] == "ld" else "store"
            memory.append(MemoryInstruction(kind, _ptx_bytes(match["modifiers"], line), line))
        elif _PTX_BULK.search(line):
            bulk += 1
        elif _PTX_MATRIX.search(line):
            matrix += 1
    return Instructions(tuple(memory), bulk, matrix)


def _code(text: str) -> list[str]:
    return [code for line in text.splitlines() if (code := line.split("//")[0].strip())]


def _ptx_bytes(modifiers: str, line: str) -> int:
    match = _PTX_TYPE.search(modifiers)
    if match is None:
        raise ValueError(f"the width of {line!r} is not understood")
    return int(match["count"] or 1) * int(match["bits"]) // 8


def sass_spills(text: str) -> tuple[int, int]:
    """Loads and stores of local memory in what nvdisasm prints: only spilled registers lie there."""
    found = _SASS_SPILL.findall(text)
    return found.count("LDL"), found.count("STL")


def resource_usage(text: str) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of what `cuobjdump -res-usage` prints."""
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}


def amdgcn(text: str) -> Instructions:
    """The instructions of an amdgcn text. ValueError where the width of a global access is not understood."""
    memory = []
    for match in _AMD_MEMORY.finditer(text):
        width = _AMD_WIDTH.fullmatch(match["rest"])
        if width is None or width["width"] not in _AMD_BYTES:
            raise ValueError(f"the width of {match['text']!r} is not understood")
        memory.append(MemoryInstruction(match["op"], _AMD_BYTES[width["width"]], match["text"]))
    return Instructions(tuple(memory), 0, len(_AMD_MATRIX.findall(text)))


def amd_metadata(text: str) -> dict[str, int]:
    """The kernel's figures in the amdgcn text's metadata: vgpr_count, sgpr_spill_count and the like."""
    return {
        name: int(value) for name, value in re.findall(r"^[ \t-]*\.(\w+):\s+(\d+)\s*$", text, re.MULTILINE)
    }
