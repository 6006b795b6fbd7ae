//! The golden bytes of `wire/golden.txt`, read and written from this side, and the fuzz loops.

use super::frame::{Assembler, Frame, MAX_TO_GUEST};
use super::message::{Exited, File, Reach, Start, ToGuest, ToHost, FIRST_OF_GUEST};
use super::GENERATION;
use crate::contain::step::Step;
use crate::plan::{Drill, Owner, Plan};
use crate::zygote::message::{self as launcher, Ids, Request};

/// The number of an operation, which the clerk keeps to itself.
const MOVE: u8 = 6;

/// A line of the golden file, which the host's tests read too.
pub fn golden(name: &str) -> Vec<u8> {
    golden_lines()
        .into_iter()
        .find(|(known, _)| known == name)
        .unwrap_or_else(|| panic!("no golden line {name}"))
        .1
}

fn golden_lines() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../wire/golden.txt");
    text.lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("a line is `name hex`");
            let bytes =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"));
            (name.to_string(), bytes.collect())
        })
        .collect()
}

fn one_frame(bytes: &[u8]) -> Frame {
    let mut assembler = Assembler::new(MAX_TO_GUEST);
    assembler.feed(bytes);
    let frame = assembler.next().expect("a frame").expect("a whole frame");
    assert_eq!(assembler.next(), Ok(None));
    frame
}

fn read(name: &str) -> (u32, ToGuest) {
    let frame = one_frame(&golden(name));
    let message = ToGuest::decode(frame.kind, &frame.payload).expect(name);
    (frame.id, message)
}

#[test]
fn what_the_host_writes_is_understood() {
    let start = Start {
        uid: 1000,
        gid: 1001,
        pty: None,
        tell: false,
        stdin: true,
        cwd: b"/workspace".to_vec(),
        argv: vec![b"/bin/echo".to_vec(), Vec::new(), vec![0xFF]],
        env: vec![b"A=1".to_vec()],
    };
    let terminal = Start {
        uid: 0,
        gid: 0,
        pty: Some((24, 80)),
        tell: true,
        stdin: false,
        cwd: b"/".to_vec(),
        argv: vec![b"sh".to_vec()],
        env: Vec::new(),
    };
    let file = File {
        operation: MOVE,
        uid: 1000,
        gid: 1000,
        path: b"/a".to_vec(),
        other: b"/b".to_vec(),
        mode: 0o640,
        flags: 8 | 1,
        offset: 1 << 40,
        length: 7,
    };
    let expected = [
        ("to-guest-start", 1, ToGuest::Start(start)),
        ("to-guest-start-terminal", 2, ToGuest::Start(terminal)),
        ("to-guest-signal-process", 3, ToGuest::Signal { signal: 1, reach: Reach::Process }),
        ("to-guest-signal-group", 3, ToGuest::Signal { signal: 15, reach: Reach::Group }),
        ("to-guest-signal-tree", 3, ToGuest::Signal { signal: 9, reach: Reach::Tree }),
        ("to-guest-resize", 4, ToGuest::Resize { rows: 50, cols: 132 }),
        ("to-guest-dial", 5, ToGuest::Dial { port: 8080 }),
        ("to-guest-file", 6, ToGuest::File(file)),
        ("to-guest-data", 7, ToGuest::Data { stream: 0, bytes: b"in\x00\xff".to_vec() }),
        ("to-guest-data-empty", 7, ToGuest::Data { stream: 0, bytes: Vec::new() }),
        ("to-guest-close", 8, ToGuest::Close { stream: 0 }),
        ("to-guest-credit", 9, ToGuest::Credit { stream: 2, bytes: 65_536 }),
        ("to-guest-ping", u32::MAX, ToGuest::Ping),
        ("to-guest-hold", 10, ToGuest::Hold),
        ("to-guest-proceed", 11, ToGuest::Proceed),
        (
            "to-guest-renew",
            12,
            ToGuest::Renew { renewal: 3, seed: b"\x00\xff".to_vec(), name: b"sb-1".to_vec() },
        ),
        ("to-guest-answer", FIRST_OF_GUEST, ToGuest::Answer { bytes: b"a\x00\xff".to_vec() }),
    ];
    for (name, id, message) in &expected {
        assert_eq!(read(name), (*id, message.clone()), "{name}");
    }
    let named = golden_lines().into_iter().filter(|(name, _)| name.starts_with("to-guest")).count();
    assert_eq!(named, expected.len(), "a golden line is not checked here");
}

#[test]
fn what_the_guest_writes_is_golden() {
    let exited = Exited {
        code: 3,
        signal: 0,
        flags: 0,
        user_us: 4,
        system_us: 5,
        peak_kib: 6,
        read_blocks: 7,
        written_blocks: 8,
        processes: 9,
    };
    let killed = Exited { signal: 9, flags: 3, peak_kib: u64::MAX, processes: u32::MAX, ..Exited::default() };
    let failed = ToHost::Failed { errno: 2, step: b"execute".to_vec(), detail: b"/no/\xff".to_vec() };
    let written = [
        ("from-guest-hello", 0, ToHost::Hello { generation: GENERATION, facts: b"uid=0\n".to_vec() }),
        ("from-guest-started", 1, ToHost::Started { pid: 42 }),
        ("from-guest-exited", 2, ToHost::Exited(exited)),
        ("from-guest-exited-signal", 3, ToHost::Exited(killed)),
        ("from-guest-failed", 4, failed),
        ("from-guest-data", 5, ToHost::Data { stream: 1, bytes: b"out\x00\xff".to_vec() }),
        ("from-guest-data-empty", 5, ToHost::Data { stream: 2, bytes: Vec::new() }),
        ("from-guest-close", 6, ToHost::Close { stream: 255 }),
        ("from-guest-credit", 7, ToHost::Credit { stream: 0, bytes: 262_144 }),
        ("from-guest-pong", u32::MAX, ToHost::Pong),
        ("from-guest-held", 10, ToHost::Held),
        (
            "from-guest-accepted",
            FIRST_OF_GUEST,
            ToHost::Accepted { door: 0, address: 0xC612_0001, port: 443 },
        ),
        ("from-guest-asked", FIRST_OF_GUEST + 1, ToHost::Asked { bytes: b"q\x00\xff".to_vec() }),
        ("from-guest-refused", FIRST_OF_GUEST + 2, ToHost::Refused { bytes: b"r\x00\xff".to_vec() }),
    ];
    for (name, id, message) in &written {
        assert_eq!(message.encode(*id), golden(name), "{name}");
    }
    let named = golden_lines().into_iter().filter(|(name, _)| name.starts_with("from-guest")).count();
    assert_eq!(named, written.len(), "a golden line is not checked here");
}

#[test]
fn one_byte_more_or_less_is_refused() {
    for (name, bytes) in golden_lines() {
        if !name.starts_with("to-guest") || name.starts_with("to-guest-data") || name == "to-guest-answer" {
            continue;
        }
        let frame = one_frame(&bytes);
        let longer = [frame.payload.as_slice(), &[0]].concat();
        assert!(ToGuest::decode(frame.kind, &longer).is_err(), "{name} and a byte");
        if let Some((_, shorter)) = frame.payload.split_last() {
            assert!(ToGuest::decode(frame.kind, shorter).is_err(), "{name} without its last byte");
        }
    }
}

#[test]
fn frames_may_be_cut_anywhere() {
    let whole: Vec<u8> = golden_lines()
        .into_iter()
        .filter(|(name, _)| name.starts_with("to-guest"))
        .flat_map(|(_, b)| b)
        .collect();
    let frames = |size: usize| {
        let mut assembler = Assembler::new(MAX_TO_GUEST);
        let mut found = Vec::new();
        for part in whole.chunks(size) {
            assembler.feed(part);
            while let Some(frame) = assembler.next().expect("well formed") {
                found.push(frame);
            }
        }
        found
    };
    let expected = frames(whole.len());
    for size in 1..64 {
        assert_eq!(frames(size), expected, "cut every {size} bytes");
    }
}

#[test]
fn a_frame_of_a_forbidden_length_is_refused_before_it_arrives() {
    for (length, refused) in [
        (0u32, true),
        (4, true),
        (5, false),
        (MAX_TO_GUEST as u32, false),
        (MAX_TO_GUEST as u32 + 1, true),
        (u32::MAX, true),
    ] {
        let mut assembler = Assembler::new(MAX_TO_GUEST);
        assembler.feed(&length.to_le_bytes());
        assert_eq!(assembler.next().is_err(), refused, "{length}");
    }
}

#[test]
fn a_plan_is_understood() {
    let plan = Plan::decode(&golden("plan")).expect("the golden plan");
    assert!(plan.stream_transport && plan.allow_setgroups && plan.deny_set_id_bits && plan.landlock);
    assert!(plan.egress);
    assert!(!plan.allow_ptrace);
    assert_eq!(plan.hostname, b"cell");
    let maps: Vec<_> =
        plan.uid_map.iter().chain(&plan.gid_map).map(|r| (r.inside, r.outside, r.count)).collect();
    assert_eq!(maps, [(0, 300_000, 65_536), (0, 300_000, 1000), (1000, 365_536, 64_536)]);
    assert_eq!((plan.init_uid, plan.init_gid), (0, 1));
    let limits: Vec<_> =
        plan.limits.iter().map(|l| (l.group, l.file.as_slice(), l.value.as_slice())).collect();
    assert_eq!(limits, [(0, &b"memory.limit_in_bytes"[..], &b"1024"[..]), (255, b"pids.max", b"2")]);
    assert_eq!((plan.disk_bytes, plan.inodes, plan.shm_bytes), (1 << 31, 200_000, 1 << 26));
    let layers: Vec<_> =
        plan.layers.iter().map(|l| (l.sources.clone(), l.target.as_slice(), l.idmap, l.writable)).collect();
    let sources = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(layers[0], (sources(&["/usr"]), &b"usr"[..], true, false));
    assert_eq!(layers[1], (sources(&["/opt", "/srv/lower"]), &b"opt/a b"[..], false, true));
    assert_eq!(layers[2], (sources(&["/srv/image"]), &b""[..], false, true));
    let keys: Vec<_> = plan.layers.iter().map(|l| l.key.as_slice()).collect();
    assert_eq!(keys, [&b"usr"[..], b"opt%2Fa%20b", b"%"]);
    assert!(plan.disk.is_none());
    assert_eq!(plan.links, [(b"bin".to_vec(), b"usr/bin".to_vec())]);
    let dir = &plan.dirs[0];
    assert_eq!((dir.path.as_slice(), dir.uid, dir.gid, dir.mode), (&b"workspace"[..], 1000, 1001, 0o755));
    assert_eq!(plan.dirs.len(), 1);
    let mounts: Vec<_> =
        plan.mounts.iter().map(|m| (m.source.as_slice(), m.target.as_slice(), m.write, m.owner)).collect();
    let owner = Owner::One([1, 300_001], [2, 300_002]);
    assert_eq!(mounts[0], (&b"/srv/\xff"[..], &b"data"[..], false, Owner::AsTheyAre));
    assert_eq!(mounts[1], (&b"/srv/w"[..], &b"w"[..], true, owner));
    assert_eq!(plan.masks, [b"/proc/kcore".to_vec()]);
    assert_eq!(plan.rlimits, [(4, 0, 0), (7, 4096, 65_536)]);
    assert_eq!((plan.open_files, plan.bounding, plan.guest_caps, plan.root_caps), (1024, 1, 2, 4));
    assert_eq!(plan.drill, Drill::None);
    let drill = Plan::decode(&golden("plan-drill")).expect("the golden drill");
    assert_eq!((drill.drill, drill.stream_transport), (Drill::Pause(Step::Root), false));
    assert_eq!(drill.mounts[0].owner, Owner::Whole);
    let kernel = drill.kernel.expect("a kernel");
    assert_eq!((kernel.argv.len(), kernel.capabilities), (2, 5));
    assert_eq!(kernel.shown, [(b"runsc".to_vec(), b"/usr/bin/runsc".to_vec())]);
    assert_eq!(kernel.written, [(b"image".to_vec(), b"/run/i".to_vec())]);
    assert_eq!(kernel.made, [(b"c.json".to_vec(), b"{}".to_vec())]);
    let disk = drill.disk.expect("a disk");
    assert_eq!((disk.path.as_slice(), disk.idmap, disk.durable), (&b"/srv/disk"[..], true, false));
    assert_eq!(disk.sealed, sources(&["/srv/newer", "/srv/older"]));
}

#[test]
fn what_is_made_for_a_kernel_has_a_plain_name_in_one_directory_at_most() {
    let named = |name: &[u8; 6]| {
        let mut plan = golden("plan-drill");
        let at = plan.windows(6).position(|bytes| bytes == b"c.json").expect("the file's name");
        plan[at..at + 6].copy_from_slice(name);
        Plan::decode(&plan)
    };
    assert!(named(b"c/json").is_ok());
    for name in [b"c//son", b"/cjson", b"cjson/", b"c/js/n", b"c json"] {
        assert!(named(name).is_err(), "{}", String::from_utf8_lossy(name));
    }
}

#[test]
fn a_plan_of_another_generation_or_length_is_refused() {
    let plan = golden("plan");
    let mut older = plan.clone();
    older[0] = GENERATION.wrapping_sub(1);
    assert!(Plan::decode(&older).is_err());
    assert!(Plan::decode(&plan[..plan.len() - 1]).is_err());
    assert!(Plan::decode(&[plan.as_slice(), &[0]].concat()).is_err());
}

#[test]
fn what_the_launcher_is_told_is_understood() {
    for (name, kind) in [("root", 0), ("ranges", 1), ("single", 2)] {
        let configuration = match launcher::decode(&golden(&format!("to-launcher-configure-{name}"))) {
            Ok(Request::Configure(configuration)) => configuration,
            _ => panic!("{name} is no configuration"),
        };
        assert_eq!(configuration.directory, b"/run/cloister/1");
        let groups: Vec<_> =
            configuration.groups.iter().map(|(dir, unified)| (dir.as_slice(), *unified)).collect();
        assert_eq!(groups, [(&b"/groups/memory"[..], false), (b"/groups/unified", true)]);
        assert_eq!(configuration.name, b"1");
        assert_eq!(configuration.etc, [b"ssl".to_vec(), b"mime.types".to_vec()]);
        let file = &configuration.files[0];
        assert_eq!(
            (file.path.as_slice(), file.mode, file.content.as_slice()),
            (&b"etc/hosts"[..], 0o644, &b"x\n"[..])
        );
        match (configuration.ids, kind) {
            (Ids::Root, 0) | (Ids::Single, 2) => {}
            (Ids::Ranges { uids, gids, uid_helper, gid_helper }, 1) => {
                assert_eq!(uids, [(100_000, 65_536)]);
                assert_eq!(gids, [(200_000, 65_536), (300_000, 1)]);
                assert_eq!(
                    (uid_helper.as_slice(), gid_helper.as_slice()),
                    (&b"/usr/bin/newuidmap"[..], &b"/usr/bin/newgidmap"[..])
                );
            }
            _ => panic!("{name} gives other ids"),
        }
    }
    assert!(
        matches!(launcher::decode(&golden("to-launcher-launch")), Ok(Request::Launch { id: 11, plan }) if plan == b"plan")
    );
    assert!(matches!(launcher::decode(&golden("to-launcher-destroy")), Ok(Request::Destroy { id: 11 })));
    assert!(matches!(
        launcher::decode(&golden("to-launcher-freeze")),
        Ok(Request::Freeze { id: 11, frozen: true })
    ));
    assert!(launcher::decode(&[golden("to-launcher-destroy"), vec![0]].concat()).is_err());
}

/// A small generator with a fixed start: a failure can be run again.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed | 1)
    }

    /// xorshift64*, Vigna 2016.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// The same bytes with a few of them changed, removed, doubled, or set to an extreme number.
    pub fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                2 => bytes.truncate(at),
                3 => bytes.insert(at, self.next() as u8),
                4 if bytes.len() >= at + 4 => {
                    let extreme =
                        [0, 1, 0x7FFF_FFFF, 0x8000_0000, u32::MAX, MAX_TO_GUEST as u32][self.below(6)];
                    bytes[at..at + 4].copy_from_slice(&extreme.to_le_bytes());
                }
                _ => {
                    let tail = bytes[at.min(bytes.len())..].to_vec();
                    bytes.extend_from_slice(&tail);
                }
            }
        }
        bytes
    }
}

/// Everything that decodes bytes of the other side, fed with one input; the only wrong answer is
/// a panic, or an assembler that holds more than it was given.
fn decode_all_ways(input: &[u8], dice: &mut Dice) {
    let mut assembler = Assembler::new(MAX_TO_GUEST);
    let mut rest = input;
    'stream: while !rest.is_empty() {
        let (part, left) = rest.split_at(1 + dice.below(rest.len()));
        rest = left;
        assembler.feed(part);
        loop {
            match assembler.next() {
                Ok(Some(frame)) => {
                    assert!(frame.payload.len() <= input.len());
                    drop(ToGuest::decode(frame.kind, &frame.payload));
                }
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    if let Some((kind, payload)) = input.split_first() {
        if let Ok(message) = ToGuest::decode(*kind, payload) {
            assert!(message.descriptors() <= 3);
        }
    }
    drop(Plan::decode(input));
    drop(launcher::decode(input));
}

fn fuzz(seed: u64, rounds: usize) {
    let mut dice = Dice::new(seed);
    let golden = golden_lines();
    for round in 0..rounds {
        let input = match round % 4 {
            0 => dice.bytes(512),
            1 => {
                // A well-formed header, so that the payload is reached.
                let payload = dice.bytes(256);
                super::frame::encode(dice.below(40) as u8, dice.below(4) as u32, &payload)
            }
            _ => {
                let (_, bytes) = &golden[dice.below(golden.len())];
                dice.mutate(bytes)
            }
        };
        decode_all_ways(&input, &mut dice);
    }
}

#[test]
fn a_few_thousand_hostile_inputs_do_not_panic() {
    fuzz(1, 8_000);
}

#[test]
#[ignore = "long; `make fuzz` runs it"]
fn fuzz_decoders_never_panic() {
    for seed in 2..10 {
        fuzz(seed, 1_000_000);
    }
}
