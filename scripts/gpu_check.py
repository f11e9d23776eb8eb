"""Is the memory on a GPU what kvscope predicts? For a machine with an NVIDIA GPU, torch and transformers; needs no
network.

Models with random weights, tiny ones and ones shaped like published models of about a billion parameters, each run at
several lengths in bfloat16 with torch's own attention (sdpa). Side by side, in bytes: what kvscope predicts for the
cache, what its tensors hold, what torch's allocator has given out, and what the driver says of this process and of the
device (NVML through nvidia-ml-py, else nvidia-smi).

    python scripts/gpu_check.py --out gpu_check.json
    python scripts/gpu_check.py --device cpu --quick       # the same without a GPU: cache tensors only

Exit code 0: the tensors of every cache that was made are exactly as large as predicted. 1: some are not, or none was
made. 2: it cannot run here. Shortest first over all models, until ``--seconds`` are over; what was left out is said.
"""

import argparse
import gc
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MIB = 1024**2
DECODED_TOKENS = 8

# Shapes: Llama 3.2 1B, Gemma 3 1B (windows of 512, one layer of six full), LFM2 1.2B (convolutions and attention); the
# latent one is DeepSeek V3's kind of layer at about half a billion parameters.
LARGE: dict[str, dict[str, Any]] = {
    "llama-1b": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768,
    },
    "latent-500m": {
        "model_type": "deepseek_v3", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": 768,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 704, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "vocab_size": 102400, "max_position_embeddings": 131072,
    },
    "lfm2-1b": {
        "model_type": "lfm2", "hidden_size": 2048, "intermediate_size": 12288, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "vocab_size": 65536,
        "max_position_embeddings": 128000,
        "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    },
}  # fmt: skip
_SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
_SMALL_LATENT = {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 4, "moe_intermediate_size": 32,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "llama-tiny": {**LARGE["llama-1b"], **_SMALL, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16},
    "gemma3-tiny": {**LARGE["gemma3-1b"], **_SMALL, "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 64},
    "latent-tiny": {**LARGE["latent-500m"], **_SMALL, **_SMALL_LATENT},
    "lfm2-tiny": {
        **LARGE["lfm2-1b"], **_SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
    },
}  # fmt: skip
LENGTHS = (128, 1024, 8192, 32_768)
QUICK_LENGTHS = (17, 100, 300)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Bytes now. None: nobody here says."""

    allocated: int | None = None
    reserved: int | None = None
    allocated_peak: int | None = None
    process: int | None = None
    device: int | None = None

    def above(self, before: "Readings") -> dict[str, int | None]:
        """Each less what it was ``before``."""
        pairs = [(name, value, getattr(before, name)) for name, value in asdict(self).items()]
        return {name: None if value is None or was is None else value - was for name, value, was in pairs}


@dataclass(kw_only=True)
class Case:
    """One cache: of a model, at a length, straight after prefill or after some decoding."""

    model: str
    tokens: int
    sequences: int
    phase: str
    predicted_bytes: int
    predicted_storage_bytes: int
    tensor_bytes: int
    storage_bytes: int
    grown: dict[str, int | None]

    @property
    def is_equal(self) -> bool:
        return self.tensor_bytes == self.predicted_bytes and self.storage_bytes == self.predicted_storage_bytes


@dataclass
class Driver:
    """What the driver says of memory: of this process and of the whole device. ``said``: from where, or why nothing."""

    read: Callable[[], tuple[int | None, int | None]]
    said: str


@dataclass
class Check:
    device: str
    cases: list[Case] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.is_equal for case in self.cases)


def find_driver(torch: Any, device: str) -> Driver:
    """NVML through its Python package; else the program nvidia-smi; else nothing, and why."""
    if device != "cuda":
        return Driver(lambda: (None, None), "no GPU is used")
    found = torch.cuda.get_device_properties(0)
    uuid = str(getattr(found, "uuid", ""))
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        handle = next((each for each in handles if uuid and uuid in str(pynvml.nvmlDeviceGetUUID(each))), handles[0])
    except Exception as error:
        return _nvidia_smi(uuid, f"nvidia-ml-py: {error}")

    def read() -> tuple[int | None, int | None]:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        mine = [each.usedGpuMemory for each in running if each.pid == os.getpid()]
        return (mine[0] if mine else None), int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    return Driver(read, f"NVML, driver {pynvml.nvmlSystemGetDriverVersion()}")


def _nvidia_smi(uuid: str, why: str) -> Driver:
    if shutil.which("nvidia-smi") is None:
        return Driver(lambda: (None, None), f"nothing: {why}; and there is no nvidia-smi")

    def rows(query: str) -> list[list[str]]:
        command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        return [[part.strip() for part in line.split(",")] for line in text.splitlines()]

    def read() -> tuple[int | None, int | None]:
        mine = [used for pid, used in rows("compute-apps=pid,used_memory") if pid == str(os.getpid())]
        devices = [used for gpu, used in rows("gpu=uuid,memory.used") if not uuid or uuid in gpu]
        return _mib(mine), _mib(devices)

    return Driver(read, f"nvidia-smi, in whole MiB ({why})")


def _mib(numbers: list[str]) -> int | None:
    return int(numbers[0]) * MIB if numbers and numbers[0].isdigit() else None


class Runner:
    """Runs models on one device, each kept once it was made."""

    def __init__(self, device: str, check: Check) -> None:
        import torch

        self.torch = torch
        self.device = device
        self.check = check
        self.driver = find_driver(torch, device)
        self._models: dict[str, Any] = {}

    def readings(self) -> Readings:
        process, whole = self.driver.read()
        if self.device != "cuda":
            return Readings(process=process, device=whole)
        cuda = self.torch.cuda
        cuda.synchronize()
        return Readings(
            allocated=cuda.memory_allocated(),
            reserved=cuda.memory_reserved(),
            allocated_peak=cuda.max_memory_allocated(),
            process=process,
            device=whole,
        )

    def model(self, name: str, config: dict[str, Any]) -> Any:
        """The model, with random weights, made when it is first asked for."""
        if name not in self._models:
            self._models[name] = self._make(name, config)
        return self._models[name]

    def _make(self, name: str, config: dict[str, Any]) -> Any:
        import transformers

        import kvscope

        self.empty()
        before = self.readings()
        rest = {key: value for key, value in config.items() if key != "model_type"}
        made = transformers.AutoConfig.for_model(config["model_type"], **rest)
        self.torch.manual_seed(0)
        with self.torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(
                made, dtype=self.torch.bfloat16, attn_implementation="sdpa"
            ).eval()
        predicted = kvscope.predict(kvscope.load_model(config), engine="transformers", dtype="bfloat16")
        held = {each.data_ptr(): each.numel() * each.element_size() for each in model.parameters()}
        self.check.weights.append(
            {
                "model": name,
                "predicted_bytes": predicted.component_bytes("weights"),
                "parameter_bytes": sum(held.values()),
                "grown": self.readings().above(before),
            }
        )
        return model

    def run(self, name: str, config: dict[str, Any], tokens: int, sequences: int) -> Iterator[Case]:
        """The cache of a prompt, and the same after some tokens were decoded."""
        from kvscope.engine.transformers_caches import CACHE_NAMES

        model, torch = self.model(name, config), self.torch
        self.empty()
        before = self.readings()
        ids = torch.randint(0, config["vocab_size"], (sequences, tokens), device=self.device)
        parameters = inspect.signature(model.forward).parameters
        argument = next(each for each in CACHE_NAMES if each in parameters)  # "cache" since transformers 5.24
        with torch.inference_mode():
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            cache = getattr(out, argument)
            yield self._case(name, config, tokens, sequences, "prefill", cache, before)
            for _ in range(DECODED_TOKENS):
                ids = out.logits[:, -1:].argmax(-1)
                out = model(input_ids=ids, use_cache=True, **{argument: cache})
                cache = getattr(out, argument)
            yield self._case(name, config, tokens + DECODED_TOKENS, sequences, "decode", cache, before)

    def _case(
        self, name: str, config: dict[str, Any], tokens: int, sequences: int, phase: str, cache: Any, before: Readings
    ) -> Case:
        import kvscope
        from kvscope.engine.transformers_caches import counted, tensors_of

        predicted = kvscope.predict(
            kvscope.load_model(config),
            engine="transformers",
            tokens=tokens,
            sequences=sequences,
            phase=phase,
            dtype="bfloat16",
        ).to_dict()["totals"]
        found = counted(tensors_of(self.torch, cache))
        return Case(
            model=name,
            tokens=tokens,
            sequences=sequences,
            phase=phase,
            predicted_bytes=predicted["cache_bytes"],
            predicted_storage_bytes=predicted["kv_cache_storage_bytes"],
            tensor_bytes=found["shape_bytes"],
            storage_bytes=found["storage_bytes"],
            grown=self.readings().above(before),
        )

    def empty(self) -> None:
        """Give back what is held of the last case, and begin peaks anew."""
        gc.collect()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()


def check_all(device: str, *, quick: bool, seconds: float, now: Callable[[], float] = time.monotonic) -> Check:
    """Every model at the shortest length, then at the next, until the time is over."""
    check = Check(device)
    runner = Runner(device, check)
    models = TINY if quick else {**TINY, **LARGE}
    until_s = now() + seconds
    took_s: dict[str, float] = {}
    for tokens in QUICK_LENGTHS if quick else LENGTHS:
        for name, config in models.items():
            what = f"{name} at {tokens:,} tokens"
            begun_s = now()
            # A case takes as long as the same model's last one and its share more of tokens, at least.
            if begun_s + took_s.get(name, 0.0) * 4 > until_s:
                check.skipped.append(f"{what}: no time left")
                continue
            try:
                check.cases += runner.run(name, config, tokens, 2 if tokens < 1000 else 1)
            except runner.torch.OutOfMemoryError as error:
                check.skipped.append(f"{what}: no room on the device ({str(error).splitlines()[0]})")
            took_s[name] = now() - begun_s
    write_environment(check, runner)
    return check


def write_environment(check: Check, runner: Runner) -> None:
    """What it ran on, kept with the check."""
    import transformers

    import kvscope

    name = runner.torch.cuda.get_device_name(0) if check.device == "cuda" else platform.processor() or "CPU"
    check.environment = {
        "device": name,
        "torch": runner.torch.__version__,
        "transformers": transformers.__version__,
        "kvscope": kvscope.__version__,
        "python": platform.python_version(),
        "driver_memory_from": runner.driver.said,
        "dtype": "bfloat16",
        "attention": "sdpa",
    }


COLUMNS = ("allocated", "allocated_peak", "reserved", "process", "device")


def table(check: Check) -> str:
    """The cases, one line each; sizes in MiB, what grew since before the case."""
    head = f"{'model':<12}{'tokens':>8}{'n':>3} {'phase':<8}{'predicted':>11}{'tensors':>11}{'storage':>11}"
    lines = [head + "".join(f"{name:>15}" for name in COLUMNS) + "  equal"]
    for case in check.cases:
        sizes = (case.predicted_bytes, case.tensor_bytes, case.storage_bytes)
        shown = "".join(f"{size / MIB:>11.3f}" for size in sizes)
        grown = "".join(f"{_shown(case.grown[name]):>15}" for name in COLUMNS)
        head = f"{case.model:<12}{case.tokens:>8}{case.sequences:>3} {case.phase:<8}"
        lines.append(f"{head}{shown}{grown}  {'yes' if case.is_equal else 'NO'}")
    for each in check.weights:
        grown = ", ".join(f"{name} {_shown(each['grown'][name])}" for name in COLUMNS)
        sizes = f"predicted {each['predicted_bytes'] / MIB:.3f}, parameters {each['parameter_bytes'] / MIB:.3f}"
        lines.append(f"weights of {each['model']}: {sizes}; grown: {grown}")
    return "\n".join([*lines, *(f"left out: {each}" for each in check.skipped)])


def _shown(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:.3f}"


def as_json(check: Check) -> dict[str, Any]:
    """Everything, in bytes."""
    cases = [{**asdict(case), "is_equal": case.is_equal} for case in check.cases]
    return {
        "schema": "kvscope.gpu_check/1",
        "passed": check.passed,
        "environment": check.environment,
        "cases": cases,
        "weights": check.weights,
        "skipped": check.skipped,
    }


def why_not(device: str) -> str | None:
    """Why it cannot run here; None where it can."""
    try:
        import torch
        import transformers  # noqa: F401 (only whether it is there)
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'kvscope[transformers]'"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU here (use --device cpu to check cache tensors alone)"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models and short prompts only")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin nothing that ends after this (default 200)")
    parser.add_argument("--out", type=Path, help="write everything as JSON to this file")
    given = parser.parse_args()
    reason = why_not(given.device)
    if reason is not None:
        sys.stderr.write(f"gpu_check cannot run: {reason}\n")
        return 2
    check = check_all(given.device, quick=given.quick, seconds=given.seconds)
    sys.stdout.write(f"{json.dumps(check.environment)}\n{table(check)}\n")
    unequal = [case for case in check.cases if not case.is_equal]
    sys.stdout.write(f"{len(check.cases)} caches, {len(unequal)} not as predicted, {len(check.skipped)} left out.\n")
    if given.out is not None:
        given.out.write_text(json.dumps(as_json(check), indent=1) + "\n")
    return 0 if check.passed else 1


if __name__ == "__main__":
    sys.exit(main())
