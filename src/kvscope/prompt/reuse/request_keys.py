"""What a request's own keys say of reuse: whether it allows it, which slot it asks for, and what is not followed.

Source: llama.cpp's server (tools/server/README.md: cache_prompt, id_slot, n_cache_reuse, lora, n_cmpl). Other engines
do not know these keys.
"""

from kvscope.prompt.conversation_file import LoadedRequest

LLAMA_CPP = "llama.cpp"
# Keys with which llama.cpp keeps or uses its cache otherwise, by the values that change nothing.
_CHANGE_THE_CACHE = {"n": (None, 1), "n_cmpl": (None, 1), "n_cache_reuse": (None, 0), "lora": (None, [])}


def allows_reuse(request: LoadedRequest, engine: str) -> bool | None:
    """The request's ``cache_prompt``; None where it leaves that to the engine."""
    value = request.body.get("cache_prompt") if engine == LLAMA_CPP else None
    return value if isinstance(value, bool) else None


def slot_asked_for(request: LoadedRequest, engine: str) -> int | None:
    """The request's ``id_slot``; None where it asks for none."""
    value = request.body.get("id_slot") if engine == LLAMA_CPP else None
    return value if type(value) is int and value >= 0 else None


def doubt_of(request: LoadedRequest, engine: str) -> str | None:
    """Why the engine may see another prompt than is compared here, or use what it holds otherwise; None where nothing
    in the request says so."""
    keys = [*request.not_followed]
    if engine == LLAMA_CPP:
        keys += [key for key, usual in _CHANGE_THE_CACHE.items() if request.body.get(key) not in usual]
    if not keys:
        return None
    return f"{request.source} has {', '.join(dict.fromkeys(keys))}, whose effect is not followed here."
