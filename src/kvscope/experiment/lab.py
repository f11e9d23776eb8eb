"""The main job: four questions about one model on one engine, small enough for a laptop and three minutes."""

from dataclasses import replace

from kvscope.experiment.design import Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

LAB_MINUTES = 3.0
LAB_CONTEXT_TOKENS = 4096


def lab_designs(model: ModelSpec, engine: str) -> tuple[Design, ...]:
    """The lab's designs, the most telling first: a time limit cuts from the end."""
    limit = model.trained_context_tokens or LAB_CONTEXT_TOKENS
    designs = [
        _design("context_limit", _up_to(limit, (512, 2048, 8192)), repeats=3),
        _design("input_length", _up_to(limit // 2, (128, 512, 1024, 2048)), repeats=3),
        # By now everything is warm: what these two would warm up again costs time and tells nothing.
        _design("release", (8192, 0), repeats=1, warmups=0),
        _design("output_length", _up_to(limit // 2, (16, 64, 256)), repeats=3, warmups=0),
    ]
    if engine != "llama.cpp":
        return tuple(design for design in designs if design.kind.name in ("input_length", "output_length"))
    return tuple(_for_llama_cpp(design, limit) for design in designs)


def _design(name: str, levels: tuple[int, ...], *, repeats: int, warmups: int = 1) -> Design:
    return make_design(design_kind(name), levels=levels, repeats=repeats, warmups=warmups)


def _up_to(limit: int, levels: tuple[int, ...]) -> tuple[int, ...]:
    kept = tuple(level for level in levels if level <= limit)
    return kept or (limit,)


def _for_llama_cpp(design: Design, limit: int) -> Design:
    settings: dict[str, SettingValue] = dict(design.held.settings)
    if design.factor.name != "n_ctx":
        settings["n_ctx"] = min(limit, LAB_CONTEXT_TOKENS)
    if design.factor.name != "cache_ram_mib":
        # Copies of old prompts are the release design's question; here they would be a second thing that varies.
        settings["cache_ram_mib"] = 0
    return replace(design, held=replace(design.held, settings=settings))
