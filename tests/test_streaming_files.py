"""Files that can't be used, wrong calls, and what a failing, killed or interrupted run leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from online_softmax import reference, state
from online_softmax.streaming import FileError, Kernels, NpyReader, run


def float64_kernels(operation: str) -> Kernels:
    """Softmax in float64, whatever the file holds."""

    def write(x, m, s, out, axes):
        m, s = (np.expand_dims(part.astype(np.float64), axes) for part in (m, s))
        out[...] = state.value(x.astype(np.float64), m, s)

    return Kernels(lambda x, axes: reference.state(x, axes), None if operation == "logsumexp" else write)


# --- files that can't be used ---------------------------------------------------------------------


def _npy(header: str) -> bytes:
    body = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


BAD_BYTES = {
    "empty": (b"", "not a .npy file"),
    "text": (b"a,b,c\n1,2,3\n", "not a .npy file"),
    "zip": (b"PK\x03\x04" + bytes(40), "not a .npy file"),
    "magic alone": (b"\x93NUMPY", "not a .npy file"),
    "version 9": (b"\x93NUMPY\x09\x00" + bytes(100), "not a .npy file|version 9.0 is unknown"),
    "cut header": (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }")[:40], "not a .npy file"),
    "no dict": (_npy("[1, 2]"), "not a .npy file"),
    "code": (_npy("__import__('os').getcwd()"), "not a .npy file"),
    "no shape": (_npy("{'descr': '<f4', 'fortran_order': False, }"), "not a .npy file"),
    "bad dtype": (_npy("{'descr': '<q9', 'fortran_order': False, 'shape': (3,), }"), "not a .npy file"),
    "negative": (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }"), "negative length"),
    "no data": (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"), "truncated"),
    "huge": (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**6, 10**6), }"), "not a .npy file"),
    "beyond any file": (
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 99999999999), }"), "truncated"
    ),
}  # fmt: skip


def refused(source: Path, target: Path, match: str, **options) -> None:
    arguments = {"operation": "softmax", "kernels": float64_kernels("softmax"), **options}
    before = source.read_bytes() if source.is_file() else None
    names = sorted(os.listdir(source.parent))
    with pytest.raises(FileError, match=match) as caught:
        run(source, target, **arguments)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(source.parent)) == names
    assert before is None or source.read_bytes() == before


@pytest.mark.parametrize("name", BAD_BYTES)
def test_a_file_that_is_no_npy_is_refused(tmp_path, name):
    data, match = BAD_BYTES[name]
    (tmp_path / "in.npy").write_bytes(data)
    refused(tmp_path / "in.npy", tmp_path / "out.npy", match)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.array([1, None], object), "Python objects"),
        (np.zeros(3, [("a", "<f4"), ("b", "<i4")]), "records"),
        (np.zeros(3, ml_dtypes.bfloat16), "opaque 2-byte elements.*bfloat16"),
        (np.zeros(3, complex), "complex128"),
        (np.array(["a", "b"]), "<U1"),
        (np.array([b"a"]), "S1"),
        (np.zeros(3, "M8[s]"), "datetime64"),
        (np.zeros(3, np.longdouble), "float64 is the widest"),
    ],
    ids=str,
)
def test_a_type_without_a_softmax_is_refused(tmp_path, array, match):
    np.save(tmp_path / "in.npy", array, allow_pickle=True)
    refused(tmp_path / "in.npy", tmp_path / "out.npy", match)


@pytest.mark.parametrize("missing", [1, 4, 2000])
def test_a_truncated_file_is_refused(tmp_path, missing):
    np.save(tmp_path / "in.npy", np.zeros(1000, np.float32))
    os.truncate(tmp_path / "in.npy", 128 + 4000 - missing)
    refused(
        tmp_path / "in.npy",
        tmp_path / "out.npy",
        f"truncated.*4000 bytes of data, the file has {4000 - missing}",
    )


def test_what_is_no_regular_file_is_refused(tmp_path):
    refused(tmp_path / "none.npy", tmp_path / "out.npy", "No such file")
    refused(tmp_path, tmp_path / "out.npy", "not a regular file")
    os.mkfifo(tmp_path / "fifo.npy")
    refused(tmp_path / "fifo.npy", tmp_path / "out.npy", "not a regular file")


def test_bytes_after_the_data_are_ignored(tmp_path):
    with open(tmp_path / "in.npy", "wb") as file:
        np.save(file, np.zeros(4, np.float32))
        np.save(file, np.ones(9))
    run(tmp_path / "in.npy", tmp_path / "out.npy", operation="softmax", kernels=float64_kernels("softmax"))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.full(4, 0.25, np.float32))


def test_a_version_3_header_is_read(tmp_path):
    body = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    data = b"\x93NUMPY\x03\x00" + len(body).to_bytes(4, "little") + body + np.zeros(2, np.float32).tobytes()
    (tmp_path / "in.npy").write_bytes(data)
    with NpyReader(tmp_path / "in.npy") as reader:
        assert reader.header.shape == (2,)
        assert reader.header.offset == len(data) - 8


# --- wrong calls ----------------------------------------------------------------------------------


def test_wrong_arguments(tmp_path):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.zeros((2, 3), np.float32))
    kernels = float64_kernels("softmax")
    for axis in (2, -3, 99):
        refused(source, target, f"axis: {axis} is out of range", axis=axis)
    with pytest.raises(ValueError, match="operation: 'sum' is not one of softmax, log_softmax, logsumexp"):
        run(source, target, operation="sum", kernels=kernels)
    with pytest.raises(ValueError, match=r"memory: 100 bytes is too little; give 4096"):
        run(source, target, operation="softmax", kernels=kernels, memory=100)
    with pytest.raises(ValueError, match=r"^kernels: softmax writes every element"):
        run(source, target, operation="softmax", kernels=float64_kernels("logsumexp"))
    for axis in (0.0, None, True, "0"):
        with pytest.raises(TypeError, match=r"axis: .* is not an integer"):
            run(source, target, operation="softmax", kernels=kernels, axis=axis)
    assert os.listdir(tmp_path) == ["in.npy"]


def test_an_output_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    source = tmp_path / "in.npy"
    np.save(source, np.zeros((2, 3), np.float32))
    (tmp_path / "link.npy").symlink_to(source)
    os.link(source, tmp_path / "hard.npy")
    (tmp_path / "folder").mkdir()
    for name in ("in.npy", "link.npy", "hard.npy", "folder/../in.npy"):
        refused(source, tmp_path / name, "is the input file")
    refused(source, tmp_path / "folder", "not a regular file")
    refused(source, Path("/dev/null"), "not a regular file")
    refused(source, tmp_path / "no" / "out.npy", "No such file or directory")
    refused(source, source / "out.npy", "Not a directory")
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 1, 9, 9, 0, 9, 9, 9, 0, 255)))
    refused(source, tmp_path / "out.npy", "needs 152 bytes, and its file system has 0 free")


# --- atomic output --------------------------------------------------------------------------------


def test_an_output_is_replaced_at_the_end_alone(tmp_path):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.zeros((4, 3000), np.float32))
    target.write_bytes(b"old")
    target.chmod(0o640)
    seen = []

    def watching(x, axes):
        seen.append(target.read_bytes())
        assert any(
            name.startswith(".out.npy.") and name.endswith(".partial") for name in os.listdir(tmp_path)
        )
        return reference.state(x, axes)

    kernels = replace(float64_kernels("softmax"), state=watching)
    run(source, target, operation="softmax", kernels=kernels, memory=4 << 10)
    assert set(seen) == {b"old"}
    assert target.stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(np.load(target), np.full((4, 3000), np.float32(1 / 3000)))


def test_a_new_output_has_the_usual_permissions(tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(4))
    run(tmp_path / "in.npy", tmp_path / "out.npy", operation="softmax", kernels=float64_kernels("softmax"))
    assert (tmp_path / "out.npy").stat().st_mode & 0o777 == (tmp_path / "in.npy").stat().st_mode & 0o777


def test_a_linked_output_is_replaced_where_it_is(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "out.npy").symlink_to(tmp_path / "folder" / "real.npy")
    np.save(tmp_path / "in.npy", np.zeros(4))
    for _ in range(2):
        run(
            tmp_path / "in.npy", tmp_path / "out.npy", operation="softmax", kernels=float64_kernels("softmax")
        )
        assert (tmp_path / "out.npy").is_symlink()
        np.testing.assert_array_equal(np.load(tmp_path / "folder" / "real.npy"), np.full(4, 0.25))


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_failing_run_leaves_what_was_there(tmp_path, old):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.zeros((4, 3000), np.float32))
    if old is not None:
        target.write_bytes(old)

    def failing(x, m, s, out, axes):
        raise ZeroDivisionError("in the middle")

    kernels = replace(float64_kernels("softmax"), write=failing)
    with pytest.raises(ZeroDivisionError, match="in the middle"):
        run(source, target, operation="softmax", kernels=kernels, memory=4 << 10)
    assert sorted(os.listdir(tmp_path)) == (["in.npy"] if old is None else ["in.npy", "out.npy"])
    assert old is None or target.read_bytes() == old


@pytest.mark.parametrize(("harm", "match"), [
    (lambda path: os.truncate(path, 5000), "cut short while it was read"),
    (lambda path: os.utime(path, ns=(1, 1)), "changed while it was read"),
])  # fmt: skip
def test_an_input_that_changes_meanwhile_is_an_error(tmp_path, harm, match):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.zeros((4, 3000), np.float32))

    def harming(x, axes):
        harm(source)
        return reference.state(x, axes)

    kernels = replace(float64_kernels("softmax"), state=harming)
    with pytest.raises(FileError, match=match):
        run(source, target, operation="softmax", kernels=kernels, memory=4 << 10)
    assert os.listdir(tmp_path) == ["in.npy"]


def test_a_full_disk_is_an_error_that_names_the_output(tmp_path, monkeypatch):
    def full(fd, data, position):
        raise OSError(28, "No space left on device")

    np.save(tmp_path / "in.npy", np.zeros(4))
    monkeypatch.setattr(os, "pwrite", full)
    refused(tmp_path / "in.npy", tmp_path / "out.npy", "out.npy: cannot be written: No space left on device")


INTERRUPTED = """
    import sys, time
    from online_softmax import reference
    from online_softmax.streaming import Kernels, run

    def write(x, m, s, out, axes):
        print("writing", flush=True)
        time.sleep(60)

    source, target = sys.argv[1:]
    kernels = Kernels(lambda x, axes: reference.state(x, axes), write)
    run(source, target, operation="softmax", kernels=kernels, memory=4 << 10)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_a_run_that_is_stopped_leaves_no_output(tmp_path, number):
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.zeros((2, 3000), np.float32))
    before = source.read_bytes()
    script = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(source), str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(number)
        child.communicate(timeout=30)
    assert child.returncode != 0
    assert not target.exists()
    assert source.read_bytes() == before
    left = sorted(os.listdir(tmp_path))
    if number is signal.SIGINT:
        assert left == ["in.npy"]
    else:  # nothing of a killed process can tidy up; what it leaves is hidden and never has the output's name
        assert len(left) == 2
        assert left[0].startswith(".out.npy.")
