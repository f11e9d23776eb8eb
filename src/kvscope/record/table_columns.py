"""The columns of the exported tables: their order, what kind of value each holds, and where it is from. A column is
added here and described in docs/reference/record.md; none is ever renamed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Literal

from kvscope.record.metrics import RequestMetrics, TrialMetrics, computed_prompt_tokens
from kvscope.record.rows import AnswerRow, DesignRow, Json, RequestRow, RunRow, SampleRow, TokenRow, TrialResult
from kvscope.record.turns import request_outcome
from kvscope.units import MIB

# "json" holds anything; formats that have types keep it as JSON text. "texts" is a list of texts.
Kind = Literal["text", "int", "float", "bool", "texts", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """``value`` takes what the table's rows are made of. Unknown is None, whatever the kind."""

    name: str
    kind: Kind
    value: Callable[[Any], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What a row of an attempt is made of. ``request``: whose counts stand in the row. ``unexplained_bytes`` is a
    finding of the analysis, not of the record: None where nobody asked it."""

    result: TrialResult
    design: DesignRow
    run: RunRow
    prediction: Mapping[str, Json] | None
    metrics: TrialMetrics
    request: RequestRow | None
    unexplained_bytes: int | None = None

    @property
    def totals(self) -> Mapping[str, Json]:
        """The prediction's sums; empty where nothing was predicted."""
        found: Mapping[str, Json] = (self.prediction or {}).get("totals", {})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """What a row of a part of an attempt is made of: of one of its requests, tokens, samples or answers."""

    result: TrialResult
    design: DesignRow
    part: RequestRow | TokenRow | SampleRow | AnswerRow
    metrics: RequestMetrics | None = None
    turn: int | None = None


def _of(owner: str, kind: Kind, *names: str) -> Sequence[Column]:
    """Columns that are attributes of one of the facts; None where there is no such fact."""
    return [Column(name, kind, partial(_attribute, owner, name)) for name in names]


def _attribute(owner: str, name: str, facts: Any) -> Json:
    found = facts
    for step in owner.split("."):
        found = getattr(found, step)
    value = None if found is None else getattr(found, name)
    return dict(value) if isinstance(value, Mapping) else value


def _from_client(name: str, facts: AttemptFacts) -> Json:
    return facts.result.trial.client.get(name)


def _limited_by(facts: AttemptFacts) -> Json:
    """The limits that were passed, in words; none is a list without any, of a client that was not watched None."""
    client = facts.result.trial.client
    return None if client.get("client_limited") is None else list(client.get("limited_by") or ())


def _from_part(name: str, facts: PartFacts) -> Json:
    assert isinstance(facts.part, RequestRow)
    return facts.part.client.get(name)


def _part_limited_by(facts: PartFacts) -> Json:
    assert isinstance(facts.part, RequestRow)
    return list(facts.part.client.get("limited_by") or ()) if facts.part.client else None


def _part_limited(facts: PartFacts) -> Json:
    limits = _part_limited_by(facts)
    return None if limits is None else bool(limits)


_trial = partial(_of, "result.trial")
_design = partial(_of, "design")
_metric = partial(_of, "metrics")
# Of our own client, as ``engine.base.ClientHealth`` names them; the first two have stood in the table for long.
_HEALTH_BEFORE = ("loop_lag_p99_s", "cpu_share")
_HEALTH = (
    *_HEALTH_BEFORE,
    "loop_lag_max_s",
    "send_to_wire_s",
    "late_p99_s",
    "waited_share",
    "first_late_s",
    "last_late_s",
)
_MOMENTS = ("baseline", "loaded", "peak", "after", "released")
_REQUEST_COUNTS = (
    *_of("request", "int", "prompt_tokens_ours", "prompt_tokens_server"),
    *_of("request", "text", "prompt_tokens_ours_from", "prompt_tokens_server_from"),
    *_of("request", "int", "cached_tokens", "output_tokens_limit", "output_tokens"),
    *_of("request", "text", "finish_reason"),
)


def _counts_of_part() -> Sequence[Column]:
    return [_of("part", column.kind, column.name)[0] for column in _REQUEST_COUNTS]


def _cache_bytes(facts: AttemptFacts) -> int | None:
    """The KV cache as the engine states it: reserved at load, else what it counted when it had answered. What it counts
    is its whole cache, so where a prediction has recurrent states in it too, or there is none, it is no KV cache."""
    printed = _printed(facts.result, "kv_cache")
    whole = facts.totals.get("cache_bytes")
    if printed:
        return round(sum(Decimal(text) for text in printed) * MIB)
    if whole is None or whole != facts.totals.get("kv_cache_bytes"):
        return None
    rows = facts.result.statistics
    counted = [row for row in rows if row.name == "cache_tensor_bytes" and row.phase == "after_request"]
    return int(counted[-1].value) if counted else None


def _printed(result: TrialResult, component: str) -> list[str]:
    """What the engine's log printed of each buffer at load, in MiB."""
    return [row.printed_mib for row in result.reported if row.component == component and row.phase == "loaded"]


def _measured_requests(facts: AttemptFacts) -> int:
    return sum(request.role == "measured" for request in facts.result.requests)


TRIAL_COLUMNS: tuple[Column, ...] = (
    *_of("run", "text", "run_id"),
    *_trial("text", "trial_id"),
    *_trial("int", "attempt"),
    Column("design", "text", lambda facts: facts.design.name),
    *_trial("text", "role"),
    *_design("text", "factor"),
    *_trial("json", "level"),
    Column("is_baseline", "bool", lambda facts: facts.result.trial.level == facts.design.baseline_level),
    *_trial("int", "repeat", "block", "position"),
    *_trial("text", "started_at"),
    *_trial("float", "duration_s"),
    *_trial("text", "outcome", "error_slug", "error_message"),
    *_trial("json", "evidence"),
    *_design("text", "model_name", "model_fingerprint", "engine", "engine_version", "engine_build"),
    *_trial("json", "settings"),
    *_design("text", "machine_id"),
    Column("requests", "int", _measured_requests),
    *_trial("int", "prompt_tokens_asked"),
    *_REQUEST_COUNTS,
    Column("cache", "text", lambda facts: facts.result.effective.get("cache")),
    Column("context_limit_tokens", "int", lambda facts: facts.result.effective.get("context_limit_tokens")),
    Column("context_limit_from", "text", lambda facts: facts.result.effective.get("context_limit_from")),
    Column("concurrency", "int", partial(_from_client, "concurrency")),
    *_metric("float", "ttft_s", "first_answer_s", "tpot_s", "itl_p50_s", "itl_p99_s", "completion_s"),
    *_metric("float", "prefill_tokens_per_s", "decode_tokens_per_s"),
    *_metric("int", *(f"memory_{moment}_bytes{of}" for moment in _MOMENTS for of in ("", "_file"))),
    *_metric("int", *(f"memory_{moment}_bytes_device" for moment in _MOMENTS)),
    Column("kv_cache_bytes_engine", "int", _cache_bytes),
    Column("kv_cache_mib_engine", "text", lambda facts: " + ".join(_printed(facts.result, "kv_cache")) or None),
    Column("kv_cache_bytes_predicted", "int", lambda facts: facts.totals.get("kv_cache_bytes")),
    Column("total_bytes_predicted", "int", lambda facts: facts.totals.get("total_bytes")),
    Column("unexplained_bytes", "int", lambda facts: facts.unexplained_bytes),
    *_metric("text", "quality_task"),
    *_metric("float", "quality_score"),
    Column("client_loop_lag_p99_s", "float", partial(_from_client, "loop_lag_p99_s")),
    Column("client_cpu_share", "float", partial(_from_client, "cpu_share")),
    *_metric("float", "coalesced_fraction"),
    Column("client_limited", "bool", partial(_from_client, "client_limited")),
    Column("warnings", "texts", lambda facts: [warning.slug for warning in facts.result.warnings]),
    *_design("text", "design_id", "study_id"),
    Column("arrival", "text", partial(_from_client, "arrival")),
    Column("rate_per_s", "float", partial(_from_client, "rate_per_s")),
    Column("shared_prefix_tokens", "int", partial(_from_client, "shared_prefix_tokens")),
    Column("load_failed", "int", lambda facts: None if facts.metrics.load is None else facts.metrics.load.failed),
    *_of("metrics.load", "float", "load_wall_s", "output_tokens_per_s_all"),
    *_of("metrics.load", "int", "load_prompt_tokens", "load_cached_tokens"),
    *_of("metrics.load", "float", "ttft_p50_s", "ttft_p99_s", "ttft_max_s", "queue_wait_s"),
    *(Column(f"client_{name}", "float", partial(_from_client, name)) for name in _HEALTH if name not in _HEALTH_BEFORE),
    Column("client_num_resent", "int", partial(_from_client, "num_resent")),
    Column("client_limited_by", "texts", _limited_by),
    *_metric("float", "quality_low", "quality_high"),
    *_metric("int", "quality_items"),
    *_metric("float", "quality_twin_score"),
    *_metric("int", "quality_truncated", "quality_unread"),
)

# What every row of a part of an attempt begins with.
_WHOSE = (
    *_trial("text", "run_id", "trial_id"),
    *_trial("int", "attempt"),
    Column("design", "text", lambda facts: facts.design.name),
    *_design("text", "factor"),
    *_trial("json", "level"),
    *_trial("int", "repeat"),
)
_WHERE = _design("text", "design_id", "machine_id")

REQUEST_COLUMNS: tuple[Column, ...] = (
    *_WHOSE,
    *_of("part", "int", "index"),
    *_of("part", "text", "role"),
    Column("turn", "int", lambda facts: facts.turn),
    *_of("part", "float", "sent_at_s"),
    Column("outcome", "text", lambda facts: request_outcome(facts.part, facts.result.trial.outcome)),
    *_of("part", "text", "error_slug"),
    *_of("part", "int", "prompt_tokens_asked"),
    *_counts_of_part(),
    Column("computed_tokens", "int", lambda facts: computed_prompt_tokens(facts.part)),
    *_metric("float", "ttft_s", "first_answer_s", "tpot_s", "completion_s"),
    *_metric("float", "prefill_tokens_per_s", "decode_tokens_per_s"),
    *_of("part", "int", "cached_tokens_predicted", "stream"),
    *_of("part", "float", "due_s"),
    *_WHERE,
    *(Column(f"client_{name}", "float", partial(_from_part, name)) for name in _HEALTH),
    *_metric("float", "coalesced_fraction"),
    Column("client_num_resent", "int", partial(_from_part, "num_resent")),
    Column("client_limited", "bool", _part_limited),
    Column("client_limited_by", "texts", _part_limited_by),
)

TOKEN_COLUMNS: tuple[Column, ...] = (
    *_WHOSE,
    *_of("part", "int", "request_index", "index"),
    *_of("part", "float", "at_s"),
    *_of("part", "text", "text", "kind"),
    *_WHERE,
)

SAMPLE_COLUMNS: tuple[Column, ...] = (
    *_WHOSE,
    *_of("part", "text", "quantity"),
    *_of("part", "float", "at_s"),
    *_of("part", "int", "value_bytes"),
    *_of("part", "float", "late_s"),
    *_WHERE,
)

_ANSWER_TEXTS = ("task", "item", "document", "language", "reading")

ANSWER_COLUMNS: tuple[Column, ...] = (
    *_WHOSE,
    *_of("part", "int", "index"),
    *_of("part", "text", *_ANSWER_TEXTS),
    *_of("part", "float", "score", "chance"),
    *_of("part", "bool", "is_twin"),
    *_of("part", "float", "depth_percent"),
    *_of("part", "int", "document_tokens"),
    *_of("part", "bool", "evidence_in_prompt"),
    *_of("part", "int", "request_index"),
    *_of("part", "text", "expected", "answer"),
    *_of("part", "json", "facts"),
    *_WHERE,
)

# What `kvscope export --rows` names.
TABLES: Mapping[str, tuple[Column, ...]] = {
    "trials": TRIAL_COLUMNS,
    "requests": REQUEST_COLUMNS,
    "tokens": TOKEN_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "answers": ANSWER_COLUMNS,
}
