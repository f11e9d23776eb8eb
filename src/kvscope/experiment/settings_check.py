"""Settings that were asked for, held against what the running engine says it uses."""

from collections.abc import Mapping

from kvscope.scenario import SettingValue

# Settings whose value an engine takes as it is given, or not at all: a difference is never a rounding.
_TAKEN_AS_GIVEN = (
    "cache_type_k",
    "cache_type_v",
    "flash_attn",
    "kv_unified",
    "swa_full",
    "load_mode",
    "cache_ram_mib",
    "n_ctx_checkpoints",
    "n_threads",
    "n_threads_batch",
    "n_gpu_layers",
)
# Words that leave the choice to the engine.
_ITS_CHOICE = ("auto", -1)


def settings_not_obeyed(asked: Mapping[str, SettingValue], effective: Mapping[str, object]) -> list[str]:
    """A sentence for each setting that the engine says it uses with another value than asked. One that it does not
    state is not among them; neither is one whose value was left to it (auto, and -1 where that is no limit), nor are
    more layers on a GPU than the model has, where all are there."""
    return [
        f"{name}: {asked[name]} was asked for, the engine says {effective[name]}"
        for name in _TAKEN_AS_GIVEN
        if name in asked
        and name in effective
        and asked[name] not in _ITS_CHOICE
        and asked[name] != effective[name]
        and not (name == "n_gpu_layers" and _all_are_there(asked[name], effective))
    ]


def _all_are_there(asked: SettingValue, effective: Mapping[str, object]) -> bool:
    most = effective.get("most_gpu_layers")
    return isinstance(asked, int) and isinstance(most, int) and asked >= most == effective.get("n_gpu_layers")


def memory_settings_unstated(asked: Mapping[str, SettingValue], effective: Mapping[str, object]) -> list[str]:
    """Names of asked settings that decide where memory goes and that the engine does not state: whether they are in
    force is not known."""
    return [name for name in ("n_gpu_layers",) if asked.get(name) not in (None, 0, -1) and name not in effective]
