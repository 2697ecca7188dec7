"""sample: one token a row, drawn from softmax(logits / temperature). Documents, checks and routes."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from .. import cpu, cpu_sampling, state
from ..exact_sample_state import ExactSampleState
from ..sample_state import SampleState
from . import arrays, checks, exact_sampling

Array = checks.Array
#: Temperatures outside, but for 0, would take logits past the range of a float.
_COLDEST: Final = 1e-30
_WARMEST: Final = 1e30
#: Logits over the temperature are kept to this.
_GREATEST: Final = 1e307
_WORD: Final = 1 << 64
_MOST_TOKENS: Final = 1 << 62


class Sample(NamedTuple):
    """Tokens drawn, with their log-probabilities."""

    tokens: Array
    log_probabilities: Array


@arrays.routed
def sample(
    logits: Any, axis: Any = -1, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None,
    min_p: Any = None, seed: Any = 0, draw: Any = 0, origin: Any = (0, 0), return_state: Any = False,
    order: str = "row", isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """One token a row, drawn from softmax(logits / temperature) as the filters leave it.

    The noise of a token is a hash of (seed, draw, row, token) and nothing else: the same call gives the same
    tokens whatever the threads, strides or instruction set, and so do shards of the vocabulary, each with its
    `origin`. Rows are numbered in row-major order of the rows' shape.

    Filters go in this order, each on what the one before left, renormalised: top_k, top_p, min_p.

    Args:
        logits: real numbers (..., vocabulary, ...), any strides: float64, float32, float16, bfloat16, float8
            (as float32), integers and bool (as float64).
        axis: of the vocabulary.
        temperature: 0, or 1e-30 to 1e30. 0 takes the greatest logit, the lowest token where several are
            equal; its filters and log-probability are those of temperature 1.
        top_k: the k greatest are kept, of equal ones the lowest tokens; None for all, as is any k from the
            vocabulary's size on (an array of rows' options has no None).
        top_p: in (0, 1]: the fewest of the greatest are kept whose probabilities come to top_p, of equal ones
            the lowest tokens, at least one; None or 1 for all.
        min_p: in [0, 1]: those are kept whose probability is at least min_p times the greatest; None or 0 for
            all.
            Each of these four is one number, or an array that broadcasts to the rows' shape.
        seed, draw: 0 to 2**64 - 1: a stream of draws, and which of them this is. Nothing is random unless one
            of them changes: in a decoding loop draw is the step.
        origin: (row, token): what number the first row and the first token of this call have in a whole of
            which it is a part.
        return_state: a `SampleState` instead, to be merged with those of the other shards. No filters then:
            they need the whole row. A logit that is past float64's range over the temperature is infinite.
        order: "row": log-probabilities depend on the instruction set in their last bits, and tokens on the C
            library's logarithm where two keys agree to the last bits. "any": both have the same bits on any
            machine and for any cut; the log-probability is that of `ExactState`, and so, without filters,
            minus the loss of `cross_entropy` with order="any" and the same temperature. Scores are logits /
            temperature, one division in float32 (float64), infinite past its range. Filters go by exact sums.
            return_state gives an `ExactSampleState`.

    Returns: Sample(tokens, log_probabilities) of the rows' shape (that of logits without axis): int64, and
        the natural log of the token's probability under what was drawn from, float32 (float64 for float64
        logits). -inf is never drawn. A row with NaN or +inf, or of -inf alone, has token -1 and NaN: a batch
        goes on without it.

    Raises: TypeError and ValueError, naming the argument, before anything is drawn; ValueError too for a
        vocabulary of no tokens.

    Cost: one read of logits, with top_p or min_p two. Rows with filters take 40 bytes a token of scratch a
        thread, rows whose elements are not adjacent a copy of one row a thread. order="any" reads logits
        twice; with a temperature or filters it works on copies of some MiB, and top_p sorts each row.
    """
    x = checks.array(logits, "logits")
    if not x.ndim:
        raise ValueError("logits has no dimensions: (vocabulary,) or (rows, vocabulary) would do")
    along = checks.single_axis(axis, None, x.ndim)
    rows = x.shape[:along] + x.shape[along + 1 :]
    with_state, any_order = checks.flag(return_state, "return_state"), checks.order(order)
    if not x.shape[along]:
        raise ValueError(f"logits has shape {x.shape}, a vocabulary of no tokens: at least one would do")
    given = cpu_sampling.Draw(
        _served(x), along, _temperatures(temperature, rows), _most(top_k, rows), _reach(top_p, rows),
        _least(min_p, rows), word(seed, "seed"), word(draw, "draw"), place_of(origin),
    )  # fmt: skip
    if any_order and not with_state:
        return Sample(*exact_sampling.tokens(given, isa, threads))
    if not with_state:
        tokens, found = cpu_sampling.tokens(given, isa=isa, threads=threads)
        warmer = _within_range(given, tokens)
        if warmer is not None:
            tokens, found = cpu_sampling.tokens(warmer, isa=isa, threads=threads)
        with np.errstate(over="ignore", under="ignore"):
            return Sample(tokens, found.astype(cpu.state_dtype(given.x.dtype), copy=False))
    for option, name in ((top_k, "top_k"), (top_p, "top_p"), (min_p, "min_p")):
        if option is not None:
            raise ValueError(
                f"{name} with return_state would filter a shard by itself: a call on the whole row would do"
            )
    first_row, first = given.origin
    made = {
        "seed": given.seed, "draw": given.draw, "first row": first_row, "temperature": given.temperature
    }  # fmt: skip
    spans, dtype = ((first, first + x.shape[along]),), cpu.state_dtype(given.x.dtype)
    if any_order:
        (token, key, rest, logit), exactly = exact_sampling.parts(given, isa, threads)
        return ExactSampleState(token, key, rest, logit, exactly, dtype, made, spans)
    token, key, rest, logit, m, s = cpu_sampling.parts(given, isa=isa, threads=threads)
    return SampleState(token, key, rest, logit, state.SoftmaxState(m, s), dtype, made, spans)


def _within_range(given: cpu_sampling.Draw, tokens: Array) -> cpu_sampling.Draw | None:
    """The same draw where finite logits over the temperature were past the range of float64, or None.

    Logits that great differ by far more than any temperature below 1, or not at all: one that keeps the
    greatest within the range draws the same.
    """
    temperature = given.temperature.reshape(tokens.shape).copy()
    lost = np.asarray((tokens < 0) & (temperature > 0) & (temperature < 1))
    if given.x.dtype != checks.FLOAT64 or not lost.any():
        return None
    greatest = np.moveaxis(given.x, given.axis, -1)[lost].max(axis=-1)
    warm = np.where(np.isfinite(greatest), np.abs(greatest) / _GREATEST, 0)
    if not (warm > temperature[lost]).any():
        return None
    temperature[lost] = np.maximum(temperature[lost], warm)
    return replace(given, temperature=temperature)


def _served(x: Array) -> Array:
    return checks.cast(x, checks.compute_dtype(checks.result_dtype(x.dtype, None)))


def _numbers(value: Any, name: str, rows: tuple[int, ...], would: str) -> Array:
    """`value` as a float64 array of the rows' shape, dense."""
    given = checks.array(value, name)
    if given.dtype.kind == "b":
        raise TypeError(f"{name} is bool: {would} would do")
    try:
        return np.ascontiguousarray(np.broadcast_to(checks.cast(given, checks.FLOAT64), rows))
    except ValueError as error:
        raise ValueError(
            f"{name} has shape {given.shape}, which does not broadcast to the shape {rows} of the rows: "
            f"one number, or a shape that does, would do"
        ) from error


def _refuse(name: str, values: Array, good: Array, would: str) -> None:
    if not good.all():
        raise ValueError(f"{name} is {values[~good].flat[0]!s}: {would} would do")


def _temperatures(value: Any, rows: tuple[int, ...]) -> Array:
    would = f"0, or a number from {_COLDEST} to {_WARMEST},"
    found = _numbers(value, "temperature", rows, would)
    _refuse("temperature", found, (found == 0) | ((found >= _COLDEST) & (found <= _WARMEST)), would)
    return found


def _most(value: Any, rows: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    would = "whole numbers of at least 1 (the vocabulary's size keeps all), or None,"
    given = checks.array(value, "top_k")
    if given.dtype.kind not in "iu":
        raise TypeError(f"top_k holds {given.dtype}: {would} would do")
    _refuse("top_k", given, given >= 1, would)
    most = min(_MOST_TOKENS // 2**10, int(np.iinfo(given.dtype).max))  # which narrow integers cannot hold
    found = _numbers(np.minimum(given, most), "top_k", rows, would)
    return found.astype(np.int64)


def _reach(value: Any, rows: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    would = "a number above 0 and up to 1, or None,"
    found = _numbers(value, "top_p", rows, would)
    _refuse("top_p", found, (found > 0) & (found <= 1), would)
    return found


def _least(value: Any, rows: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    would = "a number from 0 to 1, or None,"
    found = _numbers(value, "min_p", rows, would)
    _refuse("min_p", found, (found >= 0) & (found <= 1), would)
    return found


def _whole(value: Any, name: str, end: int) -> int:
    would = f"a whole number from 0 to {end - 1} would do"
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {value!r}: {would}")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is {value!r}: {would}") from error
    if not 0 <= number < end:
        raise ValueError(f"{name} is {number}: {would}")
    return number


def word(value: Any, name: str) -> int:
    return _whole(value, name, _WORD)


def place_of(value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"origin is {value!r}: (row, token) would do")
    row, token = (_whole(number, "origin", _MOST_TOKENS) for number in value)
    return row, token
