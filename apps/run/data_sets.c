// data_sets.c - the table of known sets and the places where a machine has them.
#include "apps/run/data_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *const lk_data_set_files[LK_DATA_SET_FILES] = {
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte"};

static const lk_data_set sets[] = {
    {.name = "mnist",
     .sha256 = {"ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
     .hosts = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
               "https://storage.googleapis.com/cvdf-datasets/mnist/"}},
    {.name = "fashion-mnist",
     .sha256 = {"c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"},
     .instead = "on Debian: apt-get install dataset-fashion-mnist"},
};

// --- places --------------------------------------------------------------------------------------

const lk_data_set *lk_data_set_at(uint32_t number) {
    return number < LK_COUNT(sets) ? &sets[number] : NULL;
}

bool lk_data_set_file(const char *directory, const char *name, char path[LK_PATH_BYTES]) {
    static const char *const endings[] = {"", ".gz"};
    for (uint32_t i = 0; i < LK_COUNT(endings); i++) {
        int n = snprintf(path, LK_PATH_BYTES, "%s/%s%s", directory, name, endings[i]);
        if (n > 0 && n < LK_PATH_BYTES && access(path, F_OK) == 0) return true;
    }
    return false;
}

bool lk_data_set_is_whole(const char *directory) {
    char path[LK_PATH_BYTES];
    for (uint32_t i = 0; i < LK_DATA_SET_FILES; i++) {
        if (!lk_data_set_file(directory, lk_data_set_files[i], path)) return false;
    }
    return true;
}

static bool own_place(const char *name, char out[LK_PATH_BYTES]) {
    const char *data = getenv("LOCKSTEP_DATA");
    int n = snprintf(out, LK_PATH_BYTES, "%s/%s", data ? data : "", name);
    return data && *data && n < LK_PATH_BYTES;
}

static bool cache_place(const char *name, char out[LK_PATH_BYTES]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && *cache;
    if (!given && !(home && *home)) return false;
    int n = snprintf(out, LK_PATH_BYTES, "%s%s/lockstep/data/%s", given ? cache : home,
                     given ? "" : "/.cache", name);
    return n < LK_PATH_BYTES;
}

static bool system_place(const char *name, char out[LK_PATH_BYTES]) {
    return snprintf(out, LK_PATH_BYTES, "/usr/share/datasets/%s", name) < LK_PATH_BYTES;
}

bool lk_data_set_place(uint32_t place, const char *name, char directory[LK_PATH_BYTES]) {
    static bool (*const places[LK_DATA_SET_PLACES])(const char *, char *) = {own_place, cache_place,
                                                                             system_place};
    return places[place](name, directory);
}

bool lk_data_set_home(const char *name, char directory[LK_PATH_BYTES]) {
    return own_place(name, directory) || cache_place(name, directory);
}

bool lk_data_set_find(const char *name, char directory[LK_PATH_BYTES]) {
    for (uint32_t place = 0; place < LK_DATA_SET_PLACES; place++) {
        if (lk_data_set_place(place, name, directory) && lk_data_set_is_whole(directory)) {
            return true;
        }
    }
    return false;
}
