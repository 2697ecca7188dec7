"""The example in JAX: run short as a person would run it, and made to fail where it should."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of examples/."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_it_runs_and_says_what_it_measured() -> None:
    paths = os.pathsep.join(p for p in sys.path if p)
    size = ("--steps=3", "--length=64", "--pieces=8", "--features=32")
    found = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "jax_attention.py"), *size],
        capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    lines = [line.split() for line in found.stdout.splitlines()]
    words = int(lines[0][4])
    assert words > 2000
    start = lines.index(["step", "ours", "jax.nn", "apart", "may", "be"])
    losses = []
    for number, line in enumerate(lines[start + 1 : start + 4], 1):
        step, ours, framework, apart, most = map(float, line)
        assert step == number
        assert ours == pytest.approx(framework, abs=1.1e-5 + apart)  # printed to five places
        assert 0 <= apart <= most < 1e-2
        losses.append(ours)
    assert abs(losses[0] - math.log(words)) < 1
    assert losses[2] < losses[0]
    planned = {line[0]: float(line[3]) for line in lines[start + 4 :] if line[-1:] == ["MiB"]}
    # The logits of all words are there in the one and not in the other.
    assert planned["ours"] + 4 * 8 * 64 * words / 2**20 <= planned["jax.nn"]


def test_it_finds_curves_that_part_and_what_was_not_learnt(example: Callable[[str], Any]) -> None:
    script = example("jax_attention")
    good = script.Run([9.0, 8.0], [], 1.0, 100, 100)
    framework = script.Run([9.0, 8.0 + 2.0**-20], [9.0 + 2.0**-22, 8.0], 1.0, 200, 100)
    limits = script.limits_of(framework)
    assert limits[0] == script.ROUNDINGS * 9.0 * 2.0**-24
    assert script.faults({"ours": good, "jax.nn": framework}, limits) == []
    apart = script.faults({"ours": good._replace(losses=[9.0, 8.1]), "jax.nn": framework}, limits)
    assert len(apart) == 1
    assert apart[0].startswith("step 2: the losses are")
    dull = script.faults({"ours": script.Run([9.0, 9.0], [], 1.0, 300, 100), "jax.nn": framework}, [1.0, 2.0])
    assert [line.split(":")[0][:13] for line in dull] == ["the last loss", "the plan has "]
