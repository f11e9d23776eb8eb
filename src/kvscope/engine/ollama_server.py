"""What an Ollama server says of itself, its models and what it holds: /api/version, /api/tags, /api/show, /api/ps."""

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvscope.engine.http_client import CONNECT_TIMEOUT_S, Limits, run
from kvscope.engine.listening import ProcessIdentity, identify, pid_of_port
from kvscope.engine.ollama_errors import NOT_OLLAMA_HINT
from kvscope.engine.ollama_http import get_json, post_json, version_numbers
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    EngineError,
    EngineModelError,
    EngineNotFound,
    EngineReplyError,
    EngineStalled,
    EngineTimeout,
    InvalidSettings,
    KvscopeError,
    ProbeUnavailable,
)
from kvscope.model.ollama_store import PREFIX, find_stored

if TYPE_CHECKING:
    from kvscope.prompt.tokenizers.base import Tokenizer

# Releases from which on something is so (history of ollama/ollama).
COUNTS_WHOLE_PROMPT = (0, 4, 0)  # prompt_eval_count; before, without what was cached
LEAVES_CACHED_OUT = (0, 30, 0)  # this one release too: llama-server's prompt_n alone (#16428 added its cache_n)
REFUSES_LONG_PROMPTS = (0, 12, 6)  # "truncate" and "shift" of a chat request (#12582)
# "cache_prompt" of its llama-server was the request's "shift" in these, and kvscope asks for none.
REUSES_NOTHING_UNSHIFTED = ((0, 30, 0), (0, 30, 8))
_LISTED = 20
_MOST = 2**63 - 1  # a record holds no larger number


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A model that Ollama holds now, as /api/ps lists it. None: this release does not state it. ``context_tokens`` is
    for one sequence (context_length, since 0.10); how many it holds at once is not said."""

    name: str
    total_bytes: int | None
    device_bytes: int | None
    context_tokens: int | None
    expires_at: str | None


class OllamaServer:
    """Questions to a server. Each raises an EngineError where it does not answer as Ollama does."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.version = ""

    def ask_version(self, limits: Limits | None = None) -> str:
        """What /api/version says, kept as ``version``."""
        version = run(get_json(f"{self.url}/api/version", limits=limits)).get("version")
        if not isinstance(version, str) or not version:
            raise EngineReplyError(f"The server at {self.url} does not state Ollama's version.", hint=NOT_OLLAMA_HINT)
        self.version = version
        return version

    def has(self, since: tuple[int, int, int]) -> bool:
        """Whether its version is ``since`` or newer; False where that is not known (a build from source)."""
        numbers = version_numbers(self.version)
        return numbers is not None and numbers >= since

    @property
    def may_refuse_long_prompts(self) -> bool:
        """Whether it may heed "truncate": releases that do not know it pass it over, as all they do not know."""
        return version_numbers(self.version) is None or self.has(REFUSES_LONG_PROMPTS)

    @property
    def counts_whole_prompt(self) -> bool:
        """Whether its prompt_eval_count is the whole prompt."""
        return self.has(COUNTS_WHOLE_PROMPT) and version_numbers(self.version) != LEAVES_CACHED_OUT

    def find_model(self, name: str) -> Mapping[str, Any]:
        """The model as /api/tags lists it. Raises EngineModelError where it is not there, with the nearest name,
        and InvalidSettings for one of Ollama's cloud."""
        found = {str(model.get("name")): model for model in self._listed("tags")}
        wanted = full_name(name)
        for listed, model in found.items():
            if full_name(listed) == wanted:
                _check_is_here(listed, model)
                return model
        near = difflib.get_close_matches(wanted, found, n=1, cutoff=0.3)
        nearest = f"Did you mean {near[0]}? " if near else ""
        has = f"It has: {', '.join(sorted(found)[:_LISTED])}." if found else "It has no models."
        raise EngineModelError(
            f"Ollama at {self.url} does not have the model {name}.", hint=f"{nearest}{has} Get it: ollama pull {name}"
        )

    def show(self, name: str) -> Mapping[str, Any]:
        """/api/show: its details, its header's keys, its parameters."""
        return run(post_json(f"{self.url}/api/show", {"model": name}))

    def held(self, name: str) -> Held | None:
        """The model as Ollama holds it now; None where it does not."""
        wanted = full_name(name)
        return next((held for held in self.all_held() if full_name(held.name) == wanted), None)

    def all_held(self) -> list[Held]:
        """Every model that it holds now."""
        return [_held_model(model) for model in self._listed("ps")]

    def _listed(self, what: str) -> list[Mapping[str, Any]]:
        models = run(get_json(f"{self.url}/api/{what}")).get("models")
        if models is not None and not isinstance(models, list):
            raise EngineReplyError(f"The server at {self.url} lists no models.", hint=NOT_OLLAMA_HINT)
        return [model for model in models or () if isinstance(model, Mapping)]

    def ask_without_prompt(self, body: Mapping[str, Any], timeout_s: float) -> None:
        """A chat without messages: it loads the model, or with keep_alive 0 unloads it (docs/api.md)."""
        limits = Limits(timeout_s=timeout_s, stall_s=timeout_s)
        run(post_json(f"{self.url}/api/chat", {**body, "messages": [], "stream": False}, limits=limits))

    def render(self, body: Mapping[str, Any]) -> str:
        """The prompt that a chat request makes, in the model's own template, without computing it: an option for
        debugging that is in no document (``_debug_render_only``, since 0.11.5)."""
        found = run(post_json(f"{self.url}/api/chat", {**body, "stream": False, "_debug_render_only": True}))
        text = (found.get("_debug_info") or {}).get("rendered_template")
        if not isinstance(text, str):
            raise EngineReplyError("Ollama did not render the prompt.", hint=NOT_OLLAMA_HINT)
        return text


def _check_is_here(name: str, model: Mapping[str, Any]) -> None:
    remote = model.get("remote_host")
    if isinstance(remote, str) and remote:
        raise InvalidSettings(
            f"{name} runs at {remote}, not on this server: nothing of it is held here, so there is nothing to measure.",
            hint="Measure a model that was pulled whole; `ollama list` shows a size for those.",
        )


def which_ollama(url: str, timeout_s: float) -> tuple[str, str]:
    """(version, where it answers). Raises EngineNotFound, which tells one that is not there from one that is slow."""
    limits = Limits(timeout_s=timeout_s, stall_s=timeout_s, connect_s=min(timeout_s, CONNECT_TIMEOUT_S))
    hint = "Start it (`ollama serve`), or give its address with --url or OLLAMA_HOST."
    try:
        return OllamaServer(url).ask_version(limits), url
    except EngineError as error:
        match error:
            case ConnectionRefused():
                why = f"No Ollama answers at {url}."
            case EngineTimeout() | EngineStalled():
                why = f"{url} did not say within {timeout_s:g} s which Ollama it is: {error.message}"
                hint = "It may be busy, or out of reach: try again, or look with `ollama ps`."
            case ConnectionLost():
                why = f"Whether Ollama is at {url} is not known: {error.message}"
            case _:
                why = f"{url} is no Ollama: {error.message}"
        raise EngineNotFound(why, hint=hint) from error


def server_process(url: str, asked: int | None) -> tuple[ProcessIdentity | None, str | None]:
    """The process to watch, or why there is none. Raises InvalidSettings for a process id that is nobody's."""
    if asked is not None:
        found = identify(asked)
        if found is None:
            raise InvalidSettings(
                f"There is no process {asked}.", hint="Give the id of the Ollama server, or leave it."
            )
        return found, None
    parts = urlsplit(url)
    try:
        return pid_of_port(parts.hostname or "127.0.0.1", parts.port or 80), None
    except ProbeUnavailable as error:
        return None, error.message


def full_name(name: str) -> str:
    """A model's name with its tag, as Ollama lists it: "llama3.2" is "llama3.2:latest"."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def own_tokenizer(served_model: str, model: Mapping[str, Any]) -> "Tokenizer | None":
    """The tokenizer in the model's file, where the store on this machine holds the very model that the server has: a
    model's digest is that of its manifest. None otherwise, or where its rules are not known to be followed."""
    from kvscope.prompt.tokenizers.load import load_tokenizer

    try:
        stored = find_stored(PREFIX + served_model)
        found = hashlib.sha256(stored.manifest.read_bytes()).hexdigest()
        if found != str(model.get("digest") or "").removeprefix("sha256:"):
            return None
        return load_tokenizer(str(stored.blobs("model")[0]))
    except (KvscopeError, OSError, IndexError):
        return None


def _held_model(model: Mapping[str, Any]) -> Held:
    def number(name: str) -> int | None:
        value = model.get(name)
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        return value if is_number else None

    expires_at = model.get("expires_at")
    return Held(
        name=str(model.get("name")),
        total_bytes=number("size"),
        device_bytes=number("size_vram"),
        context_tokens=number("context_length") or None,  # 0 is none that could hold a prompt
        expires_at=expires_at if isinstance(expires_at, str) else None,
    )
