"""The list of sessions: states in words, those that wait first, filter and order in the address."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens, Server


@pytest.mark.spec("WB-26")
def test_sessions_that_wait_come_first_and_the_address_keeps_the_filter(
    opens: Opens, server: Server
) -> None:
    waiting = server.session("list-b-waiting")
    server.say(waiting, "pay 3", wait=False)
    newest = server.session("list-a-newest")
    server.say(newest, "the last words of all")
    window = opens()
    page = window.page
    window.open()
    row = page.locator(f"tr[data-session='{newest}']")
    expect(row).to_contain_text("idle")
    expect(row).to_contain_text("You said: the last words of all")
    expect(row).to_contain_text("0.0125 USD")
    page.get_by_role("searchbox", name="Filter").fill("list-")
    names = page.locator("tbody th a")
    expect(names).to_have_text(["list-b-waiting", "list-a-newest"])
    expect(page.locator(f"tr[data-session='{waiting}']")).to_contain_text("1 approval")
    page.get_by_label("Order").select_option("name")
    expect(names).to_have_text(["list-a-newest", "list-b-waiting"])
    assert page.evaluate("location.hash") == "#/?q=list-&sort=name"
    page.reload()
    expect(names).to_have_text(["list-a-newest", "list-b-waiting"])
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("list-")
    page.get_by_label("State").select_option("idle")
    expect(names).to_have_text(["list-a-newest"])
    window.shot("filtered")


@pytest.mark.spec("WB-26", "WB-29")
def test_a_session_is_made_on_the_page(opens: Opens, server: Server) -> None:
    window = opens()
    page = window.page
    window.open()
    page.get_by_label("Name of a new session").fill("made here")
    page.get_by_role("button", name="Create").dblclick()
    expect(page.locator("h1")).to_have_text("made here")
    found = server.ask("GET", "/sessions?limit=1000")["sessions"]
    assert [session["name"] for session in found].count("made here") == 1
    window.check()
