"""Settings → llama-server's flags; how its command line and version are read."""

import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.engine.llama_flags import flags, known_settings
from kvscope.engine.llama_log import read_checkpoints, read_host_cache
from kvscope.engine.llama_server import LlamaServerEngine, command_version, split_command
from kvscope.engine.process import EngineProcess
from kvscope.engine.registry import EngineChoice
from kvscope.errors import EngineNotFound, EngineStartFailed, InvalidSettings
from kvscope.model.spec import ModelSpec
from kvscope.probe.proc import process_exists
from kvscope.scenario import SettingValue

STANDIN = Path(__file__).with_name("llama_server_standin.py")
MODEL = ModelSpec(
    name="m",
    architecture="llama",
    source="m.gguf",
    file_path="m.gguf",
    num_parameters=None,
    vocab_size=1,
    hidden_size=1,
    trained_context_tokens=None,
    layers=(),
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Spelling: llama.cpp's tools/server/README.md.
        ({"n_ctx": 4096, "n_parallel": 2}, "--ctx-size 4096 --parallel 2"),
        ({"n_batch": 256, "n_ubatch": 64, "n_threads": 3}, "--batch-size 256 --ubatch-size 64 --threads 3"),
        ({"cache_type_k": "q8_0", "cache_type_v": "q4_0"}, "--cache-type-k q8_0 --cache-type-v q4_0"),
        ({"cache_ram_mib": 0, "n_ctx_checkpoints": 4}, "--cache-ram 0 --ctx-checkpoints 4"),
        ({"flash_attn": "off", "load_mode": "none"}, "--flash-attn off --load-mode none"),
        ({"kv_unified": True}, "--kv-unified"),
        ({"kv_unified": False}, "--no-kv-unified"),
        ({"swa_full": True}, "--swa-full"),
        ({"swa_full": False}, ""),
        ({"no_extra_bufts": True}, "--no-repack"),
        ({"fit_params": False, "warmup": False, "verbosity": 4}, "--fit off --no-warmup --verbosity 4"),
        ({"endpoint_metrics": True, "endpoint_slots": False}, "--metrics --no-slots"),
    ],
)
def test_flags(settings: dict[str, SettingValue], expected: str) -> None:
    assert list(flags(settings)) == expected.split()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"n_contex": 1}, "no llama-server flag"),
        ({"kv_unified": "yes"}, "true or false"),
        ({"fit_params": None}, "true or false"),
        ({"load_mode": None}, "takes a value"),
        ({"n_ctx": True}, "takes a value"),
    ],
)
def test_settings_without_a_flag_are_refused(settings: dict[str, SettingValue], part: str) -> None:
    with pytest.raises(InvalidSettings, match=part):
        list(flags(settings))


def test_every_default_setting_has_a_flag() -> None:
    engine = LlamaServerEngine(command="llama-server", model=MODEL, settings={})
    assert set(engine.settings) <= set(known_settings())


def test_a_command_is_read_as_a_shell_would() -> None:
    assert split_command("'/opt/my tools/llama-server' -t 4") == ("/opt/my tools/llama-server", "-t", "4")
    for wrong in ("", "llama-server 'unclosed"):
        with pytest.raises(InvalidSettings):
            split_command(wrong)


@pytest.mark.engine
def test_the_version_as_the_program_states_it() -> None:
    version, build = command_version(f"{sys.executable} {STANDIN}")
    assert version == "0 (unknown)"
    assert build.startswith("version: 0 (unknown) built with GNU")
    assert EngineChoice(name="llama.cpp", command=f"{sys.executable} {STANDIN}").version() == (version, build)


def test_a_program_that_is_not_llama_server() -> None:
    with pytest.raises(EngineNotFound, match="does not state a version"):
        command_version("true")
    with pytest.raises(EngineNotFound):
        command_version("no-such-program-anywhere")
    with pytest.raises(EngineNotFound):
        EngineChoice(name="llama.cpp", command="no-such-program-anywhere").check()


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def model_there(folder: Path) -> ModelSpec:
    file = folder / "model.gguf"
    file.write_bytes(b"GGUF")
    return replace(MODEL, source=str(file), file_path=str(file))


def test_what_a_program_starts_when_asked_for_its_version_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = script(tmp_path / "server", f"setsid sleep 300 & echo $! > {pid}; echo 'version: 7 (abc)'")
    assert command_version(program)[0] == "7 (abc)"  # at once, though the other one holds its output open
    assert not process_exists(int(pid.read_text()))


def test_a_program_that_talks_without_end_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound, match=r"did not answer --version within 20 s and 1,048,576 bytes"):
        command_version(script(tmp_path / "server", "exec yes"))


def test_a_log_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that logs 20 MB/s before it listens once took 1.1 GB of kvscope's memory, and more with each look."""
    monkeypatch.setattr("kvscope.engine.llama_server._MOST_LOAD_LOG_BYTES", 60_000_000)
    engine = LlamaServerEngine(
        command=script(tmp_path / "server", f"exec yes {'x' * 100}"),
        model=model_there(tmp_path),
        settings={},
    )
    tracemalloc.start()
    try:
        engine.launch()
        with pytest.raises(EngineStartFailed, match="has logged more than 60,000,000 bytes and is still not ready"):
            engine.load()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        assert engine.pids() == ()
    finally:
        tracemalloc.stop()
        engine.stop()


def test_what_is_kept_is_read_on_from_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (Path(__file__).parent / "data" / "gemma3_two_loads.log").read_text()
    log = tmp_path / "log"
    log.write_text(said)
    read_from: list[int] = []
    log_lines = EngineProcess.log_lines

    def noting(process: EngineProcess, since: int) -> tuple[str, int]:
        read_from.append(since)
        return log_lines(process, since)

    monkeypatch.setattr(EngineProcess, "log_lines", noting)
    engine = LlamaServerEngine(
        command=script(tmp_path / "server", f"exec tail -n +1 -f {log}"), model=model_there(tmp_path), settings={}
    )
    engine.launch()
    try:
        for _ in range(100):  # until tail has begun
            cache, held = engine.host_cache(), engine.checkpoints()
            if len(held) == 2 and cache is not None and cache.name == "prompt cache, 2 prompts":
                break
        assert (cache, held) == (read_host_cache(said), read_checkpoints(said))
        more = "srv  update:  - cache state: 0 prompts, 0.000 MiB (limits: 8192.000 MiB, 512 tokens, 1 est)\n"
        read_from.clear()
        with log.open("a") as file:
            file.write(more)
        for _ in range(100):
            cache = engine.host_cache()
            if cache is not None and cache.name == "prompt cache, 0 prompts":
                break
        assert cache == read_host_cache(more)
        assert engine.checkpoints() == held
        assert set(read_from) == {len(said.encode())}
    finally:
        engine.stop()
