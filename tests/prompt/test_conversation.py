"""Sizes of a conversation."""

import kvscope.engine.base
from kvscope.prompt.conversation import Conversation, Message


def test_characters_and_bytes_are_those_of_the_contents() -> None:
    conversation = Conversation(
        messages=(Message(role="system", content="Be brief."), Message(role="user", content="강은 흐른다."))
    )
    # "Be brief." is 9 ASCII characters. "강은 흐른다." is 5 syllables of 3 bytes in UTF-8, a space and a full stop.
    assert conversation.characters == 9 + 7
    assert conversation.bytes == 9 + 5 * 3 + 2


def test_an_empty_conversation_has_no_size() -> None:
    assert Conversation(messages=()).characters == 0
    assert Conversation(messages=()).bytes == 0


def test_engines_are_given_the_very_same_message() -> None:
    assert kvscope.engine.base.Message is Message
