"""A stand-in for the program llama-server, for machines that have only the xllamacpp package: real llama.cpp answers.

It takes llama-server's own flags (as its --help spells them), refuses any other the way llama-server does, writes
llama.cpp's log to stderr and ends on SIGTERM. Started by the tests as an ordinary program.
"""

import argparse
import os
import signal
import sys
import threading
from typing import Any, NoReturn


class LikeLlamaServer(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\n")
        sys.exit(1)


def on_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"unknown value {text!r}")
    return text == "on"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = LikeLlamaServer(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    add = parser.add_argument
    add("--version", action="store_true")
    add("-m", "--model")
    add("--host")
    add("--port", type=int)
    add("-c", "--ctx-size", dest="n_ctx", type=int)
    add("-np", "--parallel", dest="n_parallel", type=int)
    add("-b", "--batch-size", dest="n_batch", type=int)
    add("-ub", "--ubatch-size", dest="n_ubatch", type=int)
    add("-t", "--threads", dest="n_threads", type=int)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", dest="n_gpu_layers", type=int)
    add("-tb", "--threads-batch", dest="n_threads_batch", type=int)
    add("-s", "--seed", dest="seed", type=int)
    add("-ctk", "--cache-type-k", dest="cache_type_k")
    add("-ctv", "--cache-type-v", dest="cache_type_v")
    add("-cram", "--cache-ram", dest="cache_ram_mib", type=int)
    add("-ctxcp", "--ctx-checkpoints", dest="n_ctx_checkpoints", type=int)
    add("-fa", "--flash-attn", dest="flash_attn", choices=("on", "off", "auto"))
    add("-lm", "--load-mode", dest="load_mode")
    add("-lv", "--verbosity", dest="verbosity", type=int)
    add("-fit", "--fit", dest="fit_params", type=on_off)
    add("-kvu", "--kv-unified", dest="kv_unified", action="store_true")
    add("-no-kvu", "--no-kv-unified", dest="kv_unified", action="store_false")
    add("--swa-full", dest="swa_full", action="store_true")
    add("-nr", "--no-repack", dest="no_extra_bufts", action="store_true")
    add("--repack", dest="no_extra_bufts", action="store_false")
    add("--warmup", dest="warmup", action="store_true")
    add("--no-warmup", dest="warmup", action="store_false")
    add("--cache-prompt", dest="cache_prompt", action="store_true")
    add("--no-cache-prompt", dest="cache_prompt", action="store_false")
    add("--metrics", dest="endpoint_metrics", action="store_true")
    add("--slot-save-path", dest="slot_save_path")
    add("--slots", dest="endpoint_slots", action="store_true")
    add("--no-slots", dest="endpoint_slots", action="store_false")
    return parser.parse_args(arguments)


_ENUMS = {
    "cache_type_k": ("cache_type_k", "ggml_type", "GGML_TYPE_{}", {}),
    "cache_type_v": ("cache_type_v", "ggml_type", "GGML_TYPE_{}", {}),
    "load_mode": ("load_mode", "llama_load_mode", "LLAMA_LOAD_MODE_{}", {"mmap+mlock": "MMAP_MLOCK"}),
    "flash_attn": (
        "flash_attn_type",
        "llama_flash_attn_type",
        "LLAMA_FLASH_ATTN_TYPE_{}",
        {"on": "ENABLED", "off": "DISABLED"},
    ),
}


def params_of(given: dict[str, Any], xllamacpp: Any) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = given.pop("model")
    params.hostnames = [given.pop("host", "127.0.0.1")]
    for name, value in given.items():
        if name in _ENUMS:
            attribute, enum, pattern, words = _ENUMS[name]
            setattr(
                params, attribute, getattr(getattr(xllamacpp, enum), pattern.format(words.get(value, value.upper())))
            )
        elif name == "n_threads":
            params.cpuparams.n_threads = value
        elif name == "n_threads_batch":
            params.cpuparams_batch.n_threads = value
        elif name == "seed":
            params.sampling.seed = value
        else:
            setattr(params, name, value)
    return params


def main() -> None:
    given = vars(parse(sys.argv[1:]))
    import xllamacpp

    if given.pop("version", False):
        info = xllamacpp.BUILD_INFO
        sys.stderr.write(f"version: {info['build_number']} ({info['commit']})\n")
        sys.stderr.write(f"built with {info['compiler']} for {info['build_target']}\n")
        return
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    try:
        server = xllamacpp.Server(params_of(given, xllamacpp))
    except RuntimeError:
        sys.exit(1)  # the log says why
    told_to_end.wait()
    del server
    os._exit(0)


if __name__ == "__main__":
    main()
