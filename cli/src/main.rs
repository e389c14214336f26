//! The `refrain` command.
fn main() {}
