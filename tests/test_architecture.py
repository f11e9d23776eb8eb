"""Who may import whom: the table of docs/design/map.md, held against the code."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kvscope"

BASE = {
    "errors": set(),
    "secret_spellings": set(),
    "hiding": {"secret_spellings"},
    "units": {"errors"},
    "dtypes": {"errors", "units"},
    "scenario": {"errors", "units", "dtypes"},
}
ALL_BASE = set(BASE)
MAY_IMPORT: dict[str, set[str]] = {
    **BASE,
    "model": ALL_BASE,
    "probe": ALL_BASE,
    "record": {"errors", "units", "secret_spellings", "hiding"},
    "prompt": ALL_BASE | {"model"},
    "predict": ALL_BASE | {"model"},
    "quality": ALL_BASE | {"prompt"},
    "engine": ALL_BASE | {"model", "prompt"},
    "analysis": ALL_BASE | {"model", "predict", "record"},
    "language": {"errors"},
    "report": ALL_BASE | {"language", "model", "predict", "record", "analysis"},
    "experiment": ALL_BASE | {"model", "prompt", "predict", "engine", "probe", "quality", "record", "analysis"},
    "selftest": ALL_BASE | {"prompt", "engine", "record"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
# The package's front door re-exports public names, and __main__ starts the command line.
EXEMPT = {"__init__", "__main__"}

# Packages that must work where nothing but the standard library is installed.
STANDARD_LIBRARY_ONLY = {
    "errors",
    "secret_spellings",
    "hiding",
    "units",
    "dtypes",
    "scenario",
    "language",
    "model",
    "predict",
    "record",
    "prompt",
}
# What may be borrowed all the same, inside the function that needs it: the package works without, that function not.
BORROWED = {
    "prompt": {"jinja2", "tokenizers", "tiktoken", "sentencepiece", "mistral_common"},
    "record": {"pyarrow", "duckdb"},
}


def _is_module(text: str) -> bool:
    return re.fullmatch(r"kvscope(\.[a-z_]+)+", text) is not None and text.split(".")[1] in MAY_IMPORT


def _modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        top = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if top not in EXEMPT:
            found.append((top, path))
    return found


def _imports(path: Path) -> list[tuple[int, str, int]]:
    """(line, imported module, level of a relative import) for every import, hidden in functions or not."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module or ""
            if module == "kvscope":
                found += [(node.lineno, f"kvscope.{name}", node.level) for name in names]
            else:
                found.append((node.lineno, module, node.level))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value):
            found.append((node.lineno, node.value, 0))  # what importlib would be given
    return found


def _complaints(top: str, path: Path) -> list[str]:
    complaints = []
    for line, module, level in _imports(path):
        if level:
            complaints.append(f"{path}:{line}: relative import")
        parts = module.split(".")
        if parts[0] != "kvscope" or parts[1:2] == ["__version__"]:
            continue
        target = parts[1]
        if target != top and target not in MAY_IMPORT[top]:
            complaints.append(f"{path}:{line}: {top} may not import {target}")
    return complaints


@pytest.mark.parametrize(("top", "path"), _modules(), ids=lambda value: str(getattr(value, "name", value)))
def test_imports_go_one_way(top: str, path: Path) -> None:
    assert top in MAY_IMPORT, f"{path} is in a package the table does not know"
    assert _complaints(top, path) == []


def test_the_table_has_no_cycle() -> None:
    assert list(TopologicalSorter(MAY_IMPORT).static_order())


def test_a_forbidden_import_is_found_wherever_it_hides(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from . import x\nimport kvscope.engine.base\ndef f():\n    from kvscope import probe\n"
        "    importlib.import_module('kvscope.experiment.runner')\n"
    )
    assert len(_complaints("analysis", bad)) == 4


@pytest.mark.parametrize(
    ("top", "path"),
    [pair for pair in _modules() if pair[0] in STANDARD_LIBRARY_ONLY],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_the_core_needs_only_the_standard_library(top: str, path: Path) -> None:
    own = sys.stdlib_module_names | {"kvscope"}
    assert {module.split(".")[0] for _, module, _ in _imports(path)} - own <= BORROWED.get(top, set())
    assert _imported_at_load(ast.parse(path.read_text(encoding="utf-8"))) - own == set()


def _imported_at_load(node: ast.AST) -> set[str]:
    """Top names of what is imported outside functions, what only type checkers see left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return set()
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return set().union(*(_imported_at_load(child) for child in ast.iter_child_nodes(node)))


def test_what_is_imported_at_load_is_seen_through_conditions_but_not_into_functions() -> None:
    code = "import a.b\ntry:\n    from c.d import e\nexcept ImportError:\n    pass\ndef f():\n    import g\n"
    assert _imported_at_load(ast.parse(code)) == {"a", "c"}


def test_no_file_is_named_for_nothing() -> None:
    vague = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    assert [path for _, path in _modules() if path.name in vague] == []


def test_every_module_says_what_it_is() -> None:
    silent = [p for p in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def _speaks_for_itself(path: Path, node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Errors are drawn as a tree, a family's function is named after its model type, and a form of message is its own
    pattern."""
    is_form = any(isinstance(d, ast.Call) and ast.unparse(d.func) == "form" for d in node.decorator_list)
    return path.name == "errors.py" or path.parent.name == "families" or is_form


def test_every_public_name_says_what_it_is() -> None:
    silent = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node) and not _speaks_for_itself(path, node)
    ]
    assert silent == []
