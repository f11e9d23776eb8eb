"""Kinds of layers in a reader's words."""

from kvscope.report.words import has_words, name_of, say

_RECURRENT, _INDEXED = "recurrent_", "_indexed"


def layer_kind(kind: str) -> str:
    """What layers of that kind keep, its parts joined by a plus; a kind without a name as it is written."""
    return " + ".join(map(_part, kind.split("+")))


def _part(kind: str) -> str:
    if has_words(f"layer_kind.{kind}"):
        return name_of("layer_kind", kind)
    if kind.startswith(_RECURRENT):
        return say("layer_kind.recurrent", form=kind.removeprefix(_RECURRENT).replace("_", " "))
    if kind.endswith(_INDEXED):
        return say("layer_kind.indexed", kind=_part(kind.removesuffix(_INDEXED)))
    return kind.replace("_", " ")
