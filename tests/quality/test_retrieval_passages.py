"""Passages: nothing is lost between them, none is over its size, and they end where sentences do."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import BadDesign
from kvscope.prompt.exact_length.source_text import LANGUAGES
from kvscope.prompt.tokenizers.bytes import BytesTokenizer
from kvscope.quality.retrieval.markdown_text import read_markdown
from kvscope.quality.retrieval.passages import Passage, remarks_on_size, split, split_all
from kvscope.quality.retrieval.sentences import sentence_ends
from kvscope.quality.retrieval.source import Heading, SourceDocument


def document(text: str, name: str = "a.txt", headings: tuple[Heading, ...] = ()) -> SourceDocument:
    return SourceDocument(name=name, path=name, text=text, kind="text", headings=headings)


def markdown(text: str) -> SourceDocument:
    body, title, headings = read_markdown(text)
    return SourceDocument(name="a.md", path="a.md", text=body, kind="markdown", title=title, headings=headings)


def words(text: str) -> int:
    """Tokens as words and signs: neighbours never merge over a blank."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def sentences(text: str) -> list[str]:
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("It is 3.5 m. Version 2.1.3 works.", ["It is 3.5 m. ", "Version 2.1.3 works."]),
        ("Dr. Kim met Mr. J. Smith, e.g. Bob. They left.", ["Dr. Kim met Mr. J. Smith, e.g. Bob. ", "They left."]),
        ('"Stop!" she said. "Why?" He left.', ['"Stop!" she said. ', '"Why?" ', "He left."]),
        ("See Fig. 3. The U.S. Army came at 5 p.m. They left in 1999. Then...", None),
        ("서울에 갔다. 좋아요! 왜 그럴까? 끝", ["서울에 갔다. ", "좋아요! ", "왜 그럴까? ", "끝"]),
        ("값은 4만 5천 원이다. 3.5배 늘었다.", ["값은 4만 5천 원이다. ", "3.5배 늘었다."]),
        ('"같이 가자." 라고 말했다. "네."라고 했다.', ['"같이 가자." 라고 말했다. ', '"네."라고 했다.']),
        ("2024. 3. 5. 부터 시작해요. 꼭 오세요.", ["2024. 3. 5. 부터 시작해요. ", "꼭 오세요."]),
        ("これは文です。「はい。」と言った！次。", ["これは文です。", "「はい。」と言った！", "次。"]),
        ("Wraps\nhere. Next\n\nA line\nof two", ["Wraps\nhere. ", "Next\n\n", "A line\nof two"]),
        ("- one\n- two\n  more\n1. First\n2. Second", ["- one\n", "- two\n  more\n", "1. First\n", "2. Second"]),
        ("1. First. Then.\n10. Tenth", ["1. First. ", "Then.\n", "10. Tenth"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ["| a | b |\n", "|---|---|\n", "| 1 | 2 |"]),
        ("", []),
        ("\n\n", ["\n\n"]),
    ],
)
def test_where_sentences_end(text: str, wanted: list[str] | None) -> None:
    if wanted is None:
        wanted = ["See Fig. 3. ", "The U.S. Army came at 5 p.m. ", "They left in 1999. ", "Then..."]
    assert sentences(text) == wanted


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_bundled_text_is_cut_at_the_ends_of_its_sentences(language: str) -> None:
    from importlib.resources import files

    text = (files("kvscope.prompt") / "texts" / f"{language}.txt").read_text(encoding="utf-8")
    found = split(document(text), words, 64)
    assert "".join(each.text for each in found) == text
    ends = [each.text.rstrip(" ") for each in found[:-1]]
    assert [end[-40:] for end in ends if end[-1] not in ".?!”\n"] == []


PIECES = ["다. ", "\n\n", "# ", "e.g. ", *"abc 가나다.\n?!\"'1,。\u0301\u200d\u1100\u1161#-|\t\x85\u2028😀"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=400).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, size=st.integers(16, 60), per_character=st.sampled_from([1, 3]))
def test_passages_join_back_to_the_whole(text: str, size: int, per_character: int) -> None:
    counted = BytesTokenizer().count if per_character == 1 else lambda each: 3 * len(each)
    found = split(markdown(text), counted, size)
    whole = markdown(text).text
    assert "".join(each.text for each in found) == whole
    assert [whole[each.start : each.end] for each in found] == [each.text for each in found]
    assert [each.index for each in found] == list(range(len(found)))
    assert all(each.tokens == counted(each.text) for each in found)
    assert all(each.text for each in found)
    # Marks that belong to one character are never parted, so a heap of them alone may be over the size.
    assert all(each.tokens <= size or len(re.sub("[\u0301\u200d\u1161]", "", each.text)) <= 1 for each in found)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    size=st.integers(16, 80),
)
def test_no_passage_could_take_its_next_sentence_but_for_a_little(lengths: list[int], size: int) -> None:
    """Sentences of so many words, all shorter than a passage where they can be: each passage is filled up, or its next
    sentence is longer than the room left by the learnt size of a token (which is exact here: a word is two characters,
    the stop one)."""
    text = " ".join("w " * (length - 1) + "W." for length in lengths)
    found = split(document(text), words, size)
    for here, behind in pairwise(found):
        next_sentence = sentences(behind.text)[0]
        if here.text.rstrip().endswith("."):
            assert here.tokens + words(next_sentence) > size * 0.75


def test_one_long_sentence_is_cut_at_lines_then_words_then_characters() -> None:
    lines = "\n".join("word " * 6 + "end" for _ in range(10))
    assert all(each.text.endswith("end\n") for each in split(document(lines), words, 16)[:-1])
    one_line = "word " * 200
    assert {each.text[-5:] for each in split(document(one_line), words, 16)} == {"word "}
    one_word = "x" * 5_000
    found = split(document(one_word), len, 100)
    assert [each.tokens for each in found] == [100] * 50


def test_a_very_long_word_is_cut_without_looking_at_all_of_it_each_time() -> None:
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text)

    split(document("x" * 200_000), count, 100)
    assert counted < 200_000 * 20


def test_a_heading_stays_with_what_follows_and_names_its_section() -> None:
    text = "# Ports\n\n" + "Busan is a port. " * 6 + "\n\n## Depth\n\nIt is 12.5 m deep here. " + "More text. " * 20
    found = split(markdown(text), words, 48)
    assert not any(re.search(r"#+ \w+\s*\Z", each.text) for each in found)
    depth = next(each for each in found if "12.5" in each.text)
    assert depth.text.startswith("## Depth")  # it begins in the second half of the passage before
    assert depth.section == ("Ports", "Depth")
    assert found[0].section == ("Ports",)


HEADS = ("# A", "### B", "## C", "# D")
NUMBERS = ("one", "two", "three", "four")


def test_headings_end_with_the_next_of_their_level() -> None:
    fill = "Word word word word. " * 3
    text = "".join(f"{head}\n\nNow {word}. {fill}\n\n" for head, word in zip(HEADS, NUMBERS, strict=True))
    found = split(markdown(text), words, 24)
    sections = {word: each.section for each in found for word in NUMBERS if word in each.text}
    assert sections == {"one": ("A",), "two": ("A", "B"), "three": ("A", "C"), "four": ("D",)}


def test_a_title_that_no_heading_says_stands_above_all_of_them() -> None:
    """That of front matter, of a PDF, of an HTML page's head."""
    text = "## Depth\n\nIt is deep.\n"
    (plain,) = split(replace(markdown(text), title="Ports"), words, 24)
    assert plain.section == ("Ports", "Depth")
    (said,) = split(replace(markdown(text), title="Depth"), words, 24)
    assert said.section == ("Depth",)


def test_few_counts_are_needed() -> None:
    """Each may be a request to a server."""
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return words(text)

    text = " ".join(f"Sentence number {number} says {'very ' * (number % 9)}little." for number in range(3_000))
    found = split(document(text), count, 128)
    assert calls <= 2.5 * len(found)
    assert sum(each.tokens for each in found) / len(found) > 0.85 * 128


def test_passages_that_hold_no_sentence_are_refused() -> None:
    with pytest.raises(BadDesign, match="hold no sentence"):
        split(document("One."), words, 15)


def test_documents_one_after_the_other() -> None:
    found = split_all([document("One. Two.", "a"), document("Three.", "b")], words, 16)
    assert [(each.document, each.index, each.text) for each in found] == [("a", 0, "One. Two."), ("b", 0, "Three.")]
    assert found[0] == Passage(document="a", index=0, text="One. Two.", start=0, end=9, tokens=4)


def test_passages_too_short_for_a_sentence_are_told_with_a_better_size() -> None:
    korean = "등대의 불은 해가 지면 켜진다. " * 20
    documents = [document(korean, name="ko.md"), document("The light is lit at dusk, every day. " * 20, name="en.md")]

    def two_a_syllable(text: str) -> int:  # and four letters a token, as SmolLM2's
        hangul = sum("가" <= each <= "힣" for each in text)
        return 2 * hangul + (len(text) - hangul) // 4

    found = split_all(documents, two_a_syllable, 64)
    (remark,) = remarks_on_size(found, 64)
    assert remark.slug == "short-passages"
    assert "in 1 of 2 documents" in remark.text
    (size,) = {int(number) for number in re.findall(r"\d+", remark.hint or "")}
    assert size % 32 == 0
    assert remarks_on_size(split_all(documents, two_a_syllable, size), size) == ()
    assert remarks_on_size(split_all(documents[1:], two_a_syllable, 64), 64) == ()
    assert remarks_on_size((), 64) == ()
