"""Runs one job that is written on stdin, and writes its result to stdout: the far end of an executor."""

import sys
import time

from kvscope.experiment.executor import run_job

if __name__ == "__main__":
    sys.stdout.write(run_job(sys.stdin.read(), (time.perf_counter, time.sleep)))
