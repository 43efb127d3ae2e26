"""A headless Chromium for the tests of the page, driven over its debugging protocol: no package but aiohttp.

The browser is `CHROMIUM` (a path) or one of the usual names on PATH; without one, `find_browser` is None.
"""

import asyncio
import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
START_SECONDS = 60
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}


def find_browser() -> str | None:
    wanted = os.environ.get("CHROMIUM")
    return wanted if wanted else next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One tab: `requests` are the URLs that it asked for, `faults` its console errors and uncaught exceptions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._next, self._answers = socket, 0, {}  # type: ignore[var-annotated]
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.faults: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Runtime.exceptionThrown":
                self.faults.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                self.faults.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                self.faults.append(str(event["params"]["args"]))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        answer = self._answers[self._next] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._next, "method": method, "params": params})
        event = await asyncio.wait_for(answer, START_SECONDS)
        assert "error" not in event, f"{method}: {event['error']}"
        return event["result"]

    async def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file at a window size and colour scheme, counting requests and faults from zero."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        phone = width < 500
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.requests.clear()
        self.faults.clear()
        self._loaded.clear()
        await self.ask("Page.navigate", url=page.resolve().as_uri())
        await asyncio.wait_for(self._loaded.wait(), START_SECONDS)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    async def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = await self.ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def browser_tab(browser: str) -> AsyncIterator[Tab]:
    """Start a browser with a profile of its own and one tab; both end with the context."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [browser, f"--user-data-dir={profile}", *FLAGS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port = await _port(process, Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [each for each in await answer.json() if each["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            process.wait(timeout=START_SECONDS)


async def _port(process: subprocess.Popen[bytes], file: Path) -> str:
    for _ in range(START_SECONDS * 10):
        if file.exists() and (lines := file.read_text().split()):
            return lines[0]
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        await asyncio.sleep(0.1)
    raise TimeoutError("the browser opened no debugging port")
