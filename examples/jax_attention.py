"""Train a small transformer on real text in JAX, with this library's attention and loss, beside jax.nn's.

The same model, on the same batches from the same seed, with `online_softmax.jax.attention` and
`linear_cross_entropy`, and with `jax.nn.dot_product_attention` and `jax.nn.log_softmax` of all logits:

    pip install jax
    python examples/jax_attention.py
    python examples/jax_attention.py --file book.txt --steps 100

Every run is a process of its own, since a process's peak memory never falls again. Printed are both loss
curves, how far they are apart and may be, the time of a step, what memory XLA has planned for one beside
parameters and results, and by how much the process's memory rose at most. How far they may be is measured
on the framework: it trains again from parameters moved at random by a unit of roundoff, as every operation's
result is. Exits 1 where the curves are further apart, where nothing was learnt, or where more memory is
planned for ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from language_text import Corpus, corpus, load

import online_softmax.jax as osj

Parameters = Any
Array = Any

MIB = 2.0**20
WAYS = ("ours", "jax.nn")
HEADS, LAYERS = 4, 2
RATE, MOMENTUM = 0.05, 0.9
#: How far apart the curves may be, times how far a move of the parameters by one unit brings them: there are
#: some ten roundings between parameters and loss in each layer, and as many again in the gradients.
ROUNDINGS = 40
UNIT = 2.0**-24


class Settings(NamedTuple):
    steps: int
    length: int  # words of a piece of text
    pieces: int  # of a step
    features: int
    seed: int


class Run(NamedTuple):
    """What a run measured.

    moved: losses from parameters moved by a unit of roundoff, of jax.nn alone. seconds: of a step, the
    median. planned: bytes of a step's temporaries in XLA's plan. peak: by how much the process's memory rose
    at most.
    """

    losses: list[float]
    moved: list[float]
    seconds: float
    planned: int
    peak: int


def initial(vocabulary: int, given: Settings) -> Parameters:
    """Normal numbers: embeddings and, a layer, the matrices of attention and of two linear maps."""
    rng, d = np.random.default_rng(given.seed), given.features

    def matrix(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(d)).astype(np.float32)

    layers = [
        {"qkv": matrix(3, d, d), "out": matrix(d, d), "up": matrix(d, 4 * d), "down": matrix(4 * d, d) / 2}
        for _ in range(LAYERS)
    ]
    return {"words": matrix(vocabulary, d), "places": matrix(given.length, d), "layers": layers}


def normed(x: Array) -> Array:
    """To mean 0 and variance 1."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def hidden_states(parameters: Parameters, words: Array, way: str) -> Array:
    """(pieces, length, features) of words (pieces, length)."""
    x = parameters["words"][words] + parameters["places"]
    for layer in parameters["layers"]:
        q, k, v = ((normed(x) @ matrix).reshape(*x.shape[:2], HEADS, -1) for matrix in layer["qkv"])
        if way == "ours":
            seen = osj.attention(q, k, v, causal=True)
        else:
            seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    return normed(x)


def loss_of(parameters: Parameters, words: Array, way: str) -> Array:
    """Mean over all words but the first of how surprised the model is by them, in nats. The embedding is the
    last layer's weight, too."""
    hidden, targets = hidden_states(parameters, words[:, :-1], way), words[:, 1:]
    weight = parameters["words"]
    if way == "ours":
        return osj.linear_cross_entropy(hidden, weight, targets, memory=8 << 20)
    log_p = jax.nn.log_softmax(hidden @ weight.T)
    return -jnp.take_along_axis(log_p, targets[..., None], -1).mean()


def step_of(way: str) -> Any:
    """(parameters, momenta, words) -> (parameters, momenta, loss), compiled."""

    def step(parameters: Parameters, momenta: Parameters, words: Array) -> tuple[Any, Any, Array]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, words, way)
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - RATE * m, parameters, momenta), momenta, loss

    return jax.jit(step, donate_argnums=(0, 1))


def batches(ids: Array, given: Settings) -> list[Array]:
    """(pieces, length + 1) words a step."""
    rng = np.random.default_rng(given.seed)
    starts = rng.integers(0, len(ids) - given.length, (given.steps, given.pieces))
    return [ids[at[:, None] + np.arange(given.length + 1)].astype(np.int32) for at in starts]


def trained(step: Any, parameters: Parameters, data: list[Array]) -> tuple[list[float], list[float]]:
    """Losses and seconds of the steps."""
    parameters = jax.tree.map(jnp.array, parameters)
    momenta = jax.tree.map(jnp.zeros_like, parameters)
    losses, seconds = [], []
    for words in data:
        start = time.perf_counter()
        parameters, momenta, loss = step(parameters, momenta, words)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def peak() -> int:
    """Bytes of this process that were in memory at most (not ru_maxrss: that starts from the parent's)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def child(way: str, text: Corpus, given: Settings) -> None:
    """One run, printed as JSON."""
    parameters, data = initial(len(text.words), given), batches(text.ids, given)
    step = step_of(way)
    start = jax.tree.map(jnp.array, parameters)
    step = step.lower(start, jax.tree.map(jnp.zeros_like, start), data[0]).compile()
    planned = int(step.memory_analysis().temp_size_in_bytes)
    del start
    before = peak()
    losses, seconds = trained(step, parameters, data)
    rose, moved = peak() - before, []
    if way == "jax.nn":
        rng = np.random.default_rng(given.seed + 1)
        nudged = jax.tree.map(
            lambda p: p * (1 + UNIT * rng.choice([-2.0, 2.0], p.shape)).astype(np.float32), parameters
        )
        moved = trained(step, nudged, data)[0]
    print(json.dumps(Run(losses, moved, float(np.median(seconds)), planned, rose)))


def in_a_fresh_process(way: str) -> Run:
    """`child` in a new interpreter, with this one's arguments."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--child={way}"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Run(*json.loads(found.stdout))


def limits_of(framework: Run) -> list[float]:
    """How far apart the curves may be at each step. Differences grow, and one of 0 is luck."""
    apart = np.abs(np.subtract(framework.moved, framework.losses))
    return (ROUNDINGS * np.maximum(np.maximum.accumulate(apart), UNIT * np.array(framework.losses))).tolist()


def faults(runs: dict[str, Run], limits: list[float]) -> list[str]:
    """What is wrong, a line each."""
    ours, framework = runs["ours"], runs["jax.nn"]
    wrong = []
    apart = np.abs(np.subtract(ours.losses, framework.losses))
    past = np.flatnonzero(~(apart <= limits))
    if past.size:
        at = int(past[0])
        wrong.append(f"step {at + 1}: the losses are {apart[at]:.1e} apart, {limits[at]:.1e} is the limit")
    if not ours.losses[-1] < ours.losses[0]:
        wrong.append(f"the last loss is {ours.losses[-1]:.3f}: less than {ours.losses[0]:.3f} would do")
    if not ours.planned <= framework.planned:
        sizes = f"{ours.planned / MIB:.1f} MiB, for jax.nn {framework.planned / MIB:.1f} MiB"
        wrong.append(f"the plan has {sizes}: no more would do")
    return wrong


def told(runs: dict[str, Run], limits: list[float]) -> None:
    """The table of both curves, and of both runs."""
    ours, framework = runs["ours"], runs["jax.nn"]
    count = len(ours.losses)
    print(f"{'step':>5}{'ours':>10}{'jax.nn':>10}{'apart':>10}{'may be':>10}")
    for i in sorted({*np.linspace(0, count - 1, min(count, 10)).astype(int).tolist()}):
        apart = abs(ours.losses[i] - framework.losses[i])
        print(f"{i + 1:5}{ours.losses[i]:10.5f}{framework.losses[i]:10.5f}{apart:10.1e}{limits[i]:10.1e}")
    print(f"\n{'way':>11}{'a step':>12}{'planned':>14}{'peak':>14}")
    for way, run in runs.items():
        print(f"{way:>11}{run.seconds * 1e3:9.1f} ms{run.planned / MIB:10.1f} MiB{run.peak / MIB:10.1f} MiB")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: 1 or more would do")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="a text in UTF-8, instead of Python's own reference")
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--length", type=positive, default=128, help="words of a piece of text; default 128")
    parser.add_argument("--pieces", type=positive, default=4, help="of a step; default 4")
    parser.add_argument("--features", type=positive, default=128, help="a multiple of 4; default 128")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    given = Settings(options.steps, options.length, options.pieces, options.features, options.seed)
    text = corpus(load(options.file))
    if options.child:
        child(options.child, text, given)
        return 0
    print(f"{len(text.ids)} words of text, {len(text.words)} different ones; jax {jax.__version__}\n")
    runs = {way: in_a_fresh_process(way) for way in WAYS}
    limits = limits_of(runs["jax.nn"])
    told(runs, limits)
    wrong = faults(runs, limits)
    for line in wrong:
        print(f"wrong: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
