// Whether this process is a copy of another one, whose threads it lacks.

#pragma once

#include <atomic>
#include <cstdio>
#include <pthread.h>

namespace {

// Whether this process is a copy of another one (fork without exec) that may have run parallel regions before.
std::atomic<bool> is_forked{false};

// Linux remembers it of the process that loads the library, PF_FORKNOEXEC among the flags of its state; later forks are
// told by the C library.
const bool watches_forks = [] {
  if (std::FILE* state = std::fopen("/proc/self/stat", "r")) {
    unsigned flags = 0;
    // pid (name) state parent group session terminal its-group flags: the name may hold anything, even parentheses.
    char line[1024] = {};
    const size_t n = std::fread(line, 1, sizeof(line) - 1, state);
    std::fclose(state);
    size_t name_end = n;
    while (name_end > 0 && line[name_end] != ')') --name_end;
    if (std::sscanf(line + name_end, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1) is_forked = (flags & 0x40) != 0;
  }
  return pthread_atfork(nullptr, nullptr, [] { is_forked = true; }) == 0;
}();

}  // namespace
