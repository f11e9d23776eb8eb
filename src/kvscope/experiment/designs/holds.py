"""What several designs hold fixed, in words. Each names in its own file what it holds besides; which of it is true of a
planned design, ``experiment/holds_kept.py`` says."""

FRESH_PROCESS = "A fresh engine process for every trial, with one short warm-up request before it is measured."
# Of questions that a server that runs already can be asked too.
FRESH_OR_RUNNING = (
    "A fresh engine process for every trial, with one short warm-up request before it is measured; a server that runs "
    "already goes on as it is, and each row says how its trial began."
)
SAME_REQUEST = "Prompts of exactly the same number of tokens, each with a text of its own, and the same output limit."
SAME_PROMPT = "A prompt of the same number of tokens, with a text of its own for each trial."
SAME_OUTPUT = "The same output limit."
CONTEXT_LIMIT = (
    "The context limit: what the longest trial needs, unless n_ctx is set or a server that runs already has its own."
)
NO_REUSE = "Nothing of an earlier prompt is reused."
ALL_ELSE = "The model, the engine's build, the machine, the seed of the texts, and every other engine setting."

# Of a load.
LOAD_PROCESS = "A fresh engine process for every trial; a server that runs already goes on as it is."
SLOTS = (
    "The slots: as many as the highest level, at every level, so that the pool is the same (llama.cpp: n_parallel, and "
    "n_ctx of slots × the longest request, but 768 tokens each at least), unless they are set."
)
NO_HOST_CACHE = (
    "llama.cpp's host cache of old prompts is off (cache_ram_mib 0), unless it is set: it would grow with the number "
    "of requests."
)
LOAD_WARM_UP = (
    "Other prompts before anything is measured, one that fills a microbatch and then one in each slot, as far as the "
    "pool holds them, so that every buffer has been touched."
)
