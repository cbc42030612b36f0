/* File system calls below one folder, counted and made to go wrong: preloaded into a process by `tests/faults.py`.

   Calls of the C library are replaced, not functions of Python, because tensors are written by Rust and pictures by C.
   One call is one point: opening for writing, writing, flushing, renaming, making and removing. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, DIE, FULL, READ_ONLY };

static char folder[PATH_MAX];
static size_t folder_length;
static long at, seen;
static int fault, log_descriptor = -1;

/* From the call number `k` on (from 1): DIE ends the process, FULL is a full disk, READ_ONLY one that takes nothing. */
void faults_arm(const char *path, long k, int what, int log) {
    strncpy(folder, path, sizeof folder - 1);
    folder_length = strlen(folder);
    at = k, seen = 0, fault = what, log_descriptor = log;
}

long faults_seen(void) { return seen; }

static void place(int directory, const char *path, char *whole) {
    char base[PATH_MAX] = "", link[64];
    whole[0] = 0;
    if (path && path[0] == '/') {
        snprintf(whole, PATH_MAX, "%s", path);
        return;
    }
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    if (length < 0) return;
    base[length] = 0;
    snprintf(whole, PATH_MAX, path ? "%s/%s" : "%s", base, path);
}

/* 0: go on; else the errno to fail with. */
static int point(const char *call, int directory, const char *path, int needs_space) {
    char whole[PATH_MAX];
    int kept = errno;
    if (!folder_length) return 0;
    place(directory, path, whole);
    errno = kept;
    if (strncmp(whole, folder, folder_length) || (whole[folder_length] && whole[folder_length] != '/')) return 0;
    ++seen;
    if (log_descriptor >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%s %s\n", call, whole + folder_length);
        syscall(SYS_write, log_descriptor, line, length);
    }
    if (!at || seen < at) return 0;
    if (fault == DIE && strcmp(call, "write")) _exit(99);
    if (fault == DIE) return -1; /* a write does half of its work first */
    if (fault == FULL && needs_space) return ENOSPC;
    if (fault == READ_ONLY) return EROFS;
    return 0;
}

#define FAIL_IF(call, directory, path, needs_space)                   \
    do {                                                              \
        int wrong = point(call, directory, path, needs_space);        \
        if (wrong) { errno = wrong; return -1; }                      \
    } while (0)

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) FAIL_IF("open", directory, path, flags & O_CREAT);
    return syscall(SYS_openat, directory, path, flags, mode);
}

#define MODE(last)                                     \
    mode_t mode = 0;                                   \
    if (flags & (O_CREAT | __O_TMPFILE)) {             \
        va_list rest;                                  \
        va_start(rest, last);                          \
        mode = va_arg(rest, mode_t);                   \
        va_end(rest);                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE(flags) return open_at(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE(flags) return open_at(directory, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }

static int point_of_write(int descriptor) { return folder_length ? point("write", descriptor, NULL, 1) : 0; }

ssize_t write(int descriptor, const void *bytes, size_t count) {
    int wrong = point_of_write(descriptor);
    if (wrong > 0) { errno = wrong; return -1; }
    if (wrong < 0) { syscall(SYS_write, descriptor, bytes, count / 2); _exit(99); }
    return syscall(SYS_write, descriptor, bytes, count);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off_t where) {
    int wrong = point_of_write(descriptor);
    if (wrong > 0) { errno = wrong; return -1; }
    if (wrong < 0) { syscall(SYS_pwrite64, descriptor, bytes, count / 2, where); _exit(99); }
    return syscall(SYS_pwrite64, descriptor, bytes, count, where);
}
ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t where) {
    return pwrite64(descriptor, bytes, count, where);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    int wrong = point_of_write(descriptor);
    if (wrong > 0) { errno = wrong; return -1; }
    if (wrong < 0) { syscall(SYS_write, descriptor, parts[0].iov_base, parts[0].iov_len / 2); _exit(99); }
    return syscall(SYS_writev, descriptor, parts, count);
}

static int flush(int descriptor, long number) {
    int wrong = folder_length ? point("fsync", descriptor, NULL, 0) : 0;
    if (wrong) { errno = wrong; return -1; }
    return syscall(number, descriptor);
}
int fsync(int descriptor) { return flush(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return flush(descriptor, SYS_fdatasync); }

int ftruncate64(int descriptor, off_t length) {
    if (folder_length) FAIL_IF("truncate", descriptor, NULL, 1);
    return syscall(SYS_ftruncate, descriptor, length);
}
int ftruncate(int descriptor, off_t length) { return ftruncate64(descriptor, length); }

int renameat(int from, const char *old, int to, const char *new) {
    FAIL_IF("rename", to, new, 0);
    return syscall(SYS_renameat2, from, old, to, new, 0);
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int unlinkat(int directory, const char *path, int flags) {
    FAIL_IF(flags & AT_REMOVEDIR ? "rmdir" : "unlink", directory, path, 0);
    return syscall(SYS_unlinkat, directory, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int directory, const char *path, mode_t mode) {
    FAIL_IF("mkdir", directory, path, 1);
    return syscall(SYS_mkdirat, directory, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
