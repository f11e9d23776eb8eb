"""count_texts(): the tokens of files, folders and stdin, as each tokenizer counts every whole text."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kvscope.prompt.content_kind import OTHER
from kvscope.prompt.text_counts import FileCount, KindCount, Skipped, TextCounts, summed
from kvscope.prompt.text_sources import STDIN, Unreadable, find_sources, read_source, read_stream
from kvscope.prompt.tokenizers.base import Tokenizer

Progress = Callable[[int, int | None, int], None]


def count_texts(
    paths: Sequence[Path],
    tokenizers: Sequence[Tokenizer],
    *,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> TextCounts:
    """Characters, bytes and tokens of the texts under ``paths``, and of ``stdin`` where one is given (it is counted
    last, under the name "-"; "-" among the paths is then it). BOS is not counted, and names of control tokens are text.

    ``progress`` is called with the bytes read, the bytes there are (None with ``stdin``), and the files done.
    """
    paths = [path for path in paths if stdin is None or str(path) != STDIN]
    sources, skipped = find_sources(paths)
    total = None if stdin is not None else sum(source.num_bytes for source in sources)
    texts: list[tuple[str, Iterator[tuple[str, int]]]] = [(str(each.path), read_source(each)) for each in sources]
    if stdin is not None:
        texts.append((STDIN, read_stream(stdin)))
    files: list[FileCount] = []
    done = 0
    for path, pieces in texts:
        try:
            whole = []
            for text, num_bytes in pieces:
                whole.append(text)
                done += num_bytes
            files.append(_count(path, "".join(whole), tokenizers))
        except Unreadable as error:
            skipped.append(Skipped(path=path, reason=str(error)))
        if progress is not None:
            progress(done, total, len(files))
    return summed(files, skipped, len(tokenizers))


def _count(path: str, text: str, tokenizers: Sequence[Tokenizer]) -> FileCount:
    tokens = tuple(each.count(text) for each in tokenizers)
    num_bytes = len(text.encode())
    kinds = (KindCount(kind=OTHER, characters=len(text), bytes=num_bytes, tokens=tokens),) if text else ()
    return FileCount(path=path, characters=len(text), bytes=num_bytes, tokens=tokens, kinds=kinds)
