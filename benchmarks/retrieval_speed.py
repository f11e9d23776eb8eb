"""How long it takes to make 10,000 passages searchable, and to search them, beside bm25s on the same terms alone.

    python benchmarks/retrieval_speed.py [--passages 10000] [--language ko|en] [--methods bigrams,words,morphemes]

Passages are made of the bundled text's sentences, drawn anew for each from a seed, five in each. Goal: 10,000
indexed in 2 s by bigrams. "its CPU": the processor time of that, which other programs disturb less; "terms": taking
the texts apart, which is ours; "bm25s": the index over those terms. Also printed: cutting a long text into as many
passages with a local tokenizer, and the counts that it took.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from statistics import median
from typing import Any

import bm25s

from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.quality.retrieval.index import make_index
from kvscope.quality.retrieval.passages import Passage, split
from kvscope.quality.retrieval.sentences import sentence_ends
from kvscope.quality.retrieval.source import SourceDocument
from kvscope.quality.retrieval.term_index import TERMS

QUESTIONS = 200
SENTENCES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--language", default="ko", choices=("ko", "en"))
    parser.add_argument("--methods", default="bigrams,words")
    parser.add_argument("--model", default="bytes:", help="Whose tokenizer cuts the long text.")
    asked: Any = parser.parse_args()
    texts, questions = _texts(asked.language, asked.passages), _texts(asked.language, QUESTIONS, 1)
    passages = [
        Passage(document=f"{at}", index=0, text=text, start=0, end=len(text), tokens=0) for at, text in enumerate(texts)
    ]
    sys.stdout.write(f"{asked.passages:,} passages, {sum(map(len, texts)):,} characters, {asked.language}\n")
    sys.stdout.write(
        f"{'':12} {'index s':>9} {'its CPU s':>9} {'terms s':>9} {'bm25s s':>9} {'query ms':>9} {'slowest':>9}\n"
    )
    for method in asked.methods.split(","):
        make_index(passages[:10], method)  # what is loaded on first use
        before = time.process_time()
        index, whole = _timed(partial(make_index, passages, method))
        processor = time.process_time() - before
        terms, ours = _timed(partial(TERMS[method], texts))
        _, theirs = _timed(partial(bm25s.BM25().index, terms, show_progress=False))
        queries = [_timed(partial(index.search, question, 10))[1] for question in questions]
        figures = (whole, processor, ours, theirs, median(queries) * 1e3, max(queries) * 1e3)
        sys.stdout.write(f"{method:12} " + " ".join(f"{each:9.2f}" for each in figures) + "\n")
    _cut("\n\n".join(texts), asked.model)


def _cut(text: str, model: str) -> None:
    tokenizer: Any = load_tokenizer(model)
    counts = 0

    def count(piece: str) -> int:
        nonlocal counts
        counts += 1
        return int(tokenizer.count(piece))

    document = SourceDocument(name="long", path="long", text=text, kind="text")
    passages, seconds = _timed(lambda: split(document, count, 256))
    sys.stdout.write(
        f"cut into {len(passages):,} passages of at most 256 tokens ({model}) in {seconds:.2f} s; {counts:,} counts\n"
    )


def _texts(language: str, number: int, sentences: int = SENTENCES) -> list[str]:
    source = (files("kvscope.prompt") / "texts" / f"{language}.txt").read_text(encoding="utf-8")
    ends = sentence_ends(source)
    each = [source[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]
    chance = random.Random(sentences)
    return [" ".join(chance.choices(each, k=sentences)) for _ in range(number)]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    found = work()
    return found, time.perf_counter() - started


if __name__ == "__main__":
    main()
