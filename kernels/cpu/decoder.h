/* The arguments of a pass through the layers of a decoder (decoder.c). */
#pragma once
#include <stdint.h>

#include "ops.h"

enum product { QKV, OUTPUT, GATE_UP, DOWN, PRODUCTS };
struct layer {
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* q_norm and k_norm are null without QK-norm */
    struct linear products[PRODUCTS];
    const struct mixture *mixture; /* replaces GATE_UP and DOWN; null in a dense layer */
};

struct decoder {
    const struct layer *layers;
    const float *final_norm, *cosines, *sines;
    int64_t num_layers, H, I, Hq, Hkv, D; /* I: of dense layers, a multiple of LINEAR_BLOCK */
    float eps;
    int32_t dtype;
};

struct decoder_pass {
    void *const *k_caches, *const *v_caches; /* one per layer */
    const int64_t *positions, *slots;
    struct attention_rows rows;
    int64_t M;
    float *residual;           /* [M, H] */
    void *hidden, *taps;       /* [M, H], [M, num_taps, H] in the decoder's dtype */
    const int64_t *tap_layers; /* [num_taps] */
    int64_t num_taps;
    const void *qkv_prefix;    /* [M, qkv_prefix_width] in the decoder's dtype, or null; QKV reads it before H */
    int64_t qkv_prefix_width;
};

/* Returns 0, or -1 if there is not enough memory. */
int slipstream_decoder(const struct decoder *d, const struct decoder_pass *pass);
