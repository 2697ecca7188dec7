"""The explorer's arithmetic against the library's values: law, rounding, rows, merges, bytes, attention."""

from __future__ import annotations

import math
from typing import Any

import pytest

#: Where both bring an exp of their own: some units in the last place of float64.
CLOSE = 4 * 2.0**-52


def same(found: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Equal, NaN being NaN, or within a relative tolerance (absolute below 1)."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            same(a, b, tolerance) for a, b in zip(found, wanted, strict=True)
        )
    if isinstance(wanted, bool | str) or wanted is None:
        return bool(found == wanted)
    if math.isnan(wanted):
        return math.isnan(found)
    return bool(found == wanted) or abs(found - wanted) <= tolerance * max(1.0, abs(wanted))


def differing(found: list[Any], wanted: list[Any], tolerance: float = 0.0) -> list[Any]:
    pairs = zip(found, wanted, strict=True)
    return [(n, a, b) for n, (a, b) in enumerate(pairs) if not same(a, b, tolerance)]


def test_the_law_is_that_of_python(explorer: Any, golden: dict[str, Any]) -> None:
    law = golden["law"]
    found = explorer().evaluate(
        """law => {
          const { push, merge, lse, value, logValue } = Explorer.state;
          const ops = Explorer.formats.arithmetic(Explorer.formats.FORMATS.float64);
          const pair = ({ m, s }) => [m, s];
          return {
            push: law.push.map(([m, s, x]) => pair(push({ m, s }, x, ops))),
            merge: law.merge.map(([m, s, n, t]) => pair(merge({ m, s }, { m: n, s: t }, ops))),
            swapped: law.merge.map(([m, s, n, t]) => pair(merge({ m: n, s: t }, { m, s }, ops))),
            read: law.read.map(([x, m, s]) =>
              [lse({ m, s }, ops), value(x, { m, s }, ops), logValue(x, { m, s }, ops)]),
            identity: pair(Explorer.state.identity()),
          };
        }""",
        law,
    )
    for name, start in (("push", 3), ("merge", 4), ("read", 3)):
        wanted = [entry[start:] for entry in law[name]]
        assert differing(found[name], wanted, CLOSE) == []
        if name != "read":  # maxima are not rounded
            assert differing([m for m, _ in found[name]], [m for m, _ in wanted]) == []
    assert differing(found["swapped"], found["merge"]) == []
    assert found["identity"] == [-math.inf, 0]
    zeros = [m for m, _ in found["push"] if m == 0]
    assert zeros
    assert all(math.copysign(1, m) == 1 for m in zeros)


def test_without_the_guard_two_empty_states_make_nan(explorer: Any) -> None:
    script = """guard => {
      const { identity, merge, push } = Explorer.state;
      const ops = Explorer.formats.arithmetic(Explorer.formats.FORMATS.float32);
      return [merge(identity(), identity(), ops, guard), push(identity(), -Infinity, ops, guard)]
        .map(({ m, s }) => [m, s]);
    }"""
    page = explorer()
    assert page.evaluate(script, True) == [[-math.inf, 0]] * 2
    for m, s in page.evaluate(script, False):
        assert m == -math.inf
        assert math.isnan(s)


def test_numbers_round_as_numpy_rounds_them(explorer: Any, golden: dict[str, Any]) -> None:
    page = explorer()
    for name, pairs in golden["rounding"].items():
        found = page.evaluate(
            "([name, xs]) => xs.map((x) => Explorer.formats.round(x, Explorer.formats.FORMATS[name]))",
            [name, [x for x, _ in pairs]],
        )
        assert differing(found, [y for _, y in pairs]) == [], name
    fround = page.evaluate(
        "xs => xs.map((x) => Math.fround(x) === Explorer.formats.round(x, Explorer.formats.FORMATS.float32))",
        [x for x, _ in golden["rounding"]["float32"]],
    )
    assert all(fround)


def test_rows_go_through_the_stream_bit_for_bit(explorer: Any, golden: dict[str, Any]) -> None:
    page = explorer()
    for wanted in golden["streams"]:
        found = page.evaluate(
            """({ row, format }) => {
              const run = Explorer.follow.follow(row, format);
              const where = (marks) => marks.flatMap((marked, i) => (marked ? [i] : []));
              return {
                m: run.steps.map((step) => step.after.m), s: run.steps.map((step) => step.after.s),
                lse: run.lse, y: run.y, zeros: where(run.zeros), subnormals: where(run.subnormals),
                vanished: where(run.vanished), unheard: where(run.unheard), stalled: run.stalled,
                events: run.events, true_s: run.truth.at(-1).s, true_lse: run.trueLse,
                lost_by_underflow: run.lost.underflow, lost_by_stalling: run.lost.stalling,
              };
            }""",
            wanted,
        )
        about = (wanted["row"][:8], wanted["format"])
        assert found["events"] == wanted["events"], about
        for name, value in found.items():
            near = CLOSE if name.startswith("true") else 1e-13 if name.startswith("lost") else 0.0
            assert name == "events" or same(value, wanted[name], near), (about, name)


def test_the_error_of_an_operation_is_exact(explorer: Any) -> None:
    """value - error is the true result: of sums and products in fractions, and never over half an ulp."""
    from fractions import Fraction

    found = explorer().evaluate(
        """() => {
          const run = Explorer.follow.follow([0.3, -1.2, 2.1, 0.7, 1.9, -0.4, 2.6, 0.1], 'bfloat16');
          const { ulp } = Explorer.formats;
          return run.steps.flatMap((step) => step.ops).filter((op) => op.kind !== 'exp').map((op) =>
            ({ ...op, ulp: ulp(op.value, run.format) }));
        }"""
    )
    finite = [op for op in found if op["error"] is not None]
    assert len(finite) > 30
    for op in finite:
        a, b = map(Fraction, op["operands"])
        true = {"+": a + b, "−": a - b, "×": a * b}[op["kind"]]
        assert Fraction(op["value"]) - Fraction(op["error"]) == true
        assert abs(op["error"]) <= op["ulp"] / 2
    assert any(op["error"] for op in finite)


def test_splits_merge_bit_for_bit(explorer: Any, golden: dict[str, Any]) -> None:
    page = explorer()
    for wanted in golden["splits"]:
        found = page.evaluate(
            """({ row, format, cuts }) => {
              const split = Explorer.follow.split(row, format, cuts);
              const pair = ({ m, s }) => [m, s];
              return { parts: split.parts.map((part) => pair(part.state)), whole: pair(split.whole) };
            }""",
            wanted,
        )
        about = (wanted["row"][:8], wanted["format"], wanted["cuts"])
        assert same(found["parts"], wanted["parts"]), about
        assert same(found["whole"], wanted["whole"]), about


def test_every_order_of_merging_covers_the_row(explorer: Any) -> None:
    found = explorer().evaluate(
        """() => ['left', 'right', 'tree'].map((order) => {
          const { merges } = Explorer.follow.split([1, 2, 3, 4, 5, 6, 7], 'float64', [1, 3, 6], order);
          return merges.map(({ a, b }) => [a.start, a.stop, b.stop]);
        })"""
    )
    assert found == [
        [[0, 1, 3], [0, 3, 6], [0, 6, 7]],
        [[3, 6, 7], [1, 3, 7], [0, 1, 7]],
        [[0, 1, 3], [3, 6, 7], [0, 3, 7]],
    ]


def test_bytes_floors_and_regimes_are_the_models(explorer: Any, golden: dict[str, Any]) -> None:
    page = explorer()
    for wanted in golden["costs"]:
        found = page.evaluate(
            """(asked) => {
              const { cost, data } = Explorer;
              const machine = asked.device === null
                ? cost.given(2e12, 35, 256e6) : data.DEVICES.find((device) => device.key === asked.device);
              const { rows, columns, allocate } = asked;
              const shape = { rows, columns, itemsize: data.ITEMSIZES[asked.dtype], allocate };
              const result = cost.compare(shape, machine, asked.resident);
              const lines = {};
              const curve = {};
              for (const { key, moved, floor, speedup, once, onceFloor } of result.lines) {
                lines[key] = {
                  read: moved.read, written: moved.written, total: moved.total, exps: moved.exps,
                  flops: moved.flops, intensity: moved.intensity, seconds: floor.seconds,
                  bound: floor.bound, speedup,
                  once_total: once.total, once_seconds: onceFloor.seconds,
                };
                curve[key] = asked.curve[key].map(([n]) => [n, cost.secondsAt(result, key, n)]);
              }
              const at = result.regime;
              return {
                lines, curve, regime: at && [at.name, at.row, at.resident, at.deciding],
                ridge: machine.vector_peak ? machine.vector_peak / machine.bandwidth : null,
              };
            }""",
            wanted,
        )
        for name in ("lines", "curve", "regime", "ridge"):
            assert found[name] == wanted[name], (wanted["device"], name)


def test_units_are_written_as_the_library_writes_them(explorer: Any, golden: dict[str, Any]) -> None:
    found = explorer().evaluate(
        """(entries) => {
          const { bytes, seconds, rate } = Explorer.units;
          return entries.map(([n]) => [n, bytes(n), seconds(n * 1e-9), rate(n)]);
        }""",
        golden["units"],
    )
    assert found == golden["units"]


@pytest.mark.parametrize("case", [0, 1, 2])
def test_attention_is_the_references_after_every_tile(
    explorer: Any, golden: dict[str, Any], case: int
) -> None:
    wanted = golden["attention"][case]
    found = explorer().evaluate(
        """(options) => {
          const run = Explorer.attention.tiles(options);
          const steps = run.steps.map(({ rows, keys, after }) => {
            const states = after.slice(...rows);
            return {
              rows, keys, m: states.map((one) => one.m), s: states.map((one) => one.s),
              o: states.map(Explorer.attention.output),
            };
          });
          return { q: run.q, o: run.outputs, lse: run.lse, steps, direct: run.direct.map((one) => one.o) };
        }""",
        {k: v for k, v in wanted.items() if k not in ("steps", "o", "lse", "q")},
    )
    assert found["q"] == wanted["q"]
    for name in ("o", "lse"):
        assert same(found[name], wanted[name], 8 * CLOSE), name
    assert same(found["direct"], wanted["o"], 8 * CLOSE)
    assert [(s["rows"], s["keys"]) for s in found["steps"]] == [
        (s["rows"], s["keys"]) for s in wanted["steps"]
    ]
    for mine, theirs in zip(found["steps"], wanted["steps"], strict=True):
        for name in ("m", "s", "o"):
            assert same(mine[name], theirs[name], 8 * CLOSE), (theirs["keys"], name)
