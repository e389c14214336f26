//! The executed code of a trace, disassembled.

use anyhow::Context;
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use refrain_session::symbols::{Code, Place, Symbols};
use refrain_trace::{BlockId, CodeBlock, Trace};
use std::io::Write;

/// Bits of the guest's code.
const BITNESS: u32 = 64;

/// Prints every block in the order of the table, each under the place of its first instruction.
pub(crate) fn print(trace: &Trace, out: &mut impl Write) -> anyhow::Result<()> {
    let mut symbols = Symbols::new(trace.modules());
    let mut next = 0;
    for run in trace.block_runs() {
        let run = run?;
        let codes: Vec<Code> = run.iter().map(|block| Code::At(block.pc)).collect();
        for (block, place) in run.iter().zip(symbols.places(&codes)) {
            print_block(BlockId(next), block, &place, out).context("cannot print")?;
            next += 1;
        }
    }
    Ok(())
}

fn print_block(
    id: BlockId,
    block: &CodeBlock,
    place: &Place,
    out: &mut impl Write,
) -> std::io::Result<()> {
    writeln!(out, "{id} {:#x}: # {}", block.pc, place.short())?;
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_space_after_operand_separator(true);
    let mut decoder = Decoder::with_ip(BITNESS, &block.code, block.pc, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut text = String::new();
    while decoder.can_decode() {
        let start = decoder.position();
        decoder.decode_out(&mut instruction);
        text.clear();
        formatter.format(&instruction, &mut text);
        let bytes = &block.code[start..decoder.position()];
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "  {:#010x}  {bytes:<22}  {text}", instruction.ip())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn a_block_is_printed_whole() {
        let code = vec![0x48, 0x89, 0xe5, 0xf0, 0x0f, 0xb1, 0x0a, 0xc3, 0x0f];
        let block = CodeBlock { pc: 0x1000_0000, code, loads: Vec::new() };
        let mut out = Vec::new();
        let place = example::place("lock", "a.c", 7);
        print_block(BlockId(3), &block, &place, &mut out).expect("a vector takes it");
        assert_eq!(
            String::from_utf8(out).expect("is text"),
            "blk3 0x10000000: # lock a.c:7\n  \
             0x10000000  4889e5                  mov rbp, rsp\n  \
             0x10000003  f00fb10a                lock cmpxchg [rdx], ecx\n  \
             0x10000007  c3                      ret\n  \
             0x10000008  0f                      (bad)\n"
        );
    }
}
