"""Write the lists of docs/reference/models.md, which are the code's own tables: python tools/make_model_list.py

What stands between the two marks is replaced; tests/test_docs.py fails while it is not what the code says.
"""

import importlib
from pathlib import Path

from kvscope.model.families import MODULES
from kvscope.model.layer_kinds import GGUF_FAMILIES, Family

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- made by tools/make_model_list.py: begin -->", "<!-- made by tools/make_model_list.py: end -->"
WINDOWS = {
    "period": "full layers at a fixed distance, windows between them",
    "stated": "windows where the file says so",
    "all": "a window in every layer",
    "chunked": "chunks, and full layers at a fixed distance",
}
RECURRENT = {
    "all": "recurrent state in every layer",
    "no_kv_heads": "recurrent state in some layers, attention in the others",
    "no_kv_heads_no_ffn": "recurrent state, attention or a feed-forward alone in each layer",
    "interval": "recurrent state, with attention at a fixed distance",
    "both": "recurrent state and attention in every layer",
}


def main() -> None:
    PAGE.write_text(with_lists(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_lists(page: str) -> str:
    """The page with its lists as the code has them now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{config_list()}\n{gguf_list()}\n{END}{rest.partition(END)[2]}"


def config_list() -> str:
    """Every model_type that is read, by the module that reads it."""
    lines = [
        f"## From config.json: {sum(len(types) for types in MODULES.values())} model types",
        "",
        "| `model/families/` | what they are | `model_type` |",
        "| --- | --- | --- |",
    ]
    for module, types in MODULES.items():
        lines.append(f"| `{module}.py` | {_summary(module)} | {' '.join(f'`{name}`' for name in sorted(types))} |")
    return "\n".join(lines) + "\n"


def _summary(module: str) -> str:
    """The first sentence of the module's docstring."""
    text = importlib.import_module(f"kvscope.model.families.{module}").__doc__ or ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def gguf_list() -> str:
    """Every GGUF architecture that is read, by what its layers keep."""
    groups: dict[str, list[str]] = {}
    for name, family in GGUF_FAMILIES.items():
        groups.setdefault(_layers(family), []).append(name)
    lines = [f"## From GGUF: {len(GGUF_FAMILIES)} architectures", "", "| layers | `general.architecture` |"]
    lines.append("| --- | --- |")
    lines += [f"| {layers} | {' '.join(f'`{name}`' for name in sorted(names))} |" for layers, names in groups.items()]
    return "\n".join(lines) + "\n"


def _layers(family: Family) -> str:
    attention = "a latent in every layer" if family.is_latent else "full attention"
    kept = [WINDOWS.get(family.windows, attention)]
    if family.recurrent != "none":
        latent = "; the attention keeps a latent" if family.is_latent else ""
        kept = [f"{RECURRENT[family.recurrent]} ({family.state}){latent}"]
    return ", ".join(kept) + (", experts" if "expert_count" in family.handled else "")


if __name__ == "__main__":
    main()
