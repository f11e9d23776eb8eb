"""The rule of llama.cpp against llama.cpp: random conversations, by ids, on tiny models of each kind of cache.

Each request repeats, extends, cuts or changes one of the last few, as apps do. What the rule says of it must be the
number that the server itself reports, for every one of them.
"""

import importlib.util
import json
import os
import random
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter, Tensor

from kvscope.engine.llama_http import LlamaHttp
from kvscope.engine.registry import create_engine
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import Message
from kvscope.prompt.reuse_engines.llama_cpp_settings import slot_settings
from kvscope.prompt.reuse_engines.llama_cpp_slots import LlamaCppSlots
from kvscope.prompt.reuse_engines.llama_cpp_turns import places_of, user_marker
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

GOLDEN = Path(__file__).parent.parent / "golden" / "gguf"
# Hundreds were compared for each case; that many take minutes where the machine is busy.
REQUESTS = int(os.environ.get("KVSCOPE_TEST_REUSE_REQUESTS", "24"))
LONGEST = 1100
FIRST_ID, LAST_ID = 10, 250
TEMPLATES = Path(__file__).parent / "data" / "chat_templates"


@dataclass(frozen=True)
class Case:
    """``model``: a file beside generated.jsonl, or an architecture in it."""

    name: str
    model: str
    settings: Mapping[str, SettingValue]
    chat_template: str | None = None


CASES = [
    Case("window", "tiny-gemma3", {"n_ctx": 2048}),
    Case(
        "window, slots that share cells, few checkpoints",
        "tiny-gemma3",
        {
            "n_ctx": 4096,
            "n_parallel": 3,
            "kv_unified": True,
            "cache_ram_mib": 0,
            "n_ubatch": 128,
            "n_ctx_checkpoints": 3,
            "checkpoint_min_step": 100,
        },
    ),
    Case("window kept in full", "tiny-gemma3", {"n_ctx": 4096, "n_parallel": 2, "swa_full": True}),
    Case("recurrent", "mamba", {"n_ctx": 4096, "n_parallel": 2, "n_batch": 300, "n_ubatch": 100}),
    Case("full attention, several slots", "llama", {"n_ctx": 4096, "n_parallel": 3}),
    Case("full attention, shared cells", "llama", {"n_ctx": 2048, "n_parallel": 3, "kv_unified": True}),
]


def generated_model(architecture: str, path: Path) -> Path:
    """The smallest model of its kind in generated.jsonl, with a vocabulary of bytes and weights of zero."""
    lines = (GOLDEN / "generated.jsonl").read_text().splitlines()
    found = next(
        each
        for each in map(json.loads, lines)
        if each["metadata"]["general.architecture"] == architecture and each["tensors"]
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"word{n}" for n in range(29))]
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * 29)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
    }
    tensors = []
    for name, shape in found["tensors"]:
        num_elements = 1
        for size in shape:
            num_elements *= size
        tensors.append(Tensor(name, tuple(shape), 0, 4 * num_elements))
    return GgufWriter({**found["metadata"], **vocabulary}, tensors).write(path)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaHttp, ModelSpec]]:
    case: Case = request.param
    path = GOLDEN / f"{case.model}.gguf"
    if not path.exists():
        path = generated_model(case.model, tmp_path_factory.mktemp("model") / f"{case.model}.gguf")
    settings: dict[str, SettingValue] = {**case.settings, "n_threads": 1, "n_threads_batch": 1}
    if case.chat_template is not None:
        settings["chat_template"] = (TEMPLATES / f"{case.chat_template}.jinja").read_text()
    model = load_model(str(path))
    engine = create_engine("llama.cpp", model=model, settings=settings)
    assert isinstance(engine, LlamaHttp), "its address is asked directly below"
    try:
        engine.launch()
        engine.load()
        yield engine, model
    finally:
        engine.stop()


def post(engine: LlamaHttp, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        engine.url + path, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def next_prompt(rng: random.Random, known: Sequence[list[int]]) -> list[int]:
    """One of the last prompts, repeated, extended, cut or changed somewhere; or a new one."""

    def text(most: int) -> list[int]:
        return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(rng.randint(1, most))]

    if not known or rng.random() < 0.1:
        return text(900)
    ids = list(rng.choice(known[-4:]))
    place = rng.randrange(len(ids))
    match rng.choice(["same", "longer", "longer", "middle", "start", "shorter", "end", "from here"]):
        case "longer":
            ids += text(rng.choice([4, 20, 300]))
        case "middle":
            ids = [*ids[:place], *text(5), *ids[place + 1 :]]
        case "start":
            ids = [*text(1), *ids[1:]]
        case "shorter":
            ids = ids[: place + 1]
        case "end":
            ids = [*ids[: -rng.randint(1, 9)], *text(9)]
        case "from here":
            ids = [*ids[:place], *text(600)]
    return ids[:LONGEST]


def expected_slots(engine: LlamaHttp, model: ModelSpec) -> LlamaCppSlots:
    return LlamaCppSlots(slot_settings(model, engine.settings))


def test_what_is_reused_is_predicted_to_the_token(served: tuple[LlamaHttp, ModelSpec]) -> None:
    engine, model = served
    rng = random.Random(20261129)
    slots = expected_slots(engine, model)
    known: list[list[int]] = []
    expected, found = [], []
    for _ in range(REQUESTS):
        prompt = next_prompt(rng, known)
        reuse = rng.random() < 0.95
        body = {
            "prompt": prompt,
            "n_predict": rng.choice([1, 2, 8]),
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": reuse,
        }
        answer = post(engine, "/completion", body)
        assert answer["tokens_evaluated"] == len(prompt)
        found.append(answer["timings"]["cache_n"])
        expected.append(slots.play(prompt, answer["tokens"], reuse=reuse).cached)
        known.append([*prompt, *answer["tokens"][:-1]])
    assert found == expected
    assert sum(found) > 0
    assert 0 in found[1:], "some of it was lost"


def next_messages(rng: random.Random, messages: Sequence[Message]) -> list[Message]:
    """The next turn; or one in which something was changed, taken back, or said for the first time."""

    def text(most: int) -> str:
        return "".join(rng.choice("abcdefghij klmno.") for _ in range(rng.randint(1, most)))

    kind = rng.random()
    if not messages or kind < 0.1:
        system = [Message(role="system", content=text(150))] if rng.random() < 0.7 else []
        return [*system, Message(role="user", content=text(100))]
    if kind < 0.6:
        return [*messages, Message(role="assistant", content=text(60)), Message(role="user", content=text(100))]
    if kind < 0.8:
        changed = list(messages)
        place = rng.randrange(len(changed))
        changed[place] = replace(changed[place], content=text(100))
        return changed
    return list(messages[:-2]) if kind < 0.9 and len(messages) > 3 else list(messages)


@pytest.mark.parametrize(
    "served",
    [replace(CASES[0], chat_template="gemma"), replace(CASES[3], chat_template="qwen3")],
    indirect=True,
    ids=["window, gemma", "recurrent, qwen3"],
)
def test_checkpoints_lie_where_users_messages_start(served: tuple[LlamaHttp, ModelSpec]) -> None:
    engine, model = served
    text = str(engine.settings["chat_template"])
    marker_text = user_marker(ChatTemplate(text=text, source="the server's", special_tokens={"bos_token": ""}))
    assert marker_text is not None

    def ids_of(text: str, *, is_whole: bool) -> list[int]:
        body = {"content": text, "add_special": is_whole, "parse_special": True}
        found: list[int] = post(engine, "/tokenize", body)["tokens"]
        return found

    marker = ids_of(marker_text, is_whole=False)
    rng = random.Random(7)
    slots = expected_slots(engine, model)
    messages: list[Message] = []
    expected, found, starts_seen = [], [], 0
    for _ in range(REQUESTS):
        messages = next_messages(rng, messages)
        wire = {"messages": [{"role": each.role, "content": each.content} for each in messages]}
        prompt = ids_of(post(engine, "/apply-template", wire)["prompt"], is_whole=True)
        if len(prompt) > LONGEST:
            messages = []
            continue
        answer = post(engine, "/v1/chat/completions", {**wire, "max_tokens": 1, "cache_prompt": True})
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        starts = places_of(marker, prompt)
        played = slots.play(prompt, [0], user_starts=starts)
        starts_seen += played.checkpoint in starts
        expected.append(played.cached)
    assert found == expected
    assert starts_seen > 0, "some request went back to where a user's message starts"
