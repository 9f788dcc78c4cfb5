#!/usr/bin/env bash
# Cross-builds the workspace for aarch64 Linux (the DGX Spark's CPU) and runs every test under qemu-user.
#
#   scripts/aarch64.sh                     everything
#   scripts/aarch64.sh -p halfbyte-cpu     what follows goes to `cargo test`
#
# Needs Rust by rustup, a cross gcc for linking and qemu-user. As root on Debian or Ubuntu what is
# missing is installed; otherwise the script says what to install and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
# Where Debian's cross packages put the libraries that the test programs load.
sysroot=/usr/aarch64-linux-gnu

missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[[ -e $sysroot/lib/libc.so.6 ]] || missing+=(libc6-dev-arm64-cross)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)

if ((${#missing[@]})); then
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" libc6-dev-arm64-cross
    else
        echo "aarch64: missing ${missing[*]}; on Debian or Ubuntu: sudo apt-get install ${missing[*]} libc6-dev-arm64-cross" >&2
        exit 1
    fi
fi
if ! [[ -d $(rustc --print sysroot)/lib/rustlib/$target ]]; then
    command -v rustup >/dev/null || { echo "aarch64: rustup is needed to add the target $target" >&2; exit 1; }
    rustup target add "$target"
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $sysroot"
# Optimised, because the emulator is slow; not linked as one, because nobody measures speed here.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0

if (($#)); then
    cargo test --release --target "$target" "$@"
else
    cargo build --release --target "$target" --workspace
    cargo test --release --target "$target" --workspace
fi
