/* A server of known times, to hold clients of language models against. Linux; one thread; one file.
 *
 * It speaks OpenAI's streaming form and sends token k of an answer at an absolute time,
 *     received + ttft_s + (k - k % group) * gap_s,
 * `group` events in one write, and notes when it really did so: CLOCK_MONOTONIC, read just before each write. What it
 * noted is formatted only when it is asked for (GET /truth/log), or where it has nothing else to do (--log FILE).
 * What is asked of an answer stands in "key=value" pairs (id, ttft_s, gap_s, tokens, group): in the query string, over
 * it in the header X-Truth, over that in [truth ...] anywhere in the body. See docs/reference/selftest.md.
 */
#define _GNU_SOURCE
#include "truth_answers.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#define MOST_HEADER (64 * 1024)
#define MOST_BODY (64LL * 1024 * 1024)
#define MOST_TOKENS 1000000
#define MOST_GROUP 1000
#define MOST_S 3600
#define MOST_NOTED (30LL * 1000 * 1000) /* send times in memory: 240 MB */
#define IDLE_MS 50                      /* so long without an answer under way, and the log is written */
#define SENDS_PER_ROUND 64              /* then it looks for new requests again */

static struct answer defaults = {.ttft_s = 0.05, .gap_s = 0.01, .tokens = 64, .group = 1};
static int64_t spin_ns = 100 * 1000;
static int core = -1, listener, signals, timer;
static bool has_kernel_stamps;
static long num_peers;

/* --- requests --------------------------------------------------------------------------------------------------- */

static void set_value(struct answer *answer, const char *key, size_t key_length, const char *value, size_t length) {
    char number[32] = "", *stop;
    memcpy(number, value, length < sizeof number ? length : sizeof number - 1);
    double is = strtod(number, &stop);
    if (stop == number || *stop || is < 0) is = NAN; /* which is neither more nor less than anything */
#define IS(name) (key_length == sizeof name - 1 && !memcmp(key, name, key_length))
    if (IS("id")) snprintf(answer->id, sizeof answer->id, "%.*s", (int)length, value);
    if (IS("ttft_s") && is <= MOST_S) answer->ttft_s = is;
    if (IS("gap_s") && is <= MOST_S) answer->gap_s = is;
    if (IS("tokens") && is >= 1) answer->tokens = is < MOST_TOKENS ? (long)is : MOST_TOKENS;
    if (IS("group") && is >= 1) answer->group = is < MOST_GROUP ? (long)is : MOST_GROUP;
#undef IS
}

static bool is_plain(char c) { return isalnum((unsigned char)c) || (c && strchr("._:-+", c)); }

/* key=value pairs; a value ends where a character comes that none has. */
static void set_values(struct answer *answer, const char *at, const char *end) {
    while (at < end) {
        const char *key = at;
        while (at < end && (isalnum((unsigned char)*at) || *at == '_')) at++;
        if (at == key || at == end || *at != '=') { at += at < end; continue; }
        const char *value = at + 1, *stop = value;
        while (stop < end && is_plain(*stop)) stop++;
        set_value(answer, key, at - key, value, stop - value);
        at = stop;
    }
}

/* What of the JSON concerns us: how many tokens, whether streamed, whether with usage. Keys inside strings are none. */
static void read_fields(struct answer *answer, const char *at, const char *end) {
    bool is_stated = false; /* max_completion_tokens, which goes before max_tokens wherever it stands */
    for (int depth = 0; at < end; at++) {
        if (*at == '{' || *at == '[') depth++;
        if (*at == '}' || *at == ']') depth--;
        if (*at != '"') continue;
        const char *key = ++at;
        while (at < end && *at != '"') at += *at == '\\' ? 2 : 1;
        const char *value = at + 1;
        while (value < end && isspace((unsigned char)*value)) value++;
        if (value >= end || *value != ':') continue;
        for (value++; value < end && isspace((unsigned char)*value); value++) {}
        size_t length = at - key;
        bool is_newer = length == 21 && !memcmp(key, "max_completion_tokens", 21);
        bool is_limit = is_newer || (length == 10 && !memcmp(key, "max_tokens", 10) && !is_stated);
        if (depth == 1 && is_limit && value < end && isdigit((unsigned char)*value)) {
            set_value(answer, "tokens", 6, value, strspn(value, "0123456789"));
            is_stated |= is_newer;
        }
        if (depth == 1 && length == 6 && !memcmp(key, "stream", 6)) answer->stream = end - value > 3 && !memcmp(value, "true", 4);
        if (length == 13 && !memcmp(key, "include_usage", 13)) answer->usage = end - value > 3 && !memcmp(value, "true", 4);
    }
}

static const char *header(const char *head, const char *name) {
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, strlen(name))) return line + 2 + strlen(name);
    return NULL;
}

static void answer_get(struct peer *peer, const char *path) {
    struct text body = {0};
    const char *kind = "application/json";
    if (!strncmp(path, "/truth/log", 10) && !log_file) { body = take_log(); kind = "application/x-ndjson"; }
    else if (!strncmp(path, "/truth/about", 12))
        addf(&body, "{\"server\":\"native\",\"core\":%d,\"spin_us\":%lld,\"kernel_stamps\":%s,\"peers\":%ld,\"answered\":%ld}",
             core, (long long)(spin_ns / 1000), has_kernel_stamps ? "true" : "false", num_peers, num_answered);
    else if (!strncmp(path, "/v1/models", 10) || !strncmp(path, "/models", 7))
        addf(&body, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"created\":1700000000,"
             "\"owned_by\":\"kvscope\",\"max_model_len\":1048576}]}");
    else if (!strncmp(path, "/health", 7) || !strncmp(path, "/ping", 5) || !strcmp(path, "/"))
        addf(&body, "{\"status\":\"ok\"}");
    else { refuse(peer, "404 Not Found", "there is no such path here"); return; }
    reply(peer, "200 OK", kind, &body);
    free(body.at);
}

static void begin_answer(struct peer *peer, const char *head, const char *body, size_t length, const char *path, int64_t received) {
    const char *completions = strstr(path, "/completions"), *query = strchr(path, '?'), *more = header(head, "x-truth:");
    if (!completions || (query && query < completions)) { refuse(peer, "404 Not Found", "there is no such path here"); return; }
    struct answer *answer = sure(malloc(sizeof *answer));
    *answer = defaults;
    answer->chat = completions - path >= 5 && !memcmp(completions - 5, "/chat", 5);
    answer->received = received;
    answer->arrived = peer->arrived;
    answer->prompt_tokens = length / 4 + 1; /* it has no tokenizer */
    read_fields(answer, body, body + length);
    if (query) set_values(answer, query + 1, path + strlen(path));
    if (more) set_values(answer, more, more + strcspn(more, "\r"));
    const char *mark = memmem(body, length, "[truth ", 7), *stop = mark ? memchr(mark, ']', body + length - mark) : NULL;
    if (stop) set_values(answer, mark + 7, stop);
    if (!answer->id[0]) snprintf(answer->id, sizeof answer->id, "n%ld", num_answered + num_under_way);
    if (num_noted + answer->tokens > MOST_NOTED) {
        free(answer);
        refuse(peer, "503 Service Unavailable", "the log in memory is full: GET /truth/log empties it");
        return;
    }
    num_noted += answer->tokens;
    answer->sent_at = sure(malloc(answer->tokens * sizeof *answer->sent_at));
    add_event(&answer->event, answer, " tok", false);
    double wait_s = answer->ttft_s + (answer->stream ? 0 : (answer->tokens - 1) * answer->gap_s);
    answer->due = received + (int64_t)(wait_s * SECOND);
    peer->answer = answer;
    num_under_way++;
    if (answer->stream && answer->ttft_s >= 0.001) transmit(peer, HEAD, sizeof HEAD - 1);
    if (!peer->waits_to_write) enqueue(peer);
}

/* The next request, where all of it is there and no answer is under way. */
static bool take_request(struct peer *peer, int64_t received) {
    if (peer->answer || peer->closes || !peer->in.length) return false;
    char *stop = memmem(peer->in.at, peer->in.length, "\r\n\r\n", 4);
    if (!stop) {
        if (peer->in.length > MOST_HEADER) refuse(peer, "431 Request Header Fields Too Large", "the header is too long");
        return false;
    }
    char saved = stop[2];
    stop[2] = 0;
    const char *stated = header(peer->in.at, "content-length:"), *connection = header(peer->in.at, "connection:");
    long long length = stated ? atoll(stated) : 0;
    size_t begin = stop + 4 - peer->in.at;
    bool is_whole = length >= 0 && peer->in.length >= begin + (size_t)length;
    if (header(peer->in.at, "transfer-encoding:")) refuse(peer, "411 Length Required", "say how long the body is");
    else if (length < 0 || length > MOST_BODY) refuse(peer, "413 Content Too Large", "the body is too long");
    else if (!is_whole && header(peer->in.at, "expect:") && !peer->was_told_to_continue) {
        peer->was_told_to_continue = true;
        transmit(peer, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    } else if (is_whole) {
        char method[16] = "", path[2048] = "", version[16] = "";
        sscanf(peer->in.at, "%15s %2047s %15s", method, path, version);
        while (connection && *connection == ' ') connection++;
        peer->was_told_to_continue = false;
        peer->closes = !strcmp(version, "HTTP/1.0") || (connection && !strncasecmp(connection, "close", 5));
        if (!strcmp(method, "POST")) begin_answer(peer, peer->in.at, stop + 4, length, path, received);
        else if (!strcmp(method, "GET")) answer_get(peer, path);
        else refuse(peer, "405 Method Not Allowed", "GET or POST");
        peer->in.length -= begin + length;
        memmove(peer->in.at, stop + 4 + length, peer->in.length);
        return true;
    }
    stop[2] = saved;
    return false;
}

static void receive(struct peer *peer) {
    char data[64 * 1024], stamps[256];
    struct iovec part = {data, sizeof data};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = stamps, .msg_controllen = sizeof stamps};
    ssize_t length = recvmsg(peer->fd, &message, 0);
    peer->received = now();
    if (length <= 0) { peer->dead = !length || errno != EAGAIN; return; }
    peer->arrived = 0;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp, wall; /* of CLOCK_REALTIME: moved to the clock of all other times here */
            memcpy(&stamp, CMSG_DATA(each), sizeof stamp);
            clock_gettime(CLOCK_REALTIME, &wall);
            int64_t ago = (wall.tv_sec - stamp.tv_sec) * SECOND + wall.tv_nsec - stamp.tv_nsec;
            peer->arrived = now() - ago;
            has_kernel_stamps = true;
        }
    if (peer->in.length + length > MOST_BODY + MOST_HEADER) { peer->dead = true; return; }
    add(&peer->in, data, length);
}

static void part_with(struct peer *peer) {
    if (peer->answer) end_answer(peer);
    close(peer->fd);
    free(peer->in.at);
    free(peer->out.at);
    free(peer);
    num_peers--;
}

/* After each thing that was done for a peer: is it to go on with its next request, or to go? */
static void look_after(struct peer *peer, int64_t received) {
    while (!peer->dead && take_request(peer, received)) {}
    if (peer->dead || (peer->closes && !peer->answer && !peer->waits_to_write)) part_with(peer);
}

static void welcome(void) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct peer *peer = sure(calloc(1, sizeof *peer));
    peer->fd = fd;
    peer->place = -1;
    num_peers++;
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = peer};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
    receive(peer);
    look_after(peer, peer->received);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static int open_listener(const char *host, int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t length = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 4096)) {
        fprintf(stderr, "truth server: cannot listen at %s:%d: %s\n", host, *port, strerror(errno));
        exit(2);
    }
    getsockname(fd, (struct sockaddr *)&address, &length);
    *port = ntohs(address.sin_port);
    return fd;
}

static void pin(void) {
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    if (core >= 0) CPU_SET(core, &wanted);
    if (core < 0 || !sched_setaffinity(0, sizeof wanted, &wanted)) return;
    fprintf(stderr, "truth server: cannot be kept on core %d: %s\n", core, strerror(errno));
    core = -1;
}

static void run(void) {
    struct epoll_event found[64];
    int64_t timer_at = 0;
    for (;;) {
        int wait_ms = -1;
        int64_t due = queue_length ? queue[0]->answer->due - spin_ns : 0;
        if (queue_length && due <= now()) wait_ms = 0; /* spins: asleep, it would wake too late */
        else if (queue_length && due != timer_at) {
            struct itimerspec at = {.it_value = {due / SECOND, due % SECOND}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
            timer_at = due;
        }
        if (!num_under_way && log_file && finished) wait_ms = IDLE_MS;
        int count = epoll_wait(poller, found, 64, wait_ms);
        if (!count && !num_under_way && log_file) write_log();
        for (int k = 0; k < count; k++) {
            void *what = found[k].data.ptr;
            uint64_t times;
            if (what == &signals) return;
            if (what == &timer) { timer_at = read(timer, &times, sizeof times) < 0 ? timer_at : 0; continue; }
            if (what == &listener) { welcome(); continue; }
            struct peer *peer = what;
            if (found[k].events & EPOLLOUT) flush(peer);
            if (found[k].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(peer);
            look_after(peer, peer->received);
        }
        for (int k = 0; k < SENDS_PER_ROUND && queue_length && queue[0]->answer->due <= now(); k++) {
            struct peer *peer = queue[0];
            send_due(peer);
            look_after(peer, now());
        }
    }
}

static void start(const char *host, int port, const char *log_path) {
    if (log_path && !(log_file = fopen(log_path, "a"))) {
        fprintf(stderr, "truth server: the log %s cannot be opened: %s\n", log_path, strerror(errno));
        exit(2);
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) { files.rlim_cur = files.rlim_max; setrlimit(RLIMIT_NOFILE, &files); }
    prctl(PR_SET_TIMERSLACK, 1);
    pin();
    listener = open_listener(host, &port);
    signals = signalfd(-1, &ends, SFD_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int *fds[] = {&listener, &signals, &timer};
    for (int k = 0; k < 3; k++) {
        struct epoll_event wanted = {.events = EPOLLIN};
        wanted.data.ptr = fds[k];
        epoll_ctl(poller, EPOLL_CTL_ADD, *fds[k], &wanted);
    }
    printf("http://%s:%d\n", host, port);
    fflush(stdout);
    run();
}

int main(int count, char **words) {
    const char *host = "127.0.0.1", *log_path = NULL;
    int port = 0;
    for (int k = 1; k + 1 < count; k += 2) {
        const char *name = words[k], *value = words[k + 1];
        if (!strcmp(name, "--host")) host = value;
        else if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--log")) log_path = value;
        else if (!strcmp(name, "--core")) core = atoi(value);
        else if (!strcmp(name, "--spin-us")) spin_ns = atoll(value) * 1000;
        else if (!strcmp(name, "--set")) set_values(&defaults, value, value + strlen(value));
        else { fprintf(stderr, "truth server: %s is not understood\n", name); return 2; }
    }
    start(host, port, log_path);
    if (log_file) write_log();
    return 0;
}
