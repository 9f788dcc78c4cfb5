//! What the operating system says: memory there is, memory we use.

use std::fs;

/// Memory of this machine, or of the group of processes we are confined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Installed.
    pub total: u64,
    /// What may still be taken without pushing others out.
    pub available: u64,
}

impl Memory {
    /// Kept free for the rest of the machine: a twentieth, at least 512 MiB.
    pub fn reserve(&self) -> u64 {
        (self.total / 20).max(512 << 20)
    }

    /// What a plan may use.
    pub fn budget(&self) -> u64 {
        self.available.saturating_sub(self.reserve())
    }
}

/// Reads the system's meters; `None` where there are none.
pub fn read() -> Option<Memory> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let memory = parse(&meminfo)?;
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max").unwrap_or(u64::MAX);
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    Some(Memory {
        total: memory.total.min(limit),
        available: memory.available.min(limit.saturating_sub(used)),
    })
}

fn parse(meminfo: &str) -> Option<Memory> {
    Some(Memory { total: kilobytes(meminfo, "MemTotal:")?, available: kilobytes(meminfo, "MemAvailable:")? })
}

fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    let number: u64 = line[key.len()..].trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// The most this process has ever held in memory.
pub fn peak_resident() -> Option<u64> {
    own("VmHWM:")
}

/// What this process holds in memory now.
pub fn resident() -> Option<u64> {
    own("VmRSS:")
}

fn own(key: &str) -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meters_are_read_in_bytes() {
        let text = "MemTotal:       24000 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n";
        let memory = parse(text).unwrap();
        assert_eq!((memory.total, memory.available), (24_576_000, 20_480_000));
        assert_eq!(parse("MemTotal: lots"), None);
    }

    #[test]
    fn the_reserve_is_never_part_of_the_budget() {
        let memory = Memory { total: 32 << 30, available: 1 << 30 };
        assert_eq!(memory.budget(), 0);
    }
}
