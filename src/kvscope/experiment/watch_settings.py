"""What a running llama.cpp server was started with, and which model file it has: from what states it, never guessed.

The log states the settings in force from verbosity 4 on. Else they follow from the command line and the environment,
where both can be read: what neither sets is llama-server's default. The number of slots, and what each may hold, is in
the server's own answers and in its log at every verbosity; it must fit what was worked out, or nothing is.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.engine.llama_log import Slots, is_verbose, read_report, read_slots
from kvscope.errors import KvscopeError
from kvscope.experiment.watch_target import Target, command_settings
from kvscope.predict.allocation.llama_cpp_settings import ALIASES, canonical_settings
from kvscope.probe.machine_memory import PROC
from kvscope.record.rows import MapRow
from kvscope.scenario import SettingValue

# What llama.cpp's own log or answers say of a load, under the names of its settings.
_FROM_LOG = (
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "kv_unified",
    "flash_attn",
    "swa_full",
    "cache_type_k",
    "cache_type_v",
    "load_mode",
    "cache_ram_mib",
)
# llama-server's environment variables (LLAMA_ARG_...: names in llama.cpp b11549 and before), and their settings.
_ENVIRONMENT = {
    "CTX_SIZE": "n_ctx",
    "N_PARALLEL": "n_parallel",
    "BATCH": "n_batch",
    "UBATCH": "n_ubatch",
    "CACHE_TYPE_K": "cache_type_k",
    "CACHE_TYPE_V": "cache_type_v",
    "FLASH_ATTN": "flash_attn",
    "SWA_FULL": "swa_full",
    "KV_UNIFIED": "kv_unified",
    "KV_UNIFIED_PER_SLOT": "kv_unified_per_slot",
    "CACHE_RAM": "cache_ram_mib",
    "EMBEDDINGS": "embedding",
    "LOAD_MODE": "load_mode",
    "NO_MMAP": "no_mmap",
    "MMAP": "mmap",
    "NO_REPACK": "no_extra_bufts",
}
_ENVIRONMENT_PREFIX = "LLAMA_ARG_"
_GPU_FILES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
_ON_HOST = ("CPU", "AMX")
_MAGIC = b"GGUF"
_GIVE_ALL = "its log states them from -lv 4 on"


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """``settings`` None: not known, for the reason ``why_not``. ``slots``: as the server states them."""

    settings: Mapping[str, SettingValue] | None
    slots: Slots | None = None
    why_not: str | None = None


def settings_in_force(
    target: Target, log: str, props: Any, asked: Mapping[str, SettingValue], proc: Path = PROC
) -> InForce:
    """``log``: what the server wrote since it was started. ``props``: its answer to /props. ``asked``: what a person
    says that it was started with; it counts more than what is read. Raises as ``canonical_settings`` for that."""
    given = canonical_settings(asked)
    report = read_report(log, version="")
    if (why := _why_on_gpu(target, log, proc)) is not None:
        return InForce(settings=None, why_not=why)
    stated, not_understood = _started_with(target)
    slots = read_slots(log) or _slots_of(props, stated)
    if is_verbose(log) and {"n_ctx", "cache_type_k"} <= report.effective.keys():
        stated |= {name: report.effective[name] for name in _FROM_LOG if name in report.effective}
        if slots is not None:
            stated["n_parallel"] = slots.count
        elif report.slots:
            stated["n_parallel"] = len(report.slots)
        return InForce(settings={**stated, **given}, slots=slots)
    if given.keys() >= {"n_ctx", "n_parallel"}:
        return InForce(settings={**stated, **given}, slots=slots)
    why = _why_incomplete(target) or not_understood
    known = stated.keys() | given.keys()
    has_limit = "kv_unified_per_slot" in known  # then what a slot may hold does not say how large the cache is
    if why is None and (slots is None or has_limit) and not {"n_ctx", "n_parallel"} <= known:
        why = f"its context and slots are not stated ({_GIVE_ALL}); give them with --set n_ctx=N --set n_parallel=N."
    if why is not None:
        return InForce(settings=None, why_not=why)
    return InForce(settings={**_with_slots(stated, slots), **given}, slots=slots)


def sleeps_when_idle(target: Target) -> bool:
    """Whether it was started to unload its model after some time without a request."""
    stated = command_settings(target.command).get("sleep_idle_seconds")
    if stated is None:
        stated = (target.environment or {}).get(f"{_ENVIRONMENT_PREFIX}SLEEP_IDLE_SECONDS")
    return stated is not None and re.fullmatch(r"0*[1-9]\d*", str(stated)) is not None


def contradiction(prediction: Mapping[str, Any], slots: Slots | None) -> str | None:
    """Why the prediction cannot be of this server: it states other slots. None where it states none or the same."""
    worked_out = prediction.get("effective") or {}
    expected = worked_out.get("slots"), worked_out.get("slot_limit_tokens")
    if slots is None or (slots.count, slots.tokens_each) == expected:
        return None
    return (
        f"the server states {slots.count} slots of {slots.tokens_each} tokens, and by what it was started with it "
        f"would have {expected[0]} of {expected[1]}; {_GIVE_ALL}."
    )


def _started_with(target: Target) -> tuple[dict[str, SettingValue], str | None]:
    """By the environment, and by the command line, which goes before it; and what of them is not understood."""
    by_environment = {
        _ENVIRONMENT[name.removeprefix(_ENVIRONMENT_PREFIX)]: value
        for name, value in (target.environment or {}).items()
        if name.removeprefix(_ENVIRONMENT_PREFIX) in _ENVIRONMENT
    }
    found: dict[str, SettingValue] = {}
    not_understood: dict[str, str] = {}
    for name, value in [*by_environment.items(), *command_settings(target.command).items()]:
        try:
            found |= _known(name, value)
            not_understood.pop(ALIASES.get(name, name), None)
        except KvscopeError:
            if (own := ALIASES.get(name, name)) in _ENVIRONMENT.values():
                not_understood[own] = f"its setting {name} is {value!r}, which is not known here ({_GIVE_ALL})."
            # else not a setting that decides about memory, or not one of ours
    return found, next(iter(not_understood.values()), None)


def _known(name: str, value: SettingValue) -> dict[str, SettingValue]:
    if name == "repack":
        return {"no_extra_bufts": str(value).lower() in ("0", "false", "off")}
    if name in ("no_kvu", "no_kv_unified"):
        return {"kv_unified": False}
    return canonical_settings({name: value})


def _with_slots(stated: Mapping[str, SettingValue], slots: Slots | None) -> dict[str, SettingValue]:
    if slots is None:
        return dict(stated)
    total = slots.tokens_each * (1 if slots.is_unified else slots.count)
    by_server: dict[str, SettingValue] = {"n_parallel": slots.count, "kv_unified": slots.is_unified}
    return {**stated, **by_server, "n_ctx": stated.get("n_ctx") or total}


def _slots_of(props: Any, stated: Mapping[str, SettingValue]) -> Slots | None:
    """By /props: tokens of one slot, and how many there are. Whether they share one cache is not in it: they do where
    that was asked for, and where their number was left to the server, which then makes several only so."""
    default = props.get("default_generation_settings") if isinstance(props, dict) else None
    each = default.get("n_ctx") if isinstance(default, dict) else None
    count = props.get("total_slots") if isinstance(props, dict) else None
    if type(each) is not int or type(count) is not int or not (0 < each < 2**31 and 0 < count <= 256):
        return None
    is_auto = stated.get("n_parallel", -1) == -1
    return Slots(count, each, stated.get("kv_unified") is True or (is_auto and count > 1))


def _why_incomplete(target: Target) -> str | None:
    """Why what it was started with is not all known; None where it is."""
    if target.pid is None or not target.command:
        return f"what it was started with cannot be read ({_GIVE_ALL})."
    program = " ".join(Path(word).name for word in target.command[:4]).replace("_", "-")
    if "llama-server" not in program:
        return f"its command line is not llama-server's, so what it was started with is not known ({_GIVE_ALL})."
    if target.environment is None:
        return f"its environment, which may hold settings, may not be read ({_GIVE_ALL})."
    if any(name.endswith("_default") for name in command_settings(target.command)):
        return f"it was started with a preset of several settings ({_GIVE_ALL})."
    return None


def _why_on_gpu(target: Target, log: str, proc: Path) -> str | None:
    """Why its buffers may be in a GPU's memory; None where they are in ordinary memory."""
    report = read_report(log, version="")
    layers = report.effective.get("n_gpu_layers")
    elsewhere = {b.name for b in report.buffers if b.component != "kv_cache" and not b.name.startswith(_ON_HOST)}
    elsewhere -= {"recurrent"} | {name for name in elsewhere if name.endswith("_Host")}
    if layers or elsewhere:
        return "it has layers on a GPU; what it holds there, and so here, is not known."
    if is_verbose(log) and report.buffers:
        return None
    asked = _asked_layers(target)
    if asked not in (None, "0"):
        return f"it was started with {asked} layers on a GPU; whether it has them there is not known ({_GIVE_ALL})."
    if target.pid is not None and asked is None and _has_gpu(target.pid, proc):
        return f"it has a GPU open; what is there and what is here is not known ({_GIVE_ALL})."
    return None


def _asked_layers(target: Target) -> str | None:
    flags = command_settings(target.command)
    for name in ("ngl", "gpu_layers", "n_gpu_layers"):
        if name in flags:
            return str(flags[name])
    return (target.environment or {}).get(f"{_ENVIRONMENT_PREFIX}N_GPU_LAYERS")


def _has_gpu(pid: int, proc: Path) -> bool:
    try:
        links = [str(link.readlink()) for link in (proc / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return any(link.startswith(_GPU_FILES) for link in links)


# --- the model's file -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """``mapped``: its name among the mappings. ``path``: where it can be read; None where it cannot, or none is named.
    A file that is not mapped was read into memory, or is not there."""

    mapped: str | None
    path: Path | None


def model_file(target: Target, maps: tuple[MapRow, ...], props: Any, proc: Path = PROC) -> ModelFile:
    """The largest mapped model file, known by its first bytes or, where it was deleted, by its name; else the one that
    the command line, the environment or /props name."""
    files = sorted((m for m in maps if m.kind == "file" and m.name), key=lambda m: -m.size_bytes)
    for mapped in files:
        path = _as_seen_by(target, mapped.name, proc)
        if _is_gguf(path):
            return ModelFile(mapped=mapped.name, path=path)
    deleted = next((m.name for m in files if _is_deleted_model(m.name)), None)
    if deleted is not None:
        return ModelFile(mapped=deleted, path=None)
    flags = command_settings(target.command)
    named = [flags.get("m"), flags.get("model"), (target.environment or {}).get(f"{_ENVIRONMENT_PREFIX}MODEL")]
    named.append(props.get("model_path") if isinstance(props, dict) else None)
    paths = [_as_seen_by(target, name, proc) for name in named if isinstance(name, str) and name]
    return ModelFile(mapped=None, path=next((path for path in paths if _is_gguf(path)), None))


def is_same_file(one: Path | None, other: str | Path) -> bool:
    """Whether both have the same content as far as that is cheap to see: one file, or one size and one beginning."""
    try:
        if one is None or one.samefile(other):
            return one is not None
        with one.open("rb") as a, Path(other).open("rb") as b:
            return one.stat().st_size == Path(other).stat().st_size and a.read(2**20) == b.read(2**20)
    except OSError:
        return False


def _is_deleted_model(name: str) -> bool:
    kept, is_deleted, _ = name.rpartition(" (deleted)")
    last = kept.rpartition("/")[2]
    return bool(is_deleted) and (last.endswith(".gguf") or len(last.removeprefix("sha256-")) == 64)


def _as_seen_by(target: Target, name: str, proc: Path) -> Path:
    """A path as the process means it: from its own folder, and where it is in a container, its own root."""
    if target.pid is None:
        return Path(name)
    within = proc / str(target.pid)
    if not name.startswith("/"):
        return within / "cwd" / name
    inside = within / "root" / name.lstrip("/")
    try:
        return Path(name) if inside.samefile(name) else inside
    except OSError:
        return inside if os.access(inside, os.R_OK) else Path(name)


def _is_gguf(path: Path) -> bool:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False  # a device is not opened: that may do something
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False
