"""RWKV 6 and 7 in llama.cpp's graphs. Orders of b11549, read from recorded graphs (tests/golden/llamacpp/README.md)."""

from collections.abc import Callable

from kvscope.predict.graphs.recurrent import States
from kvscope.predict.graphs.tensor import Tensor, into_cache, like, node, view
from kvscope.predict.graphs.weights import Block

LERPS_6, LERPS_7 = 5, 6


class RwkvLayers:
    """Time mixing and channel mixing, layer by layer. The values of the first layer are mixed into the later ones'."""

    def __init__(self, states: States, head_size: int, *, is_seventh: bool) -> None:
        self.states = states
        self.head_size = head_size
        self.is_seventh = is_seventh
        self.first_values: Tensor | None = None

    def layer(self, block: Block, hidden: Tensor, chosen: Callable[[Tensor], Tensor] | None) -> Tensor:
        """``hidden`` [width, steps, sequences] and so the result, but [width, outputs] after the last layer, where
        ``chosen`` takes the rows that are put out."""
        states = self.states
        width, steps, sequences = hidden.shape[:3]
        graph = states.graph
        shifts = view(states.load(2 * width), width, 2, sequences)
        old = states.load(self.head_size * width)
        row = block.norm("attn_norm", hidden, "NORM")
        before = self._shifted(view(shifts, width, 1, sequences), row)
        mixed = (self._time_mix_7 if self.is_seventh else self._time_mix_6)(block, row, before, old)
        middle = like("ADD", view(mixed, width, steps, sequences), hidden)
        second = block.norm("attn_norm_2", middle, "NORM")
        last = (width, 1, sequences)
        shift = node("CONCAT", (width, 2, sequences), view(row, *last), view(second, *last))
        graph.expand(into_cache(view(shift, width * 2 * sequences)))
        before = self._shifted(view(shifts, *last), second)
        flat = [view(part, width, states.tokens) for part in (middle, second, before)]
        if chosen is not None:
            flat = [chosen(part) for part in flat]
        middle, second, before = flat
        found = like("ADD", self._channel_mix(block, second, before), middle)
        return found if chosen is not None else view(found, width, steps, sequences)

    def _shifted(self, first: Tensor, row: Tensor) -> Tensor:
        width, steps, sequences = row.shape[:3]
        return (
            like("CONCAT", row, first)
            if steps == 1
            else node("CONCAT", row.shape, first, view(row, width, steps - 1, sequences))
        )

    def _channel_mix(self, block: Block, row: Tensor, before: Tensor) -> Tensor:
        change = like("SUB", before, row)

        def blend() -> Tensor:
            return like("ADD", like("MUL", change), row)

        gate = None
        if not self.is_seventh:
            gate = like("UNARY", block.linear("channel_mix_receptance", blend()))
        wide = like("SQR", like("UNARY", block.linear("channel_mix_key", blend())))
        found = block.linear("channel_mix_value", wide)
        return found if gate is None else like("MUL", gate, found)

    def _heads(self, tensor: Tensor) -> Tensor:
        return view(tensor, self.head_size, tensor.shape[0] // self.head_size, self.states.tokens)

    def _time_mix_6(self, block: Block, row: Tensor, before: Tensor, old: Tensor) -> Tensor:
        tokens = self.states.tokens
        width = row.shape[0]
        change = view(like("SUB", before, row), width, tokens)
        flat = view(row, width, tokens)
        lerped = like("ADD", like("MUL", change), flat)
        rank = block.rows("time_mix_w1") // LERPS_6
        small = like("UNARY", block.linear("time_mix_w1", lerped))
        apart = node("CONT", (rank, 1, tokens, LERPS_6), view(small, rank, 1, tokens, LERPS_6))
        mixes = like("ADD", node("MUL_MAT", (width, 1, tokens, LERPS_6), apart))
        mixes = like("ADD", like("MUL", mixes, view(change, width, 1, tokens)), view(flat, width, 1, tokens))
        key, value, receptance = (
            self._heads(block.linear(f"time_mix_{name}", view(mixes, width, tokens)))
            for name in ("key", "value", "receptance")
        )
        small = like("UNARY", block.linear("time_mix_decay_w1", view(mixes, width, tokens)))
        decay = like("ADD", block.linear("time_mix_decay_w2", small))
        decay = self._heads(like("UNARY", like("UNARY", like("UNARY", decay))))
        found = self._state_rule("RWKV_WKV6", width, key, value, receptance, decay, old)
        normed = self._output_norm(block, found, width)
        gate = like("UNARY", block.linear("time_mix_gate", view(mixes, width, tokens)))
        return block.linear("time_mix_output", like("MUL", normed, gate))

    def _state_rule(self, op: str, width: int, *sources: Tensor) -> Tensor:
        states = self.states
        found = node(op, (width, states.tokens + self.head_size * states.sequences), *sources)
        states.keep(found, width * self.head_size * states.sequences)
        return found

    def _output_norm(self, block: Block, found: Tensor, width: int) -> Tensor:
        tokens = self.states.tokens
        normed = like("NORM", self._heads(view(found, width, tokens)))
        return like("ADD", like("MUL", view(normed, width, tokens)))

    def _time_mix_7(self, block: Block, row: Tensor, before: Tensor, old: Tensor) -> Tensor:
        tokens = self.states.tokens
        width, steps, sequences = row.shape[:3]
        change = like("SUB", before, row)
        mixes = like("ADD", like("MUL", node("REPEAT", (width, steps, sequences, LERPS_7), change)), row)

        def mixed() -> Tensor:
            return view(mixes, width, tokens)

        receptance = self._heads(block.linear("time_mix_receptance", mixed()))
        decay = block.linear("time_mix_w2", like("UNARY", block.linear("time_mix_w1", mixed())))
        decay = self._heads(like("UNARY", like("SCALE", like("UNARY", like("ADD", decay)))))
        key = block.linear("time_mix_key", mixed())
        inward = mixed()
        value = block.linear("time_mix_value", inward)
        if self.first_values is None:
            self.first_values = value
        else:
            share = like("UNARY", like("ADD", block.linear("time_mix_v2", block.linear("time_mix_v1", inward))))
            value = like("ADD", value, like("MUL", like("SUB", self.first_values, value), share))
        rate = like("UNARY", like("ADD", block.linear("time_mix_a2", block.linear("time_mix_a1", mixed()))))
        removed = like("L2_NORM", self._heads(like("MUL", key)))
        weighed = like("MUL", key)
        key = like("ADD", key, like("SUB", like("MUL", rate, weighed), weighed))
        key, value = self._heads(key), self._heads(value)
        found = self._state_rule(
            "RWKV_WKV7",
            width,
            receptance,
            decay,
            key,
            value,
            like("UNARY", removed),
            like("MUL", removed, self._heads(rate)),
            old,
        )
        normed = self._output_norm(block, found, width)
        bonus = like("MUL", like("MUL", key, receptance))
        bonus = node("SUM_ROWS", (1, *bonus.shape[1:]), bonus)
        found = like("ADD", normed, view(like("MUL", value, bonus), width, tokens))
        if block.has("time_mix_g1.weight"):
            gate = block.linear("time_mix_g2", like("UNARY", block.linear("time_mix_g1", mixed())))
            found = like("MUL", found, gate)
        return block.linear("time_mix_output", found)
