/* takt.hpp at a real runtime. */

#include <atomic>
#include <iostream>
#include <thread>

#include "takt.hpp"

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " #condition "\n";                  \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)

using namespace std::chrono_literals;

template <typename F> static int code_of(F call) {
    try {
        call();
    } catch (const takt::error &error) {
        return error.what()[0] != '\0' ? error.code() : 1;
    }
    return 0;
}

int main() {
    takt::session session;
    takt::stream stream = session.open_stream();
    CHECK(session.attached() && stream.datapath() == "udp" && stream.warning().empty());
    takt::sink sink = stream.open_sink(7);
    takt::source source = stream.open_source(7, 4);
    CHECK(source.wait_reader(60s) == 1);

    /* Sending and receiving, in place and by copy. */
    int64_t token = source.send("hello");
    {
        takt::message message = sink.receive(60s);
        CHECK(message.text() == "hello" && message.size() == 5 && message.info().sequence == 0);
    }
    while (source.outcome(token) == TAKT_PENDING) {
    }
    CHECK(source.outcome(token) == TAKT_SENT);
    takt::buffer buffer = source.get_buffer(100);
    std::memcpy(buffer.data(), "more", 4);
    buffer.emit(4);
    CHECK(sink.receive(60s).text() == "more");
    CHECK(sink.counters().delivered == 2 && sink.available() == 0 && sink.warning().empty());

    /* A received message goes on. */
    {
        takt::source onward = stream.open_source(8);
        takt::sink far = stream.open_sink(8);
        source.send("onward");
        takt::message message = sink.receive(60s);
        onward.forward(std::move(message));
        CHECK(far.receive(60s).text() == "onward" && message.size() == 0);
    }

    /* What is not emitted is given back, what is moved from is nobody's. */
    for (int i = 0; i < 20; i++) {
        takt::buffer one = source.get_buffer(8, 60s);
        takt::buffer other = std::move(one);
        other = source.get_buffer(8, 60s);
    }
    {
        std::optional<takt::buffer> held[4];
        for (auto &one : held) {
            one = source.get_buffer(8, 60s);
        }
        CHECK(!source.try_buffer(8).has_value());
        CHECK(code_of([&] { source.get_buffer(8, 1ms); }) == TAKT_E_TIMED_OUT);
    }

    /* Failures are exceptions, nothing there is none. */
    CHECK(!sink.try_receive().has_value() && !sink.try_receive(1ms).has_value());
    CHECK(code_of([&] { sink.receive(1ms); }) == TAKT_E_TIMED_OUT);
    CHECK(code_of([&] { source.get_buffer(source.max_message() + 1); }) == TAKT_E_TOO_LARGE);
    CHECK(code_of([&] { stream.open_source(8, 3); }) == TAKT_E_INVALID_ARGUMENT);
    takt::session_options nowhere;
    nowhere.socket = "/nonexistent/takt.sock";
    CHECK(code_of([&] { takt::session none(nowhere); }) == TAKT_E_NO_RUNTIME);
    std::thread waker([&] { sink.wake(); });
    CHECK(code_of([&] { sink.receive(); }) == TAKT_E_INTERRUPTED);
    waker.join();

    /* No exception leaves a callback. */
    std::atomic<int> called{0};
    {
        takt::callback_sink calls = stream.open_sink(9, [&](std::string_view data, const takt_message_info &info) {
            called += data == "call" && info.sequence < 3;
            if (called == 2) {
                throw std::runtime_error("enough");
            }
        });
        takt::source caller = stream.open_source(9);
        for (int i = 0; i < 3; i++) {
            caller.send("call");
        }
        for (;;) {
            try {
                calls.rethrow();
            } catch (const std::runtime_error &error) {
                CHECK(std::string(error.what()) == "enough");
                break;
            }
        }
    }
    CHECK(called == 2);

    /* The end of a session, with its parts still there. */
    takt::buffer late = source.get_buffer(8);
    session.end();
    CHECK(code_of([&] { late.emit(); }) == TAKT_E_CLOSED);
    CHECK(code_of([&] { sink.receive(); }) == TAKT_E_CLOSED);
    return 0;
}
