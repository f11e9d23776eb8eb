"""The command line as a whole: exit codes, closed outputs, signals, and no traceback for anybody."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KVSCOPE = [sys.executable, "-m", "kvscope"]
GOLDEN = Path(__file__).parent.parent / "golden"
RECORD = str(GOLDEN / "records" / "lab.db")
TINY = str(GOLDEN / "gguf" / "tiny-gemma3.gguf")


def run(*words: str, cwd: Path | None = None, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVSCOPE, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=120, **more)  # type: ignore[call-overload]  # keywords of subprocess.run


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, ""),
        (["--version"], 0, ""),
        ([], 2, "Usage"),
        (["nonsense"], 2, "No such command"),
        (["predict", TINY, "--engine", "llama.cp"], 2, "llama.cpp"),
        (["predict", TINY, "--engine", "llama.cpp", "--tokens", "many"], 2, "8192"),
        (["predict", TINY, "--engine", "llama.cpp", "--set", "n_ctxx=4"], 2, "n_ctx"),
        (["show", "nowhere.gguf"], 3, "nowhere.gguf"),
        (["export", "--records", "nowhere.db"], 4, "kvscope lab"),
        (["report", "--records", TINY], 4, "record"),
        (["measure", "input_lenght"], 2, "input_length"),
        (["measure", "input_length", "--set", "n_ctx=512,1024"], 2, "--grid"),
        (["measure", "input_length", "--levels", "0"], 2, "whole numbers"),
        (["measure", "input_length", "--repeats", "1000000"], 2, "10,000"),
        (["measure", "input_length", "--max-minutes", "nan"], 2, "minutes"),
        (["measure", "input_length", "--port", "99999"], 2, "65535"),
        (["measure", "input_length", "--set", "output_tokens=abc"], 2, "output_tokens"),
        (["measure", "input_length", "--engine", "zork", "--dry-run"], 2, "zork"),
        (["measure", "input_length", "--model", "nope.gguf", "--dry-run"], 3, "nope.gguf"),
        (["measure", "input_length", "--set", "ctk=banana", "--dry-run"], 2, "banana"),
        (["lab", "--max-minutes", "-1"], 2, "minutes"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_exit_codes_and_one_clear_message(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_not_run(tmp_path: Path) -> None:
    words = ["measure", "input_length", "--levels", "64,5k", "--set", "n_ctx=1000", "--dry-run", "--json"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reasons = {row["levels"]["prompt_tokens"]: row["not_run_because"] for row in json.loads(done.stdout)["trials"]}
    assert reasons[64] is None
    assert "context limit" in reasons[5120]


def test_a_reader_that_goes_away_is_no_failure() -> None:
    with subprocess.Popen(
        [*KVSCOPE, "export", "--records", RECORD], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.readline()
        p.stdout.close()
        assert p.stderr.read() == b""
    assert p.returncode == 0


def test_a_full_disk_behind_the_output_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*KVSCOPE, "export", "--records", RECORD], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_stopped_by_a_signal_it_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    # The fake engine takes a minute to load, so the signal hits a trial.
    words = [
        "measure",
        "input_length",
        "--engine",
        "fake",
        "--set",
        "load_s=60",
        "--levels",
        "64",
        "--records",
        "a b.db",
    ]
    with subprocess.Popen([*KVSCOPE, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "trials to run" in process.stderr.readline()
        time.sleep(0.3)
        os.kill(process.pid, number)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "To go on: kvscope measure input_length" in said
    assert "'a b.db'" in said
    assert "Traceback" not in said
    rows = run("export", "--records", "a b.db", cwd=tmp_path).stdout.splitlines()
    assert [json.loads(row)["outcome"] for row in rows] == ["interrupted"]


def test_a_name_out_of_a_file_does_not_drive_the_terminal(tmp_path: Path) -> None:
    """Not even half a character, which no output can encode."""
    config = {"model_type": "llama", "torch_dtype": "bfloat16", "_name_or_path": "\x1b[31m\u202e\x9b\ud800"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = str(tmp_path / "config.json")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for words in (["show", path], ["predict", path, "--engine", "logical"], ["fit", path, "--budget", "99GiB"]):
        for more in ([], ["--json"]):
            done = run(*words, *more, env=environment)
            assert done.returncode == 0, done.stderr
            assert not set("\x1b\u202e\x9b") & set(done.stdout + done.stderr), (words, more)


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        ("show {tiny}", ">&-", 0),
        ("show nowhere.gguf", ">&- 2>&-", 3),
        ("show nowhere.gguf", "2>/dev/full", 3),
        ("show {tiny}", ">/dev/full", 2),
        ("predict {tiny} --engine llama.cpp --json", ">/dev/full", 2),
        ("explain -", "<&-", 2),
    ],
)
def test_closed_and_full_streams(words: str, closed: str, code: int) -> None:
    command = f"{sys.executable} -m kvscope {words.format(tiny=TINY)} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert "internal" not in done.stderr
    assert "Traceback" not in done.stderr
