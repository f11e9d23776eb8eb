"""A running engine to watch, found by its address, its port or its process; everything here only reads.

What an engine is, is asked of it by GET requests that change nothing, and read from its process: its command line, the
files it has open. A process is the one that was found only as long as its start time is the same.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from kvscope.engine.http_client import Limits, request, run
from kvscope.engine.listening import (
    ProcessIdentity,
    addresses_of,
    identify,
    is_in_line,
    pid_of_port,
    process_name,
)
from kvscope.engine.server_address import server_url
from kvscope.errors import EngineError, ProbeLost, ProbeUnavailable, UsageError
from kvscope.probe.machine_memory import PROC

_ASK = Limits(timeout_s=5.0, stall_s=5.0, connect_s=5.0)
# What a server answers to GET, and whose answer it is. The first that fits decides.
_SIGNS = (
    ("/props", '"default_generation_settings"', "llama.cpp"),
    ("/api/version", '"version"', "ollama"),
    ("/metrics", "vllm:", "vllm"),
    ("/metrics", "sglang:", "sglang"),
    ("/metrics", "llamacpp:", "llama.cpp"),
    ("/get_model_info", '"model_path"', "sglang"),
)
_LOG_FLAG = "--log-file"
_LOG_VARIABLE = "LLAMA_ARG_LOG_FILE"
# Names of programs that run a model, by a part of their command line.
_PROGRAMS = (("llama-server", "llama.cpp"), ("vllm", "vllm"), ("sglang", "sglang"), ("ollama", "ollama"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``url`` None: no address is known, so only its memory can be seen. ``process`` None: it cannot be seen, for the
    reason ``no_process``. ``engine`` None: not recognised. ``log_path``: the file that it logs to, where that is one
    that can be read. ``environment``: of its variables those that are llama-server's settings; None where they may not
    be read."""

    url: str | None
    process: ProcessIdentity | None
    engine: str | None
    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    log_path: Path | None = None
    no_process: str | None = None

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def check(self, proc: Path = PROC) -> None:
        """Raises ProbeLost when the process has gone, or its number belongs to another one now."""
        if self.process is not None and identify(self.process.pid, proc) != self.process:
            raise ProbeLost(
                f"Process {self.pid} ({self.name}) has ended.", hint="What was seen until then is kept. Start again."
            )


def find_target(
    *, url: str | None = None, port: int | None = None, pid: int | None = None, proc: Path = PROC
) -> Target:
    """The engine at an address, on a port of this machine, or in a process. Raises UsageError where nothing of the
    kind is there or where both are given and are not the same; EngineError where it does not answer."""
    if url is None and port is None and pid is None:
        raise UsageError("Nothing to watch was named.", hint="Give an address, --port N or --pid N.")
    if url is not None and port is not None:
        raise UsageError("An address and --port were given.", hint="Give one of them: the address may hold the port.")
    if port is not None:
        url = f"http://127.0.0.1:{port}"
    process = None if pid is None else _existing(pid, proc)
    why_none = None
    if url is not None:
        url = _checked(url)
        if process is None:
            process, why_none = _process_behind(url, proc)
        else:
            _check_same(process.pid, url, proc)
        engine = _recognised(url)
    else:
        assert process is not None
        url, engine = _address_of(process.pid, proc)
    if process is None:
        return Target(url=url, process=None, engine=engine, name=str(url), no_process=why_none)
    return target_of(process, url, engine, proc)


def target_of(process: ProcessIdentity, url: str | None, engine: str | None, proc: Path = PROC) -> Target:
    """A process that is known to be the engine's, with what can be read of it."""
    command, environment = _command(process.pid, proc), _environment(process.pid, proc)
    return Target(
        url=url,
        process=process,
        engine=engine or _by_command(command),
        name=process_name(process.pid, proc),
        command=command,
        environment=environment,
        log_path=_log_path(process.pid, command, environment or {}, proc),
    )


def _checked(url: str) -> str:
    """As ``server_address.server_url``, and a host and port alone are enough. An address is printed and recorded, so
    one that holds a password or a key is refused."""
    if "://" not in url:
        url = f"http://{url}"
    checked = server_url(url)
    if re.search(r"\s", checked):
        raise UsageError(f"{url!r} is not an address.", hint="Write it as http://HOST:PORT.")
    return checked


def _recognised(url: str) -> str | None:
    """Which engine answers. Raises EngineError when nothing does."""
    for path, sign, engine in _SIGNS:
        reply = run(request("GET", f"{url}{path}", limits=_ASK))
        if reply.status == 200 and sign.encode() in reply.body:
            return engine
    return None


def _process_behind(url: str, proc: Path) -> tuple[ProcessIdentity | None, str | None]:
    """The process that answers there, or why it cannot be seen."""
    try:
        return pid_of_port(*_host_and_port(url), proc), None
    except ProbeUnavailable as error:
        return None, error.message


def _check_same(pid: int, url: str, proc: Path) -> None:
    """Raises UsageError where another process answers there. Where it is not to be seen who does (a container's, a
    proxy's, another machine's), the person who named the process knows."""
    host, port = _host_and_port(url)
    try:
        listener = pid_of_port(host, port, proc).pid
    except ProbeUnavailable:
        return
    if not is_in_line(pid, listener, proc):
        raise UsageError(
            f"Process {pid} ({process_name(pid, proc)}) is not what answers at {url}: "
            f"process {listener} ({process_name(listener, proc)}) is.",
            hint=f"Leave --pid out, or give --pid {listener}, or --pid {pid} alone.",
        )


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)


def _address_of(pid: int, proc: Path) -> tuple[str | None, str | None]:
    """The first address of the process at which it answers like an engine; None where it does at none."""
    for host, port in addresses_of(pid, proc):
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        try:
            engine = _recognised(url)
        except EngineError:
            continue
        if engine is not None:
            return url, engine
    return None, None


def _existing(pid: int, proc: Path) -> ProcessIdentity:
    found = identify(pid, proc)
    if found is None:
        raise UsageError(f"There is no process {pid}.", hint="See `ps -e`, or name its port: --port N.")
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return found
    if "\nVmRSS:" not in status:
        raise UsageError(
            f"Process {pid} ({process_name(pid, proc)}) is the kernel's own and has no memory to look at.",
            hint="See `ps -e`, or name the engine's port: --port N.",
        )
    return found


def _command(pid: int, proc: Path) -> tuple[str, ...]:
    try:
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ()
    return tuple(word for word in text.split("\0") if word)


def _environment(pid: int, proc: Path) -> Mapping[str, str] | None:
    try:
        text = (proc / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    variables = (word.partition("=") for word in text.split("\0"))
    return {name: value for name, _, value in variables if name.startswith("LLAMA_ARG_")}


def _by_command(command: tuple[str, ...]) -> str | None:
    words = " ".join(Path(word).name for word in command[:4])
    return next((engine for part, engine in _PROGRAMS if part in words), None)


def _log_path(pid: int, command: tuple[str, ...], environment: Mapping[str, str], proc: Path) -> Path | None:
    """The regular file that it writes its log to: named on its command line or in its environment, else where its
    stderr or stdout goes."""
    named = [after for word, after in pairwise(command) if word == _LOG_FLAG]
    named += [environment[_LOG_VARIABLE]] if environment.get(_LOG_VARIABLE) else []
    for path in [*(_within(pid, name, proc) for name in named), *(proc / str(pid) / "fd" / n for n in ("2", "1"))]:
        try:
            if stat.S_ISREG(path.stat().st_mode) and os.access(path, os.R_OK):
                return path
        except OSError:
            continue
    return None


def _within(pid: int, name: str, proc: Path) -> Path:
    """A path as that process means it: from its own working directory."""
    return proc / str(pid) / "cwd" / name


def command_settings(command: tuple[str, ...]) -> Mapping[str, str | bool]:
    """The flags of a command line as settings, by the flag's own words ("--ctx-size 8192" is ctx_size: "8192"). A flag
    without a value is true, one that begins with "no-" is kept by that name."""
    found: dict[str, str | bool] = {}
    words = list(command)
    for place, word in enumerate(words):
        if not re.fullmatch(r"--?[A-Za-z][A-Za-z0-9-]*(=.*)?", word):
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        name = flag.replace("-", "_")
        if equals:
            found[name] = value
            continue
        after = words[place + 1] if place + 1 < len(words) else None
        is_value = after is not None and (not after.startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", after))
        found[name] = after if is_value and after is not None else True
    return found
