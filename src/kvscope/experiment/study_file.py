"""Study files: what ``kvscope measure`` is asked, as a TOML file that a person can write, keep and send on.

``read_study_file`` reads one, ``plan_study_file`` plans it as well; ``study_text`` writes what a planned study comes
to, every field explained. A file that was written and is run is the same study: the same trials with the same ids.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvscope.errors import (
    BadDesign,
    BadStudyFile,
    KvscopeError,
    MalformedFile,
    ModelError,
    ModelNotFound,
    UnknownName,
    UsageError,
)
from kvscope.experiment.asked import FIELDS, Asked, default_of, differing
from kvscope.experiment.asked_fields import SAYS, Table, read_value
from kvscope.experiment.design import REQUEST_FACTORS as _REQUESTS
from kvscope.experiment.plan import Planned, plan
from kvscope.experiment.quality_asked import TASK_FACTOR
from kvscope.experiment.retrieval_asked import is_bundled
from kvscope.experiment.study_lines import StudyLines
from kvscope.experiment.toml_text import commented, toml_value

_TABLES: tuple[Table, ...] = ("held", "factors", "settings")
# Tables whose names are the person's own (an engine's settings).
_FREE: tuple[Table, ...] = ("factors", "settings")
# Errors of planning that are about what a study asks.
_OF_WHAT_IS_ASKED = (UsageError, BadDesign, UnknownName, ModelNotFound, MalformedFile)
_TITLES = {
    "held": "What every trial has equal. A list of two or more values is a second factor (set grid = true).",
    "factors": "The two factors of the design grid, each with its values, the baseline first.",
    "settings": "Engine settings, by the engine's own names, for every trial.",
}


def read_study_file(path: str | Path) -> tuple[Asked, ...]:
    """The studies of a file, at least one, in its order. Paths in it are relative to the file. Raises BadStudyFile,
    which names the file and the line."""
    file = Path(path)
    studies, lines = _studies(file)
    return tuple(_study(study, file, lines, number) for number, study in enumerate(studies))


def plan_study_file(path: str | Path, where: Mapping[str, Any] | None = None) -> list[Planned]:
    """The studies of a file, planned. ``where``: fields that stand above what the file says of where and how it runs.
    Raises as ``read_study_file`` and ``plan``; what contradicts itself is named with the file and its study's line."""
    _, lines = _studies(Path(path))
    planned = []
    for number, asked in enumerate(read_study_file(path)):
        whole = replace(asked, **(where or {}))
        try:
            planned.append(replace(plan(whole), source=(str(path), lines.of_study(number))))
        except (UsageError, ModelError) as error:  # planning reads no model: of files, only a text of one's own
            if type(error) not in _OF_WHAT_IS_ASKED:
                raise
            line = _line_of_error(error, asked, where or {}, lines, number)
            raise BadStudyFile(str(path), line, error.message.rstrip("."), hint=error.hint) from error
    return planned


def _line_of_error(
    error: KvscopeError, asked: Asked, where: Mapping[str, Any], lines: StudyLines, number: int
) -> int | None:
    """The line of the first value without which the study can be planned, else of one without which something else is
    said of it; that of the study where there is no such value."""
    says_other = None
    for without, table, name in _one_left_out(asked):
        line = lines.of_key(number, name, None if table == "study" else table)
        try:
            plan(replace(without, **where))
        except KvscopeError as other:
            if says_other is None and other.message != error.message:
                says_other = line
        else:
            return line
    return lines.of_study(number) if says_other is None else says_other


def _one_left_out(asked: Asked) -> Iterator[tuple[Asked, Table, str]]:
    """What was asked without one of its values; the value's table and name."""
    for name, value in differing(asked).items():
        table = SAYS[name].table
        if table not in _FREE:
            yield replace(asked, **{name: default_of(FIELDS[name])}), table, name
            continue
        for each in value:
            less: dict[str, Any] = {table: {x: given for x, given in value.items() if x != each}}
            yield replace(asked, **less), table, each


def _not_toml(file: Path, text: str, error: Exception) -> BadStudyFile:
    """[study] is one study; where there are several, TOML has [[study]] for each of them."""
    lines = StudyLines(text)
    if lines.has_both_headers:
        second = lines.of_study(1)
        return BadStudyFile(
            str(file), second, "another study begins, after one that has [study]", hint="Begin each with [[study]]."
        )
    return BadStudyFile(str(file), None, f"it is not TOML: {error}", hint="See docs/reference/study-files.md.")


def _studies(file: Path) -> tuple[list[Mapping[str, Any]], StudyLines]:
    text = _read(file)
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _not_toml(file, text, error) from None
    lines = StudyLines(text)
    others = sorted(content.keys() - {"study"})
    if others:
        raise _unknown(file, lines.of_key(None, others[0]), others[0], ["study"])
    studies = content.get("study", [])
    studies = studies if isinstance(studies, list) else [studies]
    if not studies or not all(isinstance(study, dict) for study in studies):
        raise BadStudyFile(
            str(file), None, "there is no study in it", hint='Begin it with [study] and design = "input_length".'
        )
    return studies, lines


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")  # some editors begin a file with a mark
    except OSError as error:
        raise BadStudyFile(str(file), None, f"it cannot be read: {error.strerror}", hint="Check the path.") from error
    except UnicodeDecodeError as error:
        raise BadStudyFile(
            str(file), None, f"it is not UTF-8 (byte {error.start})", hint="Save it as UTF-8 text."
        ) from None


def _study(study: Mapping[str, Any], file: Path, lines: StudyLines, number: int) -> Asked:
    values: dict[str, Any] = {}
    for table, name, value in _entries(study, file, lines, number):
        line = lines.of_key(number, name, None if table == "study" else table)
        known = [each for each, says in SAYS.items() if says.table == table]
        if table not in _FREE and name not in known:
            raise _unknown(file, line, name, [*known, *(_TABLES if table == "study" else ())])
        if value == []:
            raise BadStudyFile(
                str(file), line, f"{name} is an empty list", hint="Give it a value, or leave the line out."
            )
        try:
            if table in _FREE:
                values[table] = {**values.get(table, {}), **read_value(table, {name: value})}
            else:
                values[name] = read_value(name, value)
        except BadDesign as error:
            raise BadStudyFile(str(file), line, error.message.rstrip("."), hint=error.hint) from None
    if "design" not in values:
        raise BadStudyFile(
            str(file), lines.of_study(number), "a study has no design", hint='Add a line like design = "input_length".'
        )
    return _with_paths(Asked(**values), file.parent)


def _entries(study: Mapping[str, Any], file: Path, lines: StudyLines, number: int) -> Iterator[tuple[Table, str, Any]]:
    """Every value of a study: its table, its name."""
    for name, value in study.items():
        table = next((each for each in _TABLES if each == name), None)
        if table is None:
            yield "study", name, value
        elif not isinstance(value, dict):
            raise BadStudyFile(
                str(file),
                lines.of_key(number, name),
                f"{name} is {value!r}; a table was expected",
                hint=f"Write [study.{name}], and its values below it.",
            )
        else:
            for each, inner in value.items():
                yield table, each, inner


def _unknown(file: Path, line: int | None, name: str, known: Sequence[str]) -> BadStudyFile:
    other = UnknownName("key", name, known)
    return BadStudyFile(str(file), line, f"there is no key called {name!r} here", hint=other.hint)


def _with_paths(asked: Asked, folder: Path) -> Asked:
    """Paths relative to the file: of texts and documents always, of the model where it is one that is there, or begins
    as one."""
    paths, model = _own_paths(asked), asked.model
    if model is not None and (model.startswith(("./", "../")) or _exists(folder / model)):
        model = str(folder / model)
    seen: dict[str, Any] = {name: str(folder / path) for name, path in paths.items()}
    return replace(asked, model=model, **seen)


def _own_paths(asked: Asked) -> dict[str, str]:
    """Texts, documents and questions of one's own, by field."""
    given = {"text": asked.text, "documents": asked.documents, "questions": asked.questions}
    return {name: path for name, path in given.items() if path is not None and not is_bundled(path)}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def study_text(studies: Sequence[Planned], out_path: str | Path) -> str:
    """A study file with everything that planned studies come to, to be written at ``out_path``."""
    return "\n".join(_study_text(each, Path(out_path), is_one=len(studies) == 1) for each in studies)


def _study_text(planned: Planned, out_path: Path, *, is_one: bool) -> str:
    kind, asked = planned.design.kind, _written(complete(planned), out_path.parent)
    head = [kind.question, f"It varies {' and '.join(factor.name for factor in planned.design.factors)}. {kind.says}"]
    head += [f"Held fixed: {each}" for each in kind.holds]
    head += [f"What could mislead: {each}" for each in kind.confounders]
    head.append(f"Run it: kvscope measure {out_path.name}")
    lines = [*(line for part in head for line in commented(part)), "", "[study]" if is_one else "[[study]]"]
    lines += [line for name in FIELDS if SAYS[name].table == "study" for line in _field_lines(asked, name)]
    for table in _TABLES:
        lines += ["", *commented(_TITLES[table])]
        lines.append(f"[study.{table}]")
        if table in _FREE:
            lines += _free_lines(getattr(asked, table), table)
        else:
            lines += [line for name in FIELDS if SAYS[name].table == table for line in _field_lines(asked, name)]
    return "\n".join(lines) + "\n"


def _field_lines(asked: Asked, name: str) -> list[str]:
    """A field explained; one that is not set is there as an example, behind a #."""
    says, value = SAYS[name], getattr(asked, name)
    explained = commented(f"{says.help} ({says.expected})")
    is_set = (
        value is not None and value != () and (asked.until is not None or name not in ("until_metric", "most_repeats"))
    )
    if not is_set:
        return ["", *explained, f"# {name} = {toml_value(says.like)}"]
    return ["", *explained, f"{name} = {toml_value(_plain(name, value))}"]


def _plain(name: str, value: Any) -> Any:
    """As a person would write it: one value alone, where the field takes several and is not a list of levels."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 and name != "levels" else value


def _free_lines(values: Mapping[str, Any], table: Table) -> list[str]:
    if not values:
        return [f"# {name} = {toml_value(value)}" for name, value in SAYS[table].like.items()]
    return [f"{toml_value(name, is_key=True)} = {toml_value(_plain(name, each))}" for name, each in values.items()]


def _written(asked: Asked, folder: Path) -> Asked:
    """With its paths as seen from the folder of the file."""
    paths, model = _own_paths(asked), asked.model
    if model is not None and not model.startswith("pkg:") and _exists(Path(model)):
        model = _seen_from(folder, model)
    seen: dict[str, Any] = {name: _seen_from(folder, path) for name, path in paths.items()}
    return replace(asked, model=model, **seen)


def _seen_from(folder: Path, path: str) -> str:
    if Path(path).is_absolute():
        return path
    seen = os.path.relpath(path, folder)
    return seen if seen.startswith("..") else f"./{seen}"


def complete(planned: Planned) -> Asked:
    """What was asked, with everything filled in that the design chose by itself: planned again, it is the same."""
    asked, design = planned.asked, planned.design
    held = design.held
    second = {factor.name: factor.levels for factor in design.factors[1:]}
    own = {factor.name for factor in design.factors} if asked.factors else {design.factor.name}

    is_grid = bool(asked.factors)

    def of(name: str, value: Any) -> tuple[Any, ...]:
        if name == "rate_per_s" == design.factor.name and not is_grid:
            return design.factor.levels  # the values of concurrency at rates stand where a rate that is held would
        return () if name in own else second.get(name, () if value is None else (value,))

    settings = {name: (value,) for name, value in held.settings.items() if value is not None}
    varied = {name: levels for name, levels in second.items() if name not in _REQUESTS}
    is_closed_load = held.is_load and held.arrival == "closed"
    return replace(
        asked,
        levels=None if is_grid or design.factor.name == "rate_per_s" else design.factor.levels,
        repeats=design.repeats,
        grid=design.is_grid,
        input_tokens=of("prompt_tokens", held.prompt_tokens if held.retrieval is None else None),
        output_tokens=of("output_tokens", held.output_tokens),
        requests=None if held.is_conversation else held.requests,
        concurrency=of("concurrency", held.concurrency if is_closed_load else None),
        rate_per_s=of("rate_per_s", held.rate_per_s),
        arrival=None if held.arrival == "closed" else held.arrival,
        shared_prefix_tokens=held.shared_prefix_tokens or None,
        reuse_prefix=held.reuse_prefix,
        quality=None if held.quality is None or TASK_FACTOR in own else held.quality.task,
        retrieval_method=None if held.retrieval is None else held.retrieval.method,
        passage_tokens=None if held.retrieval is None else held.retrieval.passage_tokens,
        settings={**settings, **({} if is_grid else varied)} if planned.choice.takes_settings else {},
    )
