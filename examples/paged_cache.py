"""A paged cache of keys and values: a pool of blocks, and for each sequence the list of those it uses.

Not a script of its own: paged_decode.py uses it. A block holds some tokens of one sequence, or of several
that began alike; it counts its users, is copied before one of them writes to it, and goes back to the pool
with the last. So no sequence wastes more than a part of one block, and a shared beginning is there once
(Kwon et al. 2023, arXiv:2309.06180).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class PoolFull(RuntimeError):
    """No block is left for a token."""


@dataclass
class Table:
    """The blocks of a sequence, in order, and its tokens."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0


class PagedCache:
    """The pools `k` and `v`, (blocks, block_size, key heads, features), and who uses what of them."""

    def __init__(self, blocks: int, block_size: int, heads: int, features: int, dtype: np.dtype[Any]) -> None:
        self.block_size = block_size
        self.k, self.v = (np.zeros((blocks, block_size, heads, features), dtype) for _ in range(2))
        self._users = [0] * blocks
        self._free = list(range(blocks))[::-1]

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return len(self._users) - len(self._free)

    def append(self, table: Table, k: Array, v: Array) -> None:
        """Tokens at the end of a sequence: k and v (key heads, tokens, features).

        PoolFull where no block is left; the tokens that fitted are then in the cache.
        """
        for key, value in zip(np.moveaxis(k, 1, 0), np.moveaxis(v, 1, 0), strict=True):
            at, place = divmod(table.length, self.block_size)
            if place == 0:
                table.blocks.append(self._take())
            elif self._users[table.blocks[at]] > 1:
                self._copy(table, at)
            block = table.blocks[at]
            self.k[block, place], self.v[block, place] = key, value
            table.length += 1

    def fork(self, table: Table) -> Table:
        """A second sequence that begins as the first: no token is copied."""
        for block in table.blocks:
            self._users[block] += 1
        return Table(list(table.blocks), table.length)

    def free(self, table: Table) -> None:
        """The sequence ends: its blocks go back, but for those that another still uses."""
        for block in table.blocks:
            self._release(block)
        table.blocks, table.length = [], 0

    def tables(self, tables: Sequence[Table]) -> tuple[Array, Array]:
        """What attention is given: (sequences, blocks of the longest) and (sequences,). What lies past a
        sequence's own blocks is never looked at, and 0 here."""
        made = np.zeros((len(tables), max(len(t.blocks) for t in tables)), np.int32)
        for row, table in zip(made, tables, strict=True):
            row[: len(table.blocks)] = table.blocks
        return made, np.array([t.length for t in tables], np.int32)

    def shared(self, tables: Sequence[Table]) -> int:
        """How many blocks all of them begin with."""
        columns = zip(*(t.blocks for t in tables), strict=False)
        same = [len(set(column)) == 1 for column in columns]
        return same.index(False) if False in same else len(same)

    def _take(self) -> int:
        if not self._free:
            raise PoolFull(f"all {len(self._users)} blocks of the cache are taken: more would do")
        block = self._free.pop()
        self._users[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._users[block] -= 1
        if not self._users[block]:
            self._free.append(block)

    def _copy(self, table: Table, at: int) -> None:
        """The sequence gets a block of its own with the same tokens."""
        own, old = self._take(), table.blocks[at]
        self.k[own], self.v[own] = self.k[old], self.v[old]
        table.blocks[at] = own
        self._release(old)
