// SPDX-License-Identifier: Apache-2.0
// test_cpp.cc - weft/weft.hpp with exceptions: three processes; rank 0 checks, ranks 1 and 2 serve.
#include <weft/weft.hpp>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

static int failures;

static void check(bool good, const char *what)
{
    if (!good)
        std::fprintf(stderr, "not so: %s\n", what);
    failures += !good;
}

// Whether f fails with that code and that text in its message.
template <typename F> static bool fails(F f, weft_status code, const char *text = "")
{
    try {
        f();
    } catch (const weft::error &failure) {
        bool so = failure.code() == code && std::strstr(failure.what(), text);
        if (!so)
            failure.report();
        return so;
    }
    std::fprintf(stderr, "it did not fail: %s\n", text);
    return false;
}

struct counter {
    static std::atomic<int> alive;
    int64_t count = 0;
    counter() { alive++; }
    ~counter() { alive--; }
};
std::atomic<int> counter::alive(0);

static std::vector<std::thread> threads;
static std::mutex threads_lock;

static void answer_later(weft::call &call)
{
    auto deferred = std::make_shared<weft::deferred_call>(call.defer());
    std::lock_guard<std::mutex> locked(threads_lock);
    threads.emplace_back([deferred] {
        weft_call_give(deferred->get(), weft::arguments({weft_call_string(deferred->get(), 0), 1}));
        deferred->finish();
    });
}

static weft_status halves(weft::batch &batch)
{
    auto results = weft::make<weft::tensor>(weft_tensor_clone, weft_batch_tensor(batch.get(), 0));
    for (int64_t i = 0; i < weft_tensor_numel(results.get()); i++)
        static_cast<double *>(weft_tensor_data(results.get()))[i] /= 2;
    weft_batch_give(batch.get(), 0, results.get());
    return WEFT_OK;
}

// A function whose callable is a lambda, of any arguments and results.
template <typename F> static weft::function any(const char *name, F run)
{
    return weft::function(name, {WEFT_TYPE_REST}, {WEFT_TYPE_REST}, std::move(run));
}

static std::vector<weft::function> served()
{
    int64_t offset = 1000;
    weft_batch_options batches{};
    batches.size = 1;
    return {{"add",
             {WEFT_TYPE_I64, WEFT_TYPE_I64},
             {WEFT_TYPE_I64},
             [offset](weft::call &call) { call.give({call.at<int64_t>(0) + call.at<int64_t>(1) + offset}); }},
            any("echo", [](weft::call &call) { weft_call_give(call.get(), weft_args{call.at<weft_args>(1)}); }),
            any("throws", [](weft::call &) { throw std::runtime_error("no bread today"); }),
            any("throws_weft", [](weft::call &) { throw weft::error(WEFT_ERR_NOT_FOUND, "no such shelf"); }),
            any("throws_number", [](weft::call &) { throw 7; }),
            any("returns", [](weft::call &) { return WEFT_ERR_SHAPE; }),
            any("asks_2", [](weft::call &call) {
                weft::rpc_sync(weft_call_agent(call.get()), weft_to_rank(2), "throws");
            }),
            {"later", {WEFT_TYPE_STRING}, {WEFT_TYPE_STRING, WEFT_TYPE_I64}, answer_later},
            any("drops", [](weft::call &call) { (void)call.defer(); }),
            any("drops_and_throws", [](weft::call &call) {
                weft::deferred_call deferred = call.defer();
                throw std::runtime_error("after it was deferred");
            }),
            any("counter", [](weft::call &call) { call.give(std::unique_ptr<counter>(new counter)); }),
            {"count", {WEFT_TYPE_RREF, WEFT_TYPE_I64}, {WEFT_TYPE_I64}, [](weft::call &call) {
                 call.give({call.at<weft::rref>(0).local<counter>()->count += call.at<int64_t>(1)});
             }},
            any("layer", [](weft::call &call) { call.give(weft::make<weft::module>(weft_linear_create, 3, 1, true, 4)); }),
            any("no_layer", [](weft::call &call) { call.give(weft::module()); }),
            any("nothing", [](weft::call &call) { call.give({}); }),
            any("alive", [](weft::call &call) { call.give({counter::alive.load()}); }),
            {"halves", {WEFT_TYPE_TENSOR}, {WEFT_TYPE_TENSOR}, batches, halves},
            {"bad_batch", {WEFT_TYPE_TENSOR}, {WEFT_TYPE_TENSOR}, batches, [](weft::batch &) {
                 throw std::runtime_error("no batch today");
             }}};
}

static void check_calls(weft_agent *agent)
{
    weft_target to = weft_to_rank(1);
    check(weft::rpc_sync(agent, to, "add", {1, 2}).at<int64_t>(0) == 1003, "a lambda with a capture serves a call");
    auto x = weft::make<weft::tensor>(weft_tensor_arange, 3, WEFT_DTYPE_FLOAT64);
    weft::values back = weft::rpc_sync(agent, to, "echo",
                                       {0, {true, 2.5f, "text", std::string("string"), x, nullptr, {1, {2}},
                                            weft::bytes{"abc", 3}}});
    check(back.at<bool>(0) && back.at<double>(1) == 2.5, "a bool and a number come back");
    check(back.at<std::string>(2) == "text" && !std::strcmp(back.at<const char *>(3), "string"), "strings come back");
    check(weft_tensor_numel(back.at<weft::tensor>(4).get()) == 3, "a tensor comes back");
    check(weft_values_type(back.get(), 5) == WEFT_TYPE_NULL, "nullptr is the null value");
    back.wait(0); // for tensors of GPUs
    weft_args list = back.at<weft_args>(6);
    check(list.count == 2 && list.items[1].as.list.items[0].as.i64 == 2, "a list in a list comes back");
    weft::bytes raw = back.at<weft::bytes>(7);
    check(raw.size == 3 && !std::memcmp(raw.data, "abc", 3), "bytes come back");
    check(weft_values_count(weft::rpc_sync(agent, to, "echo", {0, back}).get()) == 8, "an owned list is an argument");
    check(fails([&] { back.at<int64_t>(2); }, WEFT_ERR_TYPE, "value 2 is of type string"), "a wrong type is an error");
    check(fails([&] { back.at<int64_t>(8); }, WEFT_ERR_NOT_FOUND), "so is a wrong index");
    check(weft::rpc_sync(agent, to, "later", {"soon"}).at<std::string>(0) == "soon", "a call is answered later");
    auto half = weft::rpc_sync(agent, to, "halves", {x}).at<weft::tensor>(0);
    check(weft_tensor_get_f64(half.get(), 1) == 0.5, "a lambda serves batches");
}

static void check_failures(weft_agent *agent)
{
    weft_target to = weft_to_rank(1);
    auto call = [&](const char *name) { return [=] { weft::rpc_sync(agent, to, name); }; };
    check(fails(call("nobody"), WEFT_ERR_NOT_FOUND, "nobody"), "an unknown function");
    check(fails(call("throws"), WEFT_ERR_REMOTE, "no bread today"), "a std::exception arrives as REMOTE");
    check(fails(call("throws_number"), WEFT_ERR_REMOTE, "no std::exception"), "so does any other one");
    check(fails(call("drops"), WEFT_ERR_REMOTE, "dropped the call"), "a dropped call fails");
    check(fails(call("drops_and_throws"), WEFT_ERR_REMOTE, "dropped the call"), "also by an exception");
    check(fails([=] { weft::rpc_sync(agent, to, "bad_batch", {weft::make<weft::tensor>(weft_tensor_arange, 1,
                                                                                      WEFT_DTYPE_FLOAT64)}); },
                WEFT_ERR_REMOTE, "no batch today"),
          "an exception in a batch arrives as REMOTE");
    try {
        call("throws_weft")();
        check(false, "it throws");
    } catch (const weft::error &failure) {
        check(failure.code() == WEFT_ERR_REMOTE && failure.handler_code() == WEFT_ERR_NOT_FOUND, "its code arrives");
        check(!std::strcmp(failure.what(), "no such shelf"), "and its text");
        check(!std::strcmp(failure.function(), "throws_weft") && failure.worker() == 1, "and where it was");
        check(failure.ran() == WEFT_RAN_YES, "it ran");
        weft::error copy = failure, other;
        other = copy;
        copy = std::move(other);
        check(!other && copy.get() == failure.get(), "errors are shared");
    }
    try {
        call("returns")();
        check(false, "it fails");
    } catch (const std::exception &failure) {
        check(static_cast<const weft::error &>(failure).handler_code() == WEFT_ERR_SHAPE, "a status arrives");
    }
    try {
        call("asks_2")();
        check(false, "it fails");
    } catch (const weft::error &failure) {
        check(failure.worker() == 2 && weft_error_hops(failure.get()) == 1 && weft_error_hop(failure.get(), 0) == 1 &&
                  std::strstr(failure.what(), "no bread today"),
              "a failure passes through a handler with its origin");
    }
    check(fails([] { weft::make<weft::tensor>(weft_tensor_arange, -1, WEFT_DTYPE_FLOAT64); }, WEFT_ERR_SHAPE),
          "a NULL is a failure");
    check(fails([=] { weft::make<weft::group>(weft_group_open, agent, "bad name", nullptr, 0, 0); }, WEFT_ERR_INVALID,
                "bad name"),
          "a constructor's error has its detail");
    weft::check(WEFT_OK);
    check(fails([] { weft::check(WEFT_ERR_IO, weft_error_create(WEFT_ERR_IO, "no disk")); }, WEFT_ERR_IO, "no disk"),
          "check throws the detail");
}

static void check_futures(weft_agent *agent)
{
    using results = weft::future<weft::values>;
    weft_target to = weft_to_rank(1);
    results first = weft::rpc_async(agent, to, "add", {1, 2}), copy = first;
    auto chain = first
                     .then([=](results sum) {
                         return weft::rpc_async(agent, weft_to_rank(2), "add", {sum.wait().at<int64_t>(0), 0});
                     })
                     .then([](results sum) { return std::to_string(sum.wait().at<int64_t>(0)); })
                     .then([](weft::future<std::string> text) { return text.wait() + "!"; });
    check(chain.wait() == "2003!" && chain.wait() == "2003!", "a chain of calls");
    check(copy.wait().at<int64_t>(0) == 1003, "a copy of a future has the same results");
    results outer = first.then([=](results) { return weft::rpc_async(agent, to, "add", {1, 1}); });
    check(outer.wait().at<int64_t>(0) == 1002, "a future of a future's values");
    std::atomic<int> ran(0);
    weft::future<void> nothing = copy.then([&](results) { ran++; });
    nothing.wait();
    check(ran == 1, "a continuation may return nothing");
    copy.then([&](results) { ran++; });
    while (ran < 2)
        std::this_thread::yield();
    auto thrower = copy.then([](results) -> int { throw std::runtime_error("no sum today"); });
    check(fails([&] { thrower.wait(); }, WEFT_ERR_REMOTE, "no sum today"), "an exception fails the future");
    auto after = thrower.then([](weft::future<int> parent) { return parent.wait() + 1; });
    check(fails([&] { after.wait(); }, WEFT_ERR_REMOTE, "no sum today"), "and those after it");
    auto failed = weft::rpc_async(agent, to, "throws_weft").then([](results sum) { sum.wait(); });
    check(fails([&] { failed.wait(); }, WEFT_ERR_REMOTE, "no such shelf"), "so does the failure of a call");
    auto inner = copy.then([=](results) { return weft::rpc_async(agent, to, "throws"); });
    check(fails([&] { inner.wait(); }, WEFT_ERR_REMOTE, "no bread today"), "and that of an inner future");
    check(fails([] { results().wait(); }, WEFT_ERR_INVALID), "an empty future");
    auto never = weft::make<weft::future<void>>(weft_future_create, agent);
    auto kept = std::make_shared<int>(1);
    auto waits = never.then([kept](weft::future<void>) {});
    check(fails([&] { waits.wait(0); }, WEFT_ERR_TIMEOUT), "a wait has a limit");
    weft::check(weft_future_cancel(never.get()));
    check(fails([&] { never.wait(); }, WEFT_ERR_CANCELLED), "a future can be cancelled");
    waits.wait();
    (void)weft::future<weft::values>(copy.release()); // ends here
    check(!copy, "a released owner is empty");
}

static void check_references(weft_agent *agent)
{
    int64_t before = weft::rpc_sync(agent, weft_to_rank(1), "alive").at<int64_t>(0);
    weft::rref made = weft::rpc_remote(agent, weft_to_rank(1), "counter");
    weft::rref copy = made;
    weft::rpc_sync(made.get(), "count", {3});
    check(weft::rpc_async(copy.get(), "count", {4}).wait().at<int64_t>(0) == 7, "an object stays on its worker");
    check(weft::rpc_sync(agent, weft_to_rank(1), "alive").at<int64_t>(0) == before + 1, "there is one");
    made.reset();
    copy = weft::rref();
    for (int i = 0; i < 1000 && weft::rpc_sync(agent, weft_to_rank(1), "alive").at<int64_t>(0) != before; i++)
        std::this_thread::yield();
    check(weft::rpc_sync(agent, weft_to_rank(1), "alive").at<int64_t>(0) == before, "and it ends with its last handle");
    weft::rref mine = weft::rref::of(agent, std::unique_ptr<counter>(new counter));
    check(mine.local<counter>(0)->count == 0 && counter::alive == 1, "an object of this worker");
    check(fails([&] { mine.local<std::string>(0); }, WEFT_ERR_TYPE), "has one type");
    weft::rref number = weft::make<weft::rref>(weft_rref_create, agent, weft::value(5));
    check(weft::make<weft::values>(weft_rref_to_here, number.get(), 0).at<int64_t>(0) == 5, "a value is fetched");
    mine.reset();
    check(counter::alive == 0, "it is deleted");
}

// A remote module and a tensor of this worker are stepped together.
static void check_remote_modules(weft_agent *agent)
{
    check(weft_values_count(weft::rpc_sync(agent, weft_to_rank(1), "nothing").get()) == 0, "an empty list is given");
    auto layer = weft::rpc_remote(agent, weft_to_rank(1), "layer");
    auto own = weft::make<weft::tensor>(weft_tensor_full, WEFT_SHAPE(1, 3), WEFT_DTYPE_FLOAT32, 2);
    weft_tensor_set_requires_grad(own.get(), true);
    weft_optimizer_spec spec{};
    spec.type = &weft_sgd_type;
    spec.lr = 1;
    auto sgd = weft::make<weft::dist_optimizer>(weft_dist_optimizer_create, agent, weft::arguments{layer, own}, &spec);
    weft_pass_options step{};
    step.step = sgd.get();
    double before = 0, after = 0;
    for (double *loss : {&before, &after}) {
        auto t = weft::make<weft::tape>(weft_dist_tape_open, agent, nullptr);
        weft_tensor *y = weft_remote_forward(t.get(), layer.get(), weft_scale(t.get(), own.get(), 1), nullptr);
        *loss = weft_tensor_get_f64(y, 0);
        weft_dist_backward(t.get(), weft_sum(t.get(), y), &step);
        t.check();
    }
    check(weft_dist_optimizer_owners(sgd.get()) == 2 && after < before, "both are stepped");
    layer = weft::rpc_remote(agent, weft_to_rank(1), "no_layer");
    auto t = weft::make<weft::tape>(weft_dist_tape_open, agent, nullptr);
    weft_remote_forward(t.get(), layer.get(), own.get(), nullptr);
    check(fails([&] { t.check(); }, WEFT_ERR_REMOTE, "is NULL"), "an empty owner is no module");
    check(fails([&] { weft::make<weft::tape>(weft_dist_tape_open, nullptr, nullptr).check(); }, WEFT_ERR_INVALID,
                "the agent is NULL"),
          "a tape says why it could not be opened");
}

// Copies and moves leave one reference for each owner: AddressSanitizer finds the others.
template <typename Owner> static void check_copies(Owner first, Owner second)
{
    Owner copy = first, moved = std::move(first), empty;
    auto *handle = copy.get();
    check(!first && moved.get() == handle && !empty && copy, "a move takes, a copy shares");
    Owner &same = copy;
    copy = same;
    check(copy.get() == handle, "an owner may be assigned to itself");
    second = copy;
    copy = std::move(moved);
    copy = empty;
    check(second.get() == handle && !copy, "assignments release the former handle");
    Owner adopted(second.release());
    check(!second && adopted.get() == handle && Owner::ref(handle).get() == handle, "release and adopt");
}
template <typename Owner> static void check_moves(Owner first, Owner second)
{
    static_assert(!std::is_copy_constructible<Owner>::value && !std::is_copy_assignable<Owner>::value, "moves only");
    auto *handle = first.get();
    Owner moved = std::move(first);
    check(!first && moved.get() == handle, "a move takes");
    second = std::move(moved);
    check(!moved && second.get() == handle, "an assignment ends the former object");
    moved = std::move(second);
}

static weft::agent open_alone(std::vector<weft::function> functions = {})
{
    weft_agent_options options{};
    options.has_rank = true;
    options.world_size = 1;
    return weft::agent::open(std::move(functions), options);
}

static void check_owners(weft_agent *agent)
{
    auto zeros = [] { return weft::make<weft::tensor>(weft_tensor_zeros, WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32); };
    check_copies(zeros(), zeros());
    auto list = [] { return weft::make<weft::values>(weft_values_create, weft::arguments({1, "two"})); };
    check_copies(list(), list());
    auto number = [=] { return weft::make<weft::rref>(weft_rref_create, agent, weft::value(5)); };
    check_copies<weft::counted<weft_rref, weft_rref_ref, weft_rref_unref>>(number(), number());
    auto group = [=](const char *name) {
        int self = 0;
        return weft::make<weft::group>(weft_group_open, agent, name, &self, 1, 0);
    };
    check_moves(group("one"), group("two"));
    weft::group ended = group("ended");
    weft_group_abort(ended.get(), weft::error(WEFT_ERR_CANCELLED, "enough").get());
    check(fails([&] { ended.check(weft_group_barrier(ended.get(), 0)); }, WEFT_ERR_CANCELLED, "enough"),
          "a group's error has its detail");
    check_moves(weft::make<weft::sim>(weft_sim_open, nullptr), weft::make<weft::sim>(weft_sim_open, nullptr));
#ifdef WEFT_CPP_ALL
    weft_tape_options record{};
    record.record = true;
    auto tape = [&] { return weft::make<weft::tape>(weft_tape_open, &record); };
    check_moves(tape(), tape());
    auto linear = [] { return weft::make<weft::module>(weft_linear_create, 2, 3, false, 1); };
    check_copies(linear(), linear());
    check_copies(weft::make<weft::hooks>(weft_hooks_create), weft::make<weft::hooks>(weft_hooks_create));
    auto context = [=] { return weft::make<weft::context>(weft_context_open, agent); };
    check_moves(context(), context());
    check(fails([] { weft::make<weft::module>(weft_linear_create, -2, 3, false, 1); }, WEFT_ERR_INVALID),
          "a module that cannot be made");
    weft::tape failed = tape();
    weft_module_forward(failed.get(), linear().get(), zeros().get());
    check(fails([&] { failed.check(); }, WEFT_ERR_SHAPE), "a tape has the error of its operators");
    tape().check();
#endif
}

static void check_agents()
{
    auto kept = std::make_shared<int>(1);
    {
        weft::agent first = open_alone(), second;
        first.add({"use", {}, {WEFT_TYPE_I64}, [kept](weft::call &call) { call.give({*kept}); }});
        check(fails([&] { first.add({"use", {}, {}, [kept](weft::call &) {}}); }, WEFT_ERR_EXISTS), "a name is taken");
        second = std::move(first);
        check(!first && second && kept.use_count() == 2, "an agent moves with its functions");
        check(weft::rpc_sync(second.get(), weft_to_rank(0), "use").at<int64_t>(0) == 1, "and serves them");
        second = open_alone({{"other", {}, {}, [](weft::call &) {}}});
        check(kept.use_count() == 1, "its former functions are gone");
        second.close();
        check(!second, "a closed agent is empty");
    }
    try { // an exception passes all owners, with a call in flight that is never answered
        std::atomic<bool> began(false);
        weft::deferred_call call;
        weft::agent agent = open_alone({any("hangs", [&, kept](weft::call &given) {
            call = given.defer();
            began = true;
        })});
        auto x = weft::make<weft::tensor>(weft_tensor_arange, 1000000, WEFT_DTYPE_FLOAT64);
        auto hangs = weft::rpc_async(agent.get(), weft_to_rank(0), "hangs", {x});
        auto then = hangs.then([kept](weft::future<weft::values> reply) { return reply.wait(); });
        while (!began)
            std::this_thread::yield();
        throw std::runtime_error("midway");
    } catch (const std::runtime_error &) {
    }
    std::vector<weft::function> functions;
    weft_agent *released = open_alone({{"use", {}, {}, [kept](weft::call &) {}}}).release(&functions);
    check(functions.size() == 1 && kept.use_count() == 2, "a released agent leaves its functions");
    weft_agent_stop(released);
    functions.clear();
    check(kept.use_count() == 1, "no owner keeps what a callable had");
    weft_agent_options bad{};
    bad.has_rank = true;
    bad.world_size = 1;
    bad.fabric = "nonsense";
    check(fails([&] { weft::agent::open({}, bad); }, WEFT_ERR_INVALID, "nonsense"), "a bad option is named");
    check(fails([] {
              open_alone({{"many",
                           {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64,
                            WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64,
                            WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64},
                           {},
                           [](weft::call &) {}}});
          },
                WEFT_ERR_INVALID),
          "too many types are refused");
}

static void check_group(weft_agent *agent) // on each rank
{
    auto all = weft::make<weft::group>(weft_group_open, agent, "all", nullptr, 0, 0);
    auto x = weft::make<weft::tensor>(weft_tensor_full, WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, weft_agent_rank(agent) + 1);
    all.check(weft_group_allreduce(all.get(), x.get(), WEFT_OP_SUM, 0));
    check(weft_tensor_get_f64(x.get(), 3) == 6, "an allreduce of three workers");
    auto barrier = weft::make<weft::future<void>>(weft_group_barrier_async, all.get(), 0);
    barrier.then([](weft::future<void> done) { done.wait(); }).wait();
    auto mine = weft::make<weft::values>(weft_group_allgather_values, all.get(),
                                         weft::arguments({weft_agent_rank(agent), "x"}), 0);
    check(mine.at<weft_args>(2).items[0].as.i64 == 2, "values of all members");
    all.check(weft_group_barrier(all.get(), 0));
}

static void run()
{
    weft::job job = weft_job_is_launched(nullptr, nullptr) ? weft::job() : weft::job::open(2);
    weft_agent_options options{};
    options.job = job.get();
    weft::agent agent = weft::agent::open(served(), options);
    check_group(agent.get());
    if (weft_agent_rank(agent.get()) == 0) {
        check_calls(agent.get());
        check_failures(agent.get());
        check_futures(agent.get());
        check_references(agent.get());
        check_remote_modules(agent.get());
        check_owners(agent.get());
    }
    weft::check(weft_agent_serve(agent.get(), WEFT_FOREVER));
    agent.close();
    for (std::thread &thread : threads)
        thread.join();
    job.close();
}

int main()
try {
    bool launched = weft_job_is_launched(nullptr, nullptr);
    run();
    if (!launched)
        check_agents();
    return failures ? 1 : 0;
} catch (const weft::error &failure) {
    return failure.report();
}
