"""The sizes an operation is counted for: one frozen record a family, checked when it is made.

Symbols of sympy may stand for any size and pass unchecked (`model.symbolic`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Final

from ..extras import require

ITEMSIZES: Final = (1, 2, 4, 8)
#: Bytes of a class index, and of a statistic of inputs up to 32 bits.
INDEX: Final = 8
_FLOAT32: Final = 4


def statistic(itemsize: int) -> int:
    """Bytes of m, s, lse or a loss: float64 for float64, else float32."""
    if _symbolic(itemsize):
        sympy = require("sympy", "symbols", "a symbolic count")
        either: int = sympy.Piecewise((8, sympy.Eq(itemsize, 8)), (_FLOAT32, True))
        return either
    return 8 if itemsize == 8 else _FLOAT32


def _symbolic(value: object) -> bool:
    return hasattr(value, "free_symbols")


def _check_heads(heads: int, kv_heads: int) -> None:
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise ValueError(f"heads={heads}: a multiple of kv_heads={kv_heads} would do: they share evenly")


class _Sizes:
    """Checks: whole numbers, `_FROM_ZERO` of at least 0, the rest of at least 1."""

    _FROM_ZERO: ClassVar[frozenset[str]] = frozenset()
    _FLAGS: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if field.name in self._FLAGS or _symbolic(value):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field.name}={value!r}: a whole number would do")
            lowest = 0 if field.name in self._FROM_ZERO else 1
            if value < lowest:
                raise ValueError(f"{field.name}={value}: a size of at least {lowest} would do")
            if field.name == "itemsize" and value not in ITEMSIZES:
                raise ValueError(f"itemsize={value}: 1, 2, 4 or 8 bytes would do")


@dataclass(frozen=True)
class Rows(_Sizes):
    """`rows` rows of `columns` elements of `itemsize` bytes; `k` entries a row for softmax_topk."""

    _FROM_ZERO: ClassVar = frozenset({"rows", "columns", "k"})

    rows: int
    columns: int
    itemsize: int
    k: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, int) and isinstance(self.columns, int) and self.k > self.columns:
            raise ValueError(f"k={self.k}: 0 to columns={self.columns} would do")


@dataclass(frozen=True)
class Chunks(_Sizes):
    """Rows cut into chunks of `block` elements, each of which becomes a state."""

    rows: int
    columns: int
    itemsize: int
    block: int


@dataclass(frozen=True)
class Projection(_Sizes):
    """Logits that are a product: `tokens` by `hidden` times `hidden` by `vocab`, in tiles.

    `block_tokens` by `block_vocab` logits are made at a time, by one program.
    """

    tokens: int
    hidden: int
    vocab: int
    itemsize: int
    block_tokens: int = 128
    block_vocab: int = 256


@dataclass(frozen=True)
class Attention(_Sizes):
    """Attention of `heads` query heads over `kv_heads` key-value heads, lengths and head size in elements.

    `block_q` by `block_k` scores are made at a time. `causal` aligns the last query with the last key.
    `splits`: parts the keys are cut into, for decoding.
    """

    _FLAGS: ClassVar = frozenset({"causal"})

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    itemsize: int
    block_q: int = 128
    block_k: int = 64
    splits: int = 1
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.heads, self.kv_heads)
        sizes = (self.splits, self.seq_k)
        if all(isinstance(size, int) for size in sizes) and self.splits > self.seq_k:
            raise ValueError(f"splits={self.splits}: 1 to seq_k={self.seq_k} would do")


@dataclass(frozen=True)
class States(_Sizes):
    """`parts` partial states for each of `rows` rows, each with `values` numbers of an output beside (m,
    s)."""

    _FROM_ZERO: ClassVar = frozenset({"rows", "values"})

    rows: int
    parts: int
    values: int = 0


@dataclass(frozen=True)
class Ranks(_Sizes):
    """`rows` rows of `columns` elements, the columns shared evenly by `ranks` processes."""

    rows: int
    columns: int
    itemsize: int
    ranks: int


@dataclass(frozen=True)
class Shards(_Sizes):
    """Attention whose keys and values are shared evenly along the sequence by `ranks` processes."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    itemsize: int
    ranks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.heads, self.kv_heads)


Shape = Rows | Chunks | Projection | Attention | States
