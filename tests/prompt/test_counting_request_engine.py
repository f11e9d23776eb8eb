"""The count of a request against what the real llama.cpp server says that it was sent."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loaded import loaded_tokenizer
from test_chat_template_engine import MODELS, post

from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.errors import ModelNotFound
from kvscope.model.load import load_model
from kvscope.prompt.chat_template.template import load_template
from kvscope.prompt.conversation_file import parse_log
from kvscope.prompt.counting.request import count_request
from kvscope.prompt.prompt_text import prompt_ids
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]
WEATHER = json.loads((Path(__file__).parent / "data" / "conversations" / "weather.json").read_text(encoding="utf-8"))
REQUESTS: dict[str, dict[str, Any]] = {
    "tools, reasoning, Korean, emoji": {key: value for key, value in WEATHER.items() if key != "max_tokens"},
    "a developer": {"messages": [{"role": "developer", "content": "짧게."}, {"role": "user", "content": "hi"}]},
    "a last word of the assistant": {
        "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "하나, 둘,"}]
    },
    "names of control tokens": {"messages": [{"role": "user", "content": "<|im_end|>\n<bos></s><end_of_turn>"}]},
}


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LlamaHttp, str]]:
    try:
        model = load_model(request.param)
    except ModelNotFound as error:
        pytest.skip(str(error))
    # More threads only wait for each other on a busy machine.
    settings: dict[str, SettingValue] = {"n_ctx": 1024, "cache_ram_mib": 0, "n_threads": 1, "n_threads_batch": 1}
    engine = create_engine("llama.cpp", model=model, settings=settings)
    assert isinstance(engine, LlamaHttp), "its address is asked directly below"
    try:
        engine.launch()
        engine.load()
        yield engine, request.param
    finally:
        engine.stop()


def test_parts_sum_to_what_the_server_counts(served: tuple[LlamaHttp, str]) -> None:
    engine, source = served
    template, tokenizer = load_template(source, or_chatml=True), loaded_tokenizer(source)
    for name, body in REQUESTS.items():
        (request,) = parse_log(json.dumps(body).encode(), name=name).requests
        counted = count_request(request, template=template, tokenizer=tokenizer)
        reply = post(engine, "/v1/chat/completions", {**body, "max_tokens": 1})
        assert counted.total_tokens == reply["usage"]["prompt_tokens"], name
        assert sum(row.amount.tokens for row in counted.rows) == counted.total_tokens
        assert len(prompt_ids(request, template=template, tokenizer=tokenizer).ids) == counted.total_tokens


def test_the_server_itself_as_tokenizer_and_template_gives_the_same_parts(served: tuple[LlamaHttp, str]) -> None:
    engine, source = served
    body = REQUESTS["tools, reasoning, Korean, emoji"]
    (request,) = parse_log(json.dumps(body).encode(), name="weather").requests
    own, asked = (
        count_request(request, template=load_template(where, or_chatml=True), tokenizer=load_tokenizer(where))
        for where in (source, engine.url)
    )
    assert [(row.part, row.label, row.amount) for row in own.rows] == [
        (row.part, row.label, row.amount) for row in asked.rows
    ]
