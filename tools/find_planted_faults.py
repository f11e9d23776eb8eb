"""Run random studies with planted faults and count what was found: python tools/find_planted_faults.py

500 scenarios of tests/analysis/planted_faults.py, judged by planted_verdicts.py beside it. The counts go into
docs/accuracy.md between the two marks. Ends with 1 where a fault was missed that had to be told, or one was told that
is not there. ``--scenarios 40 --first 500`` for others; the page is written only by the whole run.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN = "<!-- made by tools/find_planted_faults.py: begin -->"
END = "<!-- made by tools/find_planted_faults.py: end -->"
sys.path[:0] = [str(ROOT / "tests" / "analysis")]

from planted_faults import FAULTS, draw_scenario, run_scenario
from planted_verdicts import COPIES, MISSED, NOT_TELLABLE, TOLD, TOLD_BELOW, judge

WHOLE = 500
_NAMES = {
    "leak": "leak: memory more after each request, never returned",
    "silent_cache": "cache that the engine does not speak of: copies of prompts, bounded",
    COPIES: "cache that the engine states: copies of prompts, bounded",
    "time_drift": "drift of time over the trials",
    "memory_drift": "drift of memory over the trials",
    "swap": "memory swapped out",
    "counts": "prompts counted otherwise by the server",
    "late_samples": "memory read late",
    "client": "a client that did not keep up",
    "other_kv": "a KV cache of another size than predicted",
}


def main() -> int:
    asked = argparse.ArgumentParser(description="Random studies with planted faults: which are found, and named.")
    asked.add_argument("--scenarios", type=int, default=WHOLE)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = asked.parse_args()
    begin_s = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    numbers = range(args.first, args.first + args.scenarios)
    with ProcessPoolExecutor(args.processes) as pool:
        for number, kinds, found, false in pool.map(one, numbers, chunksize=1):
            counts.update(found)
            counts["clean" if not kinds else "faulty", "false" if false else "right"] += 1
            if false or any(word == MISSED for _, word in found):
                print(number, kinds, found, "false:", false, flush=True)
    text = table(counts)
    print(text, f"\n{args.scenarios} scenarios in {time.monotonic() - begin_s:.0f} s", sep="")
    if args.scenarios == WHOLE and not args.first:
        write(text)
    is_wrong = any(num for (_, word), num in counts.items() if word in (MISSED, "false"))
    return 1 if is_wrong else 0


def one(number: int) -> tuple[int, list[tuple[str, float]], list[tuple[str, str]], tuple[str, ...]]:
    """The verdict of one scenario: its number, its faults with their sizes, each with what was said of it, what was
    said of none."""
    scenario = draw_scenario(number)
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(run_scenario(scenario, Path(folder)))
    found = list(verdict.of_faults.items())
    if verdict.copies is not None:
        found.append((COPIES, verdict.copies))
    return number, [(fault.kind, fault.size) for fault in scenario.faults], found, verdict.false


def table(counts: Counter[tuple[str, str]]) -> str:
    """The counts, as Markdown."""
    head = ["planted", "scenarios", "had to be told", "told", "missed", "below the limit", "told all the same"]
    lines = ["| " + " | ".join(head) + " |", "| --- " + "| --: " * (len(head) - 1) + "|"]
    for kind in (*FAULTS, COPIES):
        told, missed = counts[kind, TOLD], counts[kind, MISSED]
        below, anyway = counts[kind, NOT_TELLABLE] + counts[kind, TOLD_BELOW], counts[kind, TOLD_BELOW]
        cells = [_NAMES[kind], told + missed + below, told + missed, told, missed, below, anyway]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    clean, false = counts["clean", "right"] + counts["clean", "false"], counts["clean", "false"]
    faulty = counts["faulty", "right"] + counts["faulty", "false"]
    return "\n".join(lines) + (
        f"\n\n{clean} clean scenarios: {false} with a finding of something that is not there. {faulty} with one or two "
        f"faults:\n{counts['faulty', 'false']} with a finding of another fault than those planted.\n"
    )


def write(text: str) -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
