"""The documents name what the code has: every error, every warning, every command, and the README's commands exist."""

import re
from pathlib import Path

import click
import pytest

from kvscope import errors
from kvscope.cli.main import COMMANDS, cli

ROOT = Path(__file__).parent.parent
MESSAGES = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _error_classes() -> list[type[errors.KvscopeError]]:
    found = [getattr(errors, name) for name in vars(errors)]
    return [item for item in found if isinstance(item, type) and issubclass(item, errors.KvscopeError)]


@pytest.mark.parametrize("error", _error_classes(), ids=lambda error: error.__name__)
def test_every_error_is_documented_and_drawn(error: type[errors.KvscopeError]) -> None:
    assert f"| `{error.slug}` |" in MESSAGES
    assert error.__name__ in (errors.__doc__ or "")


def test_every_slug_is_one_errors_own() -> None:
    slugs = [error.slug for error in _error_classes()]
    assert len(slugs) == len(set(slugs))


def test_every_trial_warning_is_documented() -> None:
    source = (ROOT / "src" / "kvscope" / "experiment" / "trial.py").read_text(encoding="utf-8")
    slugs = set(re.findall(r"warn(?:_once)?\(\s*\"([a-z-]+)\"", source))
    assert slugs
    assert {slug for slug in slugs if f"| `{slug}` |" not in MESSAGES} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_a_place_in_the_readme(name: str) -> None:
    command = cli.commands.get(name) or cli.get_command(None, name)  # type: ignore[arg-type]  # it needs no context
    assert command is not None
    assert command.help
    assert f"kvscope {name}" in README
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"kvscope {name}: {option.name} has no help"


def test_the_readme_starts_with_the_two_commands() -> None:
    commands = re.findall(r"^(?:\$ )?(make \w+|kvscope .*|pip .*)$", README, flags=re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (document.parent / target).exists(), f"{document}: {target}"
