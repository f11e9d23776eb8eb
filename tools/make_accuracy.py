"""Write the tables of docs/accuracy.md that come from checks: python tools/make_accuracy.py

Each row is counted by asking the library for what was measured or derived elsewhere (tests/golden) and comparing with
==. Nothing is copied from a table that a person filled in. What stands between the two marks is replaced.
"""

import json
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- made by tools/make_accuracy.py: begin -->", "<!-- made by tools/make_accuracy.py: end -->"
sys.path[:0] = [str(ROOT / "tests" / "predict"), str(ROOT / "tests" / "model")]

from golden_gguf import ALL_MODELS, golden, writer
from test_llama_cpp_observations import ask as ask_llama_cpp
from test_transformers_observations import CASES, FORMS, case_of, mismatches
from test_vllm_observations import ENGINE_CASES
from test_vllm_observations import ask as ask_vllm

from kvscope import load_model, predict
from kvscope.errors import KvscopeError, ModelError


def main() -> None:
    parts = [published(), transformers(), llama_cpp(), vllm()]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    marks = ["---" if column < left else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows)) + "\n"


def published() -> str:
    """Published configs: kvscope and the peers beside the bytes derived by hand."""
    peers = json.loads((GOLDEN / "peers.json").read_text(encoding="utf-8"))
    rows, score = [], Counter[str]()
    for path in sorted((GOLDEN / "models").glob("*/expected.toml")):
        expected = tomllib.loads(path.read_text(encoding="utf-8"))
        if "kv_bytes_at_32768" not in expected:
            continue
        name = path.parent.name
        right = [expected["kv_bytes_at_32768"] + expected.get("index_bytes_at_32768", 0), expected["state_bytes"]]
        verdict = _published_verdict(path.parent, right)
        score[verdict] += 1
        others = peers["models"].get(name)
        counts = Counter(_sort(entry) for entry in others.values()) if others else None
        rows.append(
            [name, f"{right[0]:,} + {right[1]:,}" if right[1] else f"{right[0]:,}", verdict]
            + ([f"{counts['right']}", f"{counts['wrong']}", f"{counts['refused']}"] if counts else ["", "", ""])
        )
    versions = ", ".join(f"{name} {version}" for name, version in peers["versions"].items())
    text = (
        "## Published models: the cache of one sequence of 32,768 tokens\n\n"
        "Bytes (and + recurrent state) derived by hand from each published config, beside eleven other planners that\n"
        f"were given the same file ({versions}; 2026-11-29,\n"
        "`tests/golden/peers.json` has each answer). *Wrong*: more than 0.1 % off, or the state left out, and nothing\n"
        "said.\n\n"
    )
    summary = ", ".join(f"{count} {verdict}" for verdict, count in score.items())
    head = ["model", "right bytes", "kvscope", "peers right", "peers wrong", "peers refused"]
    return f"{text}{table(head, rows)}\nkvscope: {summary}.\n"


def _published_verdict(folder: Path, right: list[int]) -> str:
    try:
        found = predict(load_model(folder / "config.json"), engine="logical", tokens=32768, dtype="bfloat16")
    except ModelError:
        return "refused"
    growing = [found.component_bytes("kv_cache"), found.component_bytes("index_cache")]
    state = found.component_bytes("recurrent_state")
    equal = [sum(value or 0 for value in growing), state] == right
    return "right" if equal else "WRONG"


def _sort(entry: str) -> str:
    return entry if entry in ("right", "refused", "-") else "wrong"


def transformers() -> str:
    """Measured caches and parameter counts, from three forms of each config."""
    by_type: dict[str, Counter[str]] = {}
    for name in CASES:
        counts = by_type.setdefault(case_of(name)["model_type"], Counter())
        for form in FORMS:
            try:
                counts["WRONG" if mismatches(name, form) else "exact"] += 1
            except KvscopeError:
                counts["refused"] += 1
    total = sum(by_type.values(), Counter[str]())
    wholly = sorted(name for name, counts in by_type.items() if set(counts) == {"exact"})
    others = {name: counts for name, counts in sorted(by_type.items()) if set(counts) != {"exact"}}
    rows = [[name, *(str(counts[word]) for word in ("exact", "refused", "WRONG"))] for name, counts in others.items()]
    text = (
        "## transformers 5.24.0: caches and parameters of tiny models that were run\n\n"
        f"{len(CASES)} models of {len(by_type)} model types, each asked from three forms of its config, float32 and\n"
        "bfloat16: bytes of the cache by shape and by storage after prefill and after decode steps, and the number of\n"
        "parameters.\n"
        f"{total['exact']} of {total.total()} questions exact, {total['refused']} refused, {total['WRONG']} wrong.\n\n"
        + textwrap.fill(f"Exact in every question: {', '.join(wholly)}.", 120, break_on_hyphens=False)
        + "\n"
    )
    return text + (f"\n{table(['model type', 'exact', 'refused', 'wrong'], rows)}" if rows else "")


def llama_cpp() -> str:
    """Recorded loads of llama.cpp: each buffer against the prediction."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ALL_MODELS:
            rows.append(_llama_cpp_row(name, Path(folder)))
    text = (
        "## llama.cpp b11549 on a CPU: buffers that were recorded\n\n"
        "For every load: key-value cache, recurrent state, output buffer and the buffers of weights, each byte for\n"
        "byte; the compute buffer where kvscope calls it exact; where it calls it an estimate, how far off it was at\n"
        "most.\n\n"
    )
    head = [
        "model",
        "loads",
        "equal",
        "refused as the engine did",
        "compute exact",
        "estimated",
        "furthest off",
        "unknown",
    ]
    return text + table(head, rows)


def _llama_cpp_row(name: str, folder: Path) -> list[str]:
    model = load_model(writer(name).write(folder / f"{name}.gguf"))
    counts: Counter[str] = Counter()
    worst = 0.0
    for entry in golden(name)["observations"]:
        counts["loads"] += 1
        try:
            found = ask_llama_cpp(model, entry)
        except KvscopeError:
            counts["refused" if "refused" in entry else "WRONG"] += 1
            continue
        totals = found.to_dict()["totals"]
        right = (sum(cache[4] for cache in entry["kv"]), sum(state[2] for state in entry["rs"]), entry["output"])
        ours = (totals["kv_cache_bytes"], totals["recurrent_state_bytes"], totals["output_buffer_bytes"])
        counts["equal" if ours == right else "WRONG"] += 1
        terms = [item for item in found.items if item.component == "compute_buffer"]
        seen = entry["compute"]
        if not terms or seen is None:
            counts["compute_unknown"] += 1
        else:
            off = abs(sum(term.allocated.fixed_bytes for term in terms) - seen) / seen
            status = terms[0].status
            counts[f"compute_{status}" if status != "exact" or not off else "WRONG"] += 1
            worst = max(worst, off) if status != "exact" else worst
    if counts["WRONG"]:
        raise SystemExit(f"{name}: {counts['WRONG']} predictions differ from what was recorded")
    return [
        name, *(str(counts[key]) for key in ("loads", "equal", "refused", "compute_exact", "compute_estimated")),
        f"{worst:.1%}" if worst else "", str(counts["compute_unknown"]),
    ]  # fmt: skip


def vllm() -> str:
    """Pools that vLLM really made."""
    by_case: dict[str, Counter[str]] = {}
    for name, index in ENGINE_CASES:
        counts = by_case.setdefault(name, Counter())
        try:
            predicted, seen = ask_vllm(name, index)
        except KvscopeError:
            counts["refused"] += 1
            continue
        pool = predicted.pool
        assert pool is not None
        ours = (pool.num_blocks, pool.capacity_tokens, pool.max_concurrency)
        counts[
            "equal" if ours == (seen["num_blocks"], seen["capacity_tokens"], seen["max_concurrency"]) else "WRONG"
        ] += 1
    rows = [
        [name, str(counts["equal"]), str(counts["refused"]), str(counts["WRONG"])] for name, counts in by_case.items()
    ]
    text = (
        "## vLLM 0.32.0 (CPU): pools that were made\n\n"
        "Blocks, capacity in tokens, and concurrency. Beside these, `tests/golden/vllm/planner.json` holds several\n"
        "hundred answers of vLLM's own planner on shapes of real models, which\n"
        "`tests/predict/test_vllm_observations.py` compares.\n\n"
    )
    return text + table(["model", "equal", "refused as the engine did", "wrong"], rows)


if __name__ == "__main__":
    main()
