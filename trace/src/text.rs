//! The text form of a trace, both ways.
//!
//! One statement a line, in any order; `#` starts a comment. What is left out has a default, so
//! that a trace written by hand is short:
//!
//! ```
//! let trace: refrain_trace::OwnedTrace = "
//!     t0 start
//!     t1 start
//!     t0 mutex.lock obj=0x10000 pc=0x401000 at=+50+3
//!     t0 mutex.unlock obj=0x10000 at=+10
//!     t1 mutex.lock obj=0x10000 at=100..160
//!     t1 mutex.unlock obj=0x10000
//!     t1 exit
//!     t0 exit
//!     end exited=0
//! ".parse()?;
//! assert_eq!(trace.threads[1][1].event.ticket, 2);
//! # Ok::<(), refrain_trace::Error>(())
//! ```
//!
//! # Grammar
//! Numbers are decimal or `0x`; strings are quoted with Rust's escapes.
//!
//! | statement | fields |
//! |---|---|
//! | `argv` | strings |
//! | `program`, `cwd`, `recorder` | a string |
//! | `machine` | `cpu="" cores= kernel="" [handoff_ns= wake_ns=] [native_ns= held_ns= free_ns=]` |
//! | `clock` | `hz= start= unix_ns=` |
//! | `entry` | `rip= rsp= brk=` |
//! | `map ADDRESS` | `len= prot= content=blobN offset=` |
//! | `module "path"` | `build_id="" bias= start= end=`, any number of `hook=ADDRESS:"name"`, `constant=START:END` |
//! | `blobN HEX` | lines of one blob are joined |
//! | `file blobN "path"` | `len= modified_ns=` |
//! | `page blobN OFFSET HEX` | lines of one page are joined; zeros at its end may be left out |
//! | `blkN ADDRESS HEX` | |
//! | `tN [eN] KIND` | see below |
//! | `transformed ADDRESS…` | the locks that are freed |
//! | `bytes START:END…` | the next set of bytes |
//! | `section csN` | `lock= thread=tN events=ACQUIRE:RELEASE reads= writes=` `shared` `after_wait`; locks by place, sets too |
//! | `state N` | the digest of those bytes at the end of the original |
//! | `edge csN csN` | the second begins after the first has ended |
//! | `end` | `exited=` or `signaled=` or `stopped=`, `tsc= cpu_ns= output= events=N,N…` |
//!
//! Fields of an event, with the default of each:
//!
//! - `obj=`: 0; of `start` and `exit`, the thread itself; of `create`, all threads. `tN` means
//!   that thread's object.
//! - `pc= sp= nr= result= value= overhead= busy= unrecorded=`: 0.
//! - `ticket=`: the next one of the object's slot, lines taken from top to bottom. So lines of
//!   several threads, written in the order in which things happen, need no tickets. For `load`,
//!   the number given out so far.
//! - `aux=`: 0; of `cond.wake`, the condition variable's tickets given out so far; of a system
//!   call with a ticket, the system-call tickets given out so far, its own included.
//! - `noticket`, `unfinished`, `flags=`: the flag is set; other flags by number.
//! - `at=BEGIN`, `at=BEGIN..END`, `at=BEGIN+SPAN`: times. `BEGIN` may be `+N`, after the thread's
//!   previous event. Default: at the previous event's end, taking no time.
//! - `args=N,N…`, any number of `write=ADDRESS:HEX`, and one of `output=FD,LEN,CRC`, `memory`,
//!   `memory=blobN,OFFSET,LEN`, `clone=tN`: the payload. `payload`: an empty one.
//!
//! `end` without `events=` counts the events that are there. A text without `end` is a trace that
//! was cut off.

mod lex;
mod parse;
mod parse_event;
mod print;

pub use parse::parse;
pub use print::{EventLine, TransformedText, print};
