// reach.c - variables, interfaces and listening sockets, for reach.h. Linux: a socket's address is
// what /proc/self/net says of the number behind the descriptor.
#define _GNU_SOURCE
#include "comm/cluster/reach.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SOCKETS_MAX = 256 };

static unsigned long before[SOCKETS_MAX];  // sockets that were open when MPI was pinned
static uint32_t before_count;

// --- networks ----------------------------------------------------------------------------------

lk_status lk_subnet_parse(const char *text, lk_subnet *out, lk_error *error) {
    char address[INET6_ADDRSTRLEN] = "";
    const char *slash = strchr(text, '/');
    size_t length = slash ? (size_t)(slash - text) : 0;
    *out = (lk_subnet){.six = slash && memchr(text, ':', length)};
    const uint32_t most = out->six ? 128 : 32;
    bool well = length > 0 && length < sizeof address && slash[1] >= '0' && slash[1] <= '9';
    if (well) {
        char *end;
        memcpy(address, text, length);
        unsigned long bits = strtoul(slash + 1, &end, 10);
        out->bits = (uint32_t)LK_MIN(bits, 129ul);
        well = *end == '\0' && bits <= most &&
               inet_pton(out->six ? AF_INET6 : AF_INET, address, out->address) == 1;
    }
    out->given = well;
    if (well) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "--private-network: found \"%s\", wanted an address and the number of its bits "
                   "that are the network's, such as 10.1.0.0/16",
                   text);
}

bool lk_subnet_has(const lk_subnet *n, bool six, const uint8_t address[16]) {
    if (!n->given || n->six != six) return false;
    for (uint32_t bit = 0; bit < n->bits; bit++) {
        uint8_t mask = (uint8_t)(0x80u >> bit % 8);
        if ((n->address[bit / 8] ^ address[bit / 8]) & mask) return false;
    }
    return true;
}

static bool is_loopback(bool six, const uint8_t address[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (!six) return address[0] == 127;
    if (memcmp(address, mapped, sizeof mapped) == 0) return address[12] == 127;
    return IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)address);
}

// The interface of this machine that has an address in the network.
static bool find_interface(const lk_subnet *n, char name[IF_NAMESIZE]) {
    struct ifaddrs *list = NULL;
    name[0] = '\0';
    if (getifaddrs(&list) != 0) return false;
    for (struct ifaddrs *i = list; i && !name[0]; i = i->ifa_next) {
        uint8_t address[16] = {0};
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
        const bool six = i->ifa_addr->sa_family == AF_INET6;
        if (six) {
            memcpy(address, &((struct sockaddr_in6 *)(void *)i->ifa_addr)->sin6_addr, 16);
        } else if (i->ifa_addr->sa_family == AF_INET) {
            memcpy(address, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, 4);
        } else {
            continue;
        }
        if (lk_subnet_has(n, six, address)) lk_format(name, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(list);
    return name[0];
}

// --- sockets -----------------------------------------------------------------------------------

// The numbers of this process's sockets.
static uint32_t own_sockets(unsigned long numbers[SOCKETS_MAX]) {
    uint32_t count = 0;
    char path[300], target[64];
    DIR *directory = opendir("/proc/self/fd");
    for (struct dirent *e; directory && count < SOCKETS_MAX && (e = readdir(directory));) {
        lk_format(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[LK_MAX(length, 0)] = '\0';
        if (sscanf(target, "socket:[%lu]", &numbers[count]) == 1) count++;
    }
    if (directory) closedir(directory);
    return count;
}

static bool is_among(unsigned long number, const unsigned long *numbers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (numbers[i] == number) return true;
    }
    return false;
}

// What one line of /proc/self/net/tcp or tcp6 says. False where it is no socket that listens.
static bool read_listener(const char *line, uint8_t address[16], bool *six, unsigned *port,
                          unsigned long *number) {
    char hex[40];
    unsigned state = 0;
    enum { LISTENS = 0x0a };
    if (sscanf(line, " %*u: %32[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", hex, port, &state,
               number) != 4 ||
        state != LISTENS) {
        return false;
    }
    *six = strlen(hex) > 8;
    for (size_t word = 0; word < strlen(hex) / 8; word++) {
        char text[9] = "";
        memcpy(text, hex + 8 * word, 8);
        uint32_t value = (uint32_t)strtoul(text, NULL, 16);  // as the processor holds it
        memcpy(address + 4 * word, &value, 4);
    }
    return true;
}

// --- what is called ----------------------------------------------------------------------------

static void pin(const char *devices, const char *host) {
    setenv("UCX_NET_DEVICES", devices, 0);
    setenv("FI_TCP_IFACE", devices, 0);
    setenv("NCCL_SOCKET_IFNAME", devices, 0);
    if (host) setenv("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", host, 1);  // mpiexec sets another
}

lk_status lk_reach_pin(const lk_reach *r, uint32_t rank, lk_error *error) {
    char interface[IF_NAMESIZE];
    before_count = own_sockets(before);
    if (r->local) {
        setenv("UCX_TLS", "self,shm", 0);
        pin("lo", "127.0.0.1");
        return LK_OK;
    }
    if (r->network.given) {
        if (!find_interface(&r->network, interface)) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "rank %u: --private-network: no interface of this machine has an "
                           "address in it; see: ip address",
                           rank);
        }
        pin(interface, NULL);
        return LK_OK;
    }
    if (r->insecure) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "rank %u: the workers are on several machines, and what they exchange by MPI is "
                   "neither encrypted nor authenticated; say which network is yours alone, such as "
                   "--private-network 10.1.0.0/16, or --insecure where everybody may read and "
                   "disturb it",
                   rank);
}

lk_status lk_reach_check(const lk_reach *r, uint32_t rank, char listens[LK_REACH_TEXT_BYTES],
                         lk_error *error) {
    static const char *const files[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    unsigned long mine[SOCKETS_MAX], number = 0;
    uint32_t count = own_sockets(mine);
    size_t used = lk_format(listens, LK_REACH_TEXT_BYTES, "nothing");
    char line[512], text[INET6_ADDRSTRLEN], outside[80] = "";
    for (uint32_t i = 0, found = 0; i < LK_COUNT(files); i++) {
        FILE *f = fopen(files[i], "re");
        while (f && fgets(line, sizeof line, f)) {
            uint8_t address[16] = {0};
            unsigned port;
            bool six;
            if (!read_listener(line, address, &six, &port, &number)) continue;
            if (!is_among(number, mine, count) || is_among(number, before, before_count)) continue;
            inet_ntop(six ? AF_INET6 : AF_INET, address, text, sizeof text);
            if (found++ == 0) used = 0;
            used += lk_format(listens + used, LK_REACH_TEXT_BYTES - used, "%s%s:%u",
                              used ? ", " : "", text, port);
            used = LK_MIN(used, (size_t)LK_REACH_TEXT_BYTES - 1);
            if (is_loopback(six, address) || lk_subnet_has(&r->network, six, address)) continue;
            lk_format(outside, sizeof outside, "%s:%u", text, port);
        }
        if (f) fclose(f);
    }
    if (!*outside || r->insecure) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "rank %u: MPI listens at %s, outside %s; unset what chooses its network "
                   "(UCX_NET_DEVICES, FI_TCP_IFACE), or say --insecure",
                   rank, outside,
                   r->local ? "loopback, though all workers are here" : "--private-network");
}
