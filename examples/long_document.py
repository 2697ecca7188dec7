"""Attention over a document whose matrix of scores would not fit: time, memory, and rows held to float64.

65,536 tokens have 2^32 scores a head, 16 GiB in float32. `online_softmax.attention` goes a chunk of keys at a
time, so what it takes beside operands and result is some 2 MiB a thread. Every case runs in a process of its
own, since a process's peak memory never falls again:

    python examples/long_document.py                      # 65,536 tokens, full and causal, in two formats
    python examples/long_document.py --tokens 8192 --heads 4 --cases causal --dtypes bfloat16

`beside` is the peak of resident memory during the call, less what was resident just before it and less the
result: queries, keys and values are there before, the result and all scratch come during the call. A few
rows are then computed alone in float64, and the result's distance to them is held to its rounding bound
(dense.py). Operands are seeded normal numbers, the queries twice as large, so that scores spread by 2.
Exits 1 where a row is past its bound, or `beside` is more than 16 MiB and 4 MiB a thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from dense import Array, dense, largest_difference, share_of_bound

import online_softmax as osm

CASES = ("full", "causal")
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("float32", "bfloat16", "float16")}
MIB = 2.0**20
#: Memory allowed beside the result: room for the allocator's large pages, and twice the scratch of a thread.
ALLOWED, ALLOWED_A_THREAD = 16 * MIB, 4 * MIB
ROWS = 8
AT_ONCE = 4096


def operands(heads: int, tokens: int, d: int, dtype: np.dtype[Any]) -> list[Array]:
    """q, k, v of (heads, tokens, d), made in small pieces: a large temporary would raise the peak before."""
    rng = np.random.default_rng(0)
    made = [np.empty((heads, tokens, d), dtype) for _ in range(3)]
    for array, gain in zip(made, (2, 1, 1), strict=True):
        for head in array:
            for start in range(0, tokens, AT_ONCE):
                part = head[start : start + AT_ONCE]
                part[...] = gain * rng.standard_normal(part.shape, dtype=np.float32)
    return made


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Bytes of this process that were in memory at most (not ru_maxrss: that starts from the parent's)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def measure(tokens: int, heads: int, d: int, case: str, dtype: str) -> dict[str, Any]:
    """One call and its check; bytes, seconds and errors. Only a fresh process measures memory right."""
    q, k, v = operands(heads, tokens, d, DTYPES[dtype])
    before = resident()
    start = time.perf_counter()
    output = osm.attention(q, k, v, causal=case == "causal")
    seconds = time.perf_counter() - start
    beside = peak() - before - output.nbytes
    rows = np.unique(np.linspace(0, tokens - 1, ROWS).astype(np.int64))
    found = []
    for head in range(heads):
        one = slice(head, head + 1)
        for row in rows:  # one at a time: a row of scores in float64 is short, a few dozen are not
            seen = row + 1 if case == "causal" else tokens
            truth = dense(q[one, [row]], k[one, :seen], v[one, :seen])
            got = output[one, [row]]
            found.append((largest_difference(got, truth), share_of_bound(got, truth)))
    difference, share = np.max(found, axis=0).tolist()  # a NaN stays
    scores = heads * (tokens * (tokens + 1) // 2 if case == "causal" else tokens**2)
    return {
        "case": case, "dtype": dtype, "seconds": seconds, "flops": 4 * d * scores,
        "operands": q.nbytes + k.nbytes + v.nbytes, "result": output.nbytes, "beside": beside,
        "matrix": 4 * heads * tokens**2, "rows": heads * len(rows), "difference": difference, "share": share,
    }  # fmt: skip


def in_a_fresh_process(given: argparse.Namespace, case: str, dtype: str) -> dict[str, Any]:
    """`measure` in a new interpreter."""
    sizes = [f"--{name}={getattr(given, name)}" for name in ("tokens", "heads", "features")]
    command = [sys.executable, __file__, *sizes, f"--cases={case}", f"--dtypes={dtype}", "--child"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(found.stdout)
    return result


def faults(results: list[dict[str, Any]], threads: int) -> list[str]:
    """What is wrong, a line each."""
    allowed = ALLOWED + threads * ALLOWED_A_THREAD
    wrong = []
    for r in results:
        name = f"{r['case']} {r['dtype']}"
        if not r["share"] <= 1:
            wrong.append(f"{name}: a row is off by {r['share']:.2f} times its bound")
        if r["beside"] > allowed:
            taken = f"{r['beside'] / MIB:.1f} MiB"
            wrong.append(f"{name}: {taken} beside the result, {allowed / MIB:.0f} MiB are allowed")
    return wrong


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: 1 or more would do")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=positive, default=65536)
    parser.add_argument("--heads", type=positive, default=1)
    parser.add_argument("--features", type=positive, default=64, help="of a head; default 64")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32", "bfloat16"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.child:
        sizes = (given.tokens, given.heads, given.features)
        print(json.dumps(measure(*sizes, given.cases[0], given.dtypes[0])))
        return
    threads = osm.info()["threads"]
    matrix = 4 * given.heads * given.tokens**2
    print(f"{given.tokens} tokens, {given.heads} x {given.features} features, {threads} threads")
    print(f"the matrix of scores would take {matrix / MIB:,.0f} MiB in float32\n")
    columns = {"seconds": 8, "GFLOP/s": 9, "operands": 12, "result": 12, "beside": 12, "difference": 12}
    print(f"{'case':7}{'format':10}" + "".join(f"{n:>{w}}" for n, w in columns.items()) + "  of its bound")
    results = []
    for dtype in given.dtypes:
        for case in given.cases:
            r = in_a_fresh_process(given, case, dtype)
            results.append(r)
            memory = "".join(f"{r[name] / MIB:8.1f} MiB" for name in ("operands", "result", "beside"))
            rate = r["flops"] / r["seconds"] / 1e9
            print(f"{case:7}{dtype:10}{r['seconds']:8.2f}{rate:9.1f}{memory}", end="")
            print(f"{r['difference']:12.2e}{r['share']:14.4f}", flush=True)
    print(f"\n{sum(r['rows'] for r in results)} rows computed alone in float64")
    wrong = faults(results, threads)
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
