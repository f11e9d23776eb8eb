"""Who else was there while a trial ran: who held memory, noted before the engine is started and after the last
request, with a doubt where another program's share moved in between; and whether a running server worked for others.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from kvscope.engine.base import Engine
from kvscope.errors import ProbeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.devices import DevicesProbe, devices_here
from kvscope.probe.occupants import MOVED_BYTES, Occupancy, look, moves, unexplained_fall_bytes
from kvscope.probe.proc import process_tree
from kvscope.record.rows import OccupantRow, RequestRow
from kvscope.units import format_bytes

# How many of the other programs are kept of each look.
KEPT = 5
# How many tokens an engine has computed since it started, and those of one request at most.
_COUNTERS: Mapping[str, Callable[[RequestRow], int | None]] = {
    "prompt_tokens": lambda row: _most_computed(row),
    "output_tokens": lambda row: row.output_tokens,
}


class Neighbours:
    """Two looks around. ``watch_moves``: whether the engine is a real one, so that what others do can touch it."""

    def __init__(self, rows: AttemptRows, pids: Callable[[], tuple[int, ...]], *, watch_moves: bool) -> None:
        self._rows = rows
        self._pids = pids
        self._watch_moves = watch_moves
        self._before: Occupancy | None = None
        self._on_devices: dict[tuple[str, str], int] = {}

    def look(self, phase: str, devices: DevicesProbe | None = None) -> None:
        """``phase``: before or after. ``devices``: where they are being read already."""
        try:
            found = look(self._pids())
        except ProbeError:
            return
        self._rows.occupants += [
            OccupantRow(pid=each.pid, name=each.name, resident_bytes=each.resident_bytes, phase=phase)
            for each in found.others[:KEPT]
        ]
        on_devices = self._look_at_devices(phase, devices) if self._watch_moves else {}
        if phase == "before" or self._before is None:
            self._before, self._on_devices = found, on_devices
        elif self._watch_moves:
            self._judge(self._before, found, on_devices)

    def _look_at_devices(self, phase: str, devices: DevicesProbe | None) -> dict[tuple[str, str], int]:
        """(Device, program) → bytes, of what is not the engine's or kvscope's."""
        opened = None
        if devices is None:
            devices = opened = devices_here(self._pids)[0]
        if devices is None:
            return {}
        try:
            found: Sequence[DeviceOccupant] = devices.occupants(process_tree((os.getpid(), *self._pids())))
        except ProbeError:
            return {}
        finally:
            if opened is not None:
                opened.close()
        held: dict[tuple[str, str], int] = {}
        for each in found:
            if each.held_bytes is None:
                continue
            self._rows.occupants.append(
                OccupantRow(
                    pid=each.pid, name=each.name, resident_bytes=each.held_bytes, phase=phase, device=each.device
                )
            )
            held[each.device, each.name] = held.get((each.device, each.name), 0) + each.held_bytes
        return held

    def _judge(self, before: Occupancy, after: Occupancy, on_devices: dict[tuple[str, str], int]) -> None:
        said = [_said(move.name, move.before_bytes, move.after_bytes) for move in moves(before, after)]
        for device, name in sorted(self._on_devices.keys() | on_devices.keys()):
            held = [each.get((device, name), 0) for each in (self._on_devices, on_devices)]
            if abs(held[1] - held[0]) > MOVED_BYTES:
                said.append(_said(f"{name} on {device}", *held))
        fall = unexplained_fall_bytes(before, after)
        if fall is not None and fall > MOVED_BYTES:
            said.append(
                f"the machine has {format_bytes(fall)} less available than the engine and all programs seen explain"
            )
        if said:
            self._rows.warn(
                "occupants-moved",
                f"Others' memory moved by more than {format_bytes(MOVED_BYTES)} while this ran: {'; '.join(said)}.",
                "The trials were not run in the same surroundings. Close those programs and repeat.",
            )


def _said(name: str, before_bytes: int, after_bytes: int) -> str:
    return f"{name} {format_bytes(before_bytes)} → {format_bytes(after_bytes)}"


def note_others_requests(rows: AttemptRows, engine: Engine) -> None:
    """Warn where a server's own counters show work that is not this attempt's: tokens between two marks beyond those of
    the requests between them, or a request that runs while none of ours does. Where the engine counts prompts by being
    sent them, these are not recorded, and not held against it. SGLang is one of these engines: its number of running
    requests is only renewed when it logs, and may be of one that has ended (its scheduler's metrics, 2026)."""
    by_requests = engine.capabilities.counts_by_requests
    if by_requests and any(row.role == "earlier_turn" for row in rows.requests):
        return
    first = ("before_request",) if by_requests else ("loaded", "before_request")
    marks: dict[float, dict[str, float]] = {}
    for stated in rows.statistics:
        if stated.phase in (*first, "after_request"):
            marks.setdefault(stated.at_s, {})[stated.name] = stated.value
    said = [f"{beyond:,.0f} {name.replace('_', ' ')}" for name in _COUNTERS if (beyond := _beyond(name, marks, rows))]
    at_work = [int(mark.get("requests_running", 0) + mark.get("requests_waiting", 0)) for mark in marks.values()]
    if any(at_work) and not by_requests:
        said.append(f"{max(at_work):,} requests at work while none of these was")
    if said:
        rows.warn(
            "others-requests",
            f"The server worked for others too while this ran: by its own counters, {' and '.join(said)}.",
            "Times and memory are of both together. Repeat while nobody else uses the server.",
        )


def _beyond(name: str, marks: Mapping[float, Mapping[str, float]], rows: AttemptRows) -> float:
    """Tokens that the server counted between any two marks, less those of the requests between them."""
    return sum(_beyond_each(name, marks, rows))


def _beyond_each(name: str, marks: Mapping[float, Mapping[str, float]], rows: AttemptRows) -> Iterator[float]:
    for (from_s, before), (to_s, after) in pairwise(sorted(marks.items())):
        ours = [_COUNTERS[name](row) for row in rows.requests if from_s <= row.sent_at_s < to_s]
        known = [tokens for tokens in ours if tokens is not None]
        if name in before and name in after and len(known) == len(ours):
            yield max(0.0, after[name] - before[name] - sum(known))


def _most_computed(row: RequestRow) -> int | None:
    """Prompt tokens that were computed, at most."""
    prompt, cached = row.prompt_tokens_server, row.cached_tokens or 0
    return prompt if prompt is None or cached > prompt else prompt - cached
