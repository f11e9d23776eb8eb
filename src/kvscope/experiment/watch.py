"""A running engine looked at again and again: its memory by cause, its requests, its speed. Nothing is sent to it but
reads of its metrics, and its memory and settings are not changed; not even its peak counter is set back. (llama-server
itself sets the averages in its metrics back whenever they are read.)

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
from kvscope.engine.llama_log import is_verbose, read_checkpoints, read_host_cache, read_slots
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.server_metrics import statistics_of
from kvscope.errors import EngineError, KvscopeError, ProbeError
from kvscope.experiment.attempt_rows import reported_row
from kvscope.experiment.watch_log import LogSeen, ServerLog
from kvscope.experiment.watch_settings import (
    ModelFile,
    contradiction,
    is_same_file,
    model_file,
    settings_in_force,
    sleeps_when_idle,
)
from kvscope.experiment.watch_slots import MOST_COUNTED, SlotsSeen, is_count, read_slots_answer
from kvscope.experiment.watch_target import Target
from kvscope.model.load import load_model
from kvscope.predict.memory import predict
from kvscope.probe.machine_memory import machine_memory
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.record.rows import MapRow, MarkRow, ReportedBufferRow, StatisticRow
from kvscope.scenario import SettingValue

PHASE = "watched"
_ASK = Limits(timeout_s=5.0, stall_s=5.0, connect_s=5.0)
_NONE = "no engine that is known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look. ``mark`` and ``maps`` are None and empty where the process cannot be seen. ``statistics``: by the names
    of ``engine.statistics``. ``prediction``: the JSON of what the engine should hold (None: not known), ``kept`` what
    its log says it keeps beside. ``model_file``: the mapping that is its model. ``used_at_most_tokens``: what the slots
    state together where they may share cells of the cache. ``unknown``: what could not be read, each with why."""

    at: str
    at_s: float
    mark: MarkRow | None
    maps: tuple[MapRow, ...] = ()
    statistics: Mapping[str, float] = field(default_factory=dict)
    prediction: Mapping[str, Any] | None = None
    model_file: str | None = None
    used_at_most_tokens: int | None = None
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
        self._server_log = ServerLog(target.log_path if target.engine == "llama.cpp" else None)
        self._expected: tuple[Mapping[str, Any] | None, str | None] | None = None
        self._stated: tuple[ModelFile, str, Mapping[str, Any]] | None = None

    def look(self) -> Look:
        """What is there now. Raises ProbeLost when the process has ended, EngineError when a server whose process
        cannot be seen does not answer any more."""
        self.target.check()
        unknown: list[str] = []
        props = self._props()
        is_asleep = props.get("is_sleeping") is True
        mark, maps = self._memory(unknown)
        log = self._server_log.read()
        model = model_file(self.target, maps, props)
        prediction = None
        if mark is not None and is_asleep:
            unknown.append("what it should hold: it sleeps, and has unloaded its model.")
        elif mark is not None:
            prediction = self._prediction(model, log, props, unknown)
        statistics, used_at_most = self._statistics(unknown, props, has_own_cells=_has_own_cells(prediction, log))
        return Look(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            at_s=self._now() - self._started_s,
            mark=mark,
            maps=maps,
            statistics=statistics,
            prediction=prediction,
            model_file=model.mapped,
            used_at_most_tokens=used_at_most,
            kept=self._kept(log, unknown) if mark is not None and not is_asleep else (),
            unknown=tuple(dict.fromkeys(unknown)),
        )

    def _props(self) -> Mapping[str, Any]:
        """What llama-server says of itself; asked first, because it is answered without waking a server that sleeps."""
        props = self._ask_json("/props") if self.target.engine == "llama.cpp" else None
        return props if isinstance(props, dict) else {}

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

    def _prediction(
        self, model: ModelFile, log: LogSeen | None, props: Mapping[str, Any], unknown: list[str]
    ) -> Mapping[str, Any] | None:
        """Worked out once: a running server's model and settings do not change. Where it is not known, again when more
        is stated: the log was not complete, the server was loading."""
        stated = model, "" if log is None else log.load, props
        is_known = self._expected is not None and self._expected[0] is not None
        if not is_known and stated != self._stated:
            self._stated = stated
            self._expected = self._predict(model, log, props)
        assert self._expected is not None
        prediction, why_not = self._expected
        if why_not is not None:
            unknown.append(f"what it should hold: {why_not}")
        return prediction

    def _predict(
        self, model: ModelFile, log: LogSeen | None, props: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any] | None, str | None]:
        if self.target.engine != "llama.cpp":
            return (
                None,
                f"only llama.cpp's buffers are looked for in a process, and this is {self.target.engine or _NONE}.",
            )
        source = self._model or model.path
        if source is None:
            gone = (
                f"{model.mapped} cannot be read" if model.mapped else "no model file is mapped by the process or named"
            )
            return None, f"{gone}; name it with --model."
        try:
            known = settings_in_force(self.target, log.load if log is not None else "", props, self._settings)
            if known.settings is None:
                return None, known.why_not
            spec = load_model(source)
            if self._model and not _may_be(spec.file_path, model):
                return None, f"the process has {model.mapped or model.path}, which is not the --model that was given."
            found = predict(spec, engine="llama.cpp", settings=known.settings, tokens=0, phase="decode").to_dict()
        except KvscopeError as error:
            return None, error.message
        if (why_not := contradiction(found, known.slots)) is not None:
            return None, why_not
        return found, None

    def _kept(self, log: LogSeen | None, unknown: list[str]) -> tuple[ReportedBufferRow, ...]:
        if self.target.engine != "llama.cpp":
            return ()
        if log is None or not log.load:
            why = "goes to no file that can be read (start it with 2>FILE)" if log is None else "is too long to be read"
            unknown.append(f"copies of earlier prompts, checkpoints: the server's log {why}.")
            return ()
        if not is_verbose(log.load):
            unknown.append("copies of earlier prompts, checkpoints: the server's log states them from -lv 4 on.")
            return ()
        host_cache = read_host_cache(log.kept)
        kept = [*([host_cache] if host_cache is not None else []), *read_checkpoints(log.kept)]
        return tuple(reported_row(buffer, PHASE, None) for buffer in kept)

    # --- requests and speed ---------------------------------------------------------------------------------------

    def _statistics(
        self, unknown: list[str], props: Mapping[str, Any], *, has_own_cells: bool
    ) -> tuple[dict[str, float], int | None]:
        """By the names of ``engine.statistics``, and tokens in use at most where they are not known otherwise."""
        if self.target.url is None:
            unknown.append("requests and speed: no address of it is known that answers; name one with --port or a URL.")
            return {}, None
        if self.target.engine == "ollama":
            return self._of_ollama(), None
        stated = self._of_metrics(unknown)
        slots = SlotsSeen()
        if self.target.engine == "llama.cpp":
            why_not = self._why_not_slots(props, stated)
            if why_not is None:
                slots = read_slots_answer(self._ask_json("/slots"))
            else:
                unknown.append(f"what its slots hold: {why_not}")
        if "output_tokens" in stated:
            stated["output_tokens"] += slots.unfinished_tokens
        found = {**slots.statistics, **stated}
        is_shared = slots.count > 1 and not has_own_cells
        at_most = found.pop("kv_cache_used_tokens", None) if is_shared else None
        return found, None if at_most is None else int(at_most)

    def _why_not_slots(self, props: Mapping[str, Any], stated: Mapping[str, float]) -> str | None:
        """Why /slots is not to be asked: it counts as work, which wakes a server that sleeps and keeps one from
        sleeping (/props and /metrics do not: seen with llama.cpp b11549)."""
        if props.get("is_sleeping") is True:
            return "it sleeps, and would be woken by being asked."
        if sleeps_when_idle(self.target) and not stated.get("requests_running"):
            return "it is to sleep when idle, and asking would keep it awake; it is asked while a request runs."
        return None

    def _of_metrics(self, unknown: list[str]) -> dict[str, float]:
        engine = self.target.engine
        try:
            reply = run(request("GET", f"{self.target.url}/metrics", limits=_ASK))
        except EngineError as error:
            if self.target.pid is None:
                raise
            unknown.append(f"requests and speed: {error.message}")
            return {}
        if reply.status != 200:
            unknown.append(
                f"requests and speed: GET /metrics answers {reply.status}{_why_refused(reply.status, engine)}."
            )
            return {}
        if engine is None:
            unknown.append("requests and speed: the server's metrics are of no engine that is known here.")
            return {}
        try:
            stated = statistics_of(parse_metrics(reply.body.decode(errors="replace")), engine)
        except EngineError as error:
            unknown.append(f"requests and speed: {error.message}")
            return {}
        return {name: value for name, value in stated.items() if 0 <= value <= MOST_COUNTED}

    def _of_ollama(self) -> dict[str, float]:
        models = self._ask_json("/api/ps")
        listed = models.get("models") if isinstance(models, dict) else None
        if not isinstance(listed, list):
            return {}
        found: dict[str, float] = {}
        for name, key in (("engine_bytes", "size"), ("engine_device_bytes", "size_vram")):
            sizes = [model.get(key) if isinstance(model, dict) else None for model in listed]
            known = [size for size in sizes if is_count(size)]
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
        except (EngineError, ValueError, RecursionError):
            return None


def _may_be(given: str | Path | None, model: ModelFile) -> bool:
    """Whether the model that was given may be the one in the process; where that one cannot be read it is believed."""
    return model.path is None or (given is not None and is_same_file(model.path, given))


def _has_own_cells(prediction: Mapping[str, Any] | None, log: LogSeen | None) -> bool:
    """Whether every slot has a part of the cache to itself; slots that share one may share the same cells, too."""
    if prediction is not None:
        return prediction["effective"].get("kv_unified") is False
    slots = None if log is None else read_slots(log.load)
    return slots is not None and not slots.is_unified


def _why_refused(status: int, engine: str | None) -> str:
    if status in (401, 403):
        return " (it asks for a key, and a watch sends none)"
    return " (llama-server states them when it was started with --metrics)" if engine == "llama.cpp" else ""
