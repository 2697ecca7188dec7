"""Checks of a compiled kernel for a test: each raises AssertionError, saying what was found and where."""

from __future__ import annotations

from typing import Final

from .build import Compiled

#: Instructions a complaint lists.
_SHOWN: Final = 8


def assert_no_spills(compiled: Compiled) -> None:
    """Raise AssertionError if a register is kept in memory: spill instructions or scratch memory."""
    if compiled.spills or compiled.scratch_bytes:
        raise AssertionError(
            f"{_name(compiled)}: {compiled.spills} spills and {compiled.scratch_bytes} bytes of scratch a "
            f"thread, with {compiled.registers} registers; more warps or smaller blocks would do"
        )


def assert_vectorized(compiled: Compiled, bytes: int = 16, *, allow: int = 0) -> None:
    """Raise AssertionError if more than `allow` loads and stores of global memory move less than `bytes`.

    The rule: each load and each store instruction in the text counts once, in a loop or not, masked or not,
    and has to move `bytes` a thread at least. `allow` is for those that a kernel needs narrow: a statistic
    or a label per row. Atomics and scalar loads of arguments are no part of it; tile copies by hardware pass.
    A kernel in which neither is found fails: there is nothing the check could rest on. ValueError for a width
    or an allowance that makes no sense.
    """
    if bytes < 1 or allow < 0:
        raise ValueError(
            f"bytes={bytes}, allow={allow}: a positive width, and none or more allowed, would do"
        )
    if not compiled.memory and not compiled.bulk_copies:
        raise AssertionError(f"{_name(compiled)}: no load or store of global memory found")
    narrow = [found for found in compiled.memory if found.bytes < bytes]
    if len(narrow) > allow:
        shown = [f"\n  {found.bytes} bytes: {found.text}" for found in narrow[:_SHOWN]]
        lines = "".join(shown) + (f"\n  and {len(narrow) - _SHOWN} more" if len(narrow) > _SHOWN else "")
        raise AssertionError(
            f"{_name(compiled)}: {len(narrow)} of {len(compiled.memory)} loads and stores move less than "
            f"{bytes} bytes, {allow} allowed; is divisibility by 16 known of pointers and strides?{lines}"
        )


def _name(compiled: Compiled) -> str:
    return f"{compiled.kernel} for {compiled.target}, {compiled.num_warps} warps"
