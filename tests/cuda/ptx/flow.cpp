// flow.cpp - the shape of a kernel: basic blocks, immediate post-dominators, live registers.
//
// Slots: PTX has thousands of registers, each written about once; of these only as many are kept as
// live at a time, so that a warp stays in the caches. A register lives from its first to its last
// place in the order of the code, loops included. Lanes that wait on another side of a branch keep
// theirs: writes are of a mask, and what such a lane still needs is live where it goes on.
#include <algorithm>
#include <functional>
#include <queue>

#include "ptx.h"

namespace {

struct span {
    uint32_t first, end;  // instructions
    std::vector<uint32_t> next;
};

bool jumps(const lk_ptx_instruction &i) { return i.target != LK_PTX_NONE; }
bool leaves(const lk_ptx_instruction &i) { return i.is_end; }

// Basic blocks, and what may come next. Nobody waits for threads that end: only the last end
// (nvcc writes one) leads on, to where all are over. `of` says which one an instruction is in. The
// end of the code is one more.
std::vector<span> spans_of(const lk_ptx_kernel *k, std::vector<uint32_t> *of) {
    const uint32_t count = static_cast<uint32_t>(k->code.size());
    uint32_t last_end = 0;
    std::vector<bool> starts(count + 1, false);
    starts[0] = starts[count] = true;
    for (uint32_t n = 0; n < count; n++) {
        if (leaves(k->code[n])) last_end = n;
        if (jumps(k->code[n])) starts[k->code[n].target] = true;
        if (jumps(k->code[n]) || leaves(k->code[n])) starts[n + 1] = true;
    }
    std::vector<span> spans;
    of->assign(count + 1, 0);
    for (uint32_t n = 0; n <= count; n++) {
        if (starts[n]) spans.push_back({n, n, {}});
        (*of)[n] = static_cast<uint32_t>(spans.size()) - 1;
        spans.back().end = n + 1;
    }
    const uint32_t last = (*of)[count];
    for (span &s : spans) {
        if (s.first == count) continue;
        const uint32_t n = s.end - 1;
        const lk_ptx_instruction &i = k->code[n];
        if (jumps(i)) s.next.push_back((*of)[i.target]);
        if (n == last_end) s.next.push_back(last);
        if (i.guard != LK_PTX_NONE || (!jumps(i) && !leaves(i))) s.next.push_back((*of)[n + 1]);
    }
    return spans;
}

// Spans from the end backwards, each after what follows it where there is no loop.
void visit(const std::vector<std::vector<uint32_t>> &before, uint32_t from,
           std::vector<uint32_t> *order) {
    std::vector<bool> seen(before.size(), false);
    std::vector<std::pair<uint32_t, size_t>> open = {{from, 0}};
    seen[from] = true;
    while (!open.empty()) {
        const uint32_t s = open.back().first;
        if (open.back().second == before[s].size()) {
            order->push_back(s);
            open.pop_back();
            continue;
        }
        const uint32_t next = before[s][open.back().second++];
        if (seen[next]) continue;
        seen[next] = true;
        open.push_back({next, 0});
    }
    std::reverse(order->begin(), order->end());
}

// Of each span, the nearest one that all ways to the end go through.
std::vector<uint32_t> post_dominators(const std::vector<span> &spans) {
    const uint32_t last = static_cast<uint32_t>(spans.size()) - 1;
    std::vector<std::vector<uint32_t>> before(spans.size());
    for (uint32_t s = 0; s < spans.size(); s++) {
        for (uint32_t next : spans[s].next) before[next].push_back(s);
    }
    std::vector<uint32_t> order, rank(spans.size(), LK_PTX_NONE);
    visit(before, last, &order);
    for (uint32_t n = 0; n < order.size(); n++) rank[order[n]] = n;
    std::vector<uint32_t> found(spans.size(), LK_PTX_NONE);
    found[last] = last;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s : order) {
            uint32_t nearest = LK_PTX_NONE;
            for (uint32_t next : spans[s].next) {
                if (found[next] == LK_PTX_NONE) continue;
                uint32_t a = next, b = nearest == LK_PTX_NONE ? next : nearest;
                while (a != b) {
                    while (rank[a] > rank[b]) a = found[a];
                    while (rank[b] > rank[a]) b = found[b];
                }
                nearest = a;
            }
            if (s == last || nearest == found[s]) continue;
            found[s] = nearest;
            changed = true;
        }
    }
    return found;
}

typedef std::vector<uint64_t> bits;

bool has(const bits &b, uint32_t n) { return b[n / 64] >> n % 64 & 1; }
void put(bits *b, uint32_t n) { (*b)[n / 64] |= (uint64_t)1 << n % 64; }

// Of each span, what lives at its start.
std::vector<bits> live_at_start(const lk_ptx_kernel *k, const std::vector<span> &spans,
                                const std::vector<uint32_t> &of, size_t registers,
                                const std::vector<lk_ptx_use> &uses) {
    std::vector<bits> wanted(spans.size(), bits((registers + 63) / 64)), made = wanted;
    for (const lk_ptx_use &u : uses) {  // in the order of the code, reads before writes
        const uint32_t s = of[u.instruction];
        // What is written under a guard may stay what it was.
        const bool keeps = u.written && k->code[u.instruction].guard != LK_PTX_NONE;
        if ((!u.written || keeps) && !has(made[s], u.reg)) put(&wanted[s], u.reg);
        if (u.written && !keeps) put(&made[s], u.reg);
    }
    std::vector<bits> live = wanted;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = static_cast<uint32_t>(spans.size()); s-- > 0;) {
            for (uint32_t next : spans[s].next) {
                for (size_t n = 0; n < live[s].size(); n++) {
                    const uint64_t more = live[next][n] & ~made[s][n] & ~live[s][n];
                    changed |= more != 0;
                    live[s][n] |= more;
                }
            }
        }
    }
    return live;
}

struct life {
    uint32_t reg, first, last;  // an instruction reads at 2 n, and writes at 2 n + 1
};

std::vector<life> lives_of(const lk_ptx_kernel *k, size_t registers,
                           const std::vector<lk_ptx_use> &uses) {
    std::vector<uint32_t> of;
    const std::vector<span> spans = spans_of(k, &of);
    const std::vector<bits> live = live_at_start(k, spans, of, registers, uses);
    std::vector<life> lives(registers);
    for (uint32_t r = 0; r < registers; r++) lives[r] = {r, UINT32_MAX, 0};
    const auto reach = [&](uint32_t r, uint32_t at) {
        lives[r].first = std::min(lives[r].first, at);
        lives[r].last = std::max(lives[r].last, at);
    };
    for (const lk_ptx_use &u : uses) reach(u.reg, 2 * u.instruction + u.written);
    for (uint32_t s = 0; s < spans.size(); s++) {
        for (uint32_t r = 0; r < registers; r++) {
            if (has(live[s], r)) reach(r, 2 * spans[s].first);
            for (uint32_t next : spans[s].next) {
                if (has(live[next], r)) reach(r, 2 * spans[s].end - 1);
            }
        }
    }
    lives.erase(std::remove_if(lives.begin(), lives.end(),
                               [](const life &l) { return l.first == UINT32_MAX; }),
                lives.end());
    std::sort(lives.begin(), lives.end(),
              [](const life &a, const life &b) { return a.first < b.first; });
    return lives;
}

}  // namespace

void lk_ptx_find_joins(lk_ptx_kernel *k) {
    std::vector<uint32_t> of;
    const std::vector<span> spans = spans_of(k, &of);
    const std::vector<uint32_t> found = post_dominators(spans);
    for (uint32_t n = 0; n < k->code.size(); n++) {
        if (!jumps(k->code[n])) continue;
        const uint32_t s = found[of[n]];
        k->code[n].join = s == LK_PTX_NONE ? spans.back().first : spans[s].first;  // all end
    }
}

void lk_ptx_allot(lk_ptx_kernel *k, const std::vector<uint8_t> &widths,
                  const std::vector<lk_ptx_use> &given) {
    std::vector<lk_ptx_use> uses = given;
    std::stable_sort(uses.begin(), uses.end(), [](const lk_ptx_use &a, const lk_ptx_use &b) {
        return a.instruction != b.instruction ? a.instruction < b.instruction
                                              : a.written < b.written;
    });
    typedef std::pair<uint32_t, uint32_t> ending;  // when, which slot
    std::priority_queue<ending, std::vector<ending>, std::greater<ending>> busy[3];
    std::vector<uint32_t> free[3], slots(widths.size());
    uint32_t count[3] = {0, 0, 0};
    const auto class_of = [&](uint32_t reg) { return widths[reg] == 8 ? 2 : widths[reg] ? 1 : 0; };
    for (const life &l : lives_of(k, widths.size(), uses)) {
        const int c = class_of(l.reg);
        for (; !busy[c].empty() && busy[c].top().first < l.first; busy[c].pop()) {
            free[c].push_back(busy[c].top().second);
        }
        if (free[c].empty()) free[c].push_back(count[c]++);
        slots[l.reg] = free[c].back();
        free[c].pop_back();
        busy[c].push({l.last, slots[l.reg]});
    }
    // 64 bits first, then 32, then predicates: all aligned.
    const uint32_t base[3] = {count[2] * 256 + count[1] * 128, count[2] * 256, 0};
    const uint32_t size[3] = {4, 128, 256};
    k->register_bytes = (base[0] + count[0] * 4 + 127) / 64 * 64;
    for (const lk_ptx_use &u : uses) {
        const int c = class_of(u.reg);
        const uint32_t at = base[c] + slots[u.reg] * size[c];
        lk_ptx_instruction *i = &k->code[u.instruction];
        (u.operand == LK_PTX_OPERANDS ? i->guard : i->o[u.operand]) = at;
    }
}
