"""What vLLM's own log and metrics state of a start: the size of the pool, memory, and why it failed.

The log is made for people and changes between versions. A line that is not recognised is no error; what it would have
said is then missing, never guessed. Checked against the log of vLLM 0.32.0 on a CPU; lines that only a GPU's worker
writes are known from its source (v1/worker/gpu_worker.py, gpu_model_runner.py) and were not seen.
"""

import re
from collections.abc import Mapping

from kvscope.engine.failure_words import classify_message
from kvscope.engine.prometheus import Metrics
from kvscope.errors import EngineError, EngineModelError, EngineStartFailed, InvalidSettings, OutOfMemory
from kvscope.scenario import SettingValue

_FACTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("kv_cache_size_tokens", re.compile(r"\b(?:GPU |CPU )?KV cache size: ([\d,]+) tokens")),
    ("kv_cache_max_concurrency", re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")),
    ("kv_cache_memory_gib", re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")),
    ("kv_cache_memory_gib", re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache")),
    ("model_loading_gib", re.compile(r"Model loading took ([\d.]+) Gi?B")),
    ("dtype", re.compile(r"\bdtype=torch\.(\w+)")),
    ("block_size", re.compile(r"Setting attention block size to (\d+) tokens")),
)
# Labels of vllm:cache_config_info (0.32.0) that say how the pool came out.
_POOL_LABELS = (
    "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "cache_dtype",
    "enable_prefix_caching", "gpu_memory_utilization", "mamba_cache_mode",
)  # fmt: skip
# Which process a line is of, and its level, time and place: (EngineCore pid=21181) INFO 11-30 02:11:43 [core.py:402]
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Exit)): (.+)$")
# Settings that it refuses with an exception like any other.
_REFUSED = re.compile(r"No common block size for \d+")
# Raised by the outer process, which only knows that the inner one failed.
_NOT_THE_CAUSE = ("Engine core initialization failed", "WorkerProc initialization failed")


def read_start(log: str) -> dict[str, SettingValue]:
    """What the log of a start states, by names of our own for what is no setting of vLLM's. GiB as the log prints
    them."""
    found: dict[str, SettingValue] = {}
    for name, pattern in _FACTS:
        if name not in found and (said := pattern.search(log)):
            found[name] = _number(said[1])
    return found


def pool_labels(metrics: Metrics) -> Mapping[str, str]:
    """Everything that the metrics say of the cache's configuration, as text; empty where they say nothing."""
    found = metrics.named("vllm:cache_config_info")
    return found[0].labels if found else {}


def pool_facts(metrics: Metrics) -> dict[str, SettingValue]:
    """How the pool came out. What is "None" there is left out."""
    said = pool_labels(metrics)
    return {name: _number(said[name]) for name in _POOL_LABELS if said.get(name, "None") != "None"}


def _number(text: str) -> SettingValue:
    if text in ("True", "False"):
        return text == "True"
    plain = text.replace(",", "")
    if plain.isdecimal():
        return int(plain)
    try:
        return float(plain)
    except ValueError:
        return text


def why_not_started(log: str, *, evidence: Mapping[str, object] | None = None) -> EngineError:
    """What the log says about a start that failed, as an error of kvscope's tree. The reason is that of the innermost
    process; what the outer ones say of it is passed over."""
    kind, line = classify_message(log)
    reason = _raised(log)
    if kind is None and reason is not None and _REFUSED.search(reason):
        kind, line = "invalid_settings", reason
    said = {**(evidence or {}), "known_by": "message", "log_line": line or reason}
    words = _without_prefix(line) if line is not None else reason
    match kind:
        case "out_of_memory":
            return OutOfMemory(
                f"vLLM could not get the memory it needs: {reason or words}",
                hint="Use a smaller max_model_len, or give the pool more room: VLLM_CPU_KVCACHE_SPACE (GiB) on a CPU, "
                "gpu_memory_utilization or kv_cache_memory_bytes on a GPU.",
                evidence=said,
            )
        case "invalid_settings":
            return InvalidSettings(
                f"vLLM refuses these settings: {words}", hint="Change the one it names and start again.", evidence=said
            )
        case "model_error":
            return EngineModelError(
                f"vLLM cannot load the model: {words}",
                hint="Check the folder with `kvscope show`; this vLLM may also be too old for the model.",
                evidence=said,
            )
    if reason is None:
        return EngineStartFailed("vLLM did not start.", hint="The end of its log is kept with the trial.")
    return EngineStartFailed(
        f"vLLM did not start: {reason}", hint="The end of its log is kept with the trial.", evidence=said
    )


def _raised(log: str) -> str | None:
    """The first exception that a process ended with, without those that only pass one on."""
    for line in log.splitlines():
        found = _RAISED.match(_without_prefix(line))
        if found and not any(words in found[2] for words in _NOT_THE_CAUSE):
            return f"{found[1]}: {found[2]}"[:1000]
    return None


def _without_prefix(line: str) -> str:
    return _PREFIX.sub("", line).strip()
