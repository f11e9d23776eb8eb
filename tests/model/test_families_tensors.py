"""Names, shapes and kinds of every tensor of a family, against the modules of transformers 5.24.0 themselves.

tests/golden/transformers_tensors.json lists, for cases of tests/golden/transformers, what the library's model of that
config has: [name with {} for the layer's number, shape, whether it is the weight of an nn.Linear, layers]. It was
written from model.named_parameters() on the meta device; tensors without elements are left out.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model

GOLDEN = Path(__file__).parent.parent / "golden"
TENSORS: dict[str, list[list[Any]]] = json.loads((GOLDEN / "transformers_tensors.json").read_text(encoding="utf-8"))

Tensor = tuple[tuple[int, ...], bool]


def library_tensors(case: str) -> dict[str, Tensor]:
    found = {}
    for name, shape, is_linear, layers in TENSORS[case]:
        for layer in layers or [None]:
            found[name.replace("{}", str(layer))] = (tuple(shape), is_linear)
    return found


@pytest.mark.parametrize("case", sorted(TENSORS))
def test_every_tensor_is_named_and_shaped_as_in_the_library(case: str) -> None:
    golden = json.loads((GOLDEN / "transformers" / f"{case}.json").read_text(encoding="utf-8"))
    model = load_model({"model_type": golden["model_type"], **golden["config_kwargs_given"]})
    predicted: dict[str, Tensor] = {}
    for group in model.weights:
        for layer in group.layers or (None,):
            name = group.name.replace("{}", str(layer))
            assert name not in predicted
            predicted[name] = (group.shape, group.kind in ("linear", "head"))
    assert predicted == library_tensors(case)
