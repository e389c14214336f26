//! What every row must satisfy, and what some particular calls resolve to.

use super::super::shape::Shape;
use super::super::spec::{Action, MachineCall, Order, Rule, Spec};
use super::super::{resolve, table};
use crate::syscall::{Call, Refusal};

/// All rows, those of commands too.
fn rows() -> Vec<&'static Spec> {
    let mut rows = Vec::new();
    for spec in table::CALLS {
        rows.push(spec);
        if let Rule::Select(commands) = spec.rule {
            rows.extend(commands.rows.iter().map(|(_, row)| row));
            rows.extend(commands.otherwise.as_ref());
        }
    }
    rows
}

fn call(nr: libc::c_long, args: [u64; 6]) -> Call {
    resolve(nr as u64, args).expect("the test asks for a call that is not refused")
}

fn refusal(nr: u64, args: [u64; 6]) -> Refusal {
    resolve(nr, args).expect_err("the test asks for a call that is refused")
}

#[test]
fn signatures_are_well_formed() {
    for spec in rows() {
        let signature = spec.signature.as_bytes();
        assert!(signature.len() <= 6, "{}", spec.name);
        assert!(signature.iter().all(|kind| b"dilpsm-".contains(kind)), "{}", spec.name);
        assert!(signature.first() != Some(&b'm'), "{}: no flags before the mode", spec.name);
    }
}

#[test]
fn shapes_hang_on_addresses() {
    for spec in rows() {
        let sent = spec.sends.and_then(|sends| sends.shape);
        let shapes = spec.reads.iter().chain(spec.writes).copied().chain(sent);
        for shape in shapes {
            assert!(!shape.is_empty(), "{}: the `libc` type has no size", spec.name);
            let Shape { arg, .. } = shape;
            let kind = spec.signature.as_bytes()[usize::from(arg)];
            assert_eq!(char::from(kind), 'p', "{}, argument {arg}", spec.name);
        }
        if let Some(sends) = spec.sends {
            let kind = spec.signature.as_bytes()[usize::from(sends.fd)];
            assert_eq!(char::from(kind), 'd', "{}", spec.name);
        }
    }
}

#[test]
fn at_most_one_shape_of_a_row_needs_a_look_before_the_call() {
    for spec in rows() {
        let many = spec.writes.iter().filter(|shape| shape.is_saved()).count();
        assert!(many <= 1, "{}", spec.name);
    }
}

#[test]
fn commands_have_their_call_s_number_and_name_and_different_codes() {
    for spec in table::CALLS {
        let Rule::Select(commands) = spec.rule else {
            continue;
        };
        let mut codes: Vec<u64> = commands.rows.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        assert!(codes.windows(2).all(|pair| pair[0] != pair[1]), "{}", spec.name);
        for row in commands.rows.iter().map(|(_, row)| row).chain(&commands.otherwise) {
            assert_eq!(row.nr, spec.nr, "{}", row.name);
            assert_eq!(row.name.split(' ').next(), Some(spec.name));
            assert!(!matches!(row.rule, Rule::Select(_)), "{}", row.name);
        }
    }
}

#[test]
fn codes_of_commands_are_those_of_libc() {
    let ioctl = |code: libc::Ioctl, name: &str| {
        let call = call(libc::SYS_ioctl, [0, code, 0, 0, 0, 0]);
        assert_eq!(call.name().strip_prefix("ioctl "), Some(name));
    };
    ioctl(libc::TCGETS, "TCGETS");
    ioctl(libc::TCSETSW, "TCSETSW");
    ioctl(libc::TIOCGWINSZ, "TIOCGWINSZ");
    ioctl(libc::TIOCGPGRP, "TIOCGPGRP");
    ioctl(libc::TIOCSPTLCK, "TIOCSPTLCK");
    ioctl(libc::TIOCGPTN, "TIOCGPTN");
    ioctl(libc::FIONREAD, "FIONREAD");
    ioctl(libc::FIONBIO, "FIONBIO");
    ioctl(libc::FIOCLEX, "FIOCLEX");
    ioctl(libc::FICLONE, "FICLONE");
    ioctl(libc::FICLONERANGE, "FICLONERANGE");
    ioctl(libc::FS_IOC_GETFLAGS, "FS_IOC_GETFLAGS");
    ioctl(libc::FS_IOC_GETVERSION, "FS_IOC_GETVERSION");
    ioctl(libc::SIOCGIFINDEX, "SIOCGIFINDEX");
    ioctl(libc::BLKSSZGET, "BLKSSZGET");

    let fcntl = |code: libc::c_int, name: &str| {
        let call = call(libc::SYS_fcntl, [0, code as u64, 0, 0, 0, 0]);
        assert_eq!(call.name().strip_prefix("fcntl "), Some(name));
    };
    fcntl(libc::F_DUPFD_CLOEXEC, "F_DUPFD_CLOEXEC");
    fcntl(libc::F_GETLK, "F_GETLK");
    fcntl(libc::F_OFD_SETLKW, "F_OFD_SETLKW");
    fcntl(libc::F_GETOWN, "F_GETOWN");
    fcntl(libc::F_SETPIPE_SZ, "F_SETPIPE_SZ");
    fcntl(libc::F_ADD_SEALS, "F_ADD_SEALS");

    let prctl = |code: libc::c_int, name: &str| {
        let call = call(libc::SYS_prctl, [code as u64, 0, 0, 0, 0, 0]);
        assert_eq!(call.name().strip_prefix("prctl "), Some(name));
    };
    prctl(libc::PR_SET_NAME, "PR_SET_NAME");
    prctl(libc::PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS");
    prctl(libc::PR_SET_VMA, "PR_SET_VMA");
    prctl(libc::PR_SET_PTRACER, "PR_SET_PTRACER");
    prctl(libc::PR_CAP_AMBIENT, "PR_CAP_AMBIENT");

    let futex = |code: libc::c_int, name: &str| {
        let call = call(libc::SYS_futex, [0, code as u64, 0, 0, 0, 0]);
        assert_eq!(call.name().strip_prefix("futex "), Some(name));
    };
    futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, "FUTEX_WAIT");
    futex(libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME, "FUTEX_WAIT_BITSET");
    futex(libc::FUTEX_CMP_REQUEUE, "FUTEX_CMP_REQUEUE");
    futex(libc::FUTEX_LOCK_PI, "FUTEX_LOCK_PI");
}

const ABSENT: Action = Action::Answer(-(libc::ENOSYS as i64));

#[test]
fn a_refusal_names_number_and_reason() {
    assert_eq!(
        refusal(55, [0, 6, 35, 0, 0, 0]).to_string(),
        "system call 55 (getsockopt TCP_ZEROCOPY_RECEIVE, command 0x600000023) is refused: \
         it maps received data into the guest"
    );
}

#[test]
fn the_kernel_looks_at_eax_alone() {
    assert_eq!(call(libc::SYS_getpid | 1 << 32, [0; 6]).name(), "getpid");
    // The x32 variant of a call is another call, which kernels of today do not have.
    assert_eq!(call(39 | 0x4000_0000, [0; 6]).action(), ABSENT);
}

#[test]
fn calls_that_must_fail_answer_so() {
    for nr in [libc::SYS_rseq, libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_seccomp, 500] {
        assert_eq!(call(nr, [0; 6]).action(), ABSENT);
    }
    assert_eq!(call(libc::SYS_remap_file_pages, [0; 6]).action(), ABSENT);
    assert!(call(libc::SYS_io_uring_setup, [0; 6]).is_noted());
    assert!(!call(libc::SYS_rseq, [0; 6]).is_noted());
}

#[test]
fn what_the_machine_does_itself() {
    let mmap = call(libc::SYS_mmap, [0; 6]);
    assert_eq!(mmap.action(), Action::Machine(MachineCall::Mmap));
    assert_eq!(mmap.order(), Order::Memory);
    assert_eq!(call(libc::SYS_read, [0; 6]).action(), Action::Pass);
    assert_eq!(call(libc::SYS_clock_gettime, [0; 6]).order(), Order::Local);
}

#[test]
fn ignored_bits_of_arguments_are_not_compared() {
    let junk = 0xffff_ffff_0000_0000;
    let read = call(libc::SYS_read, [junk | 3, junk | 8, junk | 16, junk, junk, junk]);
    assert_eq!(read.arguments(), &[3, junk | 8, junk | 16, 0, 0, 0]);

    let reading = (libc::O_RDONLY | libc::O_DIRECTORY) as u64;
    let open = |flags: u64| call(libc::SYS_openat, [0, 0, flags, 0o644, 7, 7]);
    assert_eq!(open(reading).arguments(), &[0, 0, reading, 0, 0, 0]);
    for creating in [libc::O_CREAT as u64, libc::O_TMPFILE as u64] {
        assert_eq!(open(creating).arguments(), &[0, 0, creating, 0o644, 0, 0]);
    }

    let wait = call(libc::SYS_futex, [16, 9 | 128, 2, 0, 99, u64::MAX]);
    assert_eq!(wait.arguments(), &[16, 9 | 128, 2, 0, 0, 0xffff_ffff]);
}
