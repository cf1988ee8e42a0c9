// module.cpp - PTX text to kernels: a line is a directive, a label or an instruction, as nvcc
// writes them. Only what the rules name is known; anything else ends the program and says where it
// stands.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

namespace {

struct reader {
    const char *at, *end;
    uint32_t line;
};

// A kernel while its text is read.
struct draft {
    lk_ptx_kernel *kernel;
    reader text;
    std::unordered_map<std::string, uint64_t> symbols;  // parameters, the local depot
    std::unordered_map<std::string, uint32_t> registers;
    std::unordered_map<std::string, uint32_t> labels;
    std::unordered_map<uint64_t, uint32_t> constants[3];  // predicates, 4 and 8 bytes
    std::vector<uint8_t> widths;
    std::vector<lk_ptx_use> uses;
    std::vector<uint8_t> pool;
    std::vector<std::pair<uint32_t, std::string>> jumps;
};

[[noreturn]] void refuse(const draft *d, const char *why, const std::string &what) {
    lk_host_die("%s, PTX line %u: %s: %s", d->kernel->name.c_str(), d->text.line, why,
                what.c_str());
}

std::string trimmed(const std::string &s) {
    size_t first = s.find_first_not_of(" \t\r"), last = s.find_last_not_of(" \t\r");
    return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

// The next line that holds something, without its comment; false at the end.
bool next_line(reader *r, std::string *line) {
    while (r->at < r->end) {
        const void *found = memchr(r->at, '\n', static_cast<size_t>(r->end - r->at));
        const char *stop = found ? static_cast<const char *>(found) : r->end;
        *line = std::string(r->at, stop);
        r->at = stop + (stop < r->end);
        r->line++;
        *line = trimmed(line->substr(0, line->find("//")));
        if (!line->empty()) return true;
    }
    return false;
}

bool begins(const std::string &s, const char *with) { return s.rfind(with, 0) == 0; }

// Operands: at commas that no brace or bracket holds.
std::vector<std::string> parts_of(const std::string &s) {
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (char c : s) {
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == ',' && depth == 0) {
            parts.push_back(trimmed(part));
            part.clear();
        } else {
            part += c;
        }
    }
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
    return parts;
}

uint32_t bytes_of_type(const draft *d, const std::string &type) {
    const size_t digits = type.find_first_of("0123456789");
    if (type == ".pred") return 0;
    const int bits = digits == std::string::npos ? 0 : atoi(type.c_str() + digits);
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64) refuse(d, "a type", type);
    return static_cast<uint32_t>(bits) / 8;
}

// --- declarations --------------------------------------------------------------------------------

std::vector<std::string> words_of(const std::string &s) {
    std::vector<std::string> words;
    for (size_t at = 0; (at = s.find_first_not_of(" \t,();", at)) != std::string::npos;) {
        size_t stop = s.find_first_of(" \t,();", at);
        words.push_back(s.substr(at, stop == std::string::npos ? stop : stop - at));
        at = stop == std::string::npos ? s.size() : stop;
    }
    return words;
}

// "NAME[BYTES]": the bytes, and the name alone; elements of a byte.
uint32_t array_of(const draft *d, std::string *name) {
    const size_t bracket = name->find('[');
    if (bracket == std::string::npos) refuse(d, "no size", *name);
    const uint32_t bytes = static_cast<uint32_t>(atoi(name->c_str() + bracket + 1));
    *name = name->substr(0, bracket);
    return bytes;
}

// ".param .align 4 .b8 NAME[40]", ".param .u64 NAME", ".param .u64 .ptr .align 1 NAME"
void declare_parameter(draft *d, const std::string &line) {
    std::vector<std::string> w = words_of(line);
    if (w.size() == 6 && w[2] == ".ptr") w.erase(w.begin() + 2, w.begin() + 5);
    lk_ptx_parameter p = {w.back(), 0, 0};
    uint32_t align;
    if (w.size() == 5 && w[1] == ".align" && w[3] == ".b8") {
        align = static_cast<uint32_t>(atoi(w[2].c_str()));
        p.bytes = array_of(d, &p.name);
    } else if (w.size() == 3) {
        align = p.bytes = bytes_of_type(d, w[1]);
    } else {
        refuse(d, "a parameter", line);
    }
    lk_ptx_kernel *k = d->kernel;
    p.offset = (k->parameter_bytes + align - 1) / align * align;
    k->parameter_bytes = p.offset + p.bytes;
    d->symbols[p.name] = p.offset;
    k->parameters.push_back(p);
}

// ".reg .b32 %r<5>;" and ".reg .b64 %SP;"
void declare_registers(draft *d, const std::string &line) {
    const std::vector<std::string> w = words_of(line);
    if (w.size() != 3) refuse(d, "registers", line);
    const uint8_t width = static_cast<uint8_t>(bytes_of_type(d, w[1]));
    if (width == 1) refuse(d, "registers", line);
    const size_t count_at = w[2].find('<');
    const std::string stem = w[2].substr(0, count_at);
    const bool one = count_at == std::string::npos;
    const uint32_t count = one ? 1 : static_cast<uint32_t>(atoi(w[2].c_str() + count_at + 1));
    for (uint32_t n = 0; n < count; n++) {
        d->registers[one ? stem : stem + std::to_string(n)] =
            static_cast<uint32_t>(d->widths.size());
        d->widths.push_back(width);
    }
}

// ".local .align 4 .b8 __local_depot0[136];": one of a kernel, from the thread's first byte.
void declare_local(draft *d, const std::string &line) {
    std::vector<std::string> w = words_of(line);
    if (w.size() != 5 || w[3] != ".b8" || d->kernel->local_bytes) refuse(d, "local memory", line);
    const uint32_t bytes = array_of(d, &w[4]);
    d->kernel->local_bytes = (bytes + 15) / 16 * 16;
    d->symbols[w[4]] = 0;
}

// --- operands ------------------------------------------------------------------------------------

// A number; false where it is none.
bool number_of(const draft *d, const std::string &s, uint64_t *value) {
    if (begins(s, "0f") || begins(s, "0F")) {
        *value = strtoull(s.c_str() + 2, NULL, 16);
        return true;
    }
    if (!s.empty() && (isdigit(static_cast<unsigned char>(s[0])) || s[0] == '-')) {
        char *stop;
        *value = s[0] == '-' ? static_cast<uint64_t>(strtoll(s.c_str(), &stop, 0))
                             : strtoull(s.c_str(), &stop, 0);
        return *stop == 0;
    }
    const auto found = d->symbols.find(s);
    if (found == d->symbols.end()) return false;
    *value = found->second;
    return true;
}

// 32 lanes of a number, one copy of each for a kernel.
uint32_t constant_of(draft *d, uint64_t value, uint32_t width) {
    auto &known = d->constants[width / 4];
    if (width == 4) value = static_cast<uint32_t>(value);
    const auto found = known.find(value);
    if (found != known.end()) return found->second;
    const uint32_t at = static_cast<uint32_t>(d->pool.size());
    d->pool.resize(at + (width ? 32 * width : 64));
    const uint32_t all = value ? UINT32_MAX : 0;
    for (uint32_t lane = 0; width && lane < 32; lane++) {
        memcpy(&d->pool[at + lane * width], &value, width);
    }
    if (!width) memcpy(&d->pool[at], &all, sizeof all);
    known[value] = at | LK_PTX_CONSTANT;
    return at | LK_PTX_CONSTANT;
}

uint32_t number_of_instruction(const draft *d) {
    return static_cast<uint32_t>(d->kernel->code.size());
}

// A register's number, where `s` names one.
bool register_of(const draft *d, const std::string &s, uint32_t *reg) {
    const auto found = d->registers.find(s);
    if (found == d->registers.end()) return false;
    *reg = found->second;
    return true;
}

void use_register(draft *d, uint32_t operand, uint32_t reg, bool written) {
    d->uses.push_back({number_of_instruction(d), operand, reg, written});
}

bool goes_with(char letter, uint32_t width) {
    switch (letter) {
    case 'w': return width == 2 || width == 4;
    case 'l':
    case 'x': return width == 8;
    case 'p': return width == 0;
    default: return width != 0;
    }
}

// One register or number of the class that `letter` says.
void take_operand(draft *d, lk_ptx_instruction *i, uint32_t operand, char letter,
                  const std::string &s) {
    const char small = static_cast<char>(tolower(letter));
    const bool written = letter != small;
    uint32_t reg;
    uint64_t value;
    if (register_of(d, s, &reg)) {
        const uint8_t width = d->widths[reg];
        if (!goes_with(small, width)) refuse(d, "an operand of another width", s);
        if (letter == 'V' || letter == 'H' || (letter == 'u' && width == 8)) i->width = width;
        use_register(d, operand, reg, written);
    } else if (!written && number_of(d, s, &value)) {
        const uint32_t width = small == 'l' || small == 'x' ? 8 : 4;
        i->o[operand] = constant_of(d, value, small == 'p' ? 0 : width);
    } else {
        refuse(d, "an operand", s);
    }
}

void take_vector(draft *d, lk_ptx_instruction *i, char letter, const std::string &s) {
    const bool is_one = s[0] != '{';
    const std::vector<std::string> all =
        is_one ? std::vector<std::string>{s} : parts_of(s.substr(1, s.size() - 2));
    i->vector = static_cast<uint8_t>(all.size());
    if (all.size() != 1 && all.size() != 2 && all.size() != 4) refuse(d, "a vector", s);
    for (uint32_t n = 0; n < all.size(); n++) {
        const uint8_t before = i->width;
        take_operand(d, i, n, letter, all[n]);
        if ((n > 0 && i->width != before) || (letter == 'u' && n > 0 && i->width == 8))
            refuse(d, "registers of two widths", s);
    }
}

// [%rd1+8], [%rd1], [NAME+8]
void take_address(draft *d, lk_ptx_instruction *i, const std::string &s) {
    if (s.size() < 3 || s[0] != '[' || s.back() != ']') refuse(d, "an address", s);
    const std::string inside = s.substr(1, s.size() - 2);
    const size_t plus = inside.find('+');
    const std::string base = trimmed(inside.substr(0, plus));
    uint64_t value = 0;
    uint32_t reg;
    if (plus != std::string::npos && !number_of(d, trimmed(inside.substr(plus + 1)), &value)) {
        refuse(d, "a displacement", s);
    }
    i->displacement = static_cast<int64_t>(value);
    if (register_of(d, base, &reg)) {
        if (d->widths[reg] != 4 && d->widths[reg] != 8) refuse(d, "an address", s);
        i->is_wide = d->widths[reg] == 8;
        use_register(d, LK_PTX_ADDRESS, reg, false);
    } else if (number_of(d, base, &value)) {
        i->is_wide = true;
        i->o[LK_PTX_ADDRESS] = constant_of(d, value, 8);
    } else {
        refuse(d, "an address", s);
    }
}

void take_operands(draft *d, lk_ptx_instruction *i, const lk_ptx_rule *rule,
                   const std::vector<std::string> &all) {
    if (all.size() != strlen(rule->operands)) refuse(d, "so many operands", rule->word);
    uint32_t operand = 0;
    for (size_t n = 0; n < all.size(); n++) {
        const char letter = rule->operands[n];
        const size_t bar = all[n].find('|');
        if (letter == 'A') {
            take_address(d, i, all[n]);
        } else if (letter == 'G') {
            if (all[n][0] != '[' || all[n].back() != ']') refuse(d, "an address", all[n]);
            take_operand(d, i, operand++, 'l', trimmed(all[n].substr(1, all[n].size() - 2)));
        } else if (letter == 'V' || letter == 'u' || letter == 'x') {
            take_vector(d, i, letter, all[n]);
        } else if (letter == 'T') {
            d->jumps.push_back({number_of_instruction(d), all[n]});
        } else if (letter == 'S') {
            if (bar == std::string::npos) refuse(d, "a shuffle without a predicate", all[n]);
            take_operand(d, i, operand++, 'W', all[n].substr(0, bar));
            take_operand(d, i, operand++, 'P', all[n].substr(bar + 1));
        } else {
            take_operand(d, i, operand++, letter, all[n]);
        }
    }
}

// --- instructions --------------------------------------------------------------------------------

const lk_ptx_rule *rule_of(const std::string &word) {
    static std::unordered_map<std::string, const lk_ptx_rule *> rules;
    if (rules.empty()) {
        for (const lk_ptx_rules &r :
             {lk_ptx_arithmetic_rules(), lk_ptx_control_rules(), lk_ptx_memory_rules()}) {
            for (uint32_t n = 0; n < r.count; n++) rules[r.rules[n].word] = &r.rules[n];
        }
    }
    const auto found = rules.find(word);
    return found == rules.end() ? NULL : found->second;
}

void take_guard(draft *d, lk_ptx_instruction *i, std::string *line) {
    i->guard = LK_PTX_NONE;
    if ((*line)[0] != '@') return;
    const size_t stop = line->find_first_of(" \t");
    i->guard_is_not = (*line)[1] == '!';
    const std::string name =
        line->substr(i->guard_is_not ? 2 : 1, stop - (i->guard_is_not ? 2 : 1));
    uint32_t reg;
    if (!register_of(d, name, &reg) || d->widths[reg] != 0) refuse(d, "a guard", *line);
    use_register(d, LK_PTX_OPERANDS, reg, false);
    i->guard = 0;
    *line = trimmed(line->substr(stop));
}

// Special registers are words of their own: "mov.u32 %r1, %tid.x" is "mov.u32 %tid.x".
void join_special(std::string *word, std::vector<std::string> *all) {
    if (*word != "mov.u32" || all->size() != 2 || (*all)[1][0] != '%') return;
    if ((*all)[1].find('.') == std::string::npos && (*all)[1] != "%laneid") return;
    *word += " " + (*all)[1];
    all->pop_back();
}

// Of a copy without a size of what is read all is read.
void complete_copy(const std::string &word, std::vector<std::string> *all) {
    if (begins(word, "cp.async.c") && all->size() == 3) all->push_back((*all)[2]);
}

void take_instruction(draft *d, std::string line) {
    lk_ptx_instruction i = {};
    const std::string text = line.substr(0, line.size() - 1);
    line = text;
    take_guard(d, &i, &line);
    const size_t stop = line.find_first_of(" \t");
    std::string word = line.substr(0, stop);
    std::vector<std::string> all =
        stop == std::string::npos ? std::vector<std::string>{} : parts_of(line.substr(stop));
    join_special(&word, &all);
    complete_copy(word, &all);
    const lk_ptx_rule *rule = rule_of(word);
    if (!rule) refuse(d, "an instruction that this executor does not know", text);
    i.run = rule->run;
    i.kind = static_cast<uint8_t>(rule->kind);
    i.target = LK_PTX_NONE;
    i.is_end = word == "ret";
    i.line = d->text.line;
    take_operands(d, &i, rule, all);
    d->kernel->code.push_back(i);
    d->kernel->texts.push_back(text);
}

// "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd2; }", which takes the high half, as a word of its own:
// "mov.b64.high %r1, %rd2;". False where it is something else.
bool take_high_half(draft *d, const std::string &line) {
    char word[8], to[16], from[16];
    int stop = 0;
    if (sscanf(line.c_str(), "{ .reg .b%*d tmp; %7s {tmp, %15[^}]}, %15[^;]; }%n", word, to, from,
               &stop) != 3 ||
        static_cast<size_t>(stop) != line.size()) {
        return false;
    }
    take_instruction(d, std::string(word) + ".high " + to + ", " + from + ";");
    return true;
}

void take_line(draft *d, const std::string &line) {
    if (begins(line, ".reg ")) {
        declare_registers(d, line);
    } else if (begins(line, ".local ")) {
        declare_local(d, line);
    } else if (begins(line, ".pragma ") || begins(line, ".loc ")) {
        // of the compiler's, or of a debugger's interest
    } else if (line.back() == ':') {
        d->labels[line.substr(0, line.size() - 1)] = number_of_instruction(d);
    } else if (line.back() == ';' && line[0] != '.') {
        take_instruction(d, line);
    } else if (!take_high_half(d, line)) {
        refuse(d, "a line that this executor does not know", line);
    }
}

// Parameters and directives, up to the brace.
void take_head(draft *d) {
    std::string line;
    while (next_line(&d->text, &line) && line != "{") {
        const std::vector<std::string> w = words_of(line);
        if (w.empty()) continue;
        if (w[0] == ".param") {
            declare_parameter(d, line);
        } else if (w[0] == ".maxntid") {
            d->kernel->threads_max = 1;
            for (size_t n = 1; n < w.size(); n++) {
                d->kernel->threads_max *= static_cast<uint32_t>(atoi(w[n].c_str()));
            }
        } else if (w[0] != ".minnctapersm") {
            refuse(d, "a directive", line);
        }
    }
}

// Variables of the module: the one array of dynamic shared memory.
void take_module(draft *d, const lk_ptx_module *m) {
    reader r = {m->text, m->text + m->bytes, 0};
    std::string line;
    for (uint32_t depth = 0; next_line(&r, &line);) {
        depth += (line == "{") - (line == "}");
        if (depth > 0 || line[0] != '.') continue;
        const std::vector<std::string> w = words_of(line);
        if (begins(line, ".extern .shared")) {
            std::string name = w.back();
            array_of(d, &name);
            d->symbols[name] = 0;
        } else if (w[0] == ".global" || w[0] == ".const" || w[0] == ".shared" ||
                   (w[0] == ".visible" && w[1] != ".entry") || w[0] == ".func") {
            refuse(d, "something of the module that this executor does not know", line);
        }
    }
}

void finish(draft *d) {
    lk_ptx_kernel *k = d->kernel;
    for (const auto &jump : d->jumps) {
        const auto label = d->labels.find(jump.second);
        if (label == d->labels.end()) refuse(d, "no such label", jump.second);
        k->code[jump.first].target = label->second;
    }
    k->constants = static_cast<uint8_t *>(aligned_alloc(64, (d->pool.size() + 64) / 64 * 64));
    memcpy(k->constants, d->pool.data(), d->pool.size());
    k->counts.resize(k->code.size());
    k->patterns.resize(2 * k->code.size());
    lk_ptx_leave_out(k);
    lk_ptx_find_joins(k);
    lk_ptx_allot(k, d->widths, d->uses);
}

// A kernel's name in a line that begins one; "" elsewhere.
std::string entry_of(const std::string &line) {
    const size_t at = line.find(".entry ");
    if (at == std::string::npos || line[0] != '.') return "";
    const size_t stop = line.find_first_of(" (", at + 7);
    return line.substr(at + 7, stop == std::string::npos ? stop : stop - at - 7);
}

}  // namespace

std::vector<std::string> lk_ptx_names(const lk_ptx_module *module) {
    reader r = {module->text, module->text + module->bytes, 0};
    std::vector<std::string> names;
    for (std::string line; next_line(&r, &line);) {
        const std::string name = entry_of(line);
        if (!name.empty()) names.push_back(name);
    }
    return names;
}

lk_ptx_kernel *lk_ptx_find(lk_ptx_module *module, const std::string &name) {
    const auto known = module->kernels.find(name);
    if (known != module->kernels.end()) return known->second;
    draft d = {};
    d.text = {module->text, module->text + module->bytes, 0};
    std::string line;
    do {
        if (!next_line(&d.text, &line)) return NULL;
    } while (entry_of(line) != name);
    d.kernel = new lk_ptx_kernel();
    d.kernel->name = name;
    take_module(&d, module);
    if (line.find(".param") != std::string::npos) refuse(&d, "a line", line);
    take_head(&d);
    while (next_line(&d.text, &line) && line != "}") take_line(&d, line);
    finish(&d);
    module->kernels[name] = d.kernel;
    return d.kernel;
}
