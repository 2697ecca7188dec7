"""States that meet: merging partial states in memory, and the bytes that go over a link between processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from .count import Operand, Traffic, greatest
from .shapes import Ranks, Shards, States, statistic

_FLOAT32: Final = 4
#: m, s and the target's logit: what cross-entropy needs of a part of the vocabulary.
_LOSS_STATE: Final = 3


# ---- partial states in memory


def _flat(shape: States) -> Traffic:
    """One program a row reads all p states and writes one."""
    return _merged(shape, "flat", intermediates=0)


def _tree(shape: States) -> Traffic:
    """Two by two: each of the p - 1 merges reads two states and writes one; all but the last are read
    again."""
    return _merged(shape, "tree", intermediates=greatest(shape.parts - 2, 0))


def _merged(shape: States, algorithm: str, intermediates: int) -> Traffic:
    result = shape.rows * (2 + shape.values) * _FLOAT32
    states, between = shape.parts * result, intermediates * result
    merges = shape.rows * (shape.parts - 1)
    return Traffic(
        "merge",
        algorithm,
        (
            Operand("states", states, read=states),
            Operand("intermediates", between, read=between, written=between, temporary=True),
            Operand("out", result, written=result),
        ),
        exps=2 * merges,
        # s and every number of o: two products and a sum; each exponent a difference.
        plain_flops=merges * (3 * (1 + shape.values) + 2),
    )


FORMULAS: Final[Mapping[str, Mapping[str, Callable[[States], Traffic]]]] = MappingProxyType(
    {"merge": {"flat": _flat, "tree": _tree}}
)


# ---- links


@dataclass(frozen=True)
class LinkTraffic:
    """What a schedule sends: `steps` one after the other, in each of which every process sends at once.

    Attributes:
        sent: bytes sent in all the steps, a step counting what its busiest process sends. Fraction where the
            parts are not whole.
        workspace: bytes of memory a process needs for what it receives.
    """

    operation: str
    algorithm: str
    steps: int
    sent: Fraction
    workspace: Fraction

    def seconds(self, latency: float, bytes_per_second: float) -> float:
        """Steps * latency (s) + bytes sent / rate. Raises ValueError for a negative latency or no rate."""
        if not 0 <= latency < math.inf:
            raise ValueError(f"latency={latency!r}: seconds of at least 0 would do")
        if not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second={bytes_per_second!r}: a positive rate would do")
        return self.steps * latency + float(self.sent) / bytes_per_second


def _doubling_steps(ranks: int) -> int:
    """Steps of recursive doubling; where ranks is no power of two, one to fold the rest in and one back
    out."""
    whole = ranks.bit_length() - 1
    return whole + (0 if ranks == 1 << whole else 2)


def _ring_reduce(operation: str, state: int, ranks: int) -> LinkTraffic:
    """Reduce-scatter and all-gather: p - 1 steps each, a p-th of the states a step."""
    steps = 2 * (ranks - 1)
    part = Fraction(state, ranks)
    return LinkTraffic(operation, "ring", steps, steps * part, part if steps else Fraction(0))


def _tree_reduce(operation: str, state: int, ranks: int) -> LinkTraffic:
    """Recursive doubling: all the states in every step."""
    steps = _doubling_steps(ranks)
    return LinkTraffic(operation, "tree", steps, Fraction(steps * state), Fraction(state if steps else 0))


def _gather_logits(shape: Ranks) -> LinkTraffic:
    """Every process gets all the logits, shard by shard round a ring."""
    data = shape.rows * shape.columns * shape.itemsize
    sent = Fraction((shape.ranks - 1) * data, shape.ranks)
    return LinkTraffic("vocabulary_parallel", "gather_logits", shape.ranks - 1, sent, sent)


def _loss_states(shape: Ranks) -> int:
    return shape.rows * _LOSS_STATE * statistic(shape.itemsize)


def _ring_attention(shape: Shards) -> LinkTraffic:
    """Keys and values go round: p - 1 steps, the shard of a neighbour received in each."""
    kv = 2 * shape.batch * shape.kv_heads * shape.seq_k * shape.head_dim * shape.itemsize
    steps = shape.ranks - 1
    shard = Fraction(kv, shape.ranks)
    return LinkTraffic("context_parallel", "ring", steps, steps * shard, shard if steps else Fraction(0))


def _tree_attention(shape: Shards) -> LinkTraffic:
    """Queries stay where every process has them: states (o, m, s) meet instead of keys."""
    queries = shape.batch * shape.heads * shape.seq_q
    return _tree_reduce(
        "context_parallel", queries * (shape.head_dim + 2) * statistic(shape.itemsize), shape.ranks
    )


VOCABULARY_PARALLEL: Final[Mapping[str, Callable[[Ranks], LinkTraffic]]] = MappingProxyType(
    {
        "gather_logits": _gather_logits,
        "ring": lambda shape: _ring_reduce("vocabulary_parallel", _loss_states(shape), shape.ranks),
        "tree": lambda shape: _tree_reduce("vocabulary_parallel", _loss_states(shape), shape.ranks),
    }
)
CONTEXT_PARALLEL: Final[Mapping[str, Callable[[Shards], LinkTraffic]]] = MappingProxyType(
    {"ring": _ring_attention, "tree": _tree_attention}
)
