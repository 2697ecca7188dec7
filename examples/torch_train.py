"""Train a small transformer in PyTorch three ways: as it is, with the library swapped in, and written for it.

The same model on the same batches of real text (language_text.py) from the same seed:

    framework   F.scaled_dot_product_attention and F.cross_entropy of the logits
    enabled     the same code inside `online_softmax.torch.enable()`
    ours        online_softmax.torch.Attention, and linear_cross_entropy, which builds no logits

    pip install 'online-softmax[torch]'
    python examples/torch_train.py
    python examples/torch_train.py --file book.txt --steps 200

Every run is a process of its own, since a process's peak memory never falls again. Printed are the losses,
the seconds of a step and the peaks. Before that a few steps in float64 tell whether all three are the same
model: exits 1 where their losses are further apart than `SAME`, or where nothing was learnt.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from language_text import Corpus, batches, corpus, load

MIB = 2.0**20
WAYS = ("framework", "enabled", "ours")
#: How far losses may be apart in float64: rounding, 1e-16, grown by sums of some thousand terms and by steps.
SAME, SAME_STEPS = 1e-11, 3
RATE = 3e-3


class Sizes(NamedTuple):
    """Of the model and a batch."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    length: int = 128
    batch: int = 8


class Run(NamedTuple):
    """What a run left: a loss a step, seconds of each step, and bytes at its peak above where it began."""

    losses: list[float]
    seconds: list[float]
    peak: int


def model(way: str, words: int, sizes: Sizes) -> Any:
    """Tokens (batch, length) and those that follow them to the mean loss."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from online_softmax import torch as ours

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(sizes.width) for _ in range(2))
            self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
            self.out = nn.Linear(sizes.width, sizes.width)
            self.wide = nn.Linear(sizes.width, 4 * sizes.width)
            self.back = nn.Linear(4 * sizes.width, sizes.width)
            self.attention = ours.Attention(causal=True) if way == "ours" else None

        def attend(self, x: Tensor) -> Tensor:
            parts = self.qkv(x).unflatten(-1, (3, sizes.heads, -1))
            q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
            if self.attention is not None:
                made = self.attention(q, k, v)
            else:
                made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(made.transpose(1, 2).flatten(2))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norms[0](x))
            return x + self.back(functional.gelu(self.wide(self.norms[1](x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, sizes.width)
            self.places = nn.Embedding(sizes.length, sizes.width)
            self.blocks = nn.Sequential(*(Block() for _ in range(sizes.layers)))
            self.norm = nn.LayerNorm(sizes.width)
            self.head = nn.Linear(sizes.width, words, bias=False)
            self.loss = ours.linear_cross_entropy if way == "ours" else None

        def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            hidden = self.norm(self.blocks(x)).flatten(0, 1)
            if self.loss is not None:
                return self.loss(hidden, self.head.weight, following.flatten())
            return functional.cross_entropy(self.head(hidden), following.flatten())

    torch.manual_seed(0)
    return Model()


def peak() -> int:
    """Bytes of this process that were in memory at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def train(way: str, text: Corpus, sizes: Sizes, steps: int, dtype: str) -> Run:
    """One training run."""
    import torch

    from online_softmax import torch as ours

    net = model(way, len(text.words), sizes).to(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    context = ours.enable() if way == "enabled" else contextlib.nullcontext()
    losses, seconds, before = [], [], peak()
    with context:
        for rows, _ in batches(text.ids, sizes.length + 1, sizes.batch, steps, seed=0):
            start = time.perf_counter()
            tokens = torch.from_numpy(rows)
            loss = net(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
    return Run(losses, seconds, peak() - before)


def in_a_fresh_process(way: str, steps: int, dtype: str, file: Path | None) -> Run:
    command = [sys.executable, __file__, "--child", way, dtype, "--steps", str(steps)]
    command += [] if file is None else ["--file", str(file)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Run(*json.loads(found.stdout))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="a text in UTF-8, instead of Python's own reference")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 2:
        parser.error(f"--steps {given.steps}: 2 or more would do")
    if given.file is not None and not given.file.is_file():
        parser.error(f"--file {given.file}: there is no such file; a text in UTF-8 would do")
    return given


def main() -> None:
    given = arguments()
    if importlib.util.find_spec("torch") is None:
        sys.exit("torch_train: torch is missing: pip install 'online-softmax[torch]'")
    text, sizes = corpus(load(given.file)), Sizes()
    if len(text.ids) <= sizes.length + 1:
        sys.exit(f"--file {given.file}: {len(text.ids)} words; more than {sizes.length + 1} would do")
    if given.child:
        way, dtype = given.child
        print(json.dumps(train(way, text, sizes, given.steps, dtype)))
        return
    words = len(text.words)
    print(
        f"{len(text.ids)} words of a text, {words} of them different; "
        f"{sizes.layers} layers, {sizes.width} wide"
    )
    exact = {way: in_a_fresh_process(way, SAME_STEPS, "float64", given.file).losses for way in WAYS}
    apart = max(abs(a - b) for way in WAYS for a, b in zip(exact[way], exact["framework"], strict=True))
    print(f"float64, {SAME_STEPS} steps: losses at most {apart:.1e} apart\n")
    runs = {way: in_a_fresh_process(way, given.steps, "float32", given.file) for way in WAYS}
    print(f"{'float32, step':>14}" + "".join(f"{way:>12}" for way in WAYS))
    for i in sorted({0, given.steps // 3, 2 * given.steps // 3, given.steps - 1}):
        print(f"{i + 1:14}" + "".join(f"{runs[way].losses[i]:12.4f}" for way in WAYS))
    medians = {way: statistics.median(run.seconds[1:]) for way, run in runs.items()}
    print(f"{'s a step':>14}" + "".join(f"{medians[way]:12.3f}" for way in WAYS))
    print(f"{'peak, MiB':>14}" + "".join(f"{runs[way].peak / MIB:12.0f}" for way in WAYS))
    if not apart <= SAME:
        sys.exit(f"the losses are {apart:.1e} apart in float64, {SAME:.0e} is the limit")
    if not all(run.losses[-1] < min(run.losses[0], math.log(words)) for run in runs.values()):
        sys.exit("nothing was learnt")


if __name__ == "__main__":
    main()
