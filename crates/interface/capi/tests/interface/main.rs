//! The C interface as C and C++ programs see it: the header, the library, a real runtime.

mod header;
mod leaving;
mod programs;
mod support;
