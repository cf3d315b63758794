/* Paged tree attention, one row at a time.
 *
 * A row at position p attends to the p + 1 keys at the positions 0 .. p. The slots of the first `prefix_lens[m]` keys
 * are in the sequence's slot table; those of the others are in the row's path of draft nodes. The online softmax uses
 * blocks of 16 positions from position 0. A key's position therefore determines its block and its vector lane, and so
 * the order of additions, whether the key is committed or belongs to a draft. The order does not depend on the batch.
 */
#include <math.h>

#include "common.h"
#include "ops.h"
#include "pool.h"

#define BLOCK LANES
#define MAX_D 576 /* width of DeepSeek-V3's latent together with its rotary part */
#define MAX_HEADS 4 /* heads processed together: their queries, and later their sums, must fit into the registers */

/* The keys of one row and one KV head. */
struct keys {
    const void *k_cache, *v_cache;
    const int32_t *prefix, *path; /* slots: of the committed positions, and of the path's nodes */
    int64_t prefix_len, total, Hkv, head; /* total: prefix and path together; head: index of the KV head */
};

/* Tells whether bfloat16 heads are loaded 32 numbers at a time. A mask and a shift then give two float32 vectors: the
 * elements with odd indices and those with even indices. Queries and accumulators are stored in the same order. */
ALWAYS int in_pairs(int64_t D, int dtype) { return dtype == BF16 && D % (2 * LANES) == 0; }

/* Loads vector i of the head at `offset`. */
ALWAYS vf load_lanes(const void *cache, int64_t offset, int64_t i, int64_t D, int dtype) {
    if (!in_pairs(D, dtype)) {
        offset += i * LANES;
        return dtype == BF16 ? vf_load_bf16((const uint16_t *)cache + offset) : vf_load((const float *)cache + offset);
    }
    vu pair;
    memcpy(&pair, (const uint16_t *)cache + offset + i / 2 * (2 * LANES), sizeof pair);
    pair = i % 2 ? pair & 0xffff0000u : pair << 16;
    vf lanes;
    memcpy(&lanes, &pair, sizeof lanes);
    return lanes;
}

/* Computes the offsets of a block's keys and returns their number. Prefetches the keys and values, because hardware
 * prefetchers cannot predict slots. */
ALWAYS int locate(const struct keys *keys, int64_t start, int64_t D, int dtype, int64_t offsets[BLOCK]) {
    int64_t remaining = keys->total - start, count = remaining < BLOCK ? remaining : BLOCK;
    int64_t size = dtype == BF16 ? 2 : 4;
    for (int64_t j = 0; j < count; j++) {
        int64_t index = start + j;
        int64_t slot = index < keys->prefix_len ? keys->prefix[index] : keys->path[index - keys->prefix_len];
        offsets[j] = (slot * keys->Hkv + keys->head) * D;
        for (int64_t byte = 0; byte < D * size; byte += 64) {
            __builtin_prefetch((const char *)keys->k_cache + offsets[j] * size + byte);
            __builtin_prefetch((const char *)keys->v_cache + offsets[j] * size + byte);
        }
    }
    return (int)count;
}

/* Attention of `heads` queries that share a KV head. For common shapes, heads, D and dtype are constants after
 * inlining. */
ALWAYS void attend(const struct keys *keys, const float *q, void *out, const int heads, const int64_t D,
                   const int dtype) {
    const int64_t lanes = D / LANES;
    const float scale = 1.0f / sqrtf((float)D);
    vf acc[MAX_HEADS][MAX_D / LANES], query[MAX_HEADS][MAX_D / LANES], sum[MAX_HEADS], lane = lane_numbers();
    float max[MAX_HEADS];
    for (int g = 0; g < heads; g++) {
        max[g] = -INFINITY, sum[g] = vf_set(0.0f);
        for (int64_t i = 0; i < lanes; i++) {
            acc[g][i] = vf_set(0.0f);
            query[g][i] = vf_load(q + g * D + i * LANES) * scale;
        }
        for (int64_t i = 0; i < lanes && in_pairs(D, dtype); i += 2) vf_unzip(&query[g][i], &query[g][i + 1]);
    }
    int64_t block_offsets[2][BLOCK]; /* the two arrays alternate: one for this block, the other for the next */
    int next_count = locate(keys, 0, D, dtype, block_offsets[0]);
    for (int64_t start = 0; start < keys->total; start += BLOCK) {
        const int64_t *offsets = block_offsets[start / BLOCK % 2];
        int count = next_count;
        next_count = locate(keys, start + BLOCK, D, dtype, block_offsets[(start / BLOCK + 1) % 2]);
        vf dots[MAX_HEADS][BLOCK];
        for (int j = 0; j < count; j++)
            for (int g = 0; g < heads; g++) {
                vf dot = query[g][0] * load_lanes(keys->k_cache, offsets[j], 0, D, dtype);
                for (int64_t i = 1; i < lanes; i++)
                    dot += query[g][i] * load_lanes(keys->k_cache, offsets[j], i, D, dtype);
                dots[g][j] = dot;
            }
        float p[MAX_HEADS][BLOCK], factors[LANES] = {0};
        int max_has_risen = 0;
        for (int j = count; j < BLOCK; j++)
            for (int g = 0; g < heads; g++) dots[g][j] = vf_set(0.0f);
        for (int g = 0; g < heads; g++) {
            vf scores = vf_select(lane < (float)count, vf_sums(dots[g]), vf_set(-INFINITY));
            float top = vf_max(scores);
            top = top > max[g] ? top : max[g];
            max_has_risen |= top > max[g];
            factors[g] = max[g] - top, max[g] = top;
            vf_store(p[g], vf_exp(scores - top));
        }
        if (max_has_risen) { /* rare after the first blocks; if no maximum has risen, all factors are 1 */
            vf_store(factors, vf_exp(vf_load(factors)));
            for (int g = 0; g < heads; g++) {
                sum[g] *= factors[g];
                for (int64_t i = 0; i < lanes; i++) acc[g][i] *= factors[g];
            }
        }
        for (int g = 0; g < heads; g++) sum[g] += vf_load(p[g]);
        for (int j = 0; j < count; j++)
            for (int64_t i = 0; i < lanes; i++) {
                vf v = load_lanes(keys->v_cache, offsets[j], i, D, dtype);
                for (int g = 0; g < heads; g++) acc[g][i] += p[g][j] * v;
            }
    }
    for (int g = 0; g < heads; g++) {
        float total = vf_sum(sum[g]);
        for (int64_t i = 0; i < lanes && in_pairs(D, dtype); i += 2) vf_zip(&acc[g][i], &acc[g][i + 1]);
        for (int64_t i = 0; i < lanes; i++) vf_store_any(out, g * D + i * LANES, dtype, acc[g][i] / total);
    }
}

#define HEADS(NAME, DIM, TYPE)                                                                        \
    static void attend_##NAME(const struct keys *keys, const float *q, void *out, int heads, int64_t D) { \
        (void)D;                                                                                          \
        switch (heads) {                                                                                  \
        case 1: attend(keys, q, out, 1, DIM, TYPE); break;                                                \
        case 2: attend(keys, q, out, 2, DIM, TYPE); break;                                                \
        case 3: attend(keys, q, out, 3, DIM, TYPE); break;                                                \
        default: attend(keys, q, out, 4, DIM, TYPE); break;                                               \
        }                                                                                                 \
    }
HEADS(bf16_64, 64, BF16)
HEADS(bf16_128, 128, BF16)
HEADS(bf16, D, BF16)
HEADS(f32, D, F32)

void attention_task(const struct attention *a, const struct attention_rows *rows, int64_t task) {
    int64_t Hkv = a->Hkv, D = a->D, group = a->Hq / Hkv, m = task / Hkv, head = task % Hkv;
    int64_t prefix_len = rows->prefix_lens[m];
    struct keys keys = {a->k_cache,
                        a->v_cache,
                        rows->slot_tables + rows->seqs[m] * rows->table_stride,
                        rows->paths + m * rows->path_stride,
                        prefix_len,
                        prefix_len + rows->path_lens[m],
                        Hkv,
                        head};
    int64_t max_heads = D <= 64 ? MAX_HEADS : MAX_HEADS / 2;
    for (int64_t g = 0; g < group; g += max_heads) {
        int heads = (int)(group - g < max_heads ? group - g : max_heads);
        const float *q = a->q + m * a->q_stride + (head * group + g) * D;
        void *out = (char *)a->out + (m * a->Hq + head * group + g) * D * (a->dtype == BF16 ? 2 : 4);
        if (a->dtype == BF16 && D == 64) attend_bf16_64(&keys, q, out, heads, D);
        else if (a->dtype == BF16 && D == 128) attend_bf16_128(&keys, q, out, heads, D);
        else if (a->dtype == BF16) attend_bf16(&keys, q, out, heads, D);
        else attend_f32(&keys, q, out, heads, D);
    }
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
        attention_task(&c->attention, &c->rows, c->num_tasks - 1 - task); /* longest rows first */
}

/* q: M rows of `q_stride` floats, of which the first Hq * D are read. k_cache, v_cache [slots, Hkv, D]. slot_tables
 * [S, table_stride] int32. seqs, prefix_lens, path_lens [M]; paths [M, path_stride] int32. out [M, Hq, D] in the dtype
 * of the caches. D is a multiple of 16 up to 576. */
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
