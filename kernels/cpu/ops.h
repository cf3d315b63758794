/* Functions that compute the smallest unit of work of each operation. A thread calls them for one unit at a time. The
 * entry points for single operations (linear.c, rows.c, attention.c) and for the whole decoder (decoder.c) call the
 * same functions, so their results have the same bits. */
#pragma once
#include <stdint.h>

#include "amx.h"
#include "pool.h"

enum output { STORE = 0, ADD = 1 };

#define LINEAR_BLOCK 32 /* outputs of one block of weights */
#define LINEAR_ROWS AMX_ROWS /* maximum rows of one tile */

struct linear {
    const void *weight;         /* packed, see linear.c */
    const float *scales, *bias; /* per output, or null */
    int64_t N, K, format;       /* format: enum dtype */
};

/* The memory that is prefetched into L2 during the work on a block, from `at` on, `lines` cache lines at a time. */
struct ahead {
    const char *at;
    int64_t lines;
};

int64_t linear_blocks(const struct linear *l);
/* Plans the prefetch of a block of `l`, which happens during the work on a block of `now`. If `block` is -1, nothing is
 * prefetched. */
struct ahead linear_ahead(const struct linear *l, int64_t block, const struct linear *now, int64_t M, int dtype);
/* The number of rows per tile if there are M rows of `dtype`: at most LINEAR_ROWS. */
int64_t linear_height(int64_t M, int dtype);
/* Computes one block of outputs for at most LINEAR_ROWS rows. `out` points to the first output of the block. The rows
 * of `out` are `stride` floats apart. */
void linear_tile(const struct linear *l, int64_t block, const void *x, int64_t rows, float *out, int64_t stride,
                 int dtype, enum output output, struct ahead *ahead);
/* Computes one block for all M rows. x [M, K] in `dtype`, out [M, N] float32. */
void linear_block(const struct linear *l, int64_t block, const void *x, float *out, int64_t M, int dtype,
                  enum output output, struct ahead *ahead);

/* Computes a linear layer (linear.c). x [M, K] contiguous; K must be even unless x and the weight are float32. out
 * [M, N] float32. scales and bias may be null. `dtype` is the dtype of x; `format` is the format of the weight, which
 * is int8, int4 or the dtype of x; `output` is an `enum output`. */
void slipstream_linear(const void *x, const void *weight, const float *scales, const float *bias, float *out, int64_t M,
                       int64_t N, int64_t K, int dtype, int format, int output);
/* Finds the `count` largest logits of each row of [M, V]. values, columns: [M, count], descending; of two equal logits,
 * the one in the lower column is first. log_masses: [M], log sum exp of all logits of a row. */
void slipstream_top_k(const float *logits, float *values, int64_t *columns, float *log_masses, int64_t M, int64_t V,
                      int64_t count);

void rms_norm_row(const float *x, const float *weight, void *out, int64_t H, float eps, int dtype);
void cast_row(const float *x, void *out, int64_t H, int dtype);
void swiglu_row(const float *x, void *out, int64_t I, int dtype);

/* SwiGLU if limit is 0. Otherwise gates are at most `limit`, ups are in -limit .. limit, and
 * out = (up + 1) gate sigmoid(alpha gate), as in gpt-oss. */
struct gate {
    float alpha, limit;
};
/* x [2 I], of which the first I are gates; out [I]. */
void gate_row(const struct gate *gate, const float *x, void *out, int64_t I, int dtype);
/* Computes a block of gates and the block of ups that belongs to it, for all M rows of x. out [M, I]. */
void gate_up_block(const struct linear *l, int64_t block, const struct gate *gate, const void *x, void *out, int64_t M,
                   int dtype, struct ahead ahead[2]);

struct expert {
    struct linear gate_up, down; /* [2 I, H], [H, I] */
};
struct experts {
    const struct expert *experts; /* [E] */
    int64_t E, H, I;              /* I: a multiple of LINEAR_BLOCK */
    struct gate gate;
    int32_t dtype;
};
struct mixture {
    struct experts experts;
    struct linear router; /* [E, H] */
    int64_t K, normalized; /* K experts per row; normalized: the weights of a row have the sum 1 */
};
/* The bytes of memory that `mixture_team` needs for M rows. */
int64_t mixture_bytes(const struct mixture *mixture, int64_t M);
/* Adds the mixture of x [M, H] to out [M, H]; called by all threads of a team. `next` is a counter that is 0. */
void mixture_team(const struct mixture *mixture, const void *x, float *out, int64_t M, counter *next, void *memory);

struct rope {
    const float *cosines, *sines, *q_norm, *k_norm; /* the norms are null without QK-norm */
    float eps;
    int64_t Hq, Hkv, D;
};
void rope_write_row(const struct rope *r, float *qkv, int64_t position, int64_t slot, void *k_cache, void *v_cache,
                    int dtype);

struct attention_rows {
    const int32_t *slot_tables, *paths;
    const int64_t *seqs, *prefix_lens, *path_lens;
    int64_t table_stride, path_stride;
};
struct attention {
    const float *q; /* rows of q_stride floats */
    int64_t q_stride;
    const void *k_cache, *v_cache;
    void *out; /* [M, Hq, D] */
    int64_t Hq, Hkv, D;
    int dtype;
    const float *sinks; /* [Hq], or null */
};
#define MAX_QUERIES 32 /* maximum number of queries of a tile: its rows times the heads that share a KV head */
/* Some rows of one sequence. A span is SPAN consecutive positions, counted from position 0. */
struct query_tile {
    int64_t m, count, spans; /* the first row, the number of rows, the number of spans of the longest row */
    int64_t task, partial;   /* the first task and the first partial result of the tile */
};
#define SPAN 1024
/* Computes the attention of a tile's rows to the KV head `head`. */
void attention_tile(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head);
/* Computes the partial results of one span. partials: [count, Hq, spans, D + 2], for all spans of the tile. */
void attention_span(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head, int64_t span, float *partials);
/* Computes the attention from the partial results of all spans, with the same bits as `attention_tile`. */
void attention_join(const struct attention *a, const struct attention_rows *rows, const struct query_tile *tile,
                    int64_t head, float *partials);

/* The division of a pass's attention into tasks. The plan does not change the bits of the results. */
struct attention_plan {
    struct query_tile *tiles;
    int64_t num_tiles, num_tasks;
    counter *finished; /* [num_tiles, Hkv]: finished spans; null if each task computes all spans of a tile and a head */
    float *partials;
};
/* Returns 0, or -1 if there is not enough memory. */
int attention_plan(struct attention_plan *plan, const struct attention_rows *rows, int64_t M, int64_t Hq, int64_t Hkv,
                   int64_t D);
void attention_plan_free(struct attention_plan *plan);
void attention_task(const struct attention *a, const struct attention_rows *rows, const struct attention_plan *plan,
                    int64_t task);
