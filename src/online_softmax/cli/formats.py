"""`online-softmax formats`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .. import report
from ..numerics.formats import FORMATS, Format, Threshold, keeps_subnormals
from ..numerics.spread import ScaledSpread, score_spread
from ..numerics.verdicts import COLUMNS, LARGEST_LOGIT, TOLERANCE, Verdict, verdict

WIDTH = 150  # whatever the terminal, so that a file reads like the screen
PARTS = ("naive", "safe", "accumulator")
INTEGER_DIGITS = 7


class Workload(TypedDict):
    """Arguments of `verdict`."""

    columns: int
    largest_logit: float
    smallest_logit: float
    tolerance: float


def number(value: Fraction | int) -> str:
    """Short: whole numbers and powers of two as they are, others with 7 digits."""
    exact = Fraction(value)
    size = max(exact.numerator, exact.denominator)
    if exact.denominator == 1 and exact.numerator < 10**INTEGER_DIGITS:
        return str(exact.numerator)
    if 1 in (exact.numerator, exact.denominator) and size.bit_count() == 1:
        return f"2^{exact.numerator.bit_length() - exact.denominator.bit_length()}"
    return f"{_decimal(exact, 7):.6e}"


def threshold(at: Threshold, precision: int) -> tuple[str, str]:
    """The real number, and the format's own with the digits that tell it from its neighbours."""
    digits = max(9, 1 + math.ceil(precision * math.log10(2)))
    return f"{at.real:.6f}", f"{_decimal(at.x, digits).normalize():f}"


def _decimal(value: Fraction, digits: int) -> Decimal:
    return Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))


def _grid(*right: str, left: tuple[str, ...] = ("format",)) -> Table:
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in left:
        grid.add_column(heading)
    for heading in right:
        grid.add_column(heading, justify="right")
    return grid


def ranges(formats: list[Format]) -> Table:
    """Bits and range, a line a format."""
    grid = _grid(
        "emax",
        "emin",
        "mantissa bits",
        "effective",
        "unit roundoff",
        "largest",
        "smallest normal",
        "smallest subnormal",
    )
    for fmt in formats:
        smallest = fmt.smallest_subnormal
        grid.add_row(
            fmt.name,
            str(fmt.emax),
            str(fmt.emin),
            str(fmt.mantissa_bits),
            str(fmt.precision),
            number(fmt.unit_roundoff),
            number(fmt.largest),
            number(fmt.smallest_normal),
            "none" if smallest is None else number(smallest),
        )
    return grid


def exponentials(formats: list[Format]) -> Table:
    """Where exp stops being finite or positive, a line a format."""
    grid = _grid(
        "ln largest",
        "overflows above",
        "largest x",
        "0 below, gradual",
        "smallest x",
        "0 below, flush",
        "smallest x",
    )
    for fmt in formats:
        grid.add_row(
            fmt.name,
            f"{fmt.log_largest:.6f}",
            *threshold(fmt.exp_overflows_above, fmt.precision),
            *threshold(fmt.exp_zero_below(flush=False), fmt.precision),
            *threshold(fmt.exp_zero_below(flush=True), fmt.precision),
        )
    return grid


def sums(formats: list[Format]) -> Table:
    """How far sums of ones reach, a line a format."""
    grid = _grid("running sum of ones stalls at", "largest C in a normaliser", "overflows at C =")
    for fmt in formats:
        stall = fmt.sum_of_ones_stalls_at
        grid.add_row(
            fmt.name,
            "never" if stall is None else number(stall),
            number(fmt.largest_normaliser),
            number(fmt.normaliser_overflows_at),
        )
    return grid


def verdicts(judged: dict[str, Verdict]) -> Table:
    """Three lines a format: naive, safe, accumulator."""
    grid = _grid(left=("format", "as", "usable", "why"))
    for name, found in judged.items():
        for part in PARTS:
            judgement = getattr(found, part)
            grid.add_row(name if part == PARTS[0] else "", part, judgement.usable, judgement.why)
    return grid


def show(formats: list[Format], judged: dict[str, Verdict], workload: Workload) -> None:
    """Print the tables and the verdicts."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    for grid in (ranges(formats), exponentials(formats), sums(formats)):
        console.print(grid)
    lossy = "flushed to zero" if formats[0].flush else "kept where the format has them"
    console.print(
        f"rows of {workload['columns']} entries, logits from {workload['smallest_logit']:g} to "
        f"{workload['largest_logit']:g}, "
        f"normaliser good to {workload['tolerance']:g}; subnormal results {lossy}"
    )
    console.print(verdicts(judged))
    for fmt in formats:
        if fmt.finite_only:
            console.print(
                f"note: {fmt.name} has no infinity: overflow is NaN, or {number(fmt.largest)} where a "
                "conversion saturates"
            )
    here = "underflows gradually" if keeps_subnormals() else "flushes subnormals to zero"
    console.print(f"note: on this machine NumPy's float32 arithmetic {here}")


def show_spread(measured: ScaledSpread, source: str) -> None:
    """Print what the scale does to scores, and where a naive softmax fails on them."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(f"{source}: {measured.raw.rows} rows of scores, head_dim {measured.head_dim}")
    grid = _grid("smallest", "largest", "spread", "widest row", "std", left=("scores",))
    failing = _grid("raw scores", "scaled scores", left=("naive softmax fails in",))
    kinds = {"q.k": measured.raw, "q.k/sqrt(head_dim)": measured.scaled}
    for kind, seen in kinds.items():
        figures = (seen.smallest, seen.largest, seen.spread, seen.widest_row, seen.std)
        grid.add_row(kind, *(f"{figure:.4g}" for figure in figures))
    for name in measured.raw.overflow:
        failing.add_row(name, *(f"{seen.fails(name):.2%} of rows" for seen in kinds.values()))
    console.print(grid)
    console.print(failing)


def _custom(
    emax: int | None, precision: int | None, emin: int | None, no_subnormals: bool, finite_only: bool
) -> list[Format]:
    """The format that options describe, if they do."""
    if emax is None and precision is None:
        more = {"--emin": emin is not None, "--no-subnormals": no_subnormals, "--finite-only": finite_only}
        for name, given in more.items():
            if given:
                raise ValueError(f"{name}: describes a format of your own; give --emax and --precision too")
        return []
    if emax is None or precision is None:
        missing, other = ("--emax", "--precision") if emax is None else ("--precision", "--emax")
        raise ValueError(f"{missing}: needed beside {other}")
    return [Format("custom", emax, precision, emin, not no_subnormals, finite_only=finite_only)]


def _chosen(names: list[str], custom: list[Format], flush: bool) -> list[Format]:
    """The formats asked for: those named and the custom one, or all."""
    for name in names:
        if name not in FORMATS and not (name == "custom" and custom):
            raise ValueError(f"--format: {name!r} is unknown: one of {', '.join(FORMATS)} would do")
    known = [FORMATS[n] for n in dict.fromkeys(names) if n in FORMATS] if names else list(FORMATS.values())
    return [replace(fmt, flush=flush) for fmt in (*known, *custom)]


def _measured(
    scores: Path | None, head_dim: int | None, raw: bool, formats: list[Format]
) -> ScaledSpread | None:
    """Scores measured, where a file is given."""
    if scores is None:
        if head_dim is not None or raw:
            raise ValueError(f"{'--raw' if raw else '--head-dim'}: belongs to --scores; give it a file")
        return None
    if head_dim is None:
        raise ValueError("--head-dim: needed beside --scores")
    if head_dim < 1:
        raise ValueError(f"--head-dim: {head_dim} is out of range; 1 or more would do")
    return score_spread(report.load(scores), head_dim, scaled=not raw, formats=formats)


def _workload(
    columns: int | None,
    largest: float | None,
    smallest: float | None,
    tolerance: float,
    measured: ScaledSpread | None,
) -> Workload:
    """What the verdict is for: what is given, else the scores measured, else the defaults."""
    if measured is None:
        top = LARGEST_LOGIT if largest is None else largest
        found = (COLUMNS, top, -abs(top))
    else:
        found = (measured.columns, measured.scaled.largest, measured.scaled.smallest)
    return {
        "columns": found[0] if columns is None else columns,
        "largest_logit": found[1] if largest is None else largest,
        "smallest_logit": found[2] if smallest is None else smallest,
        "tolerance": tolerance,
    }


def command(
    names: Annotated[
        list[str] | None, typer.Option("--format", help="Only this one; may be repeated (all).")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help=f"Entries of a row, for the verdict ({COLUMNS}, or those of --scores).")
    ] = None,
    largest_logit: Annotated[
        float | None,
        typer.Option(help=f"Logits go up to this ({LARGEST_LOGIT:g}, or the largest of scaled --scores)."),
    ] = None,
    smallest_logit: Annotated[
        float | None,
        typer.Option(help="And down to this (minus the largest, or the smallest of scaled --scores)."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Relative error of the normaliser let pass.")] = TOLERANCE,
    flush: Annotated[bool, typer.Option("--flush", help="Judge with subnormals flushed to zero.")] = False,
    emax: Annotated[
        int | None, typer.Option(help="Largest exponent of a format of yours, shown as custom.")
    ] = None,
    precision: Annotated[
        int | None, typer.Option(help="Its significant bits, the implicit one counted (float16: 11).")
    ] = None,
    emin: Annotated[int | None, typer.Option(help="Its smallest normal exponent (1 - emax).")] = None,
    no_subnormals: Annotated[bool, typer.Option("--no-subnormals", help="It has none.")] = False,
    finite_only: Annotated[
        bool, typer.Option("--finite-only", help="It has no infinity and one NaN, as float8 e4m3fn.")
    ] = False,
    scores: Annotated[
        Path | None, typer.Option(help="Attention scores (.npy): what 1/sqrt(head_dim) does to them.")
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Their head dimension.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="They are q.k, not q.k/sqrt(head_dim).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where exp overflows and vanishes and sums stall in each number format, and what it is good for."""
    formats = _chosen(names or [], _custom(emax, precision, emin, no_subnormals, finite_only), flush)
    measured = _measured(scores, head_dim, raw, formats)
    workload = _workload(columns, largest_logit, smallest_logit, tolerance, measured)
    judged = {fmt.name: verdict(fmt, **workload) for fmt in formats}
    if as_json:
        values: dict[str, Any] = {"workload": workload, "keeps_subnormals_here": keeps_subnormals()}
        values["formats"] = [{**fmt.as_json(), "verdict": judged[fmt.name].as_json()} for fmt in formats]
        if measured is not None:
            values["scores"] = measured.as_json()
        print(json.dumps(values, indent=2, allow_nan=False))
        return
    show(formats, judged, workload)
    if measured is not None and scores is not None:
        show_spread(measured, scores.name)
