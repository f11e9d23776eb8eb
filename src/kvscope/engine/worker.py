"""The child process that hosts llama.cpp: xllamacpp's HTTP server lives here and never in kvscope's own process.

It is run as a plain file, imports nothing of kvscope and little of anything else: what it holds before a model is
loaded is the baseline of every memory measurement.

Commands come on stdin, one JSON object a line; answers go to stdout the same way. The log is stderr, where llama.cpp
itself writes.

    → (start)                                        ← {"event": "started", "version": ..., "build": {...}}
    → {"do": "load", "model": PATH, "settings": {}, "port": 0}
                                                     ← {"event": "ready", "url": "http://127.0.0.1:40151"}
    → {"do": "unload"}                               ← {"event": "unloaded"}
    → {"do": "heap"}                                 ← {"event": "heap", "heap_in_use_bytes": ..., ...}
    → {"do": "exit"}                                 (the process ends)

A command that fails is answered by {"event": "error", "kind": ..., "message": ...}; ``kind`` is one of KINDS. The
process ends at once when stdin closes: whoever started it has gone.
"""

import difflib
import importlib.util
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

KINDS = (
    "missing_dependency",  # xllamacpp is not there
    "broken_dependency",  # it is there and cannot be imported
    "invalid_settings",  # no such setting, or not a value it takes
    "load_failed",  # the server did not start; the log says why
    "internal",
)

# A server destroyed within milliseconds of its construction can wait for ever for a loop that has not begun.
SETTLE_S = 0.5

# Our name → where it stands in xllamacpp's parameters, where the two differ.
_ELSEWHERE = {
    "flash_attn": "flash_attn_type",
    "n_threads": "cpuparams.n_threads",
    "n_threads_batch": "cpuparams_batch.n_threads",
    "seed": "sampling.seed",
}
# Words that llama.cpp's own flags use, where they are not the rest of the enumeration's name.
_WORDS = {
    "flash_attn_type": {"on": "ENABLED", "off": "DISABLED"},
    "load_mode": {"mmap+mlock": "MMAP_MLOCK", "dio": "DIRECT_IO"},
}
# What llama-server's own flags allow; the library's enumeration has more, some of which abort the process.
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_ALLOWED = {"cache_type_k": _CACHE_TYPES, "cache_type_v": _CACHE_TYPES}
# What the caller sets by other means.
_RESERVED = {"model": "the model to measure", "port": "the port argument", "hostnames": "nothing: it is 127.0.0.1"}


class SettingError(Exception):
    """A setting that does not exist or does not take this value."""


def apply_settings(params: Any, settings: dict[str, Any]) -> None:
    """Set each on xllamacpp's CommonParams; a dot goes one level down ("sampling.temp"). Raises SettingError."""
    for name, value in settings.items():
        if name in _RESERVED:
            raise SettingError(f"{name!r} is not a setting here; it is set by {_RESERVED[name]}.")
        *above, last = _ELSEWHERE.get(name, name).split(".")
        target = params
        for part in above:
            target = _attribute(target, part, name)
        current = _attribute(target, last, name)
        try:
            setattr(target, last, _converted(name, last, value, current))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise SettingError(f"{name} does not take {value!r}: {error}.") from error


def _attribute(target: Any, attribute: str, name: str) -> Any:
    if attribute.startswith("_") or not hasattr(target, attribute):
        known = [each for each in dir(target) if not each.startswith("_")] + list(_ELSEWHERE)
        near = difflib.get_close_matches(name, known, n=1)
        raise SettingError(f"llama.cpp has no setting {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
    return getattr(target, attribute)


def _converted(name: str, attribute: str, value: Any, current: Any) -> Any:
    """``value`` as the type of ``current``. A binding would take any object for a flag and read it as true."""
    kind = type(current)
    if hasattr(kind, "__members__"):
        return _member(name, attribute, value, kind)
    fits = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, int | float) and not isinstance(value, bool),
        str: isinstance(value, str),
    }
    if not fits.get(kind, True):
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
        raise SettingError(f"{name} takes {wanted}, not {value!r}.")
    return value


def _member(name: str, attribute: str, value: Any, kind: Any) -> Any:
    """The member of an enumeration that ``value`` names: "q8_0" is GGML_TYPE_Q8_0."""
    members = dict(kind.__members__)
    prefix = kind.__name__.upper() + "_"
    words = {member.removeprefix(prefix): member.removeprefix(prefix).lower() for member in members}
    words |= {member: word for word, member in _WORDS.get(attribute, {}).items()}
    by_word = {word: members[prefix + member] for member, word in words.items()}
    allowed = _ALLOWED.get(attribute, tuple(sorted(by_word)))
    word = value.lower() if isinstance(value, str) else None  # None is no value, and not the word "none"
    if word not in allowed:
        raise SettingError(f"{name} does not take {value!r}. It takes: {', '.join(allowed)}.")
    return by_word[word]


def _beside(name: str) -> Any:
    """A part of this worker, from the file beside it. Its folder is never on the module path: other files there have
    the names of the libraries that are needed here."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


heap = _beside("transformers_heap")


class Worker:
    """Holds at most one server."""

    def __init__(self, xllamacpp: Any) -> None:
        self._xllamacpp = xllamacpp
        self._server: Any = None
        self._loaded_at_s = 0.0

    def load(self, model: str, settings: dict[str, Any], port: int) -> str:
        """Start the server; its URL once it listens. Blocks for as long as loading takes."""
        params = self._xllamacpp.CommonParams()
        params.model.path = model
        params.hostnames = ["127.0.0.1"]
        params.port = port
        apply_settings(params, settings)
        self._server = self._xllamacpp.Server(params)
        self._loaded_at_s = time.monotonic()
        return str(self._server.listening_address)

    def unload(self) -> None:
        """Destroy the server: llama.cpp's own release of everything it holds."""
        if self._server is not None:
            time.sleep(max(0.0, self._loaded_at_s + SETTLE_S - time.monotonic()))
            self._server = None


def answer(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """Do one command; its answer."""
    try:
        match command.get("do"):
            case "load":
                url = worker.load(command["model"], command["settings"], command["port"])
                return {"event": "ready", "url": url}
            case "unload":
                worker.unload()
                return {"event": "unloaded"}
            case "heap":
                return {"event": "heap", **heap.heap(), **heap.python_arenas()}
            case unknown:
                return {"event": "error", "kind": "internal", "message": f"unknown command {unknown!r}"}
    except SettingError as error:
        return {"event": "error", "kind": "invalid_settings", "message": str(error)}
    except RuntimeError as error:  # xllamacpp: "Failed to init server, please check the input params."
        return {"event": "error", "kind": "load_failed", "message": str(error)}
    except Exception as error:
        return {"event": "error", "kind": "internal", "message": f"{type(error).__name__}: {error}"}


def _read_commands(commands: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("do") == "exit":
            os._exit(0)  # the system takes everything back; no destructor can hang
        commands.put(command)
    os._exit(1)  # stdin closed: whoever started this has gone


def main() -> None:
    """Serve commands until told to exit."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints belongs to the log
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")

    try:
        import xllamacpp
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        kind = "missing_dependency" if missing else "broken_dependency"
        reply({"event": "error", "kind": kind, "message": str(error)})
        return
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    heap.heap()  # the first call loads what it needs: that is part of the baseline
    heap.python_arenas()
    reply({"event": "started", "version": xllamacpp.__version__, "build": dict(xllamacpp.BUILD_INFO)})
    worker = Worker(xllamacpp)
    while True:
        reply(answer(worker, commands.get()))


if __name__ == "__main__":
    main()
