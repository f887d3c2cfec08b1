"""Chromium without a window, driven through its debugging pipe: keys pressed, what has the focus, pictures.

Here: the few commands that the tests of pages need. Not here: tests.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

FOUND = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowRight": 39, "Escape": 27}


class Browser:
    """One page; commands are JSON that a zero byte ends, on file descriptors 3 and 4 of the browser."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 1000) -> None:
        there, mine = os.pipe(), os.pipe()
        command = [
            FOUND, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        # The shell gives the pipes the numbers that the browser wants.
        shell = f'exec "$0" "$@" 3<&{there[0]} 4>&{mine[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, *command], pass_fds=(there[0], mine[1]), stderr=subprocess.DEVNULL
        )
        os.close(there[0])
        os.close(mine[1])
        self.write, self.read = os.fdopen(there[1], "wb", 0), os.fdopen(mine[0], "rb", 0)
        self.pending, self.number, self.session = b"", 0, None
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.ask("Page.enable")

    def ask(self, method, **parameters):
        """Send a command and return its answer."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.write.write(json.dumps(request).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self.pending:
            more = self.read.read(1 << 16)
            assert more, "the browser has ended"
            self.pending += more
        first, _, self.pending = self.pending.partition(b"\0")
        return json.loads(first)

    def open(self, path: Path) -> None:
        """Load a page and wait for it."""
        self.ask("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            continue

    def press(self, key: str) -> None:
        """Press and release a key."""
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **facts)

    def value(self, script: str):
        """Return what a script evaluates to."""
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(AssertionError, OSError):
            self.session = None
            self.ask("Browser.close")
        self.write.close()
        self.read.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
