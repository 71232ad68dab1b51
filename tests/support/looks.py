"""How the page looks: at each width and in both themes nothing sticks out, and axe finds nothing serious."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

#: Set it to keep the screenshots: those of the documentation are made so.
SCREENSHOTS = "PAGE_SCREENSHOTS"
#: The last is the one that axe looks at: on a phone, tables are wider than the window.
SIZES = {"desktop": (1280, 900), "wide": (1920, 1080), "phone": (390, 844)}


def look(page: Page, name: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(f"() => ({_WIDE})().length === 0")
            take(page, f"{name}-{size}-{theme}")
        page.wait_for_timeout(400)
        found = serious(page)
        assert found == [], f"{name}, {theme}: {found}"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def take(page: Page, name: str) -> None:
    """A screenshot, where they are wanted."""
    if folder := os.environ.get(SCREENSHOTS):
        page.wait_for_timeout(400)  # the theme's colours fade in
        page.screenshot(path=Path(folder, f"{name}.png"))


def serious(page: Page) -> list[Any]:
    """What axe calls serious in the page, and not in what Airflow has around it."""
    context = "[role=dialog]" if page.get_by_role("dialog").count() else "#ray-llm"
    violations = Axe().run(page, context=context).response["violations"]
    return [
        (v["id"], [node["html"][:200] for node in v["nodes"]][:3])
        for v in violations
        if v["impact"] in ("serious", "critical")
    ]


def sticks_out(page: Page) -> list[str]:
    """What of the page is wider than its window. A table may be, in a part that scrolls by itself."""
    wide: list[str] = page.evaluate(_WIDE)
    return wide


def scrolled_sideways(page: Page, selector: str) -> list[str]:
    """The texts of those parts that need to be scrolled sideways to be read."""
    wide: list[str] = page.eval_on_selector_all(selector, _SCROLLED)
    return wide


_SCROLLED = "all => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText.slice(0, 60))"
_WIDE = """() => {
    const own = document.getElementById("ray-llm");
    const scrolls = (e) => e !== own && getComputedStyle(e).overflowX !== "visible";
    const wide = [];
    const look = (e) => {
        const right = Math.floor(e.getBoundingClientRect().right);
        if (right > window.innerWidth) wide.push(`${e.tagName} ${right}: ${e.textContent.slice(0, 60)}`);
        if (!scrolls(e)) [...e.children].forEach(look);
    };
    look(own);
    if (document.documentElement.scrollWidth > window.innerWidth) wide.push("the window");
    return wide;
}"""
