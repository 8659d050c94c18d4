// SPDX-License-Identifier: Apache-2.0
/*
 * weft/weft.hpp - weft for C++11 and later: owners of the handles, exceptions, callables, futures as values.
 *
 * This header only adds to the C headers, which it includes. C functions are called as they are, with get() of an
 * owner; the C headers describe them. docs/cpp.md has examples and a table of the owners.
 *
 *     weft::agent agent = weft::agent::open({{"twice", {WEFT_TYPE_F64}, {WEFT_TYPE_F64}, [](weft::call &call) {
 *                                                 call.give({2 * call.at<double>(0)});
 *                                             }}});
 *     double six = weft::rpc_sync(agent.get(), weft_to_rank(0), "twice", {3.0}).at<double>(0);
 *     agent.close();
 *
 * FAILURES. A function that can fail returns weft::result<T>. This is T itself, and a failure is thrown as a
 * weft::error. With -fno-exceptions it is a class that holds a T or the error; the caller checks which of the two.
 * The two forms are in different inline namespaces, so one program may contain both.
 *
 * OWNERS. `counted` owners share an object: a copy takes a reference. `owned` ones can only be moved; their destructor
 * ends the object without waiting for others and without throwing. Each has get() (borrows the handle), release()
 * (gives it up) and reset(), and is false if empty.
 *
 * THREADS. As with std::shared_ptr: several threads may use one object of weft, but each needs an owner of its own.
 */
#ifndef WEFT_WEFT_HPP
#define WEFT_WEFT_HPP

#if defined(__has_include)
#if __has_include(<weft/weft.h>)
#define WEFT_CPP_ALL 1 // not a WEFT_RPC_ONLY build
#include <weft/weft.h>
#endif
#endif
#include <weft/agent.h>
#include <weft/batch.h>
#include <weft/future.h>
#include <weft/group.h>
#include <weft/job.h>
#include <weft/rpc.h>
#include <weft/rref.h>
#include <weft/sim.h>
#include <weft/stream.h>
#include <weft/tensor.h>
#include <weft/value.h>

#include <algorithm>        // std::copy_n
#include <exception>        // std::exception
#include <initializer_list> // lists of values and types
#include <memory>           // std::shared_ptr, std::unique_ptr
#include <string>           // std::string
#include <type_traits>      // std::enable_if
#include <utility>          // std::move
#include <vector>           // std::vector

namespace weft
{
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define WEFT_CPP_THROWS 1
#define WEFT_CPP_NODISCARD
inline namespace throwing
{
#else
#define WEFT_CPP_THROWS 0
#define WEFT_CPP_NODISCARD WEFT_NODISCARD
inline namespace returning
{
#endif

// ---- Owners ----

// Is the only owner of an object. It can be moved.
template <typename T, void (*End)(T *)> class owned
{
  public:
    using pointer = T *;
    owned() noexcept {}
    explicit owned(T *taken) noexcept : held(taken) {}
    owned(owned &&from) noexcept : held(from.release()) {}
    owned &operator=(owned &&from) noexcept
    {
        reset(from.release());
        return *this;
    }
    ~owned()
    {
        reset();
    }
    T *get() const noexcept
    {
        return held;
    }
    explicit operator bool() const noexcept
    {
        return held != nullptr;
    }
    T *release() noexcept
    {
        T *given = held;
        held = nullptr;
        return given;
    }
    void reset(T *taken = nullptr) noexcept
    {
        T *former = held;
        held = taken;
        if (former)
            End(former);
    }

  private:
    T *held = nullptr;
};

// Owns an object that others may own too. A copy takes a reference.
template <typename T, T *(*Ref)(T *), void (*Unref)(T *)> class counted : public owned<T, Unref>
{
  public:
    counted() noexcept {}
    explicit counted(T *taken) noexcept : owned<T, Unref>(taken) {} // takes over your reference
    counted(counted &&from) noexcept : owned<T, Unref>(from.release()) {}
    counted(const counted &from) noexcept : owned<T, Unref>(from ? Ref(from.get()) : nullptr) {}
    counted &operator=(counted from) noexcept
    {
        this->reset(from.release());
        return *this;
    }
    static counted ref(T *lent)
    {
        return counted(lent ? Ref(lent) : nullptr);
    } // takes a reference of its own
};

// ---- Failures ----

namespace detail
{
inline weft_error *ref_error(weft_error *why)
{
    return weft_error_ref(why);
}
} // namespace detail

// A failure with its detail; empty: none.
class error : public std::exception, public counted<weft_error, detail::ref_error, weft_error_unref>
{
  public:
    using counted<weft_error, detail::ref_error, weft_error_unref>::counted;
    error(weft_status code, const char *message) : counted(weft_error_create(code, "%s", message)) {}
    const char *what() const noexcept override // the message; without one the sentence of the code
    {
        const char *message = weft_error_message(get());
        return *message ? message : weft_status_text(code());
    }
    weft_status code() const noexcept
    {
        return weft_error_code(get());
    }
    weft_status handler_code() const noexcept
    {
        return weft_error_handler_code(get());
    }
    weft_ran ran() const noexcept
    {
        return weft_error_ran(get());
    }
    const char *function() const noexcept
    {
        return weft_error_function(get());
    }
    int worker() const noexcept
    {
        return weft_error_worker(get());
    }
    int report(FILE *to = stderr) const noexcept // prints the error in one line; the exit code for main: 0 or 1
    {
        weft_error_print(get(), to);
        return get() ? 1 : 0;
    }
};

#if WEFT_CPP_THROWS
template <typename T> using result = T;
#else
// A T, or the error instead of it.
template <typename T> class result;
template <> class result<void>
{
  public:
    result() {}
    result(error failed) : why(std::move(failed)) {}
    explicit operator bool() const noexcept
    {
        return !why;
    } // whether it succeeded
    weft_status status() const noexcept
    {
        return why.code();
    }
    const error &failure() const noexcept
    {
        return why;
    }

  private:
    error why;
};
template <typename T> class result : public result<void>
{
  public:
    result(T given) : held(std::move(given)) {}
    result(error failed) : result<void>(std::move(failed)), held() {}
    T &operator*() noexcept
    {
        return held;
    } // empty, or 0, after a failure
    T *operator->() noexcept
    {
        return &held;
    }

  private:
    T held;
};
#endif

namespace detail
{
// The error of a status: `taken`, or a new one; NULL if the status is no failure.
inline weft_error *failure(weft_status status, weft_error *taken)
{
    if (status < 0 && !taken)
        return weft_error_create(status, "%s", weft_status_text(status));
    if (status < 0)
        return taken;
    weft_error_unref(taken);
    return nullptr;
}
inline weft_error *shared(const weft_error *lent)
{
    return lent ? weft_error_ref(lent) : nullptr;
}

// end<T>(failed, make): the result of a function: the error that it takes over, or what make() returns. caught(f):
// calls f, and returns its exception as an error; NULL if it has thrown nothing.
#if WEFT_CPP_THROWS
template <typename T, typename F> T end(weft_error *failed, F make)
{
    if (failed)
        throw error(failed);
    return make();
}
template <typename F> weft_error *caught(F f) noexcept
{
    try {
        f();
        return nullptr;
    } catch (const error &thrown) {
        return thrown.get() ? shared(thrown.get()) : weft_error_create(WEFT_ERR_REMOTE, "an empty weft::error");
    } catch (const std::exception &thrown) {
        return weft_error_create(WEFT_ERR_REMOTE, "%s", thrown.what());
    } catch (...) {
        return weft_error_create(WEFT_ERR_REMOTE, "an exception that is no std::exception");
    }
}
#else
template <typename T, typename F>
typename std::enable_if<!std::is_void<T>::value, result<T>>::type end(weft_error *failed, F make)
{
    return failed ? result<T>(error(failed)) : result<T>(make());
}
template <typename T, typename F>
typename std::enable_if<std::is_void<T>::value, result<T>>::type end(weft_error *failed, F make)
{
    if (failed)
        return result<void>(error(failed));
    make();
    return result<void>();
}
template <typename F> weft_error *caught(F f) noexcept
{
    f();
    return nullptr;
}
#endif
inline void nothing() {}

// Ends of objects whose function has other parameters, or that need an answer.
inline void end_job(weft_job *job)
{
    (void)!weft_job_close(job, 1000, nullptr);
}
inline void end_call(weft_call *call)
{
    weft_call_fail(call, WEFT_ERR_CANCELLED, "the handler dropped the call without an answer");
    weft_call_finish(call, WEFT_ERR_CANCELLED);
}
inline void end_batch(weft_batch *batch)
{
    weft_batch_fail(batch, WEFT_ERR_CANCELLED, "the handler dropped the batch without an answer");
    weft_batch_finish(batch, WEFT_ERR_CANCELLED);
}
} // namespace detail

// Does nothing if `status` is WEFT_OK or WEFT_DEFERRED, otherwise fails with it and the detail, which it takes over.
WEFT_CPP_NODISCARD inline result<void> check(weft_status status, weft_error *taken = nullptr)
{
    return detail::end<void>(detail::failure(status, taken), detail::nothing);
}

// ---- Making objects ----

using tensor = counted<weft_tensor, weft_tensor_ref, weft_tensor_unref>;
using stream = counted<weft_stream, weft_stream_ref, weft_stream_unref>;
using sim = owned<weft_sim, weft_sim_close>; // link libweft_sim
#ifdef WEFT_CPP_ALL
using module = counted<weft_module, weft_module_ref, weft_module_unref>;
#endif

namespace detail
{
template <int N> struct choice : choice<N + 1> {
};
template <> struct choice<2> {
};

// The forms of C's constructors: a status and *out, with or without *error; or the object itself, a tape or a future.
template <typename H, typename F, typename... A>
auto make(choice<0>, F f, A &&...a)
    -> decltype(f(a..., std::declval<typename H::pointer *>(), std::declval<weft_error **>()), result<H>(H()))
{
    typename H::pointer made = nullptr;
    weft_error *why = nullptr;
    weft_status status = f(a..., &made, &why);
    return end<H>(failure(status, why), [&] { return H(made); });
}
template <typename H, typename F, typename... A>
auto make(choice<1>, F f, A &&...a) -> decltype(f(a..., std::declval<typename H::pointer *>()), result<H>(H()))
{
    typename H::pointer made = nullptr;
    weft_status status = f(a..., &made);
    return end<H>(failure(status, nullptr), [&] { return H(made); });
}
template <typename H, typename F, typename... A>
auto make(choice<2>, F f, A &&...a) -> decltype(H(f(a...)), result<H>(H()))
{
    typename H::pointer made = f(a...);
    const char *why = "weft made no object: an argument is wrong, or memory is out";
    return end<H>(made ? nullptr : weft_error_create(WEFT_ERR_INVALID, "%s", why), [&] { return H(made); });
}
} // namespace detail

// Calls a C function that makes an object, without its outputs, and returns the owner:
// make<weft::tensor>(weft_tensor_zeros, WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32). A NULL object is a failure.
template <typename H, typename F, typename... A> WEFT_CPP_NODISCARD result<H> make(F function, A &&...arguments)
{
    return detail::make<H>(detail::choice<0>(), function, arguments...);
}

// ---- Values ----

struct bytes { // borrowed
    const void *data;
    size_t size;
};

class rref;
class values;

// One value of a list, which borrows: {x, 2.5, "text", {1, 2}} is four of them, the last one a list.
struct value : weft_value {
    value(const weft_value &given) : weft_value(given) {}
    value(std::nullptr_t) : weft_value(weft_of_null()) {}
    template <typename T, typename std::enable_if<std::is_same<T, bool>::value, int>::type = 0>
    value(T given) : weft_value(weft_of_bool(given))
    {
    }
    template <typename T,
              typename std::enable_if<std::is_integral<T>::value && !std::is_same<T, bool>::value, int>::type = 0>
    value(T given) : weft_value(weft_of_i64(static_cast<int64_t>(given)))
    {
    }
    template <typename T, typename std::enable_if<std::is_floating_point<T>::value, int>::type = 0>
    value(T given) : weft_value(weft_of_f64(static_cast<double>(given)))
    {
    }
    value(const char *text) : weft_value(weft_of_string(text)) {}
    value(const std::string &text) : weft_value(weft_of_string(text.c_str())) {} // up to its first NUL
    value(bytes given) : weft_value(weft_of_bytes(given.data, given.size)) {}
    value(weft_tensor *given) : weft_value(weft_of_tensor(given)) {}
    value(const tensor &given) : weft_value(weft_of_tensor(given.get())) {}
    value(weft_tensors given) : weft_value(weft_of_tensors(given)) {}
    value(weft_rref *given) : weft_value(weft_of_rref(given)) {}
    inline value(const rref &given);
    inline value(const values &given); // as a list
    value(weft_args list) : weft_value(weft_of_list(list)) {}
    inline value(std::initializer_list<value> list);
};
static_assert(sizeof(value) == sizeof(weft_value), "an array of value is one of weft_value");

// A parameter that receives a list: {x, 2.5}, WEFT_VALUES(...), a weft_args or a weft::values. Do not declare variables
// of this type: the list lives until the end of its statement.
class arguments
{
  public:
    arguments() : list(WEFT_NO_VALUES) {}
    arguments(std::initializer_list<value> given)
    {
        list.items = given.begin();
        list.count = given.size();
    }
    arguments(weft_args_in given) : list{given.items, given.count} {}
    arguments(weft_args given) : list(given) {}
    template <typename... V> arguments(const weft_literal<V...> &given) : arguments(weft_args_in(given)) {}
    inline arguments(const values &given);
    operator weft_args_in() const
    {
        return weft_args_in(list);
    }

  private:
    weft_args list;
};

inline value::value(std::initializer_list<value> list) : weft_value(weft_of_list(weft_args_in(arguments(list)))) {}

namespace detail
{
// One value of a list of results, or of a call's arguments, by its C++ type.
#define WEFT_CPP_READ(type, name)                                                                                      \
    inline weft_status read(const weft_values *from, size_t index, type *out)                                          \
    {                                                                                                                  \
        return weft_values_get_##name(from, index, out);                                                               \
    }                                                                                                                  \
    inline weft_status read(const weft_call *from, size_t index, type *out)                                            \
    {                                                                                                                  \
        *out = weft_call_##name(from, index);                                                                          \
        return WEFT_OK;                                                                                                \
    }
WEFT_CPP_READ(bool, bool)
WEFT_CPP_READ(int64_t, i64)
WEFT_CPP_READ(double, f64)
WEFT_CPP_READ(const char *, string)
WEFT_CPP_READ(weft_tensor *, tensor)
WEFT_CPP_READ(weft_tensors, tensors)
WEFT_CPP_READ(weft_rref *, rref)
WEFT_CPP_READ(weft_args, list)
#undef WEFT_CPP_READ
inline weft_status read(const weft_values *from, size_t index, bytes *out)
{
    return weft_values_get_bytes(from, index, &out->data, &out->size);
}
inline weft_status read(const weft_call *from, size_t index, bytes *out)
{
    out->data = weft_call_bytes(from, index, &out->size);
    return WEFT_OK;
}
template <typename From> weft_status read(const From *from, size_t index, std::string *out)
{
    const char *text = nullptr;
    weft_status status = read(from, index, &text);
    *out = text ? text : "";
    return status;
}
template <typename From> weft_status read(const From *from, size_t index, tensor *out)
{
    weft_tensor *lent = nullptr;
    weft_status status = read(from, index, &lent);
    *out = tensor::ref(lent);
    return status;
}
template <typename From> weft_status read(const From *from, size_t index, rref *out);
} // namespace detail

// The results of a call, or another owned list.
class values : public counted<weft_values, weft_values_ref, weft_values_unref>
{
  public:
    using counted::counted;
    /* Value `index`, as bool, int64_t, double, std::string, weft::tensor or weft::rref; or borrowed from the list, as
     * const char *, weft::bytes, weft_tensor *, weft_tensors, weft_rref * or weft_args. WEFT_ERR_NOT_FOUND,
     * WEFT_ERR_TYPE. */
    template <typename T> WEFT_CPP_NODISCARD result<T> at(size_t index) const
    {
        T out{};
        weft_status status = detail::read(get(), index, &out);
        weft_error *why = nullptr;
        if (status == WEFT_ERR_TYPE)
            why = weft_error_create(status, "value %zu is of type %s", index,
                                    weft_type_name(weft_values_type(get(), index)));
        return detail::end<T>(detail::failure(status, why), [&] { return std::move(out); });
    }
    // Waits until the data of all tensors are on their devices (weft_values_wait).
    WEFT_CPP_NODISCARD result<void> wait(int64_t wait_ms = WEFT_FOREVER) const
    {
        return check(weft_values_wait(get(), wait_ms));
    }
};
inline value::value(const values &given) : weft_value(weft_of_list(weft_values_args(given.get()))) {}
inline arguments::arguments(const values &given) : list(weft_values_args(given.get())) {}

// ---- Futures ----

template <typename T> class future;

namespace detail
{
// plain<R>: the T of the future that a continuation which returns R makes: R itself, or that of a future or result.
template <typename R> struct plain {
    using type = R;
};
template <typename U> struct plain<future<U>> {
    using type = U;
};
#if !WEFT_CPP_THROWS
template <typename U> struct plain<result<U>> : plain<U> {
};
#endif

template <typename U> void delete_payload(void *payload)
{
    delete static_cast<U *>(payload);
}
// Complete a future of weft_future_then with a value, with the result of another future, or with an error. If it was
// cancelled meanwhile, nothing happens.
template <typename U> void deliver(weft_future *to, U given)
{
    (void)!weft_future_complete(to, new U(std::move(given)), delete_payload<U>);
}
inline void deliver(weft_future *to)
{
    (void)!weft_future_complete(to, nullptr, nullptr);
}
inline void deliver_failure(weft_future *to, weft_error *taken)
{
    (void)!weft_future_fail(to, taken);
    weft_error_unref(taken);
}

// How to read and to pass on the result of a complete future.
template <typename T> struct payload {
    static T of(const weft_future *from)
    {
        return *static_cast<const T *>(weft_future_payload(from));
    }
    static void pass(const weft_future *from, weft_future *to)
    {
        deliver(to, of(from));
    }
};
template <> struct payload<void> {
    static void of(const weft_future *) {}
    static void pass(const weft_future *, weft_future *to)
    {
        deliver(to);
    }
};
template <> inline values payload<values>::of(const weft_future *from)
{
    if (const weft_values *lent = weft_future_values(from)) // of a call
        return values(weft_values_ref(const_cast<weft_values *>(lent)));
    return *static_cast<const values *>(weft_future_payload(from));
}
template <typename U> void deliver_complete(weft_future *from, void *arg)
{
    weft_future *to = static_cast<weft_future *>(arg);
    weft_error *why = shared(weft_future_error(from));
    if (!why)
        why = caught([&] { payload<U>::pass(from, to); });
    if (why)
        deliver_failure(to, why);
}
inline void drop_future(void *future)
{
    weft_future_unref(static_cast<weft_future *>(future));
}
template <typename U> void deliver(weft_future *to, future<U> from)
{
    weft_status status =
        weft_future_add_done_callback(from.get(), deliver_complete<U>, weft_future_ref(to), drop_future);
    if (status)
        deliver_failure(to, failure(status, nullptr));
}
#if !WEFT_CPP_THROWS
template <typename U> void deliver(weft_future *to, result<U> given)
{
    if (given)
        deliver(to, std::move(*given));
    else
        deliver_failure(to, shared(given.failure().get()));
}
inline void deliver(weft_future *to, result<void> given)
{
    if (given)
        deliver(to);
    else
        deliver_failure(to, shared(given.failure().get()));
}
#endif

template <typename F, typename T> using continued = decltype(std::declval<F &>()(std::declval<future<T>>()));
template <typename T, typename F, bool Void> struct continuation {
    F f;
    void run(weft_future *child, future<T> parent)
    {
        deliver(child, f(std::move(parent)));
    }
};
template <typename T, typename F> struct continuation<T, F, true> {
    F f;
    void run(weft_future *child, future<T> parent)
    {
        f(std::move(parent));
        deliver(child);
    }
};
template <typename T, typename C> weft_status run_continuation(weft_future *parent, weft_future *child, void *arg)
{
    weft_error *why = caught([&] { static_cast<C *>(arg)->run(child, future<T>(weft_future_ref(parent))); });
    if (why)
        deliver_failure(child, why);
    return WEFT_OK;
}
} // namespace detail

/*
 * A result that comes later: weft::values of a call, void of a group's operation, or what a continuation returned. Make
 * future<void> or future<weft::values> of a C function by weft::make, with the type that its payload has.
 */
template <typename T> class future : public counted<weft_future, weft_future_ref, weft_future_unref>
{
  public:
    using counted<weft_future, weft_future_ref, weft_future_unref>::counted;
    /* Waits at most wait_ms, and returns a copy of the result, or fails with the error of the future. WEFT_ERR_TIMEOUT,
     * WEFT_ERR_CANCELLED, WEFT_ERR_DEADLOCK: the future may still complete (weft_future_done). */
    WEFT_CPP_NODISCARD result<T> wait(int64_t wait_ms = WEFT_FOREVER) const
    {
        weft_status status = weft_future_wait(get(), wait_ms);
        weft_error *why = status ? detail::shared(weft_future_error(get())) : nullptr;
        return detail::end<T>(detail::failure(status, why), [this] { return detail::payload<T>::of(get()); });
    }
    /*
     * Runs f(future<T>) when this future is complete, on the agent's executor; f begins with wait(), which does not
     * block then. Returns the future of what f returns. If f returns a future<U>, the returned future is a future<U>
     * too. If f throws, the returned future fails: with the weft::error that was thrown, or with WEFT_ERR_REMOTE and
     * the text of any other exception. Nobody sees the error if that future is dropped; f runs nevertheless.
     */
    template <typename F>
    WEFT_CPP_NODISCARD auto then(F f) const -> result<future<typename detail::plain<detail::continued<F, T>>::type>>
    {
        using made = future<typename detail::plain<detail::continued<F, T>>::type>;
        using state = detail::continuation<T, F, std::is_void<detail::continued<F, T>>::value>;
        void *arg = new state{std::move(f)};
        return weft::make<made>(weft_future_then, get(), detail::run_continuation<T, state>, arg,
                                detail::delete_payload<state>);
    }
};

// ---- Remote references ----

namespace detail
{
template <typename T> const char *type_name()
{
    return __PRETTY_FUNCTION__; // "const char* ...type_name() [with T = counter]"
}
template <typename T> const weft_object_type *object_type()
{
    static const weft_object_type type = {type_name<T>(), delete_payload<T>};
    return &type;
}
} // namespace detail

class rref : public counted<weft_rref, weft_rref_ref, weft_rref_unref>
{
  public:
    using counted::counted;
    // Makes a handle to an object of this worker (weft_rref_create_typed), which the last handle deletes.
    template <typename T> WEFT_CPP_NODISCARD static result<rref> of(weft_agent *agent, std::unique_ptr<T> object)
    {
        return make<rref>(weft_rref_create_typed, agent, detail::object_type<T>(), object.release());
    }
    // The object, on its owner only; waits at most wait_ms until it exists. Errors: weft_rref_local_typed.
    template <typename T> WEFT_CPP_NODISCARD result<T *> local(int64_t wait_ms = WEFT_FOREVER) const
    {
        void *object = nullptr;
        weft_status status = weft_rref_local_typed(get(), detail::object_type<T>(), wait_ms, &object);
        return detail::end<T *>(detail::failure(status, nullptr), [&] { return static_cast<T *>(object); });
    }
};
inline value::value(const rref &given) : weft_value(weft_of_rref(given.get())) {}
namespace detail
{
template <typename From> weft_status read(const From *from, size_t index, rref *out)
{
    weft_rref *lent = nullptr;
    weft_status status = read(from, index, &lent);
    *out = rref(lent ? weft_rref_ref(lent) : nullptr);
    return status;
}
} // namespace detail

// ---- Handlers ----

// A call or batch whose handler has returned. finish() answers it; otherwise the destructor makes it fail with
// WEFT_ERR_CANCELLED.
template <typename C, void (*End)(C *), void (*Finish)(C *, weft_status)> class deferred : public owned<C, End>
{
  public:
    using owned<C, End>::owned;
    void finish(weft_status status = WEFT_OK)
    {
        Finish(this->release(), status);
    }
};
using deferred_call = deferred<weft_call, detail::end_call, weft_call_finish>;
using deferred_batch = deferred<weft_batch, detail::end_batch, weft_batch_finish>;

// A call or batch, borrowed by its handler.
template <typename C, typename Deferred, C *(*Defer)(C *)> class borrowed
{
  public:
    explicit borrowed(C *given) : lent(given) {}
    borrowed(const borrowed &) = delete;
    borrowed &operator=(const borrowed &) = delete;
    C *get() const noexcept
    {
        return lent;
    }
    // Keeps the call open after the handler has returned. What the handler returns or throws then does not count.
    Deferred defer()
    {
        later = true;
        return Deferred(Defer(lent));
    }
    bool is_deferred() const noexcept
    {
        return later;
    }

  private:
    C *lent;
    bool later = false;
};
using batch = borrowed<weft_batch, deferred_batch, weft_batch_defer>;
class call : public borrowed<weft_call, deferred_call, weft_call_defer_keeping>
{
  public:
    using borrowed::borrowed;
    template <typename T> T at(size_t index) const // argument `index`; the types of values::at
    {
        T out{};
        (void)detail::read(get(), index, &out);
        return out;
    }
    void give(arguments results)
    {
        weft_call_give(get(), results);
    }
    template <typename T> void give(std::unique_ptr<T> object) // the result of a call of weft_rpc_remote
    {
        weft_call_give_object(get(), detail::object_type<T>(), object.release());
    }
#ifdef WEFT_CPP_ALL
    // The same: a remote module (weft/remote_module.h). A template, so that a list in braces is never a module.
    template <typename M, typename std::enable_if<std::is_same<M, module>::value, int>::type = 0> void give(M made)
    {
        weft_call_give_object(get(), &weft_module_object, made.release());
    }
#endif
};

namespace detail
{
inline void fail(weft_call *call, const weft_error *why)
{
    if (weft_error_code(why) == WEFT_ERR_REMOTE && !weft_error_handler_code(why)) // an exception of this handler
        weft_call_fail(call, WEFT_ERR_REMOTE, "%s", weft_error_message(why));
    else
        weft_call_fail_with(call, why);
}
inline void fail(weft_batch *batch, const weft_error *why)
{
    weft_batch_fail(batch, weft_error_code(why), "%s", weft_error_message(why));
}

// Calls a handler, which returns nothing or a status.
template <typename F, typename View, typename R = decltype(std::declval<F &>()(std::declval<View &>()))>
typename std::enable_if<std::is_void<R>::value, weft_status>::type handle(F &f, View &view)
{
    f(view);
    return WEFT_OK;
}
template <typename F, typename View, typename R = decltype(std::declval<F &>()(std::declval<View &>()))>
typename std::enable_if<!std::is_void<R>::value, R>::type handle(F &f, View &view)
{
    return f(view);
}
template <typename View, typename C, typename F> weft_status run_handler(C *lent, void *user)
{
    View view(lent);
    weft_status status = WEFT_OK;
    weft_error *why = caught([&] { status = handle(*static_cast<F *>(user), view); });
    if (why && !view.is_deferred()) { // a deferred call may be gone
        fail(lent, why);
        status = weft_error_code(why);
    }
    weft_error_unref(why);
    return view.is_deferred() ? WEFT_DEFERRED : status;
}
} // namespace detail

/*
 * A function that workers can call: name, types of the arguments and results, and a callable void(weft::call &) or
 * weft_status(weft::call &). If the callable throws, the call fails at its caller with WEFT_ERR_REMOTE and the text of
 * the exception. The callable may run on several threads at once. It is shared by copies of the function and by agents
 * that have it, and lives as long as these. get() is the C struct, for other fields, such as `flags`; its field
 * `user` is in use.
 */
class function
{
  public:
    using types = std::initializer_list<weft_type>;
    template <typename F> function(const char *called, types takes, types gives, F run) : function(called, takes, gives)
    {
        described.run = detail::run_handler<call, weft_call, F>;
        keep(std::make_shared<F>(std::move(run)));
    }
    // One whose callable void(weft::batch &) or weft_status(weft::batch &) receives many calls at once (weft/batch.h).
    template <typename F>
    function(const char *called, types takes, types gives, const weft_batch_options &batches, F run)
        : function(called, takes, gives)
    {
        described.run_batch = detail::run_handler<batch, weft_batch, F>;
        described.batch = batches;
        keep(std::make_shared<F>(std::move(run)));
    }
    weft_function &get() noexcept
    {
        described.name = name.c_str();
        return described;
    }

  private:
    function(const char *called, types takes, types gives) : name(called)
    {
        copy(takes, described.takes);
        copy(gives, described.gives);
    }
    static void copy(types from, weft_type *to)
    {
        // Too many types: the missing WEFT_TYPE_NONE at the end makes weft refuse the function.
        std::copy_n(from.begin(), from.size() < WEFT_MAX_SIGNATURE ? from.size() : WEFT_MAX_SIGNATURE, to);
    }
    void keep(std::shared_ptr<void> run)
    {
        described.user = run.get();
        callable = std::move(run);
    }

    std::string name;
    weft_function described = weft_function();
    std::shared_ptr<void> callable;
};

// ---- Agents, jobs, groups ----

// This worker's membership. The destructor is weft_agent_stop: it leaves the job without waiting for calls of others.
// A program that ends without a failure calls close().
class agent
{
  public:
    using pointer = weft_agent *;
    agent() noexcept {}
    agent(agent &&from) noexcept : served(std::move(from.served)), held(std::move(from.held)) {}
    agent &operator=(agent &&from) noexcept
    {
        std::vector<function> taken = std::move(from.served);
        held = std::move(from.held); // ends the former agent, before its functions
        served = std::move(taken);
        return *this;
    }
    // weft_agent_open, with functions in addition to those of the options. Their callables live as long as the agent.
    WEFT_CPP_NODISCARD static result<agent> open(std::vector<function> functions = std::vector<function>(),
                                                 weft_agent_options options = weft_agent_options())
    {
        std::vector<weft_function> all;
        for (size_t i = 0; i < options.function_count; i++)
            all.push_back(options.functions[i]);
        for (function &one : functions)
            all.push_back(one.get());
        options.functions = all.data();
        options.function_count = all.size();
        agent opened;
        opened.served = std::move(functions);
        weft_agent *made = nullptr;
        weft_error *why = nullptr;
        weft_status status = weft_agent_open(&options, &made, &why);
        opened.held.reset(made);
        return detail::end<agent>(detail::failure(status, why), [&] { return std::move(opened); });
    }
    // Registers another function (weft_agent_register). One thread at a time.
    WEFT_CPP_NODISCARD result<void> add(function one)
    {
        served.push_back(std::move(one));
        weft_status status = weft_agent_register(get(), &served.back().get());
        if (status)
            served.pop_back();
        return check(status);
    }
    // weft_agent_close. The owner is empty then, unless the failure is WEFT_ERR_DEADLOCK or WEFT_ERR_STATE.
    WEFT_CPP_NODISCARD result<void> close(int64_t timeout_ms = WEFT_FOREVER)
    {
        weft_status status = weft_agent_close(get(), timeout_ms);
        if (status != WEFT_ERR_DEADLOCK && status != WEFT_ERR_STATE)
            (void)held.release();
        return check(status);
    }
    weft_agent *get() const noexcept
    {
        return held.get();
    }
    explicit operator bool() const noexcept
    {
        return held.get() != nullptr;
    }
    // Gives up the agent. *functions receives the functions, which must live as long as the agent.
    weft_agent *release(std::vector<function> *functions)
    {
        *functions = std::move(served);
        return held.release();
    }
    void reset() noexcept
    {
        held.reset();
    }

  private:
    std::vector<function> served; // destroyed after the agent
    owned<weft_agent, weft_agent_stop> held;
};

// Children of this process. The destructor waits for them for a second, and kills those that are left.
class job : public owned<weft_job, detail::end_job>
{
  public:
    using owned::owned;
    WEFT_CPP_NODISCARD static result<job> open(int count)
    {
        weft_job_options options = weft_job_options();
        options.count = count;
        return make<job>(weft_job_open, &options);
    }
    WEFT_CPP_NODISCARD result<void> close(int64_t wait_ms = WEFT_FOREVER)
    {
        return weft::check(weft_job_close(release(), wait_ms, nullptr));
    }
};

// make<weft::group>(weft_group_open, agent.get(), "name", nullptr, 0, 0) opens one. The destructor is weft_group_close.
class group : public owned<weft_group, weft_group_close>
{
  public:
    using owned::owned;
    // weft::check, with the group's error as detail: all.check(weft_group_barrier(all.get(), 0)).
    WEFT_CPP_NODISCARD result<void> check(weft_status status) const
    {
        const weft_error *why = status < 0 ? weft_group_error(get()) : nullptr;
        return weft::check(status, weft_error_code(why) == status ? detail::shared(why) : nullptr);
    }
};

// ---- Calling: weft_rpc_sync and others, whose field `error` of the options is used here. `to` is a worker
// (agent, target) or the owner of a handle (rref). ----

namespace detail
{
template <typename H, typename F> result<H> call_with(weft_rpc_options &options, F f)
{
    typename H::pointer made = nullptr;
    weft_error *why = nullptr;
    options.error = &why;
    weft_status status = f(&options, &made);
    return end<H>(failure(status, why), [&] { return H(made); });
}
} // namespace detail
#define WEFT_CPP_CALL(name, made)                                                                                      \
    WEFT_CPP_NODISCARD inline result<made> name(weft_agent *agent, weft_target to, const char *function,               \
                                                arguments list = arguments(),                                          \
                                                weft_rpc_options options = weft_rpc_options())                         \
    {                                                                                                                  \
        return detail::call_with<made>(options, [&](const weft_rpc_options *with, made::pointer *out) {                \
            return weft_##name(agent, to, function, list, with, out);                                                  \
        });                                                                                                            \
    }                                                                                                                  \
    WEFT_CPP_NODISCARD inline result<made> name(weft_rref *on, const char *function, arguments list = arguments(),     \
                                                weft_rpc_options options = weft_rpc_options())                         \
    {                                                                                                                  \
        return detail::call_with<made>(options, [&](const weft_rpc_options *with, made::pointer *out) {                \
            return weft_rref_##name(on, function, list, with, out);                                                    \
        });                                                                                                            \
    }
WEFT_CPP_CALL(rpc_sync, values)
WEFT_CPP_CALL(rpc_async, future<values>)
WEFT_CPP_CALL(rpc_remote, rref)
#undef WEFT_CPP_CALL

// ---- Autograd: what a WEFT_RPC_ONLY build leaves out ----

#ifdef WEFT_CPP_ALL
namespace detail
{
inline void end_context(weft_context *context)
{
    weft_context_close(context, nullptr);
}
} // namespace detail
using optimizer = counted<weft_optimizer, weft_optimizer_ref, weft_optimizer_unref>;
using hooks = counted<weft_hooks, weft_hooks_ref, weft_hooks_unref>;
using data_parallel = counted<weft_data_parallel, weft_data_parallel_ref, weft_data_parallel_unref>;
using dist_optimizer = counted<weft_dist_optimizer, weft_dist_optimizer_ref, weft_dist_optimizer_unref>;
using context = owned<weft_context, detail::end_context>;

// make<weft::tape>(weft_tape_open, &options) opens one.
class tape : public owned<weft_tape, weft_tape_close>
{
  public:
    using owned::owned;
    WEFT_CPP_NODISCARD result<void> check() const // fails with the first error of the tape
    {
        return weft::check(weft_tape_status(get()), detail::shared(weft_tape_error(get())));
    }
};
#endif

} // inline namespace
} // namespace weft
#endif
