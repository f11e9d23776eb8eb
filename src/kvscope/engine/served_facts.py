"""What a server that runs already says about itself: which one it is, which model, how much one sequence may hold.

| server | known by | version | limit of one sequence |
|---|---|---|---|
| llama.cpp | /v1/models: owned_by "llamacpp" | /props: build_info | /slots and /props: n_ctx |
| vLLM | owned_by "vllm" | /version | /v1/models: max_model_len |
| SGLang | owned_by "sglang" | /get_server_info, /server_info: version | /v1/models: max_model_len |
| Text Generation Inference | /info: model_id, max_total_tokens | /info: version | /info: max_total_tokens |
| LM Studio | /api/v0/models: its models and their state | not stated | loaded_context_length |
| Ollama | /api/version | /api/version | not stated here |
| any other | | unknown | /v1/models: context_length, context_window or max_context_length |

Read from the projects' sources and documents as of 2025 and 2026. What is not stated is "unknown" or None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.engine.base import ContextLimit
from kvscope.engine.llama_limits import context_limit
from kvscope.engine.server_address import ServerAddress
from kvscope.errors import EngineReplyError, UnknownName
from kvscope.scenario import SettingValue

UNKNOWN = "unknown"
LLAMA_CPP, VLLM, SGLANG, TGI, LM_STUDIO, OLLAMA = "llama.cpp", "vllm", "sglang", "tgi", "lm-studio", "ollama"
_OWNERS = {"llamacpp": LLAMA_CPP, "vllm": VLLM, "sglang": SGLANG}
# llama.cpp's own bound of slots (LLAMA_MAX_SEQ): it starts with no more, so a larger number is none of its.
_MOST_SLOTS = 256
# What is said of a model beside its name: by llama.cpp in /v1/models: meta, by vLLM and SGLang there (its folder or its
# name in a hub), by Text Generation Inference in /info, by LM Studio in /api/v0/models.
_META_FACTS = ("n_params", "size", "ftype", "n_vocab", "n_embd", "n_ctx_train")
_ENTRY_FACTS = ("root",)
_TGI_FACTS = ("model_id", "model_sha", "model_dtype")
_STUDIO_FACTS = ("arch", "quantization", "compatibility_type")
# Names under which listings of models state a limit. How much a model was trained for is another number.
_LIMITS = ("max_model_len", "context_length", "context_window", "max_context_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFacts:
    """``kind`` is the server's program, "unknown" where it does not say. ``others``: further models that it has.
    ``effective``: its settings, as far as it states them; ``slots`` as ``EngineReport.slots``. ``model_facts``: what it
    states of the model beside its name (n_params, size in bytes ...); ``model_path``: its file, on the server's
    machine."""

    kind: str
    version: str
    build: str
    model: str
    others: tuple[str, ...] = ()
    limit: ContextLimit | None = None
    effective: Mapping[str, SettingValue] = field(default_factory=dict)
    slots: tuple[int, ...] = ()
    model_facts: Mapping[str, SettingValue] = field(default_factory=dict)
    model_path: str | None = None

    @property
    def predicted_settings(self) -> Mapping[str, SettingValue] | None:
        """The settings that a prediction of what the server takes needs, by the names that ``kvscope.predict`` knows;
        None where it does not state them. Others (cache types, buffers' sizes) it does not state: a prediction by these
        alone is an estimate. llama.cpp says what one slot may hold, and not whether several share it."""
        if self.kind == LLAMA_CPP:
            return {"n_ctx": self.effective["n_ctx"], "n_parallel": 1} if "n_ctx" in self.effective else None
        if self.kind in (VLLM, SGLANG) and self.limit is not None:
            return {"max_model_len" if self.kind == VLLM else "context_length": self.limit.tokens}
        return None

    @property
    def stated_settings(self) -> Mapping[str, SettingValue]:
        """All that it states of how it was started: what makes two of its kind comparable."""
        limit = {} if self.limit is None else {"context_limit_tokens": self.limit.tokens}
        return {**limit, **self.effective, **(self.predicted_settings or {})}


async def ask_facts(server: ServerAddress, served_model: str | None) -> ServedFacts:
    """Raises UnknownName for a model that it does not have, EngineReplyError where it is no such server or has no
    model, and other EngineErrors where it does not answer."""
    listed = await _listed_models(server, served_model)
    model = _chosen(listed, served_model, server.url)
    entry = next((each for each in listed if each["id"] == model), {})
    kind = _OWNERS.get(str(entry.get("owned_by")), UNKNOWN)
    others = tuple(each["id"] for each in listed if each["id"] != model)
    facts = ServedFacts(
        kind=kind, version=UNKNOWN, build=UNKNOWN, model=model, others=others, limit=_listed_limit(entry)
    )
    facts = _with_facts(_with_facts(facts, entry, _ENTRY_FACTS), entry.get("meta"), _META_FACTS)
    return await _ASKED[kind](server, facts)


def _with_facts(facts: ServedFacts, said: Any, names: Sequence[str]) -> ServedFacts:
    """With what is said of the model under these names, as far as it is."""
    said = said if isinstance(said, dict) else {}
    found = {name: said[name] for name in names if isinstance(said.get(name), int | str)}
    return replace(facts, model_facts={**facts.model_facts, **found})


async def _listed_models(server: ServerAddress, served_model: str | None) -> list[dict[str, Any]]:
    reply = await server.ask("GET", "/v1/models")
    if reply.status in (404, 405, 501) and served_model is not None:
        return []  # a server without a list; whether it has the model, the first request tells
    if reply.status in (404, 405, 501):
        raise EngineReplyError(
            f"{server.url} does not list its models (GET /v1/models: {reply.status}).",
            hint="Is it a server with OpenAI's interface? If it is, name the model with --served-model.",
            evidence={"known_by": "message", "http_status": reply.status},
        )
    found = server.read_json(reply).get("data")
    models = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    named = [each for each in models if isinstance(each.get("id"), str) and each["id"]]
    if not named:
        raise EngineReplyError(
            f"{server.url} lists no model (GET /v1/models).", hint="Load a model there first, or check the address."
        )
    return named


def _chosen(listed: Sequence[Mapping[str, Any]], served_model: str | None, url: str) -> str:
    """The model's name as the server has it: Ollama lists "name:latest" for what is asked for as "name"."""
    names = [str(each["id"]) for each in listed]
    if served_model is None:
        return names[0]
    if not names or served_model in names:
        return served_model
    if f"{served_model}:latest" in names:
        return f"{served_model}:latest"
    raise UnknownName(f"model at {url}", served_model, names)


def _listed_limit(entry: Mapping[str, Any]) -> ContextLimit | None:
    for name in _LIMITS:
        if (tokens := _count(entry.get(name))) is not None:
            return ContextLimit(tokens=tokens, source=f"GET /v1/models: {name}")
    return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _stated(value: Any) -> str:
    return value if isinstance(value, str) and value else UNKNOWN


async def _ask_llama_cpp(server: ServerAddress, facts: ServedFacts) -> ServedFacts:
    props = await server.json_if_any("/props")
    slots = await server.json_if_any("/slots")
    props = props if isinstance(props, dict) else {}
    limit = context_limit(slots, props, ())
    num_slots = _count(props.get("total_slots"))
    if num_slots is not None and num_slots > _MOST_SLOTS:
        num_slots = None
    effective: dict[str, SettingValue] = {}
    if num_slots is not None:
        effective["n_parallel"] = num_slots
    if limit is not None:
        effective["n_ctx_seq"] = limit.tokens
    trained = _count(facts.model_facts.get("n_ctx_train"))
    # A slot is capped at the trained context: one of that size may be part of a larger cache.
    if limit is not None and num_slots == 1 and trained is not None and limit.tokens < trained:
        effective["n_ctx"] = limit.tokens
    each = (limit.tokens,) * num_slots if limit is not None and num_slots is not None else ()
    build = _stated(props.get("build_info"))
    facts = replace(facts, version=build, build=f"llama.cpp {build}", limit=limit, effective=effective, slots=each)
    path = props.get("model_path")
    return replace(facts, model_path=path if isinstance(path, str) and path else None)


async def _ask_vllm(server: ServerAddress, facts: ServedFacts) -> ServedFacts:
    said = await server.json_if_any("/version")
    return _with_version(facts, said, "vllm")


async def _ask_sglang(server: ServerAddress, facts: ServedFacts) -> ServedFacts:
    # /server_info is the newer name; versions of 2025 have the other one alone.
    said = await server.json_if_any("/server_info") or await server.json_if_any("/get_server_info")
    return _with_version(facts, said, "sglang")


async def _ask_others(server: ServerAddress, facts: ServedFacts) -> ServedFacts:
    """One that does not name itself in its list of models: whatever else it answers tells."""
    info = await server.json_if_any("/info", may_hang=True)
    if isinstance(info, dict) and "model_id" in info and _count(info.get("max_total_tokens")) is not None:
        limit = ContextLimit(tokens=info["max_total_tokens"], source="GET /info: max_total_tokens")
        facts = _with_facts(replace(facts, kind=TGI, limit=limit), info, _TGI_FACTS)
        return _with_version(facts, info, "text-generation-inference")
    ollama = await server.json_if_any("/api/version", may_hang=True)
    if isinstance(ollama, dict) and isinstance(ollama.get("version"), str):
        return _with_version(replace(facts, kind=OLLAMA), ollama, "ollama")
    studio = await server.json_if_any("/api/v0/models", may_hang=True)
    if isinstance(studio, dict) and isinstance(studio.get("data"), list):
        loaded = next((each for each in studio["data"] if isinstance(each, dict) and each.get("id") == facts.model), {})
        tokens = _count(loaded.get("loaded_context_length"))
        source = "GET /api/v0/models: loaded_context_length"
        known = facts.limit if tokens is None else ContextLimit(tokens=tokens, source=source)
        facts = _with_facts(facts, loaded, _STUDIO_FACTS)
        return replace(facts, kind=LM_STUDIO, build="LM Studio", limit=known)
    return facts


def _with_version(facts: ServedFacts, said: Any, program: str) -> ServedFacts:
    version = _stated(said.get("version")) if isinstance(said, dict) else UNKNOWN
    return replace(facts, version=version, build=f"{program} {version}")


_ASKED = {LLAMA_CPP: _ask_llama_cpp, VLLM: _ask_vllm, SGLANG: _ask_sglang, UNKNOWN: _ask_others}
