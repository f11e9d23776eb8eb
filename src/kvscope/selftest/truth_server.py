"""The truth server as a program of its own: ``python -m kvscope.selftest.truth_server --port 8000 --log sent.jsonl``.

It prints its address once it answers, and serves until it is ended (SIGTERM, Ctrl-C). In C where a compiler is there
(truth_server.c), otherwise in Python (``python_server.py``): both take the same requests and write the same log. Any
client of language models can be held against it; docs/reference/selftest.md says how.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from kvscope.errors import KvscopeError
from kvscope.selftest.native import compile_server

_SETTINGS = ("ttft_s", "gap_s", "tokens", "group")


def main(words: Sequence[str] | None = None) -> None:
    """Serve. Ends with exit code 2 where it cannot listen or write its log."""
    asked = _parser().parse_args(words)
    why = "Python was asked for."
    if not asked.python:
        why = _become_native(asked)
    from kvscope.selftest.python_server import AWAKE_BEFORE_S, serve

    sys.stderr.write(f"truth server: in Python, which is less exact. {why}\n")
    awake_s = AWAKE_BEFORE_S if asked.spin_us is None else asked.spin_us / 1e6
    settings = _settings(asked)
    sys.exit(serve(asked.host, asked.port, settings, log=asked.log, core=asked.core, why=why, awake_s=awake_s))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvscope.selftest.truth_server", description="A server of known times."
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="0, the default: any free one")
    parser.add_argument("--log", help="file to which each answer's times are added, a JSON object a line")
    parser.add_argument("--core", type=int, default=-1, help="the processor to stay on")
    parser.add_argument("--ttft-s", type=float, default=0.05, help="from a request to its first token")
    parser.add_argument("--gap-s", type=float, default=0.01, help="from token to token")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer that max_tokens does not limit")
    parser.add_argument("--group", type=int, default=1, help="events that are sent in one write")
    parser.add_argument("--spin-us", type=int, help="how long before an event is due it stays awake")
    parser.add_argument("--python", action="store_true", help="run in Python even where a compiler is there")
    return parser


def _settings(asked: argparse.Namespace) -> dict[str, float]:
    return {name: getattr(asked, name) for name in _SETTINGS}


def _become_native(asked: argparse.Namespace) -> str:
    """Turn into the server in C; why not, where that cannot be."""
    try:
        program = compile_server()
        settings = " ".join(f"{name}={value}" for name, value in _settings(asked).items())
        words = ["truth_server", "--host", asked.host, "--port", str(asked.port), "--set", settings]
        if asked.log is not None:
            words += ["--log", asked.log]
        if asked.core >= 0:
            words += ["--core", str(asked.core)]
        if asked.spin_us is not None:
            words += ["--spin-us", str(asked.spin_us)]
        os.execve(program, words, os.environ)
    except KvscopeError as error:
        return error.message
    except OSError as error:
        return f"The server in C may not be executed: {error.strerror}."


if __name__ == "__main__":
    main()
