/* Paged tree attention, one row at a time.
 *
 * A row at position p attends to p + 1 keys in position order: the first `prefix_lens[m]` through its sequence's slot
 * table, the others through its own path of draft nodes. Softmax runs online over blocks of 16 positions counted from
 * position 0. So the additions are the same whether a key was committed, belongs to a chain or to a tree, and
 * whatever else is in the batch.
 */
#include <math.h>

#include "common.h"
#include "ops.h"
#include "pool.h"

#define BLOCK 16
#define MAX_GROUP 16
#define MAX_D 256

struct softmax {
    float max, sum;
};

/* One block: scores of `count` keys against one query, running softmax, weights into `p`; returns the factor for what
 * was accumulated before. */
static inline float fold(struct softmax *state, float *scores, int count, float *p) {
    for (int j = count; j < BLOCK; j++) scores[j] = -INFINITY;
    float top = state->max;
    for (int j = 0; j < count; j++) top = scores[j] > top ? scores[j] : top;
    vf weights = vf_exp(vf_load(scores) - top);
    vf_store(p, weights);
    float factor[LANES];
    vf_store(factor, vf_exp(vf_set(state->max - top)));
    float sum = 0.0f;
    for (int j = 0; j < count; j++) sum += p[j];
    state->sum = state->sum * factor[0] + sum;
    state->max = top;
    return factor[0];
}

static inline vf load_lanes(const void *p, int64_t i, int dtype) {
    return dtype == BF16 ? vf_load_bf16((const uint16_t *)p + i) : vf_load((const float *)p + i);
}

ALWAYS void attend(
    const float *q, const void *k_cache, const void *v_cache, const int32_t *prefix, int64_t prefix_len,
    const int32_t *path, int64_t path_len, void *out, int64_t head, int64_t group, int64_t Hkv, const int64_t D,
    float scale, const int dtype) {
    const int64_t lanes = D / LANES;
    vf acc[MAX_GROUP][MAX_D / LANES], query[MAX_GROUP][MAX_D / LANES];
    struct softmax state[MAX_GROUP];
    for (int64_t g = 0; g < group; g++) {
        state[g] = (struct softmax){-INFINITY, 0.0f};
        for (int64_t i = 0; i < lanes; i++) {
            acc[g][i] = vf_set(0.0f);
            query[g][i] = vf_load(q + g * D + i * LANES) * scale;
        }
    }
    int64_t total = prefix_len + path_len;
    for (int64_t start = 0; start < total; start += BLOCK) {
        int count = total - start < BLOCK ? (int)(total - start) : BLOCK;
        int64_t offsets[BLOCK];
        float scores[MAX_GROUP][BLOCK], p[MAX_GROUP][BLOCK];
        for (int j = 0; j < count; j++) {
            int64_t at = start + j;
            int64_t slot = at < prefix_len ? prefix[at] : path[at - prefix_len];
            offsets[j] = (slot * Hkv + head) * D;
            for (int64_t g = 0; g < group; g++) {
                vf dot = vf_set(0.0f);
                for (int64_t i = 0; i < lanes; i++)
                    dot += query[g][i] * load_lanes(k_cache, offsets[j] + i * LANES, dtype);
                scores[g][j] = vf_sum(dot);
            }
        }
        for (int64_t g = 0; g < group; g++) {
            float factor = fold(&state[g], scores[g], count, p[g]);
            for (int64_t i = 0; i < lanes; i++) acc[g][i] *= factor;
        }
        for (int j = 0; j < count; j++)
            for (int64_t i = 0; i < lanes; i++) {
                vf v = load_lanes(v_cache, offsets[j] + i * LANES, dtype);
                for (int64_t g = 0; g < group; g++) acc[g][i] += p[g][j] * v;
            }
    }
    for (int64_t g = 0; g < group; g++)
        for (int64_t i = 0; i < lanes; i++) vf_store_any(out, g * D + i * LANES, dtype, acc[g][i] / state[g].sum);
}

void attention_task(const struct attention *a, const struct attention_rows *rows, int64_t task) {
    int64_t Hkv = a->Hkv, D = a->D, group = a->Hq / Hkv, m = task / Hkv, head = task % Hkv;
    const float *query = a->q + m * a->q_stride + head * group * D;
    const int32_t *prefix = rows->slot_tables + rows->seqs[m] * rows->table_stride;
    const int32_t *path = rows->paths + m * rows->path_stride;
    void *out = (char *)a->out + (m * a->Hq + head * group) * D * (a->dtype == BF16 ? 2 : 4);
    float scale = 1.0f / sqrtf((float)D);
#define CALL(dim, type)                                                                                            \
    attend(query, a->k_cache, a->v_cache, prefix, rows->prefix_lens[m], path, rows->path_lens[m], out, head, group, \
           Hkv, dim, scale, type)
    if (a->dtype == BF16 && D == 64) CALL(64, BF16); /* constants after inlining: the common shapes */
    else if (a->dtype == BF16 && D == 128) CALL(128, BF16);
    else CALL(D, a->dtype);
}

struct attention_call {
    struct attention attention;
    struct attention_rows rows;
    int64_t num_tasks;
    counter next;
};

static void attention_team(void *context) {
    struct attention_call *c = context;
    int64_t task;
    while ((task = claim(&c->next, c->num_tasks)) >= 0)
        attention_task(&c->attention, &c->rows, c->num_tasks - 1 - task); /* a prefill's longest rows come first */
}

/* q: rows of `q_stride` floats, the first Hq * D used. k_cache, v_cache [slots, Hkv, D]. slot_tables [S, table_stride]
 * int32. seqs, prefix_lens, path_lens [M]; paths [M, path_stride] int32. out [M, Hq, D] in the caches' dtype.
 * D is a multiple of 16 up to 256, Hq / Hkv at most 16. */
void slipstream_attention(const float *q, int64_t q_stride, const void *k_cache, const void *v_cache,
                          const int32_t *slot_tables, int64_t table_stride, const int64_t *seqs,
                          const int64_t *prefix_lens, const int32_t *paths, int64_t path_stride,
                          const int64_t *path_lens, void *out, int64_t M, int64_t Hq, int64_t Hkv, int64_t D,
                          int dtype) {
    struct attention_call call = {
        {q, q_stride, k_cache, v_cache, out, Hq, Hkv, D, dtype},
        {slot_tables, paths, seqs, prefix_lens, path_lens, table_stride, path_stride},
        M * Hkv,
        0,
    };
    team_run(attention_team, &call);
}
