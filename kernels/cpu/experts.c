/* A mixture of experts: each row is multiplied only by the weights of the experts that it has chosen.
 *
 * The pairs of a row and an expert are sorted by expert. All rows of an expert are then computed together, so its
 * weights are read once. A row's products do not depend on the other rows (linear.c), and its experts are added in
 * ascending order, so it has the same bits in any batch.
 */
#include <math.h>
#include <stdlib.h>

#include "common.h"
#include "ops.h"
#include "pool.h"

#define ROUTE_ROWS 8 /* rows that one thread routes at a time */
/* If there are at most this many pairs, one thread prepares all of them: a further barrier would take longer. */
#define FEW_PAIRS 16

enum { SORT, GATHER, GATE_UP, DOWN, ADD_UP, EXPERT_COUNTERS };

static int64_t bytes_of(int dtype) { return dtype == BF16 ? 2 : 4; }

void gate_up_block(const struct linear *l, int64_t block, const struct gate *gate, const void *x, void *out, int64_t M,
                   int dtype, struct ahead ahead[2]) {
    float both[LINEAR_ROWS][2 * LINEAR_BLOCK];
    int64_t I = l->N / 2, size = bytes_of(dtype), height = linear_height(M, dtype);
    for (int64_t m = 0; m < M; m += height) {
        int64_t rows = M - m < height ? M - m : height;
        for (int64_t half = 0; half < 2; half++)
            linear_tile(l, block + half * (I / LINEAR_BLOCK), (const char *)x + m * l->K * size, rows,
                        both[0] + half * LINEAR_BLOCK, 2 * LINEAR_BLOCK, dtype, STORE, ahead + half);
        for (int64_t i = 0; i < rows; i++)
            gate_row(gate, both[i], (char *)out + ((m + i) * I + block * LINEAR_BLOCK) * size, LINEAR_BLOCK, dtype);
    }
}

static void route_row(const float *logits, int64_t E, int64_t K, int normalized, int64_t *chosen, float *weights) {
    float top = -INFINITY, total = 0.0f;
    for (int64_t e = 0; e < E; e++) top = logits[e] > top ? logits[e] : top;
    for (int64_t e = 0; e < E && !normalized; e++) total += expf(logits[e] - top);
    for (int64_t k = 0; k < K; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++) {
            int taken = 0;
            for (int64_t i = 0; i < k; i++) taken |= chosen[i] == e;
            if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
        }
        chosen[k] = best;
        weights[k] = expf(logits[best] - top);
        if (normalized) total += weights[k];
    }
    for (int64_t k = 0; k < K; k++) weights[k] /= total;
}

/* The buffers of a mixture of M rows with K experts each. A place is the index of a pair after sorting. */
struct mixing {
    const struct experts *experts;
    const void *x;
    const int64_t *chosen;
    const float *weights;
    float *out;
    int64_t M, K;
    enum output output;
    int64_t *first;   /* [E + 1] the first place of each expert */
    int64_t *active;  /* [E] the experts that some row has chosen */
    int64_t *num_active;
    int64_t *rows;    /* [M K] the row of each place */
    int64_t *places;  /* [M, K] the places of each row, ascending */
    float *shares;    /* [M, K] the weights of the pairs at these places */
    void *gathered, *activated; /* [M K, H], [M K, I] in the experts' dtype */
    float *products;  /* [M K, H] */
    counter *next;    /* [EXPERT_COUNTERS] */
};

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Divides `memory` among the buffers and returns the number of bytes that they take. */
static int64_t divide(struct mixing *m, char *memory) {
    const struct experts *e = m->experts;
    int64_t pairs = m->M * m->K, size = bytes_of(e->dtype), used = 0;
    int64_t bytes[] = {(e->E + 1) * 8, e->E * 8, 8, pairs * 8, pairs * 8, pairs * 4, pairs * e->H * size,
                       pairs * e->I * size, pairs * e->H * 4, EXPERT_COUNTERS * (int64_t)sizeof(counter)};
    void **buffers[] = {(void **)&m->first, (void **)&m->active, (void **)&m->num_active, (void **)&m->rows,
                        (void **)&m->places, (void **)&m->shares, &m->gathered, &m->activated, (void **)&m->products,
                        (void **)&m->next};
    for (int i = 0; i < 10; i++) {
        if (memory) *buffers[i] = memory + used;
        used += aligned(bytes[i]);
    }
    return used;
}

/* Sorts the pairs by expert, and by row within an expert. */
static void sort_pairs(const struct mixing *m) {
    int64_t E = m->experts->E, pairs = m->M * m->K;
    int64_t *first = m->first;
    memset(first, 0, (E + 1) * sizeof *first);
    for (int64_t i = 0; i < pairs; i++) first[m->chosen[i] + 1]++;
    *m->num_active = 0;
    for (int64_t e = 0; e < E; e++) {
        if (first[e + 1]) m->active[(*m->num_active)++] = e;
        first[e + 1] += first[e];
    }
    for (int64_t row = 0; row < m->M; row++) {
        for (int64_t k = 0; k < m->K; k++) {
            int64_t pair = row * m->K + k, place = first[m->chosen[pair]]++, at = k;
            int64_t *places = m->places + row * m->K;
            float *shares = m->shares + row * m->K;
            for (; at > 0 && places[at - 1] > place; at--) places[at] = places[at - 1], shares[at] = shares[at - 1];
            places[at] = place, shares[at] = m->weights[pair];
            m->rows[place] = row;
        }
    }
    memmove(first + 1, first, E * sizeof *first); /* the loop above has moved each entry to its expert's end */
    first[0] = 0;
}

static void gather(const struct mixing *m, int64_t place) {
    int64_t bytes = m->experts->H * bytes_of(m->experts->dtype);
    memcpy((char *)m->gathered + place * bytes, (const char *)m->x + m->rows[place] * bytes, bytes);
}

static void prepare(const struct mixing *m) {
    int64_t place, pairs = m->M * m->K;
    int few = pairs <= FEW_PAIRS;
    if (claim(m->next + SORT, 1) == 0) {
        sort_pairs(m);
        for (place = 0; few && place < pairs; place++) gather(m, place);
    }
    team_barrier();
    if (few) return;
    while ((place = claim(m->next + GATHER, pairs)) >= 0) gather(m, place);
    team_barrier();
}

/* Computes one product of every active expert. An item is a block of outputs, or a block of gates together with the
 * block of ups that belongs to it. */
static void products_phase(const struct mixing *m, int phase) {
    const struct experts *e = m->experts;
    int64_t size = bytes_of(e->dtype), blocks = phase == GATE_UP ? e->I / LINEAR_BLOCK : (e->H - 1) / LINEAR_BLOCK + 1;
    int64_t total = *m->num_active * blocks, item = claim(m->next + phase, total);
    while (item >= 0) {
        int64_t following = claim(m->next + phase, total), expert = m->active[item / blocks];
        int64_t first = m->first[expert], count = m->first[expert + 1] - first;
        const struct linear *now = phase == GATE_UP ? &e->experts[expert].gate_up : &e->experts[expert].down;
        const struct linear *then = now;
        if (following >= 0) {
            const struct expert *next = e->experts + m->active[following / blocks];
            then = phase == GATE_UP ? &next->gate_up : &next->down;
        }
        int64_t block = following < 0 ? -1 : following % blocks;
        struct ahead ahead[2] = {linear_ahead(then, block, now, count, e->dtype), {NULL, 0}};
        if (phase == GATE_UP) {
            ahead[1] = linear_ahead(then, block < 0 ? -1 : block + e->I / LINEAR_BLOCK, now, count, e->dtype);
            gate_up_block(now, item % blocks, &e->gate, (const char *)m->gathered + first * e->H * size,
                          (char *)m->activated + first * e->I * size, count, e->dtype, ahead);
        } else {
            linear_block(now, item % blocks, (const char *)m->activated + first * e->I * size,
                         m->products + first * e->H, count, e->dtype, STORE, ahead);
        }
        item = following;
    }
    team_barrier();
}

static void add_up_row(const struct mixing *m, int64_t row) {
    int64_t H = m->experts->H;
    float *out = m->out + row * H;
    for (int64_t i = 0; i < H; i++) {
        float total = 0.0f;
        for (int64_t k = 0; k < m->K; k++)
            total += m->shares[row * m->K + k] * m->products[m->places[row * m->K + k] * H + i];
        out[i] = m->output == ADD ? out[i] + total : total;
    }
}

static void mixing_team(void *context) {
    const struct mixing *m = context;
    int64_t row;
    prepare(m);
    products_phase(m, GATE_UP);
    products_phase(m, DOWN);
    while ((row = claim(m->next + ADD_UP, m->M)) >= 0) add_up_row(m, row);
    team_barrier();
}

/* Computes the sizes of the parts of a mixture's memory: logits [M, E], chosen [M, K], weights [M, K], and then the
 * buffers of its experts. */
static void divide_mixture(const struct mixture *x, int64_t M, int64_t bytes[4]) {
    struct mixing m = {.experts = &x->experts, .M = M, .K = x->K};
    bytes[0] = aligned(M * x->experts.E * 4), bytes[1] = aligned(M * x->K * 8), bytes[2] = aligned(M * x->K * 4);
    bytes[3] = divide(&m, NULL);
}

int64_t mixture_bytes(const struct mixture *x, int64_t M) {
    int64_t bytes[4];
    divide_mixture(x, M, bytes);
    return bytes[0] + bytes[1] + bytes[2] + bytes[3];
}

void mixture_team(const struct mixture *mixture, const void *x, float *out, int64_t M, counter *next, void *memory) {
    const struct experts *e = &mixture->experts;
    int64_t bytes[4], tile, E = e->E, K = mixture->K, row_bytes = e->H * bytes_of(e->dtype);
    divide_mixture(mixture, M, bytes);
    float *logits = memory, *weights = (float *)((char *)memory + bytes[0] + bytes[1]);
    int64_t *chosen = (int64_t *)((char *)memory + bytes[0]);
    struct mixing m = {.experts = e, .x = x, .chosen = chosen, .weights = weights, .out = out, .M = M, .K = K,
                       .output = ADD};
    divide(&m, (char *)memory + bytes[0] + bytes[1] + bytes[2]);
    while ((tile = claim(next, (M + ROUTE_ROWS - 1) / ROUTE_ROWS)) >= 0) {
        int64_t row = tile * ROUTE_ROWS, rows = M - row < ROUTE_ROWS ? M - row : ROUTE_ROWS;
        if (tile == 0) memset(m.next, 0, EXPERT_COUNTERS * sizeof(counter));
        for (int64_t block = 0; block < linear_blocks(&mixture->router); block++) {
            struct ahead none = {NULL, 0};
            linear_block(&mixture->router, block, (const char *)x + row * row_bytes, logits + row * E, rows, e->dtype,
                         STORE, &none);
        }
        for (int64_t i = row; i < row + rows; i++)
            route_row(logits + i * E, E, K, mixture->normalized, chosen + i * K, weights + i * K);
    }
    team_barrier();
    mixing_team(&m);
}

/* x [M, H] in the experts' dtype, chosen [M, K], weights [M, K], out [M, H]. The K experts of a row differ from each
 * other. Returns 0, or -1 if there is not enough memory. */
int slipstream_experts(const struct experts *e, const void *x, const int64_t *chosen, const float *weights, float *out,
                       int64_t M, int64_t K, int output) {
    struct mixing m = {.experts = e, .x = x, .chosen = chosen, .weights = weights, .out = out, .M = M, .K = K,
                       .output = output};
    void *memory = aligned_alloc(64, divide(&m, NULL));
    if (memory == NULL) return -1;
    divide(&m, memory);
    memset(m.next, 0, EXPERT_COUNTERS * sizeof(counter));
    team_run(mixing_team, &m);
    free(memory);
    return 0;
}

static void adding_team(void *context) {
    const struct mixing *m = context;
    int64_t row;
    while ((row = claim(m->next + ADD_UP, m->M)) >= 0) add_up_row(m, row);
}

/* Adds the products of experts as slipstream_experts does. products [M K, H]; places [M, K]: the rows of `products` for
 * each row of out [M, H], in the order of their addition, with their weights [M, K]. */
void slipstream_add_experts(const float *products, const int64_t *places, const float *weights, float *out, int64_t M,
                            int64_t K, int64_t H, int output) {
    counter next[EXPERT_COUNTERS];
    memset(next, 0, sizeof next);
    struct experts experts = {.H = H};
    struct mixing m = {.experts = &experts, .out = out, .M = M, .K = K, .output = output, .places = (int64_t *)places,
                       .shares = (float *)weights, .products = (float *)products, .next = next};
    team_run(adding_team, &m);
}

/* logits [M, E]; chosen [M, K], the best expert first; weights [M, K]. */
void slipstream_route(const float *logits, int64_t *chosen, float *weights, int64_t M, int64_t E, int64_t K,
                      int normalized) {
    for (int64_t m = 0; m < M; m++) route_row(logits + m * E, E, K, normalized, chosen + m * K, weights + m * K);
}
