"""What a command of one's own sets already: by llama-server's own spellings (tools/server/README.md)."""

import shlex

import pytest

from kvscope.engine.llama_flags import check_model, flags, not_predicted, settings_of
from kvscope.engine.registry import EngineChoice
from kvscope.errors import InvalidSettings
from kvscope.scenario import SettingValue


def of(command: str, **environment: str) -> dict[str, SettingValue]:
    return settings_of(shlex.split(command), environment)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "llama-server --threads 1 -ctk q8_0 -ctv q8_0 -fa on -c 2048 -np 2",
            {
                "n_threads": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on", "n_ctx": 2048,
                "n_parallel": 2,
            },
        ),
        ("/opt/llama-server -b 64 -ub=32 -ngl 99", {"n_batch": 64, "n_ubatch": 32, "n_gpu_layers": 99}),
        ("llama-server -np -1 --kv-unified --no-mmap", {"n_parallel": -1, "kv_unified": True, "load_mode": "none"}),
        ("llama-server -c 512 -c 1024 --fit off", {"n_ctx": 1024, "fit_params": False}),
        ("llama-server -nr --swa-full -ngl all", {"no_extra_bufts": True, "swa_full": True, "n_gpu_layers": "all"}),
        # What tells of itself is kvscope's, and what has no setting is no setting.
        ("llama-server -lv 1 --verbosity 0 --metrics --no-slots --api-prefix /x", {}),
        # A wrapper's flags are not llama-server's.
        ("taskset -c 0 nice -n 5 llama-server -c 2048", {"n_ctx": 2048}),
        ("systemd-run --user --scope -p MemoryMax=2G llama-server", {}),
        ("sh -c 'ulimit -v 4000000; exec llama-server -c 128 \"$@\"' sh", {"n_ctx": 128}),
        ("python tests/llama_server_standin.py -c 64", {"n_ctx": 64}),
        ("taskset -c 0 my-own-program", {}),
    ],
)  # fmt: skip
def test_flags_become_settings(command: str, expected: dict[str, SettingValue]) -> None:
    assert of(command) == expected


def test_the_environment_counts_where_no_flag_does() -> None:
    stated = {"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_CACHE_TYPE_K": "q4_0", "LLAMA_ARG_N_PARALLEL": ""}
    assert of("llama-server -c 64", **stated) == {"n_ctx": 64, "cache_type_k": "q4_0"}


def test_every_flag_that_kvscope_writes_is_read_back() -> None:
    settings: dict[str, SettingValue] = {
        "n_ctx": 4096, "n_parallel": 2, "n_batch": 256, "n_ubatch": 64, "n_threads": 3, "n_threads_batch": 2,
        "n_gpu_layers": 0, "cache_type_k": "q8_0", "cache_type_v": "q4_0", "cache_ram_mib": 0, "n_ctx_checkpoints": 4,
        "flash_attn": "off", "load_mode": "none", "kv_unified": False, "swa_full": True, "no_extra_bufts": True,
        "fit_params": True, "warmup": False, "cache_prompt": False, "embedding": True, "no_kv_offload": True,
        "rope_freq_scale": 0.5, "sampling.temp": 0.25,
    }  # fmt: skip
    assert settings_of(["llama-server", *flags(settings)], {}) == settings


def test_what_is_not_predicted_and_another_model_are_told() -> None:
    assert not_predicted(shlex.split("llama-server --lora a.gguf -c 5 -sm row")) == ("--lora", "-sm")
    check_model(shlex.split("llama-server -m ./m.gguf"), "m.gguf")
    for command in ("llama-server -m other.gguf", "llama-server -hf ggml-org/gemma-3-1b-it-GGUF"):
        with pytest.raises(InvalidSettings, match="names a model"):
            check_model(shlex.split(command), "m.gguf")


def test_the_choice_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_CTX_SIZE", raising=False)
    choice = EngineChoice(name="llama.cpp", command="llama-server -c 2048 -np 2")
    assert choice.command_settings() == {"n_ctx": 2048, "n_parallel": 2}
    assert choice.own_settings({"n_parallel": 4}) == {"n_ctx": 2048}
    assert EngineChoice(name="llama.cpp").command_settings() == {}
