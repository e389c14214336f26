//! The words of the `futex` calls that a function makes, to wait for a word or to wake the threads that wait.
//!
//! A thread stores to the word before it wakes others, and a thread that waits loads the word again. The locked
//! instruction that takes the lock may be in another function. The C library makes the system call itself;
//! Rust's library and many others call the function `syscall`.

use crate::common::is_call;
use crate::copy::addresses::{SymbolicAddress, at_branches};
use crate::copy::idioms::moved_number;
use crate::copy::listing::Listing;
use iced_x86::{Instruction, Mnemonic, Register};
use refrain_trace::linux::FUTEX;

/// The words of the futex calls in a function.
pub(super) fn futexes(code: &[Instruction]) -> Vec<SymbolicAddress> {
    let mut words = Vec::new();
    // Addresses are followed only where that may find something.
    if !code.iter().any(|i| moved_number(i) == Some(FUTEX)) {
        return words;
    }
    at_branches(&Listing::new(code.to_vec()), |at, held| {
        let (number, word) = match code[at].mnemonic() {
            Mnemonic::Syscall => (Register::RAX, Register::RDI),
            _ if is_call(&code[at]) => (Register::RDI, Register::RSI),
            _ => return,
        };
        if held(number).and_then(SymbolicAddress::variable) == Some(FUTEX.into()) {
            words.extend(held(word));
        }
    });
    words
}

#[cfg(test)]
mod tests {
    use crate::copy::functions::Functions;
    use crate::copy::functions::tests::write_functions;
    use iced_x86::code_asm::*;

    /// Stores one, and wakes who waits for the word at `woken`.
    fn release(a: &mut CodeAssembler, woken: i32) {
        a.add(rdi, 0x61c).unwrap();
        a.mov(dword_ptr(rdi), 1).unwrap();
        a.lea(rdi, ptr(rdi + woken)).unwrap();
        a.mov(edx, 1).unwrap();
        a.mov(esi, 0x81).unwrap();
        a.mov(eax, 202).unwrap();
        a.syscall().unwrap();
    }

    #[test]
    fn stores_of_words_that_are_woken() {
        let sites = |release: fn(&mut CodeAssembler)| {
            [true, false].map(|trusted| {
                let (_, starts) = write_functions(&[release]);
                let mut functions = Functions::default();
                functions.with(&starts, &[], &[], trusted, None);
                functions.idioms(starts[0]).expect("known").sites.len()
            })
        };
        assert_eq!(sites(|a| release(a, 0)), [1, 1], "in the C library, and elsewhere");
        assert_eq!(sites(|a| release(a, 4)), [0, 0], "another word");
    }

    /// As in Rust's library; also where another function calls `syscall`.
    #[test]
    fn words_that_are_handed_to_the_library() {
        fn wake(a: &mut CodeAssembler) {
            a.lea(rsi, ptr(rdi + 8)).unwrap();
            a.mov(edi, 202).unwrap();
            a.mov(edx, 0x81).unwrap();
            a.mov(ecx, 1).unwrap();
            a.xor(eax, eax).unwrap();
            a.call(0x7000).unwrap();
        }
        let (mut functions, starts) = write_functions(&[wake, |a| {
            a.mov(dword_ptr(rbx + 16), 1).unwrap();
            a.mov(dword_ptr(rbx + 12), 1).unwrap();
            a.lea(rdi, ptr(rbx + 8)).unwrap();
            a.call(-32_i64 as u64).unwrap();
        }]);
        assert_eq!(functions.idioms(starts[1]).expect("known").sites.len(), 1);
    }
}
