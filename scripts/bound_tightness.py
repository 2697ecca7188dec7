"""How near errors come to `error_bound`, what a slow ramp does, when float16 exponentials break a sum, and
`order="any"`.

    python scripts/bound_tightness.py [--write docs/bounds.md]

Prints four parts as Markdown; with --write each goes between its marker lines `<!-- NAME: begin -->` and
`<!-- NAME: end -->` of the file. Everything is simulated operation by operation (`numerics.simulate`), true
values are numpy.longdouble's; takes about half a minute.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from online_softmax import exact
from online_softmax.numerics.bounds import unit_roundoff
from online_softmax.numerics.error_bound import ALGORITHMS, ErrorBound, error_bound
from online_softmax.numerics.hard_rows import hard_rows
from online_softmax.numerics.simulate import Simulation, simulate

Array = NDArray[Any]
FORMATS = ("float32", "float16", "bfloat16")
LENGTH, SEEDS, WIDTH = 1024, 20, 4
RAMP = 4096
#: The row of float16's loss: one 0, the others here. exp of it is a little under half of float16's least
#: number.
LOST = -17.33
wide = np.longdouble


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, the first column to the left, the others to the right."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]


def number(value: float) -> str:
    """Three digits, infinity in words."""
    return "none" if math.isinf(value) else f"{value:.3g}"


def errors(x: Array, v: Array, result: Simulation) -> dict[str, Array]:
    """|computed - true| of each result, of s relatively: the error `ErrorBound` bounds."""
    m = x.astype(wide).max(axis=-1, keepdims=True)
    w = np.exp(x.astype(wide) - m)
    s = w.sum(axis=-1, keepdims=True)
    log_y = x.astype(wide) - m - np.log(s)
    true = {
        "lse": (m + np.log(s))[..., 0],
        "y": w / s,
        "log_y": log_y,
        "o": ((w / s)[..., None] * v.astype(wide)).sum(axis=-2),
    }
    found = {"s": np.abs(result.s.astype(wide) / s[..., 0] - 1)}
    with np.errstate(invalid="ignore"):
        for name, exact in true.items():
            computed = getattr(result, name).astype(wide)
            found[name] = np.where(computed == exact, 0, np.abs(computed - exact))
    return {name: error.astype(np.float64) for name, error in found.items()}


def tightness() -> list[str]:
    """Tables of s by kind of row, one a format, and one of the shares of the bound that all results reach."""
    lines, shares = [], []
    for format in FORMATS:
        u = unit_roundoff(format)
        kinds = list(hard_rows(LENGTH, format))
        x = np.stack([row for seed in range(SEEDS) for row in hard_rows(LENGTH, format, seed).values()])
        v = np.random.default_rng(0).standard_normal((*x.shape, WIDTH)).astype(x.dtype)
        cells: dict[str, list[str]] = {kind: [kind] for kind in kinds}
        for algorithm in ALGORITHMS:
            found = errors(x, v, simulate(x, algorithm, format, values=v))
            bound = error_bound(x, algorithm, format, values=v)
            for k, kind in enumerate(kinds):
                error, told = found["s"][k :: len(kinds)].max(), bound.s[k :: len(kinds)].max()
                cells[kind].append(f"{number(error / u)} of {number(told / u)}")
            shares.append([f"{format}, {algorithm}", *_shares(found, bound, kinds)])
        lines += [f"{format}, u = {u:.3g}:", "", *table(["row", *ALGORITHMS], cells.values()), ""]
    lines += ["Greatest share of its bound that a result reaches, over the normal rows, and over all:", ""]
    names = ("s", "lse", "y", "log y", "o")
    return lines + table(["", *(f"{name}, normal / all" for name in names)], shares)


def _shares(found: dict[str, Array], bound: ErrorBound, kinds: list[str]) -> list[str]:
    cells = []
    for name, error in found.items():
        told = getattr(bound, name)
        if not (error <= told).all():
            raise AssertionError(f"a bound on {name} does not hold")
        with np.errstate(invalid="ignore"):
            share = (
                np.where((error == 0) | np.isinf(told), 0, error / told).reshape(len(error), -1).max(axis=-1)
            )
        cells.append(f"{share[kinds.index('normal') :: len(kinds)].max():.2f} / {share.max():.2f}")
    return cells


def slow_ramp() -> list[str]:
    """Error of s on ascending rows by all orders, in units of u, with the bound."""
    steps = (1e-2, 1e-3, 1e-4)
    x = np.stack([np.arange(RAMP) * step for step in steps]).astype(np.float32)
    u, v = unit_roundoff("float32"), np.zeros((*x.shape, 1), np.float32)
    rows = []
    for name, algorithm, order, block in (
        ("batch, pairwise", "batch", "pairwise", None),
        ("batch, one running sum", "batch", "running", None),
        ("streaming", "streaming", "running", None),
        ("blocked, 128", "blocked", "running", 128),
        ("tree, 128", "tree", "running", 128),
        ("tree, 16", "tree", "running", 16),
    ):
        depth = math.ceil(math.log2(RAMP)) if order == "pairwise" else None
        result = simulate(x, algorithm, "float32", order=order, block=block, values=v)
        found = errors(x, v, result)["s"]
        told = error_bound(x, algorithm, "float32", block=block, depth=depth).s
        rows.append(
            [name, *(f"{number(e / u)} of {number(b / u)}" for e, b in zip(found, told, strict=True))]
        )
    return table(["", *(f"step {step:g}" for step in steps)], rows)


def _lost_row(count: int) -> Array:
    row = np.full((1, count), LOST)
    row[0, 0] = 0
    return row


def _told(count: int, exp_format: str | None) -> float:
    depth = max(0, count - 1).bit_length()
    return float(error_bound(_lost_row(count), "batch", "float32", depth=depth, exp_format=exp_format).s[0])


def _measured(count: int, exp_format: str | None) -> float:
    result = simulate(_lost_row(count), "batch", "float32", order="pairwise", exp_format=exp_format)
    true = 1 + (count - 1) * math.exp(LOST)
    return abs(float(result.s[0]) - true) / true


def first(broken: Callable[[int], bool], low: int, high: int) -> int:
    """The least count in (low, high] for which a monotone condition holds."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if broken(middle) else (middle, high)
    return high


def mixed() -> list[str]:
    """Exponentials in float16, sum in float32, on a row of one 0 and entries of LOST, as it gets longer."""
    counts = [2**k for k in range(10, 21, 2)]
    rows = [
        [
            f"{count:,}",
            number(count * 2.0**-25),
            number(_told(count, "float16")),
            number(_measured(count, "float16")),
            number(_told(count, None)),
            number(_measured(count, None)),
        ]
        for count in counts
    ]
    heads = ["C", "C * 2^-25", "bound", "measured", "bound, all float32", "measured, all float32"]
    lines = [*table(heads, rows), ""]
    broken = []
    for tolerance in (1e-4, 2.0**-11, 1e-3, 1e-2):
        cells = [number(tolerance)]
        for of in (_told, _measured):
            cells.append(
                f"{first(lambda count, of=of, most=tolerance: of(count, 'float16') > most, 1, 2**20):,}"
            )
        broken.append(cells)
    heads = ["error of s wanted", "bound breaks it from C =", "measured from C ="]
    return [*lines, *table(heads, broken)]


def any_order() -> list[str]:
    """Errors of s and of y by the law of order="any" in float32, of normal rows and of the worst there
    are: a maximum at the bottom of its bin and others of which just nothing is left."""
    form = exact.FLOAT32
    draw = np.random.default_rng(0)
    cases = [
        (f"normal, sigma {sigma:g}, {n:,}", (sigma * draw.standard_normal((50, n))).astype(np.float32))
        for sigma in (1, 4, 16)
        for n in (1024, 32768)
    ]
    # T of the maximum is 2**-1.5 units of the top slice; half of the lowest unit is 2**-45 of them.
    log2, bottom = math.log(2), np.float32(-1.5 * math.log(2))
    while exact.bin_of(exact.terms(bottom[None], form)[1], form) < 0:
        bottom = np.nextafter(bottom, np.float32(0))
    for k in (10, 16, 20):
        row = np.full((1, 2**k), bottom - np.float32(43.5 * log2 + 1e-5), np.float32)
        row[0, 0] = bottom
        cases.append((f"one above 2^{k} - 1 that are lost", row))
    return table(["row", "s: error", "bound", "y: error", "bound"], (_any_cells(*case) for case in cases))


def _any_cells(name: str, x: Array) -> list[str]:
    form = exact.FLOAT32
    m, a = exact.state(x, form)
    rest, own = exact.rest_of(m, a, form)
    w = np.exp(x.astype(wide) - m[:, None])
    s = w.sum(axis=-1, keepdims=True)
    y = exact.value(x, m[:, None], a[:, None], form)
    told = error_bound(x, order="any")
    of_s = np.abs((1 + rest.astype(wide) / own) / s[:, 0] - 1).astype(np.float64)
    of_y = np.abs(y - w / s).astype(np.float64)
    if not ((of_s <= told.s + 1e-15).all() and (of_y <= told.y).all()):
        raise AssertionError("a bound of order='any' does not hold")
    return [name, *(number(part.max()) for part in (of_s, told.s, of_y, told.y))]


def put(text: str, name: str, lines: list[str]) -> str:
    """`text` with what stands between the markers of a part replaced."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{begin.strip()} and {end} are not both there")
    return head + begin + "\n".join(["", *lines, "", ""]) + end + tail


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    parts = {"tightness": tightness(), "ramp": slow_ramp(), "mixed": mixed(), "any": any_order()}
    for lines in parts.values():
        print("\n".join(lines), end="\n\n")
    if file is not None:
        text = file.read_text(encoding="utf-8")
        for name, lines in parts.items():
            text = put(text, name, lines)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
