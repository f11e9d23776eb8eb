"""What an attempt has left so far, as rows; what they say against each other; and the outcome they amount to."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from kvscope.engine.base import ClientHealth, Generation, ReportedBuffer
from kvscope.experiment.ending import Ending
from kvscope.prompt.counting.server_count import (
    ABSENT,
    CACHED_LEFT_OUT,
    DOUBLED_BOS,
    EQUAL,
    CountSample,
    compare_counts,
)
from kvscope.record.pieces import (
    COALESCED_SHARE,
    REASONING_TOKENS,
    came_too_soon,
    coalesced_fraction,
    count_doubt,
    hidden_tokens,
    tokens_in_one_piece,
)
from kvscope.record.rows import (
    QUALITY,
    TRUNCATED_SLUG,
    AnswerRow,
    Json,
    MapRow,
    MarkRow,
    OccupantRow,
    ReadRow,
    ReportedBufferRow,
    RequestRow,
    SampleRow,
    ScoredTokenRow,
    StatisticRow,
    TokenRow,
    WarningRow,
)


@dataclass(slots=True)
class AttemptRows:
    """Grows while an attempt runs; whatever ends it, what is here is kept. ``leading_bos``: by a request's index, how
    many times our ids of it begin with the BOS. ``limit_tokens``: the most that one sequence may hold, as read back.
    ``surely_over``: of a request that has more tokens by our count, whether it has without its template too. ``cut``:
    how the attempt ends, where the server cut a prompt in silence. ``miscounted``: indexes of requests whose output the
    server counts as it cannot be. ``may_end``: of requests whose answer may end before its limit."""

    requests: list[RequestRow] = field(default_factory=list)
    tokens: list[TokenRow] = field(default_factory=list)
    reads: list[ReadRow] = field(default_factory=list)
    marks: list[MarkRow] = field(default_factory=list)
    maps: list[MapRow] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    reported: list[ReportedBufferRow] = field(default_factory=list)
    occupants: list[OccupantRow] = field(default_factory=list)
    statistics: list[StatisticRow] = field(default_factory=list)
    warnings: list[WarningRow] = field(default_factory=list)
    answers: list[AnswerRow] = field(default_factory=list)
    scored_tokens: list[ScoredTokenRow] = field(default_factory=list)
    effective: Mapping[str, object] = field(default_factory=dict)
    client: dict[str, object] = field(default_factory=lambda: {"concurrency": 1})
    leading_bos: dict[int, int | None] = field(default_factory=dict)
    limit_tokens: int | None = None
    surely_over: dict[int, bool] = field(default_factory=dict)
    cut: Ending | None = None
    miscounted: set[int] = field(default_factory=set)
    may_end: set[int] = field(default_factory=set)

    def warn(self, slug: str, message: str, hint: str) -> None:
        """Note a doubt, each kind once."""
        if all(warning.slug != slug for warning in self.warnings):
            self.warnings.append(WarningRow(slug=slug, message=message, hint=hint))

    def information(self, name: str, phase: str, value: int | None) -> None:
        """Keep a number that no metric uses, by the moment it was read at. One that is not known is left out."""
        if value is not None:
            kept = self.client.setdefault("information", {})
            assert isinstance(kept, dict)
            kept.setdefault(name, {})[phase] = value

    def add_answer(self, sent: RequestRow, answer: Generation, *, reuse_prefix: bool) -> None:
        """Add an answered request, which was begun at its ``sent_at_s`` (of a load: sent). ``reuse_prefix``: it was
        allowed to reuse what it kept. What the counts of several say together, ``judge_counts`` finds."""
        is_of_load = sent.stream is not None  # whose health is noted as a whole, and whose moments are its own
        if answer.health is not None and answer.health.send_to_wire_s is not None and not is_of_load:
            sent = replace(sent, sent_at_s=sent.sent_at_s + answer.health.send_to_wire_s)
        thought = {} if answer.reasoning_tokens is None else {REASONING_TOKENS: answer.reasoning_tokens}
        row = replace(
            sent,
            completed_s=answer.completed_s,
            prompt_tokens_server=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            finish_reason=answer.finish_reason,
            engine_timings={**answer.engine_timings, **thought},
            prompt_tokens_server_from=answer.prompt_tokens_from,
            client={} if answer.health is None else health_fields(answer.health),
        )
        self.requests.append(row)
        if answer.health is not None and row.role != "warmup" and not is_of_load:
            self.note_health(answer.health)
        tokens = [
            TokenRow(request_index=row.index, index=number, at_s=event.at_s, text=event.text, kind=event.kind)
            for number, event in enumerate(answer.events)
        ]
        self.tokens += tokens
        self._judge_model(answer.model)
        self._judge_output(row, tokens)
        self.reads += [
            ReadRow(request_index=row.index, at_s=read.at_s, num_bytes=read.num_bytes, num_events=read.num_events)
            for read in answer.reads
        ]
        if row.role != "warmup" and not reuse_prefix and row.cached_tokens:
            self.warn(
                "cache-not-cleared",
                f"The server reused {row.cached_tokens} tokens although reuse was turned off.",
                "The time to the first token is shorter than for a new prompt.",
            )

    def note_health(self, health: ClientHealth) -> None:
        """Keep how our own client was, of one request or of a load: of several, the worst. Nothing is kept where
        nothing was measured (an engine that is not reached over HTTP)."""
        if not health_fields(health):
            return
        for name, value in health_fields(health).items():
            self.client[name] = _of_both(name, self.client.get(name), value)
        if health.num_resent:
            self.warn(
                "request-resent",
                "The server closed a connection as a request came over it; that request was sent once more.",
                "If it had begun with the first one, that was work beside what was measured. Look at how long it keeps "
                "connections open.",
            )
        self.client["client_limited"] = bool(health.limited_by) or self.client.get("client_limited") is True
        if health.limited_by:
            self.warn(
                "client-limited",
                f"kvscope's own client may have been what limited: {'; '.join(health.limited_by)}.",
                "Its times may be too long by as much. Leave it a processor of its own (fewer threads for the engine, "
                "no other work on this machine), send fewer requests at once, or run it on another machine.",
            )

    def _judge_output(self, row: RequestRow, tokens: list[TokenRow]) -> None:
        """Hold the server's count of the output against the pieces that came."""
        doubt = count_doubt(row, tokens)
        if doubt is not None:
            self.miscounted.add(row.index)
        if row.role == "warmup":
            return
        num_pieces, hidden = sum(bool(token.text) for token in tokens), hidden_tokens(row, tokens)
        if doubt is not None:
            thought = f", {hidden:,} of them thinking that it did not send" if hidden else ""
            self.warn(
                "output-count-mismatch",
                f"The server states {row.output_tokens:,} output tokens{thought}. {num_pieces:,} pieces came, and "
                f"{row.output_tokens_limit:,} tokens were asked for: it cannot be right.",
                "Its speed for each token is left out. Look at the server, or at what stands between it and you.",
            )
        elif hidden:
            self.warn(
                "hidden-reasoning",
                f"The server counts {hidden:,} of {row.output_tokens or 0:,} output tokens as thinking and did not "
                f"send them: {num_pieces:,} pieces came.",
                "The time to the first token holds the time of thinking. Turn thinking off, or allow more output where "
                "no answer came.",
            )
        elif row.output_tokens and not num_pieces:
            self.warn(
                "output-not-sent",
                f"The server states {row.output_tokens:,} output tokens and sent no text of them.",
                "No time of a token is known. They may be thinking that is not sent, or marks that have no text.",
            )
        if came_too_soon(tokens):
            self.warn(
                "answered-too-soon",
                "An answer began before the request had been sent to its end: the server had not read all of it.",
                "Its time to the first token is not known. Look at the server, or at what stands between it and you.",
            )

    def _judge_model(self, stated: str | None) -> None:
        asked = self.effective.get("served_model")
        if stated is None or not isinstance(asked, str) or _is_same_model(asked, stated):
            return
        self.warn(
            "another-model-answered",
            f"{asked[:200]} was asked, and the answers say that {stated[:200]} gave them.",
            "Is the name an alias, or has a router passed the request on? What was measured is what answered.",
        )

    def judge_counts(self) -> None:
        """Hold our counts against the server's, over all answered requests of the attempt: a prompt that was cut is
        marked as such in its row, any other difference is a doubt. To be called once, when no more will come."""
        answered = [row for row in self.requests if row.error_slug is None and row.role != QUALITY]
        self._judge_together()
        self._judge_uncounted([row for row in answered if row.prompt_tokens_server is None])
        findings = compare_counts([self.count_sample(row) for row in answered])
        for finding in findings:
            if finding.is_cut:
                self._note_cut([answered[place].index for place in finding.requests], finding.claim, finding.advice)
            elif finding.slug == DOUBLED_BOS:
                self.warn("doubled-bos", finding.claim, finding.advice)
            elif finding.slug not in (EQUAL, ABSENT):
                self.warn("token-count-mismatch", finding.claim, finding.advice)
        if all(finding.slug != CACHED_LEFT_OUT for finding in findings):
            self._note_impossible_reuse(answered)

    def _judge_together(self) -> None:
        """What hides the time between single tokens, over all that count for it: pieces in one read, tokens in one
        piece."""
        pieces: dict[int, list[TokenRow]] = {row.index: [] for row in self.requests if row.role == "measured"}
        for token in self.tokens:
            if token.request_index in pieces:
                pieces[token.request_index].append(token)
        measured = [row for row in self.requests if row.index in pieces and row.is_answered]
        together = coalesced_fraction([pieces[row.index] for row in measured]) or 0.0
        if together > COALESCED_SHARE:
            self.warn(
                "tokens-together",
                f"{together:.0%} of the pieces of answers came in one read with the piece before.",
                "The time between single tokens is left out. A proxy that gathers, or a server that predicts several "
                "tokens at once, does this.",
            )
        grouped = tokens_in_one_piece([(row, pieces[row.index]) for row in measured]) or 0.0
        if grouped > COALESCED_SHARE:
            self.warn(
                "several-tokens-a-piece",
                f"{grouped:.0%} of the output tokens came in one piece with the token before.",
                "The time between single tokens is left out, and the mean for each is less exact: how many came first "
                "is told from the length of the text. A server that predicts or sends several tokens at once does "
                "this, and so does text that takes several tokens for one character.",
            )

    def _judge_uncounted(self, answered: list[RequestRow]) -> None:
        """Prompts over the limit that were answered by a server which does not state how many tokens it read."""
        over = [row for row in answered if row.index in self.surely_over]
        if not over:
            return
        says = (
            f"A prompt of {over[-1].prompt_tokens_ours:,} tokens by our count was answered, where one sequence holds "
            f"{self.limit_tokens:,}; the server does not state how many it read"
        )
        advice = "Load the model with a larger context, or send shorter prompts."
        certain = [row.index for row in over if self.surely_over[row.index]]
        if certain:
            self._note_cut(certain, f"{says}: it cannot have been all.", advice)
        else:
            self.warn("prompt-may-be-cut", f"{says}. It may have been cut.", advice)

    def _note_impossible_reuse(self, answered: list[RequestRow]) -> None:
        for row in answered:
            if (row.cached_tokens or 0) > (row.prompt_tokens_server or 0) and row.prompt_tokens_server is not None:
                self.warn(
                    "cached-over-prompt",
                    f"The server states {row.cached_tokens:,} reused tokens of a prompt of "
                    f"{row.prompt_tokens_server:,}, more than it has.",
                    "How many were computed is not known: neither number can be used. Look at the server, or at what "
                    "stands between it and you.",
                )

    def count_sample(self, row: RequestRow) -> CountSample:
        """Both counts of an answered request, to be held against each other."""
        return CountSample(
            ours=row.prompt_tokens_ours,
            server=row.prompt_tokens_server,
            cached=row.cached_tokens,
            output_limit_tokens=row.output_tokens_limit,
            limit_tokens=self.limit_tokens,
            leading_bos=self.leading_bos.get(row.index),
        )

    def _note_cut(self, indexes: list[int], claim: str, advice: str) -> None:
        self.cut = Ending(outcome="truncated_input", slug=TRUNCATED_SLUG, message=claim, hint=advice)
        self.requests = [
            replace(row, error_slug=TRUNCATED_SLUG) if row.index in indexes else row for row in self.requests
        ]

    def ending(self) -> Ending:
        """How an attempt in which nothing raised ended, once its counts are judged."""
        asked = [row for row in self.requests if row.role not in ("warmup", QUALITY)]
        measured = [row for row in asked if row.index not in self.may_end]
        if self.cut is not None:
            return self.cut
        short = any(_is_short(request, is_counted=request.index not in self.miscounted) for request in measured)
        return Ending(outcome="stopped_early" if short else "ok")


def health_fields(health: ClientHealth) -> dict[str, Json]:
    """What is known of a client's health, as the record keeps it; empty where nothing was measured."""
    if health == ClientHealth():
        return {}
    found = {name: value for name, value in asdict(health).items() if value is not None and value != ()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _of_both(name: str, known: object, value: Json) -> object:
    """Of what two requests say of the client: the worse, how many of both, or all that either says."""
    if name == "num_resent" and isinstance(known, int):
        return known + int(value)
    if isinstance(value, list) and isinstance(known, list):
        return list(dict.fromkeys([*known, *value]))
    return max(value, known) if isinstance(value, float) and isinstance(known, float) else value


def _is_same_model(asked: str, stated: str) -> bool:
    """Whether both name one model: a file's or an owner's folders before it, and a date or Ollama's tag behind it, are
    left out by some."""
    one, other = (name.rpartition("/")[2].casefold() for name in (asked, stated))
    return re.fullmatch(re.escape(one) + r"(?:[-@](?:\d{4}-?\d\d-?\d\d|\d{4})|:latest)?", other) is not None or (
        one == f"{other}:latest"
    )


def reported_row(buffer: ReportedBuffer, phase: str, request_index: int | None) -> ReportedBufferRow:
    """What the engine states of a buffer, as it is recorded."""
    return ReportedBufferRow(
        phase=phase,
        component=buffer.component,
        name=buffer.name,
        printed_mib=buffer.printed_mib,
        cells=buffer.cells,
        streams=buffer.streams,
        layers=buffer.layers,
        k_mib=buffer.k_mib,
        v_mib=buffer.v_mib,
        line=buffer.line,
        request_index=request_index,
    )


def _is_short(request: RequestRow, *, is_counted: bool) -> bool:
    """Whether an answer ended before the output that was asked for: by its count, or where the server states none that
    can be right, by the reason it gives."""
    if is_counted and request.output_tokens is not None:
        return request.output_tokens < request.output_tokens_limit
    return request.finish_reason not in (None, "length")
