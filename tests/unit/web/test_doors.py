"""Who may come in: tokens, hosts, origins, content types, sizes (WB-02 to WB-05, BB-47)."""

import hmac
import json

import pytest

from perdure.errors import Rejected
from perdure.web import calls
from perdure.web.auth import Doors, cookie_value, read_tokens, tcp_doors
from tests.unit.web.site import OTHER_TOKEN, TOKEN, Site

GOOD = {"name": "paris"}
HOSTS = ["other.example", "127.0.0.1", "127.0.0.1:7471", "localhost.other.example:7470", "", None]
ORIGINS = ["http://other.example", "null", "https://127.0.0.1:7470", "http://localhost:8000"]


async def sessions(site: Site) -> list[str]:
    page = await site.engine.sessions.page(after=None, limit=100)
    return [info.name for info in page]


@pytest.mark.spec("WB-04", "BB-47")
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", ["/health", "/v1/sessions", "/openapi.json", "/nowhere"])
async def test_a_foreign_host_is_misdirected_before_anything_else(
    memory_site: Site, host: str | None, path: str
) -> None:
    headers = {"host": host, "authorization": None, "origin": "http://other.example"}
    for method in ("GET", "POST"):
        answer = await memory_site.ask(method, path, GOOD, headers=headers)
        assert (answer.status, answer.code) == (421, "misdirected")
    assert await sessions(memory_site) == []


@pytest.mark.spec("WB-04", "BB-47")
@pytest.mark.parametrize("origin", ORIGINS)
async def test_a_page_of_another_site_may_not_ask(memory_site: Site, origin: str) -> None:
    path = await memory_site.session("own")
    for method, place in (
        ("POST", "/v1/sessions"),
        ("GET", "/health"),
        ("GET", f"{path}/events"),
        ("OPTIONS", "/v1/sessions"),
    ):
        answer = await memory_site.ask(method, place, GOOD, headers={"origin": origin})
        assert (answer.status, answer.code) == (403, "forbidden")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert await sessions(memory_site) == ["own"]


@pytest.mark.spec("WB-04")
@pytest.mark.parametrize(
    "host", ["127.0.0.1:7470", "localhost:7470", "LOCALHOST:7470", "[::1]:7470"]
)
async def test_a_loopback_name_with_the_port_is_ours(memory_site: Site, host: str) -> None:
    headers = {"host": host, "origin": f"http://{host}"}
    answer = await memory_site.ask("GET", "/v1/sessions", headers=headers)
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.spec("WB-04")
async def test_an_allowed_host_and_origin_may_ask(memory_site: Site) -> None:
    memory_site.serve(
        tcp_doors(
            {TOKEN: "local"},
            "127.0.0.1",
            7470,
            allow_hosts=["Box.example"],
            allow_origins=["https://app.example"],
        )
    )
    headers = {"host": "box.example", "origin": "https://app.example"}
    asked = await memory_site.ask("OPTIONS", "/v1/sessions", headers=headers)
    assert (asked.status, asked.body) == (204, b"")
    assert "POST" in asked.headers["access-control-allow-methods"]
    answer = await memory_site.ask("GET", "/v1/sessions", headers=headers)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.spec("WB-02", "BB-47")
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
async def test_without_the_token_nothing_else_is_looked_at(
    memory_site: Site, header: str | None
) -> None:
    for method, path in (("POST", "/v1/sessions"), ("GET", "/nowhere"), ("PUT", "/openapi.json")):
        answer = await memory_site.ask(
            method, path, raw=b"no json", headers={"authorization": header}
        )
        assert (answer.status, answer.code) == (401, "unauthorized")
    health = await memory_site.ask("GET", "/health", headers={"authorization": header})
    assert health.status == 200
    assert await sessions(memory_site) == []


@pytest.mark.spec("WB-02")
async def test_every_token_is_compared_in_constant_time(
    memory_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert (await memory_site.ask("GET", "/v1/sessions")).status == 200
    assert compared == [TOKEN.encode(), OTHER_TOKEN.encode()]


@pytest.mark.spec("WB-02")
async def test_no_header_body_or_stored_byte_holds_the_token(memory_site: Site) -> None:
    path = await memory_site.session()
    answers = [
        await memory_site.ask("POST", "/v1/cookie"),
        await memory_site.ask("GET", f"{path}/commits"),
        await memory_site.ask("GET", "/openapi.json"),
        await memory_site.ask("GET", "/v1/sessions", headers={"authorization": None}),
    ]
    for answer in answers:
        assert TOKEN not in str(answer)
    assert not [line for line in memory_site.lines if TOKEN in str(line)]


async def test_the_token_is_exchanged_for_a_cookie_that_no_script_reads(memory_site: Site) -> None:
    answer = await memory_site.ask(
        "POST", "/v1/cookie", headers={"authorization": f"Bearer {OTHER_TOKEN}"}
    )
    assert answer.json == {"subject": "ada"}
    cookie, *facts = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith("perdure_7470=")
    assert set(facts) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    by_cookie = {"authorization": None, "cookie": f"a=b; {cookie}"}
    assert (await memory_site.ask("GET", "/v1/sessions", headers=by_cookie)).status == 200
    again = await memory_site.ask("POST", "/v1/cookie", headers=by_cookie)
    assert (again.status, again.code) == (400, "invariant")
    for wrong in (f"perdure_7470={OTHER_TOKEN}", f"perdure_7471={cookie[13:]}", "perdure_7470="):
        headers = {"authorization": None, "cookie": wrong}
        assert (await memory_site.ask("GET", "/v1/sessions", headers=headers)).status == 401


def test_a_cookie_stays_valid_with_its_token_and_cannot_be_turned_back() -> None:
    assert cookie_value(TOKEN) == cookie_value(TOKEN)
    assert TOKEN not in cookie_value(TOKEN)


def test_a_door_without_hosts_lets_every_name_in() -> None:
    Doors(tokens={}).check_host({"host": "anything"})


@pytest.mark.spec("WB-05", "BB-47")
@pytest.mark.parametrize(
    "media",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None],
)
async def test_only_json_reaches_a_handler(memory_site: Site, media: str | None) -> None:
    answer = await memory_site.ask("POST", "/v1/sessions", GOOD, headers={"content-type": media})
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert await sessions(memory_site) == []


@pytest.mark.spec("WB-05")
@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"name":"a","name":"b"}', "$"),
        (b'{"name":"a","nmae":"b"}', "$"),
        (b'{"name":NaN}', "$"),
        (b'{"name":1}', "$.name"),
        (b'{"name":"a"', "$"),
        (b'["name"]', "$"),
        (b'{"name":"\xff"}', "$"),
        (b'{"name":' + b"[" * 101 + b"]" * 101 + b"}", "$"),
        (b"{}", "$"),
        (b"", "$"),
    ],
)
async def test_a_body_is_strict_json(memory_site: Site, body: bytes, path: str) -> None:
    answer = await memory_site.ask("POST", "/v1/sessions", raw=body)
    assert (answer.status, answer.code) == (400, "invariant")
    assert answer.json["error"]["details"] == {"path": path}
    assert await sessions(memory_site) == []


@pytest.mark.spec("WB-05")
async def test_a_body_that_is_too_long_is_read_no_further(
    memory_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calls.BODY_BYTES_MAX == 32 << 20
    monkeypatch.setattr(calls, "BODY_BYTES_MAX", 100)
    told = await memory_site.ask("POST", "/v1/sessions", raw=b"{" * 101)
    untold = await memory_site.ask(
        "POST",
        "/v1/sessions",
        raw=b"{" * 101,
        headers={"content-length": None, "transfer-encoding": "chunked"},
    )
    for answer in (told, untold):
        assert (answer.status, answer.code) == (413, "too_large")
        assert answer.headers["connection"] == "close"
    body = json.dumps({"name": "x" * 88}).encode()
    assert len(body) == 100
    assert (await memory_site.ask("POST", "/v1/sessions", raw=body)).status == 201


@pytest.mark.spec("WB-05")
async def test_a_large_body_is_read_whole(memory_site: Site) -> None:
    path = await memory_site.session()
    body = {"content": "x" * 200_000, "drive": False}
    assert (await memory_site.ask("POST", f"{path}/inputs", body)).status == 202


def test_a_token_file_is_lines_of_subject_and_token() -> None:
    text = f"# people\n\nada {TOKEN}\n bob\t{OTHER_TOKEN} \n"
    assert read_tokens(text, "f") == {TOKEN: "ada", OTHER_TOKEN: "bob"}


@pytest.mark.parametrize(
    "text",
    ["", "# none", "ada", "ada short", f"ada {TOKEN} x", f"a {TOKEN}\nb {TOKEN}", "a " + "é" * 30],
)
def test_a_bad_token_file_is_refused_without_saying_the_token(text: str) -> None:
    with pytest.raises(Rejected) as caught:
        read_tokens(text, "people.txt")
    assert "people.txt" in caught.value.message
    assert TOKEN not in caught.value.message
