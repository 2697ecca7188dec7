"""Check the proofs: `make proofs`.

    python scripts/proofs.py              compile, and compare what Coq says with what is committed
    python scripts/proofs.py --update     write what Coq says into proofs/README.md and statements.txt
    python scripts/proofs.py --install    first install Coq where this user may (Debian, root)

It fails on a file that does not compile, on `Admitted` and whatever else leaves a gap, on an axiom that
proofs/axioms.txt does not allow to the file, on a claim without an entry in proofs/statements/*.toml or an
entry without a claim, and on statements or tables that are out of date. Exit code 1, with every reason; 2
where Coq is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proof_claims import ROOT, Claim, claims, definitions, faults, tables, without_comments

PROOFS = ROOT / "proofs"
#: Compiled outside the tree, so that nothing but what is written by hand lies in proofs/.
BUILD = ROOT / "build" / "proofs"
STATEMENTS = PROOFS / "statements.txt"
LIBRARIES = ("Flocq", "Coquelicot", "Interval")
#: As errors, but for those that the libraries raise when they are loaded.
WARNINGS = "+default,-notation-overridden,-ambiguous-paths,-disj-pattern-notation"
PACKAGES = ("coq", "libcoq-flocq", "libcoq-coquelicot", "libcoq-interval")
_HEAD = re.compile(
    r"^(?:From [^.]+?Require[^.]+(?:\.\w+)*|Import [\w. ]+|(?:Local )?Open Scope \w+)\.\s*$", re.M
)


def install() -> None:
    """Install what is missing with apt-get, where this user may."""
    if shutil.which("coqc") and not missing_libraries():
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", *command], check=True, env=environment, stdout=subprocess.DEVNULL)


def missing_libraries() -> list[str]:
    """The libraries that this Coq does not find."""
    places = [Path(line.split()[0]) for line in coq(["coqc", "-where"]).splitlines() if line]
    roots = [place / "user-contrib" for place in places]
    return [name for name in LIBRARIES if not any((root / name).is_dir() for root in roots)]


def coq(command: list[str], cwd: Path | None = None) -> str:
    """The output of a command; SystemExit with its words where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def dependencies(files: list[str]) -> dict[str, set[str]]:
    """File -> the files of ours it needs, as coqdep tells."""
    needs: dict[str, set[str]] = {}
    for line in coq(["coqdep", "-Q", ".", "OnlineSoftmax", *files], BUILD).splitlines():
        made, _, used = line.partition(":")
        name = made.split()[0].removesuffix(".vo") + ".v" if made.split()[0].endswith(".vo") else ""
        if name in files:
            needs[name] = {f"{u[:-3]}.v" for u in used.split() if u.endswith(".vo")} & set(files)
    return needs


def compile_all(jobs: int) -> dict[str, float]:
    """Compile every file after those it needs; file -> seconds."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for old in BUILD.iterdir():
        old.unlink()
    files = sorted(path.name for path in PROOFS.glob("*.v"))
    for name in files:
        shutil.copy(PROOFS / name, BUILD / name)
    needs = dependencies(files)
    spent: dict[str, float] = {}

    def one(name: str) -> None:
        start = time.perf_counter()
        coq(["coqc", "-q", "-w", WARNINGS, "-Q", ".", "OnlineSoftmax", name], BUILD)
        spent[name] = time.perf_counter() - start

    with ThreadPoolExecutor(jobs) as pool:
        left, running = set(files), {}
        while left or running:
            for name in sorted(left):
                if needs[name] <= spent.keys() and len(running) < jobs:
                    left.discard(name)
                    running[name] = pool.submit(one, name)
            if not running:
                raise SystemExit(f"proofs: {', '.join(sorted(left))} need each other")
            time.sleep(0.02)
            for name in [n for n, future in running.items() if future.done()]:
                running.pop(name).result()
    return spent


def ask(name: str, files: list[str], queries: list[str]) -> None:
    """Put queries to Coq under the files' own imports and scopes: it prints what their authors read."""
    lines = []
    for file in files:
        lines += _HEAD.findall(without_comments((PROOFS / file).read_text(encoding="utf-8")))
        lines.append(f"From OnlineSoftmax Require Import {file.removesuffix('.v')}.")
    lines += ["Set Printing Width 110.", "Set Printing Depth 1000.", *queries]
    (BUILD / f"{name}.v").write_text("\n".join(lines) + "\n", encoding="utf-8")
    coq(["coqc", "-q", "-Q", ".", "OnlineSoftmax", f"{name}.v"], BUILD)


def statements_of(file: str, names: list[str]) -> list[str]:
    """A file's definitions and the statements of its theorems, as Coq prints them."""
    module = file.removesuffix(".v")
    queries = [f'Redirect "{module}.{name}" Print {module}.{name}.' for name in definitions(file)]
    ask(
        f"Ask{module}",
        [file],
        queries + [f'Redirect "{module}.{name}" Check {module}.{name}.' for name in names],
    )
    names = definitions(file) + names
    return [(BUILD / f"{module}.{name}.out").read_text(encoding="utf-8").strip() for name in names]


def axioms_of(name: str, theorems: list[str]) -> list[str]:
    """The axioms that any of the theorems (`Law.merge_assoc`) rests on, in one look: they share most."""
    together = "".join(f"(@{theorem}, " for theorem in theorems) + "tt" + ")" * len(theorems)
    files = sorted({f"{theorem.split('.')[0]}.v" for theorem in theorems})
    requires = [f"From OnlineSoftmax Require {file.removesuffix('.v')}." for file in files]
    query = [f"Definition together := {together}.", f'Redirect "{name}" Print Assumptions together.']
    ask(f"Ask{name}", [], requires + query)
    _, _, axioms = (BUILD / f"{name}.out").read_text(encoding="utf-8").partition("Axioms:")
    return sorted(re.findall(r"^([A-Za-z_][\w.']*)", axioms, re.M))


def allowed() -> dict[str, set[str]]:
    """File, or `*` for every file -> the axioms it may rest on, from proofs/axioms.txt."""
    table: dict[str, set[str]] = {}
    for line in (PROOFS / "axioms.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            files, *names = line.split()
            for file in files.split(","):
                table.setdefault(file, set()).update(names)
    return table


def new_axioms(name: str, claims_of: dict[str, list[str]]) -> list[str]:
    """What is wrong with the axioms of files that may rest on the same ones, asked by file where it is."""
    table = allowed()
    may = table.get("*", set()).union(*(table.get(file, set()) for file in claims_of))
    theorems = [f"{file.removesuffix('.v')}.{name}" for file, names in claims_of.items() for name in names]
    found = [axiom for axiom in axioms_of(name, theorems) if axiom not in may]
    if found and len(claims_of) > 1:
        alone = [new_axioms(f"{name}{file.removesuffix('.v')}", {file: n}) for file, n in claims_of.items()]
        return [reason for reasons in alone for reason in reasons]
    return [
        f"{file} rests on the axiom {axiom}, which proofs/axioms.txt does not allow it"
        for file in claims_of
        for axiom in found
    ]


def examine(all_claims: list[Claim], jobs: int) -> tuple[str, list[str]]:
    """(every statement as Coq prints it, what is wrong with axioms)."""
    files = {claim.file: [c.theorem for c in all_claims if c.file == claim.file] for claim in all_claims}
    table = allowed()
    groups: dict[frozenset[str], dict[str, list[str]]] = {}
    for file in sorted(files):
        groups.setdefault(frozenset(table.get(file, set())), {})[file] = files[file]
    with ThreadPoolExecutor(jobs) as pool:
        axioms = [pool.submit(new_axioms, f"axioms{n}", group) for n, group in enumerate(groups.values())]
        texts = list(pool.map(lambda file: statements_of(file, files[file]), sorted(files)))
    text = []
    for file, statements in zip(sorted(files), texts, strict=True):
        text += [f"{file}\n{'=' * len(file)}\n", *(f"{statement}\n" for statement in statements)]
    return "\n".join(text), [reason for future in axioms for reason in future.result()]


def main() -> int:
    """Exit code: 0 all holds, 1 something does not, 2 no Coq."""
    parser = argparse.ArgumentParser(description="Check the proofs.")
    parser.add_argument("--update", action="store_true", help="write README.md's tables and statements.txt")
    parser.add_argument("--install", action="store_true", help="install Coq where this user may")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    wanted = parser.parse_args()
    if wanted.install:
        install()
    missing = ["coqc"] if not shutil.which("coqc") else missing_libraries()
    if missing:
        print(f"proofs: no {', '.join(missing)} here; Debian has {' '.join(PACKAGES)}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    wrong = faults()
    spent = compile_all(wanted.jobs)
    all_claims = claims()
    statements, axioms = examine(all_claims, wanted.jobs)
    wrong += axioms
    readme = PROOFS / "README.md"
    for path, right in ((STATEMENTS, statements), (readme, tables(readme.read_text(encoding="utf-8")))):
        if wanted.update:
            path.write_text(right, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != right:
            wrong.append(f"{path.relative_to(ROOT)} is out of date: python scripts/proofs.py --update")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{seconds:7.1f} s  {name}")
    took = time.perf_counter() - start
    print(f"{len(all_claims)} claims in {len(spent)} files, checked in {took:.0f} s, {len(wrong)} wrong")
    for reason in wrong:
        print(f"proofs: {reason}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
