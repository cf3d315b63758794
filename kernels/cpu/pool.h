/* A team of threads that share the work of a pass.
 *
 * A pass has a few hundred short phases; waking sleeping threads for each (10 to 50 microseconds) would cost as much as
 * some phases. So threads wait for the next phase by spinning, but only briefly: on a shared machine, spinning or
 * yielding threads can keep the awaited thread off the core. After SPINS pauses they sleep.
 */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

/* Threads claim the work of a phase item by item, so a delayed thread delays at most one item. */
typedef atomic_llong counter;

typedef void (*team_function)(void *context);

/* Runs `function` on every thread of the team, including the caller's, and returns when all have finished. Concurrent
 * callers wait for each other. */
void team_run(team_function function, void *context);

/* A barrier for use inside `team_run`. */
void team_barrier(void);

/* Returns the next item of a phase of `total` items, or -1 if all items have been claimed. */
static inline int64_t claim(counter *next, int64_t total) {
    int64_t item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return item < total ? item : -1;
}
