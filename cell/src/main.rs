//! `cell`: the launcher (`zygote`) and the first process inside (the guest), one static binary.
//!
//! The map: `zygote` clones a process for each sandbox, `contain` builds the wall around it,
//! and the same process, never executed again, goes on as `guest`. `wire` is what the host and
//! the guest say to each other; `plan` is what the host tells the launcher; `unpack` is a program
//! for inside, which makes a layer of an image's archive; `sys` is the only place that talks to the
//! kernel. `warden` is a program too: it stays with that of another kernel, and has its memory saved.
#![deny(unsafe_code)]
#![deny(unused_must_use)]

mod contain;
mod guest;
mod machine;
mod plan;
#[allow(unsafe_code)]
mod sys;
mod unpack;
mod warden;
mod wire;
mod zygote;

use std::process::ExitCode;

/// Long enough that what the clock itself takes does not show.
const TICKS_MS: u64 = 200;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    if command == "unpack" {
        return unpack(&arguments.collect::<Vec<_>>());
    }
    if command == "guest" {
        return guest::inside::run(&arguments.collect::<Vec<_>>()).map_or_else(usage, finish);
    }
    if command == "warden" {
        return warden::run(&arguments.collect::<Vec<_>>()).map_or_else(usage, finish);
    }
    if command == "machine" {
        let words = arguments.collect::<Vec<_>>();
        return machine::Disks::parse(&words).map_or_else(usage, |disks| finish(machine::run(disks)));
    }
    if command == "execute" {
        let count = arguments.next().and_then(|word| word.parse().ok());
        let argv = arguments.collect::<Vec<_>>();
        return count.map_or_else(usage, |count| finish(Err(machine::start::run(count, &argv))));
    }
    if command == "format" {
        return match machine::format::run(&arguments.collect::<Vec<_>>()) {
            Some(Ok(0)) => ExitCode::SUCCESS,
            // It has said itself what was wrong.
            Some(Ok(_)) => ExitCode::FAILURE,
            Some(Err(error)) => finish(Err(error)),
            None => usage(),
        };
    }
    if command == "pages" {
        let numbers: Vec<i32> = arguments.filter_map(|word| word.parse().ok()).collect();
        return match numbers[..] {
            [pid, base, out] => finish(machine::pages::run(pid, base, out, None)),
            [pid, base, out, listed] => finish(machine::pages::run(pid, base, out, Some(listed))),
            _ => usage(),
        };
    }
    match (command.as_str(), arguments.next()) {
        ("zygote", Some(number)) => match number.parse() {
            Ok(control) => finish(zygote::serve(control, zygote::WayOut::Host)),
            Err(_) => usage(),
        },
        ("ticks", None) => match sys::machine::ticks_khz(TICKS_MS) {
            Ok(khz) => {
                println!("{khz}");
                ExitCode::SUCCESS
            }
            Err(error) => finish(Err(error)),
        },
        ("steps", None) => {
            zygote::print_steps();
            ExitCode::SUCCESS
        }
        ("syscalls", None) => print_syscalls(),
        _ => usage(),
    }
}

fn finish(outcome: std::io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cell: {error}");
            ExitCode::FAILURE
        }
    }
}

fn unpack(arguments: &[String]) -> ExitCode {
    match unpack::run(arguments) {
        None => usage(),
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(refusal)) => {
            eprintln!("cell: {refusal}");
            ExitCode::FAILURE
        }
    }
}

fn print_syscalls() -> ExitCode {
    match contain::seccomp::table::lines() {
        Ok(lines) => {
            for line in lines {
                println!("{}\t{}\t{}\t{}", line.number, line.name, line.word, line.reason);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cell: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cell zygote DESCRIPTOR | cell guest FILES BOUNDING OWN ROOT PIDS EGRESS PTRACE SETID CORE | \
         cell unpack DIRECTORY ENTRIES BYTES kept|single|upper | \
         cell machine LAYERS [kept] [shown=COUNT] [volumes=COUNT] | \
         cell execute DESCRIPTORS PROGRAM [ARGUMENT...] | cell pages PID BASE OUT [LISTED] | \
         cell format range FIRST|own|slice FIRST UIDS GIDS UID_HELPER GID_HELPER FILES OUT TREE|- \
         COUNT [HIDDEN...] PROGRAM [ARGUMENT...] | \
         cell warden PROGRAM [ARGUMENT...] -- SAVER [ARGUMENT...] | cell ticks | cell steps | cell syscalls"
    );
    ExitCode::from(2)
}
