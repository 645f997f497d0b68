"""Chromium on the playground as a program: a visit in, one JSON line out. Runs in a venv of its own, with Playwright.

Knows nothing of this project: only the address, and what is on the page.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

Told = dict[str, Any]
TASKS = ("embed", "rerank", "late", "classify")
MILLISECONDS = 240_000
"""That a visit waits for anything: a machine may be busy."""
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea")]
  .filter((each) => !each.labels.length).map((each) => each.outerHTML)"""
STORED = "() => ({session: {...sessionStorage}, local: {...localStorage}, cookies: document.cookie})"
TOO_WIDE = "() => document.scrollingElement.scrollWidth > innerWidth"


@dataclass(slots=True)
class Noise:
    """What nobody should hear."""

    console: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def listen(self, page: Page) -> None:
        """From now on."""
        page.on("console", lambda said: said.type in ("error", "warning") and self.console.append(said.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("requestfailed", lambda request: self.failed.append(f"{request.url}: {request.failure}"))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))


@contextmanager
def opened(options: Told) -> Iterator[tuple[Page, Noise]]:
    """The page, loaded. `dark`, `width` and `prefix` (a path that a proxy takes away) are options."""
    noise = Noise()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options["chromium"], args=["--no-sandbox"])
        page = browser.new_page(
            color_scheme="dark" if options.get("dark") else "light",
            viewport={"width": options.get("width", 1200), "height": 900},
        )
        page.set_default_timeout(MILLISECONDS)
        noise.listen(page)
        prefix = options.get("prefix", "/")
        if prefix != "/":

            def passed_on(route: Any) -> None:
                route.fulfill(response=route.fetch(url=route.request.url.replace(prefix, "/", 1)))

            page.route(f"**{prefix}**", passed_on)
        page.goto(options["url"] + prefix)
        settled(page, "model")
        yield page, noise
        browser.close()


def settled(page: Page, section: str) -> str:
    """What the section says once it is done."""
    page.wait_for_selector(f"#{section}[aria-busy=false]", state="attached")
    return page.inner_text(f"#{section} .status") if page.locator(f"#{section} .status").is_visible() else ""


def fill(page: Page, texts: Told) -> None:
    """The fields that the model has."""
    for name, text in texts.items():
        if page.is_visible(f"#{name}"):
            page.fill(f"#{name}", text)


def ask(page: Page, section: str) -> str:
    """Presses the button."""
    page.click(f"#{section} form button")
    return settled(page, section)


def table(page: Page, section: str) -> list[list[str]]:
    """The section's table as it is read, head first."""
    read = """(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"""
    found: list[list[str]] = page.eval_on_selector_all(f"#{section} table tr", read)
    return found


def shot(page: Page, options: Told, name: str) -> None:
    """Of the whole page, where somebody wants to look."""
    if options.get("shots"):
        page.screenshot(path=f"{options['shots']}/{name}.png", full_page=True)


def told(page: Page, noise: Noise, **more: Any) -> Told:
    flaws = Axe().run(page).response["violations"]
    return more | {
        "console": noise.console,
        "failed": noise.failed,
        "hosts": sorted(noise.hosts),
        "flaws": [f"{flaw['id']}: {node['html']}" for flaw in flaws for node in flaw["nodes"]],
        "unnamed": page.evaluate(UNNAMED),
        "too_wide": page.evaluate(TOO_WIDE),
    }


def tour(page: Page, noise: Noise, options: Told) -> Told:
    """Every task that the model has, by mouse."""
    fill(page, options.get("texts", {}))
    said, reasons, tables = {}, {}, {}
    for task in TASKS:
        if page.locator(f"#{task} form").is_visible():
            said[task] = ask(page, task)
            tables[task] = table(page, task)
        else:
            reasons[task] = page.inner_text(f"#{task} .reason")
    card = page.eval_on_selector_all(
        "#card div", "(all) => all.map((each) => [...each.children].map((c) => c.innerText))"
    )
    winners = page.locator("#late .winners li").all_inner_texts()
    marked = page.locator("#late td.winner").all_text_contents()
    shot(page, options, options.get("name", "tour"))
    return told(
        page,
        noise,
        said=said,
        reasons=reasons,
        tables=tables,
        card=dict(card),
        winners=winners,
        marked=marked,
        times=table(page, "requests"),
        scopes=page.eval_on_selector_all("#late .result th", "(all) => all.map((each) => each.scope)"),
        caption=page.locator("#late caption").all_inner_texts(),
    )


def keys(page: Page, noise: Noise, options: Told) -> Told:
    """No key, a wrong one, the right one; then the page is loaded again. The models, one after the other."""
    sent: list[str | None] = []
    page.on("request", lambda request: sent.append(request.headers.get("authorization")))
    found: Told = {"without": settled(page, "model"), "quiet": not noise.console}
    for name in ("wrong", "right"):
        page.fill("#key", options[name])
        page.click("#key-form button")
        found[name] = settled(page, "model")
        shot(page, options, f"key-{name}")
    found["stored"] = page.evaluate(STORED)
    page.reload()
    found["again"] = settled(page, "model")
    found["models"] = page.locator("#models option").all_inner_texts()
    found["tours"] = {}
    for model in found["models"]:
        page.select_option("#models", model)
        settled(page, "model")
        found["tours"][model] = tour(page, noise, options | {"name": f"model-{model}"})
    return told(page, noise, sent=list(dict.fromkeys(sent)), **found)


VISITS: dict[str, Callable[[Page, Noise, Told], Told]] = {"tour": tour, "keys": keys}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    with opened(asked) as (visited, heard):
        print(json.dumps(VISITS[asked["visit"]](visited, heard, asked)))
