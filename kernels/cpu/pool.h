/* A team of threads that share the work of a pass.
 *
 * A pass has a few hundred short phases. Waking the threads for each of them (10 to 50 microseconds) would take as long
 * as some phases. So threads first wait for the next phase by spinning. After SPINS pauses they sleep, because on a
 * shared machine a spinning thread can occupy the core that the other threads of the team need.
 */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

/* The number of items of a phase that were claimed. Threads claim one item at a time, so a thread that the system has
 * suspended delays at most one item. */
typedef atomic_llong counter;

typedef void (*team_function)(void *context);

/* Runs `function` on every thread of the team, including the caller's, and returns when all have finished. Concurrent
 * callers wait for each other. */
void team_run(team_function function, void *context);

/* The number of threads that `team_run` uses; 1 before its first call. */
int team_size(void);

/* A barrier for use inside `team_run`. */
void team_barrier(void);

/* Returns the next item of a phase of `total` items, or -1 if all items have been claimed. */
static inline int64_t claim(counter *next, int64_t total) {
    int64_t item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return item < total ? item : -1;
}
