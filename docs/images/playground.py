"""Makes playground.png, the README's picture of the playground: `make picture`.

Starts a pair with the default model, and Chromium on its page in the environment that `make clients` sets up.
"""

import asyncio
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BROWSER_PYTHON = ROOT / ".venv-clients" / "playground" / "bin" / "python"
CHROMIUM = "/usr/bin/chromium"
WIDTH = 860
"""Width of the page in CSS pixels."""


def photograph(url: str) -> None:
    """Saves the late-interaction section with its heat map. Runs in the browser's environment."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(f"{url}/")
        page.wait_for_selector("#model[aria-busy=false]", state="attached")
        page.click("#late form button")
        page.wait_for_selector("#late table")
        page.wait_for_selector("#late[aria-busy=false]", state="attached")
        page.locator("#late").screenshot(path=FOLDER / "playground.png")
        browser.close()


async def main() -> None:
    """Starts the pair and the browser's process, one after the other."""
    from harness.stack import stack

    async with stack("minilm", frontend={"http-listen": "127.0.0.1:0"}) as pair:
        command = (str(BROWSER_PYTHON), __file__, str(pair.frontends[0].http_url))
        browser = await asyncio.create_subprocess_exec(*command)
        if await browser.wait():
            raise SystemExit("the browser failed: run `make clients`, and install Chromium")


if __name__ == "__main__":
    photograph(sys.argv[1]) if sys.argv[1:] else asyncio.run(main())
