"""What was found: claims with their evidence, contradictions between prediction and measurement first.

A finding's sentence is ``report.words``' for its slug, filled with ``values``. ``also_possible`` and ``how_to_check``
are slugs too: what else could explain it, and how one would tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.analysis.attempts import Attempt, has_engine_rules
from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.design_claims.context_limit import growth_findings
from kvscope.analysis.finding import Finding as Finding
from kvscope.analysis.finding_remarks import with_remarks
from kvscope.analysis.fit import mean, scaled
from kvscope.analysis.growth import added_bytes
from kvscope.analysis.levels import at_level
from kvscope.analysis.memory_claims import in_used_memory, memory_claims
from kvscope.analysis.notes import note
from kvscope.analysis.release_claim import claim_slug, claim_values
from kvscope.analysis.unexplained import worst_row
from kvscope.record.metrics import last_mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvscope.analysis.fit import Estimate
    from kvscope.analysis.latency import TimeLaw
    from kvscope.analysis.release import Release
    from kvscope.analysis.study import DesignStudy, MemoryView, Study


def find(study: Study) -> tuple[Finding, ...]:
    """All findings of a study: contradictions, then failures, then the answers in the order of the page."""
    found = [
        *_reported(study),
        *_slope(study),
        *_not_resident(study),
        *_unexplained(study),
        *_mismatched_tokens(study),
        *_failed(study),
        *memory_claims(study),
        *_first_microbatch(study),
        *_checkpoints(study),
        *_ttft(study),
        *_tpot(study),
        *_output(study),
        *(release_finding(r) for r in study.releases),
        *(finding for d in study.designs for finding in _own_claims(d, study)),
    ]
    measured = _measured(study)
    whole = (with_remarks(finding, measured) for finding in found)
    return tuple(sorted(whole, key=lambda finding: not finding.is_contradiction))


def _measured(study: Study) -> tuple[str, ...]:
    return tuple(a.key for a in study.attempts if a.is_measured)


def _own_claims(own: DesignStudy, study: Study) -> tuple[Finding, ...]:
    """What a design says of its rows; the price of a token of context is among the study's own answers already."""
    others = [attempt for each in study.designs if each is not own for attempt in each.attempts]
    found = claims_of(own.design, own.attempts, others)
    return tuple(finding for finding in found if not finding.slug.startswith(("slope_", "step_")))


def _reported(study: Study) -> list[Finding]:
    """Engine-reported against predicted, over every attempt whose context was a level of its own."""
    compared = [(v, c) for v in _views(study) for c in v.components_loaded if c.agrees is not None]
    if not compared:
        return []
    wrong = [(v, c) for v, c in compared if not c.agrees]
    findings = [
        Finding(
            slug="reported_differs",
            is_contradiction=True,
            values={
                "component": c.slug,
                "predicted_bytes": c.allocated_bytes,
                "reported_mib": " + ".join(c.reported_mib),
                "predicted_kinds": c.predicted_kinds,
                "reported_kinds": c.reported_kinds,
                "context_tokens": v.attempt.context_tokens,
            },
            evidence=(v.attempt.key,),
            also_possible=("other_engine_build", "other_settings"),
            how_to_check="compare_log",
        )
        for v, c in wrong
    ]
    if len(wrong) < len(compared):
        findings.append(
            Finding(
                slug="reported_agrees",
                values={"agreeing": len(compared) - len(wrong), "total": len(compared)},
                evidence=tuple(dict.fromkeys(v.attempt.key for v, c in compared if c.agrees)),
            )
        )
    return findings


def _views(study: Study) -> list[MemoryView]:
    if study.by_context:
        return list(study.by_context)
    return [study.main] if study.main is not None else []


def _slope(study: Study) -> list[Finding]:
    """Measured against predicted bytes per token of context: of the last design that asked."""
    if study.context is None:
        return []
    return [in_used_memory(finding, study.by_context) or finding for finding in growth_findings(study.context)]


def _not_resident(study: Study) -> list[Finding]:
    """The engine's rule says that the whole KV cache is written at load; less was seen. What was swapped out was
    written, and says nothing against the rule."""
    findings = []
    for view in _views(study):
        mark = last_mark(view.attempt.result, "loaded")
        swapped = 0 if mark is None else mark.swap_bytes
        for component in view.components_loaded:
            size, allocated = component.resident.num_bytes, component.allocated_bytes
            if component.slug != "kv_cache" or component.resident.how != "seen" or size is None or allocated is None:
                continue
            if size < allocated:
                is_swapped = size + swapped >= allocated
                values = {"resident_bytes": size, "allocated_bytes": allocated, "swapped_bytes": swapped}
                findings.append(
                    Finding(
                        slug="kv_swapped_out" if is_swapped else "kv_not_resident",
                        is_contradiction=not is_swapped,
                        values=values,
                        evidence=(view.attempt.key,),
                        also_possible=("engine_fills_lazily",)
                        if is_swapped
                        else ("swapped_out", "engine_fills_lazily"),
                        how_to_check="look_at_smaps",
                    )
                )
    return findings


def _unexplained(study: Study) -> list[Finding]:
    """Of the row and the moment that are beyond their limit; else of the main attempt after its load."""
    loaded = study.main.loaded if study.main is not None else None
    main = None if study.main is None else study.main.attempt
    worst = worst_row(study.identities, {} if main is None or loaded is None else {main.key: loaded})
    attempts = {a.key: a for a in study.attempts}
    if worst is not None and worst.is_too_much and attempts[worst.key].prediction is not None:
        return [_without_name(study, attempts[worst.key], worst.attribution, worst.limit_share)]
    # Without a prediction, as of a server's own model, nothing was said that could be explained.
    if main is None or main.prediction is None or loaded is None or not loaded.maps_read:
        return []
    return [] if loaded.unexplained_share is None else [_without_name(study, main, loaded, None)]


def _without_name(study: Study, attempt: Attempt, found: Attribution, beyond: float | None) -> Finding:
    """``beyond``: the limit that it is beyond; None: it is within."""
    # Where no rules of the engine are known there is no prediction of its buffers that a rest could contradict.
    rules = has_engine_rules(attempt.prediction)
    large = "unexplained_large" if rules else "unexplained_no_rules"
    alike = _repeats_of(attempt, study) if found.phase == "loaded" else []
    sizes = [float(each.unexplained_bytes) for each in _attributions(alike)]
    names = ["unexplained", "unexplained_anon", "unexplained_file", "growth", "seen", "rule", "shared", "measured"]
    names += ["calibrated", "swapped", "counted"]
    return Finding(
        slug="unexplained_small" if beyond is None else large,
        is_contradiction=beyond is not None and rules,
        values={
            **{f"{name}_bytes": getattr(found, f"{name}_bytes") for name in names},
            "share": found.unexplained_share,
            "limit_share": beyond,
            "context_tokens": attempt.context_tokens,
            "from_start": found.from_start,
            "row": study.row_numbers.get(attempt.key),
            "phase": found.phase,
        },
        evidence=tuple(a.key for a in alike) or (attempt.key,),
        size=mean(sizes or [float(found.unexplained_bytes)]),
        also_possible=("large_malloc_blocks", "counters_read_apart") if rules else ("runtime_not_calibrated",),
        how_to_check="look_at_smaps",
    )


def _repeats_of(attempt: Attempt, study: Study) -> list[Attempt]:
    """The measured attempts of its design at its level, itself first."""
    of_design = [a for a in study.attempts if a.design.design_id == attempt.design.design_id]
    alike = [a for a in at_level(of_design, attempt.trial.level) if a.is_measured and a.key != attempt.key]
    return [attempt, *alike]


def _attributions(attempts: Sequence[Attempt]) -> list[Attribution]:
    found = (attribute(a.result, a.prediction, "loaded") for a in attempts)
    return [each for each in found if each is not None]


def _mismatched_tokens(study: Study) -> list[Finding]:
    check = next((c for c in study.checks if c.slug == "token_counts"), None)
    if check is None or check.passed is not False:
        return []
    return [
        Finding(
            slug="tokens_mismatch",
            is_contradiction=True,
            values=check.values,
            evidence=check.evidence,
            also_possible=("server_cut_prompt",),
            how_to_check="compare_log",
        )
    ]


def _failed(study: Study) -> list[Finding]:
    return [
        Finding(
            slug="failed",
            values={"outcome": g.outcome, "count": len(g.attempts), "total": len(study.attempts), "message": g.message},
            evidence=g.evidence,
        )
        for g in study.failures
    ]


def _first_microbatch(study: Study) -> list[Finding]:
    """Memory that appears with the first requests is the compute buffer being touched, not the KV cache."""
    if study.inputs is None or not study.inputs.added or study.inputs.touched_max_bytes is None:
        return []
    longest = study.inputs.added[-1]
    if longest.kv_cache_bytes != 0 or longest.working_bytes <= 0:
        return []
    return [
        Finding(
            slug="first_microbatch" if len(study.inputs.added) > 1 else "first_microbatch_once",
            values={
                "added_bytes": longest.added_bytes,
                "tokens": longest.prompt_tokens,
                "working_bytes": longest.working_bytes,
                "touched_max_bytes": study.inputs.touched_max_bytes,
                "microbatch_tokens": study.inputs.microbatch_tokens,
                "naive_bytes": longest.per_token_bytes,
                "shortest_naive_bytes": study.inputs.added[0].per_token_bytes,
                "shortest_tokens": study.inputs.added[0].prompt_tokens,
                "bytes_per_token": study.inputs.bytes_per_token,
            },
            evidence=tuple(row.attempt_key for row in study.inputs.added),
            size=mean(_added_at(longest.attempt_key, study)),
            how_to_check="vary_context_not_input",
        )
    ]


def _added_at(key: str, study: Study) -> list[float]:
    """What the requests of that attempt and of its repeats added."""
    attempt = next(a for a in study.attempts if a.key == key)
    found = (added_bytes(each) for each in _repeats_of(attempt, study))
    return [float(value) for value in found if value is not None]


def _checkpoints(study: Study) -> list[Finding]:
    """Copies of the windows' state that the engine makes while it reads a prompt."""
    longest = study.inputs.added[-1] if study.inputs is not None and study.inputs.added else None
    if longest is None or longest.checkpoint_bytes <= 0:
        return []
    return [
        Finding(
            slug="checkpoints",
            values={"tokens": longest.prompt_tokens, "checkpoint_bytes": longest.checkpoint_bytes},
            evidence=(longest.attempt_key,),
        )
    ]


def _ttft(study: Study) -> list[Finding]:
    law = study.ttft
    if law is None or law.line.slope.value is None:
        return []
    (low, before), (high, after) = law.levels[0], law.levels[-1]
    return [
        Finding(
            slug="ttft_grows_once" if law.trend == "grows" and len(law.steps) == 1 else f"ttft_{law.trend}",
            values={
                "from_tokens": low,
                "to_tokens": high,
                "from_s": before.value,
                "to_s": after.value,
                "bends_up": law.bends_up,
                "first_step_s": law.steps[0].per_token_s * 1000,
                "last_step_s": law.steps[-1].per_token_s * 1000,
            },
            evidence=law.evidence,
            size=_price(law),
            also_possible=("busy_machine",),
            how_to_check="more_repeats",
        )
    ]


def _price(law: TimeLaw) -> Estimate:
    """Seconds for each 1,000 tokens; without an interval where several lengths are seen not to lie on a line."""
    size = scaled(law.line.slope, 1000)
    if law.is_line or law.trend != "grows" or len(law.steps) == 1:
        return size
    return replace(size, low=None, high=None, reason=note("not_on_a_line"))


def _tpot(study: Study) -> list[Finding]:
    law = study.tpot
    if law is None or law.line.slope.value is None:
        return []
    (low, before), (high, after) = law.levels[0], law.levels[-1]
    return [
        Finding(
            slug=f"tpot_{law.trend}",
            values={"from_tokens": low, "to_tokens": high, "from_s": before.value, "to_s": after.value},
            evidence=law.evidence,
            size=scaled(law.line.slope, 1000),
            also_possible=("busy_machine",),
            how_to_check="more_repeats",
        )
    ]


def _output(study: Study) -> list[Finding]:
    findings = []
    if study.completion is not None and study.completion.line.slope.value is not None:
        findings.append(_per_output_token(study.completion))
    short = [limit for limit in study.limits if not limit.is_reached]
    if short:
        findings.append(
            Finding(
                slug="stopped_early",
                values={
                    "limits": tuple(x.limit_tokens for x in short),
                    "fewest": min(min(x.produced_tokens) for x in short),
                },
                evidence=tuple(a.key for a in study.attempts if a.is_measured and a.trial.outcome == "stopped_early"),
            )
        )
    return findings


def _per_output_token(law: TimeLaw) -> Finding:
    return Finding(
        slug="output_time" if law.trend == "grows" else "output_time_unclear",
        values={
            "from_tokens": law.levels[0][0],
            "to_tokens": law.levels[-1][0],
            "from_s": law.levels[0][1].value,
            "to_s": law.levels[-1][1].value,
        },
        evidence=law.evidence,
        size=law.line.slope,
    )


def release_finding(release: Release) -> Finding:
    """One verdict. Growth that the host prompt cache explains is named as that."""
    slug = claim_slug(release)
    asks_again = release.verdict in ("growing", "cannot_tell")
    return Finding(
        slug=slug,
        values=claim_values(release),
        evidence=(release.attempt_key,),
        size=release.same_text_step if release.grows_again else release.step,
        also_possible=("allocator_keeps",) if slug == "release_growing" else (),
        how_to_check="more_conversations" if asks_again else None,
    )
