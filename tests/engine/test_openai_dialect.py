"""Which field a server refuses, by bodies as servers send them."""

import json

import pytest

from kvscope.engine.openai_dialect import refused_field
from kvscope.engine.server_errors import reply_error

# OpenAI's and Azure's from their documents and reports; FastAPI's is pydantic 2's, of a model with extra="forbid".
FASTAPI = {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted",
                       "input": 0}]}  # fmt: skip
OPENAI = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
TEMPERATURE = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."


def error(message: str, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


@pytest.mark.parametrize(
    ("status", "body", "field"),
    [
        (422, FASTAPI, "seed"),
        (400, FASTAPI, "seed"),
        (400, error("Unrecognized request argument supplied: seed"), "seed"),
        (400, error(OPENAI, "max_tokens"), "max_tokens"),
        (400, error(OPENAI), "max_tokens"),
        (400, error(TEMPERATURE), "temperature"),
        (400, error("property 'stream_options' is unsupported"), "stream_options"),
        (422, {"message": "unknown field `seed`, expected one of `model`, `messages`"}, "seed"),
        # Nothing of this is a field that is not known.
        (400, error("max_tokens is too large: 100. This model supports at most 50 completion tokens."), None),
        (400, error("This model's maximum context length is 200 tokens. However, you requested 300 tokens (40 in the "
                    "messages, 260 in max_tokens): not supported."), None),
        (400, error("Unrecognized request argument supplied: reseeded"), None),
        (500, FASTAPI, None),
    ],
)  # fmt: skip
def test_the_field_that_is_refused(status: int, body: dict[str, object], field: str | None) -> None:
    assert refused_field(reply_error(status, json.dumps(body).encode())) == field
