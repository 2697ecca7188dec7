"""examples/same_bits.py: run small as a person would, and made to see what it must not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_examples import example, run

__all__ = ["example"]

LINE = re.compile(r"^(.+?) +" + r"(\d+) \((\d+)\) +" * 3 + r"([\d.]+)$")


def test_it_shows_that_only_any_order_keeps_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    # JAX compiles for every length of a part anew.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    found = run("same_bits.py", "--cols", "3000", "--rows", "8", warnings=False)
    assert (found.returncode, found.stderr) == (0, "")
    table = {}
    for line in found.stdout.splitlines():
        if match := LINE.match(line):
            name, *cells = match.groups()
            table[name] = [float(cell) for cell in cells]
    assert len(table) == 7
    for name, (*counts, error) in table.items():
        if name.endswith('order="any"'):
            assert counts == [1, 0] * 3
            assert error < 0.6
        elif "logaddexp" in name:
            assert counts[0] > 1, name
            assert counts[1] > 4, name
        assert all(
            count == 1 if many == 0 else count > 1
            for count, many in zip(counts[::2], counts[1::2], strict=True)
        )


def test_a_result_that_changes_or_is_wrong_is_a_fault(example: Callable[[str], Any]) -> None:
    script = example("same_bits")
    rows = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32)
    true = np.array([script.truth(row) for row in rows])
    steady = [(1, 0)] * 3
    library = script.of_this()[script.ANY]
    counts, worst = script.measure(library, rows, true)
    assert counts == steady
    assert script.faults(counts, worst, rows, true) == []
    assert len(script.faults([(1, 0), (2, 1), (1, 0)], worst, rows, true)) == 1
    assert len(script.faults(steady, worst + np.array([0, 2, 0]), rows, true)) == 1
    wrong = script.Library(library.whole, lambda parts: library.merged(parts) + np.float32(1e-5 * len(parts)))
    counts, worst = script.measure(wrong, rows, true)
    assert counts[0][1] == 3
    assert len(script.faults(counts, worst, rows, true)) == 2


def test_a_library_that_is_not_there_is_named(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = example("same_bits")
    monkeypatch.setattr(
        script, "LIBRARIES", {"no_such_library": script.of_jax, "online_softmax": script.of_this}
    )
    monkeypatch.setattr("sys.argv", ["same_bits.py", "--cols", "200", "--rows", "2"])
    assert script.main() == 0
    assert "no_such_library: not installed" in capsys.readouterr().out


def test_sizes_that_are_none_are_refused() -> None:
    found = run("same_bits.py", "--cols", "5")
    assert found.returncode == 2
    assert "--cols: 5: 32 or more would do" in found.stderr
