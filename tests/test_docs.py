"""The documents name what the code has: every error, every warning, every command, and the README's commands exist."""

import re
import tomllib
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import kvscope
from kvscope import errors, load_model
from kvscope.analysis.explain_llama_cpp import LLAMA_CPP_FORMS
from kvscope.analysis.explain_servers import SERVER_FORMS
from kvscope.cli.main import COMMANDS, cli
from kvscope.predict.allocation import (
    llama_cpp_offload,
    llama_cpp_settings,
    logical,
    ollama,
    sglang_settings,
    transformers,
    transformers_settings,
    vllm_settings,
)
from kvscope.predict.memory import READY_ENGINES
from kvscope.predict.prediction import Component
from kvscope.predict.question import Question
from kvscope.predict.summary import summarise_model
from kvscope.predict.what_if import what_if
from test_architecture import ALL_BASE, MAY_IMPORT

ROOT = Path(__file__).parent.parent
MESSAGES = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _error_classes() -> list[type[errors.KvscopeError]]:
    found = [getattr(errors, name) for name in vars(errors)]
    return [item for item in found if isinstance(item, type) and issubclass(item, errors.KvscopeError)]


@pytest.mark.parametrize("error", _error_classes(), ids=lambda error: error.__name__)
def test_every_error_is_documented_and_drawn(error: type[errors.KvscopeError]) -> None:
    assert f"| `{error.slug}` |" in MESSAGES
    assert error.__name__ in (errors.__doc__ or "")


def test_every_slug_is_one_errors_own() -> None:
    slugs = [error.slug for error in _error_classes()]
    assert len(slugs) == len(set(slugs))


def test_every_trial_warning_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "kvscope" / "experiment").glob("*.py")]
    slugs = set(re.findall(r"\.warn\(\s*\"([a-z-]+)\"", "".join(sources)))
    assert {"late-samples", "token-count-mismatch", "swap-active"} <= slugs
    assert {slug for slug in slugs if f"| `{slug}` |" not in MESSAGES} == set()


def test_every_kind_of_line_that_is_explained_is_documented() -> None:
    kinds = {form.kind for form in (*LLAMA_CPP_FORMS, *SERVER_FORMS)}
    for module in (ROOT / "src" / "kvscope" / "analysis").glob("explain_*.py"):
        kinds |= set(re.findall(r"kind=\"(\w+)\"", module.read_text(encoding="utf-8")))
    _, _, section = MESSAGES.partition("## Messages of engines")
    documented = set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    assert "kv_alloc_oom" in kinds
    assert kinds == documented


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_a_place_in_the_readme(name: str) -> None:
    command = cli.commands.get(name) or cli.get_command(None, name)  # type: ignore[arg-type]  # it needs no context
    assert command is not None
    assert command.help
    assert f"kvscope {name}" in README
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"kvscope {name}: {option.name} has no help"


def test_the_readme_starts_with_the_two_commands() -> None:
    commands = re.findall(r"^(?:\$ )?(make \w+|kvscope .*|pip .*)$", README, flags=re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (document.parent / target).exists(), f"{document}: {target}"


def test_every_place_that_names_an_engine_is_listed_for_whoever_adds_one() -> None:
    guide = (ROOT / "docs" / "design" / "adding-an-engine.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "kvscope"
    naming = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\"(llama\.cpp|fake)\"", path.read_text(encoding="utf-8"))
    ]
    # The rules themselves: the guide calls them predict/allocation/NAME.py.
    assert {path for path in naming if f"`{path}`" not in guide} == {"predict/allocation/llama_cpp.py"}


def test_every_dependency_is_imported_somewhere() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[><=~\[]", entry)[0] for entry in dependencies]
    names = [re.sub("-py(thon)?$", "", name).replace("-", "_") for name in names]  # vl-convert-python, markdown-it-py
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert [name for name in names if not re.search(rf"^\s*(import|from) {name}\b", code, re.MULTILINE)] == []


def test_files_named_in_the_design_documents_exist() -> None:
    source = ROOT / "src" / "kvscope"
    not_built = {"experiment/load.py"}
    for document in (ROOT / "docs" / "design").glob("*.md"):
        named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", document.read_text(encoding="utf-8")))
        named = {name for name in named - not_built if "NAME" not in name}
        missing = {name for name in named if not (source / name).exists() and not (ROOT / name).exists()}
        assert missing == set(), document


ENGINES_MD = (ROOT / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
# Engine → the module of its settings.
SETTINGS = {
    "llama.cpp": llama_cpp_settings,
    "ollama": ollama,
    "sglang": sglang_settings,
    "transformers": transformers_settings,
    "vllm": vllm_settings,
}


def _engine_sections() -> dict[str, str]:
    heads = re.split(r"^## (\S+)$", ENGINES_MD, flags=re.MULTILINE)
    return dict(zip(heads[1::2], heads[2::2], strict=True))


def _setting_rows(section: str) -> dict[str, str]:
    """Each setting of a section's table → its default, "" where the cell has none in backticks."""
    rows = re.findall(r"^\| (`.*?) †? ?\| (.*?) ?\| .+ \|$", section, flags=re.MULTILINE)
    defaults = {name: default for names, default in rows for name in re.findall(r"`([^`]+)`", names)}
    return {name: match[1] if (match := re.fullmatch(r"`([^`]+)`", text)) else "" for name, text in defaults.items()}


def _defaults(engine: str) -> dict[str, object]:
    """What the engine's settings are read as where none is given."""
    match engine:
        case "llama.cpp":
            return dict(llama_cpp_settings._DEFAULTS)
        case "sglang":
            found: object = sglang_settings.read_settings({}, "bfloat16", None)
        case "transformers":
            found = transformers_settings.read_settings({"cache_implementation": "quantized"})
        case "vllm":
            found = vllm_settings.read_settings({}, "bfloat16", None, None)
        case _:
            return {}
    values = {field.name: getattr(found, field.name) for field in fields(found)}  # type: ignore[arg-type]
    values |= {f"{name}_size": value for name, value in values.items() if name.endswith("_parallel")}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def test_every_engine_has_a_section_with_the_version_of_its_rules() -> None:
    sections = _engine_sections()
    assert sorted(sections) == sorted(READY_ENGINES)
    versions = {engine: str(module.VERSION) for engine, module in SETTINGS.items() if hasattr(module, "VERSION")}
    versions |= {"transformers": transformers.VERSION, "logical": logical.VERSION}
    assert versions.keys() == sections.keys()
    assert [engine for engine, version in versions.items() if f"Rules of: {version}" not in sections[engine]] == []
    for word in ("Exact", "Unknown"):
        assert [engine for engine, section in sections.items() if f"- **{word}**: " not in section] == []


@pytest.mark.parametrize("engine", SETTINGS)
def test_every_setting_is_documented_and_none_that_is_not_there(engine: str) -> None:
    module, section = SETTINGS[engine], _engine_sections()[engine]
    names = {*module.SETTING_NAMES, *(llama_cpp_offload.SETTING_NAMES if engine == "llama.cpp" else ())}
    assert sorted(_setting_rows(section)) == sorted(names)
    others = {*getattr(module, "ALIASES", ()), *getattr(module, "_ALIASES", ()), *getattr(module, "_UNSUPPORTED", ())}
    assert {name for name in others if f"`{name}`" not in section} == set()


@pytest.mark.parametrize("engine", SETTINGS)
def test_documented_defaults_are_the_ones_used(engine: str) -> None:
    documented = {name: text for name, text in _setting_rows(_engine_sections()[engine]).items() if text}
    used = {name: str(value).lower() for name, value in _defaults(engine).items() if name in documented}
    assert {name: documented[name] for name in used} == used
    assert used or engine == "ollama"


def test_the_list_of_models_is_the_codes_own() -> None:
    found = spec_from_file_location("make_model_list", ROOT / "tools" / "make_model_list.py")
    assert found is not None
    assert found.loader is not None
    tool = module_from_spec(found)
    found.loader.exec_module(tool)
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    assert page == tool.with_lists(page), "run: python tools/make_model_list.py"


TINY_GGUF = ROOT / "tests" / "golden" / "gguf" / "tiny-gemma3.gguf"
CONFIG = ROOT / "tests" / "golden" / "models" / "llama-3.1-8b" / "config.json"
# Under these keys stand names of other things than fields.
_FREE_KEYS = frozenset({"sources", "settings", "change", "numbers", "details"})


def _fields(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_fields, value))
    if not isinstance(value, dict):
        return set()
    inner = [_fields(entry) for key, entry in value.items() if key not in _FREE_KEYS]
    return set(value).union(*inner)


def _answers() -> dict[str, dict[str, Any]]:
    """One answer of each kind and engine."""
    gguf, config = load_model(TINY_GGUF), load_model(CONFIG)
    answers = {}
    for engine in READY_ENGINES:
        question = Question(
            model=gguf if engine in ("llama.cpp", "ollama") else config,
            engine=engine,
            tokens=100,
            available_bytes=2**36 if engine in ("vllm", "sglang") else None,
        )
        answers[engine] = question.ask().to_dict()
    answers["what if"] = {"what_if": [change.to_dict() for change in what_if(question)]}
    answers["fit"] = kvscope.fit(gguf, budget_bytes=2**30).to_dict()
    answers["explain"] = kvscope.explain("failed to allocate buffer of size 137438953504").to_dict()
    answers["show"] = summarise_model(gguf)
    return answers


def test_every_field_of_the_json_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "prediction.md").read_text(encoding="utf-8")
    for name, answer in _answers().items():
        assert {field for field in _fields(answer) if f"`{field}`" not in page} == set(), name
    components = get_args(Component)
    assert [component for component in components if f"`{component}`" not in page] == []
    totals = _answers()["logical"]["totals"]
    assert {f"{component}_bytes" for component in components} <= totals.keys()


def test_every_kind_of_cache_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    source = (ROOT / "src" / "kvscope" / "predict" / "kv_cache.py").read_text(encoding="utf-8")
    names = re.findall(r"return f?\"(\w+_\w+)\"", source.partition("def kind_name")[2])
    assert len(names) >= 8
    assert [name for name in names if f"| `{name}` |" not in glossary] == []


def test_the_numbers_of_why_memory_grows_come_out_of_the_library() -> None:
    """A row of the table: the model, then bytes of a token at first and at 32,768, a fixed part, and all of it."""
    page = (ROOT / "docs" / "explain" / "why-memory-grows.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([a-z0-9.-]+) \| .+? \| ([\d,]+) B \| ([\d,]+) B \| ([\d,]+) B \| ([\d,]+) B \|$", page, re.M
    )
    assert len(rows) == 7
    for name, *numbers in rows:
        model = load_model(ROOT / "tests" / "golden" / "models" / name / "config.json")
        found = kvscope.predict(model, engine="logical", tokens=32_768, dtype="bfloat16")
        ours = [found.slope_at(0), found.bytes_per_token, found.bytes_per_sequence, found.cache_bytes]
        assert [int(number.replace(",", "")) for number in numbers] == ours, name


MAP = (ROOT / "docs" / "design" / "map.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["model", "predict", "predict/allocation"])
def test_every_file_of_a_prediction_is_on_the_map(package: str) -> None:
    _, _, table = MAP.partition(f"### {package.split('/')[0]}\n")
    table = table.partition("\n## ")[0].partition("\n### ")[0]
    named = {name.rsplit("/", 1)[-1] for name in re.findall(r"`([\w/]+\.py)`", table)}
    files = {path.name for path in (ROOT / "src" / "kvscope" / package).glob("*.py")} - {"__init__.py"}
    assert files - named == set()


def test_the_maps_table_of_imports_is_the_one_that_is_enforced() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", MAP.partition("## Who may import whom")[2], flags=re.MULTILINE)
    documented = {}
    for packages, imports in rows[: len(set(MAY_IMPORT) - ALL_BASE)]:
        allowed = set(re.findall(r"`(\w+)`", imports)) | (ALL_BASE if "base" in imports else set())
        documented |= dict.fromkeys(re.findall(r"`(\w+)`", packages), allowed)
    enforced = {package: allowed for package, allowed in MAY_IMPORT.items() if package not in {*ALL_BASE, "cli"}}
    assert {package: documented.get(package) for package in enforced} == enforced


def test_files_of_the_tests_named_in_the_code_exist() -> None:
    """Docstrings say where a rule was measured: "tests/golden/llamacpp/README.md"."""
    named = {
        (path, name)
        for folder in ("src", "tools", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\btests/[\w./-]+\.(?:md|py|jsonl?)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert {(path.name, name) for path, name in named if not (ROOT / name).exists()} == set()
