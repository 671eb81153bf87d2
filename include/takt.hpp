/*
 * takt.hpp: takt.h for C++17. Handles close themselves, failures are exceptions, messages are spans of shared memory.
 *
 *     takt::session session;
 *     takt::stream stream = session.open_stream();
 *     takt::sink sink = stream.open_sink(7);
 *     takt::source source = stream.open_source(7);
 *     source.send("hello");
 *     takt::message message = sink.receive();
 *     std::cout << message.text() << '\n';
 *
 * Errors are takt::error with the TAKT_E_ code and the sentence. Where nothing there is no failure, a std::optional says so:
 * try_receive(), try_buffer(). A buffer or message that goes out of scope is abandoned or released; it must not outlive its
 * source or sink. No exception leaves a callback: what one throws ends the program's interest in that sink, see
 * callback_sink::rethrow(). Threads, fork and the end of the program: as in takt.h.
 */
#ifndef TAKT_HPP
#define TAKT_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "takt.h"

namespace takt {

/* A call failed. */
class error : public std::runtime_error {
public:
    error(int code, const char *text) : std::runtime_error(text), code_(code) {}

    /* A TAKT_E_ code. */
    int code() const noexcept { return code_; }

private:
    int code_;
};

namespace detail {

inline int check(int code) {
    if (code < 0) {
        throw error(code, takt_last_error());
    }
    return code;
}

template <auto Close> struct closer {
    template <typename T> void operator()(T *handle) const noexcept { Close(handle); }
};

template <typename T, auto Close> using handle = std::unique_ptr<T, closer<Close>>;

template <typename T> std::string text(int (*read)(const T *, char *, size_t), const T *from) {
    std::string text(static_cast<size_t>(check(read(from, nullptr, 0))) + 1, '\0');
    check(read(from, text.data(), text.size()));
    text.pop_back();
    return text;
}

} // namespace detail

/* How long to wait: for ever, not at all, or a duration. */
class timeout {
public:
    constexpr timeout() noexcept : ns_(TAKT_FOREVER) {}
    template <typename R, typename P>
    constexpr timeout(std::chrono::duration<R, P> duration) noexcept
        : ns_(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()) {
        ns_ = ns_ < 0 ? 0 : ns_;
    }
    constexpr int64_t ns() const noexcept { return ns_; }

private:
    int64_t ns_;
};

inline constexpr timeout forever{};
inline constexpr timeout nowait{std::chrono::nanoseconds(0)};

/* How to open a session, see takt_session_options. */
struct session_options {
    std::string socket;
    std::string name;
    uint64_t tx_bytes = 0;
    uint64_t rx_bytes = 0;
    std::chrono::nanoseconds request_timeout{0};
    bool reconnect = true;
    bool allow_embedded = false;
};

/* The quality requirements of a stream, see takt_qos. */
struct qos {
    takt_acceleration acceleration = TAKT_SLOW;
    takt_resource_use resource_use = TAKT_FRUGAL;
    std::optional<int> traffic_class; /* time sensitive in this class */
    takt_reliability reliability = TAKT_SENT_ONCE;
    takt_slow_sinks slow_sinks = TAKT_EVICT_SLOW;
    std::chrono::nanoseconds deadline{0}; /* 0: repaired however long it takes */
    std::chrono::nanoseconds patience{0}; /* 0: 10 s */
    std::string datapath; /* this one and no other; empty: the node chooses */
};

/* How to open a source. */
struct source_options {
    uint32_t depth = 0;
    bool notify_fd = false; /* for fd() and arm() */
};

/* How to open a sink. */
struct sink_options {
    uint32_t depth = 0;
    bool no_local = false;
    bool latest = false; /* the newest message alone */
};

/* Memory for one message, written in place. Abandoned unless it is emitted. */
class buffer {
public:
    buffer(buffer &&other) noexcept : source_(other.source_), buffer_(std::exchange(other.buffer_, takt_buffer{})) {}
    buffer &operator=(buffer &&other) noexcept {
        std::swap(source_, other.source_);
        std::swap(buffer_, other.buffer_);
        return *this;
    }
    ~buffer() {
        if (buffer_.data != nullptr) {
            takt_buffer_abandon(source_, &buffer_);
        }
    }

    std::byte *data() noexcept { return static_cast<std::byte *>(buffer_.data); }
    size_t size() const noexcept { return buffer_.length; }
    std::byte *begin() noexcept { return data(); }
    std::byte *end() noexcept { return data() + size(); }

    /* Sends the first `length` bytes; the token for source::outcome(). The buffer is empty afterwards. */
    int64_t emit(size_t length) {
        buffer_.length = length;
        return emit();
    }
    int64_t emit() {
        int64_t token = 0;
        detail::check(takt_emit(source_, &buffer_, &token));
        return token;
    }
    /* At this instant, TAI nanoseconds. */
    int64_t emit_at(int64_t launch_time_ns) {
        int64_t token = 0;
        detail::check(takt_emit_at(source_, &buffer_, launch_time_ns, &token));
        return token;
    }

private:
    friend class source;
    buffer(takt_source *source, takt_buffer taken) noexcept : source_(source), buffer_(taken) {}

    takt_source *source_;
    takt_buffer buffer_;
};

class message;

/* The writing end of a channel. */
class source {
public:
    /* A buffer of `length` bytes. */
    takt::buffer get_buffer(size_t length, timeout wait = forever) {
        takt_buffer buffer{};
        detail::check(takt_buffer_get(handle_.get(), length, wait.ns(), &buffer));
        return {handle_.get(), buffer};
    }
    /* None if no buffer is free. */
    std::optional<takt::buffer> try_buffer(size_t length) {
        takt_buffer buffer{};
        int code = takt_buffer_get(handle_.get(), length, TAKT_NOWAIT, &buffer);
        if (code == TAKT_E_WOULD_BLOCK) {
            return std::nullopt;
        }
        detail::check(code);
        return takt::buffer(handle_.get(), buffer);
    }
    /* Copies bytes and sends them as one message; its token. */
    int64_t send(std::string_view data, timeout wait = forever) { return send(data.data(), data.size(), wait); }
    int64_t send(const void *data, size_t length, timeout wait = forever) {
        int64_t token = 0;
        detail::check(takt_emit_copy(handle_.get(), data, length, wait.ns(), &token));
        return token;
    }
    /* Sends a received message without a copy, see takt_forward(). It is empty afterwards, unless this throws. */
    int64_t forward(message &&received, timeout wait = forever);
    takt_outcome outcome(int64_t token) const {
        return static_cast<takt_outcome>(detail::check(takt_emit_outcome(handle_.get(), token)));
    }
    /* Waits until somebody listens; how many do. */
    int wait_reader(timeout wait = forever) {
        return detail::check(takt_source_wait_reader(handle_.get(), wait.ns()));
    }
    /* Whether sinks of this node get messages with a launch time at once. */
    void at_once_here(bool at_once) { detail::check(takt_source_at_once_here(handle_.get(), at_once)); }
    size_t max_message() const { return static_cast<size_t>(detail::check(takt_source_max_message(handle_.get()))); }
    /* For event loops, if it was opened for that, see takt_source_fd(). */
    int fd() const { return detail::check(takt_source_fd(handle_.get())); }
    bool arm(size_t length) { return detail::check(takt_source_arm(handle_.get(), length)) != 0; }
    /* Ends a wait in another thread with TAKT_E_INTERRUPTED. */
    void wake() { detail::check(takt_wake_source(handle_.get())); }
    takt_source *get() const noexcept { return handle_.get(); }

private:
    friend class stream;
    explicit source(takt_source *handle) noexcept : handle_(handle) {}

    detail::handle<takt_source, takt_source_close> handle_;
};

/* A received message, read in place. Released when it goes out of scope. */
class message {
public:
    message(message &&other) noexcept : sink_(other.sink_), buffer_(std::exchange(other.buffer_, takt_buffer{})) {}
    message &operator=(message &&other) noexcept {
        std::swap(sink_, other.sink_);
        std::swap(buffer_, other.buffer_);
        return *this;
    }
    ~message() {
        if (buffer_.data != nullptr) {
            takt_release(sink_, &buffer_);
        }
    }

    const std::byte *data() const noexcept { return static_cast<const std::byte *>(buffer_.data); }
    size_t size() const noexcept { return buffer_.length; }
    const std::byte *begin() const noexcept { return data(); }
    const std::byte *end() const noexcept { return data() + size(); }
    std::string_view text() const noexcept { return {static_cast<const char *>(buffer_.data), buffer_.length}; }
    takt_message_info info() const {
        takt_message_info info = TAKT_MESSAGE_INFO_INIT;
        detail::check(takt_message_information(sink_, &buffer_, &info));
        return info;
    }

private:
    friend class sink;
    friend class source;
    message(takt_sink *sink, takt_buffer buffer) noexcept : sink_(sink), buffer_(buffer) {}

    takt_sink *sink_;
    takt_buffer buffer_;
};

inline int64_t source::forward(message &&received, timeout wait) {
    int64_t token = 0;
    detail::check(takt_forward(handle_.get(), received.sink_, &received.buffer_, wait.ns(), &token));
    return token;
}

/* A reading end of a channel that the application consumes. */
class sink {
public:
    message receive(timeout wait = forever) {
        takt_buffer buffer{};
        detail::check(takt_consume(handle_.get(), wait.ns(), &buffer));
        return {handle_.get(), buffer};
    }
    /* None if no message comes in time. */
    std::optional<message> try_receive(timeout wait = nowait) {
        takt_buffer buffer{};
        int code = takt_consume(handle_.get(), wait.ns(), &buffer);
        if (code == TAKT_E_WOULD_BLOCK || code == TAKT_E_TIMED_OUT) {
            return std::nullopt;
        }
        detail::check(code);
        return message(handle_.get(), buffer);
    }
    int available() { return detail::check(takt_data_available(handle_.get())); }
    /* For event loops, see takt_sink_fd(). */
    int fd() const { return detail::check(takt_sink_fd(handle_.get())); }
    bool arm() { return detail::check(takt_sink_arm(handle_.get())) != 0; }
    std::string warning() const { return detail::text(takt_sink_warning, get()); }
    takt_sink_counters counters() const {
        takt_sink_counters counters = TAKT_SINK_COUNTERS_INIT;
        detail::check(takt_sink_read_counters(handle_.get(), &counters));
        return counters;
    }
    /* Ends a wait in another thread with TAKT_E_INTERRUPTED. */
    void wake() { detail::check(takt_wake(handle_.get())); }
    const takt_sink *get() const noexcept { return handle_.get(); }

private:
    friend class stream;
    explicit sink(takt_sink *handle) noexcept : handle_(handle) {}

    detail::handle<takt_sink, takt_sink_close> handle_;
};

/* A sink whose messages a function gets, on a thread of its own. Destroying it waits for the function to return. */
class callback_sink {
public:
    using function = std::function<void(std::string_view data, const takt_message_info &info)>;

    /* Throws what the function threw, if it did. From then on it is not called any more. */
    void rethrow() {
        std::lock_guard lock(state_->mutex);
        if (state_->failure) {
            std::rethrow_exception(state_->failure);
        }
    }

private:
    friend class stream;
    struct state {
        function receive;
        std::mutex mutex;
        std::exception_ptr failure;
    };
    static void call(void *user, const takt_buffer *message, const takt_message_info *info) noexcept {
        auto *of = static_cast<state *>(user);
        {
            std::lock_guard lock(of->mutex);
            if (of->failure) {
                return;
            }
        }
        try {
            of->receive({static_cast<const char *>(message->data), message->length}, *info);
        } catch (...) {
            std::lock_guard lock(of->mutex);
            of->failure = std::current_exception();
        }
    }
    explicit callback_sink(function receive) : state_(std::make_unique<state>()) {
        state_->receive = std::move(receive);
    }

    std::unique_ptr<state> state_;
    /* After the state: it goes first, and with it the last call. */
    detail::handle<takt_sink, takt_sink_close> handle_;
};

/* Channels of one quality. */
class stream {
public:
    source open_source(uint64_t channel, uint32_t depth = 0) {
        takt_source *source = nullptr;
        detail::check(takt_source_open(handle_.get(), channel, depth, &source));
        return takt::source(source);
    }
    source open_source(uint64_t channel, const source_options &options) {
        takt_source_options from = TAKT_SOURCE_OPTIONS_INIT;
        takt_source *source = nullptr;
        from.depth = options.depth;
        from.notify_fd = options.notify_fd;
        detail::check(takt_source_open_with(handle_.get(), channel, &from, &source));
        return takt::source(source);
    }
    sink open_sink(uint64_t channel, const sink_options &options = {}) {
        takt_sink_options from = TAKT_SINK_OPTIONS_INIT;
        takt_sink *sink = nullptr;
        from.depth = options.depth;
        from.notify_fd = 1;
        from.no_local = options.no_local;
        from.latest = options.latest;
        detail::check(takt_sink_open_with(handle_.get(), channel, &from, &sink));
        return takt::sink(sink);
    }
    callback_sink open_sink(uint64_t channel, callback_sink::function receive, const sink_options &options = {}) {
        takt_sink_options from = TAKT_SINK_OPTIONS_INIT;
        callback_sink result(std::move(receive));
        takt_sink *sink = nullptr;
        from.callback = callback_sink::call;
        from.user = result.state_.get();
        from.depth = options.depth;
        from.no_local = options.no_local;
        from.latest = options.latest;
        detail::check(takt_sink_open_with(handle_.get(), channel, &from, &sink));
        result.handle_.reset(sink);
        return result;
    }
    std::string datapath() const { return detail::text<takt_stream>(takt_stream_datapath, handle_.get()); }
    std::string warning() const { return detail::text<takt_stream>(takt_stream_warning, handle_.get()); }
    takt_stream *get() const noexcept { return handle_.get(); }

private:
    friend class session;
    explicit stream(takt_stream *handle) noexcept : handle_(handle) {}

    detail::handle<takt_stream, takt_stream_close> handle_;
};

/* An application attached to the runtime of its node. */
class session {
public:
    explicit session(const session_options &options = {}) {
        takt_session_options from = TAKT_SESSION_OPTIONS_INIT;
        takt_session *opened = nullptr;
        from.socket = options.socket.empty() ? nullptr : options.socket.c_str();
        from.name = options.name.empty() ? nullptr : options.name.c_str();
        from.tx_bytes = options.tx_bytes;
        from.rx_bytes = options.rx_bytes;
        from.request_timeout_ns = static_cast<uint64_t>(options.request_timeout.count());
        from.no_reconnect = !options.reconnect;
        from.allow_embedded = options.allow_embedded;
        detail::check(takt_session_open(&from, &opened));
        handle_.reset(opened);
    }
    stream open_stream(const qos &wanted = {}) {
        takt_qos from = TAKT_QOS_INIT;
        takt_stream *opened = nullptr;
        from.acceleration = wanted.acceleration;
        from.resource_use = wanted.resource_use;
        from.time_sensitivity = wanted.traffic_class ? TAKT_TIME_SENSITIVE : TAKT_BEST_EFFORT;
        from.traffic_class = wanted.traffic_class.value_or(0);
        from.reliability = wanted.reliability;
        from.slow_sinks = wanted.slow_sinks;
        from.deadline_ns = static_cast<uint64_t>(wanted.deadline.count());
        from.patience_ns = static_cast<uint64_t>(wanted.patience.count());
        from.datapath = wanted.datapath.empty() ? nullptr : wanted.datapath.c_str();
        detail::check(takt_stream_open(handle_.get(), &from, &opened));
        return stream(opened);
    }
    /* Ends it now, in order, with all its streams, sources and sinks. */
    void end() { detail::check(takt_session_end(handle_.get())); }
    bool attached() const { return detail::check(takt_session_attached(handle_.get())) != 0; }
    takt_session *get() const noexcept { return handle_.get(); }

private:
    detail::handle<takt_session, takt_session_close> handle_;
};

} // namespace takt

#endif /* TAKT_HPP */
