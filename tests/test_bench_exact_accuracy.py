"""benchmarks.exact_accuracy on short rows: what it measures is there, and a wrong result shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import CHOICES

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs a long double of 64 bits")

#: Runs it into a folder; then once more with an order="any" that is off by a millionth.
SCRIPT = """
import json, sys
from pathlib import Path

from benchmarks import exact_accuracy, record

folder = Path(sys.argv[1])
record.SCRATCH = folder
sys.argv[1:] = ["--quick"]
exact_accuracy.main()
data = record.read("exact_accuracy", True)
(folder / "table.md").write_text(exact_accuracy.text(data))
right = exact_accuracy.ours("any")

def wrong(x):
    lse, log_y, y = right(x)
    return lse, log_y, y * type(y.flat[0])(1 + 1e-5)

exact_accuracy.contenders = lambda: {exact_accuracy.ANY: wrong}
lines = exact_accuracy.measure(True)
(folder / "wrong.json").write_text(json.dumps(lines))
(folder / "alone.md").write_text(exact_accuracy.text({"results": lines}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact_accuracy")
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "within the bound: 20 of 20 cases" in done.stdout
    return folder


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def test_every_case_has_the_errors_of_every_contender(made: Path) -> None:
    lines = read(made, "exact_accuracy")["results"]
    assert {(line["dtype"], line["length"]) for line in lines} == {
        (dtype, length) for dtype in ("float32", "float64") for length in (100, 3000)
    }
    for line in lines:
        assert set(line["errors"]) == {'order="any"', 'order="row"', "PyTorch", "JAX"}
        small = 2e-6 if line["dtype"] == "float32" else 1e-15
        assert 0 < line["errors"]['order="any"']["y"] < small
        assert line["errors"]['order="any"']["lse"] < 1.5
        assert 0 < line["bars"][0]["value"] <= 1
        assert line["bars"][0]["reached"] is True


def test_a_wrong_result_misses_its_bar(made: Path) -> None:
    for line in read(made, "wrong"):
        assert line["bars"][0]["reached"] is False
        assert line["errors"]['order="any"']["y"] > 5e-6


def test_the_table_has_a_line_for_each(made: Path) -> None:
    lines = (made / "table.md").read_text().splitlines()
    results = read(made, "exact_accuracy")["results"]
    assert len(lines) == 4 + len(results)
    assert all(line.count(" / ") == 9 for line in lines[4:])
    assert "/ - / - / - |" in (made / "alone.md").read_text()


def test_the_committed_errors_are_within_the_bound() -> None:
    data = json.loads((ROOT / "benchmarks" / "results" / "exact_accuracy.json").read_text())
    assert len(data["results"]) == 30
    assert all(line["bars"][0]["reached"] for line in data["results"])
