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
from kvscope.report.blocks import Bullets, Claim, Paragraph
from kvscope.report.claims import row_anchors
from kvscope.report.section_advice import advice_lines, advice_section
from kvscope.units import MIB

GOLDEN = Path(__file__).parent.parent / "golden" / "records"
SAVES = Level(settings=Q8, more_kib=-22 * 1024, ttft_s=1.3, saves_bytes=21 * MIB)


def a_study(attempts: list[Attempt], *, binds: str = "trained") -> Study:
    study = study_of(attempts, limit=trained_limit(attempts, binds=binds))
    found = advise(study)
    return replace(study, pressure=found.pressure, advice=found.advice, withheld=found.withheld, look=found.look)


def cache_types(available: int) -> Study:
    return a_study(
        attempts_of("kv_dtype", "kv_dtype", {"f16": Level(settings=F16), "q8_0": SAVES}, available=available)
    )


def paragraphs(study: Study) -> list[str]:
    return [b.text for b in advice_section(study, {}).blocks if isinstance(b, Paragraph)]


def test_a_change_is_told_with_its_size_price_answers_risk_rows_and_check() -> None:
    study = cache_types(TIGHT)
    section = advice_section(study, row_anchors(study, "s1-"))
    (claim,) = [block for block in section.blocks if isinstance(block, Claim)]
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
    (claim,) = [block for block in advice_section(a_study(slow), {}).blocks if isinstance(block, Claim)]
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
    (claim,) = [block for block in advice_section(study, {}).blocks if isinstance(block, Claim)]
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
        assert not study.advice


def test_the_json_has_all_of_it() -> None:
    done = CliRunner().invoke(cli, ["report", "--records", str(GOLDEN / "lab.db"), "--json"])
    assert done.exit_code == 0, done.output
    (study,) = json.loads(done.stdout)["studies"]
    assert study["pressure"]["slug"] == "free"
    assert (study["advice"], study["withheld"]) == ([], [])
