//! The choice between the two data paths, and what has made it.

/// The data path of an IA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// By libibverbs.
    Verbs,
    /// By `mlx5-direct`.
    Direct,
}

impl DataPath {
    /// Whether `mlx5-direct` drives the queues.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Direct)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Direct => "direct",
        }
    }
}

/// A queue on one of the paths.
#[derive(Debug)]
pub(crate) enum OnPath<D, V> {
    Verbs(V),
    Direct(D),
}

impl<D, V> OnPath<D, V> {
    #[inline(always)]
    pub(crate) fn path(&self) -> DataPath {
        match self {
            Self::Verbs(_) => DataPath::Verbs,
            Self::Direct(_) => DataPath::Direct,
        }
    }

    #[inline(always)]
    pub(super) fn direct_mut(&mut self) -> Option<&mut D> {
        match self {
            Self::Direct(queue) => Some(queue),
            Self::Verbs(_) => None,
        }
    }

    #[inline(always)]
    pub(super) fn verbs_mut(&mut self) -> Option<&mut V> {
        match self {
            Self::Verbs(queue) => Some(queue),
            Self::Direct(_) => None,
        }
    }
}
