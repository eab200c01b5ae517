"""Keyboard, colours, narrow screens and assistive technology (WB-32, WB-33, WB-34)."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import DESKTOP, PHONE, Opens, Server, Window

VIEWS = ("", "/approvals", "/tasks", "/timeline", "/context", "/values", "/usage")


@pytest.fixture(scope="module")
def told(server: Server) -> str:
    """A session in which much was said, and one call waits."""
    session = server.session("told")
    server.say(session, "first question")
    code = "```py\n" + "x = 1 " * 60 + "\n```\nand https://example.com/" + "a" * 200
    call = {"type": "toolCall", "callId": "c", "name": "show", "args": {"text": "out " * 2000}}
    server.say(
        session,
        "raw "
        + json.dumps([{"type": "thinking", "text": "hm"}, {"type": "text", "text": code}, call]),
    )
    server.say(session, "third question")
    server.say(session, "pay 12 " + "word " * 80, wait=False)
    return session


def ready(window: Window, view: str) -> None:
    """Wait until a view is drawn."""
    main = window.page.locator(".talk .entry" if view == "" else ".page").first
    expect(main).to_be_visible()
    if view == "":
        expect(window.page.locator(".talk .approval")).to_be_visible()


@pytest.mark.spec("WB-33", "WB-34")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_view_has_a_violation(
    opens: Opens, server: Server, told: str, dark: bool, size: dict[str, int]
) -> None:
    window = opens(size=size, dark=dark)
    window.open()
    axe = Axe()
    found: dict[str, list[str]] = {}
    for address in ["#/", "#/approvals", *(f"#/s/{told}/c/root{view}" for view in VIEWS)]:
        window.go(address)
        if address.startswith("#/s/"):
            ready(window, address.partition("/root")[2])
        else:
            expect(window.page.locator("tr, .approval").first).to_be_visible()
        result = axe.run(window.page)
        for violation in result.response["violations"]:
            nodes = [
                node["html"][:160] + " " + node.get("failureSummary", "")[:300]
                for node in violation["nodes"][:3]
            ]
            found.setdefault(address, []).append(f"{violation['id']}: {nodes}")
    window.shot("last")
    assert found == {}


@pytest.mark.spec("WB-33")
@pytest.mark.parametrize("width", [320, 640])
def test_nothing_scrolls_sideways(opens: Opens, server: Server, told: str, width: int) -> None:
    scale = 2 if width == 640 else 1  # a desktop at 200 %
    window = opens(size={"width": width, "height": 430 * scale}, device_scale_factor=scale)
    window.open()
    for address in ["#/", "#/approvals", *(f"#/s/{told}/c/root{view}" for view in VIEWS)]:
        window.go(address)
        expect(window.page.locator("main h1")).to_be_visible()
        if address.startswith("#/s/"):
            ready(window, address.partition("/root")[2])
        wide = window.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, address
    window.check()


@pytest.mark.spec("WB-32", "WB-34")
def test_the_keyboard_does_everything(opens: Opens, server: Server, told: str) -> None:
    window = opens()
    page = window.page
    window.open(f"#/s/{told}/c/root")
    ready(window, "")
    focused = "document.activeElement.className"
    page.keyboard.press("k")
    assert "entry" in page.evaluate(focused)
    last = page.evaluate("document.activeElement.id")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.id") != last
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.id") == last
    page.keyboard.press("[")
    assert "is-user" in page.evaluate(focused)
    turn = page.evaluate("document.activeElement.id")
    page.keyboard.press("[")
    assert "is-user" in page.evaluate(focused)
    page.keyboard.press("]")
    assert page.evaluate("document.activeElement.id") == turn
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("third")
    page.keyboard.press("Enter")
    assert "third question" in page.evaluate("document.activeElement.innerText")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press(".")
    expect(page.get_by_role("heading", name="What the model is shown")).to_be_visible()
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    page.keyboard.press("g")
    expect(page.get_by_role("dialog", name="Go to")).to_be_visible()
    page.keyboard.press("Escape")
    window.check()


@pytest.mark.spec("WB-32")
def test_no_single_key_decides_and_typing_is_typing(
    opens: Opens, server: Server, told: str
) -> None:
    window = opens()
    page = window.page
    window.open(f"#/s/{told}/c/root")
    ready(window, "")
    page.locator("h1").focus()
    for key in "bcdefhlmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    expect(page.locator(".talk .approval").get_by_role("button", name="Deny")).to_be_visible()
    field = page.get_by_label("Your words")
    field.focus()
    page.keyboard.type("jkga.?[]/")
    expect(field).to_have_value("jkga.?[]/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(field).not_to_be_focused()
    field.fill("")
    window.check()


@pytest.mark.spec("WB-32")
def test_tab_goes_down_the_page_and_shows_where_it_is(
    opens: Opens, server: Server, told: str
) -> None:
    window = opens()
    page = window.page
    window.open("#/")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.locator("#skip").focus()
    places: list[tuple[float, float]] = []
    for _ in range(8):
        page.keyboard.press("Tab")
        box = page.evaluate(
            """() => { const element = document.activeElement, box = element.getBoundingClientRect();
            return [box.top, box.left, getComputedStyle(element).outlineStyle]; }"""
        )
        assert box[2] != "none", box
        places.append((round(box[0] / 24), box[1]))
    assert places == sorted(places)
    window.check()


@pytest.mark.spec("WB-33")
def test_the_colours_can_be_set_and_stay_set(opens: Opens, server: Server) -> None:
    window = opens(dark=True)
    page = window.page
    window.open()
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    button = page.get_by_role("button", name=re.compile("Colours"))
    button.click()
    expect(button).to_have_text("Light")
    light = page.evaluate(paper)
    assert light != dark
    page.reload()
    expect(button).to_have_text("Light")
    assert page.evaluate(paper) == light
    window.check()


@pytest.mark.spec("WB-33")
def test_with_reduced_motion_nothing_moves(opens: Opens, server: Server, told: str) -> None:
    window = opens(reduced_motion="reduce")
    window.open(f"#/s/{told}/c/root")
    ready(window, "")
    assert window.page.evaluate("document.getAnimations().length") == 0
    window.check()


@pytest.mark.spec("WB-34")
def test_the_live_region_says_states_and_never_streamed_text(opens: Opens, server: Server) -> None:
    session = server.session("spoken")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    page.evaluate(
        """() => { window.heard = []; new MutationObserver(() => heard.push(document.getElementById("said").textContent))
        .observe(document.getElementById("said"), {childList: true, characterData: true, subtree: true}); }"""
    )
    server.say(session, "count 40")
    expect(page.locator("#said")).to_have_text("Idle")
    assert set(page.evaluate("heard")) <= {"Working", "Idle", "Suspended"}
    assert "Working" in page.evaluate("heard")
    window.check()
