"""Control headless Chromium through its debugging pipe, without a driver or another package."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
ADVICE = "chromium is not installed (apt-get install chromium)"


class Browser:
    """One tab; `console` collects the messages of the page, `requests` the URLs it fetches."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._home = TemporaryDirectory(ignore_cleanup_errors=True)
        low_read, self._write = os.pipe()
        self._read, low_write = os.pipe()
        # Keep descriptors 3 and 4 free: Chromium reads from 3 and writes to 4.
        theirs = tuple(fcntl.fcntl(low, fcntl.F_DUPFD, 50) for low in (low_read, low_write))
        self._process = subprocess.Popen(
            [
                *("bash", "-c", 'exec "$@" 3<&{} 4>&{}'.format(*theirs), "bash", CHROMIUM),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
                *("--disable-dev-shm-usage", "--no-first-run", "--disable-quic", "--disable-sync"),
                *("--disable-background-networking", "--disable-component-update"),
                f"--user-data-dir={self._home.name}",
            ],
            pass_fds=theirs,
            stderr=subprocess.DEVNULL,
        )
        for fd in (low_read, low_write, *theirs):
            os.close(fd)
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, page: Path) -> None:
        """Load a page and wait until its scripts have run."""
        for kept in (self._events, self.console, self.requests):
            kept.clear()
        self._call("Page.navigate", url=page.absolute().as_uri())
        end = monotonic() + 60
        while "Page.loadEventFired" not in self._events:
            self._receive(end)

    def emulate(self, width: int, theme: str) -> None:
        """Set the width of the window in pixels and the preferred theme, "light" or "dark"."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        preferred = {"name": "prefers-color-scheme", "value": theme}
        self._call("Emulation.setEmulatedMedia", features=[preferred])

    def __call__(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def close(self) -> None:
        """Terminate the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)
        self._home.cleanup()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = monotonic() + 60
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], max(0.0, end - monotonic()))
            assert ready, "the browser does not respond"
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has exited"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(params))
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message
