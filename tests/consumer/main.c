// main.c - somebody else's program: headers are found, the library links with what it needs.
#include <stdio.h>
#include <string.h>

#include "arena/sha256.h"
#include "io/json.h"

int main(void) {
    uint8_t digest[LK_SHA256_BYTES];
    char hex[LK_SHA256_HEX_BYTES];
    lk_sha256 hash;
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, "abc", 3);
    lk_sha256_finish(&hash, digest);
    lk_hex(digest, sizeof digest, hex);

    // A document, so that a private dependency of the static library is linked for certain.
    lk_json document;
    lk_error error = {0};
    lk_status status = lk_json_load_text(&document, "here", "{\"a\": 1}", 8, &error);
    lk_json_close(&document);

    printf("%s: %s\n", lk_status_text(status), hex);
    bool right = status == LK_OK && strcmp(lk_status_text(LK_OK), "done") == 0
              && strcmp(hex, "ba7816bf8f01cfea414140de5dae2223"
                             "b00361a396177a9cb410ff61f20015ad") == 0;
    return right ? 0 : 1;
}
