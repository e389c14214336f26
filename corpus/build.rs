//! Compiles the demo's workload, so that `refrain demo` needs nothing at run time.

use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c/demo.c");
    println!("cargo:rerun-if-env-changed=CC");

    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo")).join("demo");
    let cc = std::env::var("CC").ok().filter(|cc| !cc.trim().is_empty()).unwrap_or("cc".into());

    // $CC may carry arguments, as in `ccache gcc`.
    let mut words = cc.split_whitespace();
    let compiler = words.next().expect("filtered above: $CC is not blank");
    let result = Command::new(compiler)
        .args(words)
        .args(["-O2", "-g", "-pthread", "-fno-stack-protector"])
        // The debug information shall say `corpus/c/demo.c`: compilation
        // directory `corpus`, source `c/demo.c`, wherever the checkout lies.
        .arg(format!("-ffile-prefix-map={}=corpus", manifest.display()))
        .arg("c/demo.c")
        .arg("-o")
        .arg(&out)
        .arg("-Wl,-z,now")
        .current_dir(&manifest)
        .status();
    match result {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("`{cc}` failed on corpus/c/demo.c ({status})")),
        Err(error) => fail(&format!(
            "cannot run the C compiler `{cc}`: {error}; \
             the demo's workload is C: install one (Debian: apt install gcc libc6-dev) or set $CC"
        )),
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}
