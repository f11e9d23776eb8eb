"""What the answers of a design say, as findings: losses, what cannot be told and why, prompts that were cut in silence,
and which levels none beats. Sentences are written in ``report``, by these slugs."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.items_needed import ItemsNeeded
from kvscope.analysis.levels import at_level, level_key
from kvscope.analysis.quality_cell import QualityCell
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.quality_effects import QualityEffects, QualityLevel, quality_effects
from kvscope.analysis.quality_gain import COPY_GAIN, GainCell
from kvscope.record.rows import DesignRow, Json

# Verdict of a comparison → slug. Shares and differences are of 1, not of 100.
OF_VERDICT: Mapping[str, str] = {
    "loss": "quality_loss",
    "gain": "quality_gain",
    "no_loss_beyond": "quality_no_loss",
    "cannot_tell": "quality_cannot_tell",
}
# What the places of found facts say → slug.
OF_SIGN: Mapping[str, str] = {
    "head_never_arrives": "quality_head_never_arrives",
    "tail_never_arrives": "quality_tail_never_arrives",
    "middle_ignored": "quality_middle_ignored",
    "middle_weaker": "quality_middle_weaker",
}
OF_FIDELITY: Mapping[str, str] = {
    "loss": "fidelity_loss",
    "no_loss_larger_than_floor": "fidelity_no_loss",
    "cannot_tell": "fidelity_cannot_tell",
}

OF_GAIN: Mapping[str, str] = {
    "used": "copy_gain_used",
    "not_used": "copy_gain_not_used",
    "cannot_tell": "copy_gain_cannot_tell",
}


def quality_findings(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """Of one design; empty where none of its trials has answers."""
    effects = quality_effects(design, attempts)
    return () if effects is None else findings_of(effects, attempts)


def findings_of(effects: QualityEffects, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """What did not arrive first; then shares, levels against the baseline, fidelity, and levels that none beats."""
    evidence = {level_key(each.level): _keys(effects, attempts, each.level) for each in effects.levels}
    cells = [(cell, evidence[level_key(cell.level)]) for level in effects.levels for cell in level.cells]
    compared = [(each, evidence[level_key(each.level)]) for level in effects.levels for each in level.comparisons]
    judged = {(each.task, each.language, level_key(each.level)) for each, _ in compared}
    found = [
        *(finding for cell, keys in cells for finding in _doubts(cell, keys)),
        *(_share(c, keys) for c, keys in cells if (c.task, c.language, level_key(c.level)) not in judged),
        *_read_strictly(effects, tuple(key for keys in evidence.values() for key in keys)),
        *(_comparison(each, (*evidence.get(level_key(each.baseline_level), ()), *keys)) for each, keys in compared),
        *(f for each in effects.levels for f in _fidelity(each, evidence)),
        *_orders(effects, evidence),
        *(_gain(each, evidence[level_key(each.level)]) for level in effects.levels for each in level.gains),
        *_not_beaten(effects, tuple(key for keys in evidence.values() for key in keys)),
    ]
    return tuple(found)


def _keys(effects: QualityEffects, attempts: Sequence[Attempt], level: Json) -> tuple[str, ...]:
    of_design = [each for each in attempts if each.design.design_id == effects.design_id]
    return tuple(each.key for each in at_level(of_design, level) if each.is_measured and each.result.answers)


def _of_cell(cell: QualityCell) -> dict[str, object]:
    return {
        "task": cell.task,
        "language": cell.language,
        "level": cell.level,
        "document_tokens": cell.document_tokens,
    }


def _doubts(cell: QualityCell, keys: tuple[str, ...]) -> list[Finding]:
    """Signs in the places of facts; rows that were left out; repeats that disagree; right without the evidence."""
    found = []
    if cell.sign is not None:
        values = {
            **_of_cell(cell),
            "lost": cell.sign.lost.value,
            "found": cell.sign.found.value,
            "guess": cell.guess,
            "lost_wrong": cell.sign.lost_wrong,
            "tokens_low": cell.sign.tokens_low,
            "tokens_high": cell.sign.tokens_high,
            "of_tokens": cell.sign.of_tokens,
            "from_percent": cell.sign.from_percent,
            "to_percent": cell.sign.to_percent,
            "error": cell.sign.error,
        }
        found.append(Finding(slug=OF_SIGN[cell.sign.slug], values=values, evidence=keys, size=cell.sign.lost))
    if cell.num_left_out:
        asked = sum(cell.readings.values()) + sum(cell.twin_readings.values())
        values = {**_of_cell(cell), "count": cell.num_left_out, "of": asked, "readings": dict(cell.left_out)}
        found.append(Finding(slug="quality_left_out", values=values, evidence=keys))
    if cell.num_unsteady:
        values = {**_of_cell(cell), "count": cell.num_unsteady, "items": cell.num_items, "repeats": cell.num_repeats}
        found.append(Finding(slug="quality_unsteady", values=values, evidence=keys))
    if cell.right_without_evidence:
        values = {**_of_cell(cell), "count": cell.right_without_evidence, "items": cell.num_items}
        found.append(Finding(slug="quality_right_without_evidence", values=values, evidence=keys))
    return found


def _share(cell: QualityCell, keys: tuple[str, ...]) -> Finding:
    """A share that stands alone, as the baseline's, and whether it can be judged by (``gate``)."""
    values = {
        **_of_cell(cell),
        "gate": cell.gate,
        "right": cell.right,
        "items": cell.num_items,
        "documents": cell.num_documents,
        "chance": cell.chance,
        "twin": None if cell.twin is None else cell.twin.value,
        "twin_named": cell.twin_named,
        "twin_refused": cell.twin_refused,
        "twins": cell.num_twins,
        "refused": cell.refused,
        "readings": dict(cell.left_out),
        **_needed(cell.needed),
    }
    return Finding(slug="quality_share", values=values, evidence=keys, size=cell.share)


def _comparison(each: QualityComparison, keys: tuple[str, ...]) -> Finding:
    values = {
        "task": each.task,
        "language": each.language,
        "level": each.level,
        "baseline_level": each.baseline_level,
        "baseline": each.baseline,
        "changed": each.changed,
        "bound": each.judged.bound,
        "reason": each.judged.reason,
        "method": each.method,
        "items": each.num_items,
        "documents": each.num_documents,
        "losses": each.losses,
        "gains": each.gains,
        "p_value": each.p_value,
        "unread": each.num_unread,
        "comparisons": each.num_comparisons,
        **_needed(each.needed),
    }
    return Finding(slug=OF_VERDICT[each.judged.verdict], values=values, evidence=keys, size=each.difference)


def _needed(needed: ItemsNeeded | None) -> dict[str, object]:
    if needed is None:
        return {"items_needed": None, "documents_needed": None, "least_items": None, "is_discordance_seen": False}
    return {
        "items_needed": needed.items,
        "documents_needed": needed.documents,
        "least_items": needed.least_items,
        "is_discordance_seen": needed.is_discordance_seen,
    }


def _read_strictly(effects: QualityEffects, keys: tuple[str, ...]) -> list[Finding]:
    """Tasks of which a judge read some answers and not all, so that none is compared as judged."""
    return [
        Finding(slug="quality_read_strictly", values={"task": task, "language": language}, evidence=keys)
        for task, language in effects.panel.read_strictly
    ]


def _fidelity(level: QualityLevel, evidence: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    """``noise``: the larger of the floors' means; None where one of the two was not measured."""
    found = level.fidelity
    if found is None or found.verdict not in OF_FIDELITY:
        return []
    keys = (*evidence.get(level_key(found.reference_level), ()), *evidence.get(level_key(level.level), ()))
    floors = (found.floors.same_pattern, found.floors.batch_shape)
    noise = [each.value for each in floors if each is not None and each.value is not None]
    values = {
        "level": level.level,
        "baseline_level": found.reference_level,
        "noise": max(noise) if len(noise) == len(floors) else None,
        "reason": found.reason,
        "flips": found.comparison.num_flips,
        "positions": len(found.comparison.positions),
        "documents": len(found.comparison.documents),
        "texts": found.comparison.num_items,
        "lost": list(found.comparison.lost),
    }
    return [Finding(slug=OF_FIDELITY[found.verdict], values=values, evidence=keys, size=found.divergence)]


def _gain(cell: GainCell, keys: tuple[str, ...]) -> Finding:
    change = cell.change
    values = {
        "task": COPY_GAIN,
        "language": cell.language,
        "level": cell.level,
        "baseline_level": cell.baseline_level,
        "present": cell.present.value,
        "absent": cell.absent.value,
        "items": cell.num_items,
        "documents": cell.num_documents,
        "unpaired": cell.num_unpaired,
        "change": None if change is None else change.value,
        "change_low": None if change is None else change.low,
        "change_high": None if change is None else change.high,
        "change_verdict": cell.change_verdict,
    }
    return Finding(slug=OF_GAIN[cell.verdict], values=values, evidence=keys, size=cell.gain)


def _orders(effects: QualityEffects, evidence: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    if effects.fidelity is None:
        return []
    return [
        Finding(
            slug="fidelity_order",
            values={"less": order.less, "more": order.more},
            size=order.ratio,
            evidence=(*evidence.get(level_key(order.less), ()), *evidence.get(level_key(order.more), ())),
        )
        for order in effects.fidelity.orders
        if order.is_certain
    ]


def _not_beaten(effects: QualityEffects, keys: tuple[str, ...]) -> list[Finding]:
    """Levels that none beats, those that are beaten with by which, and pairs where something is not known."""
    if not effects.is_choice or len(effects.levels) < 2:
        return []
    known = [each for each in effects.levels if is_known(each)]
    if not known:
        return []
    values = {
        "levels": [each.level for each in known if not each.beaten_by],
        "beaten": [(each.level, list(each.beaten_by)) for each in effects.levels if each.beaten_by],
        "unknown": _untold(known),
        "memory_metric": effects.memory_metric,
    }
    return [Finding(slug="quality_not_beaten", values=values, evidence=keys)]


def is_known(level: QualityLevel) -> bool:
    """Whether a level was measured, and anything of its quality: one of which nothing is known is no candidate."""
    is_read = any(cell.num_items for cell in level.cells) or any(each.gain.value is not None for each in level.gains)
    fidelity = level.fidelity
    is_scored = fidelity is not None and (fidelity.verdict == "reference" or fidelity.divergence.value is not None)
    return bool(level.row.num_measured) and (is_read or is_scored)


def _untold(known: Sequence[QualityLevel]) -> list[tuple[Json, Json, list[str]]]:
    """Pairs of which neither is known to beat the other, each once."""
    names = {level_key(each.level) for each in known}
    pairs: dict[frozenset[str], tuple[Json, Json, list[str]]] = {}
    for each in known:
        for other, measures in each.unknown_against:
            pair = frozenset((level_key(each.level), level_key(other)))
            if pair <= names and pair not in pairs:
                pairs[pair] = (each.level, other, list(measures))
    return list(pairs.values())
