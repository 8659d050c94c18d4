// SPDX-License-Identifier: Apache-2.0
// test_cpp_returning.cc - weft/weft.hpp with -fno-exceptions: results instead of exceptions.
#include <weft/weft.hpp>

#include <cstring>

static int failures;

static void check(bool good, const char *what)
{
    if (!good)
        std::fprintf(stderr, "not so: %s\n", what);
    failures += !good;
}

static std::vector<weft::function> served()
{
    return {{"add",
             {WEFT_TYPE_I64, WEFT_TYPE_I64},
             {WEFT_TYPE_I64},
             [](weft::call &call) { call.give({call.at<int64_t>(0) + call.at<int64_t>(1)}); }},
            {"fails", {}, {}, [](weft::call &call) {
                 weft_call_fail(call.get(), WEFT_ERR_NOT_FOUND, "no such shelf");
                 return WEFT_ERR_NOT_FOUND;
             }}};
}

static void check_calls(weft_agent *agent)
{
    using results = weft::future<weft::values>;
    weft_target to = weft_to_rank(0);
    weft::result<weft::values> sum = weft::rpc_sync(agent, to, "add", {1, 2});
    check(sum && *sum->at<int64_t>(0) == 3, "a call");
    check(sum->at<double>(0).status() == WEFT_ERR_TYPE, "a wrong type is a status");
    weft::result<weft::values> failed = weft::rpc_sync(agent, to, "fails");
    check(!failed && failed.status() == WEFT_ERR_REMOTE && failed.failure().handler_code() == WEFT_ERR_NOT_FOUND &&
              !std::strcmp(failed.failure().what(), "no such shelf") && !*failed,
          "a failure has its detail");
    auto chain = weft::rpc_async(agent, to, "add", {3, 4})->then([=](results reply) {
        return weft::rpc_async(agent, to, "add", {*reply.wait()->at<int64_t>(0), 1});
    });
    auto text = chain->then([](results reply) { return *reply.wait()->at<int64_t>(0) + 1; });
    check(*text->wait() == 9, "a chain");
    auto broken = weft::rpc_async(agent, to, "fails")->then([](results reply) { return reply.wait(); });
    check(broken->wait().status() == WEFT_ERR_REMOTE, "a continuation may return a failed result");
    auto nothing = chain->then([](results) { return weft::check(WEFT_ERR_IO); });
    check(nothing->wait().status() == WEFT_ERR_IO, "or a failed check");
    check(chain->then([](results) { return weft::check(WEFT_OK); })->wait().status() == WEFT_OK, "or one that is good");
    check(weft::make<weft::tensor>(weft_tensor_arange, -1, WEFT_DTYPE_FLOAT64).status() == WEFT_ERR_SHAPE, "a size");
}

int main()
{
    weft_agent_options options{};
    options.has_rank = true;
    options.world_size = 1;
    weft::result<weft::agent> agent = weft::agent::open(served(), options);
    if (!agent)
        return agent.failure().report();
    check_calls(agent->get());
    check(agent->add({"add", {}, {}, [](weft::call &) {}}).status() == WEFT_ERR_EXISTS, "a name is taken");
    weft::result<void> closed = agent->close();
    check(static_cast<bool>(closed), "it closes");
    options.fabric = "nonsense";
    check(weft::agent::open({}, options).status() == WEFT_ERR_INVALID, "a bad option");
    return failures ? 1 : 0;
}
