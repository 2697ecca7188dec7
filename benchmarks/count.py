"""The bytes of the real kernels, counted under cachegrind and held to the model: results/count.json.

    python -m benchmarks.count [--quick] [--driver build/count/count]

`make count` builds the driver (native/count) and runs this. cachegrind executes the very instructions of the
kernels on a simulated cache. valgrind knows nothing newer than AVX2, so the AVX2 kernels are counted, on one
thread. One call is the difference of a run with two calls and a run with one: set-up, C library and loader
cancel exactly. The arrays have 8 MiB, from where on the kernels use non-temporal stores. Exit codes: 1 where
a line is off by more than TOLERANCE, 2 where valgrind or the driver is missing.

What is counted. The simulated last level allocates on reads and writes. A read miss brings one line from
memory. A write miss stands for one line written: it comes in for its first store and leaves, dirty, once.
valgrind takes a non-temporal store for an ordinary one and drops prefetches, which changes neither number
(on hardware a non-temporal store saves the read of the line that `write_allocate=True` adds in the model).

Whose misses they are. x is only read and y only written, so read misses are x's and write misses y's, unless
scratch or the stack takes part. Two further counts show that neither does: logsumexp has no y, and its write
misses vanish; and with the result in the place of x ("in place") the write misses vanish while the read
misses stay, as every store then finds the line that was read just before it. A scratch that missed would be
left over.

What is left over, 0.1 % of T or so. Each item of work (256 KiB, or a longer row) and each segment of a row
touches some tens of lines that are not the tensors': constants, stack, the job's description. They have to be
fetched again where more than the cache holds went by in between. logsumexp puts down 16 bytes of state and 8
of float64 result a row on the stack, and then 4 (8 in float64; the model has one itemsize).

What is not counted. The values are normal-like. A row of log_softmax in which one term dominates is looked at
once more, and a row whose log-sum-exp is within 1/4 of 0 twice more: the model gives the least.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from online_softmax.traffic.model import LINE, algorithms, traffic

ISA = "avx2"
OPERATIONS = ("softmax", "log_softmax", "logsumexp")
ITEMSIZE = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8}
IN_PLACE_DTYPES = ("f32", "bf16")
#: Of the predicted bytes, and of T where less than T is predicted.
TOLERANCE = 0.01
MIB = 1 << 20


@dataclass(frozen=True)
class Setting:
    """Sizes of a run, in bytes: the simulated last level, the tensor, a row that outgrows the cache, one that
    fits."""

    cache: int
    tensor: int
    long_row: int
    short_row: int


FULL = Setting(cache=MIB, tensor=8 * MIB, long_row=4 * MIB, short_row=32 << 10)
QUICK = Setting(cache=MIB, tensor=2 * MIB, long_row=2 * MIB, short_row=32 << 10)


@dataclass(frozen=True)
class Case:
    """What is counted. `long`: the row outgrows the cache. `in_place`: the result replaces x."""

    operation: str
    dtype: str
    algorithm: str
    rows: int
    columns: int
    long: bool
    in_place: bool

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def tensor(self) -> int:
        """T: bytes of x."""
        return self.rows * self.columns * self.itemsize


@dataclass(frozen=True)
class Moved:
    """Bytes from memory and to it."""

    read: int
    written: int


@dataclass(frozen=True)
class Profile:
    """One cachegrind file: totals by event, and instructions executed by function."""

    totals: Mapping[str, int]
    instructions: Mapping[str, int]


def cases(setting: Setting, dtypes: Iterable[str]) -> Iterator[Case]:
    """The model's regime first: rows that outgrow the cache, and for `cached` rows that fit. Then rows that
    fit for the others too, and the model's regime once more with the result in place."""

    def case(operation: str, dtype: str, algorithm: str, long: bool, in_place: bool = False) -> Case:
        row = setting.long_row if long else setting.short_row
        columns = row // ITEMSIZE[dtype]
        return Case(operation, dtype, algorithm, setting.tensor // row, columns, long, in_place)

    chosen = tuple(dtypes)
    for operation in OPERATIONS:
        for algorithm in algorithms(operation):
            for long in (True, False) if algorithm != "cached" else (False,):
                yield from (case(operation, dtype, algorithm, long) for dtype in chosen)
            if operation != "logsumexp":
                in_place = (dtype for dtype in chosen if dtype in IN_PLACE_DTYPES)
                yield from (case(operation, d, algorithm, algorithm != "cached", True) for d in in_place)


def in_flight(operation: str, algorithm: str, columns: int, itemsize: int) -> int:
    """Bytes touched, at most, between the first and the last use of a line of x.

    Passes: the row, and its result where one is written. `cached`: three rows (the maximum of one, the
    exponentials of the next, the results of the last), the result, and the exponentials kept, in float32 or
    wider.
    """
    row = columns * itemsize
    results = row if operation != "logsumexp" else 0
    if algorithm == "cached":
        return 3 * row + results + columns * max(4, itemsize)
    return row + results


def passes_over_memory(passes: int, row: int, flight: int, cache: int) -> int:
    """How often x comes from memory: with every pass where a row of `row` bytes outgrows the cache, once
    where the bytes in flight fit. Raises ValueError between the two, where a part of the row stays."""
    if flight <= cache:
        return min(passes, 1)
    if row > cache:
        return passes
    raise ValueError(f"row={row}, flight={flight}: a row over cache={cache}, or a flight within it, would do")


def predict(case: Case, cache: int) -> Moved:
    """The model's bytes, with the passes that reach memory. In place nothing is left to be written: every
    store finds the line that was read before it."""
    model = traffic(case.operation, case.algorithm, case.rows, case.columns, case.itemsize)
    flight = in_flight(case.operation, case.algorithm, case.columns, case.itemsize)
    if case.algorithm == "cached" and flight > cache:
        raise ValueError(f"columns={case.columns}: cached needs its {flight} bytes in flight within {cache}")
    passes = passes_over_memory(model.read // case.tensor, case.columns * case.itemsize, flight, cache)
    return Moved(read=passes * case.tensor, written=0 if case.in_place else model.written)


def parse(text: str) -> Profile:
    """A cachegrind output file. Raises ValueError where a line is not as the format has it."""
    events: list[str] = []
    totals: dict[str, int] = {}
    instructions: dict[str, int] = {}
    function = ""
    for line in text.splitlines():
        if line[:1].isdigit():
            instructions[function] = instructions.get(function, 0) + int(line.split()[1])
        elif line.startswith("fn="):
            function = line[3:].strip()
        elif line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("summary:"):
            totals = dict(zip(events, map(int, line.split()[1:]), strict=True))
    if events[:1] != ["Ir"] or not {"DLmr", "DLmw"} <= totals.keys():
        raise ValueError(f"events={events}: a summary of Ir, ..., DLmr, ..., DLmw would do")
    return Profile(totals, instructions)


def kernels(profile: Profile) -> set[str]:
    """Instruction sets whose kernels were executed, from the functions' names."""
    names = (name for name, executed in profile.instructions.items() if executed)
    return {found for name in names for found in re.findall(r"\bosm::isa_(\w+)::", name)}


def difference(once: Profile, twice: Profile) -> Moved:
    """Bytes of the second call."""
    misses = {event: twice.totals[event] - once.totals[event] for event in ("DLmr", "DLmw")}
    return Moved(read=misses["DLmr"] * LINE, written=misses["DLmw"] * LINE)


def deviation(counted: int, predicted: int, tensor: int) -> float:
    """(counted - predicted) over the prediction, over T where less than T is predicted."""
    return (counted - predicted) / max(predicted, tensor)


class Runner:
    """Runs the driver under cachegrind.

    Raises FileNotFoundError for a valgrind or a driver that is not there, RuntimeError for a run that failed
    or executed other kernels than AVX2's.
    """

    def __init__(self, driver: Path, cache: int) -> None:
        found = shutil.which("valgrind")
        if found is None:
            raise FileNotFoundError("valgrind is not installed: on Debian apt-get install valgrind")
        if not driver.is_file():
            raise FileNotFoundError(f"driver={driver}: not built; `make count` builds it")
        self.valgrind, self.driver, self.cache = found, driver.resolve(), cache

    def version(self) -> str:
        """As valgrind prints it, such as "valgrind-3.19.0"."""
        done = subprocess.run([self.valgrind, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def profile(self, case: Case, calls: int) -> Profile:
        """The driver with `calls` calls."""
        work = [case.operation, case.dtype, case.algorithm, case.rows, case.columns, calls]
        place = ["in_place"] if case.in_place else []
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            first = [f"--{level}=32768,8,{LINE}" for level in ("I1", "D1")]
            last = f"--LL={self.cache},16,{LINE}"
            tool = ["--tool=cachegrind", "--cache-sim=yes", *first, last, f"--cachegrind-out-file={out}"]
            # valgrind reads options from the home folder, the working folder and the environment, and the
            # environment's size moves the stack: none of it may matter.
            done = subprocess.run(
                [self.valgrind, *tool, str(self.driver), *map(str, work), *place],
                cwd=folder,
                env={"PATH": os.defpath, "HOME": folder},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{case}: exit code {done.returncode}\n{done.stderr[-2000:]}")
            profile = parse(out.read_text())
        if kernels(profile) != {ISA}:
            raise RuntimeError(f"{case}: kernels of {sorted(kernels(profile))} ran, not of {ISA} alone")
        return profile

    def line(self, case: Case) -> dict[str, Any]:
        """One line of the results."""
        counted = difference(self.profile(case, 1), self.profile(case, 2))
        predicted = predict(case, self.cache)
        off_read = deviation(counted.read, predicted.read, case.tensor)
        off_written = deviation(counted.written, predicted.written, case.tensor)
        return {
            **asdict(case),
            "tensor": case.tensor,
            "predicted": asdict(predicted),
            "counted": asdict(counted),
            "read_deviation": off_read,
            "written_deviation": off_written,
            "within": max(abs(off_read), abs(off_written)) <= TOLERANCE,
        }


def worst(lines: Iterable[dict[str, Any]]) -> float:
    """The largest deviation, without its sign."""
    deviations = ("read_deviation", "written_deviation")
    return max(abs(float(line[key])) for line in lines for key in deviations)


def grid(lines: list[dict[str, Any]], dtypes: Iterable[str]) -> Table:
    """One row an operation, algorithm and regime; bytes read and written of each dtype, in units of T."""
    chosen = tuple(dtypes)
    table = Table(title="Bytes read + written by one call, in units of the tensor's bytes T")
    for heading in ("operation", "algorithm", "row", "model", *chosen, "worst off"):
        table.add_column(heading, justify="left" if heading in ("operation", "algorithm", "row") else "right")
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for line in lines:
        key = (line["operation"], line["algorithm"], line["long"], line["in_place"])
        groups.setdefault(key, {})[line["dtype"]] = line
    for (operation, algorithm, long, in_place), found in groups.items():
        row = ("outgrows the cache" if long else "fits") + (", in place" if in_place else "")
        first = next(iter(found.values()))
        model = " + ".join(f"{part / first['tensor']:.0f}" for part in first["predicted"].values())
        cells = (_cell(found[dtype]) if dtype in found else "-" for dtype in chosen)
        table.add_row(operation, algorithm, row, model, *cells, f"{worst(found.values()):.3%}")
    return table


def _cell(line: dict[str, Any]) -> str:
    text = " + ".join(f"{part / line['tensor']:.4f}" for part in line["counted"].values())
    return text if line["within"] else f"[red]{text}[/]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 MiB of float32: does it run?")
    parser.add_argument(
        "--driver", type=Path, default=Path("build/count/count"), help="the built native/count"
    )
    arguments = parser.parse_args()
    setting = QUICK if arguments.quick else FULL
    dtypes = ("f32",) if arguments.quick else tuple(ITEMSIZE)
    try:
        runner = Runner(arguments.driver, setting.cache)
    except FileNotFoundError as missing:
        print(missing, file=sys.stderr)
        return 2
    # Here, and not above: the tests load this file without the package, which moves its process to two CPUs.
    from benchmarks import THREADS, record

    console = Console(width=None if Console().is_terminal else 160)
    with ThreadPoolExecutor(THREADS) as pool:
        lines = list(pool.map(runner.line, cases(setting, dtypes)))
    console.print(grid(lines, dtypes))
    off = worst(lines)
    console.print(
        f"{len(lines)} counts, cache {setting.cache} bytes; worst deviation from the model {off:.3%}, "
        f"{TOLERANCE:.0%} allowed: {'yes' if off <= TOLERANCE else 'no'}"
    )
    body = {
        "tool": runner.version(),
        "kernels": ISA,
        "tolerance": TOLERANCE,
        "setting": asdict(setting),
        "worst_deviation": off,
        "lines": lines,
    }
    console.print(f"wrote {record.write('count', body, arguments.quick)}")
    return 0 if off <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
