"""Two pages become one: what is the same stands once, what differs stands in each language, and nothing is lost."""

from dataclasses import replace

from markupsafe import escape

from kvscope.report.blocks import Answer, Block, Bullets, Chart, Paragraph, Section, StudyPage, Table, columns, row
from kvscope.report.spoken import Apart, Spoken, SpokenChart, together
from kvscope.report.spoken_chart import labelled, one_drawing


def page(*blocks: Block, headline: str = "") -> StudyPage:
    first = Answer(strip=(), headline=headline, interval="", badges=(), doubts=(), table=None, chart=None, remarks=())
    return StudyPage(anchor="", answer=first, sections=(Section(slug="s", title="s", blocks=blocks),))


def merged(english: StudyPage, korean: StudyPage) -> StudyPage:
    (one,) = together({"en": (english,), "ko": (korean,)})
    return one


def test_a_text_stands_in_each_language_and_escaped() -> None:
    found = merged(page(headline="a < b"), page(headline="가 & 나")).answer.headline
    assert isinstance(found, Spoken)
    assert found == "a < b"
    assert escape(found) == '<span lang="en">a &lt; b</span><span lang="ko">가 &amp; 나</span>'


def test_what_is_the_same_stands_once() -> None:
    table = Table(caption="c", columns=columns("level", "size"), rows=(row("512", "1.5", anchor="row-1"),))
    said = replace(table, caption="다", columns=columns("단계", "크기"))
    (found,) = merged(page(table), page(said)).sections[0].blocks
    assert isinstance(found, Table)
    assert found.rows is table.rows
    assert [type(column.title) for column in found.columns] == [Spoken, Spoken]
    (same,) = merged(page(table), page(table)).sections[0].blocks
    assert same is table


def test_blocks_that_differ_by_more_than_words_stand_apart_and_anchors_once() -> None:
    table = Table(caption="c", columns=columns("a"), rows=(row("1", anchor="row-1"), row("2", anchor="row-2")))
    short = replace(table, rows=table.rows[:1])
    (found,) = merged(page(table), page(short)).sections[0].blocks
    assert isinstance(found, Apart)
    (kept,), (bare,) = found.versions["en"], found.versions["ko"]
    assert isinstance(kept, Table)
    assert isinstance(bare, Table)
    assert [each.anchor for each in kept.rows] == ["row-1", "row-2"]
    assert [each.anchor for each in bare.rows] == [None]


def test_sections_with_other_numbers_of_blocks_lose_none() -> None:
    (found,) = merged(page(Paragraph(text="a"), Paragraph(text="b")), page(Paragraph(text="가"))).sections[0].blocks
    assert isinstance(found, Apart)
    assert {name: len(blocks) for name, blocks in found.versions.items()} == {"en": 2, "ko": 1}


def test_lists_of_sentences_may_differ_in_length() -> None:
    (found,) = merged(page(Bullets(items=("a", "b"))), page(Bullets(items=("가",)))).sections[0].blocks
    assert isinstance(found, Bullets)
    assert [escape(item) for item in found.items] == [
        '<span lang="en">a</span><span lang="ko">가</span>',
        '<span lang="en">b</span>',
    ]


def test_a_chart_with_words_keeps_both_drawings_and_one_table() -> None:
    table = Table(caption="c", columns=columns("a"), rows=(row("1"),))
    english = Chart(slug="x", title="t", description="d", spec={"title": "t"}, table=table)
    korean = replace(english, title="제목", spec={"title": "제목"})
    (found,) = merged(page(english), page(korean)).sections[0].blocks
    assert isinstance(found, SpokenChart)
    assert found.table is table
    assert {name: chart.title for name, chart in found.versions.items()} == {"en": "t", "ko": "제목"}


SVG = '<svg role="img" aria-labelledby="x-title x-desc" width="{w}"><title id="x-title">{t}</title><g><text y="1">{t}</text><path d="M0,0"/></g></svg>'  # noqa: E501


def test_drawings_that_differ_in_words_become_one() -> None:
    drawn = {name: labelled(SVG.format(w=9, t=text), "page-x") for name, text in (("en", "size"), ("ko", "크기"))}
    one = one_drawing(drawn)
    assert one == (
        '<svg role="img" aria-labelledby="page-x-title page-x-desc" width="9">'
        '<title lang="en">size</title><title lang="ko">크기</title>'
        '<g><text lang="en" y="1">size</text><text lang="ko" y="1">크기</text><path d="M0,0"/></g></svg>'
    )


def test_drawings_of_another_size_stay_two() -> None:
    assert one_drawing({"en": SVG.format(w=9, t="size"), "ko": SVG.format(w=8, t="크기")}) is None
