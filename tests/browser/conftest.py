"""A real browser, a real server process, and a log that must stay empty (WB-37).

The browser is found by PERDURE_TEST_CHROMIUM, else on the path. Each step may write a screenshot:
into PERDURE_TEST_SHOTS when that is set, else into the test's own folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

TOKEN = "t0ken-of-the-browser-tests"
SERVER = Path(__file__).with_name("server.py")
SRC = Path(__file__).parents[2] / "src"

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=8_000)


class Server:
    """One server process over a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = f"sqlite:{folder / 'browser.sqlite'}"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, again on the same port when there was one."""
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), self.store, str(self.port), TOKEN],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SRC)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end()
        self.port = int(line)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process and wait for it."""
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the API as another client would."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(
            f"{self.origin}/v1{path}", data=data, headers=headers, method=method
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def session(self, name: str) -> str:
        """Make a session, and answer its id."""
        return str(self.ask("POST", "/sessions", {"name": name})["id"])

    def say(self, session: str, text: str, *, wait: bool = True, mode: str = "accept") -> int:
        """Send an input; with `wait`, until it is final."""
        body = {"mode": mode, "content": text}
        made = self.ask("POST", f"/sessions/{session}/inputs", body)["inputId"]
        if wait:
            assert self.ask("GET", f"/sessions/{session}/inputs/{made}?wait=20")["final"]
        return int(made)


class Window:
    """One window of the browser, and everything its log complained of."""

    def __init__(self, context: BrowserContext, server: Server, shots: Path, name: str) -> None:
        self.page: Page = context.new_page()
        self.server = server
        self.log: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self._shots, self._name, self._steps = shots, name, 0
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.log.append(f"page error: {error}"))
        self.page.on("request", self._request)
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._response)

    def open(self, address: str = "") -> None:
        """Go in with the printed address, then to an address of the page."""
        self.page.goto(f"{self.server.origin}/#{TOKEN}")
        expect(self.page.locator("h1")).to_have_text("Sessions")
        if address:
            self.go(address)

    def go(self, address: str) -> None:
        """Go to another address of the page."""
        self.page.evaluate("address => { location.hash = address; }", address)

    def shot(self, step: str) -> None:
        """Write a screenshot of this step, and see that the log is empty."""
        self._steps += 1
        self.page.screenshot(path=self._shots / f"{self._name}-{self._steps:02}-{step}.png")
        self.check()

    def check(self) -> None:
        """Fail on whatever the browser complained of."""
        assert self.log == []

    def _note(self, words: str) -> None:
        if not any(allowed in words for allowed in self.allowed):
            self.log.append(words)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.server.origin}/", "data:")):
            self._note(f"another origin: {request.url}")

    def _failed(self, request: Request) -> None:
        # The page itself ends a stream or a read when a person goes elsewhere.
        if request.failure != "net::ERR_ABORTED":
            self._note(f"failed: {request.url} {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"{response.status}: {response.url}")


def chromium_path() -> str | None:
    """Find a browser that is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("PERDURE_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this process."""
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium: set PERDURE_TEST_CHROMIUM, or put chromium on the path")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of this process; each makes sessions of its own."""
    served = Server(tmp_path_factory.mktemp("served"))
    served.start()
    yield served
    served.end()


Opens = Callable[..., Window]


@pytest.fixture
def opens(
    browser: Browser, server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Opens]:
    """Open windows: `opens(size=PHONE, dark=True, server=other)`; each log must end empty."""
    shots = Path(os.environ.get("PERDURE_TEST_SHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)
    made: list[tuple[BrowserContext, Window]] = []

    def open_window(
        *,
        size: dict[str, int] = DESKTOP,
        dark: bool = False,
        server: Server = server,
        **options: Any,
    ) -> Window:
        context = browser.new_context(
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme="dark" if dark else "light",
            has_touch=size is PHONE,
            **options,
        )
        window = Window(context, server, shots, request.node.name.replace("/", "_"))
        made.append((context, window))
        return window

    yield open_window
    for context, window in made:
        window.check()
        context.close()
