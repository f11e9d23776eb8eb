"""A stand-in for the Ollama server, as a program of its own: written from Ollama's documents (docs/api.md,
docs/faq.mdx) and from what its source does (server/routes.go, server/sched.go, llm/llama_server.go at 0.33.0-rc2; older
releases where ``--release`` says so). It is not Ollama: it answers words of its own.

What it copies of Ollama: names and fields of the interface; models by name and tag, with their manifest's digest; a
runner, a child process, for each loaded model; loading anew where the options of loading differ; keep_alive, with a
clock that tests can move; prompts cut without a word, or refused where ``truncate`` is false; errors in its words.

How it counts: one token for each byte of UTF-8 of the rendered prompt, one for "<s>", and one "<s>" in front. The model
files that ``write_store`` makes hold a tokenizer that does the same. Its runner holds FIXED_BYTES + BYTES_PER_TOKEN ×
num_ctx, so what should be measured is known.

Tests talk to it at /standin: move its clock, name the next failure, ask what it did.
"""

import argparse
import contextlib
import hashlib
import importlib
import itertools
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

BYTES_PER_TOKEN = 4096
FIXED_BYTES = 4 * 1024 * 1024
TRAINED_CONTEXT = 8192
DEFAULT_CONTEXT = 4096
NATURAL_END = 40  # an answer ends by itself after so many tokens
KEEP_ALIVE_S = 300.0
NUM_KEEP = 4  # Ollama's default of num_keep
BOS = "<s>"

# A runner that holds so many bytes, and ends with the server.
_RUNNER = "import sys; held = b'\\1' * int(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


def cut_to(num_ctx: int, prompt: int, *, keeps_half: bool) -> int:
    """Tokens that are read of a prompt: of one over the context its first NUM_KEEP and its end. Until 0.3 and since
    0.30 half of the rest is freed (contextShiftPromptLimit in llm/llama_server.go): 1,026 of 2,048, as reported in
    ollama/ollama#6672. The runners between them (source=runner.go) keep as much as fits: their logs say "truncating
    input prompt" limit=8192 prompt=10552 keep=4 new=8192."""
    if prompt <= num_ctx:
        return prompt
    return num_ctx - max((num_ctx - NUM_KEEP) // 2, 1) if keeps_half else num_ctx


@dataclass
class Loaded:
    name: str
    options: dict[str, Any]
    shift: bool
    runner: Any  # a process that only holds memory, or a LlamaRunner
    keep_alive_s: float
    expires_at: float
    busy: int = 0
    leaving: bool = False

    @property
    def num_ctx(self) -> int:
        return min(int(self.options["num_ctx"]), TRAINED_CONTEXT)

    @property
    def size(self) -> int:
        return FIXED_BYTES + BYTES_PER_TOKEN * self.num_ctx


@dataclass
class State:
    store: Path
    release: str
    thinks: bool
    llama: bool = False
    loaded: dict[str, Loaded] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    ahead_s: float = 0.0
    cached: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def now(self) -> float:
        return time.time() + self.ahead_s

    def has(self, *since: int) -> bool:
        if self.release == "0.0.0":  # as a build from source calls itself
            return True
        return tuple(int(part) for part in self.release.split("-")[0].split(".")) >= since

    def models(self) -> dict[str, Path]:
        library = self.store / "manifests" / "registry.ollama.ai" / "library"
        return {f"{path.parent.name}:{path.name}": path for path in sorted(library.glob("*/*"))}

    def expire(self) -> None:
        with self.lock:
            for model in list(self.loaded.values()):
                if not model.busy and not model.leaving and self.now() >= model.expires_at:
                    self.let_go(model)

    def let_go(self, model: Loaded) -> None:
        """The runner ends, and only then is the model no longer listed."""
        model.leaving = True
        self.did.append(f"unload {model.name}")

        def end() -> None:
            time.sleep(0.1)
            model.runner.kill()
            model.runner.wait()
            with self.lock:
                if self.loaded.get(model.name) is model:
                    del self.loaded[model.name]

        threading.Thread(target=end).start()

    def take(self, *kinds: str) -> str | None:
        """The next failure, where it is one of these."""
        with self.lock:
            return self.failures.pop(0) if self.failures and self.failures[0] in kinds else None

    def schedule(self, name: str, body: dict[str, Any]) -> Loaded:
        """server/sched.go: the loaded runner, or a new one where there is none or the options of loading differ."""
        given = body.get("options") or {}
        wanted = {key: value for key, value in given.items() if key in ("num_ctx", "num_batch", "num_gpu", "use_mmap")}
        wanted = {"num_ctx": DEFAULT_CONTEXT, **wanted}
        shift = body.get("shift") is not False
        with self.lock:
            model = self.loaded.get(name)
            if model is not None and (model.leaving or self._differs(model, wanted, shift)):
                self.did.append(f"reload {name}")
                model.runner.kill()
                model.runner.wait()
                model = None
            if model is None:
                model = self._load(name, wanted, shift)
            if "keep_alive" in body:
                model.keep_alive_s = seconds(body["keep_alive"])
            model.expires_at = self.now() + model.keep_alive_s
            model.busy += 1
            return model

    def _differs(self, model: Loaded, wanted: dict[str, Any], shift: bool) -> bool:
        effective = {**wanted, "num_ctx": min(wanted["num_ctx"], TRAINED_CONTEXT)}
        return {**model.options, "num_ctx": model.num_ctx} != effective or (self.has(0, 30) and model.shift != shift)

    def _load(self, name: str, options: dict[str, Any], shift: bool) -> Loaded:
        self.did.append(f"load {name}")
        if self.llama:
            from ollama_llama_runner import LlamaRunner

            digest_of_blob = json.loads(self.models()[name].read_text())["layers"][0]["digest"]
            blob = self.store / "blobs" / digest_of_blob.replace(":", "-")
            llama = LlamaRunner(blob, options, shift=shift)
            self.loaded[name] = Loaded(name, options, shift, llama, KEEP_ALIVE_S, 0.0)
            return self.loaded[name]
        size = FIXED_BYTES + BYTES_PER_TOKEN * min(options["num_ctx"], TRAINED_CONTEXT)
        runner = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RUNNER, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert runner.stdout is not None
        runner.stdout.readline()
        self.loaded[name] = Loaded(name, options, shift, runner, KEEP_ALIVE_S, 0.0)
        return self.loaded[name]


def seconds(value: Any) -> float:
    """keep_alive: a number of seconds, or "10m"; negative: for ever."""
    if isinstance(value, str):
        number, unit = float(value[:-1]), {"s": 1, "m": 60, "h": 3600}[value[-1]]
        return number * unit
    return float("inf") if value < 0 else float(value)


def render(messages: list[dict[str, Any]], tools: list[Any]) -> str:
    parts = [f"[tools]{json.dumps(tools, ensure_ascii=False)}\n"] if tools else []
    for message in messages:
        rest = "".join(
            json.dumps(message[key], ensure_ascii=False) for key in ("tool_calls", "tool_name") if key in message
        )
        parts.append(f"[{message['role']}]{message.get('thinking', '')}{message['content']}{rest}\n")
    return "".join(parts) + "[assistant]"


def count(text: str) -> int:
    return len(text.replace(BOS, "\0").encode()) + 1


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *args: Any) -> None: ...

    def reply(self, value: Any, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def error(self, message: str, status: int = 500) -> None:
        self.reply({"error": message}, status)

    def do_GET(self) -> None:
        self.state.expire()
        match self.path:
            case "/api/version":
                self.reply({"version": self.state.release})
            case "/api/tags":
                self.reply({"models": [self.listed(name, path) for name, path in self.state.models().items()]})
            case "/api/ps":
                with self.state.lock:
                    self.reply({"models": [self.held(model) for model in self.state.loaded.values()]})
            case "/standin":
                loaded = {model.name: model.runner.pid for model in self.state.loaded.values()}
                self.reply({"did": self.state.did, "runners": loaded})
            case _:
                self.reply(b"404 page not found", 404)

    def listed(self, name: str, manifest: Path) -> dict[str, Any]:
        size = sum(layer["size"] for layer in json.loads(manifest.read_text())["layers"])
        return {"name": name, "model": name, "size": size, "digest": digest(manifest)}

    def held(self, model: Loaded) -> dict[str, Any]:
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(model.expires_at, 2**33)))
        stated: dict[str, Any] = {
            "name": model.name,
            "model": model.name,
            "size": model.size,
            "size_vram": 0,
            "digest": digest(self.state.models()[model.name]),
            "expires_at": until,
        }
        return {**stated, "context_length": model.num_ctx} if self.state.has(0, 10) else stated

    def do_POST(self) -> None:
        self.state.expire()
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        match self.path:
            case "/standin":
                self.state.ahead_s += body.get("advance_s", 0.0)
                self.state.failures += body.get("fail", [])
                self.state.expire()
                self.reply({})
            case "/api/show":
                self.show(body)
            case "/api/chat":
                self.chat(body)
            case "/api/generate":
                assert body["raw"] is True, "with a template it is no text as it is"
                self.chat(body)
            case _:
                self.reply(b"404 page not found", 404)

    def show(self, body: dict[str, Any]) -> None:
        info = {"general.architecture": "llama", "llama.context_length": TRAINED_CONTEXT}
        details = {"format": "gguf", "family": "llama", "quantization_level": "F32"}
        self.reply({"parameters": "num_keep 4", "template": "{{ .Prompt }}", "details": details, "model_info": info})

    # --- /api/chat ------------------------------------------------------------------------------------------------

    def chat(self, body: dict[str, Any]) -> None:
        state = self.state
        name = body["model"] if ":" in body["model"] else body["model"] + ":latest"
        if name not in state.models() or state.take("not_found"):
            self.error(f"model '{body['model']}' not found", 404)
            return
        messages = body.get("messages") or [body[name] for name in ("prompt",) if body.get(name)]
        if not messages and body.get("keep_alive") == 0:
            with state.lock:
                model = state.loaded.get(name)
                if model is not None and not model.leaving and not state.take("stays"):
                    state.let_go(model)
            self.reply({"model": name, "done": True, "done_reason": "unload"})
            return
        if body.get("think") and not state.thinks:
            self.error(f'"{body["model"]}" does not support thinking', 400)
            return
        if self.fails_before_loading():
            return
        model = state.schedule(name, body)
        try:
            self.answer(body, messages, model)
        finally:
            with state.lock:
                model.busy -= 1
                model.expires_at = state.now() + model.keep_alive_s

    def fails_before_loading(self) -> bool:
        if self.state.take("no_memory"):
            self.error("model requires more system memory (24.5 GiB) than is available (7.1 GiB)")
        elif self.state.take("cuda_memory"):
            self.error("llama-server process has terminated: exit status 1: CUDA error: out of memory")
        elif self.state.take("flash"):
            said = "llama_init_from_model: V cache quantization requires flash_attn"
            self.error(f"llama-server process has terminated: signal: aborted: {said}")
        elif self.state.take("architecture"):
            said = "llama_model_load: error loading model: error loading model architecture: unknown model architecture"
            self.error(f"llama-server process has terminated: exit status 1: {said}: 'new'")
        elif self.state.take("busy"):
            self.error("server busy, please try again.  maximum pending requests exceeded", 503)
        elif self.state.take("internal"):
            self.error("something went wrong")
        else:
            return False
        return True

    def answer(self, body: dict[str, Any], messages: list[dict[str, Any]], model: Loaded) -> None:
        state = self.state
        if not messages:
            self.reply({"model": model.name, "message": {"role": "assistant"}, "done": True, "done_reason": "load"})
            return
        if "prompt" in body:
            text = body["prompt"]
        else:
            text = model.runner.render(body) if state.llama else render(messages, body.get("tools") or [])
        if body.get("_debug_render_only") and state.has(0, 11, 5):
            self.reply({"model": model.name, "_debug_info": {"rendered_template": text}})
            return
        if state.llama:
            self.pass_on(model, text, body["options"])
            return
        sent = count(text)
        if sent > model.num_ctx and body.get("truncate") is False and state.has(0, 12, 6):
            self.error(self.too_long(sent, model.num_ctx), 400)
            return
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(state.cached, text, strict=False))
        reused, state.cached = sum(len(left.encode()) for left, _ in same), text
        read = cut_to(model.num_ctx, sent, keeps_half=not state.has(0, 4) or state.has(0, 30))
        if not state.has(0, 4) or state.release.startswith("0.30.0"):  # what was cached is left out
            read -= reused
        self.stream(body, model, sent=sent, read=read)

    def pass_on(self, model: Loaded, prompt: str, options: dict[str, Any]) -> None:
        """The answer of real llama.cpp, in Ollama's words."""
        from ollama_llama_runner import RunnerError, last_object

        events = model.runner.complete(prompt, options)
        try:
            event = next(events)
        except RunnerError as refused:
            self.error(refused.body, refused.status)
            return
        self.begin_stream()
        while not event["stop"]:
            self.line(
                {"model": model.name, "message": {"role": "assistant", "content": event["content"]}, "done": False}
            )
            event = next(events)
        message = {"role": "assistant", "content": event["content"]}
        self.line({"model": model.name, "message": message, **last_object(event)})
        self.wfile.write(b"0\r\n\r\n")

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def too_long(self, sent: int, num_ctx: int) -> str:
        if not self.state.has(0, 30):
            return "the input length exceeds the context length"
        inner = {
            "code": 400,
            "message": f"request ({sent} tokens) exceeds the available context size ({num_ctx} tokens)",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": sent,
            "n_ctx": num_ctx,
        }
        return json.dumps({"error": inner})

    def stream(self, body: dict[str, Any], model: Loaded, *, sent: int, read: int) -> None:
        limit = int(body["options"]["num_predict"])
        room = model.num_ctx - sent if body.get("shift") is False else limit
        wanted = min(limit, max(1, room))
        num = min(wanted, NATURAL_END)
        stops = [index for index in range(num) if f" w{index}" in body["options"].get("stop", ())]
        if stops:
            num, wanted = stops[0], wanted + 1
        self.begin_stream()
        thinking = self.state.thinks and body.get("think") is not False
        calls = bool(body.get("tools")) and "Seoul" in json.dumps(body["messages"][-1])
        for index in range(num):
            if index == 3 and self.breaks(model):
                return
            message: dict[str, Any] = {
                "role": "assistant",
                "content": "" if thinking and index < num // 2 else f" w{index}",
            }
            if thinking and index < num // 2:
                message["thinking"] = f" t{index}"
            if calls and index == num - 1:
                called = {"name": "weather", "arguments": {"town": "서울"}}
                message = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "function": called}]}
            self.line({"model": model.name, "message": message, "done": False})
        last = {
            "model": model.name,
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop" if num < wanted else "length",
            "total_duration": 5_000_000,
            "load_duration": 1_000_000,
            "prompt_eval_count": read,
            "prompt_eval_duration": 2_000_000,
            "eval_count": num,
            "eval_duration": 2_000_000,
        }
        self.line(last)
        self.wfile.write(b"0\r\n\r\n")

    def breaks(self, model: Loaded) -> bool:
        """A failure in mid-answer."""
        state = self.state
        if state.take("illegal"):
            self.line(
                {"error": "an error was encountered while running the model: CUDA error: an illegal memory access"}
            )
            self.wfile.write(b"0\r\n\r\n")
        elif state.take("runner_killed"):
            model.runner.kill()
            model.runner.wait()
            with state.lock:
                del state.loaded[model.name]
            self.line({"error": "llama runner process has terminated: signal: killed"})
            self.wfile.write(b"0\r\n\r\n")
        elif state.take("reset"):
            linger = struct.pack("ii", 1, 0)  # closed with a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
        elif state.take("no_end"):
            self.wfile.write(b"0\r\n\r\n")
        elif state.take("broken"):
            self.chunk(b'{"message": {"content": \n')
            self.wfile.write(b"0\r\n\r\n")
        elif state.take("stall"):
            time.sleep(3)
        elif state.take("endless"):
            with contextlib.suppress(ConnectionError):
                while True:
                    self.line({"model": model.name, "message": {"role": "assistant", "content": " on"}, "done": False})
        else:
            return False
        return True

    def line(self, value: dict[str, Any]) -> None:
        if self.path == "/api/generate" and "message" in value:
            value = {"response": value["message"]["content"], **value}
            del value["message"]
        self.chunk(json.dumps(value, ensure_ascii=False).encode() + b"\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def digest(manifest: Path) -> str:
    return hashlib.sha256(manifest.read_bytes()).hexdigest()


# --- what tests use -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandIn:
    """A running stand-in."""

    url: str
    pid: int
    store: Path

    def tell(self, **what: Any) -> None:
        """``advance_s``: its clock moves on; ``fail``: names of the next failures, in order."""
        self._ask(Request(f"{self.url}/standin", json.dumps(what).encode()))

    @property
    def did(self) -> list[str]:
        """What it loaded, loaded anew and unloaded."""
        return list(self._ask(Request(f"{self.url}/standin"))["did"])

    def use(self, model: str, **body: Any) -> dict[str, Any]:
        """What another program does: a chat without messages, with the options that it wants."""
        data = json.dumps({"model": model, "messages": [], **body}).encode()
        return self._ask(Request(f"{self.url}/api/chat", data))

    def held(self) -> list[dict[str, Any]]:
        return list(self._ask(Request(f"{self.url}/api/ps"))["models"])

    def _ask(self, request: Request) -> dict[str, Any]:
        with urlopen(request, timeout=30) as reply:
            return dict(json.loads(reply.read()))


@contextlib.contextmanager
def running(store: Path, *, release: str = "0.33.0", thinks: bool = False, llama: bool = False) -> Iterator[StandIn]:
    """A stand-in with the models of ``store``; ended with the block. ``llama``: real llama.cpp computes."""
    flags = ["--store", str(store), "--release", release]
    flags += [*(["--thinks"] if thinks else []), *(["--llama"] if llama else [])]
    process = subprocess.Popen([sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield StandIn(f"http://127.0.0.1:{port}", process.pid, store)
    finally:
        process.terminate()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--thinks", action="store_true")
    parser.add_argument("--llama", action="store_true")
    given = parser.parse_args()
    Answering.state = State(given.store, given.release, given.thinks, given.llama)
    if given.llama:  # imported now, so that the server's own memory does not grow with its first load
        importlib.import_module("ollama_llama_runner")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
    for model in Answering.state.loaded.values():
        model.runner.kill()
        model.runner.wait()


if __name__ == "__main__":
    main()
