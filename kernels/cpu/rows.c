/* Operations on single rows: RMSNorm, QK-norm + RoPE + KV write, SwiGLU. */
#include <math.h>

#include "common.h"
#include "ops.h"

void cast_row(const float *x, void *out, int64_t H, int dtype) {
    int64_t i = 0;
    for (; i + LANES <= H; i += LANES) vf_store_any(out, i, dtype, vf_load(x + i));
    for (; i < H; i++) store_any(out, i, dtype, x[i]);
}

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

void rms_norm_row(const float *x, const float *weight, void *out, int64_t H, float eps, int dtype) {
    float scale = inverse_rms(x, H, eps);
    int64_t i = 0;
    for (; i + LANES <= H; i += LANES) vf_store_any(out, i, dtype, vf_load(x + i) * scale * vf_load(weight + i));
    for (; i < H; i++) store_any(out, i, dtype, x[i] * scale * weight[i]);
}

/* x float32 [M, H], out [M, H]. */
void slipstream_rms_norm(const float *x, const float *weight, void *out, int64_t M, int64_t H, float eps, int dtype) {
    for (int64_t m = 0; m < M; m++)
        rms_norm_row(x + m * H, weight, (char *)out + m * H * (dtype == BF16 ? 2 : 4), H, eps, dtype);
}

/* head: [D] float32, rotated in place; cosine and sine: [D / 2]. head[i] is rotated with head[i + D / 2], as in
 * Hugging Face's Llama. */
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

void rope_write_row(const struct rope *r, float *qkv, int64_t position, int64_t slot, void *k_cache, void *v_cache,
                    int dtype) {
    int64_t Hq = r->Hq, Hkv = r->Hkv, D = r->D;
    const float *cosine = r->cosines + position * (D / 2), *sine = r->sines + position * (D / 2);
    for (int64_t h = 0; h < Hq + Hkv; h++) {
        const float *weight = h < Hq ? r->q_norm : r->k_norm;
        if (weight) normalise(qkv + h * D, weight, D, r->eps);
        rotate(qkv + h * D, cosine, sine, D);
    }
    const float *k = qkv + Hq * D, *v = k + Hkv * D;
    int64_t offset = slot * Hkv * D * (dtype == BF16 ? 2 : 4);
    cast_row(k, (char *)k_cache + offset, Hkv * D, dtype);
    cast_row(v, (char *)v_cache + offset, Hkv * D, dtype);
}

/* qkv [M, (Hq + 2 Hkv) D] float32. Queries and keys are normalized in place, if q_norm and k_norm are given, and then
 * rotated. The keys and values of row m are written to slots[m] of the caches [slots, Hkv, D]. */
void slipstream_rope_write(float *qkv, const float *cosines, const float *sines, const int64_t *positions,
                           const int64_t *slots, const float *q_norm, const float *k_norm, float eps, void *k_cache,
                           void *v_cache, int64_t M, int64_t Hq, int64_t Hkv, int64_t D, int dtype) {
    struct rope rope = {cosines, sines, q_norm, k_norm, eps, Hq, Hkv, D};
    for (int64_t m = 0; m < M; m++)
        rope_write_row(&rope, qkv + m * (Hq + 2 * Hkv) * D, positions[m], slots[m], k_cache, v_cache, dtype);
}

/* out[i] = silu(x[i]) * x[I + i]. */
void swiglu_row(const float *x, void *out, int64_t I, int dtype) {
    const float *gate = x, *up = x + I;
    int64_t i = 0;
    for (; i + LANES <= I; i += LANES) {
        vf g = vf_load(gate + i);
        vf_store_any(out, i, dtype, g / (vf_exp(-g) + 1.0f) * vf_load(up + i));
    }
    for (; i < I; i++) store_any(out, i, dtype, gate[i] / (1.0f + expf(-gate[i])) * up[i]);
}

void gate_row(const struct gate *gate, const float *x, void *out, int64_t I, int dtype) {
    if (gate->limit == 0.0f) {
        swiglu_row(x, out, I, dtype);
        return;
    }
    vf most = vf_set(gate->limit);
    for (int64_t i = 0; i < I; i += LANES) { /* I is a multiple of LANES */
        vf g = vf_load(x + i), up = vf_load(x + I + i);
        g = vf_select(g > most, most, g); /* NaN remains NaN */
        up = vf_select(up > most, most, up);
        up = vf_select(up < -most, -most, up);
        vf_store_any(out, i, dtype, g / (vf_exp(g * -gate->alpha) + 1.0f) * (up + 1.0f));
    }
}

/* x [M, 2 I] float32, out [M, I]. */
void slipstream_swiglu(const float *x, void *out, int64_t M, int64_t I, int dtype) {
    for (int64_t m = 0; m < M; m++)
        swiglu_row(x + m * 2 * I, (char *)out + m * I * (dtype == BF16 ? 2 : 4), I, dtype);
}
