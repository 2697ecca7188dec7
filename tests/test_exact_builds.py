"""native/exact.h makes the bits of the golden files however it is compiled: optimisation, contraction of
products and sums, with and without an instruction for it, subnormal numbers flushed or not. What would
reorder sums does not compile."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import exact_golden
import numpy as np
import pytest
from exact_golden import Results
from exact_rows import FORMATS

SOURCE = Path(__file__).parent / "exact_builds.cpp"
COMPILER = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
X86 = platform.machine() in ("x86_64", "AMD64")
HAS_FMA = X86 and " fma " in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False
LEVELS = ("-O0", "-O1", "-O2", "-O3")
CONTRACTIONS = ("-ffp-contract=off", "-ffp-contract=fast")
#: Instruction sets beyond the compiler's own: the last lets it vectorise with fused multiply-adds.
SETS = ((), ("-mfma",), ("-mavx2", "-mfma")) if HAS_FMA else ((),)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: c++, g++ or clang++")


def compiled(folder: Path, compiler: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [compiler, "-std=c++20", *flags, str(SOURCE), "-o", str(folder / "rows")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All families of float32 and float64, as the program reads them."""
    file = tmp_path_factory.mktemp("exact_builds") / "rows.bin"
    with file.open("wb") as stream:
        for form in FORMATS:
            for rows in exact_golden.families(form.dtype).values():
                stream.write(np.array([form.dtype.itemsize, *rows.shape], np.int64).tobytes())
                stream.write(np.ascontiguousarray(rows).tobytes())
    return file


def digests(folder: Path, rows_file: Path, flush: bool, *emulator: str) -> dict[str, dict[str, str]]:
    """What a program makes of them."""
    out = folder / f"results{flush:d}.bin"
    command = [*emulator, str(folder / "rows"), f"{flush:d}", str(rows_file), str(out)]
    subprocess.run(command, timeout=120, check=True)
    found: dict[str, dict[str, str]] = {}
    with out.open("rb") as stream:
        for form in FORMATS:
            found[form.dtype.name] = {}
            for family, rows in exact_golden.families(form.dtype).items():
                shapes = ((len(rows),), (len(rows), form.slices), (len(rows),), rows.shape, rows.shape)
                kinds = (form.dtype, np.dtype(np.int64), form.dtype, form.dtype, form.dtype)
                parts = [
                    np.fromfile(stream, kind, int(np.prod(shape))).reshape(shape)
                    for kind, shape in zip(kinds, shapes, strict=True)
                ]
                found[form.dtype.name][family] = exact_golden.digest(Results(*parts), form, form.dtype)
        assert not stream.read(1)
    return found


def wanted() -> dict[str, dict[str, str]]:
    return {form.dtype.name: exact_golden.golden(form)[form.dtype.name] for form in FORMATS}


@needs_compiler
@pytest.mark.parametrize("extra", SETS, ids=lambda flags: " ".join(flags) or "plain")
@pytest.mark.parametrize("contraction", CONTRACTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_build_makes_the_golden_bits(
    level: str, contraction: str, extra: tuple[str, ...], rows_file: Path, tmp_path: Path
) -> None:
    made = compiled(tmp_path, COMPILER or "", level, contraction, *extra, "-Wall", "-Wextra", "-Werror")
    assert made.returncode == 0, made.stderr
    assert digests(tmp_path, rows_file, False) == wanted()
    if X86 or platform.machine() == "aarch64":
        assert digests(tmp_path, rows_file, True) == wanted()


@pytest.mark.skipif(
    CROSS is None or EMULATOR is None, reason="needs aarch64-linux-gnu-g++ and qemu-aarch64, arm64's"
)
def test_arm64_makes_the_golden_bits(rows_file: Path, tmp_path: Path) -> None:
    made = compiled(tmp_path, CROSS or "", "-O2", "-ffp-contract=fast", "-static")
    assert made.returncode == 0, made.stderr
    for flush in (False, True):
        assert digests(tmp_path, rows_file, flush, EMULATOR or "") == wanted()


@needs_compiler
@pytest.mark.parametrize(
    "flags",
    [("-ffast-math",), ("-Ofast",), ("-O2", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")],
)
def test_a_build_that_reorders_sums_is_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    made = compiled(tmp_path, COMPILER or "", *flags)
    assert made.returncode != 0
    assert "reassociat" in made.stderr


def test_the_rows_have_numbers_that_a_machine_may_flush() -> None:
    for form in FORMATS:
        rows = exact_golden.families(form.dtype)["edges"]
        small = (rows != 0) & (np.abs(rows) < form.least)
        assert small.any(axis=-1).sum() > 10
