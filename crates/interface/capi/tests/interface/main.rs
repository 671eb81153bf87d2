//! The C interface as C and C++ programs see it: the header, the library, a real runtime.

mod bindings;
mod header;
mod leaving;
mod programs;
mod support;
