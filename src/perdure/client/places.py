"""Where a server is: an address as a person writes it, read."""

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.errors import Rejected

ADDRESSES: Final = "http://HOST:PORT or unix:/PATH"
"""What `connect` takes."""

HTTP_PORT: Final = 80


class Place(Struct, frozen=True, kw_only=True):
    """One address: host and port, or the path of a Unix socket; `token` is None beside one."""

    host: str = ""
    port: int = 0
    path: str = ""
    token: str | None = None

    @property
    def name(self) -> str:
        """Answer what the `Host` header says."""
        if self.path:
            return "control"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTP_PORT else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Answer the address, without its token."""
        return f"unix:{self.path}" if self.path else f"http://{self.name}"


def place_of(url: str, token: str | None = None) -> Place:
    """Read an address; the fragment that `perdure serve` prints is the token, unless one is given.

    Raises:
        Rejected: `invariant`, for another scheme, a path or a query, no host, or no token.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "unix" and rest.startswith("/"):
        return Place(path=rest, token=token)
    try:
        found = urlsplit(url)
        host, port = found.hostname, found.port
    except ValueError:
        raise _refused(url) from None
    extras = found.path.strip("/") or found.query or found.username
    if scheme != "http" or not host or extras:
        raise _refused(url)
    token = token or found.fragment
    if not token:
        raise Rejected("invariant", f"no token is given for {url!r}: pass token=…")
    return Place(host=host, port=HTTP_PORT if port is None else port, token=token)


def _refused(url: str) -> Rejected:
    shown = url.partition("#")[0]
    return Rejected("invariant", f"the server's address {shown!r} is not {ADDRESSES}")
