/* Vectors of eight floats, as GCC and Clang know them, and what all kernels of the engine do with them. */

#ifndef PRIME_VECTORS_H
#define PRIME_VECTORS_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#endif

enum { LANES = 8 }; /* floats in a vector */
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Lane by lane one or the other. */
INLINE void choose(vector *out, const words *which, const vector *one, const vector *other) {
    *out = (vector)((*which & (words)*one) | (~*which & (words)*other));
}

/* e^x for x <= 0, within two units of the last place; NaN stays NaN. */
INLINE void exponentiate(vector *x) {
    const vector lowest = (vector){0} - 87.0f;
    words is_low = *x < lowest;
    choose(x, &is_low, &lowest, x);
    vector n = (*x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to a whole number */
    vector r = (*x - n * 0.693359375f) + n * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    words scale = (__builtin_convertvector(n, words) + 127) << 23;
    *x = p * (vector)scale;
}

INLINE float add_up(const vector *lanes) {
    typedef float half __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
    half sum = ((const half *)lanes)[0] + ((const half *)lanes)[1];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* From `count` scores to weights that add up to what is returned. Behind them, up to whole vectors, stand scores of
 * minus infinity. */
INLINE float weigh(float *scores, size_t count) {
    vector largest = *(const vector *)scores, sums = {0};
    for (size_t t = LANES; t < count; t += LANES) {
        const vector *here = (const vector *)(scores + t);
        words is_larger = *here > largest;
        choose(&largest, &is_larger, here, &largest);
    }
    float top = largest[0];
    for (size_t i = 1; i < LANES; i++)
        top = largest[i] > top ? largest[i] : top;
    for (size_t t = 0; t < count; t += LANES) {
        vector *here = (vector *)(scores + t);
        *here -= top;
        exponentiate(here);
        sums += *here;
    }
    return add_up(&sums);
}

/* Whether this machine has the wide path. */
INLINE int is_wide(void) {
#ifdef WIDE
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

#endif
