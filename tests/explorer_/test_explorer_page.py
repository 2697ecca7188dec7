"""The explorer as a person meets it: what it shows is the library's, and every control works."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from explorer_window import PAGE, SHOTS, cells, number

from online_softmax import reference
from online_softmax.numerics.explain import explain
from online_softmax.numerics.simulate import simulate
from online_softmax.traffic import devices
from online_softmax.traffic.compare import compare
from online_softmax.traffic.roofline import given, of_device
from online_softmax.traffic.shapes import Rows
from online_softmax.traffic.units import bytes_text, seconds_text

ROW = [0.3, -1.2, 2.1, 0.7, 1.9, -0.4, 2.6, 0.1]
WORDS = ",".join(map(str, ROW))


def shown(page: Any, step: int) -> tuple[float, float, float]:
    """m, s and the log-sum-exp as the table of the stream has them."""
    page.wait_for_function(
        "n => document.querySelector('#stream-steps .place').textContent.startsWith(n)", arg=str(step)
    )
    m, s, lse = (number(row[1]) for row in cells(page, "stream-state"))
    return m, s, lse


# --- the stream ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_every_step_shows_the_librarys_state(explorer: Any, name: str) -> None:
    page = explorer(f"row={WORDS}&format={name}&step=0")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert shown(page, 0) == (-math.inf, 0, -math.inf)
    for k in range(1, len(ROW) + 1):
        page.get_by_role("button", name="Next").first.click()
        wanted = simulate(ROW[:k], "streaming", name)
        found = [dtype.type(value) for value in shown(page, k)]
        assert found == [wanted.m, wanted.s, wanted.lse]
    told = explain(ROW, name)
    assert int(page.locator("#stream-count").inner_text()) == len(told.events) - 1
    factors = page.locator("#stream-events li code:nth-of-type(2)").all_inner_texts()
    assert [dtype.type(number(text)) for text in factors] == [event.factor for event in told.events[1:]]
    truth = [number(row[2]) for row in cells(page, "stream-state")]
    assert truth[1] == pytest.approx(told.s.true, rel=1e-15)
    assert truth[2] == pytest.approx(told.lse.true, rel=1e-15)
    page.locator("#stream details summary").click()
    y = [dtype.type(number(row[1])) for row in cells(page, "stream-values")]
    assert y == list(simulate(ROW, "streaming", name).y)


def test_the_buttons_and_the_slider_step(explorer: Any) -> None:
    page = explorer(f"row={WORDS}&step=3")

    def press(name: str) -> None:
        page.locator("#stream-steps").get_by_role("button", name=name).click()

    place = page.locator("#stream-steps .place")
    for name, at in (("Back", 2), ("First", 0), ("Back", 0), ("End", 8), ("Next", 8), ("Back", 7)):
        press(name)
        assert place.inner_text() == f"{at} of 8"
    page.locator("#step-slider").fill("5")
    assert place.inner_text() == "5 of 8"
    page.locator("#step-slider").press("ArrowRight")
    assert place.inner_text() == "6 of 8"
    assert page.locator("#step-slider").get_attribute("aria-label") == "Steps through the stream"
    press("Play")
    assert page.locator("#stream-told").get_attribute("aria-live") == "off"
    page.wait_for_function("document.querySelector('#stream-steps .place').textContent === '8 of 8'")
    page.locator("#stream-steps").get_by_role("button", name="Play").wait_for()
    assert page.locator("#stream-told").get_attribute("aria-live") == "polite"
    press("Play")  # from the end: over again
    press("Pause")
    assert place.inner_text() in ("0 of 8", "1 of 8")


def test_the_lost_bit_of_a_sum_that_stalls_is_shown(explorer: Any) -> None:
    page = explorer("row=0*300&format=bfloat16&step=257")
    last = page.locator("#stream-ops li").last
    assert "256 + 1 = 256" in last.inner_text()
    assert "true result 257, rounding error −1" in last.inner_text()
    assert last.locator(".lost").inner_text() == "1"
    assert "the term is lost" in page.locator("#stream-told").inner_text()
    assert page.locator("#stream-chart .unheard").count() == 1
    stalled = explain([0.0] * 300, "bfloat16")
    losses = page.locator("#stream-losses").inner_text()
    assert f"{stalled.stalled} additions changed nothing: {100 * stalled.lost_by_stalling:.3g} %" in losses


def test_a_sum_wiped_out_and_terms_that_vanish_are_shown(explorer: Any) -> None:
    page = explorer("row=1,2,3,1000&format=float16&step=4")
    assert "all that was seen before vanishes" in page.locator("#stream-told").inner_text()
    assert page.locator("#stream-chart .gone").count() == 3
    page = explorer("row=0,-17.4*40&format=float16&step=2")
    assert "it vanishes before it reaches the sum" in page.locator("#stream-told").inner_text()
    told = explain([0] + [-17.4] * 40, "float16")
    losses = page.locator("#stream-losses").inner_text()
    assert f"{told.zeros} exponentials became 0" in losses
    assert f"{100 * told.lost_by_underflow:.3g} % of the true sum" in losses


def test_the_guard_removes_the_nan(explorer: Any) -> None:
    page = explorer("row=-inf,-inf,1,2&step=1&cuts=1,2&guard=off")
    assert "not a number" in page.locator("#stream-told").inner_text()
    assert "−inf − (−inf) = NaN" in page.locator("#stream-ops").inner_text()
    assert cells(page, "stream-state")[1][1] == "NaN"
    assert cells(page, "split-whole")[0][2] == "NaN"
    assert page.locator("#stream-state tr.bad").count() == 1
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "guard-off.png", full_page=True)
    page.get_by_role("switch", name="The guard").check()
    assert cells(page, "stream-state")[1][1] == "0"
    wanted = simulate([-math.inf, -math.inf, 1, 2], "streaming", "float16")
    assert [np.float16(number(text)) for text in cells(page, "split-whole")[0][1:]] == [
        wanted.m,
        wanted.s,
        wanted.lse,
    ]
    assert page.locator(".bad").count() == 0


# --- split and merge ----------------------------------------------------------------------------------------


def test_cuts_are_dragged_and_moved_by_arrows(explorer: Any) -> None:
    page = explorer(f"row={WORDS}&cuts=4&format=float32")
    box = page.locator("#split-chart svg").bounding_box()
    each = box["width"] / 8
    page.locator("#split-chart").scroll_into_view_if_needed()
    box = page.locator("#split-chart svg").bounding_box()
    page.mouse.move(box["x"] + 4 * each, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 2.1 * each, box["y"] + 30, steps=3)
    page.mouse.up()
    assert [row[0] for row in cells(page, "split-parts")] == [
        "Part 1: entries 0 to 1",
        "Part 2: entries 2 to 7",
    ]
    slider = page.get_by_label("Cut 1")
    slider.focus()
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "between entry 2 and entry 3"
    parts = cells(page, "split-parts")
    for (_, m, s), piece in zip(parts, (ROW[:3], ROW[3:]), strict=True):
        wanted = simulate(piece, "streaming", "float32")
        assert (np.float32(number(m)), np.float32(number(s))) == (wanted.m, wanted.s)
    slider.press("Home")
    assert cells(page, "split-parts")[0] == ["Part 1: no entries", "−inf", "0"]
    assert cells(page, "split-whole")[0][1:] == cells(page, "split-whole")[1][1:]
    assert "the same bits" in page.locator("#split-told").inner_text()


def test_cuts_come_and_go_and_merge_in_three_orders(explorer: Any) -> None:
    page = explorer(f"row={WORDS}&cuts=4&format=bfloat16")
    more, less = (
        page.get_by_role("button", name="One more cut"),
        page.get_by_role("button", name="One cut less"),
    )
    assert less.is_disabled()
    more.click()
    more.click()
    assert more.is_disabled()
    assert len(cells(page, "split-parts")) == 4
    seen = set()
    for order in ("left", "right", "tree"):
        page.get_by_role("combobox", name="Merge").select_option(order)
        merges = page.locator("#split-merges > li > p").all_inner_texts()
        assert len(merges) == 3
        seen.add(tuple(merges))
        # The maximum as bfloat16 has it, whatever the order.
        assert ml_dtypes.bfloat16(number(cells(page, "split-whole")[0][1])) == ml_dtypes.bfloat16(2.6)
        assert number(cells(page, "split-whole")[0][2]) == pytest.approx(
            explain(ROW, "bfloat16").s.true, rel=0.05
        )
    assert len(seen) == 3
    page.locator("#split-merges summary").first.click()
    assert page.locator("#split-merges .ops").first.locator("li").count() == 7
    less.click()
    assert len(cells(page, "split-parts")) == 3


# --- bytes and time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "rows", "columns", "dtype", "itemsize"),
    [("h100", 8192, 4096, "float32", 4), ("l4", 100, 128, "float16", 2), ("own", 8192, 4096, "float32", 4)],
)
def test_the_table_shows_the_models_bytes_and_floors(
    explorer: Any, key: str, rows: int, columns: int, dtype: str, itemsize: int
) -> None:
    page = explorer()
    page.locator("#device").select_option(key)
    page.locator("#dtype").select_option(dtype)
    page.get_by_label("Rows", exact=True).fill(str(rows))
    page.get_by_label("Columns", exact=True).fill(str(columns))
    machine = given(2e12, 35, 256_000_000) if key == "own" else of_device(devices.device(key), dtype)
    shape = Rows(rows, columns, itemsize)
    lines = {line.moved.algorithm: line for line in compare("softmax", shape, machine).lines}
    lines["logsumexp"] = next(
        line for line in compare("logsumexp", shape, machine).lines if line.moved.algorithm == "online"
    )
    bounds = {"memory": "memory", "exp": "exponentials", "compute": "arithmetic", "launch": "the launch"}
    table = cells(page, "cost-table")
    assert [row[0] for row in table] == list(lines)
    base = lines["three_pass"].floor.seconds
    for row, line in zip(table, lines.values(), strict=True):
        moved = line.moved
        assert row[1:6] == [
            f"{moved.reads}, {moved.writes}",
            bytes_text(moved.total),
            seconds_text(line.floor.seconds),
            bounds[line.floor.bound],
            f"{float(moved.intensity):.4g}",
        ]
        assert row[6] == f"{base / line.floor.seconds:.2f}×"
    where = compare("softmax", shape, machine).regime
    assert where is not None
    assert page.locator("#cost-regime").inner_text() == where.name
    assert bytes_text(where.deciding_row_bytes) in page.locator("#cost-remarks").inner_text()
    assert f"ridge {machine.ridge:.3g}" in page.locator("#cost-roofline").inner_text()
    assert page.locator("#cost-roofline .dot").count() == page.locator("#cost-curve .curve").count() == 5


def test_rows_in_flight_and_write_allocation_count(explorer: Any) -> None:
    page = explorer("rows=8192&columns=16384")
    assert page.locator("#cost-regime").inner_text() == "rows past cache"
    page.get_by_label("Rows in flight").fill("132")
    assert page.locator("#cost-regime").inner_text() == "rows in cache"
    before = cells(page, "cost-table")[0][2]
    page.get_by_label("The cache reads a line").check()
    line = compare(
        "softmax", Rows(8192, 16384, 4), of_device(devices.device("h100"), "float32"), write_allocate=True
    )
    assert cells(page, "cost-table")[0][2] == bytes_text(line.lines[0].moved.total) != before


# --- attention ----------------------------------------------------------------------------------------------


def test_the_tiles_end_at_the_references_attention(explorer: Any, golden: dict[str, Any]) -> None:
    wanted = golden["attention"][1]
    page = explorer("causal=off&tile=0")
    names = {"queries": "Queries", "keys": "Keys", "width": "Size d", "tileQueries": "Tile, queries"}
    names |= {"tileKeys": "Tile, keys", "seed": "Seed"}
    for key, label in names.items():
        page.locator("#attention").get_by_label(label, exact=key != "seed").fill(str(wanted[key]))
    page.locator("#attention").get_by_label("Causal").check()
    steps = len(wanted["steps"])
    next_tile = page.locator("#attention-steps").get_by_role("button", name="Next")
    for k, step in enumerate(wanted["steps"], start=1):
        next_tile.click()
        assert page.locator("#attention-steps .place").inner_text() == f"{k} of {steps}"
        rows = cells(page, "attention-outputs")[slice(*step["rows"])]
        assert [number(row[1]) for row in rows] == pytest.approx(step["m"], rel=1e-14)
        assert [number(row[2]) for row in rows] == pytest.approx(step["s"], rel=1e-14)
        assert len(cells(page, "attention-tile")) == step["rows"][1] - step["rows"][0]
    titles = page.locator("#attention-outputs td:nth-of-type(3) code").evaluate_all(
        "all => all.map((c) => c.title)"
    )
    found = np.array([[number(part) for part in title.split(", ")] for title in titles])
    assert found == pytest.approx(np.array(wanted["o"]), rel=1e-13, abs=1e-15)
    apart = re.search(r"by ([\d.e−]+) at most", page.locator("#attention-end").inner_text())
    assert apart is not None
    assert number(apart[1]) < 1e-14
    assert len(reference.attention(np.ones((5, 3)), np.ones((7, 3)), np.ones((7, 3)), causal=True)) == len(
        found
    )


def test_a_larger_maximum_rescales_the_output(explorer: Any) -> None:
    page = explorer("tile=0&causal=off&tileKeys=1&tileQueries=6")
    rescaled = 0
    for _ in range(8):
        page.locator("#attention-steps").get_by_role("button", name="Next").click()
        for row, table in zip(
            page.locator("#attention-tile tbody tr").all(), cells(page, "attention-tile"), strict=True
        ):
            _, _, factor, _, before, after, _ = table
            parts = [[number(part) for part in text.split(", ")] for text in (before, after)]
            assert parts[1] == pytest.approx([x * number(factor) for x in parts[0]], rel=1e-4, abs=1e-4)
            rescaled += "rescaled" in (row.get_attribute("class") or "")
    assert rescaled > 3
    assert "q" in page.locator("#attention-told").inner_text()


# --- what is typed, and what the address says ---------------------------------------------------------------


UNREADABLE = [
    ("row", "1, two", 'entry 1: "two" is no number'),
    ("row", " ", "the row is empty"),
    ("row", "1e999", "past float64"),
    ("row", "0*600", "more than 512 entries"),
    ("row", "1*2*3", "repeats no number so often"),
    ("rows", "0", 'rows: "0" is given; a whole number from 1 to 1000000'),
    ("columns", "", "columns: nothing is given"),
    ("resident", "-3", "rows in flight"),
    ("queries", "17", "from 1 to 16"),
    ("tileKeys", "2.5", "tile, keys"),
]


def test_what_cannot_be_read_is_told_and_changes_nothing(explorer: Any) -> None:
    page = explorer()
    tables = ("stream-state", "cost-table", "attention-outputs")
    before = [cells(page, name) for name in tables]
    for key, wrong, words in UNREADABLE:
        field, told = page.locator(f'[data-key="{key}"]'), page.locator(f"#error-{key}")
        good = field.input_value()
        field.fill(wrong)
        assert words in told.inner_text()
        assert "would do" in told.inner_text()
        assert field.get_attribute("aria-invalid") == "true"
        assert f"error-{key}" in field.get_attribute("aria-describedby")
        assert [cells(page, name) for name in tables] == before
        field.fill(good)
        assert told.inner_text() == ""
        assert field.get_attribute("aria-invalid") == "false"
        page.locator("#step-slider").fill("4")
        page.get_by_label("Cut 1").fill("4")


def test_the_address_keeps_the_state(explorer: Any) -> None:
    page = explorer()
    assert "#" not in page.url.replace("#", "", 1).rstrip("#")
    page.locator('[data-key="row"]').fill("5, -inf, 7.5, 0*3")
    page.get_by_label("Format").first.select_option("bfloat16")
    page.locator("#step-slider").fill("3")
    page.get_by_label("Cut 1").fill("2")
    page.locator("#device").select_option("a100")
    page.get_by_label("Causal").uncheck()
    page.get_by_label("Colours").select_option("dark")
    names = ("stream-state", "split-parts", "cost-table", "attention-outputs")
    before = [cells(page, name) for name in names]
    second = explorer(page.url.split("#", 1)[1])
    assert [cells(second, name) for name in names] == before
    assert second.locator("#stream-steps .place").inner_text() == "3 of 6"
    second.evaluate("location.hash = 'row=1,2&step=1&order=zig&colour=red'")
    second.wait_for_function("document.querySelector('#stream-steps .place').textContent === '1 of 2'")
    notice = second.locator("#notice").inner_text()
    assert 'order="zig": left, right, tree would do' in notice
    assert 'colour="red": there is no such setting' in notice
    assert str(PAGE) in second.url.replace("%20", " ")


def test_no_address_stops_the_page(explorer: Any) -> None:
    page = explorer("constructor=2&toString=1&device=own&bandwidth=1e-320&ridge=1e-300")
    notice = page.locator("#notice").inner_text()
    assert 'constructor="2": there is no such setting' in notice
    assert 'toString="1": there is no such setting' in notice
    for field in ("bandwidth", "ridge"):
        assert "a number from 0.001 to 1000000 would do" in page.locator(f"#error-{field}").inner_text()
    assert page.locator("#stream-steps .place").inner_text().endswith("of 8")
    page.locator('[data-key="bandwidth"]').fill("0.001")
    page.locator('[data-key="ridge"]').fill("0.001")
    assert page.locator("#error-bandwidth").inner_text() == page.locator("#error-ridge").inner_text() == ""
