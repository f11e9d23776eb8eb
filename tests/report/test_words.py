"""Every statement of the analysis has its sentence, and every sentence can be said."""

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from kvscope.analysis.notes import note
from kvscope.analysis.release_claim import CLAIMS
from kvscope.record.metrics import DEFINITIONS
from kvscope.record.rows import OUTCOMES, PHASES
from kvscope.report.words import NO_BREAK, WORDS, name_of, say, say_note

SRC = Path(__file__).parent.parent.parent / "src" / "kvscope"


def literals(folder: str, call: str) -> set[str]:
    """First arguments, where they are plain text, of every call of that name."""
    found = set()
    for path in (SRC / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def slugs_of(file: str, call: str) -> set[str]:
    """The plain-text ``slug=`` of every call of that name in a file of the analysis, both arms of a choice included."""
    found = set()
    for node in ast.walk(ast.parse((SRC / "analysis" / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call:
            for keyword in node.keywords:
                if keyword.arg == "slug":
                    found |= {c.value for c in ast.walk(keyword.value) if isinstance(c, ast.Constant)}
    return {slug for slug in found if isinstance(slug, str) and slug}


def test_every_sentence_asked_for_exists() -> None:
    asked = literals("report", "say")
    assert len(asked) > 100
    assert {slug for slug in asked if slug not in WORDS and not slug.endswith(".")} == set()


def test_every_note_of_the_analysis_has_a_sentence() -> None:
    slugs = literals("analysis", "note")
    assert len(slugs) > 8
    assert {slug for slug in slugs if f"note.{slug}" not in WORDS} == set()


def test_every_finding_has_a_sentence() -> None:
    slugs = {s for s in slugs_of("findings.py", "Finding") if not s.startswith("release_") or s.count("_") > 1}
    slugs |= set(CLAIMS)
    assert len(slugs) > 12
    slugs |= {f"{kind}_{v}" for kind in ("slope", "step") for v in ("agrees", "differs", "unclear", "measured")}
    slugs |= {f"{time}_{trend}" for time in ("ttft", "tpot") for trend in ("grows", "flat", "falls", "unclear")}
    slugs -= {"ttft_", "tpot_", "release_", "_measured", "agrees", "differs", "unclear", "grows", "_"}
    assert {slug for slug in slugs if f"finding.{slug}" not in WORDS} == set()


def test_every_check_has_its_three_wordings() -> None:
    slugs = slugs_of("checks.py", "Check")
    assert len(slugs) > 10
    missing = {f"{kind}.{s}" for s in slugs for kind in ("check", "check_name", "check_short")} - set(WORDS)
    assert missing == set()


@pytest.mark.parametrize(("kind", "names"), [("outcome", OUTCOMES), ("phase", PHASES)])
def test_every_outcome_and_phase_has_a_name(kind: str, names: tuple[str, ...]) -> None:
    assert {name for name in names if f"{kind}.{name}" not in WORDS} == set()


def test_every_measured_metric_of_the_definitions_has_a_name() -> None:
    assert {n for n in DEFINITIONS if re.search("_(s|bytes)$", n) and f"metric.{n}" not in WORDS} == set()


def test_every_word_is_used() -> None:
    files = [p for folder in ("report", "cli") for p in (SRC / folder).glob("*.py") if "_en" not in p.name]
    source = "".join(p.read_text(encoding="utf-8") for p in files)
    source += (SRC / "report" / "assets" / "page.html").read_text(encoding="utf-8")
    source = source.replace("'", '"')
    starts = set(re.findall(r'f"([a-z_]+\.[a-z_.]*)\{', source))
    starts |= {f"{kind}." for kind in re.findall(r'name_of\("([a-z_.]+)"', source)} | {"nav."}
    # A slug with its ending put to it: "watch.head" + ("_url" if ...), or of_sequences("fit.options", ...).
    bases = set(re.findall(r'"([a-z_.]+)" \+ \(|of_sequences\("([a-z_.]+)"|slug = "([a-z_.]+)" if', source))
    starts |= {f"{base}_" for found in bases for base in found if base}
    starts |= {f"{base}_" for base in re.findall(r'else "(fit\.[a-z_]+)"', source)}
    plain = {slug for slug in WORDS if f'"{slug}"' not in source and not slug.startswith(tuple(starts))}
    # chart.WORDS.title and the like are put together from three parts.
    assert {s for s in plain if not re.match(r"(chart|axis)\.(ttft|tpot|completion)", s)} == set()


def test_every_placeholder_can_be_filled_with_a_number_or_nothing() -> None:
    for slug, template in WORDS.items():
        fields = [(name, spec) for _, name, spec, _ in Formatter().parse(template) if name]
        for value in (1234.5, None):
            lists = {"list": ("a", "b"), "span": (53, 56)}
            said = say(slug, **{name: lists.get(spec, value) for name, spec in fields})
            assert "{" not in said, slug
            if fields and value is None and all(spec not in lists for _, spec in fields):
                assert "unknown" in said, slug


def test_numbers_keep_their_units() -> None:
    said = say("headline.both", size_bytes=23_040_000, time_s=0.31)
    assert f"22.0{NO_BREAK}MiB" in said
    assert f"310{NO_BREAK}ms" in said


def test_recorded_text_is_never_a_template() -> None:
    assert "{growth_bytes}" in say("finding.failed", count=1, total=2, outcome="{growth_bytes}")


def test_a_sentence_with_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        say("finding.failed", count=1)
    with pytest.raises(KeyError):
        say("no.such.sentence")


def test_components_in_notes_are_named() -> None:
    assert "compute buffer" in say_note(note("seen_together", others=("compute_buffer",), size_bytes=1))


def test_what_has_no_name_is_itself() -> None:
    assert name_of("factor", "n_batch") == "n_batch"
