"""Settings as people write them, by the engine's own names: each with the values that were asked for."""

from collections.abc import Callable, Collection, Mapping

from kvscope.errors import BadDesign, UsageError
from kvscope.predict.allocation import llama_cpp_offload, vllm_settings
from kvscope.scenario import SettingValue

Several = Mapping[str, tuple[SettingValue, ...]]

# How settings as people write them become the engine's own names and values.
_CANONICAL: Mapping[str, Callable[[Mapping[str, SettingValue]], dict[str, SettingValue]]] = {
    "llama.cpp": llama_cpp_offload.settings_to_run,
    "vllm": vllm_settings.canonical_settings,
}


def has_own_names(engine: str) -> bool:
    """Whether the names and values of its settings are known here."""
    return engine in _CANONICAL


def own_names(engine: str, settings: Several) -> dict[str, tuple[SettingValue, ...]]:
    """The engine's own names for settings, whose values each may be several. Raises UsageError, UnknownName."""
    found: dict[str, tuple[SettingValue, ...]] = {}
    for given, values in settings.items():
        each = [_CANONICAL[engine]({given: value}) for value in values]
        name = next(iter(each[0]))
        if name in found:
            raise UsageError(f"{name} is given twice, in two spellings.", hint="Give it once.")
        found[name] = tuple(next(iter(one.values())) for one in each)
    return found


def with_command(varied: Collection[str], asked: Several, own: Several) -> Several:
    """The settings asked for, and those that the engine's command makes. Raises BadDesign, UsageError where it makes
    what is varied or asked otherwise."""
    for name, (value,) in own.items():
        if name in varied:
            raise BadDesign(
                f"{name} is what this design varies, and the engine's command sets it ({value}).",
                hint="Leave that flag out of --engine-command.",
            )
        if name in asked and asked[name] != (value,):
            raise UsageError(
                f"{name} is {value} by the engine's command, and {', '.join(map(str, asked[name]))} by --set.",
                hint="Give it once.",
            )
    return {**own, **asked}
