"""Settings → llama-server's flags; how its command line and version are read."""

import sys
from pathlib import Path

import pytest

from kvscope.engine.llama_flags import flags, known_settings
from kvscope.engine.llama_server import LlamaServerEngine, command_version, split_command
from kvscope.engine.registry import EngineChoice
from kvscope.errors import EngineNotFound, InvalidSettings
from kvscope.model.spec import ModelSpec
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
