/* The cheapest provider that tells the truth: takes messages, answers after a fixed latency, and remembers
 * when each came in and what it said.
 *
 *     POST /v1/messages           202 {"id": "m<number>"}, `latency` after the request was complete
 *     GET  /count                 requests so far, and how many different messages were taken
 *     GET  /calls                 all requests, 32 bytes each: arrived, answered (ns, CLOCK_BOOTTIME), marker,
 *                                 status: 202 taken, 200 a known key, 429 over the limit
 *     POST /reset?latency_us=N&limit=N&keys=1     forget them
 *
 * `limit`: no more than so many are let in in any sliding second; the rest get 429 at once and may come again
 * in a second. `keys`: an `Idempotency-Key` that was seen with a taken message gets that message's answer
 * again, and nothing new is taken. The marker is a hash of the body, so that two of one message are seen
 * whatever the headers say. One thread on epoll. It listens on a free port of loopback, prints the port, and
 * ends with its standard input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 4096, REQUEST_MAX = 1 << 20, NS = 1000000000 };

struct call { uint64_t arrived, answered, marker, status; };
struct seen { uint64_t *hashes; size_t *calls, used, room; }; /* from a hash to a call; a hash is never 0 */
struct peer { char *bytes; size_t used, room; uint32_t life; int busy; };
struct owed { uint64_t at; size_t call, message; int fd; uint32_t life; };

static struct call *calls;
static size_t called, call_room;
static struct seen markers, keys;
static size_t *admitted, admitted_count, admitted_room; /* the calls below the limit, in their order */
static struct peer peers[FDS];
/* Latency is the same for all, so answers fall due in the order of arrival; a peer is owed at most one. */
static struct owed owed[FDS];
static size_t owed_first, owed_last;
static uint64_t latency_ns;
static size_t limit;
static int honours_keys;
static int events_fd, timer_fd;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static void *need(void *memory) {
    if (!memory) abort();
    return memory;
}

static void hang_up(int fd) {
    close(fd);
    free(peers[fd].bytes);
    peers[fd] = (struct peer){.life = peers[fd].life + 1};
}

static void put(int fd, const char *from, size_t left) {
    while (left) {
        ssize_t n = send(fd, from, left, MSG_NOSIGNAL);
        if (n > 0) { from += n; left -= (size_t)n; continue; }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) { poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 1000); continue; }
        return; /* it has gone; the next read says so */
    }
}

static uint64_t hash(const char *bytes, size_t size) { /* FNV-1a, and a last stir for its low bits */
    uint64_t h = 0xcbf29ce484222325u;
    while (size--) h = (h ^ (unsigned char)*bytes++) * 0x100000001b3u;
    h ^= h >> 32;
    return h ? h : 1;
}

/* Where the hash is, or would be. */
static size_t place(const struct seen *seen, uint64_t hash) {
    size_t i = hash & (seen->room - 1);
    while (seen->hashes[i] && seen->hashes[i] != hash) i = (i + 1) & (seen->room - 1);
    return i;
}

/* The call that came first with this hash; `call` itself, which is then noted, where there was none. */
static size_t first_with(struct seen *seen, uint64_t hash, size_t call) {
    if (2 * seen->used >= seen->room) {
        struct seen old = *seen;
        seen->room = old.room ? old.room * 2 : 1 << 16;
        seen->hashes = need(calloc(seen->room, sizeof *seen->hashes));
        seen->calls = need(calloc(seen->room, sizeof *seen->calls));
        for (size_t i = 0; i < old.room; i++) {
            if (!old.hashes[i]) continue;
            size_t to = place(seen, old.hashes[i]);
            seen->hashes[to] = old.hashes[i];
            seen->calls[to] = old.calls[i];
        }
        free(old.hashes);
        free(old.calls);
    }
    size_t i = place(seen, hash);
    if (seen->hashes[i]) return seen->calls[i];
    seen->hashes[i] = hash;
    seen->calls[i] = call;
    seen->used++;
    return call;
}

static void forget(struct seen *seen) {
    free(seen->hashes);
    free(seen->calls);
    *seen = (struct seen){0};
}

static void reply(int fd, const char *status, const char *type, const void *body, size_t size) {
    char head[256];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                     status, type, size);
    if (size + (size_t)n <= sizeof head) { /* one packet for the common answer */
        memcpy(head + n, body, size);
        put(fd, head, (size_t)n + size);
        return;
    }
    put(fd, head, (size_t)n);
    put(fd, body, size);
}

/* `message`: the call that took it, which is another one where the key was known. */
static void accept_call(int fd, size_t number, size_t message) {
    char body[64];
    int n = snprintf(body, sizeof body, "{\"id\":\"m%zu\"}", message);
    calls[number].answered = now();
    reply(fd, number == message ? "202 Accepted" : "200 OK", "application/json", body, (size_t)n);
}

static void refuse_call(int fd, size_t number) {
    calls[number].answered = now();
    reply(fd, "429 Too Many Requests\r\nRetry-After: 1", "text/plain", "later", 5);
}

static void set_timer(void) {
    uint64_t at = owed_first == owed_last ? 0 : owed[owed_first % FDS].at; /* 0 stops it */
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / NS), .tv_nsec = (long)(at % NS)}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Whether the second that ends at `at` is full. */
static int is_full(uint64_t at) {
    return limit && admitted_count >= limit && calls[admitted[admitted_count - limit]].arrived + NS > at;
}

static void admit(size_t number) {
    if (admitted_count == admitted_room) {
        admitted_room = admitted_room ? admitted_room * 2 : 1 << 16;
        admitted = need(realloc(admitted, admitted_room * sizeof *admitted));
    }
    admitted[admitted_count++] = number;
}

static void called_by(int fd, const char *key, size_t key_size, const char *body, size_t size) {
    if (called == call_room) {
        call_room = call_room ? call_room * 2 : 1 << 16;
        calls = need(realloc(calls, call_room * sizeof *calls));
    }
    size_t number = called++, message = number;
    struct call *call = &calls[number];
    *call = (struct call){.arrived = now(), .marker = hash(body, size), .status = 202};
    if (is_full(call->arrived)) {
        call->status = 429;
        refuse_call(fd, number);
        return;
    }
    admit(number);
    if (honours_keys && key_size) message = first_with(&keys, hash(key, key_size), number);
    if (message == number) first_with(&markers, call->marker, number);
    else call->status = 200;
    if (!latency_ns) { accept_call(fd, number, message); return; }
    struct owed one = {call->arrived + latency_ns, number, message, fd, peers[fd].life};
    peers[fd].busy = 1;
    owed[owed_last++ % FDS] = one;
    if (owed_last - owed_first == 1) set_timer();
}

static int is(const char *bytes, const char *start) { return !strncmp(bytes, start, strlen(start)); }

/* The number that follows `name` before `end`; 0 where it is not there. */
static uint64_t number_after(const char *from, const char *name, const char *end) {
    const char *found = strstr(from, name);
    return found && found < end ? strtoull(found + strlen(name), NULL, 10) : 0;
}

static void reset(const char *head, const char *end) {
    latency_ns = number_after(head, "latency_us=", end) * 1000;
    limit = number_after(head, "limit=", end);
    honours_keys = number_after(head, "keys=", end) != 0;
    called = admitted_count = 0;
    forget(&markers);
    forget(&keys);
}

static void handle(int fd, const char *head, const char *body, size_t size) {
    if (is(head, "POST /v1/messages ")) {
        const char *key = strcasestr(head, "\r\nidempotency-key:");
        size_t key_size = 0;
        if (key && key < body) {
            key += strlen("\r\nidempotency-key:");
            key += strspn(key, " ");
            key_size = strcspn(key, "\r");
        }
        called_by(fd, key, key_size, body, size);
    } else if (is(head, "GET /count ")) {
        char text[64];
        int n = snprintf(text, sizeof text, "%zu %zu", called, markers.used);
        reply(fd, "200 OK", "text/plain", text, (size_t)n);
    } else if (is(head, "GET /calls ")) {
        reply(fd, "200 OK", "application/octet-stream", calls, called * sizeof *calls);
    } else if (is(head, "POST /reset?")) {
        reset(head, strstr(head, "\r\n"));
        reply(fd, "200 OK", "text/plain", "ok", 2);
    } else {
        reply(fd, "404 Not Found", "text/plain", "no", 2);
    }
}

/* Handle what is complete; a peer that waits for an answer sends its next request after it. */
static void read_requests(int fd) {
    struct peer *peer = &peers[fd];
    while (!peer->busy && peer->used) {
        peer->bytes[peer->used] = 0;
        char *end = strstr(peer->bytes, "\r\n\r\n");
        if (!end) return;
        end += 4;
        char *length = strcasestr(peer->bytes, "\r\ncontent-length:");
        size_t size = length && length < end ? strtoull(length + 17, NULL, 10) : 0;
        size_t whole = (size_t)(end - peer->bytes) + size;
        if (peer->used < whole) return;
        handle(fd, peer->bytes, end, size);
        peer->used -= whole;
        memmove(peer->bytes, peer->bytes + whole, peer->used);
    }
}

static void readable(int fd) {
    struct peer *peer = &peers[fd];
    for (;;) {
        if (peer->room < peer->used + 4096) {
            peer->room = peer->room ? peer->room * 2 : 16384;
            if (peer->room > REQUEST_MAX) { hang_up(fd); return; }
            peer->bytes = need(realloc(peer->bytes, peer->room));
        }
        ssize_t n = recv(fd, peer->bytes + peer->used, peer->room - peer->used - 1, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) { hang_up(fd); return; }
        peer->used += (size_t)n;
        if (peer->used < peer->room - 1) break;
    }
    read_requests(fd);
}

static void pay(void) {
    uint64_t fired;
    if (read(timer_fd, &fired, sizeof fired) < 0 && errno != EAGAIN) abort();
    for (uint64_t t = now(); owed_first != owed_last && owed[owed_first % FDS].at <= t; owed_first++) {
        struct owed one = owed[owed_first % FDS];
        if (peers[one.fd].life != one.life) continue; /* it has gone */
        peers[one.fd].busy = 0;
        accept_call(one.fd, one.call, one.message);
        read_requests(one.fd);
    }
    set_timer();
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(events_fd, EPOLL_CTL_ADD, fd, &event)) abort();
}

int main(void) {
    int door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    if (door < 0 || bind(door, (struct sockaddr *)&here, size) || listen(door, 1024)) { perror("door"); return 1; }
    getsockname(door, (struct sockaddr *)&here, &size);
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    events_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK);
    watch(door);
    watch(timer_fd);
    watch(STDIN_FILENO);
    for (;;) {
        struct epoll_event events[256];
        int n = epoll_wait(events_fd, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) return 0;
            if (fd == timer_fd) { pay(); continue; }
            if (fd != door) { readable(fd); continue; }
            for (int peer; (peer = accept4(door, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                if (peer >= FDS) { close(peer); continue; }
                setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                watch(peer);
            }
        }
    }
}
