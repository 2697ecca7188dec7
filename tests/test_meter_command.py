"""The command `meter`: what it takes, prints and writes, and how it refuses."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, and kernels are defined

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from online_softmax.cli import meter as cli  # noqa: E402
from online_softmax.traffic.meter.run import parse_argument, parse_grid  # noqa: E402

SAMPLES = Path(__file__).parent / "kernels"


def command(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(cli.command)
    app(args=list(arguments), standalone_mode=False)


SOFTMAX = (
    f"{SAMPLES / 'rows.py'}:three_pass",
    "--grid=4",
    "--arg=x=f32[4,1024]",
    "--arg=out=f32[4,1024]",
    "--arg=n=1024",
    "--constexpr=BLOCK=1024",
)


def test_the_command_prints_and_writes_the_counts(tmp_path, capsys):
    path = tmp_path / "counts.json"
    command(*SOFTMAX, "--cache=64KiB", "--ways=16", "--line=128", "--interleave=2", f"--json={path}")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        "three_pass, 4 x 1 x 1 programs: read 49,152 bytes, 12,288 to 12,288 a program; wrote 16,384 bytes, "
        "4,096 to 4,096 a program"
    )
    (line,) = (line for line in printed if line.split()[:1] == ["x"] and "3.0000" in line)
    assert line.split() == [
        *("x", "16,384", "49,152", "3.0000", "16,384", "0", "0.0000", "0", "0", "1,536", "0", "12"),
    ]
    assert (
        "cache of 65,536 bytes, 16 ways, lines of 128 bytes, 2 in flight: missed 16,384 bytes read, "
        "16,384 written"
    ) in printed
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["read"], found["written"], found["replay"]["read"]) == (49152, 16384, 16384)


def test_options_of_the_cache_are_applied(tmp_path, capsys):
    path = tmp_path / "counts.json"
    command(*SOFTMAX, "--cache=12KiB", "--ways=3", "--line=64", "--interleave=4", f"--json={path}")
    replay = json.loads(path.read_text(encoding="utf-8"))["replay"]
    assert [replay[name] for name in ("size", "ways", "line", "interleave")] == [12 << 10, 3, 64, 4]
    assert replay["read"] == 3 * 16384
    command(*SOFTMAX, "--cache=32KiB", f"--json={path}")
    replay = json.loads(path.read_text(encoding="utf-8"))["replay"]
    assert [replay[name] for name in ("size", "ways", "line", "interleave")] == [32 << 10, 16, 128, 1]
    assert replay["read"] == 16384
    command(*SOFTMAX, f"--json={path}")
    assert "replay" not in json.loads(path.read_text(encoding="utf-8"))


def test_a_module_by_name_and_labels_with_a_bound(capsys, monkeypatch):
    monkeypatch.chdir(SAMPLES.parent)
    command(
        *("kernels.lanes:histogram", "--grid=2", "--arg=labels=i64[100]:10", "--arg=counts=i32[10]"),
        *("--arg=n=100", "--constexpr=BLOCK=64"),
    )
    assert capsys.readouterr().out.startswith("histogram, 2 x 1 x 1 programs: read 800 bytes, 288 to 512")


def test_an_autotuned_kernel_is_run_as_the_command_says(tmp_path, capsys):
    tuned = tmp_path / "tuned.py"
    body = (SAMPLES / "lanes.py").read_text(encoding="utf-8").split("@triton.jit\n")
    configs = "[triton.Config({'BLOCK': 64}), triton.Config({'BLOCK': 128})]"
    text = f"{body[0]}@triton.autotune(configs={configs}, key=['n'])\n@triton.jit\n{body[1]}"
    tuned.write_text(text, encoding="utf-8")
    sizes = [f"--arg={name}=f32[64]" for name in ("x", "y", "out")]
    command(f"{tuned}:add", "--grid=2", *sizes, "--arg=n=64", "--constexpr=BLOCK=32")
    assert capsys.readouterr().out.startswith("add, 2 x 1 x 1 programs: read 512 bytes, 256 to 256 a program")


LANES = SAMPLES / "lanes.py"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nowhere.py:k",), "nowhere.py: no such file"),
        (
            ("no_such_module:k",),
            "no_such_module: cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ((str(SAMPLES / "rows.py"),), "MODULE:KERNEL or FILE.py:KERNEL would do"),
        ((f"{SAMPLES / 'rows.py'}:four_pass",), "has no 'four_pass': three_pass, cached, scaled, scale"),
        ((f"{LANES}:NOT_A_KERNEL",), "no @triton.jit kernel"),
        ((f"{LANES}:without_tensors", "--arg=n=1"), "kernel 'without_tensors' takes no tensors"),
        ((f"{LANES}:broken", "--arg=x=f32[1]", "--constexpr=FAIL=1"), "'broken' fails under the interpreter"),
        (
            (f"{LANES}:fill_out_of_bounds", "--arg=out=f32[4]", "--arg=at=4"),
            "out of bounds: kernel 'fill_out_of_bounds'",
        ),
        ((*SOFTMAX, "--grid=0"), "--grid: '0'"),
        ((*SOFTMAX, "--grid=1,1,1,1"), "--grid: '1,1,1,1'"),
        ((*SOFTMAX, "--arg=z=1"), "--arg: three_pass has no parameter 'z': x, out, n, BLOCK"),
        ((*SOFTMAX, "--arg=n=5"), "--arg: n is given twice"),
        (SOFTMAX[:4] + SOFTMAX[5:], "--arg: 'n' of three_pass is not given"),
        (SOFTMAX[:5], "--constexpr: 'BLOCK' of three_pass is not given"),
        ((*SOFTMAX[:5], "--arg=BLOCK=1024"), "--arg: 'BLOCK' of three_pass: --constexpr BLOCK=... would do"),
        (
            (*SOFTMAX[:4], "--constexpr=n=1024", SOFTMAX[5]),
            "--constexpr: 'n' of three_pass: --arg n=... would do",
        ),
        ((*SOFTMAX, "--ways=4"), "--ways: belongs to a replay"),
        ((*SOFTMAX, "--cache=much"), "--cache: 'much'"),
        ((*SOFTMAX, "--cache=1000"), "--cache: 1000 bytes; a positive multiple of 2048"),
        ((*SOFTMAX, "--json=nowhere/x.json"), "--json: nowhere/x.json cannot be written"),
    ],
)
def test_wrong_commands(change, message):
    arguments = change if any(part.startswith("--grid") for part in change) else (*change, "--grid=1")
    with pytest.raises(ValueError, match=re.escape(message)):
        command(*arguments)


def test_a_file_that_does_not_import(tmp_path):
    path = tmp_path / "unfinished.py"
    for text, message in (
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("def", "invalid syntax"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"unfinished.py: cannot be imported: .*{message}"):
            command(f"{path}:k", "--grid=1")


def test_words_for_arguments():
    assert parse_grid("8, 4,2") == (8, 4, 2)
    assert parse_argument("n = -3") == ("n", -3)
    assert parse_argument("eps=1e-5") == ("eps", 1e-5)
    assert parse_argument("flag=true") == ("flag", True)
    assert parse_argument("bias=None") == ("bias", None)
    name, tensor = parse_argument("x=bf16[]")
    assert (name, tensor.dtype, tensor.shape, tensor.below) == ("x", "bf16", (), None)
    for text, message in (
        ("x=f33[4]", "'f33' is no format: f64, f32, f16, bf16, i64, i32, i16, i8, u8, i1 would do"),
        ("x=f32[4]:3", "a bound of 1 or more, and only for whole numbers"),
        ("x=i32[4]:0", "a bound of 1 or more"),
        ("x=f32[-4]", "a tensor as f32"),
        ("x=", "NAME=VALUE"),
        ("3=4", "NAME=VALUE"),
    ):
        with pytest.raises(ValueError, match=f"--arg: .*{message}"):
            parse_argument(text)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "i1"])
def test_tensors_of_every_format_are_the_same_for_the_same_seed(dtype):
    _, tensor = parse_argument(f"x={dtype}[3,5]")
    made = [tensor.make(np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert made[0].shape == (3, 5)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("raise ValueError('boom')", "ValueError: boom"),
        ("unknown", "NameError"),
    ],
)
def test_a_kernel_file_that_fails_is_named(tmp_path, monkeypatch, text, message):
    """As a file and as a module; whatever it does."""
    name = f"failing_{abs(hash(text)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(text + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for target in (f"{name}.py", name):
        with pytest.raises(
            ValueError, match=f"{re.escape(target)}: cannot be imported: {re.escape(message)}"
        ):
            command(f"{target}:k", "--grid=1")


@pytest.mark.parametrize("target", [".kk:add", "..:k", "a-b:k"])
def test_what_is_no_module_name(target):
    with pytest.raises(ValueError, match=r"the name of a module, or of a \.py file, would do"):
        command(target, "--grid=1")
