/* The implementation of the team of threads that pool.h describes. */
#define _GNU_SOURCE
#include "pool.h"

#include "amx.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

#define SPINS 600 /* about 10 microseconds on an AMD EPYC at 2.6 GHz */

static pthread_mutex_t callers = PTHREAD_MUTEX_INITIALIZER; /* held during `team_run`: one call runs at a time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pid_t team_pid; /* the process that started the team; a forked child has no threads, so it starts a new team */
static int size;    /* number of threads, including the caller's */
static team_function current;
static void *current_context;
static atomic_int round_number; /* number of calls of `team_run`; the members wait for its change */
static atomic_int arrived;      /* number of threads that wait at the barrier */
static atomic_int phase;        /* number of barriers that all threads have passed */

static void wait_until_changed(atomic_int *value, int old) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(value, memory_order_acquire) != old) return;
        PAUSE();
    }
    pthread_mutex_lock(&lock);
    while (atomic_load_explicit(value, memory_order_acquire) == old) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void change(atomic_int *value) {
    pthread_mutex_lock(&lock); /* without the lock, a thread that is about to sleep could miss the change */
    atomic_fetch_add_explicit(value, 1, memory_order_release);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void team_barrier(void) {
    if (size == 1) return;
    int now = atomic_load_explicit(&phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&arrived, 1, memory_order_acq_rel) == size - 1) {
        atomic_store_explicit(&arrived, 0, memory_order_relaxed);
        change(&phase);
    } else {
        wait_until_changed(&phase, now);
    }
}

static void run_share(void) {
    current(current_context);
    amx_release();
}

static void *member(void *unused) {
    (void)unused;
    for (int rounds = 0;; rounds++) {
        wait_until_changed(&round_number, rounds);
        run_share();
        team_barrier();
    }
    return NULL;
}

static int wanted_size(void) {
    const char *text = getenv("OMP_NUM_THREADS"); /* torch uses this setting, too */
    int wanted = text ? atoi(text) : 0;
    if (wanted > 0) return wanted;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

static void start(void) {
    team_pid = getpid();
    atomic_store(&round_number, 0);
    atomic_store(&arrived, 0);
    atomic_store(&phase, 0);
    int wanted = wanted_size();
    for (size = 1; size < wanted; size++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, member, NULL) != 0) break;
        pthread_detach(thread);
    }
}

int team_size(void) { return size > 0 ? size : 1; }

void team_run(team_function function, void *context) {
    pthread_mutex_lock(&callers);
    if (team_pid != getpid()) start();
    current = function;
    current_context = context;
    if (size > 1) change(&round_number);
    run_share();
    team_barrier();
    pthread_mutex_unlock(&callers);
}
