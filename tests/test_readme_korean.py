"""The Korean README says the same as the English one: the same commands, sections, links that lead somewhere, in the
words of the Korean catalogues."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGLISH, KOREAN = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ko.md"))


def commands(text: str) -> set[str]:
    """Names of kvscope's commands and of make's targets, as a line begins with them or code names them."""
    return set(re.findall(r"(?:^|`)(kvscope (?:--lang ko )?[a-z]+|make [a-z]+)", text, re.MULTILINE))


def test_both_name_the_same_commands() -> None:
    korean = {command.replace("--lang ko ", "") for command in commands(KOREAN)}
    assert len(korean) > 15
    assert korean == commands(ENGLISH)


def test_both_lead_to_one_another() -> None:
    assert "한국어: [README.ko.md](README.ko.md)" in ENGLISH
    assert "English: [README.md](README.md)" in KOREAN


def test_both_have_the_same_sections() -> None:
    assert len(re.findall(r"^#+ ", re.sub(r"```.*?```", "", KOREAN, flags=re.DOTALL), re.MULTILINE)) == len(
        re.findall(r"^#+ ", re.sub(r"```.*?```", "", ENGLISH, flags=re.DOTALL), re.MULTILINE)
    )


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", KOREAN))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
    assert link in ENGLISH or link == "README.md"


@pytest.mark.parametrize("word", ["캐쉬", "윈도우", "하십시오", "설계", "연구", "을(를)", "매개변수", "베이스라인"])
def test_it_keeps_to_the_glossary(word: str) -> None:
    assert word not in KOREAN
