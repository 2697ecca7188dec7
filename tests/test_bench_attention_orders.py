"""The benchmark of attention's orders on tiny sizes, in a process of its own: `benchmarks` sets its
environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers import CHOICES

ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys
from pathlib import Path

from benchmarks import attention_orders, record

record.SCRATCH = Path(sys.argv[1])
sys.argv[1:] = ["--quick"]
attention_orders.main()
"""


def test_it_runs_and_counts(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)],
        capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "attention_orders.json").read_text())
    assert all(line["ratio"] > 0 for line in body["costs"])
    counts = {line["of"]: line["different outputs"] for line in body["outputs"]}
    assert counts['alone and not, order="row"'] == counts['alone and not, order="any"'] == 1
    assert counts["merges of ExactAttentionState"] == 1
    assert counts["merges of AttentionState"] > 1
