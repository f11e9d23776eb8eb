"""quantization_config → the exact bytes of each group of weights of a model that is known from its config.

A quantiser replaces the matrices of linear layers and leaves the rest: embeddings, norms, biases, convolutions, and the
modules its config names. Which those are decides as much as the format does, so a name in the list that fits no
module of the model (another naming, most likely) makes the bytes unknown, and so does everything else that is not
certain: the reason is said, and no number.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvscope.dtypes import dtype_named
from kvscope.model.quantisation_formats import Format, NotKnown, format_of
from kvscope.model.spec import ModelSpec, WeightGroup

# Routers decide by small differences: most quantisers leave them, and say so in their lists.
_ROUTERS = ("gate", "router", "shared_expert_gate", "classifier")
# Parts a list may name although a text model has no module of them.
_ABSENT = re.compile(r"vision|visual|audio|image|speech|mtp|multi_modal|mm_|lm_head|embed|norm|rotary|correction_bias")
_LAYER = re.compile(r"\.layers\.(\d+)(?:\.|$)")
_NAME = re.compile(r"model\.[\w.-]*\.\d+\.[\w.-]*\w")
_PLAIN_PATTERN = re.compile(r"[\w.*-]+")
_NESTED_REPEAT = re.compile(r"[*+}]\)?[*+{]|\)[*+{]")
_BY_NUMBER = re.compile(r"[\d\\\[?]|\.\.")
_MOST_REPEATS = 3
_MOST_PATTERNS = 20_000
# GPT-2's linear layers have their weight the other way round.
_TRANSPOSED = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The bytes of a group of weights. ``num_quantised``: how many of its matrices are quantised."""

    group: WeightGroup
    num_bytes: int
    num_quantised: int


def quantised_weights(model: ModelSpec, dtype: str | None = None) -> tuple[StoredGroup, ...] | str:
    """Bytes of every group of ``model.weights`` under ``model.quantisation``; a text where they are not known.

    ``dtype``: the format of what is not quantised; None: the model's own.
    """
    if model.quantisation is None:
        return "the model has no quantization_config"
    if not model.weights:
        return f"the tensors of {model.architecture} are not known, so neither is what is quantised"
    dtype = dtype or model.dtype
    if dtype is None:
        dtype = "bfloat16" if model.quantisation.get("quant_method") == "mxfp4" else None
    if dtype is None:
        return "the config does not say the format of what is not quantised"
    try:
        form = format_of(model.quantisation)
        if model.architecture in _TRANSPOSED:
            raise NotKnown("linear layers of this model have inputs and outputs the other way round")
        return tuple(_Matcher(form, model).stored(dtype))
    except NotKnown as error:
        return f"quantization_config: {error}"


class _Matcher:
    """Decides for each module whether it is quantised, and counts."""

    def __init__(self, form: Format, model: ModelSpec) -> None:
        self.form = form
        self.model = model
        if len(form.skips) > _MOST_PATTERNS:
            raise NotKnown(f"it names {len(form.skips)} modules")
        # Lists of every layer's modules are long; those are found by name, the few others are tried one by one.
        self.named = {pattern for pattern in form.skips if form.matching != "modelopt" and _NAME.fullmatch(pattern)}
        self.tests = [(pattern, _test(pattern, form)) for pattern in form.skips if pattern not in self.named]
        self.targets = None if form.targets is None else [_test(pattern, form) for pattern in form.targets]
        self.fitting: set[str] = set()
        # Where nothing depends on a layer's number, one layer stands for all.
        self.is_uniform = not any(_BY_NUMBER.search(pattern) for pattern in (*form.skips, *(form.targets or ())))

    def stored(self, dtype: str) -> Iterator[StoredGroup]:
        """``dtype``: the format of what is not quantised."""
        plain = dtype_named(dtype).block_bytes
        found = [
            self._group(group, plain, dtype_named(group.kept_dtype(dtype)).block_bytes) for group in self.model.weights
        ]
        self._check_all_fit()
        yield from found

    def _group(self, group: WeightGroup, plain: int, size: int) -> StoredGroup:
        """``plain``: bytes of an element of the model's format; ``size``: of this group's where it is not quantised."""
        copies = max(1, len(group.layers))
        each = group.num_elements // copies
        names = _modules(group)
        if self.is_uniform:
            quantised = copies if self._is_quantised(group, names[0]) else 0
        else:
            quantised = sum(self._is_quantised(group, name) for name in names)
        if not quantised:
            return StoredGroup(group=group, num_bytes=group.num_elements * size, num_quantised=0)
        total = (copies - quantised) * each * size
        for outputs, inputs, count in self._matrices(group):
            num_bytes = self.form.matrix(outputs, inputs, plain)
            if num_bytes is None:
                raise NotKnown(f"{group.name} [{outputs}, {inputs}] cannot be packed as {self.form.name}")
            total += quantised * count * num_bytes
        return StoredGroup(group=group, num_bytes=total, num_quantised=quantised)

    def _is_quantised(self, group: WeightGroup, module: str) -> bool:
        skipped = self._is_skipped(group, module)
        if group.kind == "experts":
            if self.form.experts == "no" and not skipped:
                raise NotKnown(f"how {self.form.name} stores experts is not known")
            return not skipped and self._is_target(group, module)
        if self.form.experts == "only" or skipped:
            return False
        if module.rpartition(".")[2] in _ROUTERS and len(group.shape) > 1:
            if not self._leaves_routers():
                raise NotKnown(f"it does not say whether {module} is quantised")
            return False
        if group.kind == "head":
            if not self.form.head and self.form.skips and self.form.name.startswith("fp8"):
                raise NotKnown("its list of modules to leave does not name the output matrix")
            return self.form.head and self._is_target(group, module)
        return group.kind == "linear" and self._is_target(group, module)

    def _leaves_routers(self) -> bool:
        """DeepSeek's files name no modules; their routers are stored as they are."""
        return not self.form.skips and self.model.family.startswith("deepseek") and self.form.name.startswith("fp8")

    def _is_target(self, group: WeightGroup, module: str) -> bool:
        return self.targets is None or any(test(name) for test in self.targets for name in _names(group, module))

    def _is_skipped(self, group: WeightGroup, module: str) -> bool:
        """Experts count as skipped when all their names are; some alone is not known."""
        names = _names(group, module)
        hits = {name for name in names if self._is_named(name)}
        for pattern, test in self.tests:
            matched = {name for name in names if test(name)}
            if matched:
                self.fitting.add(pattern)
            hits |= matched
        if group.kind != "experts":
            return bool(hits)
        whole = {module, module.rpartition(".")[0]} & hits
        singles = set(names) - {module, module.rpartition(".")[0]}
        if hits and not whole and hits != singles:
            raise NotKnown(f"it names some of the experts in {module}")
        return bool(hits)

    def _is_named(self, name: str) -> bool:
        if self.form.matching == "compressed-tensors":
            fitting = self.named & {name}
        else:
            parts = name.split(".")
            fitting = self.named & {".".join(parts[:end]) for end in range(2, len(parts) + 1)}
        self.fitting |= fitting
        return bool(fitting)

    def _matrices(self, group: WeightGroup) -> list[tuple[int, int, int]]:
        """(outputs, inputs, how many) of the matrices that one tensor of the group stands for."""
        if group.kind != "experts":
            if len(group.shape) != 2:
                raise NotKnown(f"{group.name} is no matrix")
            return [(group.shape[0], group.shape[1], 1)]
        if len(group.shape) != 3:
            raise NotKnown(f"{group.name} is no stack of matrices")
        count, first, second = group.shape
        hidden, last = self.model.hidden_size, group.name.removesuffix(".weight").rpartition(".")[2]
        if last == "down_proj" and hidden in (first, second):
            return [(hidden, second if first == hidden else first, count)]
        if last in ("gate_up_proj", "up_proj") and hidden in (first, second):
            width = first if second == hidden else second
            return [(width // 2, hidden, 2 * count)] if last == "gate_up_proj" else [(width, hidden, count)]
        raise NotKnown(f"which sides of {group.name} are inputs and outputs is not known")

    def _check_all_fit(self) -> None:
        """A name that fits nothing would mean another naming of modules: then what is left out is not known."""
        for pattern in self.form.skips:
            layer = _LAYER.search(pattern)
            beyond = layer is not None and int(layer[1]) >= len(self.model.layers)
            if pattern not in self.fitting and not beyond and not _ABSENT.search(pattern):
                raise NotKnown(f"it leaves out {pattern[:60]!r}, which fits no module of the model")


def _modules(group: WeightGroup) -> list[str]:
    name = group.name.removesuffix(".weight")
    return [name.replace("{}", str(index)) for index in group.layers] or [name]


def _names(group: WeightGroup, module: str) -> tuple[str, ...]:
    """What a list may call a module. Fused experts are linear layers of their own in checkpoints."""
    if group.kind != "experts":
        return (module,)
    parent, _, last = module.rpartition(".")
    singles = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    return (module, parent, *(f"{parent}.0.{single}" for single in singles))


def _test(pattern: str, form: Format) -> Callable[[str], bool]:
    """Whether a module's name fits ``pattern``, in the manner of the library that wrote the list."""
    if form.matching == "modelopt":
        return lambda name: fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    if form.matching == "compressed-tensors":
        if not pattern.startswith("re:"):
            return lambda name: name == pattern
        return _compiled(pattern.removeprefix("re:"), "{}")
    if not _PLAIN_PATTERN.fullmatch(pattern):
        raise NotKnown(f"the pattern {pattern[:60]!r} in its list of modules is not understood")
    # As transformers reads its lists: from the start to the end of a name's part, or as the end of the whole name.
    matches = _compiled(pattern, r"(?:{})(?:(?<=\.)|(?=\.|$))")
    return lambda name: matches(name) or name.endswith(pattern)


def _compiled(pattern: str, frame: str) -> Callable[[str], bool]:
    repeats = pattern.count("*") + pattern.count("+") + pattern.count("{")
    if repeats > _MOST_REPEATS or _NESTED_REPEAT.search(pattern) or len(pattern) > 300:
        raise NotKnown(f"the pattern {pattern[:60]!r} is too intricate to be tried")
    try:
        compiled = re.compile(frame.replace("{}", pattern))
    except re.error:
        raise NotKnown(f"the pattern {pattern[:60]!r} is no regular expression") from None
    return lambda name: compiled.match(name) is not None
