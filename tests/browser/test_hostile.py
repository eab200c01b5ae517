"""Whatever a model, a tool or a name says is text: it changes nothing, runs nothing, loads nothing."""

import json

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens, Server

CORPUS = [
    "<script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 2">',
    "<svg onload=window.pwned=3><animate onbegin=window.pwned=4>",
    '<a href="javascript:window.pwned=5" autofocus onfocus=window.pwned=6>click</a>',
    "<iframe srcdoc='<script>parent.pwned=7</script>'></iframe>",
    '<style>*{background:url("http://other.example/")}</style>',
    '<link rel=stylesheet href="http://other.example/x.css">',
    "<form action=http://other.example/><button>Grant</button></form>",
    "javascript:window.pwned=8",
    "![x](http://other.example/x.png) [y](javascript:window.pwned=9)",
    "{{constructor.constructor('window.pwned=10')()}} ${window.pwned=11}",
    "&lt;b&gt; &#x3c;script&#x3e;",
    "```html\n<img src=x onerror=window.pwned=12>\n```",
]
FOREIGN = "script, iframe, svg:not(.graph), style, link, form[action], a[href^=javascript], img, object, embed, base"


@pytest.mark.spec("WB-23", "WB-25")
def test_hostile_text_is_text(opens: Opens, server: Server) -> None:
    hostile = "\n".join(CORPUS)
    session = server.session("<img src=x onerror=window.pwned=13>")
    parts = [
        {"type": "thinking", "text": hostile},
        {"type": "text", "text": hostile},
        {"type": "toolCall", "callId": "c1", "name": "show", "args": {"text": hostile}},
        {
            "type": "toolCall",
            "callId": "c2",
            "name": "<script>pwned=14</script>",
            "args": {hostile: 1},
        },
    ]
    server.say(session, hostile)
    server.say(session, "raw " + json.dumps(parts))
    window = opens()
    page = window.page
    window.open()
    expect(page.get_by_text("<img src=x onerror=window.pwned=13>")).to_be_visible()
    window.go(f"#/s/{session}/c/root")
    expect(page.locator("h1")).to_have_text("<img src=x onerror=window.pwned=13>")
    expect(page.locator(".entry")).not_to_have_count(0)
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    for part in CORPUS[:11]:
        assert part in page.locator("main").inner_text()
    for view in ("tasks", "context", "values", "usage", "timeline", "approvals"):
        assert page.locator("main").locator(FOREIGN).count() == 0
        assert page.evaluate("window.pwned") is None
        window.go(f"#/s/{session}/c/root/{view}")
        expect(page.locator(".page")).to_be_visible()
    assert (
        page.evaluate("document.querySelectorAll('body script, [onerror], [onload]').length") == 0
    )
    window.check()


@pytest.mark.spec("WB-25")
def test_what_reorders_or_hides_text_is_shown_as_its_escape(opens: Opens, server: Server) -> None:
    session = server.session("hidden")
    server.say(session, "open \u202egnp.exe and\u2066 that\u2069 \x1b[31mred")
    window = opens()
    window.open(f"#/s/{session}/c/root")
    expect(window.page.locator(".is-user .prose")).to_have_text(
        "open \\u202egnp.exe and\\u2066 that\\u2069 \\u001b[31mred"
    )
    window.check()


@pytest.mark.spec("WB-25", "WB-27")
def test_a_line_of_a_megabyte_is_folded_and_breaks_nothing(opens: Opens, server: Server) -> None:
    session = server.session("megabyte")
    server.say(session, "raw " + json.dumps([
        {"type": "text", "text": "x" * 1_000_000},
        {"type": "toolCall", "callId": "c1", "name": "show", "args": {"text": "y" * 30_000}},
    ]))  # fmt: skip
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    more = page.locator(".is-assistant").get_by_role("button", name="Show all 1.0 MB")
    expect(more).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("details.call summary").first.click()
    expect(page.locator("details.call .fold button").first).to_contain_text("Show all")
    more.click()
    expect(page.get_by_role("button", name="Fold")).to_be_focused()
    assert len(page.locator(".prose.plain").inner_text()) == 1_000_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    window.check()


@pytest.mark.spec("WB-25")
def test_a_link_opens_only_after_its_target_was_shown(opens: Opens, server: Server) -> None:
    session = server.session("links")
    target = "https://example.com/a?b=" + "c" * 300 + "#end"
    server.say(session, f"look at {target} now")
    window = opens()
    page = window.page
    window.open(f"#/s/{session}/c/root")
    link = page.locator(".is-user button.link")
    link.click()
    dialog = page.get_by_role("dialog", name="Open this address?")
    expect(dialog.get_by_label("Full address")).to_have_text(target)
    opening = dialog.get_by_role("link", name="Open in a new tab")
    expect(opening).to_have_attribute("rel", "noopener noreferrer")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(link).to_be_focused()
    window.check()


@pytest.mark.spec("WB-24")
def test_without_the_printed_address_there_is_one_sentence_and_no_data(
    opens: Opens, server: Server
) -> None:
    server.session("kept from strangers")
    window = opens()
    window.allowed = ("401",)
    window.page.goto(server.origin + "/")
    expect(window.page.locator("main")).to_have_text(
        "Open the address that perdure serve printed: it lets this browser in."
    )
    assert "kept from strangers" not in window.page.content()
    window.open()
    assert window.page.evaluate("location.href") == f"{server.origin}/#/"
    assert window.page.evaluate("document.cookie") == ""
    assert window.page.context.cookies()[0].get("sameSite") == "Strict"
