"""Tables of what answers say, as cells of text: one for a terminal and the page, so that they cannot disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.effects import Effect
from kvscope.analysis.fidelity_panel import FidelityLevel, FidelityPanel
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import level_key
from kvscope.analysis.quality_cell import QualityCell
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.quality_effects import TIME, QualityEffects, QualityLevel
from kvscope.analysis.quality_findings import is_known
from kvscope.analysis.quality_gain import GainCell
from kvscope.analysis.quality_panel import QualityPanel
from kvscope.record.rows import Json
from kvscope.report.effect_cells import effect_cells
from kvscope.report.level_words import level_text
from kvscope.report.quality_words import right_text, task_text
from kvscope.report.words import NO_BREAK, has_words, say
from kvscope.units import format_digits, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCell:
    """A value, and its interval or an empty text."""

    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRow:
    """One level of the table side by side. ``beaten``: empty where levels are no choice."""

    level: str
    is_baseline: bool
    cells: tuple[SideCell, ...]
    beaten: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTable:
    """``heads``: of the cells, memory and time first. ``is_choice``: whether rows say who is beaten."""

    heads: tuple[str, ...]
    rows: tuple[SideRow, ...]
    is_choice: bool


def short_level(level: Json) -> str:
    """A level; that of a grid by the values of its factors alone, which are named beside the table."""
    return ", ".join(map(level_text, level.values())) if isinstance(level, Mapping) else level_text(level)


def side_table(effects: QualityEffects) -> SideTable | None:
    """Each level's memory, time and quality against the baseline's; None for a design without another level, or one
    whose levels ask different tasks."""
    if len(effects.levels) < 2 or not _is_compared(effects):
        return None
    kinds = list(dict.fromkeys((each.task, each.language) for each in effects.panel.comparisons))
    languages = list(dict.fromkeys(gain.language for level in effects.levels for gain in level.gains))
    known = [each for level in effects.levels for each in level.effects.values()]
    heads = [_head(known, effects.memory_metric), _head(known, TIME)]
    heads += [say("quality_col.points", what=task_text(*kind)) for kind in kinds]
    heads += [say("quality_col.kl")] if effects.fidelity is not None else []
    heads += [say("quality_col.gain_nats") for _ in languages]
    rows = []
    for level in effects.levels:
        cells = [_effect(effects, level, effects.memory_metric), _effect(effects, level, TIME)]
        cells += [_points(effects.panel, level, *kind) for kind in kinds]
        cells += [_divergence(level.fidelity)] if effects.fidelity is not None else []
        cells += [_gain(level, language) for language in languages]
        rows.append(
            SideRow(
                level=short_level(level.level),
                is_baseline=level.is_baseline,
                cells=tuple(cells),
                beaten=_beaten(level) if effects.is_choice else "",
            )
        )
    return SideTable(heads=tuple(heads), rows=tuple(rows), is_choice=effects.is_choice)


def _is_compared(effects: QualityEffects) -> bool:
    changed = [level for level in effects.levels if not level.is_baseline]
    others = any(level.fidelity is not None or any(gain.change for gain in level.gains) for level in changed)
    return bool(effects.panel.comparisons) or others


def _head(known: Sequence[Effect], metric: str) -> str:
    effect = next((each for each in known if each.metric == metric and each.num_pairs), None)
    effect = effect or next(each for each in known if each.metric == metric)
    return effect_cells(effect).what


def _effect(effects: QualityEffects, level: QualityLevel, metric: str) -> SideCell:
    """The baseline's value; of another level the difference from it."""
    if level.is_baseline:
        known = [each.effects[metric] for each in effects.levels if metric in each.effects]
        effect = next((each for each in known if each.num_pairs), None)
        return SideCell(value=say("none") if effect is None else effect_cells(effect).baseline)
    effect = level.effects[metric]
    if not effect.num_pairs:
        return SideCell(value=say("none"))
    cells = effect_cells(effect)
    return SideCell(value=cells.difference, interval=cells.interval)


def _points(panel: QualityPanel, level: QualityLevel, task: str, language: str) -> SideCell:
    if level.is_baseline:
        cell = next((each for each in level.cells if (each.task, each.language) == (task, language)), None)
        return SideCell(value=say("none")) if cell is None else SideCell(value=_right(cell), interval=share(cell.share))
    found = panel.comparison(task, language, level.level)
    if found is None or found.difference.value is None:
        return SideCell(value=say("none"))
    return SideCell(value=_signed(found.difference.value), interval=_range(found.difference))


def _signed(value: float) -> str:
    text = format_number(100 * value, 1)
    return f"+{text}" if value > 0 else text


def _range(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return say("effects.no_interval")
    return say("quality.range", low=_signed(found.low), high=_signed(found.high))


def _nats(found: Estimate | None) -> SideCell:
    if found is None or found.value is None:
        return SideCell(value=say("none"))
    if found.low is None or found.high is None:
        return SideCell(value=format_digits(found.value), interval=say("effects.no_interval"))
    interval = say("quality.range", low=format_digits(found.low), high=format_digits(found.high))
    return SideCell(value=format_digits(found.value), interval=interval)


def _divergence(level: FidelityLevel | None) -> SideCell:
    return _nats(None if level is None else level.divergence)


def _gain(level: QualityLevel, language: str) -> SideCell:
    cell = next((each for each in level.gains if each.language == language), None)
    if cell is None:
        return SideCell(value=say("none"))
    return _nats(cell.gain if level.is_baseline else cell.change)


def _beaten(level: QualityLevel) -> str:
    if not is_known(level):
        return say("none")
    if level.beaten_by:
        return say("quality_beaten.yes")
    return say("quality_beaten.unknown") if level.unknown_against else say("quality_beaten.no")


# --- the panel ----------------------------------------------------------------------------------------------------


def _right(cell: QualityCell) -> str:
    return f"{right_text(cell.right)}/{cell.num_items}"


def share(found: Estimate) -> str:
    """The interval of a share, in whole percent."""
    if found.low is None or found.high is None:
        return say("none")
    return say("quality.percents", low=f"{100 * found.low:.0f}", high=f"{100 * found.high:.0f}")


def _percent(value: float | None) -> str:
    return say("none") if value is None else f"{100 * value:.0f} %"


PANEL_HEADS = ("task", "level", "right", "interval", "chance", "twin", "verdict")


def panel_rows(panel: QualityPanel) -> list[tuple[QualityCell, list[str]]]:
    """A row of PANEL_HEADS for each cell: task, level, right of how many, interval, chance, right on twins, verdict."""
    return [(cell, _panel_row(cell, panel.comparison(cell.task, cell.language, cell.level))) for cell in panel.cells]


def _panel_row(cell: QualityCell, compared: QualityComparison | None) -> list[str]:
    return [
        task_text(cell.task, cell.language),
        short_level(cell.level),
        _right(cell),
        share(cell.share),
        _percent(cell.chance),
        _percent(None if cell.twin is None else cell.twin.value),
        verdict(cell, compared),
    ]


def verdict(cell: QualityCell, compared: QualityComparison | None) -> str:
    """In a few words: what is said of a level against the baseline; of a cell that stands alone, whether it can be
    judged."""
    if compared is None:
        if cell.gate == "measured":
            return say("quality_verdict.measured")
        return say("quality_verdict.cannot_tell", why=say(f"quality_why.{cell.gate}"))
    judged = compared.judged
    if judged.verdict == "cannot_tell":
        return say("quality_verdict.cannot_tell", why=say(f"quality_why.{judged.reason}"))
    return say(f"quality_verdict.{judged.verdict}", bound=judged.bound).replace(NO_BREAK, " ")


def twins_text(panel: QualityPanel) -> str:
    """What was answered of documents without the fact, by task: that none is right shows no guessing, as the right
    value is not there; that another value is named does. And facts that were said not to be there. Empty for none."""
    cells: dict[str, list[QualityCell]] = {}
    for cell in panel.cells:
        cells.setdefault(task_text(cell.task, cell.language), []).append(cell)
    told = []
    for name, here in cells.items():
        twins, named, refused = (sum(getattr(c, f) for c in here) for f in ("num_twins", "twin_named", "twin_refused"))
        if twins:
            told.append(say("quality.twins_of", what=name, twins=twins, named=named, refused=refused))
    lines = [say("quality.twins", told="; ".join(told))] if told else []
    wrongly = {name: sum(cell.refused for cell in here) for name, here in cells.items()}
    told = [say("quality.refused_of", what=name, count=count) for name, count in wrongly.items() if count]
    return " ".join([*lines, *([say("quality.refused", told="; ".join(told))] if told else [])])


def gates_text(panel: QualityPanel) -> str:
    """Why cells that stand alone cannot be judged, each reason once, and how many items would do; empty for none."""
    alone = [c for c in panel.cells if panel.comparison(c.task, c.language, c.level) is None and c.num_items]
    gates = dict.fromkeys(cell.gate for cell in alone if cell.gate != "measured")
    reasons = [
        say("quality.gate", word=say(f"quality_why.{gate}"), because=say(f"quality_share_because.{gate}"))
        for gate in gates
    ]
    needed = [
        say("quality.needed_of", what=task_text(c.task, c.language), least=c.needed.least_items, items=c.needed.items)
        for c in alone
        if c.gate == "too_few" and c.needed is not None and c.needed.items is not None
    ]
    return " ".join([*reasons, *([say("quality.needed_all", told="; ".join(needed))] if needed else [])])


def tasks_text(panel: QualityPanel) -> str:
    """What each task that was asked is, in a few words."""
    tasks = dict.fromkeys(cell.task for cell in panel.cells)
    known = [say("quality.is_task", task=t, what=say(f"quality_is.{t}")) for t in tasks if has_words(f"quality_is.{t}")]
    return " ".join(known)


def useful_text(cell: QualityCell) -> str:
    """The share right with the evidence in the prompt; what was right without it is a guess."""
    return _percent(None if cell.useful is None else cell.useful.value)


def thirds_text(cell: QualityCell) -> str:
    """The shares right at the head, in the middle and at the tail of documents, where facts stand in places."""
    known = [(name, found.value) for name, found in cell.thirds.items() if found.value is not None]
    return ", ".join(say(f"quality_third.{name}", share=_percent(value)) for name, value in known) or say("none")


# --- what was scored ----------------------------------------------------------------------------------------------

FIDELITY_HEADS = ("level", "kl", "interval", "flips", "perplexity", "verdict")


def fidelity_rows(panel: FidelityPanel) -> list[tuple[FidelityLevel, list[str]]]:
    """A row of FIDELITY_HEADS for each level."""
    rows = []
    for each in panel.levels:
        cell, before_after = _divergence(each), each.perplexities
        perplexity = say("none")
        if before_after is not None and each.verdict != "reference":
            before, after = (format_number(value, 2) for value in before_after)
            perplexity = say("quality.before_after", before=before, after=after)
        flips = f"{each.comparison.num_flips}/{len(each.comparison.positions)}"
        told = say(f"fidelity_verdict.{each.verdict}")
        texts, lost = each.comparison.num_items, len(each.comparison.lost)
        if texts and lost:
            told = say("quality.of_texts", told=told, texts=texts, of=texts + lost)
        rows.append((each, [short_level(each.level), cell.value, cell.interval, flips, perplexity, told]))
    return rows


def floors_text(panel: FidelityPanel) -> str:
    """What no setting had a part in, and why perplexity is no verdict."""

    def told(found: Estimate | None) -> str:
        cell = _nats(found)
        if found is None or found.value is None:
            return say("quality.not_asked_here")
        return f"{cell.value} ({cell.interval})" if cell.interval else cell.value

    if len(panel.references) < 2:
        return say("quality.floors", repeats=told(panel.floors.same_pattern), shape=told(panel.floors.batch_shape))
    parts = [
        say(
            "quality.floors_of",
            level=short_level(each.level),
            repeats=told(each.floors.same_pattern),
            shape=told(each.floors.batch_shape),
        )
        for each in panel.references
    ]
    return " ".join([*parts, say("quality.no_verdict")])


def other_baselines_text(effects: QualityEffects) -> str:
    """Which levels are held against another one than the design's baseline; empty where none is."""
    base = level_key(effects.levels[0].level)
    pairs = {level_key(each.level): (each.level, each.baseline_level) for each in effects.panel.comparisons}
    scored = () if effects.fidelity is None else effects.fidelity.levels
    pairs |= {level_key(each.level): (each.level, each.reference_level) for each in scored}
    told = [
        say("quality.held_against", level=short_level(level), base=short_level(other))
        for level, other in pairs.values()
        if level_key(other) not in (base, level_key(level))
    ]
    return say("quality.other_baseline", pairs="; ".join(told)) if told else ""


GAIN_HEADS = ("task", "level", "gain", "interval", "present", "absent", "change", "verdict")


def gain_rows(effects: QualityEffects) -> list[tuple[GainCell, list[str]]]:
    """A row of GAIN_HEADS for each level and language."""
    rows = []
    for each in (gain for level in effects.levels for gain in level.gains):
        cell, change = _nats(each.gain), _nats(each.change)
        changed = f"{change.value} ({change.interval})" if change.interval else change.value
        verdict_slug = each.verdict if each.change_verdict in (None, "cannot_tell") else each.change_verdict
        present, absent = _nats(each.present).value, _nats(each.absent).value
        what = [task_text("copy_gain", each.language), short_level(each.level)]
        told = say(f"gain_verdict.{verdict_slug}")
        rows.append((each, [*what, cell.value, cell.interval, present, absent, changed, told]))
    return rows


# Their tables have the number, its interval, what it is made of and the verdict.
_IN_TABLES = ("fidelity_loss", "fidelity_no_loss", "copy_gain_used", "copy_gain_not_used")


def is_in_tables(finding: Finding) -> bool:
    """Whether the tables say all of a finding, so that beside them no sentence repeats it. Texts that were lost have no
    column, and an answer that was not read has no share."""
    if finding.slug in _IN_TABLES:
        return not finding.values.get("lost")
    return finding.slug == "quality_share" and bool(finding.values["items"])
