//! CNOs.

use super::abi::{Agent, CnoParam, two};
use super::code::{Code, guard};
use super::convert::{ia_of, timeout};
use super::handle::Handle;
use super::held::run_agent;
use super::objects::{CnoObject, IaObject};
use super::raw::{Out, call_agent};
use provider::inside::Upcall;
use provider::{Cno, EvdId};
use std::os::fd::AsRawFd;
use std::sync::Arc;

const NO_AGENT: Agent = Agent { instance_data: 0, function: None };

fn upcall(agent: Agent) -> Option<Upcall> {
    agent.function?;
    Some(Arc::new(move |evd: EvdId| run_agent(|| call_agent(agent, Handle::of_id(evd.0).0))))
}

pub(super) extern "C" fn cno_create(ia: Handle, agent: Agent, out: Out<Handle>) -> u32 {
    guard("dat_cno_create", || {
        let object = ia.get::<IaObject>()?;
        out.need(3)?;
        let cno = Cno::new(&object.ia)?;
        cno.inner.set_upcall(upcall(agent));
        out.set(ia.sibling(CnoObject { cno, agent })?);
        Ok(())
    })
}

pub(super) extern "C" fn cno_modify_agent(cno: Handle, agent: Agent) -> u32 {
    guard("dat_cno_modify_agent", || {
        let mut object = cno.get_mut::<CnoObject>()?;
        object.agent = agent;
        object.cno.inner.set_upcall(upcall(agent));
        Ok(())
    })
}

pub(super) extern "C" fn cno_query(cno: Handle, mask: u32, param: Out<CnoParam>) -> u32 {
    guard("dat_cno_query", || {
        let object = cno.get::<CnoObject>()?;
        // DAT_CNO_FIELD_ALL is 4, besides IA_HANDLE 1, PROXY_TYPE 2 and PROXY 3.
        if mask > 7 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        let function = object.agent.function.map_or(0, |function| function as usize);
        let (proxy_type, proxy) = match object.cno.inner.fd() {
            Some(fd) => (2, [two(fd.as_raw_fd() as u32, 0), 0]),
            None if function != 0 => (1, [object.agent.instance_data as u64, function as u64]),
            None => (0, [0, 0]),
        };
        param.set(CnoParam { ia_handle: ia_of(cno), proxy_type, pad: 0, proxy });
        Ok(())
    })
}

pub(super) extern "C" fn cno_free(cno: Handle) -> u32 {
    guard("dat_cno_free", || {
        cno.end::<CnoObject>(|object| match object.cno.close() {
            Ok(()) => Ok(()),
            Err(refused) => {
                Err((CnoObject { cno: refused.object, agent: object.agent }, refused.error.into()))
            }
        })
    })
}

pub(super) extern "C" fn cno_wait(cno: Handle, micros: u32, evd: Out<Handle>) -> u32 {
    guard("dat_cno_wait", || {
        let waited = cno.get::<CnoObject>()?.cno.clone();
        let id = waited.wait(timeout(micros))?;
        evd.set(Handle::of_id(id.0));
        Ok(())
    })
}

pub(super) extern "C" fn cno_fd_create(ia: Handle, fd: Out<i32>, out: Out<Handle>) -> u32 {
    guard("dat_cno_fd_create", || {
        let object = ia.get::<IaObject>()?;
        fd.need(2)?;
        out.need(3)?;
        let cno = Cno::with_fd(&object.ia)?;
        let number = cno.fd().map_or(-1, |fd| fd.as_raw_fd());
        out.set(ia.sibling(CnoObject { cno, agent: NO_AGENT })?);
        fd.set(number);
        Ok(())
    })
}

pub(super) extern "C" fn cno_trigger(cno: Handle, evd: Out<Handle>) -> u32 {
    guard("dat_cno_trigger", || {
        let cno = cno.get::<CnoObject>()?.cno.clone();
        let id = cno.take()?;
        evd.set(Handle::of_id(id.0));
        Ok(())
    })
}
