// control.cpp - rules by which warps go their way: branches, ends, barriers, shuffles, fences, and
// what a thread knows of its place.
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

void lk_ptx_check_waited(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t early = mask & ~w->waited;
    if (!early || !lk_host_is_dependent(w->block->config)) return;
    lk_ptx_die(w, i, (uint32_t)__builtin_ctz(early),
               "does this before it has waited for the kernel ahead");
}

namespace {

// --- branches ------------------------------------------------------------------------------------

void push(lk_ptx_warp *w, const lk_ptx_instruction *i, const lk_ptx_path &path) {
    if (w->depth == LK_PTX_DEPTH) lk_ptx_die(w, i, 0, "parts its lanes too often");
    w->paths[w->depth++] = path;
}

// Lanes that part go one after the other to where they meet again, then on together.
void branch(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t rest = w->mask & ~mask;
    if (mask == 0) return;
    if (rest == 0) {
        w->at = i->target;
        return;
    }
    lk_ptx_counted(w, i)->diverged++;
    if (i->join != w->join) push(w, i, {i->join, w->join, w->mask});
    const bool jumps_first = *w->block->seed && (lk_host_draw(w->block->seed) & 1);
    const lk_ptx_path there = {i->target, i->join, mask}, here = {w->at, i->join, rest};
    push(w, i, jumps_first ? here : there);
    const lk_ptx_path &first = jumps_first ? there : here;
    w->at = first.at;
    w->join = first.join;
    w->mask = first.mask;
}

void branch_together(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    if (mask != 0 && mask != w->mask) lk_ptx_die(w, i, 0, "parts lanes, but is said not to");
    branch(w, i, mask);
}

void end(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    lk_ptx_check_waited(w, i, mask);
    w->ended |= mask;
    w->mask &= ~mask;
    if (w->mask == 0) w->at = w->join;
}

// --- barriers ------------------------------------------------------------------------------------

void barrier(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *number = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[0]));
    if (number[__builtin_ctz(mask)] != 0) lk_ptx_die(w, i, 0, "a barrier other than number 0");
    if (mask != w->born) {
        lk_ptx_die(w, i, (uint32_t)__builtin_ctz(mask),
                   "lanes %08x of %08x come to a barrier of the block, the others not", mask,
                   w->born);
    }
    w->state = LK_PTX_WAITS;
    w->block->waiting++;
}

void left_out(lk_ptx_warp *, const lk_ptx_instruction *, uint32_t) {}

// The kernel ahead has ended, whether the launch is a dependent one or not: here one comes after
// the other. What is asked is that nobody touches memory before (memory.cpp), or ends.
void wait_for_ahead(lk_ptx_warp *w, const lk_ptx_instruction *, uint32_t mask) {
    w->waited |= mask;
}
void let_next_come(lk_ptx_warp *, const lk_ptx_instruction *, uint32_t) {}

// Others see what was written before: here everybody does, at once.
void fence(lk_ptx_warp *, const lk_ptx_instruction *, uint32_t) {}

// --- shuffles ------------------------------------------------------------------------------------

enum how { IDX, UP, DOWN, BFLY };

// Of the PTX manual: c holds the last lane (or, of UP, the first) and, eight bits higher, the bits
// of a lane's number that stay. o: value, predicate, a, b, c, mask.
template <how HOW>
void shuffle(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const uint32_t *a = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[2]));
    const uint32_t *b = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[3]));
    const uint32_t *c = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[4]));
    const uint32_t *named = static_cast<const uint32_t *>(lk_ptx_at(w, i->o[5]));
    uint32_t value[32], from[32], inside = 0;
    LK_PTX_LANES(lane, mask) {
        const uint32_t by = b[lane] & 31, last = c[lane] & 31, stays = c[lane] >> 8 & 31;
        const uint32_t most = (lane & stays) | (last & ~stays), least = lane & stays;
        uint32_t other = HOW == UP     ? lane - by
                         : HOW == DOWN ? lane + by
                         : HOW == BFLY ? lane ^ by
                                       : least | (by & ~stays);
        const bool is_inside = HOW == UP ? (int32_t)other >= (int32_t)most : other <= most;
        if (!is_inside) other = lane;
        if (named[lane] != mask) {
            lk_ptx_die(w, i, lane, "shuffles among lanes %08x, but %08x are here", named[lane],
                       mask);
        }
        if (!(mask >> other & 1)) lk_ptx_die(w, i, lane, "shuffles from lane %u: not here", other);
        from[lane] = other;
        inside |= (uint32_t)is_inside << lane;
    }
    LK_PTX_LANES(lane, mask) value[lane] = a[from[lane]];
    uint32_t *to = static_cast<uint32_t *>(lk_ptx_to(w, i->o[0]));
    LK_PTX_LANES(lane, mask) to[lane] = value[lane];
    lk_ptx_set_predicate(w, i->o[1], mask, inside);
}

// --- places --------------------------------------------------------------------------------------

enum place { TID, NTID, CTAID, NCTAID, LANE };

template <place PLACE, int AXIS>
void find_place(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask) {
    const lk_ptx_block *b = w->block;
    const dim3 &threads = b->config->blockDim, &blocks = b->config->gridDim;
    const auto axis = [](uint32_t x, uint32_t y, uint32_t z) {
        return AXIS == 0 ? x : AXIS == 1 ? y : z;
    };
    uint32_t *to = static_cast<uint32_t *>(lk_ptx_to(w, i->o[0]));
    LK_PTX_LANES(lane, mask) {
        const uint32_t t = w->first_thread + lane;
        to[lane] = PLACE == TID
                       ? axis(t % threads.x, t / threads.x % threads.y, t / threads.x / threads.y)
                   : PLACE == NTID   ? axis(threads.x, threads.y, threads.z)
                   : PLACE == CTAID  ? axis(b->index.x, b->index.y, b->index.z)
                   : PLACE == NCTAID ? axis(blocks.x, blocks.y, blocks.z)
                                     : lane;
    }
}

#define LK_PLACES(word, PLACE)                                            \
    {"mov.u32 " word ".x", "W", find_place<PLACE, 0>, LK_PTX_MOVE},       \
        {"mov.u32 " word ".y", "W", find_place<PLACE, 1>, LK_PTX_MOVE}, { \
        "mov.u32 " word ".z", "W", find_place<PLACE, 2>, LK_PTX_MOVE      \
    }

const lk_ptx_rule RULES[] = {
    {"bra", "T", branch, LK_PTX_BRANCH},
    {"bra.uni", "T", branch_together, LK_PTX_BRANCH},
    {"ret", "", end, LK_PTX_BRANCH},
    {"bar.sync", "w", barrier, LK_PTX_BARRIER},
    {"griddepcontrol.wait", "", wait_for_ahead, LK_PTX_FENCE},
    {"griddepcontrol.launch_dependents", "", let_next_come, LK_PTX_FENCE},
    {"membar.sys", "", fence, LK_PTX_FENCE},
    {"membar.gl", "", fence, LK_PTX_FENCE},
    {"shfl.sync.idx.b32", "Swwww", shuffle<IDX>, LK_PTX_SHUFFLE},
    {"shfl.sync.up.b32", "Swwww", shuffle<UP>, LK_PTX_SHUFFLE},
    {"shfl.sync.down.b32", "Swwww", shuffle<DOWN>, LK_PTX_SHUFFLE},
    {"shfl.sync.bfly.b32", "Swwww", shuffle<BFLY>, LK_PTX_SHUFFLE},
    LK_PLACES("%tid", TID),
    LK_PLACES("%ntid", NTID),
    LK_PLACES("%ctaid", CTAID),
    LK_PLACES("%nctaid", NCTAID),
    {"mov.u32 %laneid", "W", find_place<LANE, 0>, LK_PTX_MOVE},
};

}  // namespace

lk_ptx_rules lk_ptx_control_rules(void) { return {RULES, sizeof RULES / sizeof RULES[0]}; }

void lk_ptx_leave_out(lk_ptx_kernel *k) {
    const char *wanted = getenv("LOCKSTEP_PTX_LEAVE_OUT");
    const char *colon = wanted ? strrchr(wanted, ':') : NULL;
    if (!colon || std::string(wanted, colon) != k->name) return;
    for (lk_ptx_instruction &i : k->code) {
        const bool waits = i.kind == LK_PTX_BARRIER || i.kind == LK_PTX_GROUP;
        if (waits && i.line == strtoul(colon + 1, NULL, 10)) i.run = left_out;
    }
}
