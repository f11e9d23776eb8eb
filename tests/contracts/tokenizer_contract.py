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
    bytes_without_tokens: frozenset[int] = frozenset()

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        """The bytes that a token stands for, from the vocabulary itself."""
        raise NotImplementedError

    def as_read(self, text: str) -> str:
        """The text whose bytes the tokens hold: as many characters, of which some may be other ones."""
        return text

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
        assert tokenizer.count_batch(TEXTS) == [tokenizer.count(text) for text in TEXTS]

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

    def test_starts_come_with_the_same_ids_and_never_decrease(self, tokenizer: Tokenizer) -> None:
        for text in TEXTS:
            ids, starts = tokenizer.encode_with_starts(text)
            assert ids == tokenizer.encode(text)
            assert len(starts) == len(ids)
            assert starts == sorted(starts)
            assert all(0 <= start < len(text) for start in starts)
            assert not starts or starts[0] == 0

    def test_a_start_is_where_the_bytes_of_the_tokens_before_it_end(self, tokenizer: Tokenizer) -> None:
        """The bytes are those of the vocabulary, which the subclass reads in its own way."""
        for text in TEXTS:
            if any("\ud800" <= character <= "\udfff" for character in text):
                continue  # no UTF-8 holds it
            ids, starts = tokenizer.encode_with_starts(text)
            text = self.as_read(text)
            pieces = [self.token_bytes(tokenizer, each) for each in ids]
            content = text.encode()
            kept = [index for index, byte in enumerate(content) if byte not in self.bytes_without_tokens]
            spaces = sum(map(len, pieces)) - len(kept)  # that the vocabulary puts before the text
            assert b"".join(pieces)[spaces:] == bytes(content[index] for index in kept)
            expected, at = [], -spaces
            for piece in pieces:
                expected.append(len(content[: kept[max(at, 0)]].decode(errors="ignore")))
                at += len(piece)
            assert starts == expected

    def test_starts_with_names_of_control_tokens(self, tokenizer: Tokenizer) -> None:
        if not self.parses_special:
            pytest.skip("names of control tokens are refused")
        for text in TEXTS:
            ids, starts = tokenizer.encode_with_starts(text, parse_special=True)
            assert ids == tokenizer.encode(text, parse_special=True)
            assert starts == sorted(starts)
            assert len(starts) == len(ids)

    def test_a_start_counts_both_halves_of_a_surrogate_pair(self, tokenizer: Tokenizer) -> None:
        _, starts = tokenizer.encode_with_starts("\ud83d\ude00\nb")
        _, whole = tokenizer.encode_with_starts("\U0001f600\nb")
        assert starts == [start and start + 1 for start in whole]
        assert tokenizer.encode_with_starts("a\ud83d\nb")[1] == tokenizer.encode_with_starts("a\ufffd\nb")[1]
