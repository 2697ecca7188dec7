"""isa=, algorithm= and threads= force a choice; environment variables only move the default; nothing falls
back in silence."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import FORMATS, assert_same_bits, noise

import online_softmax as osm
from online_softmax import cpu

DEFAULTS = (
    "from online_softmax import cpu; print(cpu.default_isa(), cpu.default_algorithm(), cpu.default_threads())"
)
#: Prints bytes of a small call, of a call past the small path and of a reduced axis that is not the last.
RESULTS = """
import numpy as np, online_softmax as osm
x = np.random.default_rng(0).standard_normal(200 * 300).astype(np.float32)
for a, axis in ((x[:128], -1), (x.reshape(200, 300), -1), (x.reshape(200, 300), 0)):
    print(osm.softmax(a, axis{0}).tobytes().hex(), osm.logsumexp(a, axis{0}).tobytes().hex())
"""


def test_isas_best_first():
    assert cpu.isas()[-1] == "scalar"
    assert len(set(cpu.isas())) == len(cpu.isas())
    assert cpu.default_isa() == cpu.isas()[0]
    assert cpu.default_algorithm() == "auto"
    assert cpu.default_threads() >= 1


def test_variants_name_what_exists():
    names = cpu.variants()
    assert len(set(names)) == len(names)
    for name in names:
        _, dtype, isa, algorithm = name.split(".")
        assert dtype in FORMATS
        assert isa in cpu.isas()
        assert algorithm in cpu.ALGORITHMS


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("fmt", FORMATS)
def test_forced_isa_is_used(fmt, isa):
    """Widths differ, so that sums of the scalar kernel and of a vector one differ somewhere in many rows."""
    x = noise((400, 1001), FORMATS[fmt])
    forced = osm.logsumexp(x, isa=isa)
    assert_same_bits(osm.logsumexp(x, isa=isa), forced)
    if isa == cpu.default_isa():
        assert_same_bits(osm.logsumexp(x), forced)


def test_forced_algorithm_is_used():
    """naive overflows where the others do not, in whatever way it is asked for."""
    x = np.array([1000.0, 1000.0], np.float32)
    routes = {
        "last axis": lambda **choice: osm.softmax(x, **choice),
        "another axis": lambda **choice: osm.softmax(np.stack([x, x], axis=1), 0, **choice)[:, 0],
        "strided": lambda **choice: osm.softmax(np.repeat(x, 2)[::2], **choice),
        "masked": lambda **choice: osm.softmax(np.append(x, 1), where=[True, True, False], **choice)[:2],
        "long": lambda **choice: osm.softmax(np.repeat(x, 50_000), threads=2, **choice)[:2],
    }
    for name, route in routes.items():
        assert np.isnan(route(algorithm="naive")).all(), name
        assert np.isfinite(route()).all(), name
    for weights in (None, [1.0, 2.0]):
        assert osm.logsumexp(x, b=weights, algorithm="naive") == np.inf
        assert osm.logsumexp(np.append(x, 1), where=[True, True, False], algorithm="naive") == np.inf
    assert np.isnan(osm.softmax(x, algorithm="naive")).all()
    assert osm.logsumexp(x, algorithm="naive") == np.inf
    for algorithm in set(cpu.ALGORITHMS) - {"naive"}:
        np.testing.assert_array_equal(osm.softmax(x, algorithm=algorithm), [0.5, 0.5])


@pytest.mark.parametrize("shape", [(7, 1000), (1, 300_001), (3, 100_000), (5, 33, 41)])
@pytest.mark.parametrize("fmt", FORMATS)
def test_threads_do_not_change_a_bit(fmt, shape):
    x = noise(shape, FORMATS[fmt])
    for axis in (-1, 0):
        for op in (osm.softmax, osm.log_softmax, osm.logsumexp):
            want = op(x, axis, threads=1)
            for threads in (2, 3, 8, 64):
                assert_same_bits(op(x, axis, threads=threads), want, f"{threads} threads, axis {axis}")
            assert_same_bits(op(x, axis), want)


def test_info_says_what_is_in_force():
    info = osm.info()
    assert info["isa"] == cpu.default_isa()
    assert info["threads"] == cpu.default_threads()
    assert info["algorithm"] == cpu.default_algorithm()


@pytest.mark.parametrize("isa", cpu.isas())
def test_isa_variable_moves_the_default(fresh_python, isa):
    done = fresh_python(DEFAULTS, ONLINE_SOFTMAX_ISA=isa)
    assert done.stdout.split()[0] == isa, done.stderr
    moved = fresh_python(RESULTS.format(""), ONLINE_SOFTMAX_ISA=isa)
    forced = fresh_python(RESULTS.format(f", isa='{isa}'"))
    assert moved.returncode == forced.returncode == 0, moved.stderr + forced.stderr
    assert moved.stdout == forced.stdout


def test_algorithm_variable_moves_the_default(fresh_python):
    script = (
        "import numpy as np, online_softmax as osm; x = np.full(64, 1000, np.float32); "
        "print(np.isnan(osm.softmax(x)).all(), osm.logsumexp(x), osm.softmax(x, algorithm='online')[0])"
    )
    done = fresh_python(script, ONLINE_SOFTMAX_ALGORITHM="naive")
    assert done.stdout.split() == ["True", "inf", "0.015625"], done.stderr
    done = fresh_python(DEFAULTS, ONLINE_SOFTMAX_ALGORITHM="three_pass")
    assert done.stdout.split()[1] == "three_pass", done.stderr


def test_threads_variable_moves_the_default(fresh_python):
    done = fresh_python(DEFAULTS, ONLINE_SOFTMAX_THREADS="3")
    assert done.stdout.split()[2] == "3", done.stderr


def test_a_forced_choice_wins_over_the_variable(fresh_python):
    script = RESULTS.format(", isa='scalar', algorithm='online', threads=2")
    best = cpu.isas()[0]
    moved = fresh_python(
        script, ONLINE_SOFTMAX_ISA=best, ONLINE_SOFTMAX_ALGORITHM="naive", ONLINE_SOFTMAX_THREADS="1"
    )
    assert moved.stdout == fresh_python(script).stdout, moved.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONLINE_SOFTMAX_ISA", "mmx"),
        ("ONLINE_SOFTMAX_ISA", "AVX-2"),
        ("ONLINE_SOFTMAX_ALGORITHM", "fastest"),
        ("ONLINE_SOFTMAX_THREADS", "0"),
        ("ONLINE_SOFTMAX_THREADS", "-2"),
        ("ONLINE_SOFTMAX_THREADS", "two"),
        ("ONLINE_SOFTMAX_THREADS", "1.5"),
    ],
)
@pytest.mark.parametrize("size", [64, 100_000])
def test_a_bad_variable_raises_and_is_named(fresh_python, name, value, size):
    """In a small call as in a large one: no silent fallback."""
    script = f"import numpy as np, online_softmax as osm; osm.softmax(np.zeros({size}, np.float32))"
    done = fresh_python(script, **{name: value})
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError"), done.stderr
    assert name in last
    assert value in last


def test_an_isa_this_machine_lacks_is_refused():
    absent = {"avx512", "avx2", "neon"} - set(cpu.isas())
    for isa in absent:
        with pytest.raises(ValueError, match=f"isa.*{isa}"):
            osm.softmax(np.zeros(4), isa=isa)
