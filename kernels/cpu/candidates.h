/* Ranks the tokens that a drafter proposes for one position, as engine/drafters/choice.py does. */
#pragma once
#include <stdint.h>

enum { MAX_CANDIDATES = 16 };

/* How a request samples its tokens. top_k: 0 for all tokens. */
struct sampling {
    uint64_t seed;
    int64_t top_k;
    float temperature, top_p, min_p;
};

/* Sorts the `count` tokens with the largest logits, best first, and computes the probability with which the request
 * samples each of them at `position`.
 *
 * logits: [count] descending; overwritten. tokens: [count], sorted in place. log_mass: log sum exp of all logits of the
 * row. survival: [count]. */
void rank_candidates(float *logits, int64_t *tokens, float *survival, int64_t count, float log_mass,
                     const struct sampling *sampling, int64_t position);
