//! Status flags: computed when somebody reads them, from the operation that set them.
//!
//! Each flag has a source: a variable (a byte, 0 or 1, which may still be in the frame) or the
//! operands and result of the last operation that wrote it. Conditions over the flags of one
//! comparison become one Cranelift comparison.

use super::Lifter;
use crate::cranelift::frame::{self, FLAG_BITS, lazy};
use crate::cranelift::vars::{AF, CF, FLAG, OF, PF, SF, VarSet, ZF};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use iced_x86::ConditionCode;

/// What ZF, SF and PF come from.
#[derive(Clone, Copy, Default, Debug)]
enum Result {
    #[default]
    Variables,
    Value(Value),
}

/// What a carry, overflow or adjust flag comes from.
#[derive(Clone, Copy, Default, Debug)]
enum Source {
    #[default]
    Variable,
    Zero,
    /// Of `a + b = result`.
    Add(Value, Value, Value),
    /// Of `a - b = result`.
    Sub(Value, Value, Value),
}

/// Where each status flag comes from.
#[derive(Clone, Default, Debug)]
pub(super) struct Flags {
    result: Result,
    carry: Source,
    overflow: Source,
    adjust: Source,
}

impl Lifter<'_> {
    /// Flags of `a + b = result`.
    pub(super) fn flags_add(&mut self, a: Value, b: Value, result: Value) {
        self.flags_from(Source::Add(a, b, result), result);
    }

    /// Flags of `a - b = result`.
    pub(super) fn flags_sub(&mut self, a: Value, b: Value, result: Value) {
        self.flags_from(Source::Sub(a, b, result), result);
    }

    /// Flags of a logical operation.
    pub(super) fn flags_logic(&mut self, result: Value) {
        self.flags_from(Source::Zero, result);
    }

    fn flags_from(&mut self, source: Source, result: Value) {
        let (carry, overflow, adjust) = (source, source, source);
        self.state.flags = Flags { result: Result::Value(result), carry, overflow, adjust };
        self.written(0x3f);
    }

    /// ZF, SF and PF of a result; the others stay.
    pub(super) fn flags_result(&mut self, result: Value) {
        self.state.flags.result = Result::Value(result);
        self.written(1 << ZF | 1 << SF | 1 << PF);
    }

    /// Overflow and adjust of `a ± b = result`, for inc, dec and the carrying operations.
    pub(super) fn flags_overflow(&mut self, a: Value, b: Value, result: Value, subtract: bool) {
        let source = if subtract { Source::Sub(a, b, result) } else { Source::Add(a, b, result) };
        self.state.flags.overflow = source;
        self.state.flags.adjust = source;
        self.written(1 << OF | 1 << AF);
    }

    /// Sets one flag to a byte that is 0 or 1.
    pub(super) fn set_flag(&mut self, flag: usize, value: Value) {
        match flag {
            CF => self.state.flags.carry = Source::Variable,
            OF => self.state.flags.overflow = Source::Variable,
            AF => self.state.flags.adjust = Source::Variable,
            _ => self.split_result(flag),
        }
        self.set_var(FLAG + flag, value);
    }

    /// Clears flags (or leaves undefined ones in a known state).
    pub(super) fn clear_flags(&mut self, mask: u8) {
        for flag in (0..6).filter(|f| mask >> f & 1 != 0) {
            match flag {
                CF => self.state.flags.carry = Source::Zero,
                OF => self.state.flags.overflow = Source::Zero,
                AF => self.state.flags.adjust = Source::Zero,
                _ => {
                    let zero = self.iconst(I8, 0);
                    self.set_flag(flag, zero);
                }
            }
        }
        self.written(mask);
    }

    /// ZF, SF and PF no longer come from one result.
    fn split_result(&mut self, but: usize) {
        if let Result::Value(_) = self.state.flags.result {
            for flag in [ZF, SF, PF] {
                if flag != but && self.live >> flag & 1 != 0 {
                    let value = self.flag(flag);
                    self.state.vals[FLAG + flag] = Some(value);
                } else if flag != but {
                    let zero = self.iconst(I8, 0);
                    self.state.vals[FLAG + flag] = Some(zero);
                }
            }
            self.state.flags.result = Result::Variables;
        }
    }

    fn written(&mut self, mask: u8) {
        self.state.dirty = self.state.dirty.or(VarSet::of_flags(mask));
    }

    /// A flag as a byte that is 0 or 1.
    pub(in super::super) fn flag(&mut self, flag: usize) -> Value {
        let source = match flag {
            CF => self.state.flags.carry,
            OF => self.state.flags.overflow,
            AF => self.state.flags.adjust,
            _ => return self.result_flag(flag),
        };
        match (source, flag) {
            (Source::Variable, _) => self.var(FLAG + flag),
            (Source::Zero, _) => self.iconst(I8, 0),
            (Source::Add(a, _, result), CF) => {
                self.b.ins().icmp(IntCC::UnsignedLessThan, result, a)
            }
            (Source::Sub(a, b, _), CF) => self.b.ins().icmp(IntCC::UnsignedLessThan, a, b),
            (Source::Add(a, b, result), OF) => {
                let (x, y) = (self.b.ins().bxor(a, result), self.b.ins().bxor(b, result));
                self.sign_of_and(x, y)
            }
            (Source::Sub(a, b, result), OF) => {
                let (x, y) = (self.b.ins().bxor(a, b), self.b.ins().bxor(a, result));
                self.sign_of_and(x, y)
            }
            (Source::Add(a, b, result) | Source::Sub(a, b, result), _) => {
                let x = self.b.ins().bxor(a, b);
                let x = self.b.ins().bxor(x, result);
                let x = self.resize(x, I8);
                let x = self.shr_imm(x, 4);
                self.and_imm(x, 1)
            }
        }
    }

    fn sign_of_and(&mut self, x: Value, y: Value) -> Value {
        let both = self.b.ins().band(x, y);
        self.icmp_imm(IntCC::SignedLessThan, both, 0)
    }

    fn result_flag(&mut self, flag: usize) -> Value {
        let Result::Value(result) = self.state.flags.result else { return self.var(FLAG + flag) };
        match flag {
            ZF => self.icmp_imm(IntCC::Equal, result, 0),
            SF => self.icmp_imm(IntCC::SignedLessThan, result, 0),
            _ => {
                let low = self.resize(result, I8);
                let ones = self.b.ins().popcnt(low);
                let odd = self.and_imm(ones, 1);
                let one = self.iconst(I8, 1);
                self.b.ins().bxor(odd, one)
            }
        }
    }

    /// A condition as a byte that is 0 or 1.
    pub(in super::super) fn condition(&mut self, code: ConditionCode) -> Value {
        use ConditionCode as C;
        if let Some(value) = self.compared(code) {
            return value;
        }
        let (positive, negated) = match code {
            C::o | C::b | C::e | C::be | C::s | C::p | C::l | C::le => (code, false),
            C::no => (C::o, true),
            C::ae => (C::b, true),
            C::ne => (C::e, true),
            C::a => (C::be, true),
            C::ns => (C::s, true),
            C::np => (C::p, true),
            C::ge => (C::l, true),
            _ => (C::le, true),
        };
        let value = match positive {
            C::o => self.flag(OF),
            C::b => self.flag(CF),
            C::e => self.flag(ZF),
            C::s => self.flag(SF),
            C::p => self.flag(PF),
            C::be => {
                let (c, z) = (self.flag(CF), self.flag(ZF));
                self.b.ins().bor(c, z)
            }
            C::l => self.less(),
            _ => {
                let (l, z) = (self.less(), self.flag(ZF));
                self.b.ins().bor(l, z)
            }
        };
        if negated { self.icmp_imm(IntCC::Equal, value, 0) } else { value }
    }

    fn less(&mut self) -> Value {
        let (s, o) = (self.flag(SF), self.flag(OF));
        self.b.ins().bxor(s, o)
    }

    /// The condition as one comparison, where the flags come from one operation.
    fn compared(&mut self, code: ConditionCode) -> Option<Value> {
        use ConditionCode as C;
        let flags = self.state.flags.clone();
        let Result::Value(result) = flags.result else { return None };
        let zero_cc = match code {
            C::e => Some(IntCC::Equal),
            C::ne => Some(IntCC::NotEqual),
            C::s => Some(IntCC::SignedLessThan),
            C::ns => Some(IntCC::SignedGreaterThanOrEqual),
            _ => None,
        };
        let signed = matches!(code, C::l | C::ge | C::le | C::g);
        let unsigned = matches!(code, C::b | C::ae | C::be | C::a);
        match (flags.carry, flags.overflow) {
            (Source::Sub(a, b, r), Source::Sub(_, _, s)) if r == result && s == result => {
                let cc = match code {
                    C::e => IntCC::Equal,
                    C::ne => IntCC::NotEqual,
                    C::s | C::ns | C::o | C::no | C::p | C::np => {
                        return zero_cc.map(|cc| self.icmp_imm(cc, result, 0));
                    }
                    _ => comparison(code)?,
                };
                Some(self.b.ins().icmp(cc, a, b))
            }
            (Source::Zero, Source::Zero) if signed => {
                Some(self.icmp_imm(comparison(code)?, result, 0))
            }
            (Source::Zero, _) if matches!(code, C::be | C::a) => {
                let cc = if code == C::be { IntCC::Equal } else { IntCC::NotEqual };
                Some(self.icmp_imm(cc, result, 0))
            }
            // dec leaves the carry alone, but its sign and overflow are those of a comparison.
            (_, Source::Sub(a, b, r)) if signed && r == result => {
                Some(self.b.ins().icmp(comparison(code)?, a, b))
            }
            _ if unsigned => None,
            _ => zero_cc.map(|cc| self.icmp_imm(cc, result, 0)),
        }
    }

    // Flags and the frame.

    /// One flag out of an RFLAGS image.
    pub(in super::super) fn flag_bit(&mut self, rflags: Value, flag: usize) -> Value {
        let shifted = self.shr_imm(rflags, FLAG_BITS[flag]);
        let byte = self.resize(shifted, I8);
        self.and_imm(byte, 1)
    }

    /// An RFLAGS image of the flags in `mask`; the others are 0.
    pub(in super::super) fn pack_flags(&mut self, mask: u8) -> Value {
        let mut sum = self.iconst(I64, 0x202);
        for flag in (0..6).filter(|f| mask >> f & 1 != 0) {
            let value = self.flag(flag);
            let wide = self.b.ins().uextend(I64, value);
            let placed = self.shl_imm(wide, FLAG_BITS[flag]);
            sum = self.b.ins().bor(sum, placed);
        }
        sum
    }

    /// Takes flags from an RFLAGS image.
    pub(in super::super) fn unpack_flags(&mut self, rflags: Value, mask: u8) {
        for flag in (0..6).filter(|f| mask >> f & 1 != 0) {
            let value = self.flag_bit(rflags, flag);
            self.set_flag(flag, value);
        }
    }

    /// Stores the flags for an exit behind which those in `live` may be read. Where the target is
    /// not known the flags most likely are never looked at: then the operation that they follow
    /// from is stored, if it is a plain one.
    pub(in super::super) fn store_flags(&mut self, live: u8, unlikely: bool) {
        if self.state.dirty.flags() & live == 0 {
            return;
        }
        if unlikely && self.store_lazily() {
            return;
        }
        let rflags = self.pack_flags(live);
        self.frame_store(rflags, frame::OFF_RFLAGS);
        self.frame_store_imm(0, frame::OFF_TAG);
    }

    fn store_lazily(&mut self) -> bool {
        let flags = self.state.flags.clone();
        let Result::Value(result) = flags.result else { return false };
        let (form, a, b) = match (flags.carry, flags.overflow, flags.adjust) {
            (Source::Add(a, b, r), Source::Add(_, _, s), Source::Add(_, _, t))
                if r == result && s == r && t == r =>
            {
                (lazy::ADD, a, Some(b))
            }
            (Source::Sub(a, b, r), Source::Sub(_, _, s), Source::Sub(_, _, t))
                if r == result && s == r && t == r =>
            {
                (lazy::SUB, a, Some(b))
            }
            (Source::Zero, Source::Zero, Source::Zero) => (lazy::LOGIC, result, None),
            _ => return false,
        };
        let size = u64::from(self.ty(result).bytes());
        self.frame_store_imm(form << 8 | size, frame::OFF_TAG);
        // The upper bytes of the slots are stale: `Frame::settle_status` masks them away.
        self.frame_store(a, frame::OFF_A);
        if let Some(b) = b {
            self.frame_store(b, frame::OFF_B);
        }
        true
    }
}

/// The comparison that a condition makes after `cmp`.
fn comparison(code: ConditionCode) -> Option<IntCC> {
    use ConditionCode as C;
    Some(match code {
        C::b => IntCC::UnsignedLessThan,
        C::ae => IntCC::UnsignedGreaterThanOrEqual,
        C::be => IntCC::UnsignedLessThanOrEqual,
        C::a => IntCC::UnsignedGreaterThan,
        C::l => IntCC::SignedLessThan,
        C::ge => IntCC::SignedGreaterThanOrEqual,
        C::le => IntCC::SignedLessThanOrEqual,
        C::g => IntCC::SignedGreaterThan,
        _ => return None,
    })
}
