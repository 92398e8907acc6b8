/* The seeded draw over whole vocabularies: which tokens of a row can win, and what log-probs need, in one walk.
 *
 * Float32 logits on a CPU. No state and no allocation; Python owns every buffer and has checked every length. The winner
 * is not chosen here: Python computes the scores of the few tokens named in `near` as prime_protocol.proofs.sampling does,
 * in float64, so that the winner and its score are bit by bit the same. Where this was not compiled, numpy does it all.
 *
 * A token's noise -log(-log(u)) is below -log(1 - u), whose logarithm is below the one that a float's own bits state:
 * exponent and mantissa, read as a number. So an upper bound of a score costs one conversion instead of two logarithms. It
 * is at most 0.06 T above the score where the noise is large. Tokens whose bound is below the score of the token with the
 * highest bound cannot win. */

#include <math.h>

#include "vectors.h"

typedef uint32_t naturals __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum {
    TILE = 2048, /* logits between two looks at the maximum: 8 KiB, which stay in the first-level cache */
    PART = 256,  /* logits summed in float32: beside a likely token, longer sums would lose the unlikely ones */
};

/* A row's key, and the temperature in three forms. */
struct noise {
    uint32_t first, second;
    double temperature; /* 0: no noise */
    float ceiling, step; /* a bound is logit + ceiling - step * (bits of the float nearest to 2^31 (1 - u), as a number) */
};

/* What is known of a tile. */
struct tile {
    float top, bound; /* the largest logit, the largest bound */
    double sum;       /* of exp((logit - top) / T) */
};

INLINE void mix(naturals *x) {
    *x ^= *x >> 16;
    *x *= 0x21F0AAADu;
    *x ^= *x >> 15;
    *x *= 0xD35A2D97u;
    *x ^= *x >> 15;
}

/* The bits of one token. */
INLINE uint32_t get_bits(uint32_t id, const struct noise *noise) {
    naturals x = {id ^ noise->first};
    mix(&x);
    x += noise->second;
    mix(&x);
    return x[0];
}

/* Upper bounds of LANES scores times T, for tokens from `id` on. */
INLINE void bound_scores(const vector *logits, uint32_t id, const struct noise *noise, vector *out) {
    *out = *logits;
    if (noise->temperature == 0)
        return;
    naturals x = {0, 1, 2, 3, 4, 5, 6, 7};
    x = (x + id) ^ noise->first;
    mix(&x);
    x += noise->second;
    mix(&x);
    words half = (words)(~x >> 1);
    vector rest = __builtin_convertvector(half, vector) + 0.25f;
    *out += noise->ceiling - noise->step * __builtin_convertvector((words)rest, vector);
}

INLINE float get_largest(const vector *lanes) {
    float top = (*lanes)[0];
    for (size_t i = 1; i < LANES; i++)
        top = (*lanes)[i] > top ? (*lanes)[i] : top;
    return top;
}

INLINE void keep_larger(vector *largest, const vector *other) {
    words is_larger = *other > *largest;
    choose(largest, &is_larger, other, largest);
}

/* Whether all logits are finite: a number minus itself is 0, an infinity or NaN is not. */
INLINE int scan_tile(const float *logits, size_t count, uint32_t id, const struct noise *noise, float inverse,
                     struct tile *out) {
    vector top = {0}, bound;
    words broken = {0};
    top -= INFINITY;
    bound = top;
    for (size_t i = 0; i < count; i += LANES) {
        const vector here = *(const vector *)(logits + i);
        vector score;
        broken |= here - here != 0;
        bound_scores(&here, id + (uint32_t)i, noise, &score);
        keep_larger(&top, &here);
        keep_larger(&bound, &score);
    }
    out->top = get_largest(&top);
    out->bound = get_largest(&bound);
    out->sum = 0;
    for (size_t part = 0; part < count; part += PART) {
        vector sums = {0};
        for (size_t i = part; i < count && i < part + PART; i += LANES) {
            vector power = (*(const vector *)(logits + i) - out->top) * inverse;
            exponentiate(&power);
            sums += power;
        }
        out->sum += add_up(&sums);
    }
    for (size_t i = 0; i < LANES; i++)
        if (broken[i])
            return 0;
    return 1;
}

/* The tokens of a tile whose bounds are not below `least`. Counts on where there is no room for more. */
INLINE size_t find_near(const float *logits, size_t count, uint32_t id, const struct noise *noise, float least,
                        size_t found, int32_t *near, size_t room) {
    for (size_t i = 0; i < count; i += LANES) {
        const vector here = *(const vector *)(logits + i);
        vector score;
        bound_scores(&here, id + (uint32_t)i, noise, &score);
        words is_near = score >= least;
        for (size_t lane = 0; lane < LANES; lane++)
            if (is_near[lane]) {
                if (found < room)
                    near[found] = (int32_t)(id + i + lane);
                found++;
            }
    }
    return found;
}

/* The least bound that a winner has: the score of the token with the highest bound, minus all that rounding may do. */
INLINE float get_least(const float *logits, size_t count, uint32_t id, const struct noise *noise, float bound) {
    if (noise->temperature == 0)
        return bound;
    double least = -INFINITY;
    for (size_t i = 0; i < count; i += LANES) {
        const vector here = *(const vector *)(logits + i);
        vector score;
        bound_scores(&here, id + (uint32_t)i, noise, &score);
        for (size_t lane = 0; lane < LANES; lane++)
            if (score[lane] == bound) {
                double u = (get_bits(id + (uint32_t)(i + lane), noise) + 0.5) * 0x1p-32;
                least = fmax(least, here[lane] - noise->temperature * log(-log(u)));
            }
    }
    return (float)(least - 1e-4 * noise->temperature - 0x1p-20 * fabs(least));
}

/* A row, of which the last tile is in `tail`, filled up with minus infinity. */
INLINE size_t scan_row(const float *logits, size_t count, const struct noise *noise, float inverse, struct tile *tiles,
                       float *top, double *sum, int32_t *near, size_t room) {
    size_t whole = count / TILE, rest = count % TILE, padded = (rest + LANES - 1) / LANES * LANES, best = 0, found = 0;
    float tail[TILE];
    int is_finite = 1;
    for (size_t i = 0; i < padded; i++) {
        tail[i] = i < rest ? logits[whole * TILE + i] : 0;
        is_finite &= tail[i] - tail[i] == 0;
    }
    for (size_t t = 0; t < whole; t++)
        is_finite &= scan_tile(logits + t * TILE, TILE, (uint32_t)(t * TILE), noise, inverse, tiles + t);
    if (rest) {
        for (size_t i = rest; i < padded; i++)
            tail[i] = -INFINITY;
        scan_tile(tail, padded, (uint32_t)(whole * TILE), noise, inverse, tiles + whole);
    }
    size_t all = whole + (rest > 0);
    *top = tiles[0].top;
    for (size_t t = 1; t < all; t++) {
        *top = tiles[t].top > *top ? tiles[t].top : *top;
        best = tiles[t].bound > tiles[best].bound ? t : best;
    }
    *sum = 0;
    for (size_t t = 0; t < all; t++)
        *sum += tiles[t].sum * exp(((double)tiles[t].top - *top) * inverse);
    if (!is_finite) {
        *top = INFINITY;
        return 0;
    }
    float least = 0;
    for (size_t step = 0; step <= all; step++) { /* first the tile with the highest bound, for its score alone */
        size_t t = step ? step - 1 : best, size = t < whole ? TILE : padded;
        const float *here = t < whole ? logits + t * TILE : tail;
        if (!step)
            least = get_least(here, size, (uint32_t)(t * TILE), noise, tiles[t].bound);
        else if (tiles[t].bound >= least)
            found = find_near(here, size, (uint32_t)(t * TILE), noise, least, found, near, room);
    }
    return found;
}

/* Of each row: the largest logit, or infinity where one is not finite; the sum of exp((logit - largest) / T), of the plain
 * logits if T is 0; how many tokens can win, and which, at most `room`. `tiles` is room for what is known of a row. */
INLINE void scan_all(const float *logits, size_t rows, size_t count, double temperature, const uint32_t *first,
                     const uint32_t *second, struct tile *tiles, size_t room, float *tops, double *sums, int64_t *found,
                     int32_t *near) {
    float inverse = (float)(temperature == 0 ? 1 : 1 / temperature);
    double unit = temperature * 0.69314718055994531;
    for (size_t row = 0; row < rows; row++) {
        struct noise noise = {first[row], second[row], temperature, (float)(unit * 158), (float)(unit * 0x1p-23)};
        found[row] = (int64_t)scan_row(logits + row * count, count, &noise, inverse, tiles, tops + row, sums + row,
                                       near + row * room, room);
    }
}

#ifdef WIDE
WIDE static void scan_wide(const float *logits, size_t rows, size_t count, double temperature, const uint32_t *first,
                           const uint32_t *second, struct tile *tiles, size_t room, float *tops, double *sums,
                           int64_t *found, int32_t *near) {
    scan_all(logits, rows, count, temperature, first, second, tiles, room, tops, sums, found, near);
}
#else
#define scan_wide scan_all
#endif

/* Bytes of `tiles` for rows of `count` logits. */
EXPORT size_t draws_workspace(size_t count) { return (count / TILE + 1) * sizeof(struct tile); }

EXPORT void draws_scan(const float *logits, size_t rows, size_t count, double temperature, const uint32_t *first,
                       const uint32_t *second, void *tiles, size_t room, float *tops, double *sums, int64_t *found,
                       int32_t *near) {
    (is_wide() ? scan_wide : scan_all)(logits, rows, count, temperature, first, second, tiles, room, tops, sums, found,
                                       near);
}
