"""The configuration file: every fault at once, the order of its sources, secrets, trust."""

import os
from pathlib import Path

import pytest

import perdure
from perdure.configuration.config import Config
from perdure.configuration.loading import find_project
from perdure.configuration.positions import line_at, lines_of
from perdure.configuration.providers import key_in_file, provider_configs
from perdure.configuration.tables import File
from perdure.configuration.template import template
from perdure.configuration.trust import harmless
from perdure.errors import ProviderError, Rejected
from perdure.opening import OpenSession, configured
from perdure.providers.script import say
from perdure.providers.scripted import ScriptedModels


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of this machine out."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)


def write(folder: Path, text: str) -> Path:
    """Write a file and answer its place."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "perdure.toml"
    file.write_text(text)
    return file


def faults(file: Path) -> list[str]:
    """Answer what is wrong with a file, a line each."""
    with pytest.raises(Rejected) as caught:
        perdure.load_config(file)
    return caught.value.message.splitlines()


@pytest.mark.spec("CG-03")
@pytest.mark.spec("CG-04")
def test_every_fault_is_said_in_one_run_with_its_line(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[store]\nurll = "memory:"\ndurability = "strong"\n\n[limits]\ntools = 0\n'
        'generations = "many"\n[modl]\nname = "x"\n[tools]\nkits = ["files", "wings"]\n',
    )
    found = faults(file)
    expected = [
        (2, "'urll'", "did you mean 'url'"),
        (3, "'strong'", "'power', 'process'"),
        (6, "limits.tools = 0", ">= 1"),
        (7, "'many'", "int"),
        (8, "'modl'", "did you mean 'model'"),
        (11, "wings", "'files', 'shell'"),
    ]
    for line, what, accepted in expected:
        assert any(
            one.startswith(f"{file}:{line}: ") and what in one and accepted in one for one in found
        ), (line, found)
    assert len(found) == len(expected)
    assert "store, model, providers" in next(one for one in found if "modl" in one)


@pytest.mark.spec("CG-04")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[store\n", "line 1, column 7"),
        (b"[store]\nurl = \xff\n", "UTF-8"),
        (b"#" * (1024 * 1024 + 1), "1,048,576"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "perdure.toml"
    file.write_bytes(data)
    (said,) = faults(file)
    assert words in said
    assert str(file) in said


@pytest.mark.spec("CG-05")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[model]\nname = "nowhere:x"\n', "nowhere"),
        ('[model]\nname = "gpt"\n', "provider:model"),
        ('[model]\nthinking = "deep"\n', "'xhigh'"),
        ("[providers.opnai]\n", "did you mean 'openai'"),
        ('[store]\nurl = "mysql://x"\n', "memory: and sqlite:FILE"),
        ('[tools]\nroot = "absent"\n', "no such folder"),
        ('[code]\nbackend = "docker"\n', "'monty'"),
        ('[prices."x"]\ninput="1"\noutput="1"\ncache_read="1"\ncache_write="1"\ndate="d"\n', "'x'"),
        ("[results]\nmax_entry_bytes = 33554433\n", "max_total_bytes = 33554432"),
        ('[budget]\ncost = "0"\n', "budget.cost"),
        ('[budget]\ncurrency = "$"\n', "budget.currency"),
        ("[cli]\ncolor = 3\n", "[cli] has no keys"),
    ],
)
def test_names_are_checked_when_the_file_is_loaded(tmp_path: Path, text: str, words: str) -> None:
    said = faults(write(tmp_path, text))
    assert words in said[0]


@pytest.mark.spec("CG-02")
@pytest.mark.spec("CG-01")
def test_the_project_beats_the_user_and_variables_beat_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write(
        tmp_path / "home" / "config" / "perdure",
        '[model]\nname = "local:a"\nthinking = "low"\n[tools]\nkits = ["files"]\n'
        "[model.options]\nseed = 1\ntop_p = 0.5\n",
    )
    project = write(
        tmp_path / "p",
        '[model]\nname = "local:b"\noptions = { seed = 2 }\n[tools]\nkits = ["shell"]\n',
    )
    (tmp_path / "p" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "p" / "below")
    config = perdure.load_config()
    assert config.files == (user, project)
    assert config.values.model.name == "local:b"
    assert config.values.model.thinking == "low"
    assert config.values.model.options == {"seed": 2}
    assert config.values.tools.kits == ("shell",)
    assert config.origins["model.name"] == str(project)
    assert config.origins["model.thinking"] == str(user)
    assert "model.window" not in config.origins
    monkeypatch.setenv("PERDURE_MODEL", "local:c")
    monkeypatch.setenv("PERDURE_STORE", "memory:")
    config = perdure.load_config()
    assert config.values.model.name == "local:c"
    assert config.origins["model.name"] == "PERDURE_MODEL"
    assert config.values.store.url == "memory:"
    monkeypatch.setenv("PERDURE_CONFIG", str(user))
    assert perdure.load_config().values.tools.kits == ("files",)
    assert perdure.load_config(project).values.tools.kits == ("shell",)


@pytest.mark.spec("CG-01")
def test_the_search_upwards_ends_at_a_repository_and_at_home(tmp_path: Path) -> None:
    outer = write(tmp_path, "")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_project(deep) == outer
    (tmp_path / "a" / ".git").mkdir()
    assert find_project(deep) is None
    inner = write(tmp_path / "a", "")
    assert find_project(deep) == inner
    home = tmp_path / "home" / "x"
    home.mkdir()
    assert find_project(home) is None


@pytest.mark.spec("CG-07")
def test_a_secret_is_a_reference_and_text_is_refused_unseen(tmp_path: Path) -> None:
    said = faults(write(tmp_path, '[providers.openai]\nkey = "sk-marker"\n'))
    assert "sk-marker" not in said[0]
    assert "env:NAME" in said[0]
    kept = tmp_path / "key"
    kept.write_text("sk-marker\n")
    kept.chmod(0o600)
    file = write(tmp_path, f'[providers.openai]\nkey = "file:{kept}"\n')
    config = perdure.load_config(file)
    source = provider_configs(config.values)["openai"].key
    assert callable(source)
    assert source() == "sk-marker"
    assert "sk-marker" not in repr(config)
    kept.chmod(0o640)
    with pytest.raises(ProviderError, match="open to others") as caught:
        source()
    assert caught.value.code == "auth"
    with pytest.raises(ProviderError, match="absent"):
        key_in_file(tmp_path / "absent")()


@pytest.mark.spec("CG-08")
def test_an_untrusted_file_may_tighten_and_not_loosen(tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    values = {
        "store": {"url": "sqlite:x", "durability": "power"},
        "approvals": {"allow": ["*"], "deny": ["shell"], "rules": [{"tool": "x"}]},
        "tools": {"root": "..", "extra_roots": {"/": "rw"}, "env": ["X"], "kits": ["files"]},
        "providers": {"openai": {"base_url": "https://x", "key": "env:X", "window": 5}},
        "telemetry": {"to": "x"},
        "mcp": {"servers": {"a": {"command": "x"}}},
    }
    kept, ignored = harmless(values, file)
    assert kept == {
        "store": {"durability": "power"},
        "approvals": {"deny": ["shell"]},
        "tools": {"kits": ["files"]},
        "providers": {"openai": {"window": 5}},
    }
    assert sorted(ignored) == [
        "approvals.allow", "approvals.rules", "mcp", "providers.openai.base_url",
        "providers.openai.key",
        "store.url", "telemetry", "tools.env", "tools.extra_roots", "tools.root",
    ]  # fmt: skip
    inside = {"tools": {"root": "sub", "env": []}, "approvals": {"allow": []}}
    assert harmless(inside, file) == (inside, [])


@pytest.mark.spec("CG-09")
def test_the_library_reads_nothing_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "this is no TOML")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_MODEL", "nowhere:x")
    monkeypatch.setenv("PERDURE_CONFIG", str(tmp_path / "nowhere.toml"))
    monkeypatch.setenv("PERDURE_STORE", f"sqlite:{tmp_path / 'elsewhere.db'}")
    models = ScriptedModels([say("Hello.")])

    async def ask() -> str:
        opened = perdure.open("memory:", session="a", model="scripted:x", models=models)
        async with opened as harness:
            return (await (await harness.root()).prompt("hi")).text

    assert perdure.run(ask()) == "Hello."
    assert str(models.requests[0].model) == "scripted:x"
    assert not (tmp_path / "elsewhere.db").exists()
    with pytest.raises(Rejected, match="no model"):
        perdure.open("memory:", session="a")


@pytest.mark.spec("CG-09")
def test_open_takes_what_load_config_answers(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[store]\nurl = "sqlite:s.db"\ndurability = "process"\n'
        '[model]\nname = "openai:m"\nwindow = 9000\noptions = { seed = 3 }\n'
        '[limits]\ngenerations = 1\ntools = 2\njobs = 3\n[approvals]\ndeny = ["x*"]\n'
        '[budget]\ncost = "2.50"\non_limit = "fail"\n'
        '[prices."openai:m"]\ninput = "1"\noutput = "2"\ncache_read = "0"\ncache_write = "0"\n'
        'date = "2026-11-01"\n',
    )
    config = perdure.load_config(file)
    assert config.values.store.url == f"sqlite:{tmp_path}/s.db"
    options = configured(config)
    assert options["durability"] == "process"
    assert options["stream_options"] == {"seed": 3}
    assert [options["limits"].limit(one) for one in ("generations", "tools", "jobs")] == [1, 2, 3]
    assert options["budget"] == perdure.Budget(cost="2.50", on_limit="fail")
    assert options["permissions"].deny == ("x*",)
    assert options["providers"]["openai"].window == 9_000
    assert options["providers"]["openai"].prices["m"].output == "2"
    assert isinstance(perdure.open(config, session="a"), OpenSession)
    assert isinstance(perdure.open("memory:", session="a", model="scripted:x"), OpenSession)
    with pytest.raises(AttributeError):
        config.files = ()  # type: ignore[misc] # the object is frozen


@pytest.mark.spec("AQ-02")
def test_rules_of_the_file_are_the_policy(tmp_path: Path) -> None:
    text = '[[approvals.rules]]\ntool = "pay"\ndecision = "deny"\narguments = { amount = "9*" }\n'
    policy = configured(perdure.load_config(write(tmp_path, text)))["approvals"]
    assert policy.decide("pay", {"amount": 95}).decision == "deny"
    assert policy.decide("pay", {"amount": 5}) is None
    with pytest.raises(Rejected, match="perhaps") as refused:
        perdure.load_config(write(tmp_path, text.replace('"deny"', '"perhaps"')))
    assert "decision" in refused.value.message


@pytest.mark.spec("CG-09")
def test_a_session_opened_by_configuration_asks_as_it_says(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[store]\nurl = "memory:"\n[model]\nname = "scripted:x"\noptions = { seed = 3 }\n',
    )
    models = ScriptedModels([say("Hello.")])
    config = perdure.load_config(file)

    async def ask() -> str:
        async with perdure.open(config, session="a", models=models) as harness:
            return (await (await harness.root()).prompt("hi")).text

    assert perdure.run(ask()) == "Hello."
    (request,) = models.requests
    assert str(request.model) == "scripted:x"
    assert bytes(request.options) == b'{"seed":3}'


def test_the_defaults_are_the_ones_that_are_promised() -> None:
    file = File()
    results, artifacts, limits = file.results, file.artifacts, file.limits
    mib = 1024 * 1024
    assert [results.enabled, results.max_entries, results.ttl_seconds] == [True, 64, 3_600]
    assert [results.max_total_bytes, results.max_entry_bytes] == [32 * mib, 8 * mib]
    assert [artifacts.enabled, artifacts.max_entries, artifacts.ttl_seconds] == [True, 32, 3_600]
    assert [artifacts.max_total_bytes, artifacts.max_entry_bytes] == [256 * mib, 64 * mib]
    assert [file.session.enabled, file.session.max_memory_mb] == [True, 512]
    assert [limits.generations, limits.tools, limits.jobs, limits.hook_seconds] == [8, 32, 16, 60]


@pytest.mark.spec("CG-10")
def test_the_written_file_says_every_default_and_changes_nothing(tmp_path: Path) -> None:
    config = perdure.load_config(write(tmp_path, template()))
    assert config.values == Config().values
    for key in ("url", "durability", "thinking", "kits", "hook_seconds", "base_url", "cache_write"):
        assert f"{key} =" in template()


def test_lines_are_found_behind_texts_lists_and_quotes() -> None:
    text = (
        '# [no]\na = """\n[not.a.table]\nb = 1\n"""\n[t."x.y"]\nlist = [\n  "k = 1",\n  2,\n]\n'
        "c.d = { e = 1 } # f = 2\n'g h' = '''x'''\n"
    )
    lines = lines_of(text)
    assert lines == {
        ("a",): 2,
        ("t", "x.y"): 6,
        ("t", "x.y", "list"): 7,
        ("t", "x.y", "c", "d"): 11,
        ("t", "x.y", "g h"): 12,
    }
    assert line_at(lines, ("t", "x.y", "c", "d", "e")) == 11
    assert line_at(lines, ("u",)) is None
