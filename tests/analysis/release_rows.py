"""Attempts of a release check built from a few numbers: what memory was after each conversation, and what the engine
said of it. The reported cases and the properties are made of these."""

from collections.abc import Mapping, Sequence
from typing import Any

from study_rows import attempt, design_row, reported, request_row, run_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.release import Release, judge_release
from kvscope.record.rows import SAME_AGAIN, MarkRow, StatisticRow

MIB = 2**20
GIB = 2**30
LAUNCHED = 8 * MIB


def held_mark(phase: str, held: int, *, swapped: int = 0, device: int | None = None, **changes: Any) -> MarkRow:
    """``held`` bytes in all, ``swapped`` of them on the swap device."""
    values: dict[str, Any] = {"request_index": None, "active_requests": None, "at_s": 1.0}
    return MarkRow(
        phase=phase,
        anon_bytes=held - swapped,
        swap_bytes=swapped,
        file_bytes=0,
        shmem_bytes=0,
        peak_bytes=None,
        machine_available_bytes=None,
        device_bytes=device,
        **{**values, **changes},
    )


def release_attempt(
    levels: Sequence[int],
    *,
    launched: int | None = LAUNCHED,
    unloaded: int | None = None,
    exited: int | None = None,
    swapped: Sequence[int] = (),
    devices: Mapping[str, int] | None = None,
    device_levels: Sequence[int | None] = (),
    active: int | None = 0,
    same: int = 0,
    copies: Sequence[int] = (),
    limit_mib: float | None = 8192,
    prompt_tokens: int = 100,
    output_tokens: int = 1,
    bytes_per_token: int | None = None,
    settings: Mapping[str, Any] | None = None,
    effective: Mapping[str, Any] | None = None,
    statistics: Mapping[str, float] | None = None,
    outcome: str = "ok",
) -> Attempt:
    """An attempt whose memory was ``levels`` after its conversations, the last ``same`` of which sent the text before
    them again. ``copies``: what the log says the host prompt cache held then, under ``limit_mib`` (None: no limit, 0 in
    the log). ``statistics``: the engine's counters after its own release."""
    design = design_row("release")
    on_device = devices or {}
    at: list[int | None] = [*device_levels] or [None] * len(levels)
    marks = [held_mark("launched", launched, device=on_device.get("launched"))] if launched is not None else []
    for number, held in enumerate(levels):
        swap = swapped[number] if swapped else 0
        marks.append(
            held_mark(
                "after_request", held, swapped=swap, device=at[number], request_index=number + 1, active_requests=active
            )
        )
    for phase, held_then in (("unloaded", unloaded), ("exited", exited)):
        if held_then is not None:
            marks.append(held_mark(phase, held_then, device=on_device.get(phase)))
    first_again = len(levels) - same + 1
    requests = [
        request_row(
            index=number,
            prompt=prompt_tokens,
            output=output_tokens,
            role=SAME_AGAIN if number >= first_again else "measured",
        )
        for number in range(1, len(levels) + 1)
    ]
    lines = [
        reported(
            "host_cache", f"{size / MIB:.3f}", "after_request", request_index=number + 1,
            line=f" - cache state: {number} prompts, {size / MIB:.3f} MiB (limits: {limit_mib or 0:.3f} MiB, 0 tokens)",
        )
        for number, size in enumerate(copies)
    ]  # fmt: skip
    growth = {} if bytes_per_token is None else {"bytes_per_token": bytes_per_token}
    trial = trial_row(design, 8192, outcome=outcome, settings=dict(settings or {}), levels={})
    counters = [
        StatisticRow(phase="unloaded", at_s=2.0, name=name, value=value) for name, value in (statistics or {}).items()
    ]
    return attempt(
        trial,
        design=design,
        predicted={"growth": growth, "scenario": {"engine": "llama.cpp"}},
        marks=tuple(marks),
        requests=tuple(requests),
        reported=tuple(lines),
        effective=dict(effective or {}),
        statistics=tuple(counters),
    )


def judged(levels: Sequence[int], **known: Any) -> Release:
    """The verdict on such an attempt."""
    found = judge_release(release_attempt(levels, **known))
    assert found is not None
    return found


def line(start: int, step: int, count: int) -> list[int]:
    return [start + step * number for number in range(count)]


__all__ = ["GIB", "LAUNCHED", "MIB", "held_mark", "judged", "line", "release_attempt", "run_row"]
