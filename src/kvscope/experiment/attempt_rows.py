"""What an attempt has left so far, as rows; what they say against each other; and the outcome they amount to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvscope.engine.base import Generation, ReportedBuffer
from kvscope.record.rows import (
    MapRow,
    MarkRow,
    OccupantRow,
    ReadRow,
    ReportedBufferRow,
    RequestRow,
    SampleRow,
    TokenRow,
    WarningRow,
)


@dataclass(slots=True)
class AttemptRows:
    """Grows while an attempt runs; whatever ends it, what is here is kept."""

    requests: list[RequestRow] = field(default_factory=list)
    tokens: list[TokenRow] = field(default_factory=list)
    reads: list[ReadRow] = field(default_factory=list)
    marks: list[MarkRow] = field(default_factory=list)
    maps: list[MapRow] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    reported: list[ReportedBufferRow] = field(default_factory=list)
    occupants: list[OccupantRow] = field(default_factory=list)
    warnings: list[WarningRow] = field(default_factory=list)
    effective: Mapping[str, object] = field(default_factory=dict)
    client: dict[str, object] = field(default_factory=lambda: {"concurrency": 1})

    def warn(self, slug: str, message: str, hint: str) -> None:
        """Note a doubt, each kind once."""
        if all(warning.slug != slug for warning in self.warnings):
            self.warnings.append(WarningRow(slug=slug, message=message, hint=hint))

    def add_answer(self, sent: RequestRow, answer: Generation, *, reuse_prefix: bool) -> None:
        """Add an answered request, with what the server's counts say against ours. ``reuse_prefix``: it was allowed to
        reuse what it kept."""
        row = replace(
            sent,
            completed_s=answer.completed_s,
            prompt_tokens_server=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            finish_reason=answer.finish_reason,
            engine_timings=dict(answer.engine_timings),
        )
        self.requests.append(row)
        self.tokens += [
            TokenRow(request_index=row.index, index=number, at_s=event.at_s, text=event.text)
            for number, event in enumerate(answer.events)
        ]
        self.reads += [
            ReadRow(request_index=row.index, at_s=read.at_s, num_bytes=read.num_bytes, num_events=read.num_events)
            for read in answer.reads
        ]
        if row.role != "warmup":
            self._check_counts(row, reuse_prefix=reuse_prefix)

    def _check_counts(self, row: RequestRow, *, reuse_prefix: bool) -> None:
        if row.prompt_tokens_server is not None and row.prompt_tokens_server != row.prompt_tokens_ours:
            self.warn(
                "token-count-mismatch",
                f"We counted {row.prompt_tokens_ours} prompt tokens, the server {row.prompt_tokens_server}.",
                "The server changed or cut the prompt: compare what was sent with what its log says.",
            )
        if not reuse_prefix and row.cached_tokens:
            self.warn(
                "cache-not-cleared",
                f"The server reused {row.cached_tokens} tokens although reuse was turned off.",
                "The time to the first token is shorter than for a new prompt.",
            )

    def outcome(self) -> str:
        """The outcome of an attempt in which nothing raised."""
        measured = [request for request in self.requests if request.role != "warmup"]
        if any(_is_cut(request) for request in measured):
            return "truncated_input"
        if any(_is_short(request) for request in measured):
            return "stopped_early"
        return "ok"


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


def _is_cut(request: RequestRow) -> bool:
    return (
        request.prompt_tokens_server is not None
        and request.prompt_tokens_ours is not None
        and request.prompt_tokens_server < request.prompt_tokens_ours
    )


def _is_short(request: RequestRow) -> bool:
    return request.output_tokens is not None and request.output_tokens < request.output_tokens_limit
