//! Tests that need tools beside cargo: they say so when a tool is missing.

fn main() {
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), vec![]).exit();
}
