//! The two questions to the kernel that std has no words for: tile permission and large pages.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn syscall3(number: usize, a: usize, b: usize, c: usize) -> isize {
    let result: isize;
    // SAFETY: both calls made here (arch_prctl, madvise) change no memory that Rust looks at;
    // the kernel clobbers rcx and r11, as declared.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Asks for the right to use tiles, once, before threads are made.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn permit_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    syscall3(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, 0) == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
pub(crate) fn permit_tiles() -> bool {
    false
}

/// Suggests large pages for a range; a kernel that refuses costs speed, nothing else.
pub(crate) fn suggest_large_pages(start: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        const MADVISE: usize = 28;
        const MADV_HUGEPAGE: usize = 14;
        const PAGE: usize = 4096;
        let first = (start as usize).next_multiple_of(PAGE);
        let last = (start as usize + bytes) / PAGE * PAGE;
        if last > first {
            syscall3(MADVISE, first, last - first, MADV_HUGEPAGE);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    let _ = (start, bytes);
}
