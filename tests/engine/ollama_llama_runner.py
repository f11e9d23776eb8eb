"""The stand-in for Ollama with real llama.cpp under it, as Ollama has since 0.30: a llama-server for each loaded model,
which renders, counts and computes (llm/llama_server.go of Ollama 0.33: /apply-template, then /completion with
cache_prompt; prompt_eval_count is cache_n + prompt_n). Here that is llama_server_standin.py, which runs xllamacpp.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kvscope.engine.llama_log import read_address

_PROGRAM = Path(__file__).parent / "llama_server_standin.py"


class LlamaRunner:
    """A running llama-server with one model."""

    def __init__(self, model: Path, options: dict[str, Any], *, shift: bool) -> None:
        flags = ["--model", str(model), "--host", "127.0.0.1", "--port", "0", "--ctx-size", str(options["num_ctx"])]
        flags += ["--parallel", "1", "--threads", "1", "--no-warmup", "--fit", "off", "--verbosity", "4"]
        flags += ["--batch-size", str(options["num_batch"])] if "num_batch" in options else []
        del shift  # what the program does without --context-shift is what Ollama asks for with shift false
        self.process = subprocess.Popen([sys.executable, str(_PROGRAM), *flags], stderr=subprocess.PIPE, text=True)
        self.url = self._address()

    def _address(self) -> str:
        """Where it listens, from its log, which is then read to its end so that it never waits for a reader."""
        assert self.process.stderr is not None
        said = ""
        while (found := read_address(said)) is None:
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError(f"llama-server did not come up: {said[-500:]}")
            said += line
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while True:
            try:
                urlopen(f"{found}/health", timeout=30).close()
                return found
            except HTTPError:  # 503 while it loads
                continue

    def render(self, body: dict[str, Any]) -> str:
        asked = {"messages": body["messages"], **({"tools": body["tools"]} if body.get("tools") else {})}
        return str(json.loads(self._post("/apply-template", asked))["prompt"])

    def complete(self, prompt: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Its events. Raises RunnerError with its status and body where it refuses."""
        asked = {
            "prompt": prompt,
            "stream": True,
            "cache_prompt": True,
            "n_predict": options["num_predict"],
            "temperature": 0,
            "seed": options["seed"],
        }
        with self._open("/completion", asked) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        with self._open(path, body) as reply:
            return bytes(reply.read())

    def _open(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return urlopen(Request(self.url + path, json.dumps(body).encode()), timeout=300)
        except HTTPError as error:
            raise RunnerError(error.code, error.read().decode()) from None

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        return self.process.wait()

    @property
    def pid(self) -> int:
        return self.process.pid


class RunnerError(Exception):
    """``status`` and ``body`` of llama-server's refusal, which Ollama passes on as text."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status = status
        self.body = body


def last_object(event: dict[str, Any]) -> dict[str, Any]:
    """The counts of the last event, in Ollama's words; times in nanoseconds."""
    timings = event["timings"]
    return {
        "done": True,
        "done_reason": "length" if event.get("stop_type") == "limit" else "stop",
        "prompt_eval_count": timings["cache_n"] + timings["prompt_n"],
        "prompt_eval_duration": int(timings["prompt_ms"] * 1e6),
        "eval_count": timings["predicted_n"],
        "eval_duration": int(timings["predicted_ms"] * 1e6),
    }
