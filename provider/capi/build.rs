//! How libdoorbell.so is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs of the C API find the library by dat.conf; the name is for those that install it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdoorbell.so.2");
    // Handles and tables outlive the last close: a stale handle answers INVALID_HANDLE, and does
    // not crash.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
