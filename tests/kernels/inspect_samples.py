"""Compiles the samples for every target and prints what came out as JSON: a script, run where nothing is
interpreted."""

from __future__ import annotations

import json
from typing import Any

import lanes
import rows

from online_softmax.traffic import compiled

MATRIX = {"x": "*fp32", "out": "*fp32", "n": "i32"}
PRODUCT = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}
TILES = {"N": 64, "M": 64, "BLOCK": 64}
results: dict[str, Any] = {}


def complaint(gate: Any, found: compiled.Compiled) -> str:
    try:
        gate(found)
    except AssertionError as error:
        return str(error)
    return ""


def keep(name: str, kernel: Any, signature: Any, constexprs: Any, **options: Any) -> None:
    try:
        found = compiled.inspect(kernel, signature, constexprs, **options)
    except ValueError as error:
        results[name] = str(error)
        return
    results[name] = {
        "kernel": found.kernel,
        "target": found.target,
        "warps": found.num_warps,
        "stages": found.num_stages,
        "registers": found.registers,
        "shared": found.shared_bytes,
        "spills": found.spills,
        "scratch": found.scratch_bytes,
        "loads": found.loads,
        "stores": found.stores,
        "bulk": found.bulk_copies,
        "matrix": found.matrix_instructions,
        "texts": sorted(found.texts),
        "no_spills": complaint(compiled.assert_no_spills, found),
        "vectorized": complaint(compiled.assert_vectorized, found),
    }


block = {"BLOCK": 1024}
for target in compiled.TARGETS:
    keep(f"rows.{target}", rows.three_pass, MATRIX, block, target=target, divisible_by_16=MATRIX)
    keep(f"unaligned.{target}", rows.three_pass, MATRIX, block, target=target)
    keep(f"matmul.{target}", rows.matmul, PRODUCT, TILES, target=target, divisible_by_16=PRODUCT)
ninety: dict[str, Any] = {"target": "sm_90"}
keep("staged", rows.matmul, PRODUCT, TILES, num_warps=8, num_stages=2, divisible_by_16=PRODUCT, **ninety)
# 8192 elements in the registers of one warp: 256 a thread, which has 255. For AMD such code takes minutes.
keep("spilling", rows.cached, MATRIX, {"BLOCK": 8192}, num_warps=1, divisible_by_16=MATRIX, **ninety)
keep("described", rows.described, {**MATRIX, "rows": "i32"}, {"ROWS": 8, "COLUMNS": 64}, **ninety)

keep("target", rows.three_pass, MATRIX, block, target="sm_70")
keep("unknown", rows.three_pass, {**MATRIX, "y": "*fp32"}, block, **ninety)
keep("unknown constant", rows.three_pass, MATRIX, {**block, "WARPS": 4}, **ninety)
keep("unknown divisible", rows.three_pass, MATRIX, block, divisible_by_16=("z",), **ninety)
keep("constant divisible", rows.three_pass, MATRIX, block, divisible_by_16=("BLOCK",), **ninety)
keep("missing", rows.three_pass, {"x": "*fp32", "n": "i32"}, block, **ninety)
keep("twice", rows.three_pass, MATRIX, {**block, "n": 4096}, **ninety)
keep("type", rows.three_pass, {**MATRIX, "x": "float*"}, block, **ninety)
keep("no kernel", lanes.NOT_A_KERNEL, MATRIX, {}, **ninety)
print(json.dumps(results))
