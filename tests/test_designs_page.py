"""docs/reference/designs.md holds every design in the code's own words."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.experiment.designs import DESIGNS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "designs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = spec_from_file_location("make_designs_page", ROOT / "tools" / "make_designs_page.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_designs_on_the_page_are_the_codes_own(tool: ModuleType) -> None:
    assert tool.with_designs(PAGE) == PAGE, "run: python tools/make_designs_page.py"


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_every_design_has_a_section_with_its_texts_and_an_example(name: str) -> None:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    kind = DESIGNS[name]
    for text in (kind.question, kind.says, *kind.holds, *kind.confounders):
        assert text in found[1]
    assert re.search(rf"kvscope measure (?:{name}|\w+ .*--grid)", found[1])


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_every_example_shows_what_was_printed(name: str) -> None:
    found = re.search(rf"<!-- example {name}: begin -->\n```\n(.*?)```\n<!-- example {name}: end -->", PAGE, re.DOTALL)
    assert found is not None
    command, _, printed = found[1].partition("\n")
    assert command.startswith("$ kvscope measure ")
    assert "95 %" in printed or "the engine's own log" in printed


def test_every_section_is_a_design() -> None:
    assert set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) == set(DESIGNS)
