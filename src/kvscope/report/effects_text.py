"""The effects of a design in a terminal, at most 80 columns wide: differences with their intervals, level by level."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt, load_attempts
from kvscope.analysis.drift import MEMORY, TIME, Drift, baseline_drifts
from kvscope.analysis.levels import LevelRow, at_level, level_rows
from kvscope.analysis.precision import BLOCKS_BETWEEN_LOOKS, LOOKS, Precision, stated_precision
from kvscope.record.rows import DesignRow
from kvscope.record.store import Records
from kvscope.report.claims import level_text
from kvscope.report.doubts_text import is_limited
from kvscope.report.effect_cells import effect_cells, shown_metrics
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import name_of, say

# A design of more levels than this is read in the page; a terminal shows the first and says so.
MOST_LEVELS = 8


def recorded_effects(records: Records, design_id: str) -> list[str]:
    """The lines of one design of a record."""
    design = next(row for row in records.designs() if row.design_id == design_id)
    return effect_lines(design, load_attempts(records, design, {run.run_id: run for run in records.runs()}))


def effect_lines(design: DesignRow, attempts: Sequence[Attempt]) -> list[str]:
    """What each level changed, and by how much; whether repeating was enough; whether the machine changed under way.
    Nothing for a design of one level."""
    rows = level_rows(design, attempts)
    changed = [row for row in rows if not row.is_baseline]
    if not changed:
        return []
    base = level_text(design.baseline_level)
    told = [line for row in changed[:MOST_LEVELS] for line in ["", *_level(design, row, base, attempts)]]
    num_base = sum(row.num_measured for row in rows if row.is_baseline)
    lines = [*wrapped(effects_lead(changed, num_base=num_base)), *told]
    if len(changed) > MOST_LEVELS:
        lines += ["", say("effects.more_levels", count=len(changed) - MOST_LEVELS)]
    for text in (until_text(design, attempts), drift_text(design, attempts)):
        lines += ["", *wrapped(text)] if text else []
    return lines


def effects_lead(changed: Sequence[LevelRow], *, num_base: int) -> str:
    """How the differences of these levels were made, and when one is called one; why there is none where there is none.
    ``num_base``: how often the baseline was measured."""
    known = [effect.method for row in changed for effect in row.effects.values() if effect.num_pairs]
    if not known:
        others = any(row.num_measured for row in changed)
        if not num_base:
            return say("effects.none_baseline" if others else "effects.none_at_all")
        return say("effects.none_paired" if others else "effects.none_besides")
    method = say(f"method.{known[0]}")
    if len(changed) == 1:
        return say("effects.lead_one", method=method)
    return say("effects.lead", method=method, levels=len(changed))


def _level(design: DesignRow, row: LevelRow, base: str, attempts: Sequence[Attempt]) -> list[str]:
    title = say("effects.against", factor=name_of("factor", design.factor), level=level_text(row.level), base=base)
    if not row.num_measured:
        nothing = say("effects.nothing", failed=row.num_failed)
        return wrapped(f"{title} ({nothing})")
    effects = [row.effects[name] for name in shown_metrics([row])]
    pairs = max((effect.num_pairs for effect in effects), default=0)
    slug = "effects.counts_failed" if row.num_failed else "effects.counts"
    counts = say(slug, measured=row.num_measured, failed=row.num_failed, pairs=pairs)
    heads = ("at_baseline", "difference", "interval", "share")
    table = [["", *(say(f"col.{name}") for name in heads), say("effects.seen")]]
    limited = _limited_text(design, row, attempts)
    for effect in effects:
        cells = effect_cells(effect)
        seen = {"more": "effects.yes", "less": "effects.yes", "unknown": "effects.one_pair"}
        verdict = say(seen.get(effect.verdict, "effects.no"))
        verdict += "*" if limited and is_time(effect.metric) else ""
        table.append([cells.what, cells.baseline, cells.difference, cells.interval, cells.share, verdict])
    return [*wrapped(f"{title} ({counts})"), *([*aligned(table), *limited] if effects else [])]


def _limited_text(design: DesignRow, row: LevelRow, attempts: Sequence[Attempt]) -> list[str]:
    """That times behind a level's differences may be the client's; nothing where none of its trials is in doubt."""
    count, total = limited_behind(design, row, attempts)
    return wrapped(say("effects.limited", count=count, total=total)) if count else []


def limited_behind(design: DesignRow, row: LevelRow, attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Trials behind a level's differences, the baseline's too: how many are ``client_limited``, and how many there
    are."""
    behind = [a for level in (row.level, design.baseline_level) for a in at_level(attempts, level) if a.is_measured]
    return sum(map(is_limited, behind)), len(behind)


def is_time(metric: str) -> bool:
    """Whether a metric comes from the client's clock; memory does not."""
    return "_bytes" not in metric


def until_text(design: DesignRow, attempts: Sequence[Attempt]) -> str | None:
    """What repeating ended with; None for a design that was not told to repeat until it is precise enough."""
    found = stated_precision(design, attempts)
    if found is None:
        return None
    return say(
        _until_slug(found),
        blocks=found.num_blocks,
        most=found.most_blocks,
        metric=name_of("effect_name", found.metric),
        share=found.share,
        asked_share=found.asked_share,
        needed=found.needed_blocks,
        looks=LOOKS,
        between=BLOCKS_BETWEEN_LOOKS,
    )


def _until_slug(found: Precision) -> str:
    if found.share is None:
        return "until.unknown"
    if found.is_enough:
        return "until.reached"
    return "until.not_sure" if found.share <= found.asked_share else "until.not_reached"


def drift_text(design: DesignRow, attempts: Sequence[Attempt]) -> str | None:
    """That the machine, or the server's memory, changed under way, where it did; that these repeats cannot tell, where
    they cannot."""
    found = [drift for metric in (TIME, MEMORY) for _, drift in baseline_drifts([(design, attempts)], metric)]
    return " ".join(_drift_text(drift) for drift in found if drift.is_told or drift.is_unclear) or None


def _drift_text(drift: Drift) -> str:
    trend = drift.trend
    slug = "doubt" if drift.is_told else "unclear" if trend.has_interval else "unclear_few"
    return say(
        f"drift.{slug}" if drift.metric == TIME else f"memory_drift.{slug}",
        share=drift.share,
        trend_share=trend.value,
        low_share=trend.low,
        high_share=trend.high,
        count=trend.num,
    )
