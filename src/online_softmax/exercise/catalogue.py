"""All parts of the exercise, in their order."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from . import part_attention, part_bytes, part_formats, part_merge, part_shift, part_update
from .questions import Ask, Part

#: Counts up with every change of a question or of what a seed draws: a sheet is graded by its own version.
VERSION = 1
LARGEST_SEED = 2**63 - 1
PARTS = ("1", "2", "3", "4", "5", "6", "bonus")


@functools.lru_cache(maxsize=4)
def parts(seed: int) -> tuple[Part, ...]:
    """The exercise that a seed makes. Raises TypeError for what is no int, ValueError outside 0 to 2^63 - 1.
    Cost: a tenth of a second."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed: {seed!r} is no int; a whole number from 0 would do")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed: {seed} is out of range; 0 to 2^63 - 1 would do")
    return (
        part_shift.part(seed),
        part_update.part(seed),
        part_merge.part(seed),
        part_formats.part(seed),
        part_bytes.part(seed),
        part_attention.part(seed),
        part_attention.bonus(seed),
    )


def fields(seed: int) -> Iterator[tuple[str, Ask]]:
    """(part, answer) for everything there is to fill in, in the sheet's order."""
    for part in parts(seed):
        for question in part.questions:
            for ask in question.fields():
                yield part.name, ask
