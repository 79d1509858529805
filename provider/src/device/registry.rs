//! The objects of a device, by class and number: to be found by events of the device, to be closed
//! in order, and to be counted. What they are, only they know.

use crate::datapath::Lost;
use crate::fork::{self, Inherit};
use crate::memory::list;
use crate::sync::{Mutex, rank};
use crate::{IaCounter, Result};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Kinds of objects, in the order in which the close of an IA closes them (R274).
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
    /// Its IA is closed.
    fn ia_closed(self: Arc<Self>);

    /// An asynchronous event of the device about its verbs object.
    fn device_event(self: Arc<Self>, _kind: rxe_fallback::AsyncKind) {}

    /// Of an EP: it has ended with this buffer of its SRQ, which no completion tells of.
    fn buffer_lost(self: Arc<Self>, _lost: Lost) {}

    /// Memory is about to be deregistered. Sends whose completion nobody has to wait for leave it
    /// first.
    fn finish_sends(self: Arc<Self>) {}
}

#[derive(Debug)]
struct Entry {
    member: Weak<dyn Member>,
    /// What it was counted as when it was made.
    counted: Option<IaCounter>,
}

impl std::fmt::Debug for dyn Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Member")
    }
}

type Tables = [HashMap<u64, Entry>; 8];

#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<{ rank::TABLE }, Tables>);

impl Registry {
    /// Puts a member in, under a number that is its own within the class. `new` runs under the
    /// lock if no member had that number: whoever looks at the counts sees both changes or none.
    ///
    /// # Errors
    /// No memory for the table; the member is not found then.
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

    /// How many members each class has, and how many of them were counted as each of `kinds`.
    /// `more` runs under the same lock.
    pub(crate) fn count(&self, more: impl FnOnce()) -> Counts {
        let tables = self.0.lock().unwrap();
        more();
        let of = |class: Class| {
            let mut kinds = Vec::new();
            // Only service points have more than one kind.
            if class == Class::ServicePoint {
                kinds.extend(tables[class as usize].values().filter_map(|entry| entry.counted));
            }
            (tables[class as usize].len(), kinds)
        };
        Counts(Class::ALL.map(of))
    }

    pub(crate) fn contains(&self, class: Class, id: u64) -> bool {
        self.0.lock().unwrap()[class as usize].contains_key(&id)
    }

    /// Calls `f` with each member of a class that there is now, without the lock.
    pub(crate) fn each(&self, class: Class, f: impl FnMut(Arc<dyn Member>)) {
        each_of(&self.0, |tables| &tables[class as usize], |entry| entry.member.upgrade(), f);
    }

    /// Tells all members, class by class. Those of most classes are not found from the beginning.
    /// EPs are: each has to hear from the device that it has taken its last buffer.
    pub(crate) fn close_all(&self) {
        let mut tables = self.0.lock().unwrap();
        let taken = Class::ALL.map(|class| match class {
            Class::Ep => HashMap::new(),
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

/// Numbers of members, as [`Registry::count`] found them.
pub(crate) struct Counts([(usize, Vec<IaCounter>); 8]);

impl Counts {
    /// Members of a class.
    pub(crate) fn of(&self, class: Class) -> usize {
        self.0[class as usize].0
    }

    /// Service points that were counted as one of these.
    pub(crate) fn service_points(&self, kinds: &[IaCounter]) -> usize {
        self.0[Class::ServicePoint as usize].1.iter().filter(|kind| kinds.contains(kind)).count()
    }
}

/// Calls `f` with everything that `of` gives for the entries of a table, without the table's lock:
/// all at once where there is memory for a list of them, otherwise one after the other, in the
/// order of their numbers.
pub(super) fn each_of<const RANK: u8, L, E, T>(
    locked: &Mutex<RANK, L>,
    table: impl Fn(&L) -> &HashMap<u64, E>,
    of: impl Fn(&E) -> Option<T>,
    mut f: impl FnMut(T),
) {
    let guard = locked.lock().unwrap();
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
