/* TOPLOC kernels: which values a proof covers, the polynomial through them, and its values elsewhere.
 *
 * No state and no allocation; Python owns every buffer and has checked every length and range. toploc_plain.py holds
 * the same computations in numpy. `wide` is what toploc_wide() said, or 0 for the path every x86-64 machine has.
 *
 * Which of several equal magnitudes is kept decides the bytes of a proof. It follows from how torch.topk works on a
 * CPU: the C++ library's partial_sort for k * 64 <= n, else its nth_element. Both are rebuilt here step by step. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx2")))
#endif
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum {
    PRIME = 65497,      /* 2^16 - 39, so 2^16 folds to 39 */
    FOLD = 39,
    MODULUS_MIN = 32768,
    K = 128,            /* values per proof, and the size of the heap */
    HEAP = 2 * K,       /* the heap and one level of sentinels below its leaves */
    LANES = 4,          /* heaps replayed side by side, to hide the latency of each */
    PENDING = 4096,     /* replacements noted before a heap must be replayed */
    SMALL = 64 * K,     /* from here on torch sorts with a heap */
    BLOCK = 64,         /* points evaluated together */
};

/* A value on its way through a selection: magnitude above, index below. Indices grow as the scan goes on, so a plain
 * comparison of two items ranks the newer of two equal magnitudes as the larger. */
typedef uint64_t item;
#define SENTINEL UINT64_MAX

INLINE item make_item(uint16_t bits, size_t index) { return (uint64_t)(bits & 0x7fff) << 32 | index; }
INLINE uint32_t magnitude(item it) { return (uint32_t)(it >> 32); }
INLINE item larger(item a, item b) { return a > b ? a : b; }

/* --- Heap selection: large chunks ------------------------------------------------------------------------------- */

struct lane {
    item heap[HEAP];
    item pending[PENDING];
    size_t count;
};

/* The smaller child; of equal ones the right. */
INLINE size_t lower_child(const item *heap, size_t node) {
    return 2 * node + 2 - (magnitude(heap[2 * node + 2]) > magnitude(heap[2 * node + 1]));
}

static void make_heap(item *heap) {
    for (size_t i = K; i < HEAP; i++)
        heap[i] = SENTINEL;
    for (size_t top = K / 2; top-- > 0;) {
        item moving = heap[top];
        size_t node = top;
        while (node < K / 2) {
            size_t child = lower_child(heap, node);
            if (magnitude(heap[child]) > magnitude(moving))
                break;
            heap[node] = heap[child];
            node = child;
        }
        heap[node] = moving;
    }
}

/* Replace the root of each heap. Values along the path of lower children never fall, and the new item is the newest,
 * so each place on the path takes what is below it if that is older and no larger, else the new item or what it held. */
INLINE void replace_roots(item *const *heaps, const item *fresh, size_t lanes) {
    size_t node[LANES] = {0};
    item held[LANES] = {0};
    for (int level = 0; level < 7; level++)
        for (size_t i = 0; i < lanes; i++) {
            size_t child = lower_child(heaps[i], node[i]);
            item below = heaps[i][child];
            heaps[i][node[i]] = below < fresh[i] ? below : larger(held[i], fresh[i]);
            held[i] = below;
            node[i] = child;
        }
    for (size_t i = 0; i < lanes; i++)
        heaps[i][node[i]] = larger(held[i], fresh[i]);
}

static void replay_one(struct lane *lane, size_t start) {
    item *heap = lane->heap;
    for (size_t i = start; i < lane->count; i++)
        replace_roots(&heap, &lane->pending[i], 1);
    lane->count = 0;
}

static void replay(struct lane *lanes, size_t used) {
    size_t start = 0;
    if (used == LANES) {
        item *heaps[LANES];
        size_t shared = PENDING;
        for (size_t i = 0; i < LANES; i++) {
            heaps[i] = lanes[i].heap;
            shared = lanes[i].count < shared ? lanes[i].count : shared;
        }
        for (; start < shared; start++) {
            item fresh[LANES];
            for (size_t i = 0; i < LANES; i++)
                fresh[i] = lanes[i].pending[start];
            replace_roots(heaps, fresh, LANES);
        }
    }
    for (size_t i = 0; i < used; i++)
        replay_one(&lanes[i], start);
}

/* The smallest magnitude in the heap depends only on how many of each magnitude it holds, so the scan can keep that
 * count alone, note who would replace the root, and leave the heap for later. */
struct scan {
    uint8_t held[1 << 15];
    uint32_t root;
};

INLINE void note(struct lane *lane, struct scan *scan, uint16_t bits, size_t index) {
    uint32_t size = bits & 0x7fff;
    if (size <= scan->root)
        return;
    if (lane->count == PENDING)
        replay_one(lane, 0);
    lane->pending[lane->count++] = make_item(bits, index);
    scan->held[size]++;
    scan->held[scan->root]--;
    while (scan->held[scan->root] == 0)
        scan->root++;
}

static void scan_start(struct lane *lane, struct scan *scan, const uint16_t *bits) {
    memset(scan, 0, sizeof *scan);
    scan->root = 0x7fff;
    lane->count = 0;
    for (size_t i = 0; i < K; i++) {
        uint32_t size = bits[i] & 0x7fff;
        lane->heap[i] = make_item(bits[i], i);
        scan->held[size]++;
        scan->root = size < scan->root ? size : scan->root;
    }
    make_heap(lane->heap);
}

static void scan_plain(struct lane *lane, struct scan *scan, const uint16_t *bits, size_t from, size_t n) {
    for (size_t i = from; i < n; i++)
        note(lane, scan, bits[i], i);
}

#ifdef WIDE
/* One bit per value of a pair of comparisons; packing works on half registers, so put the quarters back in order. */
WIDE INLINE uint64_t one_bit_each(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
}

WIDE static void scan_wide(struct lane *lane, struct scan *scan, const uint16_t *bits, size_t n) {
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    size_t i = K;
    for (; i + 64 <= n; i += 64) {
        const __m256i root = _mm256_set1_epi16((short)scan->root);
        __m256i above[4];
        for (int v = 0; v < 4; v++) {
            __m256i loaded = _mm256_loadu_si256((const __m256i *)(bits + i + 16 * v));
            above[v] = _mm256_cmpgt_epi16(_mm256_and_si256(loaded, mask), root);
        }
        __m256i any = _mm256_or_si256(_mm256_or_si256(above[0], above[1]), _mm256_or_si256(above[2], above[3]));
        if (_mm256_testz_si256(any, any))
            continue;
        uint64_t hits = one_bit_each(above[0], above[1]) | one_bit_each(above[2], above[3]) << 32;
        for (; hits; hits &= hits - 1) {
            size_t index = i + (size_t)__builtin_ctzll(hits);
            note(lane, scan, bits[index], index);
        }
    }
    scan_plain(lane, scan, bits, i, n);
}
#endif

static void select_large(const uint16_t *bits, size_t chunks, size_t n, uint32_t *indices, int wide) {
    struct lane lanes[LANES];
    struct scan scan;
    for (size_t first = 0; first < chunks; first += LANES) {
        size_t used = chunks - first < LANES ? chunks - first : LANES;
        for (size_t i = 0; i < used; i++) {
            const uint16_t *chunk = bits + (first + i) * n;
            scan_start(&lanes[i], &scan, chunk);
#ifdef WIDE
            if (wide)
                scan_wide(&lanes[i], &scan, chunk, n);
            else
#endif
                scan_plain(&lanes[i], &scan, chunk, K, n);
        }
        replay(lanes, used);
        for (size_t i = 0; i < used; i++)
            for (size_t j = 0; j < K; j++)
                indices[(first + i) * K + j] = (uint32_t)lanes[i].heap[j];
    }
    (void)wide;
}

/* --- Partition selection: small chunks -------------------------------------------------------------------------- */

INLINE int before(item a, item b) { return magnitude(a) > magnitude(b); }
INLINE void swap(item *a, item *b) {
    item kept = *a;
    *a = *b;
    *b = kept;
}

/* The median of the second, the middle and the last item goes to the front and is the pivot. */
static void median_to_front(item *items, size_t n) {
    item *a = items + 1, *b = items + n / 2, *c = items + n - 1;
    if (before(*a, *b))
        swap(items, before(*b, *c) ? b : before(*a, *c) ? c : a);
    else
        swap(items, before(*a, *c) ? a : before(*b, *c) ? c : b);
}

/* Where the second part begins. The pivot itself stops both runs, so neither leaves the range. */
static size_t partition(item *items, size_t n) {
    item pivot = items[0];
    size_t low = 1, high = n;
    for (;;) {
        while (before(items[low], pivot))
            low++;
        do
            high--;
        while (before(pivot, items[high]));
        if (low >= high)
            return low;
        swap(&items[low++], &items[high]);
    }
}

static void sift(item *heap, size_t node, size_t n, item moving) {
    for (size_t child; (child = 2 * node + 1) < n; node = child) {
        if (child + 1 < n && !before(heap[child + 1], heap[child]))
            child++;
        if (before(heap[child], moving))
            break;
        heap[node] = heap[child];
    }
    heap[node] = moving;
}

/* The first `keep` places get the largest; what partition selection falls back on when its pivots are bad. */
static void heap_keep(item *items, size_t keep, size_t n) {
    for (size_t top = keep / 2; top-- > 0;)
        sift(items, top, keep, items[top]);
    for (size_t i = keep; i < n; i++)
        if (before(items[i], items[0])) {
            item fresh = items[i];
            items[i] = items[0];
            sift(items, 0, keep, fresh);
        }
}

static void insertion_sort(item *items, size_t n) {
    for (size_t i = 1; i < n; i++) {
        item moving = items[i];
        size_t at = i;
        for (; at > 0 && before(moving, items[at - 1]); at--)
            items[at] = items[at - 1];
        items[at] = moving;
    }
}

/* The k largest come to the front. */
static void partition_select(item *items, size_t n, size_t k) {
    size_t first = 0, last = n, nth = k - 1;
    int depth = 2 * (63 - __builtin_clzll(n));
    while (last - first > 3) {
        if (depth-- == 0) {
            heap_keep(items + first, nth + 1 - first, last - first);
            return;
        }
        median_to_front(items + first, last - first);
        size_t cut = first + partition(items + first, last - first);
        if (cut <= nth)
            first = cut;
        else
            last = cut;
    }
    insertion_sort(items + first, last - first);
}

/* Indices of the k largest magnitudes of each chunk of n values, in no particular order. */
EXPORT void toploc_select(const uint16_t *bits, size_t chunks, size_t n, size_t k, uint32_t *indices, int wide) {
    if (k == K && n >= SMALL) {
        select_large(bits, chunks, n, indices, wide);
        return;
    }
    item items[SMALL];
    for (size_t c = 0; c < chunks; c++) {
        for (size_t i = 0; i < n; i++)
            items[i] = make_item(bits[c * n + i], i);
        if (k < n)
            partition_select(items, n, k);
        for (size_t j = 0; j < k; j++)
            indices[c * k + j] = (uint32_t)items[j];
    }
}

/* --- The field ---------------------------------------------------------------------------------------------------- */

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
    uint8_t seen[PRIME] = {0};
    for (uint32_t modulus = PRIME; modulus >= MODULUS_MIN; modulus--) {
        size_t apart = 0;
        for (; apart < k; apart++) {
            x[apart] = indices[apart] % modulus;
            if (seen[x[apart]])
                break;
            seen[x[apart]] = 1;
        }
        if (apart == k)
            return modulus;
        for (size_t i = 0; i < apart; i++)
            seen[x[i]] = 0;
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
        uint8_t seen[PRIME] = {0};
        size_t found = 0;
        repeats[c] = 0;
        for (size_t i = 0; i < k; i++)
            repeats[c] += seen[taken[c * k + i]]++ > 0;
        for (size_t i = 0; found < count; i++) {
            uint32_t point = i < drawn ? draws[c * drawn + i] : (uint32_t)(i - drawn);
            if (seen[point]++ == 0)
                points[c * count + found++] = point;
        }
    }
}

/* Whether this machine has the wide path. */
EXPORT int toploc_wide(void) {
#ifdef WIDE
    return __builtin_cpu_supports("avx2") != 0;
#else
    return 0;
#endif
}
