"""What an engine holds besides a model's weights, caches and buffers, measured once on a tiny model and kept.

Two tiny models, each run after prompts of a few lengths: one with a vocabulary of 257 tokens and one layer, for each
engine build and machine; and one with the vocabulary and the number of layers of the model that is measured. Their
caches and buffers are taken off by the same rules as anyone's. What is left is the engine's, and is recorded with every
attempt that it explains.

The answers are kept in ``calibration`` of the cache folder (KVSCOPE_CACHE), a file for each; without it they are
measured again. KVSCOPE_CALIBRATION=off (no, false, 0) measures none; on (yes, true, 1), as without it, does.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from kvscope.analysis.attribute import CALIBRATED, own_memory_bytes
from kvscope.analysis.calibrated_terms import WORK
from kvscope.analysis.calibration import OwnMemory, tiny_model
from kvscope.analysis.calibration_record import (
    ATTACHED,
    NOT_CALIBRATED,
    NOT_RUN,
    OTHER_ENGINE,
    OWN_COMMAND,
    SWITCHED_OFF,
)
from kvscope.dtypes import dtype_named
from kvscope.engine.base import Engine
from kvscope.errors import UsageError
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.identity import utc_now
from kvscope.experiment.machine import machine_facts, machine_id
from kvscope.experiment.subject import Subject, predict_condition
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.model.package import cache_folder
from kvscope.model.spec import ModelSpec
from kvscope.model.tiny_config import widths_of, write_tiny_config
from kvscope.model.tiny_gguf import write_tiny_gguf
from kvscope.predict.work_memory import activation_bytes_per_token, query_heads
from kvscope.record.rows import MEASURED_OUTCOMES, Json, TrialResult, TrialRow

SWITCH = "KVSCOPE_CALIBRATION"
# Raised when what is measured, or how, changes: what was kept before is then measured again.
VERSION = 3
OUTPUT_TOKENS = 16
MOST_KEPT_BYTES = 1024 * 1024
_SETTINGS: Mapping[str, Mapping[str, Json]] = {
    "llama.cpp": {"n_ctx": 4096, "cache_ram_mib": 0},
    "transformers": {"random_weights": True, "dtype": "float32"},
}
# Prompts after which the engine's own memory is read, each in a process of its own: llama.cpp's server keeps more of
# its own the longer the prompt was, and so do torch's matrix products, up to a length.
_PROMPTS: Mapping[str, tuple[int, ...]] = {"llama.cpp": (64, 512, 2048), "transformers": (64, 512)}
# Of the measured model's own settings, those on which the engine's own memory depends.
_THREADS = ("n_threads", "n_threads_batch", "num_threads", "attn_implementation", "dtype")

_OFF, _ON = ("off", "no", "false", "0"), ("on", "yes", "true", "1", "")

Run = Callable[[Subject, Trial], TrialResult]
Tell = Callable[[], None]


def is_switched_off() -> bool:
    """What KVSCOPE_CALIBRATION says. Raises UsageError for a word that it does not know."""
    word = os.environ.get(SWITCH, "").strip().lower()
    if word in _OFF:
        return True
    if word not in _ON:
        raise UsageError(f"{SWITCH} is {word[:40]!r}.", hint=f"Set {SWITCH} to on or off, or leave it out.")
    return False


def _nothing() -> None:
    """Nobody is told."""


class Calibrations:
    """The calibrations of one subject. Each is asked for once, so that a tiny model that does not run here is not tried
    again before every trial."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._found: dict[str, Mapping[str, Json]] = {}

    def of(self, settings: Mapping[str, Json], tell: Tell = _nothing) -> Mapping[str, Json]:
        """See ``calibration_for``."""
        key = repr([settings.get(name) for name in _THREADS])
        if key not in self._found:
            self._found[key] = calibration_for(self._subject, settings, tell=tell)
        return self._found[key]


def calibration_for(
    subject: Subject, settings: Mapping[str, Json], *, run: Run | None = None, tell: Tell = _nothing
) -> Mapping[str, Json]:
    """The calibration that explains trials of ``subject``, as it is recorded; measured now where it is not kept, and
    ``tell`` is called before. Where there is none: why (``calibration_record.REASONS``). Raises UsageError as
    ``is_switched_off``."""
    reason = why_none(subject)
    if reason is not None:
        return {NOT_CALIBRATED: reason}
    used, runs, gguf = _used(subject, settings), _told_once(run or _run, tell), _gguf_of(subject)
    try:
        work = _work(subject, used)
        fixed = _part(subject, used, None, runs)
        same = None if gguf is None else _part(subject, used, gguf, runs)
    except Exception:  # whatever an engine makes of the tiny model: it is measured all the same, and this is recorded
        return {NOT_CALIBRATED: NOT_RUN}
    if fixed is None or (gguf is not None and same is None):
        return {NOT_CALIBRATED: NOT_RUN}
    return {"fixed": fixed, "vocabulary": same, WORK: work}


def why_none(subject: Subject) -> str | None:
    """Why no tiny model is run for trials of ``subject``; None where one is. Raises as ``is_switched_off``."""
    choice = subject.choice
    if is_switched_off():
        return SWITCHED_OFF
    if choice.is_attached:
        return ATTACHED
    if choice.name not in _SETTINGS:
        return OTHER_ENGINE
    # A program of one's own loads its model at once: there is no start to take off.
    return OWN_COMMAND if choice.command is not None else None


def _used(subject: Subject, settings: Mapping[str, Json]) -> dict[str, Json]:
    used = {**_SETTINGS[subject.choice.name], **{name: settings[name] for name in _THREADS if name in settings}}
    if subject.choice.name == "transformers" and "dtype" not in settings and subject.model and subject.model.dtype:
        used["dtype"] = subject.model.dtype
    return used


def _told_once(run: Run, tell: Tell) -> Run:
    """``run``, and ``tell`` before the first time."""
    told: list[bool] = []

    def running(subject: Subject, trial: Trial) -> TrialResult:
        if not told:
            told.append(True)
            tell()
        return run(subject, trial)

    return running


def _work(subject: Subject, settings: Mapping[str, Json]) -> Mapping[str, int]:
    """Facts of the measured model from which the memory follows that a prompt takes while it is computed."""
    if subject.model is None or not subject.model.layers:
        return {}
    if subject.choice.name == "llama.cpp":
        return {"query_heads": query_heads(subject.model)}
    per_token = activation_bytes_per_token(subject.model, dtype_named(str(settings["dtype"])).block_bytes)
    return {} if per_token is None else {"activation_bytes_per_token": per_token}


def _widths(subject: Subject) -> Mapping[str, int]:
    """As wide as the measured model's are the layers of the tiny one on transformers."""
    if subject.choice.name != "transformers" or subject.model is None:
        return {}
    return widths_of(subject.model)


def _gguf_of(subject: Subject) -> ModelSpec | None:
    """The measured model where its vocabulary can be taken from its file."""
    model = subject.model
    is_file = model is not None and model.file_path is not None and model.file_path.endswith(".gguf")
    return model if is_file and subject.choice.name == "llama.cpp" else None


def _facts(subject: Subject, settings: Mapping[str, Json], vocabulary_of: ModelSpec | None) -> dict[str, Json]:
    """What tells one tiny model's memory from another's."""
    return {
        "version": VERSION,
        "engine": subject.choice.name,
        "engine_version": subject.version,
        "engine_build": subject.build,
        "machine_id": machine_id(machine_facts()),
        "settings": dict(settings),
        "vocabulary_of": None if vocabulary_of is None else vocabulary_of.fingerprint,
        "widths": dict(_widths(subject)),
    }


def _path(facts: Mapping[str, Json]) -> Path:
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "calibration" / f"{key}.json"


def _part(
    subject: Subject, settings: Mapping[str, Json], vocabulary_of: ModelSpec | None, run: Run
) -> Mapping[str, Json] | None:
    """One tiny model: as it is kept, or measured now."""
    facts = _facts(subject, settings, vocabulary_of)
    path = _path(facts)
    kept = _kept(path, facts)
    if kept is not None:
        return kept
    found = _measured(subject, settings, vocabulary_of, run)
    if found is None or tiny_model({**facts, **found}) is None:
        return None
    part = {**facts, **found}
    with contextlib.suppress(OSError):  # measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(part), encoding="utf-8")
        fresh.replace(path)
    return part


def _kept(path: Path, facts: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """What was kept of one tiny model; None where nothing was, or anything of it is not what its name says."""
    try:
        found = json.loads(path.read_bytes()[:MOST_KEPT_BYTES])
    except (OSError, ValueError, RecursionError):
        return None
    return found if tiny_model(found) is not None and {name: found.get(name) for name in facts} == facts else None


def _measured(
    subject: Subject, settings: Mapping[str, Json], vocabulary_of: ModelSpec | None, run: Run
) -> Mapping[str, Json] | None:
    with TemporaryDirectory(prefix="kvscope-tiny-") as folder:
        model = _tiny_model(Path(folder), subject, vocabulary_of)
        tiny = Subject(
            model=model, choice=subject.choice, version=subject.version, build=subject.build, served=None, counter=None
        )
        after = {tokens: _own(tiny, _trial(settings, tokens), run) for tokens in _PROMPTS[subject.choice.name]}
    if any(each is None for each in after.values()):
        return None
    rows = [(tokens, each) for tokens, each in after.items() if each is not None]
    return {
        "measured_at": utc_now(),
        "layers": len(model.layers),
        "vocabulary_tokens": model.vocab_size,
        "moments": {
            "loaded": _row(rows[0][1]["loaded"]),
            "after_request": [{"prompt_tokens": tokens, **_row(each["after_request"])} for tokens, each in rows],
        },
    }


def _own(tiny: Subject, trial: Trial, run: Run) -> Mapping[str, OwnMemory] | None:
    """Moment → the engine's own memory then; None where the tiny model did not run, or memory could not be read."""
    assert tiny.model is not None  # it was just made
    result = run(tiny, trial)
    if result.trial.outcome == "interrupted":
        raise KeyboardInterrupt  # whoever stops a tiny model stops the study
    if result.trial.outcome not in MEASURED_OUTCOMES:
        return None
    prediction = predict_condition(tiny.model, tiny.choice, trial.condition, version=tiny.version).to_dict()
    moments = {phase: own_memory_bytes(result, prediction, phase) for phase in CALIBRATED}
    found = {phase: each for phase, each in moments.items() if each is not None}
    return found if len(found) == len(moments) else None


def _row(own: OwnMemory) -> Mapping[str, int | None]:
    return {
        "own_bytes": own.own,
        "kept_bytes": own.kept,
        "stacks_bytes": own.stacks,
        "library_data_bytes": own.library_data,
        "library_code_bytes": own.library_code,
        "python_bytes": own.python,
    }


def _tiny_model(folder: Path, subject: Subject, vocabulary_of: ModelSpec | None) -> ModelSpec:
    if subject.choice.name == "transformers":
        write_tiny_config(folder, _widths(subject))
        return load_model(str(folder))
    path = folder / "kvscope-tiny.gguf"
    if vocabulary_of is None:
        write_tiny_gguf(path)
    else:
        assert vocabulary_of.file_path is not None  # _gguf_of looked
        write_tiny_gguf(path, vocabulary_of=Path(vocabulary_of.file_path), num_layers=len(vocabulary_of.layers))
    return load_model(str(path))


def _trial(settings: Mapping[str, Json], prompt_tokens: int) -> Trial:
    condition = Condition(settings=dict(settings), prompt_tokens=prompt_tokens, output_tokens=OUTPUT_TOKENS)
    return Trial(
        trial_id="calibration",
        role="measured",
        levels={},
        level=prompt_tokens,
        repeat=0,
        block=0,
        position=0,
        condition=condition,
    )


def _run(subject: Subject, trial: Trial) -> TrialResult:
    def create() -> Engine:
        return subject.create(trial.condition.settings)

    row = TrialRow(
        trial_id=trial.trial_id,
        attempt=1,
        design_id="calibration",
        run_id="calibration",
        role=trial.role,
        levels=dict(trial.levels),
        level=trial.level,
        repeat=trial.repeat,
        block=trial.block,
        position=trial.position,
        started_at=utc_now(),
        settings=dict(trial.condition.settings),
    )
    return run_trial(create, trial, row, seed=0, now=time.perf_counter, sleep=time.sleep)
