"""The record file: SQLite, one transaction per trial. This text is the schema's documentation.

Version history (SCHEMA_VERSION, kept in ``PRAGMA user_version``):
    1   first
    2   where the counts of a request are from
    3   evidence of a failure; device and control-group memory; engine statistics; occupants afterwards too
    4   studies that are the same on every machine; several requests at once; predicted reuse; the client's own health;
        a number for every attempt; times of tokens, reads and samples packed; metrics kept beside the rows
    5   answers of quality tasks, and the log-probabilities of scored texts

Packed columns (BLOB) are numbers one after another, the lowest byte first: float64 where the name is of seconds or of
log-probabilities, int64 where it is of bytes, int32 where it is of tokens. In Python:
``struct.unpack(f"<{len(b) // 8}d", b)``; ``q`` for int64; ``i``, and 4 in place of 8, for int32.

The table ``metrics`` is not in this text: it has one column for each metric that is one number
(``record/metrics_table.py``), and its key is ``attempt_id``.
"""

SCHEMA_VERSION = 5
APPLICATION_ID = 0x6B767363  # "kvsc": tells a kvscope record from any other SQLite file

SCHEMA = """
-- What the file says of itself. recording: 1 while a recorder has the file open, and after one was killed: what it
-- wrote last may then be in FILE-wal, which belongs to it. metrics_version: of the definitions that the table metrics
-- was made with. era and written: by which a FILE-wal that does not belong to FILE is told (record/wal.py).
CREATE TABLE about (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

-- One row per sitting: one call of `kvscope measure`, `kvscope lab` or kvscope.measure().
CREATE TABLE runs (
    run_id          TEXT PRIMARY KEY,   -- random
    started_at      TEXT NOT NULL,      -- UTC, ISO 8601
    kvscope_version TEXT NOT NULL,
    command         TEXT NOT NULL,      -- the command line, so that it can be repeated
    machine_id      TEXT NOT NULL,      -- hash of the facts that make results comparable
    machine         TEXT NOT NULL       -- JSON: those facts (CPU, cores, memory, GPUs, limits, kernel ...)
) STRICT;

-- One row per question. Two sittings that resume the same question share it.
CREATE TABLE designs (
    design_id         TEXT PRIMARY KEY, -- hash of all that follows, but for created_at
    name              TEXT NOT NULL,    -- input_length, output_length ...
    version           INTEGER NOT NULL, -- of the design's definition
    question          TEXT NOT NULL,
    factor            TEXT NOT NULL,    -- the one thing that varies
    levels            TEXT NOT NULL,    -- JSON list
    baseline_level    TEXT NOT NULL,    -- JSON
    held              TEXT NOT NULL,    -- JSON: what is kept equal
    confounders       TEXT NOT NULL,    -- JSON list: what could still mislead
    is_grid           INTEGER NOT NULL, -- 1: two factors, asked for as a grid
    repeats           INTEGER NOT NULL,
    seed              INTEGER NOT NULL, -- of the order of trials and of the prompts
    model_name        TEXT NOT NULL,
    model_source      TEXT NOT NULL,
    model_fingerprint TEXT NOT NULL,
    engine            TEXT NOT NULL,
    engine_version    TEXT NOT NULL,
    engine_build      TEXT NOT NULL,
    settings          TEXT NOT NULL,    -- JSON: engine settings asked for
    machine_id        TEXT NOT NULL,
    created_at        TEXT NOT NULL,
    study_id          TEXT NOT NULL DEFAULT '',   -- hash of what was asked: the same on every machine
    holds             TEXT NOT NULL DEFAULT '[]', -- JSON list: what is kept equal, in words
    definition        TEXT NOT NULL DEFAULT '{}'  -- JSON: what was asked, and an engine_command of one's own
) STRICT;

-- One row per attempt of a trial. Written when it starts (outcome NULL) and completed when it ends, so that even a
-- killed attempt leaves a row: the next sitting marks it interrupted.
CREATE TABLE trials (
    attempt_id          INTEGER PRIMARY KEY, -- the key of this row in this file: other tables refer to it
    trial_id            TEXT NOT NULL,    -- hash of study_id, role, levels, repeat: the same on every machine
    attempt             INTEGER NOT NULL, -- 1, 2 ... of the same trial
    design_id           TEXT NOT NULL REFERENCES designs,
    run_id              TEXT NOT NULL REFERENCES runs,
    role                TEXT NOT NULL,    -- measured or warmup
    levels              TEXT NOT NULL,    -- JSON: factor -> level
    level               TEXT NOT NULL,    -- JSON: the level of the design's factor
    repeat              INTEGER NOT NULL,
    block               INTEGER NOT NULL,
    position            INTEGER NOT NULL, -- place in the order in which trials ran
    started_at          TEXT NOT NULL,
    settings            TEXT NOT NULL,    -- JSON: engine settings of this trial
    duration_s          REAL,
    outcome             TEXT,             -- NULL while it runs; see rows.OUTCOMES
    error_slug          TEXT,
    error_message       TEXT,
    error_hint          TEXT,
    traceback           TEXT,
    engine_log_tail     TEXT,
    prompt_tokens_asked INTEGER,
    effective           TEXT,             -- JSON: settings as the engine says it uses them
    client              TEXT NOT NULL DEFAULT '{}', -- JSON: health of our own client
    evidence            TEXT NOT NULL DEFAULT '{}', -- JSON: how a failure is known (errors.EVIDENCE)
    UNIQUE (design_id, trial_id, attempt)
) STRICT;
-- A design's trials in the order in which they began; how they ended, by design and level, without reading their rows;
-- and which have not ended.
CREATE INDEX trials_of_design ON trials (design_id);
CREATE INDEX trials_by_outcome ON trials (design_id, role, outcome, error_slug, levels, trial_id, attempt);
CREATE INDEX trials_open ON trials (attempt_id) WHERE outcome IS NULL;

-- What was predicted for an attempt, stored before it ran. Trials alike have the same prediction: it is kept once.
CREATE TABLE prediction_texts (
    text_id    INTEGER PRIMARY KEY,
    sha256     TEXT NOT NULL UNIQUE,      -- of the text
    prediction TEXT NOT NULL              -- JSON, schema kvscope.prediction/1
) STRICT;
CREATE TABLE predictions (
    attempt_id INTEGER PRIMARY KEY REFERENCES trials,
    created_at TEXT NOT NULL,
    text_id    INTEGER NOT NULL REFERENCES prediction_texts
) STRICT;

-- One row per request sent to the engine, warm-ups included.
CREATE TABLE requests (
    attempt_id           INTEGER NOT NULL REFERENCES trials,
    request_index        INTEGER NOT NULL,
    role                 TEXT NOT NULL,   -- measured, warmup, earlier_turn (of a conversation), quality (for its
                                          -- answer alone, after everything else) ...
    sent_at_s            REAL NOT NULL,   -- on the trial's clock
    completed_s          REAL,            -- from sent to the end of the answer
    prompt_tokens_asked  INTEGER,
    prompt_tokens_ours   INTEGER,         -- counted before sending
    prompt_tokens_server INTEGER,         -- as the answer states
    cached_tokens        INTEGER,
    output_tokens_limit  INTEGER NOT NULL,
    output_tokens        INTEGER,
    finish_reason        TEXT,
    error_slug           TEXT,
    engine_timings       TEXT NOT NULL,   -- JSON: the engine's own times
    prompt_tokens_ours_from   TEXT,       -- files (our tokenizer and template) or engine (asked before sending)
    prompt_tokens_server_from TEXT,       -- which of the server's numbers it is
    cached_tokens_predicted   INTEGER,    -- what the engine's rule of reuse said before it was sent
    stream                    INTEGER,    -- which of several requests at once, from 0
    due_s                     REAL,       -- when a schedule wanted it sent, on the trial's clock
    client                    TEXT NOT NULL DEFAULT '{}', -- JSON: health of our own client while it ran
    PRIMARY KEY (attempt_id, request_index)
) STRICT;

-- Arrival of every streamed piece of one answer. TTFT, ITL and TPOT are derived from these (record/metrics.py).
CREATE TABLE tokens (
    attempt_id    INTEGER NOT NULL REFERENCES trials,
    request_index INTEGER NOT NULL,
    at_s          BLOB NOT NULL,          -- float64 of each, from the moment the request was sent
    texts         TEXT NOT NULL,          -- JSON list
    kinds         TEXT NOT NULL,          -- JSON: a list, or one for all: content, reasoning (before the answer),
                                          -- tool_call, token (without text), null (not kept)
    indexes       TEXT,                   -- JSON list; NULL: 0, 1, 2 ...
    PRIMARY KEY (attempt_id, request_index)
) STRICT;

-- Every read of the socket, so that events that arrived together can be told from events that did not.
CREATE TABLE reads (
    attempt_id    INTEGER NOT NULL REFERENCES trials,
    request_index INTEGER NOT NULL,
    at_s          BLOB NOT NULL,          -- float64 of each, from the moment the request was sent
    num_bytes     TEXT NOT NULL,          -- JSON list
    num_events    TEXT NOT NULL,          -- JSON list
    PRIMARY KEY (attempt_id, request_index)
) STRICT;

-- Memory of the engine's process tree at named moments (rows.PHASES).
CREATE TABLE marks (
    attempt_id              INTEGER NOT NULL REFERENCES trials,
    phase                   TEXT NOT NULL,
    request_index           INTEGER,          -- where the moment follows one request of several
    at_s                    REAL NOT NULL,
    anon_bytes              INTEGER NOT NULL, -- RssAnon
    swap_bytes              INTEGER NOT NULL, -- VmSwap
    file_bytes              INTEGER NOT NULL, -- RssFile
    shmem_bytes             INTEGER NOT NULL, -- RssShmem
    peak_bytes              INTEGER,          -- VmHWM since its last reset
    machine_available_bytes INTEGER,          -- MemAvailable of the machine
    active_requests         INTEGER,
    device_bytes            INTEGER,          -- of the engine's processes on all its devices
    device_peak_bytes       INTEGER,          -- the most of it since its counter was reset, where there is one
    cgroup_bytes            INTEGER,          -- of the control group that the engine's process is in
    cgroup_peak_bytes       INTEGER,
    cgroup_oom_kills        INTEGER           -- out-of-memory kills in that group so far
) STRICT;
CREATE INDEX marks_of_trial ON marks (attempt_id);

-- The engine's memory mappings at marked moments, small ones of a kind summed (count says how many).
CREATE TABLE maps (
    attempt_id      INTEGER NOT NULL REFERENCES trials,
    phase           TEXT NOT NULL,
    request_index   INTEGER,
    kind            TEXT NOT NULL,        -- heap, arena, stack, anonymous, file
    name            TEXT NOT NULL,
    size_bytes      INTEGER NOT NULL,
    resident_bytes  INTEGER NOT NULL,
    anonymous_bytes INTEGER NOT NULL,
    count           INTEGER NOT NULL
) STRICT;
CREATE INDEX maps_of_trial ON maps (attempt_id);

-- The sampled curves: one row for each run of moments at which the same quantities were read.
CREATE TABLE samples (
    attempt_id  INTEGER NOT NULL REFERENCES trials,
    quantities  TEXT NOT NULL,            -- JSON list: anon_bytes, file_bytes ...
    at_s        BLOB NOT NULL,            -- float64 of each moment
    late_s      BLOB NOT NULL,            -- float64 of each moment
    value_bytes BLOB NOT NULL             -- int64: of the first moment all quantities in their order, of the next ...
) STRICT;
CREATE INDEX samples_of_trial ON samples (attempt_id);

-- Buffers as the engine's own log states them.
CREATE TABLE reported_buffers (
    attempt_id    INTEGER NOT NULL REFERENCES trials,
    phase         TEXT NOT NULL,
    request_index INTEGER,
    component     TEXT NOT NULL,          -- weights, kv_cache, compute_buffer, output_buffer, host_cache, checkpoint
    name          TEXT NOT NULL,
    printed_mib   TEXT NOT NULL,          -- the log's own digits
    cells         INTEGER,
    streams       INTEGER,
    layers        INTEGER,
    k_mib         TEXT,
    v_mib         TEXT,
    line          TEXT NOT NULL           -- the log line it was read from
) STRICT;
CREATE INDEX reported_of_trial ON reported_buffers (attempt_id);

-- What else held memory on the machine, before the engine was started and after the last request.
CREATE TABLE occupants (
    attempt_id     INTEGER NOT NULL REFERENCES trials,
    pid            INTEGER NOT NULL,
    name           TEXT NOT NULL,
    resident_bytes INTEGER NOT NULL,
    phase          TEXT NOT NULL DEFAULT 'before', -- before or after
    device         TEXT                   -- NULL: the machine's own memory; else the device it is held on
) STRICT;
CREATE INDEX occupants_of_trial ON occupants (attempt_id);

-- The engine's own counters at marked moments (engine/statistics.py says what each name means).
CREATE TABLE statistics (
    attempt_id    INTEGER NOT NULL REFERENCES trials,
    phase         TEXT NOT NULL,
    request_index INTEGER,
    at_s          REAL NOT NULL,
    name          TEXT NOT NULL,
    value         REAL NOT NULL
) STRICT;
CREATE INDEX statistics_of_trial ON statistics (attempt_id);

-- Doubts about a trial's numbers.
CREATE TABLE warnings (
    attempt_id INTEGER NOT NULL REFERENCES trials,
    slug     TEXT NOT NULL,
    message  TEXT NOT NULL,
    hint     TEXT NOT NULL
) STRICT;
CREATE INDEX warnings_of_trial ON warnings (attempt_id);
"""

# What schema 5 added.
ANSWERS_SCHEMA = """
-- One row per item of a quality task that was put to the model.
CREATE TABLE answers (
    attempt_id         INTEGER NOT NULL REFERENCES trials,
    answer_index       INTEGER NOT NULL,
    task               TEXT NOT NULL,
    item               TEXT NOT NULL,     -- the same at every level and in every repeat
    document           TEXT NOT NULL,     -- items of one document are one cluster
    language           TEXT NOT NULL,
    reading            TEXT NOT NULL,     -- right, wrong, or why nothing is said of the model (rows.READINGS)
    score              REAL,              -- 1 right, 0 wrong, between them in part; of what was scored, in nats
    chance             REAL,              -- the share right for who guesses
    is_twin            INTEGER NOT NULL,  -- 1: the document without the planted fact
    depth_percent      REAL,
    document_tokens    INTEGER,
    evidence_in_prompt INTEGER,           -- 1: the text that holds the answer was in what was sent
    request_index      INTEGER,
    expected           TEXT,
    answer             TEXT,
    facts              TEXT NOT NULL DEFAULT '{}', -- JSON
    PRIMARY KEY (attempt_id, answer_index)
) STRICT;

-- The positions of one answer whose tokens were scored.
CREATE TABLE scored_tokens (
    attempt_id   INTEGER NOT NULL REFERENCES trials,
    answer_index INTEGER NOT NULL,
    pattern      TEXT NOT NULL,           -- in which passes the engine computed them: only one pattern compares
    positions    TEXT NOT NULL,           -- JSON list
    tokens       BLOB NOT NULL,           -- int32 of each position
    logprobs     BLOB NOT NULL,           -- float64 of each position, in nats
    top_counts   TEXT NOT NULL,           -- JSON: a list, or one for all: how many of the likeliest tokens follow
    top_tokens   BLOB NOT NULL,           -- int32: of the first position all, of the next ...
    top_logprobs BLOB NOT NULL,           -- float64, in the same order
    PRIMARY KEY (attempt_id, answer_index, pattern)
) STRICT;
"""
