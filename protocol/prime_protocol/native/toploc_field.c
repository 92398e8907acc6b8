/* The polynomial through the values that a TOPLOC proof covers, and its values elsewhere.
 *
 * No state and no allocation; Python owns every buffer and has checked every length and range. toploc_numpy.py holds
 * the same computations in numpy. `wide` is what toploc_wide() said, or 0 for the path that every machine has. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))
#endif
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum {
    PRIME = 65497, /* 2^16 - 39, so 2^16 folds to 39 */
    FOLD = 39,
    MODULUS_MIN = 32768,
    K = 128,    /* most values per proof */
    BLOCK = 64, /* points evaluated together */
};

/* A set of points of the field. */
struct points {
    uint64_t words[PRIME / 64 + 1];
};

INLINE int has(const struct points *set, uint32_t point) { return set->words[point / 64] >> point % 64 & 1; }
INLINE void add(struct points *set, uint32_t point) { set->words[point / 64] |= (uint64_t)1 << point % 64; }

/* Any 32-bit number modulo PRIME. */
INLINE uint32_t fold(uint32_t v) {
    v = (v >> 16) * FOLD + (v & 0xffff);
    v = (v >> 16) * FOLD + (v & 0xffff);
    uint32_t less = v - PRIME;
    return less < v ? less : v;
}

INLINE void evaluate(const uint16_t *coefficients, size_t k, const uint32_t *points, size_t count, uint16_t *out) {
    uint32_t x[BLOCK], sum[BLOCK];
    for (size_t start = 0; start < count; start += BLOCK) {
        size_t used = count - start < BLOCK ? count - start : BLOCK;
        for (size_t i = 0; i < BLOCK; i++) {
            x[i] = i < used ? points[start + i] : 0;
            sum[i] = 0;
        }
        for (size_t j = k; j-- > 0;) {
            uint32_t c = coefficients[j];
            for (size_t i = 0; i < BLOCK; i++)
                sum[i] = fold(sum[i] * x[i] + c);
        }
        for (size_t i = 0; i < used; i++)
            out[start + i] = (uint16_t)sum[i];
    }
}

/* Newton's divided differences, then the monomial form. inverse[d + PRIME] is 1 / d for d in (-PRIME, PRIME). */
INLINE void interpolate(const uint32_t *x, const uint16_t *y, size_t k, const uint16_t *inverse, uint16_t *out) {
    uint32_t a[K + 1] = {0}, scale[K], newton[K], c[K + 1] = {0};
    for (size_t i = 0; i < k; i++)
        a[i] = y[i];
    newton[0] = a[0];
    for (size_t j = 1; j < k; j++) {
        /* The look-up stands in a loop of its own, so that the arithmetic around it can be done in wide steps. */
        for (size_t i = 0; i < k - j; i++)
            scale[i] = inverse[x[i + j] + PRIME - x[i]];
        for (size_t i = 0; i < k - j; i++)
            a[i] = fold(fold(a[i + 1] + PRIME - a[i]) * scale[i]);
        newton[j] = a[0];
    }
    /* c[1..] holds the coefficients; the zero below them is the carry into the lowest. */
    c[1] = newton[k - 1];
    for (size_t i = k - 1, used = 1; i-- > 0; used++) {
        uint32_t minus_x = PRIME - x[i], next[K];
        for (size_t j = 0; j <= used; j++)
            next[j] = fold(c[j + 1] * minus_x + c[j]);
        next[0] = fold(next[0] + newton[i]);
        memcpy(c + 1, next, (used + 1) * sizeof *c);
    }
    for (size_t j = 0; j < k; j++)
        out[j] = (uint16_t)c[j + 1];
}

/* The largest modulus that keeps the indices apart, and the reduced indices; 0 if none is large enough. */
static uint32_t separate(const uint32_t *indices, size_t k, uint32_t *x) {
    for (uint32_t modulus = PRIME; modulus >= MODULUS_MIN; modulus--) {
        struct points seen = {0};
        size_t apart = 0;
        for (; apart < k; apart++) {
            x[apart] = indices[apart] % modulus;
            if (has(&seen, x[apart]))
                break;
            add(&seen, x[apart]);
        }
        if (apart == k)
            return modulus;
    }
    return 0;
}

INLINE void interpolate_all(const uint32_t *indices, const uint16_t *values, size_t chunks, size_t k,
                            const uint16_t *inverse, uint16_t *moduli, uint16_t *coefficients) {
    for (size_t c = 0; c < chunks; c++) {
        uint32_t x[K];
        moduli[c] = (uint16_t)separate(indices + c * k, k, x);
        if (moduli[c])
            interpolate(x, values + c * k, k, inverse, coefficients + c * k);
    }
}

INLINE void evaluate_all(const uint16_t *coefficients, size_t chunks, size_t k, const uint32_t *points, size_t count,
                         uint16_t *out) {
    for (size_t c = 0; c < chunks; c++)
        evaluate(coefficients + c * k, k, points + c * count, count, out + c * count);
}

#ifdef WIDE
WIDE static void interpolate_wide(const uint32_t *indices, const uint16_t *values, size_t chunks, size_t k,
                                  const uint16_t *inverse, uint16_t *moduli, uint16_t *coefficients) {
    interpolate_all(indices, values, chunks, k, inverse, moduli, coefficients);
}

WIDE static void evaluate_wide(const uint16_t *coefficients, size_t chunks, size_t k, const uint32_t *points,
                               size_t count, uint16_t *out) {
    evaluate_all(coefficients, chunks, k, points, count, out);
}
#endif

/* Modulus and coefficients of each chunk's polynomial. */
EXPORT void toploc_interpolate(const uint32_t *indices, const uint16_t *values, size_t chunks, size_t k,
                               const uint16_t *inverse, uint16_t *moduli, uint16_t *coefficients, int wide) {
#ifdef WIDE
    if (wide) {
        interpolate_wide(indices, values, chunks, k, inverse, moduli, coefficients);
        return;
    }
#endif
    (void)wide;
    interpolate_all(indices, values, chunks, k, inverse, moduli, coefficients);
}

/* Each chunk's polynomial at `count` points of its own. */
EXPORT void toploc_evaluate(const uint16_t *coefficients, size_t chunks, size_t k, const uint32_t *points, size_t count,
                            uint16_t *out, int wide) {
#ifdef WIDE
    if (wide) {
        evaluate_wide(coefficients, chunks, k, points, count, out);
        return;
    }
#endif
    (void)wide;
    evaluate_all(coefficients, chunks, k, points, count, out);
}

/* The first `count` draws of each chunk that are new and not taken, then the smallest free points; and how often `taken`
 * repeats itself. */
EXPORT void toploc_pick_free(const uint32_t *draws, size_t chunks, size_t drawn, const uint32_t *taken, size_t k,
                             uint32_t *points, size_t count, int64_t *repeats) {
    for (size_t c = 0; c < chunks; c++) {
        struct points seen = {0};
        size_t found = 0;
        repeats[c] = 0;
        for (size_t i = 0; i < k; i++) {
            repeats[c] += has(&seen, taken[c * k + i]);
            add(&seen, taken[c * k + i]);
        }
        for (size_t i = 0; found < count; i++) {
            uint32_t point = i < drawn ? draws[c * drawn + i] : (uint32_t)(i - drawn);
            if (!has(&seen, point))
                points[c * count + found++] = point;
            add(&seen, point);
        }
    }
}
