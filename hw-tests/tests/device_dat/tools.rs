//! doorbell-info and doorbell-datconf, and each way to name a device in dat.conf.

use crate::case::paths;
use crate::pair::Running;
use crate::{dapltest_exists, ignored_if, library, one_at_a_time, setting};
use doorbell::Ia;
use doorbell_hw_tests::{devices, tests};
use libtest_mimic::Trial;
use rxe_fallback::{Context, Selector};
use std::path::PathBuf;
use std::process::{Command, Output};

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&'static str, fn())] = tests![
        info_tells_the_data_path_and_why,
        info_lists_every_device_with_its_limits,
        info_says_which_devices_there_are,
        tools_report_an_output_that_is_full_or_closed,
        datconf_lines_open_whatever_names_the_device,
    ];
    tests
        .iter()
        .map(|&(name, test)| {
            let trial = one_at_a_time(name.to_owned(), move || {
                test();
                Ok(())
            });
            let opens = name == "datconf_lines_open_whatever_names_the_device" && !dapltest_exists();
            ignored_if(opens.then_some("no uDAPL programs: install dapl2-utils"), trial)
        })
        .collect()
}

/// A program of provider/utils, in the folder above that of the test executable.
fn tool(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let tool = exe.ancestors().nth(2).expect("cargo has a folder for programs").join(name);
    assert!(tool.exists(), "no {}: cargo build -p doorbell-utils", tool.display());
    tool
}

fn info(args: &[&str], path: Option<&str>) -> Output {
    let mut command = Command::new(tool("doorbell-info"));
    command.args(args).env_remove("DOORBELL_DATAPATH");
    command.envs(path.map(|path| ("DOORBELL_DATAPATH", path)));
    command.output().expect("doorbell-info runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value in the row of this name.
fn row<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

fn device() -> String {
    devices().expect("there is one, or the test is ignored").0
}

fn info_tells_the_data_path_and_why() {
    let auto = info(&[&device()], None);
    let said = text(&auto.stdout);
    let path = row(&said, "data path").unwrap_or_else(|| panic!("{said}"));
    let expected = paths()[0];
    assert!(auto.status.success() && path.starts_with(&format!("{expected} (")), "{said}");
    assert!(path.len() > expected.len() + 4, "no reason: {path}");

    let verbs = text(&info(&[&device()], Some("verbs")).stdout);
    assert_eq!(row(&verbs, "data path"), Some("verbs (DOORBELL_DATAPATH=verbs)"), "{verbs}");

    let direct = info(&[&device()], Some("direct"));
    if expected == "direct" {
        let said = text(&direct.stdout);
        assert_eq!(row(&said, "data path"), Some("direct (DOORBELL_DATAPATH=direct)"), "{said}");
    } else {
        let said = text(&direct.stderr);
        assert!(!direct.status.success() && said.contains("use auto or verbs"), "{said}");
    }
}

/// Also what they print for `--help`. A closed output is a pipe that nobody reads.
fn tools_report_an_output_that_is_full_or_closed() {
    for name in ["doorbell-info", "doorbell-datconf"] {
        for argument in [device(), "--help".to_owned()] {
            let mut command = Command::new(tool(name));
            let full = std::fs::File::create("/dev/full").unwrap();
            let given = command.arg(&argument).stdout(full).output().unwrap();
            let said = text(&given.stderr);
            assert_eq!(given.status.code(), Some(1), "{name} {argument}: {said}");
            assert!(said.starts_with(name) && said.lines().count() == 1, "{said}");

            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let given = command.stdout(writer).output().unwrap();
            assert_eq!(
                (given.status.code(), text(&given.stderr)),
                (Some(1), String::new()),
                "{name} {argument}"
            );
        }
    }
}

fn info_lists_every_device_with_its_limits() {
    let all = info(&[], None);
    let said = text(&all.stdout);
    let (a, b) = devices().expect("there are devices, or the test is ignored");
    for device in [&a, &b] {
        assert!(said.lines().any(|line| line == device), "{device} is missing:\n{said}");
    }
    let ia = Ia::open(&a).unwrap();
    let one = text(&info(&[&a], None).stdout);
    let attr = ia.attributes();
    assert_eq!(row(&one, "address"), Some(attr.address.to_string().as_str()), "{one}");
    assert_eq!(row(&one, "buffers of an SRQ"), Some(attr.max_srq_depth.to_string().as_str()), "{one}");
    assert_eq!(row(&one, "EPs of an SRQ"), Some(attr.max_eps_per_srq.to_string().as_str()), "{one}");
}

fn info_says_which_devices_there_are() {
    let none = info(&["no_such_device"], None);
    let said = text(&none.stderr);
    assert!(!none.status.success() && said.contains("no_such_device") && said.contains(&device()), "{said}");
    let port = info(&[&format!("{} 77", device())], None);
    let said = text(&port.stderr);
    assert!(!port.status.success() && said.contains("not 77"), "{said}");
}

fn datconf_lines_open_whatever_names_the_device() {
    let Ok(selector) = device().parse::<Selector>();
    let (context, port, _) = Context::open_selected(&selector).unwrap();
    let interface = context.netdev(port).expect("a RoCE device has a network interface");
    let address = Ia::open(&device()).unwrap().address().to_string();
    let forms = [context.name().to_owned(), format!("{} {port}", context.name()), interface, address];
    let output = Command::new(tool("doorbell-datconf"))
        .args(["--prefix", "form-", "--library"])
        .arg(library())
        .args(&forms)
        .output()
        .expect("doorbell-datconf runs");
    let lines = text(&output.stdout);
    assert!(
        output.status.success() && lines.lines().count() == forms.len(),
        "{lines}{}",
        text(&output.stderr)
    );
    std::fs::write(setting().conf.join("forms"), &lines).unwrap();
    for line in lines.lines() {
        let ia = line.split(' ').next().expect("a line has a first word");
        // The codes of dat_ia_open and of dat_ia_close.
        let args = ["-T", "F", "-D", ia, "-f", "hwconn", "case0"].map(str::to_owned);
        let (said, _) = Running::start_with("dapltest", &args, "forms", &[]).finish();
        assert!(said.contains("Result: PASS") && !said.contains("failed in file"), "{line}\n{said}");
    }
}
