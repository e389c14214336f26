//! Whether a call would have to wait.
//!
//! A signal may come between the guest's instruction and the call that the recorder issues for it. If the call
//! does not have to wait, the handler runs first and the call is made then, as natively. If it has to, it fails
//! with `EINTR`: to the guest, the signal has come a moment later. A call that began to wait only now would
//! sleep through a signal that was meant to wake it, and the recorder makes the time for that longer than it is
//! natively.

use crate::host::{self, Guest};
use crate::syscall::Call;

/// Whether a call that may wait would have to do so now, as far as that can be told.
pub(super) fn would_wait(call: &Call, nr: u16) -> bool {
    let args = *call.arguments();
    let [first, second, third, ..] = args;
    let silent = |fd: u64, events: i16| !host::is_ready(fd, events);
    match i64::from(nr) {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_preadv2
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_mq_timedreceive => silent(first, libc::POLLIN),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_mq_timedsend => silent(first, libc::POLLOUT),
        libc::SYS_sendfile => silent(second, libc::POLLIN) || silent(first, libc::POLLOUT),
        libc::SYS_splice => silent(first, libc::POLLIN) || silent(third, libc::POLLOUT),
        libc::SYS_tee => silent(first, libc::POLLIN) || silent(second, libc::POLLOUT),
        libc::SYS_epoll_wait => args[3] != 0 && silent(first, libc::POLLIN),
        libc::SYS_poll => third as i32 != 0 && !polled(first, second),
        libc::SYS_open | libc::SYS_creat => opens_pipe(libc::AT_FDCWD, first),
        libc::SYS_openat | libc::SYS_openat2 => opens_pipe(first as i32, second),
        libc::SYS_ioctl => host::is_device(first),
        libc::SYS_wait4 => {
            let (kind, id) = match first as i32 {
                -1 => (libc::P_ALL, 0),
                id @ ..=0 => (libc::P_PGID, id.unsigned_abs()),
                id => (libc::P_PID, id as u32),
            };
            host::waits_for_child(kind, id, third as i32 & !libc::WNOHANG | libc::WEXITED)
        }
        libc::SYS_waitid => host::waits_for_child(first as u32, second as u32, args[3] as i32),
        libc::SYS_fcntl => waits_for_lock(first, second as i32, third),
        libc::SYS_semop | libc::SYS_semtimedop => waits_for_semaphore(first as i32, second, third),
        libc::SYS_msgrcv => host::queue(first as i32).is_some_and(|it| it.msg_qnum == 0),
        libc::SYS_msgsnd => host::queue(first as i32)
            .is_some_and(|it| it.__msg_cbytes.saturating_add(third) > it.msg_qbytes),
        libc::SYS_futex => waits_for_word(first, second, third as u32),
        // These wait for others only shortly. What has been asked to be connected goes on being connected if
        // the call fails with `EINTR`, so it must have been asked for.
        libc::SYS_connect | libc::SYS_flock | libc::SYS_getrandom | libc::SYS_copy_file_range => {
            false
        }
        _ => true,
    }
}

/// A sleep has been interrupted before it began: all of it is left.
pub(super) fn keep_rest(call: &Call, nr: u16) {
    let [first, second, third, fourth, ..] = *call.arguments();
    let (asked, rest) = match i64::from(nr) {
        libc::SYS_nanosleep => (first, second),
        libc::SYS_clock_nanosleep if second as i32 & libc::TIMER_ABSTIME == 0 => (third, fourth),
        _ => return,
    };
    if let Some(time) = Guest.read(asked, size_of::<libc::timespec>())
        && rest != 0
    {
        Guest.write(rest, &time);
    }
}

/// Whether a `futex` waits until it is woken, if the word has this value. (The kernel lets no signal end a wait
/// for a lock with priority inheritance.)
pub(super) fn waits_for_word(word: u64, operation: u64, value: u32) -> bool {
    is_wait(operation) && Guest.word32(word).is_none_or(|now| now == value)
}

/// Whether this is an operation of `futex` that signals interrupt.
pub(super) fn is_wait(operation: u64) -> bool {
    const OPTIONS: i32 = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    matches!(
        operation as i32 & !OPTIONS,
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_WAIT_REQUEUE_PI
    )
}

fn opens_pipe(directory: i32, path: u64) -> bool {
    Guest.string(path).is_some_and(|path| host::is_named_pipe(directory, &path))
}

fn polled(descriptors: u64, count: u64) -> bool {
    const SIZE: usize = size_of::<libc::pollfd>();
    let Some(bytes) = Guest.read(descriptors, (count as usize).saturating_mul(SIZE)) else {
        return true;
    };
    let mut asked: Vec<_> = bytes
        .chunks_exact(SIZE)
        .map(|it| libc::pollfd {
            fd: i32::from_ne_bytes(std::array::from_fn(|at| it[at])),
            events: i16::from_ne_bytes([it[4], it[5]]),
            revents: 0,
        })
        .collect();
    host::polled(&mut asked)
}

fn waits_for_lock(fd: u64, command: i32, place: u64) -> bool {
    if !matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) {
        return false;
    }
    let half = |at: u64| Guest.word32(place + at);
    let (Some(kinds), Some(start), Some(len)) =
        (half(0), Guest.word(place + 8), Guest.word(place + 16))
    else {
        return false;
    };
    let lock = libc::flock {
        l_type: kinds as i16,
        l_whence: (kinds >> 16) as i16,
        l_start: start as i64,
        l_len: len as i64,
        l_pid: 0,
    };
    host::waits_for_lock(fd, command, lock)
}

fn waits_for_semaphore(id: i32, operations: u64, count: u64) -> bool {
    const SIZE: usize = size_of::<libc::sembuf>();
    // Linux allows 500 operations at a time.
    let bytes = Guest.read(operations, count.min(500) as usize * SIZE).unwrap_or_default();
    bytes.chunks_exact(SIZE).any(|it| {
        let number = u16::from_ne_bytes([it[0], it[1]]);
        let change = i32::from(i16::from_ne_bytes([it[2], it[3]]));
        let value = host::semaphore(id, number);
        value >= 0 && if change == 0 { value != 0 } else { value + change < 0 }
    })
}
