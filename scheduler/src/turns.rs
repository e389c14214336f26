//! Turns: an order of all operations that no thread's speed changes.
//!
//! Every thread has a key. An operation, a release too, happens in its thread's *turn*: when the
//! key is the least of all threads that are under way or could perform what they ask for, ties
//! going to the lower id. Who waits for another thread is out of the question until that one has
//! made it possible, in a turn of its own.
//!
//! # Why speed does not matter
//! Let every thread be before its next operation. Of the operations that are possible, the turn
//! goes to the one with the least key. A thread that has not come so far yet either has a greater
//! key, and then it does not matter whether its operation is possible; or it has a lesser one, and
//! then nobody has a turn before it comes. So threads that run at any speed get the same turns as
//! threads that are all there at once, as long as keys change in turns only, or grow while their
//! threads are under way.

use crate::{Choice, Moment, Progress, Request, Status};
use refrain_trace::ThreadId;

/// A thread's key, and its id.
pub(crate) type Key = (u64, ThreadId);

/// Whose turn it is by `key`. `comes` says of a thread that is under way when it will not come
/// before a key any more; `None` if it may, as far as is known.
pub(crate) fn turn(
    moment: Moment<'_>,
    requests: &[Request],
    key: impl Fn(&Request) -> u64,
    comes: impl Fn(ThreadId, &Progress, Key) -> Option<u64>,
) -> Choice {
    let keys = requests.iter().map(|request| (key(request), request.thread)).enumerate();
    let first = keys.min_by_key(|&(_, key)| key);
    let (index, mine) = first.expect("the caller guarantees that requests are not empty");
    let mut until = moment.now;
    for (other, progress) in (0..).map(ThreadId).zip(moment.threads) {
        let under_way = matches!(progress.status, Status::Going | Status::Away);
        if !under_way || other == mine.1 {
            continue;
        }
        match comes(other, progress, mine) {
            Some(time) => until = until.max(time),
            None => return Choice::Hold(Some(other)),
        }
    }
    if until > moment.now { Choice::HoldUntil(until) } else { Choice::Grant(index) }
}
