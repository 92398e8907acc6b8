/* What a decoder does between its matrix products: norms, gates and rotations, each in one walk over the data.
 *
 * Float32 on a CPU. No state and no allocation; Python owns every buffer and has checked every length: sizes are multiples
 * of 8. Where this was not compiled, torch gives the same but for rounding (torch/kernels.py). */

#include <math.h>

#include "vectors.h"

/* Where rows are kept: each has a page of so many lines, and so many rows before it. */
struct shelf {
    const int64_t *pages, *written;
    size_t lines;
    uint16_t *out;
};

/* Each row over its root mean square, times the weight. */
INLINE void norm_all(const float *in, const float *weight, size_t rows, size_t size, float epsilon, float *out) {
    for (size_t row = 0; row < rows; row++, in += size, out += size) {
        vector sum = {0};
        for (size_t i = 0; i < size; i += LANES) {
            const vector *here = (const vector *)(in + i);
            sum += *here * *here;
        }
        float scale = 1.0f / sqrtf(add_up(&sum) / (float)size + epsilon);
        for (size_t i = 0; i < size; i += LANES)
            *(vector *)(out + i) = *(const vector *)(in + i) * scale * *(const vector *)(weight + i);
    }
}

/* silu of a row's first half, times its second half. */
INLINE void gate_all(const float *in, size_t rows, size_t size, float *out) {
    const vector zero = {0};
    for (size_t row = 0; row < rows; row++, in += 2 * size, out += size)
        for (size_t i = 0; i < size; i += LANES) {
            const vector gate = *(const vector *)(in + i), up = *(const vector *)(in + size + i);
            words is_below = gate < zero;
            const vector minus = zero - gate;
            vector power, share;
            choose(&power, &is_below, &gate, &minus); /* never above 0, so that nothing overflows */
            words is_nothing = power < zero - 87.0f;
            exponentiate(&power);
            choose(&power, &is_nothing, &zero, &power);
            const vector one = zero + 1.0f;
            choose(&share, &is_below, &power, &one);
            *(vector *)(out + i) = gate * up * share / (one + power);
        }
}

/* Each head of a row by the row's angles: cosines of the pairs, then their sines. In place. */
INLINE void turn_all(float *rows_at, size_t stride, const float *angles, size_t rows, size_t heads, size_t size) {
    size_t half = size / 2;
    for (size_t row = 0; row < rows; row++, rows_at += stride, angles += size)
        for (size_t head = 0; head < heads; head++)
            for (size_t i = 0; i < half; i += LANES) {
                vector *low = (vector *)(rows_at + head * size + i), *high = (vector *)(rows_at + head * size + half + i);
                const vector cosine = *(const vector *)(angles + i), sine = *(const vector *)(angles + half + i);
                const vector first = *low, second = *high;
                *low = first * cosine - second * sine;
                *high = second * cosine + first * sine;
            }
}

/* Rows as bfloat16, rounded to the nearest, of two the even one. Sizes need not be even. */
INLINE size_t keep_all(const uint32_t *in, struct shelf shelf, size_t rows, size_t size, int64_t *full) {
    size_t count = 0;
    for (size_t row = 0; row < rows; row++, in += size) {
        size_t line = (size_t)shelf.written[row] % shelf.lines;
        uint16_t *place = shelf.out + ((size_t)shelf.pages[row] * shelf.lines + line) * size;
        full[count] = (int64_t)row;
        count += line == shelf.lines - 1;
        for (size_t i = 0; i < size; i++) {
            uint32_t bits = in[i], rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            place[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
        }
    }
    return count;
}

#ifdef WIDE
WIDE static void norm_wide(const float *in, const float *weight, size_t rows, size_t size, float epsilon, float *out) {
    norm_all(in, weight, rows, size, epsilon, out);
}
WIDE static void gate_wide(const float *in, size_t rows, size_t size, float *out) { gate_all(in, rows, size, out); }
WIDE static void turn_wide(float *rows_at, size_t stride, const float *angles, size_t rows, size_t heads, size_t size) {
    turn_all(rows_at, stride, angles, rows, heads, size);
}
WIDE static size_t keep_wide(const uint32_t *in, struct shelf shelf, size_t rows, size_t size, int64_t *full) {
    return keep_all(in, shelf, rows, size, full);
}
#else
#define keep_wide keep_all
#define norm_wide norm_all
#define gate_wide gate_all
#define turn_wide turn_all
#endif

EXPORT void steps_norm(const float *in, const float *weight, size_t rows, size_t size, float epsilon, float *out) {
    (is_wide() ? norm_wide : norm_all)(in, weight, rows, size, epsilon, out);
}

/* `in` has rows of 2 * size. */
EXPORT void steps_gate(const float *in, size_t rows, size_t size, float *out) {
    (is_wide() ? gate_wide : gate_all)(in, rows, size, out);
}

/* Rows of heads are `stride` floats apart; `angles` has a row of `size` for each; `size` is a multiple of 16. */
EXPORT void steps_turn(float *rows_at, size_t stride, const float *angles, size_t rows, size_t heads, size_t size) {
    (is_wide() ? turn_wide : turn_all)(rows_at, stride, angles, rows, heads, size);
}

/* `in` holds the bits of float32. Each row goes to the line of its page that comes after the written ones; which rows fill
 * their page is listed in `full`, and counted. */
EXPORT size_t steps_keep(const uint32_t *in, const int64_t *pages, const int64_t *written, size_t rows, size_t size,
                         size_t lines, uint16_t *out, int64_t *full) {
    struct shelf shelf = {pages, written, lines, out};
    return (is_wide() ? keep_wide : keep_all)(in, shelf, rows, size, full);
}
