"""States that meet, in memory and over links: the schedules run here, every byte of a message counted.

Each process holds its own numbers, sends messages whose bytes are added up, and ends with the merged result.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax.traffic import links, model, schedules
from online_softmax.traffic.schedules import CONTEXT_PARALLEL, VOCABULARY_PARALLEL, LinkTraffic
from online_softmax.traffic.shapes import Ranks, Shards, States, statistic

few = settings(deadline=None, max_examples=60, derandomize=True)
FLOAT32 = 4
RANKS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33]


# ---- partial states in memory


class Parts:
    """States (m, s, o...) of rows, each load and store of one counted by the tensor it is in."""

    def __init__(self, shape: States) -> None:
        random = np.random.default_rng(0)
        self.width = 2 + shape.values
        self.states = random.normal(0, 2, (shape.rows, shape.parts, self.width))
        self.states[..., 1:] = np.abs(self.states[..., 1:])
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.exps = 0

    def load(self, name: str) -> None:
        self.read[name] += self.width * FLOAT32

    def store(self, name: str) -> None:
        self.written[name] += self.width * FLOAT32

    def merge(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        m = max(a[0], b[0])
        self.exps += 2
        return np.array([m, *(a[1:] * math.exp(a[0] - m) + b[1:] * math.exp(b[0] - m))])

    def close(self, merged: np.ndarray) -> None:
        m = self.states[..., 0].max(-1)
        rest = (self.states[..., 1:] * np.exp(self.states[..., :1] - m[:, None, None])).sum(1)
        np.testing.assert_allclose(merged, np.concatenate([m[:, None], rest], -1), rtol=1e-12)


def flat(parts: Parts) -> np.ndarray:
    results = []
    for row in parts.states:
        total = row[0]
        parts.load("states")
        for state in row[1:]:
            parts.load("states")
            total = parts.merge(total, state)
        parts.store("out")
        results.append(total)
    return np.array(results)


def tree(parts: Parts) -> np.ndarray:
    """Neighbours meet, level by level; what is neither a given state nor the result is temporary."""
    results = []
    for row in parts.states:
        level = [("states", state) for state in row]
        while len(level) > 1:
            above = []
            for a, b in zip(level[0::2], level[1::2], strict=False):
                parts.load(a[0])
                parts.load(b[0])
                name = "out" if len(level) == 2 else "partial"
                parts.store(name)
                above.append((name, parts.merge(a[1], b[1])))
            level = above + level[len(above) * 2 :]
        results.append(level[0][1])
    return np.array(results)


@pytest.mark.parametrize("algorithm", ["flat", "tree"])
@given(rows=st.integers(1, 3), parts=st.integers(2, 17), values=st.integers(0, 3))
@few
def test_merge(algorithm: str, rows: int, parts: int, values: int) -> None:
    shape = States(rows, parts, values)
    held = Parts(shape)
    held.close({"flat": flat, "tree": tree}[algorithm](held))
    got = model.count("merge", algorithm, shape)
    assert (got.read, got.written, got.exps) == (held.read.total(), held.written.total(), held.exps)
    assert (got["states"].size, got["out"].size) == (held.states.size * FLOAT32, rows * held.width * FLOAT32)
    # Two products and a sum for each number beside m, two differences for the exponents.
    assert got.plain_flops == rows * (parts - 1) * (3 * (1 + values) + 2)


@pytest.mark.parametrize("algorithm", ["flat", "tree"])
@pytest.mark.parametrize("parts", [2, 3, 8, 11])
def test_merge_tensor_by_tensor(algorithm: str, parts: int) -> None:
    """The given states are read once and the result is written once, whatever lies between them."""
    shape = States(5, parts, 3)
    held = Parts(shape)
    {"flat": flat, "tree": tree}[algorithm](held)
    got = model.count("merge", algorithm, shape)
    for name in ("states", "out"):
        assert (got[name].read, got[name].written) == (held.read[name], held.written[name])


@pytest.mark.parametrize("algorithm", ["flat", "tree"])
def test_one_part_is_copied(algorithm: str) -> None:
    """Nothing to merge, and still a result in a place of its own."""
    got = model.count("merge", algorithm, States(5, 1, 3))
    assert (got.read, got.written, got.exps) == (5 * 5 * FLOAT32, 5 * 5 * FLOAT32, 0)


def test_a_tree_moves_less_than_half_again_as_much() -> None:
    """3 (p - 1) states against p + 1: the price of a merge that can run in parallel."""
    for parts in (2, 5, 64):
        state, shape = 2 * FLOAT32, States(1, parts)
        assert model.count("merge", "flat", shape).total == (parts + 1) * state
        assert model.count("merge", "tree", shape).total == 3 * (parts - 1) * state


# ---- links


@dataclass
class Network:
    """Processes and what they send: bytes by process, and by step the most that one of them sends."""

    ranks: int
    sent: Counter[int] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)

    def step(self, messages: dict[int, tuple[int, int]]) -> None:
        """A step in which each sender has one (receiver, bytes)."""
        receivers = [to for to, _ in messages.values()]
        assert len(set(receivers)) == len(receivers), "two messages meet in one process"
        for sender, (to, nbytes) in messages.items():
            assert sender != to
            self.sent[sender] += nbytes
        self.steps.append(max(nbytes for _, nbytes in messages.values()))

    def average(self) -> Fraction:
        return Fraction(self.sent.total(), self.ranks)


def ring_reduce(network: Network, held: list[np.ndarray], itemsize: int) -> None:
    """Reduce-scatter, then all-gather: every process ends with the sum of all."""
    p = network.ranks
    shares = [np.array_split(own, p) for own in held]
    for gather in (False, True):
        for turn in range(p - 1):
            # Share r starts its way at process r; in the second round at the one that finished it.
            which = [(rank + gather - turn) % p for rank in range(p)]
            outgoing = [shares[rank][which[rank]].copy() for rank in range(p)]
            for rank in range(p):
                to, share = (rank + 1) % p, which[rank]
                shares[to][share] = outgoing[rank] if gather else shares[to][share] + outgoing[rank]
            network.step({rank: ((rank + 1) % p, outgoing[rank].size * itemsize) for rank in range(p)})
    for rank in range(p):
        np.testing.assert_allclose(np.concatenate(shares[rank]), sum(held), rtol=1e-12)


def doubling(network: Network, held: list[np.ndarray], itemsize: int) -> None:
    """Recursive doubling; those past the last power of two hand theirs in first and are told at the end."""
    p = network.ranks
    core = 1 << (p.bit_length() - 1)
    own = [part.copy() for part in held]
    rest = range(core, p)
    if rest:
        for rank in rest:
            own[rank - core] = own[rank - core] + own[rank]
        network.step({rank: (rank - core, own[rank].size * itemsize) for rank in rest})
    distance = 1
    while distance < core:
        own[:core] = [own[rank] + own[rank ^ distance] for rank in range(core)]
        network.step({rank: (rank ^ distance, own[rank].size * itemsize) for rank in range(core)})
        distance *= 2
    if rest:
        for rank in rest:
            own[rank] = own[rank - core]
        network.step({rank - core: (rank, own[rank].size * itemsize) for rank in rest})
    for part in own:
        np.testing.assert_allclose(part, sum(held), rtol=1e-12)


def held_by(ranks: int, elements: int) -> list[np.ndarray]:
    return [np.random.default_rng([ranks, rank]).random(elements) for rank in range(ranks)]


def assert_ring(got: LinkTraffic, network: Network, even: bool) -> None:
    """Each process sends as much as the model says where the shares are even; all together in any case."""
    assert got.steps == len(network.steps)
    assert got.sent == network.average()
    if even and got.steps:
        assert {network.sent[rank] for rank in range(network.ranks)} == {got.sent}
        assert sum(network.steps) == got.sent


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("rows", [1, 7, 8])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_vocabulary_ring(ranks: int, rows: int, itemsize: int) -> None:
    """m, s and the target's logit of every row."""
    network, number = Network(ranks), statistic(itemsize)
    ring_reduce(network, held_by(ranks, 3 * rows), number)
    got = VOCABULARY_PARALLEL["ring"](Ranks(rows, 100, itemsize, ranks))
    assert_ring(got, network, even=3 * rows % ranks == 0)
    if ranks > 1:
        assert got.workspace == Fraction(3 * rows * number, ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_vocabulary_tree(ranks: int) -> None:
    network, rows = Network(ranks), 5
    doubling(network, held_by(ranks, 3 * rows), FLOAT32)
    got = VOCABULARY_PARALLEL["tree"](Ranks(rows, 100, 2, ranks))
    _assert_doubling(got, network)


def _assert_doubling(got: LinkTraffic, network: Network) -> None:
    """One message after the other: what the slowest way through the steps sends."""
    assert got.steps == len(network.steps)
    assert got.sent == sum(network.steps)
    if network.ranks & (network.ranks - 1) == 0:
        assert {network.sent[rank] for rank in range(network.ranks)} == {got.sent}
    else:
        assert max(network.sent.values()) <= got.sent


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("columns", [66, 67])
def test_gathered_logits(ranks: int, columns: int) -> None:
    """Each process passes on, round the ring, the shard it has just got."""
    network, rows, itemsize = Network(ranks), 3, 2
    whole = np.arange(rows * columns).reshape(rows, columns)
    shards = np.array_split(whole, ranks, axis=1)
    held: list[dict[int, np.ndarray]] = [{rank: shards[rank]} for rank in range(ranks)]
    received: Counter[int] = Counter()
    for turn in range(ranks - 1):
        which = [(rank - turn) % ranks for rank in range(ranks)]
        for rank, shard in enumerate(which):
            held[(rank + 1) % ranks][shard] = held[rank][shard]
            received[(rank + 1) % ranks] += shards[shard].size * itemsize
        network.step(
            {rank: ((rank + 1) % ranks, shards[shard].size * itemsize) for rank, shard in enumerate(which)}
        )
    for mine in held:
        np.testing.assert_array_equal(np.concatenate([mine[r] for r in range(ranks)], axis=1), whole)
    got = VOCABULARY_PARALLEL["gather_logits"](Ranks(rows, columns, itemsize, ranks))
    assert_ring(got, network, even=columns % ranks == 0)
    assert got.workspace == Fraction(received.total(), ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seq_k", [66, 67])
@pytest.mark.parametrize(("heads", "kv_heads", "itemsize"), [(4, 2, 2), (3, 3, 4), (2, 1, 8)])
def test_ring_attention(ranks: int, seq_k: int, heads: int, kv_heads: int, itemsize: int) -> None:
    """Keys and values go round; every process ends with its queries' sum over all of them."""
    network, random = Network(ranks), np.random.default_rng(0)
    k, v = random.normal(size=(2, 2, kv_heads, seq_k, 3))
    q = random.normal(size=(ranks, 3))
    at = [
        list(zip(*(np.array_split(t, ranks, axis=2) for t in (k, v)), strict=True))[r] for r in range(ranks)
    ]
    sums = [np.zeros((2, kv_heads)) for _ in range(ranks)]
    values = [np.zeros((2, kv_heads, 3)) for _ in range(ranks)]
    for turn in range(ranks):
        for rank, (keys, content) in enumerate(at):
            e = np.exp(keys @ q[rank])
            sums[rank] += e.sum(-1)
            values[rank] += (e[..., None] * content).sum(-2)
        if turn < ranks - 1:
            size = [sum(part.size for part in pair) * itemsize for pair in at]
            network.step({rank: ((rank + 1) % ranks, size[rank]) for rank in range(ranks)})
            at = [at[rank - 1] for rank in range(ranks)]
    for rank in range(ranks):
        e = np.exp(k @ q[rank])
        np.testing.assert_allclose(sums[rank], e.sum(-1), rtol=1e-12)
        np.testing.assert_allclose(values[rank], (e[..., None] * v).sum(-2), rtol=1e-9, atol=1e-9)
    got = CONTEXT_PARALLEL["ring"](Shards(2, heads, kv_heads, 5, seq_k, 3, itemsize, ranks))
    assert_ring(got, network, even=seq_k % ranks == 0)
    assert got.workspace == (Fraction((k.size + v.size) * itemsize, ranks) if ranks > 1 else 0)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_tree_attention(ranks: int, itemsize: int) -> None:
    """The output, m and s of every query meet, in the format of statistics."""
    batch, heads, seq_q, head_dim = 2, 4, 3, 5
    network = Network(ranks)
    doubling(network, held_by(ranks, batch * heads * seq_q * (head_dim + 2)), statistic(itemsize))
    got = CONTEXT_PARALLEL["tree"](Shards(batch, heads, 2, seq_q, 1000, head_dim, itemsize, ranks))
    _assert_doubling(got, network)


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [(name, algorithm) for name, (_, formulas) in links.OPERATIONS.items() for algorithm in formulas],
)
def test_one_process_sends_nothing_and_needs_no_room(operation: str, algorithm: str) -> None:
    kind, formulas = links.OPERATIONS[operation]
    got = formulas[algorithm](Ranks(8, 100, 4, 1) if kind is Ranks else Shards(1, 2, 1, 4, 100, 8, 2, 1))
    assert (got.steps, got.sent, got.workspace) == (0, 0, 0)


def test_states_instead_of_keys_pay_while_queries_are_few() -> None:
    """Decoding one query over 2^17 keys on 8 processes: 7/8 of the keys and values, or 3 times a state."""
    shape = Shards(1, 32, 8, 1, 1 << 17, 128, 2, 8)
    ring, tree_ = (CONTEXT_PARALLEL[name](shape) for name in ("ring", "tree"))
    assert ring.sent == 2 * 8 * (1 << 17) * 128 * 2 * Fraction(7, 8)
    assert tree_.sent == 3 * 32 * 130 * 4


# ---- time, comparison, wrong calls


def test_time_is_latency_by_step_and_bytes_by_rate() -> None:
    line = LinkTraffic("any", "any", steps=14, sent=Fraction(7, 2), workspace=Fraction(0))
    assert line.seconds(0.0, 2.0) == 1.75
    assert line.seconds(2.0, 7.0) == 28.5
    for latency, rate, name in ((-1.0, 1.0, "latency"), (0.0, 0.0, "bytes_per_second"), (0.0, -1.0, "bytes")):
        with pytest.raises(ValueError, match=name):
            line.seconds(latency, rate)


def test_comparison_over_a_link() -> None:
    got = links.compare("vocabulary_parallel", Ranks(8192, 128_000, 2, 8), 450e9, 5e-6)
    assert [line.algorithm for line in got.lines] == ["gather_logits", "ring", "tree"]
    written = got.as_json()
    assert written["sizes"] == {"rows": 8192, "columns": 128_000, "itemsize": 2, "ranks": 8}
    assert written["link"] == {"bytes_per_second": 450e9, "latency_seconds": 5e-6}
    states = 8192 * 3 * 4
    assert {s["algorithm"]: (s["steps"], s["bytes_sent"]) for s in written["schedules"]} == {
        "gather_logits": (7, 7 * 8192 * 16_000 * 2),
        "ring": (14, 14 * states // 8),
        "tree": (3, 3 * states),
    }
    for line, entry in zip(got.lines, written["schedules"], strict=True):
        assert entry["seconds"] == line.steps * 5e-6 + float(line.sent) / 450e9
        assert type(entry["bytes_sent"]) is type(entry["workspace_bytes"]) is int


def test_shares_that_are_not_whole_are_rounded_up() -> None:
    got = links.compare("vocabulary_parallel", Ranks(1, 10, 4, 7), 1e9)
    ring = next(line for line in got.lines if line.algorithm == "ring")
    assert ring.sent == Fraction(12 * 12, 7)
    entry = next(e for e in got.as_json()["schedules"] if e["algorithm"] == "ring")
    assert (entry["bytes_sent"], entry["workspace_bytes"]) == (21, 2)


def test_wrong_calls_are_named() -> None:
    with pytest.raises(ValueError, match="operation='softmax'"):
        links.compare("softmax", Ranks(1, 1, 4, 1), 1e9)
    with pytest.raises(TypeError, match=r"context_parallel is counted for Shards\(\.\.\.\)"):
        links.compare("context_parallel", Ranks(1, 1, 4, 1), 1e9)
    with pytest.raises(ValueError, match="bytes_per_second=0"):
        links.compare("vocabulary_parallel", Ranks(1, 1, 4, 1), 0)
    with pytest.raises(ValueError, match="latency=-1"):
        links.compare("vocabulary_parallel", Ranks(1, 1, 4, 1), 1e9, -1)
    for names, sizes in (("ranks=0", (1, 1, 4, 0)), ("rows=0", (0, 1, 4, 1)), ("columns=-1", (1, -1, 4, 1))):
        with pytest.raises(ValueError, match=names):
            Ranks(*sizes)
    with pytest.raises(ValueError, match="parts=0"):
        States(1, 0)
    with pytest.raises(ValueError, match="values=-1"):
        States(1, 1, -1)


def test_shared_heads_of_shards_divide_evenly() -> None:
    with pytest.raises(ValueError, match="heads=3: a multiple of kv_heads=2"):
        Shards(1, 3, 2, 1, 8, 4, 2, 2)


@pytest.mark.parametrize(("latency", "rate"), [(math.nan, 1.0), (0.0, math.nan)])
def test_a_rate_or_latency_that_is_no_number(latency: float, rate: float) -> None:
    line = LinkTraffic("any", "any", steps=1, sent=Fraction(1), workspace=Fraction(0))
    with pytest.raises(ValueError, match="would do"):
        line.seconds(latency, rate)


def test_schedules_of_the_model_are_listed() -> None:
    assert model.algorithms("merge") == tuple(schedules.FORMULAS["merge"]) == ("flat", "tree")
