"""A marker secret is used in calls that succeed and that fail; afterwards it is nowhere (SX-04)."""

from pathlib import Path

import pytest

import perdure
from perdure.opening import OpenSession
from perdure.providers.config import ProviderConfig
from perdure.records.settings import RetryPolicy
from perdure.testing.wire_replies import WireCall, WireError, WireReply, WireText
from perdure.testing.wire_server import WireServer
from perdure.toolkits.shell import shell_tools

KEY = "sk-MARKER-4711-provider-key"
TOKEN = "MARKER-0815-deploy-token"
LEAK = "echo $DEPLOY_TOKEN; printf MARKER-; printf 0815-deploy-token; cat /proc/*/cmdline | wc -c"


def session(folder: Path, server: WireServer) -> OpenSession:
    return perdure.open(
        f"sqlite:{folder / 'store.db'}",
        session="marked",
        model="openai-chat:gpt-4o",
        tools=shell_tools(folder, env=("DEPLOY_TOKEN",)),
        permissions=perdure.Permissions(yes=True),
        providers={
            "openai-chat": ProviderConfig(base_url=server.base_url, key="env:MARKED_KEY"),
        },
        secrets=("DEPLOY_TOKEN",),
        retry=RetryPolicy(max_attempts=2, base_delay_ms=1, max_delay_ms=5),
        data_folder=folder,
    )


def call(call_id: str, command: str) -> WireCall:
    return WireCall(id=call_id, name="shell", pieces=(f'{{"command":"{command}"}}',))


REPLIES = (
    WireReply(
        parts=(
            WireText(pieces=("Your key is ", KEY[:9], KEY[9:], ".")),
            call("c1", LEAK),
            call("c2", f"echo {TOKEN} >&2; exit 3"),
        )
    ),
    WireReply(),
    WireError(status=401, type="invalid_request_error", message=f"Incorrect API key: {KEY}"),
    WireReply(parts=(WireText(pieces=(f"half {KEY[:20]}", KEY[20:])),), end="cut"),
    WireReply(parts=(WireText(pieces=(f"half {KEY[:20]}", KEY[20:])),), end="stop"),
)


def everything_below(folder: Path) -> bytes:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if path.name == "store.db"]
    return b"".join(str(path).encode() + path.read_bytes() for path in files)


@pytest.mark.spec("SX-04", "SX-05")
async def test_a_marker_secret_is_nowhere_afterwards(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("MARKED_KEY", KEY)
    monkeypatch.setenv("DEPLOY_TOKEN", TOKEN)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    seen: list[str] = []
    async with WireServer(*REPLIES) as server:
        async with session(tmp_path, server) as harness:
            root = await harness.root()
            answers = [await root.prompt(text) for text in ("go", "again", "and again")]
            seen += [repr(harness), repr(harness._core.services), repr(answers)]
            seen += [repr(await root.entries()), repr(await harness.commits(limit=1_000))]
        assert [answer.state for answer in answers] == ["answered", "failed", "failed"]
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        bodies = b"".join(one.raw for one in server.posts)
    told = "".join([*seen, *capfd.readouterr(), caplog.text])
    results = bodies.decode()
    assert results.count("[secret DEPLOY_TOKEN]") >= 3
    assert "[secret MARKED_KEY]" in told
    for secret in (KEY, TOKEN):
        assert secret not in told
        assert secret not in results
        assert secret.encode() not in everything_below(tmp_path)
        assert not [one for one in running() if secret.encode() in arguments(one)]


def running() -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*") if path.is_dir()]


def arguments(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
