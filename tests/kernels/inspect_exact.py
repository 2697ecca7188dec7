"""Compiles the kernels of order="any" for one target and prints what came out as JSON: a script, run where
nothing is interpreted.

Usage: inspect_exact.py TARGET FORMATS ALIGNS COLUMNS, the last three lists with commas.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

import triton

from online_softmax.gpu import exact_launch, exact_rows
from online_softmax.traffic.compiled import asm, build

#: What `exact_launch.options` says; `build` compiles with Triton's default.
triton.knobs.language.default_fp_fusion = False
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
NAME = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z][\w.:]*)", re.MULTILINE)
#: Floats in PTX: their bits.
CONSTANT = re.compile(r"\b0(?:f[0-9A-F]{8}|d[0-9A-F]{16})\b")

tool, usage = build._tool, ""


def tool_where_there_is_something_to_find(name: str, *arguments: str) -> str:
    """nvdisasm takes more time than the compilers, and code without local memory has no spill to find."""
    global usage
    if name == "nvdisasm" and not any(asm.resource_usage(usage)[kind] for kind in ("STACK", "LOCAL")):
        return ""
    printed = tool(name, *arguments)
    if name == "cuobjdump":
        usage = printed
    return printed


build._tool = tool_where_there_is_something_to_find


def found(kernel: Any, constants: dict[str, Any], kind: str, threads: int, target: str) -> dict[str, Any]:
    """Rows are adjacent: column strides and the inner level are 1."""
    signature, given = {}, {name: constants[name] for name in kernel.arg_names if name in constants}
    for name in kernel.arg_names:
        if name in given:
            continue
        if name.endswith("_col") or name == "inner":
            given[name] = 1
        elif name.startswith("m_") or (name == "y_ptr" and constants.get("OP", "logsumexp") == "logsumexp"):
            signature[name] = "*fp32"
        elif name.startswith("a_"):
            signature[name] = "*i64"
        elif name.endswith("_ptr"):
            signature[name] = f"*{kind}"
        else:
            signature[name] = "i64" if name.endswith(("_outer", "_inner", "_stride")) else "i32"
    options = exact_launch.options(threads, build.TARGETS[target][2])
    made = build.inspect(
        kernel,
        signature,
        given,
        target=target,
        num_warps=int(options["num_warps"]),
        divisible_by_16=[name for name in signature if name.endswith("_ptr")],
    )
    text = made.texts["ptx" if "ptx" in made.texts else "amdgcn"]
    return {
        "spills": made.spills,
        "scratch": made.scratch_bytes,
        "registers": made.registers,
        "loads": made.loads,
        "instructions": Counter(NAME.findall(text)),
        "constants": sorted(set(CONSTANT.findall(text))),
    }


target = sys.argv[1]
results: dict[str, Any] = {}
for kind in sys.argv[2].split(","):
    for align in map(int, sys.argv[3].split(",")):
        for columns in map(int, sys.argv[4].split(",")):
            cut = exact_launch.cut(64, columns, SIZES[kind], align)
            constants = {
                "ROWS": cut.many,
                "ALIGN": align,
                "BLOCK": cut.block,
                "PARTS": cut.parts,
                "FOREIGN": True,
            }
            for op in ("softmax", "log_softmax", "logsumexp"):
                kernels = {"whole": exact_rows.whole, "results": exact_rows.results}
                if op == "logsumexp":
                    kernels["results"] = exact_rows.states
                for kernel in kernels.values():
                    name = f"{kernel.__name__}.{op}.{kind}.{align}.{columns}"
                    results[name] = found(kernel, {**constants, "OP": op}, kind, cut.threads, target)
                    results[name]["elements"] = cut.block * cut.many // cut.threads
for kernel, constants in (
    (exact_rows.merged, {"ROWS": 1, "STATES": exact_launch.STATES}),
    (exact_rows.read, {"ROWS": exact_launch.STATES}),
):
    results[kernel.__name__] = found(kernel, constants, "fp32", exact_launch.STATES, target)
print(json.dumps(results))
