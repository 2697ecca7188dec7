"""The attention benchmark on tiny sizes: every case measured and judged, the tables made from it.

It runs in a process of its own: the package `benchmarks` sets the environment and the CPUs of its process.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import CHOICES

ROOT = Path(__file__).parent.parent
Record = dict[str, Any]

#: Runs both benchmarks and makes the table, all in the folder given; leaves the whole table of work beside.
SCRIPT = """
import json, shutil, sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import attention, attention_accuracy, attention_cases, attention_table, record, table

folder = Path(sys.argv[1])
shutil.copy(record.RESULTS / "rows.json", folder)
record.SCRATCH = folder
for quick in (False, True):
    cases = [asdict(case) | {"name": case.name, "flops": case.flops} for case in attention_cases.cases(quick)]
    (folder / f"cases_{quick}.json").write_text(json.dumps(cases))
sys.argv[1:] = ["--quick"]
attention.main()
attention_accuracy.main()
table.main()
timed, exact = (record.read(name, True) for name in ("attention", "attention_accuracy"))
(folder / "summary.md").write_text(attention_table.summary(timed, exact))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(folder)],
        capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def judged(bar: Record, value: float) -> None:
    assert bar["value"] == pytest.approx(value)
    most = bar["kind"] == "at most"
    assert bar["reached"] is (value <= bar["bar"] if most else value >= bar["bar"])


def hold_case(result: Record) -> None:
    """Finite positive figures, and every bar judged by them."""
    found = result["contenders"] | result["ceilings"]
    for figures in found.values():
        assert all(positive(figures[name]) for name in ("median", "least", "rounds")), result["name"]
    assert positive(result["peak"])
    assert not result["absent"]
    for name, apart in result["differences"].items():
        assert apart <= {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[result["dtype"]], name
    for bar in result["bars"]:
        mine = found[bar["subject"]]
        if bar["kind"] == "of peak":
            judged(bar, result["flops"] / mine["median"] / result["peak"])
        elif bar["kind"] == "faster":
            judged(bar, found[bar["against"]]["median"] / mine["median"])
        else:
            # 256 queries against 64, each for one query.
            queries = 4 if result["family"] == "window" else 1
            judged(bar, mine["median"] / found[bar["against"]]["median"] / queries)


def hold_model(result: Record) -> None:
    """One block of queries: q, k, v and the output once each, and the lse."""
    model, sizes, size = result["model"], result["sizes"], {"float32": 4}.get(result["dtype"], 2)
    rows = sizes["heads"] * sizes["keys"]
    assert model["block_q"] == model["block_k"] == sizes["keys"]
    assert model["bytes"] == 4 * rows * sizes["d"] * size + 4 * rows
    if not result["causal"]:
        assert model["flops"] == result["flops"] == 4 * rows * sizes["keys"] * sizes["d"]
    else:
        assert result["flops"] == 2 * rows * (sizes["keys"] + 1) * sizes["d"] <= model["flops"]
    assert model["intensity"] == pytest.approx(model["flops"] / model["bytes"])
    assert positive(model["floor"])
    assert model["over_floor"] == pytest.approx(result["contenders"]["ours"]["median"] / model["floor"])


def hold_accuracy(data: Record) -> None:
    lines = data["results"]
    kinds = ("plain", "wide scores", "common shift", "long rows")
    assert [(x["dtype"], x["kind"], x["causal"], x["tensor"]) for x in lines] == [
        (dtype, kind, causal, tensor)
        for dtype in ("float32", "bfloat16", "float16")
        for kind in kinds
        for causal in (False, True)
        for tensor in ("o", "dq", "dk", "dv")
    ]
    for line in lines:
        for bar, part in zip(line["bars"], ("mean", "worst"), strict=True):
            ours, theirs = line["ours"][part], line["torch"][part]
            assert positive(ours)
            assert positive(theirs)
            assert bar["bar"] == (1.0 if line["dtype"] == "float32" else 1.2)
            assert bar["value"] == pytest.approx(ours / theirs)
            assert bar["reached"] is (ours / theirs <= bar["bar"])
        if (line["kind"], line["tensor"]) == ("plain", "o"):
            # The truth is what ours approximates: a rounding to the format, or in float32 a few.
            assert (
                line["ours"]["worst"]
                <= {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}[line["dtype"]]
            )
    assert len(data["bounds"]) == 3 * 3 * 2 * 5
    assert all(bar["reached"] and bar["value"] <= 1 for line in data["bounds"] for bar in line["bars"])


def hold_tables(folder: Path, timed: Record, exact: Record) -> None:
    text, summary = (folder / "table.md").read_text(), (folder / "summary.md").read_text()
    for result in timed["results"]:
        s, mask = result["sizes"], "causal" if result["causal"] else "none"
        lead = {
            "forward": f"| {s['keys']} | {s['heads']} | {s['d']} | {mask} | {result['dtype']} |",
            "training": f"| {s['keys']} | {s['heads']} | {s['d']} | {mask} | {result['dtype']} |",
            "decode": f"| {s['batch']} | 32 of {s['kv_heads']} | {s['keys']} | 128 | {result['dtype']} |",
            "forms": f"| half masked | {result['dtype']} |",
            "window": f"| 64 | {result['dtype']} |",
            "gradients": f"| bias gradient | {result['dtype']} |",
        }[result["family"]]
        assert lead in text, result["name"]
    for line in exact["results"]:
        mask = "causal" if line["causal"] else "none"
        cells = (line["kind"], str(line["length"]), mask, line["dtype"], line["tensor"])
        assert f"| {' | '.join(cells)} | {line['ours']['mean']:.2e} |" in text
    assert "| backward | bfloat16 | 2048 |" in text
    bars = [bar["reached"] for result in timed["results"] for bar in result["bars"]]
    assert f"Bars reached: {bars.count(True)} of {len(bars)}." in text
    assert (
        f"Every element within its rounding bound: {len(exact['bounds'])} of {len(exact['bounds'])}."
        in summary
    )
    assert text.index("softmax (65536, 128)") < text.index("## Attention") < text.index("## Accuracy")


def hold_table_of_work(cases: list[Record]) -> None:
    """The bars that were asked, and a run that ends within 25 minutes where rates are 40 and 18 GFLOP/s."""
    asked = {
        (case["family"], case["dtype"], case["sizes"]["d"]): [bar["value"] for bar in case["bars"]]
        for case in cases
    }
    assert asked["forward", "bfloat16", 64] == [2.5]
    assert asked["forward", "bfloat16", 128] == [2.2]
    assert asked["forward", "float32", 64] == [1.5, 0.8]
    assert asked["training", "bfloat16", 128] == [3.0]
    assert asked["decode", "float16", 128] == [7.0, 1.5]
    assert asked["forms", "float32", 64] == [1.25] * 5 + [0.6, 1.5]
    assert len({case["name"] for case in cases}) == len(cases)
    seconds = 0.0
    for case in cases:
        if case["family"] in ("forward", "training"):
            ours, theirs = (2 * case["flops"] / case["threads"] / rate for rate in (40e9, 18e9))
            # A call to warm up and one to plan by; at least three rounds, but for a call of three seconds.
            seconds += max(4.0, sum((2 if each > 3 else 5) * each for each in (ours, theirs)))
    assert seconds < 22 * 60


def test_every_case_is_measured_and_judged(made: Path) -> None:
    """One test, so that one worker runs the benchmarks once."""
    timed, exact = read(made, "attention"), read(made, "attention_accuracy")
    hold_table_of_work(read(made, "cases_False"))
    assert [result["name"] for result in timed["results"]] == [c["name"] for c in read(made, "cases_True")]
    whole = {(c["family"], c["dtype"], c["causal"]) for c in read(made, "cases_False")}
    assert {(r["family"], r["dtype"], r["causal"]) for r in timed["results"]} == whole
    for result in timed["results"]:
        hold_case(result)
        assert (result["model"] is not None) == (result["family"] == "forward")
        if result["model"] is not None:
            hold_model(result)
    for line in timed["memory"]:
        assert line["square"] == 4 * line["length"] ** 2
        assert set(line["bytes"]) == {"ours", "sdpa"}
        # Three gradients and the output have to be somewhere; the scores nowhere.
        assert 4 * line["operand"] <= line["bytes"]["ours"] < line["square"]
        assert 4 * line["operand"] <= line["bytes"]["sdpa"]
    hold_accuracy(exact)
    hold_tables(made, timed, exact)
