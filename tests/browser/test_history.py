"""Time travel: any boundary, read only, with an address of its own (WB-31)."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens, Server


@pytest.mark.spec("WB-31")
def test_any_commit_can_be_visited_and_nothing_changed_there(opens: Opens, server: Server) -> None:
    session = server.session("history")
    server.say(session, "one")
    server.say(session, "two")
    commits = server.ask("GET", f"/sessions/{session}/commits")["commits"]
    first = server.ask("GET", f"/sessions/{session}/conversations/root/entries")["entries"][1]
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    expect(page.locator(".entry")).to_have_count(4)
    page.locator(".entry").nth(1).focus()
    page.keyboard.press("g")
    dialog = page.get_by_role("dialog", name="Go to")
    expect(dialog.get_by_role("textbox")).to_have_value(str(first["id"]))
    page.keyboard.press("Enter")
    banner = page.locator(".banner")
    index = [commit["lastSeq"] for commit in commits].index(first["commitEnd"]) + 1
    expect(banner).to_contain_text(f"commit {index} of {len(commits)}")
    expect(page.locator(".entry")).to_have_count(2)
    expect(page.locator("#spent .cost")).to_have_text("0.0125 USD")
    for name in ("Send", "Abort", "Grant", "Deny", "Take back"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    window.shot("then")

    # The slider and its keys move through the commits; the address reopens the place.
    slider = page.get_by_role("slider", name="Commit")
    slider.focus()
    page.keyboard.press("Home")
    expect(banner).to_contain_text(f"commit 1 of {len(commits)}")
    expect(page.locator(".entry")).to_have_count(0)
    expect(slider).to_be_focused()
    page.get_by_role("button", name="Later").click()
    expect(banner).to_contain_text(f"commit 2 of {len(commits)}")
    address = page.evaluate("location.hash")
    assert re.search(r"[?&]at=\d+", address)
    page.reload()
    expect(banner).to_contain_text(f"commit 2 of {len(commits)}")
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_role("heading", name="What the model is shown")).to_be_visible()
    expect(banner).to_contain_text(f"commit 2 of {len(commits)}")
    page.get_by_role("link", name="Conversation", exact=True).click()
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".entry")).to_have_count(4)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    window.check()


@pytest.mark.spec("WB-31")
def test_a_moment_that_is_none_is_refused_in_words(opens: Opens, server: Server) -> None:
    session = server.session("moments")
    server.say(session, "one")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    expect(page.locator(".entry")).to_have_count(2)
    for words, answer in (
        ("yesterday", "is no number and no time"),
        ("999999", "newest commit"),
        ("1999-01-01", "no commit yet"),
    ):
        page.locator("h1").focus()
        page.keyboard.press("g")
        dialog = page.get_by_role("dialog", name="Go to")
        dialog.get_by_role("textbox").fill(words)
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text(answer)
        page.keyboard.press("Escape")
    window.check()
