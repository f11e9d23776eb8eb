/* The answers of the truth server: what is due when, sent, and noted. Included by truth_server.c alone. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct text { char *at; size_t length, room, done; };

struct answer {
    struct answer *next;
    char id[65];
    bool chat, stream, usage, complete;
    double ttft_s, gap_s;
    long tokens, group, sent, blocked, prompt_tokens;
    int64_t arrived, received, due;
    int64_t *sent_at;
    struct text event;
};

struct peer {
    int fd;
    bool dead, closes, waits_to_write, was_told_to_continue;
    int64_t received, arrived; /* what was read last: read here, and come in by the kernel's stamp (0: it gives none) */
    long place;      /* in the queue; -1: not there */
    struct text in, out;
    struct answer *answer;
};

static struct answer *finished, **last_finished = &finished;
static struct peer **queue;
static long queue_length, queue_room, num_under_way, num_answered;
static int64_t num_noted; /* send times in memory */
static int poller;
static FILE *log_file;

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * SECOND + at.tv_nsec;
}

static void *sure(void *memory) {
    if (!memory) { fprintf(stderr, "truth server: out of memory\n"); exit(1); }
    return memory;
}

static void add(struct text *text, const char *data, size_t length) {
    if (text->length + length + 1 > text->room) {
        text->room = 2 * text->room + length + 1024;
        text->at = sure(realloc(text->at, text->room));
    }
    memcpy(text->at + text->length, data, length);
    text->length += length;
    text->at[text->length] = 0;
}

__attribute__((format(printf, 2, 3))) static void addf(struct text *text, const char *form, ...) {
    char line[2048];
    va_list values;
    va_start(values, form);
    int length = vsnprintf(line, sizeof line, form, values);
    va_end(values);
    add(text, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
}

/* --- the queue: the answer that is due first stands at its head ------------------------------------------------- */

static void put(long place, struct peer *peer) { queue[place] = peer; peer->place = place; }

static void sift(long place, struct peer *peer) {
    while (place && queue[(place - 1) / 2]->answer->due > peer->answer->due) {
        put(place, queue[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (long child; (child = 2 * place + 1) < queue_length; place = child) {
        if (child + 1 < queue_length && queue[child + 1]->answer->due < queue[child]->answer->due) child++;
        if (queue[child]->answer->due >= peer->answer->due) break;
        put(place, queue[child]);
    }
    put(place, peer);
}

static void enqueue(struct peer *peer) {
    if (queue_length == queue_room) {
        queue_room = 2 * queue_room + 64;
        queue = sure(realloc(queue, queue_room * sizeof *queue));
    }
    queue_length++;
    sift(queue_length - 1, peer);
}

static void dequeue(struct peer *peer) {
    long place = peer->place;
    if (place < 0) return;
    struct peer *moved = queue[--queue_length];
    peer->place = -1;
    if (moved != peer) sift(place, moved);
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

static void watch(struct peer *peer) {
    struct epoll_event wanted = {.events = EPOLLIN | (peer->waits_to_write ? EPOLLOUT : 0), .data.ptr = peer};
    epoll_ctl(poller, EPOLL_CTL_MOD, peer->fd, &wanted);
}

/* Send it; what the socket does not take waits, and the answer's schedule with it. */
static void transmit(struct peer *peer, const char *data, size_t length) {
    ssize_t taken = 0;
    if (!peer->waits_to_write && (taken = send(peer->fd, data, length, MSG_NOSIGNAL)) < 0) {
        if (errno != EAGAIN) { peer->dead = true; return; }
        taken = 0;
    }
    if ((size_t)taken == length) return;
    add(&peer->out, data + taken, length - taken);
    if (peer->answer) peer->answer->blocked++;
    if (!peer->waits_to_write) { peer->waits_to_write = true; watch(peer); }
}

static void flush(struct peer *peer) {
    ssize_t taken = send(peer->fd, peer->out.at + peer->out.done, peer->out.length - peer->out.done, MSG_NOSIGNAL);
    if (taken < 0) { peer->dead |= errno != EAGAIN; return; }
    if ((peer->out.done += taken) < peer->out.length) return;
    peer->out.length = peer->out.done = 0;
    peer->waits_to_write = false;
    watch(peer);
    if (peer->answer) enqueue(peer);
}

static void reply(struct peer *peer, const char *status, const char *kind, const struct text *body) {
    struct text whole = {0};
    addf(&whole, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n", status, kind, body->length,
         peer->closes ? "Connection: close\r\n" : "");
    if (body->length) add(&whole, body->at, body->length);
    transmit(peer, whole.at, whole.length);
    free(whole.at);
}

static void refuse(struct peer *peer, const char *status, const char *why) {
    struct text body = {0};
    addf(&body, "{\"error\":{\"message\":\"%s\",\"type\":\"truth_server\"}}", why);
    peer->closes = true;
    reply(peer, status, "application/json", &body);
    free(body.at);
}

/* --- answers ---------------------------------------------------------------------------------------------------- */

static void add_chunk(struct text *text, const char *event) { addf(text, "%zx\r\n%s\r\n", strlen(event), event); }

static void add_event(struct text *text, const struct answer *answer, const char *content, bool first) {
    char event[512];
    snprintf(event, sizeof event, answer->chat ?
        "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"truth\","
        "\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"%s\"},\"finish_reason\":null}]}\n\n" :
        "data: {\"id\":\"%s\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"truth\","
        "\"choices\":[{\"index\":0,%s\"text\":\"%s\",\"finish_reason\":null}]}\n\n",
        answer->id, answer->chat && first ? "\"role\":\"assistant\"," : "", content);
    add_chunk(text, event);
}

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n";

static void add_usage(struct text *text, const struct answer *answer) {
    addf(text, "\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":%ld,\"total_tokens\":%ld}",
         answer->prompt_tokens, answer->tokens, answer->prompt_tokens + answer->tokens);
}

static void send_end(struct peer *peer, struct answer *answer) {
    const char *object = answer->chat ? "chat.completion.chunk" : "text_completion";
    struct text end = {0}, event = {0};
    addf(&event, "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"truth\",\"choices\":"
         "[{\"index\":0,%s,\"finish_reason\":\"length\"}]}\n\n", answer->id, object,
         answer->chat ? "\"delta\":{}" : "\"text\":\"\"");
    add_chunk(&end, event.at);
    if (answer->usage) {
        event.length = 0;
        addf(&event, "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"truth\",\"choices\":[],",
             answer->id, object);
        add_usage(&event, answer);
        add(&event, "}\n\n", 3);
        add_chunk(&end, event.at);
    }
    add_chunk(&end, "data: [DONE]\n\n");
    add(&end, "0\r\n\r\n", 5);
    transmit(peer, end.at, end.length);
    free(end.at);
    free(event.at);
}

static void send_whole(struct peer *peer, struct answer *answer) {
    struct text body = {0};
    addf(&body, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"truth\",\"choices\":[{\"index\":0,%s",
         answer->id, answer->chat ? "chat.completion" : "text_completion",
         answer->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    add(&body, answer->id, strlen(answer->id));
    for (long k = 1; k < answer->tokens; k++) add(&body, " tok", 4);
    addf(&body, "\"%s,\"finish_reason\":\"length\"}],", answer->chat ? "}" : "");
    add_usage(&body, answer);
    add(&body, "}", 1);
    reply(peer, "200 OK", "application/json", &body);
    free(body.at);
}

static void end_answer(struct peer *peer) {
    struct answer *answer = peer->answer;
    dequeue(peer);
    peer->answer = NULL;
    num_under_way--;
    num_answered++;
    free(answer->event.at);
    *last_finished = answer;
    last_finished = &answer->next;
}

static void send_due(struct peer *peer) {
    struct answer *answer = peer->answer;
    long count = answer->stream ? answer->group : answer->tokens;
    if (count > answer->tokens - answer->sent) count = answer->tokens - answer->sent;
    struct text first = {0}, *data = &answer->event;
    if (answer->stream && !answer->sent) {
        if (answer->ttft_s < 0.001) add(&first, HEAD, sizeof HEAD - 1); /* later than that, it went out alone */
        add_event(&first, answer, answer->id, true); /* the echo: whose answer this is */
        for (long k = 1; k < count; k++) add_event(&first, answer, " tok", false);
        data = &first;
    }
    size_t length = data == &first ? first.length : answer->event.length * count;
    if (data != &first && count > 1) { /* the same event, so many times */
        while (first.length < length) add(&first, answer->event.at, answer->event.length);
        data = &first;
    }
    int64_t at = now();
    if (answer->stream) transmit(peer, data->at, length);
    else send_whole(peer, answer);
    free(first.at);
    for (long k = 0; k < count; k++) answer->sent_at[answer->sent++] = at;
    answer->complete = answer->sent == answer->tokens;
    if (answer->complete && answer->stream) send_end(peer, answer);
    if (answer->complete || peer->dead) { end_answer(peer); return; }
    answer->due = answer->received + (int64_t)((answer->ttft_s + answer->sent * answer->gap_s) * SECOND);
    if (peer->waits_to_write) dequeue(peer);
    else sift(peer->place, peer);
}

/* --- the log ---------------------------------------------------------------------------------------------------- */

static void add_time(struct text *text, int64_t at) {
    addf(text, "%lld.%09lld", (long long)(at / SECOND), (long long)(at % SECOND));
}

/* The answers that have ended, one JSON object a line; then they are forgotten here. */
static struct text take_log(void) {
    struct text log = {0};
    while (finished) {
        struct answer *answer = finished;
        addf(&log, "{\"id\":\"%s\",\"ttft_s\":%.9g,\"gap_s\":%.9g,\"tokens\":%ld,\"group\":%ld,\"stream\":%s,\"complete\":%s,"
             "\"blocked\":%ld,\"received_s\":", answer->id, answer->ttft_s, answer->gap_s, answer->tokens, answer->group,
             answer->stream ? "true" : "false", answer->complete ? "true" : "false", answer->blocked);
        add_time(&log, answer->received);
        add(&log, ",\"arrived_s\":", 13);
        if (answer->arrived) add_time(&log, answer->arrived);
        else add(&log, "null", 4);
        add(&log, ",\"sent_s\":[", 11);
        for (long k = 0; k < answer->sent; k++) {
            if (k) add(&log, ",", 1);
            add_time(&log, answer->sent_at[k]);
        }
        add(&log, "]}\n", 3);
        num_noted -= answer->tokens;
        finished = answer->next;
        free(answer->sent_at);
        free(answer);
    }
    last_finished = &finished;
    return log;
}

static void write_log(void) {
    struct text log = take_log();
    if (log.length && (fwrite(log.at, 1, log.length, log_file) < log.length || fflush(log_file)))
        fprintf(stderr, "truth server: the log cannot be written: %s\n", strerror(errno));
    free(log.at);
}
