/* AMX: instructions of Intel's processors since 2023 that multiply tiles of up to 16 rows.
 *
 * A product of at most AMX_ROWS rows uses all eight tiles, which `amx_configure` sets up:
 *   0, 1   float32 [rows, 16]: the sums of the first 16 rows; 2, 3: those of the other rows
 *   4      bfloat16 [rows, 32]: 32 numbers of each of the first 16 rows; 5: of the other rows
 *   6, 7   bfloat16 [16, 16, 2]: 32 weights for each of 16 columns, in pairs
 * A sum depends only on its row and its column. In each step of 32 numbers, the products of the even numbers and those
 * of the odd numbers are added separately. Both results are then added to the sum.
 */
#pragma once
#include "common.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512VBMI__) && \
    defined(__linux__)
#define HAS_AMX 1
#endif

#define AMX_ROWS 32
#define AMX_STEP 32 /* numbers of each row in a tile */

/* Whether this process uses AMX: the processor has it, and the system allows it. Python reads this number, too. */
extern int32_t slipstream_uses_amx;
static inline int amx_enabled(void) { return slipstream_uses_amx; }
/* Sets up the tiles of the calling thread for `rows` rows, if they are not set up yet. */
void amx_configure(int64_t rows);
/* Clears the tiles of the calling thread. Every thread must do this before code outside the kernels runs. */
void amx_release(void);

#if defined(HAS_AMX)
/* The intrinsics do not tell the compiler which memory they read. This macro makes it finish all earlier writes. */
#define FINISH_WRITES() __asm__ volatile("" ::: "memory")

/* Adds the products of 32 numbers of each row with their weights. x: the numbers, `x_stride` bytes per row; w0, w1: the
 * weights of 16 columns each, `w_stride` bytes per pair. */
ALWAYS void amx_step(const int more_than_16, const void *x, int64_t x_stride, const void *w0, const void *w1,
                     int64_t w_stride) {
    _tile_loadd(6, w0, w_stride);
    _tile_loadd(4, x, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1, w_stride);
    _tile_dpbf16ps(1, 4, 7);
    if (!more_than_16) return;
    _tile_loadd(5, (const char *)x + 16 * x_stride, x_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

ALWAYS void amx_zero(const int more_than_16) {
    _tile_zero(0);
    _tile_zero(1);
    if (more_than_16) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* Reads the sums from in [rows, 2, 16], with `stride` bytes per row. */
ALWAYS void amx_load(const int more_than_16, const float *in, int64_t stride) {
    _tile_loadd(0, in, stride);
    _tile_loadd(1, in + 16, stride);
    if (more_than_16) {
        _tile_loadd(2, (const char *)in + 16 * stride, stride);
        _tile_loadd(3, (const char *)in + 16 * stride + 64, stride);
    }
}

/* Writes the sums to out [rows, 2, 16], with `stride` bytes per row. */
ALWAYS void amx_store(const int more_than_16, float *out, int64_t stride) {
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 16, stride);
    if (more_than_16) {
        _tile_stored(2, (char *)out + 16 * stride, stride);
        _tile_stored(3, (char *)out + 16 * stride + 64, stride);
    }
}
#endif
