"""The library in the place of PyTorch's own functions, in code that is there already."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from typing import Any, Final

import torch

from . import swap_functions
from .swap_functions import FLAGS, NAMES

_LOCK: Final = threading.RLock()
#: What was said outside of contexts, the last word at the end: when, whether on, and by what, which takes it
#: back where it is entered.
_said: Final[dict[str, list[tuple[int, bool, weakref.ref[_Switch]]]]] = {name: [] for name in NAMES}
#: Contexts that are entered, each with its names, when it was entered, and whether on.
_Entry = tuple[Any, tuple[str, ...], int, bool]
_entered: Final[list[_Entry]] = []
#: How often something was said.
_count: Final = itertools.count(1)


class _State:
    installed = False


_state: Final = _State()


class _Switch:
    """Functions turned on or off: from now on, or within a context."""

    on: bool

    def __init__(self, *names: str) -> None:
        self._names = _names(names)
        self._flags: list[list[bool]] = []
        self._when = 0
        if torch.compiler.is_compiling():
            if not _state.installed:
                raise RuntimeError(
                    "enable and disable work in compiled code once one of them was called outside of it"
                )
            return
        # An interrupt (KeyboardInterrupt) may fall anywhere: then nothing is said or entered, or all is left.
        try:
            with _LOCK:
                _install()
                self._when = _next()
                for name in self._names:
                    _said[name] = [*_counting(_said[name]), (self._when, self.on, weakref.ref(self))]
                _settle()
        except BaseException:
            self._unsay()
            raise

    def __enter__(self) -> _Switch:
        if torch.compiler.is_compiling():
            # While code is traced, flags alone: they are put back before it runs, and nobody else sees them.
            self._flags.append([getattr(FLAGS, name) for name in self._names])
            for name in self._names:
                setattr(FLAGS, name, self.on)
            return self
        entry: list[_Entry] = []
        try:
            with _LOCK:
                entry.append((self, self._names, _next(), self.on))
                _entered.append(entry[0])
                self._unsay()  # what it said, it said for the context alone
        except BaseException:
            self._unsay()
            if entry:
                self._leave(entry)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            for name, flag in zip(self._names, self._flags.pop(), strict=True):
                setattr(FLAGS, name, flag)
            return
        entry: list[_Entry] = []
        try:
            self._leave(entry)
        except BaseException:
            self._leave(entry, again=True)
            raise

    def _leave(self, entry: list[_Entry], again: bool = False) -> None:
        """Ends the context of an entry, or of the last one of this object, which `entry` then holds. To be
        called again where it was interrupted."""
        with _LOCK:
            if not entry:
                mine = [other for other in _entered if other[0] is self]
                if not mine:
                    if again:
                        return
                    raise RuntimeError(f"{self!r} is left but was not entered: `with enable():` would do")
                entry.append(mine[-1])
            _entered[:] = [other for other in _entered if other is not entry[0]]
            _settle()

    def _unsay(self) -> None:
        with _LOCK:
            for name in self._names:
                _said[name] = [word for word in _said[name] if word[0] != self._when]
            _settle()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._names))})"


class enable(_Switch):
    """Swaps the library in for functions of PyTorch: `enable()` from now on, `with enable():` for a while.

    Args:
        names: of what to swap, any of these; all of them where none is given.

            "softmax"                        torch.nn.functional.softmax, torch.softmax
            "log_softmax"                    torch.nn.functional.log_softmax, torch.log_softmax
            "logsumexp"                      torch.logsumexp
            "cross_entropy"                  torch.nn.functional.cross_entropy
            "scaled_dot_product_attention"   torch.nn.functional.scaled_dot_product_attention

    What looks them up there follows: nn.Softmax, nn.LogSoftmax, nn.CrossEntropyLoss, nn.MultiheadAttention
    (where it does not take PyTorch's fused path for inference). Methods of tensors, and functions that were
    imported by name (`from torch.nn.functional import softmax`) before the first call, stay PyTorch's.

    Results have PyTorch's formats. A call that is not served goes to PyTorch's own, and one line for each
    reason is logged as a warning to the logger "online_softmax":

        all                 tensors that are not on the CPU, are sparse, have names of dimensions, or are of a
                            class of their own; formats other than float64, float32, float16 and bfloat16
        (log_)softmax       no dim; out=; dtype= of another format
        logsumexp           dim=(); out=
        cross_entropy       size_average=, reduce=; label_smoothing=1; no classes; a weight that requires a
                            gradient or is not finite; probabilities below 0 or of another format than logits
        attention           what `unserved` of this package's attention says

    A call that PyTorch refuses is handed to it, and refused in its words. Where values are not at hand, in
    compiled code, probabilities below 0 and weights that are not finite raise ValueError when it runs.

    Compiled code: the choice is looked up while code is traced and guarded on, so code that was compiled with
    the library in place is compiled again without it, and the other way round. Where code was traced in a way
    that leaves no guard (torch.nn.CrossEntropyLoss made within it; torch.export), the next change drops all
    that is compiled (torch.compiler.reset). The first call of all puts
    functions of ours where PyTorch's are, which stay there and pass calls on; what was compiled before knows
    nothing of them and is dropped, once (torch.compiler.reset). Inside of compiled code `with enable():`
    holds for what is traced there; a plain call says nothing there. torch.jit.script compiles what uses these
    functions before that first call only.

    The choice holds for the whole process, whatever thread makes it. Contexts may be nested and overlap, and
    one object may be entered again; the last word said counts, until its context ends.

    Raises: ValueError for another name.
    """

    on = True


class disable(_Switch):
    """Turns back to PyTorch's own functions: the opposite of `enable`, with the same names and uses."""

    on = False


def enabled(name: str | None = None) -> bool | tuple[str, ...]:
    """Whether the function `name` is swapped; the names of those that are, without it."""
    if name is None:
        return tuple(n for n in NAMES if getattr(FLAGS, n))
    return bool(getattr(FLAGS, _names((name,))[0]))


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in NAMES:
            raise ValueError(
                f"{name!r} is no function that is swapped: {', '.join(map(repr, NAMES))} would do"
            )
    return tuple(dict.fromkeys(names)) or NAMES


def _next() -> int:
    return next(_count)


def _counting(words: list[Any]) -> list[Any]:
    """Without those before one that nobody can take back any more."""
    last = max((i for i, (_, _, who) in enumerate(words) if who() is None), default=0)
    return words[last:]


def _settle() -> None:
    latest = {name: _said[name][-1][:2] if _said[name] else (0, False) for name in NAMES}
    for _, names, when, on in _entered:
        for name in names:
            if when > latest[name][0]:
                latest[name] = (when, on)
    changed = [name for name, (_, on) in latest.items() if getattr(FLAGS, name) != on]
    for name in changed:
        setattr(FLAGS, name, not getattr(FLAGS, name))
    if changed and FLAGS.traced_whole:
        FLAGS.traced_whole = False
        torch.compiler.reset()


def _install() -> None:
    if _state.installed:
        return
    for module, name, ours, theirs in swap_functions.PLACES:
        ours.__doc__ = theirs.__doc__
        setattr(module, name, ours)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    _state.installed = True
