"""Cases are data: an operation, inputs built by small recipes, what has to come out or must not, and why.

The files are `data/*.toml`; docs/conformance.md describes their form. A case of several formats gives one
instance a format; a case with a `sweep` runs at every point of it and stops at the first that fails.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import recipes
from .operations import OPERATIONS

Array = NDArray[Any]

VERDICTS: Final = ("must", "must_not", "free")
#: Laws by name; what each asks is said in `judge`.
LAWS: Final = (
    "value",
    "one_of",
    "raises",
    "finite",
    "nan",
    "zeros",
    "distribution",
    "sums_to_one",
    "repeatable",
    "threads",
    "batch_invariant",
)
#: Laws that need more than one call, and how often a case that does not say so calls.
CALLS: Final = {"repeatable": 5, "threads": 8}
_FIELDS: Final = frozenset(
    [
        "id",
        "op",
        "dtypes",
        "verdict",
        "law",
        "reason",
        "tags",
        "sources",
        "inputs",
        "options",
        "sweep",
        "expected",
        "allowed",
        "names",
        "calls",
    ]
)


class CaseError(ValueError):
    """A case file that does not say what it has to; the message names the file, the case and the field."""


class NotOffered(Exception):
    """Raised by an adapter for an operation, a format or an option that its library does not have."""


@dataclass(frozen=True)
class Point:
    """One input of a case.

    Attributes:
        label: the sweep's names and numbers, "n=127"; empty without a sweep.
        inputs: name -> array as the operation sees it.
        layouts: name -> how it lies in memory, for those that are not contiguous.
        options: name -> value.
    """

    label: str
    inputs: dict[str, Array]
    layouts: dict[str, str]
    options: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a subject did with a point.

    Attributes:
        outputs: name -> array, or None where there is none.
        error: type of the exception, or "crash", "timeout", "not offered", "bad result"; None where it
        returned. message: text of the error. changed: names of inputs that the call changed. several: outputs
        of the further calls that a law asks for.
    """

    outputs: dict[str, Array] | None = None
    error: str | None = None
    message: str = ""
    changed: tuple[str, ...] = ()
    several: tuple[dict[str, Array], ...] = ()


@dataclass(frozen=True)
class Case:
    """One case in one format. The attributes are the fields of the files."""

    id: str
    op: str
    dtype: str
    verdict: str
    law: str
    reason: str
    tags: tuple[str, ...]
    sources: tuple[str, ...]
    inputs: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    sweep: Mapping[str, tuple[int, ...]]
    expected: Mapping[str, Any]
    allowed: tuple[Mapping[str, Any], ...] = ()
    names: str = ""
    calls: int = 1
    origin: str = field(default="", compare=False)

    @property
    def instance(self) -> str:
        """What a report and a list of known failures call it: "softmax/one-plus-infinity[float32]"."""
        return f"{self.id}[{self.dtype}]"

    def points(self) -> Iterator[Point]:
        """The inputs, built one after the other, in the order of the sweep."""
        names = list(self.sweep)
        for values in zip(*self.sweep.values(), strict=True) if names else [()]:
            at = dict(zip(names, values, strict=True))
            arrays = {name: recipes.build(recipe, self.dtype, at) for name, recipe in self.inputs.items()}
            layouts = {
                n: r["layout"]
                for n, r in self.inputs.items()
                if r.get("layout", "contiguous") != "contiguous"
            }
            label = ", ".join(f"{name}={value}" for name, value in at.items())
            options = {name: _option(recipes.number(value, at)) for name, value in self.options.items()}
            yield Point(label, arrays, layouts, options)


def load_cases(
    *,
    op: str | None = None,
    dtypes: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    files: Iterable[Path] | None = None,
) -> list[Case]:
    """The kit's cases, or those of `files`, narrowed to an operation, formats, and any of some tags.

    Raises CaseError for a file that does not say what it has to, ValueError for an operation that has no
    case."""
    for name, given in (("dtypes", dtypes), ("tags", tags), ("files", files)):
        if isinstance(given, (str, Path)):
            raise TypeError(f"{name} is {given!r}: a list of such would do")
    found = [case for path in files for case in _read(path)] if files is not None else list(_shipped())
    _unique(found)
    if op is not None:
        known = sorted({case.op for case in found})
        if op not in known:
            raise ValueError(f"op={op!r} has no cases: one of {', '.join(known)} would do")
    strange = sorted(set(dtypes or ()) - set(recipes.DTYPES))
    if strange:
        raise ValueError(f"dtypes has {strange[0]!r}: of {', '.join(recipes.DTYPES)} would do")
    wanted, any_of = (None if names is None else set(names) for names in (dtypes, tags))
    return [
        case
        for case in found
        if (op is None or case.op == op)
        and (wanted is None or case.dtype in wanted)
        and (any_of is None or any_of & set(case.tags))
    ]


@cache
def _shipped() -> tuple[Case, ...]:
    folder = resources.files(__package__) / "data"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    texts = [(name, (folder / name).read_text(encoding="utf-8")) for name in names]
    return tuple(case for name, text in texts for case in _parse(name, text))


def _read(path: Path) -> list[Case]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: cannot be read: {error}") from error
    return _parse(str(path), text)


def _parse(name: str, text: str) -> list[Case]:
    try:
        entries = tomllib.loads(text).get("case", [])
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{name}: not TOML: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise CaseError(f"{name}: holds no [[case]]")
    return [case for entry in entries for case in _instances(name, entry)]


def _instances(name: str, entry: dict[str, Any]) -> list[Case]:
    if not isinstance(entry, dict):
        raise CaseError(f"{name}: a case is {entry!r}: a table would do")
    where = f"{name}: case {entry.get('id', '(without an id)')}"
    _check_types(where, entry)
    for key in ("id", "op", "law", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CaseError(f"{where}: {key} is missing: a text would do")
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise CaseError(
            f"{where}: unknown fields {', '.join(unknown)}: known are {', '.join(sorted(_FIELDS))}"
        )
    law, verdict = entry["law"], entry.get("verdict", "must")
    if law not in LAWS:
        raise CaseError(f"{where}: law={law!r}: one of {', '.join(LAWS)} would do")
    if verdict not in VERDICTS:
        raise CaseError(f"{where}: verdict={verdict!r}: one of {', '.join(VERDICTS)} would do")
    if (law == "one_of") != bool(entry.get("allowed")):
        raise CaseError(f"{where}: `allowed` is there with the law one_of, and with no other")
    _check_literals(where, entry)
    sweep = {key: tuple(values) for key, values in entry.get("sweep", {}).items()}
    if len({len(values) for values in sweep.values()}) > 1:
        raise CaseError(f"{where}: the sweep's lists differ in length")
    for operand, recipe in entry.get("inputs", {}).items():
        recipes.check(recipe, f"{where}: inputs.{operand}")
    return [
        Case(
            id=entry["id"],
            op=entry["op"],
            dtype=dtype,
            verdict=verdict,
            law=law,
            reason=" ".join(entry["reason"].split()),
            tags=tuple(entry.get("tags", ())),
            sources=tuple(entry.get("sources", ())),
            inputs=entry.get("inputs", {}),
            options=entry.get("options", {}),
            sweep=sweep,
            expected=entry.get("expected", {}),
            allowed=tuple(entry.get("allowed", ())),
            names=entry.get("names", ""),
            calls=int(entry.get("calls", CALLS.get(law, 1))),
            origin=name,
        )
        for dtype in entry.get("dtypes", ["float32"])
    ]


#: Field -> what it has to be, and in words.
_TYPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **{
        key: (lambda v: isinstance(v, str), "a text")
        for key in ("id", "op", "law", "verdict", "reason", "names")
    },
    **{
        key: (lambda v: isinstance(v, list) and all(isinstance(each, str) for each in v), "a list of texts")
        for key in ("dtypes", "tags", "sources")
    },
    **{key: (lambda v: isinstance(v, dict), "a table") for key in ("inputs", "options", "expected")},
    "sweep": (
        lambda v: (
            isinstance(v, dict)
            and all(
                isinstance(each, list) and each and all(type(n) in (int, float) for n in each)
                for each in v.values()
            )
        ),
        "a table of lists of numbers, none of them empty,",
    ),
    "calls": (lambda v: type(v) is int and v >= 2, "a number of at least 2"),
}


def _check_types(where: str, entry: dict[str, Any]) -> None:
    """CaseError for a field that is not of its kind."""
    for key, (fits, words) in _TYPES.items():
        if key in entry and not fits(entry[key]):
            raise CaseError(f"{where}: {key}={entry[key]!r}: {words} would do")
    if not entry.get("dtypes", [True]):
        raise CaseError(f"{where}: dtypes is empty: one format at least would do")


def _check_literals(where: str, entry: dict[str, Any]) -> None:
    """Formats, and outputs that are written out."""
    for dtype in entry.get("dtypes", ()):
        if dtype not in recipes.DTYPES:
            raise CaseError(f"{where}: dtypes has {dtype!r}: of {', '.join(recipes.DTYPES)} would do")
    if entry["op"] not in OPERATIONS:
        raise CaseError(f"{where}: op={entry['op']!r}: one of {', '.join(OPERATIONS)} would do")
    outputs = OPERATIONS[entry["op"]].outputs
    allowed = entry.get("allowed", [])
    would = f"allowed = [{{ name = ..., {outputs[0]} = ... }}, ...] would do"
    if not isinstance(allowed, list) or not all(
        isinstance(each, dict) and "name" in each for each in allowed
    ):
        raise CaseError(f"{where}: allowed is no list of tables with a name: {would}")
    for each in (*allowed, entry.get("expected", {})):
        unknown = sorted(set(each) - {*outputs, "name"})
        if unknown or (each in allowed and outputs[0] not in each):
            has = f"{entry['op']} has the outputs {', '.join(outputs)}"
            raise CaseError(f"{where}: {has}, not {', '.join(unknown) or 'none'}: {would}")


def _option(value: Any) -> Any:
    """TOML has no null and no tuple: a list stands for a tuple, and "none" in it for None.

    Outside of a list "none" is a text (a reduction); an option that is None is left out of a case.
    """
    if isinstance(value, list):
        return tuple(None if entry == "none" else _option(entry) for entry in value)
    return value


def _unique(found: list[Case]) -> None:
    seen: set[str] = set()
    for case in found:
        if case.instance in seen:
            raise CaseError(f"{case.origin}: case {case.instance} is there twice")
        seen.add(case.instance)


def literal(values: Any) -> Array:
    """Float64 array of a file's nested list."""
    return np.asarray(values, dtype=np.float64)
