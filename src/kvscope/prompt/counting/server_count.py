"""Our count of a prompt against the server's: what a difference between them means.

A server that cuts a prompt in silence answers as if nothing had happened, so the counts are the only sign of it:

    equal at every length                      all is well
    one more or fewer at every length          the token that begins a sequence, twice or not at all
    so many more at every length               the server's template adds something: a system prompt
    a difference that grows with the text      another tokenizer
    short ones agree, long ones are fewer      the prompt was cut

Where a cut ends depends on the server. Ollama (2023 to 2025) keeps ``num_keep`` tokens, 4 by default, and half of the
rest of its window: with 2,048 that is 4 + 1,022 = 1,026, half the window + 2. llama.cpp's server (2023 to 2025) with
context shift takes out whole blocks of half of the window less ``n_keep``. Others keep the window, or the window less
the output asked for. A count says nothing of which part was cut, only how much is left.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression

EQUAL = "counts-equal"
ABSENT = "count-absent"
DOUBLED_BOS = "doubled-bos"
CONSTANT = "constant-difference"
GROWING = "growing-difference"
UNEXPLAINED = "unexplained-difference"
HALF_WINDOW = "cut-to-half-the-window"
CUT_TO_LIMIT = "cut-to-the-limit"
STUCK = "count-stuck"
CACHED_LEFT_OUT = "cached-left-out"
FEWER = "fewer-than-sent"
# A prompt was cut in silence: what was measured is another prompt than the one that was sent.
CUTS = (HALF_WINDOW, CUT_TO_LIMIT, STUCK, FEWER)

# What servers keep at the beginning of a prompt that they cut: nothing, the BOS, or Ollama's num_keep.
_KEPT_AT_START = (0, 1, 4)
# Fewer than this are the tokens that begin or end a sequence or a turn. More are text that is missing.
_MOST_MARKS = 4
# Another tokenizer's counts lie on a line, but for this share of their range and these tokens.
_LINE_SHARE, _LINE_TOKENS = 0.06, 8.0
# Of two lengths alone: less than this is one token or two somewhere, and no other tokenizer.
_GROWN_SHARE = 0.03
# A cut leaves a difference far from a line of this slope; one that counts alike has the slope 1.
_SAME_SLOPE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSample:
    """One request's counts. ``ours`` was counted before sending, ``server`` is the whole prompt as the answer states
    it, ``cached`` what was reused of it; each None where it is not known. ``limit_tokens``: the most that one sequence
    may hold on this server. ``leading_bos``: how many times our ids begin with the token that begins a sequence."""

    ours: int | None
    server: int | None
    cached: int | None = None
    output_limit_tokens: int | None = None
    limit_tokens: int | None = None
    leading_bos: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFinding:
    """What some requests' counts say. ``requests``: their places among the samples. ``evidence``: (ours, server) of
    each. ``difference_tokens``: of the longest of them, what the server counted beyond what was to be expected."""

    slug: str
    claim: str
    evidence: tuple[tuple[int | None, int | None], ...]
    also_possible: tuple[str, ...]
    next_step: str
    requests: tuple[int, ...]
    difference_tokens: int | None = None

    @property
    def advice(self) -> str:
        """What to do, and what else it could be."""
        other = f" Also possible: {'; '.join(self.also_possible)}." if self.also_possible else ""
        return f"{self.next_step}{other}"

    @property
    def is_cut(self) -> bool:
        """Whether these prompts were cut in silence."""
        return self.slug in CUTS


@dataclass(frozen=True, slots=True)
class _Known:
    """A sample both of whose counts are known, with its place."""

    place: int
    ours: int
    server: int
    sample: CountSample

    @property
    def delta(self) -> int:
        return self.server - self.ours


def leading_bos(ids: Sequence[int], bos_id: int | None) -> int | None:
    """How many times ``ids`` begin with ``bos_id``; None where the model has no such token."""
    if bos_id is None:
        return None
    count = 0
    while count < len(ids) and ids[count] == bos_id:
        count += 1
    return count


def compare_counts(samples: Sequence[CountSample]) -> tuple[CountFinding, ...]:
    """What the counts of requests to one server, with one template, say: the cut prompts first, then how the others
    differ, then those that were not counted by both. Empty only for no samples.

    One request alone that the server counts shorter is called cut; several lengths tell more."""
    known = [
        _Known(place, sample.ours, sample.server, sample)
        for place, sample in enumerate(samples)
        if sample.ours is not None and sample.server is not None
    ]
    left_out = [each for each in known if each.delta < 0 and each.delta + (each.sample.cached or 0) == 0]
    known = sorted((each for each in known if each not in left_out), key=lambda each: (each.ours, each.place))
    whole, cut = _part_cut_prompts(known)
    findings = [_name_cut(cut, whole)] if cut else []
    if left_out:
        findings.append(_name_left_out(left_out))
    if whole:
        findings.append(_name_whole(whole))
    absent = [place for place, sample in enumerate(samples) if sample.ours is None or sample.server is None]
    if absent:
        findings.append(_absent(samples, absent))
    return tuple(findings)


def _part_cut_prompts(known: list[_Known]) -> tuple[list[_Known], list[_Known]]:
    """Those that were read whole, and those that were cut. ``known`` is ordered by our count."""
    if not known:
        return [], []
    if _lies_on_another_line(known):
        return known, []
    usual = _usual_delta(known)
    # What the server counts as we do was read, whatever it adds to others: less is missing than it adds.
    fewer = [each for each in known if each.delta < usual and (each.delta < 0 or _explained(each, usual))]
    if not fewer:
        return known, []
    rest = [each for each in known if each not in fewer]
    longest_whole = max((each.ours for each in rest), default=0)
    if any(each.ours < longest_whole for each in fewer) and not _shows_cut(fewer):
        return known, []  # shorter prompts are fewer and longer ones are not: no window explains that
    return rest, fewer


def _usual_delta(known: list[_Known]) -> int:
    """The difference that a prompt has which was not cut: that of the shortest. Marks around a prompt may be left out,
    text may not: a server that counts many fewer at its best has cut them all."""
    shortest = known[0]
    if len({each.ours for each in known}) > 1:
        return max(shortest.delta, -_MOST_MARKS)
    return max(shortest.delta, -1 if (shortest.sample.leading_bos or 0) > 1 else 0)


def _lies_on_another_line(known: list[_Known]) -> bool:
    """Whether the counts grow with the text throughout, at another rate: another tokenizer, and no cut."""
    lengths = sorted({each.ours for each in known})
    if len(lengths) < 3 or _shows_cut([each for each in known if each.delta < 0]):
        return False
    ours, server = [each.ours for each in known], [each.server for each in known]
    slope, start = linear_regression(ours, server)
    if abs(slope - 1) < _SAME_SLOPE or slope <= 0:
        return False
    room = _LINE_TOKENS + _LINE_SHARE * (max(server) - min(server))
    alike = Counter(delta for delta, _ in {(each.delta, each.ours) for each in known})
    if max(alike.values()) > max(1, len(lengths) // 3):
        return False  # two tokenizers do not differ by the same on so many texts
    return all(abs(start + slope * each.ours - each.server) <= room for each in known)


def _shows_cut(fewer: list[_Known]) -> bool:
    """Whether prompts that the server counts shorter bear the sign of a cut, whatever the others say."""
    over = [each for each in fewer if _is_over(each)]
    return (
        _stuck_at(fewer) is not None or any(map(_explained, over)) or (bool(over) and _blocks_of(over, 0) is not None)
    )


def _is_over(each: _Known, usual: int = 0) -> bool:
    """Whether the prompt, with what the server usually adds, and its output are known to be more than the window."""
    limit, output = each.sample.limit_tokens, each.sample.output_limit_tokens
    return limit is not None and each.ours + usual + (output or 0) > limit


def _explained(each: _Known, usual: int = 0) -> str | None:
    """The slug of the cut whose number this count is; only for a prompt that is known to be over the window."""
    limit, output = each.sample.limit_tokens, each.sample.output_limit_tokens
    if limit is None or not _is_over(each, usual):
        return None
    if any(each.server == kept + (limit - kept) // 2 for kept in _KEPT_AT_START):
        return HALF_WINDOW
    if each.server in (limit, limit - 1) or (output is not None and each.server == limit - output):
        return CUT_TO_LIMIT
    return None


def _blocks_of(fewer: list[_Known], usual: int) -> int | None:
    """Tokens of the block whose multiples are missing from every prompt, as llama.cpp's context shift takes them out;
    None where it is not that."""
    limits = {each.sample.limit_tokens for each in fewer}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is None or not all(_is_over(each, usual) for each in fewer):
        return None
    for kept in _KEPT_AT_START:
        block = (limit - kept) // 2
        missing = [each.ours + usual - each.server for each in fewer]
        if block > 0 and all(gone % block == 0 for gone in missing):
            return block
    return None


def _stuck_at(fewer: list[_Known]) -> int | None:
    """The one count that prompts of different lengths got; None where they got different ones, or are too few."""
    counts = {each.server for each in fewer}
    if len(counts) == 1 and len({each.ours for each in fewer}) > 1:
        return counts.pop()
    return None


def _name_cut(cut: list[_Known], whole: list[_Known]) -> CountFinding:
    usual = _usual_delta(whole) if whole else 0
    stuck = _stuck_at(cut)
    names = {_explained(each, usual) for each in cut}
    slug = names.pop() if len(names) == 1 else None
    block = None if slug else _blocks_of(cut, usual)
    longest = cut[-1]
    sent, left = longest.ours + usual, longest.server
    limit = longest.sample.limit_tokens
    at = f"{left:,} of {sent:,} tokens"
    if slug == HALF_WINDOW:
        claim = f"The server read {at}: about half of its window of {limit:,}. It cut the prompt without saying so."
    elif block is not None:
        slug = HALF_WINDOW
        claim = f"The server read {at}: it took out blocks of {block:,} tokens, half of its window of {limit:,}."
    elif slug == CUT_TO_LIMIT:
        claim = f"The server read {at}: what its window of {limit:,} holds. It cut the prompt without saying so."
    elif stuck is not None:
        slug = STUCK
        claim = f"The server counts {stuck:,} tokens however much is sent, here {sent:,}: it cuts prompts there."
    else:
        slug = FEWER
        claim = f"The server read {at}: {sent - left:,} are missing. It cut the prompt, or counts otherwise."
    return _finding(
        slug,
        claim,
        cut,
        also=_CUT_ALSO[slug],
        next_step="Raise the server's context (n_ctx, num_ctx, max_model_len), or shorten the prompt; then repeat.",
        difference=left - sent,
    )


_CUT_ALSO = {
    HALF_WINDOW: ("the server uses a smaller window than it says",),
    CUT_TO_LIMIT: ("the server keeps its window less the output asked for",),
    STUCK: ("the server states the count of another request",),
    FEWER: (
        "another tokenizer than ours",
        "reused tokens left out of the count (older Ollama)",
        "a template that drops tools, reasoning or a role",
    ),
}


def _name_left_out(members: list[_Known]) -> CountFinding:
    example = members[-1]
    return _finding(
        CACHED_LEFT_OUT,
        f"The server states {example.server:,} tokens and {example.sample.cached:,} reused; together they are the "
        f"{example.ours:,} that were sent, so what it states is what it read anew.",
        members,
        also=(),
        next_step="Add the two. A newer server may add them itself.",
        difference=example.delta,
    )


def _name_whole(whole: list[_Known]) -> CountFinding:
    """How prompts that were not cut differ."""
    deltas = {each.delta for each in whole}
    lengths = len({each.ours for each in whole})
    delta = whole[-1].delta
    if deltas == {0}:
        claim = f"The server counts as we do, at {lengths} length{'' if lengths == 1 else 's'}."
        return _finding(EQUAL, claim, whole, also=(), next_step="Nothing to do.", difference=0)
    if len(deltas) == 1:
        return _constant(whole, delta, lengths)
    grown = abs(delta) - abs(whole[0].delta)
    if _lies_on_another_line(whole) or (lengths == 2 and grown > _GROWN_SHARE * (whole[-1].ours - whole[0].ours)):
        return _growing(whole, delta)
    claim = f"The server's count differs from ours by {min(deltas):+,} to {max(deltas):+,} tokens, by no rule."
    return _finding(
        UNEXPLAINED,
        claim,
        whole,
        also=("another conversation was counted than the one sent", "a template that shows the time"),
        next_step=_COMPARE,
        difference=delta,
    )


_COMPARE = (
    "Compare our rendered text with the server's own (llama.cpp: POST /apply-template), then the ids (/tokenize)."
)


def _constant(whole: list[_Known], delta: int, lengths: int) -> CountFinding:
    begins = {each.sample.leading_bos for each in whole}
    where = f"at {lengths} lengths" if lengths > 1 else "at the one length tried"
    ours_doubled = delta == -1 and all(count is not None and count > 1 for count in begins)
    if ours_doubled or (delta == 1 and all(count is not None and count == 1 for count in begins)):
        whose = "Our ids begin with it twice" if ours_doubled else "Our ids begin with it already"
        return _finding(
            DOUBLED_BOS,
            f"The server counts {delta:+d} token {where}. {whose}: most likely the token that begins a sequence (BOS) "
            f"is there twice{' in ours' if ours_doubled else ' in what the server reads'}.",
            whole,
            also=("one token of the server's template, such as a line break",),
            next_step="Look at the first ids of both (llama.cpp: POST /tokenize with add_special). Remove the BOS from "
            "the template, or the server's own.",
            difference=delta,
        )
    what = "adds something of its own" if delta > 0 else "leaves out something of ours"
    also = ["a token that begins or ends the sequence"] if abs(delta) <= _MOST_MARKS else []
    also += ["a default system prompt", "another chat template than the model's own"] if delta > 0 else []
    return _finding(
        CONSTANT,
        f"The server counts {delta:+,} tokens {where}, so it or its template {what}.",
        whole,
        also=tuple(also),
        next_step=_COMPARE,
        difference=delta,
    )


def _growing(whole: list[_Known], delta: int) -> CountFinding:
    share = fmean(each.server / each.ours for each in whole if each.ours)
    return _finding(
        GROWING,
        f"The difference grows with the text, from {whole[0].delta:+,} to {delta:+,} tokens: the server's tokenizer is "
        f"another one (it counts {share:.2f} times as many).",
        whole,
        also=("a template that adds something to every message",),
        next_step="Count with the tokenizer of the very model that the server runs.",
        difference=delta,
    )


def _absent(samples: Sequence[CountSample], places: list[int]) -> CountFinding:
    unstated = sum(samples[place].server is None for place in places)
    claim = f"{unstated} of {len(samples)} requests were not counted by the server, and their counts are unknown."
    if not unstated:
        claim = f"{len(places)} of {len(samples)} requests were not counted by us, and cannot be compared."
    return CountFinding(
        slug=ABSENT,
        claim=claim,
        evidence=tuple((samples[place].ours, samples[place].server) for place in places),
        also_possible=("all of it was cached, and the server then states no count (older Ollama)",),
        next_step="Ask for usage (stream_options.include_usage), or count on the server before sending.",
        requests=tuple(places),
    )


def _finding(
    slug: str, claim: str, members: list[_Known], *, also: tuple[str, ...], next_step: str, difference: int
) -> CountFinding:
    members = sorted(members, key=lambda each: each.place)
    return CountFinding(
        slug=slug,
        claim=claim,
        evidence=tuple((each.ours, each.server) for each in members),
        also_possible=also,
        next_step=next_step,
        requests=tuple(each.place for each in members),
        difference_tokens=difference,
    )
