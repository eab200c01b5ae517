"""Large sessions, and many of them (WB-36, WB-26); long, and so among the deep tests."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opens, Server
from tests.browser.filling import crowd, fill

ENTRIES = 100_000
MIB = 1024 * 1024
STATE = """() => ({
  elements: document.getElementsByTagName("*").length,
  ids: [...document.querySelectorAll(".entry")].map((one) => Number(one.dataset.entry)),
})"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = Server(tmp_path_factory.mktemp("large"))
    fill(served.store, "long", ENTRIES)
    served.start()
    yield served
    served.end()


def heap(page: Page) -> int:
    """Answer what the page's objects hold, after the garbage is gone."""
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.enable")
    client.send("HeapProfiler.collectGarbage")
    client.send("Performance.enable")
    metrics = {
        one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]
    }
    client.detach()
    return int(metrics["JSHeapUsedSize"])


@pytest.mark.deep
@pytest.mark.spec("WB-36")
def test_a_long_session_opens_at_its_end_and_stays_small_while_scrolled(
    opens: Opens, large: Server
) -> None:
    session = large.ask("GET", "/sessions")["sessions"][0]["id"]
    window = opens(server=large)
    page = window.page
    window.open()
    begun = time.monotonic()
    window.go(f"#/s/{session}/c/root")
    expect(page.locator(".entry").last).to_contain_text(f"entry {ENTRIES + 1} says")
    opened = time.monotonic() - begun
    newest = ENTRIES + 1
    most = 0
    most_bytes = 0
    for turn in range(4 * ENTRIES // 50):
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_function(
            "(before) => document.querySelector('.entry').dataset.entry != before || document.querySelector('.edge').textContent == 'The beginning.'",
            arg=str(newest),
        )
        state = page.evaluate(STATE)
        assert state["ids"] == list(range(state["ids"][0], state["ids"][0] + len(state["ids"])))
        assert state["ids"][0] <= newest
        newest = state["ids"][0]
        most = max(most, state["elements"])
        if turn % 400 == 0:
            most_bytes = max(most_bytes, heap(page))
        if newest == 2:
            break
    assert newest == 2
    print(f"opened in {opened:.2f} s, at most {most} elements, {most_bytes / MIB:.0f} MiB")
    assert opened < 1
    assert most <= 3_000
    assert most_bytes < 200 * MIB
    page.get_by_role("button", name="Go to the end").click()
    expect(page.locator(".entry").last).to_contain_text(f"entry {ENTRIES + 1} says")


@pytest.mark.deep
@pytest.mark.spec("WB-36")
def test_streaming_leaves_the_page_responsive(opens: Opens, server: Server) -> None:
    session = server.session("quick-hands")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    server.say(session, "rush 1500", wait=False)
    expect(page.locator(".streaming .prose")).to_contain_text("9 10")
    field = page.get_by_label("Your words")
    page.evaluate(
        """() => { window.waits = []; const field = document.getElementById("say");
        field.addEventListener("keydown", (event) => { const at = event.timeStamp;
          requestAnimationFrame(() => setTimeout(() => waits.push(performance.now() - at))); }, true); }"""
    )
    field.focus()
    for letter in "quick hands type while the model speaks":
        page.keyboard.press("Space" if letter == " " else letter)
        page.wait_for_timeout(60)
    waits = sorted(page.evaluate("waits"))
    print(f"input latency: p50 {waits[len(waits) // 2]:.0f} ms, worst {waits[-1]:.0f} ms")
    assert waits[-1] < 100
    field.fill("")
    server.ask("POST", f"/sessions/{session}/abort", {})


@pytest.mark.deep
@pytest.mark.spec("WB-26")
def test_ten_thousand_sessions_page_quickly(opens: Opens, tmp_path: Path) -> None:
    served = Server(tmp_path)
    crowd(served.store, 10_000)
    served.start()
    try:
        window = opens(server=served)
        page = window.page
        window.open()
        expect(page.get_by_text("Show more, 9\u202f900 left")).to_be_visible(timeout=30_000)
        begun = time.monotonic()
        served.ask("GET", "/sessions?limit=100&after=crowd-05000")
        one_page = time.monotonic() - begun
        page.get_by_role("searchbox", name="Filter").fill("crowd-07777")
        expect(page.locator("tbody th a")).to_have_text(["crowd-07777"])
        print(f"a page of 100 sessions in {one_page * 1000:.0f} ms")
        assert one_page < 0.2
        assert page.evaluate("document.getElementsByTagName('*').length") < 3_000
    finally:
        served.end()
