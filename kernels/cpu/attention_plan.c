/* Divides attention into tasks. A tile of many rows is efficient because it reads the keys once for all of them, but
 * there must be a few tasks for each thread. If a pass has few tiles with long contexts, each task computes one span
 * (see attention.c) of a tile, and the thread that finishes the last span of a tile joins the spans.
 */
#include <stdlib.h>

#include "ops.h"

#define TASKS 2 /* the desired number of tasks per thread */

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Adds the tiles of the rows m .. end - 1 of one sequence, whose longest row has `spans` spans. */
static void add_tiles(struct attention_plan *plan, int64_t m, int64_t end, int64_t spans, int64_t M, int64_t Hq,
                      int64_t Hkv) {
    int64_t height = min(M * Hkv * spans / (TASKS * team_size()), MAX_QUERIES / (Hq / Hkv));
    int64_t rows = end - m, parts = (rows + max(height, 1) - 1) / max(height, 1);
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = m + rows * part / parts, count = m + rows * (part + 1) / parts - first;
        plan->tiles[plan->num_tiles++] = (struct query_tile){first, count, spans, 0, 0};
    }
}

/* Makes each span of each tile a task. Returns the number of partial results. */
static int64_t split_spans(struct attention_plan *plan, int64_t Hq, int64_t Hkv) {
    int64_t task = 0, partial = 0;
    for (struct query_tile *tile = plan->tiles; tile < plan->tiles + plan->num_tiles; tile++) {
        tile->task = task, tile->partial = partial;
        task += tile->spans * Hkv;
        partial += tile->count * Hq * tile->spans;
    }
    plan->num_tasks = task;
    return partial;
}

int attention_plan(struct attention_plan *plan, const struct attention_rows *rows, int64_t M, int64_t Hq, int64_t Hkv,
                   int64_t D) {
    int64_t most_spans = 1;
    *plan = (struct attention_plan){.tiles = malloc(max(M, 1) * sizeof *plan->tiles)};
    if (plan->tiles == NULL) return -1;
    for (int64_t m = 0, end; m < M; m = end) {
        int64_t keys = 0;
        for (end = m; end < M && rows->seqs[end] == rows->seqs[m]; end++)
            keys = max(keys, rows->prefix_lens[end] + rows->path_lens[end]);
        int64_t spans = max(1, (keys + SPAN - 1) / SPAN);
        most_spans = max(most_spans, spans);
        add_tiles(plan, m, end, spans, M, Hq, Hkv);
    }
    plan->num_tasks = plan->num_tiles * Hkv;
    if (most_spans == 1 || plan->num_tasks >= 2 * TASKS * team_size()) return 0;
    int64_t num_partials = split_spans(plan, Hq, Hkv);
    plan->finished = calloc(plan->num_tiles * Hkv, sizeof *plan->finished);
    plan->partials = malloc(num_partials * (D + 2) * sizeof *plan->partials);
    if (plan->finished && plan->partials) return 0;
    attention_plan_free(plan);
    return -1;
}

void attention_plan_free(struct attention_plan *plan) {
    free(plan->tiles);
    free(plan->finished);
    free(plan->partials);
}

void attention_task(const struct attention *a, const struct attention_rows *rows, const struct attention_plan *plan,
                    int64_t task) {
    int64_t t = 0;
    if (plan->finished == NULL) {
        attention_tile(a, rows, plan->tiles + task / a->Hkv, task % a->Hkv);
        return;
    }
    while (t + 1 < plan->num_tiles && plan->tiles[t + 1].task <= task) t++;
    const struct query_tile *tile = plan->tiles + t;
    int64_t head = (task - tile->task) / tile->spans, span = (task - tile->task) % tile->spans;
    if (tile->spans == 1) {
        attention_tile(a, rows, tile, head);
        return;
    }
    float *partials = plan->partials + tile->partial * (a->D + 2);
    attention_span(a, rows, tile, head, span, partials);
    counter *finished = plan->finished + t * a->Hkv + head;
    if (atomic_fetch_add_explicit(finished, 1, memory_order_acq_rel) + 1 < tile->spans) return;
    atomic_store_explicit(finished, 0, memory_order_relaxed); /* reset for the next layer, which follows a barrier */
    attention_join(a, rows, tile, head, partials);
}

struct attention_call {
    struct attention attention;
    struct attention_rows rows;
    struct attention_plan plan;
    counter next;
};

static void attention_team(void *context) {
    struct attention_call *c = context;
    int64_t task;
    while ((task = claim(&c->next, c->plan.num_tasks)) >= 0) /* longest rows first */
        attention_task(&c->attention, &c->rows, &c->plan, c->plan.num_tasks - 1 - task);
}

/* q: M rows of `q_stride` floats, of which the first Hq * D are read. k_cache, v_cache [slots, Hkv, D]. slot_tables
 * [S, table_stride] int32. seqs, prefix_lens, path_lens [M]; paths [M, path_stride] int32. out [M, Hq, D] in the dtype
 * of the caches. D is a multiple of 16 up to 576. sinks [Hq], or null. Returns 0, or -1 if memory is missing. */
int slipstream_attention(const float *q, int64_t q_stride, const void *k_cache, const void *v_cache,
                         const int32_t *slot_tables, int64_t table_stride, const int64_t *seqs,
                         const int64_t *prefix_lens, const int32_t *paths, int64_t path_stride,
                         const int64_t *path_lens, void *out, int64_t M, int64_t Hq, int64_t Hkv, int64_t D,
                         int dtype, const float *sinks) {
    struct attention_call call = {
        .attention = {q, q_stride, k_cache, v_cache, out, Hq, Hkv, D, dtype, sinks},
        .rows = {slot_tables, paths, seqs, prefix_lens, path_lens, table_stride, path_stride},
    };
    if (attention_plan(&call.plan, &call.rows, M, Hq, Hkv, D) != 0) return -1;
    team_run(attention_team, &call);
    attention_plan_free(&call.plan);
    return 0;
}
