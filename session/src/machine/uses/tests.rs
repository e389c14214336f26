//! Code in assembler, and what is said of its loads and stores.

use super::*;
use iced_x86::code_asm::*;

const START: u64 = 0x1000;
const VARIABLE: u64 = 0x9000;

/// The use of the first instruction, and of the last store of code that ends with a call of a
/// lock.
fn of(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> (Option<Use>, Vec<Use>) {
    let mut a = CodeAssembler::new(64).expect("64 bits");
    write(&mut a).expect("the test's code can be assembled");
    a.call(0x2000).expect("a call");
    a.ret().expect("a return");
    let code = a.assemble(START).expect("the code is near");
    // jmp [rip + 0x100]
    let stub = vec![0xff, 0x25, 0, 1, 0, 0];
    let back = START + code.len() as u64 - 1;
    let blocks =
        [(START, code), (0x2000, stub)].map(|(pc, code)| CodeBlock { pc, code, loads: Vec::new() });
    let calls = [back].into_iter().collect();
    let executed = Executed::new(&blocks, FixedSet::default(), &calls);
    let mut uses = uses_in(&executed, |_| true).uses;
    let first = uses.remove(&(START as u32));
    let mut others: Vec<_> = uses.into_iter().collect();
    others.sort_unstable_by_key(|(pc, _)| *pc);
    (first, others.into_iter().map(|(_, used)| used).collect())
}

fn added() -> (Option<Use>, Vec<Use>) {
    (Some(Use::Load(0)), vec![Use::Store(vec![(START as u32, Update::Add)])])
}

#[test]
fn additions_are_updates() {
    let variable = qword_ptr(VARIABLE);
    assert_eq!(of(|a| a.add(variable, 1)).0, Some(Use::Both(0, Update::Add)));
    assert_eq!(of(|a| a.inc(dword_ptr(VARIABLE))).0, Some(Use::Both(0, Update::Add)));
    let through_register = of(|a| {
        a.mov(rcx, variable)?;
        a.add(rcx, rbx)?;
        a.mov(variable, rcx)
    });
    assert_eq!(through_register, added());
    let with_lea = of(|a| {
        a.mov(eax, dword_ptr(rdi))?;
        a.lea(edx, ptr(rax + 4))?;
        a.mov(dword_ptr(rdi), edx)
    });
    assert_eq!(with_lea, added());
}

#[test]
fn side_by_side() {
    let (first, others) = of(|a| {
        a.movdqu(xmm0, xmmword_ptr(rbx + 8))?;
        a.movdqa(xmm2, xmm3)?;
        a.paddq(xmm2, xmm0)?;
        a.movdqu(xmmword_ptr(rbx + 8), xmm2)
    });
    assert_eq!(first, Some(Use::Load(0)));
    assert_eq!(others, [Use::Store(vec![(START as u32, Update::AddEach(8))])]);
}

#[test]
fn who_looks_at_the_value_is_seen() {
    let variable = qword_ptr(VARIABLE);
    let looked = [
        // Returned, kept, given away, compared, stored elsewhere.
        of(|a| {
            a.mov(rax, variable)?;
            a.mov(rbx, rax)
        }),
        of(|a| {
            a.mov(rsi, variable)?;
            a.mov(qword_ptr(rsp), rsi)
        }),
        of(|a| {
            a.mov(rdi, variable)?;
            a.add(rdi, 1)?;
            a.mov(variable, rdi)
        }),
        of(|a| {
            a.mov(rcx, variable)?;
            a.imul_2(rcx, rcx)
        }),
    ];
    for (first, _) in looked {
        assert_eq!(first, Some(Use::Load(ALL)));
    }
    let counted_down = of(|a| {
        let mut zero = a.create_label();
        a.dec(variable)?;
        a.je(zero)?;
        a.nop()?;
        a.set_label(&mut zero)?;
        a.nop()
    });
    assert_eq!(counted_down.0, Some(Use::Both(ALL, Update::Add)));
}

#[test]
fn narrow_steps_are_no_updates() {
    let variable = qword_ptr(VARIABLE);
    let cut_off = of(|a| {
        a.mov(rcx, variable)?;
        a.or(ecx, 1)?;
        a.mov(variable, rcx)
    });
    assert!(!matches!(&cut_off.1[..], [.., Use::Store(_)]), "{cut_off:?}");
    let a_part = of(|a| {
        a.mov(rcx, variable)?;
        a.mov(cl, 5)?;
        a.mov(variable, rcx)
    });
    assert!(!matches!(&a_part.1[..], [.., Use::Store(_)]), "{a_part:?}");
}

#[test]
fn bits_are_told_apart() {
    let variable = dword_ptr(VARIABLE);
    let set = of(|a| a.or(variable, 6)).0;
    let six = vec![(Bitwise::Or, Operand::Constant(6))];
    assert_eq!(set, Some(Use::Both(0, Update::Bits(six))));
    let register = vec![(Bitwise::And, Operand::Register(START as u32))];
    assert_eq!(of(|a| a.and(variable, r12d)).0, Some(Use::Both(0, Update::Bits(register))));
    assert_eq!(of(|a| a.test(variable, 8)).0, Some(Use::Load(8)));
    let tested = of(|a| {
        let mut zero = a.create_label();
        a.mov(ecx, variable)?;
        a.and(ecx, 0x10)?;
        a.je(zero)?;
        a.nop()?;
        a.set_label(&mut zero)?;
        a.nop()
    });
    assert_eq!(tested.0, Some(Use::Load(0x10)));
    let field = of(|a| {
        a.mov(ecx, variable)?;
        a.and(ecx, 0xfff0u32)?;
        a.or(ecx, 5)?;
        a.mov(variable, ecx)
    });
    let steps =
        vec![(Bitwise::And, Operand::Constant(0xfff0)), (Bitwise::Or, Operand::Constant(5))];
    assert_eq!(field.1, [Use::Store(vec![(START as u32, Update::Bits(steps))])]);
}
