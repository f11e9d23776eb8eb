"""Write what stands between the marks of docs/reference/designs.md, which are the designs' own words:
python tools/make_designs_page.py

tests/test_designs_page.py fails while the page is not what the code says, or leaves a design out.
"""

import re
from pathlib import Path

from kvscope.engine.registry import ENGINES
from kvscope.errors import BadDesign
from kvscope.experiment.design import REQUEST_FACTORS, DesignKind
from kvscope.experiment.designs import DESIGNS, design_kind, kv_dtype
from kvscope.experiment.retrieval_asked import GIVEN

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "designs.md"
BLOCK = re.compile(r"<!-- design (\w+): begin -->\n.*?<!-- design \1: end -->", re.DOTALL)


def main() -> None:
    PAGE.write_text(with_designs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_designs(page: str) -> str:
    """The page with each design as the code has it now."""
    return BLOCK.sub(lambda found: block(found[1]), page)


def block(name: str) -> str:
    """What one design says of itself, between its marks."""
    kind = DESIGNS[name]
    lines = [
        f"<!-- design {name}: begin -->",
        f"**{kind.question}**",
        "",
        f"- Factor: {factor_text(kind)}.",
        f"- By default: {condition_text(kind)}; {kind.default_repeats} "
        f"{'repeat' if kind.default_repeats == 1 else 'repeats'}.",
        f"- Says: {kind.says}",
        "- Holds fixed:",
        *(f"  - {text}" for text in kind.holds),
        "- Could mislead:",
        *(f"  - {text}" for text in kind.confounders),
        *engine_lines(name, kind),
        f"<!-- design {name}: end -->",
    ]
    return "\n".join(lines)


def factor_text(kind: DesignKind) -> str:
    """The factor and its levels, the baseline first."""
    if not kind.factor:
        return "two of your own"
    where = "of the requests" if kind.factor in REQUEST_FACTORS else "of the engine, set when it loads"
    return f"`{kind.factor}`, {where}; levels {levels_text(kind)}"


def levels_text(kind: DesignKind) -> str:
    """As they are written on a command line."""
    return ", ".join(f"`{str(level).lower()}`" for level in kind.default_levels)


def condition_text(kind: DesignKind) -> str:
    """The requests of one trial, and what is set besides; without what the factor decides."""
    condition = kind.default_condition
    lengths = {
        "prompt_tokens": f"{condition.prompt_tokens:,} prompt tokens",
        "output_tokens": f"{condition.output_tokens} output tokens",
    }
    if kind.factor == GIVEN:
        lengths = {"": "every question of the bundled wiki's small stage", "output_tokens": lengths["output_tokens"]}
    asked = " and ".join(text for name, text in lengths.items() if name != kind.factor)
    if condition.is_conversation:
        asked += f" in each turn, {condition.num_requests} turns" if condition.num_requests > 1 else " in each turn"
    elif condition.num_requests > 1 and not condition.is_load:
        asked += f", {condition.num_requests} conversations"
    settings = "".join(f", `{name}` {value}" for name, value in condition.settings.items())
    return asked + settings


def engine_lines(name: str, kind: DesignKind) -> list[str]:
    """How other engines are asked, where it differs, and why some are not."""
    forms: dict[str, list[str]] = {}
    for engine in ENGINES:
        try:
            form = design_kind(name, engine)
        except BadDesign as error:
            text = f"not asked. {error.message}"
        else:
            if (form.factor, form.default_levels) == (kind.factor, kind.default_levels):
                continue
            text = f"`{form.factor}`, levels {levels_text(form)}."
        forms.setdefault(text, []).append(engine)
    if not forms:
        return []
    return ["- On other engines:", *(f"  - {', '.join(engines)}: {text}" for text, engines in forms.items())]


# What is installed where the page is made decides nothing of it.
kv_dtype._is_there = lambda module: True

if __name__ == "__main__":
    main()
