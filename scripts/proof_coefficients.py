"""Write proofs/Coefficients.v: the constants that the C++ sources really have, as exact numbers m * 2^e.

The proofs about exponentials and logarithms (proofs/ExpPolynomial.v and its kin) speak of these numbers, so
that a coefficient changed in C++ changes what is proved.

    python scripts/proof_coefficients.py            writes the file
    python scripts/proof_coefficients.py --check    exit status 1 where the file is out of date, 0 where not
    --root DIR                                      take native/ and proofs/ from there

Exit status 2, with the constant's name, where a source no longer has a constant that is looked for.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = Path("proofs", "Coefficients.v")
HEAD = """\
(* The constants of the C++ sources, exactly: (m, e) stands for m * 2^e. Coefficients lowest power first.
   Written by scripts/proof_coefficients.py from native/*.h; not to be edited. *)
From Coq Require Import ZArith List.
Import ListNotations.
Open Scope Z_scope.
"""

Number = Fraction
#: A name of the Coq file, what it is, and its numbers: a tuple for a list, one number alone.
Entry = tuple[str, str, "Number | tuple[Number, ...]"]


class Missing(ValueError):
    """A source has no such constant, or none that can be read."""


def _literal(text: str) -> float:
    """A C++ floating literal or integer, as a double: 0x1.8p23f, 1.0, 2."""
    text = text.strip()
    if text.lower().lstrip("-").startswith("0x"):
        return float.fromhex(text.removesuffix("f") if "p" in text else text)
    return float(text.removesuffix("f"))


def _value(text: str, names: dict[str, float]) -> float:
    """A literal, a quotient of two, or a sum of literals and names, as C++ computes it in double."""
    if "/" in text:
        above, below = text.split("/")
        return _literal(above) / _literal(below)
    parts = [part.strip() for part in re.split(r"(?<![pP])\+", text)]
    return sum(names[part] if part in names else _literal(part) for part in parts)


def as_float32(x: float) -> float:
    """x rounded to float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def _same(x: float) -> float:
    return x


class Source:
    """One C++ file, its comments removed."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.text = re.sub(r"//[^\n]*", "", (root / name).read_text(encoding="utf-8"))

    def _missing(self, what: str) -> Missing:
        return Missing(f"{self.name}: {what} not found; scripts/proof_coefficients.py has to be told where")

    def after(self, opening: str) -> str:
        """The text from `opening` to the next line that closes a block in the first column."""
        start = self.text.find(opening)
        if start < 0:
            raise self._missing(repr(opening))
        end = self.text.find("\n}", start)
        return self.text[start:end]

    def array(self, opening: str, name: str, format: Callable[[float], float]) -> tuple[Number, ...]:
        """The elements of `name[...] = {...}` in the block that starts with `opening`."""
        found = re.search(rf"\b{name}\[\w*\]\s*=\s*\{{([^}}]*)\}}", self.after(opening))
        if found is None:
            raise self._missing(f"{name}[] in {opening!r}")
        return tuple(Number(format(_value(item, {}))) for item in found[1].split(","))

    def constant(
        self, opening: str, name: str, format: Callable[[float], float] = _same, **names: float
    ) -> Number:
        """The number of `name = value` in the block that starts with `opening`."""
        found = re.search(rf"\b{name}\s*=\s*([^,;]*)[,;]", self.after(opening))
        if found is None:
            raise self._missing(f"{name} in {opening!r}")
        return Number(format(_value(" ".join(found[1].split()), names)))

    def literal(self, opening: str, pattern: str) -> Number:
        """The first group of a pattern in the block that starts with `opening`, a literal."""
        found = re.search(pattern, self.after(opening))
        if found is None:
            raise self._missing(f"{pattern!r} in {opening!r}")
        return Number(_literal(found[1]))


def _exp(root: Path) -> Iterator[Entry]:
    source = Source(root, "native/exp.inl.h")
    for v, small, degrees in (("F32", "f32", (3, 4, 5, 6)), ("F64", "f64", (11,))):
        block = f"struct Log2e<{v}> {{"
        bias = source.constant(block, "bias")
        for name in ("high", "low", "fine"):
            yield f"{small}_log2e_{name}", f"{source.name}: Log2e<{v}>::{name}", source.constant(block, name)
        magic = source.constant(block, "magic", bias=float(bias))
        yield f"{small}_magic", f"{source.name}: Log2e<{v}>::magic", magic
        for degree in degrees:
            kind = f"Coefficients<{v}, {degree}>"
            c = source.array(f"struct {kind} {{", "c", _same)
            if len(c) != degree:
                raise Missing(f"{source.name}: {kind} has {len(c)} coefficients, not {degree}")
            yield f"{small}_degree_{degree}", f"{source.name}: {kind}", c
    block, words = (
        "OSM_INLINE void exp_unshifted(",
        r"const V magic = V::set\(sizeof\(S\) == 4 \? \(S\)(\S+) :",
    )
    yield "f32_unshifted_magic", f"{source.name}: exp_unshifted's magic, float", source.literal(block, words)
    scans = Source(root, "native/scans_double.inl.h")
    c = scans.array("struct Coefficients<F64, 7> {", "c", _same)
    yield "f64_degree_7", f"{scans.name}: Coefficients<F64, 7>", c


def _exact(root: Path) -> Iterator[Entry]:
    source = Source(root, "native/exact.h")
    for kind, small in (("float", "exact32"), ("double", "exact64")):
        block = f"struct Law<{kind}> {{"
        yield f"{small}_log2e", f"{source.name}: Law<{kind}>::log2e", source.constant(block, "log2e")
        yield f"{small}_large", f"{source.name}: Law<{kind}>::large", source.constant(block, "large")
        yield f"{small}_polynomial", f"{source.name}: Law<{kind}>::c", source.array(block, "c", _same)
    block = "struct Law<double> {"
    yield "exact64_log2e_low", f"{source.name}: Law<double>::log2e_low", source.constant(block, "log2e_low")
    yield "exact64_far", f"{source.name}: Law<double>::far", source.constant(block, "far")


def _log(root: Path) -> Iterator[Entry]:
    source = Source(root, "native/same_log.h")
    block = "double same_log_of("
    yield "log_series", f"{source.name}: the series of atanh", source.array(block, "series", _same)
    words = r"return __builtin_fma\(whole, (\S+), __builtin_fma\(whole, (\S+), sum\)\)"
    yield "log2_high", f"{source.name}: log(2), first word", source.literal(block, words)
    low = words.replace(r"(\S+)", r"\S+", 1)
    yield "log2_low", f"{source.name}: log(2), second word", source.literal(block, low)


def _tanh(root: Path) -> Iterator[Entry]:
    source = Source(root, "native/tanh.inl.h")
    for name, format in (("f32", as_float32), ("f64", _same)):
        c = source.array("OSM_INLINE V tanh_of(", "c", format)
        yield f"{name}_tanh_series", f"{source.name}: the series, as {name} has it", c


def entries(root: Path = ROOT) -> list[Entry]:
    """All constants. Raises Missing, naming the file and the constant, where one is not there."""
    return [entry for family in (_exp, _exact, _log, _tanh) for entry in family(root)]


def pair(x: Number) -> tuple[int, int]:
    """x as (m, e), m odd or (0, 0). x has a power of two for a denominator."""
    if x == 0:
        return 0, 0
    m, e = x.numerator, 1 - x.denominator.bit_length()
    while m % 2 == 0:
        m, e = m // 2, e + 1
    return m, e


def text_of(found: list[Entry]) -> str:
    """The Coq file."""
    lines = [HEAD]
    for name, what, value in found:
        lines.append(f"(* {what} *)")
        if isinstance(value, tuple):
            numbers = ";\n   ".join(str(pair(x)) for x in value)
            lines.append(f"Definition {name} : list (Z * Z) :=\n  [{numbers}].\n")
        else:
            lines.append(f"Definition {name} : Z * Z := {pair(value)}.\n")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Constants of the C++ sources for the proofs.")
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="where native/ and proofs/ are")
    options = parser.parse_args(arguments)
    target = options.root / OUTPUT
    try:
        text = text_of(entries(options.root))
    except (Missing, FileNotFoundError) as error:
        print(f"proof_coefficients: {error}", file=sys.stderr)
        return 2
    if not options.check:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return 0
    print(f"{OUTPUT} is out of date: python scripts/proof_coefficients.py writes it anew", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
