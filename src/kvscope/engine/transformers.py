"""transformers inside a child process of ours: any causal language model in a folder of its files, or a config.json
alone with random weights.

There is no server and no HTTP: a request is one line to the child, and a token's moment is the child's own clock when
its decode loop had it. ``TokenEvent.at_s`` counts from the moment that line was written.
"""

import importlib.metadata
import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvscope.engine.base import (
    NO_VARIABLES,
    Capabilities,
    ChatRequest,
    ContextLimit,
    EngineReport,
    Generation,
    Load,
    LoadResult,
    Message,
    Read,
    ReportedBuffer,
    ScoreRequest,
    TokenEvent,
    TokenScores,
)
from kvscope.engine.openai_text import check_text
from kvscope.engine.process import LOG_TAIL_LINES, EngineProcess, python_command
from kvscope.engine.registry import EngineChoice
from kvscope.engine.statistics import STATISTICS
from kvscope.engine.stop_texts import StopTexts, cut_at_stop
from kvscope.engine.transformers_errors import worker_error
from kvscope.engine.transformers_scores import check_score, read_scores
from kvscope.engine.transformers_settings import checked_settings
from kvscope.engine.transformers_text import TransformersText
from kvscope.errors import (
    ContextOverflow,
    EngineDied,
    EngineModelError,
    EngineStalled,
    EngineStartFailed,
    EngineTimeout,
    MissingDependency,
    ModelNotFound,
    OutOfMemory,
    UsageError,
)
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue
from kvscope.units import MIB

NAME = "transformers"
START_TIMEOUT_S = 180.0
LOAD_TIMEOUT_S = 1800.0
SHORT_TIMEOUT_S = 60.0
_WORKER = Path(__file__).with_name("transformers_worker.py")
# Nothing is fetched: a model is what its folder holds. Tokenizers here have no threads of their own to fork.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
_PICKLED = (".bin", ".pt", ".pth")
# What the worker counts of its cache, by the names of engine.statistics.
_RENAMED = {"cache_shape_bytes": "cache_tensor_bytes"}
# Enough decimals that a number of bytes can be told from its neighbours.
_MIB_DECIMALS = 7


class TransformersEngine:
    """See ``kvscope.engine.base`` for the order of calls. ``settings``: cache_implementation (dynamic, dynamic_full,
    static with max_cache_len, quantized with backend, nbits, q_group_size and residual_length, offloaded,
    offloaded_static), dtype, device, attn_implementation, prefill_chunk_tokens, num_threads, random_weights."""

    name = NAME
    capabilities = Capabilities(
        baseline_before_load=True,
        can_unload=True,
        counts_prompt_tokens=True,
        reports_prompt_tokens=True,
        reports_cached_tokens=True,
        reports_timings=True,
        reports_buffers=True,
        has_pid=True,
        can_clear_cache=True,
        completes_text=True,
        scores_tokens=True,
        unload_way="del, then gc.collect(); on a GPU torch.cuda.empty_cache()",
    )
    # How long each step of stopping is given: told to end, SIGTERM, SIGKILL.
    stop_grace_s = 5.0

    def __init__(self, *, model: ModelSpec, settings: Mapping[str, SettingValue]) -> None:
        self._model = model
        self._folder = model_folder(model)
        self.settings: Mapping[str, SettingValue] = {"dtype": model.dtype or "float32", **checked_settings(settings)}
        self._process: EngineProcess | None = None
        self._text: TransformersText | None = None
        self._numbers = count(1)
        self._version = "unknown"

    # --- life -----------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the child; torch, transformers and the code of the model's class are imported in it, and no model is
        loaded. Raises MissingDependency, EngineNotFound (a package is there but does not work)."""
        self._process, started = _start_worker()
        self._version = f"{started['version']}"
        self._ask({"do": "prepare", "folder": str(self._folder)}, START_TIMEOUT_S, doing="importing the model's class")

    def load(self) -> EngineReport:
        """Load the model. Raises InvalidSettings, MissingDependency, EngineModelError, OutOfMemory, EngineTimeout,
        EngineDied."""
        self._running()
        self._check_weights()
        text = TransformersText(self._folder, vocab_size=self._model.vocab_size)
        given = {**self.settings, "random_weights": self._is_random()}
        command = {"do": "load", "folder": str(self._folder), "settings": given, "tokenizer": text.in_worker}
        try:
            loaded = self._ask(command, LOAD_TIMEOUT_S, doing="loading the model")
        except EngineTimeout:
            self.stop()
            raise
        self._text = text
        return self._report(loaded)

    def unload(self) -> None:
        """``del`` of the model and its cache, a collection of Python's, and torch's cache of a GPU given back; the
        child lives on. What the C library's allocator keeps is not trimmed."""
        self._text = None
        self._ask({"do": "unload"}, SHORT_TIMEOUT_S, doing="giving up its model")

    def stop(self) -> None:
        """End the child: told to exit, then by force. Safe to call twice and at any moment."""
        self._text = None
        if self._process is not None:
            self._process.stop(farewell=json.dumps({"do": "exit"}), grace_s=self.stop_grace_s)

    def pids(self) -> tuple[int, ...]:
        """The child while it runs."""
        process = self._process
        return (process.pid,) if process is not None and process.pid is not None and process.alive() else ()

    def memory_probe(self) -> None:
        """None: the process is there to be watched."""

    # --- answering ------------------------------------------------------------------------------------------------

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Ids that the model would be given for the conversation, chat template included."""
        return len(self._loaded().ids(messages, tools, template_variables, self._encode))

    def generate(self, request: ChatRequest) -> Generation:
        """Answer one request by greedy decoding. Raises ContextOverflow, OutOfMemory, EngineTimeout, EngineStalled,
        EngineDied, ServerError (transformers raised something else)."""
        ids = self._prompt_ids(request)
        room = self._room(len(ids))
        number = next(self._numbers)
        command = {
            "do": "generate",
            "request": number,
            "ids": ids,
            "max_tokens": request.max_output_tokens if room is None else min(request.max_output_tokens, room),
            "ignore_end": request.ignore_end,
            "reuse": request.reuse_prefix,
            "stop": list(request.stop),
        }
        begun_s = time.monotonic()
        self._running().send(json.dumps(command))
        answer = _Answer(begun_s=begun_s, sent_s=time.monotonic())
        # Where the tokenizer is the child's, the child itself ends at a stop text.
        text = self._loaded()
        stream = text.pieces() if request.stop and not text.in_worker else None
        watch = StopTexts(request.stop)
        while not answer.done:
            message = self._next(number, request, answer)
            answer.note(message)
            if stream is not None and not answer.done and watch.add(stream.add(message["id"])):
                self._running().send(json.dumps({"do": "cancel", "request": number}))
        return self._generation(answer, len(ids), request.stop)

    def generate_many(self, load: Load) -> LoadResult:
        """Not done: UsageError is raised. The library computes one batch from begin to end and takes nothing in
        between; it has no queue of its own that could be measured."""
        raise UsageError(
            "transformers answers one request at a time: it has no server that takes several at once.",
            hint="Measure it with --concurrency 1, or several at once on llama.cpp, vLLM or a running server (--url).",
        )

    def _next(self, number: int, request: ChatRequest, answer: "_Answer") -> dict[str, Any]:
        """The next message about this request. A request that takes too long is told to end."""
        left_s = answer.sent_s + request.timeout_s - time.monotonic()
        wait_s = min(left_s, request.stall_s) if answer.tokens else left_s
        try:
            return self._answer(number, max(wait_s, 0.0), doing="answering")
        except EngineTimeout as error:
            self._running().send(json.dumps({"do": "cancel", "request": number}))
            evidence = {"known_by": "message", "pieces_received": len(answer.tokens)}
            if wait_s < left_s:
                raise EngineStalled(
                    f"transformers gave {len(answer.tokens)} tokens and then none for {request.stall_s:g} s.",
                    hint="A step takes longer than that, or the process hangs. Its log is kept with the trial.",
                    evidence=evidence,
                ) from error
            raise EngineTimeout(
                f"transformers had not answered after {request.timeout_s:g} s ({len(answer.tokens)} tokens came).",
                hint="Give it more time, a shorter prompt or a shorter answer.",
                evidence=evidence,
            ) from error
        except (EngineDied, OutOfMemory) as error:
            error.evidence["pieces_received"] = len(answer.tokens)
            raise

    def _generation(self, answer: "_Answer", prompt_tokens: int, stop: tuple[str, ...]) -> Generation:
        pieces = self._pieces([token_id for _, token_id in answer.tokens])
        cut = cut_at_stop(pieces, stop)
        if cut is not None:
            answer.end_after(len(cut))
            pieces = cut
        done = answer.done
        return Generation(
            # One for each token: one that only began a character has no text, and its time all the same.
            events=tuple(
                TokenEvent(at_s=at_s, text=piece, kind="content" if piece else "token")
                for (at_s, _), piece in zip(answer.tokens, pieces, strict=True)
            ),
            reads=tuple(Read(at_s=at_s, num_bytes=num_bytes, num_events=1) for at_s, num_bytes in answer.lines),
            completed_s=max(done["at_s"] - answer.sent_s, 0.0),
            prompt_tokens=prompt_tokens,
            cached_tokens=done["cached_tokens"],
            output_tokens=done["output_tokens"],
            finish_reason=done["finish_reason"],
            engine_timings={"prompt_ms": done["prompt_ms"], "predicted_ms": done["predicted_ms"]},
            prompt_tokens_from="the ids that transformers was given",
        )

    def _pieces(self, ids: list[int]) -> list[str]:
        """What each token adds to the text."""
        text = self._loaded()
        if text.in_worker:
            found = self._ask({"do": "pieces", "ids": ids}, SHORT_TIMEOUT_S, doing="decoding")["texts"]
            return [str(piece) for piece in found]
        stream = text.pieces()
        pieces = [stream.add(token_id) for token_id in ids]
        pieces[-1] += stream.rest()
        return pieces

    def _encode(self, text: str, *, with_special: bool = False) -> Sequence[int]:
        command = {"do": "encode", "text": text, "with_special": with_special}
        ids: list[int] = self._ask(command, SHORT_TIMEOUT_S, doing="encoding")["ids"]
        return ids

    def _prompt_ids(self, request: ChatRequest) -> tuple[int, ...]:
        check_text(request)
        if request.text is not None:
            return self.tokenize(request.text, with_special=True)
        return self._loaded().ids(request.messages, request.tools, request.template_variables, self._encode)

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """As ``Engine.tokenize``, by the model's tokenizer; each byte is one token where it has none."""
        encode = partial(self._encode, with_special=with_special)
        return self._loaded().text_ids(text, encode, with_special=with_special)

    def score(self, request: ScoreRequest) -> TokenScores:
        """As ``Engine.score``, from the model's logits: the prompt in one pass, then one token a pass; ``is_fresh``:
        all in one pass. Raises UsageError, ContextOverflow, EngineTimeout, EngineReplyError, EngineDied."""
        self._loaded()
        check_score(request, vocab_size=self._model.vocab_size)
        self._room(len(request.prompt) + len(request.continuation) - 1)
        number = next(self._numbers)
        ids = {"prompt": request.prompt, "continuation": request.continuation}
        command = {"do": "score", "request": number, **ids, "num_top": request.num_top, "fresh": request.is_fresh}
        self._running().send(json.dumps(command))

        def receive() -> Mapping[str, Any]:
            try:
                return self._answer(number, request.timeout_s, doing="scoring a text")
            except EngineTimeout:
                self._running().send(json.dumps({"do": "cancel", "request": number}))
                raise

        return read_scores(receive, request, version=self._version)

    def _room(self, prompt_tokens: int) -> int | None:
        """Output tokens that there is place for; None: no limit is known. Raises ContextOverflow."""
        limit = self._limit()
        if limit is None:
            return None
        if prompt_tokens > limit.tokens:
            raise ContextOverflow(
                f"The prompt has {prompt_tokens} tokens; one sequence may hold {limit.tokens} ({limit.source}).",
                hint="Shorten the prompt, or use a model or a static cache that is made for more.",
                evidence={"known_by": "message"},
            )
        # The last output token is never fed back.
        return limit.tokens - prompt_tokens + 1

    def _limit(self) -> ContextLimit | None:
        places = self.settings.get("max_cache_len")
        trained = self._model.trained_context_tokens
        if isinstance(places, int) and (trained is None or places <= trained):
            return ContextLimit(tokens=places, source="max_cache_len, the places of the static cache")
        if trained is None:
            return None
        return ContextLimit(tokens=trained, source="config.json: the context that the model was made for")

    # --- what it says of itself -----------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, float]:
        """Bytes of the cache's own tensors and of the storages behind them, what the C library's allocator holds, what
        torch's holds on a GPU (peaks: of the last request), tokens and seconds since launch."""
        said = self._ask({"do": "statistics"}, SHORT_TIMEOUT_S, doing="counting")
        named = {_RENAMED.get(name, name): value for name, value in said.items()}
        return {name: float(value) for name, value in named.items() if name in STATISTICS}

    def cache_tensors(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """(name, shape, dtype) of every tensor in the cache of the last request."""
        said = self._ask({"do": "held"}, SHORT_TIMEOUT_S, doing="listing its cache")
        return tuple((name, tuple(shape), dtype) for name, shape, dtype in said["tensors"])

    def clear_cache(self) -> str | None:
        """Drop the cache of the last request."""
        self._ask({"do": "clear"}, SHORT_TIMEOUT_S, doing="dropping its cache")
        return None

    def host_cache(self) -> ReportedBuffer | None:
        """None: there is no other cache than the last request's."""
        return None

    def checkpoints(self) -> tuple[ReportedBuffer, ...]:
        """None: nothing is copied."""
        return ()

    def active_requests(self) -> int | None:
        """0: a request is over when ``generate`` returns."""
        return 0

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of what the child and its libraries printed."""
        return "" if self._process is None else self._process.log_tail(lines)

    def _check_weights(self) -> None:
        """Raises EngineModelError where there are weights, but in files that can run code of their own when read."""
        pickled = [path.name for suffix in _PICKLED for path in self._folder.glob(f"*{suffix}")]
        if pickled and not _has_weights(self._folder) and "random_weights" not in self.settings:
            raise EngineModelError(
                f"The weights in {self._folder} are pickled ({pickled[0]}), and such files are not read.",
                hint="Convert them to safetensors, or set random_weights=true where only memory and times matter.",
            )

    def _is_random(self) -> bool:
        asked = self.settings.get("random_weights")
        return bool(asked) if asked is not None else not _has_weights(self._folder)

    def _report(self, loaded: Mapping[str, Any]) -> EngineReport:
        limit = self._limit()
        notes = ["Greedy decoding in a loop of kvscope's own; no HTTP is in the times.", *self._loaded().notes]
        if self._is_random():
            notes.append("The weights are random (seed 0): memory and times are the model's, its answers mean nothing.")
        if not loaded["keeps_last_logits_only"]:
            notes.append(
                "The class computes the logits of every prompt token: vocabulary × tokens at the prefill's peak."
            )
        return EngineReport(
            version=self._version,
            build=build(),
            buffers=(_buffer("weights", "parameters", loaded["weights_bytes"]),),
            effective={
                **{name: loaded[name] for name in ("class", "attn_implementation", "num_threads")},
                "dtype": ", ".join(loaded["dtypes"]),
                "device": self.settings.get("device", "cpu"),
                "cache_implementation": self.settings.get("cache_implementation", "dynamic"),
                "context_tokens": None if limit is None else limit.tokens,
                "weights_bytes": loaded["weights_bytes"],
                "module_buffers_bytes": loaded["module_buffers_bytes"],
                "random_weights": self._is_random(),
            },
            slots=(),
            notes=tuple(notes),
            context_limit=limit,
        )

    # --- the child ------------------------------------------------------------------------------------------------

    def _running(self) -> EngineProcess:
        if self._process is None or self._process.pid is None:
            raise EngineStartFailed("The engine is not running.", hint="Call launch() first.")
        return self._process

    def _loaded(self) -> TransformersText:
        self._running()
        if self._text is None:
            raise EngineStartFailed("The engine has no model loaded.", hint="Call load() first.")
        return self._text

    def _ask(self, command: Mapping[str, Any], timeout_s: float, *, doing: str) -> dict[str, Any]:
        number = next(self._numbers)
        self._running().send(json.dumps({**command, "request": number}))
        return self._answer(number, timeout_s, doing=doing)

    def _answer(self, number: int, timeout_s: float, *, doing: str) -> dict[str, Any]:
        """The next message about command ``number``; what still comes of earlier ones is passed over."""
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            message: dict[str, Any] = json.loads(self._running().receive(left_s, doing=doing))
            if message.get("request") == number:
                break
        if message["event"] == "error":
            raise worker_error(message, doing=doing, device=str(self.settings.get("device", "cpu")))
        return message


class _Answer:
    """One answer as it comes. ``tokens``: (moment, id) of each; ``lines``: when kvscope read of it, and in how many
    bytes; ``done``: the last message. ``begun_s``, ``sent_s``: just before the request was written, and just after."""

    def __init__(self, *, begun_s: float, sent_s: float) -> None:
        self.begun_s = begun_s
        self.sent_s = sent_s
        self.tokens: list[tuple[float, int]] = []
        self.lines: list[tuple[float, int]] = []
        self.done: dict[str, Any] = {}

    def note(self, message: dict[str, Any]) -> None:
        if message["event"] == "done":
            self.done = message
            return
        if not self.tokens and message["at_s"] <= self.sent_s:
            # kvscope was put aside before it could look at the clock: the request had gone out earlier.
            self.sent_s = self.begun_s
        self.tokens.append((max(message["at_s"] - self.sent_s, 0.0), message["id"]))
        self.lines.append((time.monotonic() - self.sent_s, len(json.dumps(message)) + 1))

    def end_after(self, number: int) -> None:
        """Only the first ``number`` tokens are of the answer, which ended with them: what came before the child heard
        of it is not."""
        self.tokens, self.lines = self.tokens[:number], self.lines[:number]
        ended = {"at_s": self.sent_s + self.tokens[-1][0], "output_tokens": number, "finish_reason": "stop"}
        self.done = {**self.done, **ended}


def model_folder(model: ModelSpec) -> Path:
    """The folder that transformers is given, or the config.json alone where it has another name. Raises ModelNotFound
    for a model that is not in files here that transformers reads."""
    path = Path(model.source).expanduser()
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.suffix == ".json" and path.name != "config.json":
        return path
    if not path.exists() or not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"transformers runs a folder with a config.json, and {model.name} was read from {model.source}.",
            hint="Pass the folder that its config.json and safetensors are in, downloaded beforehand.",
        )
    return folder


def _has_weights(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.safetensors*"))


def _buffer(component: str, name: str, num_bytes: int) -> ReportedBuffer:
    printed = f"{num_bytes / MIB:.{_MIB_DECIMALS}f}"
    return ReportedBuffer(component=component, name=name, printed_mib=printed, line=f"{name}: {num_bytes} bytes")


def build() -> str:
    """The torch that carries it, such as "torch 2.13.0+cpu"; nothing is imported."""
    try:
        return f"torch {importlib.metadata.version('torch')}"
    except importlib.metadata.PackageNotFoundError:
        return "torch unknown"


def check(choice: EngineChoice) -> None:
    """Raises MissingDependency where torch or transformers is not installed."""
    for package in ("torch", "transformers"):
        try:
            found = importlib.util.find_spec(package)
        except ImportError:  # an import hook of the user's own may refuse a package by raising
            found = None
        if found is None:
            raise MissingDependency("Running transformers", "transformers", package)


def version(choice: EngineChoice) -> tuple[str, str]:
    """(transformers' version, torch's), nothing being imported. Raises as ``check``."""
    check(choice)
    return importlib.metadata.version("transformers"), build()


def create(choice: EngineChoice, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> TransformersEngine:
    """An engine that is not launched. Raises as ``check``, and ModelNotFound."""
    check(choice)
    if model is None:
        raise ModelNotFound("transformers is started with a model, and none was given.", hint="Give --model FOLDER.")
    return TransformersEngine(model=model, settings=settings)


def try_start(choice: EngineChoice) -> str:
    """Start the child and end it again: whether torch and transformers work here. Their version."""
    process, started = _start_worker()
    process.stop(farewell=json.dumps({"do": "exit"}))
    return f"{started['version']} (torch {started['torch']})"


def _start_worker() -> tuple[EngineProcess, dict[str, Any]]:
    process = EngineProcess(python_command(_WORKER), name=NAME, talks=True, environment=_ENVIRONMENT)
    process.start()
    try:
        message: dict[str, Any] = json.loads(process.receive(START_TIMEOUT_S, doing="starting"))
        if message["event"] == "error":
            limits = process.memory_limits()
            raise worker_error(message, doing="starting", device="cpu", memory_limits=limits)
        return process, message
    except BaseException:
        process.stop()
        raise
