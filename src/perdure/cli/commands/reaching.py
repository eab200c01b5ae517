"""Whether a provider's server can be reached; only `perdure doctor --network` asks (CM-38)."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from perdure.providers.config import ProviderConfig

ADDRESSES: Final = MappingProxyType(
    {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}
)
"""Where the vendors' own servers are."""

WAIT_S: Final = 5.0


async def reach_checks(
    configs: Mapping[str, ProviderConfig],
) -> Sequence[tuple[str, str | None]]:
    """Connect to each provider's server and hang up; answers names and faults."""
    addresses = dict(ADDRESSES)
    for name, config in configs.items():
        if config.base_url is not None:
            addresses[name] = config.base_url
    return [(name, await _fault(address)) for name, address in addresses.items()]


async def _fault(address: str) -> str | None:
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(WAIT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"no answer in {WAIT_S:.0f} s"
    except OSError as error:
        return str(error)
    writer.close()
    return None
