"""What a person can ask of ``kvscope measure``: one definition, which the command line, ``kvscope.measure()`` and study
files all fill. What each field is, ``asked_fields`` says."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from kvscope.experiment.asked_fields import read_value
from kvscope.experiment.design import Arrival, Language, Level
from kvscope.experiment.quality_asked import AskedForm
from kvscope.quality.retrieval.index import Method
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One study as it was asked for. A field that holds several values (``input_tokens``, ``output_tokens``,
    ``concurrency``, ``rate_per_s``, a setting) is a second factor, for which ``grid`` has to be set.

    Raises BadDesign for a value of the wrong type. Whether it all can be measured, ``plan`` tells."""

    design: str
    engine: str = "llama.cpp"
    model: str | None = None
    engine_command: str | None = None
    url: str | None = None
    served_model: str | None = None
    pid: int | None = None
    api_key_env: str | None = None
    port: int = 0
    levels: tuple[Level, ...] | None = None
    repeats: int | None = None
    seed: int = 0
    grid: bool = False
    until: float | None = None
    until_metric: str = "ttft_s"
    most_repeats: int = 50
    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    requests: int | None = None
    concurrency: tuple[int, ...] = ()
    rate_per_s: tuple[float, ...] = ()
    arrival: Arrival | None = None
    shared_prefix_tokens: int | None = None
    reuse_prefix: bool | None = None
    language: Language = "en"
    text: str | None = None
    key_percent: float | None = None
    quality: str | None = None
    quality_documents: int | None = None
    quality_form: AskedForm = "auto"
    quality_output_tokens: int | None = None
    quality_judge: str | None = None
    quality_judge_model: str | None = None
    documents: str | None = None
    questions: str | None = None
    retrieval_method: Method | None = None
    passage_tokens: int | None = None
    embeddings: str | None = None
    embeddings_model: str | None = None
    factors: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    settings: Mapping[str, tuple[SettingValue, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                value = default_of(each)
            if value is not None:
                object.__setattr__(self, each.name, read_value(each.name, value))


FIELDS: Mapping[str, "Field[Any]"] = {each.name: each for each in fields(Asked)}


def default_of(each: "Field[Any]") -> Any:
    """What a field is where nothing was asked."""
    if each.default_factory is not MISSING:
        return each.default_factory()
    return None if each.default is MISSING else each.default


def differing(asked: Asked) -> dict[str, Any]:
    """What was asked beyond the design's name and what is taken where nothing is asked, by field."""
    values = {name: getattr(asked, name) for name in FIELDS if name != "design"}
    return {name: value for name, value in values.items() if value != default_of(FIELDS[name])}
