"""What can be set for one model on an Ollama server, and what is the server's own, given where it is started."""

import contextlib
import difflib
import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from kvscope.errors import InvalidSettings, UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

DEFAULT_PORT = 11434

# Options of a request that decide how the model is loaded; it is loaded anew where one of them differs (api/types.go,
# ``Runner``; server/sched.go, ``needsReload``).
_WHOLE_NUMBERS = ("num_ctx", "num_batch", "num_gpu", "num_thread", "main_gpu")
_SWITCHES = ("use_mmap",)
LOAD_OPTIONS = (*_WHOLE_NUMBERS, *_SWITCHES)
# kvscope's own name, which designs vary (context_limit).
_OWN_NAMES = {"n_ctx": "num_ctx"}
# The same in other engines' words, to say what it is called here.
_ELSEWHERE = {
    "ctx_size": "num_ctx",
    "context_length": "num_ctx",
    "n_batch": "num_batch",
    "n_gpu_layers": "num_gpu",
    "n_threads": "num_thread",
    "mmap": "use_mmap",
}
# What docs/faq.mdx gives to the server alone, by its environment.
_OF_THE_SERVER = {
    "kv_cache_type": "OLLAMA_KV_CACHE_TYPE",
    "cache_type_k": "OLLAMA_KV_CACHE_TYPE",
    "cache_type_v": "OLLAMA_KV_CACHE_TYPE",
    "flash_attention": "OLLAMA_FLASH_ATTENTION",
    "flash_attn": "OLLAMA_FLASH_ATTENTION",
    "num_parallel": "OLLAMA_NUM_PARALLEL",
    "n_parallel": "OLLAMA_NUM_PARALLEL",
    "max_loaded_models": "OLLAMA_MAX_LOADED_MODELS",
    "max_queue": "OLLAMA_MAX_QUEUE",
}


def load_options(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """The settings as options of a request; n_ctx is num_ctx. Raises InvalidSettings for a name or a value that Ollama
    does not take from one, and for one that is given twice."""
    found: dict[str, SettingValue] = {}
    for given, value in settings.items():
        name = _OWN_NAMES.get(given, given)
        if name in found:
            raise InvalidSettings(f"{name} is given twice, in two spellings.", hint="Give it once.")
        found[name] = _checked(name, value)
    return found


def _checked(name: str, value: SettingValue) -> SettingValue:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise InvalidSettings(f"{name} takes true or false, not {value!r}.", hint="Correct it and start again.")
        return value
    if name in _WHOLE_NUMBERS:
        return _whole(name, value)
    variable = _OF_THE_SERVER.get(name.lower().removeprefix("ollama_"))
    if variable is not None:
        raise InvalidSettings(
            f"{name} is a setting of the Ollama server ({variable}), which kvscope neither starts nor changes.",
            hint=f"Start Ollama yourself with {variable} set, then measure without this setting.",
        )
    near = _ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, LOAD_OPTIONS, n=1)), None)
    asked = f"Did you mean {near}? " if near else ""
    raise InvalidSettings(
        f"Ollama takes no option {name!r} for loading a model.", hint=f"{asked}It takes: {', '.join(LOAD_OPTIONS)}."
    )


def _whole(name: str, value: SettingValue) -> int:
    least = -1 if name == "num_gpu" else 0 if name in ("num_thread", "main_gpu") else 1
    try:
        number = parse_tokens(value) if isinstance(value, str) and name == "num_ctx" else value
    except UsageError as error:
        raise InvalidSettings(f"{name} takes a number, not {value!r}.", hint=error.hint) from error
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InvalidSettings(
            f"{name} takes a whole number of {least} or more, not {value!r}.", hint="Correct it and start again."
        )
    return number


def server_url(url: str | None) -> str:
    """Where the server is: ``url``, else what OLLAMA_HOST says, else the usual port of this machine. OLLAMA_HOST is
    read as Ollama does (envconfig/config.go): a host, host:port or a whole address; 0.0.0.0, where a server listens to
    all, is reached at 127.0.0.1. Raises UsageError for what is no address."""
    text = (url or os.environ.get("OLLAMA_HOST") or "").strip()
    if "@" in text or "?" in text or "#" in text:
        raise UsageError(
            "The address of the Ollama server holds more than a host, a port and a path (it is not shown here).",
            hint="Addresses are recorded: write it like http://127.0.0.1:11434.",
        )
    scheme, has_scheme, rest = text.rpartition("://")
    port = DEFAULT_PORT if not has_scheme else {"http": 80, "https": 443}.get(scheme.lower())
    if port is None:
        raise UsageError(f"{text!r} is no address of an Ollama server.", hint="Write it like http://127.0.0.1:11434.")
    try:
        parts = urlsplit(f"//{_bracketed(rest)}")
        host, stated = parts.hostname or "127.0.0.1", parts.port
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no address of an Ollama server ({error}).", hint="Write it like http://127.0.0.1:11434."
        ) from error
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme.lower() or 'http'}://{shown}:{stated or port}{parts.path.rstrip('/')}"


def is_local(url: str) -> bool:
    """Whether an address is this machine's loopback."""
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _bracketed(rest: str) -> str:
    """An IPv6 address that stands alone, with the brackets that an address needs."""
    return f"[{rest}]" if rest.count(":") > 1 and not rest.startswith("[") else rest
