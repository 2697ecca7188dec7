"""Compiles every kernel of `online_softmax.gpu` for one target, as rows of 4096 columns launch it, and
prints what came
out as JSON: a script, run where nothing is interpreted."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from online_softmax.gpu import launch, ops
from online_softmax.traffic import compiled
from online_softmax.traffic.compiled import asm, build

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STATISTICS = {"m_ptr", "s_ptr", "lse_ptr", "dlse_ptr"}


def types(
    kernel: Any, operation: str, dtype: str, constants: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Signature and constants of a launch on adjacent rows: column strides and the inner level are 1."""
    signature, given = {}, dict(constants)
    for name in kernel.arg_names:
        if name in constants:
            continue
        if name.endswith("_col") or name == "inner":
            given[name] = 1
        elif name in STATISTICS or (name == "y_ptr" and operation == "logsumexp"):
            signature[name] = "*fp32"
        elif name == "index_ptr":
            signature[name] = "*i64"
        elif name.endswith("_ptr"):
            signature[name] = f"*{dtype}"
        else:
            signature[name] = "i64" if name.endswith(("_outer", "_inner")) else "i32"
    return signature, given


def found(launched: Any, operation: str, dtype: str, target: str) -> dict[str, Any]:
    signature, constants = types(launched.kernel, operation, dtype, launched.constants)
    pointers = [name for name in signature if name.endswith("_ptr")]
    warps = launched.options["num_warps"]
    made = compiled.inspect(
        launched.kernel, signature, constants, target=target, num_warps=warps, divisible_by_16=pointers
    )
    return {"spills": made.spills, "registers": made.registers, "loads": made.loads, "stores": made.stores}


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
target = sys.argv[1]
warp = 64 if target.startswith("gfx") else 32
results: dict[str, Any] = {}
for dtype in sys.argv[2].split(","):
    for operation, algorithms in launch.ALGORITHMS.items():
        for algorithm in algorithms:
            # A row of one block, and for `cached` one that is split.
            for columns in (
                (4096, 65536) if algorithm == "cached" and "backward" not in operation else (4096,)
            ):
                for launched in ops.launches(
                    operation, algorithm, 64, columns, DTYPES[dtype], k=8, warp_size=warp
                ):
                    name = f"{operation}.{dtype}.{algorithm}.{launched.kernel.__name__}"
                    results[name] = found(launched, operation, dtype, target)
print(json.dumps(results))
