/* Two calls for the EAGLE-3 drafter: slipstream_eagle3_observe reads a pass of the target, and slipstream_eagle3 grows
 * the drafter's trees. engine/drafters/eagle3.py explains the method, and engine/drafters/growing_tree.py the trees.
 *
 * If Python called each operation of a level, the calls would take longer than the level's matrix products: after a
 * pass of the target, little of Python's code and data is left in the processor's caches. */
#include <math.h>
#include <stdlib.h>

#include "candidates.h"
#include "common.h"
#include "decoder.h"

struct eagle3 {
    const struct decoder *decoder; /* one layer, whose qkv product reads [normed embedding, normed state] */
    struct linear lm_head;         /* [Vd, H] */
    const void *embedding;         /* [V, H] in the decoder's dtype */
    const float *token_norm;       /* [H] */
    const int64_t *vocab;          /* [Vd], ids of the target's tokens */
    int64_t feeds_normed;          /* whether the next position reads the layer's output after the final norm */
};

/* Additional rows of lm_head, whose tokens only one tree may propose; N is 0 if there are none. */
struct extra {
    struct linear head;    /* [N, H] */
    const int64_t *tokens; /* [N], ids of the target's tokens */
};

/* The arguments and results of a call that grows trees. */
struct growth {
    int64_t num_trees, budget, max_depth, width, num_candidates;
    float least_gain, least_survival;
    const void *read;      /* [num_trees, H] in the decoder's dtype: the inputs of lm_head at the roots */
    const float *fed_back; /* [num_trees, H]: the states at the roots */
    void *keys, *values;   /* the drafter's caches */
    const int32_t *slot_tables, *tails; /* the slots of the root's context: entries of a table, then tails */
    const int64_t *table_rows, *prefix_lens, *tail_lens; /* by tree */
    int64_t table_stride, tail_stride;
    const int64_t *lengths; /* by tree: the sequence's number of tokens, which is the position of the next token */
    int64_t max_position, first_scratch;
    const struct sampling *sampling; /* by tree */
    const struct extra *extras;      /* by tree */
    int64_t *tokens, *parents;       /* [num_trees, budget], results */
    float *survival;                 /* [num_trees, budget] */
    int64_t *counts;                 /* number of nodes of each tree */
};

/* The weights that turn the target's taps into the states that the layer reads. */
struct fusion {
    struct linear product; /* [H, K], K numbers of all taps of a position */
    const float *norms;    /* [K], or null */
    int64_t num_norms;     /* the K numbers are divided into this many equal parts, each of which is normalized */
};

/* The M rows of the target's pass that the engine keeps. */
struct observation {
    int64_t M;
    const void *taps;                                     /* [rows of the pass, K] in the decoder's dtype */
    const int64_t *pass_rows, *tokens, *positions, *slots; /* [M] each; tokens: the tokens after the positions */
    struct attention_rows rows;
    void *keys, *values; /* the drafter's caches */
    void *read;          /* [M, H] in the decoder's dtype, a result */
    float *fed_back;     /* [M, H], a result */
};

struct tree {
    int64_t count, level; /* the number of nodes, and the first node of the newest level */
    int64_t *tokens, *parents;
    float *survival;
};

/* A row of a level: a node on which the layer has run. */
struct row {
    int64_t tree, node, parent_row;
};

struct level {
    int64_t count;
    struct row *rows;
    int64_t *positions, *slots, *seqs, *prefix_lens, *path_lens;
    int32_t *paths;
};

static int64_t item_size(const struct decoder *d) { return d->dtype == BF16 ? 2 : 4; }

/* Adds candidates as children of `parent` to the tree, except those with a survival below `least`. */
static void offer(struct tree *tree, int64_t parent, const int64_t *tokens, const float *probabilities, int64_t count,
                  float least) {
    float before = parent < 0 ? 1.0f : tree->survival[parent];
    for (int64_t i = 0; i < count; i++) {
        float survival = before * fminf(1.0f, probabilities[i]);
        if (!(survival >= least)) continue;
        tree->tokens[tree->count] = tokens[i];
        tree->parents[tree->count] = parent;
        tree->survival[tree->count++] = survival;
    }
}

/* Finds the `wanted` likeliest of the nodes from `first` on. Writes them to `chosen`, likeliest first; of two equally
 * likely nodes, the earlier is first. Returns their number. */
static int64_t likeliest(const struct tree *tree, int64_t first, int64_t wanted, int64_t *chosen) {
    int64_t num = 0;
    for (int64_t node = first; node < tree->count; node++) {
        int64_t i = num < wanted ? num++ : wanted;
        for (; i > 0 && tree->survival[node] > tree->survival[chosen[i - 1]]; i--)
            if (i < wanted) chosen[i] = chosen[i - 1];
        if (i < wanted) chosen[i] = node;
    }
    return num;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Writes the tree's likeliest nodes as a draft. */
static void write_draft(const struct growth *g, int64_t index, const struct tree *tree, int64_t *chosen) {
    int64_t count = likeliest(tree, 0, g->budget, chosen), at = index * g->budget;
    qsort(chosen, count, sizeof *chosen, ascending);
    for (int64_t i = 0; i < count; i++) {
        const int64_t *parent = bsearch(&tree->parents[chosen[i]], chosen, i, sizeof *chosen, ascending);
        g->tokens[at + i] = tree->tokens[chosen[i]];
        g->parents[at + i] = parent ? parent - chosen : -1;
        g->survival[at + i] = tree->survival[chosen[i]];
    }
    g->counts[index] = count;
}

/* Fills `level` with the nodes on which the layer runs next. Returns the expected number of accepted tokens among
 * them. */
static float next_level(const struct growth *g, const struct tree *trees, struct level *level, const struct level *old,
                        int64_t *free_slot, int64_t depth, int64_t *chosen) {
    int64_t stride = g->tail_stride + g->max_depth;
    float expected = 0.0f;
    level->count = 0;
    for (int64_t index = 0; index < g->num_trees; index++) {
        const struct tree *tree = trees + index;
        int64_t best = likeliest(tree, 0, g->budget, chosen);
        float least = best ? tree->survival[chosen[best - 1]] : INFINITY;
        int64_t num = likeliest(tree, tree->level, g->width, chosen);
        for (int64_t i = 0; i < num && tree->survival[chosen[i]] >= least; i++) {
            int64_t m = level->count++, parent = 0;
            while (old->rows[parent].tree != index || old->rows[parent].node != tree->parents[chosen[i]]) parent++;
            level->rows[m] = (struct row){index, chosen[i], parent};
            expected += tree->survival[chosen[i]];
            int64_t position = g->lengths[index] + depth - 2;
            level->positions[m] = position < g->max_position ? position : g->max_position;
            level->slots[m] = (*free_slot)++;
            level->seqs[m] = g->table_rows[index];
            level->prefix_lens[m] = g->prefix_lens[index];
            int64_t length = old->path_lens[parent];
            memcpy(level->paths + m * stride, old->paths + parent * stride, length * sizeof *level->paths);
            level->paths[m * stride + length] = (int32_t)level->slots[m];
            level->path_lens[m] = length + 1;
        }
    }
    return expected;
}

struct buffers {
    struct tree *trees;
    struct level levels[2];
    float *fed_back[2], *logits, *values, *log_masses; /* [R, H] twice, [R, Vd], [R, k], [R] */
    float *extra_logits;                               /* [width, the largest number of extra rows of a tree] */
    int64_t *columns, *chosen;                         /* [R, k] */
    char *read, *prefix;                               /* [R, H] in the decoder's dtype */
};

/* Computes the logits of a tree's additional lm_head rows for `count` rows of the level, from `first` on. Inserts these
 * logits into the rows' candidates, whose columns have already been replaced by tokens, and adds them to the rows' log
 * masses. */
static void insert_extra(const struct eagle3 *e, const struct growth *g, const struct buffers *b,
                         const struct extra *extra, const char *read, int64_t first, int64_t count) {
    const struct linear *head = &extra->head;
    int64_t k = g->num_candidates;
    slipstream_linear(read + first * head->K * item_size(e->decoder), head->weight, head->scales, head->bias,
                      b->extra_logits, count, head->N, head->K, e->decoder->dtype, (int)head->format, STORE);
    for (int64_t m = first; m < first + count; m++) {
        const float *logits = b->extra_logits + (m - first) * head->N;
        float *values = b->values + m * k, sum = 0.0f;
        int64_t *tokens = b->columns + m * k;
        for (int64_t n = 0; n < head->N; n++) {
            int64_t i = k;
            for (; i > 0 && logits[n] > values[i - 1]; i--)
                if (i < k) values[i] = values[i - 1], tokens[i] = tokens[i - 1];
            if (i < k) values[i] = logits[n], tokens[i] = extra->tokens[n];
        }
        float largest = fmaxf(values[0], b->log_masses[m]);
        for (int64_t n = 0; n < head->N; n++) sum += expf(logits[n] - largest);
        b->log_masses[m] = largest + logf(sum + expf(b->log_masses[m] - largest));
    }
}

/* Adds the candidates below each row of the level to its tree. */
static void offer_level(const struct eagle3 *e, const struct growth *g, const struct buffers *b,
                        const struct level *level, const void *read, int64_t depth) {
    const struct linear *head = &e->lm_head;
    int64_t k = g->num_candidates, M = level->count;
    slipstream_linear(read, head->weight, head->scales, head->bias, b->logits, M, head->N, head->K, e->decoder->dtype,
                      (int)head->format, STORE);
    slipstream_top_k(b->logits, b->values, b->columns, b->log_masses, M, head->N, k);
    for (int64_t index = 0; index < g->num_trees; index++) b->trees[index].level = b->trees[index].count;
    for (int64_t i = 0; i < M * k; i++) b->columns[i] = e->vocab[b->columns[i]];
    for (int64_t first = 0, end; first < M; first = end) {
        int64_t index = level->rows[first].tree;
        for (end = first; end < M && level->rows[end].tree == index;) end++;
        if (g->extras[index].head.N) insert_extra(e, g, b, g->extras + index, read, first, end - first);
    }
    for (int64_t m = 0; m < M; m++) {
        float survival[MAX_CANDIDATES];
        int64_t *tokens = b->columns + m * k, index = level->rows[m].tree;
        rank_candidates(b->values + m * k, tokens, survival, k, b->log_masses[m], g->sampling + index,
                        g->lengths[index] + depth - 1);
        offer(b->trees + index, level->rows[m].node, tokens, survival, k, g->least_survival);
    }
}

/* Writes the normed embedding of a token, the first half of the layer's input. */
static void embed(const struct eagle3 *e, int64_t token, void *out) {
    const struct decoder *d = e->decoder;
    float row[d->H];
    for (int64_t i = 0; i < d->H; i++) row[i] = load_any(e->embedding, token * d->H + i, d->dtype);
    rms_norm_row(row, e->token_norm, out, d->H, d->eps, d->dtype);
}

/* Runs the layer. Before the call, the residual of `pass` holds the states that the layer reads. After the call, it
 * holds the states that the next positions read. */
static int run_layer(const struct eagle3 *e, const struct decoder_pass *pass) {
    if (slipstream_decoder(e->decoder, pass)) return -1;
    if (e->feeds_normed)
        for (int64_t i = 0; i < pass->M * e->decoder->H; i++)
            pass->residual[i] = load_any(pass->hidden, i, e->decoder->dtype);
    return 0;
}

/* Runs the layer on the rows of the level. In `fed_back`, replaces the states of the rows' parents by the states of the
 * rows. */
static int run_level(const struct eagle3 *e, const struct growth *g, const struct buffers *b,
                     const struct level *level, float *fed_back) {
    int64_t row_bytes = e->decoder->H * item_size(e->decoder), M = level->count;
    for (int64_t m = 0; m < M; m++)
        embed(e, b->trees[level->rows[m].tree].tokens[level->rows[m].node], b->prefix + m * row_bytes);
    struct decoder_pass pass = {
        .k_caches = &g->keys, .v_caches = &g->values, .positions = level->positions, .slots = level->slots,
        .rows = {g->slot_tables, level->paths, level->seqs, level->prefix_lens, level->path_lens, g->table_stride,
                 g->tail_stride + g->max_depth},
        .M = M, .residual = fed_back, .hidden = b->read, .qkv_prefix = b->prefix,
        .qkv_prefix_width = e->decoder->H};
    return run_layer(e, &pass);
}

static int grow(const struct eagle3 *e, const struct growth *g, struct buffers *b) {
    int64_t free_slot = g->first_scratch, H = e->decoder->H;
    const void *read = g->read;
    for (int64_t depth = 1;; depth++) {
        struct level *level = b->levels + depth % 2, *old = b->levels + (depth + 1) % 2;
        offer_level(e, g, b, old, read, depth);
        if (depth == g->max_depth) return 0;
        float expected = next_level(g, b->trees, level, old, &free_slot, depth, b->chosen);
        if (!level->count || expected < g->least_gain * (float)g->num_trees) return 0;
        for (int64_t m = 0; m < level->count; m++)
            memcpy(b->fed_back[depth % 2] + m * H, b->fed_back[(depth + 1) % 2] + level->rows[m].parent_row * H,
                   H * sizeof(float));
        if (run_level(e, g, b, level, b->fed_back[depth % 2])) return -1;
        read = b->read;
    }
}

/* Returns the next `bytes` of `memory`, or, if there is no memory yet, only counts them. */
static void *take(char *memory, int64_t *used, int64_t bytes) {
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Returns the number of bytes that all buffers take. If `memory` is not null, assigns each buffer its part of it. */
static int64_t lay_out(const struct eagle3 *e, const struct growth *g, struct buffers *b, char *memory) {
    int64_t B = g->num_trees, R = B * g->width, k = g->num_candidates, H = e->decoder->H, used = 0;
    int64_t nodes = k * (1 + (g->max_depth - 1) * g->width), row_bytes = R * H * item_size(e->decoder);
    b->trees = take(memory, &used, B * sizeof(struct tree));
    int64_t *integers = take(memory, &used, 2 * B * nodes * sizeof(int64_t));
    float *survivals = take(memory, &used, B * nodes * sizeof(float));
    for (int64_t i = 0; memory && i < B; i++)
        b->trees[i] = (struct tree){0, 0, integers + 2 * i * nodes, integers + (2 * i + 1) * nodes,
                                    survivals + i * nodes};
    for (int i = 0; i < 2; i++) {
        struct level *l = b->levels + i;
        l->rows = take(memory, &used, R * sizeof(struct row));
        int64_t **columns[] = {&l->positions, &l->slots, &l->seqs, &l->prefix_lens, &l->path_lens};
        for (int j = 0; j < 5; j++) *columns[j] = take(memory, &used, R * sizeof(int64_t));
        l->paths = take(memory, &used, R * (g->tail_stride + g->max_depth) * sizeof(int32_t));
        b->fed_back[i] = take(memory, &used, R * H * sizeof(float));
    }
    b->logits = take(memory, &used, R * e->lm_head.N * sizeof(float));
    int64_t num_extra = 0;
    for (int64_t i = 0; i < B; i++)
        if (g->extras[i].head.N > num_extra) num_extra = g->extras[i].head.N;
    b->extra_logits = take(memory, &used, g->width * num_extra * sizeof(float));
    b->values = take(memory, &used, R * k * sizeof(float));
    b->log_masses = take(memory, &used, R * sizeof(float));
    b->columns = take(memory, &used, R * k * sizeof(int64_t));
    b->chosen = take(memory, &used, (g->budget + g->width) * sizeof(int64_t));
    b->read = take(memory, &used, row_bytes);
    b->prefix = take(memory, &used, row_bytes);
    return used;
}

/* Returns 0, or -1 if there is not enough memory. */
int slipstream_eagle3(const struct eagle3 *e, const struct growth *g) {
    struct buffers b;
    char *memory = aligned_alloc(64, lay_out(e, g, &b, NULL));
    if (memory == NULL) return -1;
    lay_out(e, g, &b, memory);
    struct level *roots = b.levels; /* the level of depth 0 */
    roots->count = g->num_trees;
    for (int64_t i = 0; i < g->num_trees; i++) {
        roots->rows[i] = (struct row){i, -1, 0};
        roots->path_lens[i] = g->tail_lens[i];
        memcpy(roots->paths + i * (g->tail_stride + g->max_depth), g->tails + i * g->tail_stride,
               g->tail_lens[i] * sizeof(int32_t));
    }
    memcpy(b.fed_back[0], g->fed_back, g->num_trees * e->decoder->H * sizeof(float));
    int failed = grow(e, g, &b);
    for (int64_t i = 0; !failed && i < g->num_trees; i++) write_draft(g, i, b.trees + i, b.chosen);
    free(memory);
    return failed;
}

/* Writes the taps of a row of the pass, normalized if the fusion has norms, as the input of the fusion's product. */
static void gather_taps(const struct eagle3 *e, const struct fusion *f, const void *taps, int64_t pass_row, char *out) {
    int64_t K = f->product.K, size = item_size(e->decoder);
    if (f->norms == NULL) {
        memcpy(out, (const char *)taps + pass_row * K * size, K * size);
        return;
    }
    float row[K];
    for (int64_t i = 0; i < K; i++) row[i] = load_any(taps, pass_row * K + i, e->decoder->dtype);
    int64_t part = K / f->num_norms;
    for (int64_t at = 0; at < K; at += part)
        rms_norm_row(row + at, f->norms + at, out + at * size, part, e->decoder->eps, e->decoder->dtype);
}

/* Runs the layer on the rows of a pass that the engine keeps. Returns 0, or -1 if there is not enough memory. */
int slipstream_eagle3_observe(const struct eagle3 *e, const struct fusion *f, const struct observation *o) {
    const struct decoder *d = e->decoder;
    const struct linear *fc = &f->product;
    int64_t used = 0, size = item_size(d), M = o->M;
    take(NULL, &used, M * fc->K * size);
    take(NULL, &used, M * d->H * size);
    char *memory = aligned_alloc(64, used);
    if (memory == NULL) return -1;
    used = 0;
    char *taps = take(memory, &used, M * fc->K * size), *prefix = take(memory, &used, M * d->H * size);
    for (int64_t m = 0; m < M; m++) {
        gather_taps(e, f, o->taps, o->pass_rows[m], taps + m * fc->K * size);
        embed(e, o->tokens[m], prefix + m * d->H * size);
    }
    slipstream_linear(taps, fc->weight, fc->scales, fc->bias, o->fed_back, M, fc->N, fc->K, d->dtype, (int)fc->format,
                      STORE);
    struct decoder_pass pass = {
        .k_caches = &o->keys, .v_caches = &o->values, .positions = o->positions, .slots = o->slots, .rows = o->rows,
        .M = M, .residual = o->fed_back, .hidden = o->read, .qkv_prefix = prefix, .qkv_prefix_width = d->H};
    int failed = run_layer(e, &pass);
    free(memory);
    return failed;
}
