"""What every tokenizer must hold, whatever its file: one suite, run against each of them."""

import json
from pathlib import Path

import pytest

from kvscope.prompt.tokenizers.base import Tokenizer

CORPUS = Path(__file__).parent.parent / "golden" / "tokenizers" / "corpus.jsonl"


def corpus() -> list[tuple[str, str]]:
    """(kind, text) of every text of the corpus."""
    lines = CORPUS.read_text(encoding="ascii").splitlines()
    return [(entry["kind"], entry["text"]) for entry in map(json.loads, lines)]


TEXTS = [text for _, text in corpus()]


class TokenizerContract:
    """Subclasses give the fixture ``tokenizer``, its ``kind`` and whether it ``parses_special`` names in text."""

    kind: str
    parses_special = True

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def test_it_says_what_it_is(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.kind == self.kind
        assert tokenizer.source
        assert tokenizer.fingerprint
        assert tokenizer.bos_id is not None or not tokenizer.adds_bos

    def test_every_text_of_the_corpus_becomes_ids_the_same_each_time(self, tokenizer: Tokenizer) -> None:
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert all(type(each) is int and each >= 0 for each in ids)
            assert tokenizer.encode(text) == ids
            assert tokenizer.count(text) == len(ids)

    def test_nothing_is_no_tokens(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("") == []

    def test_a_batch_is_its_texts_in_order(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
        assert tokenizer.encode_batch([]) == []

    def test_a_batch_with_control_tokens_too(self, tokenizer: Tokenizer) -> None:
        if not self.parses_special:
            pytest.skip("names of control tokens are refused")
        single = [tokenizer.encode(text, parse_special=True) for text in TEXTS]
        assert tokenizer.encode_batch(TEXTS, parse_special=True) == single

    def test_bos_is_never_added(self, tokenizer: Tokenizer) -> None:
        if tokenizer.bos_id is None:
            pytest.skip("no BOS token is known")
        assert tokenizer.bos_id not in tokenizer.encode("Hello") + tokenizer.encode("Hello", parse_special=True)

    def test_half_a_surrogate_pair_is_the_replacement_character(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("a\ud83d b") == tokenizer.encode("a\ufffd b")
        assert tokenizer.encode("\ud83d\ude00") == tokenizer.encode("\U0001f600")
        assert tokenizer.encode_batch(["x\udc00"]) == [tokenizer.encode("x\ufffd")]
