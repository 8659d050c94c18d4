// SPDX-License-Identifier: Apache-2.0
// hello.cpp - hello.c in C++: handles release themselves, and failures are exceptions.
#include <weft/weft.hpp>

static void sum(weft::call &call) // runs on rank 0, once for each call
{
    double total = 0;
    for (int64_t i = 0; i < weft_tensor_numel(call.at<weft_tensor *>(0)); i++)
        total += weft_tensor_get_f64(call.at<weft_tensor *>(0), i);
    call.give({total});
}

int main()
try {
    weft::job job = weft_job_is_launched(nullptr, nullptr) ? weft::job() : weft::job::open(1);
    weft_agent_options options{};
    options.job = job.get();
    weft::agent agent = weft::agent::open({{"sum", {WEFT_TYPE_TENSOR}, {WEFT_TYPE_F64}, sum}}, options);
    if (weft_agent_rank(agent.get()) == 0) {
        weft::check(weft_agent_serve(agent.get(), WEFT_FOREVER)); // until all are done
    } else {
        auto x = weft::make<weft::tensor>(weft_tensor_arange, 1000000, WEFT_DTYPE_FLOAT64); // 0, 1, 2 ...
        double total = weft::rpc_sync(agent.get(), weft_to_rank(0), "sum", {x}).at<double>(0);
        std::printf("rank %d: the sum of 1000000 numbers is %.0f\n", weft_agent_rank(agent.get()), total);
    }
    agent.close();
    job.close();
} catch (const weft::error &failure) {
    return failure.report();
}
