//! Links libibverbs and librdmacm: where pkg-config finds them, and by name alone otherwise, so
//! that the crate builds and is documented on machines without rdma-core.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for (package, library) in [("libibverbs", "ibverbs"), ("librdmacm", "rdmacm")] {
        // pkg-config prints the link directives itself.
        if pkg_config::Config::new().atleast_version("1.1").probe(package).is_err() {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}
