"""The offered models: names, lazy loading in a thread, what a failed load means."""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from perdure.errors import ProviderError, Rejected
from perdure.hosts.threads import DaemonThreads
from perdure.providers.config import ProviderConfig
from perdure.providers.registry import OfferedModels
from perdure.records.entries import ModelId
from perdure.records.messages import AssistantMessage
from perdure.records.models import ModelInfo, parse_model
from perdure.testing.scripted_model import ScriptedModels, say
from perdure.testing.wire_replies import WireReply, WireUsage
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import FixedClock, play, request

GPT = ModelId(provider="openai", model_id="gpt-5")


def offered(load: Callable[[str], Any] = importlib.import_module, **changes: Any) -> OfferedModels:
    return OfferedModels(
        load=cast("Callable[[str], ModuleType]", load),
        threads=DaemonThreads(),
        clock=FixedClock(),
        **changes,
    )


# -------------------------------------------------------------------------------------- names


@pytest.mark.spec("PV-02")
@pytest.mark.parametrize("text", ["nobody:x", "ollama:llama3:8b"])
async def test_an_unknown_provider_is_rejected_naming_the_known_ones(text: str) -> None:
    models = offered(others={"scripted": ScriptedModels([])})
    model = parse_model(text)
    for refuse in (lambda: models.check(model), lambda: offered(configs={"nobody": CONFIG})):
        with pytest.raises(Rejected, match="known are anthropic, openai, openai-chat") as caught:
            refuse()
        assert caught.value.code == "invariant"
    with pytest.raises(Rejected, match=repr(model.provider)):
        await models.describe(model)
    models.check(ModelId(provider="scripted", model_id="x"))
    models.check(GPT)


CONFIG = ProviderConfig()


@pytest.mark.spec("PV-02")
def test_a_model_is_split_at_its_first_colon() -> None:
    model = parse_model("ollama:llama3:8b")
    assert (model.provider, model.model_id) == ("ollama", "llama3:8b")
    for text in ("gpt-5", ":gpt-5", "openai:", ""):
        with pytest.raises(Rejected, match="provider:model"):
            parse_model(text)


async def test_a_configuration_that_cannot_work_is_refused_before_a_request() -> None:
    models = offered()
    with pytest.raises(Rejected, match="base_url"):
        models.check(ModelId(provider="openai-compatible", model_id="x"))


async def test_other_models_answer_for_their_names() -> None:
    scripted = ScriptedModels([say("Hi.")])
    models = offered(others={"scripted": scripted})
    model = ModelId(provider="scripted", model_id="x")
    _, outcome = await play(models, request(model))
    assert isinstance(outcome.result, AssistantMessage)
    assert outcome.result.text == "Hi."
    assert "scripted" in models.providers
    await models.close()


# ------------------------------------------------------------------------------------ loading


@pytest.mark.spec("PV-04")
async def test_the_first_request_waits_for_the_load_and_nothing_before_does() -> None:
    go, started = threading.Event(), threading.Event()
    threads: list[str] = []

    def load(name: str) -> ModuleType:
        threads.append(threading.current_thread().name)
        started.set()
        assert go.wait(5)
        return importlib.import_module(name)

    async with WireServer(WireReply(), repeat=True) as server:
        config = ProviderConfig(base_url=server.base_url, key=lambda: "k")
        models = offered(load, configs={"openai": config})
        models.begin("openai")
        models.begin("openai")
        waiting = asyncio.ensure_future(play(models, request(GPT)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert server.requests == []
        go.set()
        _, outcome = await waiting
        await play(models, request(GPT))
        await models.close()
    assert isinstance(outcome.result, AssistantMessage)
    loads = [name for name in threads if "openai" in name]
    assert len(loads) == 1
    assert threading.main_thread().name not in threads


@pytest.mark.spec("PV-04")
async def test_a_cancelled_request_leaves_the_load_to_the_next() -> None:
    go = threading.Event()

    def load(name: str) -> ModuleType:
        assert go.wait(5)
        return importlib.import_module(name)

    async with WireServer(WireReply()) as server:
        config = ProviderConfig(base_url=server.base_url, key=lambda: "k")
        models = offered(load, configs={"openai": config})
        first = asyncio.ensure_future(play(models, request(GPT)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        go.set()
        _, outcome = await play(models, request(GPT))
        await models.close()
    assert isinstance(outcome.result, AssistantMessage)


@pytest.mark.spec("PV-04")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("No module named 'openai'"), r"perdure\[openai\]"),
        (RuntimeError("odd"), "could not be loaded"),
    ],
    ids=["missing", "broken"],
)
async def test_a_failed_load_fails_the_request_and_not_the_opening(
    error: Exception, words: str
) -> None:
    def load(name: str) -> ModuleType:
        raise error

    models = offered(load)
    models.begin("openai")
    assert await models.describe(GPT) == ModelInfo(model=GPT)
    async with models.stream(request(GPT)) as stream:
        assert [frame async for frame in stream] == []
        with pytest.raises(ProviderError, match=words) as caught:
            await stream.outcome()
    assert caught.value.code == "no_model"
    await models.close()


async def test_what_was_never_asked_for_is_never_loaded() -> None:
    def load(name: str) -> ModuleType:
        raise AssertionError(name)

    models = offered(load)
    models.check(GPT)
    await models.close()


SCRIPT = """
import asyncio, importlib, sys, time

from perdure.hosts.threads import DaemonThreads
from perdure.providers.config import ProviderConfig
from perdure.providers.registry import OfferedModels
from perdure.records.entries import ModelId

VENDORS = ("pydantic_ai", "openai", "anthropic", "genai_prices")

class Clock:
    def now_ms(self): return 0

async def main(provider, other):
    models = OfferedModels(load=importlib.import_module, threads=DaemonThreads(), clock=Clock())
    model = ModelId(provider=provider, model_id="m")
    models.check(model)
    assert not set(VENDORS) & set(sys.modules), "nothing is loaded before a model is needed"
    begun = time.perf_counter()
    models.begin(provider)
    opened = time.perf_counter() - begun
    worst, ended = 0.0, asyncio.ensure_future(models.describe(model))
    while not ended.done():
        before = time.perf_counter()
        await asyncio.sleep(0.005)
        worst = max(worst, time.perf_counter() - before - 0.005)
    assert ended.result().thinking is not None
    assert "pydantic_ai" in sys.modules
    assert other not in sys.modules, f"{other} was loaded for {provider}"
    print(f"{opened:.3f} {worst:.3f}")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.deep
@pytest.mark.timeout(120)
@pytest.mark.spec("PV-03", "PV-04")
@pytest.mark.parametrize(("provider", "other"), [("openai", "anthropic"), ("anthropic", "openai")])
def test_only_one_vendor_is_loaded_and_the_loop_stays_awake(provider: str, other: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, provider, other],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    opened, worst = map(float, done.stdout.split())
    assert opened < 0.05
    assert worst < 0.25


@pytest.mark.spec("PV-03")
def test_naming_models_loads_no_vendor() -> None:
    code = (
        "import sys, perdure.providers.registry, perdure.providers.config\n"
        "vendors = {'pydantic_ai', 'pydantic', 'openai', 'anthropic', 'httpx2', 'genai_prices'}\n"
        "assert not vendors & set(sys.modules), vendors & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------- prices


@pytest.mark.spec("PV-27")
async def test_the_price_table_is_loaded_once_off_the_loop_at_the_first_need() -> None:
    loads: list[tuple[str, bool]] = []

    def load(name: str) -> ModuleType:
        loads.append((name, threading.current_thread() is threading.main_thread()))
        return importlib.import_module(name)

    usage = WireUsage(input=1_000, cache_read=0, output=100, reasoning=0)
    async with WireServer(WireReply(usage=None), WireReply(usage=usage), repeat=True) as server:
        config = ProviderConfig(base_url=server.base_url, key=lambda: "k")
        models = offered(load, configs={"openai": config})
        await play(models, request(GPT))
        assert [name for name, _ in loads] == ["perdure.providers.openai_wires"]
        for _ in range(2):
            _, outcome = await play(models, request(GPT))
            assert outcome.usage is not None
            assert outcome.usage.cost is not None
            assert outcome.usage.cost.amount == "0.00225"
        await models.close()
    assert loads[1:] == [("perdure.providers.prices", False)]


async def test_without_the_price_table_a_cost_is_unknown() -> None:
    def load(name: str) -> Any:
        if name.endswith("prices"):
            raise ImportError(name)
        return importlib.import_module(name)

    async with WireServer(WireReply()) as server:
        config = ProviderConfig(base_url=server.base_url, key=lambda: "k")
        models = offered(load, configs={"openai": config})
        _, outcome = await play(models, request(GPT))
        await models.close()
    assert outcome.usage is not None
    assert outcome.usage.cost is None


async def test_a_module_without_models_is_said_by_name() -> None:
    models = offered(lambda _name: SimpleNamespace())
    with pytest.raises(ProviderError, match="make_models") as caught:
        await play(models, request(GPT))
    assert caught.value.code == "no_model"
    await models.close()


@pytest.mark.spec("SX-05")
async def test_keys_of_the_environment_are_known_before_any_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setenv("MY_KEY", "sk-own-0123456789")
    noted: dict[str, str] = {}
    models = offered(
        configs={
            "openai": ProviderConfig(key="env:MY_KEY"),
            "openai-chat": ProviderConfig(key=lambda: "never called here"),
        },
        noted=noted.__setitem__,
    )
    await models.close()
    assert noted["ANTHROPIC_API_KEY"] == "sk-ant-0123456789"
    assert noted["MY_KEY"] == "sk-own-0123456789"
    assert "never called here" not in noted.values()
