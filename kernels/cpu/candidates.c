/* Ranks a drafter's candidates with the noise of the request that samples them. */
#include "candidates.h"

#include <math.h>

/* Gumbel noise of a token, as kernels/philox.py defines it: Philox 4x32-10 with the seed as its key. */
static double gumbel(uint64_t seed, int64_t position, int64_t token) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4] = {(uint32_t)(token >> 2), (uint32_t)position, 0, 0};
    for (int round = 0; round < 10; round++) {
        uint64_t first = 0xD2511F53ull * word[0], second = 0xCD9E8D57ull * word[2];
        uint32_t old[2] = {word[1], word[3]};
        word[0] = (uint32_t)(second >> 32) ^ old[0] ^ key[0];
        word[1] = (uint32_t)second;
        word[2] = (uint32_t)(first >> 32) ^ old[1] ^ key[1];
        word[3] = (uint32_t)first;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return -log(-log((word[token & 3] + 0.5) / 4294967296.0));
}

/* Replaces the logits by logits + T gumbel, or -inf for tokens that the request's filters exclude. */
static void add_noise(float *logits, const int64_t *tokens, int64_t count, const struct sampling *s, int64_t position) {
    float p[MAX_CANDIDATES], total = 0.0f, before = 0.0f;
    for (int64_t i = 0; i < count; i++) total += p[i] = expf((logits[i] - logits[0]) / s->temperature);
    int64_t limit = s->top_k ? s->top_k : count;
    for (int64_t i = 0; i < count; i++) {
        p[i] /= total;
        int is_kept = i < limit && before < s->top_p && p[i] >= s->min_p * p[0];
        before += p[i];
        logits[i] = is_kept ? logits[i] + s->temperature * (float)gumbel(s->seed, position, tokens[i]) : -INFINITY;
    }
}

void rank_candidates(float *logits, int64_t *tokens, float *survival, int64_t count, float log_mass,
                     const struct sampling *sampling, int64_t position) {
    float mass = 0.0f, total = 0.0f;
    for (int64_t i = 0; i < count; i++) mass += survival[i] = expf(logits[i] - log_mass);
    if (sampling->temperature == 0.0f) return;
    add_noise(logits, tokens, count, sampling, position);
    for (int64_t i = 1; i < count; i++)
        for (int64_t j = i; j > 0 && logits[j] > logits[j - 1]; j--) {
            float logit = logits[j];
            int64_t token = tokens[j];
            logits[j] = logits[j - 1], tokens[j] = tokens[j - 1];
            logits[j - 1] = logit, tokens[j - 1] = token;
        }
    for (int64_t i = 0; i < count; i++) total += survival[i] = expf(logits[i] - logits[0]);
    for (int64_t i = 0; i < count; i++) survival[i] *= mass / total;
}
