//! Repeated string instructions whose accesses are logged.
//!
//! How much they access is known only behind them, and may be more than one record can say. So
//! they run in pieces of at most [`PIECE`] bytes, each between a check for room and its records.

use super::Body;
use crate::accesses::compares;
use crate::cranelift::frame::{self, leave, off_gpr};
use crate::cranelift::lift::{Lifter, int_of};
use crate::cranelift::thunk::Batch;
use crate::cranelift::vars;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};
use iced_x86::{Instruction, Mnemonic};
use refrain_trace::Access;
use refrain_vm::reg::{RCX, RDI, RSI};

/// Bytes that a piece accesses at each of its addresses, at most.
const PIECE: u64 = 0x8000;

/// Translates the instruction, which is the first of its block. The whole block has been counted,
/// as `counted`.
pub(super) fn drive(body: &mut Body<'_>, i: &Instruction, batch: Batch, counted: i64) {
    if int_of(i).is_none() {
        // Addresses of 32 bits: nobody uses them; they run unlogged.
        return body.l.thunk(batch, &mut body.factory);
    }
    let l = &mut body.l;
    l.at(i);
    let flags = batch.effects().writes.flags();
    if flags != 0 {
        let rflags = l.pack_flags(flags);
        l.frame_store(rflags, frame::OFF_FLAGS_OUT);
        l.frame_store(rflags, frame::OFF_FLAGS_IN);
    }
    let changed = batch.effects().uses.or(batch.effects().writes).without(vars::VarSet::FLAGS);
    l.settle_cursor();
    for var in changed.iter().chain([vars::CURSOR]) {
        l.evict(var);
    }
    let before = l.state.clone();
    let (head, check, out, piece, done) = (
        l.b.create_block(),
        l.b.create_block(),
        l.b.create_block(),
        l.b.create_block(),
        l.b.create_block(),
    );
    l.b.ins().jump(head, &[]);

    l.b.switch_to_block(head);
    let left = l.frame_load(I64, off_gpr(RCX));
    l.b.ins().brif(left, check, &[], done, &[]);

    l.b.switch_to_block(check);
    let cursor = l.cursor();
    let limit = l.frame_load(I64, frame::OFF_LIMIT);
    let room = l.b.ins().isub(limit, cursor);
    let full = l.icmp_imm(IntCC::SignedLessThan, room, 2 * size_of::<Access>() as u64);
    l.b.ins().brif(full, out, &[], piece, &[]);
    l.b.set_cold_block(out);

    l.b.switch_to_block(piece);
    let more = one_piece(l, i, batch, left);
    l.b.ins().brif(more, head, &[], done, &[]);

    l.b.switch_to_block(out);
    l.state = before.clone();
    l.retire(-counted);
    let live = body.l.live | flags;
    body.exit(i.ip(), leave::ACCESSES_FULL, live);

    let l = &mut body.l;
    l.b.switch_to_block(done);
    l.state = before;
    if flags != 0 {
        let rflags = l.frame_load(I64, frame::OFF_FLAGS_OUT);
        l.unpack_flags(rflags, flags);
    }
}

/// Runs and logs one piece of at most `left` elements; returns whether it goes on.
fn one_piece(l: &mut Lifter<'_>, i: &Instruction, batch: Batch, left: Value) -> Value {
    let size = i.memory_size().size() as u64;
    let most = l.iconst(I64, PIECE / size);
    let count = l.b.ins().umin(left, most);
    let (source, target) = (l.frame_load(I64, off_gpr(RSI)), l.frame_load(I64, off_gpr(RDI)));
    l.frame_store(count, off_gpr(RCX));
    l.thunk_unlogged(batch);
    let unused = l.frame_load(I64, off_gpr(RCX));
    let executed = l.b.ins().isub(count, unused);
    let left = l.b.ins().isub(left, executed);
    l.frame_store(left, off_gpr(RCX));
    log_piece(l, i, source, target, executed, size);
    l.settle_cursor();
    l.evict(vars::CURSOR);
    let more = l.icmp_imm(IntCC::NotEqual, left, 0);
    if !compares(i) {
        return more;
    }
    let rflags = l.frame_load(I64, frame::OFF_FLAGS_OUT);
    let zero = l.flag_bit(rflags, vars::ZF);
    let wanted = if i.has_repne_prefix() { IntCC::Equal } else { IntCC::NotEqual };
    let goes_on = l.icmp_imm(wanted, zero, 0);
    l.b.ins().band(more, goes_on)
}

fn log_piece(
    l: &mut Lifter<'_>,
    i: &Instruction,
    source: Value,
    target: Value,
    executed: Value,
    size: u64,
) {
    use Mnemonic::*;
    let bytes = l.iconst(I64, size);
    let bytes = l.b.ins().imul(executed, bytes);
    // Backwards, the first element is the highest.
    let direction = l.frame_load(I64, frame::OFF_DIRECTION);
    let back = l.add_imm(bytes, -(size as i64));
    let back = l.b.ins().imul(back, direction);
    let records: &[(bool, u16)] = match i.mnemonic() {
        Movsb | Movsw | Movsd | Movsq => &[(true, Access::READ), (false, Access::WRITE)],
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => &[(true, Access::READ), (false, Access::READ)],
        Lodsb | Lodsw | Lodsd | Lodsq => &[(true, Access::READ)],
        Scasb | Scasw | Scasd | Scasq => &[(false, Access::READ)],
        _ => &[(false, Access::WRITE)],
    };
    for &(is_source, kind) in records {
        let address = l.b.ins().isub(if is_source { source } else { target }, back);
        l.append_sized(address, bytes, kind);
        if kind & Access::WRITE != 0 {
            // It may have released words.
            l.end_epoch();
            l.leave_soon();
        }
    }
}
