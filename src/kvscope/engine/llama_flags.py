"""Settings as flags of llama-server, and back: what a command of one's own sets already.

Flags and variables are spelled as its --help and tools/server/README.md have them (llama.cpp b11549).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kvscope.errors import InvalidSettings
from kvscope.scenario import SettingValue

# Our name → llama-server's flag.
_VALUE_FLAGS = {
    "n_ctx": "--ctx-size",
    "n_parallel": "--parallel",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "n_gpu_layers": "--gpu-layers",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "cache_ram_mib": "--cache-ram",
    "n_ctx_checkpoints": "--ctx-checkpoints",
    "n_cache_reuse": "--cache-reuse",
    "flash_attn": "--flash-attn",
    "flash_attn_type": "--flash-attn",
    "load_mode": "--load-mode",
    "seed": "--seed",
    "verbosity": "--verbosity",
    "n_predict": "--n-predict",
    "n_threads_http": "--threads-http",
    "checkpoint_min_step": "--checkpoint-min-step",
    "slot_prompt_similarity": "--slot-prompt-similarity",
    "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale",
    "sampling.temp": "--temp",
    "sampling.top_k": "--top-k",
    "sampling.top_p": "--top-p",
    "sampling.min_p": "--min-p",
}
# Our name → (flag when true, flag when false); None: that is what the program does anyway.
_SWITCHES: dict[str, tuple[str | None, str | None]] = {
    "kv_unified": ("--kv-unified", "--no-kv-unified"),
    "swa_full": ("--swa-full", None),
    "no_extra_bufts": ("--no-repack", "--repack"),
    "no_kv_offload": ("--no-kv-offload", "--kv-offload"),
    "warmup": ("--warmup", "--no-warmup"),
    "cache_prompt": ("--cache-prompt", "--no-cache-prompt"),
    "cache_idle_slots": ("--cache-idle-slots", "--no-cache-idle-slots"),
    "cont_batching": ("--cont-batching", "--no-cont-batching"),
    "ctx_shift": ("--context-shift", "--no-context-shift"),
    "check_tensors": ("--check-tensors", None),
    "embedding": ("--embedding", None),
    "endpoint_metrics": ("--metrics", None),
    "endpoint_props": ("--props", None),
    "endpoint_slots": ("--slots", "--no-slots"),
}


def flags(settings: Mapping[str, SettingValue]) -> Iterator[str]:
    """Command-line flags for the settings. Raises InvalidSettings for one that has no flag here."""
    for name, value in settings.items():
        if name in _VALUE_FLAGS:
            if value is None or isinstance(value, bool):
                raise InvalidSettings(f"{name} takes a value, not {value!r}.", hint="Correct it and start again.")
            yield from (_VALUE_FLAGS[name], str(value))
        elif name == "fit_params" or name in _SWITCHES:
            if not isinstance(value, bool):
                raise InvalidSettings(f"{name} takes true or false, not {value!r}.", hint="Correct it and start again.")
            if name == "fit_params":
                yield from ("--fit", "on" if value else "off")
            elif (flag := _SWITCHES[name][0 if value else 1]) is not None:
                yield flag
        else:
            raise InvalidSettings(
                f"kvscope knows no llama-server flag for the setting {name!r}.",
                hint=f"Put the flag itself into the engine's command. Known: {', '.join(known_settings())}.",
            )


def known_settings() -> tuple[str, ...]:
    """Names of settings that have a flag."""
    return tuple(sorted({"fit_params", *_VALUE_FLAGS, *_SWITCHES}))


# Other spellings of the flags above.
_OTHER_FLAGS = {
    "-c": "n_ctx",
    "-np": "n_parallel",
    "-b": "n_batch",
    "-ub": "n_ubatch",
    "-t": "n_threads",
    "-tb": "n_threads_batch",
    "-ngl": "n_gpu_layers",
    "--n-gpu-layers": "n_gpu_layers",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-cram": "cache_ram_mib",
    "-ctxcp": "n_ctx_checkpoints",
    "--swa-checkpoints": "n_ctx_checkpoints",
    "-fa": "flash_attn",
    "-lm": "load_mode",
    "-s": "seed",
    "-n": "n_predict",
    "--predict": "n_predict",
    "-sps": "slot_prompt_similarity",
    "--temperature": "sampling.temp",
}
_OTHER_SWITCHES: dict[str, tuple[str, SettingValue]] = {
    "-kvu": ("kv_unified", True),
    "-no-kvu": ("kv_unified", False),
    "-nr": ("no_extra_bufts", True),
    "-nkvo": ("no_kv_offload", True),
    "-kvo": ("no_kv_offload", False),
    "-cb": ("cont_batching", True),
    "-nocb": ("cont_batching", False),
    "--embeddings": ("embedding", True),
    "--no-mmap": ("load_mode", "none"),
    "--mmap": ("load_mode", "mmap"),
    "--mlock": ("load_mode", "mlock"),
}
# Settings of how it tells about itself: kvscope's own are in force, whatever the command says.
_KVSCOPES = ("verbosity", "endpoint_slots", "endpoint_metrics", "endpoint_props")
# What changes its memory and is not in a prediction.
_NOT_PREDICTED = (
    "--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "--mmproj", "-mm", "--mmproj-url", "-mmu",
    "--model-draft", "-md", "--spec-draft-model", "--pooling", "--override-kv", "--override-tensor", "-ot",
    "--cpu-moe", "-cmoe", "--n-cpu-moe", "-ncmoe", "--split-mode", "-sm", "--tensor-split", "-ts", "--device", "-dev",
    "--reranking", "--rerank", "--models-dir", "--models-preset",
)  # fmt: skip
_MODEL_FLAGS = ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file")
# llama-server's variables (LLAMA_ARG_...), which count where no flag says otherwise.
_ENVIRONMENT = {
    "LLAMA_ARG_CTX_SIZE": "n_ctx",
    "LLAMA_ARG_N_PARALLEL": "n_parallel",
    "LLAMA_ARG_BATCH": "n_batch",
    "LLAMA_ARG_UBATCH": "n_ubatch",
    "LLAMA_ARG_THREADS": "n_threads",
    "LLAMA_ARG_N_GPU_LAYERS": "n_gpu_layers",
    "LLAMA_ARG_CACHE_TYPE_K": "cache_type_k",
    "LLAMA_ARG_CACHE_TYPE_V": "cache_type_v",
    "LLAMA_ARG_CACHE_RAM": "cache_ram_mib",
    "LLAMA_ARG_FLASH_ATTN": "flash_attn",
    "LLAMA_ARG_LOAD_MODE": "load_mode",
}
_PROGRAM = re.compile(r"llama[-_]?server|^server")


def settings_of(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, SettingValue]:
    """The settings that a command of one's own makes, by our names: by its flags, else by its environment. A flag that
    is given twice counts as it was last."""
    by_flag = {flag: name for name, flag in _VALUE_FLAGS.items() if name != "flash_attn_type"} | _OTHER_FLAGS
    switches = {flag: (name, value) for name, pair in _SWITCHES.items() for flag, value in _with_value(pair)}
    found: dict[str, SettingValue] = {
        name: _typed(environment[variable]) for variable, name in _ENVIRONMENT.items() if environment.get(variable)
    }
    for flag, value in _flags_of(words):
        if flag in by_flag and value is not None:
            found[by_flag[flag]] = _typed(value)
        elif flag in ("--fit", "-fit"):
            found["fit_params"] = value == "on"
        elif flag in switches:
            found[switches[flag][0]] = switches[flag][1]
        elif flag in _OTHER_SWITCHES:
            name, meant = _OTHER_SWITCHES[flag]
            found[name] = meant
    return {name: value for name, value in found.items() if name not in _KVSCOPES}


def not_predicted(words: Sequence[str]) -> tuple[str, ...]:
    """Flags of a command that change its memory in a way that is not predicted."""
    return tuple(dict.fromkeys(flag for flag, _ in _flags_of(words) if flag in _NOT_PREDICTED))


def check_model(words: Sequence[str], model_path: str) -> None:
    """Raises InvalidSettings where the command names another model than is given to it."""
    for flag, value in _flags_of(words):
        is_same = (
            flag in ("-m", "--model") and value is not None and Path(value).resolve() == Path(model_path).resolve()
        )
        if flag in _MODEL_FLAGS and not is_same:
            raise InvalidSettings(
                f"The engine's command names a model ({flag} {value}), and {model_path} is to be measured.",
                hint="Leave it out of --engine-command, and give the model with --model.",
            )


def _with_value(pair: tuple[str | None, str | None]) -> Iterator[tuple[str, bool]]:
    for flag, value in zip(pair, (True, False), strict=True):
        if flag is not None:
            yield flag, value


def _flags_of(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each flag of llama-server's own, behind its program's word, with the word behind it where that may be its value.
    A wrapper's flags (taskset -c 0 ...) are not its."""
    after = _behind_program(words)
    for place, word in enumerate(after):
        flag, equals, value = word.partition("=")
        if not re.fullmatch(r"--?[A-Za-z][A-Za-z0-9-]*", flag):
            continue
        following = after[place + 1] if place + 1 < len(after) else None
        is_value = following is not None and (not following.startswith("-") or re.fullmatch(r"-[\d.]+", following))
        yield flag, value if equals else following if is_value else None


def _behind_program(words: Sequence[str]) -> Sequence[str]:
    for place in reversed(range(len(words))):
        word = words[place]
        if " " in word and "llama" in word:  # a shell's script
            try:
                return _behind_program(shlex.split(word))
            except ValueError:
                return ()
        if _PROGRAM.search(Path(word).name) and not word.startswith("-"):
            return words[place + 1 :]
    return ()


def _typed(value: str) -> SettingValue:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
