"""Why an engine's process is gone, from all that is known of its end, in this order: what it says itself, what the
kernel counted, and last its exit code or signal, which alone mean little.

(Between the last two stands the prediction against free memory, which an engine does not know:
``kvscope.experiment.ending``.)
"""

import re
import signal
from dataclasses import dataclass
from typing import Any

from kvscope.engine.failure_words import classify_message
from kvscope.errors import (
    EngineDied,
    EngineError,
    EngineModelError,
    EngineStartFailed,
    InvalidSettings,
    MemorySuspected,
    OutOfMemory,
)

# A log is a story; how it ended is in its last lines.
LAST_LINES = 60

OUT_OF_MEMORY_HINT = "Use a smaller context, fewer sequences or a smaller cache type, or free memory."
_LOG_HINT = "The end of its log is kept with the trial."

# llama.cpp's --fit (common/fit.cpp, b8000 and later): what it expects a load to take, before it loads.
_PROJECTED = re.compile(r"projected to use (\d+) MiB of [\w ]*memory vs\.? (\d+) MiB of", re.IGNORECASE)
_MARGIN = re.compile(r"(?:target|margin|at least|free memory target)\D{0,40}(\d+) MiB", re.IGNORECASE)

# C++, Python, OpenBLAS: what they say where a thread cannot be started.
_NO_THREAD = re.compile(
    r"terminate called [^\n]*std::system_error'\s+what\(\): +Resource temporarily unavailable|can't start new thread"
    r"|pthread_create[^\n]{0,40} failed[^\n]{0,80}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What is known of a process that has ended. ``status``: exit code, or minus the signal; None: it hung up and
    still runs. ``log``: what it wrote while it did this. ``group_kills`` and ``machine_kills``: the kernel's counts of
    processes killed for want of memory, before and after, in its control group and anywhere on the machine; None where
    they are not to be had. ``is_alone``: nobody else is in that group, so what is killed in it is the engine's.
    ``is_group_sure``: it was in that group to its end; otherwise it may have been put into another since it was looked
    at. ``memory_limits``: limits of its own on what it may ask for (ulimit), by name."""

    name: str
    doing: str
    status: int | None
    log: str
    group_kills: tuple[int, int] | None = None
    machine_kills: tuple[int, int] | None = None
    is_alone: bool = False
    is_group_sure: bool = False
    memory_limits: tuple[str, ...] = ()
    pid: int | None = None


def death_error(death: Death) -> EngineError:
    """The death as an error to raise, with its evidence."""
    kind, line = classify_message("\n".join(death.log.splitlines()[-LAST_LINES:]), own_pid=death.pid)
    ended = f"{death.name} ended{_while(death)}: {_in_words(death.status)}."
    said = {**_facts(death), "known_by": "message", "log_line": line}
    match kind:
        case "out_of_memory":
            return OutOfMemory(
                f"{ended} It could not get the memory it needs: {line}{ignored_estimate(death.log)}",
                hint=OUT_OF_MEMORY_HINT,
                evidence=said,
            )
        case "invalid_settings":
            return InvalidSettings(
                f"{ended} It refuses these settings: {line}",
                hint="Change the setting it names and start again.",
                evidence=said,
            )
        case "model_error":
            return EngineModelError(
                f"{ended} It cannot load the model: {line}", hint="Check the file with `kvscope show`.", evidence=said
            )
    if (suspected := _counted_kills(death) or _refused_thread(death)) is not None:
        return suspected
    if kind == "engine_fault":
        return EngineDied(
            f"{ended} A fault of the engine, not a lack of memory: {line}",
            hint=f"Report it to the engine's project, with the settings. {_LOG_HINT}",
            evidence=said,
        )
    return EngineDied(
        f"{ended}{_last_words(death.log)}", hint=_LOG_HINT, evidence={**_facts(death), "known_by": "exit"}
    )


def _counted_kills(death: Death) -> OutOfMemory | None:
    """Out of memory, by what the kernel counted. Certain only in a group that is the engine's alone, where the kill may
    also have hit a process that the engine started, of which it then died. Elsewhere somebody else's process may have
    been killed: with SIGKILL it is suspected. A count that stood still speaks against it."""
    if death.is_alone and (kills := _counted(death.group_kills)):
        how = "It got SIGKILL, and the" if _was_killed(death) else f"It ended ({_in_words(death.status)}) after the"
        return OutOfMemory(
            f"{death.name} was killed{_while(death)}: the machine or its container ran out of memory. {how} kernel "
            f"counted {kills} out-of-memory kill(s) in its control group since the engine started."
            f"{ignored_estimate(death.log)}",
            hint=OUT_OF_MEMORY_HINT,
            evidence={**_facts(death), "known_by": "counters"},
        )
    if not _was_killed(death):
        return None
    if kills := _counted(death.group_kills):
        where = "in its control group, which is not its alone"
    elif (death.is_group_sure and death.group_kills is not None) or not (kills := _counted(death.machine_kills)):
        return None
    elif death.group_kills is None:
        where = "on this machine; its own control group does not count"
    else:
        where = "on this machine, none of them in the control group that it was last seen in"
    return MemorySuspected(
        f"{death.name} was killed{_while(death)}: it got SIGKILL, perhaps because memory ran out. The kernel counted "
        f"{kills} out-of-memory kill(s) {where}, since the engine started. Whether the engine was the one is not known."
        f"{ignored_estimate(death.log)}",
        hint=f"{OUT_OF_MEMORY_HINT} The kernel's log (dmesg) names whom it killed.",
        evidence={**_facts(death), "known_by": "counters"},
    )


def _refused_thread(death: Death) -> OutOfMemory | None:
    """A lack of memory suspected, where no thread could be started under a limit on the memory that may be asked for:
    the system says the same (EAGAIN, pthread_create(3)) where there are too many threads."""
    refused = _NO_THREAD.search(death.log)
    if refused is None or not death.memory_limits:
        return None
    line = " ".join(refused[0].split())
    return limited(
        f"{death.name} ended{_while(death)}: {_in_words(death.status)}. It could not start a thread ({line})",
        death.memory_limits,
        {**_facts(death), "log_line": line},
    )


def limited(what: str, memory_limits: tuple[str, ...], evidence: dict[str, Any]) -> MemorySuspected:
    """The suspicion that a process's own limits (not empty) are why the system refused it something."""
    return MemorySuspected(
        f"{what}, and there is a limit on the memory that it may ask for ({', '.join(memory_limits)}).",
        hint="Raise the limit (ulimit -v, ulimit -d), or the number of processes allowed (ulimit -u) if that is low.",
        evidence={**evidence, "known_by": "message"},
    )


def unexplained_start(name: str, said: str, memory_limits: tuple[str, ...]) -> EngineError:
    """A start that failed, of which there is only what the program's own code was told (an exception's text)."""
    evidence = {"known_by": "message", "body": said}
    if classify_message(said)[0] == "out_of_memory":
        return OutOfMemory(f"{name} ran out of memory: {said}.", hint=OUT_OF_MEMORY_HINT, evidence=evidence)
    if "Resource temporarily unavailable" in said and memory_limits:
        return limited(f"{name} did not start: {said}", memory_limits, evidence)
    return EngineStartFailed(
        f"{name} did not start, and its log gives no reason: {said or 'nothing was said'}.",
        hint=_LOG_HINT,
        evidence=evidence,
    )


def _was_killed(death: Death) -> bool:
    return death.status in (-signal.SIGKILL, 128 + signal.SIGKILL)


def _counted(kills: tuple[int, int] | None) -> int:
    return 0 if kills is None else max(kills[1] - kills[0], 0)


def ignored_estimate(log: str) -> str:
    """What the engine had said of its memory before it loaded, as a sentence, where it was more than there is; else
    nothing. By llama.cpp's own arithmetic: needed - free + what is to be left free."""
    projected = _PROJECTED.search(log)
    if projected is None:
        return ""
    needed, free = int(projected[1]), int(projected[2])
    margin = _MARGIN.search(log, projected.end())
    left = int(margin[1]) if margin else 0
    short = needed - free + left
    if short <= 0:
        return ""
    return (
        f" Predicted and ignored: by its own estimate it needs {needed} MiB of {free} MiB free and is to leave "
        f"{left} MiB: {short} MiB short."
    )


def _facts(death: Death) -> dict[str, Any]:
    status = death.status
    counters = {"group.oom_kill": death.group_kills, "machine.oom_kill": death.machine_kills}
    facts: dict[str, Any] = {"counters": {name: list(both) for name, both in counters.items() if both is not None}}
    if status is not None and status < 0:
        facts["signal"] = signal_name(-status)
    elif status is not None:
        facts["exit_code"] = status
    return facts


def signal_name(number: int) -> str:
    """SIGKILL for 9; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _while(death: Death) -> str:
    return f" while {death.doing}" if death.doing else ""


def _in_words(status: int | None) -> str:
    if status is None:
        return "it closed its connection but is still running"
    if status < 0:
        return f"killed by signal {-status} ({signal_name(-status)})"
    return f"exit code {status}"


def _last_words(log: str) -> str:
    """The last line of the log, as a sentence of its own, where there is one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f" Its last words: {lines[-1][:500]}" if lines else ""
