"""`online-softmax explain`: what it prints, its JSON, and how it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_cli import fails

from online_softmax.cli import main
from online_softmax.numerics.explain import explain


def run(capsys, *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_it_prints_the_explanation(capsys) -> None:
    out = run(capsys, "1,2,3,1000", "--dtype", "float16", "--algorithm", "streaming")
    assert out == explain([1, 2, 3, 1000], "float16").text() + "\n"
    assert "wiped out" in out
    assert run(capsys, "1 2, -inf") == explain([1, 2, -np.inf], "float32").text() + "\n"
    blocks = run(capsys, "1,2,3", "--algorithm", "blocked", "--block", "2")
    assert blocks == explain([1, 2, 3], "float32", "blocked", 2).text() + "\n"


def test_a_negative_first_number_follows_two_dashes(capsys) -> None:
    assert run(capsys, "--dtype", "float16", "--", "-1,2") == explain([-1, 2], "float16").text() + "\n"
    assert "--" in run(capsys, "--help")


def test_long_rows_print_their_first_maxima(capsys) -> None:
    row = ",".join(map(str, range(100)))
    assert run(capsys, row).count(": maximum") == 8
    assert run(capsys, row, "--events", "3").count(": maximum") == 3
    assert len(json.loads(run(capsys, row, "--json"))["events"]) == 100


def test_a_row_of_a_file(tmp_path: Path, capsys) -> None:
    file = tmp_path / "scores.npy"
    scores = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    np.save(file, scores)
    assert run(capsys, "--file", str(file), "--row", "5") == explain(scores[1, 2], "float32").text() + "\n"
    assert run(capsys, "--file", str(file)) == explain(scores[0, 0], "float32").text() + "\n"


def test_json_holds_every_field(capsys) -> None:
    told = json.loads(run(capsys, "0,-17.5,-inf", "--dtype", "float16", "--json"))
    assert (told["n"], told["dtype"], told["zeros"], told["masked"], told["m"]) == (3, "float16", 1, 1, 0)
    assert told["s"]["computed"] == 1
    assert 0 < told["s"]["error"] <= told["s"]["bound"]
    special = json.loads(run(capsys, "0,inf", "--json"))
    assert special["m"] == "inf"
    assert "+inf" in special["special"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "row: numbers"),
        (["1,x"], "row: 'x' is no number"),
        (["1", "--file", "a.npy"], "one of them"),
        (["1", "--row", "2"], "--row: it names a row of --file"),
        (["--file", "none.npy"], "none.npy"),
        (["1", "--dtype", "float8"], "dtype: 'float8' is unknown"),
        (["1", "--algorithm", "online"], "algorithm: 'online' is unknown"),
        (["1", "--block", "4"], "block: 4 is given to 'streaming'"),
        (["1", "--events", "-1"], "--events"),
    ],
)
def test_a_wrong_call_fails_in_one_line(arguments: list[str], reason: str, capsys) -> None:
    fails(capsys, ["explain", *arguments], re.escape(reason))


def test_a_wrong_file_fails_in_one_line(tmp_path: Path, capsys) -> None:
    text, single, rows, words = (tmp_path / f"{name}.npy" for name in ("text", "single", "rows", "words"))
    text.write_text("1,2,3")
    np.save(single, np.float32(1))
    np.save(rows, np.zeros((2, 3)))
    np.save(words, np.array(["a", "b"]))
    fails(capsys, ["explain", "--file", str(text)], "--file: .* is no array file")
    fails(capsys, ["explain", "--file", str(single)], "--file: .* holds a single number")
    for index in ("2", "-1"):
        fails(
            capsys, ["explain", "--file", str(rows), "--row", index], "--row: .* holds 2 rows, counted from 0"
        )
    fails(capsys, ["explain", "--file", str(words)], "row: .* real numbers would do")
