"""OpenAI's own encodings, where their ranks are here: name the folder of tiktoken's cache in TIKTOKEN_CACHE_DIR.

The ranks are not part of this repository. Some packages carry them under the names that tiktoken's cache has, such as
litellm (in litellm/litellm_core_utils/tokenizers).
"""

import os
from pathlib import Path

import pytest

from kvscope.prompt.tokenizers.load import load_tokenizer

# SHA-1 of the addresses that tiktoken fetches them from.
CACHED = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
# OpenAI's cookbook, "How to count tokens with tiktoken".
PUBLISHED = {
    "cl100k_base": {"antidisestablishmentarianism": 6, "2 + 2 = 4": 7, "お誕生日おめでとう": 9},
    "o200k_base": {"antidisestablishmentarianism": 6, "2 + 2 = 4": 7, "お誕生日おめでとう": 8},
}
TEXTS = [
    *(
        "안녕하세요, 모델의 메모리가 늘어난다.",
        "def f(x):\n    return x1234",
        "😀👩‍👩‍👧 é",
        "  \n\n\t \r\n",
        '{"a": [1, 2.5e3]}',
    ),
    *("<|endoftext|>", "aGVsbG8gd29ybGQ=" * 40, "1234567890" * 9, "日本語とไทย", "\u0000\ufffd"),
]


@pytest.fixture(params=CACHED)
def name(request: pytest.FixtureRequest) -> str:
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder or not (Path(folder) / CACHED[request.param]).is_file():
        pytest.skip(f"the ranks of {request.param} are not here (TIKTOKEN_CACHE_DIR)")
    return str(request.param)


def test_published_counts(name: str) -> None:
    tokenizer = load_tokenizer(f"tiktoken:{name}")
    assert {text: tokenizer.count(text) for text in PUBLISHED[name]} == PUBLISHED[name]


def test_ids_are_the_librarys_and_cover_the_text(name: str) -> None:
    import tiktoken

    theirs, tokenizer = tiktoken.get_encoding(name), load_tokenizer(f"tiktoken:{name}")
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode_ordinary(text)
        assert tokenizer.encode(text, parse_special=True) == theirs.encode(text, allowed_special="all")
        ids, starts = tokenizer.encode_with_starts(text)
        assert ids == theirs.encode_ordinary(text)
        assert starts == sorted(starts)
        assert starts == theirs.decode_with_offsets(ids)[1]
    assert tokenizer.encode_batch(TEXTS) == [theirs.encode_ordinary(text) for text in TEXTS]
    assert not tokenizer.adds_bos
