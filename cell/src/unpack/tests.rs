//! Archives, written here byte by byte, and what became of them.

use super::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{symlink, FileTypeExt, MetadataExt};
use std::os::unix::io::AsRawFd;
use std::path::{Path, PathBuf};

const LIMITS: Limits = Limits { entries: 100, bytes: 1 << 20 };

/// A directory with a layer in the making and, beside it, what must not be touched.
struct Bench(PathBuf);

impl Bench {
    fn new(name: &str) -> Bench {
        let path = std::env::temp_dir().join(format!("cell-unpack-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("layer")).expect("a directory");
        fs::write(path.join("canary"), "untouched").expect("a canary");
        Bench(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join("layer").join(name)
    }

    fn unpack(&self, archive: &[u8]) -> Outcome<Facts> {
        self.unpack_within(archive, LIMITS)
    }

    fn unpack_within(&self, archive: &[u8], limits: Limits) -> Outcome<Facts> {
        self.unpack_marked(archive, limits, Marks::Names)
    }

    fn unpack_marked(&self, archive: &[u8], limits: Limits, marks: Marks) -> Outcome<Facts> {
        let file = self.0.join("archive");
        fs::File::create(&file).and_then(|mut file| file.write_all(archive)).expect("an archive");
        let file = fs::File::open(&file).expect("the archive");
        unpack(self.at("").to_str().expect("a path"), file.as_raw_fd(), limits, Owners::Single, marks)
    }

    fn refused(&self, archive: &[u8]) -> String {
        let words = self.unpack(archive).expect_err("refused").to_string();
        assert_eq!(fs::read(self.0.join("canary")).expect("canary"), b"untouched");
        words
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("removed");
    }
}

/// One entry: a header, content, padding.
fn entry(kind: u8, name: &[u8], target: &[u8], content: &[u8]) -> Vec<u8> {
    sized(kind, name, target, content, content.len() as u64)
}

fn sized(kind: u8, name: &[u8], target: &[u8], content: &[u8], size: u64) -> Vec<u8> {
    let mut block = [0u8; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000640");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000001750");
    block[156] = kind;
    block[157..157 + target.len()].copy_from_slice(target);
    block[257..265].copy_from_slice(b"ustar\x0000");
    sealed(block, content)
}

fn sealed(mut block: [u8; 512], content: &[u8]) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut bytes = block.to_vec();
    bytes.extend_from_slice(content);
    bytes.resize((bytes.len() + 511) / 512 * 512, 0);
    bytes
}

fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    entry(b'0', name, b"", content)
}

fn dir(name: &[u8]) -> Vec<u8> {
    entry(b'5', name, b"", b"")
}

fn pax(records: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, value) in records {
        let body = [b" ", *key, b"=", *value, b"\n"].concat();
        let length = (1..).find(|n| n.to_string().len() + body.len() == *n).expect("a length");
        all.extend_from_slice(length.to_string().as_bytes());
        all.extend_from_slice(&body);
    }
    entry(b'x', b"extended", b"", &all)
}

fn is_opaque(path: &Path) -> bool {
    let dir = fs::File::open(path).expect("a directory");
    crate::sys::layer::attribute(&dir, b"user.overlay.opaque").map_or(false, |value| value == b"y")
}

#[test]
fn files_directories_links_and_pipes_arrive_with_their_modes_and_times() {
    let bench = Bench::new("plain");
    let archive = [
        dir(b"etc/"),
        file(b"etc/name", b"cloister\n"),
        entry(b'2', b"etc/alias", b"/outside/name", b""),
        entry(b'1', b"etc/second", b"etc/name", b""),
        entry(b'6', b"etc/pipe", b"", b""),
        file(b"/absolute", b"inside"),
        vec![0; 1024],
    ];
    let facts = bench.unpack(&archive.concat()).expect("unpacked");
    assert_eq!((facts.entries, facts.bytes, facts.implied), (6, 15, 0));
    assert_eq!(fs::read(bench.at("etc/name")).expect("file"), b"cloister\n");
    assert_eq!(fs::read(bench.at("absolute")).expect("file"), b"inside");
    assert_eq!(fs::read_link(bench.at("etc/alias")).expect("link"), Path::new("/outside/name"));
    let (one, two) = (fs::metadata(bench.at("etc/name")), fs::metadata(bench.at("etc/second")));
    let (one, two) = (one.expect("one"), two.expect("two"));
    assert_eq!((one.ino(), one.mode() & 0o7777, one.mtime()), (two.ino(), 0o640, 1000));
    assert!(fs::metadata(bench.at("etc/pipe")).expect("pipe").file_type().is_fifo());
    // Everything inside was made after the directory, whose time is the archive's all the same.
    assert_eq!(fs::metadata(bench.at("etc")).expect("directory").mtime(), 1000);
    assert_eq!(fs::metadata(bench.at("")).expect("top").mtime(), 0);
}

#[test]
fn a_name_that_leaves_the_layer_is_refused() {
    for name in [&b"../canary"[..], b"a/../../canary", b"/../canary", b"a/.."] {
        let bench = Bench::new("climb");
        assert!(bench.refused(&file(name, b"x")).contains("climbs"), "{}", shown(name));
        assert!(bench.refused(&entry(b'1', b"a", name, b"")).contains("climbs"));
    }
}

#[test]
fn nothing_goes_through_a_link_wherever_it_is() {
    let bench = Bench::new("through");
    let outside = bench.0.to_str().expect("a path").as_bytes().to_vec();
    let link = entry(b'2', b"a", &outside, b"");
    for next in [
        file(b"a/canary", b"x"),
        dir(b"a/b"),
        entry(b'1', b"c", b"a/canary", b""),
        entry(b'1', b"a/c", b"a", b""),
        file(b"a/.wh.canary", b""),
        file(b"a/.wh..wh..opq", b""),
    ] {
        bench.refused(&[link.clone(), next].concat());
    }
    // A link that was there before the archive is no way either.
    symlink(&bench.0, bench.at("b")).expect("link");
    bench.refused(&file(b"b/canary", b"x"));
    // The link itself is replaced, not written through.
    let own = entry(b'2', b"d", &[&outside[..], b"/canary"].concat(), b"");
    bench.unpack(&[own, file(b"d", b"x")].concat()).expect("replaced");
    assert_eq!(fs::read(bench.at("d")).expect("file"), b"x");
    assert_eq!(fs::read(bench.0.join("canary")).expect("canary"), b"untouched");
}

#[test]
fn a_hard_link_reaches_only_what_the_layer_holds() {
    let bench = Bench::new("hard");
    for target in [&b"missing"[..], b"/etc/passwd", b"etc", b".", b"etc/.wh.x"] {
        let words = bench.refused(&[dir(b"etc"), entry(b'1', b"a", target, b"")].concat());
        assert!(words.contains("hard link"), "{words}");
    }
    // To a symbolic link: the link gets a second name, its target none.
    let archive = [entry(b'2', b"s", b"../canary", b""), entry(b'1', b"t", b"s", b"")].concat();
    bench.unpack(&archive).expect("linked");
    assert_eq!(fs::read_link(bench.at("t")).expect("link"), Path::new("../canary"));
    // To itself: it stays.
    let archive = [file(b"f", b"x"), entry(b'1', b"f", b"./f", b"")].concat();
    bench.unpack(&archive).expect("linked");
    assert_eq!(fs::read(bench.at("f")).expect("file"), b"x");
    // A file that takes the place of one of two names leaves the other as it was.
    let archive = [file(b"g", b"old"), entry(b'1', b"h", b"g", b""), file(b"g", b"new")].concat();
    bench.unpack(&archive).expect("replaced");
    assert_eq!(fs::read(bench.at("h")).expect("file"), b"old");
}

#[test]
fn a_removed_name_becomes_a_device_without_number() {
    let bench = Bench::new("removed");
    let archive = [dir(b"etc"), file(b"etc/.wh.gone", b""), file(b"etc/.wh..wh..opq", b"")].concat();
    let facts = bench.unpack(&archive).expect("unpacked");
    assert_eq!((facts.whiteouts, facts.opaque, facts.opaque_top), (1, 1, false));
    let gone = fs::symlink_metadata(bench.at("etc/gone")).expect("mark");
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert!(is_opaque(&bench.at("etc")));
    assert!(!bench.at("etc/.wh.gone").exists());
}

#[test]
fn marks_are_entries_and_every_name_a_name_where_a_machine_wrote_the_archive() {
    let bench = Bench::new("upper");
    let marked = [pax(&[(b"path", b"d"), (OPAQUE_MARK, b"y")]), entry(b'5', b"x", b"", b"")].concat();
    let archive =
        [marked, entry(b'3', b"d/gone", b"", b""), entry(b'0', b"d/.wh.name", b"", b"kept"), vec![0; 1024]];
    let facts = bench.unpack_marked(&archive.concat(), LIMITS, Marks::Entries).expect("unpacked");
    assert_eq!((facts.whiteouts, facts.opaque, facts.devices), (1, 1, 0));
    assert_eq!(fs::read(bench.at("d/.wh.name")).expect("a file"), b"kept");
    assert!(fs::symlink_metadata(bench.at("d/gone")).expect("a mark").file_type().is_char_device());
}

#[test]
fn a_removal_is_about_layers_below_and_not_about_its_own() {
    let bench = Bench::new("own");
    let archive = [
        file(b"kept", b"x"),
        file(b".wh.kept", b""),
        dir(b"dir"),
        file(b"dir/a", b"x"),
        file(b".wh.dir", b""),
        file(b".wh.back", b""),
        dir(b"back"),
        file(b".wh.implied", b""),
        file(b"implied/a", b"x"),
        file(b".wh.file", b""),
        file(b"file", b"x"),
    ];
    bench.unpack(&archive.concat()).expect("unpacked");
    assert_eq!(fs::read(bench.at("kept")).expect("file"), b"x");
    assert_eq!(fs::read(bench.at("dir/a")).expect("file"), b"x");
    assert_eq!(fs::read(bench.at("implied/a")).expect("file"), b"x");
    assert_eq!(fs::read(bench.at("file")).expect("file"), b"x");
    for name in ["dir", "back", "implied"] {
        assert!(is_opaque(&bench.at(name)), "{name}");
    }
}

#[test]
fn tricks_with_marks_are_refused_or_left_out() {
    let bench = Bench::new("tricks");
    for name in [&b".wh."[..], b".wh..", b".wh...", b".wh.a/b", b"a/.wh.b/c/d"] {
        bench.refused(&file(name, b""));
    }
    let facts = bench.unpack(&[dir(b".wh..wh.plnk"), file(b".wh..wh.plnk/1.2", b"")].concat());
    assert_eq!(facts.expect("left out").bookkeeping, 2);
    // A mark in its own form, as a device or as an attribute, is none.
    let marks = [(&b"SCHILY.xattr.user.overlay.opaque"[..], &b"y"[..]), (b"SCHILY.xattr.trusted.x", b"y")];
    let archive = [entry(b'3', b"null", b"", b""), pax(&marks), dir(b"dir")].concat();
    let facts = bench.unpack(&archive).expect("unpacked");
    assert_eq!((facts.devices, facts.attributes), (1, 2));
    assert!(!bench.at("null").exists() && bench.at("dir").is_dir());
    assert!(!is_opaque(&bench.at("dir")));
}

#[test]
fn a_directory_and_a_file_replace_each_other() {
    let bench = Bench::new("replace");
    let archive =
        [dir(b"a"), dir(b"a/b"), file(b"a/b/c", b"x"), file(b"a", b"file"), dir(b"d"), dir(b"d")].concat();
    bench.unpack(&archive).expect("unpacked");
    assert_eq!(fs::read(bench.at("a")).expect("file"), b"file");
    assert!(!is_opaque(&bench.at("d")));
    bench.unpack(&[file(b"e", b"x"), dir(b"e"), file(b"e/f", b"y")].concat()).expect("unpacked");
    assert_eq!(fs::read(bench.at("e/f")).expect("file"), b"y");
    assert!(is_opaque(&bench.at("e")));
    assert!(bench.refused(&[file(b"g", b"x"), file(b"g/h", b"y")].concat()).contains("link or a file"));
}

#[test]
fn limits_hold_before_anything_is_written() {
    let bench = Bench::new("limits");
    let few = Limits { entries: 2, bytes: 10 };
    assert!(bench.unpack_within(&[file(b"a", b"12345"), file(b"b", b"12345")].concat(), few).is_ok());
    let words = |archive: &[u8]| bench.unpack_within(archive, few).expect_err("refused").to_string();
    assert!(words(&[dir(b"a1"), dir(b"b1"), dir(b"c1")].concat()).contains("2 entries"));
    assert!(words(&sized(b'0', b"big", b"", b"", 1 << 30)).contains("10 bytes"));
    assert!(!bench.at("big").exists());
    assert!(words(&entry(b'x', b"a", b"", &[b' '; 600])).contains("bytes"));
    let deep = vec![b"d".to_vec(); 257].join(&b"/"[..]);
    assert!(bench.refused(&[pax(&[(b"path", &deep)]), dir(b"x")].concat()).contains("deeper"));
    assert!(bench.refused(&[pax(&[(b"path", &[b'n'; 256])]), dir(b"x")].concat()).contains("longer"));
    assert!(bench.refused(&sized(b'L', b"l", b"", b"", 1 << 32)).contains("may be"));
    assert!(bench.refused(&sized(b'x', b"l", b"", b"", 1 << 32)).contains("may be"));
    let endless: Vec<u8> = std::iter::repeat(entry(b'g', b"g", b"", b"")).take(500).flatten().collect();
    assert!(bench.refused(&endless).contains("headers"));
}

#[test]
fn extended_headers_replace_fields() {
    let bench = Bench::new("extended");
    let long = vec![vec![b'x'; 200]; 3].join(&b"/"[..]);
    let archive = [
        pax(&[(b"path", &long), (b"size", b"3"), (b"mtime", b"12.5"), (b"SCHILY.xattr.user.a", b"1\n2")]),
        sized(b'0', b"short", b"", b"abc", 0),
        entry(b'L', b"././@LongLink", b"", &[b'y'; 150]),
        file(b"yyy", b"z"),
        entry(b'K', b"././@LongLink", b"", &[b'/'; 150]),
        entry(b'2', b"link", b"cut", b""),
    ]
    .concat();
    bench.unpack(&archive).expect("unpacked");
    let long = bench.at(std::str::from_utf8(&long).expect("text"));
    assert_eq!(fs::read(&long).expect("file"), b"abc");
    assert_eq!(fs::metadata(&long).map(|m| (m.mtime(), m.mtime_nsec())).expect("times"), (12, 500_000_000));
    assert_eq!(fs::read(bench.at(&"y".repeat(150))).expect("file"), b"z");
    assert_eq!(fs::read_link(bench.at("link")).expect("link"), Path::new(&"/".repeat(150)));
    for damaged in [&b"9 path=a"[..], b"999 path=a\n", b"x path=a\n", b"8 patha\n", b"4 =\n"] {
        bench.refused(&[entry(b'x', b"x", b"", damaged), file(b"a", b"")].concat());
    }
    for key in [&b"path"[..], b"size", b"GNU.sparse.map"] {
        bench.refused(&[pax(&[(key, b"a\0b")]), file(b"a", b"")].concat());
    }
    let global = |key: &[u8]| [vec![], pax(&[(key, b"7")])].concat();
    let mut harmless = global(b"comment");
    harmless[156] = b'g';
    let resealed = |bytes: Vec<u8>| {
        let mut block = [0u8; 512];
        block.copy_from_slice(&bytes[..512]);
        sealed(block, &bytes[512..])
    };
    bench.unpack(&[resealed(harmless), file(b"a", b"")].concat()).expect("left out");
    let mut harmful = global(b"size");
    harmful[156] = b'g';
    assert!(bench.refused(&[resealed(harmful), file(b"a", b"")].concat()).contains("global"));
}

#[test]
fn what_readers_disagree_about_is_refused() {
    let bench = Bench::new("disagree");
    let named = pax(&[(b"path", b"one")]);
    let long = entry(b'L', b"l", b"", b"two");
    bench.refused(&[named.clone(), long.clone(), file(b"three", b"")].concat());
    bench.refused(&[named.clone(), named.clone(), file(b"three", b"")].concat());
    bench.refused(&[long.clone(), long, file(b"three", b"")].concat());
    bench.refused(&[named, vec![0; 1024]].concat());
    bench.refused(&entry(b'V', b"label", b"", b""));
    assert!(bench.refused(&[1; 512]).contains("checksum"));
    assert!(bench.refused(&file(b"cut", b"123")[..512]).contains("middle of a file"));
    assert!(bench.refused(&file(b"cut", b"123")[..100]).contains("middle of a header"));
}

#[test]
fn sparse_files_keep_their_holes() {
    let bench = Bench::new("sparse");
    let map = [b"2\n1048576\n3\n2097152\n2\n".to_vec(), vec![0; 512 - 22], b"abcde".to_vec()].concat();
    let header = |real: &'static [u8]| {
        pax(&[
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", b"sparse"),
            (b"GNU.sparse.realsize", real),
        ])
    };
    bench.unpack(&[header(b"3145728"), file(b"GNUSparseFile.0/sparse", &map)].concat()).expect("unpacked");
    let read = fs::read(bench.at("sparse")).expect("file");
    assert_eq!(
        (read.len(), &read[1_048_576..1_048_579], &read[2_097_152..2_097_154]),
        (3 << 20, &b"abc"[..], &b"de"[..])
    );
    assert!(fs::metadata(bench.at("sparse")).expect("file").blocks() < 100);
    bench.refused(&[header(b"2097153"), file(b"s", &map)].concat());
    bench.refused(&[header(b"99999999999999"), file(b"s", &map)].concat());

    let mut block = [0u8; 512];
    block.copy_from_slice(&file(b"gnu", b"")[..512]);
    block[156] = b'S';
    block[124..135].copy_from_slice(b"00000000003");
    block[257..265].copy_from_slice(b"ustar  \0");
    block[386..397].copy_from_slice(b"00004000000");
    block[398..409].copy_from_slice(b"00000000003");
    block[483..494].copy_from_slice(b"00010000000");
    bench.unpack(&sealed(block, b"abc")).expect("unpacked");
    let read = fs::read(bench.at("gnu")).expect("file");
    assert_eq!((read.len(), &read[1 << 20..(1 << 20) + 3]), (2 << 20, &b"abc"[..]));
    block[398..409].copy_from_slice(b"00000000004");
    bench.refused(&sealed(block, b"abc"));
}

#[test]
fn numbers_are_octal_or_binary_and_never_cut_off() {
    assert_eq!(header::number(b"0000755\0").expect("octal"), 0o755);
    assert_eq!(header::number(b"   17 \0\0").expect("octal"), 0o17);
    assert_eq!(header::number(b"\0\0\0").expect("nothing"), 0);
    assert_eq!(header::number(b"\x80\0\0\0\0\0\x01\0").expect("binary"), 256);
    assert_eq!(header::number(b"\xff\xff\xff\xff\xff\xff\xff\xfe").expect("negative"), -2);
    assert!(header::number(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").is_err());
    assert!(header::number(b"0000789\0").is_err());
}

#[test]
fn no_archive_makes_it_panic() {
    let bench = Bench::new("fuzz");
    let seed = [
        pax(&[(b"path", b"a/b"), (b"size", b"3")]),
        file(b"a", b"abc"),
        entry(b'2', b"l", b"a", b""),
        entry(b'1', b"h", b"a/b", b""),
        entry(b'L', b"l", b"", b"name"),
        dir(b"d"),
    ]
    .concat();
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    for _ in 0..2000 {
        let mut bytes = seed.clone();
        for _ in 0..4 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state as usize % bytes.len();
            bytes[at] = (state >> 32) as u8;
            // Mend the checksum, so that the change gets further than that.
            let block = at / 512 * 512;
            let mut header = [0u8; 512];
            header.copy_from_slice(&bytes[block..block + 512]);
            if &header[257..262] == b"ustar" {
                bytes[block..block + 512].copy_from_slice(&sealed(header, b""));
            }
        }
        match bench.unpack(&bytes) {
            Ok(facts) => assert!(facts.entries <= 100),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
    assert_eq!(fs::read(bench.0.join("canary")).expect("canary"), b"untouched");
    assert_eq!(fs::read_dir(&bench.0).expect("list").count(), 3);
}
