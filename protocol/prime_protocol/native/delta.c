/* The two hot loops of a weight patch: find the lanes that changed, and change them.
 *
 * A lane is 1, 2 or 4 little-endian bytes. What is written here is written bit-equally by delta_lanes.py with numpy;
 * delta.py says what the bytes mean and checks them. Nothing here allocates, and nothing here checks what a peer sent:
 * check_changes in delta.py must have passed before delta_scatter, or it writes outside the target.
 *
 * A block comes in pieces that fit the processor's cache, and a gap may reach from one piece into a later one. So both
 * loops keep `next` relative to the current piece. When a piece ends they subtract its lanes, and `next` lies before
 * the new piece: a negative number modulo 2^64. Unsigned arithmetic wraps, so `lane - next` and `next + gap` are right.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ESCAPE 255
#define GROUP 64 /* lanes compared at once, one bit for each */
#define FOUND_MAX (32 * GROUP)
#define LINE_BYTES 64
#define AHEAD_BYTES 1024

/* Changes of a block that are being written, piece after piece. */
typedef struct {
    uint8_t *gaps;
    uint8_t *planes; /* place of the next change in the first plane */
    size_t plane_stride;
    size_t next; /* first lane after the last change, counted from the start of the piece */
} Out;

/* Changes of a block that are being applied, piece after piece. */
typedef struct {
    const uint8_t *gaps;
    const uint8_t *planes;
    size_t plane_stride;
    size_t left;
    size_t next;
} Steps;

/* Appends the lanes whose bits are set. Most groups have none, one or two, and which cannot be foreseen: so two places
 * are always written, without a branch, and only as many as are right are kept. */
static inline size_t list_bits(uint64_t bits, size_t lane, uint32_t *found)
{
    const uint64_t last = 1ull << (GROUP - 1);
    const size_t count = (size_t)__builtin_popcountll(bits);
    for (size_t i = 0; i < 2; i++) {
        found[i] = (uint32_t)lane + (uint32_t)__builtin_ctzll(bits | last);
        bits &= bits - 1;
    }
    for (size_t i = 2; __builtin_expect(i < count, 0); i++) {
        found[i] = (uint32_t)lane + (uint32_t)__builtin_ctzll(bits);
        bits &= bits - 1;
    }
    return count;
}

/* differ: one bit for each lane that differs, of a group or of what is left of one.
 * write: the gap and the step of every lane found. A signed step is folded to unsigned: 0, -1, 1, -2 become 0, 1, 2, 3,
 * so a small one leaves the upper planes zero. What `out` holds is copied: a byte that is written might be part of it.
 * scatter: the way back. A change in a later piece is not consumed: its gap is read again there. It prefetches the
 * whole target, not only the lanes that change, because the caller hashes the piece next. */
#define DEFINE_LANE(BITS, TYPE)                                                                                        \
    static inline uint64_t differ_plain_##BITS(const uint8_t *old, const uint8_t *new, size_t lanes)                   \
    {                                                                                                                  \
        const size_t word = 8 / sizeof(TYPE);                                                                          \
        uint64_t bits = 0;                                                                                             \
        for (size_t i = 0; i < lanes; i += word) {                                                                     \
            const size_t stop = i + word < lanes ? i + word : lanes;                                                   \
            if (memcmp(old + i * sizeof(TYPE), new + i * sizeof(TYPE), (stop - i) * sizeof(TYPE)) == 0)                \
                continue;                                                                                              \
            for (size_t j = i; j < stop; j++)                                                                          \
                bits |= (uint64_t)(memcmp(old + j * sizeof(TYPE), new + j * sizeof(TYPE), sizeof(TYPE)) != 0) << j;    \
        }                                                                                                              \
        return bits;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static void write_##BITS(Out *out, const uint8_t *old, const uint8_t *new, const uint32_t *found, size_t count)    \
    {                                                                                                                  \
        uint8_t *gaps = out->gaps, *planes = out->planes;                                                              \
        const size_t stride = out->plane_stride;                                                                       \
        size_t next = out->next;                                                                                       \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const size_t lane = found[i];                                                                              \
            size_t gap = lane - next;                                                                                  \
            for (; __builtin_expect(gap >= ESCAPE, 0); gap -= ESCAPE)                                                  \
                *gaps++ = ESCAPE;                                                                                      \
            *gaps++ = (uint8_t)gap;                                                                                    \
            next = lane + 1;                                                                                           \
            TYPE a, b;                                                                                                 \
            memcpy(&a, old + lane * sizeof(TYPE), sizeof(TYPE));                                                       \
            memcpy(&b, new + lane * sizeof(TYPE), sizeof(TYPE));                                                       \
            const TYPE step = (TYPE)(b - a);                                                                           \
            const TYPE folded = (TYPE)((TYPE)(step << 1) ^ (TYPE)(0 - (step >> (BITS - 1))));                          \
            for (size_t p = 0; p < sizeof(TYPE); p++)                                                                  \
                planes[p * stride + i] = (uint8_t)(folded >> (8 * p));                                                 \
        }                                                                                                              \
        *out = (Out){gaps, planes + count, stride, next};                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void scatter_##BITS(uint8_t *target, size_t lanes, Steps *steps)                                            \
    {                                                                                                                  \
        const uint8_t *gaps = steps->gaps, *planes = steps->planes, *ahead = target;                                   \
        size_t next = steps->next, left = steps->left;                                                                 \
        for (; left != 0; left--) {                                                                                    \
            const uint8_t *gap = gaps;                                                                                 \
            size_t lane = next;                                                                                        \
            for (; __builtin_expect(*gap == ESCAPE, 0); gap++)                                                         \
                lane += ESCAPE;                                                                                        \
            lane += *gap;                                                                                              \
            if (lane >= lanes)                                                                                         \
                break;                                                                                                 \
            uint8_t *place = target + lane * sizeof(TYPE);                                                             \
            for (; ahead < place + AHEAD_BYTES; ahead += LINE_BYTES)                                                   \
                __builtin_prefetch(ahead, 1, 3);                                                                       \
            TYPE folded = 0, value;                                                                                    \
            for (size_t p = 0; p < sizeof(TYPE); p++)                                                                  \
                folded = (TYPE)(folded | (TYPE)((TYPE)planes[p * steps->plane_stride] << (8 * p)));                    \
            memcpy(&value, place, sizeof(TYPE));                                                                       \
            value = (TYPE)(value + (TYPE)((TYPE)(folded >> 1) ^ (TYPE)(0 - (folded & 1))));                            \
            memcpy(place, &value, sizeof(TYPE));                                                                       \
            gaps = gap + 1;                                                                                            \
            planes++;                                                                                                  \
            next = lane + 1;                                                                                           \
        }                                                                                                              \
        *steps = (Steps){gaps, planes, steps->plane_stride, left, next - lanes};                                       \
    }

DEFINE_LANE(8, uint8_t)
DEFINE_LANE(16, uint16_t)
DEFINE_LANE(32, uint32_t)

/* Lanes are found some groups at a time, then written: what is looked at twice is still in the nearest cache. */
#define DEFINE_SCAN(KIND, BITS, TARGET)                                                                                \
    TARGET static void scan_##KIND##_##BITS(Out *out, const uint8_t *old, const uint8_t *new, size_t lanes)            \
    {                                                                                                                  \
        const size_t width = BITS / 8;                                                                                 \
        uint32_t found[FOUND_MAX + 2];                                                                                 \
        for (size_t lane = 0; lane < lanes;) {                                                                         \
            const size_t stop = lanes - lane < FOUND_MAX ? lanes : lane + FOUND_MAX;                                   \
            size_t count = 0;                                                                                          \
            for (; lane + GROUP <= stop; lane += GROUP)                                                                \
                count += list_bits(differ_##KIND##_##BITS(old + lane * width, new + lane * width, GROUP), lane,        \
                                   found + count);                                                                     \
            if (lane < stop)                                                                                           \
                count += list_bits(differ_plain_##BITS(old + lane * width, new + lane * width, stop - lane), lane,     \
                                   found + count);                                                                     \
            write_##BITS(out, old, new, found, count);                                                                 \
            lane = stop;                                                                                               \
        }                                                                                                              \
    }

DEFINE_SCAN(plain, 8, )
DEFINE_SCAN(plain, 16, )
DEFINE_SCAN(plain, 32, )

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,popcnt,bmi")))
#define LOAD(bytes, index) _mm256_loadu_si256((const __m256i *)(bytes) + (index))

AVX2 static inline uint64_t differ_avx2_8(const uint8_t *old, const uint8_t *new, size_t lanes)
{
    (void)lanes;
    uint64_t same = 0;
    for (int i = 0; i < 2; i++)
        same |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(LOAD(old, i), LOAD(new, i))) << (32 * i);
    return ~same;
}

AVX2 static inline uint64_t differ_avx2_16(const uint8_t *old, const uint8_t *new, size_t lanes)
{
    (void)lanes;
    uint64_t same = 0;
    for (int i = 0; i < 2; i++) {
        __m256i low = _mm256_cmpeq_epi16(LOAD(old, 2 * i), LOAD(new, 2 * i));
        __m256i high = _mm256_cmpeq_epi16(LOAD(old, 2 * i + 1), LOAD(new, 2 * i + 1));
        /* Each half is packed by itself; the permutation puts the quarters in order again. */
        __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
        same |= (uint64_t)(uint32_t)_mm256_movemask_epi8(both) << (32 * i);
    }
    return ~same;
}

AVX2 static inline uint64_t differ_avx2_32(const uint8_t *old, const uint8_t *new, size_t lanes)
{
    (void)lanes;
    uint64_t same = 0;
    for (int i = 0; i < 8; i++) {
        __m256i equal = _mm256_cmpeq_epi32(LOAD(old, i), LOAD(new, i));
        same |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(equal)) << (8 * i);
    }
    return ~same;
}

DEFINE_SCAN(avx2, 8, AVX2)
DEFINE_SCAN(avx2, 16, AVX2)
DEFINE_SCAN(avx2, 32, AVX2)

#define SCAN(BITS) (__builtin_cpu_supports("avx2") && wide ? scan_avx2_##BITS : scan_plain_##BITS)
#else
#define SCAN(BITS) ((void)wide, scan_plain_##BITS)
#endif

/* Appends gap codes and value planes of the next piece of a block. `gaps` holds a byte for every lane of the block and
 * one more for every 255, each plane one for every lane. `wide` 0 keeps to plain C. */
EXPORT void delta_scan(const uint8_t *old, const uint8_t *new, size_t lanes, int width, int wide, Out *out)
{
    if (width == 1)
        SCAN(8)(out, old, new, lanes);
    else if (width == 2)
        SCAN(16)(out, old, new, lanes);
    else
        SCAN(32)(out, old, new, lanes);
    out->next -= lanes;
}

/* Applies the steps that belong to the next piece of a block. The caller has checked that all end inside the block. */
EXPORT void delta_scatter(uint8_t *target, size_t lanes, int width, Steps *steps)
{
    if (width == 1)
        scatter_8(target, lanes, steps);
    else if (width == 2)
        scatter_16(target, lanes, steps);
    else
        scatter_32(target, lanes, steps);
}
