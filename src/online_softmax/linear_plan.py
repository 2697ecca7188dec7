"""How a linear cross-entropy is cut into pieces that keep to a memory budget: pure arithmetic.

Two ways to cut. A chunk of tokens has all classes, so that its rows are complete and logits become the
gradient in place. A tile of classes meets as many tokens as fit; their statistics are merged over the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

#: Tiles of classes that are tried, the first that leaves room for enough tokens is taken.
TILES: Final = (4096, 1024, 256, 64, 16)
ENOUGH_TOKENS: Final = 512
#: Threads whose scratch is counted, however many there are: the pieces, and with them the order of sums, are
#: the same on any number of threads.
THREADS: Final = 4
#: Of native/run_product.cpp: bytes of A packed at a time, columns of an item, rows of one that is rounded,
#: and steps of float32.
_PACKED, _COLUMNS, _ROUNDED, _STEPS = 256 << 10, 768, 384, 384
_EDGE = 64  # lines a strip may be filled up by
#: Of native/run_losses.cpp: elements of rows brought together, bytes of a row's scratch beside its elements.
_GROUP, _ROW_SCRATCH = 32768, 64 << 10


@dataclass(frozen=True)
class Sizes:
    """A call, as far as its memory goes.

    Attributes:
        tokens: rows that take part. classes, features: of the weight.
        item: bytes of a logit. hidden_item: of an element of hidden.
        gathered: whether rows of hidden are brought together first, because others lie between them.
        mapped: softcap or temperature; each: class probabilities; per_class: arrays of doubles, one a class.
        memory: bytes.
    """

    tokens: int
    classes: int
    features: int
    item: int
    hidden_item: int
    gathered: bool
    mapped: bool
    each: bool
    per_class: int
    memory: int

    @property
    def row_extra(self) -> int:
        """Bytes of a token beside its logits."""
        return self.features * self.hidden_item if self.gathered else 0


def scratch(s: Sizes, tokens: int, classes: int, *, rounded: bool) -> int:
    """Bytes that the products and the loss of a piece pack and stage, of THREADS; an upper bound."""
    most = _STEPS * 4 // s.item

    def packed(m: int, n: int, k: int) -> int:
        steps = min(k + 8, most) * s.item
        apart = min(m, _ROUNDED + _EDGE) * min(n, _COLUMNS + _EDGE) * s.item if rounded else 0
        return min((m + 8) * steps, _PACKED + 8 * steps) + (min(n, _COLUMNS) + _EDGE) * steps + apart

    products = max(
        packed(tokens, classes, s.features),
        packed(tokens, s.features, classes),
        packed(classes, s.features, tokens),
    )
    staged = min(max(classes, _GROUP), tokens * classes)
    row = (classes + 64) * s.item + _ROW_SCRATCH
    if s.mapped or s.each:
        row += 3 * s.item * staged
    if s.each:
        row += (s.item + 8) * staged + 16 * classes
    return THREADS * (products + row if s.mapped or s.each else max(products, row))


def even(total: int, most: int) -> int:
    """The size of the fewest equal pieces of up to `most`."""
    pieces = -(-total // max(1, most))
    return max(1, -(-total // max(1, pieces)))


def _left(s: Sizes, classes: int, apart: int, *, rounded: bool) -> int:
    """Bytes for logits and what goes with tokens. What threads pack and stage past half of the memory, or
    more than THREADS of them, is beside it."""
    staged = scratch(s, s.tokens, classes, rounded=rounded)
    return s.memory - min(staged, s.memory // 2) - apart - 8 * s.per_class * s.classes


class TooSmall(ValueError):
    """A memory that holds not even one piece; `least` bytes hold one, `what`."""

    def __init__(self, memory: int, least: int, what: str) -> None:
        super().__init__(f"memory is {memory}: at least {least} bytes, for {what}, would do")
        self.least, self.what = least, what


def _too_small(s: Sizes, wanted: int, apart: int, what: str) -> TooSmall:
    return TooSmall(s.memory, 2 * (wanted + apart + 8 * s.per_class * s.classes), what)


def made(plan: Callable[[int], T], memory: int) -> T:
    """plan(memory), or a TooSmall that names what is enough for all of it, not for its first step alone."""
    try:
        return plan(memory)
    except TooSmall as error:
        last = error
    while True:
        try:
            plan(last.least)
        except TooSmall as error:
            last = error
        else:
            raise TooSmall(memory, last.least, last.what)


def tokens_a_chunk(s: Sizes, *, extra: int = 0, apart: int = 0, rounded: bool = False) -> int:
    """Tokens of a chunk that has all classes, `extra` bytes a token and `apart` bytes in all beside.

    Raises: ValueError where not even one fits.
    """
    per_token = s.classes * s.item + s.row_extra + extra
    fit = _left(s, s.classes, apart, rounded=rounded) // per_token
    if fit < 1:
        raise _too_small(s, per_token, apart, f"the logits of one token over {s.classes} classes")
    return even(s.tokens, fit)


@dataclass(frozen=True)
class Tiles:
    """Pieces of up to `tokens` by `classes`."""

    tokens: int
    classes: int


def tiles(s: Sizes, *, of_weight: bool = False, rounded: bool = False) -> Tiles:
    """Tiles over tokens and classes; `of_weight`: a tile of the weight's gradient is complete before the
    next.

    Then all tokens at once are wanted, or room for a tile of the weight to sum over them.

    Raises: ValueError where not even the least fits.
    """
    least, apart, per_token = min(s.classes, TILES[-1]), 0, 1
    for classes in (min(s.classes, most) for most in TILES):
        per_token = classes * s.item + s.row_extra
        fit = _left(s, classes, 0, rounded=rounded) // per_token
        if fit >= s.tokens:
            return Tiles(max(1, s.tokens), classes)
        if of_weight:
            apart = classes * s.features * s.item
            fit = _left(s, classes, apart, rounded=rounded) // per_token
        if fit >= ENOUGH_TOKENS or (classes == least and fit >= 1):
            return Tiles(even(s.tokens, fit), classes)
    raise _too_small(s, per_token, apart, f"a tile of {least} classes")
