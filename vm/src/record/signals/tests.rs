//! Who takes which signal, and when.

use super::*;

const MAIN: ThreadId = ThreadId(0);
const OTHER: ThreadId = ThreadId(1);

fn signal(number: u64) -> Signal {
    Signal { number, info: own_info(number, 0) }
}

fn two_threads() -> (Signals, Attention, Attention) {
    let signals = Signals::default();
    let main = signals.begin_thread(MAIN, None);
    let other = signals.begin_thread(OTHER, Some(MAIN));
    (signals, main, other)
}

#[test]
fn a_blocked_signal_waits_for_its_waiter() {
    let (signals, ..) = two_threads();
    for thread in [MAIN, OTHER] {
        signals.mask(thread, Some(!0));
    }
    assert_eq!(signals.send(Target::Thread(OTHER), signal(10)), Delivery::None);
    assert_eq!(signals.pending(OTHER), 1 << 9);
    assert_eq!(signals.wait(MAIN, !0, Some(Duration::ZERO)), Ok(None));
    assert_eq!(signals.wait(OTHER, !0, Some(Duration::MAX)), Ok(Some(signal(10))));
    assert_eq!(signals.pending(OTHER), 0);
}

#[test]
fn unblocked_signals_act() {
    let (signals, main, other) = two_threads();
    assert_eq!(signals.send(Target::Process, signal(10)), Delivery::Terminate);
    let child = signal(libc::SIGCHLD as u64);
    assert_eq!(signals.send(Target::Process, child), Delivery::None);
    let stop = signal(libc::SIGTSTP as u64);
    assert_eq!(signals.send(Target::Process, stop), Delivery::Stop);
    signals.action(10, Some([0x1000, 0, 0, 0xf]));
    assert_eq!(signals.send(Target::Process, signal(10)), Delivery::Handler);
    assert!(main.is_raised() && !other.is_raised(), "the main thread is preferred");
    let Some(Taken::Handle(handling)) = signals.take(MAIN) else { panic!("has a handler") };
    assert_eq!((handling.signal.number, handling.mask), (10, 0));
    assert_eq!(signals.mask(MAIN, None), 0xf | 1 << 9, "the handler's mask is in force");
    assert!(signals.take(MAIN).is_none() && !main.is_raised());
    signals.action(10, Some([SIG_IGN, 0, 0, 0]));
    assert_eq!(signals.send(Target::Process, signal(10)), Delivery::None);
}

#[test]
fn whoever_unblocks_a_signal_takes_it() {
    let (signals, main, other) = two_threads();
    signals.action(12, Some([0x1000, libc::SA_RESTART as u64, 0, 0]));
    for thread in [MAIN, OTHER] {
        signals.mask(thread, Some(1 << 11));
    }
    assert_eq!(signals.send(Target::Process, signal(12)), Delivery::None);
    assert!(!main.is_raised() && !other.is_raised());
    signals.lend_mask(OTHER, 0);
    assert!(!main.is_raised() && other.is_raised());
    assert_eq!(signals.restarts(OTHER), Some(true));
    let Some(Taken::Handle(handling)) = signals.take(OTHER) else { panic!("has a handler") };
    assert_eq!(handling.mask, 1 << 11, "the handler's return ends the loan");
}

#[test]
fn a_lent_mask_comes_back_if_another_thread_takes_the_signal() {
    let (signals, ..) = two_threads();
    signals.action(12, Some([0x1000, 0, 0, 0]));
    for thread in [MAIN, OTHER] {
        signals.mask(thread, Some(1 << 11));
    }
    signals.lend_mask(OTHER, 0);
    assert_eq!(signals.send(Target::Process, signal(12)), Delivery::Handler);
    assert_eq!(signals.restarts(OTHER), Some(false), "the call of the other thread ends");
    signals.mask(MAIN, Some(0));
    assert!(matches!(signals.take(MAIN), Some(Taken::Handle(_))));
    assert!(signals.take(OTHER).is_none());
    assert_eq!(signals.mask(OTHER, None), 1 << 11);
}

#[test]
fn whoever_comes_first_takes_what_the_main_thread_does_not() {
    let (signals, main, other) = two_threads();
    signals.action(12, Some([0x1000, 0, 0, 0]));
    assert_eq!(signals.due(), None);
    assert_eq!(signals.send(Target::Process, signal(12)), Delivery::Handler);
    assert_eq!(signals.due(), Some(Due { signals: 1 << 11, handled: 0 }));
    assert!(main.is_raised() && !other.is_raised(), "one is called");
    let child = libc::SIGCHLD as u64;
    signals.action(child, Some([0x1000, 0, 0, 0]));
    signals.send(Target::Process, signal(child));
    assert_eq!(signals.due(), Some(Due { signals: 1 << 11, handled: 0 }), "others may wait");
    signals.call_everybody();
    assert!(other.is_raised());
    assert!(matches!(signals.take(OTHER), Some(Taken::Handle(_))));
    assert_eq!(signals.due(), None);
}

#[test]
fn what_the_main_thread_waits_for_is_nobody_elses() {
    let (signals, _, other) = two_threads();
    let set = bit(15);
    signals.action(15, Some([0x1000, 0, 0, 0]));
    signals.mask(MAIN, Some(set));
    signals.lock().of(MAIN).awaited = set;
    assert_eq!(signals.send(Target::Process, signal(15)), Delivery::None);
    assert!(!other.is_raised() && signals.due().is_none());
    signals.call_everybody();
    assert!(!other.is_raised() && signals.take(OTHER).is_none());
    assert_eq!(signals.wait(MAIN, set, Some(Duration::ZERO)), Ok(Some(signal(15))));
    // A waiter that takes another signal leaves this one to those who can handle it.
    signals.lock().of(MAIN).awaited = set;
    signals.send(Target::Process, signal(15));
    assert!(!other.is_raised());
    assert_eq!(signals.wait(MAIN, 0, Some(Duration::ZERO)), Ok(None));
    assert!(other.is_raised() && matches!(signals.take(OTHER), Some(Taken::Handle(_))));
}

#[test]
fn real_time_signals_queue_and_others_do_not() {
    let (signals, ..) = two_threads();
    signals.mask(MAIN, Some(!0));
    for number in [10, 10, 40, 40] {
        signals.send(Target::Thread(MAIN), signal(number));
    }
    let next = || {
        let taken = signals.wait(MAIN, !0, Some(Duration::ZERO));
        taken.expect("nothing interrupts").map(|signal| signal.number)
    };
    assert_eq!([next(), next(), next(), next()], [Some(10), Some(40), Some(40), None]);
}

#[test]
fn a_fault_whose_signal_is_blocked_ends_the_process() {
    let (signals, ..) = two_threads();
    signals.action(11, Some([0x1000, libc::SA_RESETHAND as u64, 0, 0]));
    let fault = || signals.take_fault(MAIN, signal(11));
    assert!(matches!(fault(), Taken::Handle(_)));
    assert!(matches!(fault(), Taken::Terminate(11)));
}

#[test]
fn one_signal_of_a_timer_is_pending_and_counts_the_others() {
    let of_timer = |timer: i32, missed: i32| {
        let mut signal = signal(34);
        for (at, value) in [(CODE, SI_TIMER), (TIMER, timer), (OVERRUN, missed)] {
            signal.info[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        signal
    };
    let (signals, ..) = two_threads();
    signals.mask(MAIN, Some(!0));
    signals.mask(OTHER, Some(!0));
    for signal in [of_timer(1, 4), of_timer(2, 0), of_timer(1, 0), of_timer(1, 2), signal(34)] {
        signals.send(Target::Process, signal);
    }
    let taken = || signals.wait(MAIN, !0, Some(Duration::ZERO)).expect("nobody interrupts");
    // 4 at first, then one more, and one with 2 more.
    assert_eq!(taken(), Some(of_timer(1, 8)));
    assert_eq!(taken(), Some(of_timer(2, 0)));
    assert_eq!(taken(), Some(signal(34)));
    assert_eq!(taken(), None);
}
