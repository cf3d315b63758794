/* Operations on single rows: RMSNorm, QK-norm + RoPE + KV write, SwiGLU. */
#include <math.h>
#include "common.h"

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS float inverse_rms(const float *x, int64_t n, float eps) {
    vf sum = vf_set(0.0f);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = vf_load(x + i);
        sum += v * v;
    }
    float total = vf_sum(sum);
    for (; i < n; i++) total += x[i] * x[i];
    return 1.0f / sqrtf(total / (float)n + eps);
}

/* out[m] = x[m] / rms(x[m]) * weight, x float32 [M, H], out [M, H]. */
void slipstream_rms_norm(const float *x, const float *weight, void *out, int64_t M, int64_t H, float eps, int dtype) {
    for (int64_t m = 0; m < M; m++) {
        const float *row = x + m * H;
        float scale = inverse_rms(row, H, eps);
        for (int64_t i = 0; i < H; i++) store_any(out, m * H + i, dtype, row[i] * scale * weight[i]);
    }
}

/* head: [D] float32, rotated in place; cosine and sine: [D / 2]. Halves are paired as Llama's weights want it. */
ALWAYS void rotate(float *head, const float *cosine, const float *sine, int64_t D) {
    for (int64_t i = 0; i < D / 2; i++) {
        float a = head[i], b = head[i + D / 2];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + D / 2] = b * cosine[i] + a * sine[i];
    }
}

ALWAYS void normalise(float *head, const float *weight, int64_t D, float eps) {
    float scale = inverse_rms(head, D, eps);
    for (int64_t i = 0; i < D; i++) head[i] = head[i] * scale * weight[i];
}

/* qkv [M, (Hq + 2 Hkv) D] float32: queries are normed (if q_weight), rotated and stay in place; keys likewise and go,
 * with the values, to slots[m] of the caches [slots, Hkv, D]. */
void slipstream_rope_write(float *qkv, const float *cosines, const float *sines, const int64_t *positions,
                           const int64_t *slots, const float *q_weight, const float *k_weight, float eps,
                           void *k_cache, void *v_cache, int64_t M, int64_t Hq, int64_t Hkv, int64_t D, int dtype) {
    for (int64_t m = 0; m < M; m++) {
        float *row = qkv + m * (Hq + 2 * Hkv) * D;
        const float *cosine = cosines + positions[m] * (D / 2), *sine = sines + positions[m] * (D / 2);
        for (int64_t h = 0; h < Hq + Hkv; h++) {
            const float *weight = h < Hq ? q_weight : k_weight;
            if (weight) normalise(row + h * D, weight, D, eps);
            rotate(row + h * D, cosine, sine, D);
        }
        const float *k = row + Hq * D, *v = k + Hkv * D;
        int64_t base = slots[m] * Hkv * D;
        for (int64_t i = 0; i < Hkv * D; i++) {
            store_any(k_cache, base + i, dtype, k[i]);
            store_any(v_cache, base + i, dtype, v[i]);
        }
    }
}

/* out[m, i] = silu(x[m, i]) * x[m, I + i], x [M, 2 I] float32, out [M, I]. */
void slipstream_swiglu(const float *x, void *out, int64_t M, int64_t I, int dtype) {
    for (int64_t m = 0; m < M; m++) {
        const float *gate = x + m * 2 * I, *up = gate + I;
        int64_t i = 0;
        for (; i + LANES <= I; i += LANES) {
            vf g = vf_load(gate + i), u = vf_load(up + i);
            float values[LANES];
            vf_store(values, g / (vf_exp(-g) + 1.0f) * u);
            for (int j = 0; j < LANES; j++) store_any(out, m * I + i + j, dtype, values[j]);
        }
        for (; i < I; i++) store_any(out, m * I + i, dtype, gate[i] / (1.0f + expf(-gate[i])) * up[i]);
    }
}
