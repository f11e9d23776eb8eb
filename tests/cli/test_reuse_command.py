"""kvscope reuse as a person calls it: files in, one clear answer or one clear error out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli import reuse
from kvscope.experiment.reuse_check import ConfirmedReuse

CONFIG = Path(__file__).parent.parent / "golden" / "models" / "llama-3.1-8b" / "config.json"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def body(*pairs: tuple[str, str]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in pairs]}, ensure_ascii=False)


ASKED = (("system", "Now 14:05. Be kind."), ("user", "Hi"))
AGAIN = (("system", "Now 14:06. Be kind."), ("user", "Hi"), ("assistant", "Hello."), ("user", "So?"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plain.jinja").write_text(TEMPLATE)
    (tmp_path / "one.json").write_text(body(*ASKED))
    (tmp_path / "two.json").write_text(body(*AGAIN))
    (tmp_path / "log.jsonl").write_text(f"{body(*ASKED)}\n{body(*AGAIN)}\n{{broken\n")
    return tmp_path


def run(folder: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    options = ["--model", str(CONFIG), "--template", "plain.jinja", "--tokenizer", "bytes:"]
    return subprocess.run(
        [sys.executable, "-m", "kvscope", "reuse", *words, *options],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_json_is_the_contracts(folder: Path) -> None:
    done = run(folder, "one.json", "two.json", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "kvscope.reuse/1"
    # "[system]Now 14:0" has 16 bytes; the second prompt has 28 + 9 + 18 + 10 + 11.
    assert (found["common_prefix_tokens"], found["reusable_tokens"], found["recomputed_tokens"]) == (16, 16, 60)
    assert found["broken_by"] == "clock"
    assert found["broken_at"] == {"part": "system", "message": 0, "tool": None, "character": 8, "token": 16}


def test_the_text_begins_with_the_answer(folder: Path) -> None:
    done = run(folder, "one.json", "two.json")
    assert done.stdout.startswith("Turn 2 reuses 16 of 76 tokens; 60 are computed anew")
    assert "[system]Now 14:0|5. Be kind." in done.stdout


def test_a_log_and_what_is_wrong_in_it(folder: Path) -> None:
    done = run(folder, "log.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [turn["reusable_tokens"] for turn in found["turns"]] == [0, 16]
    assert len(found["problems"]) == 1
    assert "line 3" in found["problems"][0]


def test_a_log_from_the_standard_input(folder: Path) -> None:
    done = run(folder, "-", "--log", stdin=f"{body(*ASKED)}\n{body(*ASKED)}\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 requests reuse")


def test_a_setting_may_have_another_of_the_engines_spellings(folder: Path) -> None:
    # Two slots: 16 common tokens of 76 are more than a tenth; of 400, they are not.
    (folder / "long.json").write_text(body(("system", "Now 14:06. Be kind."), ("user", "Hi" * 300)))
    for name in ("parallel", "n_parallel", "np"):
        done = run(folder, "one.json", "long.json", "--set", f"{name}=2", "--json")
        assert json.loads(done.stdout)["reusable_tokens"] == 0, done.stderr


def test_the_stated_answer_counts(folder: Path) -> None:
    (folder / "one.json").write_text(body(*AGAIN[:2]))
    (folder / "answer.txt").write_bytes(b"Hello.\r\n")
    done = run(folder, "one.json", "two.json", "--answer", "answer.txt", "--json")
    found = json.loads(done.stdout)
    assert (found["broken_by"], found["first"]["answer"]) == ("answer-changed", "stated")
    assert found["evidence"] == {"first": "\r\n", "second": ""}


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ('{"messages": []}', 3, "empty"),
        ("{", 3, "bad.json"),
        ('{"messages": [{"role": "nobody", "content": "x"}]}', 3, "no such role"),
        (f"{body(*ASKED)}\n{body(*ASKED)}", 2, "2 requests"),
        ("\x00\x01", 3, "bad.json"),
    ],
)
def test_bad_requests_are_one_clear_error(folder: Path, content: str, code: int, says: str) -> None:
    (folder / "bad.json").write_text(content)
    done = run(folder, "one.json", "bad.json")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["one.json", "two.json", "one.json"], 2, "3 files"),
        (["one.json"], 2, "one request"),
        (["log.jsonl", "--confirm"], 2, "two requests"),
        (["one.json", "nowhere.json"], 3, "nowhere.json"),
        (["one.json", "two.json", "--engine", "llama"], 2, "llama.cpp"),
        (["one.json", "two.json", "--answer", "nowhere.txt"], 2, "nowhere.txt"),
        (["one.json", "two.json", "--set", "n_parralel=3"], 2, "Did you mean n_parallel"),
        (["one.json", "two.json", "--set", "cache_prompts=false"], 2, "Did you mean cache_prompt"),
        (["one.json", "two.json", "--set", "n_ctx=-5"], 2, "n_ctx is -5"),
        (["one.json", "two.json", "--engine", "openai-api", "--set", "x=1"], 2, "no settings"),
    ],
)
def test_what_cannot_be_asked(folder: Path, words: list[str], code: int, says: str) -> None:
    done = run(folder, *words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("cached", "code", "says"), [(16, 0, "Confirmed"), (12, 1, "NOT as predicted"), (None, 0, "did not")]
)
def test_a_difference_from_the_engine_is_an_exit_code(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cached: int | None,
    code: int,
    says: str,
) -> None:
    def row(source: str, predicted: int, measured: int | None) -> ConfirmedReuse:
        return ConfirmedReuse(
            source=source,
            prompt_tokens_ours=60,
            prompt_tokens_server=60,
            predicted_tokens=predicted,
            cached_tokens=measured,
            status="exact",
            because="",
            ttft_s=0.1,
        )

    # The engine itself is held by the tests of experiment/reuse_check.py.
    monkeypatch.setattr(reuse, "_confirm", lambda *_: [row("one", 0, 0), row("two", 16, cached)])
    monkeypatch.chdir(folder)
    words = ["one.json", "two.json", "--confirm", "--model", str(CONFIG), "--template", "plain.jinja"]
    found = reuse.reuse.main([*words, "--tokenizer", "bytes:"], prog_name="kvscope", standalone_mode=False)
    assert found == code
    assert says in " ".join(capsys.readouterr().out.split())
