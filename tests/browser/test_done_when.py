"""The first page, as a person uses it: look on, decide, stop, and read what it cost."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Opens, Server


@pytest.mark.spec("WB-27", "WB-29", "WB-37")
@pytest.mark.parametrize(("size", "dark"), [("desktop", False), ("phone", True)])
def test_a_person_stands_beside_a_running_agent(
    opens: Opens, server: Server, size: str, dark: bool
) -> None:
    session = server.session(f"beside-{size}")
    window = opens(size=PHONE, dark=dark) if size == "phone" else opens(dark=dark)
    page = window.page
    window.open()
    page.get_by_role("link", name=f"beside-{size}").click()
    expect(page.locator("h1")).to_have_text(f"beside-{size}")
    expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
    window.shot("open")

    # Tokens stream in.
    page.get_by_label("Your words").fill("count 60")
    page.get_by_role("button", name="Send").click()
    streaming = page.locator(".streaming .prose")
    expect(streaming).to_have_text(re.compile(r"^1 2 3"))
    early = streaming.inner_text()
    window.shot("streaming")
    expect(page.locator(".is-assistant:not(.streaming) .prose")).to_have_text(re.compile(r"59 60$"))
    assert early != page.locator(".is-assistant .prose").inner_text()
    expect(page.get_by_label("Your words")).to_have_value("")
    expect(page.locator("#said")).to_have_text("Idle")
    window.shot("answered")

    # A held call is shown in full, and granted.
    server.say(session, "pay 9007199254740993 rent", wait=False)
    approval = page.locator(".approval")
    expect(approval.locator(".arguments")).to_have_text('{"amount":9007199254740993,"note":"rent"}')
    expect(page.locator("#said")).to_have_text("1 decision awaited")
    grant = approval.get_by_role("button", name="Grant")
    grant.scroll_into_view_if_needed()
    window.shot("held")
    grant.focus()
    expect(grant).to_be_focused()
    page.keyboard.press("Enter")
    expect(approval.locator(".verdict")).to_have_text(re.compile("Granted by http:local"))
    expect(page.locator(".entry").last).to_contain_text("The tool said: paid 9007199254740993")
    expect(page.locator(".call .state")).to_have_text("● finished")
    window.shot("granted")

    # A turn is aborted.
    page.get_by_label("Your words").fill("wait")
    page.get_by_label("Your words").press("Control+Enter" if size == "phone" else "Enter")
    if size == "phone":
        page.get_by_role("button", name="Send").click()
    expect(page.locator(".call .state").last).to_have_text("◐ running")
    page.get_by_role("button", name="Abort").click()
    expect(page.locator(".call .state").last).to_have_text("✕ interrupted")
    expect(page.locator("#said")).to_have_text("Idle")
    window.shot("aborted")

    # The cost is read: four replies, 0.0125 each.
    expect(page.locator("#spent .cost")).to_have_text("0.05 USD")
    page.get_by_role("link", name="Usage").click()
    expect(page.locator(".page .cost")).to_have_text("0.05 USD")
    window.shot("cost")
