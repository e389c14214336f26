//! Whether a stream of the C library is one of bytes or of wide characters, which its first use decides.
//!
//! `printf`, `scanf` and `perror` ask before they take the stream's lock, all others behind it. `perror` writes
//! to a descriptor of its own where nothing has been written yet. So what `perror` does depends on whether another
//! thread has written to stderr before. The recorder watches the loads that ask, and the stores that decide for
//! bytes. (The field has had its place since glibc 2.2, as programs of then still run.)

use super::first_use;
use crate::copy::ordered::is_load;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Where in a stream the field is: negative for bytes, positive for wide characters, zero at first.
const ORIENTATION: u64 = 0xc0;

/// Indices of the instructions of a function of the C library that ask how a stream is oriented, or decide that
/// it is one of bytes.
pub(super) fn oriented(code: &[Instruction]) -> impl Iterator<Item = usize> + '_ {
    (0..code.len())
        .filter(|&at| is_orientation(&code[at]) && (decides(&code[at]) || asks(code, at)))
}

fn is_orientation(i: &Instruction) -> bool {
    let of_object = !matches!(i.memory_base(), Register::None | Register::RIP | Register::RSP);
    i.mnemonic() == Mnemonic::Mov
        && of_object
        && i.memory_index() == Register::None
        && i.memory_displacement64() == ORIENTATION
        && i.memory_size().size() == 4
}

fn decides(i: &Instruction) -> bool {
    i.op1_kind() == OpKind::Immediate32 && i.immediate32() == u32::MAX
}

/// Whether the instruction loads what is then held against zero.
fn asks(code: &[Instruction], at: usize) -> bool {
    let loaded = code[at].op0_register();
    let is_tested = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Test && i.op0_register() == loaded && i.op1_register() == loaded
    };
    is_load(&code[at]) && first_use(code, at).is_some_and(|next| is_tested(&code[next]))
}

#[cfg(test)]
mod tests {
    use super::oriented;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        oriented(&assembled(write)).collect()
    }

    /// `vfprintf` asks and decides, without a lock.
    #[test]
    fn what_asks_and_what_decides_is_found() {
        let printf = found(|a| {
            let mut other = a.create_label();
            a.mov(eax, dword_ptr(rdi + 0xc0)).unwrap();
            a.movaps(xmmword_ptr(rsp), xmm1).unwrap();
            a.test(eax, eax).unwrap();
            a.jne(other).unwrap();
            a.mov(dword_ptr(rdi + 0xc0), -1).unwrap();
            a.set_label(&mut other).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(printf, [0, 4]);
    }

    #[test]
    fn other_fields_and_uses_are_none() {
        let none = found(|a| {
            a.mov(eax, dword_ptr(rdi + 0xb8)).unwrap();
            a.test(eax, eax).unwrap();
            a.mov(eax, dword_ptr(rdi + 0xc0)).unwrap();
            a.add(ecx, eax).unwrap();
            a.mov(rax, qword_ptr(rdi + 0xc0)).unwrap();
            a.test(rax, rax).unwrap();
            a.mov(eax, dword_ptr(rsp + 0xc0)).unwrap();
            a.test(eax, eax).unwrap();
            a.mov(dword_ptr(rdi + 0xc0), 0).unwrap();
        });
        assert_eq!(none, [0_usize; 0]);
    }
}
