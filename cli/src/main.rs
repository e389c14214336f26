//! The `refrain` command.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    refrain_cli::main()
}
