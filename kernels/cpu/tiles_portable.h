/* Tiles for any processor, computed in float32. */
#pragma once
#include "tiles.h"

/* The compiler orders arithmetic freely around a change of the processor's mode. All operands are therefore read from
 * memory after the first function, and all sums are in memory before the mode changes back. */
ALWAYS void flush_tiny_numbers(void) {
#if defined(__AVX512F__)
    uint32_t mode = _mm_getcsr() | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
    __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory");
#endif
}

ALWAYS void keep_tiny_numbers(vf acc[MAX_ROWS][PARTS]) {
#if defined(__AVX512F__)
    uint32_t mode = _mm_getcsr() & ~(uint32_t)(_MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    __asm__ volatile("ldmxcsr %0" : : "m"(mode), "r"(acc) : "memory");
#endif
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
 * `odd`. */
ALWAYS void expand(const void *w, int64_t k, int first, const int format, vf *even, vf *odd) {
    vu e, o;
    if (format == INT8) {
        vh bytes;
        memcpy(&bytes, (const uint8_t *)w + (k * NB + first) * 2, sizeof bytes);
#if defined(HAS_DP_INT8) /* the sign is moved to bit 31 of the float32 number */
        vu pair = __builtin_convertvector(bytes, vu);
        vf me = __builtin_convertvector((vi)(pair & 0x7f), vf);
        vf mo = __builtin_convertvector((vi)(pair >> 8 & 0x7f), vf);
        e = (vu)me | (pair & 0x80) << 24, o = (vu)mo | (pair & 0x8000) << 16;
#else
        vi pair = __builtin_convertvector((vs)bytes, vi);
        *even = __builtin_convertvector(pair << 24 >> 24, vf), *odd = __builtin_convertvector(pair >> 8, vf);
        return;
#endif
    } else {
        memcpy(&e, (const uint16_t *)w + (k * NB + first) * 2, sizeof e);
        o = e & 0xffff0000u, e <<= 16;
    }
    memcpy(even, &e, sizeof e);
    memcpy(odd, &o, sizeof o);
}

/* How many rows and vectors of outputs `sweep_pairs` computes at once: as many as fit into the registers together with
 * the weights and numbers of x that they need. Sums that are kept in memory take about twice as long. */
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
#define SWEEP_ROWS 8
#else /* 16 registers */
#define SWEEP_ROWS 4
#endif
#define SWEEP_PARTS 2

/* Loads two numbers of x into all lanes of two vectors. The pair is copied to all lanes before it is split: compilers
 * would otherwise split it in integer registers, and copying from there is slower than all the arithmetic. */
ALWAYS void load_x_pair(const void *x, int64_t i, int dtype, vf *even, vf *odd) {
    if (dtype == F32) {
        *even = vf_set(((const float *)x)[i]), *odd = vf_set(((const float *)x)[i + 1]);
        return;
    }
    vu both = vu_broadcast((const uint16_t *)x + i), e = both << 16, o = both & 0xffff0000u;
    memcpy(even, &e, sizeof e);
    memcpy(odd, &o, sizeof o);
}

/* Number of values of k of a row that are converted to float32 at a time. With 32 registers, reading converted numbers
 * into all lanes takes no arithmetic instruction; with 16 registers, splitting pairs in registers is faster. */
#if defined(__AVX512F__)
#define WIDENED 256
#else
#define WIDENED 0
#endif

/* Converts `count` numbers of each row of x, from number k on. */
ALWAYS void widen_rows(const int rows, const struct tile *t, int row, int64_t k, int64_t count,
                       float wide[SWEEP_ROWS][WIDENED + LANES]) {
    for (int r = 0; r < rows; r++) {
        const uint16_t *x = (const uint16_t *)t->x + (row + r) * t->K + k;
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES) vf_store(wide[r] + i, vf_load_bf16(x + i));
        for (; i < count; i++) wide[r][i] = bf16_to_f32(x[i]);
    }
}

/* Computes the sums of the rows from `row` on, for the vectors of outputs from `part` on. `every`: number of pairs of k
 * between two prefetches. */
ALWAYS void sweep_pairs(const int rows, const int parts, const struct tile *t, int row, int part, const int format,
                        const int dtype, int64_t every, vf acc[MAX_ROWS][PARTS]) {
    const int widened = WIDENED > 0 && dtype == BF16;
    float wide[SWEEP_ROWS][WIDENED + LANES];
    vf sums[SWEEP_ROWS][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++) sums[r][i] = vf_set(0.0f);
    int64_t until = 0, pairs = t->K / 2, span = widened ? WIDENED / 2 : pairs; /* until: the next prefetch */
    for (int64_t start = 0; start < pairs; start += span) {
        int64_t end = start + span < pairs ? start + span : pairs;
        if (widened) widen_rows(rows, t, row, 2 * start, 2 * (end - start), wide);
        for (int64_t k = start; k < end; k++) {
            if (k == until) fetch(t->ahead), until += every;
            vf even[PARTS], odd[PARTS];
#pragma GCC unroll 8
            for (int i = 0; i < parts; i++) expand(t->w, k, (part + i) * LANES, format, even + i, odd + i);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf e, o;
                if (widened) load_x_pair(wide[r], 2 * (k - start), F32, &e, &o);
                else load_x_pair(t->x, (row + r) * t->K + 2 * k, dtype, &e, &o);
#pragma GCC unroll 8
                for (int i = 0; i < parts; i++) sums[r][i] = vf_fma(e, even[i], vf_fma(o, odd[i], sums[r][i]));
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++) acc[row + r][part + i] = sums[r][i];
}

/* Reads pairs of k and computes in float32. As VDPBF16PS does, it adds the product of the odd k of a pair first. With
 * `flushing`, the sums also have the bits of VDPBF16PS, which treats numbers below 2**-126 as zero. */
ALWAYS void tile_pairs(const int rows, const struct tile *t, const int format, const int dtype, const int flushing) {
    vf acc[MAX_ROWS][PARTS];
    if (flushing) flush_tiny_numbers();
    if (rows == 1 || (rows <= SWEEP_ROWS && format == BF16)) {
        /* With few rows, memory limits the speed, and one sweep reads memory fastest. */
        sweep_pairs(rows, PARTS, t, 0, 0, format, dtype, STEPS, acc);
    } else {
        const int first = rows <= SWEEP_ROWS ? rows : (rows + 1) / 2;
        const int64_t every = STEPS * (PARTS / SWEEP_PARTS) * (rows > first ? 2 : 1);
        for (int part = 0; part < PARTS; part += SWEEP_PARTS) {
            sweep_pairs(first, SWEEP_PARTS, t, 0, part, format, dtype, every, acc);
            if (rows > first) sweep_pairs(rows - first, SWEEP_PARTS, t, first, part, format, dtype, every, acc);
        }
    }
    if (flushing) keep_tiny_numbers(acc);
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}

/* Bits 4 n + 16 p to 4 n + 16 p + 3 of word 16 j + o of a half hold the weight of output o for k = 8 j + 2 n + p. A
 * weight is stored as a number from 0 to 15, which stands for -8 to 7. */
ALWAYS vf int4_weights(vu words, const int shift) {
    return __builtin_convertvector((vi)(words >> shift & 15u), vf) - 8.0f;
}

/* Adds the products of the rows with a group of weights to the sums of the vectors of outputs from `part` on. */
ALWAYS void add_group(const int rows, const int parts, const struct tile *t, int64_t g, int part, const int dtype,
                      vf acc[MAX_ROWS][PARTS]) {
    const uint8_t *at = (const uint8_t *)t->w + g * GROUP_BYTES, *half = at + 2 * NB + part * LANES / HALF * HALF_BYTES;
    vf sums[MAX_ROWS][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++) sums[r][i] = vf_set(0.0f);
    for (int64_t j = 0; j < GROUP / 8; j++) {
        vu words[PARTS];
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++)
            memcpy(words + i, half + 64 * j + 4 * ((part + i) * LANES % HALF), sizeof words[i]);
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            vf even[PARTS], odd[PARTS];
#pragma GCC unroll 8
            for (int i = 0; i < parts; i++)
                even[i] = int4_weights(words[i], 4 * n), odd[i] = int4_weights(words[i], 4 * n + 16);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf e, o;
                load_x_pair(t->x, r * t->K + g * GROUP + 8 * j + 2 * n, dtype, &e, &o);
#pragma GCC unroll 8
                for (int i = 0; i < parts; i++) sums[r][i] = vf_fma(e, even[i], vf_fma(o, odd[i], sums[r][i]));
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < parts; i++) {
        vf scale = vf_load_half(at + 2 * (part + i) * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) acc[r][part + i] = vf_fma(sums[r][i], scale, acc[r][part + i]);
    }
}

ALWAYS void tile_int4(const int rows, const struct tile *t, const int dtype) {
    const int parts = rows <= SWEEP_ROWS && LANES < HALF ? SWEEP_PARTS : 1;
    vf acc[MAX_ROWS][PARTS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++) acc[r][i] = vf_set(0.0f);
    for (int64_t g = 0; g < t->K / GROUP; g++)
        for (int part = 0; part < PARTS; part += parts) {
            if (part % (PARTS / 2) == 0) fetch(t->ahead);
            add_group(rows, parts, t, g, part, dtype, acc);
        }
    for (int r = 0; r < rows; r++) finish(t, acc[r], r);
}
