"""Rules over calls, flags of one process, and what people let run for good (AQ)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import perdure
from perdure.errors import Rejected
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.harness.grants import list_grants, revoke_grant
from perdure.kinds.grants import granted
from perdure.kinds.hooks import Block, Hold, Hooks
from perdure.kinds.permissions import Permissions
from perdure.kinds.policy import ApprovalPolicy, ApprovalRule
from perdure.kinds.shell_text import runs_one_command
from perdure.providers.script import call, say
from perdure.records.addresses import GRANTS
from perdure.records.approvals import Remember
from perdure.records.seqs import Seq
from perdure.toolkits.define import tool
from tests.engine import Engine, Gate, Probe
from tests.unit.kinds.turns import outcomes, result_text, results, tasks_of


def policy(*rules: Any) -> ApprovalPolicy:
    return ApprovalPolicy([ApprovalRule(*rule) for rule in rules])


async def held(engine: Engine, *calls: Any, **options: Any) -> tuple[Conversation, int]:
    """Drive one turn; answers how many calls wait for a person."""
    root = await engine.root([say(*calls), say("end")], **options)
    await root.accept("hi")
    await root.drive()
    return root, len(await list_approvals(engine.storage.inner))


def asking(name: str, answer: Any) -> perdure.Tool:
    @tool(name=name, approval=answer)
    def act(n: int = 0) -> str:
        """Act."""
        return "acted"

    return act


@pytest.mark.spec("AQ-01")
async def test_a_function_of_the_checked_arguments_decides(engine: Engine) -> None:
    seen: list[Mapping[str, Any]] = []

    async def decide(args: Mapping[str, Any]) -> Any:
        seen.append(args)
        return ["allow", "ask", "deny"][args["n"]]

    calls = [call("act", {"n": str(n)}) for n in range(3)]
    root, waiting = await held(engine, *calls, tools=[asking("act", decide)])
    assert sorted(args["n"] for args in seen) == [0, 1, 2]
    assert waiting == 1
    assert await outcomes(root) == ["finished", "denied"]


@pytest.mark.spec("AQ-01")
@pytest.mark.parametrize("fault", ["raises", "odd"])
async def test_a_faulty_approval_function_blocks_the_call(engine: Engine, fault: str) -> None:
    def decide(args: Mapping[str, Any]) -> Any:
        if fault == "raises":
            raise ValueError("no such luck")
        return "perhaps"

    root, waiting = await held(
        engine,
        call("act"),
        tools=[asking("act", decide)],
        permissions=Permissions(yes=True),
        approvals=policy(("act", "allow")),
    )
    (entry,) = await results(root)
    assert (entry.meta.outcome, waiting) == ("denied", 0)
    assert ("no such luck" if fault == "raises" else "'perhaps'") in result_text(entry)
    assert len(engine.errors) == 1


@pytest.mark.spec("AQ-01")
async def test_an_approval_function_has_sixty_seconds(memory_engine: Engine) -> None:
    engine = memory_engine
    gate = Gate()

    async def decide(args: Mapping[str, Any]) -> Any:
        await gate()

    root = await engine.root([say(call("act")), say("end")], tools=[asking("act", decide)])
    prompting = engine.begin(root.prompt("hi"))
    await gate.reached.wait()
    await engine.clock.until_asleep()
    engine.clock.advance(59_999)
    await asyncio.sleep(0)
    assert await results(root) == []
    engine.clock.advance(1)
    await prompting
    assert await outcomes(root) == ["denied"]


@pytest.mark.spec("AQ-01")
def test_what_approval_may_be_is_checked_where_it_is_written() -> None:
    odd: Any = "perhaps"
    with pytest.raises(Rejected, match="perhaps"):
        asking("act", odd)
    with pytest.raises(Rejected, match="perhaps"):
        ApprovalRule("act", odd)


@pytest.mark.spec("AQ-02")
@pytest.mark.parametrize(
    ("rules", "own", "decided"),
    [
        ([("*", "allow"), ("a*", "ask"), ("act", "deny")], "allow", "deny"),
        ([("act", "deny"), ("a*", "ask"), ("*", "allow")], "allow", "deny"),
        ([("a*", "ask"), ("*", "allow")], "allow", "ask"),
        ([("a*", "allow")], "ask", "allow"),
        ([("other", "allow")], "ask", "ask"),
        ([("*", "allow")], "deny", "deny"),
        ([("act", "allow", {"n": "1*"})], "ask", "allow"),
        ([("act", "allow", {"n": "2*"})], "ask", "ask"),
        ([("act", "allow", {"n": "1*", "other": "*"})], "ask", "ask"),
        ([("act", "deny", {"list": "*4*"})], "allow", "deny"),
    ],
)
async def test_deny_beats_ask_beats_allow_in_any_order(
    memory_engine: Engine, rules: list[Any], own: Any, decided: str
) -> None:
    probe = Probe("act", approval=own)
    args = {"n": 12, "list": [3, 4]}
    root, waiting = await held(
        memory_engine, call("act", args), tools=[probe], approvals=policy(*rules)
    )
    found = "ask" if waiting else {"finished": "allow", "denied": "deny"}[(await outcomes(root))[0]]
    assert found == decided


@pytest.mark.spec("AQ-03")
@pytest.mark.parametrize(
    "command",
    [
        "git status; rm x", "git status & rm x", "git status && rm x", "git status | sh",
        "git status `rm x`", "git status $(rm x)", "git status > x", "git status < x",
        "git status\nrm x", 'git status "$(rm x)"', "git status \"it's; rm x'\"",
        "git status \\'; rm x; echo \\'", "git status $'\\''; rm x #'", "git status 'open; rm x",
        "git status # '\nrm x\n'", 'git status "open', "git status \\\nrm x",
    ],
)  # fmt: skip
def test_a_command_that_runs_more_matches_no_glob_that_allows(command: str) -> None:
    for glob in ("git status*", "*"):
        rules = policy(("shell", "allow", {"command": glob}))
        assert rules.decide("shell", {"command": command}) is None
        denies = policy(("shell", "deny", {"command": glob}))
        assert denies.decide("shell", {"command": command}) is not None


@pytest.mark.spec("AQ-03")
@pytest.mark.parametrize(
    "command",
    [
        "git status", "git status 'a; b | c > d $(e) `f`'", "git status # what's new",
        'git status "a b"', "git status a\\ b \\'", "git status '#' a#b $HOME",
    ],
)  # fmt: skip
def test_a_plain_command_matches_as_a_whole(command: str) -> None:
    assert runs_one_command(command)
    rules = policy(("shell", "allow", {"command": "git status*"}))
    assert rules.decide("shell", {"command": command}) is not None
    assert rules.decide("shell", {"command": f"x {command}"}) is None


@pytest.mark.spec("AQ-09")
async def test_flags_override_no_deny_and_are_kept_with_the_call(engine: Engine) -> None:
    tools = [Probe("ask", approval="ask"), Probe("deny", approval="deny"), Probe("ruled")]
    rules = policy(("ruled", "deny"), ("free", "ask"))
    flags = Permissions(yes=True, allow=("*",), subject="cli:ada")
    free = Probe("free")
    root, waiting = await held(
        engine,
        *(call("ask"), call("deny"), call("ruled"), call("free")),
        tools=[*tools, free],
        permissions=flags,
        approvals=rules,
    )
    assert waiting == 0
    assert await outcomes(root) == ["finished", "denied", "denied", "finished"]
    decided = [task.state.get("allowedBy") for task in await tasks_of(root, "tool")]
    assert decided == ["cli:ada --allow *", None, None, "cli:ada --allow *"]


@pytest.mark.spec("AQ-09")
async def test_a_deny_flag_beats_every_allow(engine: Engine) -> None:
    probe = Probe("act")
    root, _ = await held(
        engine,
        call("act"),
        tools=[probe],
        permissions=Permissions(yes=True, allow=("act",), deny=("a*",), subject="cli:ada"),
        approvals=policy(("act", "allow")),
    )
    (entry,) = await results(root)
    assert "cli:ada --deny a*" in result_text(entry)
    assert probe.runs == []


@pytest.mark.spec("AQ-04")
async def test_the_policy_acts_after_the_hooks_and_opens_none_of_their_holds(
    engine: Engine,
) -> None:
    hooks = Hooks()
    hooks.on("before_tool", lambda given: Block("no") if given.args else Hold("sure?"))
    root, waiting = await held(
        engine,
        *(call("act"), call("act", {"n": 1}), call("never")),
        tools=[Probe("act"), Probe("never")],
        hooks=hooks,
        permissions=Permissions(yes=True),
        approvals=policy(("never", "deny"), ("act", "allow")),
    )
    assert waiting == 1
    assert await outcomes(root) == ["denied", "denied"]


PAY = call("pay", {"amount": 10})


async def remembered(engine: Engine, remember: Remember, *calls: Any) -> Seq:
    """Grant the first of the calls and remember it; answers the grant's id."""
    root, _ = await held(engine, *(calls or (PAY,)), tools=[Probe("pay", approval="ask")])
    (view,) = await list_approvals(engine.storage.inner)
    outcome = await engine.harness.decide_approval(
        view.id, "grant", by="cli:ada", remember=remember
    )
    assert outcome.grant is not None
    await root.drive()
    return outcome.grant


async def again(engine: Engine, *calls: Any, **options: Any) -> list[int]:
    """Open anew and make calls; answers the amounts that ran without a question."""
    await engine.close()
    probe = Probe("pay", approval="ask")
    options.setdefault("tools", [probe])
    root = await engine.root([say(*calls), say("end")], **options)
    await root.accept("again")
    await root.drive()
    return [args["amount"] for args in probe.runs]


@pytest.mark.spec("AQ-10")
async def test_a_remembered_grant_covers_exactly_that_call_after_a_restart(
    engine: Engine,
) -> None:
    grant = await remembered(engine, Remember())
    commit = next(one for one in await engine.commits() if one.first_seq <= grant <= one.last_seq)
    assert commit in engine.storage.barriers
    calls = [PAY, call("pay", {"amount": 11}), call("pay", {"amount": 10, "to": "x"})]
    assert await again(engine, *calls) == [10]
    (standing,) = await list_grants(engine.storage.inner)
    assert (standing.id, standing.grant.by, standing.grant.tool) == (grant, "cli:ada", "pay")
    root = await engine.harness.root()
    ran = [task.state.get("allowedBy") for task in await tasks_of(root, "tool")]
    assert ran == [None, f"grant {grant} of cli:ada", None, None]


@pytest.mark.spec("AQ-10")
async def test_globs_widen_a_grant_and_time_and_revocation_end_it(engine: Engine) -> None:
    ends = engine.clock.now_ms() + 1_000_000
    grant = await remembered(engine, Remember(arguments={"amount": "1?"}, expires_at_ms=ends))
    calls = [call("pay", {"amount": amount}) for amount in (10, 19, 20, 100)]
    assert await again(engine, *calls) == [10, 19]
    root = await engine.harness.root()
    await root.abort()
    await root.drive()
    engine.clock.advance(2_000_000)
    assert await again(engine, *calls) == []
    (standing,) = await list_grants(engine.storage.inner)
    assert not standing.is_active(engine.clock.now_ms())
    assert await revoke_grant(engine.harness, grant, by="cli:eve")
    assert engine.storage.commits_made[-1] in engine.storage.barriers
    head = engine.line.last_seq
    assert not await revoke_grant(engine.harness, grant)
    assert engine.line.last_seq == head
    (standing,) = await list_grants(engine.storage.inner)
    assert standing.revoked
    assert standing.revoked.by == "cli:eve"
    for bad, by, code in ((Seq(1), "a", "not_found"), (grant, "", "invariant")):
        with pytest.raises(Rejected) as refused:
            await revoke_grant(engine.harness, bad, by=by)
        assert refused.value.code == code


@pytest.mark.spec("AQ-10")
async def test_a_revoked_grant_covers_nothing(engine: Engine) -> None:
    grant = await remembered(engine, Remember(arguments={}))
    assert await revoke_grant(engine.harness, grant)
    assert await again(engine, PAY) == []


@pytest.mark.spec("AQ-10")
async def test_a_grant_never_covers_a_deny(engine: Engine) -> None:
    await remembered(engine, Remember(arguments={}))
    denying = policy(("pay", "deny"))
    assert await again(engine, PAY, approvals=denying) == []
    assert await again(engine, PAY, permissions=Permissions(deny=("pay",))) == []
    assert await again(engine, PAY) == [10]


@pytest.mark.spec("AQ-10")
async def test_what_cannot_be_remembered_is_refused_and_decides_nothing(engine: Engine) -> None:
    root, _ = await held(engine, PAY, tools=[Probe("pay", approval="ask")])
    (view,) = await list_approvals(engine.storage.inner)
    head = engine.line.last_seq
    for verdict, remember, said in (
        ("deny", Remember(), "never a deny"),
        ("grant", Remember(arguments={"amount": "2*"}), "does not cover"),
        ("grant", Remember(expires_at_ms=5), "before now"),
    ):
        choice: Any = verdict
        with pytest.raises(Rejected, match=said) as refused:
            await engine.harness.decide_approval(view.id, choice, remember=remember)
        assert refused.value.code == "invariant"
    assert engine.line.last_seq == head
    assert (await engine.harness.decide_approval(view.id, "deny")).applied
    late = await engine.harness.decide_approval(view.id, "grant", remember=Remember())
    assert late.grant is None
    assert await list_grants(engine.storage.inner) == []
    assert root is not None


@pytest.mark.spec("AQ-10", "AQ-03")
async def test_a_grant_of_a_command_covers_no_second_command(engine: Engine) -> None:
    shell = Probe("shell", approval="ask")
    root, _ = await held(engine, call("shell", {"command": "git status"}), tools=[shell])
    (view,) = await list_approvals(engine.storage.inner)
    widened = Remember(arguments={"command": "git status*"})
    await engine.harness.decide_approval(view.id, "grant", remember=widened)
    await root.drive()
    await engine.close()
    calls = [call("shell", {"command": text}) for text in ("git status -s", "git status; rm x")]
    root, waiting = await held(engine, *calls, tools=[shell])
    assert waiting == 1
    assert shell.runs[1:] == [{"command": "git status -s"}]


@pytest.mark.spec("AQ-10")
async def test_grants_are_protected_and_belong_to_one_tree(engine: Engine) -> None:
    await remembered(engine, Remember(arguments={}))
    with pytest.raises(Rejected):
        await engine.harness.append_list(GRANTS, {"v": 1})
    now_ms = engine.clock.now_ms()
    root = await engine.harness.root()
    args = {"amount": 10}
    assert await granted(engine.line, root.id, "pay", args, now_ms=now_ms)
    other: list[Seq] = []
    await engine.line.submit(lambda tx: other.append(tx.insert_conversation()))
    assert await granted(engine.line, other[0], "pay", args, now_ms=now_ms) is None
