"""The text that train_language_model.py learns from: words, their numbers, and batches of them.

Not a script of its own. The text is the language reference that every Python carries for its `help()`, some
half a megabyte of English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: A word with the space before it, a sign, or white space: joined again they are the text.
TOKEN = re.compile(r" ?\w+|[^\w\s]|\s+")


class Corpus(NamedTuple):
    """A text as numbers of its words."""

    ids: Array
    words: list[str]

    @property
    def unigram(self) -> float:
        """Loss of a model that knows how frequent words are and nothing else, in nats."""
        share = np.bincount(self.ids, minlength=len(self.words)) / len(self.ids)
        return float(-(share * np.log(share)).sum())


def load(file: Path | None) -> str:
    """The text of a file, or Python's own."""
    if file is not None:
        return file.read_text("utf-8")
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def corpus(text: str) -> Corpus:
    """Every word that occurs has a number, in the order in which they first come."""
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(word, len(numbers)) for word in TOKEN.findall(text)]
    return Corpus(np.array(ids, np.int64), list(numbers))


def batches(ids: Array, context: int, tokens: int, steps: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """`steps` pairs of contexts (tokens, context) and the words that follow them (tokens,)."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        at = rng.integers(0, len(ids) - context, tokens)
        yield ids[at[:, None] + np.arange(context)], ids[at + context]
