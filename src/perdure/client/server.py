"""RemoteServer: the sessions of a server, and how it is connected to."""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Final, Protocol, cast

from msgspec import Raw, Struct

from perdure.client.asking import Asker, Transport
from perdure.client.places import Place
from perdure.client.session import RemoteSession
from perdure.client.wire import read, read_renamed
from perdure.errors import Rejected, Unreachable
from perdure.ports import Clock, Randomness, Threads
from perdure.records.approvals import ApprovalView
from perdure.records.codec import decode_json
from perdure.records.sessions import SessionInfo

TRANSPORT: Final = "perdure.client.transport"
"""What speaks HTTP; loaded when somebody connects (K06)."""


CONTROL: Final = "perdure.hosts.control_socket"
"""What knows where the token of a control address stands."""


class World(Protocol):
    """What a client needs of the world (`opening.Ports`)."""

    @property
    def clock(self) -> Clock:
        """Answer the clock."""
        ...

    @property
    def randomness(self) -> Randomness:
        """Answer random text."""
        ...

    @property
    def threads(self) -> Threads:
        """Answer threads for what blocks."""
        ...


class RemoteServer:
    """The sessions of one server, by name."""

    def __init__(self, asker: Asker) -> None:
        """Take what asks; made by `perdure.connect`."""
        self._asker = asker

    async def session(
        self, name: str, *, create: bool = False, request_id: str | None = None
    ) -> RemoteSession:
        """Answer a session by name; with `create` one that is absent is made.

        Raises:
            Rejected: `not_found` for an absent session without `create`; `invariant`: bad name.
        """
        found = await self._named(name)
        if found is None and create:
            body = {"name": name, "request_id": request_id or self._asker.new_request_id()}
            made = await self._asker.ask("POST", "/v1/sessions", body, repeats=True)
            return RemoteSession(self._asker, read(made["id"], str), name)
        if found is None:
            raise Rejected("not_found", f"there is no session {name!r}")
        return RemoteSession(self._asker, found.id, found.name)

    async def sessions(
        self, *, after: str | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        """Answer a page of sessions by name; `after` is a name, limit 1 to 1,000."""
        fields = await self._asker.get("/v1/sessions", after=after, limit=limit)
        return _infos(fields)

    async def approvals(self) -> Sequence[tuple[RemoteSession, ApprovalView]]:
        """Answer what waits for a person in any session, each with its session (WB-13)."""
        found: list[tuple[RemoteSession, ApprovalView]] = []
        after: str | None = None
        while True:
            fields = await self._asker.get("/v1/approvals", after=after)
            for one in read(fields["approvals"], list[Raw]):
                place = read_renamed(one, _Place)
                session = RemoteSession(self._asker, place.session, place.session_name)
                found.append((session, read_renamed(one, ApprovalView)))
            after = decode_json(fields["next"])
            if after is None:
                return found

    async def rename(self, old: str, new: str) -> None:
        """Give a session a new unique name; raises Rejected `not_found`, `invariant`."""
        await (await self.session(old)).rename(new)

    async def delete(self, name: str) -> None:
        """Delete a session with all that is in it, for good.

        Raises:
            Rejected: `not_found`; `busy`, while the server uses it.
        """
        await (await self.session(name)).delete()

    async def _named(self, name: str) -> SessionInfo | None:
        found = _infos(await self._asker.get("/v1/sessions", name=name))
        return found[0] if found else None


class _Place(Struct, frozen=True, kw_only=True):
    """Where an approval waits."""

    session: str
    session_name: str


class Connecting:
    """A server being connected to: an async context manager of its `RemoteServer`."""

    def __init__(
        self,
        place: Place,
        world: World,
        *,
        load: Callable[[str], ModuleType],
        tries: int,
    ) -> None:
        """Take the address; nothing is loaded and nobody asked before `async with`."""
        self._place = place
        self._world = world
        self._load = load
        self._tries = tries

    async def __aenter__(self) -> RemoteServer:
        """Ask the server whether it is there and lets this caller in.

        Raises:
            Unreachable: no server answers.
            Refused: `unauthorized`, for a wrong token.
        """
        place, world = self._place, self._world
        token = place.token
        if token is None:
            try:
                token = await world.threads.run("token", self._stored_token)
            except OSError as error:
                raise Unreachable(
                    f"no server answers at {place}: {error}", was_sent=False
                ) from None
        # Libraries load in a thread: the loop goes on meanwhile.
        transport = await world.threads.run("load", partial(self._load, TRANSPORT))
        asker = Asker(
            cast("Transport", transport.HttpTransport(place, token)),
            clock=world.clock,
            randomness=world.randomness,
            tries=self._tries,
        )
        server = RemoteServer(asker)
        await server.sessions(limit=1)
        return server

    def _stored_token(self) -> str:
        """Read the token beside the socket."""
        return cast("str", self._load(CONTROL).token_of(self._place.path))

    async def __aexit__(self, *_: object) -> None:
        """Have nothing to close: each request has a connection of its own."""


def _infos(fields: dict[str, Raw]) -> list[SessionInfo]:
    return [read_renamed(one, SessionInfo) for one in read(fields["sessions"], list[Raw])]
