"""examples/torch_train.py: its three ways are one model, and learn."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import online_softmax.torch as ost

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("torch_train")


def test_three_ways_are_one_model(example: Any) -> None:
    text = example.corpus(example.load(None)[:20000])
    sizes = example.Sizes(layers=1, width=16, heads=2, length=16, batch=2)
    runs = {way: example.train(way, text, sizes, 12, "float64") for way in example.WAYS}
    assert ost.enabled() == ()
    first = runs["framework"].losses
    for way in example.WAYS:
        apart = np.abs(np.subtract(runs[way].losses, first))
        assert apart[: example.SAME_STEPS].max() <= example.SAME
        assert runs[way].losses[-1] < runs[way].losses[0]
        assert len(runs[way].seconds) == 12


def test_arguments_are_checked() -> None:
    for given, said in ((["--steps", "1"], "2 or more"), (["--file", "nowhere.txt"], "no such file")):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "torch_train.py"), *given],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert said in done.stderr
