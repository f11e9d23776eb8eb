"""Where tokens begin, for files whose own rules would hide it."""

import json
from pathlib import Path

import pytest

from kvscope.errors import EngineReplyError
from kvscope.prompt.tokenizers import server
from kvscope.prompt.tokenizers.base import starts_from_bytes, starts_in
from kvscope.prompt.tokenizers.load import load_tokenizer


def test_a_space_before_a_word_belongs_to_its_token_whatever_the_file_trims(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    built = Tokenizer(models.BPE(vocab={**letters, "Ġb": 256}, merges=[("Ġ", "b")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.post_processor = processors.ByteLevel(trim_offsets=True)
    built.save(str(tmp_path / "tokenizer.json"))
    assert built.encode("a b").offsets[1] == (2, 3)  # what the file itself says
    assert load_tokenizer(str(tmp_path)).encode_with_starts("a b가") == (
        [letters["a"], 256, *(letters[letter] for letter in "ê°Ģ")],
        [0, 1, 3, 3, 3],
    )


def test_characters_of_bytes() -> None:
    # "a" is byte 0, "é" 1-2, "가" 3-5, "😀" 6-9, and 10 is behind them.
    assert starts_from_bytes("aé가😀", range(11)) == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4]
    assert starts_from_bytes("", [0]) == [0]


def test_surrogate_pairs_are_two_code_points_of_the_text() -> None:
    assert starts_in("a\ud83d\ude00b\ud83d", "a😀b\ufffd", [0, 1, 2, 3]) == [0, 1, 3, 4]
    assert starts_in("ab", "ab", [0, 1]) == [0, 1]


@pytest.mark.parametrize(
    ("content", "pieces", "starts"),
    [
        (b"ab c", [b"ab", b" c"], [0, 2]),
        (b"ab", [b" ab"], [0]),  # the vocabulary puts a space before a text
        (b"a<s>b", [b" a", b"<s>", b" b"], [0, 1, 4]),  # and before the text behind a control token
        (b"a\x04b", [b"a", b"b"], [0, 2]),  # it has no token for byte 4
        (b"aba", [b"ab"], None),
        (b"ab", [b"a", b"c"], None),
        (b"", [], []),
    ],
)
def test_pieces_of_a_server_are_laid_onto_the_text(
    content: bytes, pieces: list[bytes], starts: list[int] | None
) -> None:
    assert server._aligned(content, pieces) == starts


def test_a_server_whose_pieces_are_other_text_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(self: object, connection: object, body: bytes) -> object:
        sent = json.loads(body)
        if sent.get("with_pieces"):
            return {"tokens": [{"id": 1, "piece": "other"}]}
        return {"tokens": [1]}

    monkeypatch.setattr(server.ServerTokenizer, "_post", post)
    tokenizer = load_tokenizer("http://127.0.0.1:1")
    with pytest.raises(EngineReplyError, match="which part of a text"):
        tokenizer.encode_with_starts("text")
