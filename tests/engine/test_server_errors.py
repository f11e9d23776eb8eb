"""Error bodies as servers really sent them, each with where it was published, and what they mean."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from scripted_server import HEAD, Script, chunk, event, plain, scripted, token

from kvscope.engine.base import ChatRequest
from kvscope.engine.openai_http import get_text, stream_chat
from kvscope.engine.server_errors import is_error, reply_error, retry_after_s
from kvscope.errors import (
    EVIDENCE,
    ContextOverflow,
    EngineError,
    EngineModelError,
    EngineReplyError,
    EngineTimeout,
    InvalidSettings,
    OutOfMemory,
    RateLimited,
    ServerError,
)

PERMITTED = "Extra inputs are not permitted"
OLLAMA_034 = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "request (2622 tokens) exceeds the available context size (512 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 2622,
            "n_ctx": 512,
        }
    }
)

# (class, part of the message, status, body, source)
Body = dict[str, Any] | str
BODIES: list[tuple[type[EngineError], str, int, Body, str]] = [
    # --- the context is too small ------------------------------------------------------------------------------------
    (ContextOverflow, "has 1407 tokens; the engine's context holds 256", 500,
     {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing the context "
      "size or enable context shift", "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256}},
     "ggml-org/llama.cpp#15780"),
    (ContextOverflow, "has 14429 tokens", 400,
     {"error": {"code": 400, "message": "the request exceeds the available context size. try increasing the context "
      "size or enable context shift", "type": "exceed_context_size_error", "n_prompt_tokens": 14429, "n_ctx": 8192}},
     "oobabooga/textgen#7257"),
    (ContextOverflow, "try increasing it", 400,
     {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it",
      "type": "invalid_request_error"}}, "continuedev/continue#9797: llama.cpp without numbers"),
    (ContextOverflow, "4472 tokens", 400,
     {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested 4472 "
      "tokens (376 in the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
      "type": "BadRequestError", "param": None, "code": 400}, "instructlab/sdg#276: vLLM 0.5"),
    (ContextOverflow, "8 input tokens", 400,
     {"error": {"message": "This model's maximum context length is 2048 tokens. However, your request has 8 input "
      "tokens plus 2045 'max_tokens'. Please reduce one or the other. (parameter=input_tokens, max_tokens, "
      "value=(8, 2045))", "type": "BadRequestError", "param": "input_tokens, max_tokens", "code": 400}},
     "vllm-project/vllm#33425: vLLM 0.15"),
    (ContextOverflow, "-186", 400,
     {"object": "error", "message": "max_tokens must be at least 1, got -186.", "type": "BadRequestError",
      "param": None, "code": 400}, "vllm-project/vllm#4667: vLLM 0.4"),
    (ContextOverflow, "length 10127", 400,
     {"object": "error", "message": "The decoder prompt (length 10127) is longer than the maximum model length of "
      "8192. Make sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
      "type": "BadRequestError", "param": None, "code": 400}, "Gabesarch/grounded-rl#16: vLLM with pictures"),
    (ContextOverflow, "61709 tokens", 400,
     {"object": "error", "message": "The input (61709 tokens) is longer than the model's context length (40960 "
      "tokens).", "type": "BadRequestError", "param": None, "code": 400}, "QwenLM/Qwen3#1321: SGLang"),
    (ContextOverflow, "202941 tokens", 400,
     {"object": "error", "message": "Requested token count exceeds the model's maximum context length of 202752 "
      "tokens. You requested a total of 202941 tokens: 170941 tokens from the input messages and 32000 tokens for the "
      "completion.", "type": "BadRequestError", "param": None, "code": 400}, "anomalyco/opencode#25230: SGLang"),
    (ContextOverflow, "160062 tokens", 400,
     {"object": "error", "message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
      "type": "BadRequestError", "param": None, "code": 400}, "sgl-project/sglang#4048"),
    (ContextOverflow, "input length exceeds", 400, {"error": "the input length exceeds the context length"},
     "nano-step/nano-brain#208: Ollama"),
    (ContextOverflow, "has 2622 tokens; the engine's context holds 512", 400, {"error": OLLAMA_034},
     "Ollama 0.34 and 0.40, recorded: llama-server's body as a text"),
    (ContextOverflow, "Given: 4545", 422,
     {"error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 4545",
      "error_type": "validation"}, "meta-llama/llama#1103: TGI"),
    (ContextOverflow, "Given: 1244", 422,
     {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1244 `inputs` "
      "tokens and 1000 `max_new_tokens`", "error_type": "validation"},
     "huggingface/text-generation-inference#628"),
    (ContextOverflow, "111490 tokens", 400,
     {"error": "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with "
      "context length of only 32768 tokens, which is not enough."}, "lmstudio-ai/lmstudio-bug-tracker#546"),
    (ContextOverflow, "n_keep: 10247", 400,
     {"error": "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: "
      "10247 >= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter prompt."},
     "tinyhumansai/openhuman#3550: LM Studio"),
    (ContextOverflow, "4120 tokens", 400,
     {"error": {"message": "This model's maximum context length is 4097 tokens. However, you requested 4120 tokens "
      "(3120 in the messages, 1000 in the completion).", "type": "invalid_request_error", "param": "messages",
      "code": "context_length_exceeded"}}, "mckaywrigley/chatbot-ui#102: OpenAI"),
    (ContextOverflow, "too big", 400,
     {"error": {"message": "Your prompt is too big.", "type": "invalid_request_error", "param": None,
      "code": "context_length_exceeded"}}, "the code alone, whatever the words"),
    (ContextOverflow, "131134 tokens", 400,
     {"error": {"message": "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens "
      "(122942 in the messages, 8192 in the completion).", "type": "invalid_request_error", "param": None,
      "code": "invalid_request_error"}}, "evalstate/fast-agent#621: DeepSeek"),
    (ContextOverflow, "full while it worked", 500,
     {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
     "llama.cpp, server-context.cpp: the cells that slots share"),
    # --- memory ------------------------------------------------------------------------------------------------------
    (OutOfMemory, "CUDA out of memory", 424,
     {"error": "Request failed during generation: Server error: CUDA out of memory. Tried to allocate 16.00 MiB (GPU "
      "0; 22.20 GiB total capacity)", "error_type": "generation"},
     "huggingface/text-generation-inference#653, in the form of #369"),
    (OutOfMemory, "cudaMalloc failed", 500,
     {"error": {"message": "llama-server process has terminated: exit status 1: cudaMalloc failed: out of memory\n"
      "alloc_tensor_range: failed to allocate CUDA0 buffer of size 5064192000\nerror loading model: unable to allocate "
      "CUDA0 buffer", "type": "api_error", "param": None, "code": None}}, "Ollama's /v1 on a GPU too small"),
    (OutOfMemory, "9.4 GiB", 500, {"error": "model requires more system memory (9.4 GiB) than is available (5.2 GiB)"},
     "Ollama, server/sched.go"),
    (OutOfMemory, "bad_alloc", 500, {"error": {"code": 500, "message": "std::bad_alloc", "type": "server_error"}},
     "llama.cpp: what() of the exception"),
    (OutOfMemory, "CUDA out of memory", 200, {"error": {"message": "CUDA out of memory. Tried to allocate 2.00 GiB",
      "type": "server_error", "code": 500}}, "an error under a status of 200"),
    # Words like these, and no lack of memory.
    (ServerError, "not for want of memory", 500,
     {"error": "Unexpected <class 'RuntimeError'>: CUDA error: an illegal memory access was encountered",
      "error_type": "generation"}, "huggingface/text-generation-inference#2593"),
    (ServerError, "EngineCore", 500,
     {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
      "type": "Internal Server Error", "param": None, "code": 500}}, "vllm-project/vllm#24495"),
    (EngineReplyError, "memory", 400, {"error": {"message": "The field 'memory' is no list.", "code": 400}}, "-"),
    # --- how long to wait --------------------------------------------------------------------------------------------
    (RateLimited, "Rate limit reached", 429,
     {"error": {"message": "Rate limit reached for 10KTPM-200RPM in organization org-X on tokens per min. Limit: 10000 "
      "/ min. Please try again in 6ms.", "type": "tokens", "param": None, "code": "rate_limit_exceeded"}},
     "Pythagora-io/gpt-pilot#53: OpenAI"),
    (RateLimited, "exceeded your current quota", 429,
     {"error": {"message": "You exceeded your current quota, please check your plan and billing details.",
      "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}}, "alexrudall/ruby-openai#501"),
    (RateLimited, "overloaded", 429, {"error": "Model is overloaded", "error_type": "overloaded"}, "TGI's API"),
    (RateLimited, "server busy", 503,
     {"error": "server busy, please try again.  maximum pending requests exceeded"}, "Ollama, server/sched.go"),
    (RateLimited, "credits", 402, {"error": {"code": 402, "message": "Insufficient credits"}}, "openrouter.ai/docs"),
    (RateLimited, "Provider returned error slow down", 429,
     {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "slow down"}}},
     "openrouter.ai/docs/api/reference/errors-and-debugging"),
    # --- the key, the model, the settings ----------------------------------------------------------------------------
    (InvalidSettings, "does not let kvscope in (401): Incorrect API key", 401,
     {"error": {"message": "Incorrect API key provided: sk-VKMIs***wjh3. You can find your API key at https://platform."
      "openai.com/account/api-keys.", "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}},
     "chatanywhere/GPT_API_free#62: OpenAI"),
    (InvalidSettings, "Invalid API Key", 401,
     {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}},
     "ggml-org/llama.cpp#14352"),
    (InvalidSettings, "(401): Unauthorized", 401, {"error": "Unauthorized"}, "vLLM, api_server.py"),
    (InvalidSettings, "(403)", 403, {"detail": "Not authenticated"}, "FastAPI's own"),
    (EngineModelError, "does not exist", 404,
     {"object": "error", "message": "The model `Qwen1.5-14B-Chat-GPTQ-Int8` does not exist.", "type": "NotFoundError",
      "param": None, "code": 404}, "vllm-project/vllm#3485"),
    (EngineModelError, "try pulling it first", 404,
     {"error": {"message": 'model "ollama" not found, try pulling it first', "type": "api_error", "param": None,
      "code": None}}, "netease-youdao/QAnything#555: Ollama's /v1"),
    (EngineModelError, "mistral", 404, {"error": "model 'mistral' not found, try pulling it first"},
     "ollama/ollama#718"),
    (EngineModelError, "No models loaded", 404,
     {"error": {"message": "No models loaded. Please load a model in the developer page or use the `lms load` command.",
      "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}, "canopyai/Orpheus-TTS#229"),
    (EngineModelError, 'Model "default" not found', 404,
     {"error": {"message": 'Model "default" not found. Please specify a valid model.\n\nYour models:\n\nqwen3-32b',
      "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}, "gitbutlerapp/gitbutler#8706"),
    (InvalidSettings, "max_completion_tokens", 400,
     {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
      "'max_completion_tokens' instead.", "type": "invalid_request_error", "param": "max_tokens",
      "code": "unsupported_parameter"}}, "griptape-ai/ComfyUI-Griptape#312: OpenAI"),
    (InvalidSettings, "max_completion_tokens", 400,
     {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), 'msg': "
      f"'{PERMITTED}', 'input': 800}}]", "type": "BadRequestError", "param": None, "code": 400},
     "1Panel-dev/MaxKB#2912: vLLM before 0.6.4"),
    (InvalidSettings, f"body.tools: {PERMITTED}", 422,
     {"object": "Error", "detail": [{"type": "extra_forbidden", "loc": ["body", "tools"], "msg": PERMITTED,
      "input": []}], "type": "invalid_request_error", "code": 3001}, "partITech/php-mistral#76"),
    (InvalidSettings, f"body.messages.0.user.name: {PERMITTED}", 422,
     {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 0, "user",
      "name"], "msg": PERMITTED, "input": None}]}, "type": "invalid_request_error", "param": None, "code": None},
     "nomtek/mistralai_client_dart#44: Mistral"),
    # --- the rest ----------------------------------------------------------------------------------------------------
    (ServerError, "(503): Loading model", 503,
     {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "llama.cpp, server.cpp"),
    (ServerError, "(502): 502 Bad Gateway", 502,
     "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
     "<hr><center>nginx/1.24.0</center>\r\n</body>\r\n</html>\r\n", "nginx"),
    (EngineTimeout, "gave up waiting (504)", 504, "<html><body><h1>504 Gateway Time-out</h1></body></html>", "nginx"),
    (ServerError, "Internal Server Error", 500, "Internal Server Error", "Starlette"),
    (ServerError, "(nothing was said)", 500, "", "-"),
    (ServerError, "tensors used as indices", 424 + 76,
     {"error": "Request failed during generation: Server error: tensors used as indices must be long, byte or bool "
      "tensors", "error_type": "generation"}, "huggingface/text-generation-inference#369"),
    (EngineReplyError, "Not Found", 404, {"detail": "Not Found"}, "FastAPI: no such path"),
    (EngineReplyError, "Too Large", 413, "<html><h1>413 Request Entity Too Large</h1></html>", "nginx"),
    (EngineReplyError, "illegal base64", 400, {"error": "illegal base64 data at input byte 0"}, "Ollama 0.34"),
    (EngineReplyError, "multimodal", 400,
     {"error": json.dumps({"error": {"code": 400, "message": "Multimodal data provided, but model does not support "
      "multimodal requests.", "type": "invalid_request_error"}})}, "Ollama 0.34"),
]  # fmt: skip


def sent(body: Body) -> bytes:
    return (body if isinstance(body, str) else json.dumps(body)).encode()


@pytest.mark.parametrize(("kind", "part", "status", "body", "source"), BODIES)
def test_each_body_is_what_it_means(kind: type[EngineError], part: str, status: int, body: Body, source: str) -> None:
    error = reply_error(status, sent(body))
    assert type(error) is kind, source
    assert part in error.message
    assert error.hint
    assert error.evidence == {"known_by": "message", "http_status": status, "body": sent(body).decode()}
    assert set(error.evidence) <= set(EVIDENCE)


def own_code(body: dict[str, Any]) -> object:
    """The status that a body states itself."""
    inner = body.get("error")
    return inner.get("code") if isinstance(inner, dict) else body.get("code")


# A stream that began with 200 has no other status to tell: the words decide, and the code in the body.
TELLING = [
    (kind, part, body)
    for kind, part, _, body, _ in BODIES
    if isinstance(body, dict)
    and is_error(body)
    and (kind in (ContextOverflow, OutOfMemory) or isinstance(own_code(body), int))
]


@pytest.mark.parametrize(("kind", "part", "body"), TELLING)
def test_each_body_means_the_same_in_the_middle_of_a_stream(
    kind: type[EngineError], part: str, body: dict[str, Any]
) -> None:
    error = failure(plain_stream(token("a") + event(body)))
    assert type(error) is kind
    assert part in error.message
    assert error.evidence["pieces_received"] == 1
    assert error.evidence["http_status"] == 200
    assert json.loads(error.evidence["body"]) == body


def plain_stream(data: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(data) + b"0\r\n\r\n")

    return script


def answering_with(reply: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    return script


def failure(script: Script) -> EngineError:
    async def go() -> None:
        async with scripted(script) as url:
            await stream_chat(url, ChatRequest(messages=(), max_output_tokens=4))

    with pytest.raises(EngineError) as caught:
        asyncio.run(go())
    return caught.value


class TestRetryAfter:
    NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"retry-after": "7"}, 7.0),
            ({"retry-after": "0"}, 0.0),
            ({"retry-after": " 1.5 "}, 1.5),
            ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
            ({}, None),
            ({"retry-after": ""}, None),
            ({"retry-after": "soon"}, None),
            ({"retry-after": "-3"}, None),
            ({"retry-after": "9" * 400}, None),
            ({"retry-after": "Fri, 99 Foo 2026 99:99:99 GMT"}, None),
        ],
    )
    def test_what_is_stated(self, headers: dict[str, str], seconds: float | None) -> None:
        assert retry_after_s(headers) == seconds

    def test_a_date_counts_from_the_servers_own(self) -> None:
        """RFC 9110's form; the clocks of two machines may differ by years."""
        until = format_datetime(self.NOW + timedelta(seconds=90), usegmt=True)
        assert retry_after_s({"retry-after": until, "date": format_datetime(self.NOW, usegmt=True)}) == 90.0

    def test_a_date_that_has_passed_is_no_wait(self) -> None:
        until = format_datetime(self.NOW - timedelta(seconds=90), usegmt=True)
        assert retry_after_s({"retry-after": until, "date": format_datetime(self.NOW, usegmt=True)}) == 0.0

    def test_a_date_without_the_servers_own_counts_from_ours(self) -> None:
        wait_s = retry_after_s({"retry-after": format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)})
        assert wait_s is not None
        assert 86_000 < wait_s <= 86_400

    def test_it_is_kept_with_the_error(self) -> None:
        reply = plain("429 Too Many Requests", b'{"error": {"message": "slow down"}}', "Retry-After: 7")
        error = failure(answering_with(reply))
        assert type(error) is RateLimited
        assert error.evidence["retry_after_s"] == 7.0
        assert error.hint == "Wait 7 s, as it asks, or send fewer requests at once."

    def test_of_a_server_that_is_starting_too(self) -> None:
        error = failure(answering_with(plain("503 Service Unavailable", b"", "Retry-After: 2")))
        assert (type(error), error.evidence["retry_after_s"]) == (ServerError, 2.0)


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_they_are_named_and_not_followed(self, status: int) -> None:
        asked: list[str] = []

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append("once")
            writer.write(plain(f"{status} Moved", b"", "Location: https://other.example/v1?key=secret"))

        error = failure(script)
        assert type(error) is EngineReplyError
        assert f"elsewhere to https://other.example/v1 ({status}); it was not followed" in error.message
        assert "secret" not in f"{error.message} {error.hint} {error.evidence}"
        assert asked == ["once"]

    def test_of_a_plain_question_too(self) -> None:
        async def go() -> None:
            async with scripted(answering_with(plain("302 Found", b"", "Location: /login"))) as url:
                await get_text(url)

        with pytest.raises(EngineReplyError, match="elsewhere to /login"):
            asyncio.run(go())


def test_a_request_that_is_sent_back_does_not_decide() -> None:
    """FastAPI's 422 holds the user's own words; those are not the server's."""
    body = {"detail": [{"loc": ["body", "seed"], "msg": "Input should be a valid integer", "type": "int_type",
                        "input": {"messages": [{"content": "CUDA out of memory"}]}}]}  # fmt: skip
    assert type(reply_error(422, json.dumps(body).encode())) is EngineReplyError


@pytest.mark.parametrize(
    "body",
    [b"[1]", b"[]", b"null", b"7", b'"text"', b"{}", b'{"error": {}}', b'{"error": [1]}', b'{"error": {"message": 5}}',
     b'{"detail": [5, {"msg": 1}]}', b"\xff\xfe", b"[" * 100_000, b'{"error":' * 1000 + b"1" + b"}" * 1000,
     b'{"error": {"code": true, "message": {"a": {"b": {"c": {"d": 1}}}}}}', b"<" * 100_000],
)  # fmt: skip
def test_any_other_body_is_kept_and_explained_by_its_status(body: bytes) -> None:
    for status, kind in ((400, EngineReplyError), (429, RateLimited), (500, ServerError)):
        error = reply_error(status, body)
        assert type(error) is kind
        assert error.evidence["body"][:64] == body.decode(errors="replace")[:64]
        assert len(error.message) < 2200
