//! How libdoorbell-verbs.so is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which `make install` installs it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdoorbell-verbs.so");
}
