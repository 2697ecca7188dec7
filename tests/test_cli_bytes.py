"""`online-softmax bytes`: the numbers it prints and writes, what it draws, and how it fails."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_cli import fails

from online_softmax.cli import main
from online_softmax.traffic import compare, devices, links, model, roofline
from online_softmax.traffic.shapes import Attention, Projection, Rows, States

ROWS = "--rows 8192 --cols 4096"
PEAK = "--bandwidth 2.0TB/s --ridge 35 --llc 256MB"
CASE = [*ROWS.split(), "--dtype", "float32"]
GIVEN = PEAK.split()
MACHINE = GIVEN[:2]
#: Options an operation is counted with, and the record they mean.
SIZES: dict[type, tuple[str, Any]] = {
    Rows: ("--rows 64 --cols 1000", Rows(64, 1000, 2)),
    Projection: (
        "--tokens 512 --hidden 64 --vocab 1000 --block-tokens 64 --block-vocab 100",
        Projection(512, 64, 1000, 2, 64, 100),
    ),
    Attention: (
        "--batch 2 --heads 4 --kv-heads 2 --seq 128 --seq-k 256 --head-dim 64",
        Attention(2, 4, 2, 128, 256, 64, 2),
    ),
    States: ("--rows 64 --parts 8 --values 16", States(64, 8, 16)),
}
VOCABULARY = "--op vocabulary_parallel --rows 8 --cols 100 --ranks 4 --link 1GB/s"


def run(capsys, *arguments: str) -> str:
    assert main(["bytes", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def written(tmp_path: Path, capsys, *arguments: str) -> dict[str, Any]:
    """The JSON a call writes."""
    file = tmp_path / "bytes.json"
    run(capsys, *arguments, "--json", str(file))
    return json.loads(file.read_text(encoding="utf-8"))


def row(text: str, algorithm: str) -> list[str]:
    """The cells of an algorithm's line of the table."""
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [algorithm])
    return re.split(r"\s{2,}", line.strip())


def prose(text: str) -> str:
    """The output with line breaks and runs of blanks as single ones: remarks run over lines."""
    return " ".join(text.split())


# ---- the worked example


@pytest.mark.parametrize(
    ("algorithm", "passes", "read", "total", "floor", "speedup"),
    [
        ("naive", ["2", "1", "3"], "268,435,456", "402.7 MB", "201.3 us", "1.33x"),
        ("three_pass", ["3", "1", "4"], "402,653,184", "536.9 MB", "268.4 us", "1.00x"),
        ("online", ["2", "1", "3"], "268,435,456", "402.7 MB", "201.3 us", "1.33x"),
        ("cached", ["1", "1", "2"], "134,217,728", "268.4 MB", "134.2 us", "2.00x"),
    ],
)
def test_the_table_of_8192_rows_of_4096_float32(
    capsys, algorithm: str, passes: list[str], read: str, total: str, floor: str, speedup: str
) -> None:
    cells = row(run(capsys, *CASE, *GIVEN), algorithm)
    assert cells[:8] == [algorithm, *passes, read, "134,217,728", total, floor]
    assert cells[8] == speedup
    assert cells[10] == "memory"
    if algorithm == "cached":
        assert cells[9] == "1.375"


def test_the_logsumexp_line_of_the_table(capsys) -> None:
    """One read and no write: T, and a number a row."""
    cells = row(run(capsys, "--op", "logsumexp", *CASE, *GIVEN), "online")
    assert cells[1:7] == ["1", "0", "1", "134,217,728", "32,768", "134.3 MB"]


def test_what_is_said_of_the_worked_example(capsys) -> None:
    text = prose(run(capsys, *CASE, *GIVEN))
    assert "softmax: rows 8192, columns 4096, itemsize 4" in text
    assert "2.00 TB/s, ridge 35 flop/byte, cache 256.0 MB" in text
    assert "row 16.4 kB (16 KiB), tensor 134.2 MB (128 MiB): tensor in cache" in text
    assert re.search(r"rows of 31\.2 kB \(7812 columns\).* 8192 rows in flight", text)
    assert re.search(r"the whole tensor, 134\.2 MB \(128 MiB\), fits the 256\.0 MB cache", text)
    assert "1.375 flop/byte, 25 times under the ridge of 35" in text


def test_32_kib_a_row_against_256_mib(capsys) -> None:
    text = prose(run(capsys, *CASE, *MACHINE, "--llc", "256MiB"))
    assert "rows of 32.8 kB (32 KiB) (8192 columns)" in text


def test_the_json_of_the_worked_example(tmp_path, capsys) -> None:
    got = written(tmp_path, capsys, *CASE, *GIVEN)
    lines = {line["algorithm"]: line for line in got["algorithms"]}
    t = 134_217_728
    assert {name: line["bytes_total"] for name, line in lines.items()} == {
        "naive": 402_653_184,
        "three_pass": 536_870_912,
        "online": 402_653_184,
        "cached": 268_435_456,
    }
    for name, reads, exps in (("naive", 2, 2), ("three_pass", 3, 2), ("online", 2, 2), ("cached", 1, 1)):
        line = lines[name]
        assert (line["reads"], line["writes"], line["traversals"]) == (reads, 1, reads + 1)
        assert (line["bytes_read"], line["bytes_written"], line["bytes_allocated"]) == (reads * t, t, 0)
        assert line["exps"] * 4 == exps * t
        assert line["each_tensor_once"]["bytes_total"] == 2 * t
    assert lines["cached"]["intensity"] == 1.375
    assert lines["cached"]["flops"] * 4 == 11 * t
    seconds = {name: line["floor_seconds"] for name, line in lines.items()}
    assert [round(1e6 * seconds[name], 1) for name in ("three_pass", "online", "cached")] == [
        268.4,
        201.3,
        134.2,
    ]
    assert [round(lines[name]["speedup"], 2) for name in ("online", "cached")] == [1.33, 2.0]
    assert (got["operation"], got["baseline"]) == ("softmax", "three_pass")
    assert got["sizes"] == {"rows": 8192, "columns": 4096, "itemsize": 4, "k": 0}
    assert got["machine"]["ridge_flops_per_byte"] / lines["cached"]["intensity"] == pytest.approx(
        25.45, abs=0.01
    )
    assert got["machine"]["last_level_bytes"] == 256_000_000
    assert got["regime"] == {
        "name": "tensor in cache",
        "row_bytes": 16_384,
        "tensor_bytes": t,
        "resident_rows": 8192,
        "deciding_row_bytes": 31_250,
    }
    mebibytes = written(tmp_path, capsys, *CASE, *MACHINE, "--llc", "256MiB")
    assert mebibytes["regime"]["deciding_row_bytes"] == 32_768


def test_128_columns_are_a_matter_of_launch(tmp_path, capsys) -> None:
    small = ["--rows", "8192", "--cols", "128"]
    text = prose(run(capsys, *small, "--device", "h200"))
    assert "tensor 4.2 MB (4 MiB): tensor in cache" in text
    assert "launch, latency and instructions decide, not the number of passes" in text
    got = written(tmp_path, capsys, *small, "--device", "h200")
    device = devices.device("h200")
    assert got["regime"]["tensor_bytes"] == 4 << 20
    assert got["machine"]["launch_seconds"] == device.launch_seconds
    assert min(line["floor_seconds"] for line in got["algorithms"]) <= 4 * device.launch_seconds
    # A machine whose launches are not known says nothing of them; nor do large arrays.
    assert "launch" not in run(capsys, *small, *GIVEN)
    assert "decide, not" not in prose(run(capsys, "--rows", "65536", "--cols", "65536", "--device", "h200"))


def test_allocated_lines_are_a_read_more(tmp_path, capsys) -> None:
    got = written(tmp_path, capsys, *CASE, *GIVEN, "--write-allocate")
    for line in got["algorithms"]:
        assert line["bytes_allocated"] == 134_217_728
        assert line["bytes_total"] == (line["traversals"] + 1) * 134_217_728


# ---- every operation


@pytest.mark.parametrize("operation", model.OPERATIONS)
def test_every_operation(tmp_path, capsys, operation: str) -> None:
    """What is written is the comparison itself; what is printed has a line for each algorithm."""
    options, shape = SIZES[model.shape_of(operation)]
    # States are float32 whatever their data were.
    dtype = [] if operation == "merge" else ["--dtype", "bfloat16"]
    arguments = ["--op", operation, *options.split(), *dtype]
    if operation == "softmax_topk":
        arguments, shape = [*arguments, "--k", "5"], Rows(64, 1000, 2, 5)
    got = written(tmp_path, capsys, *arguments, *GIVEN)
    machine = roofline.given(2.0e12, 35.0, 256_000_000)
    assert got == compare.compare(operation, shape, machine).as_json()
    text = run(capsys, *arguments, *GIVEN)
    for name in model.algorithms(operation):
        total = model.count(operation, name, shape).total
        assert f"{total / 1000:.1f} kB" in row(text, name) or f"{total / 1e6:.1f} MB" in row(text, name)


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8", 1)],
)
def test_every_format(tmp_path, capsys, dtype: str, itemsize: int) -> None:
    got = written(tmp_path, capsys, "--rows", "8", "--cols", "100", "--dtype", dtype, *MACHINE)
    assert got["sizes"]["itemsize"] == itemsize
    assert {line["algorithm"]: line["bytes_total"] for line in got["algorithms"]}["cached"] == 1600 * itemsize


@pytest.mark.parametrize("device", devices.names())
def test_every_device(tmp_path, capsys, device: str) -> None:
    got = written(tmp_path, capsys, *CASE, "--device", device)
    machine = roofline.of_device(devices.device(device), "float32")
    assert got == compare.compare("softmax", Rows(8192, 4096, 4), machine).as_json()


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ("--op attention --seq 64 --head-dim 16", Attention(1, 1, 1, 64, 64, 16, 4)),
        (
            "--op attention --seq 64 --head-dim 16 --heads 6 --causal --block-q 32 --block-k 16",
            Attention(1, 6, 6, 64, 64, 16, 4, 32, 16, causal=True),
        ),
        (
            "--op decode --seq 1 --seq-k 640 --head-dim 16 --heads 8 --kv-heads 2 --splits 5",
            Attention(1, 8, 2, 1, 640, 16, 4, splits=5),
        ),
    ],
)
def test_lengths_and_heads_that_are_left_out(tmp_path, capsys, arguments: str, shape: Attention) -> None:
    """One head, batch 1, as many keys as queries, as many key-value heads as heads."""
    assert written(tmp_path, capsys, *arguments.split(), *MACHINE)["sizes"] == vars(shape)


def test_on_chip_memory_is_in_bytes(capsys) -> None:
    arguments = ["--op", "attention", "--seq", "4096", "--head-dim", "64", *MACHINE, "--onchip", "100KB"]
    assert "the 25000 elements on chip" in prose(run(capsys, *arguments))
    assert "the 50000 elements on chip" in prose(run(capsys, *arguments, "--dtype", "float16"))


def test_rows_in_flight(tmp_path, capsys) -> None:
    arguments = [*CASE, *MACHINE, "--llc", "1MiB"]
    assert written(tmp_path, capsys, *arguments)["regime"]["name"] == "rows past cache"
    got = written(tmp_path, capsys, *arguments, "--resident-rows", "64")["regime"]
    assert (got["name"], got["resident_rows"], got["deciding_row_bytes"]) == ("rows in cache", 64, 16_384)


def test_huge_sizes_are_exact(tmp_path, capsys) -> None:
    got = written(tmp_path, capsys, "--rows", str(10**20), "--cols", str(10**20), *MACHINE)
    totals = {line["algorithm"]: line["bytes_total"] for line in got["algorithms"]}
    assert totals["three_pass"] == 16 * 10**40


def test_sizes_past_what_a_float_holds_end_in_words(capsys) -> None:
    fails(capsys, ["bytes", "--rows", "1" + "0" * 400, "--cols", "1", *MACHINE], "")


def test_this_machine_is_measured(tmp_path, capsys) -> None:
    got = written(tmp_path, capsys, *CASE, "--device", "this")
    machine = got["machine"]
    assert machine["name"].startswith("this machine")
    for figure in (
        "bandwidth_bytes_per_second",
        "ridge_flops_per_byte",
        "exps_per_second",
        "launch_seconds",
        "last_level_bytes",
    ):
        assert machine[figure] > 0
    for line in got["algorithms"]:
        assert line["floor_seconds"] >= line["bytes_total"] / machine["bandwidth_bytes_per_second"]
    # Measured once: the same machine, whether it is asked for or meant.
    assert written(tmp_path, capsys, *CASE)["machine"] == machine


# ---- links


def test_schedules_over_a_link(tmp_path, capsys) -> None:
    sizes = ["--rows", "8192", "--cols", "128000", "--ranks", "8", "--dtype", "bfloat16"]
    arguments = ["--op", "vocabulary_parallel", *sizes, "--link", "450GB/s", "--latency", "5us"]
    got = written(tmp_path, capsys, *arguments)
    kind, _ = links.OPERATIONS["vocabulary_parallel"]
    assert got == links.compare("vocabulary_parallel", kind(8192, 128_000, 2, 8), 450e9, 5e-6).as_json()
    text = run(capsys, *arguments)
    assert "link 450.00 GB/s a direction, latency 5.0 us a step" in text
    assert row(text, "gather_logits")[1:4] == ["7", "1,835,008,000", "1,835,008,000"]
    assert row(text, "ring")[1:4] == ["14", "172,032", "12,288"]
    assert row(text, "tree")[1:4] == ["3", "294,912", "98,304"]


def test_the_link_of_a_device(tmp_path, capsys) -> None:
    sizes = ["--seq", "1", "--seq-k", "131072", "--heads", "32", "--kv-heads", "8", "--head-dim", "128"]
    arguments = ["--op", "context_parallel", *sizes, "--ranks", "8", "--device", "h200"]
    device = devices.device("h200")
    got = written(tmp_path, capsys, *arguments)
    assert got["link"] == {
        "bytes_per_second": device.link_bandwidth,
        "latency_seconds": device.link_latency,
    }
    assert [entry["algorithm"] for entry in got["schedules"]] == ["ring", "tree"]
    got = written(tmp_path, capsys, *arguments, "--link", "1GB/s", "--latency", "1ms")
    assert got["link"] == {"bytes_per_second": 1e9, "latency_seconds": 1e-3}


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ("", "--link: needed for this operation"),
        ("--link fast", "--link: 'fast' is not a rate"),
        ("--link 1GB/s --latency 5", "--latency: '5' is not a time"),
        ("--device nope", "device='nope' is unknown"),
        ("--link 1GB/s --ranks 0", "ranks=0"),
        ("--link 1GB/s --seq 3", "--seq: is of no effect on this operation"),
    ],
)
def test_a_link_is_needed(capsys, more: str, match: str) -> None:
    fails(capsys, ["bytes", *VOCABULARY.split()[:-2], *more.split()], match)


def test_shared_heads_of_shards_divide_evenly(capsys) -> None:
    sizes = ["--seq", "4", "--head-dim", "8", "--heads", "3", "--kv-heads", "2", "--ranks", "2"]
    fails(capsys, ["bytes", "--op", "context_parallel", *sizes, "--link", "1GB/s"], "heads=3")


# ---- pictures


PICTURES = {
    "rows": f"{ROWS} {PEAK}",
    "a device, and lines allocated": f"{ROWS} --device h200 --write-allocate",
    "one short row": f"--op logsumexp --rows 1 --cols 1 {PEAK}",
    "top": f"--op softmax_topk --k 3 --rows 64 --cols 40 {PEAK}",
    "attention": f"--op attention --seq 512 --head-dim 64 --causal {PEAK}",
    "decoding": "--op decode --seq 1 --seq-k 4096 --head-dim 64 --splits 4 --bandwidth 2TB/s",
    "no curve": f"--op merge --rows 64 --parts 8 {PEAK}",
    "products": f"--op linear_cross_entropy {SIZES[Projection][0]} --device h100",
}


@pytest.mark.parametrize("arguments", PICTURES.values(), ids=PICTURES)
def test_an_svg_is_drawn(tmp_path, capsys, arguments: str) -> None:
    file = tmp_path / "bytes.svg"
    run(capsys, *arguments.split(), "--plot", str(file))
    root = ElementTree.parse(file).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


@pytest.mark.parametrize("picture", ["rows", "no curve"])
def test_an_svg_is_drawn_the_same_each_time(tmp_path, capsys, picture: str) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for file in (first, second):
        run(capsys, *PICTURES[picture].split(), "--plot", str(file))
    assert first.read_bytes() == second.read_bytes()


def test_a_png_is_drawn(tmp_path, capsys) -> None:
    run(capsys, *CASE, *GIVEN, "--plot", str(tmp_path / "bytes.png"))
    drawn = (tmp_path / "bytes.png").read_bytes()
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    assert drawn[-8:-4] == b"IEND"


# ---- bad input


HEADS = "--op attention --seq 8 --head-dim 8"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("--op nope", "'nope' is unknown.*'softmax'"),
        ("--op=", "'' is unknown"),
        (f"{ROWS} --dtype int8", "--dtype: 'int8' is not one of float64"),
        (f"{ROWS} --device abacus", "'abacus' is unknown.*'h200'"),
        # Sizes that are missing.
        ("", "--rows, --cols: needed"),
        ("--rows 8", "--cols: needed"),
        ("--op attention --seq 8", "--head-dim: needed"),
        ("--op attention --seq-k 8 --head-dim 8", "--seq: needed"),
        ("--op linear_cross_entropy --tokens 8", "--hidden, --vocab: needed"),
        ("--op merge --rows 8", "--parts: needed"),
        ("--op softmax_topk --rows 8 --cols 8", "--k: needed"),
        # Sizes that do not belong.
        (f"{ROWS} --heads 8", "--heads: is of no effect on this operation"),
        (f"{ROWS} --k 8", "--k: is of no effect on this operation"),
        (f"{ROWS} --causal", "--causal: is of no effect on this operation"),
        (f"{ROWS} --seq-k 4", "--seq-k: is of no effect on this operation"),
        (f"{ROWS} --ranks 4", "--ranks: is of no effect on this operation"),
        ("--op merge --rows 8 --parts 2 --cols 4", "--cols: is of no effect"),
        (f"{HEADS} --k 4", "--k: is of no effect"),
        # Sizes that make no sense.
        ("--rows 0 --cols 5", "nothing is read"),
        ("--rows 5 --cols 0", "nothing is read"),
        ("--rows -1 --cols 5", "rows=-1"),
        ("--rows 5 --cols -5", "columns=-5"),
        ("--rows many --cols 5", ".*--rows"),
        ("--rows 1.5 --cols 5", ".*--rows"),
        ("--op attention --seq 0 --head-dim 8", "seq_q=0"),
        ("--op attention --seq 8 --head-dim -8", "head_dim=-8"),
        (f"{HEADS} --block-q 0", "block_q=0"),
        (f"{HEADS} --heads 0", "heads=0"),
        (f"{HEADS} --heads 4 --kv-heads 0", "kv_heads=0"),
        (f"{HEADS} --heads 6 --kv-heads 4", "heads=6"),
        ("--op decode --seq 1 --seq-k 8 --head-dim 8 --splits 9", "splits=9"),
        ("--op linear_cross_entropy --tokens 0 --hidden 8 --vocab 8", "tokens=0"),
        ("--op merge --rows 8 --parts 0", "parts=0"),
        ("--op merge --rows 0 --parts 2", "nothing is read"),
        ("--op softmax_topk --rows 8 --cols 8 --k 9", "k=9: 0 to columns=8 would do"),
        ("--op softmax_topk --rows 8 --cols 8 --k -1", "k=-1"),
        # Machines that make no sense.
        (f"{ROWS} --ridge 35", "--ridge: needs --bandwidth"),
        (f"{ROWS} --llc 1MB", "--llc: needs --bandwidth"),
        (f"{ROWS} --device h200 --bandwidth 1GB/s", "--bandwidth: a known device has its own figure"),
        (f"{ROWS} --device h200 --ridge 35", "--ridge: a known device"),
        (f"{ROWS} --device this --llc 1MB", "--llc: a known device"),
        (f"{ROWS} --bandwidth 2TB", "--bandwidth: '2TB' is not a rate"),
        (f"{ROWS} --bandwidth 0GB/s", "--bandwidth: '0GB/s' is not a rate"),
        (f"{ROWS} --bandwidth -1GB/s", "--bandwidth: '-1GB/s' is not a rate"),
        (f"{ROWS} --bandwidth=", "--bandwidth: '' is not a rate"),
        (f"{ROWS} --bandwidth 1GB/s --ridge steep", ".*--ridge"),
        (f"{ROWS} --bandwidth 1GB/s --ridge 0", "ridge=0"),
        (f"{ROWS} --bandwidth 1GB/s --ridge -35", "ridge=-35"),
        (f"{ROWS} --bandwidth 1GB/s --ridge nan", "ridge=nan"),
        (f"{ROWS} --bandwidth 1GB/s --llc 256MX", "--llc: '256MX' is not a size"),
        (f"{ROWS} --bandwidth 1GB/s --llc -1", "--llc: '-1' is not a size"),
        (f"{ROWS} --bandwidth 1GB/s --llc 1MB --resident-rows -2", "resident_rows=-2"),
        (f"{HEADS} --onchip big", "--onchip: 'big' is not a size"),
        (f"{HEADS} --onchip 100", "onchip=25: at least"),
        # Options.
        (f"{ROWS} --nope 3", ".*--nope"),
        (f"{ROWS} extra", ".*extra"),
        ("--rows", ".*--rows"),
    ],
)
def test_bad_input_ends_in_one_line(capsys, arguments: str, match: str) -> None:
    told = any(option in arguments for option in ("--bandwidth", "--device", "--ridge", "--llc"))
    fails(capsys, ["bytes", *arguments.split(), *([] if told else MACHINE)], match)


def test_files_that_cannot_be_written_are_named_before_any_work(tmp_path, capsys, monkeypatch) -> None:
    arguments = ["bytes", *CASE, *MACHINE]
    fails(
        capsys,
        [*arguments, "--plot", str(tmp_path / "x.pdf")],
        "--plot: .*x.pdf does not end in .svg or .png",
    )
    fails(capsys, [*arguments, "--plot", "x"], "--plot: x does not end in")
    fails(capsys, [*arguments, "--plot", str(tmp_path / "no" / "x.svg")], "--plot: .* cannot be written")
    (tmp_path / "folder.svg").mkdir()
    fails(capsys, [*arguments, "--plot", str(tmp_path / "folder.svg")], "--plot: .* cannot be written")
    fails(capsys, [*arguments, "--json", str(tmp_path)], "--json: .* cannot be written")
    fails(capsys, [*arguments, "--json", str(tmp_path / "no" / "x.json")], "--json: .* cannot be written")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    fails(capsys, [*arguments, "--plot", "x.svg"], r".*matplotlib.*pip install 'online-softmax\[plots\]'")
    assert os.listdir(tmp_path) == ["folder.svg"]


DECODE = "--op decode --seq 1 --seq-k 64 --head-dim 8"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (ROWS, "--link 1GB/s"),
        (ROWS, "--latency 5us"),
        (ROWS, "--onchip 100KB"),
        (ROWS, "--resident-rows 64"),
        (HEADS, "--resident-rows 64"),
        (HEADS, "--splits 4"),
        (DECODE, "--block-q 4"),
        (DECODE, "--block-k 4"),
        (DECODE, "--onchip 100KB"),
        (VOCABULARY, "--plot x.svg"),
        (VOCABULARY, "--bandwidth 1GB/s"),
        (VOCABULARY, "--ridge 35"),
        (VOCABULARY, "--llc 1MB"),
        (VOCABULARY, "--onchip 100KB"),
        (VOCABULARY, "--resident-rows 64"),
        (VOCABULARY, "--write-allocate"),
    ],
)
def test_an_option_that_would_not_be_applied_is_refused(capsys, arguments: str, option: str) -> None:
    machine = [] if arguments == VOCABULARY else MACHINE
    fails(capsys, ["bytes", *arguments.split(), *machine, *option.split()], option.split()[0])


@pytest.mark.parametrize(
    "arguments",
    [
        [*CASE, *GIVEN, "--resident-rows", "0"],
        [*CASE, "--bandwidth", "1" + "0" * 400 + "B/s"],
        [*CASE, *MACHINE, "--ridge", "inf"],
        ["--op", "logsumexp", "--rows", "3", "--cols", "0", *MACHINE, "--ridge", "35"],
    ],
    ids=["no row in flight", "a rate past what a float holds", "an infinite ridge", "rows of nothing"],
)
def test_numbers_that_nothing_can_be_made_of_end_in_one_line(capsys, arguments: list[str]) -> None:
    fails(capsys, ["bytes", *arguments], "")


def test_one_part_to_merge(tmp_path, capsys) -> None:
    got = written(tmp_path, capsys, "--op", "merge", "--rows", "10", "--parts", "1", *MACHINE)
    assert [line["bytes_total"] for line in got["algorithms"]] == [160, 160]


def test_decode_takes_the_context_as_its_keys(tmp_path, capsys) -> None:
    arguments = ["--op", "decode", "--heads", "8", "--head-dim", "64", *MACHINE]
    sizes = written(tmp_path, capsys, *arguments, "--seq", "4096")["sizes"]
    assert (sizes["seq_q"], sizes["seq_k"]) == (1, 4096)
    sizes = written(tmp_path, capsys, *arguments, "--seq", "4", "--seq-k", "4096")["sizes"]
    assert (sizes["seq_q"], sizes["seq_k"]) == (4, 4096)


def test_short_names_and_capitals(tmp_path, capsys) -> None:
    arguments = ["--rows", "8", "--cols", "8"]
    plain = written(tmp_path, capsys, *arguments, "--device", "h100", "--dtype", "bfloat16")
    assert written(tmp_path, capsys, *arguments, "--device", "H100", "--dtype", "bf16") == plain


def test_what_matrix_products_need_is_said(capsys) -> None:
    arguments = ["--op", "attention", "--seq", "32768", "--heads", "32", "--head-dim", "128", "--causal"]
    text = prose(run(capsys, *arguments, "--dtype", "bfloat16", "--device", "h100"))
    assert "ridge 19.97 flop/byte, 295.3 in matrix products" in text
    assert "standard needs 137.4 GB (128 GiB) beside its operands, more than the 80.0 GB there are" in text
    assert "flash those of the tiles the mask leaves" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CASE, *MACHINE, "--llc", "0"], "--llc: '0' is no cache"),
        ([*CASE, *MACHINE, "--ridge", "1e308"], "ridge=1e"),
        ([*CASE, "--bandwidth", "0.5B/s"], "--bandwidth: '0.5B/s' is not a rate"),
        ([*CASE, "--bandwidth", "9" * 5000 + "B/s"], "--bandwidth: '9999"),
        ([*CASE, *MACHINE, "--llc", "9" * 5000], "--llc: '9999"),
        ([*VOCABULARY.split(), "--latency", "9" * 320 + "s"], "--latency: '9999"),
        ([*VOCABULARY.split(), "--latency", "9" * 20 + "s"], "--latency: '9999"),
        ([*CASE, *MACHINE, "--json", "a.svg", "--plot", "a.svg"], "--plot: a.svg is given to --json too"),
    ],
)
def test_figures_out_of_this_world_end_in_one_line(capsys, arguments: list[str], message: str) -> None:
    fails(capsys, ["bytes", *arguments], message)


def test_a_merge_of_one_part_is_drawn(tmp_path, capsys) -> None:
    out = tmp_path / "x.png"
    run(capsys, "--op", "merge", "--rows", "4", "--parts", "1", *MACHINE, "--plot", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")
