"""The claims of proofs/: what the files prove, what is said of it, which test ties it to the code.

Needs no Coq: the test suite reads it, too.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
#: What would leave a gap behind, or switch a check of Coq's own off.
GAPS = re.compile(
    r"\b(Admitted|admit|give_up|Axioms?|Parameters?|Conjecture|Unset\s+(?:Guard|Positivity|Universe)\s+Checking|"
    r"bypass_check|Abort|Set\s+Warnings|Declare\s+(?:Module|Instance|ML)|Admit\s+Obligations|Primitive|"
    r"Definitional\s+UIP)\b"
)
_CLAIM = re.compile(
    r"^\s*(?:#\[[^]]*\]\s*)?(?:Local\s+)?(?:Theorem|Corollary|Proposition)\s+([A-Za-z_][\w']*)", re.M
)
_DEFINED = re.compile(
    r"^\s*(?:Local\s+)?(?:Definition|Fixpoint|Inductive|Variant|Record|Function)\s+([A-Za-z_][\w']*)", re.M
)
_KEYS = {"theorem", "words", "formula", "test"}


@dataclass(frozen=True)
class Claim:
    """A theorem, the file it stands in, and what proofs/statements/*.toml says of it."""

    file: str
    title: str
    theorem: str
    words: str
    formula: str
    test: str


def without_comments(text: str) -> str:
    """Coq text without its comments, which nest."""
    kept, depth, at = [], 0, 0
    while at < len(text):
        two = text[at : at + 2]
        if two == "(*":
            depth, at = depth + 1, at + 2
        elif two == "*)" and depth:
            depth, at = depth - 1, at + 2
        else:
            kept.append(text[at] if not depth or text[at] == "\n" else "")
            at += 1
    return "".join(kept)


def theorems(root: Path = ROOT) -> dict[str, list[str]]:
    """File name -> its theorems and corollaries, in their order."""
    return {
        path.name: _CLAIM.findall(without_comments(path.read_text(encoding="utf-8")))
        for path in sorted((root / "proofs").glob("*.v"))
    }


def definitions(file: str, root: Path = ROOT) -> list[str]:
    """What a file defines, in its order: a claim says what its definitions say."""
    text = without_comments((root / "proofs" / file).read_text(encoding="utf-8"))
    return list(dict.fromkeys(_DEFINED.findall(text)))


def claims(root: Path = ROOT) -> list[Claim]:
    """What proofs/statements/*.toml lists, file by file; KeyError for an entry that lacks a key."""
    by_stem = {path.stem.lower(): path.name for path in (root / "proofs").glob("*.v")}
    found = []
    for path in sorted((root / "proofs" / "statements").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in table["statement"]:
            rest = {key: " ".join(entry[key].split()) for key in sorted(_KEYS)}
            found.append(Claim(by_stem.get(path.stem, f"{path.stem}.v"), table["title"], **rest))
    return found


def is_a_test(node: str, root: Path) -> bool:
    """Whether `tests/test_x.py::test_y` or `::TestClass::test_y` is the name of a test."""
    path, *names = node.split("::")
    file = root / path
    if not names or not file.is_file():
        return False
    text = file.read_text(encoding="utf-8")
    return all(re.search(rf"^\s*(?:def|class|async def) {re.escape(name)}\b", text, re.M) for name in names)


def faults(root: Path = ROOT) -> list[str]:
    """What is wrong with the files and the entries, each in a line."""
    listed = claims(root)
    wrong = []
    for file, names in theorems(root).items():
        text = without_comments((root / "proofs" / file).read_text(encoding="utf-8"))
        wrong += [f"{file}: {gap.group(0)}" for gap in GAPS.finditer(text)]
        entries = [claim.theorem for claim in listed if claim.file == file]
        wrong += [
            f"{file}: {name} has no entry in proofs/statements/" for name in names if name not in entries
        ]
        wrong += [f"{file}: {name} is listed, but not proved there" for name in entries if name not in names]
        wrong += [f"{file}: {name} is listed twice" for name in set(entries) if entries.count(name) > 1]
    # An axiom is allowed by its name, so no file may have the name of a module that has one.
    books = (root / "proofs" / "axioms.txt").read_text(encoding="utf-8").splitlines()
    axioms = {name.split(".")[0] for line in books if line[:1] != "#" for name in line.split()[1:]}
    wrong += [
        f"{path.name} has the name of a module whose axioms are allowed"
        for path in sorted((root / "proofs").glob("*.v"))
        if path.stem in axioms
    ]
    # A name is an address in README.md, so it is one file's alone.
    homes = {claim.theorem: claim.file for claim in reversed(listed)}
    wrong += [
        f"{claim.file}: {claim.theorem} is a name of {homes[claim.theorem]}, too"
        for claim in listed
        if homes[claim.theorem] != claim.file
    ]
    wrong += [
        f"{claim.file} is listed, but not there"
        for claim in listed
        if not (root / "proofs" / claim.file).is_file()
    ]
    wrong += [
        f"{claim.file}: {claim.theorem} names no test that is there: {claim.test}"
        for claim in listed
        if not is_a_test(claim.test, root)
    ]
    return wrong


def tables(readme: str, root: Path = ROOT) -> str:
    """proofs/README.md with the table of every file between its marks made anew."""
    listed = claims(root)
    parts = []
    for file in sorted({claim.file for claim in listed}, key=lambda f: _order(f, readme)):
        here = [claim for claim in listed if claim.file == file]
        parts += [f"### {here[0].title}", "", f"[{file}]({file})", ""]
        parts += ["| theorem | in words | formula | held to the code by |", "| :-- | :-- | :-- | :-- |"]
        parts += [
            f'| <a id="{claim.theorem}"></a>`{claim.theorem}` | {_cell(claim.words)} '
            f"| `{_cell(claim.formula)}` | [{claim.test.split('::')[-1]}](../{claim.test.split('::')[0]}) |"
            for claim in here
        ]
        parts.append("")
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n" + "\n".join(parts) + f"{END}{tail}"


def _order(file: str, readme: str) -> tuple[int, str]:
    """Files in the order in which the text before the tables first names them."""
    at = readme.partition(BEGIN)[0].find(f"`{file}`")
    return (at if at >= 0 else len(readme), file)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
