"""Models of Hugging Face Transformers on `online_softmax`: attention by name, and a loss without its logits.

all-MiniLM-L6-v2 with its real weights, once with attn_implementation="sdpa" and once with "online_softmax":
the embeddings of one padded batch, how long they took, how far they are apart. Then one step of a small
random language model, its loss by torch.nn.functional.cross_entropy and by `linear_loss`, each in a fresh
process: peak memory, seconds, the difference of loss and gradients.

    pip install 'online-softmax[examples]'
    python examples/transformers_minilm.py

Exit 1 where embeddings, losses or gradients are further apart than two orders of float32 sums can be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from minilm import INSTALL, model_folder, tokenize
from minilm_embeddings import SENTENCES, neighbours

#: Unit vectors of 384 numbers from six layers in float32: each number is some 0.05, its error some 2^-24 of
#: it a layer and product. A key that is missed shows a thousand times over.
EMBEDDINGS_APART = 1e-6
#: Relatively; of the largest gradient.
STEPS_APART = 1e-5


def embeddings(folder: Path, implementation: str, ids: Any, kept: Any) -> tuple[Any, float]:
    """(sentences, 384) of length 1, and the seconds of the best of three calls."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation=implementation).eval()
    mask = torch.from_numpy(kept).long()
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):
            start = time.perf_counter()
            x = model(input_ids=torch.from_numpy(ids), attention_mask=mask).last_hidden_state
            best = min(best, time.perf_counter() - start)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1), best


def compare_embeddings(folder: Path) -> list[str]:
    """Prints the table; what is too far apart, a line each."""
    ids, kept = tokenize(folder, SENTENCES)
    print(f"all-MiniLM-L6-v2, {ids.shape[0]} sentences of up to {ids.shape[1]} tokens, padded\n")
    made = {name: embeddings(folder, name, ids, kept) for name in ("sdpa", "online_softmax")}
    pairs = neighbours(len(SENTENCES))
    print(f"{'implementation':16}{'seconds':>9}" + "".join(f"{f'{i} and {j}':>9}" for i, j in pairs))
    for name, (found, seconds) in made.items():
        similar = "".join(f"{float(found[i] @ found[j]):9.4f}" for i, j in pairs)
        print(f"{name:16}{seconds:9.4f}{similar}")
    apart = (made["sdpa"][0] - made["online_softmax"][0]).abs().max().item()
    print(f"\nlargest difference of an embedding: {apart:.1e}")
    return (
        [] if apart <= EMBEDDINGS_APART else [f"embeddings are {apart:.1e} apart: {EMBEDDINGS_APART} at most"]
    )


def step(loss: str, classes: int, tokens: int) -> dict[str, Any]:
    """One forward and backward of a tiny language model with a vocabulary of real size."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from online_softmax.transformers import linear_loss

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=classes, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="online_softmax")
    ids = torch.randint(0, classes, (1, tokens))
    if loss == "linear_loss":
        linear_loss(model)
    model(input_ids=ids[:, :8], labels=ids[:, :8]).loss.backward()  # what a first call loads
    model.zero_grad(set_to_none=False)
    before, start = _peak(), time.perf_counter()
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    seconds = time.perf_counter() - start
    weight = model.lm_head.weight.grad
    return {
        "loss": found.loss.item(), "seconds": seconds, "peak": _peak() - before,
        "sample": weight[:: max(1, classes // 64)].flatten().tolist(), "largest": weight.abs().max().item(),
    }  # fmt: skip


def _peak() -> int:
    """Bytes of this process that were in memory at most (not ru_maxrss: that starts from the parent's)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def compare_steps(classes: int, tokens: int) -> list[str]:
    logits = classes * tokens * 4
    print(
        f"\na step of a causal model: {tokens} tokens, {classes} classes, "
        f"{logits / 2**20:.0f} MiB of logits\n"
    )
    made = {}
    print(f"{'loss':16}{'seconds':>9}{'peak MiB':>10}{'value':>12}")
    for name in ("cross_entropy", "linear_loss"):
        command = [
            sys.executable,
            __file__,
            "--step",
            name,
            "--classes",
            str(classes),
            "--tokens",
            str(tokens),
        ]
        made[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row = made[name]
        print(f"{name:16}{row['seconds']:9.3f}{row['peak'] / 2**20:10.0f}{row['loss']:12.6f}")
    one, other = made["cross_entropy"], made["linear_loss"]
    differences = np.abs(np.subtract(one["sample"], other["sample"]))
    apart = float(differences.max()) / one["largest"]  # a NaN stays
    print(f"\nlargest difference of the head's gradient, of its largest: {apart:.1e}")
    wrong = []
    if not abs(one["loss"] - other["loss"]) <= STEPS_APART * one["loss"]:
        wrong.append(f"losses are {one['loss']} and {other['loss']}: {STEPS_APART} apart at most")
    if not apart <= STEPS_APART:
        wrong.append(f"gradients are {apart:.1e} apart: {STEPS_APART} at most")
    if not other["peak"] < one["peak"]:
        wrong.append(f"the peak is {other['peak']} bytes and was {one['peak']}: less would do")
    return wrong


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--step", choices=["cross_entropy", "linear_loss"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in ("classes", "tokens"):
        if getattr(given, name) < 16:
            parser.error(f"--{name}: {getattr(given, name)}: 16 or more would do")
    return given


def main() -> None:
    given = arguments()
    folder = model_folder()
    if folder is None:
        sys.exit(f"transformers_minilm: the package with the model is missing: {INSTALL}")
    from transformers.utils import logging

    from online_softmax.transformers import register

    logging.disable_progress_bar()
    register()
    if given.step is not None:
        print(json.dumps(step(given.step, given.classes, given.tokens)))
        return
    wrong = compare_embeddings(folder) + compare_steps(given.classes, given.tokens)
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
