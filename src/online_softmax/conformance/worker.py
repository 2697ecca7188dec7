"""The child process: loads a subject, calls it, and tells what came of it.

Started by `child.Child` as `python -m online_softmax.conformance.worker READ WRITE` with two pipe ends.
Whatever the subject does ends here: an exception becomes an outcome, and a crash or a hang takes this process
alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import itertools
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from . import frameworks
from .cases import NotOffered, Outcome
from .child import HEADER, MAGIC, Call, Load, Loaded, Refused, same_bits
from .operations import OPERATIONS

Array = NDArray[Any]
Outputs = dict[str, Array]

#: Calls of each thread: a race shows in some of them.
ROUNDS: Final = 10
_LONGEST: Final = 2000
_PR_SET_PDEATHSIG: Final = 1  # of prctl(2)
_OURS: Final = os.path.dirname(__file__)


class _Ended(Exception):
    """A call came to no outputs."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(error=error, message=message[:_LONGEST])


class Caller:
    """The calls of one point."""

    def __init__(self, adapter: Any, call: Call) -> None:
        self._adapter = adapter
        self._call = call
        self._kept = {name: np.array(array, copy=True) for name, array in call.inputs.items()}
        self._arrays = {
            name: frameworks.to_framework(array, adapter.framework, call.layouts.get(name, "contiguous"))
            for name, array in call.inputs.items()
        }

    def once(self, arrays: Mapping[str, Any] | None = None) -> Outputs:
        """Outputs of one call, copied at once: a subject may hand out the same memory again. _Ended else."""
        given = self._arrays if arrays is None else arrays
        try:
            found = self._adapter.call(self._call.op, dict(given), dict(self._call.options))
        except NotOffered as error:
            raise _Ended("not offered", str(error)) from None
        except NotImplementedError as error:  # a subject's word for what it does not offer
            raise _Ended("not offered", text_of(error) or "raises NotImplementedError") from None
        # The subject's own code: whatever it raises is what has to be reported.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            raise _Ended(type(error).__name__, text_of(error)) from None
        first = OPERATIONS[self._call.op].outputs[0]
        if first not in found:
            raise _Ended("bad result", f"nothing came back: {first} would do")
        return {name: self._array(name, value) for name, value in found.items()}

    def repeat(self) -> tuple[Outputs, ...]:
        """Outputs of further calls, one after the other."""
        return tuple(self.once() for _ in range(self._call.calls - 1))

    def threads(self) -> tuple[Outputs, Outputs]:
        """Outputs of single calls, one a thread and each on an input of its own, and what the threads made of
        them when they called at once, several times each: of a thread the first that are not its single
        call's. Stacked along a new first axis."""
        inputs = [self._apart(place) for place in range(self._call.calls)]
        singles = [self.once(arrays) for arrays in inputs]
        barrier = threading.Barrier(self._call.calls)
        found: list[Outputs | _Ended] = list(singles)

        def work(place: int) -> None:
            barrier.wait()
            for _ in range(ROUNDS):
                try:
                    found[place] = outputs = self.once(inputs[place])
                except _Ended as error:
                    found[place] = error
                    return
                if not _same(outputs, singles[place]):
                    return

        threads = [
            threading.Thread(target=work, args=(place,), daemon=True) for place in range(self._call.calls)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in found:
            if isinstance(outcome, _Ended):
                raise _Ended(outcome.outcome.error or "", f"in a thread: {outcome.outcome.message}")
        return _pile(singles), _pile([outputs for outputs in found if not isinstance(outputs, _Ended)])

    def _apart(self, place: int) -> dict[str, Any]:
        """The inputs of one of several threads: the point's own, its floats made smaller for all but the
        first."""
        arrays = dict(self._arrays)
        for name, kept in self._kept.items() if place else ():
            if kept.dtype.kind not in "biu":
                smaller = kept.astype(np.float64) * (1 - place / (2 * self._call.calls))
                layout = self._call.layouts.get(name, "contiguous")
                arrays[name] = frameworks.to_framework(
                    smaller.astype(kept.dtype), self._adapter.framework, layout
                )
        return arrays

    def rows(self) -> tuple[Outputs, ...]:
        """Outputs of each row alone, put together again to the batch's shape."""
        shapes = [(self._kept[name].shape, places) for name, places in self._call.rows.items()]
        axes = len(shapes[0][1]) if shapes else 0
        lengths = [
            _length([shape[at] for shape, p in shapes if (at := p[i]) is not None]) for i in range(axes)
        ]
        if not lengths or 0 in lengths:
            return ()
        alone = {
            index: self.once({name: self._cut(name, index) for name in self._arrays})
            for index in itertools.product(*map(range, lengths))
        }
        try:
            return (_stack(alone, lengths, self._places()),)
        except (ValueError, IndexError) as error:
            raise _Ended("bad result", f"rows alone do not make up the batch: {error}") from None

    def _places(self) -> list[int]:
        """Axes of the outputs that the rows are joined along: those of the first operand."""
        first = next(iter(OPERATIONS[self._call.op].operands))
        return [at for at in self._call.rows[first] if at is not None]

    def changed(self) -> tuple[str, ...]:
        """Names of the inputs whose bits are not those that were handed over."""
        found = []
        for name, kept in self._kept.items():
            try:
                now = np.asarray(frameworks.from_framework(self._arrays[name]))
            # An input that cannot be read back any more (freed, donated) was changed, however that shows.
            except Exception:  # noqa: BLE001
                found.append(name)
                continue
            if not same_bits(now, kept):
                found.append(name)
        return tuple(found)

    def _cut(self, name: str, index: tuple[int, ...]) -> Any:
        """A view of one row: what lay beside it in memory still does."""
        array, shape = self._arrays[name], self._kept[name].shape
        places: list[slice] = [slice(None)] * len(shape)
        for place, at in zip(self._call.rows.get(name, ()), index, strict=False):
            if place is not None and shape[place] != 1:
                places[place] = slice(at, at + 1)
        return array[tuple(places)] if places else array

    def _array(self, name: str, value: Any) -> Array:
        try:
            array = np.array(frameworks.from_framework(value), copy=True)
        # What a subject returns may be anything, and reading it may run its code.
        except Exception as error:  # noqa: BLE001
            kind = type(value).__name__
            raise _Ended("bad result", f"{name} is a {kind} that is no array: {text_of(error)}") from None
        if array.dtype.kind in "OSUMmc" or array.dtype.names:
            raise _Ended(
                "bad result", f"{name} is a {type(value).__name__} of {array.dtype}: an array would do"
            )
        return array


def _length(sizes: list[int]) -> int:
    """Length of an axis of the batch: a 1 is stretched."""
    return next((size for size in sizes if size != 1), 1)


def _same(a: Outputs, b: Outputs) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def _pile(outputs: list[Outputs]) -> Outputs:
    """Outputs of several calls along a new first axis. _Ended where their shapes differ."""
    try:
        return {name: np.stack([each[name] for each in outputs]) for name in outputs[0]}
    except (KeyError, ValueError) as error:
        raise _Ended("bad result", f"calls on inputs of one shape give other outputs: {error}") from None


def _stack(alone: Mapping[tuple[int, ...], Outputs], lengths: list[int], axes: list[int]) -> Outputs:
    """Outputs by index -> arrays, joined along `axes`, of these lengths."""
    names = list(next(iter(alone.values())))
    joined: Outputs = {}
    for name in names:
        level = {index: outputs[name] for index, outputs in alone.items()}
        for depth in reversed(range(len(lengths))):
            level = {
                index: np.concatenate([level[(*index, i)] for i in range(lengths[depth])], axis=axes[depth])
                for index in itertools.product(*map(range, lengths[:depth]))
            }
        joined[name] = level[()]
    return joined


def text_of(error: BaseException) -> str:
    """An exception's text and the last line of the subject's own that it passed through."""
    try:
        text = str(error)
    # The text of an exception is made by the subject's code.
    except Exception:  # noqa: BLE001
        text = "(its text cannot be made)"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_theirs(f.filename)]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    # What a terminal or a file cannot take (control characters, lone surrogates) is spelled out.
    plain = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text[:_LONGEST])
    return f"{plain}{place}"[:_LONGEST]


def _is_theirs(filename: str) -> bool:
    return not filename.startswith((_OURS, "<"))


def answer(adapter: Any, call: Call) -> Outcome:
    """What the subject does with one question."""
    if not adapter.offers(call.op, call.dtype):
        return Outcome(error="not offered", message=f"{adapter.name} has no {call.op} of {call.dtype}")
    try:
        caller = Caller(adapter, call)
    except NotOffered as error:
        return Outcome(error="not offered", message=str(error))
    try:
        further: Mapping[str, Callable[[], tuple[Outputs, ...]]] = {
            "once": lambda: (),
            "repeat": caller.repeat,
            "rows": caller.rows,
        }
        several: tuple[Outputs, ...]
        if call.mode == "threads":
            outputs, at_once = caller.threads()
            several = (at_once,)
        else:
            outputs = caller.once()
            several = further[call.mode]()
    except _Ended as error:
        ended = error.outcome
        return Outcome(error=ended.error, message=ended.message, changed=caller.changed())
    return Outcome(outputs=outputs, changed=caller.changed(), several=several)


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End this process after `seconds`, with a word on where it was: also where the interpreter's lock is
    held."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _load(question: Load) -> tuple[Any, Loaded | Refused]:
    try:
        adapter = question.subject.load()
    # Importing a subject runs its code: whatever that raises is what has to be reported.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return None, Refused(type(error).__name__, text_of(error))
    return adapter, Loaded(adapter.framework, dict(adapter.versions))


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the parent closes its end."""
    adapter: Any = None
    while len(header := questions.read(HEADER.size)) == HEADER.size:
        question = pickle.loads(questions.read(HEADER.unpack(header)[1]))
        warnings.simplefilter("ignore")  # libraries set filters of their own when they are imported
        reply: Loaded | Refused | Outcome
        if isinstance(question, Load):
            adapter, reply = _load(question)
        else:
            with _limit(question.limit):
                reply = answer(adapter, question)
        body = pickle.dumps(reply, protocol=5)
        answers.write(HEADER.pack(MAGIC, len(body)) + body)
        answers.flush()


def _die_with_parent() -> None:
    """Where the system offers it: a parent that is killed outright takes a hanging subject along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve on the two descriptors of the command line."""
    ends = [int(text) for text in sys.argv[1:3]]
    for end in ends:
        os.set_inheritable(end, False)
    faulthandler.enable()
    _die_with_parent()
    with os.fdopen(ends[0], "rb") as questions, os.fdopen(ends[1], "wb") as answers:
        serve(questions, answers)


if __name__ == "__main__":
    main()
