"""Write the generated parts of docs/answers.md and docs/answers/: tables made by the library, and what each
answer rests on (docs/answers/questions.toml).

    python scripts/answers_tables.py           # rewrites the pages
    python scripts/answers_tables.py --check   # fails where one is not current

Each part stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from online_softmax.numerics.formats import FORMATS
from online_softmax.traffic import attention, cache, model
from online_softmax.traffic.compare import compare
from online_softmax.traffic.roofline import given
from online_softmax.traffic.shapes import Attention, Rows
from online_softmax.traffic.units import bytes_text, seconds_text

ROOT: Final = Path(__file__).resolve().parents[1]
INDEX: Final = "answers.md"
PAGES: Final = (*(f"answers/part{n}.md" for n in range(1, 7)), "answers/bonus.md")

#: The tensor of part 5, in float32, and the bandwidth (bytes/s) and ridge (flop/byte) it is held against.
ROWS, COLUMNS, ITEMSIZE = 8192, 4096, 4
BANDWIDTH, RIDGE = 2.0e12, 35
#: The head of part 6: features, bytes of an element, elements on chip.
HEAD_DIM, HALF, ONCHIP = 64, 2, 65536
FORMAT_NAMES: Final = ("float32", "float16", "bfloat16")
VARIANTS: Final = {
    "three_pass": "three passes",
    "online": "online, two passes",
    "cached": "online, row kept on chip",
}


@dataclass(frozen=True)
class Question:
    """What questions.toml says of a question, and the page and heading that answer it."""

    id: str
    answer: str
    proved: tuple[str, ...]
    tests: tuple[str, ...]
    page: str
    heading: str

    @property
    def anchor(self) -> str:
        """The heading's, as GitHub and MyST make it."""
        return slug(f"{self.id} {self.heading}")


def slug(heading: str) -> str:
    """The anchor of a heading: lower case, blanks as hyphens, no other punctuation."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def questions(docs: Path) -> list[Question]:
    """All of questions.toml, in its order. SystemExit where one has no heading, or several."""
    found = {}
    for page in PAGES:
        for number, heading in re.findall(
            r"^## ([\dB]\.[\dT]) (.+)$", (docs / page).read_text("utf-8"), re.M
        ):
            if number in found:
                raise SystemExit(f"{page}: a second heading of {number}")
            found[number] = page, heading
    table = tomllib.loads((docs / "answers" / "questions.toml").read_text("utf-8"))
    listed = table["question"]
    if [entry["id"] for entry in listed] != list(found):
        raise SystemExit(f"questions.toml lists {[entry['id'] for entry in listed]}, the pages {list(found)}")
    return [
        Question(
            entry["id"], entry["answer"], tuple(entry["proved"]), tuple(entry["tests"]), *found[entry["id"]]
        )
        for entry in listed
    ]


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]], text: int) -> str:
    """A table whose first `text` columns are text, the others figures."""
    headings = list(headings)
    rule = ["---"] * text + ["---:"] * (len(headings) - text)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *lines))


# ---- what the answers rest on


def _proofs(question: Question, up: str) -> str:
    return ", ".join(f"[`{name}`]({up}proofs/README.md#{name})" for name in question.proved)


def question_table(listed: list[Question]) -> str:
    """All questions: what is asked, the answer in a line, what proves it and what runs."""
    lines = []
    for question in listed:
        link = f"[{question.id} {question.heading}]({question.page}#{question.anchor})"
        tests = ", ".join(f"`{node.partition('::')[2]}`" for node in question.tests)
        lines.append([link, question.answer, _proofs(question, "../") or "by computation", tests])
    return markdown(("question", "answer", "machine-checked", "running code is held to it by"), lines, 4)


def rests_on(question: Question) -> str:
    """The line under an answer."""
    proved = _proofs(question, "../../")
    tests = ", ".join(f"`{node}`" for node in question.tests)
    return (f"*Proved by machine:* {proved}. " if proved else "") + f"*Held by:* {tests}."


# ---- tables of figures


def maxima_table() -> str:
    lines = []
    for columns in (16, 128, 1024, 4096):
        mean = float(model.expected_maxima(columns))
        share = 100 * (1 - mean / columns)
        lines.append([str(columns), f"{mean:.3f}", f"{math.log(columns) + 0.5772:.3f}", f"{share:.2f} %"])
    return markdown(("C", "H_C", "ln C + 0.5772", "updates without a new maximum"), lines, 0)


def formats_table() -> str:
    lines = []
    for name in FORMAT_NAMES:
        f = FORMATS[name]
        lines.append(
            [
                name,
                f"{float(f.largest):.7g}",
                f"{f.exp_overflows_above.real:.6f}",
                f"{float(f.exp_overflows_above.x):.8g}",
                str(f.mantissa_bits),
                str(f.precision),
                f"{f.exp_zero_below(flush=True).real:.2f}",
                f"{f.exp_zero_below(flush=False).real:.2f}",
            ]
        )
    return markdown(
        (
            "format",
            "largest finite",
            "exp overflows above",
            "largest such x in the format",
            "mantissa bits stored",
            "with the hidden one",
            "exp is 0 below, flushed",
            "gradual",
        ),
        lines,
        1,
    )


def traversals_table() -> str:
    lines = []
    for algorithm, words in VARIANTS.items():
        moved = model.traffic("softmax", algorithm, ROWS, COLUMNS, itemsize=ITEMSIZE)
        counts = [str(n) for n in (moved.reads, moved.writes, moved.traversals, moved.total)]
        lines.append([words, *counts, bytes_text(moved.total)])
    return markdown(("variant", "reads", "writes", "traversals", "bytes", "that is"), lines, 1)


def times_table() -> str:
    lines = compare("softmax", Rows(ROWS, COLUMNS, ITEMSIZE), given(BANDWIDTH, RIDGE)).lines
    found = {line.moved.algorithm: line for line in lines}
    cells = []
    for name, words in VARIANTS.items():
        line = found[name]
        size, least = bytes_text(line.moved.total, binary=False), seconds_text(line.floor.seconds)
        cells.append([words, size, least, f"{line.speedup:.2f}"])
    return markdown(("variant", "bytes", "least time", "times as fast as three passes"), cells, 1)


def attention_table() -> str:
    blocks = attention.blocks_for(ONCHIP, HEAD_DIM)
    lines = []
    for n in (1024, 4096, 16384):
        usual = Attention(1, 1, 1, n, n, HEAD_DIM, HALF, block_q=128, block_k=64)
        large = Attention(1, 1, 1, n, n, HEAD_DIM, HALF, block_q=blocks.block_q, block_k=blocks.block_k)
        standard = cache.from_memory(model.count("attention", "standard", usual), kept=True).total
        flash = [model.count("attention", "flash", shape).total for shape in (usual, large)]
        lines.append(
            [str(n), *(bytes_text(total, binary=False) for total in (standard, *flash))]
            + [f"{standard / total:.1f}" for total in flash]
        )
    head = ("N", "standard, once each", "flash, 128 by 64", f"flash, {blocks.block_q} by {blocks.block_k}")
    return markdown((*head, "fewer by", "fewer by, large blocks"), lines, 0)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "maxima": maxima_table,
    "formats": formats_table,
    "traversals": traversals_table,
    "times": times_table,
    "attention": attention_table,
}


def renewed(docs: Path) -> dict[str, str]:
    """Page -> its text with every generated part as it is now. SystemExit for a part without a place, or a
    place without a part."""
    listed = questions(docs)
    parts = {name: make() for name, make in TABLES.items()}
    parts |= {question.id: rests_on(question) for question in listed}
    parts["questions"] = question_table(listed)
    placed = []

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in parts:
            raise SystemExit(f"{name} is no generated part: {', '.join(parts)} are")
        placed.append(name)
        return f"<!-- {name}: begin -->\n{parts[name]}\n<!-- {name}: end -->"

    mark = re.compile(r"<!-- (\S+): begin -->\n(?:.*?\n)??<!-- \1: end -->", re.S)
    pages = {page: mark.sub(fill, (docs / page).read_text("utf-8")) for page in (INDEX, *PAGES)}
    if sorted(placed) != sorted(parts):
        raise SystemExit(f"places for {sorted(placed)}, parts {sorted(parts)}: one each would do")
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is stale")
    given_arguments = parser.parse_args()
    docs = ROOT / "docs"
    stale = [(page, text) for page, text in renewed(docs).items() if text != (docs / page).read_text("utf-8")]
    for page, text in stale:
        if given_arguments.check:
            print(f"docs/{page} is not current: run scripts/{Path(__file__).name}", file=sys.stderr)
        else:
            (docs / page).write_text(text, encoding="utf-8")
    return 1 if stale and given_arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
