"""count_texts(): the tokens of files, folders and stdin, as each tokenizer counts every whole text.

Texts are read in pieces, cut into stretches of one kind of content, and those into parts at places where cutting
changes no id (``cut_points.py``). Parts of many files are encoded together. Memory holds one batch of them, whatever
the size of a file; a text that cannot be cut is held whole up to ``LONGEST_UNCUT`` characters, and skipped beyond.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kvscope.prompt.counting.content_kind import KindSplitter
from kvscope.prompt.counting.text_parts import KindTokens, PartCounter
from kvscope.prompt.counting.text_sources import STDIN, Unreadable, find_sources, read_source, read_stream, unreadable
from kvscope.prompt.counting.texts_result import FileCount, KindCount, Skipped, TextCounts, sum_kinds, summed
from kvscope.prompt.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Progress = Callable[[int, int | None, int], None]
_BATCH = 1 << 20  # characters that are encoded together
_FIRST_BATCH = 1 << 16  # the first one's: until it is read, nothing is encoded; each later one may have twice as many


def count_texts(
    paths: Sequence[Path],
    tokenizers: Sequence[Tokenizer],
    *,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> TextCounts:
    """Characters, bytes and tokens of the texts under ``paths``, and of ``stdin`` where one is given (it is counted
    last, under the name "-"; "-" among the paths is then it). BOS is not counted, and names of control tokens are text.

    ``progress`` is called with the bytes read, the bytes there are (None with ``stdin``), and the files done. Raises
    what the tokenizers raise.
    """
    from concurrent.futures import ThreadPoolExecutor  # it imports logging: `kvscope --help` needs neither

    paths = [path for path in paths if stdin is None or str(path) != STDIN]
    sources, skipped = find_sources(paths)
    total = None if stdin is not None else sum(source.num_bytes for source in sources)
    with ThreadPoolExecutor(max_workers=1) as encoder:
        count = _Count([PartCounter(each) for each in tokenizers], skipped, total, progress, encoder)
        for source in sources:
            count.add(str(source.path), read_source(source))
        if stdin is not None:
            count.add(STDIN, read_stream(stdin))
        count.flush()
    return summed(count.files, skipped, len(tokenizers))


class _File:
    """One text while it is counted. ``failure``: why it cannot be."""

    def __init__(self, path: str, num_tokenizers: int) -> None:
        self.path = path
        self.failure: str | None = None
        self.sizes: dict[str, list[int]] = {}
        self.tokens = tuple(KindTokens() for _ in range(num_tokenizers))

    def add(self, kind: str, text: str) -> None:
        size = self.sizes.get(kind)
        if size is None:
            size = self.sizes[kind] = [0, 0]
        size[0] += len(text)
        size[1] += len(text) if text.isascii() else len(text.encode())

    def done(self) -> FileCount:
        if len(self.sizes) == 1:  # most small files
            ((kind, (characters, num_bytes)),) = self.sizes.items()
            tokens = tuple(each.by_kind.get(kind, 0) for each in self.tokens)
            only = KindCount(kind=kind, characters=characters, bytes=num_bytes, tokens=tokens)
            return FileCount(path=self.path, characters=characters, bytes=num_bytes, tokens=tokens, kinds=(only,))
        kinds = [
            KindCount(
                kind=kind,
                characters=characters,
                bytes=num_bytes,
                tokens=tuple(each.by_kind.get(kind, 0) for each in self.tokens),
            )
            for kind, (characters, num_bytes) in self.sizes.items()
        ]
        return FileCount(
            path=self.path,
            characters=sum(each.characters for each in kinds),
            bytes=sum(each.bytes for each in kinds),
            tokens=tuple(sum(each.by_kind.values()) for each in self.tokens),
            kinds=sum_kinds(kinds, len(self.tokens)),
        )


class _Count:
    """Reads on the caller's thread while ``encoder``, of one thread, counts the batch before."""

    def __init__(
        self,
        counters: Sequence[PartCounter],
        skipped: list[Skipped],
        total: int | None,
        progress: Progress | None,
        encoder: "ThreadPoolExecutor",
    ) -> None:
        self.files: list[FileCount] = []
        self._counters = counters
        self._skipped = skipped
        self._total = total
        self._progress = progress
        self._encoder = encoder
        self._encoding: list[Future[None]] = []
        self._waiting: list[_File] = []  # read, their last parts not yet encoded
        self._characters = self._read = 0
        self._batch = min(_FIRST_BATCH, _BATCH)

    def add(self, path: str, pieces: Iterator[tuple[str, int]]) -> None:
        """Reads one text to its end."""
        file = _File(path, len(self._counters))
        try:
            self._feed(file, pieces)
        except Unreadable as error:
            file.failure = str(error)
        except OSError as error:  # of stdin
            file.failure = unreadable(error)
        for counter in self._counters:
            counter.close_text()
        self._waiting.append(file)
        if self._characters >= _BATCH or len(self._waiting) >= _BATCH >> 8:
            self.flush()

    def _feed(self, file: _File, pieces: Iterator[tuple[str, int]]) -> None:
        splitter = KindSplitter()
        for index, counter in enumerate(self._counters):
            counter.open_text(file.tokens[index])
        for text, num_bytes in pieces:
            self._read += num_bytes
            self._take(file, splitter.feed(text))
        self._take(file, splitter.close())

    def _take(self, file: _File, stretches: Sequence[tuple[str, str]]) -> None:
        for kind, text in stretches:
            file.add(kind, text)
            self._characters += len(text)
            for counter in self._counters:
                counter.add(kind, text)
        if self._characters >= self._batch:
            self._encode()
            self._batch = min(self._batch * 2, _BATCH)

    def _encode(self) -> None:
        """Sends off what there is, when what was sent before is done."""
        self._wait()
        self._encoding = [self._encoder.submit(counter.encoding()) for counter in self._counters]
        self._characters = 0

    def _wait(self) -> None:
        for encoding in self._encoding:
            encoding.result()
        if self._progress is not None and self._encoding:
            self._progress(self._read, self._total, len(self.files))
        self._encoding = []

    def flush(self) -> None:
        """Ends all files that were read."""
        self._encode()
        self._wait()
        for file in self._waiting:
            failures = [file.failure, *(each.failure for each in file.tokens)]
            failure = next((each for each in failures if each is not None), None)
            if failure is None:
                self.files.append(file.done())
            else:
                self._skipped.append(Skipped(path=file.path, reason=failure))
        self._waiting.clear()
        if self._progress is not None:
            self._progress(self._read, self._total, len(self.files))
