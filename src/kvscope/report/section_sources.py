"""11. Definitions and sources: the words of the page in every language, what was measured on what, how to repeat it."""

from collections.abc import Collection
from typing import Any

from kvscope import __version__
from kvscope.analysis.study import Study
from kvscope.language import LANGUAGES
from kvscope.report.blocks import Block, Column, Fold, Row, Section, Table, row
from kvscope.report.definitions import TERMS, Term, anchor, meaning, names_by_language
from kvscope.report.left_out_text import repeats_text
from kvscope.report.numbers import mib_cell, number_cell
from kvscope.report.private_paths import without_home
from kvscope.report.section_time import level_text
from kvscope.report.section_trust import clipped
from kvscope.report.words import name_of, say


def sources_section(study: Study, prefix: str, used: Collection[str] | None = None) -> Section:
    """Section 11. ``prefix`` begins its anchors. ``used``: slugs of the terms that are defined; None: all."""
    blocks: list[Block] = [_facts(study)]
    blocks += [_designs(study)] if study.designs else []
    blocks += [_machine(study)] if study.machine else []
    commands = dict.fromkeys(run.command for run in study.runs)
    blocks += [Fold(summary=say("summary.commands"), text=without_home("\n".join(commands)))] if commands else []
    lines = engine_lines(study)
    if lines:
        text = without_home("\n".join(lines))
        blocks.append(Fold(summary=say("summary.engine_lines"), text=text, anchor=f"{prefix}engine-lines"))
    blocks.append(definitions_table(prefix, used))
    return Section(slug="sources", title=say("title.sources"), blocks=tuple(blocks))


def engine_lines(study: Study) -> tuple[str, ...]:
    """What the engine itself said of its buffers: in the attempt that the first screen shows, else in the first."""
    main = study.main.attempt.result.reported if study.main is not None else ()
    lines = dict.fromkeys(reported.line for reported in main if reported.line)
    return tuple(lines or dict.fromkeys(r.line for a in study.attempts[:1] for r in a.result.reported))


def definitions_table(prefix: str, used: Collection[str] | None = None) -> Table:
    """Each term, or each of those ``used``, with its names in every language side by side, and what it means."""
    titles = [Column(title=say(f"col.in_{language}")) for language in LANGUAGES]
    return Table(
        caption=say("caption.definitions"),
        columns=(*titles, Column(title=say("col.meaning"))),
        rows=tuple(_definition(term, prefix) for term in TERMS if used is None or term.slug in used),
    )


def _definition(term: Term, prefix: str) -> Row:
    names = (", ".join(each) for each in names_by_language(term).values())
    return row(*names, meaning(term), anchor=anchor(term, prefix))


def _facts(study: Study) -> Table:
    model = (study.prediction or {}).get("model") or {}
    rules = ((study.prediction or {}).get("scenario") or {}).get("engine_version")
    facts = (
        ("model", study.model_name),
        ("model_source", study.model_source),
        ("fingerprint", study.model_fingerprint),
        ("architecture", str(model.get("architecture") or say("unknown"))),
        ("parameters", number_cell(model.get("parameters"))),
        ("trained_context", number_cell(model.get("trained_context_tokens"))),
        ("engine", study.engine),
        ("engine_version", study.engine_version),
        ("engine_build", study.engine_build),
        ("rules", str(rules or say("unknown"))),
        ("kvscope_version", ", ".join(dict.fromkeys(r.kvscope_version for r in study.runs)) or __version__),
        ("machine_id", study.machine_id),
        ("started", ", ".join(r.started_at for r in study.runs)),
    )
    return Table(
        caption=say("caption.facts" if study.attempts else "caption.facts_predicted"),
        columns=(Column(title=say("col.fact")), Column(title=say("col.value"))),
        rows=tuple(row(say(f"fact.{name}"), clipped(value)) for name, value in facts if value),
    )


def _designs(study: Study) -> Table:
    names = ("design", "factor", "levels", "repeats", "seed", "settings")
    return Table(
        caption=say("caption.designs"),
        columns=tuple(Column(title=say(f"col.{name}"), is_number=name in ("repeats", "seed")) for name in names),
        rows=tuple(
            row(
                d.design.name,
                name_of("factor", d.design.factor),
                ", ".join(level_text(level) for level in d.design.levels),
                repeats_text(d),
                str(d.design.seed),
                level_text(d.design.settings),
            )
            for d in study.designs
        ),
        summary=say("summary.designs"),
    )


def _machine(study: Study) -> Table:
    return Table(
        caption=say("caption.machine"),
        columns=(Column(title=say("col.fact")), Column(title=say("col.value"))),
        rows=tuple(
            row(name_of("machine", str(name)), clipped(_machine_value(str(name), value)))
            for name, value in study.machine.items()
        ),
        summary=say("summary.machine"),
    )


def _machine_value(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or say("none")
    if value is None:
        return say("none")
    if name in ("memory_total_bytes", "swap_total_bytes", "memory_limit_bytes"):
        return f"{mib_cell(value)} MiB"
    return level_text(value)
