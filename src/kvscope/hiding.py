"""Secrets in texts that are about to be recorded or shown: keys, passwords and tokens, wherever they were quoted.

``engine/api_key.py`` hides the one key that kvscope itself sends. This is the second sieve, for all
that others quote: command lines, addresses, headers, environments and error bodies. It knows secrets by what stands
before them (``--api-key``, ``Authorization:``, ``token=``, ``user:password@``), by how keys of well-known services
begin, and by the environment variables of this process that are called like a key; their values, in the spellings of
``secret_spellings``.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kvscope.secret_spellings import Secret

HIDDEN = "[hidden]"
# What is called so holds a secret: flags, settings, JSON fields, environment variables, parts of an address.
_SECRET_NAME = (
    r"(?:api[-_.]?key|access[-_.]?key|secret[-_.]?key|private[-_.]?key|auth[-_.]?key|client[-_.]?secret|secret"
    r"|password|passwd|passphrase|(?:access|auth|bearer|refresh|id|session|hf|hub|api)[-_.]?token|credentials?)"
)
_NAMES_SECRET = re.compile(rf"(?:(?:\A|[-_.]){_SECRET_NAME}|\Atoken)\Z", re.IGNORECASE)
# Environment variables that hold one. KEY and TOKEN alone would be words of anything else (KEYBOARD, TOKENIZERS_...).
_SECRET_VARIABLE = re.compile(r"(?:\A|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)\Z", re.IGNORECASE)
# A shorter value of such a variable could be a part of any word.
_LEAST_VALUE = 8
_VALUE = r"""(?:\\"[^"]{0,2000}?\\"|"(?:[^"\\]|\\.){0,2000}"|\\'[^']{0,2000}?\\'|'[^']{0,2000}'|[^\s"'\\&,;)\]}]+)"""
_PATTERNS = (
    # Authorization: Bearer …, x-api-key: …, in headers, JSON and Python's own writing.
    re.compile(
        r"(?P<kept>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token|digest|apikey)\s+)?)"
        r"(?P<secret>[^\s\"',;)\]}]+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b(?:set-)?cookie[\"']?\s*[:=]\s*[\"']?)(?P<secret>[^\r\n\"']+)", re.IGNORECASE),
    re.compile(r"(?P<kept>\bbearer\s+)(?P<secret>(?=\S*\d)[A-Za-z0-9\-._~+/]{8,}=*)", re.IGNORECASE),
    # --api-key VALUE, --token=VALUE, -hft VALUE.
    re.compile(
        rf"(?P<kept>(?:\A|(?<=[\s\"'\[,]))(?:--?[A-Za-z0-9-]{{0,40}}?(?:{_SECRET_NAME}|token)|-hft)(?:[\"']?,\s*|\s+|=))"
        rf"(?P<secret>(?!--?[A-Za-z]){_VALUE})",
        re.IGNORECASE,
    ),
    # api_key=VALUE, "api_key": "VALUE", OPENAI_API_KEY=VALUE, ?token=VALUE.
    re.compile(
        rf"(?P<kept>{_SECRET_NAME}\\?[\"']?\s*[=:]\s*)(?P<secret>{_VALUE})",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b[A-Z0-9_]{0,60}_(?:KEY|TOKEN)=)(?P<secret>[^\s\"'&,;]+)"),
    re.compile(r"(?P<kept>[?&](?:key|token|sig|signature|auth|code)=)(?P<secret>[^\s\"'&<>]+)", re.IGNORECASE),
    # https://user:password@host
    re.compile(r"(?P<kept>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<secret>[^\s/?#@\"'<>]{1,2000})(?=@)"),
    # Keys that say themselves what they are.
    re.compile(
        r"(?P<kept>)(?P<secret>\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
        r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{12,}"
        r"|AIza[A-Za-z0-9_-]{30,}|nvapi-[A-Za-z0-9_-]{16,}|gsk_[A-Za-z0-9]{16,}"
        r"|eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]*))"
    ),
)
# A word of a command line whose next word is a secret.
_LEADS_TO_SECRET = re.compile(
    rf"--?[\w-]*token|-hft|\S*(?:{_SECRET_NAME}|authorization|bearer)[\"']?[:=]?", re.IGNORECASE
)
# None of the patterns can match a text without one of these: most texts are done with after this look.
_MAY_HOLD = re.compile(
    r"key|token|secret|passw|passphrase|credential|authorization|bearer|cookie|://|-hft|sk-|hf_|gh[pousr]_|github_pat"
    r"|glpat|xox|akia|aiza|nvapi|gsk_|eyj|[?&](?:sig|auth|code)",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a setting, a flag or a field of this name holds a secret: ``api_key``, ``hf_token``, ``password``."""
    return _NAMES_SECRET.search(name.strip("-")) is not None


def hide_secrets(found: Any) -> Any:
    """The same without secrets: a text, or mappings and sequences that hold texts. What is called like a secret in a
    mapping is hidden whatever it is, unless it is nothing, a truth or a number."""
    match found:
        case str():
            return _hidden_text(found)
        case Mapping():
            return {_hide_key(name): _hide_named(name, value) for name, value in found.items()}
        case list() | tuple():
            return type(found)(_hidden_word(found, place) for place in range(len(found)))
        case _:
            return found


def _hidden_word(words: list[Any] | tuple[Any, ...], place: int) -> Any:
    """One of several: of a command line taken apart, what stands behind a flag of a secret is one."""
    word, before = words[place], words[place - 1] if place else None
    if isinstance(word, str) and isinstance(before, str) and _LEADS_TO_SECRET.fullmatch(before):
        return word if _is_no_secret(word) else HIDDEN
    return hide_secrets(word)


def _hide_key(name: Any) -> Any:
    return _hidden_text(name) if isinstance(name, str) else name


def _hide_named(name: Any, value: Any) -> Any:
    is_secret = isinstance(name, str) and is_secret_name(name)
    return HIDDEN if is_secret and isinstance(value, str) and value else hide_secrets(value)


def _hidden_text(text: str) -> str:
    for secret in _own_secrets():
        text = secret.hidden(text, HIDDEN)
    if _MAY_HOLD.search(text) is None:
        return text
    for pattern in _PATTERNS:
        text = pattern.sub(_without, text)
    return text


def _without(match: "re.Match[str]") -> str:
    secret = match["secret"]
    if HIDDEN in secret or secret in ("[the", "[the key]") or _is_no_secret(secret):
        return match[0]
    quote = next((mark for mark in ('\\"', "\\'", '"', "'") if secret.startswith(mark)), "")
    return f"{match['kept']}{quote}{HIDDEN}{quote}"


def _is_no_secret(value: str) -> bool:
    """A truth, nothing, or a number of a few digits ("max_tokens", "key: 3") is no secret."""
    bare = value.strip("\"'\\")
    return (
        bare.lower() in ("", "none", "null", "true", "false") or re.fullmatch(r"-?\d{1,6}(?:\.\d+)?", bare) is not None
    )


def _own_secrets() -> tuple[Secret, ...]:
    """Values of this process's environment variables that are called like a key, the longest first."""
    named = tuple(
        value.strip()
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and len(value.strip()) >= _LEAST_VALUE
    )
    return _longest_first(named)


@lru_cache(maxsize=4)
def _longest_first(values: tuple[str, ...]) -> tuple[Secret, ...]:
    secrets = sorted({value for value in values if not _is_path(value)}, key=len, reverse=True)
    return tuple(Secret(value) for value in secrets)


def _is_path(value: str) -> bool:
    """Whether a variable names a file (SSL_KEY, …_CREDENTIALS): its name is no secret, and may stand in messages."""
    return value.startswith(("/", "./", "~"))
