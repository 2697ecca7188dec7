"""Peak memory of attention at a long sequence: forward and backward, each in a process of its own.

    python -m benchmarks.attention_memory LIBRARY PASS DTYPE LENGTH    what the benchmark runs; prints bytes

The peak is VmHWM of /proc/self/status, which starts anew with the process: ru_maxrss, the same counter for
most of a process's life, starts from its parent's. What operands and libraries take is there before the call
and taken off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import online_softmax
from benchmarks import THREADS
from benchmarks.attention_cases import OURS, SDPA
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.data import DTYPES, Array

ROOT = Path(__file__).parent.parent
STATUS = Path("/proc/self/status")
LIBRARIES, PASSES = (OURS, SDPA), ("forward", "backward")
D = 64
LENGTH, TINY_LENGTH = 16384, 2048
BLOCK = 1024  # rows made at a time, so that no operand leaves a mark of its own on the peak


def peak() -> int:
    """Bytes this process had resident at most so far. Raises OSError where the system does not tell."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no VmHWM")


def _operand(length: int, dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    a = np.empty((1, 1, length, D), DTYPES[dtype])
    for i in range(0, length, BLOCK):
        block = a[:, :, i : i + BLOCK]
        block[...] = rng.standard_normal(block.shape, np.float32)
    return a


def _ours(which: str, arrays: list[Array]) -> Callable[[], Any]:
    q, k, v, do = arrays
    if which == "forward":
        return lambda: online_softmax.attention(q, k, v, threads=THREADS)

    def both() -> Any:
        output, lse = online_softmax.attention(q, k, v, return_lse=True, threads=THREADS)
        return online_softmax.attention_backward(do, q, k, v, output, lse, threads=THREADS)

    return both


def _sdpa(which: str, arrays: list[Array]) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(THREADS)
    function = torch.nn.functional.scaled_dot_product_attention
    leaves, gradient = [tensor(a) for a in arrays[:3]], tensor(arrays[3])
    if which == "forward":
        return lambda: function(*leaves)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)


def child(library: str, which: str, dtype: str, length: int) -> int:
    """Bytes by which a call raises this process's peak, its results included. A small call goes before it."""
    build = _ours if library == OURS else _sdpa
    build(which, [_operand(8, dtype, i) for i in range(4)])()
    call = build(which, [_operand(length, dtype, i) for i in range(4)])
    before = peak()
    call()
    return peak() - before


def measure(quick: bool) -> list[dict[str, Any]]:
    """A line for each dtype, pass and library, or why there is none."""
    length = TINY_LENGTH if quick else LENGTH
    lines = []
    for dtype in ("bfloat16",) if quick else ("float32", "bfloat16"):
        for which in PASSES[1:] if quick else PASSES:
            line: dict[str, Any] = {"dtype": dtype, "pass": which, "length": length, "d": D}
            line |= {"square": length * length * 4, "operand": length * D * DTYPES[dtype].itemsize}
            line |= {"bytes": {}, "absent": {}}
            for library in LIBRARIES:
                if not STATUS.exists():
                    line["absent"][library] = f"no {STATUS} on this system"
                elif library == SDPA and TORCH_MISSING:
                    line["absent"][library] = "torch not installed"
                else:
                    command = [sys.executable, "-m", "benchmarks.attention_memory"]
                    command += [library, which, dtype, str(length)]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
                    line["bytes"][library] = int(done.stdout)
            lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("which", metavar="pass", choices=PASSES)
    parser.add_argument("dtype", choices=sorted(DTYPES))
    parser.add_argument("length", type=int)
    arguments = parser.parse_args()
    print(child(arguments.library, arguments.which, arguments.dtype, arguments.length))


if __name__ == "__main__":
    main()
