//! Instructions that neither engine executes.

use iced_x86::Mnemonic;

/// Whether an instruction would show the host, change it, or escape.
pub(crate) fn is_refused(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Sysenter
            | Sysexit
            | Sysexitq
            | Sysret
            | Sysretq
            | Iret
            | Iretd
            | Retf
            | Into
            | Rdgsbase
            | Wrgsbase
            | Swapgs
            | Lfs
            | Lgs
            | Lss
            | Rdpid
            | Rdpru
            | Rdpkru
            | Wrpkru
            | Xend
            | Xtest
            | Xsavec
            | Xsavec64
            | Xsaveopt
            | Xsaveopt64
            | Xsaves
            | Xsaves64
            | Xrstors
            | Xrstors64
            | Senduipi
            | Umwait
            | Tpause
            | Monitorx
            | Mwaitx
    )
}
