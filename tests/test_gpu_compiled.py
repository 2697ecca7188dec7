"""Every Triton kernel compiled for the four targets, with no GPU: nothing spills, and tensors move 16 bytes
a thread."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kernels" / "inspect_gpu.py"
#: The first and third run always: see thinned.py.
TARGETS = {"sm_90": "fp32,bf16,fp16", "sm_80": "fp32,bf16", "gfx942": "fp32,bf16", "sm_100": "fp32,bf16"}
#: Kernels that read, or write, a number or a few a row beside tensors; and the one that reads nothing else.
READS_STATISTICS = {"chunk_results", "lse_backward", "row_lse"}
ONLY_STATISTICS = {"row_lse"}


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
            [sys.executable, "-W", "error", str(SCRIPT), request.param, TARGETS[request.param]],
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
    target, found = compiled
    names = {tuple(name.split(".")) for name in found}
    dtypes = set(TARGETS[target].split(","))
    kernels = {"looped", "cached", "chunk_states", "chunk_results", "row_lse", "topk"}
    kernels |= {"backward_online", "backward_cached", "lse_backward"}
    assert {kernel for *_, kernel in names} == kernels
    for operation in ("softmax", "log_softmax", "logsumexp"):
        for dtype in dtypes:
            for algorithm in ("naive", "three_pass", "online"):
                assert (operation, dtype, algorithm, "looped") in names
            assert (operation, dtype, "cached", "cached") in names
            assert (operation, dtype, "cached", "chunk_states") in names


def test_nothing_spills(compiled):
    _, found = compiled
    assert {name: each["spills"] for name, each in found.items() if each["spills"]} == {}
    assert all(0 < each["registers"] < 256 for each in found.values())


def test_tensors_are_read_16_bytes_a_thread(compiled):
    """Beside them only the numbers of a row: two of them at the most, m and s, or lse and its gradient."""
    _, found = compiled
    for name, each in found.items():
        kernel = name.split(".")[-1]
        loads = {int(width): count for width, count in each["loads"].items()}
        wide = loads.pop(16, 0)
        assert bool(wide) == (kernel not in ONLY_STATISTICS), name
        assert sum(loads.values()) <= (2 if kernel in READS_STATISTICS else 0), name


def test_results_are_written_16_bytes_a_thread(compiled):
    """All but log-sum-exps, states, and the entries of a top-k, which are a few a row."""
    _, found = compiled
    for name, each in found.items():
        operation, _, _, kernel = name.split(".")
        few = operation == "logsumexp" or kernel in ("chunk_states", "topk")
        widths = {int(width) for width in each["stores"]}
        assert (16 in widths) != few, name
        assert few or widths == {16}, name
