"""What the sequences of paged_decode.py bring: queries, keys and values of a text, or seeded ones.

Not a script of its own. With the model, they are the projections of its first layer, each token's own
whatever stands beside it, and its 12 heads of keys and values are averaged to 4, as grouped-query models
are made from others (Ainslie et al. 2023, arXiv:2305.13245).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from make_attention_scores import TEXT, token_ids
from minilm import Array, MiniLM
from paged_cache import Table

#: Query heads, key heads and features of the random stream; of the model's, 12 query heads of 32.
RANDOM, GROUPS = (8, 2, 64), 4
#: Where in the text a prompt lies, its length, and where the text goes on from there.
PROMPTS = {
    "first": (0, 40, 40),
    "its fork": (0, 40, 150),
    "short": (200, 7, 207),
    "long": (60, 100, 160),
    "later": (20, 25, 45),
}
#: Tokens of the text that the random stream pretends to.
TOKENS = 300


@dataclass
class Stream:
    """q (heads, tokens, d), k and v (key heads, tokens, d) of a sequence, its prompt's length, its blocks."""

    q: Array
    k: Array
    v: Array
    prompt: int
    table: Table = field(default_factory=Table)


def streams(steps: int, dtype: np.dtype[Any], model: MiniLM | None) -> dict[str, Stream]:
    """All sequences by name, of their prompts and `steps` tokens more. The two of one prompt agree on it."""
    made = {}
    words = np.arange(TOKENS) if model is None else np.array(token_ids(TEXT, model.vocabulary))
    for name, (start, prompt, on) in PROMPTS.items():
        places = np.r_[start : start + prompt, on : on + steps] % len(words)
        arrays = _seeded(places) if model is None else _of_text(words[places], model)
        q, k, v = (a.astype(dtype) for a in arrays)
        made[name] = Stream(q, k, v, prompt)
    return made


def _of_text(ids: Array, model: MiniLM) -> list[Array]:
    q, k, v = (a[0] for a in model.heads(model.embed(ids[None]), 0))
    return [q, *(a.reshape(GROUPS, -1, *a.shape[1:]).mean(axis=1) for a in (k, v))]


def _seeded(places: Array) -> list[Array]:
    """Normal numbers; a token's depend on its place in the text alone."""
    heads, groups, d = RANDOM
    tokens = [np.random.default_rng(int(p)).standard_normal((heads + 2 * groups, d)) for p in places]
    return np.split(np.stack(tokens, axis=1), (heads, heads + groups))
