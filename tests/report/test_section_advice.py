"""What a reader is told to change: each sentence whole, what is predicted named so, and nothing where nothing helps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from advice_studies import F16, Q8, ROOMY, TIGHT, Level, attempts_of, study_of, trained_limit
from click.testing import CliRunner

import kvscope.report.advice_en as advice_en
from kvscope.analysis.advice import advise
from kvscope.analysis.advice_axes import axis_of
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import Study, analyse
from kvscope.cli.main import cli
from kvscope.record.store import open_records
from kvscope.report.blocks import Block, Bullets, Claim, Paragraph, Table
from kvscope.report.claims import row_anchors
from kvscope.report.section_advice import advice_lines, advice_section
from kvscope.report.sections import kept_sections
from kvscope.units import MIB

GOLDEN = Path(__file__).parent.parent / "golden" / "records"
SAVES = Level(settings=Q8, more_kib=-22 * 1024, ttft_s=1.3, saves_bytes=21 * MIB)


def a_study(attempts: list[Attempt], *, binds: str = "trained") -> Study:
    study = study_of(attempts, limit=trained_limit(attempts, binds=binds))
    found = advise(study)
    study = replace(study, pressure=found.pressure, advice=found.advice, withheld=found.withheld, look=found.look)
    return replace(study, priced=found.priced)


def cache_types(available: int) -> Study:
    return a_study(
        attempts_of("kv_dtype", "kv_dtype", {"f16": Level(settings=F16), "q8_0": SAVES}, available=available)
    )


def paragraphs(study: Study) -> list[str]:
    """The lead, whether memory is short (a claim, for it has rows), and what stands between."""
    blocks = advice_section(study, {}).blocks
    return [b.text for b in blocks if isinstance(b, Paragraph) or _is_pressure(b)]  # type: ignore[union-attr]


def _is_pressure(block: Block) -> bool:
    return isinstance(block, Claim) and block.text.startswith(("Memory is", "All that ran", "Whether memory"))


def told_of(study: Study, prefix: str = "") -> list[Claim]:
    """What is advised."""
    blocks = advice_section(study, row_anchors(study, prefix) if prefix else {}).blocks
    return [block for block in blocks if isinstance(block, Claim) and not _is_pressure(block)]


def test_a_change_is_told_with_its_size_price_answers_risk_rows_and_check() -> None:
    study = cache_types(TIGHT)
    (claim,) = told_of(study, "s1-")
    assert claim.text == "Keep the KV cache in fewer bits: --cache-type-k q8_0 --cache-type-v q8_0"
    told = [remark.replace("\u00a0", " ") for remark in claim.remarks]
    assert told[0].startswith("Measured: 22.0 MiB less at the peak (95 % interval ")
    assert told[0].endswith("5 pairs.")
    assert told[1] == "Predicted were 21.0 MiB."
    assert any(remark.startswith("It costs time: TTFT is 300 ms longer") for remark in told)
    assert "Answers: quality not measured here." in told
    assert any(remark.startswith("Fewer bits can cost answers") for remark in told)
    assert any(remark.startswith("To repeat it with more repeats: kvscope measure kv_dtype ") for remark in told)
    assert len(claim.evidence) == 6
    assert claim.evidence[0].anchor == "s1-row-1"
    assert "Memory is short here" in paragraphs(study)[1]
    (line,) = advice_lines(study)
    assert line.replace("\u00a0", " ") == "--cache-type-k q8_0 --cache-type-v q8_0 saves 22.0 MiB (measured)."


def test_trials_in_which_kvscope_itself_was_slow_are_counted_beside_the_times() -> None:
    attempts = attempts_of("kv_dtype", "kv_dtype", {"f16": Level(settings=F16), "q8_0": SAVES}, available=TIGHT)
    slow = [
        replace(a, result=replace(a.result, trial=replace(a.trial, client={"client_limited": a.trial.block < 2})))
        for a in attempts
    ]
    (claim,) = told_of(a_study(slow))
    assert any(remark.startswith("In 4 of these 10 trials kvscope itself") for remark in claim.remarks)


def test_what_binds_is_said_and_what_is_not_advised_is_named() -> None:
    study = cache_types(ROOMY)
    lead, pressure, named = paragraphs(study)
    assert lead.startswith("Nothing needs to be changed for memory")
    assert pressure.startswith("Memory is no trouble for what was run here")
    assert named == "Measured here, and not advised:"
    (bullets,) = [block for block in advice_section(study, {}).blocks if isinstance(block, Bullets)]
    (told,) = (each.replace("\u00a0", " ") for each in bullets.items)
    assert "it saves memory (difference -22.0 MiB, 95 % interval" in told
    assert "TTFT is 300 ms longer" in told
    assert "quality not measured" in told
    assert advice_lines(study) == ("Nothing needs to be changed: memory is no trouble for what was run here.",)


def test_a_prediction_is_never_told_as_a_measurement() -> None:
    kept = [
        {"change": {"n_ubatch": 256}, "saved_bytes": 9 * MIB, "is_estimate": False, "harm": 1, "axis": "microbatch"}
    ]
    levels = {64: Level(settings={"n_ctx": 2048})}
    study = a_study(attempts_of("input_length", "prompt_tokens", levels, changes=kept, available=TIGHT))
    (claim,) = told_of(study)
    assert claim.remarks[0].startswith("Predicted only: ")
    assert not claim.evidence
    assert all("(predicted only)" in line for line in advice_lines(study))


def test_a_page_of_one_trial_that_did_not_fit_says_what_would_make_room() -> None:
    change = {"change": Q8, "saved_bytes": 22 * MIB, "is_estimate": False, "harm": 1, "axis": "cache type"}
    (refused,) = attempts_of("input_length", "prompt_tokens", {64: Level(settings={})}, repeats=1, changes=[change])
    row = replace(refused.trial, outcome="refused", error_slug="out-of-memory", error_message="It does not fit.")
    study = a_study([replace(refused, result=replace(refused.result, trial=row, marks=(), requests=(), tokens=()))])
    assert not study.is_measured
    assert paragraphs(study)[1].startswith("Memory is short here: 1 of 1 trials ran out of it")
    assert [line for line in advice_lines(study) if "should save" in line]


def test_every_change_that_can_be_advised_has_its_sentence_and_its_risk() -> None:
    changes = (
        ({"cache_type_k": "q8_0"}, {}), ({"cache_implementation": "offloaded"}, {}), ({"n_ctx": 1}, {}),
        ({"n_ubatch": 1}, {"n_ubatch": 2}), ({"n_ubatch": 2}, {"n_ubatch": 1}), ({"swa_full": False}, {}),
        ({"swa_full": True}, {}), ({"flash_attn": "on"}, {}), ({"flash_attn": "off"}, {}), ({"cache_ram_mib": 0}, {}),
        ({"n_parallel": 1}, {}), ({"kv_unified": True}, {}), ({"no_extra_bufts": True}, {}),
        ({"no_extra_bufts": False}, {}), ({"load_mode": "none"}, {}), ({"dtype": "bfloat16"}, {}), ({"x": 1}, {}),
    )  # fmt: skip
    slugs = {axis_of(change, before).slug for change, before in changes}
    assert len(slugs) == len(changes)
    others = {"host_cache_limit", "stable_prefix", "history", "history_window"}
    assert {slug for slug in slugs | others if f"advice.{slug}" not in advice_en.ADVICE} == set()
    assert {slug for slug in slugs | others if f"risk.{slug}" not in advice_en.ADVICE} == set()


@pytest.mark.parametrize("name", ["lab.db", "schema3.db", "schema4.db"])
def test_records_made_before_advice_was_kept_have_the_section(name: str) -> None:
    with open_records(GOLDEN / name) as records:
        studies = analyse(records).studies
    for study in studies:
        blocks = advice_section(study, row_anchors(study, "")).blocks
        assert blocks
        assert study.pressure.is_free  # 188 MiB of more than 20 GiB
        # Two of their trials sent 4,000 tokens where 1,024 are allowed: that alone is to be changed.
        assert {each.slug for each in study.advice} <= {"context_longer"}
        assert len(study.advice) == any(a.trial.error_slug == "context-overflow" for a in study.trials)


def test_the_json_has_all_of_it() -> None:
    done = CliRunner().invoke(cli, ["report", "--records", str(GOLDEN / "lab.db"), "--json"])
    assert done.exit_code == 0, done.output
    (study,) = json.loads(done.stdout)["studies"]
    assert study["pressure"]["slug"] == "free"
    assert study["withheld"] == []
    (advice,) = study["advice"]  # for the two trials that sent 4,000 tokens where 1,024 are allowed
    assert (advice["slug"], advice["change"]) == ("context_longer", {"n_ctx": 4096})


def failed(*, slug: str, outcome: str, tokens: int, context: int, available: int | None = None) -> Study:
    """One trial that left no measurement. By hand, in the prediction of these tests: 23,040 bytes for each token."""
    change = {"change": Q8, "saved_bytes": 22 * MIB, "is_estimate": False, "harm": 1, "axis": "cache type"}
    settings = {"n_ctx": context}
    (tried,) = attempts_of("input_length", "prompt_tokens", {64: Level(settings=settings)}, repeats=1, changes=[change])
    predicted = dict(tried.prediction or {})
    predicted["scenario"] = {**predicted.get("scenario", {}), "tokens": tokens - 1}
    predicted["model"] = {**predicted.get("model", {}), "trained_context_tokens": 8192}
    limits = {"context_tokens": context, "slot_limit_tokens": min(context, 8192), "streams": 1}
    predicted["effective"] = {**predicted.get("effective", {}), **limits}
    evidence = {} if available is None else {"available_bytes": available}
    row = replace(tried.trial, outcome=outcome, error_slug=slug, error_message="It failed.", evidence=evidence)
    result = replace(tried.result, trial=row, marks=(), requests=(), tokens=(), effective={})
    return a_study([replace(tried, prediction=predicted, result=result)])


def test_what_a_longer_context_mends_is_not_told_to_save_memory() -> None:
    study = failed(slug="context-overflow", outcome="context_overflow", tokens=1532, context=1024)
    (claim,) = told_of(study)
    assert claim.text.startswith("Make the context longer: --ctx-size 1536.")
    assert "need 1,532 tokens" in claim.text
    assert any("--set n_ctx=1536" in remark for remark in claim.remarks)
    (line,) = advice_lines(study)
    assert line.startswith("--ctx-size 1536 makes room for the 1,532 tokens")
    assert "advice" in kept_sections(study)  # the page says what the terminal says


def test_a_prompt_longer_than_the_model_was_trained_for_is_to_be_shorter() -> None:
    study = failed(slug="context-overflow", outcome="refused", tokens=9000, context=2048)
    (claim,) = told_of(study)
    assert claim.text.startswith("Send shorter prompts")
    assert "8,192" in claim.text


def test_a_limit_far_beyond_what_the_model_was_trained_for_is_named_and_no_change_that_does_not_suffice() -> None:
    # 100,000,000 tokens are asked for; q8_0 saves 22 MiB and leaves it too large for what is available by far.
    study = failed(slug="out-of-memory", outcome="refused", tokens=3032, context=100_000_000, available=MIB)
    (claim,) = told_of(study)
    assert claim.text.startswith("Lower the context limit to what the model was trained for: --ctx-size 8192.")
    assert not [line for line in advice_lines(study) if "q8_0" in line]


def test_a_failure_that_memory_did_not_cause_is_given_no_advice_of_memory() -> None:
    study = failed(slug="engine-died", outcome="engine_died", tokens=64, context=2048)
    assert not told_of(study)
    assert not advice_lines(study)
    assert paragraphs(study)[0].startswith("No setting is known that would mend what failed here.")


def test_the_price_list_is_there_where_nothing_is_needed_and_the_wait_comes_first() -> None:
    kept = [
        {"change": {"n_ubatch": 256}, "saved_bytes": 9 * MIB, "is_estimate": False, "harm": 1, "axis": "microbatch"},
        {"change": Q8, "saved_bytes": 22 * MIB, "is_estimate": False, "harm": 1, "axis": "cache type"},
        {"change": {"flash_attn": "off"}, "saved_bytes": -MIB, "is_estimate": False, "harm": 1, "axis": "flash"},
    ]
    levels = {64: Level(settings={"n_ctx": 2048})}
    study = a_study(attempts_of("input_length", "prompt_tokens", levels, changes=kept))
    assert study.pressure.is_free
    lead, look, pressure = paragraphs(study)
    assert "What costs is the wait" in lead
    assert "kvscope measure microbatch" in look
    assert pressure.startswith("Memory is no trouble")
    (table,) = [block for block in advice_section(study, {}).blocks if isinstance(block, Table)]
    assert table.summary is not None
    assert table.summary.startswith("If memory were short")
    assert [(row.cells[0], row.cells[1]) for row in table.rows] == [
        ("--cache-type-k q8_0 --cache-type-v q8_0", "22.0"),
        ("--ubatch-size 256", "9.0"),
    ]


def test_what_the_engine_took_is_what_it_grew_by() -> None:
    # By hand: own memory and files at the peak, less each at the start.
    attempts = attempts_of("input_length", "prompt_tokens", {64: Level(settings={"n_ctx": 2048})})
    study = a_study(attempts)
    grown = []
    for each in attempts:
        start = next(mark for mark in each.result.marks if mark.phase == "launched")
        own = (each.metrics.memory_peak_bytes or 0) - start.anon_bytes
        grown.append(own + (each.metrics.memory_peak_bytes_file or 0) - start.file_bytes)
    assert study.pressure.values["used_bytes"] == max(grown)
    (claim,) = [b for b in advice_section(study, row_anchors(study, "")).blocks if isinstance(b, Claim)]
    assert len(claim.evidence) == 1
