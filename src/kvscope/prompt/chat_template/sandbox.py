"""Renders chat templates in a process of its own, with limits; its parent is render.py.

Run as a plain file (``python -I -S sandbox.py``), it reads one JSON object from stdin, writes one to
stdout, and ends. It imports nothing of kvscope. A template is a program of a stranger: this process has no
environment, a limit on memory, and for each rendering one on processor time and one on time on the clock, which the
kernel enforces.

What a template finds here (filters, globals, the ``generation`` tag, how blocks are trimmed) is what transformers
gives it; see its documentation of chat templates.
"""

import json
import re
import resource
import signal
import sys
from datetime import datetime
from typing import Any

# As in render.py, which this file does not import.
_WRITTEN_NUMBER = "\0number"
_MARK = "kvscope0number0"


class _Written(float):
    """A number with a text of its own."""

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def _read(found: dict[str, Any]) -> Any:
    text = found.get(_WRITTEN_NUMBER)
    if len(found) != 1 or not isinstance(text, str):
        return found
    number = _Written(text)
    number.text = text
    return number


def _marked(value: Any) -> Any:
    """``value`` with a text in place of each number that has its own, which json would write as it likes."""
    if isinstance(value, _Written):
        return _MARK + value.text
    if isinstance(value, dict):
        return {key: _marked(each) for key, each in value.items()}
    return [_marked(each) for each in value] if isinstance(value, list | tuple) else value


def _no_secrets(name: object) -> None:
    from jinja2.exceptions import SecurityError

    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _environment(now: datetime) -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}`` marks what an assistant wrote; it changes no text."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own type

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

        def _unchanged(self, caller: Any) -> Any:
            return caller()

    class Environment(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            # Jinja would print nothing here; a template that tries is refused.
            raise SecurityError(f"access to the attribute {attribute!r} of {type(obj).__name__!r} is unsafe")

    class SafeNamespace(Namespace):
        def __init__(*args: Any, **kwargs: Any) -> None:
            for name in dict(*args[1:], **kwargs):
                _no_secrets(name)
            Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            _no_secrets(name)
            Namespace.__setitem__(self, name, value)

    class SafeDict:
        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        text = json.dumps(
            _marked(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return re.sub(f'"{_MARK}([^"]*)"', r"\1", text)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    environment.globals["namespace"] = SafeNamespace
    environment.globals["dict"] = SafeDict()
    return environment


class _TooLong(Exception):
    pass


def _render(template: Any, variables: dict[str, Any], max_characters: int) -> str:
    pieces, characters = [], 0
    for piece in template.generate(variables):
        characters += len(piece)
        if characters > max_characters:
            raise _TooLong
        pieces.append(piece)
    return "".join(pieces)


def _problem(error: BaseException) -> dict[str, Any]:
    """``kind``: refused (the template raised it), unsafe, too_long, too_deep, memory, or broken (anything else)."""
    from jinja2 import exceptions

    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (exceptions.SecurityError, "unsafe"),
        (_TooLong, "too_long"),
        (RecursionError, "too_deep"),
        (MemoryError, "memory"),
    )
    kind = next((kind for of, kind in kinds if isinstance(error, of)), "broken")
    if type(error) is exceptions.TemplateError:
        kind = "refused"
    message = str(error)[:1000]
    if kind == "broken" and not isinstance(error, exceptions.TemplateError):
        message = f"{type(error).__name__}: {message}"
    return {"kind": kind, "message": message, "line": getattr(error, "lineno", None)}


def _start_timers(cpu_s: float, wall_s: float) -> None:
    # Their signals end the process, wherever it is, in Python or in C.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _answers(job: dict[str, Any]) -> list[dict[str, Any]]:
    limits = job["limits"]
    times = (limits["cpu_s"], limits["wall_s"])
    _start_timers(*times)
    try:
        template = _environment(datetime.fromisoformat(job["now"])).from_string(job["template"])
    except Exception as error:
        return [{"problem": _problem(error)} for _ in job["renderings"]]
    answers: list[dict[str, Any]] = []
    for variables in job["renderings"]:
        _start_timers(*times)
        try:
            answers.append({"text": _render(template, variables, limits["characters"])})
        except Exception as error:
            answers.append({"problem": _problem(error)})
    return answers


def main() -> None:
    """Answers with {"answers": [{"text"} or {"problem"}, ...]}, one for each rendering asked for."""
    data = sys.stdin.buffer.read()
    job = json.loads(data, object_hook=_read)
    sys.path[:] = job["path"]
    import jinja2.ext
    import jinja2.sandbox  # both before the limits; used by name above

    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < (3, 1, 6):
        sys.exit(f"jinja2 {jinja2.__version__} is too old: its sandbox has known holes. 3.1.6 or newer is needed.")
    memory = job["limits"]["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = _answers(job)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps({"answers": answers}))


if __name__ == "__main__":
    main()
