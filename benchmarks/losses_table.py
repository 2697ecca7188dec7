"""Markdown tables of results/losses.json, and a short summary of them.

`benchmarks.table` puts the tables into results/table.md and the summary into the README.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bars import bars_text, count
from benchmarks.losses_cases import (
    CHUNKED,
    COMPILED,
    COPIES,
    DTYPES,
    FAMILIES,
    JAX,
    LINEAR,
    NUMPY,
    OPTIONS,
    OURS,
    OURS_FORWARD,
    OURS_IN_PLACE,
    OURS_OUT,
    PRODUCTS,
    READ,
    SEGMENT,
    SMOOTHING,
    SOFTMAX_MULTINOMIAL,
    TOP_K,
    TOP_P,
    TORCH,
    TORCH_FORWARD,
    WINDOW,
    Z_LOSS,
)
from benchmarks.losses_rows import FILTERED
from benchmarks.markdown import markdown

Record = dict[str, Any]

MIB = 1 << 20
_TITLES = {
    "loss": "Cross-entropy and its gradient",
    "options": "The same with options",
    "linear": "A linear layer and its loss, with the gradients of both operands",
    "sample": "Sampling",
    "scans": "Prefixes, groups, windows",
}
_NOTES = {
    "loss": (
        "Ours in one fused call: the gradient into an array that the caller keeps, into the place of the "
        "logits (which are put back between rounds, untimed), or fresh; PyTorch's and JAX's is always "
        "fresh. `of memory`: the time over that of the faster copy of the same bytes, of one read for the "
        "loss alone."
    ),
    "options": (
        f"Ours into a kept array. label_smoothing {SMOOTHING:g}, weights of every class, z_loss {Z_LOSS:g}, "
        "the entropy of every row; PyTorch's as its users write it. `of plain` and `of memory`: the time "
        "over the plain call's and over a copy's."
    ),
    "linear": (
        "Ours with 64 MiB beside the gradients, and PyTorch's two ways; `three products` is torch.mm "
        "alone, into kept memory. GFLOP/s of these three products. A call of over three seconds is timed "
        "once."
    ),
    "sample": (
        f"One token a row: of the whole vocabulary against softmax and multinomial, and with top_k={TOP_K} "
        f"and top_p={TOP_P:g} against topk, softmax, cumsum and multinomial. `of read`: the time of one "
        "read of the logits over ours."
    ),
    "scans": (
        f"float32. Groups of {SEGMENT} elements on average against PyTorch's scatter_reduce and index_add "
        f"and NumPy's logaddexp.reduceat; windows of {WINDOW} against unfold and logsumexp. `of memory`: "
        "the time over that of a copy, or of a read where the result is smaller."
    ),
}


def _ms(found: Record, name: str) -> str:
    return f"{1e3 * found[name]['median']:.2f}" if name in found else "-"


def _ratio(found: Record, above: str, below: str, form: str = ".2f") -> str:
    """One median over another; "-" where either is missing."""
    if above not in found or below not in found:
        return "-"
    return format(found[above]["median"] / found[below]["median"], form)


def _of_copy(result: Record, name: str) -> str:
    """The time over the faster copy's, or over a read's where no copy was timed."""
    copies = [result["ceilings"][kind]["median"] for kind in COPIES if kind in result["ceilings"]]
    floor = min(copies) if copies else result["ceilings"][READ]["median"]
    return f"{result['contenders'][name]['median'] / floor:.2f}"


def _bars(result: Record, name: str) -> str:
    return bars_text(bar for bar in result["bars"] if bar["subject"] == name)


def _loss(results: list[Record]) -> str:
    rows = []
    for result in results:
        found = result["contenders"]
        for name, form in ((OURS_OUT, "`out=`"), (OURS_IN_PLACE, "in place"), (OURS, "fresh")):
            cells = [
                *_work(result),
                form,
                _ms(found, name),
                _ms(found, TORCH),
                _ratio(found, TORCH, name, ".1f"),
            ]
            cells += [_ratio(found, COMPILED, name, ".1f"), _ratio(found, JAX, name, ".1f")]
            rows.append([*cells, _of_copy(result, name), _bars(result, name)])
        both = found | result["ceilings"]
        cells = [*_work(result), "loss alone", _ms(found, OURS_FORWARD), _ms(found, TORCH_FORWARD)]
        cells += [_ratio(found, TORCH_FORWARD, OURS_FORWARD, ".1f"), "-", "-"]
        rows.append([*cells, _ratio(both, OURS_FORWARD, READ), _bars(result, OURS_FORWARD)])
    headings = ["rows", "classes", "dtype", "gradient", "ms", "PyTorch ms", "x PyTorch", "x torch.compile"]
    return markdown([*headings, "x JAX", "of memory", "bars"], rows, right=4)


def _work(result: Record) -> list[str]:
    return [*map(str, result["shape"]), result["dtype"]]


def _options(results: list[Record]) -> str:
    rows = []
    for result in results:
        found = result["contenders"]
        for option in ("", *OPTIONS):
            mine, theirs = (f"{name} {option}".strip() for name in (OURS, TORCH))
            cells = [option or "plain", *_work(result), _ms(found, mine), _ratio(found, mine, OURS)]
            cells += [_ms(found, theirs), _ratio(found, theirs, mine, ".1f")]
            rows.append([*cells, _of_copy(result, mine), _bars(result, mine)])
    headings = ["option", "rows", "classes", "dtype", "ms", "of plain", "PyTorch ms", "x PyTorch"]
    return markdown([*headings, "of memory", "bars"], rows, right=4)


def _linear(results: list[Record]) -> str:
    rows = []
    for result in results:
        found = result["contenders"]
        whole = "" if result["whole"] is None else f" of {result['whole']}"
        tokens, features, classes = result["shape"]
        for name in (OURS, LINEAR, CHUNKED, PRODUCTS):
            if name in found:
                rate = f"{result['flops'] / found[name]['median'] / 1e9:.1f}"
                cells = [f"{tokens}{whole}", str(features), str(classes), result["dtype"], name, rate]
                cells += [f"{found[name]['median']:.2f}", str(found[name]["rounds"])]
                rows.append([*cells, _ratio(found, name, OURS), _bars(result, name)])
    headings = ["tokens", "features", "classes", "dtype", "way", "GFLOP/s", "s", "rounds", "x ours", "bars"]
    text = markdown(headings, rows, right=5)
    if any(result["whole"] is not None for result in results):
        text += "\n\nThis machine is too slow for all tokens asked for: so many of them were taken."
    return text


def _sample(results: list[Record]) -> str:
    rows = []
    for result in results:
        found, both = result["contenders"], result["contenders"] | result["ceilings"]
        for what, mine, theirs, jax in (
            ("all", OURS, SOFTMAX_MULTINOMIAL, JAX),
            (FILTERED, f"{OURS} {FILTERED}", f"{TORCH} {FILTERED}", "-"),
        ):
            cells = [*_work(result), what, _ms(found, mine), _ms(found, theirs)]
            cells += [_ratio(found, theirs, mine, ".1f"), _ratio(found, jax, mine, ".1f")]
            rows.append([*cells, _ratio(both, READ, mine), _bars(result, mine)])
    headings = [
        "rows",
        "classes",
        "dtype",
        "of what",
        "ms",
        "PyTorch ms",
        "x PyTorch",
        "x JAX",
        "of read",
        "bars",
    ]
    return markdown(headings, rows, right=4)


def _scans(results: list[Record]) -> str:
    rows = []
    for result in results:
        found = result["contenders"]
        cells = [result["kind"], " x ".join(map(str, result["shape"])), _ms(found, OURS)]
        cells += [_ratio(found, TORCH, OURS, ".1f"), _ratio(found, NUMPY, OURS, ".1f")]
        rows.append([*cells, _of_copy(result, OURS)])
    headings = ["function", "elements", "ms", "x PyTorch", "x NumPy", "of memory"]
    return markdown(headings, rows, right=2)


_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "loss": _loss,
    "options": _options,
    "linear": _linear,
    "sample": _sample,
    "scans": _scans,
}


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / MIB:.1f}"


def memory(lines: list[Record]) -> str:
    """What calls take beside operands and gradients."""
    rows = []
    for line in lines:
        features = str(line["features"]) if line["features"] else "-"
        cells = [
            line["work"],
            str(line["rows"]),
            features,
            str(line["classes"]),
            line["dtype"],
            line["library"],
        ]
        cells += [_mib(line[name]) for name in ("logits", "gradients", "beside")]
        rows.append([*cells, line["absent"] or bars_text(line["bars"])])
    headings = ["work", "rows", "features", "classes", "dtype", "library", "MiB of logits", "of gradients"]
    return markdown([*headings, "beside", "bars"], rows, right=6)


def accuracy(lines: list[Record]) -> str:
    """Errors of both libraries."""
    rows = []
    for line in lines:
        cells = [line["kind"], line["dtype"], line["tensor"]]
        for name in (OURS, TORCH):
            found = line["errors"].get(name, {})
            cells += [f"{found['share']:.2g}" if "share" in found else "-"]
            cells += [f"{found['ulps']:.3g}" if "ulps" in found else "-"]
        reached = {True: "met", False: "missed"}
        rows.append([*cells, "; ".join(reached[bar["reached"]] for bar in line["bars"])])
    headings = [
        "logits",
        "dtype",
        "result",
        "of the bound",
        "ulps",
        "PyTorch's of the bound",
        "ulps",
        "within the bound",
    ]
    return markdown(headings, rows, right=3)


def _machine(data: Record) -> str:
    machine, versions = data["machine"], data["versions"]
    libraries = f"PyTorch {versions['torch']}, JAX {versions['jax']}"
    cpu = f"{machine['model']} ({machine['isa']}), {machine['threads']} threads"
    return f"{cpu}, {data['date'][:10]}, {libraries}"


def tables(data: Record) -> str:
    """All of losses.json."""
    parts = [
        "## Losses",
        f"{_machine(data)}. Medians of one run, contenders interleaved. Bars reached: "
        f"{count(data['results'])}.",
    ]
    for family in FAMILIES:
        chosen = [result for result in data["results"] if result["family"] == family]
        if chosen:
            parts += [f"### {_TITLES[family]}", _NOTES[family], _TABLES[family](chosen)]
    absent = sorted({pair for result in data["results"] for pair in result["absent"].items()})
    parts += [f"Absent: {'; '.join(f'{name}: {reason}' for name, reason in absent)}."] if absent else []
    if data["memory"]:
        note = "What a call adds to the peak of a process, beside operands and gradients. Bars reached: "
        parts += ["### Peak memory of the losses", f"{note}{count(data['memory'])}.", memory(data["memory"])]
    if data["accuracy"]:
        note = (
            "Worst error against float64 of the same rounded logits: in units of the rounding bound, and "
            "in units in the last place, of float32 for the loss (PyTorch's loss of 16-bit logits is "
            "rounded to 16 bits), of the format for the gradient. `row sum`: of a row of the gradient, "
            "which is 0. Bars reached: "
        )
        parts += [
            "### Accuracy of the losses",
            f"{note}{count(data['accuracy'])}.",
            accuracy(data["accuracy"]),
        ]
    return "\n\n".join(parts)


def summary(data: Record) -> str:
    """Time and memory beside PyTorch's, and how many bars were reached."""
    rows = []
    for family in FAMILIES:
        for dtype in DTYPES:
            chosen = [
                r for r in data["results"] if (r["family"], r["dtype"]) == (family, dtype) and r["bars"]
            ]
            if chosen:
                rows.append([_TITLES[family], dtype, *_times(chosen), count(chosen)])
    headings = ["work", "dtype", "ms", "PyTorch ms", "x PyTorch", "bars reached"]
    parts = [f"{_machine(data)}. Least to greatest of all cases:", markdown(headings, rows, right=2)]
    small = [r for r in data["results"] if r["family"] == "linear" and r["whole"] is not None]
    if small:
        taken = ", ".join(f"{r['shape'][0]} in {r['dtype']}" for r in small)
        parts.append(f"Of the linear layer's {small[0]['whole']} tokens this machine took {taken}.")
    if data["memory"]:
        lines = [line for line in data["memory"] if line["beside"] is not None]
        parts += ["Memory beside operands and gradients, in a process of its own:", _beside(lines)]
    if data["accuracy"]:
        parts.append(f"Losses, gradients and their row sums within the bound: {count(data['accuracy'])}.")
    return "\n\n".join(parts)


def _times(results: list[Record]) -> list[str]:
    """Least to greatest milliseconds of the subjects of "faster" bars, of PyTorch's, and of their ratios."""
    mine, theirs, ratios = [], [], []
    for result in results:
        found = result["contenders"]
        for bar in result["bars"]:
            if bar["kind"] == "faster" and bar["against"] != CHUNKED and bar["value"] is not None:
                mine.append(1e3 * found[bar["subject"]]["median"])
                theirs.append(1e3 * found[bar["against"]]["median"])
                ratios.append(bar["value"])
    return [_range(mine, ".1f"), _range(theirs, ".0f"), _range(ratios, ".1f")]


def _range(values: list[float], form: str) -> str:
    if not values:
        return "-"
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"


def _beside(lines: list[Record]) -> str:
    """A row a work, size and format; a column a way."""
    keys = list(dict.fromkeys(tuple(line[n] for n in ("work", "rows", "classes", "dtype")) for line in lines))
    rows = []
    for work, count_, classes, dtype in keys:
        found = {
            line["library"]: line["beside"]
            for line in lines
            if (line["work"], line["rows"], line["classes"], line["dtype"]) == (work, count_, classes, dtype)
        }
        plain = found.get(TORCH, found.get(LINEAR))
        title = {"linear": "linear layer and loss", "fresh": "loss, fresh gradient"}.get(
            work, f"loss, {work}"
        )
        cells = [title, str(count_), str(classes), dtype, _mib(found.get(OURS)), _mib(plain)]
        rows.append([*cells, _mib(found.get(CHUNKED))])
    headings = ["work", "rows", "classes", "dtype", "ours MiB", "PyTorch MiB", "chunked MiB"]
    return markdown(headings, rows, right=4)
