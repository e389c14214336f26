//! Memory accesses, as observers of a replay see them.

/// One access of guest memory by one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Access {
    /// First byte.
    pub address: u64,
    /// The instruction. Code lies in the low 4 GiB of the guest's address space (`refrain-vm`
    /// places it there; code elsewhere has 0 here).
    pub pc: u32,
    /// Bytes.
    pub size: u16,
    /// [`Access::READ`], [`Access::WRITE`], both, or one of the control-flow kinds.
    pub kind: u16,
}

impl Access {
    /// The instruction loads.
    pub const READ: u16 = 1;
    /// The instruction stores.
    pub const WRITE: u16 = 2;
    /// A locked instruction: both at once, atomically.
    pub const ATOMIC: u16 = 7;
    /// Not an access: a call; `address` is the callee.
    pub const CALL: u16 = 8;
    /// Not an access: a return; `address` is where it returns to.
    pub const RETURN: u16 = 16;
    /// Not an access: a call of a function that the observer has named, at its first instruction;
    /// `address` is the first argument. Three of [`Access::ARGUMENT`] follow.
    pub const CALLED: u16 = 32;
    /// Not an access: what else that function is given. `address` is the second argument, the third
    /// one, and where the function returns to, in this order.
    pub const ARGUMENT: u16 = 64;
    /// Not an access: the function has returned; `address` is what it answered.
    pub const ANSWERED: u16 = 128;
    /// Not an access: an instruction that the observer has named comes next; `address` is what a
    /// register has.
    pub const VALUE: u16 = 256;
    /// Not an access: a call that the observer has named begins, and is logged with those that it is
    /// within. `address` is the first argument. Ten of [`Access::GIVEN`] follow, or more.
    pub const ENTERED: u16 = 512;
    /// Not an access: what goes with that call. `address` is the second to the sixth argument in
    /// registers, the first two words on the stack, where the return address is kept, the function,
    /// and how many words of a list follow; then these words.
    pub const GIVEN: u16 = 1024;
    /// Not an access: the innermost of these calls has returned; `address` is what it answered.
    pub const LEFT: u16 = 2048;
}
