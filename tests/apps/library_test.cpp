// library_test.cpp - lockstep.h from C++17: it compiles alone and without a warning, links, and a
// C++ program trains with it.
#include <lockstep/lockstep.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

struct close_run {
    void operator()(lockstep_run *run) const { lockstep_close(run); }
};
struct free_config {
    void operator()(lockstep_config *config) const { lockstep_config_free(config); }
};
using run_handle = std::unique_ptr<lockstep_run, close_run>;
using config_handle = std::unique_ptr<lockstep_config, free_config>;

static_assert(std::is_standard_layout_v<lockstep_training>);
static_assert(LOCKSTEP_HASH_BYTES == 65);

static int fail(const lockstep_error &error) {
    std::printf("%s: %s\n", lockstep_status_text(error.status), error.text);
    return 1;
}

int main() {
    const std::string text = R"({"global_batch": 8,
        "optimizer": {"type": "sgd", "learning_rate": 0.1},
        "model": {"input": [1, 3, 1], "classes": 3, "layers": [
            {"type": "flatten"}, {"type": "dense", "units": 3}]}})";
    std::vector<std::uint8_t> inputs, labels;
    for (unsigned i = 0; i < 24; i++) {
        labels.push_back(static_cast<std::uint8_t>(i % 3));
        for (unsigned k = 0; k < 3; k++) inputs.push_back(k == i % 3 ? 200 : 20);
    }
    lockstep_error error{};
    config_handle config{lockstep_config_parse(text.data(), text.size(), &error)};
    if (!config) return fail(error);
    const lockstep_examples examples{inputs.data(), labels.data(), labels.size(),
                                     1,             3,             1,
                                     LOCKSTEP_U8,   nullptr};
    lockstep_config_examples(config.get(), LOCKSTEP_TRAIN, &examples);
    run_handle run{lockstep_open(config.get(), nullptr, &error)};
    if (!run) return fail(error);
    lockstep_result result{};
    while (result.step < 40) {
        if (lockstep_step(run.get(), &result, &error) != LOCKSTEP_OK) return fail(error);
    }
    std::array<float, 3> outputs{};
    if (lockstep_predict(run.get(), inputs.data() + 3, 1, outputs.data(), &error) != LOCKSTEP_OK) {
        return fail(error);
    }
    const bool right = outputs[1] > outputs[0] && outputs[1] > outputs[2];
    std::printf("%llu steps, loss %g\n", static_cast<unsigned long long>(result.step),
                static_cast<double>(result.loss));
    return right ? 0 : 1;
}
