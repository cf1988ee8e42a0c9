// leftover.c - names and leases for leftover.h.
#define _GNU_SOURCE
#include "comm/mpi/leftover.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// MPICH's own, and those of UCX below it.
static bool is_of_mpi(const char *name) {
    return strncmp(name, "mpich_shar_tmp", 14) == 0 || strncmp(name, "ucx_shm_posix_", 14) == 0;
}

static bool is_dead(int file, uint32_t seconds_old) {
    struct stat about;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return false;
    if (about.st_uid != geteuid() || about.st_mtime + (time_t)seconds_old > time(NULL))
        return false;
    // Whoever opens it meanwhile waits, and this process hears a signal that it may ignore.
    return fcntl(file, F_SETSIG, SIGURG) == 0 && fcntl(file, F_SETLEASE, F_WRLCK) == 0;
}

uint32_t lk_leftover_remove(uint32_t seconds_old) {
    uint32_t removed = 0;
    DIR *directory = opendir("/dev/shm");
    for (struct dirent *e; directory && (e = readdir(directory));) {
        if (!is_of_mpi(e->d_name)) continue;
        int file =
            openat(dirfd(directory), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) continue;
        if (is_dead(file, seconds_old)) removed += unlinkat(dirfd(directory), e->d_name, 0) == 0;
        close(file);
    }
    if (directory) closedir(directory);
    return removed;
}
