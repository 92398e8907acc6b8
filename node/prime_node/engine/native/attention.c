/* One new token for each of many sequences: its key and value go into the cache, its queries look at all that is there.
 *
 * Float32 on a CPU. Every row is read to its own length, so unequal ones cost what they have and nothing is masked. No
 * state and no allocation; Python owns every buffer and has checked every length. Where this was not compiled,
 * torch's scaled_dot_product_attention gives the same but for rounding (torch/attention.py). */

#include <string.h>

#include "vectors.h"

enum {
    VECTORS = 4, /* vectors of a value that are added up side by side */
    KEYS = 4,    /* keys that are compared side by side */
};

/* A row's part of each buffer is `stride` floats behind that of the row before. */
struct rows {
    const float *queries, *keys, *values;
    size_t query_stride, key_stride, value_stride;
};

struct cache {
    float *keys, *values; /* (rows, heads, room, size) */
    size_t heads, room, size;
};

/* Scores of one query against `count` keys, filled up to whole vectors with scores that count for nothing. */
INLINE void score(const float *query, const float *keys, size_t count, size_t size, float scale, float *scores) {
    size_t t = 0;
    for (; t + KEYS <= count; t += KEYS) {
        vector sums[KEYS] = {0};
        for (size_t i = 0; i < size; i += LANES) {
            const vector part = *(const vector *)(query + i);
            for (size_t key = 0; key < KEYS; key++)
                sums[key] += part * *(const vector *)(keys + (t + key) * size + i);
        }
        for (size_t key = 0; key < KEYS; key++)
            scores[t + key] = add_up(&sums[key]) * scale;
    }
    for (; t < count; t++) {
        vector sum = {0};
        for (size_t i = 0; i < size; i += LANES)
            sum += *(const vector *)(query + i) * *(const vector *)(keys + t * size + i);
        scores[t] = add_up(&sum) * scale;
    }
    for (; t % LANES; t++)
        scores[t] = -__builtin_inff();
}

/* The weighted mean of `count` values. */
INLINE void mix(const float *weights, const float *values, size_t count, size_t size, float sum, float *out) {
    size_t i = 0;
    for (; i + VECTORS * LANES <= size; i += VECTORS * LANES) {
        vector a = {0}, b = {0}, c = {0}, d = {0};
        for (size_t t = 0; t < count; t++) {
            const vector *value = (const vector *)(values + t * size + i);
            a += weights[t] * value[0];
            b += weights[t] * value[1];
            c += weights[t] * value[2];
            d += weights[t] * value[3];
        }
        vector *mixed = (vector *)(out + i);
        mixed[0] = a / sum, mixed[1] = b / sum, mixed[2] = c / sum, mixed[3] = d / sum;
    }
    for (; i < size; i += LANES) {
        vector a = {0};
        for (size_t t = 0; t < count; t++)
            a += weights[t] * *(const vector *)(values + t * size + i);
        *(vector *)(out + i) = a / sum;
    }
}

INLINE void attend_all(struct rows new, struct cache cache, const int64_t *positions, size_t rows, size_t group,
                       float scale, float *scores, float *out) {
    size_t size = cache.size;
    for (size_t row = 0; row < rows; row++) {
        size_t count = (size_t)positions[row] + 1;
        for (size_t head = 0; head < cache.heads; head++) {
            float *keys = cache.keys + (row * cache.heads + head) * cache.room * size;
            float *values = cache.values + (row * cache.heads + head) * cache.room * size;
            memcpy(keys + (count - 1) * size, new.keys + row * new.key_stride + head * size, size * sizeof(float));
            memcpy(values + (count - 1) * size, new.values + row * new.value_stride + head * size, size * sizeof(float));
            for (size_t member = 0; member < group; member++) {
                const float *query = new.queries + row * new.query_stride + (head * group + member) * size;
                score(query, keys, count, size, scale, scores);
                float sum = weigh(scores, count);
                mix(scores, values, count, size, sum, out + ((row * cache.heads + head) * group + member) * size);
            }
        }
    }
}

#ifdef WIDE
WIDE static void attend_wide(struct rows new, struct cache cache, const int64_t *positions, size_t rows, size_t group,
                             float scale, float *scores, float *out) {
    attend_all(new, cache, positions, rows, group, scale, scores, out);
}
#endif

/* `positions` is where each row's new token goes: behind those it has. `scores` has room for one row of the cache, `out`
 * for all queries, `size` is a multiple of 8. */
EXPORT void attention_attend(const float *queries, size_t query_stride, const float *keys, size_t key_stride,
                             const float *values, size_t value_stride, float *cache_keys, float *cache_values,
                             const int64_t *positions, size_t rows, size_t heads, size_t group, size_t room,
                             size_t size, float scale, float *scores, float *out) {
    struct rows new = {queries, keys, values, query_stride, key_stride, value_stride};
    struct cache cache = {cache_keys, cache_values, heads, room, size};
#ifdef WIDE
    if (is_wide()) {
        attend_wide(new, cache, positions, rows, group, scale, scores, out);
        return;
    }
#endif
    attend_all(new, cache, positions, rows, group, scale, scores, out);
}
