//! How libmlx5-direct.so is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which `make install` installs it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmlx5-direct.so");
}
