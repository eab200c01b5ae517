"""What every `ProcessHost` must do: one check a clause of D06, run against a maker of hosts.

A maker answers a host over the same launches each time, as a restarted harness would find them.
The checks need `/bin/sh`; they leave no process behind.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from perdure.ports import ProcessHost
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running

MakeHost: TypeAlias = Callable[[], ProcessHost]
Check: TypeAlias = Callable[[MakeHost, str], Awaitable[None]]

GRACE_MS: Final = 300
_UNTIL: Final = "while [ ! -e {gate} ]; do sleep 0.01; done"


def ref_of(name: str) -> LaunchRef:
    """Name a launch of a test."""
    return LaunchRef(dir=f"session/{name}-0000", nonce=f"nonce-of-{name}-0000")


def shell_spec(
    ref: LaunchRef, command: str, *, cwd: str = "/", output_bytes_max: int = 100_000
) -> LaunchSpec:
    """Start a shell line."""
    return LaunchSpec(
        ref=ref,
        argv=("/bin/sh", "-c", command),
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        output_bytes_max=output_bytes_max,
    )


async def _first_output(host: ProcessHost, ref: LaunchRef) -> bytes:
    # The port has no call that waits for output.
    while not (found := await host.log(ref, offset=0, limit=1000)):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return found


async def check_exit_code_and_output(make: MakeHost, folder: str) -> None:
    """A command's true code, its bytes in the order written, and how many."""
    host, ref = make(), ref_of("code")
    started = await host.launch(shell_spec(ref, "echo out; echo err >&2; exit 7"))
    ended = await host.wait(ref)
    assert isinstance(started, Running)
    assert isinstance(ended, Exited)
    assert (ended.code, ended.bytes) == (7, 8)
    assert await host.log(ref, offset=0, limit=100) == b"out\nerr\n"
    assert await host.log(ref, offset=4, limit=2) == b"er"
    assert await host.log(ref, offset=-4, limit=100) == b"err\n"
    assert await host.log(ref, offset=100, limit=100) == b""


async def check_signal(make: MakeHost, folder: str) -> None:
    """A command that died of a signal says which."""
    host, ref = make(), ref_of("signal")
    await host.launch(shell_spec(ref, "kill -9 $$"))
    ended = await host.wait(ref)
    assert isinstance(ended, Exited)
    assert ended.signal == "SIGKILL"


async def check_missing_command(make: MakeHost, folder: str) -> None:
    """A command that cannot start is an exit with an error, at launch or at the wait."""
    host, ref = make(), ref_of("missing")
    spec = LaunchSpec(ref=ref, argv=("/nowhere/program",), cwd="/", env={}, output_bytes_max=100)
    started = await host.launch(spec)
    ended = started if isinstance(started, Exited) else await host.wait(ref)
    assert isinstance(ended, Exited)
    assert "/nowhere/program" in str(ended.error)


async def check_environment(make: MakeHost, folder: str) -> None:
    """A command gets the variables named, the shell's own, and the mark of its launch."""
    host, ref = make(), ref_of("environment")
    await host.launch(shell_spec(ref, "/usr/bin/env"))
    await host.wait(ref)
    lines = (await host.log(ref, offset=0, limit=10_000)).decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_", "PERDURE_LAUNCH"} == {"PATH"}


async def check_stdin_is_empty(make: MakeHost, folder: str) -> None:
    """Reading standard input ends at once."""
    host, ref = make(), ref_of("stdin")
    await host.launch(shell_spec(ref, "cat; echo end"))
    await host.wait(ref)
    assert await host.log(ref, offset=0, limit=100) == b"end\n"


async def check_never_ran(make: MakeHost, folder: str) -> None:
    """A launch that nobody made never ran, and can no longer, even when it is forgotten."""
    host, ref = make(), ref_of("never")
    assert await host.reconcile(ref) == NeverRan()
    assert await make().reconcile(ref) == NeverRan()
    await _refuses(host, ref, folder)
    other = ref_of("never-and-forgotten")
    assert await host.reconcile(other) == NeverRan()
    await host.forget(other)
    await _refuses(make(), other, folder)


async def _refuses(host: ProcessHost, ref: LaunchRef, folder: str) -> None:
    try:
        late = await host.launch(shell_spec(ref, f"echo ran; touch {folder}/never-ran"))
    except FileExistsError:
        return
    assert isinstance(late, Exited)
    assert await host.log(ref, offset=0, limit=100) == b""


async def check_adopted_while_running(make: MakeHost, folder: str) -> None:
    """A second host finds a running command, waits for it and reads its true end."""
    ref, gate = ref_of("adopted"), f"{folder}/adopted-gate"
    until = _UNTIL.format(gate=gate)
    started = await make().launch(shell_spec(ref, f"echo up; {until}; exit 5"))
    second = make()
    found = await second.reconcile(ref)
    assert found == started
    waiting = asyncio.ensure_future(second.wait(ref))
    opener = ref_of("opener")
    await second.launch(shell_spec(opener, f"touch {gate}"))
    await second.wait(opener)
    ended = await waiting
    assert isinstance(ended, Exited)
    assert ended.code == 5
    assert await make().reconcile(ref) == ended


async def check_stop_ends_a_tree_that_ignores_term(make: MakeHost, folder: str) -> None:
    """TERM, grace, KILL, over two levels of shells that ignore TERM; then nothing grows."""
    host, ref = make(), ref_of("deaf")
    inner = "trap '' TERM; while :; do echo beat; sleep 0.01; done"
    await host.launch(shell_spec(ref, f'trap "" TERM; /bin/sh -c "{inner}" & wait; sleep 60'))
    await _first_output(host, ref)
    ended = await host.stop(ref, grace_ms=GRACE_MS)
    assert isinstance(ended, Exited)
    assert ended.signal == "SIGKILL"
    assert await host.stop(ref, grace_ms=GRACE_MS) == ended
    assert await host.reconcile(ref) == ended
    # Nothing writes after the end: the true total is what is there.
    assert len(await host.log(ref, offset=0, limit=1_000_000)) == ended.bytes


async def check_term_is_asked_first(make: MakeHost, folder: str) -> None:
    """A command that handles TERM ends in its own way, inside the grace."""
    host, ref = make(), ref_of("polite")
    await host.launch(
        shell_spec(ref, 'trap "echo bye; exit 3" TERM; echo up; while :; do sleep 0.01; done')
    )
    await _first_output(host, ref)
    ended = await host.stop(ref, grace_ms=5_000)
    assert isinstance(ended, Exited)
    assert ended.code == 3
    assert (await host.log(ref, offset=0, limit=100)).endswith(b"bye\n")


async def check_output_beyond_the_cap(make: MakeHost, folder: str) -> None:
    """The beginning and the end are kept, the total is true."""
    host, ref = make(), ref_of("noisy")
    await host.launch(
        shell_spec(ref, "yes 1234567 | head -c 3000000; echo; echo END", output_bytes_max=1_000)
    )
    ended = await host.wait(ref)
    assert isinstance(ended, Exited)
    assert ended.bytes == 3_000_005
    assert await host.log(ref, offset=0, limit=1_000) == b"1234567\n" * 125
    assert (await host.log(ref, offset=ended.bytes - 65_536, limit=65_536))[-4:] == b"END\n"
    assert await host.log(ref, offset=-4, limit=10) == b"END\n"


async def check_cancelled_wait_leaves_the_command(make: MakeHost, folder: str) -> None:
    """Nobody waiting is no reason to end."""
    host, ref = make(), ref_of("alone")
    started = await host.launch(shell_spec(ref, "echo up; sleep 60"))
    waiting = asyncio.ensure_future(host.wait(ref))
    await _first_output(host, ref)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await host.reconcile(ref) == started
    await host.stop(ref, grace_ms=GRACE_MS)


async def check_forget(make: MakeHost, folder: str) -> None:
    """Forgetting an ended launch removes its output; a running one is left as it is."""
    host, ref = make(), ref_of("forgotten")
    started = await host.launch(shell_spec(ref, "echo up; sleep 60"))
    await _first_output(host, ref)
    await host.forget(ref)
    assert await host.reconcile(ref) == started
    assert not isinstance(await host.stop(ref, grace_ms=GRACE_MS), Lost)
    await host.forget(ref)
    assert await host.log(ref, offset=0, limit=10) == b""


PROCESS_CHECKS: Final[tuple[Check, ...]] = (
    check_exit_code_and_output,
    check_signal,
    check_missing_command,
    check_environment,
    check_stdin_is_empty,
    check_never_ran,
    check_adopted_while_running,
    check_stop_ends_a_tree_that_ignores_term,
    check_term_is_asked_first,
    check_output_beyond_the_cap,
    check_cancelled_wait_leaves_the_command,
    check_forget,
)
"""Every check, in the order of a launch's life."""
