//! The clerk's parcels, records and changes against the golden bytes, and hostile parcels.

use super::{pack, unpack};
use crate::guest::clerk::{entry, watch};
use crate::sys::fd;
use crate::wire::codec::Reader;
use crate::wire::message::File;
use crate::wire::tests::{golden, Dice};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::io::AsRawFd;
use std::path::{Path, PathBuf};

/// A directory that is gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("cell-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the scratch directory is ours");
    }
}

fn raw(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Give the bytes to `unpack` as a file: it reads any descriptor.
fn unpack_bytes(scratch: &Scratch, target: &Path, bytes: &[u8]) -> Result<(), i32> {
    let path = scratch.join("parcel");
    fs::write(&path, bytes).expect("a parcel");
    let input = fs::File::open(&path).expect("the parcel");
    unpack(raw(target), input.as_raw_fd()).map_err(|trouble| crate::sys::errno_of(&trouble.error))
}

#[test]
fn a_golden_tree_is_unpacked() {
    let scratch = Scratch::new("tree");
    let top = scratch.join("top");
    assert_eq!(unpack_bytes(&scratch, &top, &golden("parcel-tree")), Ok(()));
    let file = top.join("d").join(std::ffi::OsString::from_vec(b"f\xff".to_vec()));
    assert_eq!(fs::read(&file).expect("the file"), b"\x00\xffz");
    let metadata = fs::metadata(&file).expect("the file");
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o640, 0));
    assert_eq!(fs::read_link(top.join("d/l")).expect("the link"), Path::new("../d"));
}

#[test]
fn a_file_is_packed_as_golden() {
    let scratch = Scratch::new("file");
    let path = scratch.join("any-name");
    fs::write(&path, b"one").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).expect("its mode");
    crate::sys::mount::set_times(crate::sys::libc::AT_FDCWD, raw(&path), 1_234_567_890_123_456_789)
        .expect("its time");
    let output = fs::File::create(scratch.join("out")).expect("an output");
    assert!(pack(raw(&path), output.as_raw_fd()).is_ok());
    assert_eq!(fs::read(scratch.join("out")).expect("the parcel"), golden("parcel-file"));
}

#[test]
fn what_was_packed_is_unpacked_the_same() {
    let scratch = Scratch::new("round");
    let top = scratch.join("top");
    assert_eq!(unpack_bytes(&scratch, &top, &golden("parcel-tree")), Ok(()));
    let output = fs::File::create(scratch.join("out")).expect("an output");
    assert!(pack(raw(&top), output.as_raw_fd()).is_ok());
    let packed = fs::read(scratch.join("out")).expect("the parcel");
    assert_eq!(unpack_bytes(&scratch, &scratch.join("again"), &packed), Ok(()));
    let file = std::ffi::OsString::from_vec(b"d/f\xff".to_vec());
    assert_eq!(fs::read(scratch.join("again").join(file)).expect("the file"), b"\x00\xffz");
}

#[test]
fn a_record_has_the_golden_layout() {
    let scratch = Scratch::new("record");
    let link = scratch.join("l");
    std::os::unix::fs::symlink("/t", &link).expect("a link");
    let mut file = request(raw(&scratch.0));
    file.length = 10;
    let output = fs::File::create(scratch.join("out")).expect("an output");
    assert!(entry::list(&file, output.as_raw_fd()).is_ok());
    let listed = fs::read(scratch.join("out")).expect("the records");
    let shape = |bytes: &[u8]| {
        let mut r = Reader::new(bytes);
        let numbers = (r.u32()?, r.u32()?, r.u32()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let names = (r.bytes()?, r.bytes()?);
        r.end().map(|()| (numbers.0, names))
    };
    let mut r = Reader::new(&listed);
    let records = [r.bytes(), r.bytes()].map(|record| shape(&record.expect("a record")).expect("its layout"));
    assert!(records.contains(&(0o120_777, (b"l".to_vec(), b"/t".to_vec()))));
    let known = golden("record");
    let known = Reader::new(&known).bytes().expect("a record");
    assert_eq!(shape(&known), Ok((0o120_777, (b"l\xff".to_vec(), b"/t".to_vec()))));
}

#[test]
fn a_watch_says_ready_as_golden_and_ends_when_nobody_listens() {
    let (reader, writer) = fd::pipe().expect("a pipe");
    let watching = std::thread::spawn(move || watch::watch(&request(b"/"), writer.as_raw_fd()).is_ok());
    let mut reader = fs::File::from(reader);
    let mut said = vec![0; golden("change").len()];
    reader.read_exact(&mut said).expect("a change");
    assert_eq!(said, golden("change"));
    drop(reader);
    assert!(watching.join().expect("no panic"));
}

fn request(path: &[u8]) -> File {
    File {
        operation: 0,
        uid: 0,
        gid: 0,
        path: path.to_vec(),
        other: Vec::new(),
        mode: 0,
        flags: 0,
        offset: 0,
        length: 0,
    }
}

/// Write entries by hand: kind, path, content.
fn parcel(entries: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
    let mut w = crate::wire::codec::Writer::default();
    for (kind, path, content) in entries {
        w.u8(*kind).u32(0o755).i64(0).u64(content.len() as u64).bytes(path).bytes(b"");
        w.bytes.extend_from_slice(content);
    }
    w.u8(super::END);
    w.bytes
}

#[test]
fn a_name_that_climbs_is_refused_and_one_that_does_not_is_taken() {
    let scratch = Scratch::new("climb");
    let top = scratch.join("top");
    for name in [&b"../out"[..], b"/etc/out", b"a/../../out", b".."] {
        let bytes = parcel(&[(super::DIR, b"", b""), (super::FILE, name, b"x")]);
        assert_eq!(unpack_bytes(&scratch, &top, &bytes), Err(crate::sys::libc::EINVAL));
    }
    assert!(!scratch.join("out").exists());
    let bytes = parcel(&[(super::DIR, b"", b""), (super::FILE, b"..a", b"x")]);
    assert_eq!(unpack_bytes(&scratch, &top, &bytes), Ok(()));
    assert_eq!(fs::read(top.join("..a")).expect("the file"), b"x");
}

#[test]
fn a_parcel_that_was_cut_leaves_the_old_content() {
    let scratch = Scratch::new("cut");
    let top = scratch.join("top");
    let whole = parcel(&[(super::DIR, b"", b""), (super::FILE, b"f", b"new content")]);
    fs::create_dir_all(&top).expect("the top");
    fs::write(top.join("f"), b"old").expect("the old file");
    assert!(unpack_bytes(&scratch, &top, &whole[..whole.len() - 4]).is_err());
    assert_eq!(fs::read(top.join("f")).expect("the old file"), b"old");
    assert_eq!(fs::read_dir(&top).expect("the top").count(), 1, "a draft was left behind");
    assert_eq!(unpack_bytes(&scratch, &top, &whole), Ok(()));
    assert_eq!(fs::read(top.join("f")).expect("the new file"), b"new content");
}

fn fuzz(name: &str, seed: u64, rounds: usize) {
    let scratch = Scratch::new(name);
    let mut dice = Dice::new(seed);
    let tree = golden("parcel-tree");
    let mut out = fs::File::create(scratch.join("beside")).expect("a canary");
    out.write_all(b"canary").expect("a canary");
    for _ in 0..rounds {
        let input = if dice.below(4) == 0 { dice.bytes(256) } else { dice.mutate(&tree) };
        // Refused or taken, both are right; beside the target nothing may change.
        assert_ne!(unpack_bytes(&scratch, &scratch.join("top"), &input), Err(0));
        let names = fs::read_dir(&scratch.0).expect("the scratch directory").count();
        assert!(names <= 3, "something appeared beside the target");
    }
    assert_eq!(fs::read(scratch.join("beside")).expect("the canary"), b"canary");
}

#[test]
fn a_few_hundred_hostile_parcels_stay_below_their_target() {
    fuzz("fuzz", 1, 500);
}

#[test]
#[ignore = "long; `make fuzz` runs it"]
fn fuzz_parcels_stay_below_their_target() {
    fuzz("fuzz-long", 2, 200_000);
}
