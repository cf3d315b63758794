/* Paged tree attention.
 *
 * A row at position p attends to the p + 1 keys at the positions 0 .. p. The slots of the first `prefix_lens[m]` keys
 * are in the sequence's slot table; the slots of the other keys are in the row's path of draft nodes. The online
 * softmax uses blocks of BLOCK positions from position 0. A key's position therefore determines its block, its vector
 * lane and so the order of additions, whether the key is committed or belongs to a draft. The order does not depend on
 * the batch.
 *
 * The positions are divided into spans, so that several threads can share the keys of one row. The sums of the spans
 * are computed separately and then added in the order of the spans.
 *
 * A tile is a few rows of one sequence. If all rows of a tile attend to a block of positions, the tile reads this block
 * only once. A block is prepared so that each step of a sum is one multiplication by a number of the query: the keys
 * are transposed, so that a vector contains one element of LANES keys. On processors with AVX512-BF16, a step
 * multiplies and adds pairs of bfloat16 numbers, and queries and softmax weights are rounded to bfloat16 first.
 */
#include <math.h>

#include "amx.h"
#include "attention_block.h"
#include "ops.h"

#define CHAINS 2 /* partial sums per score, because a step has to wait for the previous step of the same sum */
#if defined(__AVX512F__)
#define WIDTH 4   /* queries processed together: their sums must fit into the registers */
#define VECTORS 4 /* vectors of values processed together */
#else
#define WIDTH 2
#define VECTORS 4
#endif

struct state {
    float queries[MAX_QUERIES * MAX_D]; /* [queries, D or D / 2], multiplied by 1 / sqrt(D) */
    float sums[MAX_QUERIES * MAX_D];    /* [queries, D]: sums of values, weighted by exp(score - max) */
    vf weights[MAX_QUERIES];            /* sums of exp(score - max), per lane */
    float max[MAX_QUERIES];
};

/* Adds factor * data, or for pairs the two products of each lane. */
ALWAYS vf step(vf sum, float factor, vf data, const int pairs) {
#if HAS_PAIRS
    if (pairs) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(factor), (__m512bh)data);
#endif
    (void)pairs;
    return vf_fma(vf_set(factor), data, sum);
}

/* Stores a vector's numbers as factors, unchanged or (with pairs) rounded to bfloat16. */
ALWAYS void store_factors(float *p, vf numbers, const int pairs) {
#if HAS_PAIRS
    if (pairs) {
        __m256bh rounded = _mm512_cvtneps_pbh((__m512)numbers);
        memcpy(p, &rounded, sizeof rounded);
        return;
    }
#endif
    (void)pairs;
    vf_store(p, numbers);
}

/* The scores of one query in a block. `update_softmax` replaces them by the factors of the values. */
struct scores {
    vf parts[PARTS];
};

#if HAS_PAIRS
/* exp(x) for x <= 0, to be rounded to bfloat16. The relative error is 4e-6, a 500th of the rounding error. */
ALWAYS vf exp_to_round(vf x) {
    vf scaled = (vf)_mm512_max_ps(_mm512_set1_ps(-200.0f), (__m512)(x * 1.44269504088896341f)); /* NaN stays NaN */
    vf fraction = (vf)_mm512_reduce_ps((__m512)scaled, _MM_FROUND_TO_NEG_INF);
    vf power = vf_fma(vf_set(1.34266866e-2f), fraction, vf_set(5.22424690e-2f)); /* 2 ** fraction, as a polynomial */
    power = vf_fma(power, fraction, vf_set(2.41280213e-1f));
    power = vf_fma(power, fraction, vf_set(6.93044841e-1f));
    power = vf_fma(power, fraction, vf_set(1.0f));
    return (vf)_mm512_scalef_ps((__m512)power, (__m512)scaled); /* power * 2 ** floor(scaled) */
}

/* Replaces the scores of two vectors by exp(score - max) in bfloat16. Returns the sums of pairs of these numbers, added
 * to `weights`. */
ALWAYS vf pair_factors(vf parts[PARTS], vf max, vf weights) {
    __m512bh factors =
        _mm512_cvtne2ps_pbh((__m512)exp_to_round(parts[1] - max), (__m512)exp_to_round(parts[0] - max));
    memcpy(parts, &factors, sizeof factors);
    return (vf)_mm512_dpbf16_ps((__m512)weights, factors, (__m512bh)_mm512_set1_epi16(0x3f80)); /* 1 in bfloat16 */
}
#endif

/* Computes the products of `width` queries with the keys of a block. */
ALWAYS void compute_scores(const struct block *block, const float *queries, struct scores *scores, const int width,
                           const int64_t steps, const int pairs) {
    vf sums[WIDTH][PARTS][CHAINS];
    for (int g = 0; g < width; g++)
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < CHAINS; i++) sums[g][part][i] = vf_set(0.0f);
    for (int64_t n = 0; n < steps; n += CHAINS)
        for (int i = 0; i < CHAINS; i++)
            for (int g = 0; g < width; g++)
                for (int part = 0; part < PARTS; part++)
                    sums[g][part][i] =
                        step(sums[g][part][i], queries[g * steps + n + i], block->keys[n + i][part], pairs);
    for (int g = 0; g < width; g++)
        for (int part = 0; part < PARTS; part++) scores[g].parts[part] = sums[g][part][0] + sums[g][part][1];
}

/* Replaces a query's scores by the factors of the values, exp(score - max), and adds these to the query's weight. */
ALWAYS void update_softmax(const struct block *block, struct state *state, int64_t query, struct scores *scores,
                           const int64_t D, const int pairs) {
    vf *parts = scores->parts;
    for (int64_t i = 0; i < PARTS && block->count < BLOCK; i++)
        parts[i] = vf_select(lane_numbers() < (float)(block->count - i * LANES), parts[i], vf_set(-INFINITY));
    const vf larger = vf_select(parts[0] > parts[1], parts[0], parts[1]);
    const float old = state->max[query];
    if (vf_any_greater(larger, old)) { /* rare after the first blocks */
        const float top = vf_max(larger);
        const vf rescale = vf_exp(vf_set(old - top));
        state->max[query] = top;
        state->weights[query] *= rescale;
        for (int64_t i = 0; i < D; i += LANES) {
            float *sums = state->sums + query * D + i;
            vf_store(sums, vf_load(sums) * rescale);
        }
    }
    const vf max = vf_set(state->max[query]);
#if HAS_PAIRS
    if (pairs) {
        state->weights[query] = pair_factors(parts, max, state->weights[query]);
        return;
    }
#endif
    for (int64_t i = 0; i < PARTS; i++) {
        parts[i] = vf_exp(parts[i] - max);
        state->weights[query] += parts[i];
    }
}

/* Adds the values of a block, multiplied by the factors, to `vectors` vectors of the sums of `width` queries. */
ALWAYS void add_values(const struct block *block, float *sums, const struct scores *factors, const int width,
                       const int64_t D, const int64_t first, const int vectors, const int pairs) {
    vf sum[WIDTH][VECTORS];
    for (int g = 0; g < width; g++)
        for (int i = 0; i < vectors; i++) sum[g][i] = vf_load(sums + g * D + (first + i) * LANES);
    for (int64_t n = 0; n < (pairs ? BLOCK / 2 : BLOCK); n++)
        for (int i = 0; i < vectors; i++)
            for (int g = 0; g < width; g++)
                sum[g][i] = step(sum[g][i], ((const float *)(factors + g))[n],
                                 block->values[n * (D / LANES) + first + i], pairs);
    for (int g = 0; g < width; g++)
        for (int i = 0; i < vectors; i++) vf_store(sums + g * D + (first + i) * LANES, sum[g][i]);
}

ALWAYS void add_all_values(const struct block *block, float *sums, const struct scores *factors, const int width,
                           const int64_t D, const int pairs) {
    int64_t i = 0, lanes = D / LANES;
    for (; i + VECTORS <= lanes; i += VECTORS) add_values(block, sums, factors, width, D, i, VECTORS, pairs);
    for (; i < lanes; i++) add_values(block, sums, factors, width, D, i, 1, pairs);
}

#if defined(HAS_AMX)
_Static_assert(MAX_QUERIES <= AMX_ROWS, "the tiles hold the queries of a whole tile of rows");

/* Computes the scores of up to AMX_ROWS queries. The block's keys have the layout of the tiles 6 and 7. */
ALWAYS void amx_scores(const struct block *block, const float *queries, struct scores *scores, const int more_than_16,
                       const int64_t D) {
    FINISH_WRITES();
    amx_zero(more_than_16);
    for (int64_t n = 0; n < D / 2; n += AMX_STEP / 2)
        amx_step(more_than_16, queries + n, 2 * D, block->keys[n], block->keys[n] + 1, sizeof *block->keys);
    amx_store(more_than_16, (float *)scores, sizeof *scores);
}

/* Adds the values of a block, multiplied by the factors, to the sums of up to AMX_ROWS queries. */
ALWAYS void amx_add_values(const struct block *block, float *sums, const struct scores *factors, const int more_than_16,
                           const int64_t D) {
    FINISH_WRITES();
    for (int64_t i = 0; i < D / LANES; i += 2) {
        amx_load(more_than_16, sums + i * LANES, 4 * D);
        amx_step(more_than_16, factors, sizeof *factors, block->values + i, block->values + i + 1,
                 D / LANES * sizeof(vf));
        amx_store(more_than_16, sums + i * LANES, 4 * D);
    }
}
#endif

/* Computes the scores of `count` queries from `first` on. */
ALWAYS void score_block(const struct block *block, const struct state *state, int64_t first, int64_t count,
                        struct scores *scores, const int64_t D, const int pairs) {
    const int64_t steps = pairs ? D / 2 : D;
    const float *queries = state->queries + first * steps;
    int64_t q = 0;
#if defined(HAS_AMX)
    if (pairs && amx_enabled()) {
        if (count > 16) amx_scores(block, queries, scores, 1, D);
        else amx_scores(block, queries, scores, 0, D);
        return;
    }
#endif
    for (; q + WIDTH <= count; q += WIDTH)
        compute_scores(block, queries + q * steps, scores + q, WIDTH, steps, pairs);
    switch (count - q) {
    case 1: compute_scores(block, queries + q * steps, scores + q, 1, steps, pairs); break;
    case 2: compute_scores(block, queries + q * steps, scores + q, 2, steps, pairs); break;
    case 3: compute_scores(block, queries + q * steps, scores + q, 3, steps, pairs); break;
    }
}

ALWAYS void add_block(const struct block *block, struct state *state, int64_t first, int64_t count,
                      const struct scores *factors, const int64_t D, const int pairs) {
    float *sums = state->sums + first * D;
    int64_t q = 0;
#if defined(HAS_AMX)
    if (pairs && amx_enabled()) {
        if (count > 16) amx_add_values(block, sums, factors, 1, D);
        else amx_add_values(block, sums, factors, 0, D);
        return;
    }
#endif
    for (; q + WIDTH <= count; q += WIDTH) add_all_values(block, sums + q * D, factors + q, WIDTH, D, pairs);
    switch (count - q) {
    case 1: add_all_values(block, sums + q * D, factors + q, 1, D, pairs); break;
    case 2: add_all_values(block, sums + q * D, factors + q, 2, D, pairs); break;
    case 3: add_all_values(block, sums + q * D, factors + q, 3, D, pairs); break;
    }
}

/* Adds the blocks of positions from `start` to `end` to the softmax of `count` queries, the first of which is `first`.
 *
 * The order of the steps keeps the processor from waiting. The next block is prefetched in parts, between the queries,
 * because a core can only wait for a few cache lines at a time. The values of a block are added after the keys of the
 * next block have been prepared, because AMX would otherwise wait for the factors that were written just before. For
 * the same reason, the scores are computed before the values are prepared. */
ALWAYS void attend_blocks(const struct keys *keys, int64_t start, int64_t end, struct state *state, int64_t first,
                          int64_t count, const int64_t D, const int dtype, const int pairs) {
    struct block block;
    struct scores scores[MAX_QUERIES];
    int64_t offsets[2][BLOCK]; /* the two arrays alternate: one for this block, the other for the next */
    const int64_t begin = start, part = (BLOCK + count - 1) / count;
    if (start >= end) return;
    if (pairs && amx_enabled()) amx_configure(count);
    locate(keys, start, 0, BLOCK, D, dtype, offsets[0]);
    for (int turn = 0; start < end; start += BLOCK, turn = !turn) {
        block.count = keys->total - start < BLOCK ? keys->total - start : BLOCK;
        prepare_keys(keys, offsets[turn], D, dtype, pairs, &block);
        if (start > begin) add_block(&block, state, first, count, scores, D, pairs);
        score_block(&block, state, first, count, scores, D, pairs);
        prepare_values(keys, offsets[turn], D, dtype, pairs, &block);
        for (int64_t q = 0; q < count; q++) {
            int64_t from = q * part, to = from + part < BLOCK ? from + part : BLOCK;
            locate(keys, start + BLOCK, from, to, D, dtype, offsets[!turn]);
            update_softmax(&block, state, first + q, scores + q, D, pairs);
        }
    }
    add_block(&block, state, first, count, scores, D, pairs);
}

/* Stores the partial result of one span for one query: the D sums, then the largest score and the weight. */
ALWAYS void store_partial(const struct state *state, int64_t query, float *partial, const int64_t D, const int pairs) {
    const float *sums = state->sums + query * D;
    if (!pairs) memcpy(partial, sums, D * sizeof(float));
    for (int64_t i = 0; pairs && i < D; i += 2 * LANES) /* the order of `prepare_values` */
        for (int64_t j = 0; j < LANES; j++)
            partial[i + 2 * j] = sums[i + j], partial[i + 2 * j + 1] = sums[i + LANES + j];
    partial[D] = state->max[query];
    partial[D + 1] = vf_sum(state->weights[query]);
}

/* Adds the partial result of the next span to the sum of the spans before it. This function is not inlined, so that all
 * callers round alike. */
static __attribute__((noinline)) void add_partial(float *sum, const float *next, int64_t D) {
    float max = sum[D] > next[D] ? sum[D] : next[D];
    vf old = vf_exp(vf_set(sum[D] - max)), new = vf_exp(vf_set(next[D] - max));
    for (int64_t i = 0; i < D; i += LANES)
        vf_store(sum + i, vf_fma(vf_load(next + i), new, vf_load(sum + i) * old));
    sum[D] = max;
    sum[D + 1] = vf_fma(vf_set(next[D + 1]), new, vf_set(sum[D + 1]) * old)[0];
}

static void write_result(const struct attention *a, int64_t m, int64_t head, const float *sum) {
    float total = sum[a->D + 1];
    if (a->sinks) total += expf(a->sinks[head] - sum[a->D]); /* infinity gives 0, as it should */
    for (int64_t i = 0; i < a->D; i += LANES)
        vf_store_any(a->out, (m * a->Hq + head) * a->D + i, a->dtype, vf_load(sum + i) / total);
}

static int64_t num_keys(const struct attention_rows *rows, int64_t m) {
    return rows->prefix_lens[m] + rows->path_lens[m];
}

ALWAYS void store_queries(const struct attention *a, const struct query_tile *tile, int64_t first_head, int64_t heads,
                          struct state *state, const int64_t D, const int pairs) {
    const int64_t steps = pairs ? D / 2 : D;
    const float scale = 1.0f / sqrtf((float)D);
    for (int64_t query = 0; query < tile->count * heads; query++) {
        const float *q = a->q + (tile->m + query / heads) * a->q_stride + (first_head + query % heads) * D;
        for (int64_t i = 0; i < D / LANES; i++)
            store_factors(state->queries + query * steps + i * (pairs ? LANES / 2 : LANES),
                          vf_load(q + i * LANES) * scale, pairs);
    }
}

/* Computes the sums of the keys of one span, for `heads` heads from `first_head` on that share a KV head. */
ALWAYS void attend_span(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                        int64_t first_head, int64_t heads, int64_t span, struct state *state, const int64_t D,
                        const int dtype, const int pairs) {
    const int64_t from = span * SPAN, to = from + SPAN;
    int64_t shared = to; /* up to here, all rows attend to the same keys */
    for (int64_t m = tile->m; m < tile->m + tile->count; m++)
        if (rows->prefix_lens[m] < shared) shared = rows->prefix_lens[m];
    shared = shared / BLOCK * BLOCK;
    if (shared < from) shared = from;
    for (int64_t query = 0; query < tile->count * heads; query++) {
        memset(state->sums + query * D, 0, D * sizeof(float));
        state->weights[query] = vf_set(0.0f), state->max[query] = -INFINITY;
    }
    for (int64_t r = -1; r < tile->count; r++) { /* first the shared blocks, then the other blocks of each row */
        int64_t m = tile->m + (r < 0 ? 0 : r), total = num_keys(rows, m);
        struct keys keys = {a->k_cache,
                            a->v_cache,
                            rows->slot_tables + rows->seqs[m] * rows->table_stride,
                            rows->paths + m * rows->path_stride,
                            rows->prefix_lens[m],
                            total,
                            a->Hkv,
                            first_head / (a->Hq / a->Hkv)};
        if (r < 0) attend_blocks(&keys, from, shared, state, 0, tile->count * heads, D, dtype, pairs);
        else attend_blocks(&keys, shared, total < to ? total : to, state, r * heads, heads, D, dtype, pairs);
    }
}

/* Computes the attention of a tile for heads that share a KV head. If `partials` is null, all spans are computed and
 * joined. Otherwise only the span `span` is computed and stored in `partials` (see `attention_span` in ops.h). For
 * common shapes, D, dtype and pairs are constants after inlining. */
ALWAYS void attend(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                   int64_t first_head, int64_t heads, int64_t span, float *partials, const int64_t D, const int dtype,
                   const int pairs) {
    struct state state;
    store_queries(a, tile, first_head, heads, &state, D, pairs);
    if (partials) {
        attend_span(a, rows, tile, first_head, heads, span, &state, D, dtype, pairs);
        for (int64_t query = 0; query < tile->count * heads; query++) {
            int64_t index = query / heads * a->Hq + first_head + query % heads;
            store_partial(&state, query, partials + (index * tile->spans + span) * (D + 2), D, pairs);
        }
        return;
    }
    float sums[MAX_QUERIES * (MAX_D + 2)], next[MAX_D + 2];
    for (span = 0; span < tile->spans; span++) {
        attend_span(a, rows, tile, first_head, heads, span, &state, D, dtype, pairs);
        for (int64_t query = 0; query < tile->count * heads; query++) {
            if (span > 0 && span * SPAN >= num_keys(rows, tile->m + query / heads)) continue;
            store_partial(&state, query, span == 0 ? sums + query * (D + 2) : next, D, pairs);
            if (span > 0) add_partial(sums + query * (D + 2), next, D);
        }
    }
    for (int64_t query = 0; query < tile->count * heads; query++)
        write_result(a, tile->m + query / heads, first_head + query % heads, sums + query * (D + 2));
}

#define VARIANT(NAME, DIM, TYPE, PAIRS)                                                                    \
    static void attend_##NAME(const struct attention *a, const struct attention_rows *rows,                \
                              const struct query_tile *tile, int64_t first_head, int64_t heads, int64_t span, \
                              float *partials) {                                                           \
        attend(a, rows, tile, first_head, heads, span, partials, DIM, TYPE, PAIRS);                        \
    }
VARIANT(bf16_64, 64, BF16, HAS_PAIRS)
VARIANT(bf16_128, 128, BF16, HAS_PAIRS)
VARIANT(bf16_pairs, a->D, BF16, HAS_PAIRS)
VARIANT(bf16, a->D, BF16, 0)
VARIANT(f32, a->D, F32, 0)

void attention_span(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head, int64_t span, float *partials) {
    int64_t D = a->D, group = a->Hq / a->Hkv;
    for (int64_t g = 0; g < group; g += MAX_QUERIES) {
        int64_t first = head * group + g, heads = group - g < MAX_QUERIES ? group - g : MAX_QUERIES;
        if (a->dtype == F32) attend_f32(a, rows, tile, first, heads, span, partials);
        else if (D == 64) attend_bf16_64(a, rows, tile, first, heads, span, partials);
        else if (D == 128) attend_bf16_128(a, rows, tile, first, heads, span, partials);
        else if (D % (2 * LANES) == 0) attend_bf16_pairs(a, rows, tile, first, heads, span, partials);
        else attend_bf16(a, rows, tile, first, heads, span, partials);
    }
}

void attention_tile(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head) {
    attention_span(a, rows, tile, head, 0, NULL);
}

void attention_join(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head, float *partials) {
    int64_t group = a->Hq / a->Hkv, size = a->D + 2;
    for (int64_t r = 0; r < tile->count; r++)
        for (int64_t h = head * group; h < (head + 1) * group; h++) {
            float *sum = partials + (r * a->Hq + h) * tile->spans * size;
            for (int64_t span = 1; span * SPAN < num_keys(rows, tile->m + r); span++)
                add_partial(sum, sum + span * size, a->D);
            write_result(a, tile->m + r, h, sum);
        }
}
