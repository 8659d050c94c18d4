// SPDX-License-Identifier: Apache-2.0
// split_model.cpp - split_model.c in C++20: handles release themselves, and failures are exceptions.
#include <weft/weft.hpp>

int main()
try {
    weft::agent agent = weft::agent::open({{"back", {}, {}, [](weft::call &call) { // runs on rank 1
        call.give(weft::make<weft::module>(weft_linear_create, 64, 4, false, 2)); // the layer stays there
    }}});
    if (weft_agent_rank(agent.get()) == 0) {
        auto front = weft::make<weft::module>(weft_linear_create, 4, 64, false, 1);
        auto back = weft::rpc_remote(agent.get(), weft_to_rank(1), "back");
        auto all = WEFT_VALUES(weft_of_tensors(weft_module_parameters(front.get())), weft_of_rref(back.get()));
        weft_optimizer_spec spec{.type = &weft_adam_type};
        auto adam = weft::make<weft::dist_optimizer>(weft_dist_optimizer_create, agent.get(), all, &spec);
        weft_pass_options with_step{.step = adam.get()};
        for (weft_tape_options step{.seed = 1}; step.seed <= 1000; step.seed++) {
            auto t = weft::make<weft::tape>(weft_dist_tape_open, agent.get(), &step);
            auto x = weft_uniform(t.get(), WEFT_SHAPE(64, 4), WEFT_DTYPE_FLOAT32, 0, 1);
            auto h = weft_relu(t.get(), weft_module_forward(t.get(), front.get(), x));
            auto y = weft_remote_forward(t.get(), back.get(), h, nullptr);
            auto loss = weft_cross_entropy(t.get(), y, weft_argmax(t.get(), x, 1));
            weft_dist_backward(t.get(), loss, &with_step); // both workers step their own layer
            t.check();
            if (step.seed % 200 == 0)
                std::printf("step %d: loss %.3f\n", int(step.seed), weft_tensor_get_f64(loss, 0));
        }
    }
    agent.close(); // rank 1 serves until rank 0 closes too
} catch (const weft::error &failure) {
    return failure.report();
}
