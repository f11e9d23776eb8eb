"""The English templates of what the library raises, warns of and records: the texts that ``kvscope.language.shown``
finds again when it speaks another language.

They are read out of the code where they are written, as f-strings: ``f"There is no {kind} called {name!r}."`` becomes
``There is no {kind} called {name}.``; nothing in the library has to know of translation.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvscope import errors

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kvscope"
# Packages whose texts are many enough for a catalogue of their own.
LARGE = ("model", "prompt", "predict", "engine", "experiment")
# Modules whose tables say what every number means: a catalogue of their own too.
DEFINING = ("metrics.py", "quality_metrics.py")
# Where sentences are written that models read, and data of tests: none of them is said to people.
FOR_MODELS = re.compile(
    r"quality/|selftest/truth|prompt/(exact_length|growing|texts)|engine/fake|retrieval_prompts|tokenizers/server"
)
# Packages whose texts go another way: words by their slugs, help by its option.
OTHER_WAYS = ("report",)
ERRORS = frozenset(
    name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
)
# Functions that raise, or record, the text they are given.
TELLING = frozenset(
    {"malformed", "refuse", "fail", "error", "warn", "refused", "unavailable", "ReaderError", "note_that"}
)
# Arguments that hold sentences for people, whatever takes them.
SENTENCES = frozenset(
    "hint because why why_not cost risk advice says question confounders holds next_step also message doubt "
    "source".split()
)
# What joins a text to the one before it: there it is taken apart when it is shown.
_JOIN = re.compile(r"\A[;.] ")
# A sentence from its capital letter, or a value, to its full stop; no pattern of one.
_WHOLE = re.compile(r"[A-Z{](?!.*(?:\\[dswbS]|\(\?))[^\n]*\.\Z")
# A part of a sentence, no pattern of one.
_PART = re.compile(r"[a-z][^\\|?]*\Z")
# Functions that only return sentences of these kinds, by how their names end.
RETURNING = (
    "_hint",
    "_advice",
    "_because",
    "_why",
    "why_not",
    "unavailable",
    "_message",
    "_doubt",
    "_reason",
    "_note",
    "where",
    "_each",
)


def templates() -> dict[str, str]:
    """Every template of the library, braces of its own doubled, and the catalogue it belongs into: that of the first
    package that says it."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0]
        if package not in OTHER_WAYS:
            domain = f"messages_{package if package in LARGE else 'other'}"
            if path.name in DEFINING:
                domain = "definitions"
            module = ast.parse(path.read_text(encoding="utf-8"))
            said = [*_of_module(module)]
            if package == "predict" or path.stem.startswith("explain_"):
                said += _formulas(module)
            if package != "cli" and not FOR_MODELS.search(path.relative_to(SOURCE).as_posix()):
                said += _whole_sentences(module)
            for text in said:
                if _has_words(text):
                    found.setdefault(_JOIN.sub("", text.strip()), domain)
    return found


def _of_module(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.FunctionDef) and node.name.endswith(RETURNING):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _texts(inner.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_sentence_name(node):
            yield from _texts(node.value)


def _formulas(module: ast.Module) -> Iterator[str]:
    """Every f-string of a module, and every text of some words: a prediction's reasons are put together of several."""
    aside = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    aside |= {id(part) for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            yield _template(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in aside:
            text = node.value if _PART.match(node.value) else ""
            yield from _texts(node) if len(re.findall(r"\b[a-z]{2,}\b", text)) >= 3 else ()


def _whole_sentences(module: ast.Module) -> Iterator[str]:
    """Texts that are sentences by their form, wherever they stand: from a capital letter to a full stop."""
    aside = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}  # docstrings
    aside |= {id(part) for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            text = "" if id(node) in aside else next(iter(_texts(node)), "")
            if _WHOLE.match(text) and len(re.findall(r"\b[a-z]{2,}\b", text)) >= 3:
                yield text


def _is_sentence_name(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if any(isinstance(target, ast.Subscript) and ast.unparse(target.value).endswith("sources") for target in targets):
        return True  # where a fact of a model was read
    names = [target.id.lower().strip("_") for target in targets if isinstance(target, ast.Name)]
    endings = ("_hint", "_hints", "_advice", "_because", "definitions", "convention")
    return any(name in SENTENCES or name.endswith(endings) for name in names)


def _of_call(node: ast.Call) -> Iterator[str]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in ERRORS or name in TELLING or name == "__init__":
        for argument in node.args:
            yield from _texts(argument)
    for keyword in node.keywords:
        if keyword.arg in SENTENCES:
            yield from _texts(keyword.value)


def _texts(node: ast.AST) -> Iterator[str]:
    """Templates in an expression; those inside the values of another one too."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value.replace("{", "{{").replace("}", "}}")
    elif isinstance(node, ast.JoinedStr):
        yield _template(node)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _texts(part.value)
    elif isinstance(node, ast.Compare | ast.Subscript | ast.Attribute):
        return
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _template(node: ast.JoinedStr) -> str:
    names: dict[str, str] = {}
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value).replace("{", "{{").replace("}", "}}"))
        elif isinstance(part, ast.FormattedValue):
            parts.append("{" + _name(part.value, names) + "}")
    return "".join(parts)


def _name(expression: ast.expr, names: dict[str, str]) -> str:
    """A readable name of a value, the same for the same expression, another for each other one."""
    written = ast.unparse(expression)
    if written not in names:
        wanted = next(_identifiers(expression), "value").strip("_").lower() or "value"
        taken, name = set(names.values()), wanted
        number = 2
        while name in taken:
            name, number = f"{wanted}{number}", number + 1
        names[written] = name
    return names[written]


def _identifiers(expression: ast.expr) -> Iterator[str]:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Call(args=arguments) if arguments:
            for argument in arguments:
                yield from _identifiers(argument)
        case _:
            yield from _inner(ast.iter_child_nodes(expression))


def _inner(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.expr):
            yield from _identifiers(node)


def _has_words(template: str) -> bool:
    """Whether there is something to translate: two words of letters, or one that is a sentence's."""
    if re.search(r"^\s*(import|from|def|PRAGMA|SELECT|INSERT)\b", template, re.MULTILINE):
        return False  # a program, not a sentence
    if "(?" in template:
        return False  # a regular expression
    bare = template
    while "{" in bare and "}" in bare[bare.index("{") :]:
        start = bare.index("{")
        bare = bare[:start] + bare[bare.index("}", start) + 1 :]
    words = [word for word in bare.split() if sum(map(str.isalpha, word)) >= 2]
    return len(words) >= 2


if __name__ == "__main__":
    for text, catalogue in sorted(templates().items()):
        print(f"{catalogue}: {text!r}")
