"""The report in Korean: numbers as Korean writes them, and no English sentence but what was recorded."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from study_rows import whole_lab, write_record

from kvscope.analysis.study import Analysis, analyse
from kvscope.language import speaking
from kvscope.record.store import open_records
from kvscope.report.definitions import TERMS
from kvscope.report.layer_words import layer_kind
from kvscope.report.markdown import render_markdown
from kvscope.report.sections import study_pages
from kvscope.report.text import render_text
from kvscope.report.words import NO_BREAK, has_words, say

# Three words of English in a row, in lower case.
SENTENCE = re.compile(r"\b[A-Za-z]{2,},? (?:[a-z]{2,},? )+[a-z]{2,}\b")
# Texts of the test's own record, commands, and the list of terms that names both languages beside each other.
RECORDED = ("What does it do?", "Something could mislead.", "ggml error: out of memory", "Look at its memory.",
            "it is not in the file", "GGUF key llama.attention.head_count_kv")  # fmt: skip
COMMAND = re.compile(r"kvscope [a-z]+[^가-힣]*")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    with open_records(write_record(tmp_path_factory.mktemp("korean") / "r.db", whole_lab())) as records:
        return analyse(records)


@pytest.fixture(autouse=True)
def korean() -> Iterator[None]:
    with speaking("ko"):
        yield


def texts(value: object) -> Iterator[str]:
    """Every text that a page holds, but for chart specifications and what a click saves."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from texts(item)
    elif is_dataclass(value) and not isinstance(value, type) and type(value).__name__ != "Download":
        for field in fields(value):
            if field.name not in ("spec", "anchor", "slug"):
                yield from texts(getattr(value, field.name))


def english(text: str) -> str | None:
    """The first run of English words in a text that is neither recorded nor a command."""
    for recorded in RECORDED:
        text = text.replace(recorded, "")
    found = SENTENCE.search(COMMAND.sub("", text))
    return found and found[0]


def test_the_page_has_no_english_sentence(lab: Analysis) -> None:
    said = list(texts(study_pages(lab)))
    assert sum(bool(re.search("[가-힣]", text)) for text in said) > 500
    # A term's English names stand beside its Korean ones.
    with speaking("en"):
        listed = {", ".join(dict.fromkeys(say(name) for name in term.names if has_words(name))) for term in TERMS}
    assert {text for text in said if english(text)} - listed == set()


def test_the_terminal_has_no_english_sentence(lab: Analysis) -> None:
    text = render_text(lab)
    assert english(text) is None
    # Two lengths make no line: both ends are told, as measured.
    assert "컨텍스트 1,000토큰마다 메모리가 22.0 MiB 늘어납니다. 첫 토큰은 입력 128토큰이면" in text
    assert "25회 중 1회 실패" in text


def test_markdown_has_the_same_language_as_the_terminal(lab: Analysis) -> None:
    assert "컨텍스트 1,000토큰마다 메모리가 22.0" in render_markdown(lab)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(5.256, "5.26초"), (1.0, "1.00초"), (0.31, "0.31초"), (0.266, "0.266초"), (0.9999, "1초"), (0.0999999, "0.1초"),
     (0.0452, "45.2 ms"), (-0.31, "-0.31초"), (1234.5, "1,234.50초"), (0.0, "0 ms")],
)  # fmt: skip
def test_seconds_in_sentences(seconds: float, written: str) -> None:
    said = say("size.per_token", low=seconds, high=seconds, num=3)
    assert f"{written.replace(' ', NO_BREAK)}에서" in said


def test_shares_and_their_differences() -> None:
    said = say("quality_verdict.no_loss_beyond", bound=0.032)
    assert said == "손실 없음(> 3.2%p)"
    assert "99.4% 이상" in say("badge.explained_rows", share=0.994, rows=12)
    # A share that fell by 3.2 points of a hundred.
    said = say("answered.loss", level="q4_0", base="f16", task="keys", size=-0.032)
    assert said == "q4_0 손실, f16 대비: keys -3.2%p."


def test_a_latin_unit_keeps_its_space_and_a_counter_none() -> None:
    said = say("headline.memory", size_bytes=23_040_000)
    assert said == f"컨텍스트 1,000토큰마다 메모리가 22.0{NO_BREAK}MiB 늘어납니다."
    said = say("finding.turns_last", condition="n = 1", ttft_s=0.5, prompt_span=(1053, 1056), computed_span=(3, 3))
    assert "입력 1,053–1,056토큰 중 3토큰을" in said


def test_what_is_unknown() -> None:
    assert "알 수 없음" in say("headline.memory", size_bytes=None)


def test_kinds_of_layers() -> None:
    assert layer_kind("full_attention") == "전체 어텐션"
    assert layer_kind("sliding_window+recurrent_mamba2") == "슬라이딩 윈도 + 순환 상태(mamba2)"
    assert layer_kind("latent_attention_indexed") == "인덱스가 있는 잠재 어텐션"
    assert layer_kind("of_tomorrow") == "of tomorrow"


def test_a_korean_sentence_is_chosen_by_its_slug() -> None:
    """The same English can be two Korean words: "limit" of what is produced, "times" of failures."""
    assert (say("sure.exact"), say("status.exact")) == ("정확", "정확")
    assert say("col.count") == "횟수"
    with speaking("en"):
        assert say("col.failed") == "failed"
    assert say("col.failed") == "실패"
