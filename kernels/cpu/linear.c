/* out[m, n] = (sum_k x[m, k] * w[n, k]) * scale[n] + bias[n], accumulated in float32 in ascending order of k.
 *
 * Weights are packed into blocks of 32 outputs. The memory of a block is contiguous and is read sequentially:
 *   float32   [ceil(N / 32), K, 32]
 *   bfloat16  [ceil(N / 32), K / 2, 32, 2]   (adjacent pairs of k, as VDPBF16PS requires)
 *   int8      the layout of bfloat16, with one byte per weight: a sign bit and a magnitude. The magnitude is the index
 *             into a table of bfloat16 numbers, which represent all int8 numbers exactly
 *   int4      [ceil(N / 32), K / 32, 576]   (576 bytes for a group of 32 values of k: 32 float16 scales, one per
 *             output; then 256 bytes for the outputs 0 to 15 and 256 bytes for the outputs 16 to 31, in the order of
 *             `unpack_int4`). The sum of a group is multiplied by its scale and then added to the sum of the groups
 *             before it
 *
 * A block is read from memory once and used for all rows, in tiles of at most 8 rows. The number of rows in a tile
 * never changes the order of additions. The arithmetic is so fast (one VDPBF16PS per cycle on Zen 4) that memory limits
 * the speed. During the work on a block, the next block is therefore prefetched into L2, a few cache lines at a time.
 */
#include "common.h"
#include "ops.h"
#include "pool.h"

#define NB LINEAR_BLOCK
#define MAX_ROWS LINEAR_ROWS
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

ALWAYS void tile_f32(const int rows, const struct tile *t) {
    const float *x = t->x, *w = t->w;
    vf acc[MAX_ROWS][PARTS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++) acc[r][i] = vf_set(0.0f);
    for (int64_t k = 0; k < t->K; k++) {
        if (k % STEPS == 0) fetch(t->ahead);
        for (int i = 0; i < PARTS; i++) {
            vf weights = vf_load(w + k * NB + i * LANES);
            for (int r = 0; r < rows; r++) acc[r][i] = vf_fma(vf_set(x[r * t->K + k]), weights, acc[r][i]);
        }
    }
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}

/* Loads two weights of each output of a vector, from output `first` on, as float32: 2 k into `even` and 2 k + 1 into
 * `odd`. The sign bit of an int8 weight is moved to bit 31 of the float32 number. */
ALWAYS void expand(const void *w, int64_t k, int first, const int format, vf *even, vf *odd) {
    vu e, o;
    if (format == INT8) {
        vh bytes;
        memcpy(&bytes, (const uint8_t *)w + (k * NB + first) * 2, sizeof bytes);
        vu pair = __builtin_convertvector(bytes, vu);
        vf me = __builtin_convertvector((vi)(pair & 0x7f), vf);
        vf mo = __builtin_convertvector((vi)(pair >> 8 & 0x7f), vf);
        e = (vu)me | (pair & 0x80) << 24, o = (vu)mo | (pair & 0x8000) << 16;
    } else {
        memcpy(&e, (const uint16_t *)w + (k * NB + first) * 2, sizeof e);
        o = e & 0xffff0000u, e <<= 16;
    }
    memcpy(even, &e, sizeof e);
    memcpy(odd, &o, sizeof o);
}

/* The version for processors without VDPBF16PS. It reads pairs of k and computes in float32. */
ALWAYS void tile_pairs(const int rows, const struct tile *t, const int format, const int dtype) {
    vf acc[MAX_ROWS][PARTS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++) acc[r][i] = vf_set(0.0f);
    for (int64_t k = 0; k < t->K / 2; k++) {
        if (k % STEPS == 0) fetch(t->ahead);
        vf even[PARTS], odd[PARTS];
        for (int i = 0; i < PARTS; i++) expand(t->w, k, i * LANES, format, even + i, odd + i);
        for (int r = 0; r < rows; r++) {
            vf e = vf_set(load_any(t->x, r * t->K + 2 * k, dtype));
            vf o = vf_set(load_any(t->x, r * t->K + 2 * k + 1, dtype));
            for (int i = 0; i < PARTS; i++) acc[r][i] = vf_fma(o, odd[i], vf_fma(e, even[i], acc[r][i]));
        }
    }
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}

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

ALWAYS void tile_bf16(const int rows, const struct tile *t) {
#if defined(HAS_DP)
    tile_dp(rows, t, BF16);
#else
    tile_pairs(rows, t, BF16, BF16);
#endif
}

ALWAYS void tile_int8_bf16(const int rows, const struct tile *t) {
#if defined(HAS_DP_INT8)
    tile_dp(rows, t, INT8);
#else
    tile_pairs(rows, t, INT8, BF16);
#endif
}

ALWAYS void tile_int8_f32(const int rows, const struct tile *t) { tile_pairs(rows, t, INT8, F32); }

/* Unpacks one group of weights of 16 outputs. The bytes 64 j + 4 o + 2 p and 64 j + 4 o + 2 p + 1 hold four weights of
 * output o: those of k = 8 j + 2 n + p for n = 0 to 3, the weight of n = 0 in the lowest bits. A weight is stored as a
 * number from 0 to 15, which stands for -8 to 7. */
static inline void unpack_int4(const uint8_t *bytes, float weights[GROUP][HALF]) {
    for (int i = 0; i < HALF_BYTES; i++) {
        int k = i / 64 * 8 + i % 2 * 4 + i / 2 % 2, output = i % 64 / 4;
        weights[k][output] = (float)((bytes[i] & 15) - 8);
        weights[k + 2][output] = (float)((bytes[i] >> 4) - 8);
    }
}

ALWAYS void tile_int4(const int rows, const struct tile *t, const int dtype) {
    vf acc[MAX_ROWS][PARTS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++) acc[r][i] = vf_set(0.0f);
    for (int64_t g = 0; g < t->K / GROUP; g++) {
        const uint8_t *at = (const uint8_t *)t->w + g * GROUP_BYTES;
        for (int half = 0; half < 2; half++) {
            fetch(t->ahead);
            float weights[GROUP][HALF];
            unpack_int4(at + 2 * NB + half * HALF_BYTES, weights);
            for (int n = 0; n < HALF; n += LANES) {
                vf scale = vf_load_half(at + 2 * (half * HALF + n)), sums[MAX_ROWS];
                for (int r = 0; r < rows; r++) sums[r] = vf_set(0.0f);
                for (int k = 0; k < GROUP; k++) {
                    vf w = vf_load(weights[k] + n);
                    for (int r = 0; r < rows; r++)
                        sums[r] = vf_fma(vf_set(load_any(t->x, r * t->K + g * GROUP + k, dtype)), w, sums[r]);
                }
                for (int r = 0; r < rows; r++) {
                    vf *sum = &acc[r][(half * HALF + n) / LANES];
                    *sum = vf_fma(sums[r], scale, *sum);
                }
            }
        }
    }
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}

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

ALWAYS void tile_int4_bf16(const int rows, const struct tile *t) {
#if defined(HAS_DP_INT4)
    tile_int4_dp(rows, t);
#else
    tile_int4(rows, t, BF16);
#endif
}

ALWAYS void tile_int4_f32(const int rows, const struct tile *t) { tile_int4(rows, t, F32); }

#define TILES(NAME)                                           \
    static void rows_##NAME(int rows, const struct tile *t) { \
        switch (rows) {                                       \
        case 1: tile_##NAME(1, t); break;                     \
        case 2: tile_##NAME(2, t); break;                     \
        case 3: tile_##NAME(3, t); break;                     \
        case 4: tile_##NAME(4, t); break;                     \
        case 5: tile_##NAME(5, t); break;                     \
        case 6: tile_##NAME(6, t); break;                     \
        case 7: tile_##NAME(7, t); break;                     \
        default: tile_##NAME(8, t); break;                    \
        }                                                     \
    }
TILES(f32)
TILES(bf16)
TILES(int8_bf16)
TILES(int8_f32)
TILES(int4_bf16)
TILES(int4_f32)

int64_t linear_blocks(const struct linear *l) { return (l->N + NB - 1) / NB; }

static int64_t block_bytes(const struct linear *l) {
    if (l->format == INT4) return l->K / GROUP * GROUP_BYTES;
    return l->K * NB * (l->format == F32 ? 4 : l->format == BF16 ? 2 : 1);
}

static int64_t tiles(int64_t M) { return (M + MAX_ROWS - 1) / MAX_ROWS; }

/* All tiles get about the same number of rows, because a tile of one row takes as long as a tile of three rows (the
 * latency of the instructions limits both). */
int64_t linear_height(int64_t M) { return M > 0 ? (M + tiles(M) - 1) / tiles(M) : 1; }

struct ahead linear_ahead(const struct linear *l, int64_t block, const struct linear *now, int64_t M) {
    if (block < 0 || M == 0) return (struct ahead){NULL, 0};
    int64_t bytes = block_bytes(l), steps = now->format == F32 ? now->K : now->K / 2;
    int64_t fetches = tiles(M) * (steps / STEPS > 0 ? steps / STEPS : 1);
    int64_t lines = (bytes < MAX_AHEAD ? bytes : MAX_AHEAD) / 64;
    return (struct ahead){(const char *)l->weight + block * bytes, (lines + fetches - 1) / fetches};
}

void linear_tile(const struct linear *l, int64_t block, const void *x, int64_t rows, float *out, int64_t stride,
                 int dtype, enum output output, struct ahead *ahead) {
    int64_t n0 = block * NB;
    struct tile t = {
        x, (const char *)l->weight + block * block_bytes(l), l->K, l->scales ? l->scales + n0 : NULL,
        l->bias ? l->bias + n0 : NULL, out, stride, l->N - n0 < NB ? l->N - n0 : NB, output, ahead};
    if (l->format == F32) rows_f32((int)rows, &t);
    else if (l->format == BF16) rows_bf16((int)rows, &t);
    else if (l->format == INT4 && dtype == BF16) rows_int4_bf16((int)rows, &t);
    else if (l->format == INT4) rows_int4_f32((int)rows, &t);
    else if (dtype == BF16) rows_int8_bf16((int)rows, &t);
    else rows_int8_f32((int)rows, &t);
}

void linear_block(const struct linear *l, int64_t block, const void *x, float *out, int64_t M, int dtype,
                  enum output output, struct ahead *ahead) {
    int64_t row_bytes = l->K * (dtype == BF16 ? 2 : 4), height = linear_height(M);
    for (int64_t m = 0; m < M; m += height)
        linear_tile(l, block, (const char *)x + m * row_bytes, M - m < height ? M - m : height,
                    out + m * l->N + block * NB, l->N, dtype, output, ahead);
}

struct linear_call {
    struct linear linear;
    const void *x;
    float *out;
    int64_t M;
    int dtype;
    enum output output;
    counter next;
};

static void linear_team(void *context) {
    struct linear_call *c = context;
    int64_t blocks = linear_blocks(&c->linear), block = claim(&c->next, blocks);
    while (block >= 0) {
        int64_t following = claim(&c->next, blocks);
        struct ahead ahead = linear_ahead(&c->linear, following, &c->linear, c->M);
        linear_block(&c->linear, block, c->x, c->out, c->M, c->dtype, c->output, &ahead);
        block = following;
    }
}

void slipstream_linear(const void *x, const void *weight, const float *scales, const float *bias, float *out, int64_t M,
                       int64_t N, int64_t K, int dtype, int format, int output) {
    struct linear_call call = {{weight, scales, bias, N, K, format}, x, out, M, dtype, output, 0};
    team_run(linear_team, &call);
}
