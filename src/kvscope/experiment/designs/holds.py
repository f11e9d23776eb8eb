"""What several designs hold fixed, in words. Each names in its own file what it holds besides."""

FRESH_PROCESS = "A fresh engine process for every trial, with one short warm-up request before it is measured."
# Of questions that a server that runs already can be asked too.
FRESH_OR_RUNNING = (
    "A fresh engine process for every trial, with one short warm-up request before it is measured; a server that runs "
    "already goes on as it is, and each row says how its trial began."
)
SAME_REQUEST = "Prompts of exactly the same number of tokens, each with a text of its own, and the same output limit."
CONTEXT_LIMIT = (
    "The context limit: what the longest trial needs, unless n_ctx is set or a server that runs already has its own."
)
NO_REUSE = "Nothing of an earlier prompt is reused."
ALL_ELSE = "The model, the engine's build, the machine, the seed of the texts, and every other engine setting."
