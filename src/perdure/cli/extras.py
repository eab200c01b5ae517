"""Which libraries a model needs, and whether they are installed; looked for, not loaded (CM-01)."""

from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from perdure.cli.endings import UsageProblem
from perdure.providers.config import HOSTED

LOCAL_RUNTIME: Final = "xllamacpp"

LIBRARIES: Final = MappingProxyType(
    {
        "local": (LOCAL_RUNTIME,),
        "openai": ("pydantic_ai", "openai"),
        "anthropic": ("pydantic_ai", "anthropic"),
    }
)
"""The libraries of each extra that serves a model."""


def extra_of(provider: str) -> str | None:
    """Name the extra a provider needs; None when it needs none, or is unknown."""
    if provider == "local":
        return provider
    return HOSTED[provider].extra if provider in HOSTED else None


def is_installed(extra: str) -> bool:
    """Say whether every library of an extra is there."""
    return all(find_spec(name) is not None for name in LIBRARIES[extra])


def check_extra(model: str) -> None:
    """Refuse a model whose provider's libraries are not installed, before anything is made.

    Raises:
        UsageProblem: `missing_extra`, with the line that installs it.
    """
    provider = model.partition(":")[0]
    extra = extra_of(provider)
    if extra is not None and not is_installed(extra):
        missing = [name for name in LIBRARIES[extra] if find_spec(name) is None]
        raise UsageProblem(
            f"the model {model!r} needs {' and '.join(missing)}, which is not installed",
            f"run: pip install 'perdure[{extra}]'",
            code="missing_extra",
        )
