//! The objects of a device, by class and number. Device events find their objects here, the close
//! of an IA closes them in order, and counters count them. The registry knows objects by the trait
//! [`Member`] only.

use crate::datapath::Lost;
use crate::fork::{self, Inherit};
use crate::memory::list;
use crate::sync::{Mutex, rank};
use crate::types::ByNumber;
use crate::{IaCounter, Result};
use std::sync::{Arc, Weak};

/// Classes of objects, in the order in which the close of an IA closes them (R274).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    ServicePoint,
    Ep,
    Srq,
    Evd,
    Rmr,
    Lmr,
    Pz,
    Cno,
}

impl Class {
    const ALL: [Self; 8] =
        [Self::ServicePoint, Self::Ep, Self::Srq, Self::Evd, Self::Rmr, Self::Lmr, Self::Pz, Self::Cno];
}

/// An object in the registry.
pub(crate) trait Member: Inherit {
    /// Closes the object, because its IA is closed.
    fn ia_closed(self: Arc<Self>);

    /// Handles an asynchronous device event of the object's verbs object.
    fn device_event(self: Arc<Self>, _kind: rxe_fallback::AsyncKind) {}

    /// For an EP: reports a buffer of its SRQ that was lost when the EP ended.
    fn buffer_lost(self: Arc<Self>, _lost: Lost) {}

    /// For an EP: waits until the device has read the buffers of its datagrams. See
    /// [`Device::finish_sends`](super::Device::finish_sends).
    fn finish_sends(self: Arc<Self>) {}
}

#[derive(Debug)]
struct Entry {
    member: Weak<dyn Member>,
    /// The counter that was incremented at its creation.
    counted: Option<IaCounter>,
}

impl std::fmt::Debug for dyn Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Member")
    }
}

/// The number of members of each class for which there is room from the start: a connection has up
/// to three EVDs, and the IA has one.
const FIRST: usize = 4;

type Tables = [ByNumber<u64, Entry>; 8];

#[derive(Debug)]
pub(crate) struct Registry(Mutex<{ rank::TABLE }, Tables>);

impl Registry {
    /// Without members, and with room for the first of each class.
    pub(super) fn new() -> Result<Self> {
        let mut tables = Tables::default();
        tables.iter_mut().try_for_each(|table| table.try_reserve(FIRST))?;
        Ok(Self(Mutex::new(tables)))
    }

    /// Adds a member under a number that is unique within the class. If no member had the number,
    /// `new` runs under the lock, so that [`Registry::count`] sees both changes or none.
    ///
    /// # Errors
    /// No memory for the table; the member was not added.
    pub(crate) fn add<M: Member + 'static>(
        &self,
        class: Class,
        id: u64,
        member: &Arc<M>,
        counted: Option<IaCounter>,
        new: impl FnOnce(),
    ) -> Result<()> {
        fork::know(member)?;
        let member: Weak<M> = Arc::downgrade(member);
        let entry = Entry { member, counted };
        let mut tables = self.0.lock().unwrap();
        let table = &mut tables[class as usize];
        if let Some(place) = table.get_mut(&id) {
            *place = entry;
            return Ok(());
        }
        table.try_reserve(1)?;
        table.insert(id, entry);
        new();
        Ok(())
    }

    pub(crate) fn remove(&self, class: Class, id: u64) {
        self.0.lock().unwrap()[class as usize].remove(&id);
    }

    pub(crate) fn find(&self, class: Class, id: u64) -> Option<Arc<dyn Member>> {
        self.0.lock().unwrap()[class as usize].get(&id)?.member.upgrade()
    }

    /// Counts the members of each class. `more` runs under the same lock.
    pub(crate) fn count(&self, more: impl FnOnce()) -> Counts {
        let tables = self.0.lock().unwrap();
        more();
        let of = |class: Class| {
            let mut kinds = Vec::new();
            // Only service points have several counters of creation.
            if class == Class::ServicePoint {
                kinds.extend(tables[class as usize].values().filter_map(|entry| entry.counted));
            }
            (tables[class as usize].len(), kinds)
        };
        Counts(Class::ALL.map(of))
    }

    /// The number of members of a class.
    pub(crate) fn len(&self, class: Class) -> usize {
        self.0.lock().unwrap()[class as usize].len()
    }

    pub(crate) fn contains(&self, class: Class, id: u64) -> bool {
        self.0.lock().unwrap()[class as usize].contains_key(&id)
    }

    /// Calls `f`, without the lock, with each present member of a class.
    pub(crate) fn each(&self, class: Class, f: impl FnMut(Arc<dyn Member>)) {
        each_of(&self.0, |tables| &tables[class as usize], |entry| entry.member.upgrade(), f);
    }

    /// Closes all members, class by class. At the start, the members of all classes but EPs are
    /// removed from the tables. EPs stay, because LAST_WQE_REACHED events still have to find them.
    pub(crate) fn close_all(&self) {
        let mut tables = self.0.lock().unwrap();
        let taken = Class::ALL.map(|class| match class {
            Class::Ep => ByNumber::default(),
            _ => std::mem::take(&mut tables[class as usize]),
        });
        drop(tables);
        for (class, table) in Class::ALL.into_iter().zip(taken) {
            if class == Class::Ep {
                self.each(class, Member::ia_closed);
            }
            table.values().filter_map(|entry| entry.member.upgrade()).for_each(Member::ia_closed);
        }
    }
}

/// The numbers of members, from [`Registry::count`].
pub(crate) struct Counts([(usize, Vec<IaCounter>); 8]);

impl Counts {
    /// The number of members of a class.
    pub(crate) fn of(&self, class: Class) -> usize {
        self.0[class as usize].0
    }

    /// The number of service points whose creation incremented one of these counters.
    pub(crate) fn service_points(&self, kinds: &[IaCounter]) -> usize {
        self.0[Class::ServicePoint as usize].1.iter().filter(|kind| kinds.contains(kind)).count()
    }
}

/// Calls `f` with each value that `of` returns for the entries of a table, without the table's
/// lock. If there is memory for a list of the values, locks once; otherwise locks once for each
/// entry, in the order of their numbers.
pub(super) fn each_of<const RANK: u8, L, E, T>(
    locked: &Mutex<RANK, L>,
    table: impl Fn(&L) -> &ByNumber<u64, E>,
    of: impl Fn(&E) -> Option<T>,
    mut f: impl FnMut(T),
) {
    let guard = locked.lock().unwrap();
    if table(&guard).is_empty() {
        return;
    }
    if let Ok(mut all) = list(table(&guard).len()) {
        all.extend(table(&guard).values().filter_map(of));
        drop(guard);
        all.into_iter().for_each(f);
        return;
    }
    drop(guard);
    let mut from = 0;
    loop {
        let guard = locked.lock().unwrap();
        let table = table(&guard);
        let Some(&number) = table.keys().filter(|&&number| number >= from).min() else { return };
        let found = table.get(&number).and_then(&of);
        drop(guard);
        found.into_iter().for_each(&mut f);
        let Some(next) = number.checked_add(1) else { return };
        from = next;
    }
}
