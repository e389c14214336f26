//! Lines of generated code, which threads keep as long as nobody writes them ([`crate::order::filter`]).

use super::Lines;
use crate::order::filter::{Filter, LINE, Span, index};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Lines {
    /// A thread may access a line at this place.
    pub(super) fn permit(&self, filter: &Filter, line: usize, write: bool) {
        if write && let Some(aliases) = self.aliases() {
            aliases.members(aliases.canonical(line)).for_each(|line| filter.give_up(line));
        }
        filter.permit(line, write);
    }

    /// The thread whose window is open keeps the code in these lines, as far as it may read them.
    pub(crate) fn keep_code(&self, filter: &Filter, spans: &[Span]) {
        for address in spans.iter().flat_map(|span| span.lines()) {
            let line = index(address);
            self.code[0].fetch_min(address, Ordering::AcqRel);
            self.code[1].fetch_max(address, Ordering::AcqRel);
            let others = self.members(self.canonical(line)).filter(|&other| other != line);
            others.for_each(|other| filter.forbid(other, false));
            filter.keep_code(line);
        }
    }

    /// What a thread keeps of the code in a stretch of memory is not what it was.
    pub(crate) fn give_up_code(&self, filter: &Filter, range: &Range<u64>) {
        let [first, last] = [0, 1].map(|at: usize| self.code[at].load(Ordering::Acquire));
        let range = range.start.max(first)..range.end.min(last.saturating_add(LINE));
        filter.give_up_code(&range);
    }
}
