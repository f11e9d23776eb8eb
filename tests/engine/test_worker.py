"""Settings by llama.cpp's names, on the real library's parameters where it is installed."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine import worker
from kvscope.engine.worker import SettingError, apply_settings

pytestmark = pytest.mark.engine


@pytest.fixture
def params() -> Any:
    return pytest.importorskip("xllamacpp").CommonParams()


def test_every_kind_of_setting_arrives(params: Any) -> None:
    import xllamacpp

    apply_settings(
        params,
        {
            "n_ctx": 4096,
            "kv_unified": True,
            "cache_type_k": "q8_0",
            "cache_type_v": "iq4_nl",
            "flash_attn": "on",
            "load_mode": "none",
            "n_threads": 3,
            "n_threads_batch": 5,
            "seed": 11,
            "sampling.temp": 0,
            "slot_prompt_similarity": 0.5,
            "chat_template": "chatml",
        },
    )
    assert params.n_ctx == 4096
    assert params.kv_unified is True
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert params.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_IQ4_NL
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert params.load_mode == xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    assert params.cpuparams.n_threads == 3
    assert params.cpuparams_batch.n_threads == 5
    assert params.sampling.seed == 11
    assert params.sampling.temp == 0
    assert params.slot_prompt_similarity == 0.5
    assert params.chat_template == "chatml"


@pytest.mark.parametrize(("word", "member"), [("mmap+mlock", "MMAP_MLOCK"), ("dio", "DIRECT_IO"), ("auto", "AUTO")])
def test_words_of_the_flags(params: Any, word: str, member: str) -> None:
    import xllamacpp

    apply_settings(params, {"load_mode": word})
    assert params.load_mode == getattr(xllamacpp.llama_load_mode, f"LLAMA_LOAD_MODE_{member}")


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"n_contex": 1}, "Did you mean 'n_ctx'"),
        ({"zzz": 1}, "no setting 'zzz'"),
        ({"sampling.zzz": 1}, "no setting 'sampling.zzz'"),
        ({"__class__": 1}, "no setting '__class__'"),
        ({"n_ctx": "8k"}, "n_ctx takes a whole number, not '8k'"),
        ({"n_ctx": True}, "whole number"),
        ({"n_ctx": 2**40}, "does not take 1099511627776"),
        ({"kv_unified": "false"}, "true or false, not 'false'"),
        ({"kv_unified": 1}, "true or false"),
        ({"rope_freq_base": "x"}, "a number"),
        ({"chat_template": 5}, "a text"),
        ({"cache_type_k": "q9"}, "It takes: f32, f16, bf16, q8_0"),
        ({"cache_type_k": "q4_k"}, "does not take 'q4_k'"),
        ({"flash_attn": "maybe"}, "It takes: auto, off, on"),
        ({"load_mode": None}, "load_mode does not take None"),
        ({"flash_attn": True}, "It takes: auto, off, on"),
        ({"port": 80}, "set by the port argument"),
        ({"model": "x"}, "the model to measure"),
    ],
)
def test_what_is_refused(params: Any, settings: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingError) as caught:
        apply_settings(params, settings)
    assert part in str(caught.value)


def test_the_worker_carries_nothing_of_kvscope() -> None:
    """What it holds before a model is loaded is the baseline of every measurement."""
    tree = ast.parse(Path(worker.__file__).read_text())
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else name.name) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    foreign = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert foreign == {"xllamacpp"}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("sys.modules['xllamacpp'] = None", "missing_dependency"),
        # Installed, and itself in want of something: what a missing system library looks like.
        ("sys.path.insert(0, {folder!r})", "broken_dependency"),
    ],
)
def test_without_a_library_that_works_it_says_so(tmp_path: Path, code: str, kind: str) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    lines = [
        "import runpy, sys",
        code.format(folder=str(tmp_path)),
        f"runpy.run_path({worker.__file__!r}, run_name='__main__')",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    reply = json.loads(ran.stdout)
    assert (reply["event"], reply["kind"]) == ("error", kind)
    if kind == "broken_dependency":
        assert "libgomp" in reply["message"]
