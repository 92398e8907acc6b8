/* Which values a TOPLOC proof covers: the k largest magnitudes of each chunk.
 *
 * No state and no allocation; Python owns every buffer and has checked every length and range. toploc_numpy.py holds
 * the same computation in numpy. `wide` is what toploc_wide() said, or 0 for the path that every machine has.
 *
 * Which of several equal magnitudes is kept decides the bytes of a proof. It follows from how torch.topk works on a
 * CPU: the C++ library's partial_sort for k * 64 <= n, else its nth_element. Both are rebuilt here step by step. So a
 * faster step is allowed only if it makes the same moves among equal magnitudes; each one below says why it does.
 * toploc_numpy.py names the functions of libstdc++ and says what depends on it. */

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
    K = 128,        /* values per proof, and the size of the heap */
    HEAP = 2 * K,   /* the heap and one level of sentinels below its leaves */
    LANES = 4,      /* heaps replayed side by side, to hide the latency of each */
    PENDING = 4096, /* replacements noted before a heap must be replayed */
    SMALL = 64 * K, /* from here on torch sorts with a heap */
    BLOCK = 64,     /* items compared with a pivot before any is moved */
};

/* A value on its way through a selection: magnitude, index, and the sign in the lowest bit. Indices grow as the scan goes
 * on, so a plain comparison of two items ranks the newer of two equal magnitudes as the larger. No two items have the
 * same index, so the sign never decides. Only replace_roots compares whole items; the rest compares magnitudes. */
typedef uint64_t item;
#define SENTINEL UINT64_MAX

INLINE item make_item(uint16_t bits, size_t index) {
    return (uint64_t)(bits & 0x7fff) << 33 | (uint64_t)index << 1 | bits >> 15;
}
INLINE uint32_t magnitude(item it) { return (uint32_t)(it >> 33); }
INLINE item larger(item a, item b) { return a > b ? a : b; }

/* Where the chunks are. */
struct source {
    const uint16_t *bits;
    size_t stride;
    const int64_t *rows;
    const size_t *sizes;
};

INLINE const uint16_t *get_chunk(struct source in, size_t chunk) { return in.bits + (size_t)in.rows[chunk] * in.stride; }

/* The selected values of all chunks, one row of k per chunk. */
struct selection {
    uint32_t *indices;
    uint16_t *values;
};

static void emit(struct selection out, size_t at, const item *items, size_t k) {
    for (size_t i = 0; i < k; i++) {
        out.indices[at + i] = (uint32_t)(items[i] >> 1);
        out.values[at + i] = (uint16_t)(magnitude(items[i]) | (items[i] & 1) << 15);
    }
}

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
 * so each place on the path takes what is below it if that is older and no larger, else the new item or what it held.
 * An equal child moves up, as in __adjust_heap: it is older, so a plain comparison finds it smaller. Always seven
 * levels and no branch; below a leaf the path runs through sentinels, which are larger than any item and stay. */
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
 * count alone, note which items replace the root, and leave the heap for later. The replay makes the same replacements
 * in the same order, so it ends with the same heap. Invariant: the counts add up to K, hence fit a byte, and `root` is
 * the smallest magnitude with a count. It never falls, because only larger items replace it. */
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
        /* The root may rise within these 64 values but not fall: this finds too many, and note() compares again. The
         * signed comparison is right because magnitudes are below 2^15. */
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

/* At most LANES chunks from `first` on. */
static void select_large(struct source in, size_t first, size_t used, struct selection out, int wide) {
    struct lane lanes[LANES];
    struct scan scan;
    for (size_t i = 0; i < used; i++) {
        const uint16_t *chunk = get_chunk(in, first + i);
        scan_start(&lanes[i], &scan, chunk);
#ifdef WIDE
        if (wide)
            scan_wide(&lanes[i], &scan, chunk, in.sizes[first + i]);
        else
#endif
            scan_plain(&lanes[i], &scan, chunk, K, in.sizes[first + i]);
    }
    replay(lanes, used);
    for (size_t i = 0; i < used; i++)
        emit(out, (first + i) * K, lanes[i].heap, K);
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

/* Items that stand on the wrong side of the pivot, of a block that begins at `start` or ends at `end`: how far off each
 * is. Which they are cannot be predicted, so nothing here branches on it. An item equal to the pivot is wrong on both
 * sides, because both runs of __unguarded_partition stop at it. */
INLINE size_t find_left(const item *start, uint32_t pivot, uint8_t *found) {
    size_t count = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        found[count] = (uint8_t)i;
        count += magnitude(start[i]) <= pivot;
    }
    return count;
}
INLINE size_t find_right(const item *end, uint32_t pivot, uint8_t *found) {
    size_t count = 0;
    for (size_t i = 1; i <= BLOCK; i++) {
        found[count] = (uint8_t)i;
        count += magnitude(*(end - i)) >= pivot;
    }
    return count;
}

/* Where the second part begins. The first wrong item from the left changes places with the first from the right, and so
 * on until they meet: block by block (BlockQuicksort, arXiv:1604.06697), and the rest one by one. The pairs are those
 * of __unguarded_partition: whether an item is wrong depends on the item and the pivot alone, and the two blocks never
 * overlap, so listing the wrong ones first changes neither the pairs nor their order. The pivot itself stops both runs,
 * so neither leaves the range. */
static size_t partition(item *items, size_t n) {
    item pivot = items[0];
    size_t low = 1, high = n, lefts = 0, rights = 0, l = 0, r = 0;
    uint8_t left[BLOCK + 1], right[BLOCK + 1];
    while (high - low >= 2 * BLOCK) {
        if (l == lefts)
            lefts = find_left(items + low, magnitude(pivot), left), l = 0;
        if (r == rights)
            rights = find_right(items + high, magnitude(pivot), right), r = 0;
        for (; l < lefts && r < rights; l++, r++)
            swap(&items[low + left[l]], &items[high - right[r]]);
        low += l == lefts ? BLOCK : 0;
        high -= r == rights ? BLOCK : 0;
    }
    low += l < lefts ? left[l] : 0;
    high -= r < rights ? (size_t)right[r] - 1 : 0;
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

static void select_small(struct source in, size_t c, size_t k, struct selection out) {
    item items[SMALL];
    const uint16_t *chunk = get_chunk(in, c);
    size_t n = in.sizes[c];
    for (size_t i = 0; i < n; i++)
        items[i] = make_item(chunk[i], i);
    if (k < n)
        partition_select(items, n, k);
    emit(out, c * k, items, k);
}

/* Indices and patterns of the k largest magnitudes of each chunk, in no particular order. The chunks are the beginnings of
 * the named rows, which are `stride` values apart; each has its own size, of at least k. */
EXPORT void toploc_select(const uint16_t *bits, size_t stride, const int64_t *rows, const size_t *sizes, size_t chunks,
                          size_t k, uint32_t *indices, uint16_t *values, int wide) {
    struct source in = {bits, stride, rows, sizes};
    struct selection out = {indices, values};
    for (size_t c = 0; c < chunks;) {
        size_t large = 0;
        while (k == K && large < LANES && c + large < chunks && sizes[c + large] >= SMALL)
            large++;
        if (large)
            select_large(in, c, large, out, wide);
        else
            select_small(in, c, k, out);
        c += large ? large : 1;
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
