"""Who else held memory while a trial ran: noted before the engine is started and after the last request, and a doubt
where another program's share moved in between.
"""

import os
from collections.abc import Callable, Sequence

from kvscope.errors import ProbeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.devices import DevicesProbe, devices_here
from kvscope.probe.occupants import MOVED_BYTES, Occupancy, look, moves, unexplained_fall_bytes
from kvscope.probe.proc import process_tree
from kvscope.record.rows import OccupantRow
from kvscope.units import format_bytes

# How many of the other programs are kept of each look.
KEPT = 5


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
