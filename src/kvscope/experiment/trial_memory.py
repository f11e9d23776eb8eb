"""The memory of one trial: the engine's, its devices' and its control group's, sampled in the background and read at
marked moments; what the engine counts itself; and who else held memory before and after.
"""

from collections.abc import Callable, Mapping

from kvscope.engine.base import Engine, OwnMemory
from kvscope.errors import EngineError, ProbeError, ProbeLost, ProbeUnavailable
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.neighbours import Neighbours
from kvscope.probe.apple import FootprintProbe
from kvscope.probe.control_group import ControlGroupProbe
from kvscope.probe.devices import DevicesProbe, devices_here
from kvscope.probe.machine_memory import machine_memory
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.probe.sampler import Sampler, Watched
from kvscope.record.rows import MapRow, MarkRow, SampleRow, StatisticRow

SAMPLE_INTERVAL_S = 0.02
# A driver takes longer to answer than /proc; the control group has a counter of its peak.
DEVICE_INTERVAL_S = 0.1
GROUP_INTERVAL_S = 0.5
# Memory counts as settled when two readings this far apart differ by less than this; pages still trickle in after that.
SETTLE_STEP_S = 0.05
SETTLE_LIMIT_S = 1.0
SETTLE_BYTES = 64 * 1024
LATE_SAMPLE_S = 0.02
LATE_SHARE_LIMIT = 0.05


class TrialMemory:
    """What is read of one attempt, into its rows. ``now``: the trial's clock. Nothing is read in the time that a
    request takes except by the sampler."""

    def __init__(
        self, engine: Engine, rows: AttemptRows, *, now: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._now, self._sleep = now, sleep
        self._tree = ProcessTreeProbe(engine.pids)
        self._host: OwnMemory | None = None
        self._devices: DevicesProbe | None = None
        self._group: ControlGroupProbe | None = None
        self._sampler: Sampler | None = None
        self._kills_before: int | None = None
        self._is_unseen = False
        self._neighbours = Neighbours(rows, engine.pids, watch_moves=engine.memory_probe() is None)

    @property
    def is_read(self) -> bool:
        """Whether the engine's own memory is being read."""
        return self._sampler is not None and self._host is not None

    def look_around(self, phase: str) -> None:
        """Note who else holds memory: ``before`` the engine is started, or ``after`` the last request."""
        self._neighbours.look(phase, self._devices)

    def start(self) -> None:
        """Find what can be read of the engine, and begin to sample it."""
        self._host = self._find_host()
        watched = [] if self._host is None else [Watched(probe=self._host, interval_s=SAMPLE_INTERVAL_S)]
        if self._engine.memory_probe() is None:
            watched += self._find_others()
        if watched:
            self._sampler = Sampler(watched, now=self._now)
            self._sampler.start()

    def _find_host(self) -> OwnMemory | None:
        own = self._engine.memory_probe()
        if own is None and not self._engine.capabilities.owns_process and not self._engine.pids():
            self._is_unseen = True
            return None
        host = own or self._tree
        reason = host.unavailable()
        if reason is None:
            try:
                host.read()
            except ProbeUnavailable as error:  # another user's process
                reason = f"{error.message} {error.hint or ''}".strip()
            except ProbeLost:  # it has ended already; the engine itself says why
                return host
        if reason is not None:
            self._rows.warn(
                "probe-unavailable", f"Memory of the engine cannot be read: {reason}", "See kvscope doctor."
            )
            return None
        return host

    def _find_others(self) -> list[Watched]:
        """Devices and the control group, where there are any."""
        found = []
        if self._engine.pids():
            self._devices, unseen = devices_here(self._tree.tree)
            if unseen is not None:
                self._rows.warn("device-not-seen", f"Device memory is not read: {unseen}", "See kvscope doctor.")
            if self._devices is not None:
                quantities = ("device_bytes", "device_used_bytes")
                found.append(Watched(probe=self._devices, interval_s=DEVICE_INTERVAL_S, quantities=quantities))
        footprint = FootprintProbe(self._engine.pids)
        if self._host is None and self._engine.pids() and footprint.unavailable() is None:
            found.append(Watched(probe=footprint, interval_s=SAMPLE_INTERVAL_S, quantities=("footprint_bytes",)))
        group = ControlGroupProbe(self._engine.pids)
        if group.unavailable() is None:
            self._group = group
            self._kills_before = group.read().get("cgroup_oom_kills")
            found.append(Watched(probe=group, interval_s=GROUP_INTERVAL_S, quantities=("cgroup_bytes",)))
        return found

    def reset_peaks(self) -> None:
        """Start new peaks at what is held now, where kvscope started the engine: the counters of others' processes are
        theirs."""
        if self._host is None:
            return
        if self._engine.capabilities.owns_process:
            reason = self._host.reset_peak()
        else:
            reason = "The peak counter of a process that kvscope did not start is left alone."
        if reason is not None:
            self._rows.warn("peak-not-reset", reason, "Peaks then come from samples alone and may be missed.")
        if self._group is not None:
            self._rows.client["cgroup_peak_reset"] = self._group.reset_peak() is None

    def settle(self) -> None:
        """Wait until memory stands still, for at most SETTLE_LIMIT_S."""
        if not self.is_read:
            return
        self._tree.look_again()
        deadline = self._now() + SETTLE_LIMIT_S
        before = self._held()
        while self._now() < deadline:
            self._sleep(SETTLE_STEP_S)
            held = self._held()
            if abs(held - before) < SETTLE_BYTES:
                return
            before = held

    def _held(self) -> int:
        assert self._host is not None
        reading = self._host.read()
        return reading["anon_bytes"] + reading["swap_bytes"]

    def mark(self, phase: str, *, request_index: int | None = None, with_maps: bool = False) -> None:
        """Read everything now. Raises ProbeLost where the engine's process has gone; what else cannot be read is noted
        as a doubt."""
        at_s = self._now()
        if self._host is not None and self._sampler is not None:
            reading = self._host.read()
            self._rows.marks.append(self._row(phase, at_s, reading, request_index))
            if reading["swap_bytes"]:
                self._rows.warn(
                    "swap-active", "Part of the engine's memory is swapped out.", "Free memory, then repeat."
                )
            if with_maps:
                self._note_maps(phase, request_index)
        self._note_statistics(phase, at_s, request_index)

    def _row(self, phase: str, at_s: float, reading: Mapping[str, int], request_index: int | None) -> MarkRow:
        group, devices = self._of_group(), self._of_devices()
        return MarkRow(
            phase=phase,
            at_s=at_s,
            anon_bytes=reading["anon_bytes"],
            swap_bytes=reading["swap_bytes"],
            file_bytes=reading["file_bytes"],
            shmem_bytes=reading["shmem_bytes"],
            peak_bytes=reading.get("peak_bytes"),
            machine_available_bytes=_available_bytes(),
            request_index=request_index,
            active_requests=self._engine.active_requests() if phase in ("after_request", "loaded") else None,
            device_bytes=devices.get("device_bytes"),
            device_peak_bytes=devices.get("device_peak_bytes"),
            cgroup_bytes=group.get("cgroup_bytes"),
            cgroup_peak_bytes=group.get("cgroup_peak_bytes"),
            cgroup_oom_kills=group.get("cgroup_oom_kills"),
        )

    def _of_group(self) -> Mapping[str, int]:
        return {} if self._group is None else self._try("control group", self._group.read)

    def _of_devices(self) -> Mapping[str, int]:
        return {} if self._devices is None else self._try("devices", self._devices.read)

    def _try(self, what: str, read: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        try:
            return read()
        except ProbeError as error:
            self._rows.warn("reading-failed", f"Of the {what} nothing was read: {error}", "Other readings go on.")
            return {}

    def _note_maps(self, phase: str, request_index: int | None) -> None:
        assert self._host is not None
        try:
            found = self._host.maps()
        except ProbeError as error:
            self._rows.warn("maps-unavailable", str(error), error.hint or "Memory is given as a total only.")
            return
        self._rows.maps += [
            MapRow(
                phase=phase,
                kind=m.kind,
                name=m.name,
                size_bytes=m.size_bytes,
                resident_bytes=m.resident_bytes,
                anonymous_bytes=m.anonymous_bytes,
                count=m.count,
                request_index=request_index,
            )
            for m in found
        ]
        if self._host is self._tree:
            # Information, in no metric: it moves with what strangers map.
            self._rows.information("pss_bytes", phase, self._tree.pss_bytes())

    def _note_statistics(self, phase: str, at_s: float, request_index: int | None) -> None:
        try:
            stated = self._engine.statistics()
        except EngineError as error:
            if phase in ("launched", "unloaded"):  # most have none without a model
                return
            self._rows.warn("statistics-unavailable", f"The engine's own counters: {error}", "They are left out.")
            return
        self._rows.statistics += [
            StatisticRow(phase=phase, at_s=at_s, name=name, value=float(value), request_index=request_index)
            for name, value in sorted(stated.items())
        ]

    def pause(self, *, is_paused: bool = True) -> None:
        """Sample nothing for a while, or go on: what the engine holds then is in no curve and no peak."""
        if self._sampler is not None:
            self._sampler.pause(is_paused=is_paused)

    def mark_exited(self) -> None:
        """All processes of the engine are gone, so what they hold is a known zero."""
        group = self._of_group()
        self._rows.marks.append(
            MarkRow(
                phase="exited",
                at_s=self._now(),
                anon_bytes=0,
                swap_bytes=0,
                file_bytes=0,
                shmem_bytes=0,
                peak_bytes=None,
                machine_available_bytes=_available_bytes(),
                device_bytes=None if self._devices is None else 0,
                cgroup_bytes=group.get("cgroup_bytes"),
                cgroup_peak_bytes=group.get("cgroup_peak_bytes"),
                cgroup_oom_kills=group.get("cgroup_oom_kills"),
            )
        )

    def stop(self) -> None:
        """End sampling: the readings become rows, what went wrong with them doubts. Safe to call twice."""
        if self._is_unseen:  # at the end, as an adapter that knows the reason has said it by then
            self._rows.warn(
                "memory-not-seen",
                "The memory of this engine is not seen: it was running before, and no process of this machine is known "
                "to be its own.",
                "Give its process id (--pid) where it runs on this machine; otherwise there are only its own counters.",
            )
        if self._sampler is None:
            return
        sampler, self._sampler = self._sampler, None
        self._note_samples(sampler)
        for stream in sampler.streams:
            if stream.error is not None:
                self._rows.warn(
                    "samples-stopped",
                    f"Of {stream.probe.name}, memory was not read to the end of the trial: {stream.error}",
                    "The curve is cut short; look at the other marks of the trial.",
                )
        if self._devices is not None:
            if doubts := self._devices.doubts():
                self._rows.warn("device-share-unknown", " ".join(doubts), "What is not known is left out, not zero.")
            if all(stream.error is None for stream in sampler.streams):  # a driver that hangs would hang here too
                self._devices.close()

    def _note_samples(self, sampler: Sampler) -> None:
        samples = sampler.stop()
        self._rows.samples += [
            SampleRow(quantity=s.quantity, at_s=s.at_s, value_bytes=s.value_bytes, late_s=s.late_s) for s in samples
        ]
        late_of: dict[str, dict[float, float]] = {}
        for sample in samples:
            late_of.setdefault(sample.probe, {})[sample.at_s] = sample.late_s
        late = {probe: sum(s > LATE_SAMPLE_S for s in readings.values()) for probe, readings in late_of.items()}
        missed = sum(stream.missed for stream in sampler.streams)
        self._rows.client["samples_missed"] = missed
        self._rows.client["probes"] = {
            stream.probe.name: {
                "interval_s": stream.interval_s,
                "readings": len(late_of.get(stream.probe.name, {})),
                "missed": stream.missed,
                "late": late.get(stream.probe.name, 0),
                "stopped": None if stream.error is None else str(stream.error),
            }
            for stream in sampler.streams
        }
        due = sum(map(len, late_of.values())) + missed
        late_or_missed = sum(late.values()) + missed
        if due and late_or_missed / due > LATE_SHARE_LIMIT:
            self._rows.warn(
                "late-samples",
                f"{late_or_missed} of {due} memory readings were missed or came more than "
                f"{LATE_SAMPLE_S * 1000:.0f} ms late.",
                "The machine was busy: short peaks in between may be missed. Close other programs.",
            )

    def note_kills(self) -> None:
        """Whether the kernel killed in the engine's control group for want of memory while the attempt ran."""
        after = self._of_group().get("cgroup_oom_kills")
        if after is None or self._kills_before is None or after <= self._kills_before:
            return
        self._rows.warn(
            "oom-kill-seen",
            f"The kernel killed {after - self._kills_before} process(es) in the engine's control group because it ran "
            "out of memory.",
            "Give the container or service more memory, or the engine less to do.",
        )


def _available_bytes() -> int | None:
    """MemAvailable of the machine; None where it is not stated."""
    try:
        return machine_memory().available_bytes
    except ProbeUnavailable:
        return None
