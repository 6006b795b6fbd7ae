//! What was unpacked and what was left out, as one line of JSON.

#[derive(Default, Debug, PartialEq, Eq)]
pub struct Facts {
    pub entries: u64,
    pub bytes: u64,
    pub whiteouts: u64,
    pub opaque: u64,
    /// Whether everything in the layers below is hidden.
    pub opaque_top: bool,
    /// Directories that no entry describes.
    pub implied: u64,
    pub devices: u64,
    pub bookkeeping: u64,
    pub attributes: u64,
    /// Entries whose owner has no id here; they became root's.
    pub strangers: u64,
    pub uid_max: i64,
    pub gid_max: i64,
}

impl Facts {
    pub fn json(&self) -> String {
        format!(
            concat!(
                "{{\"entries\":{},\"bytes\":{},\"whiteouts\":{},\"opaque\":{},\"opaque_top\":{},",
                "\"implied\":{},\"skipped\":{{\"devices\":{},\"bookkeeping\":{},\"attributes\":{}}},",
                "\"strangers\":{},\"uid_max\":{},\"gid_max\":{}}}"
            ),
            self.entries,
            self.bytes,
            self.whiteouts,
            self.opaque,
            self.opaque_top,
            self.implied,
            self.devices,
            self.bookkeeping,
            self.attributes,
            self.strangers,
            self.uid_max,
            self.gid_max,
        )
    }
}
