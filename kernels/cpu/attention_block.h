/* Blocks of keys and values, as attention.c reads them. */
#pragma once
#include "amx.h"
#include "common.h"

#define PARTS 2 /* vectors that together have one lane for each position of a block */
#define BLOCK (PARTS * LANES)
#define MAX_D 576 /* width of DeepSeek-V3's latent together with its rotary part */
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

/* The cache into which keys and values are prefetched: 2 is L2, 3 is L1. Tiles of AMX were seen to wait for their own
 * operands if prefetches fill L1: 8 rows at 6,000 keys took 1.3 times as long as one row, instead of 1.2 times. */
#if defined(HAS_AMX)
#define PREFETCH_TO 2
#else
#define PREFETCH_TO 3
#endif

/* The keys of one row and one KV head. */
struct keys {
    const void *k_cache, *v_cache;
    const int32_t *prefix, *path; /* slots: of the committed positions, and of the path's nodes */
    int64_t prefix_len, total, Hkv, head; /* total: prefix and path together; head: index of the KV head */
};

/* A block of keys and values, stored as the factors that `step` reads. With pairs (AVX512-BF16), a factor holds two
 * bfloat16 numbers: two neighbouring elements of a key, or one element of the values of two neighbouring positions. */
struct block {
    vf keys[MAX_D][PARTS];              /* [D or D / 2]; lane j of part i: position LANES * i + j of the block */
    vf values[BLOCK * MAX_D / LANES];   /* [BLOCK or BLOCK / 2, D / LANES] */
    int64_t count;                      /* number of positions; the others are zero */
};

ALWAYS vf load_values(const void *cache, int64_t offset, const int dtype) {
    return dtype == BF16 ? vf_load_bf16((const uint16_t *)cache + offset) : vf_load((const float *)cache + offset);
}

/* Loads a vector of factors of the key at `offset`, from factor n on. */
ALWAYS vf load_factors(const void *cache, int64_t offset, int64_t n, const int dtype, const int pairs) {
    if (pairs) return vf_load((const float *)((const uint16_t *)cache + offset + 2 * n));
    return load_values(cache, offset + n, dtype);
}

/* Computes the offsets of the keys `from` .. `to` - 1 of the block at `start`, as far as these keys exist. Prefetches
 * the keys and values, because hardware prefetchers cannot predict slots. */
ALWAYS void locate(const struct keys *keys, int64_t start, int64_t from, int64_t to, int64_t D, int dtype,
                   int64_t offsets[BLOCK]) {
    int64_t size = dtype == BF16 ? 2 : 4;
    for (int64_t j = from; j < to && start + j < keys->total; j++) {
        int64_t index = start + j;
        int64_t slot = index < keys->prefix_len ? keys->prefix[index] : keys->path[index - keys->prefix_len];
        offsets[j] = (slot * keys->Hkv + keys->head) * D;
        for (int64_t byte = 0; byte < D * size; byte += 64) {
            __builtin_prefetch((const char *)keys->k_cache + offsets[j] * size + byte, 0, PREFETCH_TO);
            __builtin_prefetch((const char *)keys->v_cache + offsets[j] * size + byte, 0, PREFETCH_TO);
        }
    }
}

ALWAYS void prepare_keys(const struct keys *keys, const int64_t *offsets, const int64_t D, const int dtype,
                         const int pairs, struct block *block) {
    for (int64_t n = 0; n < (pairs ? D / 2 : D); n += LANES)
        for (int64_t part = 0; part < PARTS; part++) {
            vf columns[LANES];
            for (int64_t i = 0; i < LANES; i++) {
                int64_t j = part * LANES + i;
                columns[i] = j < block->count ? load_factors(keys->k_cache, offsets[j], n, dtype, pairs) : vf_set(0.0f);
            }
            vf_transpose(columns);
            for (int64_t i = 0; i < LANES; i++) block->keys[n + i][part] = columns[i];
        }
}

/* With pairs, each pair of vectors has the even elements of 2 LANES elements and then the odd elements. `store_partial`
 * brings them into order once, which takes less time than doing so here for each block. */
ALWAYS void prepare_values(const struct keys *keys, const int64_t *offsets, const int64_t D, const int dtype,
                           const int pairs, struct block *block) {
    const int64_t lanes = D / LANES;
    if (!pairs) {
        for (int64_t j = 0; j < BLOCK; j++)
            for (int64_t i = 0; i < lanes; i++)
                block->values[j * lanes + i] =
                    j < block->count ? load_values(keys->v_cache, offsets[j] + i * LANES, dtype) : vf_set(0.0f);
        return;
    }
    for (int64_t j = 0; j < BLOCK; j += 2)
        for (int64_t i = 0; i < lanes; i += 2) {
            vu first = {0}, second = {0}; /* 2 LANES elements of the values of two positions */
            if (j < block->count)
                memcpy(&first, (const uint16_t *)keys->v_cache + offsets[j] + i * LANES, sizeof first);
            if (j + 1 < block->count)
                memcpy(&second, (const uint16_t *)keys->v_cache + offsets[j + 1] + i * LANES, sizeof second);
            vu even = (first & 0xffffu) | (second << 16), odd = (first >> 16) | (second & 0xffff0000u);
            memcpy(&block->values[j / 2 * lanes + i], &even, sizeof even);
            memcpy(&block->values[j / 2 * lanes + i + 1], &odd, sizeof odd);
        }
}
