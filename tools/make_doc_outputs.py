"""Run the commands that stand in docs/explain and write what they print below them: python tools/make_doc_outputs.py

A block that begins with "$ kvscope ..." is made by it; commands that run an engine are left as they were measured, but
for the release check, whose record lies in docs/examples/release: what it printed is made from that again.
tests/test_doc_outputs.py fails while a block is not what the command prints.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = tuple(
    ROOT / "docs" / "explain" / name
    for name in ("what-is-in-your-prompt.md", "why-the-next-turn-was-slow.md", "is-it-a-leak.md")
)
FOLDER = ROOT / "docs" / "examples" / "conversation"
BLOCK = re.compile(r"^```\n\$ (kvscope [^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RELEASE_RECORD = ROOT / "docs" / "examples" / "release" / "release.db"
RUNS_AN_ENGINE = ("kvscope measure", "--confirm")


def main() -> None:
    for page in PAGES:
        page.write_text(with_outputs(page.read_text(encoding="utf-8"), printed), encoding="utf-8")


def with_outputs(page: str, output_of: Callable[[str], str]) -> str:
    """The page with what ``output_of`` says of each command that runs no engine."""

    def block(found: re.Match[str]) -> str:
        command = found[1]
        if command.startswith("kvscope measure release"):
            return f"```\n$ {command}\n{release_printed()}```"
        if any(word in command for word in RUNS_AN_ENGINE):
            return found[0]
        return f"```\n$ {command}\n{output_of(command)}```"

    return BLOCK.sub(block, page)


def release_printed() -> str:
    """What ``kvscope measure release`` printed when it made the record."""
    from kvscope.analysis.study import releases_of
    from kvscope.record.store import open_records
    from kvscope.report.release_text import release_lines

    with open_records(RELEASE_RECORD) as records:
        (design,) = records.designs()
        lines = release_lines(releases_of(records, design.design_id))
    return "".join(f"{line}\n" for line in lines)


def printed(command: str) -> str:
    """What a command prints, run where the examples lie. Raises RuntimeError where it fails."""
    words = [sys.executable, "-m", "kvscope", *shlex.split(command)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    if done.stderr:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
