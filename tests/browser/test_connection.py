"""A lost connection, a restart, and what is said meanwhile (WB-35, WB-16, BB-45)."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens, Server

LOST = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "503", "failed to fetch")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Server]:
    """A server of one test, to be killed."""
    served = Server(tmp_path)
    served.start()
    yield served
    served.end()


@pytest.mark.spec("WB-35", "WB-29")
def test_a_kill_is_shown_and_the_page_goes_on_where_it_was(opens: Opens, mortal: Server) -> None:
    session = mortal.session("mortal")
    mortal.say(session, "before the kill")
    window = opens(server=mortal)
    window.allowed = LOST
    page = window.page
    window.open(f"#/s/{session}/c/root")
    expect(page.locator(".entry")).to_have_count(2)
    page.evaluate("window.loaded = 1")
    mortal.end(signal.SIGKILL)
    killed = time.monotonic()
    expect(page.locator(".old")).to_contain_text("This is how it stood at")
    assert time.monotonic() - killed < 2
    expect(page.locator(".entry")).to_have_count(2)

    # What is said now is kept, under one request id, and sent when the server is back.
    page.get_by_label("Your words").fill("said while it was away")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".composer .outcome")).to_contain_text("Not sent yet")
    expect(page.get_by_label("Your words")).to_have_value("said while it was away")
    window.shot("away")
    mortal.start()
    mortal.say(session, "said by somebody else")
    expect(page.locator(".old")).to_be_hidden(timeout=20_000)
    expect(page.locator(".is-user .prose")).to_have_text(
        ["before the kill", "said by somebody else", "said while it was away"], timeout=20_000
    )
    expect(page.get_by_label("Your words")).to_have_value("")
    assert page.evaluate("window.loaded") == 1
    entries = mortal.ask("GET", f"/sessions/{session}/conversations/root/entries")["entries"]
    assert sum(entry["kind"] == "user" for entry in entries) == 3


@pytest.mark.spec("WB-29")
def test_a_double_click_is_one_effect(opens: Opens, server: Server) -> None:
    session = server.session("double")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    page.get_by_label("Your words").fill("once")
    page.get_by_role("button", name="Send").dblclick()
    expect(page.locator(".entry")).to_have_count(2)
    entries = server.ask("GET", f"/sessions/{session}/conversations/root/entries")["entries"]
    assert len(entries) == 2
    window.check()


@pytest.mark.spec("WB-29", "WB-27")
def test_what_is_queued_is_shown_and_taken_back(opens: Opens, server: Server) -> None:
    session = server.session("queued")
    server.say(session, "wait", wait=False)
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    expect(page.locator(".call .state")).to_have_text("◐ running")
    page.get_by_label("How it is sent").select_option("followUp")
    page.get_by_label("Your words").fill("and then <b>this</b>")
    page.get_by_role("button", name="Follow up").click()
    item = page.locator(".queue li")
    expect(item).to_contain_text("and then <b>this</b>")
    expect(item).to_contain_text("follow-up")
    page.get_by_role("button", name="Take back").click()
    expect(item).to_have_count(0)
    page.get_by_role("button", name="Abort").click()
    expect(page.locator(".call .state")).to_have_text("✕ interrupted")
    window.check()


@pytest.mark.spec("WB-29")
def test_a_refusal_is_said_in_words(opens: Opens, server: Server) -> None:
    server.session("taken")
    window = opens()
    window.allowed = ("409", "400")
    page = window.page
    window.open()
    page.get_by_label("Name of a new session").fill("taken")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert").filter(has_text="taken")).to_be_visible()
    expect(page.locator("h1")).to_have_text("Sessions")


@pytest.mark.spec("WB-29")
def test_an_action_shows_the_equal_command(opens: Opens, server: Server) -> None:
    session = server.session("it's equal")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    page.get_by_label("How it is sent").select_option("steer")
    page.get_by_label("Your words").fill("go on; rm -rf $HOME")
    page.get_by_text("As a command").click()
    command = page.locator(".composer .command code").first
    expect(command).to_have_text("perdure steer --session 'it'\\''s equal' 'go on; rm -rf $HOME'")
    window.check()
