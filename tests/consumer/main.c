// main.c - somebody else's program: the header is found, the library links with what it needs, and
// it trains.
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <string.h>

static const char document[] =
    "{\"global_batch\": 32, \"steps\": 20, \"seed\": 3,"
    " \"model\": {\"input\": [8, 8, 1], \"classes\": 4, \"layers\": ["
    "  {\"type\": \"flatten\"}, {\"type\": \"dense\", \"units\": 4}]},"
    " \"optimizer\": {\"type\": \"sgd\", \"learning_rate\": 0.05},"
    " \"data\": {\"train\": {\"made_up\": {\"count\": 256, \"height\": 8, \"width\": 8,"
    " \"classes\": 4}}}}";

int main(void) {
    lockstep_error error;
    lockstep_result result = {0};
    char digest[LOCKSTEP_HASH_BYTES] = "";
    lockstep_config *config = lockstep_config_parse(document, strlen(document), &error);
    lockstep_run *run = config ? lockstep_open(config, NULL, &error) : NULL;
    lockstep_config_free(config);
    while (run && result.step < 20 && lockstep_step(run, &result, &error) == LOCKSTEP_OK) continue;
    if (run && error.status == LOCKSTEP_OK) lockstep_digest(run, digest, &error);
    lockstep_close(run);
    printf("lockstep %s: %s %s; digest %s\n", lockstep_version(),
           lockstep_status_text(error.status), error.text, digest);
    return error.status == LOCKSTEP_OK && strlen(digest) == 64 ? 0 : 1;
}
