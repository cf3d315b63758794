/* Runs all layers of the decoder in one call, with the operations of linear.c, rows.c and attention.c. If Python called
 * each operation, the calls and the waking of threads would take a fifth of a pass with one row (SmolLM2-135M, two
 * cores of an AMD EPYC).
 *
 * The pass is fast only if the threads read weights without interruption. While a thread works on its last block of a
 * product, it prefetches its first block of the next product. Two things shorten the work between products: SwiGLU runs
 * directly on each block of gates, and with at most OWN_NORM_ROWS rows, every thread normalizes all rows itself, which
 * is faster than synchronizing the threads.
 *
 * A tap is the residual stream at the input of a layer, which some drafters read.
 */
#include <stdlib.h>

#include "common.h"
#include "decoder.h"
#include "ops.h"
#include "pool.h"

#define OWN_NORM_ROWS 8

/* Indices of a layer's counters. The first PRODUCTS counters belong to the products. */
enum { INPUT_NORM = PRODUCTS, ROPE, ATTENTION, POST_NORM, ROUTE, COUNTERS };

struct run {
    const struct decoder *decoder;
    const struct decoder_pass *pass;
    float *qkv;                          /* [M, (Hq + 2 Hkv) D] */
    void *normed, *attended, *activated; /* [M, prefix_width + H], [M, Hq D], [M, I] in the decoder's dtype */
    void *mixed;                         /* the memory of the largest mixture of experts */
    counter *next;                       /* [num_layers + 1, COUNTERS] */
    struct attention_plan attention;
};

/* The state of one thread in a run. */
struct worker {
    const struct run *r;
    int64_t item; /* the item of the next product that was claimed in advance; -1 if no item was left */
    void *own;    /* normed rows, only for this thread: [OWN_NORM_ROWS, prefix_width + H] in the decoder's dtype */
};

static int64_t item_size(const struct decoder *d) { return d->dtype == BF16 ? 2 : 4; }

/* Products are numbered through all layers: index = layer * PRODUCTS + kind. */
static const struct linear *product(const struct run *r, int64_t index) {
    return &r->decoder->layers[index / PRODUCTS].products[index % PRODUCTS];
}

/* Claims an item of a product: a block of outputs, or for GATE_UP a block of gates together with the block of ups that
 * belongs to it. Returns -1 if no item is left, if there is no product of this index, or before a mixture of experts,
 * whose products are not known in advance. */
static int64_t claim_item(const struct run *r, int64_t index) {
    if (index == r->decoder->num_layers * PRODUCTS) return -1;
    if (r->decoder->layers[index / PRODUCTS].mixture && index % PRODUCTS >= GATE_UP) return -1;
    int64_t blocks = linear_blocks(product(r, index)), kind = index % PRODUCTS;
    return claim(r->next + index / PRODUCTS * COUNTERS + kind, kind == GATE_UP ? blocks / 2 : blocks);
}

/* Computes items of a product until none is left. Before each item, the thread claims the following item, whose weights
 * it prefetches during the computation. After the thread's last item of the product, the following item belongs to the
 * next product. `out` is unused for GATE_UP. */
static void product_phase(struct worker *w, int64_t index, const void *x, float *out, enum output output) {
    const struct run *r = w->r;
    const struct linear *l = product(r, index);
    const struct gate swiglu = {0.0f, 0.0f};
    int64_t item = w->item, M = r->pass->M;
    int dtype = r->decoder->dtype;
    if (item < 0) w->item = claim_item(r, index + 1);
    while (item >= 0) {
        int64_t same_product = claim_item(r, index), next_index = index;
        if (same_product < 0) w->item = claim_item(r, ++next_index);
        int64_t next_item = next_index == index ? same_product : w->item;
        struct ahead ahead[2] = {{NULL, 0}, {NULL, 0}};
        if (next_item >= 0) ahead[0] = linear_ahead(product(r, next_index), next_item, l, M, dtype);
        if (next_item >= 0 && next_index % PRODUCTS == GATE_UP)
            ahead[1] = linear_ahead(product(r, next_index), next_item + r->decoder->I / LINEAR_BLOCK, l, M, dtype);
        if (index % PRODUCTS == GATE_UP) gate_up_block(l, item, &swiglu, x, r->activated, M, dtype, ahead);
        else linear_block(l, item, x, out, M, dtype, output, ahead);
        item = same_product;
    }
    team_barrier();
}

/* Writes the residual of row m at the input of layer `index` to `taps`, if the caller has requested this layer. */
static void tap_row(const struct run *r, int64_t m, int64_t index) {
    const struct decoder_pass *p = r->pass;
    int64_t H = r->decoder->H, size = item_size(r->decoder);
    for (int64_t t = 0; t < p->num_taps; t++)
        if (p->tap_layers[t] == index)
            cast_row(p->residual + m * H, (char *)p->taps + (m * p->num_taps + t) * H * size, H, r->decoder->dtype);
}

/* Normalizes `count` rows of the residual from row m on. Each row of `out` has the `prefix_width` numbers of the row's
 * `qkv_prefix`, and then the normed residual. */
static void norm_rows(const struct run *r, const float *weight, int64_t prefix_width, int64_t m, int64_t count,
                      void *out) {
    const struct decoder *d = r->decoder;
    int64_t before = prefix_width * item_size(d), row_bytes = before + d->H * item_size(d);
    for (int64_t i = 0; i < count; i++) {
        char *row = (char *)out + i * row_bytes;
        if (prefix_width) memcpy(row, (const char *)r->pass->qkv_prefix + (m + i) * before, before);
        rms_norm_row(r->pass->residual + (m + i) * d->H, weight, row + before, d->H, d->eps, d->dtype);
    }
}

/* Normalizes all rows and returns them. `tap` is the layer whose input is the residual, or -1 within a layer. */
static const void *norm_phase(struct worker *w, const float *weight, int64_t prefix_width, int64_t tap, counter *next) {
    const struct run *r = w->r;
    int64_t M = r->pass->M, row_bytes = (prefix_width + r->decoder->H) * item_size(r->decoder), m;
    int each_norms_all = M <= OWN_NORM_ROWS;
    if (each_norms_all) norm_rows(r, weight, prefix_width, 0, M, w->own);
    while ((!each_norms_all || tap >= 0) && (m = claim(next, M)) >= 0) {
        tap_row(r, m, tap);
        if (!each_norms_all) norm_rows(r, weight, prefix_width, m, 1, (char *)r->normed + m * row_bytes);
    }
    if (!each_norms_all) team_barrier();
    return each_norms_all ? w->own : r->normed;
}

static void attention_phases(const struct run *r, int64_t index, counter *next) {
    const struct decoder *d = r->decoder;
    const struct decoder_pass *p = r->pass;
    const struct layer *l = d->layers + index;
    struct rope rope = {d->cosines, d->sines, l->q_norm, l->k_norm, d->eps, d->Hq, d->Hkv, d->D};
    int64_t width = (d->Hq + 2 * d->Hkv) * d->D, m, task, num_tasks = r->attention.num_tasks;
    while ((m = claim(next + ROPE, p->M)) >= 0)
        rope_write_row(&rope, r->qkv + m * width, p->positions[m], p->slots[m], p->k_caches[index],
                       p->v_caches[index], d->dtype);
    team_barrier();
    struct attention attention = {r->qkv,  width,  p->k_caches[index], p->v_caches[index], r->attended, d->Hq,
                                  d->Hkv, d->D,   d->dtype};
    while ((task = claim(next + ATTENTION, num_tasks)) >= 0)
        attention_task(&attention, &p->rows, &r->attention, num_tasks - 1 - task);
    team_barrier();
}

static void decoder_team(void *context) {
    const struct run *r = context;
    const struct decoder *d = r->decoder;
    float *residual = r->pass->residual;
    int64_t prefix_width = r->pass->qkv_prefix_width;
    char own[OWN_NORM_ROWS * (prefix_width + d->H) * item_size(d)];
    struct worker w = {r, claim_item(r, 0), own};
    counter *next = r->next;
    for (int64_t index = 0; index < d->num_layers; index++, next += COUNTERS) {
        const struct layer *l = d->layers + index;
        const void *normed = norm_phase(&w, l->input_norm, prefix_width, index, next + INPUT_NORM);
        product_phase(&w, index * PRODUCTS + QKV, normed, r->qkv, STORE);
        attention_phases(r, index, next);
        product_phase(&w, index * PRODUCTS + OUTPUT, r->attended, residual, ADD);
        normed = norm_phase(&w, l->post_norm, 0, -1, next + POST_NORM);
        if (l->mixture) {
            mixture_team(l->mixture, normed, residual, r->pass->M, next + ROUTE, r->mixed);
            w.item = claim_item(r, (index + 1) * PRODUCTS);
            continue;
        }
        product_phase(&w, index * PRODUCTS + GATE_UP, normed, NULL, STORE);
        product_phase(&w, index * PRODUCTS + DOWN, r->activated, residual, ADD);
    }
    int64_t m;
    while ((m = claim(next + INPUT_NORM, r->pass->M)) >= 0) {
        tap_row(r, m, d->num_layers);
        norm_rows(r, d->final_norm, 0, m, 1, (char *)r->pass->hidden + m * d->H * item_size(d));
    }
}

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int slipstream_decoder(const struct decoder *d, const struct decoder_pass *pass) {
    int64_t M = pass->M, size = item_size(d), mixed = 0;
    for (int64_t i = 0; i < d->num_layers; i++) {
        int64_t needed = d->layers[i].mixture ? mixture_bytes(d->layers[i].mixture, M) : 0;
        mixed = needed > mixed ? needed : mixed;
    }
    /* the buffers of struct run, in the order of its fields */
    int64_t bytes[] = {M * (d->Hq + 2 * d->Hkv) * d->D * 4, M * (pass->qkv_prefix_width + d->H) * size,
                       M * d->Hq * d->D * size, M * d->I * size, mixed,
                       (d->num_layers + 1) * COUNTERS * (int64_t)sizeof(counter)};
    enum { BUFFERS = sizeof bytes / sizeof *bytes };
    int64_t total = 0;
    for (int i = 0; i < BUFFERS; i++) total += aligned(bytes[i]);
    char *memory = aligned_alloc(64, total), *at[BUFFERS];
    if (memory == NULL) return -1;
    at[0] = memory;
    for (int i = 1; i < BUFFERS; i++) at[i] = at[i - 1] + aligned(bytes[i - 1]);
    memset(at[5], 0, bytes[5]);
    struct run run = {d, pass, (float *)at[0], at[1], at[2], at[3], at[4], (counter *)at[5], {0}};
    int failed = attention_plan(&run.attention, &pass->rows, M, d->Hq, d->Hkv, d->D);
    if (!failed) {
        team_run(decoder_team, &run);
        attention_plan_free(&run.attention);
    }
    free(memory);
    return failed;
}
