"""What clients say of a server whose times are known: kvscope beside guidellm, aiperf and vLLM's `bench serve`.

    python benchmarks/client_fidelity.py [--guidellm PROGRAM] [--aiperf PROGRAM] [--vllm PYTHON] [--cells A,B,C,D,R]
                                         [--server-core 0] [--client-core 1] [--repeats 3] [--out FILE.md]

The truth server (kvscope.selftest.truth_server, in C) sends tokens at known times on one processor and writes down when
it really did so; each client runs on another, as a program of its own, with the same prompts in the same cells. What a
client reports (means over its requests) is held against the server's log of that very run, never against the nominal
values. The truth of TTFT is from the request's arrival by the kernel's stamp to the first write; of a gap, the mean
over each answer.

Cells: A one stream, 10 ms between tokens; B 8 streams, 1 ms; C 32 streams, 1 ms (30,000 tokens/s); D 110 streams, 1 ms
(100,000 tokens/s); R 32 streams of answers of two tokens: requests per second. Processor time is the whole program's,
children too; "start" is that of a run of four short answers, and is taken off before the rest is divided by the tokens
or the requests. Each number is the median of the repeats. A client that is not there is a row that says how to get it.
vLLM's Python is one in which `python -m vllm.entrypoints.cli.main bench serve --help` works.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

LONGEST_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is asked: ``streams`` at once, ``requests`` in all, of ``tokens`` each."""

    name: str
    streams: int
    requests: int
    tokens: int
    ttft_s: float
    gap_s: float


CELLS = {
    "start": Cell(name="start", streams=1, requests=4, tokens=4, ttft_s=0.01, gap_s=0.001),
    "A": Cell(name="A", streams=1, requests=8, tokens=100, ttft_s=0.05, gap_s=0.01),
    "B": Cell(name="B", streams=8, requests=48, tokens=500, ttft_s=0.05, gap_s=0.001),
    "C": Cell(name="C", streams=32, requests=128, tokens=500, ttft_s=0.05, gap_s=0.001),
    "D": Cell(name="D", streams=110, requests=330, tokens=500, ttft_s=0.05, gap_s=0.001),
    "R": Cell(name="R", streams=32, requests=3000, tokens=2, ttft_s=0.01, gap_s=0.001),
}


@dataclass(kw_only=True)
class Said:
    """What a client reported, in seconds, and what it took. ``doubt``: what it said against its own numbers."""

    ttft_s: float | None = None
    gap_s: float | None = None
    median_gap_s: float | None = None
    requests: int = 0
    doubt: str = ""


@dataclass(kw_only=True)
class Row:
    """Errors against the truth of the same run, and costs. ``failed``: why there are none."""

    ttft_error_ms: float = 0.0
    gap_error: float = 0.0
    median_gap_ms: float | None = None
    true_gap_ms: float = 0.0
    tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    doubt: str = ""
    failed: str = ""


@dataclass
class Client:
    """``program``: how it is started; None: not there. ``how``: to get it."""

    name: str
    program: str | None
    how: str = ""
    version: str = ""
    rows: dict[str, list[Row]] = field(default_factory=dict)


# --- clients ----------------------------------------------------------------------------------------------------------


def command(client: Client, cell: Cell, url: str, folder: Path) -> list[str]:
    """The command line of one run, whose report goes into ``folder``."""
    program = str(client.program)
    prompts, words = folder / "prompts.jsonl", folder / "words"
    if client.name == "kvscope":
        return [program, __file__, "--as-client", url, cell.name, str(folder / "said.json")]
    if client.name == "guidellm":
        return [
            program, "run", "--backend", f"kind=openai_http,target={url},request_format=/v1/chat/completions",
            "--profile", f"kind=concurrent,streams={cell.streams}",
            "--constraint", f"kind=max_requests,count={cell.requests}",
            "--tokenizer", f"kind=hf_auto,model={words}", "--data", f"kind=json_file,path={prompts}",
            "--output", f"kind=json,path={folder / 'said.json'}", "--disable-console",
        ]  # fmt: skip
    if client.name == "aiperf":
        return [
            program, "profile", "--model", "truth", "--url", url, "--endpoint-type", "chat", "--streaming",
            "--concurrency", str(cell.streams), "--request-count", str(cell.requests), "--input-file", str(prompts),
            "--custom-dataset-type", "single_turn", "--tokenizer", str(words), "--use-server-token-count",
            "--artifact-dir", str(folder / "aiperf"), "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
        ]  # fmt: skip
    return [
        program, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat", "--base-url", url,
        "--endpoint", "/v1/chat/completions", "--model", "truth", "--tokenizer", str(words),
        "--dataset-name", "custom", "--dataset-path", str(prompts), "--custom-output-len", str(cell.tokens),
        "--skip-chat-template", "--num-prompts", str(cell.requests), "--max-concurrency", str(cell.streams),
        "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", str(folder),
        "--result-filename", "said.json",
    ]  # fmt: skip


def read_report(client: Client, folder: Path) -> Said:
    """What it said, from the file it wrote."""
    if client.name == "aiperf":
        found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
        gaps = found.get("inter_chunk_latency") or {}
        return Said(
            ttft_s=_ms(found["time_to_first_token"], "avg"),
            gap_s=_ms(found["inter_token_latency"], "avg"),
            median_gap_s=_ms(gaps, "p50"),
            requests=int(found["request_count"]["avg"]),
        )
    found = json.loads((folder / "said.json").read_text())
    if client.name == "guidellm":
        metrics = found["benchmarks"][0]["metrics"]
        ttft, gap = (metrics[f"{name}_ms"]["successful"] for name in ("time_to_first_token", "inter_token_latency"))
        return Said(ttft_s=_ms(ttft, "mean"), gap_s=_ms(gap, "mean"), requests=ttft["count"])
    if client.name == "vllm bench serve":
        return Said(
            ttft_s=_ms(found, "mean_ttft_ms"),
            gap_s=_ms(found, "mean_itl_ms"),
            median_gap_s=_ms(found, "median_itl_ms"),
            requests=found["completed"],
        )
    return Said(**found)


def _ms(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    return None if value is None else value / 1e3


def be_kvscope(url: str, cell: Cell, out: Path) -> None:
    """A run of kvscope's own client, as a program of its own: its metrics, its health. One stream is sent as a trial
    sends one request after another, several as a load."""
    from kvscope.engine.base import ChatRequest, Load, Message
    from kvscope.selftest.run import send

    requests = tuple(
        ChatRequest(messages=(Message(role="user", content=text),), max_output_tokens=cell.tokens)
        for text in _prompts(cell)
    )
    result = send(url, Load(requests=requests, concurrency=cell.streams))
    answers = [answer.generation for answer in result.answers if answer.generation is not None]
    each = [[event.at_s for event in answer.events if event.text] for answer in answers]
    gaps = [later - earlier for one in each for earlier, later in pairwise(one)]
    healths = [result.health]
    if cell.streams == 1:
        healths += [answer.health for answer in answers if answer.health is not None]
    is_coalesced = max(health.coalesced_fraction or 0.0 for health in healths) > 0.10
    limited = next((health.limited_by for health in healths if health.limited_by), ())
    said = Said(
        ttft_s=statistics.mean(one[0] for one in each),
        gap_s=statistics.mean((one[-1] - one[0]) / (len(one) - 1) for one in each),
        median_gap_s=None if is_coalesced else statistics.median(gaps),
        requests=len(each),
        doubt="client_limited: " + "; ".join(limited) if limited else "",
    )
    out.write_text(json.dumps(vars(said)))


# --- one run ----------------------------------------------------------------------------------------------------------


def _prompts(cell: Cell) -> list[str]:
    return [f"Tell me about number {index}" for index in range(cell.requests)]


def prepare(folder: Path, cell: Cell, client: Client) -> None:
    """The prompts as each client reads them, and a tokenizer of a few words for those that insist on one."""
    key = "text" if client.name == "aiperf" else "prompt"
    lines = [json.dumps({key: text}) for text in _prompts(cell)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    words = folder / "words"
    words.mkdir()
    special = [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for index, text in enumerate(("<unk>", "</s>"))
    ]  # fmt: skip
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1, "tok": 2, "number": 3}, "unk_token": "<unk>"}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    (words / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>",
        "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }  # fmt: skip
    (words / "tokenizer_config.json").write_text(json.dumps(config))


def measure(client: Client, cell: Cell, cores: tuple[int, int]) -> Row:
    """One run of one client in one cell, with a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "sent.jsonl"
        prepare(folder, cell, client)
        words = [
            sys.executable, "-P", "-m", "kvscope.selftest.truth_server", "--core", str(cores[0]), "--log", str(log),
            "--ttft-s", str(cell.ttft_s), "--gap-s", str(cell.gap_s), "--tokens", str(cell.tokens),
        ]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                row, said = _run(client, cell, url, folder, cores[1])
            finally:
                server.terminate()
        return row if said is None else _against(said, row, cell, log)


def _run(client: Client, cell: Cell, url: str, folder: Path, core: int) -> tuple[Row, Said | None]:
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    # Offline, aiperf does not find a tokenizer that lies in a folder; the others look for nothing else then.
    offline = {} if client.name == "aiperf" else {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command(client, cell, url, folder),
            cwd=folder,
            env={**os.environ, **offline},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(failed=f"not done within {LONGEST_S:.0f} s"), None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = Row(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s=time.monotonic() - begin_s
    )
    try:
        return row, read_report(client, folder)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
        row.failed = f"exit code {done.returncode}, no report ({error!r}): {''.join(last)[:200]}"
        return row, None


def _against(said: Said, row: Row, cell: Cell, log: Path) -> Row:
    """Held against what the server wrote down of the answers that it sent whole, the last ones (some clients ask once
    before they begin)."""
    answers = [json.loads(line) for line in log.read_text().splitlines()]
    whole = [one for one in answers if one["complete"] and one["tokens"] == cell.tokens][-cell.requests :]
    if said.requests != cell.requests or len(whole) != cell.requests or said.ttft_s is None or said.gap_s is None:
        row.failed = f"{said.requests} answers reported, {len(whole)} sent whole, of {cell.requests}"
        return row
    sent = [one["sent_s"] for one in whole]
    begin = [one["arrived_s"] or one["received_s"] for one in whole]
    true_ttft_s = statistics.mean(times[0] - at_s for times, at_s in zip(sent, begin, strict=True))
    true_gap_s = statistics.mean((times[-1] - times[0]) / (len(times) - 1) for times in sent)
    span_s = max(times[-1] for times in sent) - min(begin)
    row.ttft_error_ms = (said.ttft_s - true_ttft_s) * 1e3
    row.gap_error = said.gap_s / true_gap_s - 1
    row.median_gap_ms = None if said.median_gap_s is None else said.median_gap_s * 1e3
    row.true_gap_ms = true_gap_s * 1e3
    row.tokens_per_s = sum(len(times) for times in sent) / span_s
    row.requests_per_s = cell.requests / span_s
    row.doubt = said.doubt
    return row


# --- the table --------------------------------------------------------------------------------------------------------


def table(clients: Sequence[Client], cells: Sequence[Cell], repeats: int) -> str:
    """Markdown, one line for each client and cell."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}, Python {platform.python_version()}, load average "
        f"{os.getloadavg()[1]:.1f} over 5 minutes, {repeats} repeats each: medians.",
        "",
        "| client | cell | TTFT error, ms | mean gap error | its median gap (true mean), ms | tokens/s | requests/s "
        "| CPU ms per 1,000 tokens | CPU ms per request | whole run, s | it says of itself |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for client in clients:
        if client.program is None:
            lines.append(f"| {client.name} | | not installed: {client.how} | | | | | | | | |")
            continue
        start_s = statistics.median([row.cpu_s for row in client.rows.get("start", ()) if not row.failed] or [0.0])
        lines += [_line(client, cell, client.rows.get(cell.name, []), start_s) for cell in cells]
        lines.append(f"| {client.name} {client.version} | start | | | | | | | | | {start_s:.1f} s of processor time |")
    return "\n".join(lines)


def _line(client: Client, cell: Cell, rows: Sequence[Row], start_s: float) -> str:
    good = [row for row in rows if not row.failed]
    name = f"{client.name} {client.version}"
    if not good:
        return f"| {name} | {cell.name} | failed: {rows[-1].failed if rows else 'not run'} | | | | | | | | |"

    def middle(values: Sequence[float | None]) -> float:
        return statistics.median([value for value in values if value is not None] or [0.0])

    median_gaps = [row.median_gap_ms for row in good]
    said_median = "none" if None in median_gaps else f"{middle(median_gaps):.3f}"
    true_gap_ms = middle([row.true_gap_ms for row in good])
    cpu_s = max(0.0, middle([row.cpu_s for row in good]) - start_s)
    doubt = next((row.doubt for row in good if row.doubt), "")
    return (
        f"| {name} | {cell.name} | {middle([row.ttft_error_ms for row in good]):+.2f} | "
        f"{middle([row.gap_error for row in good]):+.2%} | {said_median} ({true_gap_ms:.3f}) | "
        f"{middle([row.tokens_per_s for row in good]):,.0f} | {middle([row.requests_per_s for row in good]):,.0f} | "
        f"{cpu_s / (cell.requests * cell.tokens) * 1e6:.0f} | {cpu_s / cell.requests * 1e3:.2f} | "
        f"{middle([row.wall_s for row in good]):.1f} | {doubt} |"
    )


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{os.cpu_count()} × {model}, {platform.system()} {platform.release()}"


def _version(client: Client) -> str:
    words = {"guidellm": ["--version"], "aiperf": ["--version"]}.get(client.name)
    if client.name == "kvscope":
        from kvscope import __version__

        return __version__
    if words is None:
        words = ["-c", "import importlib.metadata as m; print(m.version('vllm'))"]
    done = subprocess.run([str(client.program), *words], capture_output=True, text=True, check=False)
    return (done.stdout.strip().splitlines() or [""])[-1].split(" ")[-1]


def main() -> None:
    """Run each client in each cell, in turn, and print the table."""
    if sys.argv[1:2] == ["--as-client"]:
        be_kvscope(sys.argv[2], CELLS[sys.argv[3]], Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", default=shutil.which("guidellm"), help="its program")
    parser.add_argument("--aiperf", default=shutil.which("aiperf"), help="its program")
    parser.add_argument("--vllm", help="a Python that has vLLM")
    parser.add_argument("--cells", default="A,B,C,D,R")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table there too")
    asked = parser.parse_args()
    clients = [
        Client("kvscope", sys.executable),
        Client("guidellm", asked.guidellm, "pip install guidellm==0.8.1, then --guidellm PROGRAM"),
        Client("aiperf", asked.aiperf, "pip install aiperf==0.13.0, then --aiperf PROGRAM"),
        Client("vllm bench serve", asked.vllm, "pip install vllm, then --vllm PYTHON"),
    ]
    cells = [CELLS[name] for name in asked.cells.split(",")]
    present = [client for client in clients if client.program is not None]
    for client in present:
        client.version = _version(client)
    for repeat in range(asked.repeats):
        for cell in [CELLS["start"], *cells]:
            for client in present:  # next to each other in time, so that they meet the same neighbours
                row = measure(client, cell, (asked.server_core, asked.client_core))
                client.rows.setdefault(cell.name, []).append(row)
                told = (
                    row.failed or f"TTFT {row.ttft_error_ms:+.2f} ms, gap {row.gap_error:+.2%}, CPU {row.cpu_s:.2f} s"
                )
                sys.stderr.write(f"{repeat + 1}/{asked.repeats} {cell.name} {client.name}: {told}\n")
    found = table(clients, cells, asked.repeats)
    sys.stdout.write(found + "\n")
    if asked.out is not None:
        asked.out.write_text(found + "\n")


if __name__ == "__main__":
    main()
