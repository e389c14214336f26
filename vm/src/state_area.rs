//! `xsave` and `xrstor`, which the machine executes by itself.
//!
//! Natively the host's areas would show: they hold components that the guest's processor has not, and
//! so would be stored behind the guest's area. And which components a processor takes to be in use
//! depends on what host code has done to the registers since. Here all that are stored are in use, which
//! the instruction set allows.

use crate::context::reg::{RAX, RDX};
use crate::cpuid;
use crate::engine::{Fault, StateArea};
use crate::frame::{self, FX_SAVE};
use crate::host::{self, Guest};
use crate::xsave::{self, AVX, SSE, X87};
use crate::{Context, Processor};

/// Offsets in the area.
mod at {
    use std::ops::Range;

    /// Control, status and tags. What lies behind tells where the last instruction and operand lay.
    pub(super) const X87_CONTROL: Range<usize> = 0..24;
    pub(super) const MXCSR: Range<usize> = 24..32;
    pub(super) const X87_REGISTERS: Range<usize> = 32..160;
    pub(super) const XMM: Range<usize> = 160..416;
    /// Which components are not in their initial state.
    pub(super) const COMPONENTS: usize = 512;
    /// How the area is laid out: zero.
    pub(super) const LAYOUT: usize = 520;
}

/// Executes the instruction behind which the thread is. With a fault, it is before it again.
pub(crate) fn execute(
    area: StateArea,
    processor: Processor,
    context: &mut Context,
) -> Result<(), Fault> {
    let named = context.gpr[RAX] & 0xffff_ffff | context.gpr[RDX] << 32;
    let components = named & cpuid::xcr0(processor);
    let address = area.operand.address(context);
    let done = match area.loads {
        true => load(address, components, cpuid::xcr0(processor), context),
        false => save(address, components, context),
    };
    done.map_err(|about| {
        context.rip = context.rip.wrapping_sub(area.len.into());
        if about == NO_ADDRESS { Fault::protection() } else { Fault::access(about) }
    })
}

/// What a fault by what the area holds, or by how it is aligned, is about.
const NO_ADDRESS: u64 = 0;

/// Reads the part of the area that has these components.
fn read(address: u64, components: u64) -> Result<Vec<u8>, u64> {
    if !address.is_multiple_of(64) {
        return Err(NO_ADDRESS);
    }
    Guest.read(address, xsave::size(components)).ok_or(address)
}

fn save(address: u64, components: u64, context: &Context) -> Result<(), u64> {
    let mut area = read(address, components)?;
    let image = frame::fp_image(context);
    let mut parts = Vec::new();
    if components & X87 != 0 {
        parts.extend([at::X87_CONTROL, at::X87_REGISTERS]);
    }
    if components & (SSE | AVX) != 0 {
        parts.push(at::MXCSR);
    }
    if components & SSE != 0 {
        parts.push(at::XMM);
    }
    for part in parts {
        area[part.clone()].copy_from_slice(&image[part]);
    }
    xsave::save(&mut area, components, context);
    let in_use = word(&area, at::COMPONENTS) | components;
    put(&mut area, at::COMPONENTS, in_use);
    if Guest.write(address, &area) { Ok(()) } else { Err(address) }
}

fn load(address: u64, components: u64, all: u64, context: &mut Context) -> Result<(), u64> {
    /// Bits of mxcsr that every processor has; loading others faults.
    const MXCSR: u64 = 0xffff;
    let area = read(address, components)?;
    let in_use = word(&area, at::COMPONENTS);
    if in_use & !all != 0 || word(&area, at::LAYOUT) != 0 {
        return Err(NO_ADDRESS);
    }
    if components & (SSE | AVX) != 0 {
        let mxcsr = word(&area, at::MXCSR.start) & 0xffff_ffff;
        if mxcsr & !MXCSR != 0 {
            return Err(NO_ADDRESS);
        }
        context.mxcsr = mxcsr as u32;
    }
    let fresh = Context::default();
    if components & X87 != 0 {
        match area[..FX_SAVE].try_into() {
            Ok(image) if in_use & X87 != 0 => host::fp_restore(image),
            _ => host::fp_reset(),
        }
    }
    if components & SSE != 0 {
        context.xmm = match in_use & SSE {
            0 => fresh.xmm,
            _ => registers(&area, at::XMM.start),
        };
    }
    xsave::load(&area, components, in_use, context);
    Ok(())
}

fn registers(area: &[u8], start: usize) -> [[u64; 2]; 16] {
    std::array::from_fn(|n| [word(area, start + 16 * n), word(area, start + 16 * n + 8)])
}

fn word(area: &[u8], start: usize) -> u64 {
    u64::from_le_bytes(area[start..start + 8].try_into().expect("eight bytes"))
}

fn put(area: &mut [u8], start: usize, value: u64) {
    area[start..start + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wide;
    use crate::engine::Operand;
    use crate::processor::Feature;
    use crate::xsave::AVX_512;

    #[repr(align(64))]
    struct Memory([u8; 4096]);

    fn context() -> Context {
        let mut context = Context::default();
        context.xmm = std::array::from_fn(|n| [n as u64, 7]);
        context.set_high(std::array::from_fn(|n| [9, n as u64]));
        context.wide = Some(Box::new(Wide {
            masks: std::array::from_fn(|n| 100 + n as u64),
            upper: std::array::from_fn(|n| [200 + n as u64; 4]),
            more: std::array::from_fn(|n| [300 + n as u64; 8]),
        }));
        context.mxcsr = 0x1fa0;
        // The guest asks for all components, even those that no processor gives to guests.
        (context.gpr[RAX], context.gpr[RDX]) = (!0, !0);
        context.rip = 104;
        context
    }

    fn area(context: &mut Context, at: u64, loads: bool) -> StateArea {
        context.gpr[5] = at;
        let operand = Operand { base: Some(5), index: None, displacement: 0 };
        StateArea { operand, loads, len: 4 }
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_behind_it_changes() {
        let avx: Processor = [Feature::Avx].into_iter().collect();
        let avx_512 = avx.with([Feature::Avx512F].into_iter().collect());
        for (processor, wide) in [(avx, 0), (avx_512, AVX_512)] {
            let mut memory = Memory([0; 4096]);
            let end = xsave::size(AVX | wide);
            memory.0[end..].fill(0xaa);
            let address = memory.0.as_mut_ptr() as u64;
            let mut saved = context();
            let save = area(&mut saved, address, false);
            host::fp_reset();
            execute(save, processor, &mut saved).expect("the area is there");
            assert_eq!(word(&memory.0, at::COMPONENTS), X87 | SSE | AVX | wide);
            assert!(memory.0[end..].iter().all(|&byte| byte == 0xaa));

            let initial = Some(Box::default());
            let mut loaded = Context::default();
            loaded.wide.clone_from(&initial);
            (loaded.gpr, loaded.rip) = (saved.gpr, saved.rip);
            let load = area(&mut loaded, address, true);
            execute(load, processor, &mut loaded).expect("it is what was saved");
            assert_eq!((loaded.xmm, loaded.high), (saved.xmm, saved.high));
            assert_eq!((loaded.mxcsr, loaded.high_in_use), (0x1fa0, 1));
            assert_eq!(loaded.wide, if wide == 0 { initial.clone() } else { saved.wide.clone() });

            // Without AVX in the mask its halves stay; what is not in use gets its initial value.
            loaded.gpr[RAX] = X87 | SSE | wide;
            put(&mut memory.0, at::COMPONENTS, 0);
            execute(load, processor, &mut loaded).expect("an area of initial state");
            assert_eq!((loaded.xmm, loaded.high), (Context::default().xmm, saved.high));
            assert_eq!(loaded.wide, initial);
        }
    }

    #[test]
    fn what_faults_has_changed_nothing() {
        let avx: Processor = [Feature::Avx].into_iter().collect();
        let mut memory = Memory([0; 4096]);
        let address = memory.0.as_mut_ptr() as u64;
        let mut context = context();
        let before = context.xmm;
        let unaligned = area(&mut context, address + 8, false);
        let fault = execute(unaligned, avx, &mut context).expect_err("it is not aligned");
        assert_eq!((fault.signal, fault.address, context.rip), (libc::SIGSEGV, 0, 100));
        for (at, value) in [(at::COMPONENTS, 8), (at::LAYOUT, 1 << 63), (at::MXCSR.start, 1 << 20)]
        {
            memory.0.fill(0);
            put(&mut memory.0, at, value);
            let load = area(&mut context, address, true);
            execute(load, avx, &mut context).expect_err("the area has what it may not have");
            assert_eq!((context.xmm, context.mxcsr), (before, 0x1fa0));
        }
        let nowhere = area(&mut context, 64, true);
        let fault = execute(nowhere, avx, &mut context).expect_err("there is no memory");
        assert_eq!(fault.address, 64);
    }
}
