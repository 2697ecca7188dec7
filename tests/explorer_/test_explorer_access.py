"""The explorer for everyone: every control works, keyboard alone, phones, both colour schemes, contrast."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from explorer_window import SHOTS

PHONE = 360
#: Settings that fill the page in different ways.
STATES = {
    "plain": "",
    "long": "row=0*300,3,-5&format=bfloat16&step=290&cuts=40,100,200&tile=5&queries=16&keys=16&width=8",
    "special": "row=nan,inf,-inf,1e300,-1e-300&step=3&guard=off&device=own&rows=999999&columns=9999999",
}
#: Everything a person may operate.
CONTROLS = "main :is(button, input, select, textarea, summary), nav :is(a, select)"


def unfold(page: Any) -> None:
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


def test_every_control_works(explorer: Any) -> None:
    """Each is operated once in every way it has; what it controls must change on the page."""
    page = explorer("device=own&cuts=2,4")
    skin = "() => location.hash + document.querySelector('main').innerHTML"
    page.evaluate("const out = document.createElement('output'); out.id = 'probe'; document.body.append(out)")

    def changes(act: Any) -> bool:
        before = page.evaluate(skin)
        act()
        return bool(page.evaluate(skin) != before)

    for select in page.locator("main select[data-key], nav select").all():
        values = select.evaluate("one => [...one.options].map((option) => option.value)")
        first = select.input_value()
        for value in [v for v in values if v != first]:
            assert changes(lambda s=select, v=value: s.select_option(v)), value
        select.select_option(first)
    for name in page.locator("#presets option").evaluate_all("all => all.slice(1).map((one) => one.value)"):
        assert changes(lambda n=name: page.locator("#presets").select_option(n)), name
        assert page.locator("#error-row").inner_text() == ""
    page.locator('[data-key="row"]').fill("1, 3, 2, -inf, 4, 8")
    for box in page.locator("input[type=checkbox]").all():
        was = box.is_checked()
        box.set_checked(not was)
        assert box.is_checked() != was
        box.set_checked(was)
    assert changes(lambda: page.get_by_role("switch", name="Causal").uncheck())
    for field in page.locator("input[data-key]:not([type])").all():
        now = field.input_value()
        assert changes(lambda f=field, n=now: f.fill("3" if n != "3" else "2")), field.get_attribute(
            "data-key"
        )
        field.fill(now)
    for slider in page.locator("input[type=range]").all():
        for key in ("Home", "End"):
            slider.press(key)
        assert changes(lambda s=slider: s.press("ArrowLeft"))
    for link in page.locator("nav a").all():
        link.click()
        target = link.get_attribute("data-to")
        assert page.evaluate("document.activeElement.closest('section').id") == target
    for summary in page.locator("summary").all():
        summary.click()
        assert summary.evaluate("one => one.parentElement.open")


def test_every_control_is_named(explorer: Any) -> None:
    unnamed = explorer("device=own").evaluate(
        """(controls) => [...document.querySelectorAll(controls)].filter((one) => {
          const labels = [...(one.labels || [])].map((label) => label.innerText).join('');
          return !(one.getAttribute('aria-label') || labels || one.innerText || '').trim();
        }).map((one) => one.outerHTML)""",
        CONTROLS,
    )
    assert unnamed == []


def test_the_keyboard_alone_goes_everywhere(explorer: Any) -> None:
    page = explorer("row=1,2,3,4&step=4&cuts=2&format=float32&rows=64&columns=64")
    total = page.evaluate(
        """(controls) => [...document.querySelectorAll(controls)]
          .filter((one) => one.checkVisibility() && !one.disabled).length""",
        CONTROLS,
    )
    seen: list[str] = []
    for _ in range(total):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => {
                  const one = document.activeElement;
                  one.dataset.visited = String(Number(one.dataset.visited || 0) + 1);
                  const style = getComputedStyle(one);
                  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
                  return ring ? 'ring' : one.outerHTML;
                }"""
            )
        )
    assert seen == ["ring"] * total
    assert page.evaluate("document.querySelectorAll('[data-visited]').length") == total
    page.keyboard.press("Tab")  # past the last one: out of the page, nothing holds it
    assert page.evaluate("document.activeElement === document.body")
    page.locator("#step-slider").focus()
    for key, place in (
        ("Home", "0 of 4"),
        ("ArrowRight", "1 of 4"),
        ("End", "4 of 4"),
        ("ArrowLeft", "3 of 4"),
    ):
        page.keyboard.press(key)
        assert page.locator("#stream-steps .place").inner_text() == place
    page.keyboard.press("Shift+Tab")  # back to the last button of the group
    page.keyboard.press("Enter")
    assert page.locator("#stream-steps .place").inner_text() == "4 of 4"
    page.get_by_role("switch", name="The guard").focus()
    page.keyboard.press("Space")
    assert not page.get_by_role("switch", name="The guard").is_checked()


@pytest.mark.parametrize("state", STATES)
def test_a_phone_shows_all_without_scrolling_sideways(explorer: Any, state: str) -> None:
    page = explorer(STATES[state], width=PHONE, has_touch=True, is_mobile=True)
    unfold(page)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('main *, header *, footer *')].filter((one) => {
          const { left, right, width } = one.getBoundingClientRect();
          const hidden = one.closest('thead') || !one.checkVisibility();
          return !hidden && width > 0 && (left < -0.5 || right > innerWidth + 0.5);
        }).map((one) => one.outerHTML.slice(0, 200))"""
    )
    assert outside == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, textarea, input:not([type=checkbox])')]
          .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 32)
          .map((one) => one.outerHTML)"""
    )
    assert small == []
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"phone-{state}.png", full_page=True)


#: Text whose contrast to what lies behind it is under 4.5; words in pictures stand on the panel.
FAINT = """() => {
  const channels = (css) => css.match(/[\\d.]+/g).map(Number);
  const light = (css) => {
    const [r, g, b] = channels(css).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour).length < 4 || channels(colour)[3] === 1) return colour;
    }
    throw new Error('no ground');
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const faint = [];
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.checkVisibility()) continue;
    if (one.closest('noscript, button:disabled')) continue;
    const style = getComputedStyle(one);
    const shades = [light(one.closest('svg') ? style.fill : style.color), light(ground(one))];
    const ratio = (Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${one.outerHTML.slice(0, 120)}`);
  }
  return faint;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(explorer: Any, scheme: str) -> None:
    page = explorer("row=-inf,1,two&device=own", scheme=scheme, reduced_motion="reduce")
    assert page.locator("#error-row").inner_text() != ""
    unfold(page)
    assert page.evaluate(FAINT) == []
    page.locator('[data-key="row"]').fill("0*3, -17.4, 1, nan")
    page.locator('[data-key="format"]').select_option("float16")
    assert page.evaluate(FAINT) == []
    ground = "getComputedStyle(document.body).backgroundColor"
    own = page.evaluate(ground)
    page.get_by_role("combobox", name="Colours").select_option("dark" if scheme == "light" else "light")
    assert page.evaluate(ground) != own
    assert page.evaluate(FAINT) == []
    page.get_by_role("combobox", name="Colours").select_option("system")
    assert page.evaluate(ground) == own
    assert page.locator("#split-add").evaluate("one => getComputedStyle(one).transitionProperty") == "none"
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"desktop-{scheme}.png", full_page=True)


def test_what_changes_is_said_and_the_page_has_an_outline(explorer: Any) -> None:
    page = explorer()
    for name in ("stream-told", "split-told", "cost-regime", "attention-told"):
        assert page.locator(f"#{name}").get_attribute("aria-live") == "polite"
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert page.locator("main").count() == page.locator("header").count() == page.locator("nav").count() == 1
    titled = "all => all.every((one) => document.getElementById(one.getAttribute('aria-labelledby')))"
    assert page.locator("section").evaluate_all(titled)
    assert page.locator("svg[role=img]").evaluate_all(
        "all => all.every((one) => one.getAttribute('aria-label'))"
    )
    assert page.locator("table caption").count() == page.locator("table").count()
    doubled = "all => all.map((one) => one.id).filter((id, i, ids) => ids.indexOf(id) !== i)"
    assert page.locator("[id]").evaluate_all(doubled) == []
