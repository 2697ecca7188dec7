"""The Triton kernels on a real GPU: errors, times, fractions of the copy, and DRAM bytes where Nsight
Compute is.

    python -m benchmarks.gpu_check [--quick] [--minutes 7] [--name gpu]

One table and results/NAME.json. Every shape's algorithms and torch are timed in interleaved rounds with
events of the
device; `copy` is torch's copy of the same tensor in the same rounds. The run stops taking new shapes when
its minutes
are used up, and says which are missing. Where `ncu` is on the PATH, one launch of each float32 algorithm is
profiled
in a process of its own and its DRAM bytes stand beside the model's. Exit code 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import online_softmax
from benchmarks import record
from online_softmax.extras import MissingExtra, require
from online_softmax.traffic import model

ALGORITHMS = ("naive", "three_pass", "online", "cached")
OPERATIONS = ("softmax", "log_softmax", "logsumexp")
DTYPES = ("float32", "bfloat16", "float16")
#: One row in registers of few threads, of a block, of the largest block, and in chunks; a whole-vocabulary
# row.
SHAPES = (
    (65536, 128),
    (16384, 1024),
    (8192, 4096),
    (4096, 16384),
    (1024, 50257),
    (512, 128256),
    (16, 1 << 20),
)
QUICK = ((64, 128), (4, 300))
ROUNDS = 25
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


@dataclass(frozen=True)
class Line:
    """One contender on one shape; seconds are medians, bytes the model's (None for peers).

    `of_copy` compares with the time of a copy of the same tensor, `worst_error` is the largest absolute error
    against float64.
    """

    operation: str
    dtype: str
    rows: int
    columns: int
    contender: str
    seconds: float
    of_copy: float
    bytes_moved: int | None
    bytes_per_second: float | None
    worst_error: float
    #: Of "any order" alone: whether its bits are those of the CPU.
    same_bits: bool | None = None


def timer(torch: Any, device: str) -> Callable[[Callable[[], object]], float]:
    """A clock for one call: events of the device, or the host's clock where the kernels run on the CPU."""
    if device == "cpu":

        def host(call: Callable[[], object]) -> float:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

        return host

    def events(call: Callable[[], object]) -> float:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return events


def interleaved(
    calls: Mapping[str, Callable[[], object]], clock: Callable[[Callable[[], object]], float], rounds: int
) -> dict[str, float]:
    """Median seconds of each call; the first round, which compiles, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = clock(calls[name])
            if turn:
                seconds[name].append(taken)
    return {name: statistics.median(each) for name, each in seconds.items()}


def contenders(operation: str, x: Any, out: Any) -> dict[str, Callable[[], Any]]:
    """Ours by algorithm, then torch's, each into a result that exists where the library takes one."""
    torch, ops = require("torch", "torch", "the check"), _ops()
    function, theirs = getattr(ops, operation), getattr(torch, operation)
    if operation == "logsumexp":
        ours = {name: (lambda name=name: function(x, algorithm=name)) for name in ALGORITHMS}
        ours["any order"] = lambda: function(x, order="any")
        return {**ours, "torch": lambda: theirs(x, -1)}
    ours = {name: (lambda name=name: function(x, algorithm=name, out=out)) for name in ALGORITHMS}
    ours["any order"] = lambda: function(x, order="any", out=out)
    return {**ours, "torch out=": lambda: theirs(x, -1, out=out)}


def same_bits(operation: str, x: Any) -> bool:
    """Whether order="any" has the bits on this device that the CPU gives, in the first rows."""
    first = x[:16]
    ours = getattr(_ops(), operation)(first, order="any").cpu()
    theirs = getattr(online_softmax, operation)(first.cpu(), order="any")
    kind = getattr(require("torch", "torch", "the check"), {2: "int16", 4: "int32"}[theirs.element_size()])
    return bool((ours.to(theirs.dtype).view(kind) == theirs.view(kind)).all())


def _ops() -> Any:
    from online_softmax.gpu import ops

    return ops


def measure(operation: str, dtype: str, rows: int, columns: int, device: str, rounds: int) -> Iterator[Line]:
    """Check and time every contender on one shape."""
    torch = require("torch", "torch", "the check")
    kind = getattr(torch, dtype)
    seed = torch.Generator(device=device).manual_seed(0)
    x = (torch.randn(rows, columns, generator=seed, device=device) * 4).to(kind)
    out = torch.empty_like(x)
    exact = getattr(torch, operation)(x.double(), -1)
    calls = contenders(operation, x, out)
    errors = {name: float((call().double() - exact).abs().max()) for name, call in calls.items()}
    del exact
    calls["copy"] = lambda: out.copy_(x)
    times = interleaved(calls, timer(torch, device), rounds)
    for name, error in errors.items():
        moved = (
            model.traffic(operation, name, rows, columns, x.element_size()).total
            if name in ALGORITHMS
            else None
        )
        seconds = times[name]
        rate = None if moved is None else moved / seconds
        same = same_bits(operation, x) if name == "any order" else None
        yield Line(
            operation, dtype, rows, columns, name, seconds, times["copy"] / seconds, moved, rate, error, same
        )


def profiled(rows: int, columns: int) -> list[dict[str, Any]]:
    """DRAM bytes of one float32 softmax by each algorithm, from Nsight Compute; the model's beside them."""
    found = []
    for algorithm in ALGORITHMS:
        command = [
            "ncu",
            "--csv",
            "--metrics",
            ",".join(METRICS),
            "--kernel-name",
            "regex:looped|cached|chunk.*",
        ]
        target = [sys.executable, "-m", "benchmarks.gpu_check", "--one", algorithm, str(rows), str(columns)]
        done = subprocess.run([*command, *target], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            found.append({"algorithm": algorithm, "failed": done.stderr.strip().splitlines()[-1:]})
            continue
        moved = model.traffic("softmax", algorithm, rows, columns, 4)
        found.append(
            {
                "algorithm": algorithm,
                "model_read": moved.read,
                "model_written": moved.written,
                **dram(done.stdout),
            }
        )
    return found


def dram(text: str) -> dict[str, float]:
    """Sums of the metrics in ncu's CSV, in bytes. Its own lines before the table start with "=="."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    scale = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    sums = dict.fromkeys(METRICS, 0.0)
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if row["Metric Name"] in sums:
            value = float(row["Metric Value"].replace(",", ""))
            sums[row["Metric Name"]] += value * scale[row["Metric Unit"]]
    return sums


def one(algorithm: str, rows: int, columns: int) -> None:
    """A single call, for the profiler: inputs past the cache, so that its kernels find nothing there."""
    torch = require("torch", "torch", "the check")
    x = torch.randn(rows, columns, device="cuda")
    out = torch.empty_like(x)
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1)
    _ops().softmax(x, algorithm=algorithm, out=out)
    torch.cuda.synchronize()


def table(lines: list[Line]) -> Table:
    """A line a contender."""
    grid = Table(title="medians of interleaved rounds")
    headings = (
        "operation",
        "dtype",
        "shape",
        "contender",
        "us",
        "of copy",
        "model GB/s",
        "worst error",
        "the CPU's bits",
    )
    for heading in headings:
        grid.add_column(heading, justify="right")
    for line in lines:
        rate = "-" if line.bytes_per_second is None else f"{line.bytes_per_second / 1e9:.0f}"
        grid.add_row(
            line.operation, line.dtype, f"({line.rows}, {line.columns})", line.contender,
            f"{1e6 * line.seconds:.1f}", f"{line.of_copy:.2f}", rate, f"{line.worst_error:.1e}",
            "" if line.same_bits is None else "yes" if line.same_bits else "NO",
        )  # fmt: skip
    return grid


def _device(torch: Any, quick: bool) -> str | None:
    if torch.cuda.is_available():
        return "cuda"
    return "cpu" if quick and os.environ.get("TRITON_INTERPRET") == "1" else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes; TRITON_INTERPRET=1: on the CPU")
    parser.add_argument("--minutes", type=float, default=7.0, help="no new shape is begun after these")
    parser.add_argument("--name", default="gpu", help="results/NAME.json")
    parser.add_argument("--one", nargs=3, metavar=("ALGORITHM", "ROWS", "COLUMNS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        torch = require("torch", "torch", "the check")
        require("triton", "triton", "the check")
    except MissingExtra as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if arguments.one:
        one(arguments.one[0], int(arguments.one[1]), int(arguments.one[2]))
        return 0
    device = _device(torch, arguments.quick)
    if device is None:
        print("gpu_check: no GPU that torch can use; run it where there is one", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * arguments.minutes
    lines: list[Line] = []
    missing = []
    for rows, columns in QUICK if arguments.quick else SHAPES:
        for operation in OPERATIONS:
            for dtype in DTYPES:
                if time.monotonic() > end:
                    missing.append(f"{operation} {dtype} ({rows}, {columns})")
                    continue
                rounds = 1 if arguments.quick else ROUNDS
                lines += measure(operation, dtype, rows, columns, device, rounds)
    Console(width=140).print(table(lines))
    seen = profiled(8192, 4096) if shutil.which("ncu") and device == "cuda" else None
    if seen is None:
        print("DRAM bytes: not profiled, ncu is not on the PATH")
    if missing:
        print(f"out of time, not measured: {'; '.join(missing)}")
    name = torch.cuda.get_device_name() if device == "cuda" else "the interpreter"
    body = {"device": name, "results": [asdict(line) for line in lines], "missing": missing, "dram": seen}
    print(f"{name}: wrote {record.write(arguments.name, body, arguments.quick)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
