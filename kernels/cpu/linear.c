/* out[m, n] = (sum_k x[m, k] * w[n, k]) * scale[n] + bias[n], accumulated in float32 in ascending order of k.
 *
 * Weights are packed into blocks of 32 outputs. The memory of a block is contiguous and is read sequentially:
 *   float32   [ceil(N / 32), K, 32]
 *   bfloat16  [ceil(N / 32), K / 2, 32, 2]   (adjacent pairs of k, as VDPBF16PS requires)
 *   int8      the layout of bfloat16, with one byte per weight. With VDPBF16PS the byte is a sign bit and a magnitude.
 *             The magnitude is the index into a table of bfloat16 numbers, which represent all int8 numbers exactly.
 *             Otherwise the byte is the two's complement, which takes the fewest instructions to convert to float32.
 *             `slipstream_int8_signed` tells Python which of the two forms this library reads
 *   int4      [ceil(N / 32), K / 32, 576]   (576 bytes for a group of 32 values of k: 32 float16 scales, one per
 *             output; then 256 bytes for the outputs 0 to 15 and 256 bytes for the outputs 16 to 31, in the order that
 *             `int4_weights` describes). The sum of a group is multiplied by its scale and then added to the sum of the
 *             groups before it
 *
 * A block is read from memory once and used for all rows, in tiles of at most 8 rows. The number of rows in a tile
 * never changes the order of additions. The arithmetic is so fast (one VDPBF16PS per cycle on Zen 4) that memory limits
 * the speed. During the work on a block, the next block is therefore prefetched into L2, a few cache lines at a time.
 */
#include "pool.h"
#include "tiles_amx.h"
#include "tiles_dp.h"
#include "tiles_portable.h"

#if defined(HAS_DP_INT8)
const int32_t slipstream_int8_signed = 0;
#else
const int32_t slipstream_int8_signed = 1;
#endif

#if defined(HAS_DP)
/* With more rows than this, FMA is faster than VDPBF16PS on Intel's processors, which start eight FMA in the time of
 * one VDPBF16PS. With fewer rows, memory limits the speed of both. Both give the same bits (`tile_pairs`). There is no
 * such choice for int8 weights, because converting them to float32 takes too long. */
#define FEW_ROWS 4
static int pairs_are_slow(void) { return __builtin_cpu_is("intel"); }
#endif

ALWAYS void tile_bf16(const int rows, const struct tile *t) {
#if defined(HAS_DP)
    if (rows <= FEW_ROWS || !pairs_are_slow()) tile_dp(rows, t, BF16);
    else tile_pairs(rows, t, BF16, BF16, 1);
#else
    tile_pairs(rows, t, BF16, BF16, 0);
#endif
}

ALWAYS void tile_int8_bf16(const int rows, const struct tile *t) {
#if defined(HAS_DP_INT8)
    tile_dp(rows, t, INT8);
#else
    tile_pairs(rows, t, INT8, BF16, 0);
#endif
}

ALWAYS void tile_int8_f32(const int rows, const struct tile *t) { tile_pairs(rows, t, INT8, F32, 0); }

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

static int64_t tiles(int64_t M, int dtype) {
    int64_t most = dtype == BF16 && amx_enabled() ? AMX_ROWS : MAX_ROWS;
    return (M + most - 1) / most;
}

/* All tiles get about the same number of rows, because a tile of one row takes as long as a tile of three rows (the
 * latency of the instructions limits both). */
int64_t linear_height(int64_t M, int dtype) {
    return M > 0 ? (M + tiles(M, dtype) - 1) / tiles(M, dtype) : 1;
}

struct ahead linear_ahead(const struct linear *l, int64_t block, const struct linear *now, int64_t M, int dtype) {
    if (block < 0 || M == 0) return (struct ahead){NULL, 0};
    int64_t bytes = block_bytes(l), steps = now->format == F32 ? now->K : now->K / 2;
    int64_t fetches = tiles(M, dtype) * (steps / STEPS > 0 ? steps / STEPS : 1);
    int64_t lines = (bytes < MAX_AHEAD ? bytes : MAX_AHEAD) / 64;
    return (struct ahead){(const char *)l->weight + block * bytes, (lines + fetches - 1) / fetches};
}

void linear_tile(const struct linear *l, int64_t block, const void *x, int64_t rows, float *out, int64_t stride,
                 int dtype, enum output output, struct ahead *ahead) {
    int64_t n0 = block * NB;
    struct tile t = {
        x, (const char *)l->weight + block * block_bytes(l), l->K, l->scales ? l->scales + n0 : NULL,
        l->bias ? l->bias + n0 : NULL, out, stride, l->N - n0 < NB ? l->N - n0 : NB, output, ahead};
#if defined(HAS_AMX)
    if (dtype == BF16 && amx_enabled()) {
        rows_amx((int)rows, &t, (int)l->format);
        return;
    }
#endif
    if (l->format == F32) rows_f32((int)rows, &t);
    else if (l->format == BF16) rows_bf16((int)rows, &t);
    else if (l->format == INT4 && dtype == BF16) rows_int4_bf16((int)rows, &t);
    else if (l->format == INT4) rows_int4_f32((int)rows, &t);
    else if (dtype == BF16) rows_int8_bf16((int)rows, &t);
    else rows_int8_f32((int)rows, &t);
}

void linear_block(const struct linear *l, int64_t block, const void *x, float *out, int64_t M, int dtype,
                  enum output output, struct ahead *ahead) {
    int64_t row_bytes = l->K * (dtype == BF16 ? 2 : 4), height = linear_height(M, dtype);
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
        struct ahead ahead = linear_ahead(&c->linear, following, &c->linear, c->M, c->dtype);
        linear_block(&c->linear, block, c->x, c->out, c->M, c->dtype, c->output, &ahead);
        block = following;
    }
}

void slipstream_linear(const void *x, const void *weight, const float *scales, const float *bias, float *out, int64_t M,
                       int64_t N, int64_t K, int dtype, int format, int output) {
    struct linear_call call = {{weight, scales, bias, N, K, format}, x, out, M, dtype, output, 0};
    team_run(linear_team, &call);
}
