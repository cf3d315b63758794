/* A tile: the product of at most 8 rows of x with one block of weights. `linear.c` has the layouts of the weights. */
#pragma once
#include "common.h"
#include "ops.h"

#define NB LINEAR_BLOCK
#define MAX_ROWS 8 /* maximum rows of a tile without AMX */
#define PARTS (NB / LANES) /* vectors of one block of outputs */
#define STEPS 8               /* number of values of k, or of pairs of k, between two prefetches */
#define MAX_AHEAD (256 << 10) /* maximum number of bytes to prefetch, because L2 must also hold the current block */

#if defined(__AVX512BF16__)
#define HAS_DP 1
#endif
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define HAS_DP_INT8 1
#endif
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define HAS_DP_INT4 1
#endif

#define GROUP 32                                 /* values of k with one scale in int4 */
#define HALF (NB / 2)                            /* outputs that are stored together in int4 */
#define HALF_BYTES (GROUP * HALF / 2)            /* bytes of the weights of HALF outputs in one group */
#define GROUP_BYTES (2 * NB + 2 * HALF_BYTES)
#define MAX_GROUPS 4                             /* groups of int4 that are computed at the same time */

/* Prevents the compiler from fusing a product and a sum into one instruction, which would round differently. */
#define KEEP_APART(value) __asm__("" : "+m"(value))

/* The product of a few rows of x with one block of weights. The result of row r is written to out + r * stride. */
struct tile {
    const void *x, *w;
    int64_t K;
    const float *scales, *bias; /* of the block's outputs, or null */
    float *out;
    int64_t stride, width; /* width: number of outputs of this block; less than NB in a last block that is padded */
    int output;
    struct ahead *ahead;
};

ALWAYS void fetch(struct ahead *ahead) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < ahead->lines; i++, ahead->at += 64) _mm_prefetch(ahead->at, _MM_HINT_T1);
#else
    for (int64_t i = 0; i < ahead->lines; i++, ahead->at += 64) __builtin_prefetch(ahead->at, 0, 2);
#endif
}

/* Applies scales and bias to the sums of a row, and writes them. */
ALWAYS void finish(const struct tile *t, const vf sums[PARTS], int64_t row) {
    float *o = t->out + row * t->stride;
    for (int i = 0; i < PARTS; i++) {
        int64_t n = i * LANES;
        vf sum = sums[i];
        if (n + LANES <= t->width) {
            if (t->scales) {
                sum *= vf_load(t->scales + n);
                KEEP_APART(sum);
            }
            if (t->bias) sum += vf_load(t->bias + n);
            if (t->output == ADD) sum += vf_load(o + n);
            vf_store(o + n, sum);
            continue;
        }
        for (int64_t j = 0; n + j < t->width; j++) { /* in the last block if N is not a multiple of 32 */
            float value = sum[j];
            if (t->scales) value *= t->scales[n + j];
            KEEP_APART(value);
            if (t->bias) value += t->bias[n + j];
            o[n + j] = t->output == ADD ? o[n + j] + value : value;
        }
    }
}
