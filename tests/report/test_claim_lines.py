"""What a design says, in a terminal: each sentence once, its interval below, how to check said once."""

import ast
from pathlib import Path

from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.report.claim_lines import claim_lines
from kvscope.report.claims import claim_text
from kvscope.report.design_sizes import DESIGN_SIZES
from kvscope.report.words import WORDS

CLAIMS = Path(__file__).parent.parent.parent / "src" / "kvscope" / "analysis" / "design_claims"
VALUES = {
    "factor": "kv_dtype", "level": "q8_0", "baseline_level": "f16", "metric": "ttft_s", "difference_s": 0.25,
    "baseline_s": 0.5, "share": 0.5, "pairs": 3,
}  # fmt: skip
SLOWER = Finding(
    slug="time_more",
    values=VALUES,
    evidence=("a/1", "b/1"),
    size=Estimate(value=0.25, low=0.2, high=0.3, num=3),
    also_possible=("busy_machine",),
    how_to_check="until_narrow",
)


def test_every_finding_of_a_design_has_a_sentence() -> None:
    for slug in DESIGN_SIZES:
        assert f"finding.{slug}" in WORDS, slug
    literal = set()
    for path in CLAIMS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "slug" and isinstance(node.value, ast.Constant):
                literal.add(node.value.value)
    assert len(literal) > 8
    assert {slug for slug in literal if f"finding.{slug}" not in WORDS} == set()


def test_every_remark_of_a_design_has_words() -> None:
    asked = set()
    for path in CLAIMS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("also_possible", "how_to_check"):
                kind = "also" if node.arg == "also_possible" else "check_by"
                texts = [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)]
                asked |= {f"{kind}.{text}" for text in texts if isinstance(text, str)}
    named = {text for text in asked if text.partition(".")[2] not in ("more", "less", "contradicted", "quadratic")}
    named -= {"also.input_length_quadratic", "check_by.input_length_quadratic", "also.offload_nothing_moved"}
    assert {text for text in named if text not in WORDS} == set()


def test_a_difference_is_said_with_its_sign_its_share_and_its_interval() -> None:
    lines = claim_lines([SLOWER])
    assert lines[0] == "- TTFT with kv_dtype = q8_0: +250 ms against f16 (+50.0 % of its 500 ms)."
    assert lines[1].startswith("    95 % interval +200 ms to +300 ms, 3 pairs.")
    assert lines[-2] == "  To check: the same design with --until 5%."
    assert "evidence" in lines[-1]


def test_how_to_check_is_said_once_and_nothing_is_said_of_nothing() -> None:
    assert sum("--until 5%" in line for line in claim_lines([SLOWER, SLOWER])) == 1
    assert claim_lines([]) == []
    assert max(map(len, claim_lines([SLOWER] * 2))) <= 100


def test_levels_are_said_as_a_person_writes_them() -> None:
    values = {**VALUES, "factor": "a × b", "level": {"swa_full": True, "n_ubatch": 1024}, "baseline_level": False}
    said = claim_text(Finding(slug="time_more", values=values))
    assert "with swa_full = on, n_ubatch = 1,024:" in said
    assert "against off" in said


def test_a_contradiction_is_marked() -> None:
    values = {**VALUES, "component": "kv_cache", "predicted_bytes": 1, "baseline_predicted_bytes": 2,
              "difference_bytes": -1, "reported_mib": "2.00", "baseline_reported_mib": "1.00"}  # fmt: skip
    lines = claim_lines([Finding(slug="buffer_contradicted", is_contradiction=True, values=values)])
    assert lines[0].startswith("≠ KV cache with kv_dtype = q8_0")


def test_few_pairs_are_not_called_noise() -> None:
    # Two pairs that differ by 5 % of the quantity: t = 12.7 makes the interval wide, and three repeats would tell.
    few = {**VALUES, "ruled_out_share": 1.6, "needed": 3, "target_s": 0.08, "pairs": 2, "noise_share": 0.05}
    told = claim_text(Finding(slug="time_cannot_tell", values=few, evidence=("a/1",)))
    assert "2 pairs are too few" in told
    assert "About 3 repeats would tell one of 80 ms" in told.replace("\u00a0", " ")
    noisy = {**few, "noise_share": 1.2}
    assert "the noise is larger" in claim_text(Finding(slug="time_cannot_tell", values=noisy, evidence=("a/1",)))
