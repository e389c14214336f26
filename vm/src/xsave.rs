//! The layout of `xsave` areas: a guest sees it where it executes `xsave`, and in signal frames.
//!
//! Components lie where Intel's processors have them (Intel SDM, volume 1, section 13.4; not
//! compacted), whatever the host's are.

use crate::Context;
use std::ops::Range;

/// The state components: x87, SSE, AVX; and of AVX-512 the mask registers, the upper halves of zmm0
/// to zmm15, and zmm16 to zmm31.
pub(crate) const X87: u64 = 1;
pub(crate) const SSE: u64 = 2;
pub(crate) const AVX: u64 = 4;
const MASKS: u64 = 0x20;
const UPPER: u64 = 0x40;
const MORE: u64 = 0x80;
pub(crate) const AVX_512: u64 = MASKS | UPPER | MORE;

/// Bytes of the legacy region and the header, which every area has.
const SMALLEST: usize = 576;

/// Where a component lies in an area.
pub(crate) struct Part {
    pub(crate) component: u64,
    pub(crate) bytes: Range<usize>,
}

/// The components behind the header.
pub(crate) const PARTS: [Part; 4] = [
    Part { component: AVX, bytes: 576..832 },
    Part { component: MASKS, bytes: 1088..1152 },
    Part { component: UPPER, bytes: 1152..1664 },
    Part { component: MORE, bytes: 1664..2688 },
];

/// The components behind the header that are among these.
fn parts(components: u64) -> impl Iterator<Item = Part> {
    PARTS.into_iter().filter(move |part| part.component & components != 0)
}

/// Bytes of an area with these components.
pub(crate) fn size(components: u64) -> usize {
    parts(components).map(|part| part.bytes.end).max().unwrap_or(SMALLEST)
}

/// Stores these components, as far as they lie behind the header, to an area.
pub(crate) fn save(area: &mut [u8], components: u64, context: &Context) {
    for part in parts(components) {
        let wide = context.wide.as_deref();
        let words = match part.component {
            AVX => context.high.as_flattened(),
            MASKS => wide.map_or(&[][..], |wide| &wide.masks[..]),
            UPPER => wide.map_or(&[][..], |wide| wide.upper.as_flattened()),
            _ => wide.map_or(&[][..], |wide| wide.more.as_flattened()),
        };
        for (to, word) in area[part.bytes].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Loads these components, as far as they lie behind the header, from an area. Those that are not in use
/// are zero afterwards.
pub(crate) fn load(area: &[u8], components: u64, in_use: u64, context: &mut Context) {
    for part in parts(components) {
        let words = match (part.component, &mut context.wide) {
            (AVX, _) => context.high.as_flattened_mut(),
            (MASKS, Some(wide)) => &mut wide.masks,
            (UPPER, Some(wide)) => wide.upper.as_flattened_mut(),
            (MORE, Some(wide)) => wide.more.as_flattened_mut(),
            _ => &mut [],
        };
        let is_in_use = part.component & in_use != 0;
        for (from, word) in area[part.bytes].chunks_exact(8).zip(words) {
            let value = u64::from_le_bytes(from.try_into().expect("eight bytes"));
            *word = if is_in_use { value } else { 0 };
        }
    }
    context.set_high(context.high);
}
