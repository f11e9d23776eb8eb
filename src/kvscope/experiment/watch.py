"""A running engine looked at again and again: its memory by cause, its requests, its speed. Nothing is sent to it but
reads of its metrics, and nothing of it is changed; not even its peak counter is set back.

Memory is named as for a trial (``analysis.attribute``): predicted buffers are looked for among the mappings of the
process. What they should be follows from the model's file, which is one of those mappings, and from the settings that
the engine's log, its own answers or its command line state; where none does, only kinds of memory are told apart.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvscope.engine.http_client import Limits, request, run
from kvscope.engine.llama_log import read_checkpoints, read_host_cache, read_report
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.server_metrics import statistics_of
from kvscope.errors import EngineError, KvscopeError, ProbeError
from kvscope.experiment.attempt_rows import reported_row
from kvscope.experiment.watch_target import Target, command_settings
from kvscope.model.load import load_model
from kvscope.predict.allocation.llama_cpp_settings import canonical_settings
from kvscope.predict.memory import predict
from kvscope.probe.machine_memory import machine_memory
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.record.rows import MapRow, MarkRow, ReportedBufferRow, StatisticRow
from kvscope.scenario import SettingValue

PHASE = "watched"
_ASK = Limits(timeout_s=5.0, stall_s=5.0, connect_s=5.0)
# Of a log as long as a server has run, its beginning (the load) and its end (what it keeps now).
_LOG_PART_BYTES = 4 * 1024**2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look. ``mark`` and ``maps`` are None and empty where the process cannot be seen. ``statistics``: by the names
    of ``engine.statistics``. ``prediction``: the JSON of what the engine should hold (None: not known), ``kept`` what
    its log says it keeps beside. ``unknown``: what could not be read, each with why."""

    at: str
    at_s: float
    mark: MarkRow | None
    maps: tuple[MapRow, ...] = ()
    statistics: Mapping[str, float] = field(default_factory=dict)
    prediction: Mapping[str, Any] | None = None
    kept: tuple[ReportedBufferRow, ...] = ()
    unknown: tuple[str, ...] = ()

    def statistic_rows(self) -> tuple[StatisticRow, ...]:
        return tuple(
            StatisticRow(phase=PHASE, at_s=self.at_s, name=name, value=value)
            for name, value in sorted(self.statistics.items())
        )


class Watcher:
    """Looks at one target. ``settings``: what a person says the engine was started with; it counts more than what is
    read."""

    def __init__(
        self,
        target: Target,
        *,
        model: str | None = None,
        settings: Mapping[str, SettingValue] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self._model = model
        self._settings = dict(settings or {})
        self._now = now
        self._started_s = now()
        pid = target.pid
        self._probe = None if pid is None else ProcessTreeProbe(lambda: (pid,))
        self._expected: tuple[Mapping[str, Any] | None, str | None] | None = None

    def look(self) -> Look:
        """What is there now. Raises ProbeLost when the process has ended, EngineError when a server whose process
        cannot be seen does not answer any more."""
        self.target.check()
        unknown: list[str] = []
        statistics = self._statistics(unknown)
        mark, maps = self._memory(unknown)
        log = self._log()
        prediction = self._prediction(maps, log, unknown) if mark is not None else None
        return Look(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            at_s=self._now() - self._started_s,
            mark=mark,
            maps=maps,
            statistics=statistics,
            prediction=prediction,
            kept=self._kept(log, unknown) if mark is not None else (),
            unknown=tuple(dict.fromkeys(unknown)),
        )

    # --- memory ---------------------------------------------------------------------------------------------------

    def _memory(self, unknown: list[str]) -> tuple[MarkRow | None, tuple[MapRow, ...]]:
        if self._probe is None:
            unknown.append(f"memory: {self.target.no_process}")
            return None, ()
        reading = self._probe.read()
        mark = MarkRow(
            phase=PHASE,
            at_s=self._now() - self._started_s,
            anon_bytes=reading["anon_bytes"],
            swap_bytes=reading["swap_bytes"],
            file_bytes=reading["file_bytes"],
            shmem_bytes=reading["shmem_bytes"],
            peak_bytes=reading.get("peak_bytes"),
            machine_available_bytes=machine_memory().available_bytes,
        )
        try:
            found = self._probe.maps()
        except ProbeError as error:
            unknown.append(f"what its memory is made of: {error.message}")
            return mark, ()
        return mark, tuple(
            MapRow(
                phase=PHASE,
                kind=m.kind,
                name=m.name,
                size_bytes=m.size_bytes,
                resident_bytes=m.resident_bytes,
                anonymous_bytes=m.anonymous_bytes,
                count=m.count,
            )
            for m in found
        )

    # --- what it should hold --------------------------------------------------------------------------------------

    def _prediction(self, maps: tuple[MapRow, ...], log: str, unknown: list[str]) -> Mapping[str, Any] | None:
        """Worked out once: a running server's model and settings do not change."""
        if self._expected is None:
            self._expected = self._predict(maps, log)
        prediction, why_not = self._expected
        if why_not is not None:
            unknown.append(f"what it should hold: {why_not}")
        return prediction

    def _predict(self, maps: tuple[MapRow, ...], log: str) -> tuple[Mapping[str, Any] | None, str | None]:
        if self.target.engine != "llama.cpp":
            return None, f"only llama.cpp's buffers are looked for in a process, and this is {self.target.engine}."
        source = self._model or _model_in(maps)
        if source is None:
            return None, "no model file is mapped by the process; name it with --model."
        try:
            settings = {**self._stated_settings(log), **canonical_settings(self._settings)}
            if "n_ctx" not in settings:
                return None, "its context is not stated anywhere; give it with --set n_ctx=N."
            prediction = predict(load_model(source), engine="llama.cpp", settings=settings, tokens=0, phase="decode")
        except KvscopeError as error:
            return None, error.message
        return prediction.to_dict(), None

    def _stated_settings(self, log: str) -> dict[str, SettingValue]:
        """By the engine's log, which says what is in force; else by its command line and its own answers."""
        report = read_report(log, version="")
        stated: dict[str, SettingValue] = {}
        for flag, value in command_settings(self.target.command).items():
            try:
                stated |= canonical_settings({flag: value})
            except KvscopeError:
                continue  # not a setting that decides about memory, or not one of ours
        props = self._ask_json("/props")
        if isinstance(props, dict) and "n_ctx" not in stated:
            stated |= _from_props(props)
        stated |= {name: report.effective[name] for name in _FROM_LOG if name in report.effective}
        if report.slots:
            stated["n_parallel"] = len(report.slots)
        return stated

    def _log(self) -> str:
        path = self.target.log_path
        return "" if path is None else _both_ends(path)

    def _kept(self, log: str, unknown: list[str]) -> tuple[ReportedBufferRow, ...]:
        if self.target.engine != "llama.cpp":
            return ()
        if not log:
            unknown.append(
                "host prompt cache: the server's log goes to no file that can be read (start it with 2>FILE)."
            )
            return ()
        host_cache = read_host_cache(log)
        kept = [*([host_cache] if host_cache is not None else []), *read_checkpoints(log)]
        return tuple(reported_row(buffer, PHASE, None) for buffer in kept)

    # --- requests and speed ---------------------------------------------------------------------------------------

    def _statistics(self, unknown: list[str]) -> dict[str, float]:
        if self.target.url is None:
            unknown.append("requests and speed: no address of it is known that answers; name one with --port or a URL.")
            return {}
        engine = self.target.engine
        if engine == "ollama":
            return self._of_ollama()
        found, unfinished = _from_slots(self._ask_json("/slots")) if engine == "llama.cpp" else ({}, 0.0)
        try:
            reply = run(request("GET", f"{self.target.url}/metrics", limits=_ASK))
        except EngineError as error:
            if self.target.pid is None:
                raise
            unknown.append(f"requests and speed: {error.message}")
            return found
        if reply.status != 200:
            how = " (llama-server states them when it was started with --metrics)" if engine == "llama.cpp" else ""
            unknown.append(f"requests and speed: GET /metrics answers {reply.status}{how}.")
            return found
        if engine is None:
            unknown.append("requests and speed: the server's metrics are of no engine that is known here.")
            return found
        stated = statistics_of(parse_metrics(reply.body.decode(errors="replace")), engine)
        if "output_tokens" in stated:
            stated["output_tokens"] += unfinished
        return {**found, **stated}

    def _of_ollama(self) -> dict[str, float]:
        models = self._ask_json("/api/ps")
        listed = models.get("models") if isinstance(models, dict) else None
        if not isinstance(listed, list):
            return {}
        found: dict[str, float] = {}
        for name, key in (("engine_bytes", "size"), ("engine_device_bytes", "size_vram")):
            sizes = [model.get(key) if isinstance(model, dict) else None for model in listed]
            known = [size for size in sizes if isinstance(size, int)]
            if len(known) == len(sizes):
                found[name] = float(sum(known))
        return found

    def _ask_json(self, path: str) -> Any:
        """The JSON at a path of the server; None where it has none."""
        if self.target.url is None:
            return None
        try:
            reply = run(request("GET", f"{self.target.url}{path}", limits=_ASK))
            return json.loads(reply.body) if reply.status == 200 else None
        except (EngineError, ValueError):
            return None


def _model_in(maps: tuple[MapRow, ...]) -> str | None:
    """The largest model file that is mapped."""
    files = [m for m in maps if m.kind == "file" and m.name.endswith(".gguf")]
    return max(files, key=lambda m: m.size_bytes).name if files else None


def _from_props(props: Mapping[str, Any]) -> dict[str, SettingValue]:
    """What /props says of the context: of one slot, and how many there are. Slots that share one context say the same;
    whether they do is not stated, so several slots give no total."""
    per_slot = (props.get("default_generation_settings") or {}).get("n_ctx")
    slots = props.get("total_slots")
    if not isinstance(per_slot, int) or slots != 1:
        return {}
    return {"n_ctx": per_slot, "n_parallel": 1}


def _from_slots(slots: Any) -> tuple[dict[str, float], float]:
    """What /slots says: tokens that the slots hold (a prompt that is still being read counts whole), slots at work. And
    the output tokens of answers that are not finished: llama.cpp adds them to its counters only then."""
    known = [slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    if not known:
        return {}, 0.0
    found = {"requests_running": float(sum(bool(slot.get("is_processing")) for slot in known))}
    held = [slot.get("n_prompt_tokens", 0) for slot in known]  # absent of a slot that was never used
    if all(isinstance(each, int) for each in held):
        found["kv_cache_used_tokens"] = float(sum(held))
    unfinished = [_decoded(slot) for slot in known if slot.get("is_processing")]
    return found, float(sum(unfinished))


def _decoded(slot: Mapping[str, Any]) -> int:
    """Output tokens of the request in a slot; newer servers give a list with one entry for each answer."""
    stated = slot.get("next_token")
    entries = stated if isinstance(stated, list) else [stated]
    counts = [entry.get("n_decoded") for entry in entries if isinstance(entry, dict)]
    return sum(count for count in counts if isinstance(count, int))


def _both_ends(path: Path) -> str:
    """The first and the last part of a file that may be long and that grows; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= 2 * _LOG_PART_BYTES:
                return file.read(2 * _LOG_PART_BYTES).decode(errors="replace")
            first = file.read(_LOG_PART_BYTES)
            file.seek(size - _LOG_PART_BYTES)
            return (first + b"\n" + file.read(_LOG_PART_BYTES)).decode(errors="replace")
    except OSError:
        return ""
