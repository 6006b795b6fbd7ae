//! What the host and the guest say to each other, as bytes. `wire/README.md` is the contract.

pub mod codec;
pub mod frame;
pub mod message;

/// The one version number of the wire. Both ends must say the same.
pub const GENERATION: u8 = 3;

#[cfg(test)]
pub mod tests;
