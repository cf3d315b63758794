/* Functions that all CPU kernels share: vectors, bf16 conversion, exp.
 *
 * Row invariance: a row has the same bits in a batch, a chain or a tree as in a pass without other rows. For this, the
 * order of additions never depends on the number of rows, sequences or threads. Every change must keep this property:
 * do not let the shape of a tile change the order of additions, and split a sum over threads only at fixed places (the
 * spans of attention.c).
 */
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

/* A vector fills one register: GCC splits longer vectors into single numbers, which is 20 to 100 times slower. */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define ALWAYS static inline __attribute__((always_inline))
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef int16_t vs __attribute__((vector_size(2 * LANES)));

enum dtype { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3 /* the last two only for weights */ };

static inline vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* Copies a number to all lanes. `(vf){} + x` would cost an addition: 0 + -0 is 0, so the compiler may not omit it. */
static inline vf vf_set(float x) {
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(x);
#elif defined(__AVX__)
    return (vf)_mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

/* Copies four bytes of memory to all lanes. */
ALWAYS vu vu_broadcast(const void *p) {
#if defined(__AVX__) && !defined(__AVX512F__)
    return (vu)_mm256_broadcast_ss((const float *)p);
#else
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return (vu){} + u;
#endif
}

/* Computes a * b + c in one instruction if possible. With two operators, the compiler would decide for each variant of
 * a loop whether the product is rounded. */
ALWAYS vf vf_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline vf vf_load_bf16(const uint16_t *p) {
    vh h;
    memcpy(&h, p, sizeof h);
    vu u = __builtin_convertvector(h, vu) << 16;
    vf f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Loads float16 numbers. Multiplying by 2**112 corrects the exponent exactly, also of subnormal numbers. */
static inline vf vf_load_half(const void *p) {
    vh h;
    memcpy(&h, p, sizeof h);
    vu u = __builtin_convertvector(h, vu), bits = (u & 0x7fffu) << 13;
    vf f;
    memcpy(&f, &bits, sizeof f);
    f *= 0x1p112f;
    memcpy(&bits, &f, sizeof f);
    bits |= (u & 0x8000u) << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline vf lane_numbers(void) {
    vf numbers;
    for (int i = 0; i < LANES; i++) numbers[i] = (float)i;
    return numbers;
}

/* Selects for each lane: mask ? a : b. A lane of the mask is all ones or zero. C has no ?: for vectors. */
static inline vf vf_select(vi mask, vf a, vf b) {
    vi x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    vi bits = (mask & x) | (~mask & y);
    vf result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* The sum of the lanes, added pairwise in a fixed order. */
static inline float vf_sum(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#endif
    float x[LANES];
    vf_store(x, v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}

typedef uint32_t quad __attribute__((vector_size(16)));
#if defined(__clang__)
#define QUAD_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define QUAD_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (quad){i, j, k, l})
#endif

/* Swaps lane i of v[j] and lane j of v[i]. */
ALWAYS void vf_transpose(vf v[LANES]) {
#if defined(__AVX512F__)
    __m512 quads[LANES]; /* quads[i + k], for i = 0, 4, 8, 12: of v[i] to v[i + 3], the lanes k, k + 4, k + 8, k + 12 */
    for (int i = 0; i < LANES; i += 4) {
        __m512 a = (__m512)v[i], b = (__m512)v[i + 1], c = (__m512)v[i + 2], d = (__m512)v[i + 3];
        __m512d ab_low = (__m512d)_mm512_unpacklo_ps(a, b), ab_high = (__m512d)_mm512_unpackhi_ps(a, b);
        __m512d cd_low = (__m512d)_mm512_unpacklo_ps(c, d), cd_high = (__m512d)_mm512_unpackhi_ps(c, d);
        quads[i] = (__m512)_mm512_unpacklo_pd(ab_low, cd_low);
        quads[i + 1] = (__m512)_mm512_unpackhi_pd(ab_low, cd_low);
        quads[i + 2] = (__m512)_mm512_unpacklo_pd(ab_high, cd_high);
        quads[i + 3] = (__m512)_mm512_unpackhi_pd(ab_high, cd_high);
    }
    for (int k = 0; k < 4; k++) {
        __m512 a = quads[k], b = quads[4 + k], c = quads[8 + k], d = quads[12 + k];
        __m512 ab_even = _mm512_shuffle_f32x4(a, b, 0x88), ab_odd = _mm512_shuffle_f32x4(a, b, 0xdd);
        __m512 cd_even = _mm512_shuffle_f32x4(c, d, 0x88), cd_odd = _mm512_shuffle_f32x4(c, d, 0xdd);
        v[k] = (vf)_mm512_shuffle_f32x4(ab_even, cd_even, 0x88);
        v[4 + k] = (vf)_mm512_shuffle_f32x4(ab_odd, cd_odd, 0x88);
        v[8 + k] = (vf)_mm512_shuffle_f32x4(ab_even, cd_even, 0xdd);
        v[12 + k] = (vf)_mm512_shuffle_f32x4(ab_odd, cd_odd, 0xdd);
    }
#elif defined(__AVX__)
    __m256d quads[LANES]; /* quads[i + k], for i = 0, 4: of v[i] to v[i + 3], the lanes k and k + 4 */
    for (int i = 0; i < LANES; i += 4) {
        __m256 a = (__m256)v[i], b = (__m256)v[i + 1], c = (__m256)v[i + 2], d = (__m256)v[i + 3];
        __m256d ab_low = (__m256d)_mm256_unpacklo_ps(a, b), ab_high = (__m256d)_mm256_unpackhi_ps(a, b);
        __m256d cd_low = (__m256d)_mm256_unpacklo_ps(c, d), cd_high = (__m256d)_mm256_unpackhi_ps(c, d);
        quads[i] = _mm256_unpacklo_pd(ab_low, cd_low);
        quads[i + 1] = _mm256_unpackhi_pd(ab_low, cd_low);
        quads[i + 2] = _mm256_unpacklo_pd(ab_high, cd_high);
        quads[i + 3] = _mm256_unpackhi_pd(ab_high, cd_high);
    }
    for (int k = 0; k < 4; k++) {
        v[k] = (vf)_mm256_permute2f128_pd(quads[k], quads[4 + k], 0x20);
        v[4 + k] = (vf)_mm256_permute2f128_pd(quads[k], quads[4 + k], 0x31);
    }
#else
    quad old[LANES][LANES / 4], columns[4];
    for (int i = 0; i < LANES; i++) memcpy(old[i], &v[i], sizeof v[i]);
    for (int i = 0; i < LANES; i += 4)
        for (int k = 0; k < LANES / 4; k++) {
            quad ab_low = QUAD_SHUFFLE(old[i][k], old[i + 1][k], 0, 4, 1, 5);
            quad ab_high = QUAD_SHUFFLE(old[i][k], old[i + 1][k], 2, 6, 3, 7);
            quad cd_low = QUAD_SHUFFLE(old[i + 2][k], old[i + 3][k], 0, 4, 1, 5);
            quad cd_high = QUAD_SHUFFLE(old[i + 2][k], old[i + 3][k], 2, 6, 3, 7);
            columns[0] = QUAD_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
            columns[1] = QUAD_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
            columns[2] = QUAD_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
            columns[3] = QUAD_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
            for (int j = 0; j < 4; j++) memcpy((float *)&v[4 * k + j] + i, &columns[j], sizeof columns[j]);
        }
#endif
}

static inline float vf_max(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#endif
    float x[LANES];
    vf_store(x, v);
    for (int i = 1; i < LANES; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
}

/* Whether any number of v is greater than x. */
static inline int vf_any_greater(vf v, float x) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0;
#elif defined(__AVX__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(x), _CMP_GT_OQ)) != 0;
#else
    return vf_max(v) > x;
#endif
}

static inline float load_any(const void *p, int64_t i, int dtype) {
    return dtype == BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static inline void store_any(void *p, int64_t i, int dtype, float value) {
    if (dtype == BF16) ((uint16_t *)p)[i] = f32_to_bf16(value);
    else ((float *)p)[i] = value;
}

static inline void vf_store_any(void *p, int64_t i, int dtype, vf value) {
    if (dtype == F32) {
        vf_store((float *)p + i, value);
        return;
    }
    vu u;
    memcpy(&u, &value, sizeof u);
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu nan = (u >> 16) | 0x40u;
    vi is_nan = value != value;
    vu bits = ((vu)is_nan & nan) | (~(vu)is_nan & rounded);
    vh h = __builtin_convertvector(bits, vh);
    memcpy((uint16_t *)p + i, &h, sizeof h);
}

/* exp(x), relative error about 2e-7 (Cephes' polynomial); 0 below -87, exp(88) above 88. */
static inline vf vf_exp(vf x) {
#if defined(__AVX512F__)
    __mmask16 tiny = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    vf clamped = (vf)_mm512_min_ps(_mm512_set1_ps(88.0f), (__m512)x);
    vf n = (vf)_mm512_roundscale_ps((__m512)(clamped * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
#else
    vi tiny = x < -87.0f;
    vf clamped = vf_select(tiny, vf_set(-87.0f), vf_select(x > 88.0f, vf_set(88.0f), x));
    vf scaled = clamped * 1.44269504088896341f;
    vf rounder = vf_set(12582912.0f); /* 1.5 * 2**23: adding and subtracting it rounds to nearest */
    vf n = (scaled + rounder) - rounder;
#endif
    vf r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = vf_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_scalef_ps(~tiny, (__m512)p, (__m512)n);
#else
    vi e = (__builtin_convertvector(n, vi) + 127) << 23;
    vf power;
    memcpy(&power, &e, sizeof power);
    vf result = p * power;
    return vf_select(tiny, vf_set(0.0f), result);
#endif
}
