"""Reading: at one boundary, owning nothing, with exact numbers (WB-07, WB-09, WB-14)."""

import json
from typing import Any

import pytest

from perdure.records.addresses import ConversationList, ConversationValue
from perdure.testing.scripted_model import call, say
from tests.engine import Probe
from tests.unit.web.site import Site

BIG = 9007199254740993

READS = (
    "",
    "/conversations",
    "/conversations/root",
    "/conversations/root/entries",
    "/conversations/root/tasks",
    "/conversations/root/context",
    "/conversations/root/queue",
    "/conversations/root/values?namespace=perdure.model",
    "/conversations/root/lists?namespace=strokes",
    "/approvals",
    "/usage",
    "/commits",
    "/openings",
)


async def talked(site: Site, *turns: str) -> str:
    """Make a session with some answered inputs."""
    site.script = [say(f"re {turn}") for turn in turns]
    path = await site.session()
    for turn in turns:
        accepted = await site.ask("POST", f"{path}/inputs", {"content": turn})
        await site.settled(path, accepted.json["inputId"])
    return path


@pytest.mark.spec("WB-09")
async def test_reading_owns_and_starts_nothing(site: Site) -> None:
    path = await site.session()
    await site.ask("POST", f"{path}/inputs", {"content": "hi", "drive": False})
    await site.restart([say("never")])
    site.opened.clear()
    newest = await site.seq(path)
    for place in READS:
        answer = await site.ask("GET", path + place)
        assert answer.status == 200, place
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json["asOf"] == newest, place
    assert site.opened == []
    assert (await site.ask("GET", path)).json["owner"] is None
    owner = await site.engine.sessions.open("paris", create=False)
    for place in READS:
        assert (await site.ask("GET", path + place)).status == 200
    await owner.close()


@pytest.mark.spec("WB-09")
async def test_each_read_shows_a_past_boundary(site: Site) -> None:
    path = await talked(site, "a", "b")
    commits = (await site.ask("GET", f"{path}/commits")).json["commits"]
    assert commits[0]["firstSeq"] == 1
    root = f"{path}/conversations/root"
    seen: dict[int, Any] = {}
    for boundary in [one["lastSeq"] for one in commits]:
        page = await site.ask("GET", f"{root}/entries?as_of={boundary}")
        assert page.json["asOf"] == boundary
        seen[boundary] = [entry["id"] for entry in page.json["entries"]]
        state = (await site.ask("GET", f"{root}?as_of={boundary}")).json["conversation"]
        assert state.get("context", []) == seen[boundary]
        for place in (
            "/tasks",
            "/context",
            "/queue",
            "/values?namespace=perdure.model&key=",
            "/values?namespace=perdure.model",
            "/lists?namespace=l",
        ):
            mark = "&" if "?" in place else "?"
            answer = await site.ask("GET", f"{root}{place}{mark}as_of={boundary}")
            assert answer.json["asOf"] == boundary
        usage = (await site.ask("GET", f"{path}/usage?as_of={boundary}")).json
        assert usage["asOf"] == boundary
    assert next(iter(seen.values())) == []
    assert len(list(seen.values())[-1]) == 4
    inside = await site.ask("GET", f"{root}/entries?as_of=3")
    assert (inside.status, inside.code) == (400, "invariant")


@pytest.mark.spec("WB-07")
async def test_lists_are_read_in_pages_to_their_end(site: Site) -> None:
    path = await talked(site, "a", "b", "c")
    whole = (await site.ask("GET", f"{path}/conversations/root/entries")).json["entries"]
    assert len(whole) == 6
    for step in (1, 2, 6, 7):
        assert (
            await paged(site, f"{path}/conversations/root/entries", "entries", "after", step)
            == whole
        )
        back = await paged(site, f"{path}/conversations/root/entries", "entries", "before", step)
        assert back == whole
    for place, noun in (
        ("conversations/root/tasks", "tasks"),
        ("commits", "commits"),
        ("conversations", "conversations"),
    ):
        whole = (await site.ask("GET", f"{path}/{place}")).json[noun]
        assert await paged(site, f"{path}/{place}", noun, "after", 1) == whole


async def paged(site: Site, place: str, noun: str, by: str, limit: int) -> list[Any]:
    """Read a list page by page, forwards or backwards."""
    found: list[Any] = []
    cursor = "&newest=true" if by == "before" else ""
    place += "&" if "?" in place else "?"
    while True:
        page = (await site.ask("GET", f"{place}limit={limit}{cursor}")).json
        found = found + page[noun] if by == "after" else page[noun] + found
        if page["next"] is None:
            return found
        cursor = f"&{by}={page['next']}"


@pytest.mark.spec("WB-09")
async def test_values_and_lists_of_a_conversation_are_read(site: Site) -> None:
    path = await site.session()
    async with site.house.using(path.rpartition("/")[2]) as harness:
        root = await harness.root()
        for key in ("a", "ab", "b"):
            await root.set_value(ConversationValue("plan", key), {"key": key})
        for number in range(5):
            await root.append_list(ConversationList("strokes"), number, tag="t" if number else None)
    place = f"{path}/conversations/root/values?namespace=plan"
    page = (await site.ask("GET", f"{place}&prefix=a")).json
    assert [(one["key"], one["value"]) for one in page["values"]] == [
        ("a", {"key": "a"}),
        ("ab", {"key": "ab"}),
    ]
    following = (await site.ask("GET", f"{place}&limit=1&after=a")).json
    assert ([one["key"] for one in following["values"]], following["next"]) == (["ab"], "ab")
    one = (await site.ask("GET", f"{place}&key=b")).json
    assert [value["value"] for value in one["values"]] == [{"key": "b"}]
    assert (await site.ask("GET", f"{place}&key=c")).json["values"] == []
    strokes = f"{path}/conversations/root/lists?namespace=strokes"
    elements = (await site.ask("GET", f"{strokes}&newest=true&limit=2")).json["elements"]
    assert [(element["value"], element["tag"]) for element in elements] == [(3, "t"), (4, "t")]
    sealed = await site.ask("GET", f"{path}/conversations/root/values?namespace=perdure.program")
    assert sealed.code == "invariant"


@pytest.mark.spec("WB-14", "VD-18")
async def test_every_digit_arrives(site: Site) -> None:
    args = {"id": BIG, "far": 2**64, "deep": [{"n": -7108510333361982070}]}
    probe = Probe("read", body=details)
    site.script, site.options = [say(call("read", args)), say("done")], {"tools": [probe]}
    path = await site.session()
    accepted = await site.ask("POST", f"{path}/inputs", {"content": "go"})
    await site.settled(path, accepted.json["inputId"])
    canonical = json.dumps(args, sort_keys=True, separators=(",", ":"))
    entries = (await site.ask("GET", f"{path}/conversations/root/entries")).json["entries"]
    part = entries[1]["payload"]["message"]["content"][0]
    assert (part["args"], part["argsText"]) == (args, canonical)
    assert probe.runs == [args]
    result = entries[2]["payload"]["message"]
    assert result["detailsText"] == f'{{"n":{BIG}}}'
    commits = (await site.ask("GET", f"{path}/commits")).body
    assert json.dumps(canonical).encode() in commits


async def details(args: Any, ctx: Any) -> None:
    ctx.out.details({"n": args["id"]})


@pytest.mark.spec("WB-09")
async def test_a_session_says_what_it_is_doing(site: Site) -> None:
    path = await talked(site, "a")
    shown = (await site.ask("GET", path)).json
    assert (shown["state"], shown["here"], shown["lastWords"]) == ("idle", True, "re a")
    await site.ask("POST", f"{path}/inputs", {"content": "b", "drive": False})
    assert (await site.ask("GET", path)).json["state"] == "suspended"
    await site.restart()
    owner = await site.engine.sessions.open("paris", create=False)
    shown = (await site.ask("GET", path)).json
    assert (shown["state"], shown["here"]) == ("owned", False)
    await owner.close()
    empty = await site.engine.sessions.open("empty", create=True)
    await empty.close()
    found = (await site.ask("GET", "/v1/sessions?name=empty&detail=true")).json["sessions"]
    assert (found[0]["state"], found[0]["root"], found[0]["lastWords"]) == ("empty", None, None)


@pytest.mark.spec("WB-07")
async def test_commits_are_read_from_either_end_with_and_without_writes(site: Site) -> None:
    path = await talked(site, "a", "b")
    whole = (await site.ask("GET", f"{path}/commits")).json["commits"]
    bare = [
        {name: one[name] for name in ("type", "firstSeq", "lastSeq", "timestamp")} | {"number": n}
        for n, one in enumerate(whole, 1)
    ]
    for step in (1, 2, 100):
        place = f"{path}/commits"
        assert await paged(site, place, "commits", "before", step) == whole
        assert await paged(site, f"{place}?writes=false", "commits", "before", step) == bare
        assert await paged(site, f"{place}?writes=false", "commits", "after", step) == bare
    page = (await site.ask("GET", f"{path}/commits?writes=false&limit=1")).json
    assert page["total"] == len(whole)
    await site.ask("POST", f"{path}/configure", {"label": "x"})
    page = (await site.ask("GET", f"{path}/commits?writes=false&newest=true&limit=1")).json
    assert (page["total"], page["commits"][0]["lastSeq"]) == (len(whole) + 1, page["asOf"])
