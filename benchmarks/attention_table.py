"""Markdown tables of results/attention.json and results/attention_accuracy.json, and a short summary of them.

`benchmarks.table` puts the tables into results/table.md and the summary into the README.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.attention_cases import DTYPES, FAMILIES, FORMS, GRADIENTS, OURS, READ, SDPA
from benchmarks.bars import bars_text, count
from benchmarks.markdown import markdown

Record = dict[str, Any]

MEGA, MIB = 1e6, 1 << 20
_TITLES = {
    "forward": "Forward",
    "training": "Forward and backward",
    "decode": "One query over a cache of keys",
    "forms": "Forms of the forward",
    "window": "Causal window",
    "gradients": "Backward alone",
}
_NOTES = {
    "forward": (
        "Long sequences have fewer heads, so that a run ends; a call of over three seconds is timed once. "
        "`of peak`: flops over time, as part of what multiply-adds in registers reach in the same case. The "
        "byte model: MB that the kernel asks for when a chunk of K and V is read once for `rows` query rows, "
        "flops a byte, the floor (the slowest of memory, products and exponentials at this machine's rates) "
        "and the time over it."
    ),
    "training": "Output and gradients of q, k and v: 3.5 times the flops of the forward.",
    "decode": (
        "`reads`: the time over that of one read of K and V by as many threads in the same rounds; `over "
        "floor`: over the longer of that read and the products at the peak of multiply-adds, which is the "
        "longer one where many heads share a head of K."
    ),
    "forms": (
        "Each against the plain call of the same library in the same rounds. `dv != d` has as many flops as "
        "the plain one, `strided` features that are not adjacent, `half masked` a padding mask over half the "
        "keys, `rising` scores that rise along the keys by 1000."
    ),
    "window": "A window of 128 keys, against the mask that says the same.",
    "gradients": "Beside the gradients of q, k and v, against the plain backward of the same library.",
}


def _ms(found: Record, name: str) -> str:
    return f"{1e3 * found[name]['median']:.2f}" if name in found else "-"


def _ratio(found: Record, above: str, below: str, form: str = ".2f") -> str:
    """One median over another; "-" where either is missing."""
    if above not in found or below not in found:
        return "-"
    return format(found[above]["median"] / found[below]["median"], form)


def _work(result: Record) -> list[str]:
    sizes = result["sizes"]
    mask = "causal" if result["causal"] else "none"
    return [str(sizes["keys"]), str(sizes["heads"]), str(sizes["d"]), mask, result["dtype"]]


def _product(result: Record) -> list[str]:
    """A row of "forward" or "training"."""
    found = result["contenders"]
    rounds = min(figures["rounds"] for figures in found.values())
    cells = [*_work(result), str(result["threads"]), str(rounds), _ms(found, OURS), _ms(found, SDPA)]
    cells += [f"{found[OURS]['flops_rate'] / 1e9:.1f}", f"{found[OURS]['of_peak']:.2f}"]
    cells.append(_ratio(found, SDPA, OURS))
    if result["model"] is not None:
        model = result["model"]
        cells += [str(model["block_q"]), f"{model['bytes'] / MEGA:.1f}", f"{model['intensity']:.0f}"]
        cells += [f"{1e3 * model['floor']:.2f}", f"{model['over_floor']:.2f}"]
    return [*cells, bars_text(result["bars"])]


_PRODUCT = ["keys", "heads", "d", "mask", "dtype", "threads", "rounds"]
_PRODUCT += ["ms", "SDPA ms", "GFLOP/s", "of peak", "x SDPA"]
_MODEL = ["rows", "MB", "flops/byte", "floor ms", "over floor"]


def _forward(results: list[Record]) -> str:
    return markdown([*_PRODUCT, *_MODEL, "bars"], map(_product, results), right=5)


def _training(results: list[Record]) -> str:
    return markdown([*_PRODUCT, "bars"], map(_product, results), right=5)


def _decode(results: list[Record]) -> str:
    rows = []
    for result in results:
        sizes, found = result["sizes"], result["contenders"]
        both = found | result["ceilings"]
        heads = f"{sizes['heads']} of {sizes['kv_heads']}"
        floor = max(result["ceilings"][READ]["median"], result["flops"] / result["peak"])
        rows.append([
            str(sizes["batch"]), heads, str(sizes["keys"]), str(sizes["d"]), result["dtype"],
            str(result["threads"]), _ms(found, OURS), _ms(found, SDPA), f"{found[OURS]['of_peak']:.2f}",
            _ratio(found, SDPA, OURS), _ratio(both, OURS, READ),
            f"{found[OURS]['median'] / floor:.2f}", bars_text(result["bars"]),
        ])  # fmt: skip
    headings = ["batch", "heads", "keys", "d", "dtype", "threads", "ms", "SDPA ms", "of peak", "x SDPA"]
    return markdown([*headings, "reads", "over floor", "bars"], rows, right=5)


def _beside_plain(results: list[Record], options: Iterable[str]) -> str:
    """Rows of "forms" and "gradients": every option beside the plain call."""
    rows = []
    for result in results:
        found = result["contenders"]
        for option in ("", *options):
            mine, theirs = (f"{name} {option}".strip() for name in (OURS, SDPA))
            bars = [bar for bar in result["bars"] if bar["subject"] == mine]
            cells = [option or "plain", result["dtype"], _ms(found, mine), _ratio(found, mine, OURS)]
            cells += [_ms(found, theirs), _ratio(found, theirs, SDPA), _ratio(found, theirs, mine)]
            rows.append([*cells, bars_text(bars)])
    headings = ["option", "dtype", "ms", "of plain", "SDPA ms", "of its plain", "x SDPA", "bar"]
    return markdown(headings, rows, right=2)


def _window(results: list[Record]) -> str:
    rows = []
    for result in results:
        found = result["contenders"]
        for name in (name for name in found if name.startswith(OURS)):
            length = int(name.split()[1])
            bars = [bar for bar in result["bars"] if bar["subject"] == name]
            cells = [str(length), result["dtype"], _ms(found, name), _ms(found, f"{SDPA} {length}")]
            cells += [_ratio(found, f"{SDPA} {length}", name, ".1f")]
            rows.append([*cells, f"{1e6 * found[name]['median'] / length:.2f}", bars_text(bars)])
    headings = ["keys", "dtype", "ms", "SDPA ms", "x SDPA", "us a query", "bars"]
    return markdown(headings, rows, right=2)


def _memory(lines: list[Record]) -> str:
    rows = []
    for line in lines:
        cells = [line["pass"], line["dtype"], str(line["length"]), f"{line['square'] / MIB:.0f}"]
        for name in (OURS, SDPA):
            found = line["bytes"].get(name)
            cells += ["-"] * 2 if found is None else [f"{found / MIB:.1f}", f"{found / line['square']:.3f}"]
        rows.append(cells)
    headings = ["pass", "dtype", "keys", "MiB of a matrix", "ours MiB", "of it", "SDPA MiB", "of it"]
    return markdown(headings, rows, right=2)


_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "forward": _forward,
    "training": _training,
    "decode": _decode,
    "forms": lambda results: _beside_plain(results, FORMS),
    "window": _window,
    "gradients": lambda results: _beside_plain(results, GRADIENTS),
}


def _machine(data: Record) -> str:
    machine, torch = data["machine"], data["versions"]["torch"]
    return f"{machine['model']} ({machine['isa']}), {data['date'][:10]}, PyTorch {torch}"


def timing(data: Record) -> str:
    """All tables of attention.json."""
    results = data["results"]
    parts = [
        "## Attention",
        f"{_machine(data)}. Against `scaled_dot_product_attention` on the same arrays; medians, contenders "
        f"interleaved; batch 1 where none is named. Bars reached: {count(results)}.",
    ]
    for family in FAMILIES:
        chosen = [result for result in results if result["family"] == family]
        if chosen:
            parts += [f"### {_TITLES[family]}", _NOTES[family], _TABLES[family](chosen)]
    if data["memory"]:
        parts += [
            "### Peak memory",
            "What a call adds to the peak of a process, results included, beside a matrix of scores in "
            "float32: one head, `backward` with its forward.",
            _memory(data["memory"]),
        ]
    return "\n\n".join(parts)


def accuracy(data: Record) -> str:
    """Both tables of attention_accuracy.json."""
    rows = []
    for line in data["results"]:
        mask = "causal" if line["causal"] else "none"
        cells = [line["kind"], str(line["length"]), mask, line["dtype"], line["tensor"]]
        for bar, part in zip(line["bars"], ("mean", "worst"), strict=True):
            other = "-" if line["torch"] is None else f"{line['torch'][part]:.2e}"
            cells += [f"{line['ours'][part]:.2e}", other]
            cells.append("-" if bar["value"] is None else f"{bar['value']:.3f}")
        reached = {True: "met", False: "missed", None: "not measured"}
        cells.append(f"{line['bars'][0]['bar']:g}")
        cells.append(", ".join(f"{bar['statistic']} {reached[bar['reached']]}" for bar in line["bars"]))
        rows.append(cells)
    headings = ["inputs", "keys", "mask", "dtype", "tensor", "mean", "PyTorch's", "ratio", "worst row"]
    headings += ["PyTorch's", "ratio", "at most", "reached"]
    return "\n\n".join([
        "## Accuracy of attention",
        f"{_machine(data)}. Norm of a row's error over the norm of the row in float64, of the same rounded "
        f"operands; PyTorch's flash path beside it. Bars reached: {count(data['results'])}.",
        markdown(headings, rows, right=5),
        "The greatest share of its rounding bound that any element's error takes, over all inputs of "
        f"{data['bounds'][0]['length']} keys, with and without a causal mask (at most 1; reached: "
        f"{count(data['bounds'])}):",
        _bounds(data["bounds"]),
    ])  # fmt: skip


def _bounds(lines: list[Record]) -> str:
    tensors = list(dict.fromkeys(line["tensor"] for line in lines))
    worst: dict[tuple[str, str], float] = {}
    for line in lines:
        key = line["dtype"], line["tensor"]
        worst[key] = max(worst.get(key, 0.0), line["bars"][0]["value"])
    rows = [[dtype, *(f"{worst[dtype, tensor]:.2f}" for tensor in tensors)] for dtype in DTYPES]
    return markdown(["dtype", *tensors], rows, right=1)


def summary(data: Record, exact: Record | None) -> str:
    """A line a family and dtype: the least and the greatest ratio to SDPA, and how many bars were reached."""
    rows = []
    for family in FAMILIES:
        for dtype in DTYPES:
            chosen = [r for r in data["results"] if (r["family"], r["dtype"]) == (family, dtype)]
            if chosen and any(r["bars"] for r in chosen):
                rows.append([_TITLES[family], dtype, *_ranges(chosen), count(chosen)])
    text = markdown(["work", "dtype", "x SDPA", "of peak", "bars reached"], rows, right=2)
    lead = f"{_machine(data)}. Least to greatest of all cases:"
    if exact is None:
        return f"{lead}\n\n{text}"
    errors = (
        "Errors against float64 beside those of PyTorch's flash path: "
        f"{count(exact['results'])} bars reached. Every element within its rounding bound: "
        f"{count(exact['bounds'])}."
    )
    return f"{lead}\n\n{text}\n\n{errors}"


def _ranges(results: list[Record]) -> list[str]:
    """Least to greatest of our speed over SDPA's, option by option, and of the fraction of the peak."""
    faster, shares = [], []
    for found in (result["contenders"] for result in results):
        for name, figures in found.items():
            theirs = found.get(name.replace(OURS, SDPA, 1))
            if name.startswith(OURS) and theirs is not None:
                faster.append(theirs["median"] / figures["median"])
            if name.startswith(OURS) and "of_peak" in figures:
                shares.append(figures["of_peak"])
    return [f"{min(all_):.2f} to {max(all_):.2f}" if all_ else "-" for all_ in (faster, shares)]
