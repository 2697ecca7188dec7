"""The books of the proofs: each claim listed, in words, with a test. Coq itself runs in `make proofs`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def books():
    """scripts/proof_claims.py, which is in no package."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import proof_claims
    finally:
        sys.path.pop(0)
    return proof_claims


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with one proof, one entry and one test."""
    for folder in ("proofs/statements", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proofs/Law.v").write_text(
        "(* Axiom a. (* Theorem no. *) *)\nTheorem one : True.\nProof. exact I. Qed.\n"
    )
    (tmp_path / "proofs/statements/law.toml").write_text(
        'title = "The law"\n[[statement]]\ntheorem = "one"\nwords = "One\n is."\nformula = "a | b"\n'.replace(
            "\n is", " is"
        )
        + 'test = "tests/test_a.py::test_one"\n'
    )
    (tmp_path / "proofs/axioms.txt").write_text("* Luck.luck\n")
    (tmp_path / "tests/test_a.py").write_text("def test_one(): ...\n")
    return tmp_path


def test_every_claim_has_its_words_and_its_test(books):
    assert books.faults() == []
    assert len(books.claims()) >= 40


def test_the_tables_are_those_of_the_claims(books):
    readme = (ROOT / "proofs" / "README.md").read_text(encoding="utf-8")
    assert books.tables(readme) == readme
    printed = (ROOT / "proofs" / "statements.txt").read_text(encoding="utf-8")
    assert [c.theorem for c in books.claims() if f"\n{c.theorem}\n" not in printed.replace(" :", "\n")] == []


def test_nothing_is_wrong_with_a_right_tree(books, tree):
    assert books.faults(tree) == []
    assert "| `a \\| b` |" in books.tables("x <!-- claims: begin --> old <!-- claims: end -->\n", tree)


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("proofs/Law.v", "Qed", "Admitted", "Law.v: Admitted"),
        ("proofs/Law.v", "Theorem one", "Axiom", "Law.v: Axiom"),
        ("proofs/Law.v", "exact I", "admit", "Law.v: admit"),
        ("proofs/Law.v", "Theorem one", 'Set Warnings "-all". Theorem one', "Law.v: Set Warnings"),
        ("proofs/axioms.txt", "Luck", "Law", "Law.v has the name of a module whose axioms are allowed"),
        ("proofs/Law.v", "Theorem one", "Unset Guard Checking. Theorem one", "Law.v: Unset Guard Checking"),
        ("proofs/Law.v", "Theorem one", "Corollary two", "Law.v: two has no entry in proofs/statements/"),
        ("proofs/Law.v", "Theorem one", "Lemma one", "Law.v: one is listed, but not proved there"),
        (
            "tests/test_a.py",
            "test_one",
            "test_two",
            "Law.v: one names no test that is there: tests/test_a.py::test_one",
        ),
    ],
)
def test_each_fault_is_seen(books, tree, file, old, new, fault):
    path = tree / file
    path.write_text(path.read_text().replace(old, new))
    assert fault in books.faults(tree)
