//! Verbs programs of other projects, unmodified, as pairs of processes on the preloaded device.
//!
//! Each pair runs in a fabric of its own through `hw-tests/with-emu`, with MLX5_EMU_STRICT=1: a
//! complaint of the device fails the test. `MLX5_EMU_LIBRARY` selects another build of the device.
#![allow(missing_docs)]

use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "common/pairs.rs"]
mod pairs;
#[path = "common/programs.rs"]
mod programs;
use pairs::with_emu;
use programs::{installed, library};

/// From this package's folder.
const WITH_EMU: &str = "../with-emu";

/// Programs of rdma-core, without and with events.
const PINGPONGS: &[&str] =
    &["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"];
/// Message sizes of the connected transports.
const SIZES: &[u32] = &[1, 32, 33, 64, 4096, 65_536, 1_048_576];

/// Programs of perftest and their arguments.
const PERFTEST: &[&str] = &[
    "ib_send_lat -n 200",
    "ib_send_lat -n 200 -e",
    "ib_send_lat -n 200 -c UC",
    "ib_send_lat -n 200 -c UD",
    "ib_write_lat -n 200",
    "ib_write_lat -n 200 -c UC",
    "ib_read_lat -n 200",
    "ib_atomic_lat -n 200",
    "ib_atomic_lat -n 200 -A CMP_AND_SWAP",
    "ib_send_bw -n 500",
    "ib_send_bw -n 500 -e",
    "ib_send_bw -n 500 -b",
    "ib_send_bw -n 100 -a",
    "ib_send_bw -n 500 -c UD",
    "ib_send_bw -n 500 -c XRC",
    "ib_send_bw -n 500 --use-srq",
    "ib_send_bw -n 500 --use-srq -q 4",
    "ib_send_bw -n 200 -q 16 --use_old_post_send",
    "ib_send_bw -n 200 -q 40",
    "ib_write_bw -n 500",
    "ib_write_bw -n 200 -q 17",
    "ib_read_bw -n 200 -q 17",
    "ib_write_bw -n 100 -a",
    "ib_write_bw -n 200 -q 8",
    "ib_read_bw -n 500",
    "ib_read_bw -n 50 -a",
    "ib_atomic_bw -n 500",
];

/// Server and client of one program.
fn pair(command: &str, port_option: &str) -> Result<Completion, Failed> {
    let program = command.split(' ').next().unwrap_or(command);
    Ok(match pairs::pair("", command, port_option)? {
        Some(_) => Completion::Completed,
        None => Completion::ignored_with(format!("{program} is not installed")),
    })
}

fn devinfo() -> Result<Completion, Failed> {
    if !installed("ibv_devinfo") {
        return Ok(Completion::ignored_with("ibv_devinfo is not installed"));
    }
    let text = with_emu("ibv_devinfo -v && ibv_devices")?;
    for wanted in [
        "hca_id:\tmlx5_0",
        "SOFTWARE-MLX5-EMU",
        "PORT_ACTIVE",
        "GID[  0]",
        "::ffff:127.0.0.1",
        "026d6cfffe783500",
    ] {
        if !text.contains(wanted) {
            return Err(format!("no {wanted:?} in:\n{text}").into());
        }
    }
    Ok(Completion::Completed)
}

/// rdma(8) asks the kernel, which does not know the device. The stand-in answers for the device.
fn rdma_link() -> Result<Completion, Failed> {
    let text = with_emu(
        "rdma link && rdma link show mlx5_0/1 -j && rdma dev && ! rdma link show mlx5_1 && ! rdma link add x",
    )?;
    for wanted in [
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ",
        r#"[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":""#,
        "0: mlx5_0: node_type ca fw 0.0.0000 node_guid 026d:6cff:fe78:3500 ",
        "Wrong device name",
    ] {
        if !text.contains(wanted) {
            return Err(format!("no {wanted:?} in:\n{text}").into());
        }
    }
    Ok(Completion::Completed)
}

/// The device's messages go to a stderr that is a full file system, closed, or a pipe that nobody
/// reads. The program goes on, also where SIGPIPE would end it.
fn messages_end_no_program() -> Result<Completion, Failed> {
    // The device complains about the rule and about the mode.
    let program = "MLX5_EMU_FAULTS=nonsense MLX5_EMU_MODE=nonsense ibv_devinfo";
    for (stderr, ends) in [
        ("2>/dev/full", ""),
        ("2>&-", ""),
        ("2>&3", "exec 3> >(exec true); while kill -0 $! 2>/dev/null; do sleep 0.01; done;"),
        ("2>&3", "trap '' PIPE; exec 3> >(exec true); while kill -0 $! 2>/dev/null; do sleep 0.01; done;"),
    ] {
        let text = with_emu(&format!("{ends} {program} {stderr}"))?;
        if !text.contains("PORT_ACTIVE") {
            return Err(format!("{ends} {stderr}:\n{text}").into());
        }
    }
    Ok(Completion::Completed)
}

fn exit_status() -> Result<Completion, Failed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../with-emu");
    let status = Command::new(script).arg("exit 7").env("MLX5_EMU_LIBRARY", library()?).status()?;
    if status.code() == Some(7) { Ok(Completion::Completed) } else { Err(format!("{status}").into()) }
}

/// A program that exits leaves nothing in the temporary folder. The next program removes the files
/// of a killed program.
fn leaves_nothing() -> Result<Completion, Failed> {
    let dir = std::env::temp_dir().join(format!("mlx5-emu-leaves-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let count = || -> Result<usize, Failed> { Ok(std::fs::read_dir(&dir)?.count()) };
    let at = dir.display();
    with_emu(&format!("export TMPDIR={at} SYSFS_PATH=; ibv_devices"))?;
    let after_end = count()?;
    with_emu(&format!(
        "export TMPDIR={at} SYSFS_PATH=; (kill -9 $BASHPID); sleep 1000 & kill -9 $!; wait; true"
    ))?;
    with_emu(&format!("export TMPDIR={at} SYSFS_PATH=; bash -c 'kill -9 $$'; true"))?;
    with_emu(&format!("export TMPDIR={at} SYSFS_PATH=; ibv_devices"))?;
    let after_kill = count()?;
    std::fs::remove_dir_all(&dir)?;
    if (after_end, after_kill) == (0, 0) {
        Ok(Completion::Completed)
    } else {
        Err(format!("left behind: {after_end} after an end, {after_kill} after a kill").into())
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Spinning pairs share few cores: more pairs at a time are slower, not faster.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let mut trials = vec![
        Trial::ignorable_test("ibv_devinfo", devinfo),
        Trial::ignorable_test("messages_end_no_program", messages_end_no_program),
        Trial::ignorable_test("rdma_link_shows_the_device", rdma_link),
        Trial::ignorable_test("exit_status_is_passed_on", exit_status),
        Trial::ignorable_test("nothing_is_left_behind", leaves_nothing),
    ];
    for program in PINGPONGS {
        for events in ["", " -e"] {
            let command = format!("{program} -g 0 -n 200{events}");
            trials.push(Trial::ignorable_test(command.clone(), move || pair(&command, "-p")));
        }
    }
    for size in SIZES {
        for command in [
            format!("ibv_rc_pingpong -g 0 -n 50 -m 4096 -s {size}"),
            format!("ibv_rc_pingpong -g 0 -n 50 -m 4096 -s {size} -N"),
            format!("ibv_srq_pingpong -g 0 -n 50 -m 4096 -q 8 -e -s {size}"),
        ] {
            trials.push(Trial::ignorable_test(command.clone(), move || pair(&command, "-p")));
        }
    }
    for command in PERFTEST {
        let command = format!("{command} -d mlx5_0 -F");
        trials.push(Trial::ignorable_test(command.clone(), move || pair(&command, "-p")));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
