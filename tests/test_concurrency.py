"""Calls at the same time, before and after a fork, in any batch: each as if it were alone. And what an
import costs."""

from __future__ import annotations

import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import FORMATS, WIDTH, assert_same_bits, noise

import online_softmax as osm
from online_softmax import cpu

OPS = ("softmax", "log_softmax", "logsumexp")
each_format = pytest.mark.parametrize("fmt", FORMATS)
each_isa = pytest.mark.parametrize("isa", cpu.isas())


def jobs(fmt: str):
    """Calls of every kind: small, batched, along another axis, past a segment, weighted, masked, top-k."""
    dtype = FORMATS[fmt]
    row, batch, long = noise((128,), dtype), noise((64, 1000), dtype), noise((2, 70_000), dtype)
    keep = batch.astype(np.float64) > 0
    return [
        lambda: osm.softmax(row),
        lambda: osm.log_softmax(batch),
        lambda: osm.softmax(batch, 0),
        lambda: osm.logsumexp(batch, 0),
        lambda: osm.softmax(batch.T, 0),
        lambda: osm.softmax(long, threads=2),
        lambda: osm.logsumexp(long),
        lambda: osm.logsumexp(batch, b=np.arange(1000.0)),
        lambda: osm.softmax(batch, where=keep),
        lambda: osm.softmax_topk(batch, 5).values,
        lambda: osm.SoftmaxState.of(batch).s,
    ]


@each_format
def test_many_threads_give_the_bits_of_one(fmt):
    calls = jobs(fmt)
    wanted = [call() for call in calls]
    start = threading.Barrier(12)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(calls)), 6))
        start.wait()
        for i in order:
            assert_same_bits(calls[i](), wanted[i], f"call {i}")

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, seed) for seed in range(12)]:
            done.result()


def test_results_are_not_shared():
    """Pooled memory of a result goes back only when nobody holds it."""
    x = noise((64, 40_000), FORMATS["f32"])
    want = osm.softmax(x).copy()
    kept = [osm.softmax(x) for _ in range(4)]
    views = [osm.softmax(x)[i] for i in range(8)]
    osm.softmax(x * 2)
    for result in kept:
        assert_same_bits(result, want)
    for i, view in enumerate(views):
        assert_same_bits(view, want[i])
    starts = {k.__array_interface__["data"][0] for k in kept}
    assert len(starts) == len(kept)


FORK = """
import os, sys, signal, warnings
import numpy as np, online_softmax as osm
warnings.filterwarnings("ignore", category=DeprecationWarning)
x = np.random.default_rng(0).standard_normal((64, 60_000)).astype(np.float32)
want = osm.softmax(x, threads=2).tobytes()
def child():
    same = osm.softmax(x, threads=2).tobytes() == want and osm.softmax(x[0, :128]).sum() > 0.9
    inner = os.fork()
    if inner == 0:
        os._exit(0 if osm.softmax(x, threads=2).tobytes() == want else 1)
    return same and os.waitpid(inner, 0)[1] == 0
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os._exit(0 if child() else 1)
    assert osm.softmax(x, threads=2).tobytes() == want
    assert os.waitpid(pid, 0)[1] == 0, "child failed or hung"
print("done")
"""


def test_fork_after_use(fresh_python):
    done = fresh_python(FORK)
    assert done.stdout.split() == ["done"], done.stderr


def test_import_warns_of_nothing_and_loads_no_framework(fresh_python):
    script = (
        "import sys, online_softmax; online_softmax.softmax([1.0, 2.0]); "
        "frameworks = {'torch', 'jax', 'scipy', 'triton', 'typer', 'rich', 'matplotlib'}; "
        "print(*sorted(frameworks & set(sys.modules)), 'end')"
    )
    done = fresh_python(script)
    assert done.stdout.split() == ["end"], done.stdout + done.stderr
    assert done.stderr == ""


def test_exit_with_work_done_is_clean(fresh_python):
    """Threads and pools are gone by the end: no message, no crash, also under the strictest interpreter."""
    script = (
        "import numpy as np, online_softmax as osm; "
        "y = osm.softmax(np.zeros((300, 40_000), np.float32), threads=2); print(float(y[0, 0]))"
    )
    done = fresh_python(script, "-X", "dev")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert float(done.stdout) == pytest.approx(1 / 40_000, rel=2.0**-23)


@pytest.mark.parametrize(
    "call",
    [
        "osm.softmax(x)",
        "osm.logcumsumexp(x)",
        "osm.cross_entropy(x, t)",
        "osm.attention(q, q, q)",
        "osm.sample(x)",
        "osm.linear_cross_entropy(x, x, t)",
    ],
)
def test_exit_while_daemon_threads_are_in_calls_is_clean(fresh_python, call):
    """They come back to an interpreter that ends, and find no way in."""
    script = (
        "import threading, time, numpy as np, online_softmax as osm\n"
        "x, t = np.zeros((1000, 2000), np.float32), np.zeros(1000, int)\n"
        "q = np.zeros((1, 4, 500, 64), np.float32)\n"
        "def work():\n"
        f"    while True: {call}; done.set()\n"
        "done = threading.Event()\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "done.wait()\n"
    )
    done = fresh_python(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_version_is_the_one_of_the_project():
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert osm.__version__ == tomllib.loads(project.read_text())["project"]["version"]


@each_isa
@each_format
def test_bits_of_a_row_do_not_depend_on_the_batch(fmt, isa):
    """Alone, at every place among 1 to 9 rows, at another address, in padded rows, among special rows."""
    dtype = FORMATS[fmt]
    for n in (1, 2, 3, WIDTH - 1, WIDTH, WIDTH + 1, 31, 64, 100, 128, 129, 256, 257, 1000, 5001):
        row = noise((n,), dtype, seed=n)
        for op in OPS:
            fn = getattr(osm, op)
            want = fn(row, dim=0, isa=isa)
            for rows in range(1, 10):
                x = noise((rows, n), dtype, seed=rows)
                x[rows // 2] = row
                assert_same_bits(fn(x, isa=isa)[rows // 2], want, f"{op}: {rows} rows of {n}")
            padded = np.empty((5, n + 3), dtype)[:, 1 : n + 1]
            padded[:] = row
            padded[2] = np.nan
            assert_same_bits(fn(padded, isa=isa)[4], want, f"{op}: padded rows of {n}")
            for offset in (1, 5):
                moved = np.empty(n + offset, dtype)[offset:]
                moved[:] = row
                assert_same_bits(fn(moved, dim=0, isa=isa), want, f"{op}: {n} elements, offset {offset}")
            if isa == cpu.default_isa():
                assert_same_bits(fn(row), want, f"{op}: {n} elements by the short way")


@pytest.mark.parametrize("algorithm", [a for a in cpu.ALGORITHMS if a != "naive"])
@each_format
def test_bits_of_a_long_row_do_not_depend_on_the_batch(fmt, algorithm):
    """Over segments and threads, where one row may be split and many may be shared out."""
    for n in (32_768, 32_769, 150_001):
        row = noise((n,), FORMATS[fmt], seed=n)
        x = np.stack([noise((n,), FORMATS[fmt], seed=1), row, row])
        for op in OPS:
            fn = getattr(osm, op)
            want = fn(row, algorithm=algorithm, threads=1)
            for threads in (1, 2, 3):
                got = fn(x, algorithm=algorithm, threads=threads)
                assert_same_bits(got[1], want, f"{op}: {n}, {threads} threads")
                assert_same_bits(got[2], want, f"{op}: {n}, {threads} threads")


@each_isa
@each_format
def test_bits_of_a_column_do_not_depend_on_the_others(fmt, isa):
    for n in (1, 3, 64, 300):
        column = noise((n,), FORMATS[fmt], seed=n)
        for op in OPS:
            fn, found = getattr(osm, op), []
            for columns in (2, 3, WIDTH, WIDTH + 1, 64, 65, 200):
                x = noise((n, columns), FORMATS[fmt], seed=columns)
                at = columns - 1 if columns % 2 else columns // 2
                x[:, at] = column
                for threads in (1, 2):
                    got = fn(x, 0, isa=isa, threads=threads)
                    found.append(np.ascontiguousarray(got[at] if op == "logsumexp" else got[:, at]))
            for other in found[1:]:
                assert_same_bits(other, found[0], f"{op}: columns of {n}")


@each_format
def test_bits_of_a_column_do_not_depend_on_there_being_others(fmt):
    for n in (3, 300, 5000):
        column = noise((n,), FORMATS[fmt], seed=n)
        pair = np.stack([column, column[::-1]], axis=1)
        for op in OPS:
            fn = getattr(osm, op)
            both, alone = fn(pair, 0), fn(column[:, None], 0)
            both = both[:1] if op == "logsumexp" else both[:, 0]
            assert_same_bits(both, np.ravel(alone), f"{op} of {n}")


@pytest.mark.parametrize("axis", [0, 1])
def test_repeated_runs_give_the_same_bits(axis):
    x = noise((300, 4099), FORMATS["f32"])
    want = osm.softmax(x, axis)
    for _ in range(20):
        assert_same_bits(osm.softmax(x, axis), want)
