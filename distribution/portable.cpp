// Linked into the libraries of a wheel, so that they run with an older C library than the one they are built with.
//
// libstdc++ is linked in as well, since that of a user may be older than the compiler. It calls these functions, which
// the C library's version 2.34 moved from libpthread into libc under new versions; the old ones are the same functions.

#include <pthread.h>

#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif

#define OF_FIRST_VERSION(name, parameters, ...)         \
  int first_##name parameters;                          \
  __asm__(".symver first_" #name ", " #name "@" FIRST); \
  int name parameters { return first_##name(__VA_ARGS__); }

extern "C" {

OF_FIRST_VERSION(pthread_create,
                 (pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument),
                 thread, attributes, start, argument)
OF_FIRST_VERSION(pthread_join, (pthread_t thread, void** result), thread, result)
OF_FIRST_VERSION(pthread_once, (pthread_once_t* control, void (*start)()), control, start)

// Since 2.32 the C library says here whether a process has one thread, and libstdc++ counts without atomics then.
char __libc_single_threaded = 0;
}
