//! The system call filter: reviewed data in `syscalls/x86_64.tsv`, compiled to the kernel's form.

pub mod compile;
pub mod rules;
pub mod table;

pub use compile::compile;
