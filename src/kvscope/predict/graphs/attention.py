"""Attention as llama.cpp's graphs compute it: storing keys and values, rotating a quantised cache, flash attention or
the attention scores written out. Orders of b11549, read from recorded graphs (tests/golden/llamacpp/README.md)."""

from dataclasses import dataclass

from kvscope.predict.graphs.tensor import (
    FLOAT_BYTES,
    HALF_BYTES,
    INDEX_BYTES,
    Graph,
    Tensor,
    into_cache,
    like,
    node,
    source,
    view,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the settings make of the graph. ``tokens``: in one microbatch; ``outputs``: rows of logits; ``streams``:
    parts of the cache that sequences do not share; ``cells``: of a full-attention cache in one stream, ``window_cells``
    of a sliding-window one. ``rotated_key``, ``rotated_value``: sides of the matrices that rotate a quantised cache, 0:
    none. ``float_key``, ``float_value``: 32-bit caches, which flash attention takes in 16 bits."""

    tokens: int
    outputs: int
    sequences: int
    streams: int
    cells: int
    window_cells: int | None
    flash_attention: bool
    rotated_key: int = 0
    rotated_value: int = 0
    float_key: bool = False
    float_value: bool = False


@dataclass(slots=True, kw_only=True)
class CacheInput:
    """The inputs that one cache's layers share. ``widest_value``: of one token, in any layer."""

    cells: int
    keys: Tensor
    values: Tensor | None
    mask: Tensor
    key_rotation: Tensor | None
    value_rotation: Tensor | None
    widest_value: int


def cache_input(run: Run, cells: int, widest_value: int) -> CacheInput:
    """Indices, mask and rotation of one cache; ``widest_value`` 0: a cache without values (latents)."""
    tokens = run.tokens
    value_indices = tokens if run.flash_attention else tokens * widest_value
    return CacheInput(
        cells=cells,
        keys=source(tokens, element_bytes=INDEX_BYTES),
        values=source(value_indices, element_bytes=INDEX_BYTES) if widest_value else None,
        mask=source(
            cells,
            tokens // run.streams,
            1,
            run.streams,
            element_bytes=HALF_BYTES if run.flash_attention else FLOAT_BYTES,
        ),
        key_rotation=source(run.rotated_key, run.rotated_key) if run.rotated_key else None,
        value_rotation=source(run.rotated_value, run.rotated_value) if run.rotated_value else None,
        widest_value=widest_value,
    )


def rotated(matrix: Tensor | None, tensor: Tensor) -> Tensor:
    """``tensor``'s heads times the rotation, where there is one."""
    if matrix is None:
        return tensor
    side = matrix.shape[0]
    elements = tensor.num_bytes // tensor.element_bytes
    product = node("MUL_MAT", (side, elements // side), matrix, view(tensor, side, elements // side))
    return view(product, *tensor.shape)


def attend(
    graph: Graph,
    run: Run,
    cache: CacheInput,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    key_first: bool = False,
    softcap: bool = False,
    latent_out: int = 0,
    value_dim: int = 0,
) -> Tensor:
    """Attention of ``query`` [dim, heads, tokens]; ``key`` and ``value`` None: those of another layer. ``latent_out``:
    width a latent's values are expanded to. Returns [heads × dim, tokens]."""
    query = rotated(cache.key_rotation, query)
    graph.expand(query)
    is_latent = value is not None and cache.values is None
    if value is not None and not is_latent:
        value = rotated(cache.value_rotation, value)
    if key is not None:
        key = rotated(cache.key_rotation, key)
    pair = (key, value) if key_first else (value, key)
    for tensor in pair:
        if tensor is not None:
            graph.expand(tensor)
    if key is not None:
        graph.expand(into_cache(view(key, key.shape[0] * key.shape[1], run.tokens), cache.keys))
    if value is not None and not is_latent:
        graph.expand(into_cache(_stored(run, cache, value), cache.values))
    dim, heads = query.shape[0], query.shape[1]
    per_stream = run.tokens // run.streams
    asked = view(view(query, dim, heads, per_stream, run.streams), dim, per_stream, heads, run.streams)
    width = value_dim or (value.shape[0] if value is not None else dim)
    if run.flash_attention:
        found = _flash(run, cache, asked, width, latent_out, key_heads=key.shape[1] if key is not None else 0)
    else:
        found = _scores(run, cache, asked, width, latent_out, softcap=softcap)
    graph.expand(found)
    if not is_latent and cache.value_rotation is not None:
        found = rotated(cache.value_rotation, found)
    return found


def _stored(run: Run, cache: CacheInput, value: Tensor) -> Tensor:
    """The values as they are written: whole rows, or, transposed, each element by an index of its own."""
    width = value.shape[0] * value.shape[1]
    if run.flash_attention:
        return view(value, width, run.tokens)
    flat = view(value, width, run.tokens)
    owner = value.view_of
    if owner is not None and owner.num_bytes > value.num_bytes:
        flat = like("CONT", flat)  # a part of joint queries, keys and values
    if width < cache.widest_value:
        width = cache.widest_value
        flat = node("PAD", (width, run.tokens), flat)
    return view(flat, 1, width * run.tokens)


def _flash(run: Run, cache: CacheInput, asked: Tensor, width: int, latent_out: int, *, key_heads: int) -> Tensor:
    dim, per_stream, heads, streams = asked.shape
    halves: list[Tensor] = []
    for is_float, side in ((run.float_key, dim), (run.float_value, width)):
        if is_float and key_heads:
            halves.append(node("CPY", (side, cache.cells, key_heads, streams), element_bytes=HALF_BYTES))
    found = node("FLASH_ATTN_EXT", (width, heads, per_stream, streams), asked, *halves, cache.mask)
    if latent_out:
        expanded = node(
            "MUL_MAT", (latent_out, per_stream, heads, streams), view(found, width, per_stream, heads, streams)
        )
        found = like("CONT", view(expanded, latent_out, heads, per_stream, streams))
        width = latent_out
    return view(found, width * heads, per_stream * streams)


def _scores(run: Run, cache: CacheInput, asked: Tensor, width: int, latent_out: int, *, softcap: bool) -> Tensor:
    _, per_stream, heads, streams = asked.shape
    scores = node("MUL_MAT", (cache.cells, per_stream, heads, streams), asked)
    if softcap:
        scores = like("SCALE", like("UNARY", like("SCALE", scores)))
    chances = like("SOFT_MAX", scores, cache.mask)
    if latent_out:
        latents = node("CONT", (cache.cells, width, 1, streams), element_bytes=HALF_BYTES)
        found = node("MUL_MAT", (width, per_stream, heads, streams), latents, chances)
        found = node("MUL_MAT", (latent_out, per_stream, heads, streams), found)
        width = latent_out
    else:
        found = node("MUL_MAT", (width, per_stream, heads, streams), chances)
    mixed = view(found, width, heads, per_stream, streams)
    return node("CONT", (width * heads, per_stream * streams), mixed)
