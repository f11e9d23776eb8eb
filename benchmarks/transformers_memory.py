"""What a process of transformers holds, term by term: at load, and after prompts of several lengths.

    python benchmarks/transformers_memory.py FOLDER [--prompts 32,512,2048] [--set NAME=VALUE ...]

FOLDER holds a config.json, with safetensors or without (random weights then); it needs the extra `transformers` and
Linux. The process's anonymous memory is read from outside (/proc), the terms from the engine: weights and cache by the
tensors' own storages, the C library's heap and Python's arenas by their own count. `rest` is what no term names.
`peak` is how far the process rose above what it had before (loaded, or launched), file-backed pages included.
"""

import argparse
import sys
from pathlib import Path

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.transformers import TransformersEngine
from kvscope.engine.transformers_settings import checked_settings
from kvscope.model.load import load_model
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.units import MIB

OUTPUT_TOKENS = 8
COLUMNS = (
    "growth",
    "weights",
    "cache",
    "heap in use",
    "heap kept free",
    "Python",
    "rest",
    "rest %",
    "file-backed",
    "peak",
)


class Reading:
    """One look at the process, from outside and from inside."""

    def __init__(self, engine: TransformersEngine, probe: ProcessTreeProbe, weights: int) -> None:
        outside, inside = probe.read(), engine.statistics()
        self.anon = outside["anon_bytes"] + outside["swap_bytes"]
        self.file = outside["file_bytes"]
        self.peak = outside.get("peak_bytes", 0)
        self.weights = weights
        self.cache = inside.get("cache_storage_bytes", 0.0)
        self.free = inside.get("heap_free_bytes", 0.0)
        self.python = inside.get("python_arena_bytes", 0.0)
        self.used = inside.get("heap_in_use_bytes", 0.0) + inside.get("heap_mmapped_bytes", 0.0)


def terms(before: Reading, now: Reading) -> list[float]:
    """The columns, in bytes (and one in percent)."""
    growth = now.anon - before.anon
    weights, cache = now.weights - before.weights, now.cache - before.cache
    used = now.used - before.used - weights - cache
    free = now.free - before.free
    python = now.python - before.python
    rest = growth - weights - cache - used - free - python
    peak = now.peak - before.anon - before.file
    return [growth, weights, cache, used, free, python, rest, 100 * rest / growth, now.file - before.file, peak]


def line(name: str, values: list[float]) -> str:
    cells = [
        f"{value:.1f}" if column == "rest %" else f"{value / MIB:.2f}"
        for column, value in zip(COLUMNS, values, strict=True)
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def prompt_of(engine: TransformersEngine, tokens: int) -> tuple[Message, ...]:
    """A message whose prompt has about so many tokens."""
    text = "x" * tokens
    while len(text) > 1 and engine.count_prompt_tokens((Message(role="user", content=text),)) > tokens:
        text = text[: -max(1, len(text) // 50)]
    return (Message(role="user", content=text),)


def main() -> None:
    """Print the table, in MiB."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", default="32,512,2048")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    settings = checked_settings(dict(each.split("=", 1) for each in given.set))
    engine = TransformersEngine(model=load_model(str(given.folder)), settings=settings)
    probe = ProcessTreeProbe(engine.pids)
    sys.stdout.write(f"| moment | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}\n")
    try:
        engine.launch()
        launched = Reading(engine, probe, 0)
        probe.reset_peak()
        report = engine.load()
        weights = int(str(report.effective["weights_bytes"]))
        loaded = Reading(engine, probe, weights)
        is_anonymous = loaded.anon - launched.anon > weights / 2
        held = weights if is_anonymous else 0  # mapped from the file, they are pages of it
        loaded.weights = held
        sys.stdout.write(line("loaded, over launched", terms(launched, loaded)) + "\n")
        for tokens in map(int, given.prompts.split(",")):
            probe.reset_peak()
            messages = prompt_of(engine, tokens)
            answer = engine.generate(ChatRequest(messages=messages, max_output_tokens=OUTPUT_TOKENS))
            now = Reading(engine, probe, held)
            sys.stdout.write(line(f"{answer.prompt_tokens} tokens, over loaded", terms(loaded, now)) + "\n")
            sys.stdout.flush()
        engine.unload()
        sys.stdout.write(line("unloaded, over launched", terms(launched, Reading(engine, probe, 0))) + "\n")
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
