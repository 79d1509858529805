//! Which jobs there are: those of `make test`, and the rest, which `make test-all` runs as well.

use crate::build::Executable;
use crate::job::{Job, Judge, Step};
use std::path::{Path, PathBuf};

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `make test`.
    Short,
    /// Everything else.
    Rest,
}

const UNIT: &str = "without a device";
const DIRECT: &str = "software device, direct path";
const VERBS: &str = "software device, standard verbs";
const PROGRAMS: &str = "programs of others";
const RXE: &str = "rxe, in the test machine";
const DOCS: &str = "examples in the documentation";
const OUTSIDE: &str = "crates outside the workspace";
const COUNTED: &str = "instruction counts";
const JUDGES: &str = "judges";
const CHECKS: &str = "checks of the tests";
const BUILD: &str = "build";

/// For [`Job::alone`]: dtest and the like exchange addresses at a fixed TCP port.
const DAPL_PORT: &str = "the port of dtest";
/// For [`Job::alone`]: the ports of verbs programs come from the number of the test's process.
const PORTS: &str = "ports of verbs programs";

/// The job that builds what several others need, optimised.
const RELEASE: &str = "release build";

/// Which tests of an executable are in the short form.
enum Short {
    None,
    /// Those of these names. The rest are all others.
    Some(&'static [&'static str]),
}

/// Executables with tests that take long, by package and name. Of all others, all tests are in the
/// short form.
const LONG: &[(&str, &str, Short)] = &[
    ("doorbell-benches", "quick", Short::None),
    ("mlx5-direct", "toolchain", Short::Some(&["dv_structs_and_queue_layouts_match_the_installed_header"])),
    (
        "mlx5-emu",
        "programs_cm",
        Short::Some(&[
            "rping",
            "ucmatose",
            "udaddy",
            "rdma_server_and_client",
            "rstream",
            "dtest",
            "dtestsrq_2",
        ]),
    ),
    ("doorbell-verbs", "programs_cm", Short::Some(&["rping", "ucmatose_many", "dtestsrq_10"])),
    (
        "mlx5-emu",
        "device_emu_programs",
        Short::Some(&[
            "ibv_devinfo",
            "exit_status_is_passed_on",
            "nothing_is_left_behind",
            "ibv_rc_pingpong -g 0 -n 200 -e",
            "ibv_srq_pingpong -g 0 -n 200",
            "ib_write_bw -n 500 -d mlx5_0 -F",
        ]),
    ),
];

/// Device tests that the short form runs on rxe: what a real kernel decides.
const ON_RXE: &[&str] = &[
    "device_others",
    "device_verbs",
    "device_srq",
    "device_end",
    "device_listener",
    "device_unseen",
    "device_echo",
];

/// Tests of device_dat in the short form, without `c_NAME_by_direct`, which are in it as well.
const DAT_SHORT: &[&str] = &[
    "programs_find_our_libdat2",
    "dtest_b_65536_by_direct",
    "dtestsrq_c_1_by_direct",
    "dtestx_by_direct",
    "dapltest_T_sr_by_direct",
    "dtestsrq_c_1_from_libdaplofa_to_doorbell",
];

/// What the jobs need to know.
pub(crate) struct Setting {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) executables: Vec<Executable>,
    /// Devices of this machine, instead of the software devices.
    pub(crate) device: Option<String>,
    /// Tests of device_dat, as the executable lists them on the software device.
    pub(crate) dat_tests: Vec<String>,
}

/// The executable runs on devices.
pub(crate) fn is_device_test(executable: &Executable) -> bool {
    executable.package != "mlx5-emu"
        && (executable.name.starts_with("device_")
            || (executable.package == "mlx5-direct" && executable.name == "device"))
}

/// The data path makes no difference to it: it uses both, or neither.
pub(crate) fn has_one_path(executable: &Executable) -> bool {
    matches!(
        executable.name.as_str(),
        "device_dat" | "device_verbs" | "device" | "device_others" | "device_guest"
    )
}

impl Setting {
    pub(crate) fn emulator(&self) -> String {
        self.target.join("debug/libmlx5_emu.so").display().to_string()
    }

    /// Runs a device test on the software device.
    pub(crate) fn emulated(&self, executable: &Executable, verbs: bool) -> Step {
        let step = Step::new(Judge::Harness, &["hw-tests/with-emu", r#"hw-tests/run-device-tests "$@""#])
            .args([executable.path.display().to_string()])
            .set("MLX5_EMU_LIBRARY", self.emulator())
            .set("DOORBELL_TEST_DEVICES", "mlx5_0");
        if verbs { step.set("DOORBELL_DATAPATH", "verbs") } else { step }
    }

    /// Runs an executable that needs no device.
    pub(crate) fn plain(&self, executable: &Executable, arguments: &[&str]) -> Step {
        let debug = self.target.join("debug");
        Step {
            folder: Some(executable.folder.clone()),
            ..Step::new(Judge::Harness, &["timeout", "-k", "5", "1200"])
                .args([executable.path.display().to_string()])
                .args(arguments.iter().copied())
                .set("MLX5_EMU_LIBRARY", self.emulator())
                .set("LD_LIBRARY_PATH", format!("{}:{}", debug.join("deps").display(), debug.display()))
        }
    }

    /// Runs device tests on rxe, all in one test machine.
    pub(crate) fn on_rxe<'a>(&self, executables: impl IntoIterator<Item = &'a Executable>) -> Step {
        Step::new(Judge::Harness, &["hw-tests/vm/device-tests"])
            .args(executables.into_iter().map(|executable| executable.path.display().to_string()))
    }

    fn find(&self, package: &str, name: &str) -> impl Iterator<Item = &Executable> {
        self.executables.iter().filter(move |exe| exe.package == package && exe.name == name && !exe.unit)
    }

    /// The jobs of this form.
    pub(crate) fn jobs(&self, form: Form) -> Vec<Job> {
        let mut jobs = self.without_a_device(form);
        match &self.device {
            Some(device) => jobs.extend(self.on_devices(form, device)),
            None => {
                jobs.extend(self.on_the_software_device(form));
                jobs.extend(self.in_the_test_machine(form));
            }
        }
        if form == Form::Rest {
            jobs.extend(self.scripts());
        } else {
            // Examples that must not compile have to fail with the error code that they name.
            let codes = self.root.join("hw-tests/rustdoc-codes").display().to_string();
            let examples = Step::new(Judge::Harness, &["cargo", "test", "--workspace", "--doc"])
                .args(crate::build::locked())
                .set("RUSTDOC", codes);
            jobs.push(Job::new(DOCS, "examples in the documentation", 12.0).step(examples));
        }
        jobs
    }

    fn without_a_device(&self, form: Form) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        let plain = self.executables.iter().filter(|exe| !is_device_test(exe));
        for executable in plain {
            let long = LONG.iter().find(|(package, name, _)| {
                !executable.unit && (*package, *name) == (&executable.package, &executable.name)
            });
            if let Some((_, _, short)) = long {
                jobs.extend(self.long(executable, short, form));
            } else if form == Form::Short {
                // The executables of a package run one after the other, those that take seconds apart.
                let seconds = match executable.name.as_str() {
                    "programs" => 30.0,
                    "threads" | "model" => 12.0,
                    "dat_libraries" => 18.0,
                    "extended_cqs" | "fork" | "fuzz_seeded" | "split" => 7.0,
                    _ => 1.0,
                };
                let step = self.plain(executable, &[]);
                let package = executable.package.as_str();
                if seconds > 1.0 {
                    let job = Job::new(UNIT, format!("{package}: {}", executable.name), seconds).step(step);
                    jobs.push(if executable.name == "programs" { job.alone(PORTS) } else { job });
                } else if let Some(job) = jobs.iter_mut().find(|job| job.name == package) {
                    job.seconds += seconds;
                    job.steps.push(step);
                } else {
                    jobs.push(Job::new(UNIT, package, seconds).step(step));
                }
            }
        }
        jobs
    }

    fn long(&self, executable: &Executable, short: &Short, form: Form) -> Option<Job> {
        let some = match short {
            Short::Some(names) => *names,
            Short::None => &[],
        };
        let (part, alone, seconds) = match executable.name.as_str() {
            "programs_cm" | "quick" => (PROGRAMS, DAPL_PORT, 60.0),
            "device_emu_programs" => (PROGRAMS, PORTS, 40.0),
            _ => (UNIT, "the compiler", 45.0),
        };
        let name = format!("{}: {}", executable.package, executable.name);
        match form {
            Form::Short if some.is_empty() => None,
            Form::Short => {
                let job = Job::new(part, format!("{name}, some"), some.len() as f64).alone(alone);
                Some(some.iter().fold(job, |job, name| job.step(self.plain(executable, &["--exact", name]))))
            }
            Form::Rest => {
                let others: Vec<_> = some.iter().flat_map(|name| ["--skip", name]).collect();
                let exact = if some.is_empty() { vec![] } else { vec!["--exact"] };
                let step = self.plain(executable, &[exact, others].concat());
                Some(Job::new(part, format!("{name}, the rest"), seconds).alone(alone).step(step))
            }
        }
    }

    fn on_the_software_device(&self, form: Form) -> Vec<Job> {
        let mut jobs = Vec::new();
        for executable in self.executables.iter().filter(|exe| is_device_test(exe)) {
            let name = &executable.name;
            if name == "device_dat" {
                jobs.push(self.dat(executable, form));
                continue;
            }
            if form == Form::Rest {
                if name == "device_orders" {
                    let many = self.emulated(executable, false).set("DOORBELL_ORDERS_MESSAGES", "200000");
                    let many = many.set("TEST_ARGS", "--exact orders_of_many_sessions");
                    jobs.push(
                        Job::new(DIRECT, "device_orders, 200,000 orders of 1,000 sessions", 30.0).step(many),
                    );
                }
                continue;
            }
            // Most of the time the tests wait.
            let seconds = match name.as_str() {
                "device_faults" => 15.0,
                "device_refused" => 10.0,
                "device" | "device_counters" | "device_held" | "device_locks" => 6.0,
                _ => 2.0,
            };
            let direct = Job::new(DIRECT, format!("{name}, direct path"), seconds).load(0.25);
            jobs.push(direct.step(self.emulated(executable, false)));
            if !has_one_path(executable) {
                let verbs = Job::new(VERBS, format!("{name}, by verbs"), seconds).load(0.25);
                jobs.push(verbs.step(self.emulated(executable, true)));
            }
        }
        jobs
    }

    /// The C programs under libdat2 by the direct path, and some of the stock programs, are short.
    fn dat(&self, executable: &Executable, form: Form) -> Job {
        let is_short = |name: &str| {
            DAT_SHORT.contains(&name)
                || (name.starts_with("c_") && name.ends_with("_by_direct") && name != "c_fuzz_by_direct")
        };
        let others = self.dat_tests.iter().filter(|name| is_short(name) != (form == Form::Short));
        let arguments = others.fold("--exact".to_owned(), |all, name| format!("{all} --skip {name}"));
        let job = match form {
            Form::Short => Job::new(PROGRAMS, "device_dat, some", 60.0),
            Form::Rest => Job::new(PROGRAMS, "device_dat, the rest", 300.0).load(1.5),
        };
        job.alone(DAPL_PORT).step(self.emulated(executable, false).set("TEST_ARGS", arguments))
    }

    fn in_the_test_machine(&self, form: Form) -> Vec<Job> {
        let on_rxe = |exe: &&Executable| is_device_test(exe) && exe.name != "device_dat";
        let short = |exe: &&Executable| ON_RXE.contains(&exe.name.as_str());
        if form == Form::Short {
            let some = self.executables.iter().filter(on_rxe).filter(short);
            return vec![Job::new(RXE, "rxe, some", 60.0).load(0.5).step(self.on_rxe(some))];
        }
        let rest = self.executables.iter().filter(on_rxe).filter(|exe| !short(exe));
        let dat = self.find("doorbell-hw-tests", "device_dat");
        // dtest and dapltest send large messages. Larger packets halve the time.
        let dat = self.on_rxe(dat).set("NETMTU", "9000").set("DOORBELL_PROGRAMS", "short");
        let echo = self.target.join("release/doorbell-echo").display().to_string();
        let pair = |netem: &str, more: &[&str]| {
            Step::new(Judge::Program, &["hw-tests/with-rxe", &echo])
                .args(["pair", "--server-device", "rxeA", "--client-device", "rxeB"])
                .args(more.iter().copied())
                .set("NETEM", netem)
        };
        let crowd = [CROWD, &["--messages", "5000"]].concat();
        let loss = ["--connections", "16", "--messages", "60"];
        vec![
            Job::new(RXE, "rxe, the rest", 200.0).load(0.5).step(self.on_rxe(rest)),
            Job::new(RXE, "rxe, device_dat", 400.0).load(0.5).step(dat),
            Job::new(RXE, "rxe, 64 connections through one SRQ", 70.0).step(pair("", &crowd)).after(RELEASE),
            Job::new(RXE, "rxe, 2 % of the packets lost", 20.0).step(pair("loss 2%", &loss)).after(RELEASE),
            Job::new(RXE, "doorbell-nvmf and the kernel's initiator", 200.0)
                .step(Step::new(Judge::Script, &["hw-tests/nvmf/run"]))
                .after(RELEASE),
            Job::new(CHECKS, "the test machine itself", 60.0)
                .step(Step::new(Judge::Script, &["hw-tests/vm/selftest"])),
        ]
    }

    /// Devices of this machine: everything there is in the short form, but for a crowd.
    fn on_devices(&self, form: Form, device: &str) -> Vec<Job> {
        let (server, client) = device.split_once(',').unwrap_or((device, device));
        if form == Form::Rest {
            let echo = self.target.join("release/doorbell-echo").display().to_string();
            let step = Step::new(
                Judge::Program,
                &[&echo, "pair", "--server-device", server, "--client-device", client],
            )
            .args(CROWD.iter().copied());
            let name = format!("64 connections through one SRQ, on {device}");
            return vec![Job::new(DIRECT, name, 60.0).step(step).after(RELEASE)];
        }
        let tests = self.executables.iter().filter(|exe| is_device_test(exe));
        let step = Step::new(Judge::Harness, &["hw-tests/run-device-tests"])
            .args(tests.map(|exe| exe.path.display().to_string()))
            .set("DOORBELL_TEST_DEVICES", device);
        vec![Job::new(DIRECT, format!("tests on {device}"), 400.0).step(step)]
    }

    /// What is no test executable.
    fn scripts(&self) -> Vec<Job> {
        let cargo = |words: &[&str]| {
            Step::new(Judge::Harness, &[&["cargo", "test"], words].concat()).args(crate::build::locked())
        };
        let script = |words: &[&str]| Step::new(Judge::Script, words);
        // In one command, so that nothing is compiled twice with other features.
        let release = Step::new(
            Judge::Step,
            &["cargo", "build", "--release", "--workspace", "--lib", "--bins", "--test", "quick"],
        )
        .args(crate::build::locked());
        let mut jobs = vec![
            Job::new(BUILD, RELEASE, 200.0).step(release),
            Job::new(COUNTED, "instructions of calls", 60.0)
                .step(cargo(&["--release", "--workspace", "--test", "quick", "take_few_instructions"]))
                .after(RELEASE),
            // The only part that builds the crate rdma-sys, which reads the installed headers with libclang.
            Job::new(OUTSIDE, "rdma-sys", 40.0).step(
                cargo(&["-p", "doorbell-sys", "--features", "rdma-sys", "--test", "rdma_sys"])
                    .set("CARGO_TARGET_DIR", self.target.join("rdma-sys").display().to_string()),
            ),
            Job::new(OUTSIDE, "crates that use this one", 60.0)
                .step(script(&["hw-tests/consumer/run"]))
                .step(script(&["hw-tests/consumer/run", "--packages"])),
            Job::new(OUTSIDE, "friends", 180.0).step(script(&["hw-tests/friends/run"])),
            Job::new(CHECKS, "rustdoc-codes", 2.0)
                .step(Step::new(Judge::Program, &["hw-tests/rustdoc-codes-test"])),
            Job::new(CHECKS, "mutants", 150.0).step(script(&["hw-tests/check-mutants"])),
        ];
        if self.device.is_none() {
            jobs.extend([
                // Both reserve huge pages.
                Job::new(JUDGES, "judges", 150.0)
                    .step(script(&["hw-tests/judges", "--short"]))
                    .alone("huge pages")
                    .after(RELEASE),
                Job::new(JUDGES, "judges under doorbell-run", 150.0)
                    .step(script(&["hw-tests/judges", "--short"]).set("LIBRARY", "1"))
                    .alone("huge pages")
                    .after(RELEASE),
                Job::new(PROGRAMS, "newcomer", 60.0)
                    .step(script(&["hw-tests/with-emu", "hw-tests/newcomer"]))
                    .alone(DAPL_PORT)
                    .after(RELEASE),
            ]);
        }
        jobs
    }
}

/// Connections and messages of the crowd.
const CROWD: &[&str] = &["--connections", "64", "--sizes", "0,1,24,32,64", "--srq-depth", "256"];

/// The tests that an executable lists on the software device.
pub(crate) fn listed(setting: &Setting, executable: &Path, filter: &str) -> Vec<String> {
    let listed = std::process::Command::new(executable)
        .args(["--list", filter])
        .env("DOORBELL_TEST_DEVICES", "mlx5_0")
        .env("MLX5_EMU_SESSION", "list")
        .env("LD_LIBRARY_PATH", setting.target.join("debug/deps"))
        .output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}
