"""Every Python example of the documents runs and prints what it says."""

from pathlib import Path

import pytest

from tests.docs.pages import documents, name_of, play, printed, program

WITH_EXAMPLES = [page for page in documents() if program(page).strip()]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "data"))
    assert play(program(page), name_of(page)) == printed(page)


def test_a_line_keeps_its_number(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nraise ValueError(x)\n```\n")
    with pytest.raises(ValueError, match="1") as raised:
        play(program(page), "page.md")
    assert raised.traceback[-1].lineno == 7  # counted from 0


def test_a_wrong_print_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('a')\n#> b\n```\n")
    assert play(program(page), "page.md") != printed(page)
