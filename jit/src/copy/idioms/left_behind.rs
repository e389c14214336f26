//! What calls leave behind in registers, and other calls cannot take: arguments are put there anew.
//!
//! A call may change each register in which arguments are handed over. So where a way leads from one call to
//! the next, or around a loop to the same one, and writes such a register nowhere, the next call takes no
//! argument there, whatever else leads to it.

use crate::copy::listing::{Listing, bit};
use iced_x86::Register;

/// The registers of arguments in which no answer is handed back.
const ARGUMENTS: [Register; 5] =
    [Register::RDI, Register::RSI, Register::RCX, Register::R8, Register::R9];

/// Of each instruction of a function, the registers that may hold what a call has left behind.
pub(super) struct LeftBehind(Vec<u16>);

impl LeftBehind {
    pub(super) fn of(code: &Listing) -> LeftBehind {
        let mut found = LeftBehind(vec![0; code.len()]);
        let all = ARGUMENTS.iter().fold(0, |all, &register| all | bit(register));
        let joints = code.joints();
        // Not every call comes back: what branches lead to may be something else.
        let behind = (1..code.len()).filter(|at| code.is_call(at - 1) && !joints.contains(at));
        let mut front: Vec<(usize, u16)> = behind.map(|at| (at, all)).collect();
        while let Some((at, left)) = front.pop() {
            let mut left = left & !found.0[at];
            found.0[at] |= left;
            if left == 0 || code.is_call(at) {
                continue;
            }
            left &= !code.written(at);
            front.extend(code.target(at).into_iter().chain(code.next(at)).map(|to| (to, left)));
        }
        found
    }

    /// Whether the call at `at` cannot take an argument in this register.
    pub(super) fn cannot_take(&self, at: usize, register: Register) -> bool {
        self.0[at] & bit(register) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::LeftBehind;
    use crate::common::is_call;
    use crate::copy::tests::assembled;
    use iced_x86::Register;
    use iced_x86::code_asm::*;

    /// Of each call, whether it cannot take its first, its fifth and its sixth argument.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<[bool; 3]> {
        let code = assembled(write);
        let left = LeftBehind::of(&code);
        let registers = [Register::RDI, Register::R8, Register::R9];
        let calls = (0..code.len()).filter(|&at| is_call(&code[at]));
        calls.map(|at| registers.map(|register| left.cannot_take(at, register))).collect()
    }

    #[test]
    fn from_call_to_call() {
        let calls = found(|a| {
            a.call(0x5000).unwrap();
            a.mov(rdi, rbx).unwrap();
            a.mov(r9d, 1).unwrap();
            a.call(0x5000).unwrap();
        });
        assert_eq!(calls, [[false; 3], [false, true, false]]);
    }

    /// As where all of what a list holds is called; whatever leads to the loop.
    #[test]
    fn around_a_loop() {
        let calls = found(|a| {
            let mut again = a.create_label();
            a.mov(r8, qword_ptr(rsi)).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rdi, qword_ptr(rbx)).unwrap();
            a.call(qword_ptr(rbx + 8)).unwrap();
            a.add(rbx, 16).unwrap();
            a.cmp(rbx, rbp).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(calls, [[false, true, true]]);
    }

    #[test]
    fn what_does_not_come_back() {
        let calls = found(|a| {
            let mut goes_on = a.create_label();
            a.jne(goes_on).unwrap();
            a.call(0x5000).unwrap();
            a.set_label(&mut goes_on).unwrap();
            a.call(0x6000).unwrap();
        });
        assert_eq!(calls, [[false; 3]; 2]);
    }
}
