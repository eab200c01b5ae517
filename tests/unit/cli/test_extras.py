"""Every hosted provider's extra is known, so that a missing one is said in time (CM-01)."""

import sys

import pytest

from perdure.cli.endings import UsageProblem
from perdure.cli.work import LIBRARIES, check_extra
from perdure.providers.config import HOSTED


@pytest.mark.spec("CM-01")
@pytest.mark.parametrize("provider", [*HOSTED, "local"])
def test_each_provider_names_its_extra(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = HOSTED[provider].extra if provider in HOSTED else "local"
    for library in LIBRARIES[extra]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(UsageProblem, match=library) as refused:
                check_extra(f"{provider}:any")
        assert refused.value.code == "missing_extra"
        assert refused.value.hint == f"run: pip install 'perdure[{extra}]'"


@pytest.mark.parametrize("model", ["scripted:x", "unknown:x", "nonsense", ""])
def test_a_model_without_an_extra_is_not_judged_here(model: str) -> None:
    check_extra(model)
