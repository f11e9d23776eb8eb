"""Writes the smallest model that llama.cpp runs, with a vocabulary of its own or with that of another GGUF file.

What an engine holds besides a model's weights, caches and buffers is measured on such a model. Its weights are zeros,
and their bytes a hole in the file: it takes no room on disk, and every computation with them is defined.

Source of the format: the GGUF specification of ggml; the names of keys and tensors are those of llama.cpp's ``llama``.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvscope.model.gguf_cursor import SCALARS, SIZES, Cursor, skip_strings
from kvscope.model.gguf_header import MAGIC, SkippedArray, read_header

WIDTH = 32
FEED_FORWARD = 32
HEADS = 1
CONTEXT_TOKENS = 131_072
_ALIGNMENT = 32
_F32, _F16 = 0, 1
_BYTES = {_F32: 4, _F16: 2}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_VOCABULARY = "tokenizer."
_NORMAL, _CONTROL = 1, 3


def write_tiny_gguf(path: Path, *, vocabulary_of: Path | None = None, num_layers: int = 1) -> None:
    """Write it to ``path``, with so many layers. ``vocabulary_of``: a GGUF file whose vocabulary and chat template it
    gets, byte for byte; None: 256 single bytes and one mark. Raises ModelError where that file cannot be read,
    ValueError where it is big-endian, OSError where nothing can be written."""
    keys, num_tokens = _own_vocabulary() if vocabulary_of is None else _vocabulary(vocabulary_of)
    keys += _model_keys(num_tokens, num_layers)
    tensors = _tensors(num_tokens, num_layers)
    table, data_bytes = _table(tensors)
    head = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + table
    data_offset = -(-len(head) // _ALIGNMENT) * _ALIGNMENT
    with path.open("wb") as file:
        file.write(head)
        os.ftruncate(file.fileno(), data_offset + data_bytes)


def _model_keys(num_tokens: int, num_layers: int) -> list[bytes]:
    numbers = {
        "context_length": CONTEXT_TOKENS,
        "embedding_length": WIDTH,
        "block_count": num_layers,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": num_tokens,
    }
    return [
        _key("general.architecture", _STRING, _string("llama")),
        _key("general.name", _STRING, _string("kvscope tiny")),
        _key("general.alignment", _UINT32, struct.pack("<I", _ALIGNMENT)),
        *(_key(f"llama.{name}", _UINT32, struct.pack("<I", number)) for name, number in numbers.items()),
        _key("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
    ]


def _tensors(num_tokens: int, num_layers: int) -> list[tuple[str, tuple[int, ...], int]]:
    return [
        ("token_embd.weight", (WIDTH, num_tokens), _F16),
        ("output_norm.weight", (WIDTH,), _F32),
        *((f"blk.{n}.{name}.weight", shape, kind) for n in range(num_layers) for name, shape, kind in _LAYER),
    ]


_LAYER = (
    ("attn_norm", (WIDTH,), _F32),
    *((f"attn_{name}", (WIDTH, WIDTH), _F16) for name in ("q", "k", "v", "output")),
    ("ffn_norm", (WIDTH,), _F32),
    ("ffn_gate", (WIDTH, FEED_FORWARD), _F16),
    ("ffn_up", (WIDTH, FEED_FORWARD), _F16),
    ("ffn_down", (FEED_FORWARD, WIDTH), _F16),
)


def _table(tensors: Iterable[tuple[str, tuple[int, ...], int]]) -> tuple[bytes, int]:
    """The table of tensors, and how many bytes of data it speaks of."""
    rows, offset = [], 0
    for name, shape, kind in tensors:
        rows.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        size = _BYTES[kind]
        for each in shape:
            size *= each
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return b"".join(rows), offset


def _own_vocabulary() -> tuple[list[bytes], int]:
    """Single bytes in the letters that GPT-2's tokenizer writes them with, and one mark that begins and ends a text."""
    tokens = [*_byte_letters(), "<|end|>"]
    end = len(tokens) - 1
    kinds = [_NORMAL] * end + [_CONTROL]
    keys = [
        _key("tokenizer.ggml.model", _STRING, _string("gpt2")),
        _key("tokenizer.ggml.pre", _STRING, _string("default")),
        _key("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, [_string(token) for token in tokens])),
        _key("tokenizer.ggml.token_type", _ARRAY, _array(_INT32, [struct.pack("<i", kind) for kind in kinds])),
        _key("tokenizer.ggml.merges", _ARRAY, _array(_STRING, [_string(f"{tokens[0]} {tokens[1]}")])),
        *(_key(f"tokenizer.ggml.{name}_token_id", _UINT32, struct.pack("<I", end)) for name in ("bos", "eos")),
        _key("tokenizer.chat_template", _STRING, _string(_TEMPLATE)),
    ]
    return keys, len(tokens)


_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def _byte_letters() -> list[str]:
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves, the others for letters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _vocabulary(path: Path) -> tuple[list[bytes], int]:
    """The keys of a file's vocabulary as they stand there, and how many tokens it has."""
    header = read_header(path)  # checks every length that the walk below takes for granted
    if header.byte_order != "little":
        raise ValueError("big-endian")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    num_tokens = tokens.length if isinstance(tokens, SkippedArray) else len(tokens) if isinstance(tokens, tuple) else 0
    with path.open("rb") as file:
        cursor = Cursor(path, file, header.file_bytes)
        cursor.read_up_to(24)
        cursor.at = 24
        found = [
            bytes(cursor.data[start:end])
            for name, start, end in _spans(cursor, len(header.metadata))
            if name.startswith(_VOCABULARY)
        ]
    return found, num_tokens


def _spans(cursor: Cursor, num_keys: int) -> Iterable[tuple[str, int, int]]:
    """Each key's name, and where it begins and ends."""
    for _ in range(num_keys):
        start = cursor.at
        name = cursor.name("a key's name")
        kind = int(cursor.scalar(_UINT32, "a key's type"))
        if kind == _STRING:
            cursor.string(name, cursor.size)
        elif kind == _ARRAY:
            of = int(cursor.scalar(_UINT32, name))
            length = cursor.count(name)
            if of == _STRING:
                skip_strings(cursor, name, length)
            else:
                cursor.take(length * SIZES[of], name)
        else:
            cursor.take(struct.calcsize(f"<{SCALARS[kind]}"), name)
        yield name, start, cursor.at


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)
