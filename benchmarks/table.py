"""The Markdown table and the figure, made from results/*.json.

    python -m benchmarks.table [--name rows] [--readme README.md] [--quick]

Writes results/table.md and results/softmax.svg; the tables of attention.json, attention_accuracy.json,
losses.json, training.json, torch_calls.json, jax.json, exact_accuracy.json and exact_rows.json stand last,
where these are there. With --readme it also puts the table without them between the lines
`<!-- benchmarks: begin -->` and `<!-- benchmarks: end -->` of that file, results/report.txt, what
`online-softmax report` printed, between those of `report`, and the summaries of attention, the losses, the
frameworks' faces and rows in any order between those of `attention`, `losses`, `faces` and `any`, so that no
figure is copied by hand.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import attention_table, exact_accuracy, exact_rows, faces_table, losses_table, record
from benchmarks.cases import JAX, ORT_OUT, OURS_OUT, SCIPY, TORCH_OUT
from benchmarks.markdown import markdown

Record = dict[str, Any]

# Contender, label and colour of the figure: colours that stay apart for colour-blind readers.
SERIES = (
    (OURS_OUT, "online-softmax", "#0072b2"),
    (ORT_OUT, "ONNX Runtime", "#e69f00"),
    (TORCH_OUT, "PyTorch", "#d55e00"),
    (JAX, "JAX", "#009e73"),
    (SCIPY, "SciPy", "#999999"),
)


def _bars(bars: Sequence[Record]) -> str:
    """The bars of a goal: "met", the ones missed with their values, or "-" where there are none."""
    if not bars:
        return "-"
    missed = []
    for bar in bars:
        if bar["reached"] is None:
            missed.append(f"{bar['against']} not measured")
        elif not bar["reached"]:
            what = {
                "error": f"error {bar['bar']:g}",
                "peer": f"{bar['bar']:g}x {bar['against']}",
                "ceiling": f"{bar['bar']:g} of {bar['against']}",
            }
            missed.append(f"{what[bar['kind']]} missed: {bar['value']:.2g}")
    return "; ".join(missed) or "met"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(result: Record, goal: Record) -> list[str]:
    shape = "(" + ", ".join(map(str, result["shape"])) + ")"
    axis = "" if result["axis"] == -1 else f" axis {result['axis']}"
    layout = "" if result["layout"] == "contiguous" else f" {result['layout']}"
    peer = goal["best_peer"]
    best = "-" if peer is None else f"{goal['over_best_peer']:.1f} ({peer})"
    return [
        f"{result['op']} {shape}{axis}{layout}",
        result["dtype"],
        result["regime"],
        {"ours out=": "`out=`", "ours": "fresh", "ours fast out=": '`out=`, `"fast"`'}[goal["subject"]],
        f"{goal['median_ms']:.2f}",
        _figure(goal["over_torch"], ".1f"),
        best,
        _figure(goal["of_ceiling"], ".2f"),
        f"{goal['relative_error']:.1e}",
        _figure(goal["best_peer_relative_error"], ".1e"),
        _bars(goal["bars"]),
    ]


def rows_table(data: Record) -> str:
    """The table of work."""
    headings = ["work", "dtype", "regime", "result", "ms", "x PyTorch", "x best peer", "of ceiling"]
    headings += ["worst rel. error", "best peer's", "bars"]
    rows = [_row(result, goal) for result in data["results"] for goal in result["goals"]]
    return markdown(headings, rows, right=4)


def small_table(data: Record) -> str:
    """One call on a few elements."""
    rows = [
        [op, name, f"{figures['median_us']:.2f}", f"{figures['least_us']:.2f}"]
        for op, found in data["results"].items()
        for name, figures in found.items()
    ]
    title = f"One call on {data['elements']} float32, microseconds:\n\n"
    return title + markdown(["operation", "contender", "median", "least"], rows, right=2)


def busy_table(data: Record) -> str:
    """While another process holds a core."""
    rows = [
        [
            f"({shape.replace('x', ', ')})",
            name,
            f"{row['quiet_median_us']:.0f}",
            f"{row['busy_median_us']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['busy_p99_us']:.0f}",
        ]
        for shape, found in data["results"].items()
        for name, row in found.items()
    ]
    title = "softmax float32 while another process holds one of the two cores, microseconds:\n\n"
    headings = ["shape", "contender", "quiet median", "busy median", "ratio", "busy 99 %"]
    return title + markdown(headings, rows, right=2)


def heading(data: Record) -> str:
    """The machine, the versions and the date, in one paragraph."""
    machine, versions = data["machine"], data["versions"]
    packages = ", ".join(f"{name} {number}" for name, number in versions.items() if number != "not installed")
    return (
        f"{machine['model']} ({machine['isa']}), {machine['threads']} threads, {data['date'][:10]}. "
        f"{packages}. Medians of one run, contenders interleaved. The ceiling is the best copy (softmax) or "
        "read (logsumexp) of the same bytes in the same rounds."
    )


def figure(data: Record, path: Path) -> None:
    """softmax float32 with a caller's `out=`: the share of the copy ceiling each library reaches."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "online-softmax", "svg.fonttype": "none", "font.size": 9.0}
    from matplotlib import pyplot as plt

    results = [
        result
        for result in data["results"]
        if (result["op"], result["dtype"], result["layout"]) == ("softmax", "float32", "contiguous")
    ]
    fig, axes = plt.subplots(figsize=(9.5, 0.5 + 0.62 * len(results)), layout="constrained")
    height = 0.8 / len(SERIES)
    for k, (name, label, colour) in enumerate(SERIES):
        places, shares = [], []
        for i, result in enumerate(results):
            if name in result["contenders"]:
                floor = min(ceiling["median"] for ceiling in result["ceilings"].values())
                places.append(i + (k - (len(SERIES) - 1) / 2) * height)
                shares.append(floor / result["contenders"][name]["median"])
        axes.barh(places, shares, height, label=label, color=colour)
    labels = [
        "x".join(map(str, result["shape"])) + ("" if result["axis"] == -1 else f", axis {result['axis']}")
        for result in results
    ]
    axes.set_yticks(range(len(results)), labels)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("fraction of the best copy of the same bytes, same run (1 = memory limit)")
    axes.set_title("softmax, float32, result in the caller's memory, 2 threads", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def into_readme(path: Path, mark: str, text: str) -> None:
    """Replace what stands between the two comments of `mark` in `path`; SystemExit where they are missing."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    body = path.read_text()
    if begin not in body or end not in body:
        raise SystemExit(f"{path}: needs the lines {begin} and {end}, between which the text goes")
    before, after = body.split(begin)[0], body.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="rows", help="results/NAME.json")
    parser.add_argument("--readme", type=Path, help="put the table into this file too")
    parser.add_argument("--quick", action="store_true", help="from and into out/benchmarks: does it run?")
    arguments = parser.parse_args()
    data, folder = record.read(arguments.name, arguments.quick), record.folder(arguments.quick)
    if data is None:
        raise SystemExit(f"no {folder.name}/{arguments.name}.json: run python -m benchmarks.bench first")
    parts = [heading(data), rows_table(data)]
    for name, make in (("small_calls", small_table), ("busy_core", busy_table)):
        extra = record.read(name, arguments.quick)
        parts += [make(extra)] if extra is not None else []
    text = "\n\n".join(parts)
    timed, exact = (record.read(name, arguments.quick) for name in ("attention", "attention_accuracy"))
    more = [] if timed is None else [attention_table.timing(timed)]
    more += [] if exact is None else [attention_table.accuracy(exact)]
    losses = record.read("losses", arguments.quick)
    more += [] if losses is None else [losses_table.tables(losses)]
    steps, calls, jax = (record.read(name, arguments.quick) for name in ("training", "torch_calls", "jax"))
    faces = [] if steps is None else [faces_table.training(steps)]
    more += faces
    more += [] if calls is None else [faces_table.calls(calls)]
    more += [] if jax is None else [faces_table.jax(jax)]
    faces += [] if jax is None else [faces_table.jax_summary(jax)]
    accuracy, speed = (record.read(name, arguments.quick) for name in ("exact_accuracy", "exact_rows"))
    more += [] if accuracy is None else [exact_accuracy.text(accuracy)]
    any_order = [] if speed is None else [exact_rows.text(speed)]
    more += any_order
    (folder / "table.md").write_text("\n\n".join([text, *more]) + "\n")
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib not installed: no figure")
    else:
        figure(data, folder / "softmax.svg")
    if arguments.readme:
        into_readme(arguments.readme, "benchmarks", text)
        report = folder / "report.txt"
        if report.exists():
            into_readme(arguments.readme, "report", f"```text\n{report.read_text().rstrip()}\n```")
        if timed is not None:
            into_readme(arguments.readme, "attention", attention_table.summary(timed, exact))
        if losses is not None:
            into_readme(arguments.readme, "losses", losses_table.summary(losses))
        if faces:
            into_readme(arguments.readme, "faces", "\n\n".join(faces))
        if any_order:
            into_readme(arguments.readme, "any", "\n\n".join(any_order))
    print(f"wrote {folder / 'table.md'}")


if __name__ == "__main__":
    main()
