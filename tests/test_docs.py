"""The documents name what the code has: every error, every warning, every command, and the README's commands exist."""

import re
import tomllib
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
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "kvscope" / "experiment").glob("*.py")]
    slugs = set(re.findall(r"\.warn\(\s*\"([a-z-]+)\"", "".join(sources)))
    assert {"late-samples", "token-count-mismatch", "swap-active"} <= slugs
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


def test_every_place_that_names_an_engine_is_listed_for_whoever_adds_one() -> None:
    guide = (ROOT / "docs" / "design" / "adding-an-engine.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "kvscope"
    naming = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\"(llama\.cpp|fake)\"", path.read_text(encoding="utf-8"))
    ]
    # The rules themselves: the guide calls them predict/allocation/NAME.py.
    assert {path for path in naming if f"`{path}`" not in guide} == {"predict/allocation/llama_cpp.py"}


def test_every_dependency_is_imported_somewhere() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[><=~\[]", entry)[0].removesuffix("-python").replace("-", "_") for entry in dependencies]
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert [name for name in names if not re.search(rf"^\s*(import|from) {name}\b", code, re.MULTILINE)] == []


def test_files_named_in_the_design_documents_exist() -> None:
    source = ROOT / "src" / "kvscope"
    not_built = {"experiment/load.py"}
    for document in (ROOT / "docs" / "design").glob("*.md"):
        named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", document.read_text(encoding="utf-8")))
        named = {name for name in named - not_built if "NAME" not in name}
        missing = {name for name in named if not (source / name).exists() and not (ROOT / name).exists()}
        assert missing == set(), document
