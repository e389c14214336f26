//! From arguments and results to ranges, on a memory that is a map.
#![allow(clippy::single_range_in_vec_init, reason = "one range is what many calls write")]

use super::super::{Call, GuestMemory, Sent, resolve};
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Default)]
struct Fake(BTreeMap<u64, u8>);

impl Fake {
    fn put(mut self, address: u64, bytes: &[u8]) -> Fake {
        self.0.extend((address..).zip(bytes.iter().copied()));
        self
    }

    fn put_u32(self, address: u64, value: u32) -> Fake {
        self.put(address, &value.to_le_bytes())
    }

    fn put_u64(self, address: u64, value: u64) -> Fake {
        self.put(address, &value.to_le_bytes())
    }

    /// Vectors at `address` of the given places and lengths.
    fn put_vectors(self, address: u64, vectors: &[(u64, u64)]) -> Fake {
        (address..)
            .step_by(16)
            .zip(vectors)
            .fold(self, |fake, (at, (base, len))| fake.put_u64(at, *base).put_u64(at + 8, *len))
    }

    /// A `msghdr` at `address` with a name at 0x5000 and control data at 0x6000.
    fn put_message(self, address: u64, name: u32, vectors: (u64, u64), control: u64) -> Fake {
        self.put_u64(address, 0x5000)
            .put_u32(address + 8, name)
            .put_u64(address + 16, vectors.0)
            .put_u64(address + 24, vectors.1)
            .put_u64(address + 32, 0x6000)
            .put_u64(address + 40, control)
            .put_u32(address + 48, 0)
    }
}

impl GuestMemory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (address..).zip(into).all(|(at, byte)| self.0.get(&at).map(|b| *byte = *b).is_some())
    }
}

fn call(nr: libc::c_long, args: [u64; 6]) -> Call {
    resolve(nr as u64, args).expect("the test asks for a call that is not refused")
}

/// What a call writes that needs nothing from before or from memory.
fn writes(nr: libc::c_long, args: [u64; 6], result: i64) -> Vec<Range<u64>> {
    let call = call(nr, args);
    call.writes(&call.before(&Fake::default()), result, &Fake::default())
}

fn sent(nr: libc::c_long, args: [u64; 6], result: i64, memory: &Fake) -> Option<Sent> {
    call(nr, args).sent(result, memory)
}

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINTR: i64 = -(libc::EINTR as i64);
const ECHILD: i64 = -(libc::ECHILD as i64);

#[test]
fn a_read_writes_what_it_returns() {
    let read = |result| writes(libc::SYS_read, [0, 0x1000, 100, 0, 0, 0], result);
    assert_eq!(read(10), [0x1000..0x100a]);
    assert_eq!(read(0), []);
    assert_eq!(read(-1), []);
}

#[test]
fn a_result_that_tells_a_needed_length_is_no_length_written() {
    assert_eq!(writes(libc::SYS_getxattr, [8, 8, 0x1000, 0, 0, 0], 40), []);
    assert_eq!(writes(libc::SYS_getgroups, [0, 0x1000, 0, 0, 0, 0], 3), []);
    assert_eq!(writes(libc::SYS_getgroups, [8, 0x1000, 0, 0, 0, 0], 3), [0x1000..0x100c]);
    // MSG_TRUNC returns the length of the datagram.
    assert_eq!(writes(libc::SYS_recvfrom, [3, 0x1000, 4, 0x20, 0, 0], 9), [0x1000..0x1004]);
}

#[test]
fn null_pointers_and_wrapping_ranges_are_nothing() {
    assert_eq!(writes(libc::SYS_wait4, [0, 0, 0, 0x1000, 0, 0], 7), [0x1000..0x1090]);
    assert_eq!(writes(libc::SYS_getrandom, [u64::MAX - 3, 100, 0, 0, 0, 0], 100), []);
}

#[test]
fn some_errors_write() {
    let poll = |result| writes(libc::SYS_poll, [0x1000, 2, 0, 0, 0, 0], result);
    assert_eq!(poll(0), [0x1000..0x1010]);
    assert_eq!(poll(EINTR), [0x1000..0x1010]);
    assert_eq!(poll(EFAULT), []);

    let sleep = |result| writes(libc::SYS_nanosleep, [0x1000, 0x2000, 0, 0, 0, 0], result);
    assert_eq!(sleep(0), []);
    assert_eq!(sleep(EINTR), [0x2000..0x2010]);
    let absolute = [0, 1, 0x1000, 0x2000, 0, 0];
    assert_eq!(writes(libc::SYS_clock_nanosleep, absolute, EINTR), []);

    let waitid = [0, 0, 0x1000, 0, 0, 0];
    assert_eq!(writes(libc::SYS_waitid, waitid, ECHILD), [0x1000..0x101c]);
    let select = [3, 0x1000, 0, 0, 0x2000, 0];
    assert_eq!(writes(libc::SYS_select, select, EINTR), [0x2000..0x2010]);
}

#[test]
fn sets_of_descriptors_come_in_words() {
    let select = |n| writes(libc::SYS_select, [n, 0x1000, 0, 0, 0, 0], 0);
    assert_eq!(select(1), [0x1000..0x1008]);
    assert_eq!(select(64), [0x1000..0x1008]);
    assert_eq!(select(65), [0x1000..0x1010]);
}

#[test]
fn a_byte_for_each_page_begun() {
    assert_eq!(writes(libc::SYS_mincore, [0x8000, 4097, 0x1000, 0, 0, 0], 0), [0x1000..0x1002]);
}

#[test]
fn vectors_are_filled_in_order() {
    let memory = Fake::default().put_vectors(0x1000, &[(0x2000, 4), (0x3000, 0), (0x4000, 8)]);
    let readv = call(libc::SYS_readv, [0, 0x1000, 3, 0, 0, 0]);
    let before = readv.before(&memory);
    assert_eq!(readv.writes(&before, 6, &memory), [0x2000..0x2004, 0x4000..0x4002]);
    assert_eq!(readv.writes(&before, 99, &memory), [0x2000..0x2004, 0x4000..0x4008]);
    assert_eq!(
        sent(libc::SYS_writev, [7, 0x1000, 3, 0, 0, 0], 3, &memory),
        Some(Sent { fd: 7, len: 3, ranges: vec![0x2000..0x2003] })
    );
}

#[test]
fn a_cut_address_is_as_long_as_its_buffer() {
    let memory = Fake::default().put_u32(0x2000, 4);
    let accept = call(libc::SYS_accept, [3, 0x1000, 0x2000, 0, 0, 0]);
    let before = accept.before(&memory);
    let memory = memory.put_u32(0x2000, 16);
    assert_eq!(accept.writes(&before, 5, &memory), [0x1000..0x1004, 0x2000..0x2004]);
    let memory = memory.put_u32(0x2000, 2);
    assert_eq!(accept.writes(&before, 5, &memory), [0x1000..0x1002, 0x2000..0x2004]);
    assert_eq!(accept.writes(&before, -4, &memory), []);
}

#[test]
fn a_received_message_is_data_name_control_and_header() {
    let memory = Fake::default()
        .put_message(0x1000, 4, (0x2000, 1), 64)
        .put_vectors(0x2000, &[(0x3000, 100)]);
    let recvmsg = call(libc::SYS_recvmsg, [3, 0x1000, 0, 0, 0, 0]);
    let before = recvmsg.before(&memory);
    // The name was longer than its buffer; there were 24 bytes of control data.
    let memory = memory.put_message(0x1000, 16, (0x2000, 1), 24);
    assert_eq!(
        recvmsg.writes(&before, 10, &memory),
        [
            0x5000..0x5004,
            0x1008..0x100c,
            0x6000..0x6018,
            0x1028..0x1030,
            0x1030..0x1034,
            0x3000..0x300a
        ]
    );
}

#[test]
fn of_several_messages_only_those_count_that_came() {
    let memory = Fake::default()
        .put_message(0x1000, 16, (0x2000, 1), 0)
        .put_message(0x1040, 8, (0x2010, 1), 0)
        .put_message(0x1080, 8, (0x2010, 1), 0)
        .put_vectors(0x2000, &[(0x3000, 100), (0x4000, 100)])
        .put_u32(0x1038, 5)
        .put_u32(0x1078, 6);
    let recvmmsg = call(libc::SYS_recvmmsg, [3, 0x1000, 3, 0, 0, 0]);
    let before = recvmmsg.before(&memory);
    let ranges = recvmmsg.writes(&before, 2, &memory);
    for expected in [0x3000..0x3005, 0x4000..0x4006, 0x1038..0x103c, 0x5000..0x5008] {
        assert!(ranges.contains(&expected), "{expected:x?} in {ranges:x?}");
    }
    assert!(ranges.iter().all(|range| range.start < 0x1080 || range.start >= 0x3000));

    let sendmmsg = [3, 0x1000, 3, 0, 0, 0];
    assert_eq!(writes(libc::SYS_sendmmsg, sendmmsg, 2), [0x1038..0x103c, 0x1078..0x107c]);
    assert_eq!(
        sent(libc::SYS_sendmmsg, sendmmsg, 2, &memory),
        Some(Sent { fd: 3, len: 200, ranges: vec![0x3000..0x3064, 0x4000..0x4064] })
    );
}

#[test]
fn output_is_what_the_kernel_took() {
    let nothing = Fake::default();
    let write = |result| sent(libc::SYS_write, [1, 0x1000, 100, 0, 0, 0], result, &nothing);
    assert_eq!(write(30), Some(Sent { fd: 1, len: 30, ranges: vec![0x1000..0x101e] }));
    assert_eq!(write(0), None);
    assert_eq!(write(EINTR), None);
    assert_eq!(
        sent(libc::SYS_sendfile, [4, 5, 0, 100, 0, 0], 70, &nothing),
        Some(Sent { fd: 4, len: 70, ranges: vec![] })
    );
    assert_eq!(sent(libc::SYS_read, [0, 0x1000, 100, 0, 0, 0], 30, &nothing), None);
}

#[test]
fn reads_include_paths_with_their_zero_byte() {
    let memory = Fake::default().put(0x10fe, b"/etc/passwd");
    let open = call(libc::SYS_openat, [0, 0x10fe, 0, 0, 0, 0]);
    assert_eq!(open.reads(&memory), []);
    // Nothing behind the zero byte can be read, as in a replay that is shown the string alone.
    let memory = memory.put(0x1109, b"\0");
    assert_eq!(open.reads(&memory), [0x10fe..0x110a]);
    let memory = memory.put(0x110a, &[0; 64]);
    assert_eq!(open.reads(&memory), [0x10fe..0x110a]);
    let null = call(libc::SYS_utimensat, [0, 0, 0x1000, 0, 0, 0]);
    assert_eq!(null.reads(&memory), [0x1000..0x1020]);
}

#[test]
fn capability_sets_by_version() {
    let memory = Fake::default().put_u32(0x1000, 0x1998_0330).put_u32(0x1100, 0x2008_0522);
    let ranges = |header: u64| {
        let capget = call(libc::SYS_capget, [header, 0x2000, 0, 0, 0, 0]);
        capget.writes(&capget.before(&memory), 0, &memory)
    };
    assert_eq!(ranges(0x1000)[1], 0x2000..0x200c);
    assert_eq!(ranges(0x1100)[1], 0x2000..0x2018);
}

/// Memory in which every address can be read, and holds a number that depends on nothing else.
struct Noise;

impl GuestMemory for Noise {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        for (i, byte) in (0..).zip(into) {
            let mixed = address.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *byte = (mixed >> 56) as u8;
        }
        true
    }
}

#[test]
fn no_arguments_cause_a_panic_or_an_empty_range() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match state >> 61 {
            0 => 0,
            1 => u64::MAX - (state >> 40 & 0xff),
            2 => state >> 50,
            _ => state >> 20,
        }
    };
    for nr in 0..480 {
        for _ in 0..50 {
            let args = std::array::from_fn(|_| next());
            let Ok(call) = resolve(nr, args) else { continue };
            let before = call.before(&Noise);
            for result in [next() as i64, 3, 0, -4, -14, i64::MAX, i64::MIN] {
                let ranges = call.writes(&before, result, &Noise);
                let reads = call.reads(&Noise);
                let sent = call.sent(result, &Noise).map_or(vec![], |sent| sent.ranges);
                for range in ranges.iter().chain(&reads).chain(&sent) {
                    assert!(range.start < range.end, "{} {args:x?}", call.name());
                }
            }
        }
    }
}

/// A header tells how many records follow it, and how many there was room for.
#[test]
fn records_are_as_many_as_the_header_tells() {
    let extents = |mapped: u32, room: u32| {
        let memory = Fake::default().put_u32(0x1014, mapped).put_u32(0x1018, room);
        let call = call(libc::SYS_ioctl, [3, 0xc020_660b, 0x1000, 0, 0, 0]);
        call.writes(&call.before(&memory), 0, &memory)
    };
    assert_eq!(extents(2, 8), [0x1000..0x1020 + 2 * 56]);
    assert_eq!(extents(9, 1), [0x1000..0x1020 + 56]);
    assert_eq!(extents(9, 0), [0x1000..0x1020], "who only asks how many there are");
}
