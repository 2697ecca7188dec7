"""What a compiled Triton kernel costs in registers and how wide it moves data, without a GPU."""

from .asm import MemoryInstruction
from .build import TARGETS, Compiled, inspect
from .gates import assert_no_spills, assert_vectorized

__all__ = [
    "TARGETS",
    "Compiled",
    "MemoryInstruction",
    "assert_no_spills",
    "assert_vectorized",
    "inspect",
]
