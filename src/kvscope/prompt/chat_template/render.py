"""Has chat templates rendered by a child process with limits, and turns what stopped it into one clear error."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kvscope.errors import ChatTemplateError, KvscopeError, UsageError

_SANDBOX = Path(__file__).with_name("sandbox.py")
# To start Python and import Jinja on a busy machine; none of the template's time.
_START_S = 30.0
# The only key of an object that stands for a number with a text of its own: {WRITTEN_NUMBER: "1.5e+08"}.
WRITTEN_NUMBER = "\0number"
_INPUT_COPIES = 8  # of what is sent in, held at once: text, values, result
_TIMERS = (signal.SIGPROF, signal.SIGALRM)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """For one rendering. ``added_characters``: how much longer the text may be than what is sent in. Real templates
    need milliseconds and add some thousand characters."""

    cpu_s: float = 0.7
    wall_s: float = 1.6
    added_characters: int = 4 * 1024**2
    memory_bytes: int = 512 * 1024**2


DEFAULT_LIMITS = RenderLimits()


def render_in_child(
    text: str, renderings: Sequence[Mapping[str, Any]], *, source: str, now: datetime, limits: RenderLimits
) -> list[str | ChatTemplateError]:
    """The texts of ``renderings`` (the variables of each), in order; an error in place of each that failed.

    Raises ChatTemplateError where the process was ended by a limit (nothing of it is left), UsageError for variables
    that are not plain data (JSON), KvscopeError when the process could not do its work at all.
    """
    job = _job(text, renderings, now, limits)
    try:
        # run() kills the process when the time is over, and when it is interrupted.
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_SANDBOX)],
            input=job,
            capture_output=True,
            timeout=_START_S + limits.wall_s * (len(renderings) + 1),
            env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _stopped(source, limits) from None
    if -done.returncode in _TIMERS:
        raise _stopped(source, limits)
    if done.returncode < 0:
        ended_by = signal.Signals(-done.returncode).name
        raise ChatTemplateError(f"The chat template of {source} made its process end ({ended_by}).", kind="stopped")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise KvscopeError(f"Chat templates cannot be rendered: {lines[-1]}", hint="Check the installation of jinja2.")
    answers = json.loads(done.stdout)["answers"]
    return [answer["text"] if "text" in answer else _error(answer["problem"], source) for answer in answers]


def _job(text: str, renderings: Sequence[Mapping[str, Any]], now: datetime, limits: RenderLimits) -> bytes:
    try:
        sizes = [len(json.dumps(rendering, ensure_ascii=False, allow_nan=False)) for rendering in renderings]
        largest = max(sizes, default=0)
        job = {
            "path": [str(Path(entry).resolve()) for entry in sys.path],
            "template": text,
            "now": now.isoformat(),
            "renderings": renderings,
            "limits": {
                "cpu_s": limits.cpu_s,
                "wall_s": limits.wall_s,
                "characters": limits.added_characters + largest,
                "memory_bytes": limits.memory_bytes + _INPUT_COPIES * (sum(sizes) + len(text)),
            },
        }
        return json.dumps(job).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"What the chat template is given is not plain data: {error}.",
            hint="Tools, documents and extra values are made of text, numbers, true, false, null, lists and objects.",
        ) from None


def _stopped(source: str, limits: RenderLimits) -> ChatTemplateError:
    return ChatTemplateError(
        f"The chat template of {source} was stopped: it ran for more than {limits.cpu_s:g} s of processor time or "
        f"{limits.wall_s:g} s in all.",
        kind="stopped",
        hint="Real templates take milliseconds. Do not use this one, or try again if the machine is very busy.",
    )


def _error(problem: Mapping[str, Any], source: str) -> ChatTemplateError:
    kind, message = problem["kind"], problem["message"]
    line = f" (line {problem['line']} of it)" if problem["line"] else ""
    of = f"The chat template of {source}"
    told = {
        "refused": f"{of} refuses this conversation: {message}",
        "unsafe": f"{of} was stopped: it reached for what no template needs: {message}.",
        "too_long": f"{of} was stopped: its text is longer than any conversation makes it.",
        "too_deep": f"{of} was stopped: it calls itself without end, or is nested too deep.",
        "memory": f"{of} was stopped: it took more memory than any conversation needs.",
        "broken": f"{of} cannot be rendered: {message}{line}",
    }
    hints = {
        "refused": "Give it the roles and the order of messages that the model was trained on.",
        "broken": "The template may be damaged, or need something that this conversation does not have.",
    }
    hint = hints.get(kind, "Real templates do nothing of the kind. Do not use this one.")
    return ChatTemplateError(told[kind], kind=kind if kind in hints else "stopped", hint=hint)
