//! What the kernel does to the guest's memory as a locked instruction would: `FUTEX_WAKE_OP`.

use super::Call;

/// The command, without the flags that come with it.
const FUTEX_WAKE_OP: u64 = 5;
const FLAGS: u64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;

/// An operation on a word of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    /// Address of the word.
    pub(crate) word: u64,
    kind: Kind,
    operand: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Set,
    Add,
    Or,
    AndNot,
    Xor,
}

impl Operation {
    /// That of a call, if it has one that the kernel knows.
    pub(super) fn of(call: &Call) -> Option<Operation> {
        let [_, command, _, _, word, encoded] = *call.arguments();
        let is_it = call.number() == libc::SYS_futex && command & !FLAGS == FUTEX_WAKE_OP;
        if !is_it || !word.is_multiple_of(4) {
            return None;
        }
        // Four bits the operation, four a comparison, twelve each their signed operands.
        let shifted = encoded >> 31 & 1 != 0;
        let operand = ((encoded as u32) << 8) as i32 >> 20;
        let operand = match shifted {
            // The kernel takes five bits of it.
            true => 1 << (operand & 31),
            false => operand as u32,
        };
        let kind = match encoded >> 28 & 7 {
            0 => Kind::Set,
            1 => Kind::Add,
            2 => Kind::Or,
            3 => Kind::AndNot,
            4 => Kind::Xor,
            _ => return None,
        };
        Some(Operation { word, kind, operand })
    }

    /// What it makes of the word.
    pub(crate) fn apply(&self, old: u32) -> u32 {
        match self.kind {
            Kind::Set => self.operand,
            Kind::Add => old.wrapping_add(self.operand),
            Kind::Or => old | self.operand,
            Kind::AndNot => old & !self.operand,
            Kind::Xor => old ^ self.operand,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::syscall::resolve;

    /// The kernel is asked what it makes of a word.
    #[test]
    fn as_the_kernel_does() {
        let operands = [0, 1, 5, 31, 0x7ff, 0x800, 0xfff];
        let olds = [0, 1, 0x8000_0001, u32::MAX];
        let mut known = 0;
        for code in 0..16_u64 {
            for (operand, old) in operands.iter().flat_map(|o| olds.map(|old| (*o, old))) {
                let mut words = [0_u32, old];
                let encoded = code << 28 | operand << 12;
                let [first, second] = words.each_mut().map(|word| &raw mut *word as u64);
                let args = [first, 5 | 128, 1, 1, second, encoded];
                // SAFETY: both words are this function's; nobody waits for them.
                let result = unsafe {
                    libc::syscall(libc::SYS_futex, first, args[1], 1, 1, second, encoded)
                };
                let call = resolve(libc::SYS_futex as u64, args).expect("a call that is known");
                match call.operation() {
                    Some(operation) => {
                        assert_eq!(operation.word, second);
                        assert_eq!(operation.apply(old), words[1], "{code} {operand:#x} {old:#x}");
                        known += 1;
                    }
                    None => assert_eq!((result, words[1]), (-1, old), "{code} {operand:#x}"),
                }
            }
        }
        assert_eq!(known, 10 * operands.len() * olds.len());
        let other = [0x1000, 1, 1, 0, 0, 0];
        let wake = resolve(libc::SYS_futex as u64, other).expect("a call that is known");
        assert_eq!(wake.operation(), None);
    }
}
