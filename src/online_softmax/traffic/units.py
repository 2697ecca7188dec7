"""Sizes, rates and times with their units: read from text, written as text. Decimal and binary never meet.

kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024. Bytes are whole numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

PREFIXES: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
#: More digits than any size has; beyond, Python itself refuses to read them.
_NUMBER: Final = r"(\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})"
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([kmgt]i?)?b?")
_RATE: Final = re.compile(rf"{_NUMBER}\s*([kmgt]i?)?b/s")
_TIME: Final = re.compile(rf"{_NUMBER}\s*(s|ms|us|µs|ns)")
_NO_RATE: Final = 10**24
_NO_TIME: Final = 10**9
_SECONDS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "µs": 10**6, "ns": 10**9}


def _scaled(match: re.Match[str]) -> Fraction:
    return Fraction(match[1]) * PREFIXES[match[2] or ""]


def parse_bytes(text: str, *, name: str) -> int:
    """Bytes of "4096", "512MB", "1.5GiB" and the like, rounded down. ValueError, naming `name`, for anything
    else."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(
            f"{name}: {text[:40]!r} is not a size; give a number of bytes, or one with kB, MB, GB, "
            "KiB, MiB, GiB"
        )
    size = int(_scaled(match))
    if size >= 2**63:
        raise ValueError(f"{name}: {text[:20]!r} is more than any machine has; give a size below 8 EiB")
    return size


def parse_rate(text: str, *, name: str) -> float:
    """Bytes per second of "2.0TB/s", "41GB/s" and the like; positive. ValueError, naming `name`, for anything
    else."""
    match = _RATE.fullmatch(text.strip().lower())
    rate = _scaled(match) if match is not None else Fraction(0)
    if not 1 <= rate < _NO_RATE:
        raise ValueError(f"{name}: {text[:40]!r} is not a rate; give one like 2.0TB/s, 800GB/s or 41GiB/s")
    return float(rate)


def parse_seconds(text: str, *, name: str) -> float:
    """Seconds of "5us", "1.5 ms" and the like. ValueError, naming `name`, for anything else."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{name}: {text[:40]!r} is not a time; give one like 5us, 1.5ms or 2s")
    seconds = float(Fraction(match[1]) / _SECONDS[match[2]])
    if seconds >= _NO_TIME:
        raise ValueError(f"{name}: {text[:20]!r} is longer than anything takes; give a time like 5us or 2s")
    return seconds


def bytes_text(count: int, *, binary: bool = True) -> str:
    """Decimal units and, with `binary` and where it comes out even, binary ones: "134.2 MB (128 MiB)"."""
    if abs(count) < 1000:
        return f"{count} B"
    decimal = next((p for p in ("k", "m", "g") if round(abs(count) / PREFIXES[p], 1) < 1000), "t")
    text = f"{count / PREFIXES[decimal]:.1f} {'kB' if decimal == 'k' else decimal.upper() + 'B'}"
    for prefix in ("ti", "gi", "mi", "ki") if binary else ():
        whole, rest = divmod(count, PREFIXES[prefix])
        if rest == 0 and 0 < whole < 1024:
            return f"{text} ({whole} {prefix[0].upper()}iB)"
    return text


def rate_text(rate: float) -> str:
    """A rate in decimal units: "2.00 TB/s"."""
    if rate < 1e6:
        return f"{rate:.0f} B/s"
    for prefix, name in (("m", "MB/s"), ("g", "GB/s")):
        if round(rate / PREFIXES[prefix], 2) < 1000:
            return f"{rate / PREFIXES[prefix]:.2f} {name}"
    return f"{rate / PREFIXES['t']:.2f} TB/s"


def seconds_text(seconds: float) -> str:
    """A time in the unit that leaves one to three digits before the point: "134.2 us"."""
    for scale, name in ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms")):
        if round(seconds / scale, 1) < 1000:
            return f"{seconds / scale:.1f} {name}"
    return f"{seconds:.1f} s"
