"""What crosses the `ProcessHost` port: launches named before they start (D06, TL-33)."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType


class LaunchRef(Struct, frozen=True, gc=False, kw_only=True):
    """Name a launch: its folder (relative to the host's launch folder) and its nonce."""

    dir: str
    nonce: str


class LaunchSpec(Struct, frozen=True, gc=False, kw_only=True):
    """What to start, under an already committed `ref`; `argv` is run without a shell of ours.

    `output_bytes_max` bounds the log on disk; the true total is still counted. With `root`, `cwd`
    must lie in it once its links are resolved, else the launch answers an error (KT-16).
    """

    ref: LaunchRef
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    output_bytes_max: int
    root: str | None = None


class NeverRan(Struct, frozen=True, gc=False):
    """The launch is shown never to have run its first instruction, and can no longer."""


class Running(Struct, frozen=True, gc=False, kw_only=True):
    """The command runs; `identity` is `v1:<boot id>:<pid>:<start>:<nonce>`, never a pid alone."""

    pid: int
    identity: str


class Exited(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The command ended by itself or by a stop: exactly one of code, signal, error is set.

    `ended_ms` is wall milliseconds; `bytes` is the true number of bytes it wrote; `ran_ms` how
    long it ran; `left` how many of its processes still ran after it and were ended with it (KT-19).
    `stopped` says that a stop was asked for before the end: it did not end by itself (TL-33).
    """

    code: int | UnsetType = UNSET
    signal: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    ended_ms: int
    bytes: int
    ran_ms: int = 0
    left: int = 0
    stopped: bool = False


class Lost(Struct, frozen=True, gc=False):
    """Neither life nor an exit status can be shown; nothing of the group is alive any more."""
