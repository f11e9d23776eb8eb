"""Run the commands that stand in docs/explain and write what they print below them: python tools/make_doc_outputs.py

A block that begins with "$ kvscope ..." is made by it; commands that run an engine are left as they were measured.
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
    ROOT / "docs" / "explain" / name for name in ("what-is-in-your-prompt.md", "why-the-next-turn-was-slow.md")
)
FOLDER = ROOT / "docs" / "examples" / "conversation"
BLOCK = re.compile(r"^```\n\$ (kvscope [^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS_AN_ENGINE = ("kvscope measure", "--confirm")


def main() -> None:
    for page in PAGES:
        page.write_text(with_outputs(page.read_text(encoding="utf-8"), printed), encoding="utf-8")


def with_outputs(page: str, output_of: Callable[[str], str]) -> str:
    """The page with what ``output_of`` says of each command that runs no engine."""

    def block(found: re.Match[str]) -> str:
        command = found[1]
        if any(word in command for word in RUNS_AN_ENGINE):
            return found[0]
        return f"```\n$ {command}\n{output_of(command)}```"

    return BLOCK.sub(block, page)


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
