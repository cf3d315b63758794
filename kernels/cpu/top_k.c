/* Finds the largest logits of each row and their columns, and computes the row's log-sum-exp. */
#include <math.h>

#include "common.h"
#include "ops.h"

enum { PARALLEL = 1 << 17 }; /* fewer logits than this are read by one thread, because waking the others takes longer */

struct best {
    const float *logits; /* [M, V] */
    float *values;       /* [M, count], descending; of equal values the lower column first */
    int64_t *columns;    /* [M, count] */
    float *log_masses;   /* [M]: log sum exp */
    int64_t M, V, count;
    counter next;
};

/* Inserts a value into the sorted list of the `count` largest values so far, if it is large enough. */
ALWAYS void insert(float *values, int64_t *columns, int64_t count, float value, int64_t column) {
    int64_t index = count - 1;
    if (!(value > values[index])) return;
    for (; index > 0 && value > values[index - 1]; index--) {
        values[index] = values[index - 1];
        columns[index] = columns[index - 1];
    }
    values[index] = value;
    columns[index] = column;
}

static void best_of_row(const struct best *b, int64_t m) {
    const float *row = b->logits + m * b->V;
    float *values = b->values + m * b->count;
    int64_t *columns = b->columns + m * b->count, i = 0;
    for (int64_t k = 0; k < b->count; k++) values[k] = -INFINITY, columns[k] = k;
    for (; i + LANES <= b->V; i += LANES) {
        if (!(vf_max(vf_load(row + i)) > values[b->count - 1])) continue;
        for (int64_t j = i; j < i + LANES; j++) insert(values, columns, b->count, row[j], j);
    }
    for (; i < b->V; i++) insert(values, columns, b->count, row[i], i);
    vf sum = vf_set(0.0f);
    for (i = 0; i + LANES <= b->V; i += LANES) sum += vf_exp(vf_load(row + i) - values[0]);
    float total = vf_sum(sum);
    for (; i < b->V; i++) total += expf(row[i] - values[0]);
    b->log_masses[m] = values[0] + logf(total);
}

static void top_k_team(void *context) {
    struct best *b = context;
    for (int64_t m; (m = claim(&b->next, b->M)) >= 0;) best_of_row(b, m);
}

void slipstream_top_k(const float *logits, float *values, int64_t *columns, float *log_masses, int64_t M, int64_t V,
                      int64_t count) {
    struct best b = {logits, values, columns, log_masses, M, V, count, 0};
    if (M * V < PARALLEL) top_k_team(&b);
    else team_run(top_k_team, &b);
}
