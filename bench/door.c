/* The cheapest provider that tells the truth: takes every message, answers after a fixed latency, and
 * remembers when each came in and what it said.
 *
 *     POST /v1/messages           202 {"id": "m<number>"}, `latency` after the request was complete
 *     GET  /count                 requests so far
 *     GET  /calls                 all of them, 24 bytes each: arrived, answered (ns, CLOCK_BOOTTIME), marker
 *     POST /reset?latency_us=N    forget them
 *
 * The marker is a hash of the body, so that two of one message are seen whatever the headers say. One
 * thread on epoll. It listens on a free port of loopback, prints the port, and ends with its standard input.
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

struct call { uint64_t arrived, answered, marker; };
struct peer { char *bytes; size_t used, room; uint32_t life; int busy; };
struct owed { uint64_t at; size_t call; int fd; uint32_t life; };

static struct call *calls;
static size_t called, call_room;
static struct peer peers[FDS];
/* Latency is the same for all, so answers fall due in the order of arrival; a peer is owed at most one. */
static struct owed owed[FDS];
static size_t owed_first, owed_last;
static uint64_t latency_ns;
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

static void accept_call(int fd, size_t number) {
    char body[64];
    int n = snprintf(body, sizeof body, "{\"id\":\"m%zu\"}", number);
    calls[number].answered = now();
    reply(fd, "202 Accepted", "application/json", body, (size_t)n);
}

static void set_timer(void) {
    uint64_t at = owed_first == owed_last ? 0 : owed[owed_first % FDS].at; /* 0 stops it */
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / NS), .tv_nsec = (long)(at % NS)}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static uint64_t hash(const char *bytes, size_t size) { /* FNV-1a */
    uint64_t h = 0xcbf29ce484222325u;
    while (size--) h = (h ^ (unsigned char)*bytes++) * 0x100000001b3u;
    return h;
}

static void called_by(int fd, const char *body, size_t size) {
    if (called == call_room) {
        call_room = call_room ? call_room * 2 : 1 << 16;
        calls = need(realloc(calls, call_room * sizeof *calls));
    }
    calls[called] = (struct call){.arrived = now(), .marker = hash(body, size)};
    if (!latency_ns) { accept_call(fd, called++); return; }
    struct owed one = {calls[called].arrived + latency_ns, called, fd, peers[fd].life};
    called++;
    peers[fd].busy = 1;
    owed[owed_last++ % FDS] = one;
    if (owed_last - owed_first == 1) set_timer();
}

static int is(const char *bytes, const char *start) { return !strncmp(bytes, start, strlen(start)); }

static void handle(int fd, const char *head, const char *body, size_t size) {
    if (is(head, "POST /v1/messages ")) {
        called_by(fd, body, size);
    } else if (is(head, "GET /count ")) {
        char text[32];
        reply(fd, "200 OK", "text/plain", text, (size_t)snprintf(text, sizeof text, "%zu", called));
    } else if (is(head, "GET /calls ")) {
        reply(fd, "200 OK", "application/octet-stream", calls, called * sizeof *calls);
    } else if (is(head, "POST /reset?latency_us=")) {
        latency_ns = strtoull(head + strlen("POST /reset?latency_us="), NULL, 10) * 1000;
        called = 0;
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
        accept_call(one.fd, one.call);
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
