/* Publishes a temperature on channel 7, ten times a second, until it is stopped. */
#include <cmath>
#include <thread>

#include <takt.hpp>

int main() {
    takt::session session;
    takt::stream stream = session.open_stream();
    takt::source source = stream.open_source(7);
    for (int i = 0;; i++, std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
        double value = 20 + 5 * std::sin(i / 50.0);
        source.send(&value, sizeof value);
    }
}
