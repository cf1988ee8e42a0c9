// races.cpp - who touched a word before, with nothing that orders the two.
//
// Two threads of a block race if one of them writes what the other touches and no barrier of the
// block lies between. Two blocks of a grid race if one of them writes what the other touches, ever.
// Lanes of a warp are threads like others; a shuffle orders nothing. Atomics are left out.
//
// An asynchronous copy writes its words from where it is asked for to the wait that covers it: in
// between nobody may touch them, and behind the wait they count as written there.
//
// Of each word the last write is kept, and of the reads since then the latest epoch's: whose, or
// that they are several threads', or several blocks'. An epoch ends at a barrier. Elements of less
// than four bytes have a table of their own, byte by byte, that is not compared with the words'.
#include <stdio.h>

#include "ptx.h"

namespace {

enum { SEVERAL = 1024, THREAD = 1023, PAGE = 4096, KNOWN = 256 };
const uint32_t SEVERAL_BLOCKS = UINT32_MAX;

// Of a launch; `who` is epoch << 11 | several threads << 10 | thread.
struct touch {
    uint32_t launch, block, who;
};
struct word {
    touch wrote, read;
};

struct table {
    std::unordered_map<uint64_t, word *> pages;
    struct {
        uint64_t number;
        word *page;
    } known[KNOWN];  // pages that were used last
};
table tables[2];  // of words, of bytes
uint32_t launch;

[[noreturn]] void race(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, bool writes,
                       const char *what, uint64_t at, const touch &other) {
    char whose[64] = "another block", how[32] = "";
    if (other.block == w->block->number) {
        snprintf(whose, sizeof whose, "thread %u%s", other.who & THREAD,
                 other.who & SEVERAL ? " (and others)" : "");
        snprintf(how, sizeof how, "%s",
                 other.who >> 11 == LK_PTX_UNDER_WAY ? " by a copy that is under way"
                                                     : " with no barrier between");
    }
    lk_ptx_die(w, i, lane, "a race: %s %s %#llx, which %s touched%s", writes ? "writes" : "reads",
               what, (unsigned long long)at, whose, how);
}

bool is_ordered(const lk_ptx_block *b, const touch &before, uint32_t thread, bool several) {
    if (before.launch != launch) return true;
    if (before.block != b->number) return false;
    if (before.who >> 11 == LK_PTX_UNDER_WAY) return false;
    return before.who >> 11 != b->epoch ||
           (!several && (before.who & (SEVERAL | THREAD)) == thread);
}

void note(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, word *s, const char *what,
          uint64_t at, bool writes, bool several) {
    const lk_ptx_block *b = w->block;
    const uint32_t thread = w->first_thread + lane;
    const touch me = {launch, b->number, b->epoch << 11 | (several ? SEVERAL : 0) | thread};
    if (!is_ordered(b, s->wrote, thread, several)) race(w, i, lane, writes, what, at, s->wrote);
    if (writes) {
        if (several) race(w, i, lane, writes, what, at, me);
        if (!is_ordered(b, s->read, thread, false)) race(w, i, lane, writes, what, at, s->read);
        s->wrote = me;
    } else if (s->read.launch != launch) {
        s->read = me;
    } else if (s->read.block != b->number) {
        s->read.block = SEVERAL_BLOCKS;
    } else if (s->read.who >> 11 != b->epoch) {
        s->read = me;
    } else if ((s->read.who ^ me.who) & THREAD) {
        s->read.who |= SEVERAL;
    } else {
        s->read.who |= me.who & SEVERAL;
    }
}

word *entry_of(table *t, uint64_t at) {
    const uint64_t number = at / PAGE;
    auto &known = t->known[number % KNOWN];
    if (!known.page || known.number != number) {
        word *&page = t->pages[number];
        if (!page) page = new word[PAGE]();
        known = {number, page};
    }
    return &known.page[at % PAGE];
}

}  // namespace

// Shared memory is a block's alone: what another one left there is past.
static_assert(sizeof(word) == LK_PTX_WORD_BYTES, "of a block's memory");

void lk_ptx_note_shared(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, uint32_t at,
                        bool writes, bool several) {
    const lk_ptx_block *b = w->block;
    word *s = static_cast<word *>(b->words) + at;
    if (s->wrote.block != b->number) s->wrote.launch = 0;
    if (s->read.block != b->number) s->read.launch = 0;
    if (!writes && s->wrote.launch != launch) {
        lk_ptx_die(w, i, lane, "word %u of shared memory, which nobody wrote", at);
    }
    note(w, i, lane, s, "word of shared memory", at, writes, several);
}

void lk_ptx_note_copy(lk_ptx_warp *w, uint32_t lane, uint32_t at, bool has_come) {
    const lk_ptx_block *b = w->block;
    const uint32_t epoch = has_come ? b->epoch : LK_PTX_UNDER_WAY;
    static_cast<word *>(b->words)[at].wrote = {launch, b->number,
                                               epoch << 11 | (w->first_thread + lane)};
}

void lk_ptx_note_global(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, uint64_t at,
                        uint32_t element, bool writes, bool several) {
    note(w, i, lane, entry_of(&tables[element == 1], at / element), "address", at, writes, several);
}

void lk_ptx_begin_races(void) { launch++; }
