"""What a running llama.cpp server was started with, where its process can be seen: what its answers leave open (cache
types, the size of the cache, batch sizes) is on its command line and in its environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.engine.registry import EngineChoice, Served
from kvscope.engine.server_address import ServerAddress
from kvscope.engine.server_process import find_process
from kvscope.errors import InvalidSettings, KvscopeError
from kvscope.experiment.watch_settings import contradiction, settings_in_force
from kvscope.experiment.watch_target import target_of
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.scenario import SettingValue

LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """``settings`` None: not known, for the reason ``why_not``."""

    settings: Mapping[str, SettingValue] | None
    why_not: str | None = None

    def check_same(self, now: "StartedWith") -> None:
        """Raises InvalidSettings where it was started with others since. What is not known is no difference."""
        if self.settings is None or now.settings is None or dict(self.settings) == dict(now.settings):
            return
        names = sorted(
            name
            for name in self.settings.keys() | now.settings.keys()
            if self.settings.get(name) != now.settings.get(name)
        )
        raise InvalidSettings(
            f"The server was started anew with other settings since this design was begun: {', '.join(names)}.",
            hint="Run the same command again: what the server is now is measured as a design of its own.",
        )


def started_with(choice: EngineChoice, served: Served, model: ModelSpec | None) -> StartedWith:
    """Read now. Where the model is known, what was read must come to the slots that the server states. Raises as
    ``find_process``."""
    if choice.server_url is None or not (served.build or "").startswith(LLAMA_CPP):
        return StartedWith(settings=None, why_not="only of llama.cpp is it known how to read that.")
    address = ServerAddress(choice.server_url)
    process = find_process(choice.pid, address.host, address.port).identity
    if process is None:
        return StartedWith(settings=None, why_not="its process is not seen.")
    props = {
        "total_slots": served.settings.get("n_parallel"),
        "default_generation_settings": {"n_ctx": served.settings.get("n_ctx_seq")},
    }
    found = settings_in_force(target_of(process, address.url, LLAMA_CPP), "", props, {})
    if found.settings is None or model is None:
        return StartedWith(settings=found.settings, why_not=found.why_not)
    try:
        worked_out = predict(model, engine=LLAMA_CPP, settings=found.settings, tokens=0).to_dict()
    except KvscopeError as error:
        return StartedWith(settings=None, why_not=error.message)
    why_not = contradiction(worked_out, found.slots)
    return StartedWith(settings=None if why_not else found.settings, why_not=why_not)
