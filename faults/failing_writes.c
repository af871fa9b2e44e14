/* Lets one write below a folder fail, or write only half of what it was given: preloaded by `make chaos`.
 * Python, Rust (safetensors) and Arrow write through these functions; what C++ streams write is not seen here. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char below[PATH_MAX];
static volatile long *count; /* shared by the processes of a job */
static long number;
static int failure;

void failing_writes_arm(const char *folder, volatile long *counter, long at, int error) {
    strncpy(below, folder, sizeof below - 1);
    number = at;
    failure = error;
    count = counter;
}

static int is_hit(int file) {
    char link[64], path[PATH_MAX];
    if (!count) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, below, strlen(below))) return 0;
    return __sync_add_and_fetch(count, 1) == number;
}

ssize_t write(int file, const void *content, size_t size) {
    if (is_hit(file)) {
        if (failure) { errno = failure; return -1; }
        size = (size + 1) / 2;
    }
    return syscall(SYS_write, file, content, size);
}

ssize_t pwrite64(int file, const void *content, size_t size, off_t at) {
    if (is_hit(file)) {
        if (failure) { errno = failure; return -1; }
        size = (size + 1) / 2;
    }
    return syscall(SYS_pwrite64, file, content, size, at);
}

ssize_t pwrite(int file, const void *content, size_t size, off_t at) { return pwrite64(file, content, size, at); }

ssize_t writev(int file, const struct iovec *parts, int many) {
    if (is_hit(file)) {
        if (failure) { errno = failure; return -1; }
        return syscall(SYS_write, file, parts[0].iov_base, (parts[0].iov_len + 1) / 2);
    }
    return syscall(SYS_writev, file, parts, many);
}
