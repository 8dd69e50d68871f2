"""A headless Chromium that is steered as a person would steer it, through its debugging protocol."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "--hide-scrollbars"),
]
PATIENCE = 90  # seconds; a busy machine may need them


def needs_chromium(test: Callable[..., None]) -> Callable[..., None]:
    """For a test that opens a browser."""
    absent = pytest.mark.skipif(CHROMIUM is None, reason="no chromium binary on this machine (Debian: chromium)")
    return pytest.mark.system(absent(test))


class Browser:
    """One tab. `console` and `requests` hold everything the page said and asked for."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.number = socket, 0
        self.console: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.hear(message)

    def hear(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
        elif event["method"] == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            self.console.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{code}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, code: str, seconds: float = PATIENCE) -> Any:
        """Until an expression in the page is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(code)):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {code}\nthe page says: {self.run('document.body.innerText')}")
            time.sleep(0.05)
        return value

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def place(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        code = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}});
            const b = e.getBoundingClientRect();
            return [b.left + b.width * {across}, b.top + b.height * {down}]; }})()"""
        left, top = self.run(code)
        return left, top

    def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        self.pointer = x, y = self.place(selector, across, down)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press_button(self, selector: str) -> None:
        self.point(selector)
        x, y = self.pointer
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)

    def release_button(self) -> None:
        x, y = self.pointer
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        self.press_button(selector)
        self.release_button()

    def drop_file(self, selector: str, file: Path) -> None:
        """Drag a file from outside over an element, and let go."""
        x, y = self.place(selector)
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def choose_file(self, selector: str, file: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(scratch: Path, *flags: str) -> Iterator[Browser]:
    """A browser that cannot reach anything but this machine: its proxy for all else does not exist."""
    assert CHROMIUM is not None
    proxy = ["--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=127.0.0.1;localhost"]
    command = [CHROMIUM, *FLAGS, *flags, *proxy, f"--user-data-dir={scratch / 'profile'}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(tab_address(scratch / "profile" / "DevToolsActivePort", process), max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.kill()
        process.wait()


def tab_address(announcement: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if announcement.is_file() and len(lines := announcement.read_text().splitlines()) == 2:
            with urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return tabs[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise RuntimeError("chromium did not start")


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def strangers(page, address):
    return [url for url in page.requests if not url.startswith((address, "data:", "blob:"))]


VISIT_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--enable-logging=stderr", "--v=0", "--dump-dom"),
    *("--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>"),
]


class Visit(NamedTuple):
    dom: str
    console: list[str]
    requests: list[str]


def visit(file: Path, scratch: Path) -> Visit:
    """Open the file as a user would; the network is a proxy that does not exist, and what was asked of it is logged.

    The browser waits a given time by its own clock, which on a busy machine can run out before the page's script is
    done; it is then asked to wait longer.
    """
    log = scratch / "network.json"
    places = [f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={log}", file.resolve().as_uri()]
    for milliseconds in (8_000, 80_000, 800_000):
        command = [CHROMIUM, *VISIT_FLAGS, f"--virtual-time-budget={milliseconds}", *places]
        done = run_to_its_end(command)
        if 'data-ready="yes"' in done.stdout:
            break
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], requests_of_page(log))


def run_to_its_end(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Chromium now and then hangs while it ends, after everything was shown; it is then started once more."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)


def requests_of_page(log: Path) -> list[str]:
    """Addresses the page asked for. The browser's own traffic (updates, clock) has no origin and does not count."""
    started = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    asked = [p["url"] for p in started if "url" in p and p.get("initiator", "not an origin") != "not an origin"]
    return [url for url in asked if not url.startswith(("data:", "file:"))]
