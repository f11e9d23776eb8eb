"""The tool that writes the identity's figures: it says what is over a limit, and changes only its part of the page."""

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from study_rows import KIB, attempt, memory

from kvscope.analysis.identity import RowIdentity, row_identity

TOOL = Path(__file__).parent.parent / "tools" / "make_identity_figures.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_file_location("make_identity_figures", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(key: str, more_kib: int) -> RowIdentity:
    """A row whose peak has ``more_kib`` that nothing names."""
    rows = memory()
    after = [m for m in rows["maps"] if m.kind == "file" and m.phase == "loaded"]
    maps = (*rows["maps"], *(replace(m, phase="after_request", request_index=1) for m in after))
    marks = tuple(
        replace(m, anon_bytes=m.anon_bytes + more_kib * KIB) if m.phase == "after_request" else m for m in rows["marks"]
    )
    return replace(row_identity(attempt(marks=marks, maps=maps)), key=key)


@pytest.mark.parametrize(("more_kib", "over"), [(0, 0), (2_000, 0), (4_000, 1), (12_000, 2)])
def test_what_is_over_a_limit_is_said(tool: ModuleType, more_kib: int, over: int) -> None:
    # Grew at the peak: 46,080 cache + 27,000 own + 14,000 touched + 94,320 file = 181,400 KiB, and what is added.
    # 2,000: 1.1 % of the row, 1.1 % between. 4,000: 2.2 % and 2.2 %. 12,000: 6.2 % and 6.6 %.
    case = next(case for case in tool.CASES if case.pair_limit is not None)
    line, found = tool.figures(case, [row("a", 0), row("b", more_kib)])
    assert len(found) == over
    assert f"{more_kib / (181_400 + more_kib):.2%}" in line
    assert f"{more_kib / 181_400:.2%}" in line


def test_only_its_own_part_of_the_page_changes(tool: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("# Accuracy\n\nmine\n", encoding="utf-8")
    rows = [row("a", 0), row("b", 100)]
    first, over = tool.page_block([(tool.CASES[0], rows)], 1)
    assert over == []
    tool.write_page(first, page)
    assert page.read_text(encoding="utf-8").startswith("# Accuracy\n\nmine\n")
    page.write_text(page.read_text(encoding="utf-8") + "\nbehind\n", encoding="utf-8")
    second, _ = tool.page_block([(tool.CASES[0], [row("a", 0), row("b", 9_000)])], 1)
    tool.write_page(second, page)
    text = page.read_text(encoding="utf-8")
    assert text.count(tool.BEGIN) == 1
    assert second in text
    assert text.endswith("\nbehind\n")


def test_it_ends_in_what_the_page_has(tool: ModuleType) -> None:
    text = (TOOL.parent.parent / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert tool.BEGIN in text
    assert tool.END in text
