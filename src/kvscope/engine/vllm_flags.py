"""vLLM's settings as flags of ``vllm serve`` (vLLM 0.32.0's --help; the same names since 0.9), and as its environment.

Names are vLLM's own, flags with underscores, as ``kvscope predict`` takes them.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence

from kvscope.errors import InvalidSettings
from kvscope.scenario import SettingValue

CPU_POOL = "VLLM_CPU_KVCACHE_SPACE"

_WHOLE_NUMBERS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes",
    "num_gpu_blocks_override", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "seed",
)  # fmt: skip
_NUMBERS = ("gpu_memory_utilization", "kv_offloading_size")
_WORDS = (
    "dtype", "kv_cache_dtype", "load_format", "served_model_name", "revision", "prefix_caching_hash_algo",
    "mamba_cache_mode", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "tokenizer", "chat_template",
)  # fmt: skip
_SWITCHES = (
    "enable_prefix_caching", "enforce_eager", "enable_chunked_prefill", "enable_expert_parallel", "async_scheduling",
    "disable_hybrid_kv_cache_manager", "trust_remote_code", "skip_tokenizer_init", "enable_sleep_mode",
)  # fmt: skip
_SHORT = {"-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size"}
# Says which rules a prediction goes by; vLLM itself takes the device that it was built for.
DEVICE = "device"


def known_settings() -> tuple[str, ...]:
    """Names of settings that can be set here."""
    return tuple(sorted((*_WHOLE_NUMBERS, *_NUMBERS, *_WORDS, *_SWITCHES, CPU_POOL, DEVICE)))


def flags(settings: Mapping[str, SettingValue]) -> Iterator[str]:
    """Command-line flags for the settings that are flags. Raises InvalidSettings for an unknown name, and for a value
    of the wrong kind."""
    for name, value in settings.items():
        _check(name, value)
        flag = "--" + name.replace("_", "-")
        if name in _SWITCHES:
            yield flag if value else "--no-" + name.replace("_", "-")
        elif name not in (CPU_POOL, DEVICE):
            yield from (flag, _text(value))


def settings_of(words: Sequence[str]) -> dict[str, SettingValue]:
    """The settings that a command of one's own makes by its flags, as far as they can be set here. A flag that is given
    twice counts as it was last."""
    found: dict[str, SettingValue] = {}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            continue
        name = _SHORT.get(flag, flag.removeprefix("--").replace("-", "_"))
        is_off = name.removeprefix("no_") in _SWITCHES and name not in _SWITCHES
        if is_off or name in _SWITCHES:
            found[name.removeprefix("no_") if is_off else name] = not is_off
        elif name in (*_WHOLE_NUMBERS, *_NUMBERS, *_WORDS) and (equals or place + 1 < len(words)):
            text = value if equals else words[place + 1]
            meant = text if name in _WORDS else _number(text)
            found |= {} if meant is None else {name: meant}
    return found


def _number(text: str) -> float | None:
    """None for what vLLM reads in its own way (auto, 1.5k)."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def environment(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Settings that vLLM takes from its environment."""
    return {CPU_POOL: _text(settings[CPU_POOL])} if CPU_POOL in settings else {}


def _text(value: SettingValue) -> str:
    """Without a decimal point where there is nothing behind it: 1.0 GiB is "1" to vLLM."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _check(name: str, value: SettingValue) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _SWITCHES:
        is_right, kind = isinstance(value, bool), "true or false"
    elif name in (*_WHOLE_NUMBERS, CPU_POOL):
        is_right, kind = is_number and float(str(value)).is_integer(), "a whole number"
    elif name in _NUMBERS:
        is_right, kind = is_number, "a number"
    elif name in _WORDS:
        is_right, kind = isinstance(value, str) and bool(value), "a word"
    elif name == DEVICE:
        is_right, kind = value in ("cpu", "cuda"), "cpu or cuda"
    else:
        raise _unknown(name)
    if not is_right:
        raise InvalidSettings(f"{name} takes {kind}, not {value!r}.", hint="Correct it and start again.")


def _unknown(name: str) -> InvalidSettings:
    near = difflib.get_close_matches(name, known_settings(), n=1)
    known = f"Known: {', '.join(known_settings())}."
    return InvalidSettings(
        f"kvscope knows no vLLM flag for the setting {name!r}.",
        hint=f"Did you mean {near[0]}?" if near else f"Put the flag itself into the engine's command. {known}",
    )
