"""Predicting and reporting must work where no engine is installed, and looking things up must stay quick."""

import subprocess
import sys
from pathlib import Path

import pytest

ENGINES = ("xllamacpp", "torch", "transformers", "vllm")
HEAVY = (
    *ENGINES,
    "numpy",
    "scipy",
    "altair",
    "vl_convert",
    "jinja2",
    "httptools",
    "uvloop",
    "gguf",
    "safetensors",
    "requests",
)

BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: blocked by this test", name=name)
sys.meta_path.insert(0, Refuse())
{code}
"""
TINY = Path(__file__).parent / "golden" / "gguf" / "tiny-gemma3.gguf"
CONFIG = Path(__file__).parent / "golden" / "models" / "llama-3.1-8b" / "config.json"
CHAT = Path(__file__).parent / "prompt" / "data" / "conversations" / "weather.json"
RECORD = Path(__file__).parent / "golden" / "records" / "lab.db"
CONFIG_ENGINES = ("logical", "transformers", "vllm", "sglang")
USE_OF_LIBRARY = f"""
import kvscope
model = kvscope.load_model({str(TINY)!r})
kvscope.predict(model, engine="llama.cpp").to_dict()
kvscope.fit(model, budget_bytes=2**30).to_dict()
kvscope.explain("failed to allocate buffer of size 137438953504", model).to_dict()
"""


def run_blocked(code: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=set(blocked), code=code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def command(*words: str) -> str:
    return f"sys.argv = {['kvscope', *words]!r}\nfrom kvscope.cli.main import main\nmain()"


@pytest.mark.parametrize(
    ("code", "blocked"),
    [
        ("import kvscope", HEAVY),
        (command("--help"), HEAVY),
        (command("show", str(TINY)), HEAVY),
        *((command("predict", str(CONFIG), "--engine", engine, "--tokens", "1k"), HEAVY) for engine in CONFIG_ENGINES),
        (command("predict", str(TINY), "--engine", "llama.cpp", "--tokens", "1k"), HEAVY),
        (command("predict", str(TINY), "--engine", "llama.cpp", "--what-if", "--json"), HEAVY),
        (command("fit", str(TINY), "--budget", "1GiB"), HEAVY),
        (command("prompt", "--model", "bytes:", "--raw", "--tokens", "300"), HEAVY),
        (command("explain", "failed to allocate buffer of size 137438953504"), HEAVY),
        (command("count", str(TINY.parent / "README.md"), "--model", "bytes:", "--context", "8k"), HEAVY),
        (command("count", "--conversation", str(CHAT), "--model", "bytes:", "--no-template"), HEAVY),
        (command("reuse", str(CHAT), str(CHAT), "--model", str(TINY), "--tokenizer", "bytes:"), ENGINES),
        (USE_OF_LIBRARY, HEAVY),
        (command("export", "--records", str(RECORD)), ENGINES),
        (command("report", "--records", str(RECORD), "--format", "text"), ENGINES),
    ],
    ids=[
        "import",
        "help",
        "show",
        *(f"predict-{engine}" for engine in CONFIG_ENGINES),
        "predict-llama.cpp",
        "what-if",
        "fit",
        "prompt",
        "explain",
        "count",
        "count-conversation",
        "reuse",
        "library",
        "export",
        "report",
    ],
)
def test_works_without(code: str, blocked: tuple[str, ...]) -> None:
    done = run_blocked(code, blocked)
    assert done.returncode == 0, done.stderr
    assert "blocked by this test" not in done.stderr


def test_the_block_does_block() -> None:
    assert "blocked by this test" in run_blocked("import numpy", ("numpy",)).stderr


def test_an_engine_that_is_not_installed_is_named_with_what_to_install(tmp_path: Path) -> None:
    done = run_blocked(command("lab", "--model", str(TINY), "--out", str(tmp_path / "lab")), ENGINES)
    assert done.returncode == 2, done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "lab").exists()
