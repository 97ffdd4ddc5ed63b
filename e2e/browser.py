"""A headless Chromium over the DevTools protocol: it opens a page, presses keys, and looks."""

import asyncio
import base64
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 60
DEADLINE = 30
POLL_SECONDS = 0.1
_MAX_BYTES = 64 << 20
_CODES = {"Enter": 13, "Escape": 27, "/": 191, "?": 191}


def chromium() -> str:
    """Return the path of a Chromium. Skips the test, with a line that says so, if there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("NOT TESTED: the console in a browser: there is no chromium on PATH; install it")


class Page:
    """One page of a browser. `problems` are what its console and its security policy said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def listen(self) -> None:
        """Take in what the browser says."""
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                self.problems.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
            elif told["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Runtime.consoleAPICalled":
                self.problems.append(str(told["params"]["args"]))

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._answers[number] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(future, DEADLINE)
        assert "error" not in told, told
        return told["result"]

    async def open(self, url: str) -> None:
        """Go to a URL, and wait until its files are there."""
        told = await self.call("Page.navigate", url=url)
        assert "errorText" not in told, told
        await self.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    async def run(self, code: str) -> Any:
        """Return the value of an expression."""
        told = await self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, code: str) -> Any:
        """Wait until an expression has a value that counts as true; return it."""
        async with asyncio.timeout(DEADLINE):
            while not (value := await self.run(code)):
                await asyncio.sleep(POLL_SECONDS)
        return value

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            text = (
                {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            )
            code = {"windowsVirtualKeyCode": _CODES[key]} if key in _CODES else {}
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                await self.call("Input.dispatchKeyEvent", type=kind, key=key, **more, **code)

    async def text(self, selector: str) -> str:
        """Return what is read in the first element that a selector finds."""
        return str(await self.run(f"document.querySelector({selector!r})?.innerText ?? ''"))

    async def look(self, *, dark: bool = False, wide: int = 1360, high: int = 860) -> None:
        """Set the size of the window, and light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=wide,
            height=high,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(told["data"]))


@contextlib.asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """Start a Chromium with an empty profile in a folder; give an empty page."""
    argv = [
        *(chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"),
        *("--disable-component-update", "--remote-debugging-port=0", "--remote-allow-origins=*"),
        *(f"--user-data-dir={folder}", "about:blank"),
    ]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    drain = None
    try:
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as client:
            port = await _port(process.stderr)
            drain = asyncio.create_task(process.stderr.read())
            async with client.get(f"http://127.0.0.1:{port}/json/list") as response:
                (target,) = [each for each in await response.json() if each["type"] == "page"]
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=_MAX_BYTES) as socket,
        ):
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.look()
                yield page
            finally:
                listening.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if drain is not None:
            await drain


async def _port(lines: asyncio.StreamReader) -> int:
    """Read where it listens: `DevTools listening on ws://127.0.0.1:PORT/...`."""
    async for line in lines:
        if b"DevTools listening on ws://" in line:
            return int(line.split(b"ws://", 1)[1].split(b"/", 1)[0].rpartition(b":")[2])
    raise AssertionError("the browser has ended before it listened")
