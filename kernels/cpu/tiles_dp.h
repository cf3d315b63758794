/* Tiles for processors with VDPBF16PS, which multiplies pairs of bfloat16 numbers and adds both products. */
#pragma once
#include "tiles.h"

#if defined(HAS_DP)
struct table {
    __m512i low[2], high[2]; /* the low and the high bytes of the bfloat16 numbers 0 to 127 */
};

static struct table int8_table(void) {
    uint8_t low[128], high[128];
    for (int i = 0; i < 128; i++) {
        uint16_t h = f32_to_bf16((float)i);
        low[i] = h & 0xff, high[i] = h >> 8;
    }
    return (struct table){{_mm512_loadu_si512(low), _mm512_loadu_si512(low + 64)},
                          {_mm512_loadu_si512(high), _mm512_loadu_si512(high + 64)}};
}

/* Loads two weights of each of 32 outputs. With int8 the outputs are permuted; `in_order` later reorders their sums. */
ALWAYS void load_pair(const void *w, int64_t k, const int format, const struct table *table, __m512bh *w0,
                      __m512bh *w1) {
    if (format == BF16) {
        const uint16_t *at = (const uint16_t *)w + k * (2 * NB);
        *w0 = (__m512bh)_mm512_loadu_si512(at), *w1 = (__m512bh)_mm512_loadu_si512(at + NB);
        return;
    }
#if defined(HAS_DP_INT8)
    __m512i bytes = _mm512_loadu_si512((const uint8_t *)w + k * (2 * NB)); /* the index ignores bit 7, the sign */
    __m512i low = _mm512_permutex2var_epi8(table->low[0], bytes, table->low[1]);
    __m512i high = _mm512_permutex2var_epi8(table->high[0], bytes, table->high[1]);
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (bytes & 0x80) */
    *w0 = (__m512bh)_mm512_unpacklo_epi8(low, high), *w1 = (__m512bh)_mm512_unpackhi_epi8(low, high);
#endif
}

/* Sorts the lanes of two vectors by output. On entry, the lanes of a are the outputs 0-3, 8-11, 16-19 and 24-27 of the
 * block, and the lanes of b are its other outputs. */
ALWAYS void in_order(__m512 *a, __m512 *b) {
    __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 low = _mm512_permutex2var_ps(*a, first, *b);
    *b = _mm512_permutex2var_ps(*a, second, *b), *a = low;
}

ALWAYS void dp_step(const int rows, const struct tile *t, const int format, const struct table *table, int64_t k,
                    __m512 acc[MAX_ROWS][2]) {
    __m512bh w0, w1;
    load_pair(t->w, k, format, table, &w0, &w1);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        int32_t pair;
        memcpy(&pair, (const uint16_t *)t->x + r * t->K + 2 * k, sizeof pair);
        __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, v);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, v);
    }
}

ALWAYS void tile_dp(const int rows, const struct tile *t, const int format) {
    int64_t pairs = t->K / 2, k = 0;
    struct table table;
    if (format == INT8) table = int8_table();
    __m512 acc[MAX_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    struct ahead ahead = *t->ahead;
    for (; k + STEPS <= pairs; k += STEPS) {
        fetch(&ahead);
#pragma GCC unroll 8
        for (int i = 0; i < STEPS; i++) dp_step(rows, t, format, &table, k + i, acc);
    }
    t->ahead->at = ahead.at;
    for (; k < pairs; k++) dp_step(rows, t, format, &table, k, acc);
    for (int r = 0; r < rows; r++) {
        if (format == INT8) in_order(&acc[r][0], &acc[r][1]);
        finish(t, (const vf *)acc[r], r);
    }
}
#endif

#if defined(HAS_DP_INT4)
ALWAYS __m512bh broadcast_pair(const uint16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* The bfloat16 numbers -8 to 7, twice, because VPERMW reads five bits of an index and the fifth belongs to another
 * weight. */
static __m512i int4_table(void) {
    uint16_t numbers[32];
    for (int i = 0; i < 32; i++) numbers[i] = f32_to_bf16((float)(i % 16 - 8));
    return _mm512_loadu_si512(numbers);
}

/* Returns the weights of 16 outputs for k = 2 i and 2 i + 1. */
ALWAYS __m512bh load_int4(const uint8_t *w, const int i, __m512i table) {
    __m512i words = _mm512_loadu_si512(w + i / 4 * 64);
    return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, i % 4 * 4), table);
}

/* Adds the products with consecutive groups of weights, from `w` on, to the sums of 32 outputs. */
ALWAYS void add_groups(const int rows, const int groups, const uint16_t *x, int64_t K, const uint8_t *w, __m512i table,
                       struct ahead *ahead, __m512 acc[MAX_ROWS][2]) {
    __m512 sums[MAX_GROUPS][MAX_ROWS][2];
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sums[g][r][0] = sums[g][r][1] = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int i = 0; i < GROUP / 2; i++) {
        if (i % (STEPS / groups) == 0) fetch(ahead);
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) {
            const uint8_t *half = w + g * GROUP_BYTES + 2 * NB;
            __m512bh w0 = load_int4(half, i, table), w1 = load_int4(half + HALF_BYTES, i, table);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                __m512bh pair = broadcast_pair(x + r * K + g * GROUP + 2 * i);
                sums[g][r][0] = _mm512_dpbf16_ps(sums[g][r][0], w0, pair);
                sums[g][r][1] = _mm512_dpbf16_ps(sums[g][r][1], w1, pair);
            }
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++, w += GROUP_BYTES) {
        __m512 scale0 = (__m512)vf_load_half(w), scale1 = (__m512)vf_load_half(w + 2 * HALF);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            acc[r][0] = _mm512_fmadd_ps(sums[g][r][0], scale0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(sums[g][r][1], scale1, acc[r][1]);
        }
    }
}

/* VDPBF16PS takes six cycles, and Zen 5 starts two per cycle. With few rows, several groups are therefore computed at
 * the same time, until there are about 16 independent sums. */
ALWAYS void tile_int4_dp(const int rows, const struct tile *t) {
    const int together = rows <= 2 ? MAX_GROUPS : rows <= 4 ? 2 : 1;
    __m512i table = int4_table();
    __m512 acc[MAX_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    struct ahead ahead = *t->ahead;
    const uint8_t *w = t->w;
    const uint16_t *x = t->x;
    int64_t k = 0;
    for (; k + together * GROUP <= t->K; k += together * GROUP, w += together * GROUP_BYTES)
        add_groups(rows, together, x + k, t->K, w, table, &ahead, acc);
    for (; k < t->K; k += GROUP, w += GROUP_BYTES) add_groups(rows, 1, x + k, t->K, w, table, &ahead, acc);
    t->ahead->at = ahead.at;
    for (int r = 0; r < rows; r++) finish(t, (const vf *)acc[r], r);
}
#endif
