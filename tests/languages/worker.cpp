// SPDX-License-Identifier: Apache-2.0
// worker.cpp - the worker in C++; see worker.c.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <weft/weft.hpp>

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    std::fprintf(stderr, "C++: not so: %s\n", what);
    _exit(1);
}

static double sum_of(const weft_tensor *x)
{
    double sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += weft_tensor_get_f64(x, i);
    return sum;
}

static void run_echo(weft::call &call)
{
    weft_call *c = call.get();
    weft_value values[16];
    for (size_t i = 0; i < weft_call_count(c) && i < 16; i++)
        switch (weft_call_type(c, i)) {
        case WEFT_TYPE_BOOL:
            values[i] = weft_of_bool(weft_call_bool(c, i));
            break;
        case WEFT_TYPE_I64:
            values[i] = weft_of_i64(weft_call_i64(c, i));
            break;
        case WEFT_TYPE_F64:
            values[i] = weft_of_f64(weft_call_f64(c, i));
            break;
        case WEFT_TYPE_STRING:
            values[i] = weft_of_string(weft_call_string(c, i));
            break;
        case WEFT_TYPE_TENSOR:
            values[i] = weft_of_tensor(weft_call_tensor(c, i));
            break;
        default:
            values[i] = weft_of_null();
        }
    weft_call_give(c, weft_args{values, weft_call_count(c)});
}

static void run_ramp(weft::call &call)
{
    auto x = weft::make<weft::tensor>(weft_tensor_arange, call.at<int64_t>(0), WEFT_DTYPE_FLOAT64);
    for (int64_t i = 0; i < weft_tensor_numel(x.get()); i++)
        static_cast<double *>(weft_tensor_data(x.get()))[i] += 1;
    call.give({x});
}

static void run_total(weft::call &call)
{
    weft_call *c = call.get();
    if (weft_call_type(c, 0) == WEFT_TYPE_TENSOR) {
        call.give({sum_of(weft_call_tensor(c, 0))});
        return;
    }
    auto here = weft::make<weft::values>(weft_rref_to_here, weft_call_rref(c, 0), 0);
    weft_tensor *x = nullptr;
    weft::check(weft_values_get_tensor(here.get(), 0, &x));
    call.give({sum_of(x)});
}

static void call_all(weft_agent *agent, int to, int next, int calls)
{
    auto x = weft::make<weft::tensor>(weft_tensor_arange, 200001, WEFT_DTYPE_FLOAT64);
    weft::values got = weft::rpc_sync(agent, weft_to_rank(to), "echo", {true, INT64_MIN, 0.1, "gr\xc3\xbc\xc3\x9f", x});
    must(weft_values_count(got.get()) == 5 && got.at<int64_t>(1) == INT64_MIN && got.at<double>(2) == 0.1, "echo");
    must(got.at<std::string>(3) == "gr\xc3\xbc\xc3\x9f", "a string");
    must(weft::rpc_sync(agent, weft_to_rank(to), "total", {x}).at<double>(0) == 20000100000.0, "total");
    try {
        weft::rpc_sync(agent, weft_to_rank(to), "fail", {});
        must(false, "an error");
    } catch (const weft::error &error) {
        must(error.code() == WEFT_ERR_REMOTE &&
                 std::string(error.what()).find("never on a Friday") != std::string::npos,
             "an error");
    }
    weft_rref *handle = nullptr;
    auto count = WEFT_VALUES(weft_of_i64(100));
    weft::check(weft_rpc_remote(agent, weft_to_rank(to), "ramp", count, nullptr, &handle));
    weft::rref far(handle);
    must(weft::rpc_sync(agent, weft_to_rank(next), "total", {far}).at<double>(0) == 5050, "the sum of a reference");
    for (int i = 0; i < calls; i++)
        weft::rpc_sync(agent, weft_to_rank(to), "nothing", {});
}

int main()
try {
    weft_agent_options options{};
    weft::agent agent = weft::agent::open(
        {{"echo", {WEFT_TYPE_REST}, {WEFT_TYPE_REST}, run_echo},
         {"fail", {}, {}, [](weft::call &call) { weft_call_fail(call.get(), WEFT_ERR_INVALID, "never on a Friday"); }},
         {"ramp", {WEFT_TYPE_I64}, {WEFT_TYPE_TENSOR}, run_ramp},
         {"total", {WEFT_TYPE_ANY}, {WEFT_TYPE_F64}, run_total},
         {"die", {}, {}, [](weft::call &) { std::raise(SIGKILL); }},
         {"nothing", {}, {}, [](weft::call &) {}}},
        options);
    const char *calls = std::getenv("CALLS");
    int size = weft_agent_world_size(agent.get()), me = weft_agent_rank(agent.get());
    for (int i = 1; i < size; i++)
        call_all(agent.get(), (me + i) % size, (me + i + 1) % size, calls ? std::atoi(calls) : 100);
    auto all = weft::make<weft::group>(weft_group_open, agent.get(), "all", nullptr, 0, 0);
    std::puts("C++: all is well");
    std::fflush(stdout);
    all.check(weft_group_barrier(all.get(), 0));
    weft::check(weft_agent_serve(agent.get(), WEFT_FOREVER)); // until it is killed
} catch (const weft::error &failure) {
    return failure.report();
}
