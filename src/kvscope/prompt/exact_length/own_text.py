"""A user's own file or folder, taken apart into what prompts are made of: sentences, or lines of code.

Prose: the lines of a paragraph are joined and cut where sentences end; a paragraph without such an end is taken line by
line. Code: blocks between empty lines, of a few lines each, with their indentation. Whatever is longer than
``LONGEST_PIECE`` characters is cut at a space, or through where it has none. What stands there twice is taken once.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from kvscope.errors import MalformedFile, ModelNotFound, UsageError
from kvscope.prompt.exact_length.source_text import CODE, KEY_SENTENCES, SourceText, check_language

LONGEST_PIECE = 400
_MOST_LINES = 12
MOST_BYTES = 64 * 1024**2
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’»)\]]*\s+")
_EMPTY_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def read_own_text(source: str | Path, *, language: str) -> SourceText:
    """The text of a file, or of all text files of a folder in the order of their paths; files that are no UTF-8 text
    are left out of a folder, and hidden ones. ``language`` says how it is taken apart (as "code", or as prose) and in
    which language its prompts ask.

    ``sha256`` is the file's own; of a folder, that of its lines "sha256  path". Raises ModelNotFound where nothing is
    there, MalformedFile for a binary file, UsageError for a text that is empty or larger than MOST_BYTES, UnknownName.
    """
    check_language(language)
    path = Path(source).expanduser()
    try:
        found = _folder(path) if path.is_dir() else {path.name: _bytes(path)}
        texts = [_text(path, content) for content in found.values()] if not path.is_dir() else _texts(found)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelNotFound(f"{source} cannot be read: {reason}.", hint="Name a text file or a folder.") from None
    pieces = dict.fromkeys(piece for text in texts for piece in split_text(text, is_code=language == CODE))
    if not pieces:
        raise UsageError(f"There is no text in {source}.", hint="Name a file of UTF-8 text, or a folder with some.")
    return SourceText(
        language=language,
        sentences=tuple(pieces),
        key_sentence=KEY_SENTENCES[language],
        sha256=_hash(found, path.is_dir()),
        name=path.name or str(path),
    )


def _folder(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            content = _bytes(path)
            if is_text(content):
                found[name.as_posix()] = content
            if sum(map(len, found.values())) > MOST_BYTES:
                raise _too_large(folder)
    return found


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _too_large(path)
    return content


def _too_large(path: Path) -> UsageError:
    limit = MOST_BYTES // 1024**2
    return UsageError(f"{path} holds more than {limit} MiB of text.", hint="A part of it is enough: name that.")


def is_text(content: bytes) -> bool:
    """Whether it is UTF-8 and holds no NUL."""
    try:
        return "\0" not in content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False


def _text(path: Path, content: bytes) -> str:
    hint = "Name a text file in UTF-8 (iconv -t UTF-8 makes one of another encoding)."
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"byte {error.start}", "this is not UTF-8 text", hint=hint) from None
    if "\0" in text:
        where = f"byte {content.index(0)}"
        raise MalformedFile(path, where, "a NUL, as binary files have it, stands in it", hint=hint)
    return text


def _texts(found: dict[str, bytes]) -> list[str]:
    return [content.decode("utf-8-sig") for content in found.values()]


def _hash(found: dict[str, bytes], is_folder: bool) -> str:
    each = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    if not is_folder:
        return next(iter(each.values()))
    return hashlib.sha256("".join(f"{sha256}  {name}\n" for name, sha256 in each.items()).encode()).hexdigest()


def split_text(text: str, *, is_code: bool) -> Iterator[str]:
    """The pieces of a text, in order; none is empty, begins a sentence with a space or ends in one."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for block in _EMPTY_LINES.split(text):
        lines = [line.rstrip() for line in block.split("\n") if line.strip()]
        if is_code:
            pieces = ["\n".join(lines[at : at + _MOST_LINES]) for at in range(0, len(lines), _MOST_LINES)]
        else:
            joined = " ".join(line.strip() for line in lines)
            sentences = _SENTENCE_END.split(joined)
            pieces = sentences if len(sentences) > 1 or joined[-1:] in ".!?" else [line.strip() for line in lines]
        for piece in pieces:
            yield from _cut(piece)


def _cut(piece: str) -> Iterator[str]:
    while len(piece) > LONGEST_PIECE:
        space = piece.rfind(" ", 1, LONGEST_PIECE)
        end = space if space > 0 and piece[:space].strip() else LONGEST_PIECE
        yield piece[:end].rstrip()
        piece = piece[end:].lstrip(" ")
    if piece.strip():
        yield piece
