"""What the pieces of an answer say of its tokens: how many there are, which came together, and when the first came."""

from collections.abc import Sequence
from itertools import pairwise

from kvscope.record.rows import RequestRow, TokenRow

# The share of pieces that may have come in one read with the piece before, of tokens in one piece with the one before.
COALESCED_SHARE = 0.10
# Among a request's ``engine_timings``: those of its output tokens that are thinking, where the server states them.
REASONING_TOKENS = "reasoning_tokens"
# A token that made no text of its own, of an engine that hands over each with its time.
BARE_TOKEN = "token"


def hidden_tokens(request: RequestRow, tokens: Sequence[TokenRow]) -> int:
    """Output tokens of thinking that the server states and did not send; 0 where there are none."""
    stated = request.engine_timings.get(REASONING_TOKENS)
    if not isinstance(stated, int | float):
        return 0
    is_sent = any(token.text and token.kind == "reasoning" for token in tokens)
    return 0 if is_sent else int(stated)


def sent_tokens(request: RequestRow, tokens: Sequence[TokenRow]) -> int | None:
    """Output tokens that the pieces hold, by the server's count; None where it states none."""
    return None if request.output_tokens is None else request.output_tokens - hidden_tokens(request, tokens)


def count_doubt(request: RequestRow, tokens: Sequence[TokenRow]) -> str | None:
    """Why the server's count of output tokens cannot be right: "more-pieces" came than it counts tokens, or it counts
    "over-limit", more than were asked for and than pieces came. None where nothing speaks against it, or there is
    none. A call of a tool is not held against it: one token of it may be sent in two pieces."""
    sent = sent_tokens(request, tokens)
    if sent is None or request.output_tokens is None:
        return None
    pieces = [(token.at_s, token.kind) for token in tokens if token.text and token.kind != "tool_call"]
    if len(pieces) > sent:
        # The token between the thinking and the answer may be sent as a piece of each.
        shared = sum(a[0] == b[0] and a[1] != b[1] for a, b in pairwise(pieces))
        if len(pieces) - shared > sent:
            return "more-pieces"
    return "over-limit" if request.output_tokens > max(request.output_tokens_limit, len(pieces)) else None


def came_too_soon(tokens: Sequence[TokenRow]) -> bool:
    """Whether the first piece of an answer came before its request had been sent, or with it."""
    timed = timed_pieces(tokens)
    return bool(timed) and after_sending(timed[0].at_s) is None


def coalesced_fraction(answers: Sequence[Sequence[TokenRow]]) -> float | None:
    """Pieces that came in one read with the piece before, of all pieces of these answers; None where none came."""
    return _share(*_sums([_pieces_together(tokens) for tokens in answers]))


def tokens_in_one_piece(answers: Sequence[tuple[RequestRow, Sequence[TokenRow]]]) -> float | None:
    """Tokens that came in one piece with the token before, of all tokens of these answers; None where none is counted.
    Each may end with a token that has no text: that one is in no piece."""
    counted = [
        (max(0, sent - len(timed_pieces(tokens)) - 1), sent)
        for request, tokens in answers
        if (sent := sent_tokens(request, tokens)) is not None and count_doubt(request, tokens) is None
    ]
    return _share(*_sums(counted))


def timed_pieces(tokens: Sequence[TokenRow]) -> list[TokenRow]:
    """Those whose arrival is that of a token: with text, or one without of an engine that hands over each."""
    return [token for token in tokens if token.text or token.kind == BARE_TOKEN]


def after_sending(at_s: float) -> float | None:
    """Seconds since a request was sent; None where that is no time to anything: it was not sent yet."""
    return at_s if at_s > 0 else None


def tokens_after_first_read(request: RequestRow, tokens: Sequence[TokenRow]) -> int:
    """Output tokens that came after the first read. A piece holds one of them, unless there are far fewer pieces than
    tokens (a byte-level tokenizer needs several for one visible character, a server sends several at once): then the
    first read's are its share of the text."""
    timed = timed_pieces(tokens)
    if not timed:
        return 0
    first = [token for token in timed if token.at_s == timed[0].at_s]
    sent = sent_tokens(request, tokens)
    if sent is None:
        return len(timed) - len(first)
    if (tokens_in_one_piece([(request, tokens)]) or 0.0) <= COALESCED_SHARE:
        return sent - len(first)
    length = sum(len(token.text) for token in timed)
    share = sum(len(token.text) for token in first) / max(1, length)
    return sent - min(max(len(first), round(sent * share)), sent - (len(timed) - len(first)))


def _pieces_together(tokens: Sequence[TokenRow]) -> tuple[int, int]:
    timed = timed_pieces(tokens)
    return sum(earlier.at_s == later.at_s for earlier, later in pairwise(timed)), len(timed)


def _sums(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(part for part, _ in pairs), sum(whole for _, whole in pairs)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
