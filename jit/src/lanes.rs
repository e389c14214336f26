//! Instructions of AVX and AVX-512 that access memory lane by lane: gathers, scatters, and others under a
//! mask.

use crate::common::has_memory;
use crate::values::value_of;
use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::{Context, Span};

/// The lanes of such an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    /// How many there are.
    pub(crate) count: usize,
    /// Bytes that each accesses.
    pub(crate) size: usize,
    /// The register that says which lanes are accessed: a mask register by its bits, a vector register by the
    /// highest bits of its lanes, which have the same size.
    pub(crate) mask: Register,
    /// Where they are.
    pub(crate) place: Place,
    /// They are written, not read.
    pub(crate) stores: bool,
}

/// Where in memory lanes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Side by side.
    Row,
    /// The accessed lanes lie side by side, without gaps for the others.
    Packed,
    /// Each lane lies where an index in the memory operand's vector says. An index has so many bytes.
    Indexed(usize),
}

/// The lanes of an instruction that accesses them one by one.
pub(crate) fn of(i: &Instruction) -> Option<Lanes> {
    match i.encoding() {
        EncodingKind::VEX => of_avx(i),
        EncodingKind::EVEX => of_avx_512(i),
        _ => None,
    }
}

fn of_avx(i: &Instruction) -> Option<Lanes> {
    use Mnemonic::*;
    if let Some((size, index)) = gathered(i) {
        let count = count_of(i, i.op0_register(), (size, index));
        let place = Place::Indexed(index);
        return Some(Lanes { count, size, mask: i.op2_register(), place, stores: false });
    }
    let size = match i.mnemonic() {
        Vpmaskmovd | Vmaskmovps => 4,
        Vpmaskmovq | Vmaskmovpd => 8,
        _ => return None,
    };
    let stores = i.op0_kind() == OpKind::Memory;
    let count = i.op1_register().size() / size;
    Some(Lanes { count, size, mask: i.op1_register(), place: Place::Row, stores })
}

/// Bytes of the elements and of the indices of a gather or a scatter.
fn gathered(i: &Instruction) -> Option<(usize, usize)> {
    use Mnemonic::*;
    Some(match i.mnemonic() {
        Vpgatherdd | Vgatherdps | Vpscatterdd | Vscatterdps => (4, 4),
        Vpgatherdq | Vgatherdpd | Vpscatterdq | Vscatterdpd => (8, 4),
        Vpgatherqd | Vgatherqps | Vpscatterqd | Vscatterqps => (4, 8),
        Vpgatherqq | Vgatherqpd | Vpscatterqq | Vscatterqpd => (8, 8),
        _ => return None,
    })
}

/// How many elements a gather or scatter has: one for each index, as far as there is room for them.
fn count_of(i: &Instruction, elements: Register, (size, index): (usize, usize)) -> usize {
    (i.memory_index().size() / index).min(elements.size() / size)
}

fn of_avx_512(i: &Instruction) -> Option<Lanes> {
    use Mnemonic::*;
    let mask = i.op_mask();
    if mask == Register::None || !has_memory(i) {
        return None;
    }
    let stores = i.op0_kind() == OpKind::Memory;
    if let Some((size, index)) = gathered(i) {
        let elements = if stores { i.op1_register() } else { i.op0_register() };
        let count = count_of(i, elements, (size, index));
        return Some(Lanes { count, size, mask, place: Place::Indexed(index), stores });
    }
    let whole = i.memory_size();
    let is_element = !i.is_broadcast() && !combines_lanes(i) && whole.element_size() > 0;
    let place = match i.mnemonic() {
        Vpcompressb | Vpcompressw | Vpcompressd | Vpcompressq | Vcompressps | Vcompresspd
        | Vpexpandb | Vpexpandw | Vpexpandd | Vpexpandq | Vexpandps | Vexpandpd => Place::Packed,
        _ => Place::Row,
    };
    let (count, size) = (whole.size() / whole.element_size().max(1), whole.element_size());
    is_element.then_some(Lanes { count, size, mask, place, stores })
}

/// Whether a lane of the result of an AVX-512 instruction depends on elements of the memory operand in other
/// lanes. The mask does not tell then which elements the instruction reads.
fn combines_lanes(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Valignd
            | Valignq
            | Vbroadcastf32x2
            | Vbroadcastf32x4
            | Vbroadcastf32x8
            | Vbroadcastf64x2
            | Vbroadcastf64x4
            | Vbroadcasti32x2
            | Vbroadcasti32x4
            | Vbroadcasti32x8
            | Vbroadcasti64x2
            | Vbroadcasti64x4
            | Vbroadcastsd
            | Vbroadcastss
            | Vdbpsadbw
            | Vdpbf16ps
            | Vfcmaddcph
            | Vfcmaddcsh
            | Vfcmulcph
            | Vfcmulcsh
            | Vfmaddcph
            | Vfmaddcsh
            | Vfmulcph
            | Vfmulcsh
            | Vgf2p8affineinvqb
            | Vgf2p8affineqb
            | Vinsertf32x4
            | Vinsertf32x8
            | Vinsertf64x2
            | Vinsertf64x4
            | Vinserti32x4
            | Vinserti32x8
            | Vinserti64x2
            | Vinserti64x4
            | Vmovddup
            | Vmovshdup
            | Vmovsldup
            | Vp4dpwssd
            | Vp4dpwssds
            | Vpackssdw
            | Vpacksswb
            | Vpackusdw
            | Vpackuswb
            | Vpalignr
            | Vpbroadcastb
            | Vpbroadcastd
            | Vpbroadcastq
            | Vpbroadcastw
            | Vpconflictd
            | Vpconflictq
            | Vpdpbusd
            | Vpdpbusds
            | Vpdpwssd
            | Vpdpwssds
            | Vpermb
            | Vpermd
            | Vpermi2b
            | Vpermi2d
            | Vpermi2pd
            | Vpermi2ps
            | Vpermi2q
            | Vpermi2w
            | Vpermilpd
            | Vpermilps
            | Vpermpd
            | Vpermps
            | Vpermq
            | Vpermt2b
            | Vpermt2d
            | Vpermt2pd
            | Vpermt2ps
            | Vpermt2q
            | Vpermt2w
            | Vpermw
            | Vpmaddubsw
            | Vpmaddwd
            | Vpmultishiftqb
            | Vpshufb
            | Vpshufbitqmb
            | Vpshufd
            | Vpshufhw
            | Vpshuflw
            | Vpslld
            | Vpsllq
            | Vpsllw
            | Vpsrad
            | Vpsraq
            | Vpsraw
            | Vpsrld
            | Vpsrlq
            | Vpsrlw
            | Vpunpckhbw
            | Vpunpckhdq
            | Vpunpckhqdq
            | Vpunpckhwd
            | Vpunpcklbw
            | Vpunpckldq
            | Vpunpcklqdq
            | Vpunpcklwd
            | Vshuff32x4
            | Vshuff64x2
            | Vshufi32x4
            | Vshufi64x2
            | Vshufpd
            | Vshufps
            | Vunpckhpd
            | Vunpckhps
            | Vunpcklpd
            | Vunpcklps
    )
}

/// Whether an instruction accesses lanes of its memory operand that a mask register names.
pub(crate) fn are_under_mask(i: &Instruction) -> bool {
    of(i).is_some_and(|lanes| lanes.mask.is_k())
}

/// All lanes together, if they lie side by side.
pub(crate) fn whole(i: &Instruction, lanes: Lanes, context: &Context) -> Option<Span> {
    let start = (lanes.place == Place::Row).then(|| address(i, 0, context)).flatten()?;
    Some(Span { start, len: (lanes.count * lanes.size) as u64, write: lanes.stores })
}

/// Where the memory operand is, or an element that its indices name.
fn address(i: &Instruction, element: usize, context: &Context) -> Option<u64> {
    let memory = (0..i.op_count()).find(|&at| i.op_kind(at) == OpKind::Memory)?;
    i.virtual_address(memory, element, |register, at, size| value_of(context, register, at, size))
}

/// What an instruction that accesses lanes is about to access: those that its mask names.
pub(crate) fn spans(i: &Instruction, context: &Context) -> Option<Vec<Span>> {
    let lanes = of(i)?;
    let named = (0..lanes.count).filter(|&lane| is_named(lanes, lane, context));
    let mut spans = Vec::new();
    for (nth, lane) in named.enumerate() {
        let (element, offset) = match lanes.place {
            Place::Indexed(_) => (lane, 0),
            Place::Row => (0, lane * lanes.size),
            Place::Packed => (0, nth * lanes.size),
        };
        let start = address(i, element, context)?.wrapping_add(offset as u64);
        spans.push(Span { start, len: lanes.size as u64, write: lanes.stores });
    }
    Some(spans)
}

fn is_named(lanes: Lanes, lane: usize, context: &Context) -> bool {
    if lanes.mask.is_k() {
        let masks = context.wide.as_ref().map_or(0, |wide| wide.masks[lanes.mask.number()]);
        return masks >> lane & 1 != 0;
    }
    let sign = 8 * lanes.size - 1;
    value_of(context, lanes.mask, lane, lanes.size).is_some_and(|value| value >> sign & 1 != 0)
}
