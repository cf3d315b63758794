/* A team of threads that share the work of a pass.
 *
 * A pass is a few hundred short phases; waking sleeping threads for each (10 to 50 microseconds) would cost as much as
 * some phases. So threads wait for the next phase by spinning, but briefly: on a shared machine the thread waited for
 * may not be running at all, and who spins then, or yields, keeps it off the core. After SPINS pauses they sleep.
 */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

/* Work of one phase is claimed item by item from here, so a thread that is held up holds up one item at most. */
typedef atomic_llong counter;

typedef void (*team_function)(void *context);

/* Runs `function` on every thread of the team, the caller's included, and returns when all are through. One caller at
 * a time runs; others wait. */
void team_run(team_function function, void *context);

/* Inside `team_run`: nobody goes on before everybody is here. */
void team_barrier(void);

/* The next item of a phase of `total`, or -1. */
static inline int64_t claim(counter *next, int64_t total) {
    int64_t item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return item < total ? item : -1;
}
