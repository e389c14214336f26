//! Signal frames: what the kernel leaves on the stack for a handler, and takes back when the
//! handler returns.
//!
//! A frame is built when a recording delivers a signal, and kept in the trace; a replay stores it
//! again. The layout is the kernel's `struct rt_sigframe` of x86-64: with an `fxsave` area on a
//! processor without AVX, and with an `xsave` area (not compacted) on one with it.

use crate::context::{Context, reg::*};
use crate::cpuid;
use crate::host::{self, Guest};
use crate::processor::{Feature, Processor};
use crate::xsave::{self, SSE, X87};

/// `siginfo_t`.
pub(crate) type Info = [u8; 128];

/// `struct kernel_sigaction`: handler, flags, restorer, mask.
pub(crate) type Action = [u64; 4];

/// A stack for signal handlers, as `sigaltstack` knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AltStack {
    pub(crate) base: u64,
    pub(crate) flags: u32,
    pub(crate) size: u64,
}

pub(crate) const SS_ONSTACK: u32 = 1;
pub(crate) const SS_DISABLE: u32 = 2;
/// The stack counts as given up while a handler runs on it.
pub(crate) const SS_AUTODISARM: u32 = 1 << 31;
/// `MINSIGSTKSZ`.
pub(crate) const SMALLEST_STACK: u64 = 2048;

impl Default for AltStack {
    fn default() -> AltStack {
        AltStack { base: 0, flags: SS_DISABLE, size: 0 }
    }
}

impl AltStack {
    /// Whether the stack is in use by code with this stack pointer.
    pub(crate) fn holds(&self, sp: u64) -> bool {
        self.flags & (SS_DISABLE | SS_AUTODISARM) == 0
            && sp > self.base
            && sp - self.base <= self.size
    }

    /// `stack_t`, as seen by code with this stack pointer.
    pub(crate) fn words(&self, sp: u64) -> [u64; 3] {
        let on = if self.holds(sp) { SS_ONSTACK } else { 0 };
        [self.base, u64::from(self.flags | on), self.size]
    }

    /// From `stack_t`.
    pub(crate) fn from_words([base, flags, size]: [u64; 3]) -> AltStack {
        let flags = flags as u32 & !SS_ONSTACK;
        if flags & SS_DISABLE != 0 { AltStack::default() } else { AltStack { base, flags, size } }
    }
}

/// What a delivery depends on besides the registers.
pub(crate) struct Delivery<'a> {
    pub(crate) info: &'a Info,
    pub(crate) action: Action,
    /// The mask that the handler's return brings back.
    pub(crate) mask: u64,
    pub(crate) stack: AltStack,
    pub(crate) processor: Processor,
    /// The thread's last exception.
    pub(crate) exception: Exception,
    /// Whether the handler's return executes an instruction again that has faulted.
    pub(crate) executes_again: bool,
}

/// What the kernel keeps of a thread's last exception, and tells every handler of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Exception {
    pub(crate) vector: u32,
    pub(crate) error: u32,
    /// The address of the last page fault.
    pub(crate) address: u64,
}

/// A frame and where it goes.
pub(crate) struct Frame {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Offsets in the frame.
mod at {
    pub(super) const CONTEXT: u64 = 8;
    pub(super) const STACK: u64 = CONTEXT + 16;
    pub(super) const REGISTERS: u64 = STACK + 24;
    pub(super) const RIP: u64 = REGISTERS + 16 * 8;
    pub(super) const FLAGS: u64 = REGISTERS + 17 * 8;
    pub(super) const SEGMENTS: u64 = REGISTERS + 18 * 8;
    pub(super) const ERROR: u64 = REGISTERS + 19 * 8;
    pub(super) const VECTOR: u64 = REGISTERS + 20 * 8;
    pub(super) const OLD_MASK: u64 = REGISTERS + 21 * 8;
    pub(super) const ADDRESS: u64 = REGISTERS + 22 * 8;
    pub(super) const FP_STATE: u64 = REGISTERS + 23 * 8;
    pub(super) const MASK: u64 = REGISTERS + 256;
    pub(super) const INFO: u64 = MASK + 8;
    pub(super) const END: u64 = INFO + 128;
    /// In the `fxsave` area.
    pub(super) const POINTERS: usize = 6;
    pub(super) const MXCSR: usize = 24;
    pub(super) const XMM: usize = 160;
    /// `struct _fpx_sw_bytes`: magic, size with the second magic, components, size without.
    pub(super) const SOFTWARE: usize = 464;
    /// In the `xsave` area: which components are not in their initial state.
    pub(super) const COMPONENTS: usize = 512;
}

/// The order of general registers in `struct sigcontext`.
const ORDER: [usize; 16] =
    [R8, R9, R10, R11, R12, R13, R14, R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP];
const RED_ZONE: u64 = 128;
pub(crate) const FX_SAVE: usize = 512;
/// The status flags and DF; and the two that are always set in user mode.
const FLAGS: u64 = 0xcd5;
const ALWAYS: u64 = 0x202;
/// RF, which the processor sets for an instruction that it is to execute again.
const RESUME: u64 = 1 << 16;
/// Code and stack segments of 64-bit programs.
pub(crate) const CODE_SEGMENT: u64 = 0x33;
pub(crate) const STACK_SEGMENT: u64 = 0x2b;
const SEGMENTS: u64 = CODE_SEGMENT | STACK_SEGMENT << 48;
/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`, and `UC_FP_XSTATE` with an `xsave` area.
const CONTEXT_FLAGS: u64 = 6;
const XSTATE: u64 = 1;
/// `FP_XSTATE_MAGIC1` and `FP_XSTATE_MAGIC2`.
const MAGIC: [u32; 2] = [0x4650_5853, 0x4650_5845];
/// Builds the frame for a handler that is about to run.
pub(crate) fn build(context: &Context, delivery: &Delivery<'_>) -> Frame {
    let sp = context.gpr[RSP];
    let wants_stack = delivery.action[1] & libc::SA_ONSTACK as u64 != 0;
    let stack = &delivery.stack;
    let top = if wants_stack && stack.flags & SS_DISABLE == 0 && !stack.holds(sp) {
        stack.base.wrapping_add(stack.size)
    } else {
        sp.wrapping_sub(RED_ZONE)
    };
    let avx = delivery.processor.has(Feature::Avx);
    let components = cpuid::xcr0(delivery.processor);
    let fp_size = match avx {
        true => (xsave::size(components) + MAGIC_SIZE) as u64,
        false => FX_SAVE as u64,
    };
    let fp_state = top.wrapping_sub(fp_size) & !63;
    let address = (fp_state.wrapping_sub(at::END) & !15).wrapping_sub(8);

    let mut bytes = vec![0; (fp_state.wrapping_add(fp_size)).wrapping_sub(address) as usize];
    let mut put = |offset: u64, value: u64| {
        bytes[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(0, delivery.action[2]);
    put(at::CONTEXT, CONTEXT_FLAGS | if avx { XSTATE } else { 0 });
    for (word, value) in stack.words(sp).into_iter().enumerate() {
        put(at::STACK + 8 * word as u64, value);
    }
    for (slot, register) in ORDER.into_iter().enumerate() {
        put(at::REGISTERS + 8 * slot as u64, context.gpr[register]);
    }
    put(at::RIP, context.rip);
    let resume = if delivery.executes_again { RESUME } else { 0 };
    put(at::FLAGS, context.rflags & FLAGS | ALWAYS | resume);
    put(at::SEGMENTS, SEGMENTS);
    put(at::FP_STATE, fp_state);
    put(at::MASK, delivery.mask);
    put(at::OLD_MASK, delivery.mask);
    put(at::ERROR, delivery.exception.error.into());
    put(at::VECTOR, delivery.exception.vector.into());
    put(at::ADDRESS, delivery.exception.address);
    let info = at::INFO as usize;
    bytes[info..info + 128].copy_from_slice(delivery.info);
    let area = (fp_state - address) as usize;
    bytes[area..area + FX_SAVE].copy_from_slice(&fp_image(context));
    if avx {
        extend(&mut bytes[area..], components, context);
    }
    Frame { address, bytes }
}

const MAGIC_SIZE: usize = 4;

/// Makes the `xsave` area of what begins as an `fxsave` area, and marks it as the kernel does. The second
/// magic lies behind the area.
fn extend(area: &mut [u8], components: u64, context: &Context) {
    let mut put = |offset: usize, bytes: &[u8]| {
        area[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    let size = xsave::size(components);
    put(at::SOFTWARE, &MAGIC[0].to_le_bytes());
    put(at::SOFTWARE + 4, &((size + MAGIC_SIZE) as u32).to_le_bytes());
    put(at::SOFTWARE + 8, &components.to_le_bytes());
    put(at::SOFTWARE + 16, &(size as u32).to_le_bytes());
    put(at::COMPONENTS, &components.to_le_bytes());
    put(size, &MAGIC[1].to_le_bytes());
    xsave::save(area, components, context);
}

/// Floating-point state as `fxsave` stores it. Where the last instruction and operand lay is
/// left out: that would be in translated code.
pub(crate) fn fp_image(context: &Context) -> [u8; FX_SAVE] {
    let mut image = host::fp_save();
    image[at::POINTERS..at::MXCSR].fill(0);
    image[at::MXCSR..at::MXCSR + 4].copy_from_slice(&context.mxcsr.to_le_bytes());
    image[at::MXCSR + 4..at::MXCSR + 8].copy_from_slice(&0xffff_u32.to_le_bytes());
    for (i, register) in context.xmm.iter().enumerate() {
        for (half, value) in register.iter().enumerate() {
            let start = at::XMM + 16 * i + 8 * half;
            image[start..start + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    image[at::XMM + 256..].fill(0);
    image
}

/// Puts a thread at the start of a handler whose frame is in place.
pub(crate) fn enter(context: &mut Context, address: u64, handler: u64, signal: u64) {
    context.gpr[RSP] = address;
    context.gpr[RDI] = signal;
    context.gpr[RSI] = address.wrapping_add(at::INFO);
    context.gpr[RDX] = address.wrapping_add(at::CONTEXT);
    context.gpr[RAX] = 0;
    context.rip = handler;
    let direction = 1 << 10;
    context.rflags &= !direction;
    context.mxcsr = Context::default().mxcsr;
    context.reset_vectors();
    host::fp_reset();
}

/// What a handler's return brings back besides the registers.
pub(crate) struct Left {
    /// The frame.
    pub(crate) address: u64,
    pub(crate) mask: u64,
    pub(crate) stack: AltStack,
}

/// `rt_sigreturn`: the registers from the frame below the stack pointer. `None` if there is no
/// frame; the kernel would end the process.
pub(crate) fn leave(context: &mut Context, processor: Processor) -> Option<Left> {
    let address = context.gpr[RSP].wrapping_sub(8);
    let bytes = Guest.read(address, at::END as usize)?;
    let word = |offset: u64| {
        let start = offset as usize;
        u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight bytes"))
    };
    let fp_state = match word(at::FP_STATE) {
        0 => None,
        area => Some((Guest.read(area, FX_SAVE)?, extended(area, cpuid::xcr0(processor)))),
    };
    for (slot, register) in ORDER.into_iter().enumerate() {
        context.gpr[register] = word(at::REGISTERS + 8 * slot as u64);
    }
    context.rip = word(at::RIP);
    context.rflags = flags_of(word(at::FLAGS));
    if let Some((legacy, extended)) = fp_state {
        let legacy = legacy.as_slice().try_into().expect("as many bytes as were asked for");
        restore_fp(context, legacy, extended.as_ref());
    }
    let stack = [0, 8, 16].map(|offset| word(at::STACK + offset));
    let stack = AltStack::from_words(stack);
    Some(Left { address, mask: word(at::MASK), stack })
}

/// The flags that a program gets by setting these.
pub(crate) fn flags_of(word: u64) -> u64 {
    word & FLAGS | ALWAYS
}

/// The floating-point state at `address` with its extension, if it is marked as having one for these
/// components.
fn extended(address: u64, components: u64) -> Option<Extended> {
    let size = xsave::size(components);
    let area = Guest.read(address, size + MAGIC_SIZE)?;
    let word =
        |start: usize| u32::from_le_bytes(area[start..start + 4].try_into().expect("four bytes"));
    let marked = word(at::SOFTWARE) == MAGIC[0]
        && word(at::SOFTWARE + 16) == size as u32
        && word(size) == MAGIC[1];
    marked.then_some(Extended { components, area })
}

/// An `xsave` area with room for these components.
struct Extended {
    components: u64,
    area: Vec<u8>,
}

/// Brings back the state from a legacy image, and from the extended one that it begins, if there
/// is one. Components that it says to be in their initial state are so afterwards.
fn restore_fp(context: &mut Context, image: &[u8; FX_SAVE], extended: Option<&Extended>) {
    /// Bits of mxcsr that every processor has; loading others would fault.
    const MXCSR: u32 = 0xffff;
    let word = |bytes: &[u8], start: usize| {
        u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight bytes"))
    };
    context.reset_vectors();
    context.mxcsr = word(image, at::MXCSR) as u32 & MXCSR;
    let mut components = X87 | SSE;
    if let Some(Extended { components: all, area }) = extended {
        components = word(area, at::COMPONENTS);
        xsave::load(area, *all, components, context);
    }
    if components & SSE != 0 {
        for (i, register) in context.xmm.iter_mut().enumerate() {
            *register = [word(image, at::XMM + 16 * i), word(image, at::XMM + 16 * i + 8)];
        }
    }
    match components & X87 {
        0 => host::fp_reset(),
        _ => host::fp_restore(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wide;

    #[test]
    fn what_a_frame_keeps_its_return_brings_back() {
        let stack: Box<[u8; 8192]> = Box::new([0; 8192]);
        let mut context = Context::default();
        for (i, register) in context.gpr.iter_mut().enumerate() {
            *register = 100 + i as u64;
        }
        context.gpr[RSP] = stack.as_ptr() as u64 + 8000;
        context.rip = 0x1234;
        context.rflags = 0x202 | 0x441;
        context.mxcsr = 0x1fa0;
        context.xmm[7] = [3, 4];
        let mut high = context.high;
        high[9] = [5, 6];
        context.set_high(high);
        let mut wide = Wide::default();
        (wide.masks[1], wide.upper[15][3], wide.more[2][7]) = (7, 8, 9);
        context.wide = Some(Box::new(wide));
        let delivery = Delivery {
            info: &[7; 128],
            action: [0x4000, 0, 0x5000, 0],
            mask: 0xff00,
            stack: AltStack::default(),
            processor: [Feature::Avx, Feature::Avx512F].into_iter().collect(),
            exception: Exception { vector: 14, error: 6, address: 0x7000 },
            executes_again: true,
        };
        let frame = build(&context, &delivery);
        assert_eq!((frame.address + 8) % 16, 0, "the stack is aligned as after a call");
        assert!(frame.address + frame.bytes.len() as u64 <= context.gpr[RSP] - RED_ZONE);
        assert!(Guest.write(frame.address, &frame.bytes));
        let word = |offset| Guest.word(frame.address + offset);
        assert_eq!([at::VECTOR, at::ERROR, at::ADDRESS].map(word), [14, 6, 0x7000].map(Some));
        assert_eq!(word(at::FLAGS), Some(0x202 | 0x441 | RESUME));

        let before = context.clone();
        enter(&mut context, frame.address, 0x4000, 10);
        assert_eq!((context.rip, context.gpr[RDI], context.mxcsr), (0x4000, 10, 0x1f80));
        assert_eq!((context.high, context.high_in_use), ([[0; 2]; 16], 0));
        assert_eq!(context.wide, Some(Box::default()));
        let info = Guest.read(context.gpr[RSI], 128).expect("is in the frame");
        assert_eq!(info, [7; 128]);
        assert_eq!(Guest.word(context.gpr[RSP]), Some(0x5000), "the restorer is returned to");

        context.gpr[RSP] += 8;
        let left = leave(&mut context, delivery.processor).expect("the frame is still there");
        assert_eq!((left.address, left.mask), (frame.address, 0xff00));
        assert_eq!(context.gpr, before.gpr);
        assert_eq!((context.rip, context.rflags), (before.rip, before.rflags));
        assert_eq!((context.xmm, context.mxcsr), (before.xmm, before.mxcsr));
        assert_eq!((context.high, context.high_in_use), (before.high, 1));
        assert_eq!(context.wide, before.wide);

        // A handler may have cleared the mark, or the component.
        let area = Guest.word(frame.address + at::FP_STATE).expect("the frame is still there");
        assert!(Guest.write(area + at::COMPONENTS as u64, &(X87 | SSE).to_le_bytes()));
        context.gpr[RSP] = frame.address + 8;
        leave(&mut context, delivery.processor).expect("the frame is still there");
        assert_eq!((context.xmm, context.high), (before.xmm, [[0; 2]; 16]));
        assert_eq!(context.wide, Some(Box::default()));
        drop(stack);
    }

    #[test]
    fn the_alternate_stack_is_used_unless_it_is_in_use() {
        let stack = AltStack { base: 0x10000, flags: 0, size: 0x4000 };
        let mut context = Context::default();
        let mut address = |sp: u64, flags: i32| {
            context.gpr[RSP] = sp;
            let action = [1, flags as u64, 0, 0];
            build(
                &context,
                &Delivery {
                    info: &[0; 128],
                    action,
                    mask: 0,
                    stack,
                    processor: Processor::V2,
                    exception: Exception::default(),
                    executes_again: false,
                },
            )
            .address
        };
        assert!(stack.holds(address(0x90000, libc::SA_ONSTACK)));
        assert!(!stack.holds(address(0x90000, 0)));
        let nested = address(0x13000, libc::SA_ONSTACK);
        assert!(stack.holds(nested) && nested < 0x13000);
    }
}
