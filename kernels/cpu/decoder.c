/* All layers of the decoder in one call: the operations of linear.c, rows.c and attention.c, phase after phase, with
 * the team awake throughout. Called one by one from the host they spend a fifth of a single row's pass on calls and on
 * waking threads (SmolLM2-135M, two cores of an AMD EPYC). */
#include "common.h"
#include "ops.h"
#include "pool.h"

#define PHASES 9 /* per layer */

struct layer {
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* the last two or null */
    struct linear qkv, output, gate_up, down;
};

struct decoder {
    const struct layer *layers;
    const float *final_norm, *cosines, *sines;
    int64_t num_layers, H, I, Hq, Hkv, D;
    float eps;
    int32_t dtype;
};

struct decoder_pass {
    void *const *k_caches, *const *v_caches; /* one per layer */
    const int64_t *positions, *slots;
    struct attention_rows rows;
    int64_t M;
    float *residual, *qkv, *gate_up;       /* [M, H], [M, (Hq + 2 Hkv) D], [M, 2 I] */
    void *normed, *attended, *activated;   /* [M, H], [M, Hq D], [M, I] in the decoder's dtype */
    void *hidden;                          /* [M, H] in the decoder's dtype */
    void *taps;                            /* [M, num_taps, H] in the decoder's dtype */
    const int64_t *tap_layers;             /* [num_taps] */
    int64_t num_taps;
    counter *next;                         /* [num_layers * PHASES + 1], zero */
};

struct run {
    const struct decoder *decoder;
    const struct decoder_pass *pass;
};

/* What row m's residual is when it enters layer `index`. */
static void tap_row(const struct run *r, int64_t m, int64_t index) {
    const struct decoder_pass *p = r->pass;
    int64_t H = r->decoder->H, size = r->decoder->dtype == BF16 ? 2 : 4;
    for (int64_t t = 0; t < p->num_taps; t++)
        if (p->tap_layers[t] == index)
            cast_row(p->residual + m * H, (char *)p->taps + (m * p->num_taps + t) * H * size, H, r->decoder->dtype);
}

/* `tap`: the layer that the residual enters here, or -1. */
static void norm_phase(const struct run *r, const float *weight, void *out, int64_t tap, counter *next) {
    int64_t H = r->decoder->H, size = r->decoder->dtype == BF16 ? 2 : 4, m;
    while ((m = claim(next, r->pass->M)) >= 0) {
        tap_row(r, m, tap);
        rms_norm_row(r->pass->residual + m * H, weight, (char *)out + m * H * size, H, r->decoder->eps,
                     r->decoder->dtype);
    }
    team_barrier();
}

static void linear_phase(const struct run *r, const struct linear *l, const void *x, float *out, enum output output,
                         counter *next) {
    int64_t blocks = linear_blocks(l), block = claim(next, blocks);
    while (block >= 0) {
        int64_t following = claim(next, blocks);
        struct ahead ahead = linear_ahead(l, following, l, r->pass->M);
        linear_block(l, block, x, out, r->pass->M, r->decoder->dtype, output, &ahead);
        block = following;
    }
    team_barrier();
}

static void attention_phases(const struct run *r, const struct layer *l, int64_t index, counter *next) {
    const struct decoder *d = r->decoder;
    const struct decoder_pass *p = r->pass;
    struct rope rope = {d->cosines, d->sines, l->q_norm, l->k_norm, d->eps, d->Hq, d->Hkv, d->D};
    int64_t width = (d->Hq + 2 * d->Hkv) * d->D, m, task, num_tasks = p->M * d->Hkv;
    while ((m = claim(next, p->M)) >= 0)
        rope_write_row(&rope, p->qkv + m * width, p->positions[m], p->slots[m], p->k_caches[index],
                       p->v_caches[index], d->dtype);
    team_barrier();
    struct attention attention = {p->qkv,  width,  p->k_caches[index], p->v_caches[index], p->attended, d->Hq,
                                  d->Hkv, d->D,   d->dtype};
    while ((task = claim(next + 1, num_tasks)) >= 0) attention_task(&attention, &p->rows, num_tasks - 1 - task);
    team_barrier();
}

static void swiglu_phase(const struct run *r, counter *next) {
    int64_t I = r->decoder->I, size = r->decoder->dtype == BF16 ? 2 : 4, m;
    while ((m = claim(next, r->pass->M)) >= 0)
        swiglu_row(r->pass->gate_up + m * 2 * I, (char *)r->pass->activated + m * I * size, I, r->decoder->dtype);
    team_barrier();
}

static void decoder_team(void *context) {
    const struct run *r = context;
    const struct decoder_pass *p = r->pass;
    counter *next = p->next;
    for (int64_t index = 0; index < r->decoder->num_layers; index++, next += PHASES) {
        const struct layer *l = r->decoder->layers + index;
        norm_phase(r, l->input_norm, p->normed, index, next);
        linear_phase(r, &l->qkv, p->normed, p->qkv, STORE, next + 1);
        attention_phases(r, l, index, next + 2);
        linear_phase(r, &l->output, p->attended, p->residual, ADD, next + 4);
        norm_phase(r, l->post_norm, p->normed, -1, next + 5);
        linear_phase(r, &l->gate_up, p->normed, p->gate_up, STORE, next + 6);
        swiglu_phase(r, next + 7);
        linear_phase(r, &l->down, p->activated, p->residual, ADD, next + 8);
    }
    norm_phase(r, r->decoder->final_norm, p->hidden, r->decoder->num_layers, next);
}

void slipstream_decoder(const struct decoder *decoder, const struct decoder_pass *pass) {
    struct run run = {decoder, pass};
    team_run(decoder_team, &run);
}
