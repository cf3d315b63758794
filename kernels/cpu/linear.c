/* out[m, n] = sum_k x[m, k] * w[n, k] (+ bias[n]), accumulated in float32, k ascending.
 *
 * Weights are packed once into blocks of 32 outputs, so that one block is one stream from memory:
 *   float32   [ceil(N / 32), K, 32]
 *   bfloat16  [ceil(N / 32), ceil(K / 2), 32, 2]   (pairs of k beside each other, as VDPBF16PS takes them)
 * A block is read from memory once and used for all rows in tiles of at most 8; the tile's height changes which
 * registers are used, never the order of additions. With few rows the pass is bound by reading the weights.
 */
#include "common.h"
#include "ops.h"
#include "pool.h"

#define NB 32
#define MAX_ROWS 8

ALWAYS void finish(vf a, vf b, int64_t n0, int64_t N, const float *bias, float *out, int64_t row, int output) {
    float values[NB], *o = out + row * N + n0;
    vf_store(values, a);
    vf_store(values + LANES, b);
    int64_t width = N - n0 < NB ? N - n0 : NB;
    if (bias)
        for (int64_t i = 0; i < width; i++) values[i] += bias[n0 + i];
    for (int64_t i = 0; i < width; i++) o[i] = output == ADD ? o[i] + values[i] : values[i];
}

/* One tile of `rows` rows (a constant after inlining) by 32 outputs. */
ALWAYS void tile_f32(const int rows, const float *x, const float *w, int64_t K, int64_t n0, int64_t N,
                     const float *bias, float *out, int64_t row0, int output) {
    vf acc[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vf_set(0.0f);
    for (int64_t k = 0; k < K; k++) {
        vf w0 = vf_load(w + k * NB), w1 = vf_load(w + k * NB + LANES);
        for (int r = 0; r < rows; r++) {
            vf v = vf_set(x[r * K + k]);
            acc[r][0] += v * w0;
            acc[r][1] += v * w1;
        }
    }
    for (int r = 0; r < rows; r++) finish(acc[r][0], acc[r][1], n0, N, bias, out, row0 + r, output);
}

ALWAYS void tile_bf16(const int rows, const uint16_t *x, const uint16_t *w, int64_t K, int64_t n0, int64_t N,
                      const float *bias, float *out, int64_t row0, int output) {
    int64_t pairs = K / 2;
#if defined(__AVX512BF16__)
    __m512 acc[MAX_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++) {
        const uint16_t *wk = w + k * (2 * NB);
        _mm_prefetch((const char *)(wk + 16 * 2 * NB), _MM_HINT_T0); /* 2 KiB ahead */
        _mm_prefetch((const char *)(wk + 16 * 2 * NB + NB), _MM_HINT_T0);
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(wk), w1 = (__m512bh)_mm512_loadu_si512(wk + NB);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * K + 2 * k, sizeof pair);
            __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, v);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, v);
        }
    }
    for (int r = 0; r < rows; r++)
        finish((vf)acc[r][0], (vf)acc[r][1], n0, N, bias, out, row0 + r, output);
#else
    vf acc[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vf_set(0.0f);
    for (int64_t k = 0; k < pairs; k++) {
        vf low[2], high[2];
        for (int half = 0; half < 2; half++) {
            vu u;
            memcpy(&u, w + k * (2 * NB) + half * NB, sizeof u);
            vu l = u << 16, h = u & 0xffff0000u;
            memcpy(&low[half], &l, sizeof l);
            memcpy(&high[half], &h, sizeof h);
        }
        for (int r = 0; r < rows; r++) {
            vf even = vf_set(bf16_to_f32(x[r * K + 2 * k])), odd = vf_set(bf16_to_f32(x[r * K + 2 * k + 1]));
            for (int half = 0; half < 2; half++) acc[r][half] += even * low[half], acc[r][half] += odd * high[half];
        }
    }
    for (int r = 0; r < rows; r++) finish(acc[r][0], acc[r][1], n0, N, bias, out, row0 + r, output);
#endif
}

#define TILES(NAME, TYPE)                                                                                          \
    static void rows_##NAME(int rows, const TYPE *x, const TYPE *w, int64_t K, int64_t n0, int64_t N,              \
                            const float *bias, float *out, int64_t row0, int output) {                              \
        switch (rows) {                                                                                            \
        case 1: tile_##NAME(1, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 2: tile_##NAME(2, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 3: tile_##NAME(3, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 4: tile_##NAME(4, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 5: tile_##NAME(5, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 6: tile_##NAME(6, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        case 7: tile_##NAME(7, x, w, K, n0, N, bias, out, row0, output); break;                                    \
        default: tile_##NAME(8, x, w, K, n0, N, bias, out, row0, output); break;                                   \
        }                                                                                                          \
    }
TILES(f32, float)
TILES(bf16, uint16_t)

int64_t linear_blocks(const struct linear *l) { return (l->N + NB - 1) / NB; }

void linear_block(const struct linear *l, int64_t block, const void *x, float *out, int64_t M, int dtype,
                  enum output output) {
    int64_t N = l->N, K = l->K, n0 = block * NB;
    for (int64_t m = 0; m < M; m += MAX_ROWS) {
        int rows = M - m < MAX_ROWS ? (int)(M - m) : MAX_ROWS;
        if (dtype == BF16)
            rows_bf16(rows, (const uint16_t *)x + m * K, (const uint16_t *)l->weight + n0 * K, K, n0, N, l->bias, out,
                      m, output);
        else
            rows_f32(rows, (const float *)x + m * K, (const float *)l->weight + n0 * K, K, n0, N, l->bias, out, m,
                     output);
    }
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
    int64_t block;
    while ((block = claim(&c->next, linear_blocks(&c->linear))) >= 0)
        linear_block(&c->linear, block, c->x, c->out, c->M, c->dtype, c->output);
}

/* x [M, K] contiguous in the weights' dtype (K even for bf16), out [M, N] float32, stored or added to; bias may be
 * null. */
void slipstream_linear(const void *x, const void *weight, const float *bias, float *out, int64_t M, int64_t N,
                       int64_t K, int dtype, int output) {
    struct linear_call call = {{weight, bias, N, K}, x, out, M, dtype, output, 0};
    team_run(linear_team, &call);
}
