//! The `refrain` command as the tests run it.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    refrain_cli::main()
}
