"""How a person names a hosted provider and its key: no vendor library is needed to read this.

A secret never stands in a configuration: a key is named by its environment variable, or comes from
a function that is called for each request (PV-22, D28).
"""

import ipaddress
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.errors import ProviderError, Rejected
from perdure.records.entries import ModelId

KeyFunction: TypeAlias = Callable[[], str | Awaitable[str | None] | None]
KeySource: TypeAlias = str | KeyFunction
"""`env:NAME`, or a function called for each request."""

CONNECT_TIMEOUT_MS: Final = 10_000
"""No connection in this time is a timeout (PV-15)."""

SILENCE_TIMEOUT_MS: Final = 120_000
"""No byte in this time is a timeout (PV-15)."""

ENV_REFERENCE: Final = "env:"


class ModelPrice(Struct, frozen=True, kw_only=True):
    """Prices of one model for a million tokens, as decimal text; the configuration's `[prices]`."""

    input: str
    output: str
    cache_read: str
    cache_write: str
    currency: str = "USD"
    date: str


NO_PRICES: Final[Mapping[str, ModelPrice]] = MappingProxyType({})


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """What a configuration says of one provider.

    Attributes:
        base_url: where its server is; None is the vendor's own.
        key: where its key comes from; None is the provider's own environment variable.
        thinking: the model thinks although the vendor library does not know it (PV-10).
        images: whether the model takes images; None is what the vendor library says.
        window: context window in tokens; None is what is known or listed (PV-23).
        output_limit: most output tokens; None is what is known.
        stream_options: whether the server understands `stream_options` (chat wire only).
        allow_plain_http: accept http to an address that is neither loopback nor private.
        connect_timeout_ms: longest wait for a connection.
        silence_timeout_ms: longest wait for a byte.
        prices: by model id; they win over the bundled table (PV-27).
        noted: told name and text of every key that was found (SX-05).
    """

    base_url: str | None = None
    key: KeySource | None = None
    thinking: bool = False
    images: bool | None = None
    window: int | None = None
    output_limit: int | None = None
    stream_options: bool = True
    allow_plain_http: bool = False
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    silence_timeout_ms: int = SILENCE_TIMEOUT_MS
    prices: Mapping[str, ModelPrice] = NO_PRICES
    noted: Callable[[str, str], None] | None = None


class Provider(Struct, frozen=True, kw_only=True):
    """A hosted provider: its wire, its adapter module, its environment variable, its extra.

    `vendor` names whose models it serves, as the bundled tables do; None for any server.
    """

    name: str
    api: str
    module: str
    key_variable: str
    needs_key: bool
    needs_base_url: bool
    extra: str
    vendor: str | None


def _openai(name: str, api: str) -> Provider:
    return Provider(
        name=name,
        api=api,
        module="perdure.providers.openai_wires",
        key_variable="OPENAI_API_KEY",
        needs_key=True,
        needs_base_url=False,
        extra="openai",
        vendor="openai",
    )


HOSTED: Final[Mapping[str, Provider]] = MappingProxyType(
    {
        "openai": _openai("openai", "openai-responses"),
        "openai-chat": _openai("openai-chat", "openai-chat"),
        "openai-compatible": Provider(
            name="openai-compatible",
            api="openai-chat",
            module="perdure.providers.openai_wires",
            key_variable="OPENAI_COMPATIBLE_API_KEY",
            needs_key=False,
            needs_base_url=True,
            extra="openai",
            vendor=None,
        ),
        "anthropic": Provider(
            name="anthropic",
            api="anthropic-messages",
            module="perdure.providers.anthropic_wire",
            key_variable="ANTHROPIC_API_KEY",
            needs_key=True,
            needs_base_url=False,
            extra="anthropic",
            vendor="anthropic",
        ),
    }
)
"""The hosted providers, by the name that stands before the colon of a model."""

UNHOSTED: Final = ("local", "scripted")
"""The providers that need no key and no network."""

LOCAL_HOSTS: Final = frozenset({"localhost", "ip6-localhost"})


def check_config(provider: Provider, config: ProviderConfig) -> None:
    """Refuse a configuration that cannot work or would send a key in the clear (PV-23).

    Raises:
        Rejected: `invariant`, naming what was refused and what would be accepted.
    """
    if provider.needs_base_url and not config.base_url:
        raise Rejected(
            "invariant",
            f"the provider {provider.name!r} has no base_url; give the URL of its server, "
            f"such as http://127.0.0.1:8000/v1",
        )
    if isinstance(config.key, str) and not config.key.startswith(ENV_REFERENCE):
        raise Rejected(
            "invariant",
            f"the key of {provider.name!r} is given as text; name an environment variable as "
            f"'env:NAME', or give a function, so that no secret stands in a configuration",
        )
    if config.base_url is not None:
        _check_url(config.base_url, allow_plain_http=config.allow_plain_http)


def _check_url(url: str, *, allow_plain_http: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Rejected("invariant", f"the base_url {url!r} is not an http or https URL with a host")
    if parts.scheme == "http" and not (allow_plain_http or _is_near(parts.hostname)):
        raise Rejected(
            "invariant",
            f"the base_url {url!r} is plain http to {parts.hostname!r}; accepted are https, http "
            f"to a loopback or private address, or allow_plain_http = true",
        )


def _is_near(host: str) -> bool:
    if host in LOCAL_HOSTS:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or (address.is_private and not address.is_unspecified)


async def resolve_key(provider: Provider, config: ProviderConfig, model: ModelId) -> str | None:
    """Answer the key for one request; None for a provider that works without one (PV-22).

    Raises:
        ProviderError: `auth`, naming provider and variable, when the key is missing.
    """
    variable = provider.key_variable
    if callable(config.key):
        found = config.key()
        key = found if found is None or isinstance(found, str) else await found
        source = "the key function answered none"
    else:
        if config.key is not None:
            variable = config.key.removeprefix(ENV_REFERENCE)
        key = os.environ.get(variable)
        source = f"the environment variable {variable} is not set"
    if key and config.noted is not None:
        config.noted(variable, key)
    if key or not provider.needs_key:
        return key or None
    raise ProviderError("auth", f"no key for {model}: {source}")


def tls_of(config: ProviderConfig) -> ssl.SSLContext | bool:
    """Answer how TLS is verified: as usual; a plain http server needs no certificates at all.

    Reading the certificates takes a tenth of a second, and a context without any refuses every
    server, so nothing is lost when such a server should point to a TLS one.
    """
    if _is_plain(config):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True


def uses_proxies(config: ProviderConfig) -> bool:
    """Say whether the environment's proxies apply: not to a plain http server near by."""
    return not _is_plain(config)


def _is_plain(config: ProviderConfig) -> bool:
    return config.base_url is not None and config.base_url.startswith("http:")
