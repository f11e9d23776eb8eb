"""A server that answers at once and computes nothing, to see how long kvscope itself takes: llama.cpp's and OpenAI's
interface, as far as ``kvscope measure`` asks. A token is a word.

    python benchmarks/quick_server.py [llamacpp]     says its address on stdout, and runs until its stdin is closed

With ``llamacpp`` it says that it is llama.cpp, and so is asked to count; otherwise a prompt is counted by being sent.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

N_CTX = 4096
FACTS: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": "quick", "object": "model", "owned_by": "".join(sys.argv[1:2])}]},
    "/props": {
        "build_info": "b1-quick",
        "total_slots": 1,
        "model_path": "/quick.gguf",
        "default_generation_settings": {"n_ctx": N_CTX, "params": {}},
    },
    "/slots": [{"id": 0, "n_ctx": N_CTX, "is_processing": False}],
}


def text_of(messages: list[dict[str, Any]]) -> str:
    """The conversation as its template makes it."""
    return "".join(f"<{message['role']}> {message['content']} </> " for message in messages)


class Quick(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        found = FACTS.get(self.path)
        self.answer(found, 404 if found is None else 200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.path:
            case "/apply-template":
                self.answer({"prompt": text_of(asked["messages"])})
            case "/tokenize":
                self.answer({"tokens": list(range(len(asked["content"].split())))})
            case "/v1/chat/completions":
                self.stream(asked)
            case _:
                self.answer(None, 404)

    def answer(self, found: Any, status: int = 200) -> None:
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, asked: dict[str, Any]) -> None:
        prompt = len(text_of(asked["messages"]).split())
        output = asked.get("max_tokens") or asked.get("max_completion_tokens") or 1
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        timings = {"prompt_n": prompt, "cache_n": 0, "prompt_ms": 1.0, "predicted_n": output, "predicted_ms": 1.0}
        pieces = [{"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}] * output
        end = [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "timings": timings},
            {"choices": [], "usage": usage, "timings": timings},
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (*pieces, *end):
            self.chunk(f"data: {json.dumps(event)}\n\n".encode())
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, body: bytes) -> None:
        self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quick)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
