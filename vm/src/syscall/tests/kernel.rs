//! The table against the kernel: calls are really issued, with every pointer into an arena that
//! is filled with a pattern, and whatever byte of the arena changes must be in a range that the
//! table reports. Each call is made twice, with complementary patterns, so that a byte which
//! happens to be written with the pattern's value shows the other time.

use super::super::{GuestMemory, resolve};
use libc::{c_int, c_long};
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};

const ARENA: usize = 1 << 16;

/// The memory that a call may use: inputs, and room for outputs with gaps between.
struct Arena {
    memory: Vec<u8>,
    used: usize,
    /// Whatever must live until the call has been made.
    kept: Vec<Box<dyn std::any::Any>>,
}

impl Arena {
    fn new(pattern: u8) -> Arena {
        Arena { memory: vec![pattern; ARENA], used: 64, kept: Vec::new() }
    }

    fn base(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// So many bytes of the pattern; returns their address.
    fn room(&mut self, len: usize) -> u64 {
        let address = self.base() + self.used as u64;
        self.used += len.next_multiple_of(16) + 64;
        assert!(self.used < ARENA, "the arena is large enough for every test");
        address
    }

    /// An input; returns its address.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let address = self.room(bytes.len());
        let at = (address - self.base()) as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        address
    }

    fn text(&mut self, text: &str) -> u64 {
        self.put(&[text.as_bytes(), &[0]].concat())
    }

    fn u32(&mut self, value: u32) -> u64 {
        self.put(&value.to_le_bytes())
    }

    fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }

    fn keep<T: AsRawFd + 'static>(&mut self, file: T) -> u64 {
        let fd = file.as_raw_fd() as u64;
        self.kept.push(Box::new(file));
        fd
    }

    /// A message header with room for 100 bytes in two buffers, a name and control data.
    fn message(&mut self, name_len: u32, control_len: u64) -> [u64; 7] {
        let buffers = [self.room(3), self.room(97)];
        let vectors = self.words(&[buffers[0], 3, buffers[1], 97]);
        let name = if name_len == 0 { 0 } else { self.room(name_len as usize) };
        let control = if control_len == 0 { 0 } else { self.room(control_len as usize) };
        [name, u64::from(name_len), vectors, 2, control, control_len, 0]
    }
}

/// The test's own memory.
struct Own;

impl GuestMemory for Own {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: The kernel writes within `into`, and reads `address` without trusting it.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        read == into.len() as isize
    }
}

fn issue(nr: c_long, args: &[u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = *args;
    // SAFETY: All pointers among the arguments come from the arena of the caller, which is large
    // enough for what the call writes there, or is of no use to anybody if the table errs.
    let result = unsafe { libc::syscall(nr, a, b, c, d, e, f) };
    if result == -1 {
        -i64::from(std::io::Error::last_os_error().raw_os_error().expect("a call has failed"))
    } else {
        result
    }
}

/// Makes a call and checks the table against it; returns the result of the last time, and how
/// many bytes changed at least.
fn observe(nr: c_long, set_up: &dyn Fn(&mut Arena) -> [u64; 6]) -> (i64, usize) {
    let mut outcome = (0, 0);
    for pattern in [0xa5, 0x5a] {
        let mut arena = Arena::new(pattern);
        let args = set_up(&mut arena);
        let call = resolve(nr as u64, args).expect("the call is not refused");
        let before = call.before(&Own);
        let old = arena.memory.clone();
        let result = issue(nr, &args);
        let ranges = call.writes(&before, result, &Own);

        let base = arena.base();
        for range in &ranges {
            let inside = base <= range.start && range.end <= base + ARENA as u64;
            assert!(inside, "{}: {range:x?} is no output of the call", call.name());
        }
        let changed: Vec<u64> = (base..)
            .zip(old.iter().zip(&arena.memory))
            .filter_map(|(address, (old, new))| (old != new).then_some(address))
            .collect();
        for address in &changed {
            assert!(
                ranges.iter().any(|range| range.contains(address)),
                "{} = {result}: byte {:#x} of the arena changed, but the table says {:x?} of {:x?}",
                call.name(),
                address - base,
                ranges.iter().map(|r| r.start - base..r.end - base).collect::<Vec<_>>(),
                args.map(|arg| arg.wrapping_sub(base))
            );
        }
        outcome = (result, changed.len());
    }
    outcome
}

/// A call that succeeds and writes something.
#[track_caller]
fn check(nr: c_long, set_up: impl Fn(&mut Arena) -> [u64; 6]) -> i64 {
    let (result, changed) = observe(nr, &set_up);
    assert!(result >= 0, "failed: {}", std::io::Error::from_raw_os_error(-result as i32));
    assert!(changed > 0, "wrote nothing, so nothing was tested");
    result
}

/// A call that this kernel may lack or deny.
fn try_check(nr: c_long, set_up: impl Fn(&mut Arena) -> [u64; 6]) {
    observe(nr, &set_up);
}

/// A call that fails, and writes something all the same.
#[track_caller]
fn check_error(nr: c_long, errno: c_int, set_up: impl Fn(&mut Arena) -> [u64; 6]) {
    let (result, changed) = observe(nr, &set_up);
    assert_eq!(result, -i64::from(errno));
    assert!(changed > 0, "wrote nothing, so nothing was tested");
}

fn cwd() -> u64 {
    libc::AT_FDCWD as u64
}

/// A file of 5000 bytes that lives in memory.
fn file() -> File {
    // SAFETY: The name is a C string; the descriptor is new and owned by nobody else.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"refrain".as_ptr(), 0)) };
    file.write_all(&[7; 5000]).expect("memory for 5000 bytes");
    file
}

/// A descriptor that a call without pointers returned.
fn descriptor(nr: c_long, args: [u64; 6]) -> OwnedFd {
    let fd = issue(nr, &args);
    assert!(fd >= 0, "call {nr}: {}", std::io::Error::from_raw_os_error(-fd as i32));
    // SAFETY: The kernel has just returned it, so that nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd as c_int) }
}

/// One end of a pair of stream sockets, with `text` to be read from it.
fn stream_with(text: &[u8], arena: &mut Arena) -> u64 {
    let (mut far, near) = UnixStream::pair().expect("a pair of sockets");
    far.write_all(text).expect("room in the socket");
    arena.keep(far);
    arena.keep(near)
}

/// A datagram socket to which `texts` were sent from an address of 16 bytes.
fn datagrams(texts: &[&[u8]], arena: &mut Arena) -> u64 {
    let near = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let far = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for text in texts {
        let sent = far.send_to(text, near.local_addr().expect("an address"));
        assert_eq!(sent.expect("loopback"), text.len());
    }
    arena.keep(far);
    arena.keep(near)
}

#[test]
fn files() {
    check(libc::SYS_read, |a| [a.keep(file()), a.room(99), 99, 0, 0, 0].seeked());
    check(libc::SYS_pread64, |a| [a.keep(file()), a.room(99), 99, 4990, 0, 0]);
    check(libc::SYS_preadv, |a| {
        let vectors = [a.room(10), 10, a.room(0), 0, a.room(50), 50];
        [a.keep(file()), a.words(&vectors), 3, 4970, 0, 0]
    });
    check(libc::SYS_preadv2, |a| {
        let vectors = [a.room(10), 10, a.room(50), 50];
        [a.keep(file()), a.words(&vectors), 2, 0, 0, 0]
    });
    check(libc::SYS_readv, |a| {
        let vectors = [a.room(4), 4, a.room(50), 50];
        [stream_with(b"0123456789", a), a.words(&vectors), 2, 0, 0, 0]
    });
    check(libc::SYS_stat, |a| [a.text("/"), a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_lstat, |a| [a.text("/proc/self/exe"), a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_fstat, |a| [a.keep(file()), a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_newfstatat, |a| [cwd(), a.text("/"), a.room(300), 0, 0, 0]);
    check(libc::SYS_statx, |a| [cwd(), a.text("/"), 0, 0xfff, a.room(600), 0]);
    check(libc::SYS_statfs, |a| [a.text("/"), a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_fstatfs, |a| [a.keep(file()), a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_readlink, |a| [a.text("/proc/self/exe"), a.room(300), 300, 0, 0, 0]);
    check(libc::SYS_readlink, |a| [a.text("/proc/self/exe"), a.room(5), 5, 0, 0, 0]);
    check(libc::SYS_readlinkat, |a| [cwd(), a.text("/proc/self/exe"), a.room(300), 300, 0, 0]);
    check(libc::SYS_getcwd, |a| [a.room(4096), 4096, 0, 0, 0, 0]);
    for nr in [libc::SYS_getdents, libc::SYS_getdents64] {
        check(nr, |a| {
            let directory = a.keep(File::open("/proc/self").expect("a directory"));
            [directory, a.room(700), 700, 0, 0, 0]
        });
    }
    check(libc::SYS_fcntl, |a| {
        // A read lock that nobody contests: the kernel answers F_UNLCK in `l_type`.
        let lock = a.words(&[0, 0, 0, 0]);
        [a.keep(file()), libc::F_GETLK as u64, lock, 0, 0, 0]
    });
    check(libc::SYS_fcntl, |a| [a.keep(file()), 16, a.room(64), 0, 0, 0]);
    check(libc::SYS_sendfile, |a| {
        let offset = a.words(&[100]);
        let source = a.keep(file());
        [a.keep(file()), source, offset, 50, 0, 0]
    });
    check(libc::SYS_copy_file_range, |a| {
        let (from, to) = (a.words(&[100]), a.words(&[4000]));
        let source = a.keep(file());
        [source, from, a.keep(file()), to, 50, 0]
    });
    check(libc::SYS_splice, |a| {
        let (_, write) = pipe(a);
        let from = a.words(&[100]);
        [a.keep(file()), from, write, 0, 50, 0]
    });
    try_check(libc::SYS_fgetxattr, |a| {
        let file = a.keep(File::open("/").expect("the root"));
        [file, a.text("security.selinux"), a.room(64), 64, 0, 0]
    });
    try_check(libc::SYS_listxattr, |a| [a.text("/"), a.room(64), 64, 0, 0, 0]);
    try_check(451, |a| [a.keep(file()), a.words(&[0, 5000]), a.room(100), 0, 0, 0]);
}

trait Seeked {
    fn seeked(self) -> Self;
}

impl Seeked for [u64; 6] {
    /// The same arguments, after the descriptor among them has been set back to its beginning.
    fn seeked(self) -> [u64; 6] {
        issue(libc::SYS_lseek, &[self[0], 0, 0, 0, 0, 0]);
        self
    }
}

fn pipe(arena: &mut Arena) -> (u64, u64) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (arena.keep(read), arena.keep(write))
}

#[test]
fn the_system_and_the_process() {
    check(libc::SYS_uname, |a| [a.room(500), 0, 0, 0, 0, 0]);
    check(libc::SYS_sysinfo, |a| [a.room(300), 0, 0, 0, 0, 0]);
    check(libc::SYS_getrusage, |a| [0, a.room(300), 0, 0, 0, 0]);
    check(libc::SYS_times, |a| [a.room(64), 0, 0, 0, 0, 0]);
    check(libc::SYS_getrlimit, |a| [7, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_prlimit64, |a| [0, 7, 0, a.room(64), 0, 0]);
    check(libc::SYS_getresuid, |a| [a.room(4), a.room(4), a.room(4), 0, 0, 0]);
    check(libc::SYS_getresgid, |a| [a.room(4), a.room(4), a.room(4), 0, 0, 0]);
    try_check(libc::SYS_getgroups, |a| [8, a.room(64), 0, 0, 0, 0]);
    try_check(libc::SYS_getgroups, |a| [0, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_getcpu, |a| [a.room(8), a.room(8), 0, 0, 0, 0]);
    check(libc::SYS_sched_getaffinity, |a| [0, 1024, a.room(1024), 0, 0, 0]);
    check(libc::SYS_sched_getparam, |a| [0, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_sched_getattr, |a| [0, a.room(200), 200, 0, 0, 0]);
    check(libc::SYS_sched_getattr, |a| [0, a.room(200), 48, 0, 0, 0]);
    check(libc::SYS_sched_rr_get_interval, |a| [0, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_getrandom, |a| [a.room(100), 37, 0, 0, 0, 0]);
    check(libc::SYS_mincore, |a| [a.base() & !4095, 4096 * 3 + 1, a.room(64), 0, 0, 0]);
    check(libc::SYS_prctl, |a| [16, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_prctl, |a| [2, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_prctl, |a| [37, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_prctl, |a| [25, a.room(64), 0, 0, 0, 0]);
    try_check(libc::SYS_prctl, |a| [40, a.room(64), 0, 0, 0, 0]);
    for version in [0x1998_0330_u64, 0x2008_0522] {
        check(libc::SYS_capget, |a| [a.words(&[version]), a.room(64), 0, 0, 0, 0]);
    }
    check_error(libc::SYS_capget, libc::EINVAL, |a| [a.words(&[1]), a.room(64), 0, 0, 0, 0]);
    try_check(libc::SYS_get_mempolicy, |a| [a.room(8), a.room(128), 1024, 0, 0, 0]);
    try_check(libc::SYS_adjtimex, |a| [a.put(&[0; 208]), 0, 0, 0, 0, 0]);
    try_check(libc::SYS_clock_adjtime, |a| [0, a.put(&[0; 208]), 0, 0, 0, 0]);
}

#[test]
fn time() {
    check(libc::SYS_clock_gettime, |a| [1, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_clock_getres, |a| [1, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_gettimeofday, |a| [a.room(64), a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_time, |a| [a.room(64), 0, 0, 0, 0, 0]);
    check(libc::SYS_getitimer, |a| [1, a.room(64), 0, 0, 0, 0]);
    // ITIMER_VIRTUAL, stopped before and after.
    check(libc::SYS_setitimer, |a| [1, a.words(&[0; 4]), a.room(64), 0, 0, 0]);
    let timer = |a: &mut Arena| a.keep(descriptor(libc::SYS_timerfd_create, [1, 0, 0, 0, 0, 0]));
    check(libc::SYS_timerfd_gettime, |a| [timer(a), a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_timerfd_settime, |a| [timer(a), 0, a.words(&[0; 4]), a.room(64), 0, 0]);
    // SIGEV_NONE; the timers go with the process.
    let event = [0, (libc::SIGEV_NONE as u64) << 32, 0, 0, 0, 0, 0, 0];
    let id = check(libc::SYS_timer_create, |a| [1, a.words(&event), a.room(8), 0, 0, 0]);
    check(libc::SYS_timer_gettime, |a| [id as u64, a.room(64), 0, 0, 0, 0]);
    check(libc::SYS_timer_settime, |a| [id as u64, 0, a.words(&[0; 4]), a.room(64), 0, 0]);
}

#[test]
fn descriptors_in_pairs_and_sockets() {
    check(libc::SYS_pipe, |a| [a.room(64), 0, 0, 0, 0, 0]);
    check(libc::SYS_pipe2, |a| [a.room(64), 0, 0, 0, 0, 0]);
    check(libc::SYS_socketpair, |a| [1, 1, 0, a.room(64), 0, 0]);
    for capacity in [0, 2, 5, 16, 100] {
        check(libc::SYS_getsockname, |a| {
            [datagrams(&[], a), a.room(128), a.u32(capacity), 0, 0, 0]
        });
        check(libc::SYS_recvfrom, |a| {
            let socket = datagrams(&[b"twelve bytes"], a);
            [socket, a.room(64), 64, 0, a.room(128), a.u32(capacity)]
        });
        check(libc::SYS_accept4, |a| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let far = TcpStream::connect(listener.local_addr().expect("an address"));
            a.keep(far.expect("loopback"));
            [a.keep(listener), a.room(128), a.u32(capacity), 0, 0, 0]
        });
    }
    check(libc::SYS_getpeername, |a| {
        let socket = stream_with(b"", a);
        [socket, a.room(128), a.u32(100), 0, 0, 0]
    });
    check(libc::SYS_accept, |a| {
        // Memory of an arena that is gone can be another's: its address is no name.
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("refrain-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
        let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>
            ::from_abstract_name(name.as_bytes())
            .expect("a short name");
        let listener = UnixListener::bind_addr(&address).expect("a new name");
        a.keep(UnixStream::connect_addr(&address).expect("somebody listens"));
        [a.keep(listener), a.room(128), a.u32(100), 0, 0, 0]
    });
    // MSG_TRUNC: the result is longer than the buffer.
    check(libc::SYS_recvfrom, |a| {
        [datagrams(&[b"twelve bytes"], a), a.room(4), 4, libc::MSG_TRUNC as u64, 0, 0]
    });
}

#[test]
fn options_of_sockets() {
    for (option, capacity) in [
        (libc::SO_TYPE, 4),
        (libc::SO_TYPE, 2),
        (libc::SO_TYPE, 64),
        (libc::SO_PEERCRED, 64),
        (libc::SO_LINGER, 64),
        (libc::SO_RCVTIMEO, 64),
    ] {
        check(libc::SYS_getsockopt, |a| {
            let socket = stream_with(b"", a);
            [socket, libc::SOL_SOCKET as u64, option as u64, a.room(64), a.u32(capacity), 0]
        });
    }
    check(libc::SYS_getsockopt, |a| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let info = [libc::IPPROTO_TCP as u64, libc::TCP_INFO as u64];
        [a.keep(listener), info[0], info[1], a.room(600), a.u32(600), 0]
    });
    // ERANGE, and the length that would do.
    try_check(libc::SYS_getsockopt, |a| {
        let socket = stream_with(b"", a);
        [socket, libc::SOL_SOCKET as u64, libc::SO_PEERGROUPS as u64, a.room(64), a.u32(0), 0]
    });
}

#[test]
fn messages() {
    for (name, control) in [(0, 0), (128, 128), (5, 20), (16, 0)] {
        check(libc::SYS_recvmsg, |a| {
            let socket = datagrams(&[b"twelve bytes"], a);
            // Time stamps come as control data.
            let on = a.u32(1);
            let option = [socket, libc::SOL_SOCKET as u64, libc::SO_TIMESTAMP as u64, on, 4, 0];
            assert_eq!(issue(libc::SYS_setsockopt, &option), 0);
            let message = a.message(name, control);
            [socket, a.words(&message), 0, 0, 0, 0]
        });
        check(libc::SYS_recvmmsg, |a| {
            let socket = datagrams(&[b"twelve bytes", b"and 6+"], a);
            let none = [u64::MAX];
            let messages = [a.message(name, control), a.message(name, 0), a.message(0, control)];
            let array: Vec<u64> =
                messages.iter().flat_map(|m| m.iter().chain(&none)).copied().collect();
            let timeout = a.words(&[5, 0]);
            [socket, a.words(&array), 3, libc::MSG_DONTWAIT as u64, timeout, 0]
        });
    }
    check(libc::SYS_recvmsg, |a| {
        // A descriptor comes as control data.
        let (far, near) = UnixDatagram::pair().expect("a pair of sockets");
        let text = a.text("x");
        let vector = a.words(&[text, 1]);
        let descriptor = libc::SCM_RIGHTS as u64;
        let control = a.words(&[20, descriptor << 32 | libc::SOL_SOCKET as u64, 0]);
        let message = a.words(&[0, 0, vector, 1, control, 24, 0]);
        let far = a.keep(far);
        assert_eq!(issue(libc::SYS_sendmsg, &[far, message, 0, 0, 0, 0]), 1);
        let message = a.message(20, 64);
        [a.keep(near), a.words(&message), 0, 0, 0, 0]
    });
    check(libc::SYS_sendmmsg, |a| {
        let (far, near) = UnixDatagram::pair().expect("a pair of sockets");
        a.keep(far);
        let text = a.text("some text");
        let vectors = [a.words(&[text, 4]), a.words(&[text, 9])];
        let array = vectors.map(|v| [0, 0, v, 1, 0, 0, 0, u64::MAX]).concat();
        [a.keep(near), a.words(&array), 2, 0, 0, 0]
    });
}

#[test]
fn waiting_for_descriptors() {
    let polled = |a: &mut Arena| {
        let ready = stream_with(b"x", a) | 1 << 32;
        let idle = stream_with(b"", a) | 1 << 32 | 0xff << 48;
        a.words(&[ready, idle])
    };
    check(libc::SYS_poll, |a| [polled(a), 2, 1000, 0, 0, 0]);
    check(libc::SYS_ppoll, |a| [polled(a), 2, a.words(&[5, 0]), 0, 8, 0]);
    check(libc::SYS_ppoll, |a| [0, 0, a.words(&[0, 1_000_000]), 0, 8, 0]);
    // Sets of whole words, as long as descriptors are small.
    let sets = |a: &mut Arena| {
        let ready = stream_with(b"x", a);
        assert!(ready < 512);
        let mut words = [0; 8];
        words[ready as usize / 64] = 1 << (ready % 64);
        (512, a.words(&words), a.words(&words), a.words(&words))
    };
    check(libc::SYS_select, |a| {
        let (n, r, w, e) = sets(a);
        [n, r, w, e, a.words(&[5, 0]), 0]
    });
    check(libc::SYS_pselect6, |a| {
        let (n, r, w, e) = sets(a);
        [n, r, w, e, a.words(&[5, 0]), 0]
    });
    let epoll = |a: &mut Arena| {
        let epoll = a.keep(descriptor(libc::SYS_epoll_create1, [0; 6]));
        for _ in 0..3 {
            let event = a.put(&[1, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
            let ready = stream_with(b"x", a);
            let add = [epoll, libc::EPOLL_CTL_ADD as u64, ready, event, 0, 0];
            assert_eq!(issue(libc::SYS_epoll_ctl, &add), 0);
        }
        epoll
    };
    assert_eq!(check(libc::SYS_epoll_wait, |a| [epoll(a), a.room(120), 10, 1000, 0, 0]), 3);
    assert_eq!(check(libc::SYS_epoll_pwait, |a| [epoll(a), a.room(24), 2, 1000, 0, 8]), 2);
    check(441, |a| [epoll(a), a.room(120), 10, a.words(&[5, 0]), 0, 8]);
}

#[test]
fn terminals_and_devices() {
    let terminal = |a: &mut Arena| {
        a.keep(File::options().read(true).write(true).open("/dev/ptmx").expect("a terminal"))
    };
    for command in [0x5401, 0x802c_542a, 0x5413, 0x5424, 0x8004_5430, 0x8004_5439, 0x541b, 0x5411] {
        check(libc::SYS_ioctl, |a| [terminal(a), command, a.room(100), 0, 0, 0]);
    }
    try_check(libc::SYS_ioctl, |a| [terminal(a), 0x540f, a.room(100), 0, 0, 0]);
    try_check(libc::SYS_ioctl, |a| [terminal(a), 0x5429, a.room(100), 0, 0, 0]);
    check(libc::SYS_ioctl, |a| [stream_with(b"xyz", a), 0x541b, a.room(100), 0, 0, 0]);
    check(libc::SYS_ioctl, |a| [a.keep(file()), 0x5460, a.room(100), 0, 0, 0]);
    check(libc::SYS_ioctl, |a| [a.keep(file()), 2, a.room(100), 0, 0, 0]);
    for command in [0x8008_6601, 0x8008_7601, 0x801c_581f] {
        try_check(libc::SYS_ioctl, |a| {
            let directory = File::open(std::env::temp_dir()).expect("a directory");
            [a.keep(directory), command, a.room(100), 0, 0, 0]
        });
    }
    // Where a file lies: a header with room for three records; some file systems do not say.
    try_check(libc::SYS_ioctl, |a| {
        let file = a.keep(file());
        let [room, range] = [3_u64, u64::MAX];
        [
            file,
            0xc020_660b,
            a.words(&[[0, range, 0, room].as_slice(), &[0xee; 28]].concat()),
            0,
            0,
            0,
        ]
    });
    check(libc::SYS_ioctl, |a| {
        let request = [b"lo\0".as_slice(), &[0xee; 61]].concat();
        [datagrams(&[], a), 0x8927, a.put(&request), 0, 0, 0]
    });
}

#[test]
#[expect(clippy::zombie_processes, reason = "the calls under test wait for them")]
fn children() {
    let child = || {
        let child = std::process::Command::new("/bin/true").spawn().expect("a child");
        u64::from(child.id())
    };
    check(libc::SYS_wait4, |a| [child(), a.room(64), 0, a.room(300), 0, 0]);
    check(libc::SYS_waitid, |a| {
        [u64::from(libc::P_PID), child(), a.room(256), libc::WEXITED as u64, a.room(300), 0]
    });
    // The kernel clears the answer even if there is nobody to wait for.
    check_error(libc::SYS_waitid, libc::ECHILD, |a| {
        [u64::from(libc::P_PID), 1, a.room(256), libc::WEXITED as u64, a.room(300), 0]
    });
}

#[test]
fn messages_of_system_v_and_posix() {
    let queue = issue(libc::SYS_msgget, &[0, 0o600, 0, 0, 0, 0]);
    if queue >= 0 {
        let queue = queue as u64;
        let send = |a: &mut Arena| {
            let message = a.words(&[5, 0x0123_4567_89ab_cdef]);
            assert_eq!(issue(libc::SYS_msgsnd, &[queue, message, 8, 0, 0, 0]), 0);
        };
        check(libc::SYS_msgrcv, |a| {
            send(a);
            [queue, a.room(100), 90, 0, 0, 0]
        });
        check(libc::SYS_msgctl, |a| [queue, 2, a.room(200), 0, 0, 0]);
        issue(libc::SYS_msgctl, &[queue, 0, 0, 0, 0, 0]);
    }
    let semaphores = issue(libc::SYS_semget, &[0, 2, 0o600, 0, 0, 0]);
    if semaphores >= 0 {
        let semaphores = semaphores as u64;
        check(libc::SYS_semctl, |a| [semaphores, 0, 2, a.room(200), 0, 0]);
        issue(libc::SYS_semctl, &[semaphores, 0, 0, 0, 0, 0]);
    }
    let flags = (libc::O_RDWR | libc::O_CREAT) as u64;
    let mut names = Arena::new(0);
    let name = names.text(&format!("refrain-{}", std::process::id()));
    let queue = issue(libc::SYS_mq_open, &[name, flags, 0o600, 0, 0, 0]);
    if queue >= 0 {
        let queue = queue as u64;
        check(libc::SYS_mq_getsetattr, |a| [queue, 0, a.room(200), 0, 0, 0]);
        check(libc::SYS_mq_timedreceive, |a| {
            let text = a.text("message");
            assert_eq!(issue(libc::SYS_mq_timedsend, &[queue, text, 7, 3, 0, 0]), 0);
            [queue, a.room(8192), 8192, a.room(8), 0, 0]
        });
        issue(libc::SYS_mq_unlink, &[name, 0, 0, 0, 0, 0]);
    }
}

extern "C" fn ignore(_: c_int) {}

/// Makes a call, as `check_error` does, that a signal interrupts after a while.
#[track_caller]
fn check_interrupted(nr: c_long, set_up: impl Fn(&mut Arena) -> [u64; 6]) {
    // SAFETY: The handler does nothing, which is safe at any point of the program.
    let previous = unsafe { libc::signal(libc::SIGUSR2, ignore as *const () as usize) };
    assert_ne!(previous, libc::SIG_ERR);
    // SA_RESTART, which `signal` sets, does not matter: none of these calls is restarted after
    // a handler has run.
    let thread = issue(libc::SYS_gettid, &[0; 6]) as u64;
    let process = u64::from(std::process::id());
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let alarm = std::thread::spawn(move || {
        // Again and again, in case that the call had not begun yet.
        let pause = std::time::Duration::from_millis(30);
        while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            issue(libc::SYS_tgkill, &[process, thread, libc::SIGUSR2 as u64, 0, 0, 0]);
        }
    });
    check_error(nr, libc::EINTR, set_up);
    drop(done);
    alarm.join().expect("the alarm only waits and signals");
}

#[test]
fn interruptions() {
    check_interrupted(libc::SYS_nanosleep, |a| [a.words(&[50, 0]), a.room(64), 0, 0, 0, 0]);
    check_interrupted(libc::SYS_clock_nanosleep, |a| [1, 0, a.words(&[50, 0]), a.room(64), 0, 0]);
    check_interrupted(libc::SYS_poll, |a| {
        let idle = stream_with(b"", a) | 1 << 32 | 0xff << 48;
        [a.words(&[idle]), 1, 50_000, 0, 0, 0]
    });
    check_interrupted(libc::SYS_ppoll, |a| [0, 0, a.words(&[50, 0]), 0, 8, 0]);
    check_interrupted(libc::SYS_select, |a| [0, 0, 0, 0, a.words(&[50, 0]), 0]);
    check_interrupted(libc::SYS_pselect6, |a| [0, 0, 0, 0, a.words(&[50, 0]), 0]);
}
