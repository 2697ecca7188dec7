"""Training steps of two models, ours against the framework's, and write results/training.json.

    python -m benchmarks.training [--quick] [--only TEXT]
    python -m benchmarks.training --child MODEL LIBRARY DTYPE TOKENS    one process, whose peak is printed

The models are of Hugging Face Transformers, with random weights: an encoder of 6 layers, 384 wide (masked
words of a vocabulary of 30,522), and a decoder of GPT-2 small's shape (50,257 words). "framework" is the
model with attn_implementation="sdpa" and F.cross_entropy; "ours" the same weights with "online_softmax", and
with `online_softmax.torch.enable("cross_entropy")` or, for the decoder, the loss that builds no logits.
Dropout is off on both sides: PyTorch's attention has no fast way with it on the CPU. A step is forward,
backward and AdamW.

Both take turns in one process; peaks are of fresh processes. Where products in bfloat16 are slow the sequence
is cut to what a step can do in some seconds, and the table says so. Every case is written down when it is
done; with --only the others stay as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from benchmarks import THREADS, record
from benchmarks.attention_memory import ROOT, peak
from benchmarks.bars import bars_text, verdict

OURS, FRAMEWORK = "ours", "framework"
MODELS = ("encoder", "decoder")
SEQUENCE, SHORTEST = 1024, 16
STEP_LIMIT = 8.0  # seconds of products in one step of the framework's
ROUNDS, FEW_ROUNDS, SLOW = 7, 3, 5.0
WARM = 1  # steps before the clock and before the peak is read the first time
RATE = 1e-4


@dataclass(frozen=True)
class Size:
    """What a model is made of."""

    layers: int
    width: int
    heads: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        return self.layers * 12 * self.width**2 + self.vocabulary * self.width


SIZES = {"encoder": Size(6, 384, 12, 30522), "decoder": Size(12, 768, 12, 50257)}
TINY = {"encoder": Size(2, 32, 2, 211), "decoder": Size(2, 32, 2, 211)}


def build(model: str, library: str, dtype: str, size: Size, tokens: int) -> Any:
    """The model, in training."""
    import torch
    import transformers

    torch.manual_seed(0)
    attention = "sdpa"
    if library == OURS:
        from online_softmax import transformers as ours

        ours.register()
        attention = "online_softmax"
    if model == "encoder":
        config = transformers.BertConfig(
            vocab_size=size.vocabulary, hidden_size=size.width, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, intermediate_size=4 * size.width,
            max_position_embeddings=max(tokens, 16), hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        kind = transformers.AutoModelForMaskedLM
    else:
        config = transformers.GPT2Config(
            vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.layers, n_head=size.heads,
            n_positions=max(tokens, 16), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        kind = transformers.AutoModelForCausalLM
    made = kind.from_config(config, attn_implementation=attention)
    return made.to(getattr(torch, dtype)).train()


def stepper(model: str, library: str, dtype: str, size: Size, tokens: int) -> Callable[[], float]:
    """A call that makes one training step and returns its loss. A batch is one sequence."""
    import torch

    net = build(model, library, dtype, size, tokens)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    batch = torch.randint(size.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))

    def context() -> contextlib.AbstractContextManager[Any]:
        if library == FRAMEWORK:
            return contextlib.nullcontext()
        if model == "decoder":
            from online_softmax import transformers as ours

            return ours.linear_loss(net)
        from online_softmax import torch as ours_torch

        return ours_torch.enable("cross_entropy")

    def step() -> float:
        with context():
            loss = net(input_ids=batch, labels=batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def sequence(dtype: str, size: Size) -> tuple[int, float | None]:
    """Tokens of a step, and GFLOP/s of a product where that decided."""
    import torch

    if dtype == "float32":
        return SEQUENCE, None
    a, b = (torch.randn(128, 128).to(getattr(torch, dtype)) for _ in range(2))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    rate = 2 * 128**3 / min(times)
    tokens = SEQUENCE
    while tokens > SHORTEST and 6 * size.parameters * tokens / rate > STEP_LIMIT:
        tokens //= 2
    return tokens, rate / 1e9


def case(model: str, dtype: str, quick: bool) -> dict[str, Any]:
    """Times, losses and peaks of one model in one format."""
    size = (TINY if quick else SIZES)[model]
    tokens, rate = (16, None) if quick else sequence(dtype, size)
    steps = {library: stepper(model, library, dtype, size, tokens) for library in (OURS, FRAMEWORK)}
    losses: dict[str, list[float]] = {library: [] for library in steps}
    times: dict[str, list[float]] = {library: [] for library in steps}
    for library, step in steps.items():
        for _ in range(WARM):
            losses[library].append(step())
    rounds, made = ROUNDS, 0
    while made < rounds:
        for library in (OURS, FRAMEWORK) if made % 2 else (FRAMEWORK, OURS):
            start = time.perf_counter()
            losses[library].append(steps[library]())
            times[library].append(time.perf_counter() - start)
        made += 1
        if max(map(max, times.values())) > SLOW:
            rounds = FEW_ROUNDS
    del steps, step
    gc.collect()
    peaks = {
        library: in_a_fresh_process(model, library, dtype, tokens, quick) for library in (OURS, FRAMEWORK)
    }
    median = {library: statistics.median(found) for library, found in times.items()}
    bars = [
        verdict("faster", OURS, FRAMEWORK, 1.0, median[FRAMEWORK] / median[OURS]),
        verdict("at most", OURS, "of the framework's peak", 1.0, peaks[OURS] / peaks[FRAMEWORK]),
    ]
    return {
        "model": model, "dtype": dtype, "size": asdict(size), "tokens": tokens, "product_gflops": rate,
        "rounds": made, "seconds": times, "median": median, "losses": losses, "peaks": peaks, "bars": bars,
    }  # fmt: skip


def in_a_fresh_process(model: str, library: str, dtype: str, tokens: int, quick: bool) -> int:
    """Bytes at the peak of a process that makes two steps."""
    command = [sys.executable, "-m", "benchmarks.training", "--child", model, library, dtype, str(tokens)]
    command += ["--quick"] if quick else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return int(json.loads(done.stdout.splitlines()[-1]))


def child(model: str, library: str, dtype: str, tokens: int, quick: bool) -> int:
    step = stepper(model, library, dtype, (TINY if quick else SIZES)[model], tokens)
    step(), step()
    return peak()


def line(found: dict[str, Any]) -> str:
    """One case in words."""
    median, peaks = found["median"], found["peaks"]
    cut = "" if found["tokens"] == SEQUENCE else f", {found['tokens']} tokens"
    return (
        f"{found['model']} {found['dtype']}{cut}: "
        f"ours {median[OURS]:.2f} s, framework {median[FRAMEWORK]:.2f} s; "
        f"peaks {peaks[OURS] / 2**20:.0f} and {peaks[FRAMEWORK] / 2**20:.0f} MiB; {bars_text(found['bars'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models: does it run?")
    parser.add_argument("--only", default="", help="cases whose name has this text, as 'decoder float32'")
    parser.add_argument("--child", nargs=4, metavar=("MODEL", "LIBRARY", "DTYPE", "TOKENS"))
    given = parser.parse_args()
    import torch

    torch.set_num_threads(THREADS)
    if given.child:
        model, library, dtype, tokens = given.child
        print(json.dumps(child(model, library, dtype, int(tokens), given.quick)))
        return
    console, done = Console(), {}
    if given.only and (before := record.read("training", given.quick)) is not None:
        done = {(found["dtype"], found["model"]): found for found in before["cases"]}
    for dtype in ("float32", "bfloat16"):
        for model in MODELS:
            if given.only in f"{model} {dtype}":
                done[dtype, model] = case(model, dtype, given.quick)
                console.print(line(done[dtype, model]), highlight=False)
                path = record.write("training", {"cases": list(done.values())}, given.quick)
                console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
