"""Approvals on the page: all of it is shown, each decision reaches its own call, late ones are told."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Opens, Server

LONG = "line \\n " * 400


@pytest.mark.spec("WB-30", "AQ-05")
@pytest.mark.parametrize("place", ["session", "all"])
def test_grant_waits_until_the_end_of_the_arguments_was_seen(
    opens: Opens, server: Server, place: str
) -> None:
    session = server.session(f"long-{place}")
    server.say(session, "pay 5 " + LONG, wait=False)
    window = opens(size=PHONE)
    page = window.page
    window.open("#/approvals" if place == "all" else f"#/s/{session}/c/root/approvals")
    card = page.locator(".approval").filter(has_text=f"long-{place}")
    grant = card.get_by_role("button", name="Grant")
    expect(grant).to_be_disabled()
    grant.scroll_into_view_if_needed()
    expect(grant).to_be_disabled()
    window.shot("not-read")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    card.locator(".arguments").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(grant).to_be_enabled()
    grant.tap()
    expect(card.locator(".verdict")).to_contain_text("Granted by http:local")
    window.check()


@pytest.mark.spec("AQ-05", "WB-14")
def test_the_arguments_on_the_page_are_those_that_run(opens: Opens, server: Server) -> None:
    session = server.session("digits")
    server.say(session, "pay 9007199254740993 a\u202eb", wait=False)
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    asked = server.ask("GET", f"/sessions/{session}/approvals")["approvals"][0]
    assert asked["argsText"] == '{"amount":9007199254740993,"note":"a\u202eb"}'
    box = page.locator(".approval .arguments")
    expect(box).to_have_text('{"amount":9007199254740993,"note":"a\\u202eb"}')
    call = page.locator("details.call")
    call.locator("summary").click()
    expect(call.locator(".arguments")).to_have_text(
        '{"amount":9007199254740993,"note":"a\\u202eb"}'
    )
    page.get_by_role("button", name="Grant").click()
    expect(page.locator(".entry").last).to_contain_text("paid 9007199254740993")
    window.check()


@pytest.mark.spec("AQ-11", "WB-30")
@pytest.mark.parametrize("place", ["session", "all"])
def test_an_approval_decided_elsewhere_loses_its_buttons(
    opens: Opens, server: Server, place: str
) -> None:
    session = server.session(f"elsewhere-{place}")
    server.say(session, "pay 7", wait=False)
    window = opens()
    page = window.page
    window.open("#/approvals" if place == "all" else f"#/s/{session}/c/root/approvals")
    card = page.locator(".approval").filter(has_text=f"elsewhere-{place}")
    expect(card.get_by_role("button", name="Deny")).to_be_visible()
    task = server.ask("GET", f"/sessions/{session}/approvals")["approvals"][0]["id"]
    server.ask(
        "POST",
        f"/sessions/{session}/approvals/{task}/decision",
        {"decision": "deny", "details": {"text": "too dear"}},
    )
    decided = time.monotonic()
    expect(card.locator(".verdict")).to_have_text(re.compile("Denied by http:local, .*: too dear"))
    assert time.monotonic() - decided < 1.0
    expect(card.get_by_role("button", name="Grant")).to_have_count(0)
    window.check()


@pytest.mark.spec("AQ-05", "BB-18")
def test_each_decision_reaches_its_own_call(opens: Opens, server: Server) -> None:
    session = server.session("three")
    calls = ",".join(
        f'{{"type":"toolCall","callId":"c{index}","name":"pay","args":{{"amount":{amount}}}}}'
        for index, amount in enumerate((10, 99, 10))
    )
    server.say(session, f"raw [{calls}]", wait=False)
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root/approvals")
    cards = page.locator(".approval")
    expect(cards).to_have_count(3)
    for index in range(3):
        cards.nth(index).locator(".end").scroll_into_view_if_needed()
    cards.nth(2).get_by_role("button", name="Grant").click()
    expect(cards.nth(2).locator(".verdict")).to_contain_text("Granted")
    cards.nth(0).get_by_role("button", name="Deny").click()
    expect(cards.nth(0).locator(".verdict")).to_contain_text("Denied")
    expect(cards.nth(1).get_by_role("button", name="Grant")).to_be_visible()
    cards.nth(1).get_by_role("button", name="Grant").click()
    window.go(f"#/s/{session}/c/root")
    states = page.locator(".call .state")
    expect(states).to_have_text(["✕ denied", "● finished", "● finished"])
    window.check()
