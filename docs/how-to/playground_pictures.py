"""Screenshots of ``seqdiff playground ecoli-promoters`` for its page.

It needs the system's Chromium and Playwright: run
``python docs/how-to/playground_pictures.py`` in an activated environment with the extra ``dev``.
"""

import shutil
import subprocess
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

_FIGURES, _PORT = Path(__file__).parents[1] / "figures", 8795
_TEMPLATE = "TTGACAN" + "N" * 15 + "TATAATNNNNNNRTG"


def _shrink(path: Path) -> None:
    with Image.open(path) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)


def main() -> None:
    """Draw, score and mutate on the page, and write the pictures to ``docs/figures``."""
    command = ["seqdiff", "playground", "ecoli-promoters"]
    server = subprocess.Popen([*command, f"--port={_PORT}"], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        print(server.stderr.readline())
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(300_000)
            page.goto(f"http://127.0.0.1:{_PORT}")
            page.fill("#num", "4")
            page.fill("#seed", "0")
            page.fill("#signal-0", "2.5")
            page.click("#draw")
            page.wait_for_selector("#keep:not([hidden])")
            page.wait_for_timeout(2500)
            page.click(".row:nth-child(2) span:nth-child(36)")
            page.wait_for_selector("#position:not([hidden])")
            for button, found in (("#score", "#scores"), ("#mutate", "#heat")):
                page.click(button)
                page.wait_for_selector(f"{found}:not([hidden])")
            page.locator("main > div:last-child").screenshot(path=_FIGURES / "playground.png")
            page.set_viewport_size({"width": 390, "height": 760})
            page.fill("#template", _TEMPLATE)
            page.click("#draw")
            page.wait_for_selector("#draw:not([disabled])")
            page.wait_for_timeout(2500)
            page.locator("#step").focus()
            for _ in range(9):
                page.keyboard.press("ArrowLeft")
            page.locator("#film").screenshot(path=_FIGURES / "playground_narrow.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()
    for name in ("playground.png", "playground_narrow.png"):
        _shrink(_FIGURES / name)


if __name__ == "__main__":
    main()
