"""Train a small language model on real text with a loss that never builds the logits, beside the framework's.

The same model (language_model.py) in PyTorch, on the same batches from the same seed, with
`online_softmax.linear_cross_entropy_with_gradient` as its head and with F.cross_entropy(F.linear(...)):

    pip install torch matplotlib        # matplotlib for the picture alone
    python examples/train_language_model.py
    python examples/train_language_model.py --file book.txt --steps 200 --svg curve.svg

Every run is a process of its own, since a process's peak memory never falls again. Printed are both loss
curves, how far they are apart and may be, seconds, and the peaks. How far they may be is measured on the
framework: it trains again with its head's gradients moved, at random, by their rounding bound
(`allowed` in language_model.py says how). Exits 1 where the curves are further apart, where nothing was
learnt, or where the framework does not take more memory, by a matrix of logits at least.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from language_text import Corpus, corpus, load

if TYPE_CHECKING:
    from language_model import Run, Settings

MIB = 2.0**20
HEADS = ("ours", "framework", "moved 1", "moved 2")
SVG = Path(__file__).parent.parent / "out" / "train_language_model.svg"
#: From so many steps on a model has to know more than how frequent words are; before, more than nothing.
LEARNT_BY = 50


def settings(given: argparse.Namespace) -> Settings:
    from language_model import Settings

    return Settings(steps=given.steps, tokens=given.tokens, features=given.features, seed=given.seed)


def child(head: str, text: Corpus, given: Settings) -> None:
    """One run, printed as JSON. A short one goes before it, so that libraries take their memory first."""
    import torch
    from language_model import train

    import online_softmax as osm

    torch.set_num_threads(osm.info()["threads"])
    train(head, Corpus(text.ids[:64] % 16, text.words[:16]), given._replace(steps=2, tokens=4))
    print(json.dumps(train(head, text, given)))


def in_a_fresh_process(head: str) -> Run:
    """`child` in a new interpreter, with this one's arguments."""
    from language_model import Run

    command = [sys.executable, __file__, *sys.argv[1:], f"--child={head}"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Run(*json.loads(found.stdout))


def faults(runs: dict[str, Run], limits: list[float], logits: int, unigram: float) -> list[str]:
    """What is wrong, a line each."""
    ours, framework = runs["ours"], runs["framework"]
    wrong = []
    apart = np.abs(np.subtract(ours.losses, framework.losses))
    past = np.flatnonzero(~(apart <= limits))
    if past.size:
        step = int(past[0])
        wrong.append(
            f"step {step + 1}: the losses are {apart[step]:.1e} apart, {limits[step]:.1e} is the limit"
        )
    known = unigram if len(ours.losses) >= LEARNT_BY else ours.losses[0]
    if not ours.losses[-1] < known:
        wrong.append(f"the last loss is {ours.losses[-1]:.3f}: less than {known:.3f} would do")
    if not ours.peak + logits <= framework.peak:
        sizes = f"{ours.peak / MIB:.1f} MiB and {framework.peak / MIB:.1f} MiB"
        wrong.append(f"the peaks are {sizes}: less apart than the logits, {logits / MIB:.1f} MiB")
    return wrong


def picture(path: Path, runs: dict[str, Run], limits: list[float], unigram: float) -> None:
    """Both curves, and below how far they are apart beside how far they may be, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "online-softmax"  # or two runs would differ
    import matplotlib.pyplot as plt

    ours, framework = (runs[name].losses for name in ("ours", "framework"))
    steps = range(1, len(ours) + 1)
    fig, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    above.plot(steps, framework, color="#d55e00", linewidth=3, label="F.cross_entropy(F.linear)")
    above.plot(steps, ours, color="#0072b2", linestyle="--", label="linear_cross_entropy")
    above.axhline(unigram, color="#999999", linewidth=0.8, label="frequencies of words alone")
    above.set_ylabel("loss, nats a word")
    above.legend(frameon=False)
    apart = np.abs(np.subtract(ours, framework))
    below.semilogy(steps, np.where(apart > 0, apart, np.nan), color="#0072b2", label="apart")
    below.semilogy(steps, limits, color="black", linewidth=0.8, label="limit")
    below.set_xlabel("step")
    below.set_ylabel("difference of the losses")
    below.legend(frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, format="svg", metadata={"Date": None})
    plt.close(fig)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: 1 or more would do")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="a text in UTF-8, instead of Python's own reference")
    parser.add_argument("--steps", type=positive, default=50)
    parser.add_argument("--tokens", type=positive, default=1024, help="of a step; default 1024")
    parser.add_argument("--features", type=positive, default=128, help="of the hidden layer; default 128")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, default=SVG, help="where the curves go")
    parser.add_argument("--child", choices=HEADS, help=argparse.SUPPRESS)
    return parser.parse_args()


def told(runs: dict[str, Run], limits: list[float], logits: int) -> None:
    """The table of both curves, and of both runs."""
    ours, framework = runs["ours"], runs["framework"]
    count = len(ours.losses)
    print(f"{'step':>5}{'ours':>10}{'framework':>12}{'apart':>10}{'may be':>10}")
    for i in sorted({*np.linspace(0, count - 1, min(count, 10)).astype(int).tolist()}):
        apart = abs(ours.losses[i] - framework.losses[i])
        print(f"{i + 1:5}{ours.losses[i]:10.5f}{framework.losses[i]:12.5f}{apart:10.1e}{limits[i]:10.1e}")
    print(f"\n{'head':>11}{'seconds':>10}{'peak':>14}    (a matrix of logits: {logits / MIB:.1f} MiB)")
    for name in ("ours", "framework"):
        print(f"{name:>11}{runs[name].seconds:10.2f}{runs[name].peak / MIB:10.1f} MiB")


def main() -> None:
    given = arguments()
    if importlib.util.find_spec("torch") is None:
        sys.exit("train_language_model: torch is missing: pip install torch")
    if given.file is not None and not given.file.is_file():
        sys.exit(f"--file {given.file}: there is no such file; a text in UTF-8 would do")
    chosen, text = settings(given), corpus(load(given.file))
    if len(text.ids) < 8 * chosen.context:
        sys.exit(f"--file {given.file}: {len(text.ids)} words; at least {8 * chosen.context} would do")
    if given.child:
        child(given.child, text, chosen)
        return
    from language_model import allowed

    words, logits = len(text.words), 4 * given.tokens * len(text.words)
    print(f"{len(text.ids)} words of a text, {words} of them different")
    print(f"{given.steps} steps, {given.tokens} words each")
    chance = np.log(words)
    print(f"nats a word: {chance:.3f} where all are alike, {text.unigram:.3f} by their frequencies alone\n")
    runs = {head: in_a_fresh_process(head) for head in HEADS}
    limits = allowed(runs["framework"], [runs[head] for head in HEADS[2:]])
    told(runs, limits, logits)
    if importlib.util.find_spec("matplotlib") is None:
        print("\nmatplotlib is not installed: no picture")
    else:
        picture(given.svg, runs, limits, text.unigram)
        print(f"\ncurves: {given.svg}")
    wrong = faults(runs, limits, logits, text.unigram)
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
