// SPDX-License-Identifier: Apache-2.0
// hello.cpp - hello.c in C++17: handles release themselves, and failures are exceptions.
#include <weft/job.h>
#include <weft/rpc.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <type_traits>

template <typename T, void (*release)(T *)> // owns a weft object
using handle = std::unique_ptr<T, std::integral_constant<void (*)(T *), release>>;

static void end_job(weft_job *job) // after an exception; without one, run closes the job
{
    (void)!weft_job_close(job, 1000, nullptr);
}

static void check(weft_status status, weft_error *detail = nullptr)
{
    handle<weft_error, weft_error_unref> owned(detail);
    if (status)
        throw std::runtime_error(detail ? weft_error_message(detail) : weft_status_text(status));
}

static weft_status sum(weft_call *call, void *) noexcept // weft is C: no exception may leave a handler
{
    const weft_tensor *x = weft_call_tensor(call, 0);
    double total = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        total += weft_tensor_get_f64(x, i);
    auto results = WEFT_VALUES(weft_of_f64(total));
    weft_call_give(call, results);
    return WEFT_OK;
}

static void ask(weft_agent *from)
{
    handle<weft_tensor, weft_tensor_unref> x(weft_tensor_arange(1000000, WEFT_DTYPE_FLOAT64));
    auto arguments = WEFT_VALUES(weft_of_tensor(x.get()));
    weft_error *error = nullptr;
    weft_values *results = nullptr;
    weft_rpc_options options{};
    options.error = &error;
    check(weft_rpc_sync(from, weft_to_rank(0), "sum", arguments, &options, &results), error);
    handle<weft_values, weft_values_unref> owned(results);
    double total = 0;
    check(weft_values_get_f64(results, 0, &total));
    std::printf("rank %d: the sum of 1000000 numbers is %.0f\n", weft_agent_rank(from), total);
}

static void run(bool launched)
{
    weft_function function{};
    function.name = "sum";
    function.takes[0] = WEFT_TYPE_TENSOR;
    function.gives[0] = WEFT_TYPE_F64;
    function.run = sum;
    weft_job_options other{};
    other.count = 1;
    weft_job *started = nullptr;
    check(launched ? WEFT_OK : weft_job_open(&other, &started, nullptr));
    handle<weft_job, end_job> children(started);
    weft_agent_options options{};
    options.functions = &function;
    options.function_count = 1;
    options.job = started;
    weft_agent *opened = nullptr;
    weft_error *error = nullptr;
    check(weft_agent_open(&options, &opened, &error), error);
    handle<weft_agent, weft_agent_stop> self(opened); // weft_agent_stop after an exception
    if (weft_agent_rank(opened) > 0)
        ask(opened);
    else
        check(weft_agent_serve(opened, WEFT_FOREVER)); // until all are done
    check(weft_agent_close(self.release(), WEFT_FOREVER));
    check(weft_job_close(children.release(), WEFT_FOREVER, nullptr));
}

int main()
try {
    run(weft_job_is_launched(nullptr, nullptr));
    return 0;
} catch (const std::exception &failure) {
    std::fprintf(stderr, "hello: %s\n", failure.what());
    return 1;
}
