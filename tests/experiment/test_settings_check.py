"""What was asked of an engine against what it says it does."""

from kvscope.experiment.settings_check import memory_settings_unstated, settings_not_obeyed


def test_equal_rounded_and_unstated_settings_are_no_difference() -> None:
    asked = {"n_ctx": 500, "cache_type_k": "q8_0", "flash_attn": "auto", "cache_ram_mib": -1, "swa_full": True}
    effective = {"n_ctx": 512, "cache_type_k": "q8_0", "flash_attn": "on", "cache_ram_mib": 8192}
    assert settings_not_obeyed(asked, effective) == []


def test_each_that_differs_is_named_with_both_values() -> None:
    asked = {"cache_type_v": "q4_0", "kv_unified": True, "n_threads": 4}
    effective = {"cache_type_v": "f16", "kv_unified": False, "n_threads": 4}
    assert settings_not_obeyed(asked, effective) == [
        "cache_type_v: q4_0 was asked for, the engine says f16",
        "kv_unified: True was asked for, the engine says False",
    ]


def test_layers_on_a_gpu_that_the_engine_does_not_state_are_not_taken_for_granted() -> None:
    assert memory_settings_unstated({"n_gpu_layers": 5}, {}) == ["n_gpu_layers"]
    assert memory_settings_unstated({"n_gpu_layers": 5}, {"n_gpu_layers": 5}) == []
    assert memory_settings_unstated({"n_gpu_layers": 0}, {}) == []


def test_more_layers_on_a_gpu_than_there_are_is_all_of_them() -> None:
    assert settings_not_obeyed({"n_gpu_layers": 99}, {"n_gpu_layers": 31, "most_gpu_layers": 31}) == []
    assert settings_not_obeyed({"n_gpu_layers": 20}, {"n_gpu_layers": 10, "most_gpu_layers": 31}) != []
