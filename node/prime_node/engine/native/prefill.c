/* Whole sequences at once: every token's queries look at its own key and at those before it.
 *
 * Float32 on a CPU, one thread. No state and no allocation; Python owns every buffer and has checked every length. Where
 * this was not compiled, torch's scaled_dot_product_attention gives the same but for rounding (torch/attention.py). */

#include <string.h>

#include "vectors.h"

enum {
    QUERIES = 6,       /* taken side by side: with PANEL keys they fill the registers of AVX2 */
    PANEL = 2 * LANES, /* keys that lie together, so that one step reads one line of memory */
};

/* A token's part of each buffer is `stride` floats behind that of the token before. */
struct tokens {
    const float *queries, *keys, *values;
    size_t query_stride, key_stride, value_stride;
};

struct room {
    float *panels; /* (panels, size, PANEL): keys, turned */
    float *values; /* (length, size) */
    float *scores; /* (QUERIES, padded) */
    size_t padded; /* the length, up to whole panels */
};

INLINE void pack(const float *keys, size_t key_stride, const float *values, size_t value_stride, size_t length,
                 size_t size, struct room room) {
    for (size_t t = 0; t < room.padded; t++) {
        float *panel = room.panels + t / PANEL * size * PANEL + t % PANEL;
        for (size_t i = 0; i < size; i++)
            panel[i * PANEL] = t < length ? keys[t * key_stride + i] : 0.0f;
    }
    for (size_t t = 0; t < length; t++)
        memcpy(room.values + t * size, values + t * value_stride, size * sizeof(float));
}

/* Scores of some queries against `count` keys, up to whole panels. */
INLINE void score(const float *const *queries, size_t count, size_t size, float scale, struct room room) {
    for (size_t t = 0; t < count; t += PANEL) {
        const vector *keys = (const vector *)(room.panels + t * size);
        vector sums[QUERIES][2] = {0};
        for (size_t i = 0; i < size; i++, keys += 2)
#pragma GCC unroll 6
            for (size_t n = 0; n < QUERIES; n++) {
                sums[n][0] += queries[n][i] * keys[0];
                sums[n][1] += queries[n][i] * keys[1];
            }
#pragma GCC unroll 6
        for (size_t n = 0; n < QUERIES; n++) {
            vector *scores = (vector *)(room.scores + n * room.padded + t);
            scores[0] = sums[n][0] * scale, scores[1] = sums[n][1] * scale;
        }
    }
}

/* From `own` scores to weights that add up to one; those behind them, up to `count`, weigh nothing. */
INLINE void share_out(float *scores, size_t own, size_t count) {
    for (size_t t = own; t % LANES; t++)
        scores[t] = -__builtin_inff();
    const float share = 1.0f / weigh(scores, own);
    for (size_t t = 0; t < own; t += LANES)
        *(vector *)(scores + t) *= share;
    for (size_t t = own; t < count; t++)
        scores[t] = 0.0f;
}

/* `width` vectors of the mixed values of some queries. */
INLINE void mix(size_t width, size_t start, size_t count, size_t size, struct room room, float *const *out) {
    vector sums[QUERIES][2] = {0};
    for (size_t t = 0; t < count; t++) {
        const vector *value = (const vector *)(room.values + t * size + start);
#pragma GCC unroll 6
        for (size_t n = 0; n < QUERIES; n++)
            for (size_t part = 0; part < width; part++)
                sums[n][part] += room.scores[n * room.padded + t] * value[part];
    }
    for (size_t n = 0; n < QUERIES; n++)
        for (size_t part = 0; part < width; part++)
            ((vector *)(out[n] + start))[part] = sums[n][part];
}

/* One head of one sequence; `out_stride` floats lie between two tokens of `out`. */
INLINE void attend_head(const float *queries, size_t query_stride, size_t length, size_t size, float scale,
                        struct room room, float *out, size_t out_stride) {
    for (size_t first = 0; first < length; first += QUERIES) {
        const float *some[QUERIES];
        float *found[QUERIES];
        size_t count = first + QUERIES < length ? first + QUERIES : length;
        for (size_t n = 0; n < QUERIES; n++) {
            /* The last token stands in for those that are not there: it gives the same again. */
            size_t t = first + n < length ? first + n : length - 1;
            some[n] = queries + t * query_stride;
            found[n] = out + t * out_stride;
        }
        score(some, count, size, scale, room);
        for (size_t n = 0; n < QUERIES; n++)
            share_out(room.scores + n * room.padded, first + n < length ? first + n + 1 : length, count);
        size_t start = 0;
        for (; start + 2 * LANES <= size; start += 2 * LANES)
            mix(2, start, count, size, room, found);
        if (start < size)
            mix(1, start, count, size, room, found);
    }
}

INLINE void attend_all(struct tokens new, size_t sequences, size_t length, size_t heads, size_t group, size_t size,
                       float scale, float *workspace, float *out) {
    size_t padded = (length + PANEL - 1) / PANEL * PANEL, out_stride = heads * group * size;
    struct room room = {workspace, workspace + padded * size, workspace + 2 * padded * size, padded};
    for (size_t sequence = 0; sequence < sequences; sequence++)
        for (size_t head = 0; head < heads; head++) {
            size_t token = sequence * length;
            pack(new.keys + token * new.key_stride + head * size, new.key_stride,
                 new.values + token * new.value_stride + head * size, new.value_stride, length, size, room);
            for (size_t member = head * group; member < (head + 1) * group; member++)
                attend_head(new.queries + token * new.query_stride + member * size, new.query_stride, length, size,
                            scale, room, out + token * out_stride + member * size, out_stride);
        }
}

#ifdef WIDE
WIDE static void attend_wide(struct tokens new, size_t sequences, size_t length, size_t heads, size_t group,
                             size_t size, float scale, float *workspace, float *out) {
    attend_all(new, sequences, length, heads, group, size, scale, workspace, out);
}
#endif

/* `workspace` has room for (2 * size + 6) floats for each token of a sequence, up to whole panels of 16; `out` for all
 * queries. `size` is a multiple of 8, `length` at least 1. */
EXPORT void prefill_attend(const float *queries, size_t query_stride, const float *keys, size_t key_stride,
                           const float *values, size_t value_stride, size_t sequences, size_t length, size_t heads,
                           size_t group, size_t size, float scale, float *workspace, float *out) {
    struct tokens new = {queries, keys, values, query_stride, key_stride, value_stride};
#ifdef WIDE
    if (is_wide()) {
        attend_wide(new, sequences, length, heads, group, size, scale, workspace, out);
        return;
    }
#endif
    attend_all(new, sequences, length, heads, group, size, scale, workspace, out);
}
