"""Write the generated parts of docs/formats.md: what `online-softmax formats` prints, and what the scale
1/sqrt(head_dim) does to attention scores, measured on a real model's and on random ones.

    python scripts/score_spread.py           # rewrites docs/formats.md
    python scripts/score_spread.py --check   # fails where it is not current

Each part stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from online_softmax.cli import formats as command
from online_softmax.numerics.formats import FORMATS
from online_softmax.numerics.spread import ScaledSpread, score_spread
from online_softmax.numerics.verdicts import COLUMNS, LARGEST_LOGIT, TOLERANCE, verdict

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "formats.md"
SCORES = ROOT / "examples" / "attention_scores.npy"
#: examples/make_attention_scores.py: the head dimension of its model, whose scores are kept scaled.
MODEL, MODEL_HEAD_DIM = "all-MiniLM-L6-v2, 6 heads", 32
HEAD_DIMS = (16, 32, 64, 128, 256)
QUERIES, KEYS, SEED = 256, 2048, 0


def measurements() -> Iterator[tuple[str, ScaledSpread]]:
    """What the scores are, and their spread, for each line of the tables."""
    yield MODEL, score_spread(np.load(SCORES), MODEL_HEAD_DIM)
    rng = np.random.default_rng(SEED)
    for kind in ("independent q, k", "q among the k"):
        for head_dim in HEAD_DIMS:
            k = rng.standard_normal((KEYS, head_dim))
            q = k[:QUERIES] if kind == "q among the k" else rng.standard_normal((QUERIES, head_dim))
            yield kind, score_spread(q @ k.T, head_dim, scaled=False)


def markdown(headings: list[str], lines: list[list[str]], text: int = 1) -> str:
    """A table whose first `text` columns are text, the others figures."""
    rule = ["---"] * text + ["---:"] * (len(headings) - text)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *lines))


def spread_part() -> str:
    """Two tables: the scores in numbers, and the rows on which a naive softmax fails."""
    figures, failing = [], []
    for kind, seen in measurements():
        start = [kind, str(seen.head_dim)]
        pairs = [
            (seen.raw.std, seen.scaled.std),
            (seen.raw.spread, seen.scaled.spread),
            (seen.raw.largest, seen.scaled.largest),
        ]
        figures.append(start + [f"{value:#.3g}".rstrip(".") for pair in pairs for value in pair])
        failing.append(
            start
            + [
                f"{100 * seen.raw.fails(name):.3g} → {100 * seen.scaled.fails(name):.3g} %"
                for name in FORMATS
            ]
        )
    columns = [f"{name}, {kind}" for name in ("std", "spread", "largest") for kind in ("raw", "scaled")]
    return "\n".join(
        (
            markdown(["scores", "head_dim", *columns], figures),
            "",
            "Rows on which a naive softmax has no answer, raw → scaled:",
            "",
            markdown(["scores", "head_dim", *FORMATS], failing),
        )
    )


def command_part() -> str:
    """What `online-softmax formats` prints, as a code block."""
    workload: command.Workload = {
        "columns": COLUMNS,
        "largest_logit": LARGEST_LOGIT,
        "smallest_logit": -LARGEST_LOGIT,
        "tolerance": TOLERANCE,
    }
    formats = list(FORMATS.values())
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        command.show(formats, {fmt.name: verdict(fmt, **workload) for fmt in formats}, workload)
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return "\n".join(("```text", *(line for line in lines if line), "```"))


def page(text: str) -> str:
    """The page with its generated parts as they are now. SystemExit where a part has no place."""
    for name, part in (("formats", command_part()), ("spread", spread_part())):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{PAGE.name}: needs the lines {begin} and {end} once each")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n{part}\n{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is stale")
    given = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    now = page(before)
    if not given.check:
        PAGE.write_text(now, encoding="utf-8")
    elif now != before:
        print(f"{PAGE.name} is not current: run scripts/{Path(__file__).name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
