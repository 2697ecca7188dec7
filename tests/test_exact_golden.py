"""Every path that promises the same bits makes those of tests/golden/, which the law in fractions wrote."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import exact_golden
import exact_model
import exact_rows
import numpy as np
import pytest
from exact_golden import Results
from exact_rows import Array

import online_softmax as osm
from online_softmax import cpu, cpu_exact, exact
from online_softmax.exact import FLOAT32, FLOAT64, Format, format_of

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_golden.py"


def results_of(rows: Array, state: exact.State) -> Results:
    """By the definition, from a state however it was come by."""
    form = format_of(rows.dtype)
    (m, a), x = state, rows.astype(form.dtype)
    with np.errstate(over="ignore"):
        y = exact.value(x, m[:, None], a[:, None], form).astype(rows.dtype)
        log_y = exact.log_value(x, m[:, None], a[:, None], form).astype(rows.dtype)
    return Results(m, a, exact.lse(m, a, form), y, log_y)


def definition(rows: Array) -> Results:
    form = format_of(rows.dtype)
    return results_of(rows, exact.state(rows.astype(form.dtype), form))


def native(rows: Array, *, isa: str | None, threads: int | None) -> Results:
    with np.errstate(over="ignore"):
        choice = {"isa": isa, "threads": threads}
        y, log_y = np.empty_like(rows), np.empty_like(rows)
        cpu_exact.softmax(rows, y, (1,), **choice)
        cpu_exact.softmax(rows, log_y, (1,), log=True, **choice)
        return Results(
            *cpu_exact.state(rows, (1,), **choice), cpu_exact.logsumexp(rows, (1,), **choice), y, log_y
        )


def native_by_states(rows: Array, *, isa: str) -> Results:
    """The write pass alone, and what is read off states."""
    state = cpu_exact.state(rows, (1,), isa=isa)
    y, log_y = np.empty_like(rows), np.empty_like(rows)
    with np.errstate(over="ignore"):
        cpu_exact.normalize(rows, *state, y, (1,), isa=isa)
        cpu_exact.normalize(rows, *state, log_y, (1,), log=True, isa=isa)
    return Results(*state, cpu_exact.lse(*state), y, log_y)


def native_columns(rows: Array, *, isa: str) -> Results:
    """The same rows, as columns of memory in the other order."""
    turned = np.asfortranarray(rows)
    y, log_y = np.empty_like(turned), np.empty_like(turned)
    with np.errstate(over="ignore"):
        cpu_exact.softmax(turned, y, (1,), isa=isa)
        cpu_exact.softmax(turned, log_y, (1,), log=True, isa=isa)
    state = cpu_exact.state(turned, (1,), isa=isa)
    return Results(*state, cpu_exact.logsumexp(turned, (1,), isa=isa), y, log_y)


def pieces(rows: Array, seed: int) -> list[Array]:
    """The row's elements in an order and in parts, some of them empty, that hashes choose."""
    n = rows.shape[1]
    order = np.argsort(exact_rows.hashed((n,), seed), kind="stable")
    cuts = np.sort(exact_rows.hashed((seed,), seed + 1) % np.uint64(n + 1)).astype(np.int64)
    return np.split(rows[:, order], cuts, axis=1)


def split(rows: Array, *, seed: int, merge: Callable[[exact.State, exact.State], exact.State]) -> Results:
    """Parts in any order, merged by halves."""
    form = format_of(rows.dtype)
    states = [exact.state(part.astype(form.dtype), form) for part in pieces(rows, seed)]
    while len(states) > 1:
        pairs = [merge(*pair) for pair in zip(states[::2], states[1::2], strict=False)]
        states = pairs + states[2 * len(pairs) :]
    return results_of(rows, states[0])


def defined_merge(left: exact.State, right: exact.State) -> exact.State:
    return exact.merge(left, right, format_of(left[0].dtype))


def functions(rows: Array) -> Results:
    """What a caller has: the functions of the package, and its class of states."""
    state = osm.ExactState.of(rows)
    return Results(
        state.m,
        state.a,
        osm.logsumexp(rows.astype(state.dtype), order="any"),
        osm.softmax(rows, order="any"),
        osm.log_softmax(rows, order="any"),
    )


def through_bytes(rows: Array) -> Results:
    """Parts that have been to a file and back, merged at once; and what a state of them says of the row."""
    packed = [osm.ExactState.of(part).to_bytes() for part in pieces(rows, 4)]
    state = osm.ExactState.merge_many([osm.ExactState.from_bytes(data) for data in packed])
    return Results(state.m, state.a, state.lse, state.prob(rows), state.logprob(rows))


#: Name -> rows (r, n) to results. A further path (a GPU's, a build's) is a further entry.
PATHS: dict[str, exact_golden.Path_] = {
    "definition": definition,
    "split": partial(split, seed=5, merge=defined_merge),
    "functions": functions,
    "through bytes": through_bytes,
    "split, native merge": partial(split, seed=8, merge=cpu_exact.merge),
}
for _isa in cpu.isas():
    PATHS |= {
        _isa: partial(native, isa=_isa, threads=1),
        f"{_isa}, 3 threads": partial(native, isa=_isa, threads=3),
        f"{_isa}, by states": partial(native_by_states, isa=_isa),
        f"{_isa}, columns": partial(native_columns, isa=_isa),
    }


@cache
def families(name: str) -> dict[str, Array]:
    return exact_golden.families(exact_rows.DTYPES[name])


@pytest.mark.parametrize("dtype", exact_rows.DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_makes_the_bits_of_the_golden_file(path: str, dtype: str) -> None:
    kind = exact_rows.DTYPES[dtype]
    form = format_of(kind)
    wanted = exact_golden.golden(form)[dtype]
    made = {
        family: exact_golden.digest(PATHS[path](rows), form, kind) for family, rows in families(dtype).items()
    }
    assert made == wanted


@pytest.mark.parametrize("form", exact_rows.FORMATS, ids=lambda form: form.name)
def test_one_bit_of_one_result_is_seen(form: Format) -> None:
    rows = families(form.dtype.name)["short"]
    wanted = exact_golden.golden(form)[form.dtype.name]["short"]
    good = definition(rows)
    assert exact_golden.digest(good, form, rows.dtype) == wanted
    for k in range(len(good)):
        parts = [part.copy() for part in good]
        parts[k].view(f"u{parts[k].dtype.itemsize}").flat[-1] ^= 1
        assert exact_golden.digest(Results(*parts), form, rows.dtype) != wanted


def test_the_files_are_the_models() -> None:
    """A family of each format made anew: all of them take half a minute, and `make_golden.py --check`."""
    spec = importlib.util.spec_from_file_location("make_golden", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for form in (FLOAT32, FLOAT64):
        for name, digests in exact_golden.golden(form).items():
            rows = families(name)["short"]
            assert exact_golden.digest(script.by_model(rows), form, rows.dtype) == digests["short"]
    assert float(exact_model.LOG2) == np.log(2)


@pytest.mark.parametrize("form", exact_rows.FORMATS, ids=lambda form: form.name)
def test_the_families_reach_what_they_are_for(form: Format) -> None:
    made = families(form.dtype.name)
    assert all(len(rows) == 1 or len(np.unique(rows, axis=0)) > len(rows) / 2 for rows in made.values())
    m = {name: definition(rows).m for name, rows in made.items()}
    edges = m["edges"]
    assert all(kind.any() for kind in (np.isnan(edges), edges == np.inf, edges == 0))
    assert (np.abs(m["wide"]) > form.large).any()
    assert (np.abs(m["wide"]) < 1).any()
    near = np.abs(m["offset"])
    assert ((near > form.large / 8) & (near <= form.large)).any()
    tops = exact.bin_of(exact.terms(m["bins"], form)[1], form)
    assert len(np.unique(tops)) > 8
    sums = definition(made["bins"]).a
    assert (sums[:, 0] == 0).any()
    assert (sums < 0).any()
