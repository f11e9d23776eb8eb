"""What can go wrong before an engine answers: its settings, its port, its model's file, its program, its log."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sitting import Maker, sit, sound

from kvscope.engine import llama_cpp
from kvscope.engine.base import Engine
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.llama_server import LlamaServerEngine
from kvscope.engine.process import EngineProcess
from kvscope.errors import EngineReplyError, EngineStartFailed
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import TrialResult
from kvscope.scenario import SettingValue

pytestmark = pytest.mark.engine


def with_settings(**changed: SettingValue) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return LlamaCppEngine(model=model, settings={**settings, **changed})

    return make


def with_file(path: Path) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return LlamaCppEngine(model=replace(model, file_path=str(path)), settings=settings)

    return make


def with_command(command: str) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return LlamaServerEngine(command=command, model=model, settings={"n_ctx": 256})

    return make


def on_port(port: int) -> Maker:
    def make(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return LlamaCppEngine(model=model, settings=settings, port=port)

    return make


@pytest.fixture(scope="module")
def results(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrialResult]:
    folder = tmp_path_factory.mktemp("cannot-start")
    (folder / "text.gguf").write_text("root:x:0:0")
    assert smollm2.file_path is not None
    with Path(smollm2.file_path).open("rb") as whole:
        (folder / "cut.gguf").write_bytes(whole.read(5_000_000))
    plain = folder / "plain.txt"
    plain.write_text("not a program")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        makers = {
            # M11, ggml-org/llama.cpp#28524.
            "quantised values without flash attention": with_settings(cache_type_v="q4_0", flash_attn="off"),
            "too many slots": with_settings(n_parallel=300),
            "no such setting": with_settings(n_cxt=256),
            "assertion": with_settings(n_batch=0),
            "port": on_port(taken.getsockname()[1]),
            "missing file": with_file(folder / "missing.gguf"),
            "no model": with_file(folder / "text.gguf"),
            "cut file": with_file(folder / "cut.gguf"),
            "no program": with_command("/nowhere/llama-server"),
            "not executable": with_command(str(plain)),
            "ends at once": with_command("sh -c 'echo I give up >&2; exit 7'"),
            "ends well at once": with_command("true"),
            "after them": sound,
        }
        recorded = sit(folder, smollm2, list(makers.values()))
    return dict(zip(makers, recorded, strict=True))


@pytest.mark.parametrize(
    ("case", "outcome", "slug", "known_by", "words"),
    [
        ("quantised values without flash attention", "invalid_settings", "invalid-settings", "message", "flash_attn"),
        ("too many slots", "invalid_settings", "invalid-settings", "message", "n_seq_max must be <= 256"),
        ("no such setting", "invalid_settings", "invalid-settings", "message", "no setting 'n_cxt'"),
        ("assertion", "engine_died", "engine-start-failed", "message", "GGML_ASSERT"),
        ("port", "invalid_settings", "invalid-settings", "message", "another program uses it"),
        ("missing file", "model_error", "engine-model-error", "message", "missing.gguf"),
        ("no model", "model_error", "engine-model-error", "message", "cannot load the model"),
        ("cut file", "model_error", "engine-model-error", "message", "cannot load the model"),
        ("no program", "invalid_settings", "engine-not-found", None, "no program '/nowhere/llama-server'"),
        ("not executable", "invalid_settings", "engine-not-found", None, "may not be executed"),
        ("ends at once", "engine_died", "engine-died", "exit", "exit code 7. Its last words: I give up"),
        ("ends well at once", "engine_died", "engine-died", "exit", "exit code 0"),
    ],
)
def test_it_is_recorded_as_what_it_is(
    results: dict[str, TrialResult], case: str, outcome: str, slug: str, known_by: str | None, words: str
) -> None:
    trial = results[case].trial
    assert (trial.outcome, trial.error_slug, trial.evidence.get("known_by")) == (outcome, slug, known_by)
    assert words in str(trial.error_message)
    assert trial.error_hint
    assert trial.traceback
    if known_by == "message" and case != "no such setting":  # which kvscope's own worker refuses, without a log
        assert trial.evidence["log_line"]
        assert str(trial.evidence["log_line"])[:40] in str(trial.engine_log_tail)


def test_facts_of_the_end_are_kept(results: dict[str, TrialResult]) -> None:
    assert results["ends at once"].trial.evidence["exit_code"] == 7
    assert results["assertion"].trial.evidence["signal"] == "SIGABRT"


def test_the_trial_after_them_runs(results: dict[str, TrialResult]) -> None:
    assert results["after them"].trial.outcome == "ok"


def test_a_worker_that_says_something_else(smollm2: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that prints when it is imported, say."""
    chatty = tmp_path / "chatty.py"
    chatty.write_text("print('Welcome to my module!', flush=True)\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(llama_cpp, "_WORKER", chatty)
    (result,) = sit(tmp_path, smollm2, [sound])
    assert (result.trial.outcome, result.trial.error_slug) == ("bad_reply", EngineReplyError.slug)
    assert result.trial.evidence["body"] == "Welcome to my module!"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "kvscope-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_for_the_log(
    smollm2: ModelSpec, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small_disk / "filled").write_bytes(b"x" * 1_900_000)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    (result,) = sit(tmp_path, smollm2, [sound])
    assert (result.trial.outcome, result.trial.error_slug) == ("engine_died", EngineStartFailed.slug)
    assert "no room for its log" in str(result.trial.error_message)
    assert "TMPDIR" in str(result.trial.error_hint)


def test_a_disk_that_becomes_full_cuts_the_log_and_says_so(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    code = (
        "import os\n"
        "try:\n"
        "    while True: os.write(2, b'a line of the log\\n' * 1000)\n"
        "except OSError: pass\n"
        "os._exit(3)"
    )
    process = EngineProcess((sys.executable, "-c", code), name="program", talks=False)
    process.start()
    assert process.exits_within(20)
    assert "exit code 3" in process.death().message
    assert "The log is cut" in process.log_tail()
    process.stop()
    assert "The log is cut" in process.log_tail()
