"""What llama.cpp's own log states: the buffers of a load, its effective settings, its host caches, why it failed.

The log is made for people and changes between builds. A line that is not recognised is no error; what it would have
said is then missing from the report, never guessed. Checked against llama.cpp as packaged in xllamacpp 2026.10.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from kvscope.engine.base import EngineReport, ReportedBuffer
from kvscope.engine.failure import OUT_OF_MEMORY_HINT, ignored_estimate
from kvscope.engine.failure_words import classify_message
from kvscope.errors import EngineError, EngineModelError, EngineStartFailed, InvalidSettings, OutOfMemory
from kvscope.scenario import SettingValue

# "0.00.268.684 I llama_kv_cache: ...": the time since start and the level, both of which can be turned off.
_PREFIX = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:(?P<level>[A-Z]) )?(?P<text>.*)$")
_MIB = r"([\d.]+) MiB"
_LOAD_BEGINS = "load_tensors: loading model tensors"

_WEIGHTS = re.compile(rf"load_tensors: +(\S+) model buffer size = +{_MIB}")
_OUTPUT = re.compile(rf"llama_context: +(\S+) +output buffer size = +{_MIB}")
_COMPUTE = re.compile(rf"sched_reserve: +(\S+) compute buffer size = +{_MIB}")
_KV = re.compile(
    rf"llama_kv_cache: size = +{_MIB} \( *(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs\), "
    rf"K \(\S+\): +{_MIB}, V \(\S+\): +{_MIB}"
)
_KV_PLACE = re.compile(r"llama_kv_cache: +(\S+) KV buffer size = ")
_KV_KIND = re.compile(r"llama_kv_cache_iswa: creating +(non-SWA|SWA) KV cache")
_RECURRENT = re.compile(rf"llama_memory_recurrent: size = +{_MIB} \( *(\d+) cells, +(\d+) layers")
_CONTEXT = re.compile(r"llama_context: (\w+) +?= (\S+)$")
_SLOT = re.compile(r"slot +load_model: .*new slot, n_ctx = (\d+)")
_BUILD = re.compile(r"build_info: (\S+)")
_LOAD_MODE = re.compile(r"\(load_mode = (\S+)\)")
_THREADS = re.compile(r"system_info: n_threads = (\d+)")
_BATCH_THREADS = re.compile(r"\(n_threads_batch = (\d+)\)")
_CACHE_TYPES = re.compile(r"llama_kv_cache: size = .*, K \((\S+)\): .*, V \((\S+)\): ")
_FULL_WINDOW = "using full-size SWA cache"
_LAYERS_ON_GPU = re.compile(r"offloaded (\d+)/\d+ layers to GPU")
_ALL_LAYERS = re.compile(r"offloaded \d+/(\d+) layers to GPU")
_CACHE_LIMIT = re.compile(r"prompt cache is enabled, size limit: (\d+) MiB")
_CHECKPOINTS = re.compile(r"context checkpoints enabled, max = (\d+)")
# Sentences that stand for a value which they do not print.
_SENTENCES = (
    ("prompt cache is disabled", "cache_ram_mib", 0),
    ("prompt cache is enabled, size limit: no limit", "cache_ram_mib", -1),
    ("context checkpoints disabled", "n_ctx_checkpoints", 0),
    ("idle slots will be saved to prompt cache", "cache_idle_slots", True),
)
_CACHE_STATE = re.compile(rf"cache state: (\d+) prompts, {_MIB} \(limits: ")
_CACHE_COPY = re.compile(rf"- prompt 0x[0-9a-f]+: +\d+ tokens, checkpoints: +\d+, +{_MIB}")
_CHECKPOINT = re.compile(rf"slot create_check: id +(\d+) .*created context checkpoint (\d+) of .* size = {_MIB}\)")
_STARTS = re.compile(r"build_info: |^build: \d+ |init: initializing \.\.\.")
_LOADS = re.compile(r"load_model: loading model '")
_SLOTS = re.compile(r"initializing, n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")
_VERBOSITY = re.compile(r"common_params_print_info: verbosity = (-?\d+)")
# What a server keeps of earlier prompts is stated from this verbosity on, and so are its context and its buffers.
VERBOSE = 4
_BOUND_PORT = re.compile(r"couldn't bind .*\bport: (\d{1,5})\b")
_LISTENING = re.compile(r"listening on (https?://\S+)")

_WHAT = re.compile(r"\s*what\(\): +(\S.*)")

_EFFECTIVE = ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "flash_attn")
# Sentences worth a note in the report, by a part of them.
_NOTES = ("the full capacity of the model will not be utilized", "possible training context overflow", "capping")


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots in force: how many, the tokens that each may hold, and whether they share one cache."""

    count: int
    tokens_each: int
    is_unified: bool


def read_slots(log: str) -> Slots | None:
    """The slots as the server states them at every verbosity; None where it states none."""
    found = next((found for line in reversed(list(_lines(log))) if (found := _SLOTS.search(line))), None)
    return None if found is None else Slots(int(found[1]), int(found[2]), found[3] == "true")


def begins_start(line: str) -> bool:
    """Whether a server that was just started writes this line: what is before it is of an earlier one."""
    return _STARTS.search(line) is not None


def begins_load(line: str) -> bool:
    """Whether a server that loads its model, at the start or after sleep, writes this line."""
    return _LOADS.search(line) is not None


def begins_request(line: str) -> bool:
    """Whether a slot begins to work with this line: the load is over."""
    return " launch_slot_: " in line


def states_what_is_kept(line: str) -> bool:
    """Whether the line is one that ``read_host_cache`` or ``read_checkpoints`` reads."""
    return any(part in line for part in ("cache state: ", "- prompt 0x", "created context checkpoint "))


def is_verbose(log: str) -> bool:
    """Whether the log states the context, the buffers and what is kept: only at verbosity 4 or more."""
    lines = list(_lines(log))
    stated = _last(_VERBOSITY, lines)
    return int(stated) >= VERBOSE if stated is not None else any(_CONTEXT.match(line) for line in lines)


def read_report(log: str, *, version: str) -> EngineReport:
    """The report of the last load in ``log``: whatever an earlier load or a dry run printed is left out."""
    lines = list(_lines(log))
    begins = [number for number, line in enumerate(lines) if line.startswith(_LOAD_BEGINS)]
    load = lines[begins[-1] :] if begins else lines
    build = _last(_BUILD, lines)
    return EngineReport(
        version=version,
        build=build or "unknown",
        buffers=tuple(_buffers(load)),
        effective=_effective(lines, load),
        slots=tuple(int(found[1]) for line in load if (found := _SLOT.search(line))),
        notes=tuple(line for line in load if any(part in line for part in _NOTES)),
    )


def _lines(log: str) -> Iterator[str]:
    for line in log.splitlines():
        found = _PREFIX.match(line)
        yield found["text"] if found else line


def _last(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    for line in reversed(lines):
        if found := pattern.search(line):
            return found[1]
    return None


def _buffers(load: list[str]) -> Iterator[ReportedBuffer]:
    kind = "full"
    for line in load:
        if found := _KV_KIND.search(line):
            kind = found[1]
        elif found := _KV.search(line):
            yield ReportedBuffer(
                component="kv_cache",
                name=kind,
                printed_mib=found[1],
                cells=int(found[2]),
                layers=int(found[3]),
                streams=int(found[4]),
                k_mib=found[5],
                v_mib=found[6],
                line=line,
            )
        elif found := _RECURRENT.search(line):
            yield ReportedBuffer(
                component="recurrent_state",
                name="recurrent",
                printed_mib=found[1],
                cells=int(found[2]),
                layers=int(found[3]),
                line=line,
            )
        else:
            for component, pattern in (("weights", _WEIGHTS), ("output_buffer", _OUTPUT), ("compute_buffer", _COMPUTE)):
                if found := pattern.search(line):
                    yield ReportedBuffer(component=component, name=found[1], printed_mib=found[2], line=line)


def _effective(lines: list[str], load: list[str]) -> dict[str, SettingValue]:
    stated: dict[str, SettingValue] = {}
    for line in load:
        if (found := _CONTEXT.match(line)) and found[1] in _EFFECTIVE:
            stated[found[1]] = _value(found[2])
        elif "Flash Attention" in line and "resolve_fused_ops" in line:
            stated["flash_attn"] = "off" if "disabled" in line or "not " in line else "on"
        elif found := _CACHE_TYPES.search(line):
            stated["cache_type_k"], stated["cache_type_v"] = found[1], found[2]
        elif _KV_KIND.search(line):
            stated.setdefault("swa_full", False)
        elif _FULL_WINDOW in line:
            stated["swa_full"] = True
    places = [found[1] for line in load if (found := _KV_PLACE.search(line))]
    if places:
        stated["kv_cache_devices"] = ", ".join(dict.fromkeys(places))
    if stated.get("flash_attn") in ("enabled", "disabled"):
        stated["flash_attn"] = "on" if stated["flash_attn"] == "enabled" else "off"
    stated |= {name: value for line in load for part, name, value in _SENTENCES if part in line}
    for name, pattern, where in (
        ("load_mode", _LOAD_MODE, load),
        ("n_threads", _THREADS, lines),
        ("n_threads_batch", _BATCH_THREADS, lines),
        ("n_gpu_layers", _LAYERS_ON_GPU, load),
        ("most_gpu_layers", _ALL_LAYERS, load),
        ("cache_ram_mib", _CACHE_LIMIT, load),
        ("n_ctx_checkpoints", _CHECKPOINTS, load),
    ):
        text = _last(pattern, where)
        if text is not None:
            stated[name] = _value(text)
    return stated


def _value(text: str) -> SettingValue:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


def read_host_cache(log: str) -> ReportedBuffer | None:
    """Copies of earlier conversations that the server keeps in ordinary memory, as last stated; None if never.
    ``line`` holds the stated total and, below it, one line for each copy."""
    lines = list(_lines(log))
    for number in reversed(range(len(lines))):
        if found := _CACHE_STATE.search(lines[number]):
            copies = takewhile(_CACHE_COPY.search, lines[number + 1 :])
            return ReportedBuffer(
                component="host_cache",
                name=f"prompt cache, {found[1]} prompts",
                printed_mib=found[2],
                line="\n".join([lines[number], *copies]),
            )
    return None


def read_checkpoints(log: str) -> tuple[ReportedBuffer, ...]:
    """The context checkpoints that each slot holds now (sliding-window and recurrent models), oldest first."""
    held: dict[str, list[ReportedBuffer]] = {}
    for line in _lines(log):
        if found := _CHECKPOINT.search(line):
            slot, number, mib = found.groups()
            # The line states how many there are with the new one: what was more than that has been given up.
            kept = held.get(slot, [])[: int(number) - 1]
            name = f"context checkpoint, slot {slot}"
            held[slot] = [*kept, ReportedBuffer(component="checkpoint", name=name, printed_mib=mib, line=line)]
    return tuple(checkpoint for slot in sorted(held) for checkpoint in held[slot])


def read_address(log: str) -> str | None:
    """The URL at which the server says it listens."""
    return _last(_LISTENING, list(_lines(log)))


def load_is_logged(log: str) -> bool:
    """Whether the log is complete up to the end of a load: it is written by a thread of its own, a little later."""
    return read_address(log) is not None


def states_error(log: str) -> bool:
    """Whether the log has a line that llama.cpp itself marks as an error."""
    return any(level == "E" for level, _ in _levelled(log))


def why_not_loaded(log: str, *, port: int, engine: str) -> EngineError:
    """What the log says about a load that failed, as an error of kvscope's tree."""
    reasons = [text for level, text in _levelled(log) if level == "E"]
    said = "\n".join(reasons)
    kind, line = classify_message(said)
    evidence = {"known_by": "message", "log_line": line}
    if "couldn't bind HTTP server socket" in said or "couldn't bind to server socket" in said:
        stated = _BOUND_PORT.search(said)
        port = int(stated[1]) if stated else port
        return InvalidSettings(
            f"{engine} cannot listen on port {port}: another program uses it.",
            hint="Choose another port, or leave it out and a free one is taken. "
            f"To see who has it: ss -ltnp 'sport = :{port}'.",
            evidence=evidence,
        )
    if kind == "out_of_memory":
        return OutOfMemory(
            f"{engine} could not get the memory it needs: {line}.{ignored_estimate(log)}",
            hint=OUT_OF_MEMORY_HINT,
            evidence=evidence,
        )
    refused = [text for text in reasons if text.startswith("llama_init_from_model:")]
    if refused:
        return InvalidSettings(
            f"{engine} refuses these settings: {refused[0].partition(': ')[2]}.",
            hint="Change the setting it names and start again.",
            evidence={"known_by": "message", "log_line": refused[0]},
        )
    first = reasons[0] if reasons else None
    if "load model" in said or "loading model" in said or "gguf_init" in said:
        return EngineModelError(
            f"{engine} cannot load the model: {first}.",
            hint="Check the file with `kvscope show`; this engine may also be too old for the model.",
            evidence={"known_by": "message", "log_line": first},
        )
    return EngineStartFailed(
        f"{engine} did not start: {first or 'the log gives no reason'}.",
        hint="The end of its log is kept with the trial.",
        evidence={"known_by": "message", "log_line": first} if first else {},
    )


def why_aborted(log: str) -> str | None:
    """The line in which the program says why it gave itself up: a failed assertion, or file:line: message. With what a
    C++ exception says of itself on the next one."""
    lines = list(_lines(log))
    for number, line in reversed(list(enumerate(lines))):
        if "terminate called" in line:
            what = next((found[1] for each in lines[number + 1 :] if (found := _WHAT.match(each))), None)
            return line if what is None else f"{line}: {what}"
        if "GGML_ASSERT" in line or re.match(r"\S+\.(?:cpp|c|h|hpp|cc):\d+: ", line):
            return re.sub(r"^\S*/", "", line)  # the path of the file on the machine that built it says nothing
    return None


def _levelled(log: str) -> Iterator[tuple[str, str]]:
    for line in log.splitlines():
        found = _PREFIX.match(line)
        if found and found["level"]:
            yield found["level"], found["text"]
