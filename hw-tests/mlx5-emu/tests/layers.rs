//! Modules at the bottom of the crate that must not use those above them.

const BELOW: [(&str, &str, &[&str]); 3] = [
    (
        "objects/faults.rs",
        include_str!("../src/objects/faults.rs"),
        &["uverbs", "ucma", "hooks", "helper", "interpose"],
    ),
    ("config.rs", include_str!("../src/config.rs"), &["uverbs", "ucma", "hooks", "helper", "device"]),
    ("commands.rs", include_str!("../src/commands.rs"), &["uverbs", "faults", "device"]),
];

#[test]
fn faults_settings_and_command_names_use_nothing_above_them() {
    for (file, text, above) in BELOW {
        for module in above {
            for import in [format!("crate::{module}"), format!("super::{module}")] {
                assert!(!text.contains(&import), "{file} uses {import}");
            }
        }
    }
}
