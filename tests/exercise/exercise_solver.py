"""A learner who reads the sheet's text and works every answer out without the library: NumPy's and ml_dtypes'
figures of formats, plain arithmetic, and sentences known to be true."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np

FORMULAS = {
    "1.1": "e^c",
    "2.1": "M = max(x, m)",
    "2.2a": "e^(x - max(x, m))",
    "2.2b": "exp(m)/1",
    "2.2c": "e^{m - M}",
    "2.2d": "S = e^(x − M) + s·e^(m − M)",
    "2.4a": "exp(x)*exp(-m) + s",
    "2.4b": "n^-1",
    "3.1a": "m = x",
    "3.1c": "-M + x_i",
    "3.2a": "where(m_a > m_b, m_a, m_b)",
    "3.2b": "exp(m_b - M) s_b + exp(m_a - M) s_a",
    "3.3a": "s_c exp(m_c - M) + exp(m_b - M) s_b + exp(m_a - M) s_a",
    "3.4c": "where(m_a == M, s_a, s_a*exp(m_a - M)) + where(m_b == M, s_b, s_b*exp(m_b - M))",
    "6.2a": "exp(m - M)*O + v*exp(x - M)",
    "6.2b": "O * s^-1",
    "6.3b": "O(2 N^2 + 4 N d)",
    "6.3c": "Θ(N² d² / S)",
    "7.1a": "x - (m + ln s)",
}
#: Beginnings of the right options.
OPTIONS = {
    "1.2": ["none of them is above 0"],
    "1.3c": ["it lies between two numbers"],
    "1.4e": ["as good as the format allows"],
    "2.3a": ["above 0, and at most 1"],
    "2.3b": ["M is never below m"],
    "2.3c": ["an old sum can only shrink"],
    "3.1d": ["exp(a) exp(b) = exp(a + b)"],
    "3.1e": ["nothing"],
    "3.3d": ["parts may be cut"],
    "3.4a": ["where both maxima are -inf"],
    "3.4b": ["the subtraction in the exponent"],
    "4.3e": ["still needed"],
    "4.4c": ["terms that were stored as 0"],
    "5.5e": ["launches, latency"],
    "6.1c": ["each weight meets its row of V"],
    "6.2c": ["once, at the end"],
    "7.1d": ["the subtractions stay exact"],
}
SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


class Solver:
    """`answers`: key -> what the learner writes."""

    def __init__(self, sheet: str) -> None:
        self.lines = sheet.splitlines()
        self.text = " ".join(sheet.split())
        self.answers = dict(FORMULAS)
        for key, wanted in OPTIONS.items():
            self.answers[key] = self.letters(key, wanted)
        for solve in (
            self.shift,
            self.update,
            self.merge,
            self.formats,
            self.bytes,
            self.attention,
            self.log,
        ):
            solve()

    def find(self, pattern: str) -> tuple[str, ...]:
        match = re.search(pattern, self.text)
        assert match is not None, pattern
        return match.groups()

    def whole(self, pattern: str) -> list[int]:
        return [int(group) for group in self.find(pattern)]

    def letters(self, key: str, beginnings: list[str]) -> str:
        """Letters of the options above an answer line that begin so."""
        at = next(i for i, line in enumerate(self.lines) if line.startswith(f"**Answer {key}**"))
        options = []
        for line in reversed(self.lines[:at]):
            if line.startswith("- "):
                options.append(line)
            elif options:
                break
        found = [o[2] for o in options if any(o[5:].startswith(b) for b in beginnings)]
        assert len(found) == len(beginnings), (key, options)
        return " and ".join(sorted(found))

    def table(self, number: str) -> tuple[list[str], list[str]]:
        """Labels of rows and columns."""
        at = self.lines.index(f"**Table {number}**") + 2
        rows = []
        while at < len(self.lines) and self.lines[at].startswith("|"):
            rows.append([cell.strip() for cell in self.lines[at].strip("|").split("|")])
            at += 1
        return [row[0] for row in rows[2:]], rows[0][1:]

    def cell(self, number: str, row: str, column: str, value: object) -> None:
        self.answers[f"{number} [{row} / {column}]"] = str(value)

    # --- parts

    def shift(self) -> None:
        (columns,) = self.whole(r"over a row of C = (\d+) finite scores")
        self.answers |= {"1.3a": "1", "1.3b": f"{columns:,}"}
        top, low, name = self.find(
            r"One score of a row is (-?\d+), all the others are (-?\d+)\..*? in (\w+) by"
        )
        gap, info = int(top) - int(low), finfo(name)
        self.answers["1.4a"] = f"−{gap}"
        zero = math.log(float(info.smallest_subnormal)) - math.log(2)
        normal = math.log(float(info.smallest_normal))
        self.answers |= {"1.4b": f"{zero:.5g}", "1.4c": f"{normal:.5g}"}
        kind = "a normal" if -gap > normal else "a subnormal" if -gap > zero else "exactly 0"
        self.answers["1.4d"] = self.letters("1.4d", [kind])

    def update(self) -> None:
        (columns,) = self.whole(r"scores of a row of C = (\d+) are all different")
        harmonic = sum(1 / n for n in range(1, columns + 1))
        self.answers |= {"2.4c": f"{harmonic:.3f}", "2.4d": f"{100 * harmonic / columns:.3f} %"}
        rows, _ = self.table("2.5")
        seen: list[int] = []
        for row in rows:
            seen.append(int(re.search(r"= (-?\d+) ln 2", row)[1]))  # type: ignore[index]
            m = max(seen)
            s = sum(Fraction(2) ** (x - m) for x in seen)
            self.cell("2.5", row, "m / ln 2", m)
            self.cell("2.5", row, "s", s)

    def merge(self) -> None:
        a, s_a, b, s_b = self.find(
            r"\(m_a, s_a\) = \((-?\d+) ln 2, ([\d.]+)\) and \(m_b, s_b\) = \((-?\d+) ln 2, ([\d.]+)\)"
        )
        m = max(int(a), int(b))
        (parts,) = self.whole(r"balanced tree, (\d+) states")
        levels = 0
        while 2**levels < parts:
            levels += 1
        self.answers |= {
            "3.1b": "1",
            "3.2c": f"{float(s_a) * 2.0 ** (int(a) - m) + float(s_b) * 2.0 ** (int(b) - m):.6f}",
            "3.3b": "−∞",
            "3.3c": "0",
            "3.3e": f"{levels} levels",
        }

    def formats(self) -> None:
        bits, exponent = self.whole(r"format of (\d+) bits by the rules of IEEE 754, (\d+) of them")
        (score,) = self.whole(r"whether exp\((\d+)\) is finite")
        rows, (largest, exp, stored, finite, ones) = self.table("4.1")
        infos = {row: finfo(row, bits - 1 - exponent, exponent) for row in rows}
        for row, info in infos.items():
            self.cell("4.1", row, largest, f"{float(info.max):.5g}")
            self.cell("4.1", row, exp, f"{math.log(float(info.max)):.5g}")
            self.cell("4.1", row, stored, info.nmant)
            self.cell("4.1", row, finite, "yes" if score < math.log(float(info.max)) else "no")
            self.cell("4.1", row, ones, f"2^{info.nmant + 1}")
        top, columns = self.whole(r"before scaling reach (\d+); rows have (\d+) entries")
        over = [row for row, info in infos.items() if top > math.log(float(info.max))]
        good = [row for row, info in infos.items() if columns <= 2 ** (info.nmant + 1)]
        self.answers["4.2a"] = self.letters("4.2a", over or ["none"])
        self.answers["4.2b"] = self.letters("4.2b", good or ["none"])
        (dim,) = self.whole(r"Heads have d = (\d+) dimensions")
        each, name = self.find(r"every entry (\d+)\..*?finite in (\w+)\?")
        scaled = dim * int(each) ** 2 / math.sqrt(dim)
        self.answers |= {"4.3a": f"{math.sqrt(dim):g}", "4.3b": "1.0", "4.3c": f"{scaled:g}"}
        self.answers["4.3d"] = "Yes" if scaled < math.log(float(finfo(name).max)) else "No"
        (name,) = self.find(r"exp\(x_i - m\) is stored in (\w+);")
        half = float(finfo(name).smallest_subnormal) / 2
        rounding = 2.0 ** -(finfo(name).nmant + 1)
        self.answers |= {"4.4a": f"{half:.6g}", "4.4b": f"{rounding / half:g}"}

    def bytes(self) -> None:
        rows, columns, name, rate, ridge = self.find(
            r"over R = (\d+) rows of C = (\d+) elements in (\w+),.*?bandwidth of ([\d.]+ [TG]B)/s and a "
            r"ridge point of (\d+) FLOP"
        )
        b, r, c = SIZES[name], int(rows), int(columns)
        bandwidth = float(rate[:-3]) * (1e12 if rate.endswith("TB") else 1e9)
        tensor = r * c * b
        self.answers |= {"5.1a": f"{c * b} bytes", "5.1b": f"{tensor / 2**20} MiB"}
        reads = {"no shift": 2, "three passes": 3, "online, two passes": 2, "row kept on chip": 1}
        labels, _ = self.table("5.2")
        for row in labels:
            n = reads[row]
            self.cell("5.2", row, "reads", n)
            self.cell("5.2", row, "writes", 1)
            self.cell("5.2", row, "traversals", n + 1)
            self.cell("5.2", row, "total bytes", f"{(n + 1) * tensor / 1e6:.1f} MB")
            self.cell("5.3", row, "least time", f"{(n + 1) * tensor / bandwidth * 1e3:.5g} ms")
            self.cell("5.3", row, "speedup over three passes", f"{4 / (n + 1):.3f}x")
        (per_exp,) = self.whole(r"Count an exponential as (\d+) FLOP")
        intensity = (per_exp + 3) / (2 * b)
        self.answers |= {
            "5.4a": str(per_exp + 3),
            "5.4b": f"{intensity:g} FLOP/byte",
            "5.4c": "compute" if intensity > int(ridge) else "memory",
            "5.4d": f"{int(ridge) / intensity:.4g}",
        }
        level, flying = self.whole(r"cache of (\d+) MB, and (\d+) rows in flight")
        (short,) = self.whole(r"Now C = (\d+) \(R as before\)")
        self.answers |= {
            "5.5a": f"{level * 1000 / flying:.1f} kB",
            "5.5b": f"{level * 1e6 / flying / b:.0f} columns",
            "5.5d": f"{r * short * b / 1e6} MB",
        }
        regime = (
            "the whole tensor" if tensor <= level * 1e6
            else "the tensor does not" if flying * c * b <= level * 1e6
            else "not even"
        )  # fmt: skip
        self.answers["5.5c"] = self.letters("5.5c", [regime])

    def attention(self) -> None:
        n, heads, dim = self.whole(r"over N = (\d+) queries and as many keys, (\d+) heads of d = (\d+)")
        (block,) = self.whole(r"queries in blocks of (\d+);")
        (times,) = self.whole(r"With (\d+) times the on-chip memory")
        self.answers |= {
            "6.1a": f"{n * n * heads * 2 / 1e9:.4f} GB",
            "6.1b": f"{4 * n * n * heads * 2 / 2**30} GiB",
            "6.3a": f"{n // block} * {heads} * {n} * {dim} * 2 * 2 B",
            "6.3d": f"{times}.0",
        }

    def log(self) -> None:
        gap, total = self.find(r"A score lies (\d+) below the maximum, and s = ([\d.]+)\.")
        p = float(np.exp(np.float32(-int(gap)))) / float(total)
        kind = (
            "-inf" if np.float32(np.exp(-float(gap))) == 0
            else "a value nearby" if p < np.finfo(np.float32).smallest_normal
            else "the right value"
        )  # fmt: skip
        self.answers |= {"7.1b": f"-{gap} - ln({total})", "7.1c": self.letters("7.1c", [kind])}


class Ieee:
    """Figures of a made-up format."""

    def __init__(self, nmant: int, exponent: int) -> None:
        top = 2 ** (exponent - 1) - 1
        self.nmant = nmant
        self.max = (2 - 2.0**-nmant) * 2.0**top
        self.smallest_normal = 2.0 ** (1 - top)
        self.smallest_subnormal = 2.0 ** (1 - top - nmant)


def finfo(name: str, nmant: int = 0, exponent: int = 0) -> object:
    if name == "mini":
        return Ieee(nmant, exponent)
    if name == "tf32":
        return Ieee(10, 8)
    return ml_dtypes.finfo(getattr(ml_dtypes, name, None) or np.dtype(name))
