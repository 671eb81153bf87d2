/* Checks that name what failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "takt.h"

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,      \
                    takt_last_error());                                                         \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* A minute: whatever takes that long hangs. */
#define LONG_TIME ((int64_t)60 * 1000 * 1000 * 1000)

#endif
