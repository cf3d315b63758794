/* Tiles for processors with AMX (amx.h), which compute up to 32 rows in the time that memory takes to deliver the
 * weights. Weights in int8 and int4 are first converted to bfloat16, in a buffer that stays in the L1 cache. */
#pragma once
#include "amx.h"
#include "tiles_dp.h"

#if defined(HAS_AMX)
#define PAIR_BYTES (4 * NB) /* the bytes of two weights of each output of a block, in bfloat16 */
#define STEP_PAIRS (AMX_STEP / 2)

typedef uint8_t step_weights[STEP_PAIRS * PAIR_BYTES]; /* [STEP_PAIRS, 32, 2] in bfloat16 */

/* Converts the weights of `pairs` pairs from k on. The outputs of int8 are permuted as in `load_pair`. */
ALWAYS void convert_int8(const void *w, int64_t k, const int pairs, const struct table *table, uint8_t *converted) {
#pragma GCC unroll 16
    for (int i = 0; i < pairs; i++) {
        __m512bh w0, w1;
        load_pair(w, k + i, INT8, table, &w0, &w1);
        _mm512_store_si512(converted + i * PAIR_BYTES, (__m512i)w0);
        _mm512_store_si512(converted + i * PAIR_BYTES + PAIR_BYTES / 2, (__m512i)w1);
    }
}

/* Converts the weights of one group. */
ALWAYS void convert_int4(const uint8_t *group, __m512i table, uint8_t *converted) {
    const uint8_t *half = group + 2 * NB;
#pragma GCC unroll 16
    for (int i = 0; i < STEP_PAIRS; i++) {
        _mm512_store_si512(converted + i * PAIR_BYTES, (__m512i)load_int4(half, i, table));
        _mm512_store_si512(converted + i * PAIR_BYTES + PAIR_BYTES / 2,
                           (__m512i)load_int4(half + HALF_BYTES, i, table));
    }
}

/* Adds the products of the last values of k, fewer than a step. Zeros fill the step. */
ALWAYS void add_last_pairs(const int rows, const struct tile *t, const int format, const struct table *table,
                           int64_t first, int64_t pairs) {
    _Alignas(64) step_weights weights = {0};
    _Alignas(64) uint16_t x[AMX_ROWS][AMX_STEP] = {{0}};
    for (int64_t i = first; i < pairs; i++)
        if (format == INT8) convert_int8(t->w, i, 1, table, weights + (i - first) * PAIR_BYTES);
        else memcpy(weights + (i - first) * PAIR_BYTES, (const uint8_t *)t->w + i * PAIR_BYTES, PAIR_BYTES);
    for (int r = 0; r < rows; r++)
        memcpy(x[r], (const uint16_t *)t->x + r * t->K + 2 * first, (pairs - first) * 4);
    FINISH_WRITES();
    amx_step(rows > 16, x, sizeof *x, weights, weights + PAIR_BYTES / 2, PAIR_BYTES);
}

/* `more_than_16` and `format` are constants after inlining. */
ALWAYS void tile_amx(const int rows, const int more_than_16, const struct tile *t, const int format) {
    _Alignas(64) float sums[AMX_ROWS][NB];
    _Alignas(64) step_weights converted[2];
    int64_t pairs = t->K / 2, k = 0, x_stride = 2 * t->K;
    struct table table;
    if (format == INT8) table = int8_table();
    if (format == INT8 && pairs >= STEP_PAIRS) convert_int8(t->w, 0, STEP_PAIRS, &table, converted[0]);
    struct ahead ahead = *t->ahead;
    amx_zero(more_than_16);
    for (; k + STEP_PAIRS <= pairs; k += STEP_PAIRS) {
        const uint8_t *w = (const uint8_t *)t->w + k * PAIR_BYTES;
        for (int i = 0; i < STEP_PAIRS; i += STEPS) fetch(&ahead);
        if (format == INT8) { /* convert the weights of the next step, because a tile waits for writes to its memory */
            int64_t next = k + STEP_PAIRS;
            w = converted[k / STEP_PAIRS % 2];
            if (next + STEP_PAIRS <= pairs)
                convert_int8(t->w, next, STEP_PAIRS, &table, converted[next / STEP_PAIRS % 2]);
            FINISH_WRITES();
        }
        amx_step(more_than_16, (const uint16_t *)t->x + 2 * k, x_stride, w, w + PAIR_BYTES / 2, PAIR_BYTES);
    }
    t->ahead->at = ahead.at;
    if (k < pairs) add_last_pairs(rows, t, format, &table, k, pairs);
    amx_store(more_than_16, sums[0], sizeof *sums);
    for (int r = 0; r < rows; r++) {
        if (format == INT8) in_order((__m512 *)sums[r], (__m512 *)(sums[r] + 16));
        finish(t, (const vf *)sums[r], r);
    }
}

/* Multiplies the sums of a group by its scales, and adds them to the sums of the groups before it. */
ALWAYS void add_scaled_sums(const int rows, const uint8_t *group, vf sums[][PARTS], vf acc[][PARTS]) {
    vf scales[PARTS];
    for (int i = 0; i < PARTS; i++) scales[i] = vf_load_half(group + 2 * LANES * i);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++) acc[r][i] = vf_fma(sums[r][i], scales[i], acc[r][i]);
}

/* While the tiles multiply one group, the weights of the next group are converted, and the sums of the previous group
 * are added: each of these steps would otherwise wait for the memory that the step before it has written. */
ALWAYS void tile_int4_amx(const int rows, const int more_than_16, const struct tile *t) {
    _Alignas(64) vf acc[AMX_ROWS][PARTS], sums[2][AMX_ROWS][PARTS];
    _Alignas(64) step_weights converted[2];
    const uint8_t *w = t->w, *x = t->x;
    __m512i table = int4_table();
    struct ahead ahead = *t->ahead;
    int64_t groups = t->K / GROUP;
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vf_set(0.0f);
    convert_int4(w, table, converted[0]);
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *weights = converted[g % 2];
        for (int i = 0; i < STEP_PAIRS; i += STEPS) fetch(&ahead);
        if (g + 1 < groups) convert_int4(w + (g + 1) * GROUP_BYTES, table, converted[(g + 1) % 2]);
        FINISH_WRITES();
        amx_zero(more_than_16);
        amx_step(more_than_16, x + g * GROUP * 2, 2 * t->K, weights, weights + PAIR_BYTES / 2, PAIR_BYTES);
        amx_store(more_than_16, (float *)sums[g % 2], sizeof *sums[0]);
        if (g > 0) add_scaled_sums(rows, w + (g - 1) * GROUP_BYTES, sums[(g - 1) % 2], acc);
    }
    add_scaled_sums(rows, w + (groups - 1) * GROUP_BYTES, sums[(groups - 1) % 2], acc);
    t->ahead->at = ahead.at;
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}

/* Computes a tile of at most AMX_ROWS rows of bfloat16. */
static void rows_amx(int rows, const struct tile *t, int format) {
    const int more = rows > 16;
    amx_configure(rows);
    if (format == INT4 && more) tile_int4_amx(rows, 1, t);
    else if (format == INT4) tile_int4_amx(rows, 0, t);
    else if (format == INT8 && more) tile_amx(rows, 1, t, INT8);
    else if (format == INT8) tile_amx(rows, 0, t, INT8);
    else if (more) tile_amx(rows, 1, t, BF16);
    else tile_amx(rows, 0, t, BF16);
}
#endif
