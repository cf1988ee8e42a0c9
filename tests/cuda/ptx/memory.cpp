// memory.cpp - rules for loads, stores, atomics and copies, and what is looked at with each: does
// an address lie where the thread may go, is it aligned, how many 32-byte sectors and passes over
// the banks does a warp ask for, and does anybody else touch the word without a barrier between.
//
// A global address must lie in an allocation of the running device or of the host's that it sees.
// An address of shared, local or parameter memory is an offset. Generic addresses are global ones,
// but for a window in which the thread's local memory lies.
#include <string.h>

#include "../host/inside.h"
#include "ptx.h"

namespace {

enum space { GLOBAL, SHARED, LOCAL, PARAM, GENERIC };
enum { PATTERNS = 8 };  // that are kept of an instruction, by where they begin
const uint64_t LOCAL_WINDOW = (uint64_t)1 << 60;

// --- what a warp asks for ------------------------------------------------------------------------

// The addresses of a warp, as distances from the first lane's, and what follows from them. The last
// ones are kept: an instruction in a loop has few.
struct pattern {
    uint32_t mask, low;  // lanes; of the first one's address, seven bits
    uint64_t apart[32];
    uint32_t distinct, lane[32];  // one lane of each address,
    uint32_t several;             // and which of them others share
    uint32_t sectors, bytes, passes, optimum;
};

struct access {
    uint32_t bytes;  // of a lane
    uint64_t at[32];
    uint8_t *to[32];
};

void find_distinct(pattern *p) {
    p->distinct = p->several = 0;
    LK_PTX_LANES(lane, p->mask) {
        uint32_t n = p->distinct;
        while (n-- > 0 && p->apart[p->lane[n]] != p->apart[lane]) continue;
        if (n != UINT32_MAX)
            p->several |= 1u << p->lane[n];
        else
            p->lane[p->distinct++] = lane;
    }
}

void find_sectors(pattern *p, uint32_t size) {
    uint64_t sector[64];
    uint32_t wanted[64], count = 0;
    p->bytes = 0;
    for (uint32_t n = 0; n < p->distinct; n++) {
        for (uint32_t b = 0; b < size; b++) {
            const uint64_t at = p->low + p->apart[p->lane[n]] + b + ((uint64_t)1 << 62);
            uint32_t s = count;
            while (s-- > 0 && sector[s] != at / 32) continue;
            if (s == UINT32_MAX) s = count++, sector[s] = at / 32, wanted[s] = 0;
            wanted[s] |= 1u << at % 32;
        }
    }
    for (uint32_t s = 0; s < count; s++) p->bytes += (uint32_t)__builtin_popcount(wanted[s]);
    p->sectors = count;
}

// 32 lanes of 4 bytes go at once, 16 of 8, 8 of 16; each bank gives one word a pass.
void find_passes(pattern *p, uint32_t size) {
    const uint32_t group = size <= 4 ? 32 : 128 / size;
    p->passes = p->optimum = 0;
    for (uint32_t first = 0; first < 32; first += group) {
        uint64_t words[32][32];
        uint32_t count[32] = {0}, most = 0;
        for (uint32_t lane = first; lane < first + group; lane++) {
            for (uint32_t b = 0; (p->mask >> lane & 1) && b < size; b += 4) {
                const uint64_t word = (p->low + p->apart[lane] + b + ((uint64_t)1 << 62)) / 4;
                uint64_t *in_bank = words[word % 32];
                uint32_t n = count[word % 32];
                while (n-- > 0 && in_bank[n] != word) continue;
                if (n == UINT32_MAX) in_bank[count[word % 32]++] = word;
                if (count[word % 32] > most) most = count[word % 32];
            }
        }
        p->passes += most;
        p->optimum += most > 0;
    }
}

const pattern *pattern_of(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask,
                          const access *a, bool is_shared) {
    lk_ptx_kernel *k = w->block->kernel;
    void *&known = k->patterns[2 * (size_t)(i - k->code.data()) + is_shared];
    const uint64_t base = a->at[__builtin_ctz(mask)];
    if (!known) known = new pattern[PATTERNS]();
    pattern *p = &static_cast<pattern *>(known)[base / 16 % PATTERNS];
    uint64_t apart[32], differs = 0;
    LK_PTX_EACH(lane) apart[lane] = a->at[lane] - base;
    for (uint32_t lane = 0; lane < 32; lane++) differs |= apart[lane] ^ p->apart[lane];
    if (p->mask == mask && p->low == base % 128 && !differs) return p;
    p->mask = mask;
    p->low = base % 128;
    memcpy(p->apart, apart, sizeof apart);
    find_distinct(p);
    if (is_shared)
        find_passes(p, a->bytes);
    else
        find_sectors(p, a->bytes);
    return p;
}

// --- where it may go -----------------------------------------------------------------------------

// The allocation that was used last.
uint64_t known_first, known_end;

void check_global(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, const access *a) {
    uint64_t least = UINT64_MAX, most = 0;
    lk_ptx_check_waited(w, i, mask);
    for (uint32_t lane = 0; lane < 32; lane++) {
        least = a->at[lane] < least ? a->at[lane] : least;
        most = a->at[lane] > most ? a->at[lane] : most;
    }
    if (least >= known_first && most + a->bytes <= known_end) return;
    LK_PTX_LANES(lane, mask) {
        const uint64_t at = a->at[lane];
        if (at >= known_first && at + a->bytes <= known_end) continue;
        const uint8_t *first;
        size_t bytes;
        if (!lk_host_extent(reinterpret_cast<const void *>(at), &first, &bytes)) {
            lk_ptx_die(w, i, lane, "address %#llx is in no memory of this device",
                       (unsigned long long)at);
        }
        known_first = reinterpret_cast<uint64_t>(first);
        known_end = known_first + bytes;
        if (at + a->bytes > known_end) {
            lk_ptx_die(w, i, lane, "%u bytes at %#llx, of an allocation that ends %llu later",
                       a->bytes, (unsigned long long)at, (unsigned long long)(known_end - at));
        }
    }
}

void check_offset(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, const char *what,
                  uint64_t at, uint32_t bytes, uint64_t limit) {
    if (at + bytes <= limit && at + bytes >= at) return;
    lk_ptx_die(w, i, lane, "%u bytes at %llu of %s memory, which has %llu", bytes,
               (unsigned long long)at, what, (unsigned long long)limit);
}

void look_at_shared(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, const access *a,
                    bool writes) {
    const pattern *p = pattern_of(w, i, mask, a, true);
    lk_ptx_count *count = lk_ptx_counted(w, i);
    count->passes += p->passes;
    count->optimum += p->optimum;
    for (uint32_t n = 0; n < p->distinct; n++) {
        const uint32_t lane = p->lane[n], first = (uint32_t)(a->at[lane] / 4);
        const bool several = p->several >> lane & 1;
        check_offset(w, i, lane, "shared", a->at[lane], a->bytes, w->block->shared_bytes);
        for (uint32_t word = first; word < first + a->bytes / 4; word++) {
            lk_ptx_note_shared(w, i, lane, word, writes, several);
        }
    }
}

// What atomics touch is theirs: they are not looked at for races.
void look_at_global(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, const access *a,
                    bool writes) {
    check_global(w, i, mask, a);
    const pattern *p = pattern_of(w, i, mask, a, false);
    lk_ptx_count *count = lk_ptx_counted(w, i);
    count->sectors += p->sectors;
    count->bytes += p->bytes;
    if (i->kind == LK_PTX_ATOMIC) return;
    const uint32_t each = a->bytes / (i->vector ? i->vector : 1u), element = each % 4 ? 1 : 4;
    for (uint32_t n = 0; n < p->distinct; n++) {
        const uint32_t lane = p->lane[n];
        for (uint32_t byte = 0; byte < a->bytes; byte += element) {
            lk_ptx_note_global(w, i, lane, a->at[lane] + byte, element, writes,
                               p->several >> lane & 1);
        }
    }
}

// --- addresses -----------------------------------------------------------------------------------

// Lanes that take no part go with the first one; all are aligned.
void fill_up(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, access *a) {
    const uint64_t first = a->at[__builtin_ctz(mask)];
    uint64_t odd = 0;
    LK_PTX_EACH(lane) a->at[lane] = mask >> lane & 1 ? a->at[lane] : first;
    for (uint32_t lane = 0; lane < 32; lane++) odd |= a->at[lane];
    if ((odd & (a->bytes - 1)) == 0) return;
    LK_PTX_LANES(lane, mask) {
        if (a->at[lane] & (a->bytes - 1)) {
            lk_ptx_die(w, i, lane, "%u bytes at %#llx: not aligned", a->bytes,
                       (unsigned long long)a->at[lane]);
        }
    }
}

void find_addresses(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, uint32_t element,
                    access *a) {
    const void *base = lk_ptx_at(w, i->o[LK_PTX_ADDRESS]);
    const uint64_t *wide = static_cast<const uint64_t *>(base), more = (uint64_t)i->displacement;
    const uint32_t *narrow = static_cast<const uint32_t *>(base);
    a->bytes = element * (i->vector ? i->vector : 1u);
    if (i->is_wide) {
        LK_PTX_EACH(lane) a->at[lane] = wide[lane] + more;
    } else {
        LK_PTX_EACH(lane) a->at[lane] = narrow[lane] + (uint32_t)more;
    }
    fill_up(w, i, mask, a);
}

uint8_t *local_of(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, const access *a,
                  uint64_t at) {
    const uint32_t bytes = w->block->kernel->local_bytes;
    check_offset(w, i, lane, "local", at, a->bytes, bytes);
    return w->local + lane * bytes + at;
}

// Local lanes first; what is left is global.
void find_generic(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, bool writes,
                  access *a) {
    uint32_t global = mask;
    LK_PTX_LANES(lane, mask) {
        if (a->at[lane] < LOCAL_WINDOW) continue;
        global &= ~(1u << lane);
        a->to[lane] = local_of(w, i, lane, a, a->at[lane] - LOCAL_WINDOW);
    }
    if (!global) return;
    const uint64_t first = a->at[__builtin_ctz(global)];
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (!(global >> lane & 1)) a->at[lane] = first;
    }
    look_at_global(w, i, global, a, writes);
    LK_PTX_LANES(lane, global) a->to[lane] = reinterpret_cast<uint8_t *>(a->at[lane]);
}

template <space SPACE>
void find(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, uint32_t element, bool writes,
          access *a) {
    find_addresses(w, i, mask, element, a);
    if (SPACE == GLOBAL) {
        look_at_global(w, i, mask, a, writes);
        LK_PTX_EACH(lane) a->to[lane] = reinterpret_cast<uint8_t *>(a->at[lane]);
    } else if (SPACE == SHARED) {
        look_at_shared(w, i, mask, a, writes);
        LK_PTX_EACH(lane) a->to[lane] = w->block->shared + a->at[lane];
    } else if (SPACE == LOCAL) {
        LK_PTX_LANES(lane, mask) a->to[lane] = local_of(w, i, lane, a, a->at[lane]);
    } else if (SPACE == PARAM) {
        LK_PTX_LANES(lane, mask) {
            check_offset(w, i, lane, "parameter", a->at[lane], a->bytes,
                         w->block->kernel->parameter_bytes);
            a->to[lane] = const_cast<uint8_t *>(w->block->parameters) + a->at[lane];
        }
    } else {
        find_generic(w, i, mask, writes, a);
    }
}

// --- loads, stores, atomics ----------------------------------------------------------------------

template <typename T>
void load_element(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask, const access *a,
                  uint32_t n) {
    void *to = lk_ptx_to(w, i->o[n]);
    uint32_t *narrow = static_cast<uint32_t *>(to);
    uint64_t *wide = static_cast<uint64_t *>(to);
    if (sizeof(T) == 4 && i->width == 4 && mask == UINT32_MAX) {
        for (uint32_t lane = 0; lane < 32; lane++) {
            memcpy(&narrow[lane], a->to[lane] + n * 4, 4);
        }
        return;
    }
    LK_PTX_LANES(lane, mask) {
        T value;
        memcpy(&value, a->to[lane] + n * sizeof value, sizeof value);
        if (i->width == 8)
            wide[lane] = (uint64_t)value;
        else
            narrow[lane] = i->width == 4 ? (uint32_t)value : (uint16_t)value;
    }
}

template <space SPACE, typename T>
void load(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    access a;
    find<SPACE>(w, i, mask, sizeof(T), false, &a);
    for (uint32_t n = 0; n < i->vector; n++) load_element<T>(w, i, mask, &a, n);
}

template <space SPACE, typename T>
void store(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    access a;
    find<SPACE>(w, i, mask, sizeof(T), true, &a);
    for (uint32_t n = 0; n < i->vector; n++) {
        const void *from = lk_ptx_at(w, i->o[n]);
        LK_PTX_LANES(lane, mask) {
            const uint64_t value = sizeof(T) == 8 || i->width == 8
                                       ? static_cast<const uint64_t *>(from)[lane]
                                       : static_cast<const uint32_t *>(from)[lane];
            memcpy(a.to[lane] + n * sizeof(T), &value, sizeof(T));
        }
    }
}

struct add {
    static uint32_t of(uint32_t a, uint32_t b) { return a + b; }
};
struct least {
    static uint32_t of(uint32_t a, uint32_t b) { return a < b ? a : b; }
};

// The lanes one after the other. o: what was there before (of atom), the value.
template <typename F, bool GIVES>
void atomic(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    access a;
    find<GLOBAL>(w, i, mask, sizeof(uint32_t), true, &a);
    const uint32_t *value = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[GIVES]));
    LK_PTX_LANES(lane, mask) {
        uint32_t *at = reinterpret_cast<uint32_t *>(a.to[lane]);
        const uint32_t before = *at, by = value[lane];
        *at = F::of(before, by);
        if (GIVES) static_cast<uint32_t *>(lk_ptx_to(w, i->o[0]))[lane] = before;
    }
}

// --- asynchronous copies -------------------------------------------------------------------------

// Lanes that read equally much look at global memory together.
void look_at_sources(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask,
                     const uint64_t *from, const uint32_t *given, uint32_t bytes) {
    for (uint32_t left = mask; left;) {
        access a;
        uint32_t some = 0;
        LK_PTX_LANES(lane, left) {
            some |= (uint32_t)(given[lane] == given[__builtin_ctz(left)]) << lane;
        }
        a.bytes = bytes;
        memcpy(a.at, from, sizeof a.at);
        fill_up(w, i, some, &a);
        a.bytes = given[__builtin_ctz(some)];
        if (a.bytes) look_at_global(w, i, some, &a, false);
        left &= ~some;
    }
}

// Of `bytes` (o[1]) to [o[ADDRESS]] of shared memory, `given` (o[2]) of them from [o[0]], the
// others zero. Until a wait makes them, words have a pattern of their own. CG: past the first
// cache, which only 16 bytes go.
template <bool CG>
void copy(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint64_t *from = static_cast<const uint64_t *>(lk_ptx_at(w, i->o[0]));
    const uint32_t *given = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[2]));
    const uint32_t first = (uint32_t)__builtin_ctz(mask), poison = 0x7fa1a1a1u;
    const uint32_t bytes = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[1]))[first];
    if (!(bytes == 16 || (!CG && (bytes == 4 || bytes == 8)))) {
        lk_ptx_die(w, i, first, "copies %u bytes", bytes);
    }
    LK_PTX_LANES(lane, mask) {
        if (given[lane] > bytes) lk_ptx_die(w, i, lane, "reads more than it copies");
    }
    access to;
    find_addresses(w, i, mask, bytes, &to);
    look_at_shared(w, i, mask, &to, true);
    look_at_sources(w, i, mask, from, given, bytes);
    LK_PTX_LANES(lane, mask) {
        const uint32_t at = (uint32_t)to.at[lane];
        for (uint32_t n = 0; n < bytes; n += 4) {
            memcpy(w->block->shared + at + n, &poison, sizeof poison);
            lk_ptx_note_copy(w, lane, (at + n) / 4, false);
        }
        w->copies.push_back({lane, at, bytes, given[lane], w->groups[lane], from[lane]});
    }
}

void commit(lk_ptx_warp *w, const lk_ptx_instruction *, uint32_t mask) {
    LK_PTX_LANES(lane, mask) w->groups[lane]++;
}

void make(lk_ptx_warp *w, const lk_ptx_instruction *i, const lk_ptx_copy &c) {
    uint8_t *to = w->block->shared + c.to;
    memset(to, 0, c.bytes);
    if (c.given > 0) memcpy(to, reinterpret_cast<const void *>(c.from), c.given);
    const uint32_t element = c.given % 4 ? 1 : 4;
    for (uint32_t n = 0; n < c.given; n += element) {
        lk_ptx_note_global(w, i, c.lane, c.from + n, element, false, false);
    }
    for (uint32_t n = 0; n < c.bytes; n += 4) lk_ptx_note_copy(w, c.lane, (c.to + n) / 4, true);
}

// For the groups of each lane but the latest so many.
void wait(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *latest = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[0]));
    size_t kept = 0;
    for (const lk_ptx_copy &c : w->copies) {
        const bool waits = mask >> c.lane & 1;
        if (waits && (uint64_t)c.group + latest[c.lane] < w->groups[c.lane])
            make(w, i, c);
        else
            w->copies[kept++] = c;
    }
    w->copies.resize(kept);
}

// Local addresses to generic ones and back; global ones are generic.
template <int SIGN>
void move_window(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint64_t *from = static_cast<const uint64_t *>(lk_ptx_at(w, i->o[1]));
    uint64_t *to = static_cast<uint64_t *>(lk_ptx_to(w, i->o[0]));
    LK_PTX_LANES(lane, mask) to[lane] = from[lane] + (uint64_t)SIGN * LOCAL_WINDOW;
}

#define LK_WIDTHS(X, a, b, c)                                                                      \
    X(a, b, c, "u8", uint8_t, "u"), X(a, b, c, "s8", int8_t, "u"), X(a, b, c, "b8", uint8_t, "u"), \
        X(a, b, c, "u16", uint16_t, "u"), X(a, b, c, "s16", int16_t, "u"),                         \
        X(a, b, c, "b16", uint16_t, "u"), X(a, b, c, "u32", uint32_t, "u"),                        \
        X(a, b, c, "s32", int32_t, "u"), X(a, b, c, "b32", uint32_t, "u"),                         \
        X(a, b, c, "f32", uint32_t, "u"), X(a, b, c, "u64", uint64_t, "x"),                        \
        X(a, b, c, "s64", int64_t, "x"), X(a, b, c, "b64", uint64_t, "x")
#define LK_WORDS(X, a, b, c)                                                \
    X(a, b, c, "u32", uint32_t, "u"), X(a, b, c, "b32", uint32_t, "u"),     \
        X(a, b, c, "f32", uint32_t, "u"), X(a, b, c, "u64", uint64_t, "x"), \
        X(a, b, c, "b64", uint64_t, "x")
#define LK_LOAD(word, SPACE, kind, name, T, letter) \
    { word "." name, "VA", load<SPACE, T>, kind }
#define LK_STORE(word, SPACE, kind, name, T, letter) \
    { word "." name, "A" letter, store<SPACE, T>, kind }
#define LK_VECTORS(X, L, word, SPACE, kind) \
    L(X, word, SPACE, kind), L(X, word ".v2", SPACE, kind), L(X, word ".v4", SPACE, kind)

const lk_ptx_rule RULES[] = {
    LK_VECTORS(LK_LOAD, LK_WIDTHS, "ld.global", GLOBAL, LK_PTX_LOAD_GLOBAL),
    LK_VECTORS(LK_LOAD, LK_WIDTHS, "ld.global.nc", GLOBAL, LK_PTX_LOAD_GLOBAL),
    LK_VECTORS(LK_LOAD, LK_WORDS, "ld.shared", SHARED, LK_PTX_LOAD_SHARED),
    LK_VECTORS(LK_LOAD, LK_WIDTHS, "ld.local", LOCAL, LK_PTX_LOAD_LOCAL),
    LK_VECTORS(LK_LOAD, LK_WIDTHS, "ld.param", PARAM, LK_PTX_LOAD_PARAM),
    LK_VECTORS(LK_LOAD, LK_WIDTHS, "ld", GENERIC, LK_PTX_LOAD_GENERIC),
    LK_VECTORS(LK_STORE, LK_WIDTHS, "st.global", GLOBAL, LK_PTX_STORE_GLOBAL),
    LK_VECTORS(LK_STORE, LK_WORDS, "st.shared", SHARED, LK_PTX_STORE_SHARED),
    LK_VECTORS(LK_STORE, LK_WIDTHS, "st.local", LOCAL, LK_PTX_STORE_LOCAL),
    LK_VECTORS(LK_STORE, LK_WIDTHS, "st", GENERIC, LK_PTX_STORE_GENERIC),
    {"atom.global.add.u32", "WAw", atomic<add, true>, LK_PTX_ATOMIC},
    {"atom.global.min.u32", "WAw", atomic<least, true>, LK_PTX_ATOMIC},
    {"red.global.add.u32", "Aw", atomic<add, false>, LK_PTX_ATOMIC},
    {"red.global.min.u32", "Aw", atomic<least, false>, LK_PTX_ATOMIC},
    {"cp.async.ca.shared.global", "AGww", copy<false>, LK_PTX_COPY},
    {"cp.async.cg.shared.global", "AGww", copy<true>, LK_PTX_COPY},
    {"cp.async.commit_group", "", commit, LK_PTX_GROUP},
    {"cp.async.wait_group", "w", wait, LK_PTX_GROUP},
    {"cvta.to.global.u64", "Ll", move_window<0>, LK_PTX_MOVE},
    {"cvta.to.local.u64", "Ll", move_window<-1>, LK_PTX_MOVE},
    {"cvta.local.u64", "Ll", move_window<1>, LK_PTX_MOVE},
};

}  // namespace

lk_ptx_rules lk_ptx_memory_rules(void) { return {RULES, sizeof RULES / sizeof RULES[0]}; }

void lk_ptx_forget_memory(void) { known_first = known_end = 0; }
