"""examples/shards.py: collectives over processes, whose merged states have the bits of the whole."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import shards  # noqa: E402  # an example, not a package

pytestmark = pytest.mark.skipif(
    not hasattr(shards.os, "fork") or not shards.dist.is_gloo_available(),
    reason="processes that fork, or the gloo backend of torch.distributed, are missing",
)


def test_shards_are_uneven_and_whole() -> None:
    for ranks in (1, 2, 3, 8):
        parts = [shards.part_of(1000, r, ranks) for r in range(ranks)]
        assert (parts[0].start, parts[-1].stop) == (0, 1000)
        assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
        lengths = {part.stop - part.start for part in parts}
        assert len(lengths) == ranks


def test_any_number_of_ranks_gives_the_bits_of_the_whole(fresh_python) -> None:
    """In a process of its own: ranks are forked, which one that has run JAX must not."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import shards, online_softmax as osm
whole = osm.ExactState.of(shards.scores(5, 3001))
right = {{shards.digest(whole.m, whole.a, whole.lse)}}
usual = set()
for ranks in (1, 2, 3, 8):
    found = shards.run(ranks, 5, 3001)
    assert found["gather"] == found["reduce"] == right, (ranks, found, right)
    usual |= found["usual"]
assert len(usual) > 1, usual
"""
    done = fresh_python(script, timeout=180)
    assert done.returncode == 0, done.stderr
