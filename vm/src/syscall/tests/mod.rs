//! Tests of the table: against `libc`, against itself, against a fake memory, against the kernel.

mod kernel;
mod names;
mod rows;
mod shapes;
