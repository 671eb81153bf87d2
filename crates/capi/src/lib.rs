//! The C interface: libtakt.so and include/takt.h
