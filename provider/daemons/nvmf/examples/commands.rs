//! What commands of 4 KiB on memory cost the target's thread: `commands DEVICE read|write BATCHES`.
//!
//! The thread is also that of the host: the host submits 32 commands, and the target makes passes
//! until one finds nothing more. Each pass begins when the device has had time for what is under way,
//! so that few find nothing. Prints how many commands there were and the CPU time of the passes for
//! each. Counted with callgrind below `Engine::turn` (hw-tests/nvmf/bench), which has the device work
//! in a thread of its own.

use anyhow::{Context, ensure};
use doorbell_nvmf::backend::Backend;
use doorbell_nvmf::host::{Connection, Host, Queue};
use doorbell_nvmf::limits::Limits;
use doorbell_nvmf::proto::{Cqe, Sqe, io};
use doorbell_nvmf::rdma::{Engine, Options};
use doorbell_nvmf::subsystem::{Namespace, Subsystem, derived_uuid};
use doorbell_nvmf::target::Target;
use nix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.example:disk";
const BATCH: u16 = 32;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [device, op, batches] = &arguments[..] else {
        anyhow::bail!("usage: commands DEVICE read|write BATCHES")
    };
    let opcode = if op == "read" { io::READ } else { io::WRITE };
    let target = Arc::new(Target::new(Limits::default()));
    let namespace = Namespace::new(1, 12, derived_uuid(NQN, 1), Backend::ram(16 << 20));
    target.put(Subsystem::new(NQN, "S1", "M", None, [Arc::new(namespace)]));
    let options = Options { device: device.clone(), port: 0, ..Options::default() };
    let mut engine = Engine::open(&target, &options)?.remove(0);
    let to = engine.handle().address;
    let host = Host::open(device)?;

    // Connections are made in another thread, while this one makes passes.
    let connecting = std::thread::spawn(move || -> anyhow::Result<_> {
        let queue = |number, controller, entries| Queue {
            number,
            entries,
            controller,
            subsystem: NQN,
            host: "nqn.2026-11.example:host",
            keep_alive: 0,
        };
        let (admin, connected) = host.connect(to, queue(0, 0xffff, 32))?;
        let mut enable = Sqe { opcode: 0x7f, cdw11: 0x14.into(), ..Sqe::default() };
        enable.cdw12 = (1 | 6 << 16 | 4 << 20).into();
        let mut admin: Connection = admin;
        ensure!(is_success(&admin.execute(enable)?), "the controller is not enabled");
        let (io, _) = host.connect(to, queue(1, connected.result.get() as u16, BATCH + 1))?;
        Ok((host, admin, io))
    });
    while !connecting.is_finished() {
        engine.turn()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (_host, _admin, mut io) = connecting.join().expect("it does not panic")?;

    let batches: u32 = batches.parse().context("BATCHES is a number")?;
    let mut time = Duration::ZERO;
    let mut passes = 0;
    for _ in 0..batches {
        for n in 0..BATCH {
            let mut sqe = Sqe { opcode, nsid: 1.into(), cdw10: (u32::from(n) * 7).into(), ..Sqe::default() };
            io.keyed(&mut sqe, usize::from(n) * 4096, 4096);
            io.submit(sqe)?;
        }
        // The commands, for writes also the completions of the RDMA Reads. Completions of responses
        // follow, until a pass finds none.
        let least = usize::from(BATCH) * if op == "read" { 1 } else { 2 };
        let mut all = 0;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let begin = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
            let found = engine.turn()?;
            let end = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
            time += Duration::from(end) - Duration::from(begin);
            all += found;
            passes += 1;
            if found == 0 && all >= least {
                break;
            }
        }
        for _ in 0..BATCH {
            ensure!(is_success(&io.response()?.0), "a command has failed");
        }
    }
    let commands = batches * u32::from(BATCH);
    println!("commands {commands} passes {passes} nanoseconds {}", time.as_nanos() / u128::from(commands));
    Ok(())
}

fn is_success(cqe: &Cqe) -> bool {
    cqe.status.get() >> 1 == 0
}
