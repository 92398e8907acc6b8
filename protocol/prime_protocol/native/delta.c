/* The two hot loops of a weight patch: find the lanes that changed, and change them.
 *
 * A lane is 1, 2 or 4 little-endian bytes. What is written here is written bit-equally by delta.py with numpy; that file
 * says what the bytes mean and checks them. Nothing here allocates, and nothing here checks what a peer sent.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ESCAPE 255

typedef struct {
    uint8_t *gaps;
    uint8_t *planes;
    size_t plane_stride;
    size_t gap_bytes;
    size_t count;
    size_t next; /* first lane after the last change */
} Out;

static inline void emit_gap(Out *out, size_t lane)
{
    size_t gap = lane - out->next;
    if (__builtin_expect(gap >= ESCAPE, 0)) {
        size_t escapes = gap / ESCAPE;
        memset(out->gaps + out->gap_bytes, ESCAPE, escapes);
        out->gap_bytes += escapes;
        gap -= escapes * ESCAPE;
    }
    out->gaps[out->gap_bytes++] = (uint8_t)gap;
    out->next = lane + 1;
}

/* Signed difference folded to unsigned: 0, -1, 1, -2 become 0, 1, 2, 3, so a small step leaves the upper planes zero. */
#define DEFINE_LANE(BITS, TYPE)                                                                                        \
    static inline void emit_##BITS(Out *out, const uint8_t *old, const uint8_t *new, size_t lane)                      \
    {                                                                                                                  \
        TYPE a, b;                                                                                                     \
        memcpy(&a, old + lane * sizeof(TYPE), sizeof(TYPE));                                                           \
        memcpy(&b, new + lane * sizeof(TYPE), sizeof(TYPE));                                                           \
        TYPE step = (TYPE)(b - a);                                                                                     \
        TYPE folded = (TYPE)((TYPE)(step << 1) ^ (TYPE)(0 - (step >> (BITS - 1))));                                    \
        emit_gap(out, lane);                                                                                           \
        for (size_t p = 0; p < sizeof(TYPE); p++)                                                                      \
            out->planes[p * out->plane_stride + out->count] = (uint8_t)(folded >> (8 * p));                            \
        out->count++;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static void scan_tail_##BITS(Out *out, const uint8_t *old, const uint8_t *new, size_t lane, size_t lanes)          \
    {                                                                                                                  \
        for (; lane < lanes; lane++)                                                                                   \
            if (memcmp(old + lane * sizeof(TYPE), new + lane * sizeof(TYPE), sizeof(TYPE)) != 0)                       \
                emit_##BITS(out, old, new, lane);                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static void scan_scalar_##BITS(Out *out, const uint8_t *old, const uint8_t *new, size_t lanes)                     \
    {                                                                                                                  \
        const size_t step = 8 / sizeof(TYPE);                                                                          \
        size_t lane = 0;                                                                                               \
        for (; lane + step <= lanes; lane += step)                                                                     \
            if (memcmp(old + lane * sizeof(TYPE), new + lane * sizeof(TYPE), 8) != 0)                                  \
                scan_tail_##BITS(out, old, new, lane, lane + step);                                                    \
        scan_tail_##BITS(out, old, new, lane, lanes);                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static void scatter_##BITS(uint8_t *target, const uint8_t *gaps, const uint8_t *planes, size_t count)              \
    {                                                                                                                  \
        size_t lane = 0;                                                                                               \
        for (size_t i = 0; i < count; i++) {                                                                           \
            while (__builtin_expect(*gaps == ESCAPE, 0)) {                                                             \
                lane += ESCAPE;                                                                                        \
                gaps++;                                                                                                \
            }                                                                                                          \
            lane += *gaps++;                                                                                           \
            TYPE folded = 0, value;                                                                                    \
            for (size_t p = 0; p < sizeof(TYPE); p++)                                                                  \
                folded = (TYPE)(folded | (TYPE)((TYPE)planes[p * count + i] << (8 * p)));                              \
            memcpy(&value, target + lane * sizeof(TYPE), sizeof(TYPE));                                                \
            value = (TYPE)(value + (TYPE)((TYPE)(folded >> 1) ^ (TYPE)(0 - (folded & 1))));                            \
            memcpy(target + lane * sizeof(TYPE), &value, sizeof(TYPE));                                                \
            lane++;                                                                                                    \
        }                                                                                                              \
    }

DEFINE_LANE(8, uint8_t)
DEFINE_LANE(16, uint16_t)
DEFINE_LANE(32, uint32_t)

#if defined(__x86_64__)
#include <immintrin.h>

/* One bit per changed lane: the byte mask of the comparison, thinned to the first byte of each lane. */
#define DEFINE_SCAN_AVX2(BITS, THIN)                                                                                   \
    __attribute__((target("avx2"))) static void scan_avx2_##BITS(Out *out, const uint8_t *old, const uint8_t *new,     \
                                                                     size_t lanes)                                     \
    {                                                                                                                  \
        const size_t step = 256 / BITS;                                                                                \
        size_t lane = 0;                                                                                               \
        for (; lane + step <= lanes; lane += step) {                                                                   \
            __m256i a = _mm256_loadu_si256((const __m256i *)(old + lane * (BITS / 8)));                                \
            __m256i b = _mm256_loadu_si256((const __m256i *)(new + lane * (BITS / 8)));                                \
            uint32_t mask = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi##BITS(a, b)) & THIN;                      \
            for (; mask != 0; mask &= mask - 1)                                                                        \
                emit_##BITS(out, old, new, lane + (size_t)__builtin_ctz(mask) / (BITS / 8));                           \
        }                                                                                                              \
        scan_tail_##BITS(out, old, new, lane, lanes);                                                                  \
    }

DEFINE_SCAN_AVX2(8, 0xffffffffu)
DEFINE_SCAN_AVX2(16, 0x55555555u)
DEFINE_SCAN_AVX2(32, 0x11111111u)

#define SCAN(BITS) (__builtin_cpu_supports("avx2") && wide ? scan_avx2_##BITS : scan_scalar_##BITS)
#else
#define SCAN(BITS) ((void)wide, scan_scalar_##BITS)
#endif

/* Writes gap codes and value planes; gives the number of changed lanes, and of gap bytes through `gap_bytes`.
 * `gaps` holds lanes + lanes / 255 bytes; `planes` holds `width` planes of `lanes` bytes. `wide` 0 keeps to plain C. */
EXPORT size_t delta_scan(const uint8_t *old, const uint8_t *new, size_t lanes, int width, int wide, uint8_t *gaps,
                         uint8_t *planes, size_t *gap_bytes)
{
    Out out = {.gaps = gaps, .planes = planes, .plane_stride = lanes};
    if (width == 1)
        SCAN(8)(&out, old, new, lanes);
    else if (width == 2)
        SCAN(16)(&out, old, new, lanes);
    else
        SCAN(32)(&out, old, new, lanes);
    *gap_bytes = out.gap_bytes;
    return out.count;
}

/* Adds `count` steps at the lanes the gaps name. The caller has checked that they end inside the target. */
EXPORT void delta_scatter(uint8_t *target, const uint8_t *gaps, const uint8_t *planes, size_t count, int width)
{
    if (width == 1)
        scatter_8(target, gaps, planes, count);
    else if (width == 2)
        scatter_16(target, gaps, planes, count);
    else
        scatter_32(target, gaps, planes, count);
}
