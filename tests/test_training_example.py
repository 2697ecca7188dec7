"""The training example: run short as a person would run it, and made to fail where it should."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import online_softmax as osm
from online_softmax import reference

torch = pytest.importorskip("torch", reason="torch, which the example trains with, is missing")

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of examples/."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a new interpreter, on one thread: tests share the cores."""
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "ONLINE_SOFTMAX_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "train_language_model.py"), *arguments],
        capture_output=True, text=True, timeout=280, check=False, env=environment,
    )  # fmt: skip


def test_it_runs_and_says_what_it_measured(tmp_path: Path) -> None:
    svg = tmp_path / "made" / "curve.svg"
    found = run("--steps=3", "--tokens=512", "--features=32", f"--svg={svg}")
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    lines = [line.split() for line in found.stdout.splitlines()]
    words = int(lines[0][5])
    assert words > 2000
    start = lines.index(["step", "ours", "framework", "apart", "may", "be"])
    losses = [float(line[1]) for line in lines[start + 1 : start + 4]]
    for number, line in enumerate(lines[start + 1 : start + 4], 1):
        step, ours, framework, apart, most = map(float, line)
        assert step == number
        assert ours == pytest.approx(framework, abs=1.1e-5)  # printed to five places
        assert 0 <= apart <= most < 1e-3
    assert abs(losses[0] - math.log(words)) < 0.5
    assert losses[2] < losses[0]
    peaks = {line[0]: float(line[2]) for line in lines[start + 4 :] if line[-1:] == ["MiB"]}
    logits = 4 * 512 * words / 2**20
    assert peaks["ours"] + logits <= peaks["framework"]
    text = svg.read_text()
    assert text.count("<svg") == 1
    assert "1970" not in text  # no date: the same run gives the same file


def test_words_joined_again_are_the_text(example: Callable[[str], Any]) -> None:
    module = example("language_text")
    text = module.load(None)
    assert len(text) > 200_000
    made = module.corpus(text)
    assert "".join(made.words[i] for i in made.ids) == text
    assert made.ids.max() == len(made.words) - 1
    even = module.corpus("a b a b ")
    assert even.words == ["a", " b", " a", " "]
    np.testing.assert_allclose(module.corpus(" a b" * 4).unigram, math.log(2), rtol=1e-15)
    pairs = list(module.batches(np.arange(50), 3, 7, 2, seed=1))
    assert len(pairs) == 2
    for contexts, targets in pairs:
        assert contexts.shape == (7, 3)
        np.testing.assert_array_equal(contexts[:, -1] + 1, targets)


@pytest.fixture
def operands() -> list[Any]:
    rng = np.random.default_rng(0)
    hidden, weight = (rng.standard_normal(s).astype(np.float32) for s in ((40, 16), (90, 16)))
    return [torch.from_numpy(a) for a in (hidden, weight, rng.integers(0, 90, 40))]


def test_the_head_is_the_reference_without_copies(
    example: Callable[[str], Any], operands: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = example("language_model").LinearCrossEntropy
    hidden, weight, targets = operands
    right = osm.linear_cross_entropy_with_gradient
    seen = []

    def watched(*arrays: np.ndarray, **options: Any) -> Any:
        seen.extend(arrays)
        return right(*arrays, **options)

    monkeypatch.setattr(osm, "linear_cross_entropy_with_gradient", watched)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    loss = head.apply(*leaves, targets, 1 << 20)
    assert [a.ctypes.data for a in seen] == [t.data_ptr() for t in operands]
    arrays = [t.detach().numpy() for t in operands]
    for scale in (1.0, 3.0):
        made = torch.autograd.grad(loss, leaves, torch.tensor(scale), retain_graph=True)
        truth = reference.linear_cross_entropy_vjp(*arrays, scale)
        np.testing.assert_allclose(made[0].numpy(), truth.hidden, rtol=0, atol=scale * 2.0**-22)
        np.testing.assert_allclose(made[1].numpy(), truth.weight, rtol=0, atol=scale * 2.0**-22)
    assert loss.item() == pytest.approx(reference.linear_cross_entropy(*arrays), rel=2.0**-22)


def test_what_is_moved_is_moved_by_a_bound_that_holds(
    example: Callable[[str], Any], operands: list[Any]
) -> None:
    module = example("language_model")
    hidden, weight, targets = operands
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]

    def moved(seed: int) -> Any:
        rng = torch.Generator().manual_seed(seed)
        logits = (hidden @ weight.T).detach()
        return torch.autograd.grad(module.Moved.apply(*leaves, targets, logits, rng), leaves)

    ours = torch.autograd.grad(module.LinearCrossEntropy.apply(*leaves, targets, 1 << 20), leaves)
    truth = reference.linear_cross_entropy_vjp(*(t.detach().numpy() for t in operands), 1.0)
    for made, again, mine, right in zip(moved(1), moved(1), ours, truth, strict=False):
        assert torch.equal(made, again)
        by = np.abs(made.double().numpy() - right)
        error = np.abs(mine.double().numpy() - right)
        assert by.min() > 0
        # The move is the bound give or take the framework's own error, which is far below it.
        assert (error < 0.5 * by).mean() > 0.99
        assert by.max() < 1e-4
    assert not torch.equal(moved(1)[0], moved(2)[0])


def test_faults_are_told(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, module = example("train_language_model"), example("language_model")
    text = example("language_text").corpus(example("language_text").load(None)[:40_000])
    given = module.Settings(steps=3, tokens=64, embedding=8, features=16)
    runs = {head: module.train(head, text, given) for head in script.HEADS}
    limits = module.allowed(runs["framework"], [runs["moved 1"], runs["moved 2"]])
    assert all(0 < limit < 1e-3 for limit in limits)
    peaks = {
        name: result._replace(peak=peak)
        for (name, result), peak in zip(runs.items(), (1, 9, 0, 0), strict=True)
    }
    assert script.faults(peaks, limits, 8, text.unigram) == []
    assert [line.split(":")[0] for line in script.faults(peaks, limits, 9, text.unigram)] == [
        "the peaks are 0.0 MiB and 0.0 MiB"
    ]
    right = osm.linear_cross_entropy_with_gradient

    def spoilt(*arguments: Any, **options: Any) -> Any:
        loss, made = right(*arguments, **options)
        made.weight[...] *= np.float32(1 + 2.0**-7)
        return loss, made

    monkeypatch.setattr(osm, "linear_cross_entropy_with_gradient", spoilt)
    wrong = script.faults(
        peaks | {"ours": module.train("ours", text, given)._replace(peak=1)}, limits, 8, 9.0
    )
    assert len(wrong) == 1
    assert "the losses are" in wrong[0]
    still = runs["framework"]._replace(losses=[4.0] * 60, peak=9)
    stuck = {"ours": still._replace(peak=0), "framework": still}
    assert script.faults(stuck, [0.0] * 60, 8, 4.5) == []
    assert script.faults(stuck, [0.0] * 60, 8, 3.5) == ["the last loss is 4.000: less than 3.500 would do"]
    lost = {"ours": still._replace(losses=[math.nan] * 60, peak=0), "framework": still}
    assert len(script.faults(lost, [1.0] * 60, 8, 4.5)) == 2
    script.picture(tmp_path / "curve.svg", runs, limits, text.unigram)
    first = (tmp_path / "curve.svg").read_bytes()
    script.picture(tmp_path / "curve.svg", runs, limits, text.unigram)
    assert (tmp_path / "curve.svg").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--steps", "0"), 2, "--steps: 0: 1 or more would do"),
        (("--file", "missing.txt"), 1, "--file missing.txt: there is no such file; a text in UTF-8 would do"),
        (("--file", __file__ + "x"), 1, "a text in UTF-8 would do"),
    ],
)
def test_it_says_what_would_do(arguments: tuple[str, ...], code: int, message: str) -> None:
    found = run(*arguments)
    assert found.returncode == code
    assert message in found.stderr


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("A few words.", "utf-8")
    found = run("--file", str(short))
    assert found.returncode == 1
    assert "4 words; at least 64 would do" in found.stderr
