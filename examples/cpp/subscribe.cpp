/* Prints the temperatures on channel 7. */
#include <cstdio>

#include <takt.hpp>

int main() {
    takt::session session;
    takt::stream stream = session.open_stream();
    takt::sink sink = stream.open_sink(7);
    for (;;) {
        try {
            takt::message message = sink.receive();
            double value;
            std::memcpy(&value, message.data(), sizeof value);
            std::printf("%.2f degrees\n", value);
        } catch (const takt::error &error) {
            if (error.code() != TAKT_E_DISCONNECTED) {
                throw;
            }
            // The session attaches again when the daemon is back.
        }
    }
}
