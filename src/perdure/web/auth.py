"""Who may come in: tokens, the page's cookie, hosts and origins (WB-02, WB-04, WB-24).

A door knows nothing of sessions: it looks at the head of a request and answers a subject, or
refuses. Nothing of a request is looked at before its host and its origin.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from perdure.errors import Rejected
from perdure.web.refusals import Refusal

TOKEN_BYTES: Final = 32
"""Random bytes of a token (WB-02)."""

TOKEN_CHARACTERS_MIN: Final = 16
"""A shorter token in a file is no secret."""

LOCAL_SUBJECT: Final = "local"
"""Who the token made at a start belongs to."""

COOKIE_PURPOSE: Final = b"perdure cookie 1"

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Addresses that only this machine reaches; any other needs a token file (WB-03)."""


class Doors(Struct, frozen=True, kw_only=True):
    """What a server lets in.

    `tokens` holds the subject of each token; `hosts` the accepted `Host` headers, None for a
    transport that has no names, such as a Unix socket; `origins` the foreign origins that may ask.
    `cookie` is the name of the page's cookie, None where there is no page. `by` says what kind of
    caller a subject is, in the record of a decision (AQ-06).
    """

    tokens: Mapping[str, str]
    hosts: frozenset[str] | None = None
    own_origins: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    cookie: str | None = None
    by: str = "http"

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that is not ours: another site's name may lead here (WB-04)."""
        if self.hosts is None:
            return
        host = headers.get("host", "").lower()
        if host not in self.hosts:
            raise Refusal(
                "misdirected",
                f"the host {host[:200]!r} is not served here; allow it with --allow-host",
                headers={"Connection": "close"},
            )

    def check_origin(self, headers: Mapping[str, str]) -> str | None:
        """Refuse a page of another site; answers an allowed foreign origin, for its headers."""
        origin = headers.get("origin")
        if origin is None or origin.lower() in self.own_origins:
            return None
        if origin.lower() in self.origins:
            return origin
        raise Refusal(
            "forbidden",
            f"the origin {origin[:200]!r} may not ask here; allow it with --allow-origin",
        )

    def subject(self, headers: Mapping[str, str]) -> str:
        """Answer whose token or cookie a request carries; every known one is compared."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        found = None
        if scheme.lower() == "bearer":
            found = _matching(self.tokens, given.strip())
        elif self.cookie is not None and "cookie" in headers:
            known = {cookie_value(token): who for token, who in self.tokens.items()}
            found = _matching(known, _cookie(headers["cookie"], self.cookie))
        if found is None:
            raise Refusal(
                "unauthorized",
                "a token is needed: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found

    def cookie_of(self, headers: Mapping[str, str]) -> str | None:
        """Answer the cookie that stands for the token of a request; None without one."""
        given = headers.get("authorization", "").partition(" ")[2].strip()
        if self.cookie is None or given not in self.tokens:
            return None
        return f"{self.cookie}={cookie_value(given)}; HttpOnly; SameSite=Strict; Path=/"


def tcp_doors(
    tokens: Mapping[str, str],
    host: str,
    port: int,
    *,
    allow_hosts: Iterable[str] = (),
    allow_origins: Iterable[str] = (),
) -> Doors:
    """Answer the doors of a TCP server on one address."""
    bound = f"[{host}]" if ":" in host else host
    names = {bound, *LOOPBACK_NAMES}
    hosts = {f"{name}:{port}" for name in names} | {name for name in names if port == 80}
    hosts |= {name.lower() for name in allow_hosts}
    return Doors(
        tokens=MappingProxyType(dict(tokens)),
        hosts=frozenset(hosts),
        own_origins=frozenset(f"http://{name}" for name in hosts),
        origins=frozenset(origin.lower().rstrip("/") for origin in allow_origins),
        cookie=f"perdure_{port}",
    )


def cookie_value(token: str) -> str:
    """Answer what the page holds instead of the token; it cannot be turned back (WB-02)."""
    return hmac.new(token.encode(), COOKIE_PURPOSE, hashlib.sha256).hexdigest()


def read_tokens(text: str, name: str) -> Mapping[str, str]:
    """Read a token file: lines `subject token`; empty lines and `#` lines say nothing.

    Raises:
        Rejected: `invariant`, naming the line and never the token.
    """
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise Rejected("invariant", f"{name}, line {number}: write `subject token`")
        subject, token = words
        if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii():
            raise Rejected(
                "invariant",
                f"{name}, line {number}: a token has at least {TOKEN_CHARACTERS_MIN} ASCII "
                f"characters",
            )
        if token in tokens:
            raise Rejected("invariant", f"{name}, line {number}: this token stands there twice")
        tokens[token] = subject
    if not tokens:
        raise Rejected("invariant", f"{name} holds no line `subject token`")
    return tokens


def _matching(known: Mapping[str, str], given: str) -> str | None:
    """Compare with every secret, each in constant time, so that time tells nothing (WB-02)."""
    found = None
    for secret, subject in known.items():
        if hmac.compare_digest(secret.encode(), given.encode(errors="replace")):
            found = subject
    return found


def _cookie(header: str, name: str) -> str:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
