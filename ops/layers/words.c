// words.c - the lists of layer.h. Freestanding; a machine that only trains links none of it.
#include "ops/layers/layer.h"

const lk_layer_words *lk_layer_words_at(uint32_t number) {
    static const lk_layer_words *const all[] = {
#define LK_LAYER_ENTRY(name) &lk_layer_words_##name,
        LK_LAYER_LIST(LK_LAYER_ENTRY)
#undef LK_LAYER_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}

const lk_layer_words *lk_layer_words_of(const lk_layer_type *type) {
    const lk_layer_words *words;
    for (uint32_t i = 0; (words = lk_layer_words_at(i)) != NULL; i++) {
        if (words->type == type) return words;
    }
    lk_panic(__FILE__, __LINE__, "a layer that is not in the list");
}

const lk_loss_words *lk_loss_words_at(uint32_t number) {
    static const lk_loss_words *const all[] = {
#define LK_LOSS_ENTRY(name) &lk_loss_words_##name,
        LK_LOSS_LIST(LK_LOSS_ENTRY)
#undef LK_LOSS_ENTRY
    };
    return number < LK_COUNT(all) ? all[number] : NULL;
}

const lk_loss_words *lk_loss_words_of(const lk_loss_type *type) {
    const lk_loss_words *words;
    for (uint32_t i = 0; (words = lk_loss_words_at(i)) != NULL; i++) {
        if (words->type == type) return words;
    }
    lk_panic(__FILE__, __LINE__, "a loss that is not in the list");
}
