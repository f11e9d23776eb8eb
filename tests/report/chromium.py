"""A headless Chromium, driven by Playwright: what a reader's browser does with a page, without any network.

Playwright's synchronous interface keeps an event loop running in its thread, in which no test could call asyncio.run
any more: so it has a thread of its own, and every call is handed to it.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--font-render-hinting=none",
)
# What a page that was taken over would do, and what nothing here ever does.
CANARY = """
window.__ran = [];
for (const name of ['alert', 'confirm', 'prompt', 'open', 'print', 'fetch'])
  window[name] = (...all) => { window.__ran.push(name + ': ' + all.join(' ').slice(0, 200)); };
window.owned = what => { window.__ran.push('owned: ' + what); };
"""
Found = TypeVar("Found")


def require_chromium() -> str:
    """The browser's path. Without one the test is skipped, or fails where KVSCOPE_REQUIRE_BROWSER=1."""
    if BINARY is None:
        reason = "no chromium on this machine: apt-get install chromium"
        if os.environ.get("KVSCOPE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return BINARY


class Chromium:
    """One browser, one page at a time. ``messages``: what the console said of the page that was opened last, its
    errors too; ``requests``: every address that it asked for, all of which but its own file were refused."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playwright")
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._context: Any = None
        self.page: Any = None
        self._playwright, self._browser = self.do(self._start)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._end)
        self._thread.shutdown()

    def do(self, what: Callable[[], Found]) -> Found:
        """``what()``, done in Playwright's thread: where more is needed than is here, with ``self.page``."""
        return self._thread.submit(what).result(timeout=120)

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        media: str = "",
        language: str = "en-US",
    ) -> None:
        """Load a file in a browser that knows nothing of the page before it. ``media``: print."""
        self.do(lambda: self._open(path, width, height, dark, scripts, media, language))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, scripts on or off."""
        return self.do(lambda: self.page.evaluate(expression))

    def wait_for(self, condition: str) -> None:
        """Until an expression in the page is true. Raises where it is not for half a minute."""
        self.do(lambda: self.page.wait_for_function(f"() => {condition}", timeout=30_000))

    def click(self, selector: str) -> None:
        """As a person clicks: only what can be seen, and is not covered."""
        self.do(lambda: self.page.click(selector, timeout=5000))

    def hover(self, selector: str) -> None:
        """The pointer over the middle of it."""
        self.do(lambda: self.page.hover(selector, timeout=5000))

    def press(self, key: str, times: int = 1) -> None:
        """A key of the keyboard, as Playwright names it."""
        self.do(lambda: [self.page.keyboard.press(key) for _ in range(times)])

    def screenshot(self, path: Path | None = None, *, whole: bool = True) -> bytes:
        """The page as PNG, or what is seen of it without scrolling."""
        picture: bytes = self.do(lambda: self.page.screenshot(full_page=whole, animations="disabled"))
        if path is not None:
            path.write_bytes(picture)
        return picture

    def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        printed: bytes = self.do(lambda: self.page.pdf(format="A4"))
        return printed

    def ran(self) -> list[str]:
        """What of the page did something that only a page that was taken over does."""
        found: list[str] = self.evaluate("window.__ran")
        return found

    def complaints(self) -> list[str]:
        """What axe-core finds wrong by WCAG 2.1 A and AA: the rule and up to three places of each."""
        from axe_playwright_python.base import AXE_SCRIPT

        rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}

        def run() -> Any:
            self.page.evaluate(AXE_SCRIPT)
            return self.page.evaluate("rules => axe.run(document, rules)", rules)

        return [
            f"{each['id']}: {node['html'][:160]} ({node['failureSummary'][:200]})"
            for each in self.do(run)["violations"]
            for node in each["nodes"][:3]
        ]

    def _start(self) -> tuple[Any, Any]:
        from playwright.sync_api import sync_playwright

        playwright = sync_playwright().start()
        try:
            return playwright, playwright.chromium.launch(executable_path=require_chromium(), args=list(FLAGS))
        except BaseException:
            playwright.stop()
            raise

    def _end(self) -> None:
        self._browser.close()
        self._playwright.stop()

    def _open(self, path: Path, width: int, height: int, dark: bool, scripts: bool, media: str, language: str) -> None:
        if self._context is not None:
            self._context.close()
        self.messages, self.requests = [], []
        self._context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
            locale=language,
        )
        if scripts:
            self._context.add_init_script(CANARY)
        address = path.resolve().as_uri()
        messages, requests = self.messages, self.requests

        def refuse(route: Any) -> None:
            # What the page's own policy refuses never comes here.
            requests.append(route.request.url)
            if route.request.url == address:
                route.continue_()
            else:
                route.abort()

        self._context.route("**/*", refuse)
        self.page = page = self._context.new_page()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: messages.append(f"popup: {other.url}"))
        page.set_default_timeout(30_000)
        if media:
            page.emulate_media(media=media)
        page.goto(address)
