//! Short functions that answer a question by a truth value, write nothing, and call others for a part of the
//! answer: whether a worker is there, has begun, and its engine does not wait.
//!
//! Who waits for another thread often asks such a method, by a virtual call or from another file, so that nothing
//! at the call tells what is loaded. Those that call nothing are `answers`. Of those that call, the recorder watches
//! what may be a flag of the object that is asked: one to four bytes of what the first argument points to, which the
//! function only compares with a constant. (Of LLVM's 95,000 functions these are 149, of Qt's 23,000 six.)

use super::answers::writes_only_stack;
use super::first_use;
use super::held::is_flag;
use crate::common::{is_call, without_padding};
use crate::copy::addresses::SymbolicAddress;
use crate::copy::ordered::is_candidate;
use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register,
};

/// Instructions of such a function.
const LONGEST: usize = 48;

/// The flags that such a function asks for, if these instructions are one.
pub(super) fn asked(code: &[Instruction], addresses: &[Option<SymbolicAddress>]) -> Vec<usize> {
    let code = without_padding(code);
    let returns = code.iter().any(|i| i.flow_control() == FlowControl::Return);
    if code.len() > LONGEST || !returns || !code.iter().any(is_call) || !code.iter().any(is_truth) {
        return Vec::new();
    }
    let of_object = |at: usize| {
        let argument = addresses[at].and_then(SymbolicAddress::argument);
        argument.is_some_and(|(register, _)| register == Register::RDI)
    };
    let flags: Vec<usize> = (0..code.len())
        .filter(|&at| is_candidate(&code[at]) && of_object(at) && is_asked(code, at))
        .collect();
    if flags.is_empty() || writes(code) { Vec::new() } else { flags }
}

/// Whether what an instruction loads is only compared with a constant, as its sign is in code that is not
/// optimised: by a shift.
fn is_asked(code: &[Instruction], at: usize) -> bool {
    let load = &code[at];
    let is_sign = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Shr
            && i.op0_register() == load.op0_register()
            && i.try_immediate(1).is_ok_and(|by| by + 1 == 8 * load.memory_size().size() as u64)
    };
    is_flag(code, at) || first_use(code, at).is_some_and(|next| is_sign(&code[next]))
}

/// Whether the function makes a truth value of what it has compared.
fn is_truth(i: &Instruction) -> bool {
    let sets = i.op_count() == 1 && i.condition_code() != ConditionCode::None;
    sets && i.op0_register() == Register::AL
}

/// Whether the function itself writes to memory that is not its stack.
fn writes(code: &[Instruction]) -> bool {
    let mut factory = InstructionInfoFactory::new();
    code.iter().any(|i| !writes_only_stack(factory.info(i).used_memory()))
}

#[cfg(test)]
mod tests {
    use super::asked;
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(write);
        asked(&code, &symbolic_addresses(&code))
    }

    /// A method as gcc compiles it: it calls a second method, looks at a flag, and calls a third method.
    fn method(a: &mut CodeAssembler, flag: fn(&mut CodeAssembler), more: fn(&mut CodeAssembler)) {
        let mut no = a.create_label();
        a.push(rbx).unwrap();
        a.mov(rbx, rdi).unwrap();
        a.call(0x5000).unwrap();
        a.test(al, al).unwrap();
        a.je(no).unwrap();
        flag(a);
        a.js(no).unwrap();
        more(a);
        a.mov(rdi, qword_ptr(rbx + 0x10)).unwrap();
        a.call(0x6000).unwrap();
        a.cmp(eax, 4).unwrap();
        a.setne(al).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
        a.set_label(&mut no).unwrap();
        a.xor(eax, eax).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    }

    fn flag(a: &mut CodeAssembler) {
        a.mov(eax, dword_ptr(rbx + 0x54)).unwrap();
        a.test(eax, eax).unwrap();
    }

    #[test]
    fn flags_of_the_object_that_is_asked() {
        assert_eq!(found(|a| method(a, flag, |_| ())), [5]);
        let writes = |a: &mut CodeAssembler| a.mov(dword_ptr(rbx + 0x58), 1).unwrap();
        assert_eq!(found(|a| method(a, flag, writes)), []);
        let other = |a: &mut CodeAssembler| {
            a.mov(eax, dword_ptr(rsi + 0x54)).unwrap();
            a.test(eax, eax).unwrap();
        };
        assert_eq!(found(|a| method(a, other, |_| ())), [], "another argument");
        let sign = |a: &mut CodeAssembler| {
            a.mov(eax, dword_ptr(rbx + 0x54)).unwrap();
            a.shr(eax, 31).unwrap();
            a.test(al, al).unwrap();
        };
        assert_eq!(found(|a| method(a, sign, |_| ())), [5]);
        let pointer = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rbx + 0x54)).unwrap();
            a.test(rax, rax).unwrap();
        };
        assert_eq!(found(|a| method(a, pointer, |_| ())), [], "a pointer");
    }

    #[test]
    fn not_without_an_answer_or_a_call() {
        let plain = found(|a| {
            flag(a);
            a.setns(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(plain, [], "such functions are answers");
        let number = found(|a| {
            a.mov(rbx, rdi).unwrap();
            flag(a);
            a.call(0x5000).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(number, []);
    }
}
