"""Every word that a table of the page uses is defined in it, once, in both languages."""

from pathlib import Path

import pytest
from study_rows import changed_settings, whole_lab, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import analyse
from kvscope.language import LANGUAGES, speaking
from kvscope.record.store import open_records
from kvscope.report.definitions import TERMS, anchor, anchors_of, meaning, names_by_language, names_of
from kvscope.report.links import tables_of
from kvscope.report.sections import study_pages
from kvscope.report.words_en import WORDS

# Titles that say themselves what they are: a condition's name, a language, a unit, a list of rows.
PLAIN = ("col.in_en", "col.in_ko", "col.meaning", "col.mib", "col.rows")


def test_every_term_has_names_and_a_meaning() -> None:
    for term in TERMS:
        assert names_of(term), term
        assert len(meaning(term)) > 10, term
        assert {name for name in term.names if name in WORDS}, term
    assert len({anchor(term, "") for term in TERMS}) == len(TERMS)


@pytest.mark.parametrize("rows", [whole_lab, changed_settings])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_title_of_a_column_is_defined(tmp_path: Path, rows: object, language: str) -> None:
    made: list[Attempt] = rows()  # type: ignore[operator]
    with open_records(write_record(tmp_path / "r.db", made)) as records:
        analysis = analyse(records)
    with speaking(language):
        known = set(anchors_of(""))
        plain = {WORDS[slug] for slug in PLAIN} | _conditions()
        titles = {
            column.title
            for page in study_pages(analysis)
            for section in page.sections
            for table in tables_of(section.blocks)
            for column in table.columns
        }
    missing = {title for title in titles - known - plain if " = " not in title}
    assert not missing


def _conditions() -> set[str]:
    from kvscope.report.words import say

    return {say(slug) for slug in WORDS if slug.startswith("factor.")} | {say(slug) for slug in PLAIN}


def test_names_stand_side_by_side_in_both_languages() -> None:
    ttft = next(term for term in TERMS if term.slug == "ttft_s")
    names = names_by_language(ttft)
    assert list(names) == list(LANGUAGES)
    assert "TTFT" in names["en"]
