"""Settings of the transformers engine: names and values checked before anything is started.

The cache's are transformers' own (GenerationConfig's cache_implementation, cache_config's keys, max_cache_len); the
others are what ``from_pretrained`` takes, and what kvscope's decode loop does.
"""

import contextlib
import difflib
from collections.abc import Mapping
from types import MappingProxyType

from kvscope.errors import InvalidSettings, UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

CACHES = ("dynamic", "dynamic_full", "static", "quantized", "offloaded", "offloaded_static")
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
_STATIC = ("static", "offloaded_static")
_QUANTISED_ONLY = ("backend", "nbits", "q_group_size", "residual_length")
# More threads than this torch does not survive: it dies where the system gives it none.
MOST_THREADS = 1024
_WHOLE = ("max_cache_len", "nbits", "q_group_size", "residual_length", "prefill_chunk_tokens", "num_threads")
_WORDS = ("cache_implementation", "backend", "attn_implementation", "device", "dtype")
_FLAGS = ("random_weights",)
SETTINGS = (*_WORDS, *_WHOLE, *_FLAGS)
_OTHER_NAMES = MappingProxyType({"cache": "cache_implementation"})
_OTHER_WORDS = MappingProxyType({"quantised": "quantized"})


def checked_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by one name each (``cache`` is cache_implementation, ``cache_config.nbits`` is nbits), each of the kind
    it should be. Raises InvalidSettings."""
    found: dict[str, SettingValue] = {}
    for given, value in settings.items():
        name = _OTHER_NAMES.get(given, given.removeprefix("cache_config."))
        if name in found:
            raise InvalidSettings(f"{name} is given twice, in two spellings.", hint="Give it once.")
        found[name] = _checked_value(name, value)
    found["cache_implementation"] = _cache(found)
    threads = found.get("num_threads")
    if isinstance(threads, int) and threads > MOST_THREADS:
        raise InvalidSettings(f"num_threads does not take {threads}.", hint=f"Give at most {MOST_THREADS}.")
    if str(found.get("device", "cpu")).partition(":")[0] == "meta":
        raise InvalidSettings("Nothing can be computed on the device meta.", hint="Use cpu or cuda:0.")
    if found.get("dtype", "auto") not in DTYPES:
        raise InvalidSettings(f"dtype does not take {found['dtype']!r}.", hint=f"It takes: {', '.join(DTYPES)}.")
    return found


def _checked_value(name: str, value: SettingValue) -> SettingValue:
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        known = f"There are: {', '.join(sorted(SETTINGS))}."
        raise InvalidSettings(
            f"The transformers engine has no setting {name!r}.", hint=f"Did you mean {near[0]}?" if near else known
        )
    if name in _WHOLE and isinstance(value, str):
        with contextlib.suppress(UsageError):
            value = parse_tokens(value)
    if name in _FLAGS and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if name in _FLAGS:
        fits, wanted = isinstance(value, bool), "true or false"
    elif name in _WHOLE:
        fits, wanted = isinstance(value, int) and not isinstance(value, bool) and value > 0, "a whole number above 0"
    else:
        fits, wanted = isinstance(value, str), "a word"
    if not fits:
        raise InvalidSettings(f"{name} does not take {value!r}.", hint=f"Give {wanted}.")
    return value.lower() if isinstance(value, str) and name != "attn_implementation" else value


def _cache(settings: Mapping[str, SettingValue]) -> str:
    word = str(settings.get("cache_implementation", "dynamic"))
    name = _OTHER_WORDS.get(word, word)
    if name not in CACHES:
        raise InvalidSettings(f"cache_implementation does not take {word!r}.", hint=f"It takes: {', '.join(CACHES)}.")
    if name in _STATIC and "max_cache_len" not in settings:
        raise InvalidSettings("A static cache is as long as max_cache_len says.", hint="Set max_cache_len.")
    unused = [each for each in _QUANTISED_ONLY if each in settings and name != "quantized"]
    unused += ["max_cache_len"] if "max_cache_len" in settings and name not in _STATIC else []
    if unused:
        raise InvalidSettings(f"{unused[0]} has no meaning for a cache that is {name}.", hint="Leave it out.")
    device = str(settings.get("device", "cpu"))
    if name.startswith("offloaded") and not device.startswith("cuda"):
        raise InvalidSettings(
            f"A cache that is {name} waits in host memory for a GPU, and device is {device}.",
            hint="Set device to cuda:0, or use another cache.",
        )
    return name
