"""The count of the CPU kernels' bytes: reading cachegrind's files, the regimes, the comparison, and the
results in the repository. The count itself takes minutes and a built driver: `make count`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from online_softmax.traffic.model import algorithms, traffic

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "count.json"


def load() -> ModuleType:
    """benchmarks/count.py without its package, which would move this process to two CPUs."""
    spec = importlib.util.spec_from_file_location("count_under_test", ROOT / "benchmarks" / "count.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


count = load()

TEXT = """desc: I1 cache:         32768 B, 64 B, 8-way associative
desc: D1 cache:         32768 B, 64 B, 8-way associative
desc: LL cache:         1048576 B, 64 B, 16-way associative
cmd: build/count/count softmax f32 online 2 64 1
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
fl=???
fn=main
0 40 1 1 10 2 2 5 1 1
fn=void osm::isa_avx2::(anonymous namespace)::rows<float>(osm::RowsJob const&)
0 300 3 3 200 20 16 50 9 8
0 20 0 0 10 0 0 0 0 0
fn=osm::isa_avx512::(anonymous namespace)::usable()
0 0 0 0 0 0 0 0 0 0
summary: 360 4 4 220 22 18 55 10 9
"""


def test_a_file_is_read_into_totals_and_instructions_by_function() -> None:
    profile = count.parse(TEXT)
    assert profile.totals == {
        "Ir": 360, "I1mr": 4, "ILmr": 4, "Dr": 220, "D1mr": 22, "DLmr": 18, "Dw": 55, "D1mw": 10, "DLmw": 9,
    }  # fmt: skip
    assert list(profile.instructions.values()) == [40, 320, 0]
    assert sum(profile.instructions.values()) == profile.totals["Ir"]


def test_the_kernels_that_ran_are_known_by_name() -> None:
    assert count.kernels(count.parse(TEXT)) == {"avx2"}
    ran = TEXT.replace("0 0 0 0 0 0 0 0 0 0", "0 7 0 0 0 0 0 0 0 0")
    assert count.kernels(count.parse(ran)) == {"avx2", "avx512"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("summary: ", "total: ", "a summary of Ir"),
        ("DLmw\n", "DLmw Bc\n", "argument 2 is shorter"),
        ("events: Ir", "events: Cycles", r"events=\['Cycles'"),
        (" D1mr DLmr Dw", " D1mr Other Dw", "a summary of Ir"),
    ],
)
def test_a_file_of_another_form_is_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        count.parse(TEXT.replace(old, new))


def test_a_call_is_the_difference_in_lines_of_64_bytes() -> None:
    once = count.Profile({"DLmr": 18, "DLmw": 9}, {})
    twice = count.Profile({"DLmr": 34, "DLmw": 17}, {})
    assert count.difference(once, twice) == count.Moved(read=1024, written=512)


def test_a_deviation_is_relative_to_the_prediction_or_to_the_tensor_where_that_is_more() -> None:
    assert count.deviation(3030, 3000, 1000) == 0.01
    assert count.deviation(2985, 3000, 1000) == -0.005
    assert count.deviation(14, 4, 1000) == 0.01  # logsumexp's results
    assert count.deviation(3000, 3000, 1000) == 0


@pytest.mark.parametrize(
    ("operation", "algorithm", "itemsize", "expected"),
    [
        ("softmax", "online", 4, 2 * 4096),
        ("log_softmax", "three_pass", 2, 2 * 2048),
        ("logsumexp", "three_pass", 4, 4096),
        ("softmax", "cached", 4, 5 * 4096),
        ("softmax", "cached", 2, 4 * 2048 + 4096),
        ("softmax", "cached", 8, 5 * 8192),
        ("logsumexp", "cached", 4, 4 * 4096),
    ],
)
def test_bytes_in_flight(operation: str, algorithm: str, itemsize: int, expected: int) -> None:
    assert count.in_flight(operation, algorithm, 1024, itemsize) == expected


def test_passes_reach_memory_where_the_row_outgrows_the_cache() -> None:
    assert [count.passes_over_memory(n, 1001, 2002, 1000) for n in (0, 1, 2, 3)] == [0, 1, 2, 3]
    assert [count.passes_over_memory(n, 500, 1000, 1000) for n in (0, 1, 2, 3)] == [0, 1, 1, 1]
    with pytest.raises(ValueError, match="row=1000, flight=2000: a row over cache=1000"):
        count.passes_over_memory(2, 1000, 2000, 1000)


CACHE = 1024


def case(algorithm: str, columns: int, long: bool, operation: str = "softmax", in_place: bool = False) -> Any:
    return count.Case(operation, "f32", algorithm, 2, columns, long, in_place)


@pytest.mark.parametrize(
    ("algorithm", "passes"), [("naive", 2), ("three_pass", 3), ("online", 2), ("cached", 1)]
)
def test_predictions(algorithm: str, passes: int) -> None:
    t = 2 * 32 * 4
    assert count.predict(case(algorithm, 32, False), CACHE) == count.Moved(t, t)
    assert count.predict(case(algorithm, 32, False, in_place=True), CACHE) == count.Moved(t, 0)
    assert count.predict(case(algorithm, 32, False, "logsumexp"), CACHE) == count.Moved(t, 2 * 4)
    long = case(algorithm, 512, True)
    if algorithm == "cached":
        with pytest.raises(
            ValueError, match="columns=512: cached needs its 10240 bytes in flight within 1024"
        ):
            count.predict(long, CACHE)
    else:
        assert count.predict(long, CACHE) == count.Moved(passes * 4096, 4096)


@pytest.mark.parametrize("setting", [count.FULL, count.QUICK])
def test_every_case_lies_in_its_regime(setting: Any) -> None:
    for one in count.cases(setting, count.ITEMSIZE):
        assert one.tensor == setting.tensor
        assert (one.columns * one.itemsize > setting.cache) == one.long
        model = traffic(one.operation, one.algorithm, one.rows, one.columns, one.itemsize)
        expected = model.read if one.long or one.algorithm == "cached" else one.tensor
        assert count.predict(one, setting.cache).read == expected


def test_the_cases_cover_every_algorithm_in_every_format_and_both_regimes() -> None:
    cases = list(count.cases(count.FULL, count.ITEMSIZE))
    assert len(set(cases)) == len(cases) == 3 * 7 * 4 + 2 * 4 * 2
    plain = {(c.operation, c.dtype, c.algorithm, c.long) for c in cases if not c.in_place}
    for operation in count.OPERATIONS:
        for algorithm in algorithms(operation):
            for dtype in count.ITEMSIZE:
                assert (operation, dtype, algorithm, False) in plain
                assert ((operation, dtype, algorithm, True) in plain) == (algorithm != "cached")


# Stands in for valgrind: 100 + 16 read misses and 50 + 8 write misses a call, and the options it was given.
VALGRIND = """#!{python}
import pathlib, sys
if sys.argv[1] == "--version":
    print("valgrind-0.0")
    sys.exit()
assert "--LL=1024,16,64" in sys.argv
out = next(a.partition("=")[2] for a in sys.argv if a.startswith("--cachegrind-out-file="))
calls = int(sys.argv[-1])
if {fails}:
    sys.exit("no such instruction")
text = "events: Ir DLmr DLmw\\nfn=osm::isa_{isa}::rows\\n0 9 0 0\\nsummary: 9 "
pathlib.Path(out).write_text(text + f"{{100 + 16 * calls}} {{50 + 8 * calls}}\\n")
"""


def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isa: str = "avx2", fails: bool = False) -> Any:
    tool, driver = tmp_path / "valgrind", tmp_path / "driver"
    tool.write_text(VALGRIND.format(python=sys.executable, isa=isa, fails=fails), encoding="utf-8")
    tool.chmod(0o755)
    driver.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    return count.Runner(driver, CACHE)


def test_a_line_holds_the_count_and_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner(tmp_path, monkeypatch)
    assert run.version() == "valgrind-0.0"
    line = run.line(case("three_pass", 32, False))  # T = 256 bytes
    assert line["tensor"] == 256
    assert line["counted"] == {"read": 1024, "written": 512}
    assert line["predicted"] == {"read": 256, "written": 256}
    assert (line["read_deviation"], line["written_deviation"], line["within"]) == (3.0, 1.0, False)
    exact = run.line(count.Case("softmax", "bf16", "online", 2, 128, False, False))
    assert exact["predicted"] == {"read": 512, "written": 512}
    assert (exact["read_deviation"], exact["written_deviation"]) == (1.0, 0.0)
    assert count.worst([line, exact]) == 3.0
    assert count.grid([line, exact], ("f32", "bf16")).row_count == 2


def test_a_run_of_other_kernels_or_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = runner(tmp_path, monkeypatch, isa="avx512")
    with pytest.raises(RuntimeError, match=r"kernels of \['avx512'\] ran, not of avx2 alone"):
        other.profile(case("online", 32, False), 1)
    failing = runner(tmp_path, monkeypatch, fails=True)
    with pytest.raises(RuntimeError, match="exit code 1\nno such instruction"):
        failing.profile(case("online", 32, False), 1)
    with pytest.raises(FileNotFoundError, match="not built; `make count` builds it"):
        count.Runner(tmp_path / "nothing", CACHE)


def test_without_valgrind_the_command_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "count.py")],
        env={"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "valgrind is not installed: on Debian apt-get install valgrind\n"


@pytest.mark.skipif(not RESULTS.exists(), reason="benchmarks/results/count.json is not here: `make count`")
def test_the_counts_in_the_repository_agree_with_the_model() -> None:
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert record["kernels"] == "avx2"
    assert record["tolerance"] == count.TOLERANCE == 0.01
    fields = tuple(count.Case.__dataclass_fields__)
    counted = {count.Case(*(line[f] for f in fields)): line for line in record["lines"]}
    assert set(counted) == set(count.cases(count.FULL, count.ITEMSIZE))
    assert len(counted) == len(record["lines"])
    for one, line in counted.items():
        predicted = count.predict(one, record["setting"]["cache"])
        assert line["predicted"] == {"read": predicted.read, "written": predicted.written}
        read = count.deviation(line["counted"]["read"], predicted.read, one.tensor)
        written = count.deviation(line["counted"]["written"], predicted.written, one.tensor)
        assert (line["read_deviation"], line["written_deviation"]) == (read, written)
        assert max(abs(read), abs(written)) <= 0.01, one
