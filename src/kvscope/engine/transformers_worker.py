"""The child process that hosts transformers: torch and the model live here and never in kvscope's own process.

It is run as a plain file and imports nothing of kvscope: what it holds before a model is loaded (Python, torch,
transformers, the code of the model's class) is the baseline of every memory measurement.

Commands come on stdin, one JSON object a line; answers go to stdout the same way. The log is stderr.

    → (start)                             ← {"event": "started", "version": ..., "torch": ..., "build": ...}
    → {"do": "prepare", "folder": PATH}   ← {"event": "prepared"}            the code of the model's class is imported
    → {"do": "load", "folder": PATH, "settings": {...}, "tokenizer": false}
                                          ← {"event": "ready", ...}
    → {"do": "generate", "ids": [...], "max_tokens": 8, "ignore_end": true, "reuse": false,
       "stop": []}                        (texts, heeded with a tokenizer only)
                                          ← {"event": "token", "at_s": ..., "id": 17} once a token
                                          ← {"event": "done", "finish_reason": "length", ...}
    → {"do": "score", "prompt": [...], "continuation": [...], "num_top": 1, "fresh": false}
                                          ← {"event": "scored", "id": 17, "logprob": -0.3, ...} once a token
                                          ← {"event": "done", "computed_tokens": ...}
    → {"do": "cancel", "request": 1}      (read at once; the request ends after the step it is in)
    → {"do": "encode", "text": ..., "with_special": false}
                                          ← {"event": "ids", "ids": [...]}       with a tokenizer only
    → {"do": "pieces", "ids": [...]}      ← {"event": "pieces", "texts": [...]}  with a tokenizer only
    → {"do": "statistics"}                ← {"event": "statistics", ...}
    → {"do": "held"}                      ← {"event": "held", "tensors": [[name, shape, dtype] ...]}
    → {"do": "clear"}                     ← {"event": "cleared"}
    → {"do": "unload"}                    ← {"event": "unloaded"}
    → {"do": "exit"}                      (the process ends)

Every command has a number, "request", which its answers repeat. ``at_s`` is this process's monotonic clock, which is
the machine's: kvscope's own reads the same. A command that fails is answered by {"event": "error", "kind": ...,
"message": ...}; ``kind`` is one of KINDS. The process ends at once when stdin closes: whoever started it has gone.
"""

import gc
import importlib.util
import inspect
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

KINDS = (
    "missing_dependency",  # a package is not there
    "broken_dependency",  # it is there and cannot be imported
    "invalid_settings",  # no such setting, or not a value it takes
    "model_error",  # the files are not what transformers can load
    "out_of_memory",  # of the machine or of a GPU; the process lives on
    "not_loaded",
    "internal",
)
SEED = 0
_NO_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory")


def _beside(name: str) -> Any:
    """A part of this worker, from the file beside it. Its folder is never on the module path: other files there have
    the names of the libraries that are needed here."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


caches = _beside("transformers_caches")
heap = _beside("transformers_heap")
logits = _beside("transformers_logits")


class WorkerError(Exception):
    """An answer that is an error; ``more`` are further fields of it."""

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.more = more


class Worker:
    """Holds at most one model, and the cache of its last request."""

    def __init__(self, torch: Any, transformers: Any) -> None:
        self._torch = torch
        self._transformers = transformers
        self._settings: dict[str, Any] = {}
        self._model: Any = None
        self._tokenizer: Any = None
        self._cache: Any = None
        self._held: list[int] = []
        self._cache_name = caches.CACHE_NAMES[0]
        self._keeps_logits = False
        self._device = "cpu"
        self._totals = dict.fromkeys(("prompt_tokens", "output_tokens"), 0)
        self._seconds = dict.fromkeys(("prefill_s", "decode_s"), 0.0)
        self._heap_peak = heap.HeapPeak()
        self.cancelled: set[int] = set()

    # --- the model ------------------------------------------------------------------------------------------------

    def load(self, folder: str, settings: dict[str, Any], tokenizer: bool) -> dict[str, Any]:
        """Load the model, from its weights or with random ones. What it has become."""
        self.clear()  # of a model before it, whose cache is not this one's
        self._settings = settings
        if "num_threads" in self._settings:
            self._torch.set_num_threads(self._settings["num_threads"])
        self._device = self._settings.get("device", "cpu")
        self._check_device()
        config = self._config(folder)
        self._make_model(folder, config)
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = next((name for name in caches.CACHE_NAMES if name in parameters), "")
        if not self._cache_name:
            raise WorkerError("model_error", f"{type(self._model).__name__} keeps no cache from step to step.")
        self._keeps_logits = "logits_to_keep" in parameters
        self._new_cache()  # refuses what cannot be made
        if tokenizer:
            self._tokenizer = self._transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return self._loaded()

    def prepare(self, folder: str) -> None:
        """Import the code of the model's class, so that it is part of the baseline. What fails here fails again, with
        its reason, when the model is loaded."""
        try:
            config = self._transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            self._transformers.AutoModelForCausalLM._model_mapping[type(config)]
        except Exception as error:
            sys.stderr.write(f"kvscope: not prepared: {error}\n")

    def _check_device(self) -> None:
        try:
            kind = self._torch.device(self._device).type
        except (RuntimeError, TypeError) as error:
            raise WorkerError("invalid_settings", f"device does not take {self._device!r}: {error}") from error
        if kind == "cuda" and not self._torch.cuda.is_available():
            raise WorkerError("invalid_settings", f"device {self._device}: this build of torch sees no GPU.")

    def _config(self, folder: str) -> Any:
        try:
            return self._transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
            raise WorkerError("model_error", f"transformers does not read its config.json: {error}") from error

    def _make_model(self, folder: str, config: Any) -> None:
        given: dict[str, Any] = {"dtype": self._settings.get("dtype", "auto")}
        if "attn_implementation" in self._settings:
            given["attn_implementation"] = self._settings["attn_implementation"]
        auto = self._transformers.AutoModelForCausalLM
        try:
            if self._settings.get("random_weights"):
                self._torch.manual_seed(SEED)
                if given["dtype"] == "auto":
                    given["dtype"] = config.dtype or self._torch.float32
                with self._torch.device(self._device):
                    model = auto.from_config(config, **given)
            else:
                model = auto.from_pretrained(folder, local_files_only=True, use_safetensors=True, **given)
                model = model.to(self._device)
        except (ValueError, ImportError) as error:
            words = str(error)
            asked = str(self._settings.get("attn_implementation", ""))
            # One that needs a package says "FlashAttention2 has been toggled on, but it cannot be used ...".
            is_setting = "attn_implementation" in words or (asked.startswith("flash") and "cannot be used" in words)
            kind = "invalid_settings" if is_setting else "model_error"
            raise WorkerError(kind, f"transformers does not make this model: {error}") from error
        except Exception as error:  # every reader of files has errors of its own
            if _is_memory(error):
                raise
            raise WorkerError("model_error", f"transformers does not load this model: {error}") from error
        self._model = model.eval()

    def _loaded(self) -> dict[str, Any]:
        model, torch = self._model, self._torch
        weights = caches.counted(model.named_parameters())
        buffers = caches.counted(model.named_buffers())
        dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()})
        return {
            "class": type(model).__name__,
            "weights_bytes": weights["storage_bytes"],
            "module_buffers_bytes": buffers["storage_bytes"],
            "dtypes": dtypes,
            "attn_implementation": str(getattr(model.config, "_attn_implementation", None) or "none"),
            "num_threads": torch.get_num_threads(),
            "vocab_size": int(getattr(model.config.get_text_config(decoder=True), "vocab_size", 0) or 0),
            "keeps_last_logits_only": self._keeps_logits,
        }

    def unload(self) -> None:
        """Drop the model and its cache: del, a collection of Python's, and torch's cache of the GPU given back. No
        memory of the C library's is trimmed: what it keeps, a program of one's own would keep too."""
        self._model = self._cache = self._tokenizer = None
        self._held = []
        gc.collect()
        if self._device.startswith("cuda"):
            self._torch.cuda.empty_cache()

    # --- the cache ------------------------------------------------------------------------------------------------

    def _new_cache(self) -> Any:
        try:
            return caches.make_cache(self._transformers, self._model, self._settings)
        except caches.MissingBackend as error:
            raise WorkerError(
                "missing_dependency", f"{error.package} is not installed", package=error.package
            ) from None
        except caches.SettingError as error:
            raise WorkerError("invalid_settings", str(error)) from error

    def clear(self) -> None:
        """Drop the cache of the last request."""
        self._cache = None
        self._held = []

    def _begin(self, ids: list[int], reuse: bool) -> int:
        """Make the cache ready for ``ids``: how many of them it holds already."""
        common = 0
        if reuse and self._cache is not None:
            for ours, theirs in zip(self._held, ids[:-1], strict=False):
                if ours != theirs:
                    break
                common += 1
        elsewhere = any(True for _ in caches.states_in_modules(self._torch, self._model))
        if common and not elsewhere and caches.cut_back(self._cache, len(self._held), common):
            self._held = self._held[:common]
            return common
        self.clear()
        self._cache = self._new_cache()
        return 0

    # --- answering ------------------------------------------------------------------------------------------------

    def generate(self, command: dict[str, Any], reply: Any) -> dict[str, Any]:
        """Greedy decoding: the prompt, in chunks where asked, then one token a step. Each token is sent as it comes."""
        if self._model is None:
            raise WorkerError("not_loaded", "no model is loaded")
        ids = list(command["ids"])
        begun_s = time.monotonic()
        cached = self._begin(ids, command["reuse"])
        heap.reset_device_peak(self._torch, self._device)
        try:
            with self._torch.no_grad(), self._heap_peak:
                token = self._prefill(ids[cached:])
                first_s = time.monotonic()
                reply({"event": "token", "at_s": first_s, "id": token})
                count, reason = self._decode(command, token, reply)
        except BaseException:
            self.clear()
            raise
        ended_s = time.monotonic()
        self._totals["prompt_tokens"] += len(ids) - cached
        self._totals["output_tokens"] += count
        self._seconds["prefill_s"] += first_s - begun_s
        self._seconds["decode_s"] += ended_s - first_s
        return {
            "event": "done",
            "at_s": ended_s,
            "cached_tokens": cached,
            "output_tokens": count,
            "finish_reason": reason,
            "prompt_ms": (first_s - begun_s) * 1000,
            "predicted_ms": (ended_s - first_s) * 1000,
        }

    def _prefill(self, ids: list[int]) -> int:
        chunk = self._settings.get("prefill_chunk_tokens", len(ids))
        token = -1
        for start in range(0, len(ids), chunk):
            if start == chunk and not caches.can_go_on(self._cache):
                raise WorkerError(
                    "invalid_settings", "prefill_chunk_tokens: a model with recurrent states takes a prompt whole."
                )
            token = self._step(ids[start : start + chunk])
        return token

    def _decode(self, command: dict[str, Any], token: int, reply: Any) -> tuple[int, str]:
        ends = set() if command["ignore_end"] else self._end_ids()
        texts = command["stop"] if self._tokenizer is not None else []
        answer = [token]
        count = 1
        while True:
            if token in ends:
                return count, "stop"
            if count >= command["max_tokens"]:
                return count, "length"
            if command["request"] in self.cancelled:
                return count, "cancelled"
            if texts and any(text in self._text(answer) for text in texts):
                return count, "stop"
            token = self._step([token])
            answer.append(token)
            reply({"event": "token", "at_s": time.monotonic(), "id": token})
            count += 1

    def _step(self, ids: list[int]) -> int:
        """Feed these, and take the likeliest next."""
        return int(self._feed(ids).argmax())

    def _feed(self, ids: list[int]) -> Any:
        """Feed these; the logits after the last of them."""
        given: dict[str, Any] = {"use_cache": True}
        if self._cache is not None:
            given[self._cache_name] = self._cache
        if self._keeps_logits:
            given["logits_to_keep"] = 1
        outputs = self._model(input_ids=self._torch.tensor([ids], device=self._device), **given)
        # A class that fills the cache it is given need not hand it back.
        self._cache = getattr(outputs, self._cache_name, self._cache)
        self._held += ids
        return outputs.logits[0, -1]

    def score(self, command: dict[str, Any], reply: Any) -> dict[str, Any]:
        """The log-probability of each token of the continuation. Each is sent as it is known."""
        if self._model is None:
            raise WorkerError("not_loaded", "no model is loaded")
        prompt, continuation = list(command["prompt"]), list(command["continuation"])
        try:
            with self._torch.no_grad():
                computed, rows = self._rows(prompt, continuation, fresh=command["fresh"])
                for token, row in zip(continuation, rows, strict=True):
                    if command["request"] in self.cancelled:
                        break
                    reply(logits.scored(row, token, command["num_top"]))
        except BaseException:
            self.clear()
            raise
        if command["fresh"]:
            self.clear()
        return {"event": "done", "computed_tokens": computed}

    def _rows(self, prompt: list[int], continuation: list[int], *, fresh: bool) -> tuple[int, Any]:
        """(tokens computed for all of it, the logits before each token of the continuation)."""
        if fresh:
            self.clear()
            ids = prompt + continuation[:-1]
            given: dict[str, Any] = {"use_cache": False}
            if self._keeps_logits:
                given["logits_to_keep"] = len(continuation)
            return len(ids), logits.in_one_pass(self._model, self._torch, ids, len(continuation), given)
        cached = self._begin(prompt, reuse=True)
        if before := prompt[cached:-1]:
            self._prefill(before)
        return len(before) + len(continuation), logits.one_by_one(self._feed, prompt[-1], continuation)

    def _end_ids(self) -> set[int]:
        for config in (getattr(self._model, "generation_config", None), self._model.config):
            found = getattr(config, "eos_token_id", None)
            if found is not None:
                return set(found) if isinstance(found, list | tuple) else {found}
        return set()

    # --- what it says of itself -----------------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Its counters now; the peaks of a GPU are those of the last request."""
        found: dict[str, Any] = {
            **self._totals,
            **self._seconds,
            **heap.heap(),
            **self._heap_peak.figures(),
            **heap.python_arenas(),
            **heap.device(self._torch, self._device),
        }
        if self._model is not None:
            found |= {f"cache_{name}": value for name, value in self._counted().items()}
        return found

    def _counted(self) -> dict[str, int]:
        tensors = [*caches.tensors_of(self._torch, self._cache)]
        if self._cache is not None:
            tensors += caches.states_in_modules(self._torch, self._model)
        return dict(caches.counted(iter(tensors)))

    def held(self) -> list[list[Any]]:
        """Every tensor of the cache: name, shape, dtype."""
        return [
            [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
            for name, tensor in caches.tensors_of(self._torch, self._cache)
        ]

    def encode(self, text: str, *, with_special: bool) -> list[int]:
        """Token ids of a text; of a rendered prompt without special ones, which its template has written. Those that
        the tokenizer puts behind a text are left out: more is to follow."""
        plain = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if not with_special:
            return plain
        whole = list(self._tokenizer(text, add_special_tokens=True)["input_ids"])
        before = next((at for at in range(len(whole) + 1) if whole[at : at + len(plain)] == plain), None)
        return whole if before is None else whole[:before] + plain

    def pieces(self, ids: list[int]) -> list[str]:
        """What each token adds to the text, names of control tokens included; "" while a character is not whole."""
        found, begin, whole = [], 0, 0
        for end in range(1, len(ids) + 1):
            text = self._text(ids[begin:end])
            if text.endswith("\ufffd") and end < len(ids):
                found.append("")
                continue
            found.append(text[len(self._text(ids[begin:whole])) :])
            begin, whole = whole, end
        return found

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def answer(worker: Worker, command: dict[str, Any], reply: Any) -> dict[str, Any]:
    """Do one command; its answer."""
    try:
        return _done(worker, command, reply)
    except WorkerError as error:
        return {"event": "error", "kind": error.kind, "message": str(error), **error.more}
    except Exception as error:
        kind = "out_of_memory" if _is_memory(error) else "internal"
        return {"event": "error", "kind": kind, "message": f"{type(error).__name__}: {error}"}


def _is_memory(error: Exception) -> bool:
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)


def _done(worker: Worker, command: dict[str, Any], reply: Any) -> dict[str, Any]:
    match command.get("do"):
        case "prepare":
            worker.prepare(command["folder"])
            return {"event": "prepared"}
        case "load":
            return {"event": "ready", **worker.load(command["folder"], command["settings"], command["tokenizer"])}
        case "generate":
            return worker.generate(command, reply)
        case "score":
            return worker.score(command, reply)
        case "statistics":
            return {"event": "statistics", **worker.statistics()}
        case "held":
            return {"event": "held", "tensors": worker.held()}
        case "encode":
            return {"event": "ids", "ids": worker.encode(command["text"], with_special=command["with_special"])}
        case "pieces":
            return {"event": "pieces", "texts": worker.pieces(command["ids"])}
        case "clear":
            worker.clear()
            return {"event": "cleared"}
        case "unload":
            worker.unload()
            return {"event": "unloaded"}
        case unknown:
            raise WorkerError("internal", f"unknown command {unknown!r}")


def _read_commands(commands: "queue.SimpleQueue[dict[str, Any]]", cancelled: set[int]) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("do") == "exit":
            os._exit(0)  # the system takes everything back; no destructor can hang
        if command.get("do") == "cancel":
            cancelled.add(command["request"])
        else:
            commands.put(command)
    os._exit(1)  # stdin closed: whoever started this has gone


def main() -> None:
    """Serve commands until told to exit."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the libraries print belongs to the log
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")

    try:
        import torch
        import transformers
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in ("torch", "transformers")
        kind = "missing_dependency" if missing else "broken_dependency"
        reply({"event": "error", "kind": kind, "message": str(error), "package": error.name or ""})
        return
    worker = Worker(torch, transformers)
    threading.Thread(target=_read_commands, args=(commands, worker.cancelled), daemon=True).start()
    reply({"event": "started", "version": transformers.__version__, "torch": torch.__version__})
    while True:
        command = commands.get()
        number = {"request": command["request"]}
        reply({**answer(worker, command, lambda message, number=number: reply({**number, **message})), **number})


if __name__ == "__main__":
    main()
