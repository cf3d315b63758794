/* Shared by the CPU kernels: 16-lane vectors, bf16 conversion, exp.
 *
 * Row invariance: a row has the same bits in a batch, a chain or a tree as in a pass without other rows. For this, one
 * thread computes each output element, and the order of additions never depends on the number of rows, sequences or
 * threads. Every change must keep this: do not split a sum over threads, and do not let the shape of a tile change the
 * order of additions.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define LANES 16
#define ALWAYS static inline __attribute__((always_inline))
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

enum dtype { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3 /* the last two only for weights */ };

static inline vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf vf_set(float x) { return (vf){} + x; }

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

/* Loads 16 float16 numbers. Multiplying by 2**112 corrects the exponent exactly, also of subnormal numbers. */
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

static inline vf lane_numbers(void) { return (vf){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

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

/* Lane j of the result is the sum of the lanes of v[j], added in an order that is the same for every j. */
ALWAYS vf vf_sums(const vf v[LANES]) {
#if defined(__AVX512F__)
    __m512 quads[4]; /* each for 4 of the vectors; each quarter of its lanes has one partial sum per vector */
    for (int i = 0; i < 4; i++) {
        __m512 a = (__m512)v[4 * i], b = (__m512)v[4 * i + 1], c = (__m512)v[4 * i + 2], d = (__m512)v[4 * i + 3];
        __m512d ab = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
        __m512d cd = (__m512d)(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
        quads[i] = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    }
    __m512 halves[2];
    for (int i = 0; i < 2; i++) {
        __m512 a = quads[2 * i], b = quads[2 * i + 1];
        halves[i] = _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
    }
    return (vf)(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88) + _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
#endif
    float sums[LANES];
    for (int j = 0; j < LANES; j++) sums[j] = vf_sum(v[j]);
    return vf_load(sums);
}

/* Treats (a, b) as 32 numbers and moves those with an even index to a, those with an odd index to b. */
ALWAYS void vf_unzip(vf *a, vf *b) {
#if defined(__AVX512F__)
    __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 first = _mm512_permutex2var_ps((__m512)*a, even, (__m512)*b);
    *b = (vf)_mm512_permutex2var_ps((__m512)*a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), (__m512)*b);
    *a = (vf)first;
#else
    float x[2 * LANES], even[LANES], odd[LANES];
    vf_store(x, *a), vf_store(x + LANES, *b);
    for (int i = 0; i < LANES; i++) even[i] = x[2 * i], odd[i] = x[2 * i + 1];
    *a = vf_load(even), *b = vf_load(odd);
#endif
}

/* Undoes `vf_unzip`. */
ALWAYS void vf_zip(vf *a, vf *b) {
#if defined(__AVX512F__)
    __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    __m512 low = _mm512_permutex2var_ps((__m512)*a, first, (__m512)*b);
    *b = (vf)_mm512_permutex2var_ps((__m512)*a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), (__m512)*b);
    *a = (vf)low;
#else
    float even[LANES], odd[LANES], x[2 * LANES];
    vf_store(even, *a), vf_store(odd, *b);
    for (int i = 0; i < LANES; i++) x[2 * i] = even[i], x[2 * i + 1] = odd[i];
    *a = vf_load(x), *b = vf_load(x + LANES);
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
    vi tiny = x < -87.0f;
    vf clamped = vf_select(tiny, vf_set(-87.0f), vf_select(x > 88.0f, vf_set(88.0f), x));
    vf scaled = clamped * 1.44269504088896341f;
    vf rounder = vf_set(12582912.0f); /* 1.5 * 2**23: adding and subtracting it rounds to nearest */
    vf n = (scaled + rounder) - rounder;
    vf r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = vf_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vi e = (__builtin_convertvector(n, vi) + 127) << 23;
    vf power;
    memcpy(&power, &e, sizeof power);
    vf result = p * power;
    return vf_select(tiny, vf_set(0.0f), result);
}
