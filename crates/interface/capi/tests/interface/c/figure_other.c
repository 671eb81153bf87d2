/* The session that the other file has opened is this file's as well. */

#include "insane.h"

extern stream_t other_file_stream(void);

stream_t other_file_stream(void) {
    options_t options = {INSANE_SLOW, INSANE_FRUGAL, INSANE_BEST_EFFORT, 0, 4096, 0, 0};
    return init_session() == TAKT_E_INVALID_ARGUMENT ? create_stream(options) : NULL;
}
