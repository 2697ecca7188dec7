"""The kernels of order="any" compiled for GPUs, with no GPU: IEEE operations alone, and nothing spills."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from online_softmax import exact

SCRIPT = Path(__file__).parent / "kernels" / "inspect_exact.py"
#: Target -> formats, alignments and columns it is compiled for.
TARGETS = {"sm_90": ("fp32,bf16", "16", "8192"), "gfx942": ("fp32", "1", "100")}
KERNELS = {"whole", "states", "results", "merged", "read"}
#: What computes with floats in PTX, and what is rounded once, to nearest.
FLOAT_PTX = re.compile(r"(?:add|sub|mul|mad|fma|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh)\..*f\d+(?:x2)?")
ROUNDED_PTX = re.compile(r"(?:add|sub|mul|fma)\.rn\.f(?:32|64)|div\.rn\.f64")
#: Approximate, or rounded twice. Whole numbers are divided with the reciprocal of a float32.
INEXACT_AMD = re.compile(r"v_(?:exp|log|sqrt|rsq|sin|cos|mac|mad_f\d+|fmac_legacy|mul_legacy|div_\w+_f32)_")
#: Multiply-adds of a term: two to its exponent, six to its polynomial, five to its slices.
FUSED = 13


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request, tmp_path_factory, made_once):
    """(target, what the script found there), from an empty cache and without the interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")

    def make():
        clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        clean["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        clean["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(SCRIPT), request.param, *TARGETS[request.param]],
            capture_output=True,
            text=True,
            timeout=600,
            env=clean,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return request.param, json.loads(made_once(f"{SCRIPT.stem}_{request.param}.json", make))


def test_every_kernel_is_there(compiled):
    _, found = compiled
    assert {name.split(".")[0] for name in found} == KERNELS


def test_floats_meet_nothing_but_ieee_operations(compiled):
    target, found = compiled
    for name, each in found.items():
        made = set(each["instructions"])
        if target == "sm_90":
            assert {
                op for op in made if FLOAT_PTX.fullmatch(op) and not ROUNDED_PTX.fullmatch(op)
            } == set(), name
            assert [op for op in made if ".ftz" in op or ".approx" in op] == [], name
            assert name == "merged" or any(op == "fma.rn.f32" for op in made), name
        else:
            assert [op for op in made if INEXACT_AMD.match(op)] == [], name
            assert name == "merged" or any("fma" in op for op in made), name


def test_terms_are_fused_as_written(compiled):
    """Nothing more is fused, and nothing less."""
    target, found = compiled
    if target == "sm_90":
        made = [each for name, each in found.items() if name.startswith("states")]
        assert len(made) == 2
        for each in made:
            assert each["instructions"]["fma.rn.f32"] == FUSED * each["elements"] > 0


def test_constants_are_those_of_the_format(compiled):
    """To the last bit: a float in a kernel's text is no double by itself."""
    target, found = compiled
    if target == "sm_90":
        made = set().union(*(each["constants"] for each in found.values()))
        doubles = (*exact._SERIES, exact._LOG2, exact._LOG2_LOW, exact.FLOAT32.log2e)
        singles = (*exact.FLOAT32.coefficients, exact.FLOAT32.log2e, exact.FLOAT32.smallest)
        assert {f"0d{struct.pack('>d', c).hex().upper()}" for c in doubles} <= made
        assert {f"0f{struct.pack('>f', c).hex().upper()}" for c in singles} <= made


def test_nothing_spills(compiled):
    _, found = compiled
    assert {name: each["spills"] for name, each in found.items() if each["spills"]} == {}


def test_aligned_tensors_are_read_16_bytes_a_thread(compiled):
    _, found = compiled
    for name, each in found.items():
        if ".16." in name:  # compiled for sm_90
            loads = {int(width): count for width, count in each["loads"].items()}
            assert loads.pop(16, 0), name
            # Beside them a state: m, and three sums, which some versions read several times.
            assert bool(loads) == name.startswith("results"), name
            assert set(loads) <= {4, 8}, name
