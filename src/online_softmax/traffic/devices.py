"""Figures of devices, each with its source: devices.toml, read, checked and given as records.

What a figure means for an operation (ridges, floors) is no matter of this file.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

KINDS: Final = ("gpu", "cpu")
#: Unit of each figure of a device; whole numbers except in s.
FIGURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory_bandwidth": "B/s",
        "memory": "B",
        "last_level": "B",
        "units": "1",
        "onchip_per_unit": "B",
        "onchip_per_block": "B",
        "registers_per_unit": "B",
        "threads_per_unit": "1",
        "clock": "Hz",
        "transcendentals_per_clock": "1",
        "launch": "s",
        "link_bandwidth": "B/s",
        "link_latency": "s",
    }
)
#: Figures that are tables by dtype, each in flop/s, and the dtypes they may name.
PEAKS: Final = ("peak", "matrix_peak")
DTYPES: Final = ("float64", "float32", "tf32", "bfloat16", "float16", "float8")
_PEAK_UNIT: Final = "flop/s"
_RECORD: Final = ("name", "vendor", "kind", "figures")
_FIGURE: Final = ("value", "unit", "source", "checked")


@dataclass(frozen=True)
class Figure:
    """A number with its unit and where it is from.

    Attributes:
        value: positive, in `unit`.
        unit: "B", "B/s", "Hz", "flop/s", "s", or "1" for a count.
        source: document and address, and what is to be known of the figure.
        checked: it was read in that source, or in a copy of it; else the source is where it should stand.
    """

    value: int | float
    unit: str
    source: str
    checked: bool


@dataclass(frozen=True)
class Device:
    """A device as its vendor describes it; None, or no entry by dtype, where no source has a figure.

    A unit is what runs blocks of threads: SM, compute unit or GPU core.

    Attributes:
        key, name, vendor: how to ask for it, and what it is called.
        kind: "gpu" or "cpu".
        memory_bandwidth: bytes/s of its main memory, reads and writes together.
        memory, last_level: bytes of main memory and of the cache nearest to it.
        units: how many.
        onchip_per_unit, onchip_per_block: bytes of shared memory (LDS) of a unit, and a block's most.
        registers_per_unit, threads_per_unit: bytes of registers, and threads resident at a time.
        clock: the highest, Hz.
        peak: dtype -> flop/s of plain instructions, a fused multiply-add as two.
        matrix_peak: dtype -> flop/s of matrix units, dense, accumulating in float32.
        exps_per_second: clock times units times transcendental results of a unit a clock.
        launch_seconds: from one launch of a kernel to the next, an order of magnitude.
        link_bandwidth: bytes/s to other devices, in one direction, over all links.
        link_latency: seconds of one step between two devices.
        figures: every figure as given, by name; "peak.float32" for those in tables.
    """

    key: str
    name: str
    vendor: str
    kind: str
    memory_bandwidth: int
    memory: int | None
    last_level: int | None
    units: int | None
    onchip_per_unit: int | None
    onchip_per_block: int | None
    registers_per_unit: int | None
    threads_per_unit: int | None
    clock: int | None
    peak: Mapping[str, float]
    matrix_peak: Mapping[str, float]
    exps_per_second: float | None
    launch_seconds: float | None
    link_bandwidth: int | None
    link_latency: float | None
    figures: Mapping[str, Figure]


def names() -> tuple[str, ...]:
    """Keys of the devices, in the file's order."""
    return tuple(_devices())


def device(name: str) -> Device:
    """The device of that key. Raises ValueError, with the keys there are, for another."""
    devices = _devices()
    if name not in devices:
        listed = ", ".join(map(repr, devices))
        raise ValueError(f"device={name!r} is unknown: {listed} or 'this' would do")
    return devices[name]


def parse(text: str) -> dict[str, Device]:
    """Devices described by the text of a file like devices.toml, by key.

    Raises ValueError, naming device and figure, where the text is not TOML, an entry is missing or unknown, a
    value is not a positive number of the figure's kind, a unit is not the figure's, a source is not listed.
    """
    document = tomllib.loads(text)
    sources = document.pop("sources", {})
    _table("sources", sources)
    for key, title in sources.items():
        if not _is_text(title):
            raise ValueError(f"source={key!r}: {title!r} given, a title as text would do")
    return {key: _device(key, record, sources) for key, record in document.items()}


@functools.cache
def _devices() -> dict[str, Device]:
    file = resources.files("online_softmax.traffic").joinpath("devices.toml")
    return parse(file.read_text(encoding="utf-8"))


def _device(key: str, record: Any, sources: Mapping[str, str]) -> Device:
    where = f"device={key!r}"
    _entries(where, record, required=_RECORD)
    for entry in ("name", "vendor"):
        if not _is_text(record[entry]):
            raise ValueError(f"{where}: {entry}={record[entry]!r}, some text would do")
    if record["kind"] not in KINDS:
        raise ValueError(f"{where}: kind={record['kind']!r}, one of {', '.join(map(repr, KINDS))} would do")
    figures = {
        name: _figure(f"{where}, figure={name!r}", given, unit, sources)
        for name, given, unit in _given(where, record["figures"])
    }
    if "memory_bandwidth" not in figures:
        raise ValueError(f"{where}, figure='memory_bandwidth' is missing: every device has one")
    whole = {name: int(figure.value) for name, figure in figures.items() if figure.unit != "s"}
    seconds = {name: float(figure.value) for name, figure in figures.items() if figure.unit == "s"}
    return Device(
        key=key,
        name=record["name"],
        vendor=record["vendor"],
        kind=record["kind"],
        memory_bandwidth=whole["memory_bandwidth"],
        memory=whole.get("memory"),
        last_level=whole.get("last_level"),
        units=whole.get("units"),
        onchip_per_unit=whole.get("onchip_per_unit"),
        onchip_per_block=whole.get("onchip_per_block"),
        registers_per_unit=whole.get("registers_per_unit"),
        threads_per_unit=whole.get("threads_per_unit"),
        clock=whole.get("clock"),
        peak=_by_dtype("peak", figures),
        matrix_peak=_by_dtype("matrix_peak", figures),
        exps_per_second=_exps_per_second(whole),
        launch_seconds=seconds.get("launch"),
        link_bandwidth=whole.get("link_bandwidth"),
        link_latency=seconds.get("link_latency"),
        figures=MappingProxyType(figures),
    )


def _given(where: str, figures: Any) -> Iterator[tuple[str, Any, str]]:
    """Full name, what the file gives, and the unit it must have, of each figure."""
    _entries(f"{where}, figures", figures, optional=(*FIGURES, *PEAKS))
    for name, given in figures.items():
        if name not in PEAKS:
            yield name, given, FIGURES[name]
            continue
        _entries(f"{where}, figure={name!r}", given, optional=DTYPES)
        for dtype, entry in given.items():
            yield f"{name}.{dtype}", entry, _PEAK_UNIT


def _figure(where: str, given: Any, unit: str, sources: Mapping[str, str]) -> Figure:
    _entries(where, given, required=_FIGURE, optional=("note",))
    if given["unit"] != unit:
        raise ValueError(f"{where}: unit={given['unit']!r}, {unit!r} would do")
    value = given["value"]
    fits = type(value) is int or (type(value) is float and unit == "s" and math.isfinite(value))
    if not fits or value <= 0:
        would_do = "a positive number" if unit == "s" else "a positive whole number"
        raise ValueError(f"{where}: value={value!r}, {would_do} would do")
    if not isinstance(given["source"], str) or given["source"] not in sources:
        raise ValueError(f"{where}: source={given['source']!r} is not listed under [sources]")
    if type(given["checked"]) is not bool:
        raise ValueError(f"{where}: checked={given['checked']!r}, true or false would do")
    if "note" in given and not _is_text(given["note"]):
        raise ValueError(f"{where}: note={given['note']!r}, some text would do")
    source = sources[given["source"]]
    if "note" in given:
        source = f"{source} ({given['note']})"
    return Figure(value=value, unit=unit, source=source, checked=given["checked"])


def _entries(where: str, table: Any, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless `table` is one, with all required entries and none that is neither."""
    _table(where, table)
    allowed = (*required, *optional)
    for entry in table:
        if entry not in allowed:
            raise ValueError(f"{where}: {entry!r} is unknown, {', '.join(map(repr, allowed))} would do")
    for entry in required:
        if entry not in table:
            raise ValueError(f"{where}: {entry!r} is missing")


def _table(where: str, given: Any) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: {given!r} given, a table would do")


def _exps_per_second(whole: Mapping[str, int]) -> float | None:
    factors = [whole.get(name) for name in ("clock", "units", "transcendentals_per_clock")]
    known = [factor for factor in factors if factor is not None]
    return float(math.prod(known)) if len(known) == len(factors) else None


def _by_dtype(table: str, figures: Mapping[str, Figure]) -> Mapping[str, float]:
    start = f"{table}."
    return MappingProxyType(
        {
            name.removeprefix(start): float(figure.value)
            for name, figure in figures.items()
            if name.startswith(start)
        }
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
