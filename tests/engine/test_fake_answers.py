"""The fake engine as a reader of known errors, and its distributions of known divergence."""

from math import exp, log

import pytest

from kvscope.engine.base import ChatRequest, Message, ScoreRequest
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.fake_answers import NOT_TOLD
from kvscope.engine.fake_scores import divergence_of, moved_by, position_divergence, reference
from kvscope.errors import ContextOverflow, InvalidSettings
from kvscope.scenario import SettingValue

HEAD = "The first mark of this text is the word lolvit. "
FACTS = [f"The number of the crate {name} is {number}." for name, number in (("Tuver", 52302), ("Pulem", 34855))]
FILLER = "A dog barked twice just after lunch, so the landlady put down a coil of rope. "
TEXT = HEAD + FILLER * 6 + FACTS[0] + " " + FILLER * 6 + FACTS[1] + " " + FILLER


def loaded(**settings: SettingValue) -> FakeEngine:
    engine = FakeEngine(settings=settings, clock=VirtualClock())
    engine.launch()
    engine.load()
    return engine


def ask(engine: FakeEngine, name: str, *, text: str = TEXT) -> str:
    content = f"{text}\n\nWhat is the number of the crate {name}? Answer with the number alone."
    request = ChatRequest(messages=(Message(role="user", content=content),), max_output_tokens=16, ignore_end=False)
    return "".join(event.text for event in engine.generate(request).events)


def test_without_such_settings_it_says_words_as_ever() -> None:
    assert ask(loaded(), "Tuver").startswith("word0 word1 ")


def test_it_finds_what_is_told_and_says_where_nothing_is() -> None:
    engine = loaded(answer_right=1.0)
    assert ask(engine, "Tuver") == "52302"
    assert ask(engine, "Pulem") == "34855"
    assert ask(engine, "Nalvun") == NOT_TOLD


def test_an_answer_ends_by_itself_unless_told_to_go_on_or_cut_by_its_limit() -> None:
    engine = loaded(answer_right=1.0)
    message = Message(role="user", content=f"{TEXT}\n\nWhat is the number of the crate Nalvun?")
    ends = engine.generate(ChatRequest(messages=(message,), max_output_tokens=16, ignore_end=False))
    assert (ends.output_tokens, ends.finish_reason) == (5, "stop")
    goes_on = engine.generate(ChatRequest(messages=(message,), max_output_tokens=16))
    assert (goes_on.output_tokens, goes_on.finish_reason) == (16, "length")
    cut = engine.generate(ChatRequest(messages=(message,), max_output_tokens=2, ignore_end=False))
    assert ("".join(event.text for event in cut.events), cut.finish_reason) == ("The text", "length")


def test_a_text_is_gone_on_with_and_ends_before_a_stop_text() -> None:
    engine = loaded(answer_right=1.0)
    text = f"{TEXT}\n\nThe number of the crate Tuver is"
    request = ChatRequest(messages=(), text=text, max_output_tokens=8, ignore_end=False)
    answer = engine.generate(request)
    assert answer.events[0].text == "52302"
    assert answer.prompt_tokens == len(engine.tokenize(text, with_special=True)) == len(text.split()) + 1
    told = ChatRequest(messages=(), text=text, max_output_tokens=8, ignore_end=False, stop=("302",))
    assert engine.generate(told).events[0].text == "52"


def test_a_share_of_facts_is_given_wrong_and_the_lower_share_nests() -> None:
    text = " ".join(
        f"The number of the crate Crate{chr(97 + n // 26)}{chr(97 + n % 26)} is {10000 + n}." for n in range(300)
    )
    names = [f"Crate{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(300)]
    right = {}
    for share in (0.8, 0.6):
        engine = loaded(answer_right=share)
        right[share] = {n for n, name in enumerate(names) if ask(engine, name, text=text) == str(10000 + n)}
    assert 0.73 < len(right[0.8]) / 300 < 0.87
    assert right[0.6] < right[0.8]
    other = loaded(answer_right=0.8, answer_seed=1)
    assert {n for n, name in enumerate(names) if ask(other, name, text=text) == str(10000 + n)} != right[0.8]


@pytest.mark.parametrize("states", [0, 1, 2])
def test_a_cut_prompt_loses_its_begin_and_states_what_it_is_told_to(states: int) -> None:
    engine = loaded(cuts_at_tokens=70, cut_states=states)
    assert ask(engine, "Tuver") == NOT_TOLD
    assert ask(engine, "Pulem") == "34855"
    content = f"{TEXT}\n\nWhat is the number of the crate Pulem? Answer with the number alone."
    sent = engine.count_prompt_tokens((Message(role="user", content=content),))
    answer = engine.generate(ChatRequest(messages=(Message(role="user", content=content),), max_output_tokens=4))
    assert answer.prompt_tokens == {0: None, 1: 70, 2: sent}[states]
    assert sent > 70


def test_a_cut_can_keep_the_begin_and_a_middle_can_be_passed_over() -> None:
    keeps = loaded(cuts_at_tokens=150, cut_keeps_head=1)
    assert ask(keeps, "Tuver") == "52302"
    assert ask(keeps, "Pulem") == NOT_TOLD
    passes = loaded(ignores_middle=1)
    assert ask(passes, "Tuver") == NOT_TOLD
    assert ask(passes, "Pulem") == "34855"


def test_who_guesses_names_a_value_also_where_nothing_is_told() -> None:
    engine = loaded(guesses=1)
    assert {ask(engine, name) for name in ("Tuver", "Pulem", "Nalvun", "Torvan", "Rudnel")} == {"52302", "34855"}


@pytest.mark.parametrize("settings", [{"answer_right": 1.5}, {"answer_right": -0.1}, {"cuts_at_tokens": 1.5}])
def test_settings_of_answers_are_checked(settings: dict[str, SettingValue]) -> None:
    with pytest.raises(InvalidSettings):
        FakeEngine(settings=settings)


@pytest.mark.parametrize("divergence", [0.001, 0.02, 0.4])
def test_scores_have_the_divergence_that_was_asked_for(divergence: float) -> None:
    """Whole distributions of both engines, by the definition of the divergence."""
    base, moved = loaded(), loaded(score_kl=divergence)
    prompt = base.tokenize(TEXT, with_special=True)
    request = ScoreRequest(prompt=prompt, continuation=base.tokenize(FILLER * 4, with_special=False), num_top=4096)
    found = []
    for position, (one, other) in enumerate(zip(base.score(request).tokens, moved.score(request).tokens, strict=True)):
        first = dict(zip(one.top_tokens, one.top_logprobs, strict=True))
        second = dict(zip(other.top_tokens, other.top_logprobs, strict=True))
        assert len(first) == 4096
        assert sum(map(exp, second.values())) == pytest.approx(1)
        assert first[one.token] == one.logprob
        assert second[one.token] == other.logprob
        found.append(sum(exp(first[token]) * (first[token] - second[token]) for token in first))
        before = [*request.prompt, *request.continuation[:position]]
        assert found[-1] == pytest.approx(position_divergence(before, divergence), rel=1e-6)
    assert sum(found) / len(found) == pytest.approx(divergence, rel=0.35)
    assert base.score(request) == loaded().score(request)


def test_the_reference_is_the_law_it_says() -> None:
    raw = [(rank + 2) ** -2 for rank in range(4096)]
    assert reference()[10] == pytest.approx(log(raw[10] / sum(raw)))
    assert divergence_of(reference(), moved_by(0.0)) == 0


def test_what_stands_in_the_prompt_is_likelier() -> None:
    engine = loaded()
    told = engine.score(
        ScoreRequest(
            prompt=engine.tokenize(TEXT, with_special=True), continuation=engine.tokenize(" 52302.", with_special=False)
        )
    )
    without = engine.tokenize(TEXT.replace("52302", "71717"), with_special=True)
    not_told = engine.score(ScoreRequest(prompt=without, continuation=engine.tokenize(" 52302.", with_special=False)))
    assert told.tokens[0].logprob > not_told.tokens[0].logprob + 2


def test_a_text_too_long_to_be_scored_is_refused() -> None:
    engine = loaded(n_ctx=64)
    with pytest.raises(ContextOverflow):
        engine.score(ScoreRequest(prompt=tuple(range(100)), continuation=(1,)))
